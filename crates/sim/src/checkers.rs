//! The checkers: what must hold after every step, whatever goes wrong.

mod failures;
mod promise;
mod slots;
mod starvation;

use std::collections::BTreeMap;

use hypha_engine::record::FinishedTask;
use hypha_engine::scheduler::HOLDER_SHARE;
use hypha_engine::{
    FromWorker, Record, RunId, Scheduler, Settings, SubmitRejection, Submitted, WorkerMachine,
};
use hypha_model::{Map, Payload, SchedulerId, Span, TaskId, TaskState, Time};

use crate::world::FaultSchedule;
use crate::world::host::Host;
use crate::world::nodes::Node;
use failures::FailureChecker;

use crate::world::index_of_spec;
pub(crate) use failures::{FAST_CLOCK, PRESUMED_LOST_AFTER, RunFailure};
pub use promise::{Promise, Violation};
pub(crate) use starvation::ArrivedTask;
pub use starvation::StarvationBounds;
use starvation::StarvationChecker;

/// The tasks as observed so far, and the state of each checker.
pub struct Checkers {
    thorough: bool,
    tasks: Vec<TaskObservation>,
    index_of: Map<TaskId, u32>,
    /// For each scheduler, tasks that are durable and have not ended.
    open: Vec<usize>,
    /// For each scheduler, the interactive tasks whose clients wait, with their indices.
    waiting: Vec<BTreeMap<TaskId, usize>>,
    ended: usize,
    rejected: usize,
    counts: [usize; TaskState::ALL.len()],
    /// When each attempt became void, by scheduler and token.
    void: BTreeMap<RunId, Time>,
    current: Map<TaskId, RunId>,
    failures: FailureChecker,
    starvation: Option<StarvationChecker>,
}

/// The scheduler that made something durable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Author {
    /// Its index.
    pub(crate) at: usize,
    /// Its id.
    pub(crate) id: SchedulerId,
    /// The time on its clock.
    pub(crate) local: Time,
}

#[derive(Clone, Copy, Debug, Default)]
struct TaskObservation {
    id: Option<TaskId>,
    submitted: Option<Time>,
    ended: Option<Time>,
    answered: bool,
    rejected: bool,
    completed: bool,
}

impl Checkers {
    pub(crate) fn new(
        tasks: usize,
        settings: &[Settings],
        fault_schedule: &FaultSchedule,
        thorough: bool,
    ) -> Checkers {
        let schedulers = settings.len();
        Checkers {
            thorough,
            tasks: vec![TaskObservation::default(); tasks],
            index_of: Map::default(),
            open: vec![0; schedulers],
            waiting: vec![BTreeMap::new(); schedulers],
            ended: 0,
            rejected: 0,
            counts: [0; TaskState::ALL.len()],
            void: BTreeMap::new(),
            current: Map::default(),
            failures: FailureChecker::new(settings.to_vec(), fault_schedule.clone()),
            starvation: None,
        }
    }

    /// A message between the two was lost, or arrives late.
    pub(crate) fn link_failed(&mut self, scheduler: usize, worker: usize, at: Time) {
        self.failures.link_failed(scheduler, worker, at);
    }

    /// An executor begins.
    pub(crate) fn run_began(&mut self, now: Time, run: RunId) {
        self.failures.run_began(now, run);
    }

    /// An executor has ended; how it failed, if it did.
    pub(crate) fn run_ended(&mut self, run: RunId, failed: Option<RunFailure>) {
        self.failures.run_ended(run, failed);
    }

    /// From submission to recorded end, for each task by its index; `None` for one that did not complete.
    pub fn latencies(&self) -> Vec<Option<Span>> {
        let latency = |task: &TaskObservation| {
            let completed = task.completed.then_some(task.ended?)?;
            Some(completed.since(task.submitted?))
        };
        self.tasks.iter().map(latency).collect()
    }

    /// How many tasks ended in this state.
    pub fn count(&self, state: TaskState) -> usize {
        self.counts[state as usize]
    }

    pub(crate) fn all_ended(&self) -> bool {
        self.ended + self.rejected == self.tasks.len()
    }

    pub(crate) fn is_answered(&self, index: usize) -> bool {
        self.tasks[index].answered
    }

    pub(crate) fn id_of(&self, index: usize) -> Option<TaskId> {
        self.tasks.get(index)?.id
    }

    pub(crate) fn submitted(&mut self, index: usize, now: Time) {
        self.tasks[index].submitted.get_or_insert(now);
    }

