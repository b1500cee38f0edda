//! Nothing starves: a task that a live worker could run begins within a bound, whatever arrives later.
//!
//! The checkers' own bound, from the true run times. It holds in worlds in which every worker is always up and
//! priorities are equal (`scenario/stream.rs`). With `longest` the longest run, and slots those of the smallest worker:
//!
//! - A task begins after the tasks accepted before it, spread over the slots; the tasks that may overtake it by their
//!   size, which arrive within `overtaking_s`; for each large task before it three runs, since a worker is emptied for
//!   it; and the tasks that overtake it on its worker, with the run that its reservation waits for. Where there are
//!   interactive requests, twice that: they go first, and take less than half of the slots.
//! - An interactive request begins after the interactive ones before it, for each four of which one other task may go;
//!   the runs in flight when it arrives; and the tasks that overtake it.

use std::collections::{BTreeMap, BTreeSet};

use hypha_model::{Span, Time};

use super::{Checkers, Promise, Violation};

/// The tasks that overtake a task on its worker, and the run that its reservation waits for, in runs.
const OVERTAKING_RUNS: f64 = 12.0;
/// The same for an interactive request, which overtakes others itself.
const INTERACTIVE_OVERTAKING_RUNS: f64 = 5.0;
/// So many interactive requests may go in a row before another task goes.
const MAX_INTERACTIVE_STREAK: f64 = 4.0;

/// The parameters of a world that decide its bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StarvationBounds {
    /// How long the longest run takes, in seconds.
    pub longest_s: f64,
    /// How many tasks the smallest worker runs at once, or the limit on tasks in flight.
    pub slots: u32,
    /// Tasks that arrive this much later may still go first because they are shorter.
    pub overtaking_s: f64,
    /// How much work arrives in a second, in seconds.
    pub load: f64,
    /// Whether there are interactive requests.
    pub has_interactive: bool,
}

/// A task of a world that is checked for starvation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ArrivedTask {
    pub(crate) index: usize,
    pub(crate) run_s: f64,
    pub(crate) is_large: bool,
    pub(crate) is_interactive: bool,
}

/// See the module documentation.
pub(super) struct StarvationChecker {
    bounds: StarvationBounds,
    /// Accepted tasks that have not ended.
    open: BTreeMap<usize, ArrivedTask>,
    /// By when each task that has not begun must begin.
    due: BTreeSet<(Time, usize)>,
    due_of: BTreeMap<usize, (Time, Time)>,
}

impl StarvationChecker {
    fn bound(&self, task: ArrivedTask) -> Span {
        let StarvationBounds { longest_s, slots, overtaking_s, load, has_interactive } =
            self.bounds;
        let slots = f64::from(slots.max(1));
        let is_ahead =
            |other: &&ArrivedTask| !task.is_interactive || other.is_interactive || other.is_large;
        let ahead = || self.open.values().filter(is_ahead);
        let ahead_s: f64 = ahead().map(|other| other.run_s).sum();
        let large = ahead().filter(|other| other.is_large).count() as f64;
        let seconds = if task.is_interactive {
            let others = (ahead().count() as f64 / MAX_INTERACTIVE_STREAK).ceil() * longest_s;
            (ahead_s + others) / slots + (INTERACTIVE_OVERTAKING_RUNS + 3.0 * large) * longest_s
        } else {
            let batch = overtaking_s
                + (ahead_s + overtaking_s * load) / slots
                + (OVERTAKING_RUNS + 3.0 * large) * longest_s;
            if has_interactive { 2.0 * batch } else { batch }
        };
        Span::from_secs_f64(seconds)
    }
}

impl Checkers {
    /// From now on, every task must begin within its bound.
    pub(crate) fn check_starvation(&mut self, bounds: StarvationBounds) {
        self.starvation = Some(StarvationChecker {
            bounds,
            open: BTreeMap::new(),
            due: BTreeSet::new(),
            due_of: BTreeMap::new(),
        });
    }

    pub(crate) fn checks_starvation(&self) -> bool {
        self.starvation.is_some()
    }

    /// A task has arrived.
    pub(crate) fn starvation_task_arrived(&mut self, now: Time, task: ArrivedTask) {
        let Some(starvation) = &mut self.starvation else { return };
        let due = now + starvation.bound(task);
        starvation.open.insert(task.index, task);
        starvation.due.insert((due, task.index));
        starvation.due_of.insert(task.index, (due, now));
    }

    /// A task begins.
    pub(crate) fn starvation_task_began(&mut self, index: usize) {
        let Some(starvation) = &mut self.starvation else { return };
        if let Some((due, _)) = starvation.due_of.remove(&index) {
            starvation.due.remove(&(due, index));
        }
    }

    /// A task has ended, whether it began or not.
    pub(super) fn starvation_task_ended(&mut self, index: usize) {
        self.starvation_task_began(index);
        if let Some(starvation) = &mut self.starvation {
            starvation.open.remove(&index);
        }
    }

    /// Checks that no task should have begun by now and has not.
    pub(crate) fn check_nothing_starves(&self, now: Time) -> Result<(), Violation> {
        let Some(starvation) = &self.starvation else { return Ok(()) };
        let Some((due, index)) = starvation.due.first().copied().filter(|(due, _)| *due < now)
        else {
            return Ok(());
        };
        let task = starvation.open.get(&index);
        let came = starvation.due_of.get(&index).map_or(now, |(_, came)| *came);
        let kind = match task {
            Some(ArrivedTask { is_large: true, .. }) => "the large task",
            Some(ArrivedTask { is_interactive: true, .. }) => "the interactive request",
            _ => "task",
        };
        let what = format!(
            "{kind} {index} has not begun {} after it arrived, and should have within {}",
            now.since(came),
            due.since(came)
        );
        Err(Violation { promise: Promise::NothingStarves, what })
    }
}
