//! The requests that arrive at a pool: synthetic ones or a recorded trace, at a chosen load.
//!
//! All of it repeats for a seed. Sizes, arrivals and noise have a generator each, so a comparison at
//! another load or noise keeps the same requests in the same order.

use std::sync::Arc;

use hypha_model::{Rng, Span};

use crate::arrivals;
use crate::trace::Trace;

/// How long a request runs alone on a worker of speed 1; a worker of speed s is s times as fast.
///
/// The defaults are an assumption, not a measurement: the order of magnitude of a 70B-class model on
/// one data-centre GPU server (prompts at thousands of tokens a second, answers at tens). Comparisons
/// between strategies hardly depend on them, absolute latencies do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostModel {
    /// Before the first token: the time until the request reaches the executor.
    pub overhead_s: f64,
    /// Prompt tokens a second; they are read in parallel.
    pub prefill_tokens_per_s: f64,
    /// Answer tokens a second; they are written one after the other.
    pub decode_tokens_per_s: f64,
}

impl Default for CostModel {
    fn default() -> CostModel {
        CostModel { overhead_s: 0.02, prefill_tokens_per_s: 4000.0, decode_tokens_per_s: 40.0 }
    }
}

impl CostModel {
    /// Seconds at speed 1, before noise.
    pub fn base_s(&self, input_tokens: u32, output_tokens: u32) -> f64 {
        let prefill_s = f64::from(input_tokens) / self.prefill_tokens_per_s;
        let decode_s = f64::from(output_tokens) / self.decode_tokens_per_s;
        self.overhead_s + prefill_s + decode_s
    }
}

/// One request of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// Time since the start of the run.
    pub arrival: Span,
    /// Tokens of the prompt.
    pub input_tokens: u32,
    /// Tokens of the answer.
    pub output_tokens: u32,
    /// The true run time at speed 1 in seconds, noise included. Unknown to every scheduler.
    pub run_s: f64,
}

/// Where requests come from. The synthetic ones have prompts of 1 to 1999 tokens and answers of
/// [`Workload::MEAN_OUTPUT_TOKENS`] on average (the order of the Azure conversation trace), so the
/// answer carries about 95 % of the run time and gives it its distribution.
#[derive(Clone, Debug, PartialEq)]
pub enum Workload {
    /// Poisson arrivals, exponential answers.
    Poisson,
    /// Poisson arrivals; 90 % short answers, 10 % ten times as long.
    Bimodal,
    /// Poisson arrivals; answers from a Pareto distribution with α = 1.5, cut at 1000 times the least.
    Pareto,
    /// Exponential answers; alternately no arrivals for 20 s, then five times the mean rate for 5 s.
    Burst,
    /// The sizes and the arrival pattern of a recording.
    Trace(Arc<Trace>),
}

impl Workload {
    /// How many synthetic requests `tasks = 0` means: enough for a p99 from two hundred values.
    pub const DEFAULT_TASKS: usize = 20_000;
    /// The mean length of a synthetic answer.
    pub const MEAN_OUTPUT_TOKENS: f64 = 200.0;

