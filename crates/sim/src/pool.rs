//! The machines of a simulation, as people write them: `1x4.0,1x2.0,6x1.0` is one worker of speed 4,
//! one of speed 2 and six of speed 1. `6x1.0:24GB:1gpu` gives each of the six that memory and GPU.

use std::fmt;
use std::str::FromStr;

use hypha_predict::MAX_HARDWARE;
use thiserror::Error;

use crate::amounts::Amounts;

/// Groups of equal workers, in the order in which they were written.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolSpec {
    groups: Vec<Group>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Group {
    count: usize,
    machine: WorkerSpec,
}

/// One worker of a pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkerSpec {
    /// How fast it is.
    pub speed: f64,
    /// Its memory and GPUs.
    pub has: Amounts,
}

/// A pool that was refused, on one line.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PoolError {
    /// The text is empty.
    #[error("pool: empty: write COUNTxSPEED parts, e.g. 1x4.0,6x1.0")]
    Empty,
    /// More than [`PoolSpec::MAX_PARTS`].
    #[error("pool: at most {max} parts are taken", max = PoolSpec::MAX_PARTS)]
    TooManyParts,
    /// One part, counted from 1, is invalid.
    #[error("pool: part {number} `{part}`: {problem}")]
    Part {
        /// Which part, from 1.
        number: usize,
        /// The part as it was written, escaped and cut to one short line.
        part: String,
        /// Why it is refused.
        problem: InvalidPart,
    },
}

/// Why a part of a pool is refused.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum InvalidPart {
    /// Not of the form `6x1.0`.
    #[error("expected COUNTxSPEED, e.g. 6x1.0")]
    Shape,
    /// The text after the speed is not memory or GPUs.
    #[error("after the speed, expected what each worker has, e.g. 6x1.0:24GB or 6x1.0:24GB:1gpu")]
    Amounts,
    /// An empty group.
    #[error("a count is at least 1")]
    NoWorkers,
    /// This part brings the pool over [`PoolSpec::MAX_WORKERS`].
    #[error("a pool has at most {max} workers", max = PoolSpec::MAX_WORKERS)]
    TooManyWorkers,
    /// Zero, negative, NaN, infinite or out of range.
    #[error("a speed is from {min} to {max}", min = PoolSpec::MIN_SPEED, max = PoolSpec::MAX_SPEED)]
    Speed,
}

impl PoolSpec {
    /// Ten times the largest pool that was ever requested; the simulator's memory grows with it.
    pub const MAX_WORKERS: usize = 1_000_000;
    /// The oracle distinguishes that many speeds.
    pub const MAX_PARTS: usize = MAX_HARDWARE;
    /// A worker slower than this beside one of speed 1 does no useful work, and run times overflow.
    pub const MIN_SPEED: f64 = 0.001;
    /// Above this a run time falls below the microsecond that time is counted in.
    pub const MAX_SPEED: f64 = 1_000.0;

    /// The workers, in the order in which they were written.
    pub fn worker_specs(&self) -> impl Iterator<Item = WorkerSpec> {
        self.groups.iter().flat_map(|group| std::iter::repeat_n(group.machine, group.count))
    }

    /// The speed of each worker, in the order in which they were written.
    pub fn speeds(&self) -> Vec<f64> {
        self.worker_specs().map(|machine| machine.speed).collect()
    }

    /// The speed of the fastest worker.
    pub fn top_speed(&self) -> f64 {
        self.groups.iter().map(|group| group.machine.speed).fold(0.0, f64::max)
    }

    /// Whether some worker has at least this.
    pub fn has(&self, wanted: &Amounts) -> bool {
        self.groups.iter().any(|group| wanted.fit(&group.machine.has))
    }

    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.groups.iter().map(|group| group.count).sum()
    }

    /// The sum of all speeds: seconds of work (at speed 1) that the pool does in a second.
    pub fn total_speed(&self) -> f64 {
        self.groups.iter().map(|group| group.count as f64 * group.machine.speed).sum()
    }
}

impl FromStr for PoolSpec {
    type Err = PoolError;

    fn from_str(text: &str) -> Result<PoolSpec, PoolError> {
        if text.trim().is_empty() {
            return Err(PoolError::Empty);
        }
        let mut pool = PoolSpec { groups: Vec::new() };
        let mut room = PoolSpec::MAX_WORKERS;
        for (index, part) in text.split(',').map(str::trim).enumerate() {
            let refused =
                |problem| PoolError::Part { number: index + 1, part: shown(part), problem };
            if index >= PoolSpec::MAX_PARTS {
                return Err(PoolError::TooManyParts);
            }
            let group = parse_group(part).map_err(refused)?;
            room = room.checked_sub(group.count).ok_or(refused(InvalidPart::TooManyWorkers))?;
            pool.groups.push(group);
        }
        Ok(pool)
    }
}