    /// Something became durable.
    pub(crate) fn persisted(
        &mut self,
        now: Time,
        author: Author,
        record: &Record,
    ) -> Result<(), Violation> {
        let Author { at: scheduler, id: scheduler_id, .. } = author;
        if let Some(task) = task_of(record)
            && self.waiting[scheduler].contains_key(&task)
        {
            let what = format!("{record:?} is durable, and belongs to an interactive request");
            return Err(Violation { promise: Promise::NotStored, what });
        }
        if self.thorough {
            self.failures.persisted(now, author, record)?;
        }
        match record {
            Record::Accepted(accepted) => {
                let Some(index) = index_of_spec(&accepted.spec) else { return Ok(()) };
                if let Some(first) = self.tasks[index].id {
                    let what = format!("{} and {first} have the same key", accepted.id);
                    return Err(Violation { promise: Promise::OneResult, what });
                }
                self.tasks[index].id = Some(accepted.id);
                // A scheduler that was frozen receives a client's repeats together, and may reject only the first.
                self.rejected -= usize::from(std::mem::take(&mut self.tasks[index].rejected));
                self.index_of.insert(accepted.id, index as u32);
                self.open[scheduler] += 1;
            }
            Record::AttemptDispatched { attempt, fence, .. } if self.thorough => {
                let run = RunId { scheduler: scheduler_id, fence: *fence };
                self.current.insert(attempt.task, run);
            }
            Record::Requeued { task, .. } if self.thorough => self.void_current(now, *task),
            Record::Finished(finished) => {
                self.void_current(now, finished.task);
                let Some(index) = self.index_of.get(&finished.task).copied() else {
                    let what = format!("{} ended and was never durable", finished.task);
                    return Err(Violation { promise: Promise::NothingLost, what });
                };
                if self.tasks[index as usize].ended.is_some() {
                    let what = format!("{} ended twice", finished.task);
                    return Err(Violation { promise: Promise::OneResult, what });
                }
                self.open[scheduler] -= 1;
                self.ended(now, index as usize, finished)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Records the one end of a task.
    fn ended(&mut self, now: Time, index: usize, finished: &FinishedTask) -> Result<(), Violation> {
        self.starvation_task_ended(index);
        let observed = &mut self.tasks[index];
        observed.ended = Some(now);
        observed.completed = finished.state == TaskState::Completed;
        self.counts[finished.state as usize] += 1;
        self.ended += 1;
        let expected = Payload::from((index as u32).to_le_bytes().as_slice());
        if observed.completed
            && finished.result.as_ref().and_then(|result| result.payload()) != Some(&expected)
        {
            let what = format!("{} has the result of another task", finished.task);
            return Err(Violation { promise: Promise::OneResult, what });
        }
        Ok(())
    }

    /// The client of an interactive task was answered.
    pub(crate) fn interactive_answered(
        &mut self,
        now: Time,
        (scheduler, index): (usize, usize),
        answer: &Result<Submitted, SubmitRejection>,
    ) -> Result<(), Violation> {
        if let (Some(observed), Ok(submitted)) = (self.tasks.get_mut(index), answer) {
            observed.id = Some(submitted.task);
            self.waiting[scheduler].insert(submitted.task, index);
        }
        self.answered(now, index, answer)
    }

    /// The client of an interactive task was sent its end.
    pub(crate) fn interactive_ended(
        &mut self,
        now: Time,
        (scheduler, task): (usize, TaskId),
        finished: &FinishedTask,
    ) -> Result<(), Violation> {
        match self.waiting[scheduler].remove(&task) {
            Some(index) => self.ended(now, index, finished),
            None => {
                let what = format!("the end of {task} was sent, and no client waits for it");
                Err(Violation { promise: Promise::OneResult, what })
            }
        }
    }

    /// The client of an interactive task got no answer.
    pub(crate) fn client_disconnected(&mut self, now: Time, index: usize) {
        let observed = &mut self.tasks[index];
        if !std::mem::replace(&mut observed.answered, true) {
            observed.ended = Some(now);
            self.ended += 1;
        }
    }

    /// A machine begins, or has ended.
    pub(crate) fn machine_changed(&mut self, now: Time, node: Node, is_running: bool) {
        self.failures.machine_changed(now, node, is_running);
        if let (Node::Scheduler(scheduler), false) = (node, is_running) {
            self.died(now, scheduler);
        }
    }

    /// A scheduler's machine has ended: its interactive clients notice.
    fn died(&mut self, now: Time, scheduler: usize) {
        for index in std::mem::take(&mut self.waiting[scheduler]).into_values() {
            self.tasks[index].ended = Some(now);
            self.ended += 1;
        }
    }

    fn void_current(&mut self, now: Time, task: TaskId) {
        if let Some(run) = self.current.remove(&task) {
            self.void.insert(run, now);
        }
    }

    /// The task that `message` reports a result for, if its attempt is void and the task has not ended.
    pub(crate) fn void_result(
        &self,
        scheduler: SchedulerId,
        message: &FromWorker,
    ) -> Option<TaskId> {
        let FromWorker::Finished { attempt, fence, .. } = message else { return None };
        let index = *self.index_of.get(&attempt.task)?;
        let void = self.void.contains_key(&RunId { scheduler, fence: *fence });
        (void && self.tasks[index as usize].ended.is_none()).then_some(attempt.task)
    }

    /// Checks that the result of a void attempt has not ended its task.
    pub(crate) fn check_void_result_dropped(&self, void: Option<TaskId>) -> Result<(), Violation> {
        let Some(task) = void else { return Ok(()) };
        let index = self.index_of.get(&task).copied().unwrap_or_default();
        if self.tasks[index as usize].completed {
            let what = format!("{task} was ended by the result of a void attempt");
            return Err(Violation { promise: Promise::OneResult, what });
        }
        Ok(())
    }

    /// A client was answered.
    pub(crate) fn answered(
        &mut self,
        now: Time,
        index: usize,
        answer: &Result<Submitted, SubmitRejection>,
    ) -> Result<(), Violation> {
        let Some(observed) = self.tasks.get_mut(index) else { return Ok(()) };
        let first = !std::mem::replace(&mut observed.answered, true);
        match answer {
            Ok(submitted) if observed.id == Some(submitted.task) => Ok(()),
            Ok(submitted) => {
                let what =
                    format!("{} was acknowledged at {now} and is not durable", submitted.task);
                Err(Violation { promise: Promise::NothingLost, what })
            }
            Err(_) => {
                observed.rejected |= first && observed.id.is_none();
                self.rejected += usize::from(first && observed.id.is_none());
                self.starvation_task_ended(index);
                Ok(())
            }
        }
    }

    /// Checks that the tasks that are durable, or about to be, are the tasks that the scheduler has.
    pub(crate) fn scheduler_stepped(
        &self,
        now: Time,
        node: &mut Host<Scheduler>,
    ) -> Result<(), Violation> {
        let at = node.setup.at;
        let (durable, interactive) = (self.open[at], self.waiting[at].len());
        let (mut accepted, mut finished) = (0, 0);
        for record in node.pending() {
            accepted += usize::from(matches!(record, Record::Accepted(_)));
            finished += usize::from(matches!(record, Record::Finished(_)));
        }
        let now = node.clock.local(now);
        let Some(machine) = &mut node.machine else { return Ok(()) };
        let held = machine.open_tasks();
        if durable + accepted + interactive != held + finished {
            let what = format!(
                "{durable} tasks are durable and open, {accepted} more and {finished} ends are about to be, {interactive} interactive requests are open, the scheduler has {held}"
            );
            return Err(Violation { promise: Promise::NothingLost, what });
        }
        if !self.thorough {
            return Ok(());
        }
        machine.check(now).map_err(|what| Violation { promise: Promise::BackToZero, what })?;
        machine
            .unexplained(now)
            .map_or(Ok(()), |what| Err(Violation { promise: Promise::EveryRefusalExplained, what }))
    }

    /// Checks that the runs of a worker fit, and that a valid lease covers each.
    pub(crate) fn worker_stepped(
        &self,
        now: Time,
        node: &Host<WorkerMachine>,
    ) -> Result<(), Violation> {
        if !self.thorough {
            return Ok(());
        }
        let Some(machine) = &node.machine else { return Ok(()) };
        machine.check().map_err(|what| Violation { promise: Promise::NotBookedTwice, what })?;
        let stray = |what| Err(Violation { promise: Promise::NoStrayRuns, what });
        let local = node.clock.local(now);
        for (run, dispatch, _) in machine.running() {
            let held = machine.lease_of_run(run).is_some_and(|(_, until)| until > local);
            if !held {
                return stray(format!("{} runs and its lease has ended", dispatch.attempt));
            }
            if let Some(void) = self.void.get(&run)
                && now > *void + STRAY_BOUND
            {
                return stray(format!("{} is void since {void} and still runs", dispatch.attempt));
            }
        }
        Ok(())
    }

    /// Checks that each lease that its holder counts on is in the worker's book: the worker has not granted it to
    /// others. (The leases of an earlier incarnation are void, and a scheduler that has not noticed is refused.)
    pub(crate) fn check_lease_holders(
        &self,
        now: Time,
        nodes: &[Host<Scheduler>],
        worker: &Host<WorkerMachine>,
    ) -> Result<(), Violation> {
        let Some(owner) = &worker.machine else { return Ok(()) };
        let (id, epoch) = (worker.setup.worker.id, owner.epoch());
        for node in nodes {
            let lease = node.machine.as_ref().and_then(|machine| machine.lease_of(id));
            let counted_on =
                lease.filter(|lease| lease.until > node.clock.local(now) && lease.epoch == epoch);
            let Some(lease) = counted_on else { continue };
            if owner.lease_of(node.setup.id).is_none_or(|(held, _)| held != lease.lease) {
                let what = format!(
                    "scheduler {} counts on {} of worker {id}, which no longer has it",
                    node.setup.at, lease.lease
                );
                return Err(Violation { promise: Promise::NotBookedTwice, what });
            }
        }
        Ok(())
    }

    /// Checks that no task is left at the end of the run.
    pub(crate) fn check_all_ended(
        &self,
        now: Time,
        nodes: &[Host<Scheduler>],
    ) -> Result<(), Violation> {
        if self.all_ended() {
            return Ok(());
        }
        let left: Vec<usize> =
            (0..self.tasks.len()).filter(|index| self.tasks[*index].ended.is_none()).collect();
        let what = format!(
            "{} of {} tasks have not ended at {now}, the first is task {}: {}",
            left.len() - self.rejected.min(left.len()),
            self.tasks.len(),
            left.first().copied().unwrap_or_default(),
            left.first().map_or_else(String::new, |index| self.describe_task(*index, now, nodes)),
        );
        Err(Violation { promise: Promise::NothingLost, what })
    }

    fn describe_task(&self, index: usize, now: Time, nodes: &[Host<Scheduler>]) -> String {
        let Some(id) = self.tasks[index].id else { return "never accepted".to_owned() };
        let view =
            |node: &Host<Scheduler>| node.machine.as_ref()?.task_view(id, node.clock.local(now));
        match nodes.iter().find_map(view) {
            Some(view) => format!(
                "{} after {} attempts, because of {:?}; last error: {:?}",
                view.state, view.attempts, view.explanation, view.last_error
            ),
            None => "no scheduler has it".to_owned(),
        }
    }

    /// Checks that a scheduler has nothing left when all tasks have ended.
    pub(crate) fn check_drained(&self, now: Time, node: &Host<Scheduler>) -> Result<(), Violation> {
        let now = node.clock.local(now);
        let Some(machine) = &node.machine else { return Ok(()) };
        let left = |what| Err(Violation { promise: Promise::BackToZero, what });
        if machine.open_tasks() != 0 || machine.waiting_tasks() != 0 {
            return left(format!("{} tasks are left", machine.open_tasks()));
        }
        for (worker, _) in machine.workers(now) {
            let sums = (worker.waiting_mean_s, worker.waiting_error_s);
            if sums != (0.0, 0.0) || worker.in_flight != 0 || worker.queued != 0 {
                return left(format!(
                    "worker {} still has a backlog of {sums:?}",
                    worker.worker.id
                ));
            }
        }
        machine.check(now).map_err(|what| Violation { promise: Promise::BackToZero, what })
    }

    /// Checks that a worker has nothing booked when it runs nothing.
    pub(crate) fn check_worker_drained(
        &self,
        now: Time,
        node: &Host<WorkerMachine>,
    ) -> Result<(), Violation> {
        self.worker_stepped(now, node)?;
        self.check_slots_free(node)
    }
}

/// The task that a record is about.
fn task_of(record: &Record) -> Option<TaskId> {
    match record {
        Record::Accepted(accepted) => Some(accepted.id),
        Record::AttemptDispatched { attempt, .. } => Some(attempt.task),
        Record::Requeued { task, .. } => Some(*task),
        Record::Finished(finished) => Some(finished.task),
        _ => None,
    }
}

/// How long after an attempt is void it may still run. The message that stops it may be lost; then the
/// answer to the next heartbeat (1 s in checked worlds) shows it, and it is stopped again, or the lease
/// ends (5 s, by a clock up to 10 % slow). With a tenth of all messages lost, each heartbeat fails to stop
/// it with probability 0.27: in this bound, less than once in 10^8.
const STRAY_BOUND: Span = Span::from_secs(16);
const _: () = assert!(HOLDER_SHARE < 0.9);
