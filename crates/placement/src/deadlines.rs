//! Deadlines of waiting tasks: which tasks have become urgent, which can no longer be in time, and what is expected.
//!
//! The latest start of a task is its deadline less its predicted run, with the error. A task is urgent from a margin
//! before its latest start on: it then waits in a queue of its own (`waiting.rs`), the earliest deadline first. The
//! margin is the time in which all tasks with deadlines could be served, so a task jumps the queue only as far as it
//! must. A task that the fastest worker would not complete in time, even if the run is shorter than expected by the error, is
//! unreachable: it goes last, and keeps no room.

use std::collections::{BTreeMap, BTreeSet};

use hypha_model::{Requirement, Span, Time};
use hypha_predict::{Estimate, Predictor, Query};
use serde::{Deserialize, Serialize};

use crate::capability::need_of;
use crate::member::Member;
use crate::order::{self, UNREACHABLE_RANK};
use crate::strategy::Order;
use crate::waiting::Lane;
use crate::{Placement, Stage, Task, TaskRef};

/// While other tasks of the tenant wait, this many urgent ones in a row go before them, then one of the others: they
/// get at least a fifth of the tenant's starts.
pub const MAX_CONSECUTIVE_URGENT: u32 = 4;
/// What that makes of the time in which urgent tasks are served.
const URGENT_SERVICE: f64 = 1.0 + 1.0 / MAX_CONSECUTIVE_URGENT as f64;
/// How many tasks a plan puts into another queue, at some microseconds each; the next plan continues.
const MAX_URGENCY_CHANGES: usize = 256;
/// How many workers of unknown order are compared for the fastest. Where more could run a task, its deadline counts as
/// reachable.
const MAX_WORKERS_COMPARED: usize = 256;

/// Whether a task is expected to end before its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadlineStatus {
    /// It is.
    OnTrack,
    /// It is not, or would not be if it took longer by the error of the prediction.
    AtRisk,
    /// It cannot, even on the fastest worker and at once, if it is shorter by the error of the prediction.
    Unreachable,
}

/// What is expected of a task with a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadlineOutlook {
    /// Whether it is in time.
    pub status: DeadlineStatus,
    /// When it is expected to end.
    pub finish: Time,
}

/// The deadlines of the tasks in the scheduler's queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deadlines {
    known: BTreeMap<TaskRef, KnownDeadline>,
    /// Tasks that are not urgent, by their latest start.
    upcoming: BTreeSet<(Time, TaskRef)>,
    /// Urgent tasks, by when they become unreachable.
    urgent: BTreeSet<(Time, TaskRef)>,
    /// The predicted run times of both.
    work_s: f64,
    /// Whether the last plan left tasks to put into another queue.
    is_behind: bool,
}

#[derive(Clone, Copy, Debug)]
struct KnownDeadline {
    urgency: Urgency,
    work_s: f64,
}

/// Where a task with a deadline stands. With the time it is indexed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Urgency {
    Upcoming(Time),
    Urgent(Time),
    Unreachable,
}

impl Deadlines {
    fn insert(&mut self, task: TaskRef, urgency: Urgency, work_s: f64) {
        match urgency {
            Urgency::Upcoming(at) => _ = self.upcoming.insert((at, task)),
            Urgency::Urgent(at) => _ = self.urgent.insert((at, task)),
            Urgency::Unreachable => {}
        }
        if urgency != Urgency::Unreachable {
            self.work_s += work_s;
        }
        self.known.insert(task, KnownDeadline { urgency, work_s });
    }

    /// A task has left the queue.
    pub(crate) fn remove(&mut self, task: TaskRef) {
        let Some(KnownDeadline { urgency, work_s }) = self.known.remove(&task) else { return };
        match urgency {
            Urgency::Upcoming(at) => _ = self.upcoming.remove(&(at, task)),
            Urgency::Urgent(at) => _ = self.urgent.remove(&(at, task)),
            Urgency::Unreachable => return,
        }
        // Exactly zero when there are none.
        let is_empty = self.upcoming.is_empty() && self.urgent.is_empty();
        self.work_s = if is_empty { 0.0 } else { self.work_s - work_s };
    }

