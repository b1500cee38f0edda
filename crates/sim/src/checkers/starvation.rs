//! Nothing starves: a task that a live worker could run begins within a bound, whatever arrives later.
//!
//! The checkers' own bound, from the true run times, for the worlds of `scenario/stream.rs`; docs/simulator.md derives
//! it. With the longest run R, the slots s of the smallest worker, and the time O in which later tasks may overtake by
//! their priority or their size, a task begins within
//!
//! O + (work accepted before it + work that arrives in O) / s + (5 + s + 3 × large tasks before it) × R
//!
//! and within some times that where later tasks take a share of the slots. For an interactive request, the work before it
//! is that of the interactive and large tasks, and of one other task for every four of them.
//!
//! Time counts only while the pool is as assumed: not while all workers are down, nor while it recovers from the loss
//! of one. A task whose run is lost must begin again within the same bound.

use std::collections::{BTreeMap, BTreeSet};

use hypha_model::{Span, Time};

use super::{Checkers, Promise, Violation};

/// The runs that the first task in the queue waits for, besides those that overtake it on its worker: two until another's
/// reservation is used (those in flight, and those that the reservation let begin before its time), two for its own, and
/// one that was dispatched before it.
const RUNS_BEFORE: f64 = 5.0;
/// For a large task, a worker is emptied: the runs in flight end, then those that were let begin before its time, then it
/// runs alone.
const RUNS_PER_LARGE_TASK: f64 = 3.0;
/// So many interactive requests may go in a row before another task goes.
const MAX_INTERACTIVE_STREAK: f64 = 4.0;

/// The parameters of a world that decide its bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct StarvationBounds {
    /// How long the longest run takes, in seconds, until its slot is free again.
    pub longest_s: f64,
    /// How many tasks the smallest worker runs at once, or the limit on tasks in flight.
    pub slots: u32,
    /// Tasks that arrive this much later may still go first because they are shorter.
    pub reorder_s: f64,
    /// The same for each unit by which their priority is higher.
    pub head_start_s: f64,
    /// The highest priority.
    pub max_priority: i32,
    /// How much work arrives in a second, in seconds.
    pub load: f64,
    /// How many times longer a task that is not interactive may wait because of later ones that go before it.
    pub slowdown: f64,
    /// The periods that do not count, in order, without overlaps.
    pub outages: Vec<(Time, Time)>,
}

/// A task of a world that is checked for starvation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ArrivedTask {
    pub(crate) index: usize,
    pub(crate) run_s: f64,
    pub(crate) priority: i32,
    pub(crate) is_large: bool,
    pub(crate) is_interactive: bool,
}

/// See the module documentation.
pub(super) struct StarvationChecker {
    bounds: StarvationBounds,
    /// Accepted tasks that have not ended.
    open: BTreeMap<usize, ArrivedTask>,
    /// How many runs each of them has.
    runs: BTreeMap<usize, u32>,
    /// By when each task that does not run must begin.
    due: BTreeSet<(Time, usize)>,
    /// The same by task, and since when it waits.
    due_of: BTreeMap<usize, (Time, Time)>,
}

impl StarvationBounds {
    fn overtaking_s(&self, priority: i32) -> f64 {
        self.reorder_s + self.head_start_s * f64::from(self.max_priority - priority)
    }

    /// When this much time has passed that counts.
    fn after(&self, since: Time, counted: Span) -> Time {
        let mut due = since + counted;
        for (from, to) in &self.outages {
            if *from < due && since < *to {
                due = due + to.since((*from).max(since));
            }
        }
        due
    }
}

