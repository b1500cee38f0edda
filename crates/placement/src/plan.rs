//! A plan: what to do now with what waits, as a list that leaves no choices.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use hypha_model::{Span, Time};
use hypha_predict::Predictor;

use crate::strategy::{Bind, Predictive, Strategy};
use crate::{Action, Placement, Slot, Stage, TaskRef};

/// How many of the newest tasks of a queue a thief looks at to find one that it can run.
const STEAL_LOOKS: usize = 8;
/// How long a task is held back before it is looked at again, in usual run times.
const LOOK_AGAIN: f64 = 0.25;

impl Placement {
    /// Decides what can be decided now. Each action has already been entered here: the caller carries out
    /// all of them, in order.
    pub fn plan(&mut self, predictor: &Predictor, now: Time, actions: &mut Vec<Action>) {
        self.bind_at_once(predictor, now, actions);
        if self.waiting.len() > 0 {
            match self.recipe.bind {
                Bind::AtSubmit => self.bind_waiting(predictor, now, actions),
                Bind::WithRoom | Bind::Late => self.place_waiting(predictor, now, actions),
            }
        }
        self.hand_over(predictor, now, actions);
    }

    /// When to plan again even if nothing happens: a worker will soon want its next task.
    pub fn plan_at(&self) -> Option<Time> {
        if self.waiting.len() == 0 || self.recipe.bind != Bind::Late {
            return None;
        }
        // Somebody waits for a busy worker while another is free: look again now and then, because the
        // busy one may take longer than was expected.
        if let Some(held_back_at) = self.held_back_at {
            return Some(held_back_at + Span::from_secs_f64(LOOK_AGAIN * self.usual_run_s.mean()));
        }
        let room_at_s = self.pool.room_at_s();
        (room_at_s.is_finite() && room_at_s > 0.0)
            .then(|| Time::from_micros((room_at_s * 1e6) as u64))
    }

    fn bind_at_once(&mut self, predictor: &Predictor, now: Time, actions: &mut Vec<Action>) {
        while let Some(task) = self.at_once.pop() {
            let recipe = self.recipe.bound_at_submit();
            if let Some(Stage::Waiting(..)) = self.stage(task)
                && let Some(slot) = self.choose(task, &recipe, predictor, now)
            {
                self.bind(task, slot, now, actions);
            }
        }
    }

    /// Early binding: every task that some worker could run goes to a worker's queue.
    fn bind_waiting(&mut self, predictor: &Predictor, now: Time, actions: &mut Vec<Action>) {
        let mut heads: BinaryHeap<_> = self.waiting.heads().map(Reverse).collect();
        while let Some(Reverse((place, shape, task))) = heads.pop() {
            let next = self.waiting.next_after(shape, Some(place));
            let recipe = self.recipe;
            if let Some(slot) = self.choose(task, &recipe, predictor, now) {
                self.bind(task, slot, now, actions);
                heads.extend(next.map(Reverse));
            }
        }
    }

    /// Late binding: the tasks are looked at in order, and each goes to its worker if that has room. Under
    /// `Bind::Late` a task whose worker is busy is held back and its run is counted as waiting for those
    /// behind it, so that a slow worker is used as soon as, and only when, it is the best that is left.
    fn place_waiting(&mut self, predictor: &Predictor, now: Time, actions: &mut Vec<Action>) {
        self.held_back_at = None;
        if self.pool.room_at_s() > now.as_secs_f64() {
            return;
        }
        let mut looks = match self.strategy {
            Strategy::Predictive(Predictive { lookahead, .. }) => lookahead,
            _ => u32::MAX,
        };
        self.scratch.extra_wait.clear();
        let mut held_back = Vec::new();
        let mut heads: BinaryHeap<_> = self.waiting.heads().map(Reverse).collect();
        while let Some(Reverse((place, shape, task))) = heads.pop() {
            if looks == 0 || self.is_full() || self.pool.room_at_s() > now.as_secs_f64() {
                break;
            }
            looks -= 1;
            let recipe = self.recipe;
            let Some(slot) = self.choose(task, &recipe, predictor, now) else { continue };
            let next = self.waiting.next_after(shape, Some(place));
            if self.has_room(task, slot, now) {
                self.give(task, slot, now, actions);
            } else {
                self.hold_back(task, slot);
                held_back.push(task);
                // Its bounds may be out of date: what is overdue has not been refreshed.
                self.pool.refresh(slot, now);
            }
            heads.extend(next.map(Reverse));
        }
        self.scratch.extra_wait.clear();
        // A task that leaves a free worker to others must not be passed for its size as well.
        if self.pool.has_free() {
            self.held_back_at = (!held_back.is_empty()).then_some(now);
            held_back.into_iter().for_each(|task| self.forgive_size(task));
        }
    }

    fn is_full(&self) -> bool {
        self.preferences.max_given.is_some_and(|most| self.given >= most)
    }