    fn set(&mut self, task: TaskRef, urgency: Urgency) {
        if let Some(KnownDeadline { work_s, .. }) = self.known.get(&task).copied() {
            self.remove(task);
            self.insert(task, urgency, work_s);
        }
    }

    /// Whether a task keeps the position that its deadline gave it.
    pub(crate) fn decides_position_of(&self, task: TaskRef) -> bool {
        let known = self.known.get(&task);
        known.is_some_and(|known| !matches!(known.urgency, Urgency::Upcoming(_)))
    }

    pub(crate) fn is_unreachable(&self, task: TaskRef) -> bool {
        self.known.get(&task).is_some_and(|known| known.urgency == Urgency::Unreachable)
    }

    /// Whether the last plan left tasks to put into another queue.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// The tasks that it knows, for checks.
    fn tasks(&self) -> impl Iterator<Item = TaskRef> {
        self.known.keys().copied()
    }
}

impl Task {
    /// When its result is no longer wanted.
    pub(crate) fn deadline(&self) -> Option<Time> {
        Some(self.request.submitted + self.request.spec.requirement.deadline?)
    }

    /// The predicted run time with its error, on the reference hardware.
    fn cautious_run_s(&self) -> f64 {
        self.predicted_s * (1.0 + self.log_variance.exp_m1().sqrt())
    }
}

impl Placement {
    /// A task with a deadline begins to wait in the scheduler's queue.
    pub(crate) fn note_deadline(&mut self, task: TaskRef) {
        if self.recipe.order == Order::Arrival {
            return;
        }
        let Some(entry) = self.tasks.get(task.0 as usize) else { return };
        let Some(deadline) = entry.deadline() else { return };
        let latest_start = deadline - Span::from_secs_f64(entry.cautious_run_s());
        self.deadlines.insert(task, Urgency::Upcoming(latest_start), entry.predicted_s);
    }

    /// Puts tasks that have become urgent or unreachable into their queues.
    pub(crate) fn update_urgency(&mut self, predictor: &Predictor, now: Time) {
        self.deadlines.is_behind = false;
        if self.deadlines.known.is_empty() {
            return;
        }
        let until = now + Span::from_secs_f64(self.urgency_margin_s());
        let next = |due: &BTreeSet<(Time, TaskRef)>, by: Time| {
            due.first().filter(|(at, _)| *at <= by).map(|(_, task)| *task)
        };
        for _ in 0..MAX_URGENCY_CHANGES {
            let Some(task) =
                next(&self.deadlines.urgent, now).or_else(|| next(&self.deadlines.upcoming, until))
            else {
                return;
            };
            self.reconsider_urgency(task, predictor, now);
        }
        self.deadlines.is_behind = true;
    }

    /// How long before its latest start a task is urgent: a usual run, until some worker has room, and the time in which
    /// the open slots could serve all waiting tasks with deadlines, with as many others as go in between.
    fn urgency_margin_s(&self) -> f64 {
        self.usual_run_s() + self.served_in_s(self.deadlines.work_s) * URGENT_SERVICE
    }

    /// The usual run time where tasks run.
    fn usual_run_s(&self) -> f64 {
        if self.mean_run_s.is_empty() {
            self.mean_predicted_s.mean()
        } else {
            self.mean_run_s.mean()
        }
    }

    /// How long the open slots take for work of `work_s` on the reference hardware.
    fn served_in_s(&self, work_s: f64) -> f64 {
        let per_predicted_s = self.usual_run_s() / self.mean_predicted_s.mean();
        work_s * per_predicted_s / self.pool.open_slots().max(1) as f64
    }

