//! The executors of a worker: how long runs take, alone or several at once, and their outcomes.

use std::collections::BTreeMap;

use hypha_engine::{Outcome, RunCommand, RunId, WorkerEvent, WorkerMachine};
use hypha_model::{FailureKind, Payload, Span, TaskError, TaskResult, Time};

use super::World;
use super::event_queue::WorldEvent;
use super::nodes::index_of_spec;
use crate::batching::pace;
use crate::checkers::{FAST_CLOCK, RunFailure, Violation};

/// How long an executor takes to stop.
const STOP_TIME: Span = Span::from_millis(1);

/// The executors of a worker.
pub(super) struct Executors {
    pub(super) busy: Span,
    /// The work that its runs have done, in seconds that it takes alone here.
    pub(super) work_s: f64,
    pub(super) slowness: f64,
    batch_slowdown: f64,
    runs: BTreeMap<RunId, RunningTask>,
    /// Since when the number of runs is unchanged.
    unchanged_since: Time,
}

/// A run of an executor.
#[derive(Clone, Copy, Debug)]
struct RunningTask {
    /// The index of the task; `None` for the part of a job.
    index: Option<usize>,
    stopped: bool,
    since: Time,
    timeout: Span,
    /// The work left when the number of runs last changed, in seconds that it takes alone.
    remaining_s: f64,
    /// When it ends if that number stays the same.
    ends: Time,
}

impl Executors {
    pub(super) fn new(batch_slowdown: f64) -> Executors {
        Executors {
            busy: Span::ZERO,
            work_s: 0.0,
            slowness: 1.0,
            batch_slowdown,
            runs: BTreeMap::new(),
            unchanged_since: Time::ZERO,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.runs.is_empty()
    }

    /// Adds up the work that the runs have done until now. Called before each change of their number.
    fn settle(&mut self, now: Time) {
        let elapsed_s = now.since(self.unchanged_since).as_secs_f64();
        let done_s = elapsed_s * pace(self.batch_slowdown, self.runs.len());
        for run in self.runs.values_mut() {
            self.work_s += done_s.min(run.remaining_s);
            run.remaining_s = (run.remaining_s - done_s).max(0.0);
        }
        self.unchanged_since = now;
    }

    /// The number of runs has changed: which of them ends first now, and when. `None` if they do not slow each other, so
    /// that their ends do not change.
    fn retime(&mut self, now: Time) -> Option<(Time, RunId)> {
        if self.batch_slowdown == 0.0 {
            return None;
        }
        let pace = pace(self.batch_slowdown, self.runs.len());
        for run in self.runs.values_mut().filter(|run| !run.stopped) {
            run.ends = now + Span::from_secs_f64(run.remaining_s / pace);
        }
        self.runs.iter().map(|(id, run)| (run.ends, *id)).min()
    }

    fn begin_run(&mut self, id: RunId, run: RunningTask, now: Time) -> (Time, RunId) {
        self.settle(now);
        self.runs.insert(id, run);
        self.retime(now).unwrap_or((run.ends, id))
    }

    /// Ends a run that is due. A run that was slowed since its end was set is not.
    fn end_run(&mut self, id: RunId, now: Time) -> Option<RunningTask> {
        self.runs.get(&id).filter(|run| run.ends <= now)?;
        self.settle(now);
        let run = self.runs.remove(&id)?;
        self.busy += now.since(run.since);
        Some(run)
    }

    /// Ends all runs without an outcome. Returns the indices of their tasks.
    pub(super) fn kill_all(&mut self, now: Time) -> Vec<usize> {
        self.settle(now);
        let runs = std::mem::take(&mut self.runs).into_values();
        let kill = |run: RunningTask| {
            self.busy += now.since(run.since);
            run.index
        };
        runs.filter_map(kill).collect()
    }
}

impl World {
    pub(super) fn execute(&mut self, worker: usize, run: RunCommand) {
        let host = &self.workers[worker];
        let (machine, executors) = (host.machine_generation, &mut self.executors[worker]);
        let (ends, id) = match run {
            RunCommand::Start { id, dispatch, .. } => {
                let index = index_of_spec(&dispatch.spec);
                let of_job = || self.market.as_ref()?.run_s(&dispatch.spec);
                let run_s = index.map(|index| self.arrivals.run_s(index)).or_else(of_job);
                let Some(run_s) = run_s else { return };
                let speed = host.setup.speed / executors.slowness;
                let alone_s = run_s / speed;
                let begun = RunningTask {
                    index,
                    stopped: false,
                    since: self.now,
                    timeout: dispatch.timeout,
                    remaining_s: alone_s,
                    ends: self.now + Span::from_secs_f64(alone_s),
                };
                self.checkers.run_began(self.now, id);
                if let Some(index) = index {
                    self.checkers.starvation_run_began(index);
                }
                executors.begin_run(id, begun, self.now)
            }
            RunCommand::Stop(id) => {
                let ends = self.now + STOP_TIME;
                if let Some(run) = executors.runs.get_mut(&id) {
                    run.stopped = true;
                    run.ends = run.ends.min(ends);
                }
                (ends, id)
            }
        };
        self.events.add(ends, WorldEvent::RunEnds { worker, machine, id });
    }

