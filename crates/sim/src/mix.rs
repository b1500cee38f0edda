//! What tasks require: shares of them have a priority, and shares of them need memory or GPUs, as people write them.
//! `0.1:10,0.3:1` are 10 % with priority 10 and 30 % with priority 1; the others have priority 0. `0.2:40GB:1gpu` are
//! 20 % that need so much; the others need nothing.
//!
//! Both are drawn for each task, independent of its size and of each other, and repeat for a seed.

use std::fmt;

use hypha_model::amount::parse_priority;
use hypha_model::{Priority, Rng};
use thiserror::Error;

use crate::amounts::Amounts;
use crate::pool::PoolSpec;

/// What tasks require.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mix {
    /// Priorities.
    pub priorities: Shares<Priority>,
    /// Memory and GPUs.
    pub needs: Shares<Amounts>,
}

/// What one task requires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskDemand {
    /// Its priority.
    pub priority: Priority,
    /// What it needs.
    pub needs: Amounts,
}

/// Values with the share of tasks that have each. The remaining tasks have the default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shares<T>(Vec<(f64, T)>);

/// Shares that were refused, on one line.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("part {number} `{part}`: {problem}")]
pub struct MixError {
    /// Which part, from 1.
    number: usize,
    /// As it was written, escaped and cut to one short line.
    part: String,
    problem: InvalidShare,
}

/// Why a part is refused.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
enum InvalidShare {
    #[error("expected SHARE:PRIORITY, e.g. 0.1:10")]
    Priority,
    #[error("expected SHARE:MEMORY, SHARE:GPUS or both, e.g. 0.1:40GB:1gpu")]
    Needs,
    #[error("a share is from 0 to 1")]
    Share,
    #[error("the shares are more than 1 together")]
    Sum,
    #[error("each value is named once, and 0 is what is left")]
    Again,
    #[error("at most {MAX_PARTS} parts are taken")]
    TooMany,
    #[error("no worker of the pool has that; say what workers have, e.g. --pool 6x1.0:80GB:2gpu")]
    NoWorker,
}

/// A table for each level is printed; more would not be readable.
const MAX_PARTS: usize = 16;
/// Shares that are written with a few decimals add up to 1 only approximately.
const ROUNDING: f64 = 1e-9;

impl Mix {
    /// What `count` tasks require.
    pub fn draw(&self, seed: u64, count: usize) -> Vec<TaskDemand> {
        let mut rng = Rng::new(seed ^ SALT);
        let (mut of_priorities, mut of_needs) = (rng.fork(), rng.fork());
        let draw = |_| TaskDemand {
            priority: self.priorities.draw(&mut of_priorities),
            needs: self.needs.draw(&mut of_needs),
        };
        (0..count).map(draw).collect()
    }

    /// Refuses needs that no worker of the pool could ever satisfy.
    pub fn check(&self, pool: &PoolSpec) -> Result<(), MixError> {
        let unmet = self.needs.0.iter().position(|(_, needs)| !pool.has(needs));
        unmet.map_or(Ok(()), |at| {
            let (share, needs) = self.needs.0[at];
            Err(MixError::new(at, &format!("{share}:{needs}"), InvalidShare::NoWorker))
        })
    }
}

/// Separates these draws from those of the workload, which has the same seed.
const SALT: u64 = 0x6d69_785f_6f66_5f74;

impl Shares<Priority> {
    /// Parses `SHARE:PRIORITY` parts.
    pub fn of_priorities(text: &str) -> Result<Shares<Priority>, MixError> {
        Shares::parse(text, InvalidShare::Priority, |value| parse_priority("priority", value).ok())
    }

    /// Every level that a task may have, the highest first.
    pub fn levels(&self) -> Vec<Priority> {
        let mut levels: Vec<Priority> = self.0.iter().map(|(_, level)| *level).collect();
        let left: f64 = 1.0 - self.0.iter().map(|(share, _)| share).sum::<f64>();
        if left > ROUNDING {
            levels.push(Priority::default());
        }
        levels.sort_unstable_by(|a, b| b.cmp(a));
        levels
    }
}

impl Shares<Amounts> {
    /// Parses `SHARE:MEMORY:GPUS` parts; one of the two is enough.
    pub fn of_needs(text: &str) -> Result<Shares<Amounts>, MixError> {
        Shares::parse(text, InvalidShare::Needs, Amounts::parse)
    }
}

impl<T: Copy + Default + PartialEq> Shares<T> {
    fn parse(
        text: &str,
        shape: InvalidShare,
        value_of: impl Fn(&str) -> Option<T>,
    ) -> Result<Shares<T>, MixError> {
        let mut shares: Vec<(f64, T)> = Vec::new();
        let mut sum = 0.0;
        for (index, part) in text.split(',').map(str::trim).enumerate() {
            let refused = |problem| MixError::new(index, part, problem);
            let (share, value) = part.split_once(':').ok_or(refused(shape))?;
            let share: f64 = share.parse().map_err(|_| refused(shape))?;
            let value = value_of(value).ok_or(refused(shape))?;
            if !(0.0..=1.0).contains(&share) {
                return Err(refused(InvalidShare::Share));
            }
            if value == T::default() || shares.iter().any(|(_, other)| *other == value) {
                return Err(refused(InvalidShare::Again));
            }
            sum += share;
            if sum > 1.0 + ROUNDING {
                return Err(refused(InvalidShare::Sum));
            }
            if index >= MAX_PARTS {
                return Err(refused(InvalidShare::TooMany));
            }
            shares.push((share, value));
        }
        Ok(Shares(shares))
    }

