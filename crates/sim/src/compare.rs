//! A workload on a pool under each strategy: how long tasks take, queueing included.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use hypha_engine::{Command, Image, NewTask, Settings};
use hypha_model::{
    Capacity, Executor, ExecutorClass, Metadata, Money, Name, Payload, Requirement, Span, TaskSpec,
    TaskState, Time, Worker,
};
use hypha_placement::{Predictive, Strategy};
use hypha_predict::{LookupTable, Mode, Predictor};
use thiserror::Error;

use crate::network::{Clock, Network};
use crate::pool::PoolSpec;
use crate::report::Measures;
use crate::stats::{Summary, jain};
use crate::watch::{Promise, Violation};
use crate::workload::{Request, Workload};
use crate::world::{Arrivals, START, Setup, Timetable, WorkerSetup, World};

/// What is compared.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// What arrives.
    pub workload: Workload,
    /// Who works.
    pub pool: PoolSpec,
    /// What the predictor is told of a request.
    pub told: Told,
    /// One sigma of the lognormal noise that no predictor can foresee.
    pub noise: f64,
    /// How many tasks; zero is all of a trace, or the usual number.
    pub tasks: usize,
    /// How long a message takes.
    pub latency: Span,
    /// Predict from this table instead of from what was learned.
    pub table: Option<LookupTable>,
}

/// What the predictor is told of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Told {
    /// Both token counts.
    #[default]
    InputOutput,
    /// The prompt's alone: the length of the answer is unknown.
    Input,
    /// Nothing.
    Nothing,
    /// The true run time, and the speed of each worker: the oracle.
    Truth,
}

/// Not one of the choices.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("metadata: `{0}`: use one of input,output | input | none")]
pub struct UnknownTold(String);

impl FromStr for Told {
    type Err = UnknownTold;
    fn from_str(text: &str) -> Result<Told, UnknownTold> {
        match text {
            "input,output" => Ok(Told::InputOutput),
            "input" => Ok(Told::Input),
            "none" => Ok(Told::Nothing),
            other => Err(UnknownTold(other.escape_debug().to_string())),
        }
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Told::InputOutput => "input,output",
            Told::Input => "input",
            Told::Nothing => "none",
            Told::Truth => "truth",
        })
    }
}

/// Runs one strategy once. `oracle_ratio` is not known here and left at NaN.
pub fn measure(
    comparison: &Comparison,
    strategy: Strategy,
    load: f64,
    seed: u64,
) -> Result<Measures, Violation> {
    let speeds = comparison.pool.speeds();
    let total_speed = comparison.pool.total_speed();
    let Comparison { workload, noise, tasks, told, .. } = comparison;
    let requests = workload.requests(seed, total_speed, load, *noise, *tasks);
    let count = requests.len();
    let last = requests.last().map_or(Span::ZERO, |request| request.arrival);
    let mut world = World::new(Setup {
        seed,
        settings: vec![settings(strategy)],
        image: if *told == Told::Truth { knowing(&speeds) } else { Image::default() },
        commands: comparison.table.iter().flat_map(use_table).collect(),
        workers: (0..speeds.len()).map(|at| worker(at, speeds[at], *told)).collect(),
        arrivals: Box::new(Requests { requests, told: *told, model: name("model") }),
        network: Network { latency: comparison.latency, ..Network::PERFECT },
        timetable: Timetable::default(),
        thorough: false,
        log: false,
    });
    world.run(Time::MAX)?;
    let end = world.now().since(START).max(last);
    world.drain(Time::MAX)?;
    let (completed, all) = (world.watch().count(TaskState::Completed), count);
    if completed != all {
        let what = format!("{completed} of {all} tasks completed though nothing went wrong");
        return Err(Violation { promise: Promise::NothingLost, what });
    }
    let busy: Vec<f64> = world.busy().iter().map(|busy| busy.as_secs_f64()).collect();
    let worked: f64 = busy.iter().zip(&speeds).map(|(busy, speed)| busy * speed).sum();
    let latency = Summary::of(world.watch().latencies());
    let ms = |part: fn(&Summary) -> Span| {
        latency.as_ref().map_or(f64::NAN, |summary| part(summary).as_millis_f64())
    };
    Ok(Measures {
        mean_ms: ms(|summary| summary.mean),
        p50_ms: ms(|summary| summary.p50),
        p95_ms: ms(|summary| summary.p95),
        p99_ms: ms(|summary| summary.p99),
        utilisation: worked / (total_speed * end.as_secs_f64()).max(1e-9),
        fairness: jain(&busy),
        oracle_ratio: f64::NAN,
    })
}

/// Runs our own strategy once, with every run time and every speed known beforehand.
pub fn oracle(comparison: &Comparison, load: f64, seed: u64) -> Result<Measures, Violation> {
    let knowing = Comparison { told: Told::Truth, table: None, ..comparison.clone() };
    // Who knows everything has nothing to find out.
    let strategy = Predictive { exploration: 0.0, ..Predictive::default() };
    measure(&knowing, Strategy::Predictive(strategy), load, seed)
}

