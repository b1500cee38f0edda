//! What a task instance has, in the order in which it will run it.
//!
//! An instance takes tasks in their order and runs `replicas` of them at once, and says only when one is done. So
//! the first ones of the line have begun: waiting times, run times and timeouts are counted from there. An
//! instance cannot cancel; what is cancelled keeps its place in the line until it is over, and nobody is
//! told of it.
//!
//! Nothing here waits or reads a clock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hypha_engine::{Dispatch, FromWorker, Outcome};
use hypha_model::{AttemptId, Fence, Refusal, RefusalKind, Span};

use crate::workers::secrets::Registered;
use crate::workers::server::span;

/// A task that runs is polled for after a quarter of the time that it has run: late by that at most.
const POLL_SHARE: u32 = 4;
/// Polls are never closer together than this, whatever is configured.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Polls are never further apart than this.
const MAX_POLL_PAUSE: Duration = Duration::from_secs(30);
/// Hints that are not proven make us poll for a task no more often than this.
const HINT_PAUSE: Duration = Duration::from_millis(100);

/// What was learned of a task.
pub(super) enum Verdict {
    /// It is over.
    Ended {
        outcome: Outcome,
        /// How long the instance says that it ran.
        execution: Option<Span>,
    },
    /// It is done, but the result is not here.
    NoResult,
    /// It is not over, or nothing is known of it.
    NotYet,
}

/// A task of the instance, by the id that the instance has for it.
pub(super) struct Place {
    pub(super) fence: Fence,
    pub(super) id: String,
}

/// See the head of this file.
pub(super) struct Line {
    replicas: usize,
    poll_interval: Duration,
    runs: BTreeMap<Fence, Run>,
    /// Not handed over yet.
    waiting: VecDeque<Fence>,
    /// Being handed over.
    enqueuing: Option<Fence>,
    /// Handed over, not begun.
    queued: VecDeque<Fence>,
    /// Begun.
    running: BTreeSet<Fence>,
    /// Not begun as far as we know, but to be polled for.
    hinted: BTreeSet<Fence>,
    ended: usize,
}

struct Run {
    dispatch: Arc<Dispatch>,
    secret: Registered,
    /// The id that the instance has for the task.
    id: String,
    cancelled: bool,
    handed_over: Option<Instant>,
    started: Option<Instant>,
    poll: Poll,
    end: Option<(Span, Outcome)>,
}

#[derive(Default)]
struct Poll {
    at: Option<Instant>,
    last: Option<Instant>,
    under_way: bool,
    /// To be repeated: something was said while it was under way.
    again: bool,
}

impl Line {
    pub(super) fn new(replicas: usize, poll_interval: Duration) -> Line {
        Line {
            replicas,
            poll_interval: poll_interval.max(MIN_POLL_INTERVAL),
            runs: BTreeMap::new(),
            waiting: VecDeque::new(),
            enqueuing: None,
            queued: VecDeque::new(),
            running: BTreeSet::new(),
            hinted: BTreeSet::new(),
            ended: 0,
        }
    }

    pub(super) fn has(&self, fence: Fence) -> bool {
        self.runs.contains_key(&fence)
    }

    /// Tasks that are not over.
    pub(super) fn open(&self) -> usize {
        self.runs.len() - self.ended
    }

    /// Results that wait to be recorded.
    pub(super) fn unrecorded(&self) -> usize {
        self.ended
    }

    /// What the scheduler still counts on.
    pub(super) fn holding(&self) -> Vec<(AttemptId, Fence)> {
        let wanted = self.runs.iter().filter(|(_, run)| !run.cancelled);
        wanted.map(|(fence, run)| (run.dispatch.attempt, *fence)).collect()
    }

    pub(super) fn push(&mut self, dispatch: Arc<Dispatch>, secret: Registered) {
        let fence = dispatch.fence;
        let run = Run {
            id: dispatch.attempt.task.to_string(),
            dispatch,
            secret,
            cancelled: false,
            handed_over: None,
            started: None,
            poll: Poll::default(),
            end: None,
        };
        self.runs.insert(fence, run);
        self.waiting.push_back(fence);
    }

    /// What was said of a task last, for a dispatch that came twice. Of one that is being handed over nothing was.
    pub(super) fn again(&self, fence: Fence) -> Option<FromWorker> {
        let run = self.runs.get(&fence).filter(|run| !run.cancelled)?;
        let attempt = run.dispatch.attempt;
        match (&run.end, run.started, run.handed_over) {
            (Some((run, outcome)), ..) => {
                Some(FromWorker::Finished { attempt, fence, run: *run, outcome: outcome.clone() })
            }
            (None, Some(_), _) => Some(FromWorker::Started { attempt, fence }),
            (None, None, Some(_)) if !self.is_enqueuing(fence) => {
                Some(FromWorker::Accepted { attempt, fence })
            }
            _ => None,
        }
    }

