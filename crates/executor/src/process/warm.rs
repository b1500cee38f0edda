//! Warm processes: started once, then given one attempt after another over their bridge.
//!
//! A process is kept for one model and one choice of devices, CPUs and memory: that of the attempt it was
//! started for. An attempt with another choice gets another process, and an idle one makes room for it. So
//! the ledger's decision always holds. An attempt cannot be taken back from a program, so cancelling it ends
//! the process.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hypha_model::{Name, Payload};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::output::{CapturedOutput, Stdout};
use super::supervised::{ProgramEnd, SupervisedProgram, run_error_of};
use super::supervisor_request::{memory_limit, supervisor_request};
use super::{Directory, ProcessError, ProcessState};
use crate::Attempt;
use crate::bridge::{Bridge, BridgeMode, ProgramAnswer};
use crate::outcome::{RunError, RunFailure, RunOutcome};
use crate::running::RunControl;

/// All processes of one executor.
#[derive(Debug)]
pub(super) struct Pool {
    /// One for each attempt that has a process or is about to.
    slots: Semaphore,
    /// Processes without an attempt, the most recently used at the back.
    idle: Mutex<VecDeque<WarmProcess>>,
}

struct WarmProcess {
    key: WarmKey,
    bridge: Bridge,
    captured: CapturedOutput,
    ended: JoinHandle<Result<ProgramEnd<()>, ProcessError>>,
    stop: CancellationToken,
    _stopping: DropGuard,
}

/// The choice that a process was started for.
#[derive(Debug, PartialEq, Eq)]
struct WarmKey {
    model: Name,
    devices: Vec<u32>,
    cpus: Vec<usize>,
    memory_bytes: Option<u64>,
}

/// A process for an attempt.
struct AcquiredProcess {
    process: WarmProcess,
    /// Whether it has had an attempt before.
    used: bool,
}

impl Pool {
    pub(super) fn new(processes: NonZeroUsize) -> Pool {
        let processes = processes.get().min(Semaphore::MAX_PERMITS);
        Pool { slots: Semaphore::new(processes), idle: Mutex::new(VecDeque::new()) }
    }

    /// Drops processes that have ended with the executor.
    pub(super) fn clear(&self) {
        self.idle().clear();
    }

    fn idle(&self) -> MutexGuard<'_, VecDeque<WarmProcess>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process that fits, or those that must end before one may be started.
    fn take_matching(&self, key: &WarmKey) -> Result<WarmProcess, Vec<WarmProcess>> {
        let mut idle = self.idle();
        idle.retain(|process| !process.ended.is_finished());
        if let Some(at) = idle.iter().rposition(|process| process.key == *key) {
            return idle.remove(at).ok_or_else(Vec::new);
        }
        // Every free slot may have one idle process: the others belong to attempts.
        let over = idle.len().saturating_sub(self.slots.available_permits());
        Err(idle.drain(..over).collect())
    }

    /// Keeps it for the next attempt. In one step with the slot, so that none is counted twice.
    fn release(&self, process: WarmProcess, slot: SemaphorePermit<'_>) {
        let mut idle = self.idle();
        idle.push_back(process);
        drop(slot);
    }
}

pub(super) async fn run(
    state: &ProcessState,
    pool: &Pool,
    attempt: Attempt,
    control: RunControl,
) -> Result<RunOutcome, ProcessError> {
    let RunControl { mut reporter, cancel } = control;
    let Some(Ok(slot)) = cancel.run_until_cancelled(pool.slots.acquire()).await else {
        return Ok(RunOutcome::Cancelled);
    };
    loop {
        let Some(found) = cancel.run_until_cancelled(acquire(state, pool, &attempt)).await else {
            return Ok(RunOutcome::Cancelled);
        };
        let AcquiredProcess { mut process, used } = found?;
        process.bridge.set_current(&attempt, reporter);
        let ended = tokio::select! {
            () = process.bridge.wait_answered() => None,
            ended = &mut process.ended => Some(ended),
            () = cancel.cancelled() => {
                process.stop().await;
                return Ok(RunOutcome::Cancelled);
            }
        };
        let Some(current) = process.bridge.take() else {
            return Err(ProcessError::Supervisor("its attempt was lost".to_owned()));
        };
        let (taken, complete) = (current.is_taken(), current.is_answered());
        let (answer, returned) = current.into_parts();
        // Pieces of a process that died are an incomplete result, which does not count.
        match (ended, answer.filter(|_| complete)) {
            (None, Some(answer)) => {
                let outcome = answered(answer, &process);
                pool.release(process, slot);
                return Ok(outcome);
            }
            // It has answered and exited at once.
            (_, Some(answer)) => return Ok(answered(answer, &process)),
            // It ended between two attempts, before it fetched this one.
            (Some(_), None) if used && !taken => reporter = returned,
            (Some(ended), None) => return exit_outcome(ended),
            (None, None) => return Err(ProcessError::Supervisor("its answer was lost".to_owned())),
        }
    }
}

