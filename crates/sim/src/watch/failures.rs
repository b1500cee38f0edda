//! Which attempts failed for a reason outside the scheduler: the checkers' own count, which believes no machine.
//!
//! An attempt has genuinely failed if its executor failed, if it took too long, if its worker was gone or frozen, or
//! if the two could not talk. Where several things went wrong at once, the scheduler has the benefit of the doubt. Its
//! own crashes, restarts, freezes and store failures are never a reason.

use std::collections::BTreeMap;

use hypha_engine::record::FinishedTask;
use hypha_engine::{Record, RunId, Settings};
use hypha_model::{Fence, Map, Span, TaskId, TaskState, Time};

use super::{Author, Promise, Violation};
use crate::world::Timetable;
use crate::world::nodes::{Node, worker_index};

/// Before an attempt is handed over, its worker may have got into the trouble that ends it: a lease is noticed to be
/// lost within its time, and a little more.
const NOTICED_WITHIN: Span = Span::from_secs(6);
/// A message that takes longer than this may be taken for lost.
pub(crate) const LATE: Span = Span::from_millis(100);
/// A run on a worker whose clock is 10 % fast is stopped after this share of its time.
pub(crate) const FAST_CLOCK: f64 = 0.9;
/// A task that was given back or refused this often may be given up.
const MAX_REFUSALS: u32 = 100;

/// See the head of this file.
pub(super) struct Failures {
    settings: Vec<Settings>,
    timetable: Timetable,
    /// When a message between a scheduler and a worker was last lost or late.
    links: BTreeMap<(usize, usize), Time>,
    /// When each worker was last gone: in the future while it is.
    gone: BTreeMap<usize, Time>,
    /// When each scheduler was down, besides its freezes.
    down: Vec<Vec<(Time, Time)>>,
    /// Since when executors run.
    runs: BTreeMap<RunId, Time>,
    /// Runs whose executor failed, and whether that was said to be final.
    failed_runs: BTreeMap<RunId, bool>,
    tasks: Map<TaskId, Book>,
}

/// What is known of a task's attempts.
#[derive(Clone, Copy, Default)]
struct Book {
    current: Option<Given>,
    genuine: u32,
    /// What the scheduler counts.
    counted: u32,
}

/// An attempt that was handed over.
#[derive(Clone, Copy)]
struct Given {
    fence: Fence,
    worker: Option<usize>,
    at: Time,
}

/// What is known of the end of an attempt.
#[derive(Clone, Copy, Default)]
struct Verdict {
    is_genuine: bool,
    is_final: bool,
    /// The scheduler was not there all the time, or not shortly before, to renew the lease.
    was_interrupted: bool,
}