fn settings(strategy: Strategy) -> Settings {
    // Only placement is compared: nothing is refused, and nothing is stopped for taking long.
    Settings {
        strategy,
        max_queue: usize::MAX,
        task_timeout: Span::from_secs(1_000_000_000),
        ..Settings::default()
    }
}

fn use_table(table: &LookupTable) -> [Command; 2] {
    [Command::SetTable(table.clone()), Command::SetMode(Mode::LookupTable)]
}

fn name(text: &str) -> Option<Name> {
    text.parse().ok()
}

fn worker(at: usize, speed: f64, told: Told) -> WorkerSetup {
    let executor = name("sim").map(|name| Executor {
        class: ExecutorClass::Inference,
        name,
        models: Vec::new(),
        concurrency: 1,
    });
    WorkerSetup {
        worker: Arc::new(Worker {
            id: WorkerSetup::id(at),
            capacity: Capacity::default(),
            executors: executor.into_iter().collect(),
            // A pool of strangers: speeds are learned, except by the oracle.
            hardware: (told == Told::Truth).then(|| hardware(speed)).flatten(),
            region: None,
            price: Money::ZERO,
        }),
        speed,
        clock: Clock::new(START, Span::ZERO, 1.0),
        known_to: vec![0],
        mutant: None,
        back_end: None,
    }
}

fn hardware(speed: f64) -> Option<Name> {
    name(&format!("speed {speed}"))
}

/// A store with a predictor that has seen so much of every worker that it knows: given a task's true run
/// time at speed 1, it predicts that of each worker to a few per cent between half a second and ten.
fn knowing(speeds: &[f64]) -> Image {
    const LESSONS: usize = 4_000;
    const LEAST_LESSONS_EACH: usize = 50;
    let mut predictor = Predictor::new(hypha_predict::Settings::default());
    let workers: Vec<_> = (0..speeds.len())
        .map(|at| predictor.add_worker(WorkerSetup::id(at), hardware(speeds[at]).as_ref()))
        .collect();
    for lesson in 0..(LESSONS / speeds.len()).max(LEAST_LESSONS_EACH) {
        for (at, worker) in workers.iter().enumerate() {
            let run_s = 0.2 * 1.01_f64.powi(((200 + 167 * lesson + 31 * at) % 400) as i32);
            let spec = spec(name("model"), 0, Metadata::of_numbers(&[("run_s", run_s)]));
            let query = predictor.query(&spec);
            predictor.observe(&query, *worker, Span::from_secs_f64(run_s / speeds[at]));
        }
    }
    Image { predictor: Some(predictor.snapshot()), ..Image::default() }
}

fn spec(model: Option<Name>, index: usize, metadata: Metadata) -> TaskSpec {
    TaskSpec {
        requirement: Requirement { model, ..Requirement::default() },
        input: Payload::from((index as u32).to_le_bytes().as_slice()),
        metadata,
        ..TaskSpec::default()
    }
}

struct Requests {
    requests: Vec<Request>,
    told: Told,
    model: Option<Name>,
}

impl Arrivals for Requests {
    fn count(&self) -> usize {
        self.requests.len()
    }

    fn at(&self, index: usize) -> Time {
        START + Span::from_micros(1) + self.requests[index].arrival
    }

    fn task(&self, index: usize) -> NewTask {
        let metadata = metadata(&self.requests[index], self.told);
        NewTask {
            spec: Arc::new(spec(self.model.clone(), index, metadata)),
            idempotency_key: None,
            bind_at_once: false,
            stored: true,
            quota: None,
        }
    }

    fn run_s(&self, index: usize) -> f64 {
        self.requests[index].run_s
    }
}

/// What the predictor is told of a request.
pub(crate) fn metadata(request: &Request, told: Told) -> Metadata {
    let input = ("input_tokens", f64::from(request.input_tokens));
    let output = ("output_tokens", f64::from(request.output_tokens));
    match told {
        Told::InputOutput => Metadata::of_numbers(&[input, output]),
        Told::Input => Metadata::of_numbers(&[input]),
        Told::Nothing => Metadata::default(),
        Told::Truth => Metadata::of_numbers(&[("run_s", request.run_s)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_knows_predicts_well() {
        let speeds = [1.0, 1.0, 4.0];
        let image = knowing(&speeds);
        let mut predictor =
            Predictor::restore(hypha_predict::Settings::default(), image.predictor.unwrap());
        for (at, speed) in speeds.iter().enumerate() {
            let worker = predictor.add_worker(WorkerSetup::id(at), hardware(*speed).as_ref());
            for run_s in [0.6, 2.0, 11.0] {
                let spec = spec(name("model"), 0, Metadata::of_numbers(&[("run_s", run_s)]));
                let query = predictor.query(&spec);
                let ratio = predictor.estimate(&query, worker).mean_s * speed / run_s;
                assert!((ratio - 1.0).abs() < 0.1, "worker {at}, {run_s} s: {ratio}");
            }
        }
    }
}