    fn is_enqueuing(&self, fence: Fence) -> bool {
        self.enqueuing == Some(fence)
    }

    /// The next task to be handed over with its secret, if none is under way.
    pub(super) fn next_to_enqueue(&mut self, now: Instant) -> Option<(Arc<Dispatch>, String)> {
        if self.enqueuing.is_some() {
            return None;
        }
        let fence = self.waiting.pop_front()?;
        let run = self.runs.get_mut(&fence)?;
        run.handed_over = Some(now);
        self.enqueuing = Some(fence);
        Some((Arc::clone(&run.dispatch), run.secret.shown()))
    }

    /// The instance has taken a task.
    pub(super) fn enqueued(
        &mut self,
        fence: Fence,
        own_id: Option<String>,
        now: Instant,
        answers: &mut Vec<FromWorker>,
    ) {
        self.enqueue_over(fence);
        // It may be over already: a fast instance notifies before it answers.
        let Some(run) = self.runs.get_mut(&fence).filter(|run| run.end.is_none()) else { return };
        if let Some(id) = own_id.filter(|id| *id != run.id) {
            run.secret.also_known_as(&id);
            run.id = id;
        }
        if run.poll.at.is_some() {
            self.hinted.insert(fence);
        }
        self.queued.push_back(fence);
        self.promote(now, answers);
        if self.queued.back() == Some(&fence) {
            answers.extend(self.again(fence));
        }
    }

    /// The instance has not taken a task because it has too many.
    pub(super) fn refused(&mut self, fence: Fence, answers: &mut Vec<FromWorker>) {
        self.enqueue_over(fence);
        let over = |run: &Run| run.end.is_some();
        if self.runs.get(&fence).is_none_or(over) {
            return;
        }
        if let Some(run) = self.runs.remove(&fence)
            && !run.cancelled
        {
            let (attempt, refusal) = (run.dispatch.attempt, Refusal::plain(RefusalKind::Busy));
            answers.push(FromWorker::Refused { attempt, fence, refusal });
        }
    }

    /// The hand-over of a task has come to an end, good or bad.
    pub(super) fn enqueue_over(&mut self, fence: Fence) {
        if self.is_enqueuing(fence) {
            self.enqueuing = None;
        }
    }

    /// Says of what is at the head of the line that it has begun.
    pub(super) fn promote(&mut self, now: Instant, answers: &mut Vec<FromWorker>) {
        while self.running.len() < self.replicas
            && let Some(fence) = self.queued.pop_front()
        {
            let Some(run) = self.runs.get_mut(&fence) else { continue };
            self.hinted.remove(&fence);
            self.running.insert(fence);
            run.start(now, answers);
            let first = now + self.poll_interval;
            run.poll.at = Some(run.poll.at.map_or(first, |hinted| hinted.min(first)));
        }
    }

    /// A task is over. Whoever is behind it may have begun.
    pub(super) fn ended(
        &mut self,
        fence: Fence,
        outcome: Outcome,
        execution: Option<Span>,
        now: Instant,
        answers: &mut Vec<FromWorker>,
    ) {
        let Some(run) = self.runs.get_mut(&fence) else { return };
        if run.end.is_some() {
            return;
        }
        let attempt = run.dispatch.attempt;
        let since = run.started.or(run.handed_over);
        if matches!(outcome, Outcome::Completed { .. }) {
            run.start(now, answers);
        }
        let elapsed = |since: Option<Instant>| {
            since.map_or(Span::ZERO, |since| span(now.saturating_duration_since(since)))
        };
        // It cannot have run for longer than it was there.
        let plausible = execution.filter(|said| *said <= elapsed(run.handed_over));
        let ran = plausible.unwrap_or_else(|| elapsed(since));
        let cancelled = run.cancelled;
        if self.leave_line(fence) {
            // Its turn came before we thought: what was cancelled before it must be over as well.
            self.drop_cancelled_heads();
        }
        if cancelled {
            self.runs.remove(&fence);
        } else if let Some(run) = self.runs.get_mut(&fence) {
            run.end = Some((ran, outcome.clone()));
            self.ended += 1;
            answers.push(FromWorker::Finished { attempt, fence, run: ran, outcome });
        }
    }

    /// Takes a task out of the line; whether it was with the instance and had not begun as far as we knew.
    fn leave_line(&mut self, fence: Fence) -> bool {
        self.hinted.remove(&fence);
        if self.running.remove(&fence) {
            return false;
        }
        let queued = self.queued.len();
        self.queued.retain(|other| *other != fence);
        self.waiting.retain(|other| *other != fence);
        self.queued.len() < queued
    }

    fn drop_cancelled_heads(&mut self) {
        let cancelled = |fence: &&Fence| self.runs.get(*fence).is_some_and(|run| run.cancelled);
        let heads: Vec<Fence> = self.running.iter().filter(cancelled).copied().collect();
        for fence in heads {
            self.running.remove(&fence);
            self.runs.remove(&fence);
        }
    }

