//! A plan: what to do now with what waits, as a list that leaves no choices.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use hypha_model::{Span, Time};
use hypha_predict::Predictor;

use crate::decision::Held;
use crate::strategy::{Bind, Predictive, Strategy};
use crate::{Action, Placement, Slot, Stage, Task, TaskRef, choose};

/// How many of the newest tasks of a queue a thief looks at to find one that it can run.
const STEAL_LOOKS: usize = 8;
/// How long a task is held back before it is looked at again, in usual run times.
const LOOK_AGAIN: f64 = 0.25;
/// When more workers than this got room since the last plan, all tasks are looked at again: that is cheaper
/// than to ask of each task which worker matters to it.
const MOST_OPENED: usize = 16;

impl Placement {
    /// Decides what can be decided now. Each action has already been entered here: the caller carries out
    /// all of them, in order.
    pub fn plan(&mut self, predictor: &Predictor, now: Time, actions: &mut Vec<Action>) {
        self.bind_at_once(predictor, now, actions);
        if self.waiting.len() == 0 {
            self.pool.forget_opened();
        } else {
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
        let recipe = self.recipe.bound_at_submit();
        for task in std::mem::take(&mut self.at_once) {
            let Some(Some(entry)) = self.tasks.get(task.0 as usize) else { continue };
            // Its number may belong to another task by now.
            if entry.ticket.bind_at_once
                && matches!(entry.stage, Stage::Waiting(..))
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
        let opened = self.pool.take_opened();
        if self.pool.room_at_s() <= now.as_secs_f64() {
            self.place_in_order(&opened, predictor, now, actions);
        }
        self.pool.give_back_opened(opened);
    }

    fn place_in_order(
        &mut self,
        opened: &[Slot],
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
        let mut heads: BinaryHeap<_> = self.waiting.heads().map(Reverse).collect();
        while let Some(Reverse((place, shape, task))) = heads.pop() {
            if self.is_full() || self.pool.room_at_s() > now.as_secs_f64() {
                break;
            }
            // So many wait for busy workers already that those behind them take what is free.
            let enough_wait = looks == 0;
            looks = looks.saturating_sub(1);
            let recipe = if enough_wait { &with_room } else { &usual };
            let next = self.waiting.next_after(shape, Some(place));
            if enough_wait || !self.still_waits(task, opened, now) {
                self.release_hold(task, now);
                let Some(slot) = self.choose(task, recipe, predictor, now) else { continue };
                if self.has_room(task, slot, now) {
                    self.give(task, slot, now, actions);
                    heads.extend(next.map(Reverse));
                    continue;
                }
                self.hold_back(task, slot, now);
            }
            held_back.push(task);
            heads.extend(next.map(Reverse));
        }
        // A task that leaves a free worker to others must not be passed for its size as well.
        if self.pool.has_free() {
            let held_at = held_back.iter().filter_map(|task| self.forgive_size(*task)).min();
            self.held_back_at = held_at;
        }
        held_back.clear();
        self.held_back = held_back;
    }

    /// Whether a task that was held back need not be looked at again: its worker has no room yet, no worker
    /// that would be better has got room since, and it was looked at not long ago.
    fn still_waits(&self, task: TaskRef, opened: &[Slot], now: Time) -> bool {
        let Some(Some(entry)) = self.tasks.get(task.0 as usize) else { return false };
        let Some(decision) = &entry.decision else { return false };
        let Some(held) = &decision.held else { return false };
        let waited_s = now.since(held.at).as_secs_f64();
        if waited_s >= LOOK_AGAIN * self.usual_run_s.mean() || opened.len() > MOST_OPENED {
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
        let Some(member) = self.pool.member(held.slot) else { return false };
        if member.leaves_alone(&entry.ticket.spec.requirement) {
            return false;
        }
        let hardware = member.hardware;
        let cost = held.score - waited_s * held.wait_costs;
        let open = opened.iter().filter_map(|slot| self.pool.member(*slot));
        open.filter(|member| member.is_open()).all(|member| {
            let tries = 1.0 + member.reliability.least_extra_tries();
            let run_s = decision.base_s * member.factor * tries;
            member.hardware == hardware && run_s + member.rtt_s >= cost
        })
    }

    fn is_full(&self) -> bool {
        self.preferences.max_given.is_some_and(|most| self.given >= most)
    }

    fn has_room(&self, task: TaskRef, slot: Slot, now: Time) -> bool {
        let Some(member) = self.pool.member(slot) else { return false };
        let Some(Some(entry)) = self.tasks.get(task.0 as usize) else { return false };
        let requirement = &entry.ticket.spec.requirement;
        // What was handed over is not taken back: while another worker is free, a task that must wait waits here,
        // where a prediction that turns out wrong can still be mended.
        member.refuses_now(requirement).is_none()
            || (self.recipe.bind == Bind::Late
                && !self.pool.has_free()
                && member.wants_prefetch(requirement, now))
    }

    fn hold_back(&mut self, task: TaskRef, slot: Slot, now: Time) {
        self.statistics.held_back += 1;
        let Some(member) = self.pool.member(slot) else { return };
        let Some(Some(entry)) = self.tasks.get_mut(task.0 as usize) else { return };
        let wait_costs = 1.0 + choose::surcharge_of(&self.recipe, entry);
        let Some(decision) = &mut entry.decision else { return };
        let share_s = decision.estimate.mean_s / f64::from(member.slots());
        let chosen = decision.explanation().and_then(|explanation| explanation.chosen);
        decision.held = Some(Held {
            slot,
            share_s,
            score: chosen.map_or(0.0, |chosen| chosen.score),
            wait_costs,
            at: now,
            forgiven: false,
        });
        self.pool.reserve(slot, now, |member| member.reserve(share_s));
    }

    pub(crate) fn release_hold(&mut self, task: TaskRef, now: Time) {
        let Some(Some(entry)) = self.tasks.get_mut(task.0 as usize) else { return };
        if let Some(held) = entry.decision.as_mut().and_then(|decision| decision.held.take()) {
            self.pool.reserve(held.slot, now, |member| member.unreserve(held.share_s));
        }
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
            && (member.available || member.draining)
            && member.wants_bound()
            && let Some(task) = member.bound.front().copied()
        {
            if self.is_full() {
                self.stalled.insert(slot);
                return;
            }
            let Some(Some(entry)) = self.tasks.get_mut(task.0 as usize) else { return };
            entry.stage = Stage::Given(slot);
            self.given += 1;
            let (spec, estimate) = (Arc::clone(&entry.ticket.spec), entry.estimate());
            self.usual_run_s.add(estimate.mean_s);
            self.pool.change(slot, now, |member| {
                member.unbind(task, &estimate, &spec.requirement);
                member.give(task, estimate, spec, now);
            });
            actions.push(Action::Dispatch { task, slot });
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
        // Who has a queue of its own is not idle, and would steal from itself for ever while `max_given`
        // keeps that queue from being handed over.
        let idle = member.bound.is_empty() && member.load() < member.slots() as usize;
        if !idle || !member.available {
            return false;
        }
        if self.preferences.max_rtt.is_some_and(|most| member.rtt_s > most.as_secs_f64()) {
            return false;
        }
        let Some(victim) = self.pool.longest_queue(threshold) else { return false };
        let runs_here = |task: &TaskRef| match self.tasks.get(task.0 as usize) {
            Some(Some(Task { ticket, .. })) => {
                member.refuses_ever(&ticket.spec.requirement).is_none()
                    && !ticket.tried.contains(&thief)
            }
            _ => false,
        };
        let Some(queue) = self.pool.member(victim).map(|member| &member.bound) else {
            return false;
        };
        let Some(task) = queue.iter().rev().take(STEAL_LOOKS).copied().find(runs_here) else {
            return false;
        };
        let (predict, hardware) = (member.predict, member.hardware);
        self.explain_steal(task, thief, victim, now);
        self.leave_stage(task, now);
        if let Some(Some(entry)) = self.tasks.get_mut(task.0 as usize) {
            let decision = entry.decision.get_or_insert_with(|| self.spare.take());
            decision.estimate = predictor.estimate(&entry.ticket.query, predict);
            decision.base_s = predictor.base(&entry.ticket.query, hardware).mean_s;
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
        self.pool.change(slot, now, |member| {
            member.bind(task, &entry.estimate(), &entry.ticket.spec.requirement);
        });
    }

    fn give(&mut self, task: TaskRef, slot: Slot, now: Time, actions: &mut Vec<Action>) {
        self.leave_stage(task, now);
        self.statistics.assigned += 1;
        self.give_now(task, slot, now);
        actions.push(Action::Dispatch { task, slot });
    }

    pub(crate) fn give_now(&mut self, task: TaskRef, slot: Slot, now: Time) {
        let Some(Some(entry)) = self.tasks.get_mut(task.0 as usize) else { return };
        entry.stage = Stage::Given(slot);
        self.given += 1;
        let (spec, estimate) = (Arc::clone(&entry.ticket.spec), entry.estimate());
        self.usual_run_s.add(estimate.mean_s);
        self.pool.change(slot, now, |member| member.give(task, estimate, spec, now));
    }
}