fn answered(answer: ProgramAnswer, process: &WarmProcess) -> RunOutcome {
    let error = match answer {
        ProgramAnswer::Result(payload) => return RunOutcome::Completed { payload },
        ProgramAnswer::Failure(why) => RunError::Reported(why),
        ProgramAnswer::Refusal(why) => RunError::Input(why),
    };
    RunOutcome::Failed(RunFailure { error, output: process.captured.tail() })
}

fn exit_outcome(
    ended: Result<Result<ProgramEnd<()>, ProcessError>, tokio::task::JoinError>,
) -> Result<RunOutcome, ProcessError> {
    let ended = ended.map_err(|error| ProcessError::Supervisor(error.to_string()))??;
    if ended.stopped.is_some() {
        // Besides cancellation, only the executor's shutdown stops a process that has an attempt.
        return Ok(RunOutcome::Cancelled);
    }
    let error = run_error_of(ended.exit_reason).unwrap_or(RunError::NoResult);
    Ok(RunOutcome::Failed(RunFailure { error, output: ended.output.tail }))
}

async fn acquire(
    state: &ProcessState,
    pool: &Pool,
    attempt: &Attempt,
) -> Result<AcquiredProcess, ProcessError> {
    let key = WarmKey {
        model: attempt.model.clone(),
        devices: attempt.devices.clone(),
        cpus: attempt.cpus.clone(),
        memory_bytes: memory_limit(state, attempt),
    };
    match pool.take_matching(&key) {
        Ok(process) => {
            process.captured.clear_tails();
            Ok(AcquiredProcess { process, used: true })
        }
        Err(to_go) => {
            // Ended before the new one starts: both may not fit on the device.
            for process in to_go {
                process.stop().await;
            }
            Ok(AcquiredProcess { process: start(state, attempt, key).await?, used: false })
        }
    }
}

async fn start(
    state: &ProcessState,
    attempt: &Attempt,
    key: WarmKey,
) -> Result<WarmProcess, ProcessError> {
    let config = &state.config;
    let nothing = Payload::default();
    let directory =
        Directory::make(&config.work_root, &nothing).await.map_err(ProcessError::Directory)?;
    let mode = BridgeMode::Sequential;
    let bridge =
        Bridge::open(&directory, mode, config.limits.result_bytes).map_err(ProcessError::Bridge)?;
    let request = supervisor_request(state, attempt, mode, &directory, &bridge);
    let program = SupervisedProgram::start(state, request, Stdout::Log)?;
    let captured = program.captured();
    // The executor's shutdown also stops it, whoever holds it then.
    let stop = state.stopping.child_token();
    let stopped = stop.clone();
    let ended = state.tasks.spawn(async move {
        let ended = program.supervise(stopped.cancelled()).await;
        directory.remove().await;
        ended
    });
    Ok(WarmProcess { key, bridge, captured, ended, _stopping: stop.clone().drop_guard(), stop })
}

impl WarmProcess {
    async fn stop(self) {
        self.stop.cancel();
        // Its exit status no longer matters.
        let _ = self.ended.await;
    }
}

impl std::fmt::Debug for WarmProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WarmProcess").field("key", &self.key).finish_non_exhaustive()
    }
}
