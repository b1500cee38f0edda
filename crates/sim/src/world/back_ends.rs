//! Back ends, which outlive the processes of their workers, and the environment of an HTTP worker's machine: calls to
//! its back end, polls, health checks. As in the node, an HTTP worker is a part of its scheduler's process and dies
//! with it, while its back end stays up; the same code as in the node decides about a run at an instance
//! (`hypha_engine::back_end`).

mod calls;
mod runs;

use std::collections::BTreeMap;
use std::sync::Arc;

use hypha_engine::back_end::{BackEndHealth, InstanceRun};
use hypha_engine::{Dispatch, FromWorker, RunId, ToWorker, WorkerEvent, WorkerMachine};
use hypha_model::{Refusal, RefusalKind, Span, Time};

use super::World;
use super::event_queue::WorldEvent;
use super::faults::{BackEndCondition, Fault};
use super::nodes::Node;
use crate::checkers::Violation;

pub(super) use calls::{Call, Response};

/// The one-way latency of a request to a back end, or of its response.
const ONE_WAY_LATENCY: Span = Span::from_micros(500);
/// The start of a call that ends sooner is not reported (as in the node).
const START_REPORT_DELAY: Span = Span::from_millis(5);
/// The intervals between health checks of a healthy back end and of an unhealthy one.
const HEALTH_CHECK_INTERVAL: Span = Span::from_secs(1);
const UNHEALTHY_CHECK_INTERVAL: Span = Span::from_millis(300);
/// The timeouts of a health check and of other calls to an instance.
const HEALTH_CHECK_TIMEOUT: Span = Span::from_millis(300);
const CALL_TIMEOUT: Span = Span::from_secs(1);
/// Replies to the scheduler are sent by a task of their own, which runs within this.
const MAX_REPLY_DELAY: Span = Span::from_millis(1);

/// The share of HTTP workers that are registered only some time after their scheduler has started, and how long.
const LATE_REGISTRATION_SHARE: f64 = 0.3;
const MAX_REGISTRATION_DELAY: Span = Span::from_secs(3);

/// The kind of an HTTP worker's back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackEndKind {
    /// A server: a call is a run, and its result cannot be fetched later.
    Server,
    /// A task instance: a task is enqueued there, and its result is fetched or called back.
    Instance,
}

/// A back end, and the worker's side of it.
pub(super) struct BackEnd {
    kind: BackEndKind,
    /// The scheduler that its worker belongs to.
    scheduler: usize,
    /// Its tasks, done or not, by its own ids.
    tasks: BTreeMap<u64, BackEndTask>,
    next_task: u64,
    /// The incarnation of the back end, from which an instance takes its name.
    incarnation: u32,
    health: BackEndHealth,
    /// The name that the instance last reported in this incarnation of the worker.
    name: Option<Arc<str>>,
    /// The number of the latest health check; earlier ones are void.
    check: u64,
    runs: BTreeMap<RunId, HttpRun>,
    next_run: u64,
    /// When the last reply is sent to the scheduler.
    last_reply_at: Time,
}

/// A task at a back end.
struct BackEndTask {
    id: RunId,
    index: usize,
    /// The run of the worker that requested it.
    serial: u64,
    has_ended: bool,
    fails: bool,
}

/// A run, on the worker's side.
struct HttpRun {
    /// Distinguishes it from an earlier run of the same name.
    serial: u64,
    dispatch: Arc<Dispatch>,
    began_at: Time,
    has_reported_start: bool,
    /// `None` at a server, where the call is the run.
    instance: Option<InstanceRun>,
    /// The call in flight, or the timer that runs; events of an earlier one are void.
    generation: u64,
    /// Whether a call is in flight.
    is_calling: bool,
}

