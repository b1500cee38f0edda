//! Room that is kept for the tasks that have waited longest, and which tasks may use it meanwhile.
//!
//! The first tasks in order that a worker could run, and has no room for now, each get a reservation on one worker:
//! the earliest time at which the task is predicted to fit there. That time is never moved later. Until the task has
//! begun, another begins on that worker only if it is predicted to end by then, or as backfill: if only backfill ran
//! there, it and the task would fit together. So the task begins at the latest when all tasks that began there before
//! that time have ended, whatever arrives and however wrong predictions are.

use std::sync::Arc;

use hypha_model::{Requirement, Span, TaskSpec, Time};
use hypha_predict::{Estimate, Predictor};

use crate::capability::need_of;
use crate::fair_queue::MAX_CONSECUTIVE_INTERACTIVE;
use crate::in_flight::InFlight;
use crate::member::Member;
use crate::{Placement, PlacementMutant, Stage, Task, TaskRef, WorkerSlot};

/// How many reservations there are at a time, one on a worker. Every plan looks at each.
pub(crate) const MAX_RESERVATIONS: usize = 16;
/// How many workers are compared for the one that has room first.
const MAX_CANDIDATES: usize = 8;

/// Room that is kept for a task on one worker.
#[derive(Clone, Debug)]
pub(crate) struct Reservation {
    pub(crate) task: TaskRef,
    spec: Arc<TaskSpec>,
    executor: usize,
    /// When it is predicted to fit.
    start_by: Time,
    /// How long it is predicted to run.
    run_s: f64,
    /// The state of the worker that this was predicted from.
    seen_changes: u64,
}

impl Reservation {
    /// When the tasks that it keeps out can begin, in seconds from `now`.
    pub(crate) fn wait_s(&self, now: Time) -> f64 {
        self.start_by.since(now).as_secs_f64() + self.run_s
    }

    /// Whether a task that takes `run_s` would delay the one with the reservation.
    pub(crate) fn is_delayed_by(
        &self,
        in_flight: &InFlight,
        (requirement, executor): (&Requirement, usize),
        run_s: f64,
        now: Time,
    ) -> bool {
        now + Span::from_secs_f64(run_s) > self.start_by
            && !in_flight
                .fit_together((&self.spec.requirement, self.executor), (requirement, executor))
    }

    /// Whether a run that begins now is predicted to end too late for the task.
    pub(crate) fn would_delay(&self, estimate: &Estimate, now: Time) -> bool {
        now + Span::from_secs_f64(estimate.mean_s) > self.start_by
    }

    /// Predicts again if the worker has changed; the time only ever becomes earlier.
    fn renew(&mut self, in_flight: &InFlight, now: Time) {
        if self.seen_changes != in_flight.changes() {
            self.seen_changes = in_flight.changes();
            self.start_by =
                self.start_by.min(in_flight.fits_at(&self.spec.requirement, self.executor, now));
        }
    }
}

impl Placement {
    /// Makes a reservation for a task that `slot` could run and has no room for now, or some worker if `slot` is
    /// `None`.
    pub(crate) fn reserve(
        &mut self,
        task: TaskRef,
        slot: Option<WorkerSlot>,
        predictor: &Predictor,
        now: Time,
    ) {
        if self.reservations.len() >= MAX_RESERVATIONS
            || self.is_reserved(task)
            || self.deadlines.is_unreachable(task)
            || self.is(PlacementMutant::NoReservations)
        {
            return;
        }
        let Some(entry) = self.tasks.get(task.0 as usize) else { return };
        let requirement = &entry.request.spec.requirement;
        // Where only a slot is missing, the first task in order gets the next one anyway.
        if !requires_amounts(requirement) && !self.pool.has_bound() {
            return;
        }
        let candidates = match slot {
            Some(slot) => vec![slot],
            None => self.candidates(task, requirement),
        };
        let fits_at = |slot: &WorkerSlot| {
            let lacks = |member: &&Member| {
                member.reservation.is_none()
                    && (member.in_flight.fits(requirement).is_err() || !member.bound.is_empty())
                    && !self.goes_behind_bound(entry, member)
            };
            let member = self.pool.member(*slot).filter(lacks)?;
            let executor = member.executor_for(requirement)?;
            Some((member.in_flight.fits_at(requirement, executor, now), *slot, executor))
        };
        let Some((by, slot, executor)) = candidates.iter().filter_map(fits_at).min() else {
            return;
        };
        let Some(member) = self.pool.member(slot) else { return };
        let reservation = Reservation {
            task,
            spec: Arc::clone(&entry.request.spec),
            executor,
            start_by: by,
            run_s: predictor.hardware_estimate(&entry.request.query, member.hardware).mean_s
                * member.factor,
            seen_changes: member.in_flight.changes(),
        };
        self.pool.change(slot, now, |member| member.set_reservation(Some(reservation)));
        self.reservations.push((task, slot));
    }

