//! The worker's side of a run at a back end: what the node does with HTTP, here with messages in the event queue.

use std::sync::Arc;

use hypha_engine::back_end::{
    InstanceHandle, InstanceReport, InstanceRun, NextAction, RunEnd, RunSettings, RunUpdate,
};
use hypha_engine::{Dispatch, FromWorker, Outcome, RunCommand, RunId, WorkerEvent, WorkerMachine};
use hypha_model::{FailureKind, Span, TaskError};

use super::calls::{CallKind, outcome};
use super::{BackEndKind, Call, HttpEvent, HttpRun, ONE_WAY_LATENCY, Response, START_REPORT_DELAY};
use crate::checkers::{FAST_CLOCK, RunFailure, Violation};
use crate::world::World;
use crate::world::nodes::index_of_spec;

/// How long to wait before the first poll of a task, and between polls at first.
const POLL_INTERVAL: Span = Span::from_millis(200);

impl World {
    pub(in crate::world) fn http_run(
        &mut self,
        worker: usize,
        run: RunCommand,
    ) -> Result<(), Violation> {
        match run {
            RunCommand::Start { id, dispatch, .. } => self.http_run_begins(worker, id, dispatch),
            RunCommand::Stop(id) => {
                let Some(back_end) = self.back_ends.get(&worker) else { return Ok(()) };
                let Some(run) = back_end.runs.get(&id) else { return Ok(()) };
                // A run at an instance cannot be cancelled; a call to a server is dropped.
                match run.instance {
                    Some(_) => Ok(()),
                    None => {
                        let error = "the run was stopped";
                        let stopped =
                            Outcome::Failed(TaskError::new(FailureKind::WorkerFailed, error));
                        self.http_run_ends(worker, id, RunEnd::Outcome(stopped, None))
                    }
                }
            }
        }
    }

    fn http_run_begins(
        &mut self,
        worker: usize,
        id: RunId,
        dispatch: Arc<Dispatch>,
    ) -> Result<(), Violation> {
        let now = self.now;
        let Some(back_end) = self.back_ends.get_mut(&worker) else { return Ok(()) };
        let serial = back_end.next_run;
        back_end.next_run += 1;
        let timeout = dispatch.timeout;
        let mut first = None;
        let name = back_end.name.clone();
        let instance = (back_end.kind == BackEndKind::Instance).then(|| {
            let task = Arc::from(dispatch.attempt.task.to_string());
            let resume = dispatch.resume.as_deref().map(InstanceHandle::from_text);
            let settings = RunSettings { timeout, poll_interval: POLL_INTERVAL };
            let (run, next) = InstanceRun::new(task, resume, name, settings, now);
            first = Some(next);
            run
        });
        let (began_at, has_reported_start) = (now, false);
        let run = HttpRun {
            serial,
            dispatch,
            began_at,
            has_reported_start,
            instance,
            generation: 0,
            is_calling: false,
        };
        back_end.runs.insert(id, run);
        self.checkers.run_began(now, id);
        match first {
            Some(next) => self.advance_instance_run(worker, id, next),
            None => {
                if let Some(unavailable) = self.unavailability(worker) {
                    return self.http_run_ends(worker, id, unavailable);
                }
                self.call(worker, id, CallKind::Run);
                self.schedule_http(
                    now + START_REPORT_DELAY.min(timeout),
                    worker,
                    HttpEvent::ReportStart { id, serial },
                );
                self.schedule_http(
                    now + timeout,
                    worker,
                    HttpEvent::Timer { id, serial, generation: 0 },
                );
                Ok(())
            }
        }
    }

    /// Why nothing new is sent to a back end, if it is unavailable.
    fn unavailability(&self, worker: usize) -> Option<RunEnd> {
        let error = self.back_ends.get(&worker)?.health.problem()?.to_owned();
        Some(RunEnd::Outcome(Outcome::Unreachable { error }, None))
    }

    fn call(&mut self, worker: usize, id: RunId, kind: CallKind) {
        let Some(back_end) = self.back_ends.get_mut(&worker) else { return };
        let Some(run) = back_end.runs.get_mut(&id) else { return };
        let Some(index) = index_of_spec(&run.dispatch.spec) else { return };
        run.is_calling = true;
        let call = Call { id, serial: run.serial, generation: run.generation, index, kind };
        self.schedule_http(self.now + ONE_WAY_LATENCY, worker, HttpEvent::CallArrives(call));
    }