    pub(super) fn run_ends(
        &mut self,
        worker: usize,
        machine: u32,
        id: RunId,
    ) -> Result<(), Violation> {
        if self.workers[worker].machine_generation != machine {
            return Ok(());
        }
        let now = self.now;
        let Some(run) = self.executors[worker].end_run(id, now) else { return Ok(()) };
        if let Some((ends, id)) = self.executors[worker].retime(now) {
            self.events.add(ends, WorldEvent::RunEnds { worker, machine, id });
        }
        if let Some(index) = run.index {
            self.checkers.starvation_run_ended(now, index, run.stopped);
        }
        let outcome = self.outcome(worker, run);
        let took_too_long = now.since(run.since) >= run.timeout.mul_f64(FAST_CLOCK);
        let failed = match &outcome {
            _ if run.stopped => took_too_long.then_some(RunFailure::Retryable),
            Outcome::Failed(error) if error.kind.is_retryable() => Some(RunFailure::Retryable),
            Outcome::Failed(_) => Some(RunFailure::Final),
            Outcome::Completed { result } => {
                (!result.digest_matches()).then_some(RunFailure::Retryable)
            }
            _ => None,
        };
        self.checkers.run_ended(id, failed);
        self.tell::<WorkerMachine>(worker, WorkerEvent::Ended { id, outcome, run: None })
    }

    /// The outcome of a run: the task's input, unless a fault strikes.
    fn outcome(&mut self, worker: usize, run: RunningTask) -> Outcome {
        let probabilities = &self.fault_schedule.probabilities;
        if run.stopped
            || (run.index.is_some()
                && probabilities.executor_error > 0.0
                && self.rng.chance(probabilities.executor_error))
        {
            let error = format!("the executor failed on worker {worker}");
            let drawn = if probabilities.errors_are_retried { 0.0 } else { self.rng.unit() };
            return match drawn {
                // The back end that it forwards to is unreachable.
                0.7..0.8 => Outcome::Unreachable { error },
                0.0..0.7 => Outcome::Failed(TaskError::new(FailureKind::ProgramFailed, error)),
                _ => Outcome::Failed(TaskError::new(FailureKind::InvalidInput, error)),
            };
        }
        let index = run.index.unwrap_or_default();
        let result = Payload::from((index as u32).to_le_bytes().as_slice());
        if probabilities.corruption > 0.0 && self.rng.chance(probabilities.corruption) {
            let digest = Payload::from(&b"something else"[..]).digest();
            let result = TaskResult::Inline { payload: result, digest };
            return Outcome::Completed { result };
        }
        Outcome::Completed { result: result.into() }
    }
}