impl StarvationChecker {
    fn bound(&self, task: ArrivedTask) -> Span {
        let bounds = &self.bounds;
        let (longest_s, slots) = (bounds.longest_s, f64::from(bounds.slots.max(1)));
        let overtaking_s = bounds.overtaking_s(task.priority);
        let is_ahead = |other: &&ArrivedTask| {
            other.index != task.index
                && (!task.is_interactive || other.is_interactive || other.is_large)
        };
        let ahead = || self.open.values().filter(is_ahead);
        let mut work_s: f64 = ahead().map(|other| other.run_s).sum();
        work_s += overtaking_s * bounds.load;
        let large = ahead().filter(|other| other.is_large).count() as f64;
        let runs = RUNS_BEFORE + slots + RUNS_PER_LARGE_TASK * large;
        if task.is_interactive {
            work_s += (ahead().count() as f64 / MAX_INTERACTIVE_STREAK).ceil() * longest_s;
        }
        let seconds = overtaking_s + work_s / slots + runs * longest_s;
        Span::from_secs_f64(if task.is_interactive { seconds } else { bounds.slowdown * seconds })
    }

    fn must_begin(&mut self, now: Time, task: ArrivedTask) {
        let due = self.bounds.after(now, self.bound(task));
        self.due.insert((due, task.index));
        self.due_of.insert(task.index, (due, now));
    }

    fn need_not_begin(&mut self, index: usize) {
        if let Some((due, _)) = self.due_of.remove(&index) {
            self.due.remove(&(due, index));
        }
    }
}

impl Checkers {
    /// From now on, every task must begin within its bound.
    pub(crate) fn check_starvation(&mut self, bounds: StarvationBounds) {
        self.starvation = Some(StarvationChecker {
            bounds,
            open: BTreeMap::new(),
            runs: BTreeMap::new(),
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
        starvation.open.insert(task.index, task);
        starvation.must_begin(now, task);
    }

    /// A run of a task begins.
    pub(crate) fn starvation_run_began(&mut self, index: usize) {
        let Some(starvation) = &mut self.starvation else { return };
        starvation.need_not_begin(index);
        *starvation.runs.entry(index).or_default() += 1;
    }

    /// A run of a task has ended. If it has no outcome, and no other run, the task must begin again.
    pub(crate) fn starvation_run_ended(&mut self, now: Time, index: usize, is_lost: bool) {
        let Some(starvation) = &mut self.starvation else { return };
        let runs = starvation.runs.entry(index).or_default();
        *runs = runs.saturating_sub(1);
        if *runs > 0 {
            return;
        }
        starvation.runs.remove(&index);
        if let Some(task) = starvation.open.get(&index).copied().filter(|_| is_lost) {
            starvation.must_begin(now, task);
        }
    }

    /// A task has ended, whether it began or not.
    pub(super) fn starvation_task_ended(&mut self, index: usize) {
        if let Some(starvation) = &mut self.starvation {
            starvation.need_not_begin(index);
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
        let since = starvation.due_of.get(&index).map_or(now, |(_, since)| *since);
        let kind = match task {
            Some(ArrivedTask { is_large: true, .. }) => "the large task",
            Some(ArrivedTask { is_interactive: true, .. }) => "the interactive request",
            _ => "task",
        };
        let what = format!(
            "{kind} {index} has not begun after waiting for {}, and should have within {}",
            now.since(since),
            due.since(since)
        );
        Err(Violation { promise: Promise::NothingStarves, what })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outages_do_not_count() {
        let at = |seconds: u64| Time::from_micros(seconds * 1_000_000);
        let bounds = StarvationBounds {
            longest_s: 1.0,
            slots: 1,
            reorder_s: 0.0,
            head_start_s: 0.0,
            max_priority: 0,
            load: 1.0,
            slowdown: 1.0,
            outages: vec![(at(10), at(20)), (at(25), at(30))],
        };
        // Since when, how long, and when that is over.
        for (since, counted, expected) in [
            (0, 5, 5),
            (0, 10, 10),
            (0, 11, 21),
            (0, 15, 25),
            (0, 16, 31),
            (15, 1, 21),
            (30, 1, 31),
        ] {
            assert_eq!(bounds.after(at(since), Span::from_secs(counted)), at(expected), "{since}");
        }
    }
}
