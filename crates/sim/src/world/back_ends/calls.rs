//! The back end's side: responses to calls, its tasks, what it forgets, and its callbacks.

use hypha_engine::back_end::{EnqueueOutcome, FetchOutcome, InstanceReport};
use hypha_engine::{Outcome, RunId};
use hypha_model::{FailureKind, Payload, Span, TaskError, Time};

use super::{BackEndKind, BackEndTask, CALL_TIMEOUT, HttpEvent, ONE_WAY_LATENCY};
use crate::checkers::Violation;
use crate::world::World;
use crate::world::faults::BackEndCondition;

/// A late callback arrives up to this long after the end.
const MAX_CALLBACK_DELAY: Span = Span::from_secs(6);

/// A request to a back end.
#[derive(Clone, Debug)]
pub(in crate::world) struct Call {
    pub(super) id: RunId,
    pub(super) serial: u64,
    pub(super) generation: u64,
    pub(super) index: usize,
    pub(super) kind: CallKind,
}

/// The kind of a request.
#[derive(Clone, Debug)]
pub(super) enum CallKind {
    /// Run this task and respond with the result.
    Run,
    /// Enqueue this task.
    Enqueue,
    /// Fetch the result of this task.
    Fetch(u64),
}

/// The outcome of a call.
#[derive(Clone, Debug)]
pub(in crate::world) enum Response {
    Ran(Outcome),
    Enqueued {
        enqueued: EnqueueOutcome,
        /// There was no response at all.
        unanswered: bool,
    },
    Fetched(FetchOutcome),
}

impl World {
    /// A call arrives at a back end; its sender was in this incarnation.
    pub(super) fn call_arrives(
        &mut self,
        worker: usize,
        incarnation: u32,
        call: Call,
    ) -> Result<(), Violation> {
        match self.condition(worker) {
            Some((BackEndCondition::Unreachable, _)) => {
                let response = unreachable_response(&call.kind);
                self.respond(worker, incarnation, self.now + ONE_WAY_LATENCY, &call, response);
            }
            // It reads its connections when it resumes. A caller may have given up by then, which it cannot know.
            Some((BackEndCondition::Hung, until)) => {
                if !matches!(call.kind, CallKind::Run) {
                    let (at, response) = (self.now + CALL_TIMEOUT, unanswered_response(&call.kind));
                    if until > at {
                        self.respond(worker, incarnation, at, &call, response);
                    }
                }
                self.events.add(
                    until,
                    crate::world::event_queue::WorldEvent::Http {
                        worker,
                        incarnation,
                        event: HttpEvent::CallArrives(call),
                    },
                );
            }
            Some((BackEndCondition::Busy, _)) if !matches!(call.kind, CallKind::Fetch(_)) => {
                let response = error_response(&call.kind, 429);
                self.respond(worker, incarnation, self.now + ONE_WAY_LATENCY, &call, response);
            }
            Some((BackEndCondition::Failing, _)) if !matches!(call.kind, CallKind::Fetch(_)) => {
                let response = error_response(&call.kind, 500);
                self.respond(worker, incarnation, self.now + ONE_WAY_LATENCY, &call, response);
            }
            _ => return self.accept_call(worker, incarnation, call),
        }
        Ok(())
    }

    fn accept_call(
        &mut self,
        worker: usize,
        incarnation: u32,
        call: Call,
    ) -> Result<(), Violation> {
        match call.kind {
            CallKind::Run => {
                self.begin_task(worker, &call);
            }
            CallKind::Enqueue => {
                let Some(back_end) = self.back_ends.get(&worker) else { return Ok(()) };
                let runs_already =
                    back_end.tasks.values().any(|task| task.id == call.id && !task.has_ended);
                self.checkers.handed_over(call.id, runs_already)?;
                let task = self.begin_task(worker, &call);
                let enqueued = EnqueueOutcome::Accepted(Some(task.to_string().into()));
                let response = Response::Enqueued { enqueued, unanswered: false };
                self.respond(worker, incarnation, self.now + ONE_WAY_LATENCY, &call, response);
            }
            CallKind::Fetch(task) => {
                let found = self.back_ends.get(&worker).and_then(|it| it.tasks.get(&task));
                let fetched = match found {
                    Some(task) if task.has_ended => FetchOutcome::Report(InstanceReport::Ended(
                        outcome(task.index, task.fails),
                        None,
                    )),
                    // Some instances report only tasks that are done.
                    Some(_) if worker.is_multiple_of(2) => FetchOutcome::Unknown,
                    Some(_) => FetchOutcome::Report(InstanceReport::Pending),
                    None => FetchOutcome::Unknown,
                };
                self.respond(
                    worker,
                    incarnation,
                    self.now + ONE_WAY_LATENCY,
                    &call,
                    Response::Fetched(fetched),
                );
            }
        }
        Ok(())
    }

    fn begin_task(&mut self, worker: usize, call: &Call) -> u64 {
        let speed = self.workers[worker].setup.speed / self.executors[worker].slowness;
        let takes = Span::from_secs_f64(self.arrivals.run_s(call.index) / speed);
        let probability = self.fault_schedule.probabilities.executor_error;
        let fails = probability > 0.0 && self.rng.chance(probability);
        let Some(back_end) = self.back_ends.get_mut(&worker) else { return 0 };
        let (task, back_end_incarnation) = (back_end.next_task, back_end.incarnation);
        back_end.next_task += 1;
        let begun = BackEndTask {
            id: call.id,
            index: call.index,
            serial: call.serial,
            has_ended: false,
            fails,
        };
        back_end.tasks.insert(task, begun);
        self.schedule_http(
            self.now + takes,
            worker,
            HttpEvent::TaskEnds { task, back_end_incarnation },
        );
        task
    }