    fn reconsider_urgency(&mut self, task: TaskRef, predictor: &Predictor, now: Time) {
        let Some(entry) = self.tasks.get(task.0 as usize) else { return };
        let Some(deadline) = entry.deadline() else { return };
        let request = &entry.request;
        let fastest = self.fastest_run(&request.spec.requirement, &request.query, predictor);
        let least_s = fastest.as_ref().map_or(0.0, optimistic_s);
        // A moment after the last start that could be in time, so that it is not checked again at once.
        let unreachable_at = deadline - Span::from_secs_f64(least_s) + Span::from_micros(1);
        let unreachable = unreachable_at <= now && least_s > 0.0;
        let urgency = match unreachable {
            true => Urgency::Unreachable,
            false => Urgency::Urgent(unreachable_at.max(now + Span::from_micros(1))),
        };
        let was_urgent = self.deadlines.decides_position_of(task);
        self.deadlines.set(task, urgency);
        if unreachable {
            self.release_reservation(task, now);
        }
        if unreachable || !was_urgent {
            self.move_by_deadline(task, deadline, unreachable);
        }
    }

    /// Moves a task to the position that its deadline gives it.
    fn move_by_deadline(&mut self, task: TaskRef, deadline: Time, unreachable: bool) {
        let order = self.recipe.order;
        let Some(entry) = self.tasks.get_mut(task.0 as usize) else { return };
        let Stage::Waiting(shape, rank) = entry.stage else { return };
        self.waiting.remove(shape, entry.position(rank));
        let requirement = &entry.request.spec.requirement;
        let rank = match unreachable {
            true => UNREACHABLE_RANK,
            false => order::urgent_rank(order, requirement.priority, deadline),
        };
        let lane = Lane::new(entry.request.interactive, !unreachable);
        let tenant = self.tenants.of(&entry.request.spec);
        let shape = self.waiting.insert(tenant, requirement, lane, entry.position(rank), task);
        entry.stage = Stage::Waiting(shape, rank);
    }

    /// The run on the worker that is expected to complete such a task first, of those that could run it when idle.
    /// `None` if none could, or if there are too many to compare.
    fn fastest_run(
        &self,
        requirement: &Requirement,
        query: &Query,
        predictor: &Predictor,
    ) -> Option<Estimate> {
        let need = need_of(requirement).ignoring_free_amounts();
        let max_rtt_s = self.preferences.max_rtt.map_or(f64::INFINITY, Span::as_secs_f64);
        let could = |member: &&Member| {
            member.rtt_s <= max_rtt_s && member.refuses_ever(requirement).is_none()
        };
        // The workers of a tree are equally fast where the strategy predicts; elsewhere there is one tree for all.
        let one_is_enough = self.recipe.is_time_based();
        let (mut compared, mut base) = (0, None);
        let mut fastest: Option<Estimate> = None;
        for (at, tree) in self.pool.trees().iter().enumerate() {
            tree.first_from(0, &need, &mut |position| {
                let slot = self.pool.slot_at(at, position);
                let Some(member) = slot.and_then(|slot| self.pool.member(slot)).filter(could)
                else {
                    return false;
                };
                let of_hardware = match base {
                    Some((hardware, known)) if hardware == member.hardware => known,
                    _ => predictor.hardware_estimate(query, member.hardware),
                };
                base = Some((member.hardware, of_hardware));
                let run = of_hardware.scaled(member.factor);
                if fastest.is_none_or(|fastest| run.mean_s < fastest.mean_s) {
                    fastest = Some(run);
                }
                compared += 1;
                one_is_enough || compared > MAX_WORKERS_COMPARED
            });
        }
        fastest.filter(|_| one_is_enough || compared <= MAX_WORKERS_COMPARED)
    }

    /// How long the fastest worker would take for such a task at least: the prediction less its error. `None` if no
    /// worker could run it, or if there are too many to compare.
    pub fn least_run_s(
        &self,
        requirement: &Requirement,
        query: &Query,
        predictor: &Predictor,
    ) -> Option<f64> {
        self.fastest_run(requirement, query, predictor).as_ref().map(optimistic_s)
    }

