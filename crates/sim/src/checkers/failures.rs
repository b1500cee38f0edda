//! Which attempts failed for a reason outside the scheduler: the checkers' own count, independent of any machine.
//!
//! An attempt has genuinely failed if its executor failed, if it took too long, if its worker was down or frozen, or if
//! the two could not communicate. Where several things went wrong at once, the scheduler has the benefit of the doubt.
//! Its own crashes, restarts, freezes and store failures are never a reason.

use std::collections::BTreeMap;

use hypha_engine::record::FinishedTask;
use hypha_engine::{Record, RunId, Settings};
use hypha_model::{Fence, Map, Span, TaskId, TaskState, Time};

use super::{Author, Promise, Violation};
use crate::world::FaultSchedule;
use crate::world::nodes::{Node, worker_index};

/// The fault that ends an attempt may strike its worker before the dispatch: a lost lease is noticed within
/// its TTL, and a little more.
const NOTICED_WITHIN: Span = Span::from_secs(6);
/// A message that takes longer than this may be taken for lost.
pub(crate) const PRESUMED_LOST_AFTER: Span = Span::from_millis(100);
/// A run on a worker whose clock is 10 % fast is stopped after this share of its time.
pub(crate) const FAST_CLOCK: f64 = 0.9;
/// The second error that a back end answers for a task is final.
const MAX_BACK_END_ERRORS: u32 = 2;

/// How a run failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunFailure {
    /// Another attempt may succeed.
    Retryable,
    /// The back end answered an error.
    BackEndError,
    /// No attempt would succeed.
    Final,
}

/// See the module documentation.
pub(super) struct FailureChecker {
    settings: Vec<Settings>,
    fault_schedule: FaultSchedule,
    /// When a message between a scheduler and a worker was last lost or late.
    links: BTreeMap<(usize, usize), Time>,
    /// When each worker was last down: in the future while it is.
    gone: BTreeMap<usize, Time>,
    /// When each scheduler was down, besides its freezes.
    down: Vec<Vec<(Time, Time)>>,
    /// Since when executors run.
    runs: BTreeMap<RunId, Time>,
    /// Runs whose executor failed.
    failed_runs: BTreeMap<RunId, RunFailure>,
    tasks: Map<TaskId, AttemptHistory>,
}

/// The history of a task's attempts.
#[derive(Clone, Copy, Default)]
struct AttemptHistory {
    current: Option<DispatchedAttempt>,
    genuine: u32,
    back_end_errors: u32,
    /// The attempts that the scheduler counts.
    counted: u32,
}

/// An attempt that was dispatched.
#[derive(Clone, Copy)]
struct DispatchedAttempt {
    fence: Fence,
    worker: Option<usize>,
    at: Time,
}

/// The verdict on the end of an attempt.
#[derive(Clone, Copy, Default)]
struct Verdict {
    is_genuine: bool,
    is_final: bool,
    /// The scheduler was down at some time during the attempt or shortly before, and could not renew the lease.
    was_interrupted: bool,
}

impl FailureChecker {
    pub(super) fn new(settings: Vec<Settings>, fault_schedule: FaultSchedule) -> FailureChecker {
        FailureChecker {
            down: vec![Vec::new(); settings.len()],
            settings,
            fault_schedule,
            links: BTreeMap::new(),
            gone: BTreeMap::new(),
            runs: BTreeMap::new(),
            failed_runs: BTreeMap::new(),
            tasks: Map::default(),
        }
    }

    /// A message between the two was lost, or arrives late.
    pub(super) fn link_failed(&mut self, scheduler: usize, worker: usize, at: Time) {
        let last = self.links.entry((scheduler, worker)).or_insert(at);
        *last = (*last).max(at);
    }

    /// A machine begins, or has ended.
    pub(super) fn machine_changed(&mut self, now: Time, node: Node, is_running: bool) {
        match (node, is_running) {
            (Node::Worker(at), _) => {
                self.gone.insert(at, if is_running { now } else { Time::MAX });
            }
            (Node::Scheduler(at), false) => self.down[at].push((now, Time::MAX)),
            (Node::Scheduler(at), true) => {
                if let Some((_, until)) = self.down[at].last_mut() {
                    *until = now;
                }
            }
        }
    }

    /// An executor begins.
    pub(super) fn run_began(&mut self, now: Time, run: RunId) {
        self.runs.insert(run, now);
    }

    /// An executor has ended; how it failed, if it did.
    pub(super) fn run_ended(&mut self, run: RunId, failed: Option<RunFailure>) {
        self.runs.remove(&run);
        if let Some(failed) = failed {
            self.failed_runs.insert(run, failed);
        }
    }

