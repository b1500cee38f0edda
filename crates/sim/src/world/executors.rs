//! What a worker's executors do: how long runs take, and what comes of them.

use std::collections::BTreeMap;

use hypha_engine::{Outcome, Run, RunId, WorkerEvent, WorkerMachine};
use hypha_model::{Payload, Span, Time};

use super::World;
use super::agenda::Happening;
use super::nodes::index_of_spec;
use crate::watch::{FAST_CLOCK, Violation};

/// How long an executor takes to stop.
const STOP_TIME: Span = Span::from_millis(1);

/// The executors of a worker.
pub(super) struct Executors {
    pub(super) busy: Span,
    pub(super) slowness: f64,
    runs: BTreeMap<RunId, RunningTask>,
}

/// A run of an executor.
#[derive(Clone, Copy, Debug)]
struct RunningTask {
    index: usize,
    stopped: bool,
    since: Time,
    timeout: Span,
}

impl Executors {
    pub(super) fn new() -> Executors {
        Executors { busy: Span::ZERO, slowness: 1.0, runs: BTreeMap::new() }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.runs.is_empty()
    }

    fn end_run(&mut self, id: RunId, now: Time) -> Option<RunningTask> {
        let run = self.runs.remove(&id)?;
        self.busy += now.since(run.since);
        Some(run)
    }

    pub(super) fn kill_all(&mut self, now: Time) {
        for run in std::mem::take(&mut self.runs).into_values() {
            self.busy += now.since(run.since);
        }
    }
}

impl World {
    pub(super) fn execute(&mut self, worker: usize, run: Run) {
        let host = &self.workers[worker];
        let (machine, executors) = (host.machines, &mut self.executors[worker]);
        let (ends, id) = match run {
            Run::Start { id, dispatch, .. } => {
                let Some(index) = index_of_spec(&dispatch.spec) else { return };
                let speed = host.setup.speed / executors.slowness;
                let begun = RunningTask {
                    index,
                    stopped: false,
                    since: self.now,
                    timeout: dispatch.timeout,
                };
                executors.runs.insert(id, begun);
                self.watch.run_began(self.now, id);
                self.watch.starving_began(index);
                (self.now + Span::from_secs_f64(self.arrivals.run_s(index) / speed), id)
            }
            Run::Stop(id) => {
                if let Some(run) = executors.runs.get_mut(&id) {
                    run.stopped = true;
                }
                (self.now + STOP_TIME, id)
            }
        };
        self.agenda.add(ends, Happening::RunEnds { worker, machine, id });
    }

    pub(super) fn run_ends(
        &mut self,
        worker: usize,
        machine: u32,
        id: RunId,
    ) -> Result<(), Violation> {
        if self.workers[worker].machines != machine {
            return Ok(());
        }
        let now = self.now;
        let Some(run) = self.executors[worker].end_run(id, now) else { return Ok(()) };
        let outcome = self.outcome(worker, run);
        let took_too_long = now.since(run.since) >= run.timeout.mul_f64(FAST_CLOCK);
        let failed = match &outcome {
            _ if run.stopped => took_too_long.then_some(false),
            Outcome::Failed { retry, .. } => Some(!retry),
            Outcome::Completed { result, digest } => (result.digest() != *digest).then_some(false),
            _ => None,
        };
        self.watch.run_ended(id, failed);
        self.tell::<WorkerMachine>(worker, WorkerEvent::Ended { id, outcome, run: None })
    }

    /// What an executor returns: the task's input, unless a fault strikes.
    fn outcome(&mut self, worker: usize, run: RunningTask) -> Outcome {
        let odds = &self.timetable.odds;
        if run.stopped || (odds.executor_error > 0.0 && self.rng.chance(odds.executor_error)) {
            let error = format!("the executor failed on worker {worker}");
            return match self.rng.unit() {
                // What it forwards to is away.
                0.7..0.8 => Outcome::Unreached { error },
                drawn => Outcome::Failed { error, retry: drawn < 0.8 },
            };
        }
        let result = Payload::from((run.index as u32).to_le_bytes().as_slice());
        if odds.corruption > 0.0 && self.rng.chance(odds.corruption) {
            let digest = Payload::from(&b"something else"[..]).digest();
            return Outcome::Completed { result, digest };
        }
        let digest = result.digest();
        Outcome::Completed { result, digest }
    }
}