    /// Handles the next action of a run at an instance.
    fn advance_instance_run(
        &mut self,
        worker: usize,
        id: RunId,
        next: NextAction,
    ) -> Result<(), Violation> {
        let Some(back_end) = self.back_ends.get_mut(&worker) else { return Ok(()) };
        let Some(run) = back_end.runs.get_mut(&id) else { return Ok(()) };
        // The previous timer or call is void.
        run.generation += 1;
        run.is_calling = false;
        let (serial, generation) = (run.serial, run.generation);
        if let Some(progress) = run.instance.as_mut().and_then(InstanceRun::take_update) {
            self.report_started(worker, id, serial);
            if let RunUpdate::Delegated(handle) = progress {
                let handle = handle.to_text();
                self.tell::<WorkerMachine>(worker, WorkerEvent::Delegated { id, handle })?;
            }
        }
        match next {
            NextAction::HandOver => match self.unavailability(worker) {
                Some(unavailable) => return self.http_run_ends(worker, id, unavailable),
                None => self.call(worker, id, CallKind::Enqueue),
            },
            NextAction::Fetch(task) => {
                let ends = self
                    .back_ends
                    .get(&worker)
                    .and_then(|back_end| Some(back_end.runs.get(&id)?.instance.as_ref()?.ends()));
                self.call(worker, id, CallKind::Fetch(task.parse().unwrap_or(u64::MAX)));
                let ends = ends.unwrap_or(self.now).max(self.now);
                self.schedule_http(ends, worker, HttpEvent::Timer { id, serial, generation });
            }
            NextAction::Wait(at) => {
                self.schedule_http(at, worker, HttpEvent::Timer { id, serial, generation });
                return self.report_instance_name(worker, id);
            }
            NextAction::End(end) => return self.http_run_ends(worker, id, end),
        }
        Ok(())
    }

    /// Lets a run at an instance decide, if it is the one that is meant.
    fn update_instance_run(
        &mut self,
        worker: usize,
        id: RunId,
        decide: impl FnOnce(&mut InstanceRun) -> Option<NextAction>,
    ) -> Result<(), Violation> {
        let back_end = self.back_ends.get_mut(&worker);
        let run = back_end.and_then(|back_end| back_end.runs.get_mut(&id)?.instance.as_mut());
        match run.and_then(decide) {
            Some(next) => self.advance_instance_run(worker, id, next),
            None => Ok(()),
        }
    }

    pub(super) fn response_received(
        &mut self,
        worker: usize,
        (id, serial, generation): (RunId, u64, u64),
        response: Response,
    ) -> Result<(), Violation> {
        let back_end = self.back_ends.get(&worker);
        let Some(run) = back_end.and_then(|back_end| back_end.runs.get(&id)) else { return Ok(()) };
        if (run.serial, run.generation) != (serial, generation) || !run.is_calling {
            return Ok(());
        }
        let now = self.now;
        match response {
            Response::Ran(outcome) => {
                self.http_run_ends(worker, id, RunEnd::Outcome(outcome, None))
            }
            Response::Enqueued { enqueued, unanswered } => {
                if unanswered {
                    self.mark_unreachable(worker, "the task instance did not accept it")?;
                }
                self.update_instance_run(worker, id, |run| Some(run.enqueued(now, enqueued)))
            }
            Response::Fetched(fetched) => {
                self.update_instance_run(worker, id, |run| Some(run.fetched(now, fetched)))
            }
        }
    }

    pub(super) fn run_timer_fired(
        &mut self,
        worker: usize,
        (id, serial, generation): (RunId, u64, u64),
    ) -> Result<(), Violation> {
        let back_end = self.back_ends.get(&worker);
        let Some(run) = back_end.and_then(|back_end| back_end.runs.get(&id)) else { return Ok(()) };
        if (run.serial, run.generation) != (serial, generation) {
            return Ok(());
        }
        let now = self.now;
        match run.instance {
            Some(_) => self.update_instance_run(worker, id, |run| Some(run.woke(now))),
            None => self.http_run_ends(worker, id, RunEnd::Outcome(Outcome::TimedOut, None)),
        }
    }