    /// Whether a task is expected to end before its deadline. `None` if it has none, or if no worker could run it.
    pub fn deadline_outlook(
        &self,
        task: TaskRef,
        predictor: &Predictor,
        now: Time,
    ) -> Option<DeadlineOutlook> {
        let entry = self.tasks.get(task.0 as usize)?;
        let deadline = entry.deadline()?;
        let (wait_s, run, least_s) = match entry.stage {
            Stage::Dispatched(slot) => {
                let member = self.pool.member(slot)?;
                let run = member.in_flight.remaining_run(task, now)?;
                let wait_s = match member.in_flight.has_started(task) {
                    true => 0.0,
                    false => (member.wait(now).mean_s - run.mean_s).max(0.0),
                };
                (wait_s, run, optimistic_s(&run))
            }
            Stage::Bound(slot) => {
                let run = entry.estimate();
                let behind_s = self.pool.member(slot)?.wait(now).mean_s;
                ((behind_s - run.mean_s).max(0.0), run, optimistic_s(&run))
            }
            Stage::Waiting(..) => {
                let request = &entry.request;
                let fastest =
                    self.fastest_run(&request.spec.requirement, &request.query, predictor)?;
                let run = match entry.estimate() {
                    Estimate { mean_s: 0.0, .. } => fastest,
                    chosen => chosen,
                };
                (self.expected_wait_s(entry, deadline, now), run, optimistic_s(&fastest))
            }
        };
        let left_s = deadline.since(now).as_secs_f64();
        let finish_s = wait_s + run.mean_s;
        let status = if least_s > left_s {
            DeadlineStatus::Unreachable
        } else if finish_s + run.error_s > left_s {
            DeadlineStatus::AtRisk
        } else {
            DeadlineStatus::OnTrack
        };
        Some(DeadlineOutlook { status, finish: now + Span::from_secs_f64(finish_s) })
    }

    /// How long a task in the scheduler's queue is expected to wait: until all that waits is served, or, where deadlines
    /// count, until it is urgent and all tasks with deadlines are served, if that is earlier.
    fn expected_wait_s(&self, entry: &Task, deadline: Time, now: Time) -> f64 {
        if self.pool.has_free() {
            return 0.0;
        }
        let until_room_s = self.usual_run_s() / self.pool.open_slots().max(1) as f64;
        let in_order_s =
            until_room_s + self.served_in_s(self.waiting_s - entry.predicted_s).max(0.0);
        if self.recipe.order == Order::Arrival {
            return in_order_s;
        }
        let latest_start = deadline - Span::from_secs_f64(entry.cautious_run_s());
        let margin_s = self.urgency_margin_s();
        let until_urgent_s = (latest_start.since(now).as_secs_f64() - margin_s).max(0.0);
        let others_s = self.served_in_s((self.deadlines.work_s - entry.predicted_s).max(0.0));
        in_order_s.min(until_urgent_s + until_room_s + others_s * URGENT_SERVICE)
    }

    /// A deadline that is known and whose task does not wait, or the reverse.
    pub(crate) fn wrong_deadline(&self) -> Option<String> {
        let waits = |task: &TaskRef| matches!(self.stage(*task), Some(Stage::Waiting(..)));
        if let Some(task) = self.deadlines.tasks().find(|task| !waits(task)) {
            return Some(format!("{task:?} has a deadline in the queue, and does not wait there"));
        }
        let indexed = self.deadlines.upcoming.len() + self.deadlines.urgent.len();
        let known = self.deadlines.known.values();
        let reachable = known.filter(|known| known.urgency != Urgency::Unreachable).count();
        let is_zero = self.deadlines.work_s == 0.0;
        (indexed != reachable || (indexed == 0 && !is_zero))
            .then(|| format!("{indexed} deadlines are indexed, and {reachable} are known"))
    }
}

/// The run time if the prediction is too long by its error.
fn optimistic_s(run: &Estimate) -> f64 {
    (run.mean_s - run.error_s).max(0.0)
}