    /// Something became durable: checks that it does not count a failure without a genuine cause.
    pub(super) fn persisted(
        &mut self,
        now: Time,
        author: Author,
        record: &Record,
    ) -> Result<(), Violation> {
        match record {
            Record::AttemptDispatched { attempt, fence, worker, at } => {
                let mut history = self.tasks.get(&attempt.task).copied().unwrap_or_default();
                // When it was decided: a commit may take as long as the scheduler is frozen.
                let at = now - author.local.since(*at);
                let worker = worker_index(*worker);
                history.current = Some(DispatchedAttempt { fence: *fence, worker, at });
                self.tasks.insert(attempt.task, history);
            }
            Record::Requeued { task, failures, failed, .. } => {
                let (mut history, verdict) = self.judge(now, author, *task);
                if *failures > history.counted && !verdict.is_genuine {
                    let reason = failed.last().map(|last| &*last.reason).unwrap_or_default();
                    let what = format!("{task}: `{reason}` uses up an attempt");
                    return Err(Violation { promise: Promise::NoWrongfulFailure, what });
                }
                history.counted = *failures;
                self.tasks.insert(*task, history);
            }
            Record::Finished(finished) => {
                let (history, verdict) = self.judge(now, author, finished.task);
                self.tasks.remove(&finished.task);
                if finished.state == TaskState::Failed {
                    return self.check_final_failure(author.at, history, verdict, finished);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A task has failed: checks that it may.
    fn check_final_failure(
        &self,
        scheduler: usize,
        history: AttemptHistory,
        verdict: Verdict,
        finished: &FinishedTask,
    ) -> Result<(), Violation> {
        let policy = self.settings[scheduler].retry;
        let wants_no_retry = !policy.retry_on_timeout || !policy.retry_on_worker_failure;
        let one_run_is_lost = policy.max_attempts <= 1 && verdict.was_interrupted;
        if history.genuine >= policy.max_attempts
            || verdict.is_final
            || (verdict.is_genuine && wants_no_retry)
            || one_run_is_lost
        {
            return Ok(());
        }
        let what = format!(
            "{} failed after {} genuine failures of {}: {}",
            finished.task,
            history.genuine,
            policy.max_attempts,
            finished.error.as_ref().map_or_else(String::new, ToString::to_string)
        );
        Err(Violation { promise: Promise::NoWrongfulFailure, what })
    }

    /// Judges the attempt of a task, which is over.
    fn judge(&mut self, now: Time, author: Author, task: TaskId) -> (AttemptHistory, Verdict) {
        let Author { at: scheduler, id, .. } = author;
        let mut history = self.tasks.get(&task).copied().unwrap_or_default();
        let Some(dispatched) = history.current.take() else { return (history, Verdict::default()) };
        let run = RunId { scheduler: id, fence: dispatched.fence };
        let failed_run = self.failed_runs.remove(&run);
        let runs_for = self.runs.remove(&run).map_or(Span::ZERO, |since| now.since(since));
        // It may also have waited for too long on its worker, while the scheduler was up to wait.
        let waited = now.since(dispatched.at) - self.downtime(scheduler, dispatched.at, now);
        let allowed = self.settings[scheduler].task_timeout.mul_f64(FAST_CLOCK);
        let too_long = runs_for.max(waited) >= allowed;
        let from = dispatched.at - NOTICED_WITHIN;
        let had_fault =
            dispatched.worker.is_some_and(|worker| self.had_fault(scheduler, worker, from, now));
        history.back_end_errors += u32::from(failed_run == Some(RunFailure::BackEndError));
        let is_final = match failed_run {
            Some(RunFailure::Final) => true,
            Some(RunFailure::BackEndError) => history.back_end_errors >= MAX_BACK_END_ERRORS,
            Some(RunFailure::Retryable) | None => false,
        };
        let verdict = Verdict {
            is_genuine: failed_run.is_some() || too_long || had_fault,
            is_final,
            was_interrupted: self.downtime(scheduler, from, now) > Span::ZERO,
        };
        history.genuine += u32::from(verdict.is_genuine);
        (history, verdict)
    }

    /// Whether a worker, or the network to it, failed between these times.
    fn had_fault(&self, scheduler: usize, worker: usize, from: Time, to: Time) -> bool {
        let overlaps = |begin: &Time, end: &Time| *begin < to && *end > from;
        let frozen = |(begin, end, node): &(Time, Time, Node)| {
            *node == Node::Worker(worker) && overlaps(begin, end)
        };
        let parted = |(begin, end, s, w): &(Time, Time, usize, usize)| {
            (*s, *w) == (scheduler, worker) && overlaps(begin, end)
        };
        self.links.get(&(scheduler, worker)).is_some_and(|last| *last >= from)
            || self.gone.get(&worker).is_some_and(|last| *last >= from)
            || self.fault_schedule.freezes.iter().any(frozen)
            || self.fault_schedule.partitions.iter().any(parted)
    }

    /// For how long between these times the scheduler was down.
    fn downtime(&self, scheduler: usize, from: Time, to: Time) -> Span {
        let node = Node::Scheduler(scheduler);
        let frozen = self.fault_schedule.freezes.iter().filter(|(_, _, who)| *who == node);
        let frozen = frozen.map(|(begin, end, _)| (*begin, *end));
        let periods = frozen.chain(self.down[scheduler].iter().copied());
        let overlap = |(begin, end): (Time, Time)| end.min(to).since(begin.max(from));
        let downtime = periods.map(overlap).fold(Span::ZERO, |sum, span| sum + span);
        downtime.min(to.since(from))
    }
}