    /// The requests of a run in order of arrival.
    ///
    /// The arrivals are stretched so that the offered load is exactly `load`, for each seed: the sum of
    /// `run_s` is `load` × `total_speed` × duration, which ends with the last request of a trace or where
    /// the next synthetic one would arrive. (Poisson arrivals stay Poisson, given number and duration.)
    /// If they cannot be stretched, because a trace has one moment or a number is not positive, all requests
    /// arrive at once.
    ///
    /// `noise` is the σ of a lognormal factor on the run time with *mean* 1: it widens run times without
    /// adding work, and the cost model stays the best estimate of a mean. Below zero counts as zero.
    ///
    /// `tasks` is the number of requests; of a trace the first ones, or all if it has fewer. Zero means
    /// all of a trace, else [`Workload::DEFAULT_TASKS`].
    pub fn requests(
        &self,
        seed: u64,
        total_speed: f64,
        load: f64,
        noise: f64,
        tasks: usize,
    ) -> Vec<Request> {
        let mut rng = Rng::new(seed);
        let (mut size_rng, mut arrival_rng, mut noise_rng) = (rng.fork(), rng.fork(), rng.fork());
        let count = self.count(tasks);
        let sigma = noise.max(0.0);
        let cost = CostModel::default();
        let mut requests: Vec<Request> = Vec::with_capacity(count);
        for index in 0..count {
            let (input_tokens, output_tokens) = self.size(index, &mut size_rng);
            let factor = (sigma * noise_rng.normal() - sigma * sigma / 2.0).exp();
            let run_s = cost.base_s(input_tokens, output_tokens) * factor;
            requests.push(Request { arrival: Span::ZERO, input_tokens, output_tokens, run_s });
        }
        let work_s: f64 = requests.iter().map(|request| request.run_s).sum();
        let duration_s = work_s / (total_speed * load);
        if duration_s > 0.0 && duration_s.is_finite() {
            let moments = self.moments(count, duration_s / count as f64, &mut arrival_rng);
            let end = moments.last().copied().unwrap_or(0.0);
            let stretch = if end > 0.0 { duration_s / end } else { 0.0 };
            for (request, moment) in requests.iter_mut().zip(moments) {
                request.arrival = Span::from_secs_f64(moment * stretch);
            }
        }
        requests
    }

    fn count(&self, tasks: usize) -> usize {
        match (self, tasks) {
            (Workload::Trace(trace), 0) => trace.rows().len(),
            (Workload::Trace(trace), tasks) => tasks.min(trace.rows().len()),
            (_, 0) => Workload::DEFAULT_TASKS,
            (_, tasks) => tasks,
        }
    }

    /// When requests arrive, before stretching: `count` moments and the end of the run.
    fn moments(&self, count: usize, mean_gap_s: f64, rng: &mut Rng) -> Vec<f64> {
        match self {
            Workload::Poisson | Workload::Bimodal | Workload::Pareto => {
                arrivals::poisson(count, rng)
            }
            Workload::Burst => arrivals::bursts(count, mean_gap_s, rng),
            Workload::Trace(trace) => arrivals::recorded(count, trace),
        }
    }

    /// Prompt and answer tokens of the next request.
    fn size(&self, index: usize, rng: &mut Rng) -> (u32, u32) {
        let mean = Workload::MEAN_OUTPUT_TOKENS;
        let output = match self {
            Workload::Poisson | Workload::Burst => mean * rng.exponential(),
            Workload::Bimodal => {
                // 0.9 · short + 0.1 · 10 · short is the mean.
                let short = mean / 1.9;
                if rng.chance(0.1) { 10.0 * short } else { short }
            }
            Workload::Pareto => {
                // ∫ min(x, cap) of the density from 1 is 3 - 2 / √cap at α = 1.5.
                let least = mean / (3.0 - 2.0 / PARETO_CAP.sqrt());
                least * (1.0 - rng.unit()).powf(-1.0 / 1.5).min(PARETO_CAP)
            }
            Workload::Trace(trace) => {
                let row = trace.rows()[index];
                return (row.input_tokens, row.output_tokens);
            }
        };
        let input = 1 + rng.below(MAX_INPUT_TOKENS);
        (input as u32, output.round().max(1.0) as u32)
    }
}

