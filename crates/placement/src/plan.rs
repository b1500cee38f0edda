//! A plan: what to do now with the waiting tasks, as a list that leaves no choices.

use std::collections::VecDeque;
use std::sync::Arc;

use hypha_model::{Maximise, RefusalKind, Span, Time};
use hypha_predict::Predictor;

use crate::decision::HeldBack;
use crate::fair_queue::MAX_CONSECUTIVE_INTERACTIVE;
use crate::member::Member;
use crate::queue_cursor::QueueEntry;
use crate::strategy::{Bind, Predictive, Recipe, Strategy};
use crate::turns::{Resume, TurnCursor};
use crate::waiting::{QueuePosition, ShapeId};
use crate::{Action, Placement, Stage, Task, TaskRef, WorkerSlot, choose};

/// How many of the newest tasks of a queue a stealing worker looks at to find one that it can run.
const MAX_STEAL_CANDIDATES: usize = 8;
/// How long a task is held back before it is looked at again, in usual run times.
const RECHECK_AFTER_RUNS: f64 = 0.25;
/// When more workers than this got room since the last plan, all tasks are looked at again: that is cheaper than to
/// check for each task which worker matters to it.
const MAX_OPENED: usize = 16;
/// How many tasks a plan binds, and how many it dispatches (or a few more), at some microseconds each with all that
/// follows. The remaining tasks are left to the following plans: the scheduler must serve other events in between.
pub(crate) const MAX_ACTIONS_PER_PLAN: usize = 1_024;
/// How many tasks a plan looks at in vain, at about a microsecond each; the remaining tasks are left to the following
/// plans. Dispatched tasks do not count.
const MAX_FAILED_LOOKS: u32 = 256;
/// How many of these are taken from the front of the queue although the last plan looked at them too.
const MAX_FAILED_LOOKS_AT_FRONT: u32 = 64;

/// The result of looking at a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlacementOutcome {
    Dispatched,
    /// It waits for the worker that was chosen.
    HeldBack,
    /// No worker would do.
    NoWorker,
}

impl Placement {
    /// Decides what can be decided now. Each action is already part of this state: the caller carries out all of them,
    /// in order.
    pub fn plan(&mut self, predictor: &Predictor, now: Time, actions: &mut Vec<Action>) {
        self.planned_at = now;
        self.reconsider_parked();
        self.bind_at_once(predictor, now, actions);
        self.dispatch_stalled(now, actions);
        if self.waiting.len() == 0 {
            self.pool.forget_opened();
        } else {
            match self.recipe.bind {
                Bind::AtSubmit => self.bind_waiting(predictor, now, actions),
                Bind::WithRoom | Bind::Late => self.place_waiting(predictor, now, actions),
            }
        }
        self.dispatch_bound_tasks(predictor, now, actions);
    }

    /// When to plan again even if nothing happens: a worker will soon want its next task.
    pub fn plan_at(&self) -> Option<Time> {
        // The last plan left tasks to dispatch.
        if !self.stalled.is_empty() && !self.is_full() {
            return Some(self.planned_at);
        }
        if self.waiting.len() == 0 {
            return None;
        }
        // The last plan left tasks to look at.
        let binds_more = self.recipe.bind == Bind::AtSubmit && self.first_head().is_some();
        let is_behind = self.ended_at.is_some() || self.deadlines.is_behind();
        if is_behind || !self.gained_capacity.is_empty() || binds_more {
            return Some(self.planned_at);
        }
        if self.recipe.bind != Bind::Late {
            return None;
        }
        // A task waits for a busy worker while another is free: look again now and then, because the busy one may take
        // longer than expected.
        if let Some(held_back_at) = self.held_back_at {
            return Some(
                held_back_at + Span::from_secs_f64(RECHECK_AFTER_RUNS * self.mean_run_s.mean()),
            );
        }
        let room_at_s = self.pool.room_at_s();
        (room_at_s.is_finite() && room_at_s > 0.0)
            .then(|| Time::from_micros((room_at_s * 1e6) as u64))
    }

    fn bind_at_once(&mut self, predictor: &Predictor, now: Time, actions: &mut Vec<Action>) {
        let recipe = match self.recipe.bind {
            // These do not wait until a long queue has been bound.
            Bind::AtSubmit => self.recipe,
            Bind::WithRoom | Bind::Late => self.recipe.bound_at_submit(),
        };
        for task in std::mem::take(&mut self.bind_now) {
            let Some(entry) = self.tasks.get(task.0 as usize) else { continue };
            // Its number may belong to another task by now.
            if entry.request.bind_at_once
                && matches!(entry.stage, Stage::Waiting(..))
                && let Some(slot) = self.choose(task, &recipe, predictor, now)
            {
                self.bind(task, slot, now, actions);
            }
        }
    }

