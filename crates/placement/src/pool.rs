//! The workers that a scheduler holds, with the trees that find the best of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hypha_model::ledger::{ResourceAmounts, Utilisation};
use hypha_model::{Money, Requirement, Span, Time, Usage, Worker, WorkerId};
use hypha_predict::{HardwareKey, WorkerKey};
use serde::Serialize;

use crate::capability;
use crate::decision::HeldBack;
use crate::health::Health;
use crate::index::{Bounds, Tree};
use crate::member::Member;
use crate::price::Prices;
use crate::strategy::{Bind, LoadMetric, Recipe, Score};
use crate::{Placement, TaskRef, WorkerSlot};

/// Speeds are distinguished in steps of this factor: half a step is smaller than the error of any prediction. Workers
/// of one hardware and one step share a tree, in which all free workers are equally good and the order by backlog is
/// the order by finish. With finer speeds no bound would hold for more than one leaf.
const SPEED_STEP: f64 = 1.09;
/// Speeds outside 1.09^±120 (about 30,000 times faster or slower) are errors; the bound keeps scores finite
/// and trees few.
const MAX_SPEED_STEPS: f64 = 120.0;
/// The weight of a round trip that took longer than those before it. Delays only ever add to a round trip, so a
/// shorter one is believed at once; a longer one may be a momentary delay, and would turn tasks away until the next
/// heartbeat.
const LONGER_TRIP_WEIGHT: f64 = 0.125;
/// Shapes that are searched for a task that a worker could run: the search runs with each heartbeat.
const MAX_SHAPES_SEARCHED: usize = 64;
/// A penalty below this changes no order that loads make.
const NEGLIGIBLE_PENALTY: f64 = 1e-6;

/// See the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    recipe: Recipe,
    members: Vec<Option<Member>>,
    free: Vec<u32>,
    /// The slots that have a worker, for random draws, and the index of each slot among them.
    live: Vec<WorkerSlot>,
    live_at: Vec<u32>,
    trees: Vec<Tree>,
    /// For each tree, the slot at each position, and the free positions.
    slots_of: Vec<(Vec<u32>, Vec<u32>)>,
    /// For each slot, its tree and position.
    position_of: Vec<(u32, u32)>,
    /// For each tree, the hardware of its workers.
    hardware_of: Vec<HardwareKey>,
    groups: BTreeMap<(HardwareKey, i32), u32>,
    /// Lengths of the workers' own queues, where a strategy steals from the longest.
    queue_lengths: BTreeSet<(u32, u32)>,
    /// Workers that changed since the last plan and have a queue of their own, or may steal.
    touched: Vec<WorkerSlot>,
    /// Workers that have got room since the last plan.
    opened: Vec<WorkerSlot>,
    /// Workers whose key falls with time, because a penalty does.
    decaying: BTreeSet<WorkerSlot>,
    version: u64,
    reference: HardwareKey,
    open_slots: u64,
    /// How many workers have a queue of their own.
    with_bound: u32,
    prices: Prices,
    /// When the next worker has room, in seconds of absolute time.
    room_at_s: f64,
}

/// A worker, for display and for programs.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerView {
    /// What the worker states about itself.
    pub worker: Arc<Worker>,
    /// Whether it takes tasks.
    pub available: bool,
    /// Its record so far.
    pub health: Health,
    /// The measured round trip.
    pub rtt: Span,
    /// How many tasks it runs at once for this scheduler.
    pub slots: u32,
    /// Tasks bound to it and not yet dispatched.
    pub queued: u32,
    /// Tasks dispatched to it.
    pub in_flight: u32,
    /// Tasks that have begun.
    pub running: u32,
    /// How long a new task would wait.
    pub waiting_mean_s: f64,
    /// The standard deviation of that.
    pub waiting_error_s: f64,
    /// Run time relative to its hardware.
    pub factor: f64,
    /// The booked share of each resource.
    pub utilisation: Utilisation,
    /// The offered and the booked amounts of each resource.
    pub amounts: ResourceAmounts,
    /// How much of its machine is in use, by whatever runs there; `None` if it does not report that.
    pub usage: Option<Usage>,
    /// What an hour of it costs, if it has a price.
    pub price: Option<Money>,
}

