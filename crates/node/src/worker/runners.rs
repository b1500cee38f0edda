//! What runs a task: the executors of the configuration.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use hypha_backends::Answer;
use hypha_config::{ExecutorConfig, ProgramConfig, Runtime, ServerConfig};
use hypha_engine::{Dispatch, Outcome, RunId};
use hypha_executor::{
    Confinement, Event as Told, Executor, Job, Launcher, Limits, Outcome as JobOutcome, Process,
    ProcessConfig,
};
use hypha_model::{FailureKind, Name, SchedulerId, TaskError};
use hypha_net::PeerId;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::cores::Cores;
use super::driver::Event;
use super::flow::Flow;
use super::objects::Uploads;
use super::watched::Watched;
use crate::NodeError;

/// The subcommand of this program that starts tasks' programs.
pub const LAUNCHER: &str = "launch-task";

/// All executors, in the order of the configuration.
pub(super) struct Runners {
    runners: Vec<Runner>,
    cores: Mutex<Cores>,
    uploads: Uploads,
}

struct Runner {
    kind: Kind,
    /// The model of a task that names none.
    model: Name,
}

enum Kind {
    Local(Executor),
    Server(Watched),
}

/// Stops a run.
pub(super) struct Stopper(CancellationToken);

impl Stopper {
    pub(super) fn stop(&self) {
        self.0.cancel();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.0.is_cancelled()
    }
}

impl Runners {
    /// What is noticed of servers goes to `events`.
    pub(super) fn open(
        executors: &[ExecutorConfig],
        data_dir: &Path,
        uploads: Uploads,
        events: &mpsc::Sender<Event>,
    ) -> Result<Runners, NodeError> {
        let runners = executors
            .iter()
            .enumerate()
            .map(|(at, config)| {
                let kind = match &config.runtime {
                    Runtime::Builtin => Kind::Local(Executor::Builtin),
                    Runtime::Process(program) => {
                        Kind::Local(Executor::Process(process(config, program, data_dir)?))
                    }
                    Runtime::Http(server) => {
                        let server = self::server(server)?;
                        Kind::Server(Watched::start(server, at, config.name.clone(), events))
                    }
                };
                let model = config.models.first().unwrap_or(&config.name).clone();
                Ok(Runner { kind, model })
            })
            .collect::<Result<_, NodeError>>()?;
        Ok(Runners { runners, cores: Mutex::new(Cores::of_this_machine()), uploads })
    }

    /// A scheduler is known by this id: large results go to it.
    pub(super) fn know(&self, id: SchedulerId, peer: PeerId) {
        self.uploads.know(id, peer);
    }

    /// The outcome of what takes no time.
    pub(super) fn run_at_once(&self, executor: usize, dispatch: &Dispatch) -> Option<Outcome> {
        let runner = self.runners.get(executor)?;
        let Kind::Local(local) = &runner.kind else { return None };
        if dispatch.spec.stream {
            return None;
        }
        let job = runner.job(dispatch, Vec::new(), Vec::new());
        match local.run_at_once(&job)? {
            JobOutcome::Completed { payload } if self.uploads.is_large(&payload) => None,
            outcome => Some(outcome_of(outcome)),
        }
    }

    /// Begins a run; what comes of it goes to `events`.
    pub(super) fn start(
        self: Arc<Self>,
        id: RunId,
        executor: usize,
        dispatch: Arc<Dispatch>,
        devices: Vec<u32>,
        events: mpsc::Sender<Event>,
    ) -> Stopper {
        let cancel = CancellationToken::new();
        let stopper = Stopper(cancel.clone());
        tokio::spawn(async move {
            let outcome = match self.runners.get(executor).map(|runner| (&runner.kind, runner)) {
                None => failed("the worker has no such executor"),
                Some((Kind::Local(local), runner)) => {
                    let cpus = self.take_cores(&dispatch);
                    let job = runner.job(&dispatch, devices, cpus.clone());
                    let outcome = run(local, job, id, &events, &cancel).await;
                    self.give_back(&cpus);
                    outcome
                }
                Some((Kind::Server(watched), runner)) => match watched.problem() {
                    // Nothing was tried, and whoever gave it hears when the server is well again.
                    Some(problem) => Outcome::Unreached { error: problem },
                    None => call(watched, runner, &dispatch, id, &events, &cancel).await,
                },
            };
            let outcome = self.uploads.shrink(id, &dispatch, outcome, &cancel).await;
            let _ = events.send(Event::Ended(id, outcome)).await;
        });
        stopper
    }

    /// Ends everything that runs.
    pub(super) async fn stop(&self) {
        for runner in &self.runners {
            if let Kind::Local(local) = &runner.kind {
                local.stop().await;
            }
        }
    }

    fn take_cores(&self, dispatch: &Dispatch) -> Vec<usize> {
        let wanted = dispatch.spec.requirement.cpu_milli.div_ceil(1_000);
        let mut cores = self.cores.lock().unwrap_or_else(PoisonError::into_inner);
        cores.take(usize::try_from(wanted).unwrap_or(usize::MAX))
    }

    fn give_back(&self, taken: &[usize]) {
        self.cores.lock().unwrap_or_else(PoisonError::into_inner).give_back(taken);
    }
}