    /// Early binding: every task that some worker could run goes to a worker's queue.
    fn bind_waiting(&mut self, predictor: &Predictor, now: Time, actions: &mut Vec<Action>) {
        let recipe = self.recipe;
        // A task that was looked at leaves the queue, or its shape does.
        while actions.len() < MAX_ACTIONS_PER_PLAN
            && let Some((_, shape, task)) = self.first_head()
        {
            match self.choose(task, &recipe, predictor, now) {
                Some(slot) => self.bind(task, slot, now, actions),
                None => self.park_if_unschedulable(shape, task, true),
            }
        }
    }

    /// Late binding: the tasks are looked at in order, and each goes to its worker if that has room. Under
    /// `Bind::Late` a task whose worker is busy is held back and its run counts as waiting time for those behind it,
    /// so that a slow worker is used as soon as, and only when, it is the best that is left.
    fn place_waiting(&mut self, predictor: &Predictor, now: Time, actions: &mut Vec<Action>) {
        self.held_back_at = None;
        self.update_urgency(predictor, now);
        let opened = self.pool.take_opened();
        if self.pool.room_at_s() <= now.as_secs_f64() || !self.reservations.is_empty() {
            self.place_in_order(&opened, predictor, now, actions);
        } else if self.pool.has_bound()
            && let Some((_, _, task)) = self.first_head()
        {
            // Workers with queues of their own have room for no other task, and such queues may never become empty.
            self.reserve(task, None, predictor, now);
        }
        self.pool.recycle_opened(opened);
    }

    fn place_in_order(
        &mut self,
        opened: &[WorkerSlot],
        predictor: &Predictor,
        now: Time,
        actions: &mut Vec<Action>,
    ) {
        let mut looks = match self.strategy {
            Strategy::Predictive(Predictive { lookahead, .. }) => lookahead,
            _ => u32::MAX,
        };
        let (usual, with_room) = (self.recipe, self.recipe.with_room());
        let mut held_back = std::mem::take(&mut self.held_back);
        // Tasks with a reservation go first, wherever they stand in the order.
        self.renew_reservations(now);
        for (task, _) in self.reservations.clone() {
            if self.is_full() {
                break;
            }
            if self.dispatch_reserved(task, predictor, now, actions) {
                continue;
            }
            if self.try_to_place(task, &usual, None, predictor, now, actions)
                == PlacementOutcome::HeldBack
            {
                held_back.push(task);
            }
        }
        let max_failed_looks = match looks {
            u32::MAX => MAX_FAILED_LOOKS,
            lookahead => MAX_FAILED_LOOKS.max(2 * lookahead),
        };
        let (resume, round) = self.ended_at.take().unzip();
        let round = round.unwrap_or(self.pool.version());
        let resume = resume.unwrap_or_default();
        let mut interactive = TurnCursor::new(true, &self.waiting, &[]);
        let mut batch = TurnCursor::new(false, &self.waiting, &resume);
        let (mut failed_looks, mut has_ended) = (0, false);
        while !self.is_full() && self.pool.room_at_s() <= now.as_secs_f64() {
            if failed_looks == MAX_FAILED_LOOKS_AT_FRONT {
                batch.skip_to_resume();
            }
            let batch_first = self.consecutive_interactive >= MAX_CONSECUTIVE_INTERACTIVE;
            let (first, second) = match batch_first {
                true => (&mut batch, &mut interactive),
                false => (&mut interactive, &mut batch),
            };
            let (cursor, step) = match self.next_in_turn(first) {
                Some(step) => (first, Some(step)),
                None => {
                    let step = self.next_in_turn(second);
                    (second, step)
                }
            };
            let Some((position, shape, task)) = step else {
                has_ended = true;
                break;
            };
            if failed_looks == max_failed_looks || actions.len() >= MAX_ACTIONS_PER_PLAN {
                self.ended_at = Some((batch.resume(), round));
                break;
            }
            if self.is_reserved(task) {
                cursor.kept(shape, position, &self.waiting);
                continue;
            }
            // So many tasks wait for busy workers already that those behind them take any worker with room.
            let recipe = if looks == 0 { &with_room } else { &usual };
            let still_waits = (looks > 0).then_some(opened);
            looks = looks.saturating_sub(1);
            match self.try_to_place(task, recipe, still_waits, predictor, now, actions) {
                PlacementOutcome::Dispatched => {
                    self.tenants.count_start(cursor.is_by_priority());
                    self.count_urgent(cursor.last_lane());
                    cursor.removed(shape, position, &self.waiting);
                }
                PlacementOutcome::HeldBack => {
                    failed_looks += 1;
                    held_back.push(task);
                    cursor.kept(shape, position, &self.waiting);
                }
                PlacementOutcome::NoWorker => {
                    failed_looks += 1;
                    self.park_if_unschedulable(shape, task, recipe.bind != Bind::WithRoom);
                    self.reserve(task, None, predictor, now);
                    // A shorter task of its shape may end before reserved room is needed.
                    if self.is_blocked_by_reservation(task) {
                        cursor.kept(shape, position, &self.waiting);
                    }
                }
            }
        }
        // Tasks that were skipped because the previous plan had looked at them have not seen the changes since.
        if has_ended && batch.has_skipped() && round != self.pool.version() {
            self.ended_at = Some((Resume::new(), self.pool.version()));
        }
        // A task that leaves a free worker to others must not be overtaken for its size as well.
        if self.pool.has_free() {
            let held_at =
                held_back.iter().filter_map(|task| self.restore_arrival_order(*task)).min();
            self.held_back_at = held_at;
        }
        held_back.clear();
        self.held_back = held_back;
    }