impl Failures {
    pub(super) fn new(settings: Vec<Settings>, timetable: Timetable) -> Failures {
        Failures {
            down: vec![Vec::new(); settings.len()],
            settings,
            timetable,
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

    /// A machine begins, or is gone.
    pub(super) fn changed(&mut self, now: Time, node: Node, is_there: bool) {
        match (node, is_there) {
            (Node::Worker(at), _) => {
                self.gone.insert(at, if is_there { now } else { Time::MAX });
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

    /// An executor has ended; if it failed, whether that is final.
    pub(super) fn run_ended(&mut self, run: RunId, failed: Option<bool>) {
        self.runs.remove(&run);
        if let Some(is_final) = failed {
            self.failed_runs.insert(run, is_final);
        }
    }

    /// Something became durable: whether it counts a failure that was none.
    pub(super) fn persisted(
        &mut self,
        now: Time,
        author: Author,
        record: &Record,
    ) -> Result<(), Violation> {
        match record {
            Record::Attempted { attempt, fence, worker, at } => {
                let mut book = self.tasks.get(&attempt.task).copied().unwrap_or_default();
                // When it was decided: a commit may take as long as the scheduler is frozen.
                let at = now - author.local.since(*at);
                let worker = worker_index(*worker);
                book.current = Some(Given { fence: *fence, worker, at });
                self.tasks.insert(attempt.task, book);
            }
            Record::Requeued { task, failures, failed, .. } => {
                let (mut book, verdict) = self.judge(now, author, *task);
                if *failures > book.counted && !verdict.is_genuine {
                    let reason = failed.last().map(|last| &*last.reason).unwrap_or_default();
                    let what = format!("{task}: `{reason}` uses up an attempt");
                    return Err(Violation { promise: Promise::NoWrongfulFailure, what });
                }
                book.counted = *failures;
                self.tasks.insert(*task, book);
            }
            Record::Finished(finished) => {
                let (book, verdict) = self.judge(now, author, finished.task);
                self.tasks.remove(&finished.task);
                if finished.state == TaskState::Failed {
                    return self.gave_up(author.at, book, verdict, finished);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A task has failed: whether it may.
    fn gave_up(
        &self,
        scheduler: usize,
        book: Book,
        verdict: Verdict,
        finished: &FinishedTask,
    ) -> Result<(), Violation> {
        let policy = self.settings[scheduler].retry;
        let wants_no_retry = !policy.retry_on_timeout || !policy.retry_on_worker_failure;
        let one_run_is_lost = policy.max_attempts <= 1 && verdict.was_interrupted;
        if book.genuine >= policy.max_attempts
            || verdict.is_final
            || (verdict.is_genuine && wants_no_retry)
            || one_run_is_lost
            || finished.attempts >= MAX_REFUSALS
        {
            return Ok(());
        }
        let what = format!(
            "{} failed after {} genuine failures of {}: {}",
            finished.task,
            book.genuine,
            policy.max_attempts,
            finished.error.as_ref().map_or_else(String::new, ToString::to_string)
        );
        Err(Violation { promise: Promise::NoWrongfulFailure, what })
    }

    /// The attempt of a task is over.
    fn judge(&mut self, now: Time, author: Author, task: TaskId) -> (Book, Verdict) {
        let Author { at: scheduler, id, .. } = author;
        let mut book = self.tasks.get(&task).copied().unwrap_or_default();
        let Some(given) = book.current.take() else { return (book, Verdict::default()) };
        let run = RunId { scheduler: id, fence: given.fence };
        let failed_run = self.failed_runs.remove(&run);
        let runs_for = self.runs.remove(&run).map_or(Span::ZERO, |since| now.since(since));
        // It may also have waited for too long on its worker, while the scheduler was there to wait.
        let waited = now.since(given.at) - self.away(scheduler, given.at, now);
        let allowed = self.settings[scheduler].task_timeout.mul_f64(FAST_CLOCK);
        let too_long = runs_for.max(waited) >= allowed;
        let from = given.at - NOTICED_WITHIN;
        let trouble = given.worker.is_some_and(|worker| self.trouble(scheduler, worker, from, now));
        let verdict = Verdict {
            is_genuine: failed_run.is_some() || too_long || trouble,
            is_final: failed_run.unwrap_or_default(),
            was_interrupted: self.away(scheduler, from, now) > Span::ZERO,
        };
        book.genuine += u32::from(verdict.is_genuine);
        (book, verdict)
    }

    /// Whether a worker, or the network to it, had trouble between these times.
    fn trouble(&self, scheduler: usize, worker: usize, from: Time, to: Time) -> bool {
        let overlaps = |begin: &Time, end: &Time| *begin < to && *end > from;
        let frozen = |(begin, end, node): &(Time, Time, Node)| {
            *node == Node::Worker(worker) && overlaps(begin, end)
        };
        let parted = |(begin, end, s, w): &(Time, Time, usize, usize)| {
            (*s, *w) == (scheduler, worker) && overlaps(begin, end)
        };
        self.links.get(&(scheduler, worker)).is_some_and(|last| *last >= from)
            || self.gone.get(&worker).is_some_and(|last| *last >= from)
            || self.timetable.freezes.iter().any(frozen)
            || self.timetable.partitions.iter().any(parted)
    }

    /// For how long between these times the scheduler was not there.
    fn away(&self, scheduler: usize, from: Time, to: Time) -> Span {
        let node = Node::Scheduler(scheduler);
        let frozen = self.timetable.freezes.iter().filter(|(_, _, who)| *who == node);
        let frozen = frozen.map(|(begin, end, _)| (*begin, *end));
        let periods = frozen.chain(self.down[scheduler].iter().copied());
        let overlap = |(begin, end): (Time, Time)| end.min(to).since(begin.max(from));
        let away = periods.map(overlap).fold(Span::ZERO, |sum, span| sum + span);
        away.min(to.since(from))
    }
}
