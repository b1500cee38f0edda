//! A workload on a pool under each strategy: how long tasks take, queueing included.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use hypha_engine::{Command, Image, NewTask, Settings};
use hypha_model::{
    Executor, ExecutorClass, Metadata, Money, Name, Payload, Priority, Requirement, Span, TaskSpec,
    TaskState, Time, Worker,
};
use hypha_placement::Strategy;
use hypha_predict::{LookupTable, Mode, ORACLE_RUN_S};
use thiserror::Error;

use crate::batching::Batching;
use crate::bound::least_mean_s;
use crate::checkers::{Promise, Violation};
use crate::mix::{Mix, MixError, TaskDemand};
use crate::network::{Clock, Network};
use crate::pool::{PoolSpec, WorkerSpec};
use crate::report::{Latency, MeasuredRun, Measures};
use crate::stats::jain_index;
use crate::workload::{Request, Workload};
use crate::world::{Arrivals, FaultProbabilities, FaultSchedule, START, Setup, WorkerSetup, World};
use crate::{deaths, oracle};

/// What is compared.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// What arrives.
    pub workload: Workload,
    /// The workers.
    pub pool: PoolSpec,
    /// What the predictor knows of a request.
    pub predictor_input: PredictorInput,
    /// One sigma of the lognormal noise that no predictor can foresee.
    pub noise: f64,
    /// How many tasks; zero is all of a trace, or the usual number.
    pub tasks: usize,
    /// How long a message takes.
    pub latency: Span,
    /// Predict from this table instead of from observed runs.
    pub table: Option<LookupTable>,
    /// What tasks require.
    pub mix: Mix,
    /// How many tasks run at once on a worker, and how that slows them.
    pub batching: Batching,
    /// The faults of the run.
    pub failures: FailureRates,
}

/// How often which fault occurs. The scheduler retries as it does by default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FailureRates {
    /// The share of runs that end with an error although they would have succeeded. All of them may be retried.
    pub executor_errors: f64,
    /// How often a worker dies with all that it runs, while tasks arrive. It restarts after a minute.
    pub deaths_per_hour: f64,
}

impl FailureRates {
    /// Once a minute: a worker that dies more often is down more than it works.
    pub const MAX_DEATHS_PER_HOUR: f64 = 60.0;

    fn is_none(&self) -> bool {
        self.executor_errors == 0.0 && self.deaths_per_hour == 0.0
    }
}

/// What the predictor knows of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PredictorInput {
    /// Both token counts.
    #[default]
    InputOutput,
    /// The prompt's only: the length of the answer is unknown.
    Input,
    /// Nothing.
    Nothing,
    /// The true run time, and the speed of each worker: the oracle.
    Truth,
}

/// Not one of the choices.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("metadata: `{0}`: use one of input,output | input | none")]
pub struct UnknownPredictorInput(String);

impl FromStr for PredictorInput {
    type Err = UnknownPredictorInput;
    fn from_str(text: &str) -> Result<PredictorInput, UnknownPredictorInput> {
        match text {
            "input,output" => Ok(PredictorInput::InputOutput),
            "input" => Ok(PredictorInput::Input),
            "none" => Ok(PredictorInput::Nothing),
            other => Err(UnknownPredictorInput(other.escape_debug().to_string())),
        }
    }
}

impl fmt::Display for PredictorInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PredictorInput::InputOutput => "input,output",
            PredictorInput::Input => "input",
            PredictorInput::Nothing => "none",
            PredictorInput::Truth => "truth",
        })
    }
}

/// Runs one strategy once. `oracle_ratio` is not known here and stays NaN.
pub fn measure(
    comparison: &Comparison,
    strategy: Strategy,
    load: f64,
    seed: u64,
) -> Result<MeasuredRun, Violation> {
    let Comparison {
        workload, pool, noise, tasks, predictor_input, batching, failures, mix, ..
    } = comparison;
    // Otherwise the run would never end.
    let unmet = |error: MixError| Violation {
        promise: Promise::NothingLost,
        what: format!("needs that no worker can satisfy: {error}"),
    };
    mix.check(pool).map_err(unmet)?;
    let peak_speed = pool.total_speed() * batching.peak();
    let requests = workload.requests(seed, peak_speed, load, *noise, *tasks);
    let last = requests.last().map_or(Span::ZERO, |request| request.arrival);
    let least_mean_s = least_mean_s(&requests, pool, *batching);
    let requests = Requests::new(comparison, requests, seed);
    let demands = requests.demands.clone();
    let machines = pool.worker_specs().enumerate();
    let mut world = World::new(Setup {
        seed,
        settings: vec![settings(strategy)],
        image: if *predictor_input == PredictorInput::Truth {
            oracle::image(pool)
        } else {
            Image::default()
        },
        commands: comparison.table.iter().flat_map(use_table).collect(),
        workers: machines.map(|(at, machine)| worker(at, machine, comparison)).collect(),
        arrivals: Box::new(requests),
        network: Network { latency: comparison.latency, ..Network::PERFECT },
        fault_schedule: fault_schedule(failures, seed, pool.workers(), last),
        market: None,
        thorough: false,
        log: false,
    });
    world.run(Time::MAX)?;
    let end = world.now().since(START).max(last);
    world.drain(Time::MAX)?;
    let failed = failed(&world, demands.len(), failures)?;
    let busy: Vec<f64> = world.busy().iter().map(|busy| busy.as_secs_f64()).collect();
    let work_s = world.work_s();
    let work_s: f64 = work_s.iter().zip(pool.speeds()).map(|(work_s, speed)| work_s * speed).sum();
    let latencies = world.checkers().latencies();
    let latency = Latency::of(latencies.iter().flatten().copied().collect());
    let bound_ms = if failed == 0 { least_mean_s * 1e3 } else { f64::NAN };
    let measures = Measures {
        latency,
        utilisation: work_s / (peak_speed * end.as_secs_f64()).max(1e-9),
        fairness: jain_index(&busy),
        failed: failed as f64 / demands.len().max(1) as f64,
        oracle_ratio: f64::NAN,
        bound_ratio: latency.mean_ms / bound_ms,
    };
    Ok(MeasuredRun { measures, levels: by_priority(mix, &demands, &latencies) })
}

