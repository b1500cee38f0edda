//! Comparisons with priorities, requirements, several tasks at once and failures, and the bound under all of them.

use std::sync::Arc;

use hypha_model::{Priority, Rng, Span};
use hypha_placement::Strategy;
use hypha_sim::batching::Batching;
use hypha_sim::compare::{Comparison, FailureRates, measure};
use hypha_sim::mix::{Mix, Shares};
use hypha_sim::oracle::oracle;
use hypha_sim::trace::Trace;
use hypha_sim::workload::Workload;

use crate::compare::{comparison, mean_ms};

fn priorities(shares: &str) -> Mix {
    Mix { priorities: Shares::of_priorities(shares).unwrap(), ..Mix::default() }
}

fn needs(shares: &str) -> Mix {
    Mix { needs: Shares::of_needs(shares).unwrap(), ..Mix::default() }
}

/// Requests with these answers, all of which arrive at once.
fn at_once(answers: &[u32]) -> Workload {
    let rows: String =
        answers.iter().map(|answer| format!("2023-11-16 00:00:00,0,{answer}\n")).collect();
    let text = format!("TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}");
    Workload::Trace(Arc::new(Trace::parse(&text).unwrap()))
}

/// Without noise, 40 tokens take a second and 20 ms.
fn seconds(answer: u32) -> f64 {
    0.02 + f64::from(answer) / 40.0
}

/// Whether tasks of these answers on one worker of speed 1 take that long, in milliseconds.
#[track_caller]
fn check_batch(answers: &[u32], batching: Batching, expected_s: &[f64]) {
    let workload = at_once(answers);
    let batch = Comparison { noise: 0.0, batching, ..comparison(workload, "1x1.0", 0) };
    let measures = measure(&batch, Strategy::Fifo, 1.0, 1).unwrap().measures;
    let mean_ms = expected_s.iter().sum::<f64>() * 1e3 / expected_s.len() as f64;
    let max_ms = expected_s.iter().copied().fold(0.0, f64::max) * 1e3;
    let is_near = |found: f64, expected: f64| (found - expected).abs() < 0.01;
    assert!(is_near(measures.latency.mean_ms, mean_ms), "{measures:?}, expected {mean_ms}");
    assert!(is_near(measures.latency.max_ms, max_ms), "{measures:?}, expected {max_ms}");
    // All work was done, and no more.
    let work_s: f64 = answers.iter().map(|answer| seconds(*answer)).sum();
    let utilisation = work_s / (batching.peak() * max_ms / 1e3);
    assert!((measures.utilisation - utilisation).abs() < 1e-4, "{measures:?}, {utilisation}");
}

#[test]
fn tasks_at_once_slow_each_other_while_they_run() {
    let (one, two) = (seconds(40), seconds(80));
    let alone = Batching { at_once: 1, slowdown: 0.5 };
    check_batch(&[40, 80], alone, &[one, one + two]);
    let free = Batching { at_once: 2, slowdown: 0.0 };
    check_batch(&[40, 80], free, &[one, two]);
    // Both at two thirds of the speed; then the remainder of the longer one, alone.
    let half = Batching { at_once: 2, slowdown: 0.5 };
    check_batch(&[40, 80], half, &[1.5 * one, 1.5 * one + (two - one)]);
    // The third begins when the first ends, and slows the second again: together until the second ends.
    let first = 1.5 * one;
    let second = first + 1.5 * (two - one);
    let third = second + (two - (two - one));
    check_batch(&[40, 80, 80], half, &[first, second, third]);
    // Three at half of the speed; they share the worker in the end.
    let three = Batching { at_once: 3, slowdown: 0.5 };
    check_batch(&[80, 80, 80], three, &[2.0 * two; 3]);
}