    /// Nobody wants the result any more.
    pub(super) fn cancel(&mut self, fence: Fence) {
        let Some(run) = self.runs.get_mut(&fence) else { return };
        if run.end.is_some() {
            self.recorded(fence);
        } else if run.handed_over.is_none() {
            self.waiting.retain(|other| *other != fence);
            self.runs.remove(&fence);
        } else {
            run.cancelled = true;
        }
    }

    pub(super) fn cancel_all(&mut self) {
        let all: Vec<Fence> = self.runs.keys().copied().collect();
        for fence in all {
            self.cancel(fence);
        }
    }

    /// The end of a task has been noted: forget it.
    pub(super) fn recorded(&mut self, fence: Fence) {
        if self.runs.get(&fence).is_some_and(|run| run.end.is_some()) {
            self.runs.remove(&fence);
            self.ended -= 1;
        }
    }

    /// What the instance has and has not finished.
    pub(super) fn handed_over(&self) -> Vec<Fence> {
        self.running.iter().chain(&self.queued).copied().collect()
    }

    /// What the instance has not been given yet.
    pub(super) fn not_handed_over(&self) -> Vec<Fence> {
        self.waiting.iter().copied().collect()
    }

    /// Somebody says that a task is over: look soon, or at once if that was proven.
    pub(super) fn poll_now(&mut self, fence: Fence, now: Instant, proven: bool) {
        let Some(run) = self.runs.get_mut(&fence).filter(|run| run.end.is_none()) else { return };
        let pause = if proven { Duration::ZERO } else { HINT_PAUSE };
        let at = run.poll.last.map_or(now, |last| now.max(last + pause));
        run.poll.again = run.poll.under_way;
        run.poll.at = Some(run.poll.at.map_or(at, |planned| planned.min(at)));
        if self.queued.contains(&fence) {
            self.hinted.insert(fence);
        }
    }

    /// The next task that is to be asked for now.
    pub(super) fn next_to_poll(&mut self, now: Instant) -> Option<Place> {
        let runs = &self.runs;
        let due = |fence: &&Fence| runs.get(*fence).is_some_and(|run| run.poll.is_due(now));
        let fence = self.running.iter().chain(&self.hinted).find(due).copied()?;
        let run = self.runs.get_mut(&fence)?;
        run.poll.under_way = true;
        run.poll.last = Some(now);
        Some(Place { fence, id: run.id.clone() })
    }

    /// A poll has brought nothing.
    pub(super) fn polled(&mut self, fence: Fence, now: Instant) {
        let Some(run) = self.runs.get_mut(&fence) else { return };
        run.poll.under_way = false;
        if std::mem::take(&mut run.poll.again) {
            run.poll.at = Some(now + HINT_PAUSE);
            return;
        }
        let ran = run.started.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let most = MAX_POLL_PAUSE.max(self.poll_interval);
        run.poll.at = Some(now + (ran / POLL_SHARE).clamp(self.poll_interval, most));
        self.hinted.remove(&fence);
    }

    /// Ends what has run for too long.
    pub(super) fn time_out(&mut self, now: Instant, answers: &mut Vec<FromWorker>) {
        let runs = &self.runs;
        let late = |fence: &&Fence| {
            runs.get(*fence).and_then(Run::late_at).is_some_and(|late_at| late_at <= now)
        };
        let late: Vec<Fence> = self.running.iter().filter(late).copied().collect();
        for fence in late {
            self.ended(fence, Outcome::TimedOut, None, now, answers);
        }
    }

    /// When something is to be done if nothing happens before.
    pub(super) fn due(&self) -> Option<Instant> {
        let of_polls = self.running.iter().chain(&self.hinted).filter_map(|fence| {
            let poll = &self.runs.get(fence)?.poll;
            poll.at.filter(|_| !poll.under_way)
        });
        let of_ends = self.running.iter().filter_map(|fence| self.runs.get(fence)?.late_at());
        of_polls.chain(of_ends).min()
    }
}

impl Run {
    fn start(&mut self, now: Instant, answers: &mut Vec<FromWorker>) {
        if self.started.is_none() {
            self.started = Some(now);
            if !self.cancelled {
                let (attempt, fence) = (self.dispatch.attempt, self.dispatch.fence);
                answers.push(FromWorker::Started { attempt, fence });
            }
        }
    }

    fn late_at(&self) -> Option<Instant> {
        self.started?.checked_add(Duration::from_micros(self.dispatch.timeout.as_micros()))
    }
}

impl Poll {
    fn is_due(&self, now: Instant) -> bool {
        !self.under_way && self.at.is_some_and(|at| at <= now)
    }
}

#[cfg(test)]
mod tests;