    /// The next task of the tenant whose turn it is.
    fn next_in_turn(&self, cursor: &mut TurnCursor) -> Option<QueueEntry> {
        cursor.next(&self.waiting, self)
    }

    /// Whether a worker refused a task because of another's reservation.
    fn is_blocked_by_reservation(&self, task: TaskRef) -> bool {
        self.explanation(task).is_some_and(|explanation| {
            explanation.refusals.iter().any(|(kind, _)| kind == RefusalKind::Reserved)
        })
    }

    /// Dispatches a task to the worker that has its reservation, where a choice would not find it: the worker has a
    /// queue of its own.
    fn dispatch_reserved(
        &mut self,
        task: TaskRef,
        predictor: &Predictor,
        now: Time,
        actions: &mut Vec<Action>,
    ) -> bool {
        let has_queue = |slot: &WorkerSlot| {
            self.pool.member(*slot).is_some_and(|member| !member.bound.is_empty())
        };
        let Some(slot) = self.slot_reserved_for(task).filter(has_queue) else { return false };
        self.predict_at(task, slot, predictor);
        if !self.has_room(task, slot, now) {
            return false;
        }
        self.explain_direct(task, slot, None, now);
        self.dispatch(task, slot, now, actions);
        true
    }

    /// Dispatches a task to the worker that `recipe` chooses if that has room, or holds it back. A task that was held
    /// back is not looked at again while it still waits, if `opened` lists the workers that have got room.
    fn try_to_place(
        &mut self,
        task: TaskRef,
        recipe: &Recipe,
        opened: Option<&[WorkerSlot]>,
        predictor: &Predictor,
        now: Time,
        actions: &mut Vec<Action>,
    ) -> PlacementOutcome {
        if opened.is_some_and(|opened| self.still_waits(task, opened, now)) {
            return PlacementOutcome::HeldBack;
        }
        self.release_hold(task, now);
        let Some(slot) = self.choose(task, recipe, predictor, now) else {
            return PlacementOutcome::NoWorker;
        };
        if self.has_room(task, slot, now) {
            self.dispatch(task, slot, now, actions);
            return PlacementOutcome::Dispatched;
        }
        self.hold_back(task, slot, now);
        self.reserve(task, Some(slot), predictor, now);
        PlacementOutcome::HeldBack
    }

