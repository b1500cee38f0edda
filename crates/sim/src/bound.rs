//! A mean latency that no scheduler can go below: that of one machine with the speed of the whole pool, which may
//! interrupt a task at any time and always works on the one with the least left.
//!
//! Such a machine can do whatever a pool does: by working on each task for as large a part of a moment as the
//! pool does. And on one machine, shortest remaining time first has the lowest mean (Schrage 1968). So it is a bound
//! whatever restricts the pool: one worker for a task, no interruptions, requirements, priorities, latency of messages,
//! work lost by failures. It bounds the mean over all tasks, so it does not apply if some of them never completed.
//!
//! A task that is alone there runs at the speed of all workers, which no pool can do. To keep the bound useful
//! under light loads, it is at least what all tasks would take if each had the fastest worker for itself.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::batching::Batching;
use crate::pool::PoolSpec;
use crate::workload::Request;

/// Times are counted in microseconds, so a run may be that much too short.
const ROUNDING_S: f64 = 1e-6;

/// The least mean latency, in seconds, that any schedule of these requests on this pool can have. Requests are in
/// order of arrival. NaN if there are none.
pub fn least_mean_s(requests: &[Request], pool: &PoolSpec, batching: Batching) -> f64 {
    let top_speed = pool.top_speed();
    let work_s = |request: &Request| (request.run_s - ROUNDING_S * top_speed).max(0.0);
    let tasks = requests.iter().map(|request| (request.arrival.as_secs_f64(), work_s(request)));
    let sum_s = shortest_remaining_first(tasks, pool.total_speed() * batching.peak());
    let alone_s = requests.iter().map(|request| work_s(request) / top_speed).sum::<f64>();
    sum_s.max(alone_s) / requests.len() as f64
}

/// The sum of the latencies of tasks, given as arrival and work in the order of arrival, on one machine.
fn shortest_remaining_first(tasks: impl Iterator<Item = (f64, f64)>, speed: f64) -> f64 {
    // Not negative, so that the order of the bits is that of the numbers.
    let mut left: BinaryHeap<Reverse<u64>> = BinaryHeap::new();
    let (mut now, mut sum) = (0.0_f64, 0.0_f64);
    let mut tasks = tasks.peekable();
    loop {
        let arrival = tasks.peek().map_or(f64::INFINITY, |(arrival, _)| *arrival);
        match left.pop() {
            Some(Reverse(shortest)) => {
                let ends = now + f64::from_bits(shortest) / speed;
                // All of these tasks wait until the next event.
                sum += (ends.min(arrival) - now) * (left.len() + 1) as f64;
                if ends > arrival {
                    let rest = f64::from_bits(shortest) - (arrival - now) * speed;
                    left.push(Reverse(rest.max(0.0).to_bits()));
                }
                now = ends.min(arrival);
                if ends > arrival {
                    left.extend(tasks.next().map(|(_, work)| Reverse(work.max(0.0).to_bits())));
                }
            }
            None => match tasks.next() {
                Some((arrival, work)) => {
                    now = arrival;
                    left.push(Reverse(work.max(0.0).to_bits()));
                }
                None => return sum,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hypha_model::{Rng, Span};

    #[track_caller]
    fn check(tasks: &[(f64, f64)], speed: f64, expected: f64) {
        let sum = shortest_remaining_first(tasks.iter().copied(), speed);
        assert!((sum - expected).abs() < 1e-9, "{tasks:?}: {sum}");
    }

    #[test]
    fn shortest_remaining_goes_first() {
        check(&[], 1.0, 0.0);
        check(&[(5.0, 3.0)], 2.0, 1.5);
        // The second interrupts: it takes 1, the first 4 + 1.
        check(&[(0.0, 4.0), (1.0, 1.0)], 1.0, 6.0);
        // It does not: 3 are left of the first, so the second takes 3 + 3.5.
        check(&[(0.0, 4.0), (1.0, 3.5)], 1.0, 4.0 + 6.5);
        // Ends and arrives at once; then a pause.
        check(&[(0.0, 2.0), (2.0, 2.0), (9.0, 1.0)], 1.0, 5.0);
        check(&[(0.0, 3.0), (0.0, 1.0), (0.0, 2.0)], 1.0, 1.0 + 3.0 + 6.0);
        check(&[(0.0, 0.0), (0.0, 1.0)], 1.0, 1.0);
    }

    /// Every order of small tasks one step at a time, by search: none has a smaller sum.
    #[test]
    fn no_preemptive_schedule_is_better() {
        fn least(now: u32, tasks: &[(u32, u32)], left: &mut [u32]) -> u32 {
            if left.iter().all(|left| *left == 0) {
                return 0;
            }
            let there: Vec<usize> =
                (0..tasks.len()).filter(|at| tasks[*at].0 <= now && left[*at] > 0).collect();
            if there.is_empty() {
                return least(now + 1, tasks, left);
            }
            let run = |at: &usize| {
                let mut left = left.to_vec();
                left[*at] -= 1;
                there.len() as u32 + least(now + 1, tasks, &mut left)
            };
            there.iter().map(run).min().unwrap_or_default()
        }
        let mut rng = Rng::new(7);
        for _ in 0..200 {
            let mut tasks: Vec<(u32, u32)> =
                (0..3).map(|_| (rng.below(5) as u32, 1 + rng.below(4) as u32)).collect();
            tasks.sort_unstable();
            let mut left: Vec<u32> = tasks.iter().map(|(_, work)| *work).collect();
            let expected = least(0, &tasks, &mut left);
            let given: Vec<(f64, f64)> =
                tasks.iter().map(|(at, work)| (f64::from(*at), f64::from(*work))).collect();
            check(&given, 1.0, f64::from(expected));
        }
    }

    #[test]
    fn no_task_is_faster_than_on_the_fastest_worker() {
        let request = |at_s: u64, run_s: f64| Request {
            arrival: Span::from_secs(at_s),
            input_tokens: 1,
            output_tokens: 1,
            run_s,
        };
        let pool: PoolSpec = "1x4.0,8x1.0".parse().unwrap();
        let quiet = [request(0, 8.0), request(100, 4.0)];
        let busy = [request(0, 1_200.0), request(0, 1_200.0)];
        let near = |requests: &[Request], batching, expected: f64| {
            let mean_s = least_mean_s(requests, &pool, batching);
            assert!((mean_s - expected).abs() < 1e-4, "{mean_s}, not {expected}");
        };
        near(&quiet, Batching::NONE, 1.5);
        // One after the other at speed 12 would be 100 and 200 s: less than 300 s on the fastest.
        near(&busy, Batching::NONE, 300.0);
        let many = [request(0, 1_200.0); 12];
        near(&many, Batching::NONE, 650.0);
        near(&many, Batching { at_once: 4, slowdown: 1.0 }, 650.0);
        // Four at once that do not slow each other: speed 48.
        near(&many, Batching { at_once: 4, slowdown: 0.0 }, 300.0);
        assert!(least_mean_s(&[], &pool, Batching::NONE).is_nan());
    }
}