impl Pool {
    pub(crate) fn new(recipe: Recipe) -> Pool {
        Pool {
            recipe,
            members: Vec::new(),
            free: Vec::new(),
            live: Vec::new(),
            live_at: Vec::new(),
            trees: Vec::new(),
            slots_of: Vec::new(),
            position_of: Vec::new(),
            hardware_of: Vec::new(),
            groups: BTreeMap::new(),
            queue_lengths: BTreeSet::new(),
            touched: Vec::new(),
            opened: Vec::new(),
            decaying: BTreeSet::new(),
            version: 0,
            reference: HardwareKey(0),
            open_slots: 0,
            with_bound: 0,
            prices: Prices::default(),
            room_at_s: f64::INFINITY,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.live.len()
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// The hardware on which run times of tasks are compared with each other.
    pub(crate) fn reference_hardware(&self) -> HardwareKey {
        self.reference
    }

    pub(crate) fn worker_slots(&self) -> Vec<WorkerSlot> {
        (0..self.members.len() as u32)
            .filter(|slot| self.members[*slot as usize].is_some())
            .map(WorkerSlot)
            .collect()
    }

    /// The slots that have a worker, in no useful order.
    pub(crate) fn live(&self) -> &[WorkerSlot] {
        &self.live
    }

    /// One past the last slot; slots below it may be empty.
    pub(crate) fn end(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn bind_stage(&self) -> Bind {
        self.recipe.bind
    }

    pub(crate) fn member(&self, slot: WorkerSlot) -> Option<&Member> {
        self.members.get(slot.0 as usize)?.as_ref()
    }

    /// The worker that a task is held back for, if it is still there: its slot may have another worker by now.
    pub(crate) fn held_for(&self, held: &HeldBack) -> Option<&Member> {
        self.member(held.slot).filter(|member| member.joined == held.joined)
    }

    pub(crate) fn trees(&self) -> &[Tree] {
        &self.trees
    }

    pub(crate) fn hardware_of_tree(&self, tree: usize) -> HardwareKey {
        self.hardware_of[tree]
    }

    pub(crate) fn slot_at(&self, tree: usize, position: usize) -> Option<WorkerSlot> {
        let slot = *self.slots_of[tree].0.get(position)?;
        (slot != u32::MAX).then_some(WorkerSlot(slot))
    }

    /// When the next worker has room, in seconds of absolute time.
    pub(crate) fn room_at_s(&self) -> f64 {
        self.room_at_s
    }

    /// Whether a worker could begin something at once.
    pub(crate) fn has_free(&self) -> bool {
        self.room_at_s == 0.0
    }

    /// Whether a worker has a queue of its own.
    pub(crate) fn has_bound(&self) -> bool {
        self.with_bound > 0
    }

    /// How many tasks the available workers run at once.
    pub(crate) fn open_slots(&self) -> u64 {
        self.open_slots
    }

    pub(crate) fn prices(&self) -> &Prices {
        &self.prices
    }

    pub(crate) fn set_price(&mut self, slot: WorkerSlot, price: Money, now: Time) {
        let Some(member) = self.member(slot).filter(|member| member.price != price) else { return };
        self.prices.replace(member.price, price);
        self.change(slot, now, |member| member.price = price);
    }

    /// Whether the usual price is that of the workers.
    pub(crate) fn has_right_prices(&self) -> bool {
        let mut counted = Prices::default();
        for member in self.members.iter().flatten() {
            counted.replace(Money::ZERO, member.price);
        }
        counted == self.prices
    }

    /// The worker with the longest queue of its own, if that is longer than `threshold`.
    pub(crate) fn longest_queue(&self, threshold: u32) -> Option<WorkerSlot> {
        let (length, slot) = *self.queue_lengths.last()?;
        (length > threshold).then_some(WorkerSlot(slot))
    }

    pub(crate) fn take_touched(&mut self) -> Vec<WorkerSlot> {
        std::mem::take(&mut self.touched)
    }

    pub(crate) fn recycle_touched(&mut self, mut empty: Vec<WorkerSlot>) {
        empty.clear();
        if self.touched.is_empty() {
            self.touched = empty;
        }
    }

    fn add(&mut self, mut member: Member, now: Time) -> WorkerSlot {
        if self.live.is_empty() {
            self.reference = member.hardware;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.members.push(None);
            self.position_of.push((u32::MAX, 0));
            self.live_at.push(0);
            self.members.len() as u32 - 1
        });
        self.live_at[slot as usize] = self.live.len() as u32;
        self.live.push(WorkerSlot(slot));
        self.version += 1;
        member.joined = self.version;
        self.members[slot as usize] = Some(member);
        self.refresh(WorkerSlot(slot), now);
        WorkerSlot(slot)
    }

    fn remove(&mut self, slot: WorkerSlot) -> Option<Member> {
        let member = self.members.get_mut(slot.0 as usize)?.take()?;
        self.leave_tree(slot);
        self.queue_lengths.remove(&(member.bound.len() as u32, slot.0));
        self.decaying.remove(&slot);
        self.open_slots -= member.open_slots();
        self.with_bound -= u32::from(!member.bound.is_empty());
        self.prices.replace(member.price, Money::ZERO);
        self.free.push(slot.0);
        let at = self.live_at[slot.0 as usize];
        self.live.swap_remove(at as usize);
        if let Some(moved) = self.live.get(at as usize) {
            self.live_at[moved.0 as usize] = at;
        }
        self.version += 1;
        Some(member)
    }

    /// Changes a worker and updates its bounds in the trees.
    pub(crate) fn change<R>(
        &mut self,
        slot: WorkerSlot,
        now: Time,
        change: impl FnOnce(&mut Member) -> R,
    ) -> Option<R> {
        let member = self.members.get_mut(slot.0 as usize)?.as_mut()?;
        let length = member.bound.len() as u32;
        self.open_slots -= member.open_slots();
        let result = change(member);
        self.open_slots += member.open_slots();
        match (length > 0, !member.bound.is_empty()) {
            (false, true) => self.with_bound += 1,
            (true, false) => self.with_bound -= 1,
            _ => {}
        }
        if self.recipe.steal_above.is_some() && length != member.bound.len() as u32 {
            self.queue_lengths.remove(&(length, slot.0));
            self.queue_lengths.insert((member.bound.len() as u32, slot.0));
        }
        if self.recipe.steal_above.is_some() || !member.bound.is_empty() {
            self.touched.push(slot);
        }
        if self.recipe.bind == Bind::Late && member.is_open() && self.opened.last() != Some(&slot) {
            self.opened.push(slot);
        }
        self.version += 1;
        self.refresh(slot, now);
        Some(result)
    }

    /// Changes how much tasks that wait for a worker add to the waiting time of those behind them.
    pub(crate) fn change_held_back(
        &mut self,
        slot: WorkerSlot,
        now: Time,
        change: impl FnOnce(&mut Member),
    ) {
        if let Some(Some(member)) = self.members.get_mut(slot.0 as usize) {
            change(member);
            self.refresh(slot, now);
        }
    }

    /// Changes fields of a worker that no tree depends on.
    pub(crate) fn change_unindexed(&mut self, slot: WorkerSlot, change: impl FnOnce(&mut Member)) {
        if let Some(Some(member)) = self.members.get_mut(slot.0 as usize) {
            change(member);
        }
    }

    /// The bounds of a worker in its tree.
    pub(crate) fn leaf(&self, slot: WorkerSlot) -> Option<&Bounds> {
        let (tree, position) = *self.position_of.get(slot.0 as usize)?;
        Some(self.trees.get(tree as usize)?.leaf(position as usize))
    }

    pub(crate) fn forget_opened(&mut self) {
        self.opened.clear();
    }

    pub(crate) fn take_opened(&mut self) -> Vec<WorkerSlot> {
        std::mem::take(&mut self.opened)
    }

    pub(crate) fn recycle_opened(&mut self, mut empty: Vec<WorkerSlot>) {
        empty.clear();
        self.opened = empty;
    }

    /// Updates the keys that fall with time.
    fn refresh_decaying(&mut self, now: Time) {
        for slot in std::mem::take(&mut self.decaying) {
            self.refresh(slot, now);
        }
    }

    /// Puts a worker's present bounds into its tree. Also called when only time has changed them.
    pub(crate) fn refresh(&mut self, slot: WorkerSlot, now: Time) {
        let Some(Some(member)) = self.members.get_mut(slot.0 as usize) else { return };
        member.update(&self.recipe, now);
        let bounds = member.bounds(&self.recipe, now);
        let group = group_of(&self.recipe, member);
        if let Score::GpuLoad { penalty_half_life_s } = self.recipe.score
            && member.health.penalty(now, penalty_half_life_s) > NEGLIGIBLE_PENALTY
        {
            self.decaying.insert(slot);
        }
        let tree = match self.groups.get(&group) {
            Some(tree) => *tree,
            None => {
                self.trees.push(Tree::new());
                self.slots_of.push((Vec::new(), Vec::new()));
                self.hardware_of.push(group.0);
                self.groups.insert(group, self.trees.len() as u32 - 1);
                self.trees.len() as u32 - 1
            }
        };
        if self.position_of[slot.0 as usize].0 != tree {
            self.leave_tree(slot);
            self.enter_tree(slot, tree);
        }
        let position = self.position_of[slot.0 as usize].1;
        self.set_leaf(tree as usize, position as usize, bounds);
    }

    fn set_leaf(&mut self, tree: usize, position: usize, bounds: Bounds) {
        let before_s = self.trees[tree].root().room_at_s;
        self.trees[tree].set(position, bounds);
        if self.trees[tree].root().room_at_s != before_s {
            let rooms = self.trees.iter().map(|tree| tree.root().room_at_s);
            self.room_at_s = rooms.fold(f64::INFINITY, f64::min);
        }
    }

    fn enter_tree(&mut self, slot: WorkerSlot, tree: u32) {
        let is_time_based = self.recipe.is_time_based();
        let (slots, free) = &mut self.slots_of[tree as usize];
        let position = if is_time_based {
            free.pop().unwrap_or_else(|| {
                slots.push(u32::MAX);
                slots.len() as u32 - 1
            })
        } else {
            if slots.len() <= slot.0 as usize {
                slots.resize(slot.0 as usize + 1, u32::MAX);
            }
            slot.0
        };
        slots[position as usize] = slot.0;
        self.position_of[slot.0 as usize] = (tree, position);
    }

    fn leave_tree(&mut self, slot: WorkerSlot) {
        let (tree, position) = self.position_of[slot.0 as usize];
        if tree == u32::MAX {
            return;
        }
        self.set_leaf(tree as usize, position as usize, Bounds::NONE);
        let (slots, free) = &mut self.slots_of[tree as usize];
        slots[position as usize] = u32::MAX;
        if self.recipe.is_time_based() {
            free.push(position);
        }
        self.position_of[slot.0 as usize] = (u32::MAX, 0);
    }

    /// Builds the trees of another recipe.
    pub(crate) fn reindex(&mut self, recipe: Recipe, now: Time) {
        self.recipe = recipe;
        self.trees.clear();
        self.slots_of.clear();
        self.hardware_of.clear();
        self.groups.clear();
        self.queue_lengths.clear();
        self.decaying.clear();
        self.opened.clear();
        self.room_at_s = f64::INFINITY;
        self.version += 1;
        self.position_of.fill((u32::MAX, 0));
        for slot in self.worker_slots() {
            self.refresh(slot, now);
            self.touched.push(slot);
            let length = self.member(slot).map_or(0, |member| member.bound.len());
            if self.recipe.steal_above.is_some() && length > 0 {
                self.queue_lengths.insert((length as u32, slot.0));
            }
        }
    }
}

/// Which tree a worker belongs to. Strategies that do not predict have one tree, in the order of
/// slots, so that `first` and `next` mean the same as in a list.
fn group_of(recipe: &Recipe, member: &Member) -> (HardwareKey, i32) {
    if !recipe.is_time_based() {
        return (HardwareKey(0), 0);
    }
    (member.hardware, member.speed_step)
}

/// How many steps slower than its hardware a worker is.
fn speed_step(factor: f64) -> i32 {
    (factor.ln() / SPEED_STEP.ln()).clamp(-MAX_SPEED_STEPS, MAX_SPEED_STEPS).round() as i32
}

/// The pool, as the caller of placement sees it.
impl Placement {
    /// A worker has joined. It takes no tasks until it is made available.
    pub fn add_worker(
        &mut self,
        worker: Arc<Worker>,
        predict: WorkerKey,
        hardware: HardwareKey,
        health: Health,
        now: Time,
    ) -> WorkerSlot {
        let local = self.preferences.prefer_region.is_some()
            && self.preferences.prefer_region == worker.region;
        self.pool.add(Member::new(worker, predict, hardware, local, health), now)
    }

    /// A worker is gone. Returns the tasks that were bound to it, and those dispatched to it that the caller has not
    /// taken back; they wait again.
    pub fn remove_worker(&mut self, slot: WorkerSlot, now: Time) -> Vec<TaskRef> {
        let mut back = self.release_bound(slot, usize::MAX, now);
        for task in self.dispatched_to(slot) {
            self.leave_stage(task, now);
            self.wait(task);
            back.push(task);
        }
        if let Some(task) = self.reserved_task(slot) {
            self.release_reservation(task, now);
        }
        if let Some(member) = self.pool.remove(slot) {
            self.tenants.offer_changed(member.counted_offer, Default::default());
        }
        self.gained_capacity.remove(&slot);
        self.capacity_lost();
        back
    }

    /// A worker may get tasks, or gets no new ones; it keeps those that it has.
    pub fn set_available(&mut self, slot: WorkerSlot, available: bool, now: Time) {
        let was = self.pool.member(slot).is_some_and(|member| member.available);
        match (was, available) {
            (false, true) => self.capacity_gained(slot),
            (true, false) => self.capacity_lost(),
            _ => {}
        }
        self.pool.change(slot, now, |member| {
            member.available = available;
            member.draining = false;
        });
        self.recount_offer(slot);
    }

    /// Only this part of a worker may be used from now on: `worker` describes it as if it had no more, and `slots` is
    /// how many tasks each executor runs at once. It keeps the tasks dispatched to it.
    pub fn resize(&mut self, slot: WorkerSlot, worker: Arc<Worker>, slots: &[u32], now: Time) {
        if let Some(task) = self.reserved_task(slot) {
            self.release_reservation(task, now);
        }
        self.capacity_lost();
        self.capacity_gained(slot);
        self.pool.change(slot, now, |member| member.resize(worker, slots, now));
        self.recount_offer(slot);
    }

    /// A worker gets the tasks already bound to it, and no new ones.
    pub fn drain(&mut self, slot: WorkerSlot, now: Time) {
        self.capacity_lost();
        self.pool.change(slot, now, |member| {
            member.available = false;
            member.draining = true;
        });
        self.recount_offer(slot);
    }

    /// A message from a worker arrived.
    pub fn mark_seen(&mut self, slot: WorkerSlot, now: Time) {
        self.pool.change_unindexed(slot, |member| member.health.last_seen = now);
    }

    /// A worker responded after a round trip of `rtt`.
    pub fn record_contact(&mut self, slot: WorkerSlot, rtt: Span, now: Time) {
        let Some(member) = self.pool.member(slot) else { return };
        let seen_s = rtt.as_secs_f64();
        // Most heartbeats change nothing that a decision looks at.
        let changed = (seen_s - member.rtt_s).abs() > 0.1 * member.rtt_s;
        let rtt_s = match member.rtt_s > 0.0 && seen_s > member.rtt_s {
            true => member.rtt_s + LONGER_TRIP_WEIGHT * (seen_s - member.rtt_s),
            false => seen_s,
        };
        if changed {
            let near = |rtt_s: f64| {
                self.preferences.max_rtt.is_none_or(|most| rtt_s <= most.as_secs_f64())
            };
            let (was_near, is_near) = (near(member.rtt_s), near(rtt_s));
            self.pool.change(slot, now, |member| member.rtt_s = rtt_s);
            match (was_near, is_near) {
                (false, true) => self.capacity_gained(slot),
                (true, false) => self.capacity_lost(),
                _ => {}
            }
        }
        self.mark_seen(slot, now);
    }

    /// How much of a worker's machine is in use was measured.
    pub fn set_usage(&mut self, slot: WorkerSlot, usage: Usage, now: Time) {
        let set = |member: &mut Member| member.set_usage(usage);
        match self.recipe.score {
            Score::Load(LoadMetric::CpuUsage | LoadMetric::MemoryUsage) => {
                self.pool.change(slot, now, set);
            }
            _ => self.pool.change_unindexed(slot, set),
        }
    }

    /// The predictor has learned something about a worker's speed. An invalid factor is ignored.
    pub fn set_factor(&mut self, slot: WorkerSlot, factor: f64, now: Time) {
        let Some(member) = self.pool.member(slot) else { return };
        if factor.is_nan() {
            return;
        }
        let speed_step = speed_step(factor);
        if member.speed_step == speed_step {
            return;
        }
        let factor = SPEED_STEP.powf(f64::from(speed_step));
        let set = |member: &mut Member| (member.factor, member.speed_step) = (factor, speed_step);
        match self.recipe.is_time_based() {
            true => _ = self.pool.change(slot, now, set),
            false => self.pool.change_unindexed(slot, set),
        }
    }

    /// Updates what falls with time alone: failure penalties. Called with every save (each 30 s), so an order by
    /// penalties is at most that stale.
    pub fn refresh(&mut self, now: Time) {
        self.pool.refresh_decaying(now);
    }

    /// How many workers the pool has.
    pub fn workers(&self) -> usize {
        self.pool.len()
    }

    /// The slots of all workers.
    pub fn worker_slots(&self) -> Vec<WorkerSlot> {
        self.pool.worker_slots()
    }

    /// The slots that have a worker, of `most` slots from `from` on, and the slot to continue with.
    pub fn worker_slots_from(
        &self,
        from: WorkerSlot,
        most: usize,
    ) -> (Vec<WorkerSlot>, Option<WorkerSlot>) {
        let end = (from.0 as usize).saturating_add(most).min(self.pool.end());
        let slots = (from.0..end as u32).map(WorkerSlot);
        let has_worker = slots.filter(|slot| self.pool.member(*slot).is_some());
        (has_worker.collect(), (end < self.pool.end()).then_some(WorkerSlot(end as u32)))
    }

    /// The id of a worker.
    pub fn worker_id(&self, slot: WorkerSlot) -> Option<WorkerId> {
        Some(self.pool.member(slot)?.worker.id)
    }

    /// The measured round trip to a worker; `None` if it was not measured.
    pub fn round_trip(&self, slot: WorkerSlot) -> Option<Span> {
        let seconds = self.pool.member(slot)?.rtt_s;
        (seconds > 0.0).then(|| Span::from_secs_f64(seconds))
    }

    /// The record of a worker.
    pub fn health(&self, slot: WorkerSlot) -> Option<Health> {
        Some(self.pool.member(slot)?.health_record())
    }

    /// How long a new task would wait at a worker: mean and standard deviation in seconds.
    pub fn backlog_s(&self, slot: WorkerSlot, now: Time) -> Option<(f64, f64)> {
        let wait = self.pool.member(slot)?.wait(now);
        Some((wait.mean_s, wait.error_s))
    }

    /// The tasks dispatched to a worker.
    pub fn dispatched_to(&self, slot: WorkerSlot) -> Vec<TaskRef> {
        let dispatched = |member: &Member| member.in_flight.tasks().collect();
        self.pool.member(slot).map(dispatched).unwrap_or_default()
    }

    /// Whether a worker other than the one at `slot` could run the task, now or when it has room.
    pub fn can_run_elsewhere(&self, task: TaskRef, slot: WorkerSlot) -> bool {
        let Some(entry) = self.tasks.get(task.0 as usize) else { return false };
        let requirement = &entry.request.spec.requirement;
        let max_rtt_s = self.preferences.max_rtt.map_or(f64::INFINITY, Span::as_secs_f64);
        // Some trees bound what is free, which does not matter here.
        let need = capability::need_of(requirement).ignoring_free_amounts();
        let could = |other: WorkerSlot| {
            let runs_it = |member: &Member| {
                member.refuses_ever(requirement).is_none() && member.rtt_s <= max_rtt_s
            };
            other != slot && self.pool.member(other).is_some_and(runs_it)
        };
        self.pool.trees().iter().enumerate().any(|(at, tree)| {
            let mut accept = |position| self.pool.slot_at(at, position).is_some_and(could);
            tree.first_from(0, &need, &mut accept).is_some()
        })
    }

    /// The requirement of the task that has waited longest, of those that `worker` could run. The search
    /// looks at a bounded number of shapes.
    pub fn oldest_requirement_for(
        &self,
        slot: WorkerSlot,
        worker: &Worker,
    ) -> Option<&Requirement> {
        let heads = |interactive| {
            let heads = self.waiting.heads(interactive).take(MAX_SHAPES_SEARCHED);
            heads.map(|(_, _, task)| task)
        };
        let bound =
            self.pool.member(slot).into_iter().flat_map(|member| member.bound.iter().next());
        let parked = self.waiting.parked().take(MAX_SHAPES_SEARCHED);
        let tasks = bound.chain(heads(true)).chain(heads(false)).chain(parked);
        let requests = tasks.filter_map(|task| Some(&self.tasks.get(task.0 as usize)?.request));
        let could =
            requests.filter(|request| request.spec.requirement.satisfied_by(worker).is_ok());
        could.min_by_key(|request| request.submitted).map(|request| &request.spec.requirement)
    }

    /// The kinds of tasks in the queue, with how many there are of each and the predicted run time of the first. A bounded
    /// number of them is looked at.
    pub fn waiting_shapes(&self) -> impl Iterator<Item = crate::WaitingShape<'_>> {
        let heads = |interactive| {
            let heads = self.waiting.heads(interactive).take(MAX_SHAPES_SEARCHED);
            heads.map(|(_, shape, task)| (shape, task))
        };
        let parked = self.waiting.parked_shapes().take(MAX_SHAPES_SEARCHED);
        heads(true).chain(heads(false)).chain(parked).filter_map(|(shape, task)| {
            let first = self.tasks.get(task.0 as usize)?;
            Some(crate::WaitingShape {
                requirement: &first.request.spec.requirement,
                tasks: self.waiting.tasks_in(shape) as u64,
                run: Span::from_secs_f64(first.predicted_s),
                submitted: first.request.submitted,
            })
        })
    }

    /// Whether no task is dispatched or bound to a worker.
    pub fn is_idle(&self, slot: WorkerSlot) -> bool {
        self.pool.member(slot).is_none_or(|member| member.load() == 0)
    }

    /// A view of a worker.
    pub fn view(&self, slot: WorkerSlot, now: Time) -> Option<WorkerView> {
        let member = self.pool.member(slot)?;
        let wait = member.wait(now);
        Some(WorkerView {
            worker: Arc::clone(&member.worker),
            available: member.is_available(),
            health: member.health_record(),
            rtt: Span::from_secs_f64(member.rtt_s),
            slots: member.slots(),
            queued: member.bound.len() as u32,
            in_flight: member.in_flight.len() as u32,
            running: member.running(),
            waiting_mean_s: wait.mean_s,
            waiting_error_s: wait.error_s,
            factor: member.factor,
            utilisation: member.ledger().utilisation(),
            amounts: member.ledger().amounts(),
            usage: member.measured.map(|measured| measured.usage),
            price: self.price(slot),
        })
    }

    /// Recomputes the incrementally maintained state and compares; the simulator calls it after every step.
    pub fn check(&self, now: Time) -> Result<(), String> {
        if let Some(wrong) = self.wrong_reservation() {
            return Err(wrong);
        }
        if let Some(wrong) = self.wrong_tenant() {
            return Err(wrong);
        }
        if !self.pool.has_right_prices() {
            return Err("the usual price is not that of the workers".to_owned());
        }
        if let Some(wrong) = self.wrong_deadline() {
            return Err(wrong);
        }
        if let Some(task) = self.wrongly_parked() {
            return Err(format!("{task:?} is parked although a worker could run it"));
        }
        for slot in self.pool.worker_slots() {
            let Some(member) = self.pool.member(slot) else { continue };
            member.in_flight.check().map_err(|error| format!("{slot:?}: {error}"))?;
            let idle = member.bound.is_empty() && member.in_flight.is_empty();
            let wait = member.wait(now);
            if idle && (wait.mean_s, wait.error_s) != (0.0, 0.0) {
                return Err(format!("{slot:?} is idle with a backlog of {wait:?}"));
            }
            for task in member.bound.iter().chain(member.in_flight.tasks()) {
                if self.worker_of(task) != Some(slot) {
                    return Err(format!("{task:?} is at {slot:?} but its own stage differs"));
                }
            }
        }
        Ok(())
    }

    /// The tasks that wait in a worker's own queue.
    pub fn bound_to(&self, slot: WorkerSlot) -> Vec<TaskRef> {
        let bound = |member: &Member| member.bound.iter().collect();
        self.pool.member(slot).map(bound).unwrap_or_default()
    }
}