/// With a = 1 all tasks share one worker, whose mean is known whatever their sizes: E[S] / (1 - load).
#[test]
fn shared_worker_matches_theory() {
    let batching = Batching { at_once: 256, slowdown: 1.0 };
    for workload in [Workload::Poisson, Workload::Bimodal] {
        let shared = Comparison { batching, ..comparison(workload.clone(), "1x1.0", 20_000) };
        let (mut measured_s, mut expected_s) = (0.0, 0.0);
        for seed in 1..=4 {
            let requests = workload.requests(seed, 1.0, 0.5, 0.2, 20_000);
            let mean_s = requests.iter().map(|r| r.run_s).sum::<f64>() / 20_000.0;
            expected_s += mean_s / (1.0 - 0.5);
            measured_s += mean_ms(&shared, Strategy::Fifo, 0.5, seed) / 1e3;
        }
        let ratio = measured_s / expected_s;
        assert!((0.95..1.05).contains(&ratio), "{workload:?}: {ratio}");
    }
}

#[test]
fn high_priorities_wait_less_where_the_strategy_uses_them() {
    let mix = priorities("0.1:10,0.2:-1");
    let busy = Comparison { mix, ..comparison(Workload::Poisson, "4x1.0", 4_000) };
    let levels = |strategy| {
        let levels = measure(&busy, strategy, 1.2, 1).unwrap().levels;
        assert_eq!(levels.len(), 3);
        [10_000, 0, -1_000].map(|thousandths| {
            let of = |level: &&(Priority, _)| level.0 == Priority::from_milli(thousandths);
            levels.iter().find(of).unwrap().1.mean_ms
        })
    };
    let [high, usual, low] = levels(Strategy::Priority);
    assert!(high * 5.0 < usual && usual < low, "{high} {usual} {low}");
    let [high, usual, low] = levels(Strategy::Fifo);
    assert!((0.9..1.1).contains(&(high / usual)), "{high} {usual}");
    assert!((0.9..1.1).contains(&(low / usual)), "{low} {usual}");
    let one_level = Comparison { mix: priorities("1:5"), ..busy };
    assert_eq!(measure(&one_level, Strategy::Fifo, 0.5, 1).unwrap().levels, []);
}

#[test]
fn tasks_run_where_their_needs_are_met() {
    let pool = "1x1.0:8GB,2x1.0,1x1.0:8GB:2gpu";
    let used = |shares: &str| {
        let needy = Comparison { mix: needs(shares), ..comparison(Workload::Poisson, pool, 1_000) };
        let measures = measure(&needy, Strategy::ShortestQueue, 0.2, 1).unwrap().measures;
        // Jain's index of n that are equally busy among four.
        measures.fairness * 4.0
    };
    assert!((0.99..1.01).contains(&used("1:1gpu")));
    assert!((1.9..2.05).contains(&used("1:8GB")));
    assert!((3.5..4.05).contains(&used("0.01:8GB")));
    // A need that no worker can satisfy would wait forever.
    let unmet = Comparison { mix: needs("0.1:3gpu"), ..comparison(Workload::Poisson, pool, 10) };
    assert!(measure(&unmet, Strategy::Fifo, 0.2, 1).is_err());
    // Memory is booked: of four that run at once, as many as fit.
    let mix = needs("1:4GB");
    let batching = Batching { at_once: 4, slowdown: 0.0 };
    let four = Comparison { noise: 0.0, mix, batching, ..comparison(at_once(&[40; 4]), pool, 0) };
    let narrow = Comparison { pool: "1x1.0:8GB".parse().unwrap(), ..four.clone() };
    let max_ms =
        |it: &Comparison| measure(it, Strategy::Fifo, 1.0, 1).unwrap().measures.latency.max_ms;
    assert!((max_ms(&four) - 1e3 * seconds(40)).abs() < 0.01, "{}", max_ms(&four));
    assert!((max_ms(&narrow) - 2e3 * seconds(40)).abs() < 0.01, "{}", max_ms(&narrow));
}