    /// Whether a worker's own queue begins with a task that goes before this one: one that arrived earlier, or a batch
    /// task after as many interactive ones as may go before it. With a reservation, this one would overtake it.
    fn goes_behind_bound(&self, entry: &Task, member: &Member) -> bool {
        let head = member.bound.front().and_then(|head| self.tasks.get(head.0 as usize));
        head.is_some_and(|head| match (head.request.interactive, entry.request.interactive) {
            (false, true) => self.consecutive_interactive >= MAX_CONSECUTIVE_INTERACTIVE,
            (true, false) => self.consecutive_interactive < MAX_CONSECUTIVE_INTERACTIVE,
            _ => head.arrival() < entry.arrival(),
        })
    }

    /// Workers that could run a task, and hold no reservation.
    fn candidates(&self, task: TaskRef, requirement: &Requirement) -> Vec<WorkerSlot> {
        let need = need_of(requirement).ignoring_free_amounts();
        let mut found = Vec::new();
        for (at, tree) in self.pool.trees().iter().enumerate() {
            tree.first_from(0, &need, &mut |position| {
                if let Some(slot) = self.pool.slot_at(at, position)
                    && self.could_run(slot, task)
                    && self.pool.member(slot).is_some_and(|member| member.reservation.is_none())
                {
                    found.push(slot);
                }
                found.len() >= MAX_CANDIDATES
            });
        }
        found
    }

    /// Whether a task has a reservation.
    pub(crate) fn is_reserved(&self, task: TaskRef) -> bool {
        self.slot_reserved_for(task).is_some()
    }

    /// Removes the reservation of a task.
    pub(crate) fn release_reservation(&mut self, task: TaskRef, now: Time) {
        let Some(at) = self.reservations.iter().position(|(other, _)| *other == task) else {
            return;
        };
        let (_, slot) = self.reservations.remove(at);
        self.pool.change(slot, now, |member| member.set_reservation(None));
    }

    /// The worker that holds the reservation of a task.
    pub(crate) fn slot_reserved_for(&self, task: TaskRef) -> Option<WorkerSlot> {
        self.reservations.iter().find(|(other, _)| *other == task).map(|(_, slot)| *slot)
    }

    /// The task that has the reservation on a worker.
    pub(crate) fn reserved_task(&self, slot: WorkerSlot) -> Option<TaskRef> {
        Some(self.pool.member(slot)?.reservation.as_ref()?.task)
    }

    /// Renews reservations, and drops those on workers that cannot run their task any more.
    pub(crate) fn renew_reservations(&mut self, now: Time) {
        for (task, slot) in self.reservations.clone() {
            if !self.could_run(slot, task) {
                self.release_reservation(task, now);
                continue;
            }
            self.pool.change_unindexed(slot, |member: &mut Member| {
                if let Some(reservation) = &mut member.reservation {
                    reservation.renew(&member.in_flight, now);
                }
            });
        }
    }

    /// A reservation without its task, or the reverse.
    pub(crate) fn wrong_reservation(&self) -> Option<String> {
        let kept = |slot: WorkerSlot| Some((self.reserved_task(slot)?, slot));
        let mut kept: Vec<_> = self.pool.worker_slots().into_iter().filter_map(kept).collect();
        let mut promised = self.reservations.clone();
        kept.sort();
        promised.sort();
        let waits = |(task, _): &(TaskRef, WorkerSlot)| {
            matches!(self.stage(*task), Some(Stage::Waiting(..)))
        };
        (kept != promised || kept.len() > MAX_RESERVATIONS || !kept.iter().all(waits))
            .then(|| format!("workers hold reservations for {kept:?}, the queue has {promised:?}"))
    }
}

fn requires_amounts(requirement: &Requirement) -> bool {
    let Requirement { cpu_milli, memory_bytes, storage_bytes, min_gpus, .. } = requirement;
    *cpu_milli > 0 || *memory_bytes > 0 || *storage_bytes > 0 || *min_gpus > 0
}