/// How many tasks failed permanently; none may, and none may be missing, if there are no faults.
fn failed(world: &World, all: usize, failures: &FailureRates) -> Result<usize, Violation> {
    let completed = world.checkers().count(TaskState::Completed);
    let failed = if failures.is_none() { 0 } else { world.checkers().count(TaskState::Failed) };
    if completed + failed != all {
        let what = format!("{completed} of {all} tasks completed and {failed} failed");
        return Err(Violation { promise: Promise::NothingLost, what });
    }
    Ok(failed)
}

/// The latencies of the tasks of each priority, if there are several.
fn by_priority(
    mix: &Mix,
    demands: &[TaskDemand],
    latencies: &[Option<Span>],
) -> Vec<(Priority, Latency)> {
    let levels = mix.priorities.levels();
    if levels.len() < 2 {
        return Vec::new();
    }
    let of = |level: Priority| {
        let all = demands.iter().zip(latencies);
        let same = all.filter(|(wish, _)| wish.priority == level);
        (level, Latency::of(same.filter_map(|(_, latency)| *latency).collect()))
    };
    levels.into_iter().map(of).collect()
}

fn fault_schedule(
    failures: &FailureRates,
    seed: u64,
    workers: usize,
    until: Span,
) -> FaultSchedule {
    FaultSchedule {
        faults: deaths::draw(seed, workers, failures.deaths_per_hour, until),
        probabilities: FaultProbabilities {
            executor_error: failures.executor_errors,
            errors_are_retried: true,
            ..FaultProbabilities::default()
        },
        ..FaultSchedule::default()
    }
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

fn worker(at: usize, machine: WorkerSpec, comparison: &Comparison) -> WorkerSetup {
    let WorkerSpec { speed, has } = machine;
    let executor = name("sim").map(|name| Executor {
        class: ExecutorClass::Inference,
        name,
        models: Vec::new(),
        concurrency: comparison.batching.at_once,
    });
    WorkerSetup {
        worker: Arc::new(Worker {
            id: WorkerSetup::id(at),
            capacity: has.capacity(),
            executors: executor.into_iter().collect(),
            // The hardware is unknown: speeds are learned, except by the oracle.
            hardware: (comparison.predictor_input == PredictorInput::Truth)
                .then(|| oracle::hardware(speed))
                .flatten(),
            region: None,
            price: Money::ZERO,
        }),
        speed,
        batch_slowdown: comparison.batching.slowdown,
        clock: Clock::new(START, Span::ZERO, 1.0),
        known_to: vec![0],
        mutant: None,
        back_end: None,
        terms: hypha_engine::Terms::default(),
        owner: hypha_engine::OwnerState::default(),
    }
}

/// The tasks of a run.
pub(crate) struct Requests {
    requests: Vec<Request>,
    demands: Vec<TaskDemand>,
    predictor_input: PredictorInput,
    model: Option<Name>,
}

impl Requests {
    pub(crate) fn new(comparison: &Comparison, requests: Vec<Request>, seed: u64) -> Requests {
        let demands = comparison.mix.draw(seed, requests.len());
        Requests {
            requests,
            demands,
            predictor_input: comparison.predictor_input,
            model: name("model"),
        }
    }
}

impl Arrivals for Requests {
    fn count(&self) -> usize {
        self.requests.len()
    }

    fn at(&self, index: usize) -> Time {
        START + Span::from_micros(1) + self.requests[index].arrival
    }

    fn task(&self, index: usize) -> NewTask {
        let TaskDemand { priority, needs } = self.demands[index];
        let requirement =
            Requirement { model: self.model.clone(), priority, ..Requirement::default() };
        let spec = TaskSpec {
            requirement: needs.of(requirement),
            input: Payload::from((index as u32).to_le_bytes().as_slice()),
            metadata: metadata(&self.requests[index], self.predictor_input),
            ..TaskSpec::default()
        };
        NewTask {
            spec: Arc::new(spec),
            idempotency_key: None,
            bind_at_once: false,
            stored: true,
            quota: None,
            weight: None,
        }
    }

    fn run_s(&self, index: usize) -> f64 {
        self.requests[index].run_s
    }
}

/// What the predictor knows of a request.
pub(crate) fn metadata(request: &Request, predictor_input: PredictorInput) -> Metadata {
    let input = ("input_tokens", f64::from(request.input_tokens));
    let output = ("output_tokens", f64::from(request.output_tokens));
    match predictor_input {
        PredictorInput::InputOutput => Metadata::of_numbers(&[input, output]),
        PredictorInput::Input => Metadata::of_numbers(&[input]),
        PredictorInput::Nothing => Metadata::default(),
        PredictorInput::Truth => Metadata::of_numbers(&[(ORACLE_RUN_S, request.run_s)]),
    }
}