/// An event on the worker's side.
#[derive(Debug)]
pub(super) enum HttpEvent {
    /// A call arrives at the back end, even if its sender has ended.
    CallArrives(Call),
    /// A run gets a response, or times out waiting for one.
    Responded { id: RunId, serial: u64, generation: u64, response: Response },
    /// A run's timer.
    Timer { id: RunId, serial: u64, generation: u64 },
    /// A run has taken so long that its start is reported.
    ReportStart { id: RunId, serial: u64 },
    /// The work on a task is done.
    TaskEnds { task: u64, back_end_incarnation: u32 },
    /// An instance reports that a task is over. `serial` stands for the secret that proves it.
    Callback { task: u64, id: RunId, serial: u64, fails: bool, index: usize },
    /// A health check of the back end is due.
    HealthCheck { check: u64 },
    /// The result of a health check.
    HealthResult {
        check: u64,
        is_late: bool,
        problem: Option<&'static str>,
        back_end_incarnation: u32,
    },
}

impl BackEnd {
    pub(super) fn new(kind: BackEndKind, scheduler: usize) -> BackEnd {
        BackEnd {
            kind,
            scheduler,
            tasks: BTreeMap::new(),
            next_task: 0,
            incarnation: 0,
            health: BackEndHealth::default(),
            name: None,
            check: 0,
            runs: BTreeMap::new(),
            next_run: 0,
            last_reply_at: Time::ZERO,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.runs.is_empty()
    }

    fn instance_name(&self) -> Option<Arc<str>> {
        (self.kind == BackEndKind::Instance)
            .then(|| Arc::from(format!("incarnation {}", self.incarnation)))
    }
}

impl World {
    /// The process that a node is a part of.
    pub(super) fn process_of(&self, node: Node) -> Node {
        match node {
            Node::Worker(at) => match self.back_ends.get(&at) {
                Some(back_end) => Node::Scheduler(back_end.scheduler),
                None => node,
            },
            Node::Scheduler(_) => node,
        }
    }

    pub(super) fn is_http(&self, worker: usize) -> bool {
        self.back_ends.contains_key(&worker)
    }

    /// The HTTP workers of a scheduler.
    pub(super) fn http_workers_of(&self, scheduler: usize) -> Vec<usize> {
        let of_it = self.back_ends.iter().filter(|(_, back_end)| back_end.scheduler == scheduler);
        of_it.map(|(worker, _)| *worker).collect()
    }

    /// The machine of an HTTP worker begins, in the process of its scheduler.
    pub(super) fn http_worker_begins(&mut self, worker: usize) {
        let Some(back_end) = self.back_ends.get_mut(&worker) else { return };
        let unseen = "its health has not been checked yet".to_owned();
        back_end.health = BackEndHealth::new(Some(unseen));
        (back_end.last_reply_at, back_end.name) = (self.now, None);
        back_end.check += 1;
        let check = back_end.check;
        self.schedule_http(self.now, worker, HttpEvent::HealthCheck { check });
    }

    /// It has ended, with all its calls.
    pub(super) fn http_worker_ends(&mut self, worker: usize) {
        let Some(back_end) = self.back_ends.get_mut(&worker) else { return };
        for id in std::mem::take(&mut back_end.runs).into_keys() {
            self.checkers.run_ended(id, None);
        }
    }

    /// An event of an HTTP worker, in this incarnation of it.
    pub(super) fn schedule_http(&mut self, at: Time, worker: usize, event: HttpEvent) {
        let incarnation = self.workers[worker].incarnation;
        self.events.add(at, WorldEvent::Http { worker, incarnation, event });
    }