fn parse_group(part: &str) -> Result<Group, InvalidPart> {
    let (count, speed) = part.split_once('x').ok_or(InvalidPart::Shape)?;
    if count.is_empty() || !count.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(InvalidPart::Shape);
    }
    // Digits only fail to parse when there are too many.
    let count: usize = count.parse().map_err(|_| InvalidPart::TooManyWorkers)?;
    let (speed, has) = match speed.split_once(':') {
        Some((speed, amounts)) => (speed, Amounts::parse(amounts).ok_or(InvalidPart::Amounts)?),
        None => (speed, Amounts::default()),
    };
    let speed: f64 = speed.parse().map_err(|_| InvalidPart::Shape)?;
    if count == 0 {
        return Err(InvalidPart::NoWorkers);
    }
    if !(PoolSpec::MIN_SPEED..=PoolSpec::MAX_SPEED).contains(&speed) {
        return Err(InvalidPart::Speed);
    }
    Ok(Group { count, machine: WorkerSpec { speed, has } })
}

fn shown(part: &str) -> String {
    const ENOUGH_TO_RECOGNISE: usize = 40;
    part.chars().take(ENOUGH_TO_RECOGNISE).flat_map(char::escape_debug).collect()
}

impl fmt::Display for PoolSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, group) in self.groups.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            // `{:?}` keeps the `.0` of a whole speed, and every digit of the others.
            write!(f, "{comma}{}x{:?}", group.count, group.machine.speed)?;
            if group.machine.has != Amounts::default() {
                write!(f, ":{}", group.machine.has)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let shown = match text.parse::<PoolSpec>() {
            Ok(pool) => {
                format!("{pool}: {} workers, {} in all", pool.workers(), pool.total_speed())
            }
            Err(error) => error.to_string(),
        };
        assert_eq!(shown, expected, "{text:?}");
    }

    #[test]
    fn pools_round_trip_through_text() {
        check("1x4.0,1x2.0,6x1.0", "1x4.0,1x2.0,6x1.0: 8 workers, 12 in all");
        check(" 2x0.5 , 1x1e1 ", "2x0.5,1x10.0: 3 workers, 11 in all");
        check("1x0.001,1x1000", "1x0.001,1x1000.0: 2 workers, 1000.001 in all");
        check("1000000x1", "1000000x1.0: 1000000 workers, 1000000 in all");
        check("2x1:80GB:2gpu,1x2:1gpu", "2x1.0:80GB:2gpu,1x2.0:1gpu: 3 workers, 4 in all");
    }

    #[test]
    fn speeds_keep_their_order() {
        let speeds = "2x0.5,1x4".parse::<PoolSpec>().map(|pool| pool.speeds());
        assert_eq!(speeds, Ok(vec![0.5, 0.5, 4.0]));
    }

    #[test]
    fn refusals_name_the_part() {
        let shape = "expected COUNTxSPEED, e.g. 6x1.0";
        check("1x4.0,6y1.0", &format!("pool: part 2 `6y1.0`: {shape}"));
        check("1x4.0,", &format!("pool: part 2 ``: {shape}"));
        check("-1x1", &format!("pool: part 1 `-1x1`: {shape}"));
        check("+1x1", &format!("pool: part 1 `+1x1`: {shape}"));
        check("1x1x1", &format!("pool: part 1 `1x1x1`: {shape}"));
        check("a\nb", &format!("pool: part 1 `a\\nb`: {shape}"));
        let has =
            "after the speed, expected what each worker has, e.g. 6x1.0:24GB or 6x1.0:24GB:1gpu";
        check("1x1:", &format!("pool: part 1 `1x1:`: {has}"));
        check("1x1,1x1:2", &format!("pool: part 2 `1x1:2`: {has}"));
        check("1x1:big", &format!("pool: part 1 `1x1:big`: {has}"));
        check(&["1x1"; 1_025].join(","), "pool: at most 1024 parts are taken");
        check(" ", "pool: empty: write COUNTxSPEED parts, e.g. 1x4.0,6x1.0");
        check("0x1", "pool: part 1 `0x1`: a count is at least 1");
        for speed in ["0", "-1", "NaN", "inf", "1000.1", "0.0009"] {
            let expected = format!("pool: part 1 `1x{speed}`: a speed is from 0.001 to 1000");
            check(&format!("1x{speed}"), &expected);
        }
    }

    #[test]
    fn the_number_of_workers_is_bounded_over_all_parts() {
        let most = "a pool has at most 1000000 workers";
        check("1x1,1000000x1", &format!("pool: part 2 `1000000x1`: {most}"));
        let digits = "9".repeat(30);
        check(&format!("{digits}x1"), &format!("pool: part 1 `{digits}x1`: {most}"));
    }
}