    /// The work on a task is done: a server answers its call, and an instance calls back, once or twice, late or never.
    pub(super) fn task_ends(&mut self, worker: usize, task: u64, back_end_incarnation: u32) {
        let condition = self.condition(worker);
        let incarnation = self.workers[worker].incarnation;
        let Some(back_end) = self.back_ends.get_mut(&worker) else { return };
        if back_end.incarnation != back_end_incarnation || !back_end.tasks.contains_key(&task) {
            return;
        }
        if let Some((BackEndCondition::Hung, until)) = condition {
            return self.schedule_http(
                until,
                worker,
                HttpEvent::TaskEnds { task, back_end_incarnation },
            );
        }
        let Some(done) = back_end.tasks.get_mut(&task) else { return };
        done.has_ended = true;
        let (id, index, serial, fails) = (done.id, done.index, done.serial, done.fails);
        match back_end.kind {
            BackEndKind::Server => {
                back_end.tasks.remove(&task);
                let call = Call { id, serial, generation: 0, index, kind: CallKind::Run };
                let response = Response::Ran(outcome(index, fails));
                self.respond(worker, incarnation, self.now + ONE_WAY_LATENCY, &call, response);
            }
            BackEndKind::Instance => {
                for at in self.callbacks() {
                    let event = HttpEvent::Callback { task, id, serial, fails, index };
                    self.schedule_http(at, worker, event);
                }
            }
        }
    }

    /// When an instance calls back: once and soon, unless a fault strikes.
    fn callbacks(&mut self) -> Vec<Time> {
        let soon = self.now + ONE_WAY_LATENCY;
        let probability = self.fault_schedule.probabilities.callbacks;
        if probability == 0.0 || !self.rng.chance(probability) {
            return vec![soon];
        }
        let late = self.now + Span::from_micros(self.rng.below(MAX_CALLBACK_DELAY.as_micros()));
        match self.rng.below(4) {
            0 => Vec::new(),
            1 => vec![late],
            2 => vec![soon, late],
            _ => vec![soon, soon],
        }
    }

    /// The back end's process dies and is restarted: its tasks are lost, and calls break.
    pub(in crate::world) fn kill_back_end(&mut self, worker: usize) {
        let incarnation = self.workers[worker].incarnation;
        let Some(back_end) = self.back_ends.get_mut(&worker) else { return };
        back_end.incarnation += 1;
        let lost = std::mem::take(&mut back_end.tasks);
        if back_end.kind == BackEndKind::Server {
            for task in lost.into_values() {
                let (id, serial, index) = (task.id, task.serial, task.index);
                let call = Call { id, serial, generation: 0, index, kind: CallKind::Run };
                let response = Response::Ran(failed("the connection to the back end failed"));
                self.respond(worker, incarnation, self.now + ONE_WAY_LATENCY, &call, response);
            }
        }
    }

    /// An instance forgets its tasks without notice.
    pub(in crate::world) fn wipe_back_end(&mut self, worker: usize) {
        if let Some(back_end) = self.back_ends.get_mut(&worker)
            && back_end.kind == BackEndKind::Instance
        {
            back_end.tasks.clear();
        }
    }

    fn respond(
        &mut self,
        worker: usize,
        incarnation: u32,
        at: Time,
        call: &Call,
        response: Response,
    ) {
        let (id, serial, generation) = (call.id, call.serial, call.generation);
        let event = HttpEvent::Responded { id, serial, generation, response };
        self.events
            .add(at, crate::world::event_queue::WorldEvent::Http { worker, incarnation, event });
    }
}

pub(super) fn outcome(index: usize, fails: bool) -> Outcome {
    if fails {
        return failed("the back end failed");
    }
    let result = Payload::from((index as u32).to_le_bytes().as_slice());
    Outcome::Completed { result: result.into() }
}

fn failed(error: &str) -> Outcome {
    Outcome::Failed(TaskError::new(FailureKind::BackendFailed, error))
}

/// The back end answers a call with this status.
fn error_response(kind: &CallKind, status: u16) -> Response {
    let error = TaskError::new(FailureKind::of_http_status(status), "an injected error");
    let outcome = Outcome::Failed(TaskError { status: Some(status), ..error });
    match kind {
        CallKind::Run => Response::Ran(outcome),
        _ => Response::Enqueued { enqueued: EnqueueOutcome::Failed(outcome), unanswered: false },
    }
}

fn unreachable_response(kind: &CallKind) -> Response {
    let outcome = Outcome::Unreachable { error: "no connection".to_owned() };
    match kind {
        CallKind::Run => Response::Ran(outcome),
        CallKind::Enqueue => {
            Response::Enqueued { enqueued: EnqueueOutcome::Failed(outcome), unanswered: true }
        }
        CallKind::Fetch(_) => Response::Fetched(FetchOutcome::NoAnswer),
    }
}

fn unanswered_response(kind: &CallKind) -> Response {
    match kind {
        CallKind::Fetch(_) => Response::Fetched(FetchOutcome::NoAnswer),
        _ => Response::Enqueued {
            enqueued: EnqueueOutcome::Failed(failed("the task instance did not accept it")),
            unanswered: true,
        },
    }
}