    pub(super) fn handle_http_event(
        &mut self,
        worker: usize,
        incarnation: u32,
        event: HttpEvent,
    ) -> Result<(), Violation> {
        let is_alive = self.workers[worker].incarnation == incarnation;
        match event {
            HttpEvent::CallArrives(call) => self.call_arrives(worker, incarnation, call),
            HttpEvent::TaskEnds { task, back_end_incarnation } => {
                self.task_ends(worker, task, back_end_incarnation);
                Ok(())
            }
            // To the worker's current incarnation.
            HttpEvent::Callback { task, id, serial, fails, index } => {
                self.callback_received(worker, (task, id, serial), fails, index)
            }
            _ if !is_alive => Ok(()),
            HttpEvent::Responded { id, serial, generation, response } => {
                self.response_received(worker, (id, serial, generation), response)
            }
            HttpEvent::Timer { id, serial, generation } => {
                self.run_timer_fired(worker, (id, serial, generation))
            }
            HttpEvent::ReportStart { id, serial } => {
                self.report_started(worker, id, serial);
                Ok(())
            }
            HttpEvent::HealthCheck { check } => {
                self.check_back_end(worker, check);
                Ok(())
            }
            HttpEvent::HealthResult { check, is_late, problem, back_end_incarnation } => {
                self.checked(worker, check, (is_late, problem), back_end_incarnation)
            }
        }
    }

    /// What is wrong with a back end now, and until when.
    fn condition(&self, worker: usize) -> Option<(BackEndCondition, Time)> {
        self.fault_schedule.back_end_condition(worker, self.now)
    }

    /// Within a process nothing is lost. A worker that is down receives nothing.
    pub(super) fn send_to_http_worker(
        &mut self,
        scheduler: usize,
        worker: usize,
        message: ToWorker,
    ) {
        if self.workers[worker].machine.is_some() {
            let link = self.link_to_worker(scheduler, worker);
            let event = WorldEvent::ToWorker { worker, scheduler, link, message };
            return self.events.add(self.now, event);
        }
        if let ToWorker::Dispatch(dispatch) = message {
            let (attempt, fence) = (dispatch.attempt, dispatch.fence);
            let refusal = Refusal::without_amount(RefusalKind::Unavailable);
            let message = FromWorker::Refused { attempt, fence, refusal };
            let link = self.link_to_scheduler(scheduler, worker);
            let event = WorldEvent::FromWorker { scheduler, worker, link, message };
            self.events.add(self.now, event);
        }
    }

    /// The process of a scheduler begins, or has ended, and its HTTP workers with it. Those that the configuration
    /// names are registered when they have answered.
    pub(super) fn sync_http_workers(&mut self, scheduler: usize, is_up: bool) {
        for worker in self.http_workers_of(scheduler) {
            if is_up {
                let is_late = self.rng.chance(LATE_REGISTRATION_SHARE);
                let late = Span::from_micros(self.rng.below(MAX_REGISTRATION_DELAY.as_micros()));
                let at = if is_late { self.now + late } else { self.now };
                let node = Node::Worker(worker);
                self.events.add(at, WorldEvent::Fault(Fault::Start { node }));
            } else if self.workers[worker].is_up {
                self.end_process::<WorkerMachine>(worker);
            }
        }
    }

    /// An HTTP worker can begin if its scheduler's process is up; it uses the same clock.
    pub(super) fn may_start(&mut self, worker: usize) -> bool {
        let Some(back_end) = self.back_ends.get(&worker) else { return true };
        let host = &self.schedulers[back_end.scheduler];
        self.workers[worker].clock = host.clock;
        host.is_up
    }

    /// A scheduler has forgotten a worker: one of its own is dropped, unless an operator may readmit it.
    pub(super) fn http_worker_forgotten(&mut self, scheduler: usize, worker: usize) {
        let id = self.workers[worker].setup.worker.id;
        let machine = self.schedulers[scheduler].machine.as_ref();
        let is_kept = machine.is_none_or(|it| it.knows_worker(id) || it.is_removed(id));
        if self.is_http(worker) && !is_kept && self.workers[worker].is_up {
            self.end_process::<WorkerMachine>(worker);
        }
    }

