//! The checkers: what must hold after every step, whatever goes wrong.

use std::collections::BTreeMap;

use hypha_engine::record::FinishedTask;
use hypha_engine::scheduler::HOLDER_SHARE;
use hypha_engine::{FromWorker, Record, Reject, RunId, Submitted};
use hypha_model::{Map, Payload, SchedulerId, Span, TaskId, TaskState, Time};
use thiserror::Error;

use crate::world::index_of_spec;
use crate::world::nodes::{SchedulerNode, WorkerNode};

/// A promise that was broken.
#[derive(Clone, Debug, Error, PartialEq)]
#[error("{promise}: {what}")]
pub struct Violation {
    /// Which promise.
    pub promise: Promise,
    /// How it was broken.
    pub what: String,
}

/// The promises that are checked.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, PartialOrd, Ord)]
pub enum Promise {
    /// What was acknowledged is durable and ends.
    #[error("an accepted task was lost")]
    NothingLost,
    /// A task has one recorded end, and a repeated key one task.
    #[error("a task has more than one result")]
    OneResult,
    /// What runs fits; a lease has one holder.
    #[error("capacity was booked twice")]
    NotBookedTwice,
    /// Nothing runs without a lease, or long after its attempt is void.
    #[error("an attempt ran without the right to")]
    NoStrayRuns,
    /// Running sums agree with what they sum up, and are zero when nothing is left.
    #[error("a queue or an estimate did not return to zero")]
    BackToZero,
    /// A request that is not stored leaves no trace, and ends with its scheduler.
    #[error("a request that is not to be stored was kept")]
    NotKept,
    /// A task that waits has a reason.
    #[error("a refusal has no reason")]
    EveryRefusalExplained,
}

/// What has been seen of the tasks, and what follows from it.
pub struct Watch {
    thorough: bool,
    tasks: Vec<Seen>,
    index_of: Map<TaskId, u32>,
    /// For each scheduler, tasks that are durable and have not ended.
    open: Vec<usize>,
    /// For each scheduler, the tasks that are not stored and whose clients wait, with their indices.
    waiting: Vec<BTreeMap<TaskId, usize>>,
    ended: usize,
    rejected: usize,
    counts: [usize; TaskState::ALL.len()],
    /// When each attempt became void, by scheduler and token.
    void: BTreeMap<RunId, Time>,
    current: Map<TaskId, RunId>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    id: Option<TaskId>,
    submitted: Option<Time>,
    ended: Option<Time>,
    answered: bool,
    completed: bool,
}

impl Watch {
    pub(crate) fn new(tasks: usize, schedulers: usize, thorough: bool) -> Watch {
        Watch {
            thorough,
            tasks: vec![Seen::default(); tasks],
            index_of: Map::default(),
            open: vec![0; schedulers],
            waiting: vec![BTreeMap::new(); schedulers],
            ended: 0,
            rejected: 0,
            counts: [0; TaskState::ALL.len()],
            void: BTreeMap::new(),
            current: Map::default(),
        }
    }