    /// An instance calls back: proof for the run that enqueued the task, and a hint for another run of the same task.
    pub(super) fn callback_received(
        &mut self,
        worker: usize,
        (task, id, serial): (u64, RunId, u64),
        fails: bool,
        index: usize,
    ) -> Result<(), Violation> {
        let now = self.now;
        let Some(back_end) = self.back_ends.get(&worker) else { return Ok(()) };
        let is_known = |run: &&RunId| {
            let run = back_end.runs.get(run);
            let instance = run.and_then(|run| run.instance.as_ref());
            instance.is_some_and(|run| **run.id() == *task.to_string())
        };
        let proven = back_end.runs.get(&id).is_some_and(|run| run.serial == serial);
        let to = match proven {
            true => Some(id),
            false => back_end.runs.keys().find(is_known).copied(),
        };
        let Some(to) = to else { return Ok(()) };
        let report = proven.then(|| InstanceReport::Ended(outcome(index, fails), None));
        let calls = back_end.runs.get(&to).is_some_and(|run| run.is_calling);
        self.update_instance_run(worker, to, |run| {
            let next = run.notified(now, report);
            // While a call is in flight, only the end matters.
            next.filter(|next| !calls || matches!(next, NextAction::End(_)))
        })
    }

    /// A health check has returned the name of the instance.
    pub(super) fn instance_identified(&mut self, worker: usize) -> Result<(), Violation> {
        let Some(back_end) = self.back_ends.get(&worker) else { return Ok(()) };
        let waits = back_end.runs.iter().filter(|(_, run)| !run.is_calling);
        for id in waits.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.report_instance_name(worker, id)?;
        }
        Ok(())
    }

    /// Sends the name of the instance to a run that waits for it.
    fn report_instance_name(&mut self, worker: usize, id: RunId) -> Result<(), Violation> {
        let name = self.back_ends.get(&worker).and_then(|back_end| back_end.name.clone());
        self.update_instance_run(worker, id, |run| run.instance_seen(&name?))
    }

    pub(super) fn report_started(&mut self, worker: usize, id: RunId, serial: u64) {
        let back_end = self.back_ends.get_mut(&worker);
        let Some(run) = back_end.and_then(|back_end| back_end.runs.get_mut(&id)) else { return };
        if run.serial != serial || std::mem::replace(&mut run.has_reported_start, true) {
            return;
        }
        let (attempt, fence) = (run.dispatch.attempt, run.dispatch.fence);
        self.send_from_http_worker(worker, FromWorker::Started { attempt, fence });
    }

    fn http_run_ends(&mut self, worker: usize, id: RunId, end: RunEnd) -> Result<(), Violation> {
        let Some(back_end) = self.back_ends.get_mut(&worker) else { return Ok(()) };
        let Some(run) = back_end.runs.get(&id) else { return Ok(()) };
        let ran_for = self.now.since(run.began_at);
        self.executors[worker].busy += ran_for;
        let took_too_long = ran_for >= run.dispatch.timeout.mul_f64(FAST_CLOCK);
        let failed = match &end {
            // A run that was stopped has not failed, nor has one that the back end has not accepted.
            RunEnd::Outcome(Outcome::Failed(TaskError { kind, .. }), _)
                if *kind == FailureKind::BackendFailed =>
            {
                Some(RunFailure::Retryable)
            }
            RunEnd::Outcome(Outcome::Failed(TaskError { kind, .. }), _)
                if *kind == FailureKind::BackendError =>
            {
                Some(RunFailure::BackEndError)
            }
            RunEnd::Outcome(..) if took_too_long => Some(RunFailure::Retryable),
            _ => None,
        };
        self.checkers.run_ended(id, failed);
        if let RunEnd::Outcome(Outcome::Unreachable { error }, _) = &end {
            let error = error.clone();
            self.mark_unreachable(worker, &error)?;
        }
        self.tell::<WorkerMachine>(worker, end.event(id))?;
        if let Some(back_end) = self.back_ends.get_mut(&worker) {
            back_end.runs.remove(&id);
        }
        Ok(())
    }
}