    /// Whether a task that was held back need not be looked at again: its worker has no room yet, no better worker has
    /// got room since, and it was looked at not long ago.
    fn still_waits(&self, task: TaskRef, opened: &[WorkerSlot], now: Time) -> bool {
        let Some(entry) = self.tasks.get(task.0 as usize) else { return false };
        let Some(decision) = &entry.decision else { return false };
        let Some(held) = &decision.held else { return false };
        let waited_s = now.since(held.at).as_secs_f64();
        if waited_s >= RECHECK_AFTER_RUNS * self.mean_run_s.mean() || opened.len() > MAX_OPENED {
            return false;
        }
        let now_s = now.as_secs_f64();
        if self
            .pool
            .leaf(held.slot)
            .is_none_or(|leaf| leaf.room_at_s <= now_s || leaf.key == f64::INFINITY)
        {
            return false;
        }
        let Some(member) = self.pool.held_for(held) else { return false };
        if member.lacks_usable_executor(&entry.request.spec.requirement) {
            return false;
        }
        // A task that weighs prices is looked at again when it has waited for them for long enough.
        let by_price = decision.explanation().is_some_and(|it| it.maximise != Maximise::Speed);
        let price = match by_price {
            true => {
                let rule = self.price_rule(&entry.request, entry.predicted_s, &self.recipe, now);
                if rule.is_none() {
                    return false;
                }
                rule
            }
            false => None,
        };
        let hardware = member.hardware;
        let cost = held.score - waited_s * held.wait_cost_rate;
        let open = opened.iter().filter_map(|slot| self.pool.member(*slot));
        open.filter(|member| member.is_open()).all(|member| {
            let attempts = 1.0 + member.reliability.min_extra_attempts();
            let run_s = decision.base_s * member.factor * attempts;
            let cost_s = price.map_or(0.0, |price| price.cost_s(member, run_s));
            member.hardware == hardware && run_s + member.rtt_s + cost_s >= cost
        })
    }

    fn first_head(&self) -> Option<(QueuePosition, ShapeId, TaskRef)> {
        let first =
            |interactive| self.next_in_turn(&mut TurnCursor::new(interactive, &self.waiting, &[]));
        first(true).or_else(|| first(false))
    }

    fn is_full(&self) -> bool {
        self.preferences.max_in_flight.is_some_and(|most| self.in_flight >= most)
    }

    fn has_room(&self, task: TaskRef, slot: WorkerSlot, now: Time) -> bool {
        let Some(member) = self.pool.member(slot) else { return false };
        let Some(entry) = self.tasks.get(task.0 as usize) else { return false };
        let requirement = &entry.request.spec.requirement;
        // A dispatched task is not taken back: while another worker is free, a task that must wait waits here, where a
        // wrong prediction can still be corrected.
        let run_s = entry.estimate().mean_s;
        member.refuses_now(task, requirement, || run_s, now).is_none()
            || (self.recipe.bind == Bind::Late
                && !self.pool.has_free()
                && member.wants_prefetch(task, requirement, now))
    }

    fn hold_back(&mut self, task: TaskRef, slot: WorkerSlot, now: Time) {
        self.statistics.held_back += 1;
        let Some(member) = self.pool.member(slot) else { return };
        let Some(entry) = self.tasks.get_mut(task.0 as usize) else { return };
        let wait_cost_rate = 1.0 + choose::surcharge_of(&self.recipe, entry);
        let Some(decision) = &mut entry.decision else { return };
        let share_s = decision.estimate.mean_s / f64::from(member.slots());
        let chosen = decision.explanation().and_then(|explanation| explanation.chosen);
        decision.held = Some(HeldBack {
            slot,
            joined: member.joined,
            share_s,
            score: chosen.map_or(0.0, |chosen| chosen.score),
            wait_cost_rate,
            at: now,
            keeps_arrival_order: false,
        });
        self.pool.change_held_back(slot, now, |member| member.add_held_back(share_s));
    }

    pub(crate) fn release_hold(&mut self, task: TaskRef, now: Time) {
        let Some(entry) = self.tasks.get_mut(task.0 as usize) else { return };
        if let Some(held) = entry.decision.as_mut().and_then(|decision| decision.held.take())
            && self.pool.held_for(&held).is_some()
        {
            self.pool
                .change_held_back(held.slot, now, |member| member.remove_held_back(held.share_s));
        }
    }

