//! Runs attempts on the executors of the configuration.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use hypha_backends::CallOutcome;
use hypha_config::{ExecutorConfig, ProgramConfig, Runtime, ServerConfig};
use hypha_engine::{Dispatch, Outcome, RunId};
use hypha_executor::{
    Attempt, Confinement, Executor, Launcher, Limits, Process, ProcessConfig, RunEvent, RunOutcome,
};
use hypha_model::{FailureKind, Name, SchedulerId, TaskError};
use hypha_net::PeerId;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::cores::Cores;
use super::host::WorkerInput;
use super::monitored::MonitoredBackEnd;
use super::objects::Uploads;
use super::piece_batcher::PieceBatcher;
use crate::NodeError;

/// The subcommand of this program that starts tasks' programs.
pub const LAUNCHER_SUBCOMMAND: &str = "launch-task";

/// All executors, in the order of the configuration.
pub(super) struct Runners {
    runners: Vec<Runner>,
    cores: Mutex<Cores>,
    uploads: Uploads,
}

struct Runner {
    name: Name,
    kind: RunnerKind,
    /// The model of a task that names none.
    model: Name,
}

enum RunnerKind {
    Local(Executor),
    Http(MonitoredBackEnd),
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
    /// Opens the executors. The results of health checks of back ends go to `events`.
    pub(super) fn open(
        executors: &[ExecutorConfig],
        data_dir: &Path,
        uploads: Uploads,
        events: &mpsc::Sender<WorkerInput>,
    ) -> Result<Runners, NodeError> {
        let runners = executors
            .iter()
            .enumerate()
            .map(|(at, config)| {
                let kind = match &config.runtime {
                    Runtime::Builtin => RunnerKind::Local(Executor::Builtin),
                    Runtime::Process(program) => {
                        RunnerKind::Local(Executor::Process(process(config, program, data_dir)?))
                    }
                    Runtime::Http(server) => {
                        let server = self::back_end(server)?;
                        RunnerKind::Http(MonitoredBackEnd::start(
                            server,
                            at,
                            config.name.clone(),
                            events,
                        ))
                    }
                };
                let model = config.models.first().unwrap_or(&config.name).clone();
                Ok(Runner { name: config.name.clone(), kind, model })
            })
            .collect::<Result<_, NodeError>>()?;
        Ok(Runners { runners, cores: Mutex::new(Cores::of_this_machine()), uploads })
    }

    /// What the sandbox of each executor leaves open on this machine.
    pub(super) fn notes(&self) -> Vec<String> {
        self.runners.iter().flat_map(Runner::notes).collect()
    }

    /// Records the peer of a scheduler, to which its large results are sent.
    pub(super) fn add_scheduler(&self, id: SchedulerId, peer: PeerId) {
        self.uploads.add_scheduler(id, peer);
    }

    /// Whether a run of this executor is a call to a back end.
    pub(super) fn is_call(&self, executor: usize) -> bool {
        self.runners.get(executor).is_some_and(|runner| matches!(runner.kind, RunnerKind::Http(_)))
    }

    /// The outcome of an attempt that takes no time; `None` if it has to be started.
    pub(super) fn run_at_once(&self, executor: usize, dispatch: &Dispatch) -> Option<Outcome> {
        let runner = self.runners.get(executor)?;
        let RunnerKind::Local(local) = &runner.kind else { return None };
        if dispatch.spec.stream {
            return None;
        }
        let attempt = runner.attempt(dispatch, Vec::new(), Vec::new());
        match local.run_at_once(&attempt)? {
            RunOutcome::Completed { payload } if self.uploads.is_large(&payload) => None,
            outcome => Some(outcome_of(outcome)),
        }
    }

    /// Starts a run; its progress, its output and its outcome go to `events`.
    pub(super) fn start(
        self: Arc<Self>,
        id: RunId,
        executor: usize,
        dispatch: Arc<Dispatch>,
        devices: Vec<u32>,
        events: mpsc::Sender<WorkerInput>,
    ) -> Stopper {
        let cancel = CancellationToken::new();
        let stopper = Stopper(cancel.clone());
        tokio::spawn(async move {
            let outcome = match self.runners.get(executor).map(|runner| (&runner.kind, runner)) {
                None => failed("the worker has no such executor"),
                Some((RunnerKind::Local(local), runner)) => {
                    let cpus = self.take_cores(&dispatch);
                    let attempt = runner.attempt(&dispatch, devices, cpus.clone());
                    let outcome = run(local, attempt, id, &events, &cancel).await;
                    self.release(&cpus);
                    outcome
                }
                Some((RunnerKind::Http(monitored), runner)) => match monitored.problem() {
                    // The back end is not called; its scheduler is notified when it is healthy again.
                    Some(problem) => Outcome::Unreachable { error: problem },
                    None => call(monitored, runner, &dispatch, id, &events, &cancel).await,
                },
            };
            let outcome = self.uploads.upload_if_large(id, &dispatch, outcome, &cancel).await;
            let _ = events.send(WorkerInput::Ended(id, outcome)).await;
        });
        stopper
    }

    /// Stops all runs.
    pub(super) async fn stop(&self) {
        for runner in &self.runners {
            if let RunnerKind::Local(local) = &runner.kind {
                local.stop().await;
            }
        }
    }