    /// An HTTP worker sends a message to its scheduler. Nothing is lost, and replies arrive in order; but reports of a
    /// run do not wait for them.
    pub(super) fn send_from_http_worker(&mut self, worker: usize, message: FromWorker) {
        let Some(back_end) = self.back_ends.get_mut(&worker) else { return };
        let scheduler = back_end.scheduler;
        let at = match &message {
            // A run reports its start itself if it takes a while: its end reports how long it took.
            FromWorker::Started { fence, .. } => {
                let is_running = back_end.runs.keys().any(|id| id.fence == *fence);
                if !is_running {
                    return;
                }
                self.now
            }
            FromWorker::Finished { .. } => self.now,
            _ => {
                let delay = Span::from_micros(self.rng.below(MAX_REPLY_DELAY.as_micros()));
                back_end.last_reply_at = back_end.last_reply_at.max(self.now + delay);
                back_end.last_reply_at
            }
        };
        let link = self.link_to_scheduler(scheduler, worker);
        self.events.add(at, WorldEvent::FromWorker { scheduler, worker, link, message });
    }

    fn check_back_end(&mut self, worker: usize, check: u64) {
        let Some(back_end) = self.back_ends.get(&worker) else { return };
        if back_end.check != check {
            return;
        }
        let back_end_incarnation = back_end.incarnation;
        let (within, is_late, problem) = match self.condition(worker) {
            Some((BackEndCondition::Unreachable, _)) => {
                (ONE_WAY_LATENCY, false, Some("no connection"))
            }
            Some((BackEndCondition::Hung, until)) if until > self.now + HEALTH_CHECK_TIMEOUT => {
                (HEALTH_CHECK_TIMEOUT, true, Some("no answer in time"))
            }
            Some((BackEndCondition::Hung, until)) => {
                (until.since(self.now) + ONE_WAY_LATENCY, false, None)
            }
            _ => (ONE_WAY_LATENCY + ONE_WAY_LATENCY, false, None),
        };
        let event = HttpEvent::HealthResult { check, is_late, problem, back_end_incarnation };
        self.schedule_http(self.now + within, worker, event);
    }

    fn checked(
        &mut self,
        worker: usize,
        check: u64,
        (is_late, problem): (bool, Option<&'static str>),
        back_end_incarnation: u32,
    ) -> Result<(), Violation> {
        use hypha_engine::back_end::HealthCheck;
        let Some(back_end) = self.back_ends.get_mut(&worker) else { return Ok(()) };
        if back_end.check != check {
            return Ok(());
        }
        let checked = match problem {
            None => HealthCheck::Healthy,
            Some(problem) if is_late => HealthCheck::TimedOut(problem.to_owned()),
            Some(problem) => HealthCheck::Failed(problem.to_owned()),
        };
        let has_answered =
            checked == HealthCheck::Healthy && back_end_incarnation == back_end.incarnation;
        let well = back_end.health.checked(checked, back_end.runs.len());
        if has_answered {
            back_end.name = back_end.instance_name();
        }
        back_end.check += 1;
        let check = back_end.check;
        let pause = if well { HEALTH_CHECK_INTERVAL } else { UNHEALTHY_CHECK_INTERVAL };
        self.schedule_http(self.now + pause, worker, HttpEvent::HealthCheck { check });
        if has_answered {
            self.instance_identified(worker)?;
        }
        self.tell::<WorkerMachine>(
            worker,
            WorkerEvent::BackEndChecked { executor: 0, is_healthy: well },
        )
    }

    /// A call did not reach the back end.
    fn mark_unreachable(&mut self, worker: usize, error: &str) -> Result<(), Violation> {
        let Some(back_end) = self.back_ends.get_mut(&worker) else { return Ok(()) };
        back_end.health.call_failed(error);
        back_end.check += 1;
        let check = back_end.check;
        self.schedule_http(
            self.now + UNHEALTHY_CHECK_INTERVAL,
            worker,
            HttpEvent::HealthCheck { check },
        );
        self.tell::<WorkerMachine>(
            worker,
            WorkerEvent::BackEndChecked { executor: 0, is_healthy: false },
        )
    }
}