    /// From submission to recorded end, for each completed task, in the order of submission.
    pub fn latencies(&self) -> Vec<Span> {
        let latency = |task: &Seen| {
            let completed = task.completed.then_some(task.ended?)?;
            Some(completed.since(task.submitted?))
        };
        self.tasks.iter().filter_map(latency).collect()
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
        node: (usize, SchedulerId),
        record: &Record,
    ) -> Result<(), Violation> {
        let (scheduler, scheduler_id) = node;
        if let Some(task) = task_of(record)
            && self.waiting[scheduler].contains_key(&task)
        {
            let what = format!("{record:?} is durable, and its client waits on the line");
            return Err(Violation { promise: Promise::NotKept, what });
        }
        match record {
            Record::Accepted(accepted) => {
                let Some(index) = index_of_spec(&accepted.spec) else { return Ok(()) };
                if let Some(first) = self.tasks[index].id {
                    let what = format!("{} and {first} have the same key", accepted.id);
                    return Err(Violation { promise: Promise::OneResult, what });
                }
                self.tasks[index].id = Some(accepted.id);
                self.index_of.insert(accepted.id, index as u32);
                self.open[scheduler] += 1;
            }
            Record::Attempted { attempt, fence, .. } if self.thorough => {
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

    /// The one end of a task.
    fn ended(&mut self, now: Time, index: usize, finished: &FinishedTask) -> Result<(), Violation> {
        let seen = &mut self.tasks[index];
        seen.ended = Some(now);
        seen.completed = finished.state == TaskState::Completed;
        self.counts[finished.state as usize] += 1;
        self.ended += 1;
        let expected = Payload::from((index as u32).to_le_bytes().as_slice());
        if seen.completed && finished.result.as_ref().map(|r| &r.0) != Some(&expected) {
            let what = format!("{} has the result of another task", finished.task);
            return Err(Violation { promise: Promise::OneResult, what });
        }
        Ok(())
    }

    /// A client who waits on the line was answered.
    pub(crate) fn on_line(
        &mut self,
        now: Time,
        (scheduler, index): (usize, usize),
        answer: &Result<Submitted, Reject>,
    ) -> Result<(), Violation> {
        if let (Some(seen), Ok(submitted)) = (self.tasks.get_mut(index), answer) {
            seen.id = Some(submitted.task);
            self.waiting[scheduler].insert(submitted.task, index);
        }
        self.answered(now, index, answer)
    }

    /// A client who waits on the line was told the end.
    pub(crate) fn ended_on_line(
        &mut self,
        now: Time,
        (scheduler, task): (usize, TaskId),
        finished: &FinishedTask,
    ) -> Result<(), Violation> {
        match self.waiting[scheduler].remove(&task) {
            Some(index) => self.ended(now, index, finished),
            None => {
                let what = format!("the end of {task} was told, and nobody waits for it");
                Err(Violation { promise: Promise::OneResult, what })
            }
        }
    }

    /// A client on the line got no answer.
    pub(crate) fn hung_up(&mut self, now: Time, index: usize) {
        let seen = &mut self.tasks[index];
        if !std::mem::replace(&mut seen.answered, true) {
            seen.ended = Some(now);
            self.ended += 1;
        }
    }

    /// A scheduler has died: those who waited on the line notice.
    pub(crate) fn died(&mut self, now: Time, scheduler: usize) {
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

    /// The task that `message` brings a result for, if its attempt is void and the task has not ended.
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

    /// The result of a void attempt has not ended its task.
    pub(crate) fn not_recorded(&self, void: Option<TaskId>) -> Result<(), Violation> {
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
        answer: &Result<Submitted, Reject>,
    ) -> Result<(), Violation> {
        let Some(seen) = self.tasks.get_mut(index) else { return Ok(()) };
        let first = !std::mem::replace(&mut seen.answered, true);
        match answer {
            Ok(submitted) if seen.id == Some(submitted.task) => Ok(()),
            Ok(submitted) => {
                let what =
                    format!("{} was acknowledged at {now} and is not durable", submitted.task);
                Err(Violation { promise: Promise::NothingLost, what })
            }
            Err(_) => {
                self.rejected += usize::from(first);
                Ok(())
            }
        }
    }

    /// What is durable and what the scheduler has in hand are the same tasks.
    pub(crate) fn scheduler_stepped(
        &self,
        now: Time,
        node: &mut SchedulerNode,
    ) -> Result<(), Violation> {
        let Some(machine) = &mut node.machine else { return Ok(()) };
        let (durable, on_line) = (self.open[node.at], self.waiting[node.at].len());
        let held = machine.open_tasks();
        if durable + on_line != held {
            let what = format!(
                "{durable} tasks are durable and open, {on_line} clients wait on the line, the scheduler has {held}"
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

    /// What a worker runs fits, and is paid for by a lease that holds.
    pub(crate) fn worker_stepped(&self, now: Time, node: &WorkerNode) -> Result<(), Violation> {
        if !self.thorough {
            return Ok(());
        }
        let Some(machine) = &node.machine else { return Ok(()) };
        machine.check().map_err(|what| Violation { promise: Promise::NotBookedTwice, what })?;
        let stray = |what| Err(Violation { promise: Promise::NoStrayRuns, what });
        let lease = machine.lease();
        let local = node.clock.local(now);
        for (run, dispatch, _) in machine.running() {
            let held =
                lease.is_some_and(|(holder, _, until)| holder == run.scheduler && until > local);
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

    /// No two schedulers count on the same life of a worker. (What an earlier life granted is void, and a
    /// scheduler that has not noticed is refused.)
    pub(crate) fn one_holder(
        &self,
        now: Time,
        nodes: &[SchedulerNode],
        worker: &WorkerNode,
    ) -> Result<(), Violation> {
        if nodes.len() < 2 {
            return Ok(());
        }
        let id = worker.setup.worker.id;
        let holds = |node: &&SchedulerNode| {
            let lease = node.machine.as_ref().and_then(|machine| machine.lease_of(id));
            lease.is_some_and(|lease| lease.until > now && lease.epoch == worker.epoch)
        };
        let holders: Vec<usize> = nodes.iter().filter(holds).map(|node| node.at).collect();
        if holders.len() > 1 {
            let what = format!("schedulers {holders:?} hold worker {id} at once");
            return Err(Violation { promise: Promise::NotBookedTwice, what });
        }
        Ok(())
    }

    /// The run is over although tasks are left.
    pub(crate) fn stuck(&self, now: Time, nodes: &[SchedulerNode]) -> Result<(), Violation> {
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
            left.first().map_or_else(String::new, |index| self.whereabouts(*index, now, nodes)),
        );
        Err(Violation { promise: Promise::NothingLost, what })
    }

    fn whereabouts(&self, index: usize, now: Time, nodes: &[SchedulerNode]) -> String {
        let Some(id) = self.tasks[index].id else { return "never accepted".to_owned() };
        let view = |node: &SchedulerNode| node.machine.as_ref()?.task_view(id, now);
        match nodes.iter().find_map(view) {
            Some(view) => format!(
                "{} after {} attempts, because of {:?}; last error: {:?}",
                view.state, view.attempts, view.explanation, view.last_error
            ),
            None => "no scheduler has it".to_owned(),
        }
    }

    /// Nothing is left over when all tasks have ended.
    pub(crate) fn drained(&self, now: Time, node: &SchedulerNode) -> Result<(), Violation> {
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

    /// A worker has nothing booked when it runs nothing.
    pub(crate) fn worker_drained(&self, now: Time, node: &WorkerNode) -> Result<(), Violation> {
        self.worker_stepped(now, node)
    }
}

/// The task that a record is about.
fn task_of(record: &Record) -> Option<TaskId> {
    match record {
        Record::Accepted(accepted) => Some(accepted.id),
        Record::Attempted { attempt, .. } => Some(attempt.task),
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
