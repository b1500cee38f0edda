//! The throughput of the reduce, next to a plain copy of the same bytes in the same run.
//!
//! `cargo bench -p hypha-params --bench reduce -- [millions of parameters] [workers] [repetitions]`
//!
//! For each worker, all fragments are checked as on arrival, then added as when a delta is complete. Digests and staging
//! are not measured. Throughput counts decoded bytes, 4 for each value, whatever the codec; so does the copy. Both use
//! the same number of threads. Without `--bench` it runs tiny, to see that it works.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

use std::env;
use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use hypha_params::{Accumulator, Codec, Encoder, Layout, MemberId, add_fragment, check_fragment};

const THREADS: usize = 2;
const FRAGMENT_VALUES: u32 = 1 << 20;
const MEMBER: MemberId = MemberId([1; 16]);

struct Plan {
    parameters: usize,
    workers: u32,
    repetitions: usize,
}

fn main() {
    let plan = Plan::from_arguments();
    let layout = Layout::new(plan.parameters as u64, FRAGMENT_VALUES).unwrap();
    let bytes = plan.parameters as f64 * 4.0 * f64::from(plan.workers);
    println!(
        "{} workers × {} parameters, {:.2} GB of deltas, {THREADS} threads, median of {}",
        plan.workers,
        plan.parameters,
        bytes / 1e9,
        plan.repetitions
    );
    println!("codec    copy GB/s  reduce GB/s  ratio  least  (check GB/s, add GB/s)");
    let delta = values(plan.parameters);
    let mut target = vec![0.0_f32; plan.parameters];
    let mut accumulator = Accumulator::new(layout);
    for codec in Codec::ALL {
        let payloads = encode(layout, codec, &delta);
        let (mut copies, mut reduces, mut checks, mut adds) = (vec![], vec![], vec![], vec![]);
        // Alternating, so that a change of the machine's speed meets both.
        for _ in 0..plan.repetitions {
            copies.push(measure_copy(&plan, &delta, &mut target));
            accumulator.clear();
            let (check, add) = measure_reduce(&plan, codec, &payloads, &mut accumulator);
            reduces.push(check + add);
            checks.push(check);
            adds.push(add);
        }
        // Of neighbours in time, for the same reason.
        let mut ratios: Vec<f64> = copies
            .iter()
            .zip(&reduces)
            .map(|(copy, reduce)| copy.div_duration_f64(*reduce))
            .collect();
        ratios.sort_by(f64::total_cmp);
        let speed = |times: Vec<Duration>| bytes / median(times).as_secs_f64() / 1e9;
        let (copy, reduce) = (speed(copies), speed(reduces));
        println!(
            "{:<8} {copy:>9.2} {reduce:>12.2} {:>5.1}% {:>5.1}%  ({:.2}, {:.2})",
            codec.to_string(),
            ratios[ratios.len() / 2] * 100.0,
            ratios[0] * 100.0,
            speed(checks),
            speed(adds),
        );
    }
}

impl Plan {
    fn from_arguments() -> Plan {
        let is_bench = env::args().any(|argument| argument == "--bench");
        let mut numbers = env::args().skip(1).filter_map(|argument| argument.parse::<f64>().ok());
        let mut next = |otherwise: f64| numbers.next().unwrap_or(otherwise);
        let millions = next(if is_bench { 100.0 } else { 0.01 });
        let workers = next(if is_bench { 8.0 } else { 2.0 });
        let repetitions = next(if is_bench { 5.0 } else { 1.0 });
        Plan {
            parameters: ((millions * 1e6) as usize).max(1),
            workers: (workers as u32).max(1),
            repetitions: (repetitions as usize).max(1),
        }
    }
}

/// The time of copying a delta once for each worker.
fn measure_copy(plan: &Plan, delta: &[f32], target: &mut [f32]) -> Duration {
    let share = delta.len().div_ceil(THREADS);
    let start = Instant::now();
    for _ in 0..plan.workers {
        thread::scope(|scope| {
            for (target, delta) in target.chunks_mut(share).zip(delta.chunks(share)) {
                scope.spawn(move || target.copy_from_slice(delta));
            }
        });
        black_box(&mut *target);
    }
    start.elapsed()
}

/// The times of checking and of adding a delta for each worker.
fn measure_reduce(
    plan: &Plan,
    codec: Codec,
    payloads: &[Vec<u8>],
    accumulator: &mut Accumulator,
) -> (Duration, Duration) {
    let share = payloads.len().div_ceil(THREADS);
    let layout = accumulator.layout();
    let (mut checking, mut adding) = (Duration::ZERO, Duration::ZERO);
    for worker in 1..=plan.workers {
        let start = Instant::now();
        thread::scope(|scope| {
            for (part, payloads) in payloads.chunks(share).enumerate() {
                scope.spawn(move || {
                    for (fragment, payload) in (part * share..).zip(payloads) {
                        let count = layout.range(fragment as u32).unwrap().len();
                        black_box(check_fragment(codec, payload, count).unwrap());
                    }
                });
            }
        });
        checking += start.elapsed();
        let start = Instant::now();
        let mut parts: Vec<_> = accumulator.fragments_mut().zip(payloads).collect();
        thread::scope(|scope| {
            for parts in parts.chunks_mut(share) {
                scope.spawn(move || {
                    for (sums, payload) in parts {
                        add_fragment(sums, codec, payload, worker).unwrap();
                    }
                });
            }
        });
        adding += start.elapsed();
    }
    black_box(accumulator.sums());
    (checking, adding)
}

fn encode(layout: Layout, codec: Codec, delta: &[f32]) -> Vec<Vec<u8>> {
    let mut encoder = Encoder::new(layout, codec, MEMBER, false);
    let ranges = (0..layout.fragments()).map(|index| (index, layout.range(index).unwrap()));
    ranges
        .map(|(index, range)| {
            encoder.encode(0, 1, index, &delta[range]).unwrap().payload().to_vec()
        })
        .collect()
}

fn values(count: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * 0.01
    };
    (0..count).map(|_| next()).collect()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