const MAX_INPUT_TOKENS: u64 = 1999;
const PARETO_CAP: f64 = 1000.0;

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Workload; 4] =
        [Workload::Poisson, Workload::Bimodal, Workload::Pareto, Workload::Burst];

    fn trace(rows: &[&str]) -> Workload {
        let text = format!("TIMESTAMP,ContextTokens,GeneratedTokens\n{}", rows.join("\n"));
        Workload::Trace(Arc::new(Trace::parse(&text).unwrap_or_else(|error| panic!("{error}"))))
    }

    fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
        let count = values.len() as f64;
        values.sum::<f64>() / count
    }

    /// The square of deviation over mean: 1 for an exponential distribution.
    fn scv(values: &[f64]) -> f64 {
        let average = mean(values.iter().copied());
        mean(values.iter().map(|value| (value / average - 1.0).powi(2)))
    }

    #[track_caller]
    fn check_about(what: &str, actual: f64, expected: f64, tolerance: f64) {
        let off = (actual / expected - 1.0).abs();
        assert!(off <= tolerance, "{what}: {actual}, expected about {expected}");
    }

    #[test]
    fn a_seed_repeats_arrivals_are_in_order_and_the_load_is_offered() {
        for workload in ALL {
            for (seed, load, noise) in [(1, 0.5, 0.0), (2, 0.9, 0.3), (3, 1e-9, 2.0)] {
                let requests = workload.requests(seed, 12.0, load, noise, 5000);
                assert_eq!(requests, workload.requests(seed, 12.0, load, noise, 5000));
                assert_ne!(requests, workload.requests(seed + 9, 12.0, load, noise, 5000));
                assert!(requests.is_sorted_by_key(|request| request.arrival));
                assert!(requests.iter().all(|request| request.run_s > 0.0));
                let work_s: f64 = requests.iter().map(|request| request.run_s).sum();
                let duration_s = requests[4999].arrival.as_secs_f64();
                check_about(&format!("{workload:?}"), work_s / (12.0 * duration_s), load, 0.02);
            }
        }
    }

    #[test]
    fn load_and_noise_change_nothing_else() {
        for workload in ALL {
            let of = |load, noise| workload.requests(7, 3.0, load, noise, 100);
            let sizes = |requests: &[Request]| -> Vec<_> {
                requests.iter().map(|r| (r.input_tokens, r.output_tokens)).collect()
            };
            assert_eq!(sizes(&of(0.5, 0.0)), sizes(&of(0.9, 0.4)));
            let runs =
                |requests: &[Request]| -> Vec<_> { requests.iter().map(|r| r.run_s).collect() };
            assert_eq!(runs(&of(0.5, 0.4)), runs(&of(0.9, 0.4)));
            assert_ne!(runs(&of(0.5, 0.0)), runs(&of(0.5, 0.4)));
        }
    }

    #[test]
    fn a_longer_run_begins_like_a_shorter_one() {
        let of = |tasks| Workload::Pareto.requests(7, 3.0, 0.8, 0.3, tasks);
        let (short, long) = (of(50), of(100));
        let stretch = long[0].arrival.as_secs_f64() / short[0].arrival.as_secs_f64();
        for (short, long) in short.iter().zip(&long) {
            assert_eq!((short.output_tokens, short.run_s), (long.output_tokens, long.run_s));
            let expected = short.arrival.as_secs_f64() * stretch;
            check_about("arrival", long.arrival.as_secs_f64(), expected, 1e-3);
        }
    }

    #[test]
    fn only_bursts_have_pauses() {
        for workload in ALL {
            let requests = workload.requests(7, 12.0, 0.8, 0.3, 2000);
            let pause = |pair: &[Request]| pair[1].arrival - pair[0].arrival > Span::from_secs(10);
            let pauses = requests.windows(2).filter(|pair| pause(pair)).count();
            // 2000 · 5.3 s of work, at 0.8 · 12, take 1100 s: 44 times 25 s.
            let expected = if workload == Workload::Burst { 40..=47 } else { 0..=0 };
            assert!(expected.contains(&pauses), "{workload:?}: {pauses}");
        }
    }

    #[test]
    fn sizes_have_their_distribution() {
        let check = |workload: Workload, spread: f64, tolerance: f64| {
            let requests = workload.requests(5, 1.0, 0.8, 0.0, 200_000);
            let outputs: Vec<f64> = requests.iter().map(|r| f64::from(r.output_tokens)).collect();
            check_about(&format!("{workload:?} mean"), mean(outputs.iter().copied()), 200.0, 0.03);
            check_about(&format!("{workload:?} spread"), scv(&outputs), spread, tolerance);
        };
        check(Workload::Poisson, 1.0, 0.02);
        check(Workload::Burst, 1.0, 0.02);
        // (0.9 · 1 + 0.1 · 100) / 1.9² - 1.
        check(Workload::Bimodal, 2.019, 0.02);
        // E[min(X, 1000)²] = 4 · √1000 - 3, over the squared mean, less 1; samples converge slowly.
        check(Workload::Pareto, 13.3, 0.2);
        let pareto = Workload::Pareto.requests(5, 1.0, 0.8, 0.0, 200_000);
        let (least, most) = (
            pareto.iter().map(|r| r.output_tokens).min(),
            pareto.iter().map(|r| r.output_tokens).max(),
        );
        assert_eq!((least, most), (Some(68), Some(68_102)));
    }

    #[test]
    fn noise_has_mean_one() {
        let quiet = Workload::Poisson.requests(5, 1.0, 0.8, 0.0, 100_000);
        let noisy = Workload::Poisson.requests(5, 1.0, 0.8, 0.5, 100_000);
        let factors: Vec<f64> = noisy.iter().zip(&quiet).map(|(n, q)| n.run_s / q.run_s).collect();
        check_about("mean", mean(factors.iter().copied()), 1.0, 0.01);
        // √(σ² + (σ² / 2)²): the logarithm has the mean -σ² / 2.
        check_about("sigma", mean(factors.iter().map(|f| f.ln().powi(2))).sqrt(), 0.5154, 0.01);
        for none in [0.0, -1.0, f64::NAN] {
            assert_eq!(Workload::Poisson.requests(5, 1.0, 0.8, none, 100_000), quiet);
        }
    }

    #[test]
    fn a_trace_keeps_its_pattern() {
        let rows =
            ["2023-11-16 00:00:00,4000,40", "2023-11-16 00:00:01,0,0", "2023-11-16 00:00:04,0,78"];
        let requests = trace(&rows).requests(1, 2.0, 0.5, 0.0, 0);
        let seconds = |requests: &[Request]| -> Vec<f64> {
            requests.iter().map(|r| r.arrival.as_secs_f64()).collect()
        };
        let runs: Vec<f64> = requests.iter().map(|r| r.run_s).collect();
        assert_eq!(runs, [2.02, 0.02, 1.97]);
        // 4.01 s of work at half of speed 2 take 4.01 s.
        assert_eq!(seconds(&requests), [0.0, 1.0025, 4.01]);
        assert_eq!(seconds(&trace(&rows).requests(1, 2.0, 0.5, 0.0, 2)), [0.0, 2.04]);
        assert_eq!(trace(&rows).requests(1, 2.0, 0.5, 0.0, 9), requests);
        let runs = |seed| trace(&rows).requests(seed, 2.0, 0.5, 0.1, 0)[0].run_s;
        assert_ne!(runs(1), runs(2));
    }

    #[test]
    fn requests_that_cannot_be_stretched_arrive_at_once() {
        let at_once = |requests: Vec<Request>| requests.iter().all(|r| r.arrival == Span::ZERO);
        assert!(at_once(trace(&["2023-11-16 00:00:00,1,1"]).requests(1, 1.0, 0.5, 0.0, 0)));
        for workload in ALL {
            for (speed, load) in [(1.0, 0.0), (0.0, 1.0), (1.0, -1.0), (f64::NAN, 1.0)] {
                assert!(at_once(workload.requests(1, speed, load, 0.0, 10)));
            }
            assert_eq!(workload.requests(1, 1.0, 1.0, 0.0, 0).len(), Workload::DEFAULT_TASKS);
        }
    }
}