    fn take_cores(&self, dispatch: &Dispatch) -> Vec<usize> {
        let wanted = dispatch.spec.requirement.cpu_milli.div_ceil(1_000);
        let mut cores = self.cores.lock().unwrap_or_else(PoisonError::into_inner);
        cores.take(usize::try_from(wanted).unwrap_or(usize::MAX))
    }

    fn release(&self, taken: &[usize]) {
        self.cores.lock().unwrap_or_else(PoisonError::into_inner).release(taken);
    }
}

impl Runner {
    fn notes(&self) -> Vec<String> {
        let RunnerKind::Local(Executor::Process(process)) = &self.kind else { return Vec::new() };
        let note = |gap| format!("programs of executor `{}` can {gap}", self.name);
        process.gaps().into_iter().map(note).collect()
    }

    fn attempt(&self, dispatch: &Dispatch, devices: Vec<u32>, cpus: Vec<usize>) -> Attempt {
        let requirement = &dispatch.spec.requirement;
        Attempt {
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
    attempt: Attempt,
    id: RunId,
    events: &mpsc::Sender<WorkerInput>,
    cancel: &CancellationToken,
) -> Outcome {
    let mut running = executor.start(attempt);
    let canceller = running.canceller();
    let mut batcher = PieceBatcher::new(id, events);
    loop {
        tokio::select! {
            // In this order: pending pieces are flushed when no more are ready.
            biased;
            () = cancel.cancelled() => {
                canceller.cancel();
                break;
            }
            event = running.next() => match event {
                Some(RunEvent::Progress(permille)) => {
                    batcher.flush().await;
                    let _ = events.send(WorkerInput::Progressed(id, permille)).await;
                }
                Some(RunEvent::Output(piece)) => batcher.add(&piece).await,
                None => break,
            },
            () = std::future::ready(()), if batcher.has_pending() => batcher.flush().await,
        }
    }
    batcher.flush().await;
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
    monitored: &MonitoredBackEnd,
    runner: &Runner,
    dispatch: &Dispatch,
    id: RunId,
    events: &mpsc::Sender<WorkerInput>,
    cancel: &CancellationToken,
) -> Outcome {
    let spec = &dispatch.spec;
    let model = spec.requirement.model.as_ref().unwrap_or(&runner.model);
    let calling = async {
        let _in_flight = monitored.call_begins();
        let mut call = monitored.back_end.start(Some(model), spec.form, &spec.input, spec.stream);
        if spec.stream {
            let mut batcher = PieceBatcher::new(id, events);
            loop {
                tokio::select! {
                    biased;
                    piece = call.next() => match piece {
                        Some(piece) => batcher.add(&piece).await,
                        None => break,
                    },
                    () = std::future::ready(()), if batcher.has_pending() => batcher.flush().await,
                }
            }
            batcher.flush().await;
        }
        match call.outcome().await {
            CallOutcome::Completed { payload } => Outcome::Completed { result: payload.into() },
            CallOutcome::Failed(error) => {
                if error.kind == FailureKind::BackendError {
                    monitored.check_soon();
                }
                Outcome::Failed(error)
            }
            CallOutcome::Unreachable { error } => {
                monitored.mark_unreachable(&error).await;
                Outcome::Unreachable { error }
            }
        }
    };
    tokio::select! {
        outcome = calling => outcome,
        // Dropping the call closes its connection.
        () = cancel.cancelled() => failed(STOPPED),
    }
}

fn outcome_of(outcome: RunOutcome) -> Outcome {
    match outcome {
        RunOutcome::Completed { payload } => Outcome::Completed { result: payload.into() },
        RunOutcome::Failed(failure) => Outcome::Failed(failure.into()),
        RunOutcome::Cancelled => failed(STOPPED),
    }
}

/// Rarely seen: no client waits for a cancelled run.
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
        launcher: Launcher::this_program(LAUNCHER_SUBCOMMAND),
        command: program.cmd.clone(),
        args: program.args.clone(),
        environment: program.environment.0.clone(),
        warm: program.warm.then(|| concurrency.try_into().ok()).flatten(),
        work_root: data_dir.join("work").join(config.name.as_str()),
        read: program.read.clone(),
        write: program.write.clone(),
        network: program.network,
        confinement: match program.confinement {
            hypha_config::Confinement::Required => Confinement::Required,
            hypha_config::Confinement::Namespaces => Confinement::Namespaces,
            hypha_config::Confinement::BestEffort => Confinement::BestEffort,
        },
        limits,
    };
    let process = Process::open(process).map_err(|error| {
        NodeError::failed(format!("the executor `{}` cannot be used: {error}", config.name))
    })?;
    let (sandbox, gaps) = (process.sandbox(), process.gaps());
    if gaps.is_empty() {
        tracing::info!(executor = %config.name, "programs are confined: {sandbox}");
    } else {
        let gaps = gaps.join("; ");
        tracing::warn!(executor = %config.name, "programs are confined in part: {sandbox}. They can {gaps}");
    }
    Ok(process)
}

fn back_end(config: &ServerConfig) -> Result<hypha_backends::BackEnd, NodeError> {
    let server = hypha_backends::BackEndSettings {
        health_path: config.health_path.clone(),
        api_key: config.api_key_file.as_deref().map(crate::settings::secret).transpose()?,
        ..hypha_backends::BackEndSettings::new(
            config.url.clone(),
            crate::settings::format_of(config.format),
        )
    };
    hypha_backends::BackEnd::new(server).map_err(NodeError::configuration)
}