    /// Dispatches tasks bound to workers that have room, and lets idle workers steal.
    fn dispatch_bound_tasks(
        &mut self,
        predictor: &Predictor,
        now: Time,
        actions: &mut Vec<Action>,
    ) {
        let touched = self.pool.take_touched();
        // However many tasks were bound before, some are dispatched.
        let most = actions.len() + MAX_ACTIONS_PER_PLAN;
        // Workers that were stalled before go before those that have just got room.
        let held_up =
            if self.is_full() { VecDeque::new() } else { std::mem::take(&mut self.stalled) };
        let mut had_turn = Vec::new();
        for slot in held_up.iter().chain(&touched) {
            if actions.len() >= most {
                self.stall(*slot);
                continue;
            }
            let before = self.in_flight;
            self.dispatch_bound(*slot, now, actions);
            if let Some(threshold) = self.recipe.steal_above {
                while self.steal_for(*slot, threshold, predictor, now, actions) {
                    self.dispatch_bound(*slot, now, actions);
                }
            }
            if self.in_flight > before {
                had_turn.push(*slot);
            }
        }
        // The other workers go first next time.
        had_turn.into_iter().for_each(|slot| self.move_to_back(slot));
        // Workers that this plan itself touched have been dealt with.
        let again = self.pool.take_touched();
        self.pool.recycle_touched(if again.capacity() > touched.capacity() {
            again
        } else {
            touched
        });
    }

    /// While `max_in_flight` stalls tasks that are bound to workers, such tasks and the queue alternate: neither waits
    /// for the other to be empty.
    fn dispatch_stalled(&mut self, now: Time, actions: &mut Vec<Action>) {
        if self.stalled.is_empty() || self.is_full() {
            return;
        }
        let is_its_turn = std::mem::replace(&mut self.bound_goes_first, true);
        if !is_its_turn {
            return;
        }
        for slot in self.stalled.clone() {
            if self.dispatch_next_bound(slot, now, actions) {
                self.bound_goes_first = false;
                return self.move_to_back(slot);
            }
        }
    }

    /// Records that tasks bound to a worker could not be dispatched.
    fn stall(&mut self, slot: WorkerSlot) {
        if !self.stalled.contains(&slot) {
            self.stalled.push_back(slot);
        }
    }

    /// Moves a stalled worker that has been served to the back.
    fn move_to_back(&mut self, slot: WorkerSlot) {
        if let Some(at) = self.stalled.iter().position(|other| *other == slot) {
            self.stalled.remove(at);
            self.stalled.push_back(slot);
        }
    }

    fn dispatch_bound(&mut self, slot: WorkerSlot, now: Time, actions: &mut Vec<Action>) {
        while self.dispatch_next_bound(slot, now, actions) {}
    }

    /// Dispatches the next task of a worker's own queue, if the worker may have it now.
    fn dispatch_next_bound(
        &mut self,
        slot: WorkerSlot,
        now: Time,
        actions: &mut Vec<Action>,
    ) -> bool {
        let Some(member) = self.pool.member(slot) else { return false };
        let Some(task) = member.bound.front() else { return false };
        if !(member.available || member.draining) || !member.wants_bound() {
            return false;
        }
        if self.is_full() {
            self.stall(slot);
            return false;
        }
        if self.must_wait_bound(task, member, now) {
            return false;
        }
        let Some(entry) = self.tasks.get_mut(task.0 as usize) else { return false };
        entry.stage = Stage::Dispatched(slot);
        self.in_flight += 1;
        self.tenants.dispatched(&entry.request.spec);
        let (spec, estimate) = (Arc::clone(&entry.request.spec), entry.estimate());
        let interactive = entry.request.interactive;
        self.mean_run_s.add(estimate.mean_s);
        if !interactive {
            self.consecutive_interactive = 0;
        }
        self.pool.change(slot, now, |member| {
            member.unbind_next(task, &estimate, &spec.requirement);
            member.dispatch(task, interactive, estimate, spec, now);
        });
        actions.push(Action::Dispatch { task, slot });
        true
    }

    /// Whether a task at the head of a worker's own queue would delay one that has waited longer: one with a
    /// reservation, or one that was dispatched and does not fit yet.
    fn must_wait_bound(&self, task: TaskRef, member: &Member, now: Time) -> bool {
        let Some(entry) = self.tasks.get(task.0 as usize) else { return false };
        let requirement = &entry.request.spec.requirement;
        let run_s = entry.estimate().mean_s;
        member.conflicting_reservation(task, requirement, || run_s, now).is_some()
            || (member.in_flight.is_blocked()
                && !member.in_flight.would_begin(requirement, member.executor_for(requirement)))
    }