#[test]
fn failures_cost_time_and_are_counted() {
    let well = comparison(Workload::Poisson, "4x1.0", 4_000);
    let with = |executor_errors: f64, deaths_per_hour: f64| {
        let failures = FailureRates { executor_errors, deaths_per_hour };
        let failing = Comparison { failures, ..well.clone() };
        measure(&failing, Strategy::default(), 0.5, 1).unwrap().measures
    };
    let quiet = with(0.0, 0.0);
    assert_eq!(quiet.failed, 0.0);
    let errors = with(0.2, 0.0);
    // Three attempts: all of them fail for one task in 125.
    assert!((0.004..0.012).contains(&errors.failed), "{errors:?}");
    // Failed attempts have run: 1 + 0.2 + 0.04 runs for each task.
    let runs = errors.utilisation / quiet.utilisation;
    assert!((1.15..1.3).contains(&runs), "{runs}");
    assert!(errors.bound_ratio.is_nan(), "no bound where tasks are missing: {errors:?}");
    let deaths = with(0.0, 20.0);
    assert!(deaths.latency.mean_ms > 1.05 * quiet.latency.mean_ms, "{deaths:?} {quiet:?}");
    assert!(deaths.failed < 0.01, "{deaths:?}");
    let nothing = with(1.0, 0.0);
    assert_eq!(nothing.failed, 1.0);
    assert!(nothing.latency.mean_ms.is_nan() && nothing.bound_ratio.is_nan());
}

/// No strategy, with any predictor input, has a mean below the bound.
#[test]
fn no_strategy_goes_below_the_bound() {
    let workloads = [Workload::Poisson, Workload::Bimodal, Workload::Pareto, Workload::Burst];
    let pools = ["1x1.0:8GB:1gpu", "1x4.0:8GB:1gpu,6x1.0", "3x0.01:8GB,2x100:8GB:1gpu"];
    let mut rng = Rng::new(1);
    let mut bounded = 0;
    for round in 0..60 {
        let mut one_of = |count: usize| rng.below(count as u64) as usize;
        let mix = Mix {
            priorities: Shares::of_priorities(["0.1:10", "0.5:-3,0.5:2"][one_of(2)]).unwrap(),
            needs: Shares::of_needs(["0.1:1gpu", "0.5:3GB,0.1:8GB:1gpu"][one_of(2)]).unwrap(),
        };
        let all = Strategy::all();
        let strategy = all[one_of(all.len())];
        let workload = workloads[one_of(4)].clone();
        let options = Comparison {
            mix: if one_of(2) == 0 { mix } else { Mix::default() },
            batching: Batching {
                at_once: [1, 2, 16][one_of(3)],
                slowdown: [0.0, 0.1, 1.0, 2.0][one_of(4)],
            },
            failures: FailureRates {
                executor_errors: [0.0, 0.0, 0.001][one_of(3)],
                deaths_per_hour: [0.0, 0.0, 1.0][one_of(3)],
            },
            latency: Span::from_millis([0, 0, 20][one_of(3)]),
            noise: [0.0, 0.2, 1.0][one_of(3)],
            ..comparison(workload, pools[one_of(3)], 400)
        };
        let load = [0.01, 0.3, 0.8, 3.0][one_of(4)];
        let runs = [measure(&options, strategy, load, round), oracle(&options, load, round)];
        for run in runs.map(|run| run.unwrap().measures) {
            if run.bound_ratio.is_finite() {
                assert!(run.bound_ratio >= 1.0, "{strategy} {load} {round}: {run:?}\n{options:?}");
                bounded += 1;
            }
        }
    }
    assert!(bounded > 90, "only {bounded} of 120 runs have a bound");
}

/// One worker, no noise, the shortest first, and all tasks at once: the bound is tight.
#[test]
fn the_bound_is_reached_where_it_can_be() {
    let all = at_once(&[40; 50]);
    let best = Comparison { noise: 0.0, ..comparison(all, "1x2.0", 0) };
    let measures = measure(&best, Strategy::Fifo, 1.0, 1).unwrap().measures;
    assert!((1.0..1.0001).contains(&measures.bound_ratio), "{measures:?}");
}