    fn draw(&self, rng: &mut Rng) -> T {
        let mut drawn = rng.unit();
        for (share, value) in &self.0 {
            drawn -= share;
            if drawn < 0.0 {
                return *value;
            }
        }
        T::default()
    }
}

impl MixError {
    fn new(index: usize, part: &str, problem: InvalidShare) -> MixError {
        const ENOUGH_TO_RECOGNISE: usize = 40;
        let part = part.chars().take(ENOUGH_TO_RECOGNISE).flat_map(char::escape_debug).collect();
        MixError { number: index + 1, part, problem }
    }
}

/// A priority as people write it.
pub(crate) struct Level(pub(crate) Priority);

impl Level {
    pub(crate) fn number(&self) -> f64 {
        self.0.as_f64()
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, is_refused_for: &str) {
        let priorities = Shares::of_priorities(text).map_err(|error| error.to_string());
        assert_eq!(priorities.err().as_deref(), Some(is_refused_for), "{text:?}");
    }

    #[test]
    fn refusals_name_the_part() {
        let shape = "expected SHARE:PRIORITY, e.g. 0.1:10";
        check("", &format!("part 1 ``: {shape}"));
        check("0.1:10,0.2", &format!("part 2 `0.2`: {shape}"));
        check("0.1:high", &format!("part 1 `0.1:high`: {shape}"));
        check("a\n:1", &format!("part 1 `a\\n:1`: {shape}"));
        check("1.1:1", "part 1 `1.1:1`: a share is from 0 to 1");
        check("NaN:1", "part 1 `NaN:1`: a share is from 0 to 1");
        check("0.6:1,0.6:2", "part 2 `0.6:2`: the shares are more than 1 together");
        let again = "each value is named once, and 0 is what is left";
        check("0.1:1,0.1:1.0", &format!("part 2 `0.1:1.0`: {again}"));
        check("0.1:0", &format!("part 1 `0.1:0`: {again}"));
        let many: Vec<String> = (1..=17).map(|level| format!("0.01:{level}")).collect();
        check(&many.join(","), "part 17 `0.01:17`: at most 16 parts are taken");
        let needs = Shares::of_needs("0.5:8GB,0.1:40").map_err(|error| error.to_string());
        let shape = "expected SHARE:MEMORY, SHARE:GPUS or both, e.g. 0.1:40GB:1gpu";
        assert_eq!(needs, Err(format!("part 2 `0.1:40`: {shape}")));
    }

    #[test]
    fn needs_that_no_worker_can_satisfy_are_refused() {
        let mix = |needs: &str| Mix { needs: Shares::of_needs(needs).unwrap(), ..Mix::default() };
        let pool: PoolSpec = "1x4:80GB,6x1.0:24GB:1gpu".parse().unwrap();
        assert_eq!(mix("0.1:80GB,0.1:24GB:1gpu").check(&pool), Ok(()));
        let why = mix("0.1:8GB,0.2:40GB:1gpu").check(&pool).map_err(|error| error.to_string());
        let expected = "part 2 `0.2:40GB:1gpu`: no worker of the pool has that; say what workers have, e.g. --pool 6x1.0:80GB:2gpu";
        assert_eq!(why, Err(expected.to_owned()));
    }

    #[test]
    fn demands_follow_their_shares_and_are_independent() {
        let mix = Mix {
            priorities: Shares::of_priorities("0.1:10,0.3:-1.5").unwrap(),
            needs: Shares::of_needs("0.5:8GB").unwrap(),
        };
        let levels: Vec<String> =
            mix.priorities.levels().iter().map(|level| Level(*level).to_string()).collect();
        assert_eq!(levels, ["10", "0", "-1.5"]);
        assert_eq!(Shares::of_priorities("0.7:2,0.3:1").unwrap().levels().len(), 2);
        let demands = mix.draw(1, 100_000);
        assert_eq!(demands, mix.draw(1, 100_000));
        assert_ne!(demands, mix.draw(2, 100_000));
        let share =
            |is: fn(&&TaskDemand) -> bool| demands.iter().filter(is).count() as f64 / 100_000.0;
        let near = |share: f64, expected: f64| (share - expected).abs() < 0.005;
        assert!(near(share(|wish| wish.priority == Priority::from_milli(10_000)), 0.1));
        assert!(near(share(|wish| wish.priority == Priority::from_milli(-1_500)), 0.3));
        assert!(near(share(|wish| wish.needs.memory_bytes == 8_000_000_000), 0.5));
        let both =
            |wish: &&TaskDemand| wish.priority > Priority::default() && wish.needs.memory_bytes > 0;
        assert!(near(share(both), 0.05));
        assert_eq!(Mix::default().draw(1, 2), [TaskDemand::default(); 2]);
    }
}