    /// An idle worker takes the newest task that it can run from the longest queue.
    fn steal_for(
        &mut self,
        thief: WorkerSlot,
        threshold: u32,
        predictor: &Predictor,
        now: Time,
        actions: &mut Vec<Action>,
    ) -> bool {
        let Some(member) = self.pool.member(thief) else { return false };
        // A worker with a queue of its own is not idle, and would steal from itself for ever while `max_in_flight`
        // keeps that queue from being dispatched.
        let idle = member.bound.is_empty() && member.load() < member.slots() as usize;
        if !idle || !member.available {
            return false;
        }
        if self.preferences.max_rtt.is_some_and(|most| member.rtt_s > most.as_secs_f64()) {
            return false;
        }
        let Some(victim) = self.pool.longest_queue(threshold) else { return false };
        let runs_here = |task: &TaskRef| match self.tasks.get(task.0 as usize) {
            Some(Task { request, .. }) => {
                member.refuses_ever(&request.spec.requirement).is_none()
                    && !request.failed_on.contains(&thief)
            }
            _ => false,
        };
        let Some(queue) = self.pool.member(victim).map(|member| &member.bound) else {
            return false;
        };
        let Some(task) = queue.iter().rev().take(MAX_STEAL_CANDIDATES).find(runs_here) else {
            return false;
        };
        self.explain_direct(task, thief, Some(victim), now);
        self.leave_stage(task, now);
        self.predict_at(task, thief, predictor);
        self.enter_bound(task, thief, now);
        self.statistics.steals += 1;
        actions.push(Action::Move { task, from: victim, to: thief });
        true
    }

    /// Records how long the task is predicted to take on a worker.
    fn predict_at(&mut self, task: TaskRef, slot: WorkerSlot, predictor: &Predictor) {
        let Some(member) = self.pool.member(slot) else { return };
        let Some(entry) = self.tasks.get_mut(task.0 as usize) else { return };
        let decision = entry.decision.get_or_insert_with(|| self.spare.take());
        let base = predictor.hardware_estimate(&entry.request.query, member.hardware);
        (decision.base_s, decision.estimate) =
            (base.mean_s, predictor.on_worker(&base, member.predict));
    }

    fn bind(&mut self, task: TaskRef, slot: WorkerSlot, now: Time, actions: &mut Vec<Action>) {
        self.leave_stage(task, now);
        self.enter_bound(task, slot, now);
        self.statistics.assigned += 1;
        actions.push(Action::Bind { task, slot });
    }

    fn enter_bound(&mut self, task: TaskRef, slot: WorkerSlot, now: Time) {
        let Some(entry) = self.tasks.get_mut(task.0 as usize) else { return };
        entry.stage = Stage::Bound(slot);
        let tasks = &self.tasks;
        let Some(entry) = tasks.get(task.0 as usize) else { return };
        // A task that was bound to a worker that is lost, or that failed, goes before those that arrived later.
        let arrived_before = |other: TaskRef| {
            tasks.get(other.0 as usize).is_some_and(|other| entry.arrival() < other.arrival())
        };
        self.pool.change(slot, now, |member| {
            let request = &entry.request;
            let task = (task, request.interactive);
            member.bind(task, arrived_before, &entry.estimate(), &request.spec.requirement);
        });
    }

    fn dispatch(&mut self, task: TaskRef, slot: WorkerSlot, now: Time, actions: &mut Vec<Action>) {
        self.leave_stage(task, now);
        self.statistics.assigned += 1;
        self.count_interactive(task);
        self.enter_dispatched(task, slot, now);
        actions.push(Action::Dispatch { task, slot });
    }

    /// Counts the interactive tasks that go before waiting batch tasks.
    fn count_interactive(&mut self, task: TaskRef) {
        let Some(entry) = self.tasks.get(task.0 as usize) else { return };
        let batch_waits = !self.waiting.tenants(false).is_empty() || self.pool.has_bound();
        self.consecutive_interactive = match entry.request.interactive && batch_waits {
            true => self.consecutive_interactive.saturating_add(1),
            false => 0,
        };
    }

    pub(crate) fn enter_dispatched(&mut self, task: TaskRef, slot: WorkerSlot, now: Time) {
        let Some(entry) = self.tasks.get_mut(task.0 as usize) else { return };
        entry.stage = Stage::Dispatched(slot);
        self.in_flight += 1;
        self.tenants.dispatched(&entry.request.spec);
        let (spec, estimate) = (Arc::clone(&entry.request.spec), entry.estimate());
        let interactive = entry.request.interactive;
        self.mean_run_s.add(estimate.mean_s);
        self.pool
            .change(slot, now, |member| member.dispatch(task, interactive, estimate, spec, now));
    }
}
