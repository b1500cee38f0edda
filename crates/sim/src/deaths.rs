//! Workers that die at any time and restart, in a comparison.

use hypha_model::{Rng, Span, Time};

use crate::world::{Fault, Node, START};

/// How long a worker is down: a restarted process that loads its model again.
pub(crate) const DOWNTIME: Span = Span::from_secs(60);
/// More of them would fill the memory; a run with so many says nothing about scheduling.
const MAX_DEATHS: usize = 1_000_000;

/// Deaths of each of `workers` at this rate until a time, and their restarts. Their connections break, so that the
/// scheduler notices. A worker that is down does not die again.
pub(crate) fn draw(seed: u64, workers: usize, per_hour: f64, until: Span) -> Vec<(Time, Fault)> {
    let mut rng = Rng::new(seed ^ SALT);
    let per_second = per_hour * workers as f64 / 3_600.0;
    let mut faults = Vec::new();
    if per_second <= 0.0 {
        return faults;
    }
    let mut at_s = 0.0;
    for _ in 0..MAX_DEATHS {
        at_s += rng.exponential() / per_second;
        if at_s >= until.as_secs_f64() {
            break;
        }
        let at = START + Span::from_secs_f64(at_s);
        let worker = rng.below(workers as u64) as usize;
        faults.push((at, Fault::KillWorker { worker, noticed: true }));
        faults.push((at + DOWNTIME, Fault::Start { node: Node::Worker(worker) }));
    }
    faults
}

/// Separates these draws from those of the workload, which has the same seed.
const SALT: u64 = 0x6465_6174_6873_5f61;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_die_at_the_configured_rate() {
        let hour = Span::from_secs(3_600);
        let faults = draw(1, 100, 5.0, hour);
        let deaths = faults.len() / 2;
        assert!((440..=560).contains(&deaths), "{deaths}");
        assert_eq!(faults, draw(1, 100, 5.0, hour));
        assert_ne!(faults, draw(2, 100, 5.0, hour));
        assert!(draw(1, 100, 0.0, hour).is_empty());
    }
}