    fn has_room(&self, task: TaskRef, slot: Slot, now: Time) -> bool {
        let Some(member) = self.pool.member(slot) else { return false };
        let Some(Some(entry)) = self.tasks.get(task.0 as usize) else { return false };
        let begins = member.bound.is_empty()
            && member.in_flight.len() < member.slots() as usize
            && member.refuses_now(&entry.ticket.spec.requirement).is_none();
        begins || (self.recipe.bind == Bind::Late && member.wants_prefetch(now))
    }

    fn hold_back(&mut self, task: TaskRef, slot: Slot) {
        self.statistics.held_back += 1;
        let Some(member) = self.pool.member(slot) else { return };
        let Some(Some(entry)) = self.tasks.get(task.0 as usize) else { return };
        let share_s = entry.estimate.mean_s / f64::from(member.slots());
        self.scratch.extra_wait.push((slot, share_s));
    }

    /// Hands over what is bound to workers that have room, and lets idle ones steal.
    fn hand_over(&mut self, predictor: &Predictor, now: Time, actions: &mut Vec<Action>) {
        let mut touched = self.pool.take_touched();
        if !self.is_full() {
            touched.extend(std::mem::take(&mut self.stalled));
        }
        for slot in &touched {
            self.hand_over_bound(*slot, now, actions);
            if let Some(threshold) = self.recipe.steal_above {
                while self.steal_for(*slot, threshold, predictor, now, actions) {
                    self.hand_over_bound(*slot, now, actions);
                }
            }
        }
        // What this plan itself touched has been dealt with.
        let again = self.pool.take_touched();
        self.pool.give_back_touched(if again.capacity() > touched.capacity() {
            again
        } else {
            touched
        });
    }

    fn hand_over_bound(&mut self, slot: Slot, now: Time, actions: &mut Vec<Action>) {
        while let Some(member) = self.pool.member(slot)
            && member.available
            && member.wants_bound()
            && let Some(task) = member.bound.front().copied()
        {
            if self.is_full() {
                self.stalled.insert(slot);
                return;
            }
            self.leave_stage(task, now);
            self.give_now(task, slot, now, actions);
        }
    }

    /// An idle worker takes the newest task that it can run from the longest queue.
    fn steal_for(
        &mut self,
        thief: Slot,
        threshold: u32,
        predictor: &Predictor,
        now: Time,
        actions: &mut Vec<Action>,
    ) -> bool {
        let Some(member) = self.pool.member(thief) else { return false };
        if member.load() >= member.slots() as usize || !member.available {
            return false;
        }
        let Some(victim) = self.pool.longest_queue(threshold) else { return false };
        let runs_here = |task: &TaskRef| match self.tasks.get(task.0 as usize) {
            Some(Some(entry)) => member.refuses_ever(&entry.ticket.spec.requirement).is_none(),
            _ => false,
        };
        let Some(queue) = self.pool.member(victim).map(|member| &member.bound) else {
            return false;
        };
        let Some(task) = queue.iter().rev().take(STEAL_LOOKS).copied().find(runs_here) else {
            return false;
        };
        let predict = member.predict;
        self.leave_stage(task, now);
        if let Some(Some(entry)) = self.tasks.get_mut(task.0 as usize) {
            entry.estimate = predictor.estimate(&entry.ticket.query, predict);
        }
        self.enter_bound(task, thief, now);
        self.statistics.steals += 1;
        actions.push(Action::Move { task, from: victim, to: thief });
        true
    }

    fn bind(&mut self, task: TaskRef, slot: Slot, now: Time, actions: &mut Vec<Action>) {
        self.leave_stage(task, now);
        self.enter_bound(task, slot, now);
        self.statistics.assigned += 1;
        actions.push(Action::Bind { task, slot });
    }

    fn enter_bound(&mut self, task: TaskRef, slot: Slot, now: Time) {
        let Some(Some(entry)) = self.tasks.get_mut(task.0 as usize) else { return };
        entry.stage = Stage::Bound(slot);
        let (spec, estimate) = (Arc::clone(&entry.ticket.spec), entry.estimate);
        self.pool.change(slot, now, |member| member.bind(task, &estimate, &spec.requirement));
    }

    fn give(&mut self, task: TaskRef, slot: Slot, now: Time, actions: &mut Vec<Action>) {
        self.leave_stage(task, now);
        self.statistics.assigned += 1;
        self.give_now(task, slot, now, actions);
    }

    pub(crate) fn give_now(
        &mut self,
        task: TaskRef,
        slot: Slot,
        now: Time,
        actions: &mut Vec<Action>,
    ) {
        let Some(Some(entry)) = self.tasks.get_mut(task.0 as usize) else { return };
        entry.stage = Stage::Given(slot);
        self.given += 1;
        let (spec, estimate) = (Arc::clone(&entry.ticket.spec), entry.estimate);
        self.usual_run_s.add(estimate.mean_s);
        self.pool.change(slot, now, |member| member.give(task, estimate, &spec, now));
        actions.push(Action::Dispatch { task, slot });
    }
}