impl Runner {
    fn job(&self, dispatch: &Dispatch, devices: Vec<u32>, cpus: Vec<usize>) -> Job {
        let requirement = &dispatch.spec.requirement;
        Job {
            id: dispatch.attempt,
            model: requirement.model.as_ref().unwrap_or(&self.model).clone(),
            input: dispatch.spec.input.clone(),
            form: dispatch.spec.form,
            devices,
            cpus,
            memory_bytes: (requirement.memory_bytes > 0).then_some(requirement.memory_bytes),
            stream: dispatch.spec.stream,
        }
    }
}

async fn run(
    executor: &Executor,
    job: Job,
    id: RunId,
    events: &mpsc::Sender<Event>,
    cancel: &CancellationToken,
) -> Outcome {
    let mut running = executor.start(job);
    let canceller = running.canceller();
    let mut flow = Flow::new(id, events);
    loop {
        tokio::select! {
            // In this order: what is held goes when nothing more is at hand.
            biased;
            () = cancel.cancelled() => {
                canceller.cancel();
                break;
            }
            told = running.next() => match told {
                Some(Told::Progress(permille)) => {
                    flow.flush().await;
                    let _ = events.send(Event::Progressed(id, permille)).await;
                }
                Some(Told::Output(piece)) => flow.add(&piece).await,
                None => break,
            },
            () = std::future::ready(()), if flow.holds() => flow.flush().await,
        }
    }
    flow.flush().await;
    let ended = running.outcome();
    tokio::pin!(ended);
    let outcome = tokio::select! {
        outcome = &mut ended => outcome,
        () = cancel.cancelled() => {
            canceller.cancel();
            ended.await
        }
    };
    outcome_of(outcome)
}

async fn call(
    watched: &Watched,
    runner: &Runner,
    dispatch: &Dispatch,
    id: RunId,
    events: &mpsc::Sender<Event>,
    cancel: &CancellationToken,
) -> Outcome {
    let spec = &dispatch.spec;
    let model = spec.requirement.model.as_ref().unwrap_or(&runner.model);
    let calling = async {
        let mut call = watched.server.start(Some(model), spec.form, &spec.input, spec.stream);
        if spec.stream {
            let mut flow = Flow::new(id, events);
            loop {
                tokio::select! {
                    biased;
                    piece = call.next() => match piece {
                        Some(piece) => flow.add(&piece).await,
                        None => break,
                    },
                    () = std::future::ready(()), if flow.holds() => flow.flush().await,
                }
            }
            flow.flush().await;
        }
        match call.answer().await {
            Answer::Completed { payload } => Outcome::Completed { result: payload.into() },
            Answer::Failed(error) => Outcome::Failed(error),
            Answer::Unreached { error } => {
                watched.was_not_reached(&error).await;
                Outcome::Unreached { error }
            }
        }
    };
    tokio::select! {
        outcome = calling => outcome,
        // Dropping the call hangs up.
        () = cancel.cancelled() => failed(STOPPED),
    }
}

fn outcome_of(outcome: JobOutcome) -> Outcome {
    match outcome {
        JobOutcome::Completed { payload } => Outcome::Completed { result: payload.into() },
        JobOutcome::Failed(failure) => Outcome::Failed(failure.into()),
        JobOutcome::Cancelled => failed(STOPPED),
    }
}

/// Seldom read: what is cancelled is not waited for.
const STOPPED: &str = "the run was stopped";

fn failed(error: &str) -> Outcome {
    Outcome::Failed(TaskError::new(FailureKind::WorkerFailed, error))
}

fn process(
    config: &ExecutorConfig,
    program: &ProgramConfig,
    data_dir: &Path,
) -> Result<Process, NodeError> {
    let usual = Limits::default();
    let given = &program.limits;
    let in_memory = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
    let limits = Limits {
        memory_bytes: given.memory_bytes.or(usual.memory_bytes),
        file_bytes: given.file_bytes.or(usual.file_bytes),
        open_files: given.open_files.map_or(usual.open_files, u64::from),
        processes: given.processes.map_or(usual.processes, u64::from),
        result_bytes: given.result_bytes.map_or(usual.result_bytes, in_memory),
        output_bytes: given.output_bytes.map_or(usual.output_bytes, in_memory),
        grace: given.grace.unwrap_or(usual.grace),
        ..usual
    };
    let concurrency = usize::try_from(config.concurrency).unwrap_or(usize::MAX);
    let process = ProcessConfig {
        launcher: Launcher::this_program(LAUNCHER),
        command: program.cmd.clone(),
        args: program.args.clone(),
        environment: program.environment.0.clone(),
        warm: program.warm.then(|| concurrency.try_into().ok()).flatten(),
        work_root: data_dir.join("work").join(config.name.as_str()),
        read: program.read.clone(),
        write: program.write.clone(),
        confinement: match program.confinement {
            hypha_config::Confinement::Required => Confinement::Required,
            hypha_config::Confinement::BestEffort => Confinement::BestEffort,
        },
        limits,
    };
    Process::open(process).map_err(NodeError::failed)
}

fn server(config: &ServerConfig) -> Result<hypha_backends::Server, NodeError> {
    let server = hypha_backends::ServerConfig {
        health_path: config.health_path.clone(),
        api_key: config.api_key_file.as_deref().map(crate::settings::secret).transpose()?,
        ..hypha_backends::ServerConfig::new(
            config.url.clone(),
            crate::settings::format_of(config.format),
        )
    };
    hypha_backends::Server::new(server).map_err(NodeError::configuration)
}
