//! One decision: filter, score and select over the pool, and its explanation.

mod locality;
mod pricing;

use hypha_model::{Maximise, Refusal, RefusalKind, Rng, Span, Time};
use hypha_predict::{Estimate, HardwareKey, Predictor};

use crate::capability::LOCAL;
use crate::decision::{Decision, HeldBack};
use crate::explain::{
    Candidate, Explanation, ExplanationPart, FullExplanation, MAX_RUNNERS_UP, RefusalCounts,
    ScoreTerms, WorkerVerdict,
};
use crate::index::{Bounds, Need, Search, Tolerance};
use crate::member::Member;
use crate::pool::Pool;
use crate::price::PriceRule;
use crate::strategy::{Bind, Recipe, Score, Select};
use crate::{Placement, PlacementMutant, PlacementRequest, Stage, Task, TaskRef, WorkerSlot};

/// A random draw is repeated this often if the worker refuses; then a search finds the next one that does not.
const MAX_DRAWS: usize = 8;
/// A worker is worth another task when it has had none for this many typical run times.
const STALE_RUNS: f64 = 50.0;

/// Times that differ by less than a hundredth are equal: predictions are further off than that. Without it a search
/// among many workers that are about equally good would not end. Nor does a millisecond count: a round trip is
/// measured with every heartbeat, and varies that much on one machine.
const TIME_TOLERANCE: Tolerance = Tolerance { share: 0.01, amount: 0.001 };
/// How many workers that would take the task a search evaluates, the most promising first. It bounds the cost of a
/// decision where bounds are loose; the result is then among the best.
const MAX_EVALUATED: u32 = 24;

/// Scratch space that decisions reuse.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch {
    /// The task's run time on each hardware that has been predicted so far.
    bases: Vec<(HardwareKey, Estimate)>,
    /// The best workers so far, best first.
    best: Vec<Scored>,
    /// Trees that may hold the best worker: their lower bound, their number, the task's time there.
    trees: Vec<(f64, usize, f64)>,
    /// Workers that turned out to have room later than their tree assumes.
    late: Vec<WorkerSlot>,
    /// Whether the worker was chosen among the local ones.
    preferred_local: bool,
    refusals: RefusalCounts,
    looked_at: u64,
}

/// A worker that would take the task.
#[derive(Clone, Copy, Debug)]
struct Scored {
    score: f64,
    slot: WorkerSlot,
    terms: Option<ScoreTerms>,
}

/// One decision in progress.
struct Evaluation<'a> {
    task: TaskRef,
    pool: &'a Pool,
    request: &'a PlacementRequest,
    recipe: &'a Recipe,
    predictor: &'a Predictor,
    now: Time,
    max_rtt_s: f64,
    avoid_failed: bool,
    /// Whether the GPUs that the task names must be free now.
    needs_free_gpus: bool,
    held: Option<HeldBack>,
    /// How much more waiting costs than running.
    surcharge: f64,
    /// How prices count, if they do.
    price: Option<&'a PriceRule>,
    rng: &'a mut Rng,
    scratch: &'a mut Scratch,
}

impl Placement {
    /// The worker that `recipe` chooses for the task, if any will do. Leaves the explanation with the task.
    pub(crate) fn choose(
        &mut self,
        task: TaskRef,
        recipe: &Recipe,
        predictor: &Predictor,
        now: Time,
    ) -> Option<WorkerSlot> {
        let hides_refusals = self.is(PlacementMutant::SilentRefusals);
        let entry = self.tasks.get(task.0 as usize)?;
        let price = self.price_rule(&entry.request, entry.predicted_s, recipe, now);
        let entry = self.tasks.get_mut(task.0 as usize)?;
        // Only waiting tasks are decided about.
        let Stage::Waiting(shape, _) = entry.stage else { return None };
        let mut need = self.waiting.need(shape)?;
        let surcharge = surcharge_of(recipe, entry);
        let decision = entry.decision.get_or_insert_with(|| self.spare.take());
        decision.by = (*recipe != self.recipe).then_some(*recipe);
        let max_rtt = self.preferences.max_rtt;
        let mut evaluation = Evaluation {
            task,
            pool: &self.pool,
            request: &entry.request,
            recipe,
            predictor,
            now,
            max_rtt_s: max_rtt.map_or(f64::INFINITY, Span::as_secs_f64),
            avoid_failed: false,
            needs_free_gpus: false,
            held: decision.held,
            surcharge,
            price: price.as_ref(),
            rng: &mut self.rng,
            scratch: &mut self.scratch,
        };
        evaluation.scratch.bases.clear();
        evaluation.scratch.late.clear();
        evaluation.scratch.refusals = RefusalCounts::default();
        evaluation.scratch.looked_at = 0;
        evaluation.scratch.preferred_local = false;

        match (recipe.bind, self.pool.bind_stage()) {
            // Room now, not room by now: a late-binding tree also knows when the next task may travel to a busy
            // worker, and overdue workers would be looked at, and refuse, at every decision.
            (Bind::WithRoom, _) => need.room_by_s = 0.0,
            // The trees bound what is free, and the task may wait for what is not: only leaves are exact.
            (_, Bind::WithRoom) => need = need.ignoring_free_amounts(),
            _ => {}
        }
        let max_local_wait = self.preferences.max_local_wait;
        let local_first = self.preferences.prefer_region.is_some().then_some(max_local_wait);
        let (slot, explored) = evaluation.in_passes(need, local_first, &mut self.cursor);
        let explanation = decision.explanation_mut();
        evaluation.explain(self.strategy.name(), slot, explored, explanation);
        if hides_refusals {
            explanation.refusals = RefusalCounts::default();
            explanation.not_looked_at = 0;
        }
        self.statistics.refusals.add(&explanation.refusals);
        if let Some(slot) = slot {
            if let Some(member) = self.pool.member(slot) {
                let base = evaluation.base(member.hardware);
                decision.base_s = base.mean_s;
                decision.estimate = predictor.on_worker(&base, member.predict);
            }
            self.statistics.explored += u64::from(explored);
        } else {
            self.statistics.waited += 1;
        }
        // Workers that were looked at in vain get their true bounds. That keeps searches short: otherwise every
        // decision would look again at every overdue worker.
        for at in 0..self.scratch.late.len() {
            self.pool.refresh(self.scratch.late[at], now);
        }
        slot
    }

    /// Records that the task goes to `slot` without a choice: the worker stole it from the queue of `victim`, or had a
    /// reservation for it.
    pub(crate) fn explain_direct(
        &mut self,
        task: TaskRef,
        slot: WorkerSlot,
        victim: Option<WorkerSlot>,
        now: Time,
    ) {
        let candidate = |slot: WorkerSlot| {
            let member = self.pool.member(slot)?;
            let score = member.key(&self.recipe.score, now);
            Some(Candidate { worker: member.worker.id, score, terms: None })
        };
        let (chosen, runner_up) = (candidate(slot), victim.and_then(candidate));
        let Some(entry) = self.tasks.get_mut(task.0 as usize) else { return };
        let decision = entry.decision.get_or_insert_with(|| self.spare.take());
        *decision.explanation_mut() = Explanation {
            strategy: self.strategy.name(),
            at: now,
            version: self.pool.version(),
            chosen,
            not_looked_at: (self.pool.len() as u64).saturating_sub(1 + u64::from(victim.is_some())),
            runners_up: runner_up.into_iter().collect(),
            ..Explanation::EMPTY
        };
    }

    /// Every worker's verdict on a task, in the present state of the pool.
    pub fn explain_fully(
        &self,
        task: TaskRef,
        predictor: &Predictor,
        now: Time,
    ) -> Option<FullExplanation> {
        let all = self.explain_part(task, predictor, now, WorkerSlot(0), usize::MAX)?;
        Some(FullExplanation::of_parts(vec![all]))
    }

    /// The verdicts of at most `most` workers, from the slot `from` on.
    pub fn explain_part(
        &self,
        task: TaskRef,
        predictor: &Predictor,
        now: Time,
        from: WorkerSlot,
        most: usize,
    ) -> Option<ExplanationPart> {
        let entry = self.tasks.get(task.0 as usize)?;
        let decision = entry.decision.as_deref();
        let recipe = decision.and_then(|decision| decision.by).unwrap_or(self.recipe);
        let version = self.pool.version();
        let decided = decision.and_then(Decision::explanation).map(|decided| decided.version);
        let max_rtt = self.preferences.max_rtt;
        // As it was decided: a task that prices did not count for is shown as such.
        let decided_by_price = decision
            .and_then(Decision::explanation)
            .is_some_and(|decided| decided.maximise != Maximise::Speed);
        let price = self.price_rule(&entry.request, entry.predicted_s, &recipe, now);
        // Scores that are samples are drawn from a copy: a reader must not change later decisions.
        let (mut rng, mut scratch) = (self.rng.clone(), Scratch::default());
        let mut evaluation = Evaluation {
            task,
            pool: &self.pool,
            request: &entry.request,
            recipe: &recipe,
            predictor,
            now,
            max_rtt_s: max_rtt.map_or(f64::INFINITY, Span::as_secs_f64),
            avoid_failed: false,
            needs_free_gpus: false,
            held: decision.and_then(|decision| decision.held),
            surcharge: surcharge_of(&recipe, entry),
            price: price.as_ref().filter(|_| decided_by_price),
            rng: &mut rng,
            scratch: &mut scratch,
        };
        evaluation.scratch.bases.clear();
        let (slots, next) = self.worker_slots_from(from, most);
        let verdicts = slots.iter().filter_map(|slot| evaluation.verdict(*slot)).collect();
        Some(ExplanationPart { as_decided: decided == Some(version), version, verdicts, next })
    }
}

impl Placement {
    /// A task that waits although a worker would take it, or without a reason. An index that misses a worker shows up
    /// here; the simulator calls it after every step.
    pub fn unexplained(&self, predictor: &Predictor, now: Time) -> Option<String> {
        let heads = |interactive| self.waiting.heads(interactive);
        let heads: Vec<TaskRef> =
            heads(true).chain(heads(false)).map(|(_, _, task)| task).collect();
        for task in heads {
            let Some(decision) = self.explanation(task) else { continue };
            if decision.chosen.is_some() || decision.version != self.pool.version() {
                continue;
            }
            if decision.refusals.total() + decision.not_looked_at == 0 && self.pool.len() > 0 {
                return Some(format!("{task:?} waits without a reason from any worker"));
            }
            let full = self.explain_fully(task, predictor, now)?;
            if let Some(taker) = full.verdicts.iter().find(|verdict| verdict.candidate.is_some()) {
                return Some(format!("{task:?} waits although {} would take it", taker.worker));
            }
        }
        None
    }
}

impl<'a> Evaluation<'a> {
    /// Workers on which the task has not failed go first, and among them those with the named GPUs free.
    /// `max_local_wait` is what the preferred region is worth, if there is one.
    fn in_passes(
        &mut self,
        need: Need,
        max_local_wait: Option<Span>,
        cursor: &mut usize,
    ) -> (Option<WorkerSlot>, bool) {
        // A task that waits for room waits for its GPUs anyway.
        let names_gpus =
            self.recipe.bind == Bind::AtSubmit && !self.request.spec.requirement.gpu_ids.is_empty();
        for avoid_failed in [true, false] {
            self.avoid_failed = avoid_failed;
            if avoid_failed && self.request.failed_on.is_empty() {
                continue;
            }
            for free_gpus in [true, false] {
                self.needs_free_gpus = free_gpus;
                if free_gpus && !names_gpus {
                    continue;
                }
                let found = match self.price {
                    Some(_) => self.select_by_price(&need, max_local_wait, cursor),
                    None => self.select_by_speed(&need, max_local_wait, cursor),
                };
                if found.0.is_some() {
                    return found;
                }
            }
        }
        (None, false)
    }

    #[inline]
    fn select_by_speed(
        &mut self,
        need: &Need,
        max_local_wait: Option<Span>,
        cursor: &mut usize,
    ) -> (Option<WorkerSlot>, bool) {
        match max_local_wait {
            Some(most) => self.select_local_first(need, most.as_secs_f64(), cursor),
            None => self.select(need, cursor),
        }
    }

    fn select(&mut self, need: &Need, cursor: &mut usize) -> (Option<WorkerSlot>, bool) {
        self.scratch.best.clear();
        match self.recipe.select {
            Select::First => (self.first_from(0, need), false),
            Select::Cursor => {
                let found = self.first_from(*cursor, need).or_else(|| self.first_from(0, need));
                if let Some(slot) = found {
                    *cursor = slot.0 as usize + 1;
                }
                (found, false)
            }
            Select::Least => (self.least(need), false),
            Select::Random => (self.draw(need), false),
            Select::LeastOfTwoRandom => (self.draw_two(need), false),
            Select::LeastOfSample(size) => {
                if self.pool.len() > size {
                    return (self.draw_many(size, need), false);
                }
                for at in 0..self.pool.len() {
                    self.evaluate(self.pool.live()[at], need);
                }
                (self.scratch.best.first().map(|best| best.slot), false)
            }
            Select::LeastOrExplore { probability } => {
                // A look at a worker is not worth its price.
                if self.price.is_none()
                    && self.rng.chance(probability)
                    && let Some(slot) = self.stale_worker(need)
                {
                    return (Some(slot), true);
                }
                (self.least(need), false)
            }
        }
    }

    /// The first slot at or after `from`. Only used by recipes with one tree in the order of slots.
    fn first_from(&mut self, from: usize, need: &Need) -> Option<WorkerSlot> {
        let pool = self.pool;
        let tree = pool.trees().first()?;
        let found = tree.first_from(from, need, &mut |at| {
            pool.slot_at(0, at).is_some_and(|slot| self.accepts(slot))
        })?;
        pool.slot_at(0, found)
    }

    /// The worker with the least score, over all trees, the most promising tree first. Ties are broken by load: it
    /// does not show in an expected time while there is room, and still counts.
    fn least(&mut self, need: &Need) -> Option<WorkerSlot> {
        let (pool, bound) = (self.pool, self.bound());
        let mut trees = std::mem::take(&mut self.scratch.trees);
        trees.clear();
        let (mut least, mut of_hardware) = (f64::INFINITY, None);
        for (at, tree) in pool.trees().iter().enumerate() {
            if tree.root().may_satisfy(need) {
                // Most trees are of the same hardware as the one before.
                let hardware = pool.hardware_of_tree(at);
                let base_s = match of_hardware {
                    Some((known, base_s)) if known == hardware => base_s,
                    _ => self.least_run_s(hardware),
                };
                of_hardware = Some((hardware, base_s));
                let lower = bound.lower(tree.root(), base_s);
                least = least.min(lower);
                trees.push((lower, at, base_s));
            }
        }
        let equal = match self.price {
            // In proportion to the time, not to the cost: that is known exactly.
            Some(PriceRule { weight, .. }) => {
                Tolerance { share: TIME_TOLERANCE.share / (1.0 + weight), ..TIME_TOLERANCE }
            }
            None if self.recipe.is_time_based() => TIME_TOLERANCE,
            None => Tolerance::ZERO,
        };
        let mut search = Search::new(equal, least, MAX_EVALUATED);
        let mut chosen = None;
        // Few of the trees are searched: the next is found by a scan instead of a sort.
        while let Some(next) = (0..trees.len()).min_by(|a, b| trees[*a].0.total_cmp(&trees[*b].0)) {
            let (lower, at, base_s) = trees.swap_remove(next);
            if search.is_over(lower) {
                break;
            }
            if !search.may_improve(lower, pool.trees()[at].root().tie_break) {
                continue;
            }
            let lower = |bounds: &Bounds| bound.lower(bounds, base_s);
            let mut visit = |position: usize| {
                let slot = pool.slot_at(at, position)?;
                let scored = self.evaluate(slot, need)?;
                self.note_if_late(&scored, pool.trees()[at].leaf(position));
                Some(scored.score)
            };
            pool.trees()[at].least(need, &lower, &mut visit, &mut search);
            if let Some(position) = search.take_found() {
                chosen = pool.slot_at(at, position);
            }
        }
        self.scratch.trees = trees;
        chosen
    }

    /// The lower bound of a run on some hardware, before a worker's factor.
    fn least_run_s(&mut self, hardware: HardwareKey) -> f64 {
        if !self.recipe.is_time_based() {
            return 0.0;
        }
        let base = self.base(hardware);
        match self.recipe.score {
            Score::Finish { error_weight } => base.mean_s + error_weight * base.error_s,
            _ => base.mean_s,
        }
    }

    fn bound(&self) -> Bound<'a> {
        if self.recipe.is_time_based() {
            // A task that needs room now does not wait.
            let waits = self.recipe.bind != Bind::WithRoom;
            let wait_cost_rate = if waits { 1.0 + self.surcharge } else { 0.0 };
            let now_s = self.now.as_secs_f64();
            match self.price {
                Some(price) => Bound::Priced { now_s, wait_cost_rate, price },
                None => Bound::Finish { now_s, wait_cost_rate },
            }
        } else if self.recipe.bind != self.pool.bind_stage() {
            Bound::Load
        } else {
            Bound::Key
        }
    }

    /// Remembers a worker that will have room later than its tree assumes.
    fn note_if_late(&mut self, scored: &Scored, leaf: &Bounds) {
        let Some(terms) = scored.terms else { return };
        let expected_s = (leaf.key - self.now.as_secs_f64()).max(0.0);
        // Absolute times in seconds are good to less than a microsecond.
        if terms.wait_s > expected_s + 1e-6 {
            self.scratch.late.push(scored.slot);
        }
    }

    /// A worker that fits, each about equally likely. `None` means only that a few draws found none.
    fn try_draw(&mut self, need: &Need) -> Option<WorkerSlot> {
        for _ in 0..MAX_DRAWS {
            let slot = self.any_worker()?;
            if self.may_satisfy(slot, need) && self.accepts(slot) {
                return Some(slot);
            }
        }
        None
    }

    fn any_worker(&mut self) -> Option<WorkerSlot> {
        let live = self.pool.live();
        live.get(self.rng.below(live.len() as u64) as usize).copied()
    }

    /// A worker that fits, if there is one. Only used by recipes with one tree in the order of slots.
    fn draw(&mut self, need: &Need) -> Option<WorkerSlot> {
        self.try_draw(need).or_else(|| {
            let from = self.rng.below(self.pool.end() as u64) as usize;
            self.first_from(from, need).or_else(|| self.first_from(0, need))
        })
    }

    fn draw_two(&mut self, need: &Need) -> Option<WorkerSlot> {
        let first = self.draw(need)?;
        self.score_and_remember(first);
        for _ in 0..MAX_DRAWS {
            let second = self.draw(need)?;
            if second != first {
                self.score_and_remember(second);
                break;
            }
        }
        self.scratch.best.first().map(|best| best.slot)
    }

    /// The least of a sample; a search finds workers that are so rare that draws miss them.
    fn draw_many(&mut self, count: usize, need: &Need) -> Option<WorkerSlot> {
        for _ in 0..count {
            let Some(slot) = self.try_draw(need) else { return self.least(need) };
            self.score_and_remember(slot);
        }
        self.scratch.best.first().map(|best| best.slot)
    }

    /// A worker with room that has had no task for long.
    fn stale_worker(&mut self, need: &Need) -> Option<WorkerSlot> {
        let stale_s = STALE_RUNS * self.predictor.typical_s();
        for _ in 0..MAX_DRAWS {
            let slot = self.any_worker()?;
            let Some(member) = self.pool.member(slot) else { continue };
            if self.now.since(member.last_dispatched).as_secs_f64() >= stale_s
                && self.may_satisfy(slot, need)
                && self.accepts(slot)
                && self.refuses_now(member).is_none()
            {
                self.score_and_remember(slot);
                return Some(slot);
            }
        }
        None
    }

    fn may_satisfy(&self, slot: WorkerSlot, need: &Need) -> bool {
        need.capabilities & LOCAL == 0 || self.pool.member(slot).is_some_and(|member| member.local)
    }

    fn evaluate(&mut self, slot: WorkerSlot, need: &Need) -> Option<Scored> {
        if !self.may_satisfy(slot, need) || !self.accepts(slot) {
            return None;
        }
        Some(self.score_and_remember(slot))
    }

    fn score_and_remember(&mut self, slot: WorkerSlot) -> Scored {
        let scored = self.score(slot);
        let best = &mut self.scratch.best;
        let beaten = best.len() > MAX_RUNNERS_UP
            && best.last().is_some_and(|worst| scored.score >= worst.score);
        if !beaten && !best.iter().any(|other| other.slot == slot) {
            let at = best.partition_point(|other| other.score <= scored.score);
            best.insert(at, scored);
            best.truncate(MAX_RUNNERS_UP + 1);
        }
        scored
    }

    /// The filter stage.
    fn accepts(&mut self, slot: WorkerSlot) -> bool {
        self.scratch.looked_at += 1;
        match self.refusal(slot) {
            None => true,
            Some(refusal) => {
                self.scratch.refusals.count(refusal.kind);
                false
            }
        }
    }

    fn refuses_now(&mut self, member: &Member) -> Option<Refusal> {
        let (task, requirement, now) = (self.task, &self.request.spec.requirement, self.now);
        let run_s = || self.base(member.hardware).mean_s * member.factor;
        member.refuses_now(task, requirement, run_s, now)
    }

    fn refusal(&mut self, slot: WorkerSlot) -> Option<Refusal> {
        let Some(member) = self.pool.member(slot) else {
            return Some(Refusal::without_amount(RefusalKind::Unavailable));
        };
        let requirement = &self.request.spec.requirement;
        if let Some(refusal) = member.refuses_ever(requirement) {
            return Some(refusal);
        }
        if member.rtt_s > self.max_rtt_s {
            let micros = |seconds: f64| (seconds * 1e6) as u64;
            return Some(Refusal {
                kind: RefusalKind::TooFar,
                needed: micros(self.max_rtt_s),
                present: micros(member.rtt_s),
            });
        }
        if self.avoid_failed && self.request.failed_on.contains(&slot) {
            return Some(Refusal::without_amount(RefusalKind::TriedBefore));
        }
        let refusal = match self.recipe.bind {
            Bind::WithRoom => self.refuses_now(member),
            Bind::AtSubmit if self.needs_free_gpus => member.in_flight.fits(requirement).err(),
            Bind::AtSubmit | Bind::Late => None,
        };
        match self.price {
            // A worker that has the task does not refuse it.
            Some(price) if refusal.is_none() && !member.in_flight.has(self.task) => {
                let error_s = self.base(member.hardware).error_s * member.factor;
                price.refusal(&self.terms(slot, member), error_s)
            }
            _ => refusal,
        }
    }

    /// The score stage: lower is better.
    fn score(&mut self, slot: WorkerSlot) -> Scored {
        let Some(member) = self.pool.member(slot) else {
            return Scored { score: f64::INFINITY, slot, terms: None };
        };
        let (score, terms) = match self.recipe.score {
            Score::SampledFinish => {
                let run = self.base(member.hardware).scaled(member.factor);
                let wait = member.wait(self.now);
                let wait = Estimate::new(wait.mean_s, wait.error_s);
                (wait.sample(self.rng) + run.sample(self.rng), None)
            }
            Score::Finish { .. } | Score::ExpectedFinish { .. } => {
                let terms = self.terms(slot, member);
                (terms.total(), Some(terms))
            }
            ref score => (member.score_of(score, &self.request.spec.requirement, self.now), None),
        };
        Scored { score, slot, terms }
    }

    /// The terms of an expected finish.
    fn terms(&mut self, slot: WorkerSlot, member: &Member) -> ScoreTerms {
        let requirement = &self.request.spec.requirement;
        let (wait, extra_attempts) =
            (member.wait_for(self.task, requirement, self.now), member.extra_attempts(requirement));
        let base = self.base(member.hardware);
        let run_s = base.mean_s * member.factor;
        // Reserved room is free after the task with the reservation has run.
        let kept_s = match wait.mean_s > 0.0 || self.recipe.bind != Bind::Late {
            true => 0.0,
            false => member
                .conflicting_reservation(self.task, requirement, || run_s, self.now)
                .map_or(0.0, |kept| kept.wait_s(self.now)),
        };
        // Tasks that wait for the worker go first, but a task does not wait for itself.
        let own_s = self
            .held
            .filter(|held| held.slot == slot && held.joined == member.joined)
            .map_or(0.0, |held| held.share_s);
        let wait_s = wait.mean_s + kept_s + (member.held_back_s() - own_s).max(0.0);
        let terms = ScoreTerms { wait_s, run_s, ..ScoreTerms::default() };
        match self.recipe.score {
            Score::Finish { error_weight } => {
                let run_error_s = base.error_s * member.factor;
                let error_s = wait.error_s.hypot(run_error_s) * error_weight;
                ScoreTerms { error_s, ..terms }
            }
            _ => ScoreTerms {
                surcharge_s: self.surcharge * terms.wait_s,
                transfer_s: member.rtt_s,
                risk_s: extra_attempts * run_s,
                cost_s: match self.price {
                    Some(price) => price.cost_s(member, (1.0 + extra_attempts) * run_s),
                    None => 0.0,
                },
                ..terms
            },
        }
    }

    fn base(&mut self, hardware: HardwareKey) -> Estimate {
        if let Some((_, base)) = self.scratch.bases.iter().find(|(other, _)| *other == hardware) {
            return *base;
        }
        let base = self.predictor.hardware_estimate(&self.request.query, hardware);
        self.scratch.bases.push((hardware, base));
        base
    }

    fn candidate(&self, scored: &Scored) -> Option<Candidate> {
        let worker = self.pool.member(scored.slot)?.worker.id;
        Some(Candidate { worker, score: scored.score, terms: scored.terms })
    }

    /// Writes the explanation, over that of an earlier decision.
    fn explain(
        &mut self,
        strategy: &'static str,
        chosen: Option<WorkerSlot>,
        explored: bool,
        explanation: &mut Explanation,
    ) {
        explanation.strategy = strategy;
        explanation.at = self.now;
        explanation.version = self.pool.version();
        explanation.explored = explored;
        explanation.preferred_local = self.scratch.preferred_local;
        explanation.maximise = match (&self.price, chosen) {
            (Some(price), Some(_)) => price.maximise,
            _ => Maximise::Speed,
        };
        explanation.refusals = self.scratch.refusals;
        explanation.not_looked_at = (self.pool.len() as u64).saturating_sub(self.scratch.looked_at);
        let best = &self.scratch.best;
        let others = best.iter().filter(|scored| Some(scored.slot) != chosen).take(MAX_RUNNERS_UP);
        explanation.runners_up.clear();
        // Each of a million tasks in workers' queues may have one: no spare capacity.
        let count = best.len().saturating_sub(usize::from(chosen.is_some())).min(MAX_RUNNERS_UP);
        explanation.runners_up.reserve_exact(count);
        explanation.runners_up.extend(others.filter_map(|scored| self.candidate(scored)));
        explanation.chosen = chosen.and_then(|slot| {
            // As it was scored when it was chosen: a sample is not drawn again.
            let known = self.scratch.best.iter().find(|scored| scored.slot == slot).copied();
            let scored = known.unwrap_or_else(|| self.score(slot));
            self.candidate(&scored)
        });
    }

    fn verdict(&mut self, slot: WorkerSlot) -> Option<WorkerVerdict> {
        let member = self.pool.member(slot)?;
        let requirement = &self.request.spec.requirement;
        let mut refusals: Vec<Refusal> = self.refusal(slot).into_iter().collect();
        for refusal in requirement.refusals_by(&member.worker.capacity) {
            if !refusals.contains(&refusal) {
                refusals.push(refusal);
            }
        }
        let candidate = match refusals.is_empty() {
            true => {
                let scored = self.score(slot);
                self.candidate(&scored)
            }
            false => None,
        };
        Some(WorkerVerdict { worker: member.worker.id, candidate, refusals })
    }
}

/// How the bounds of a tree's node become a lower bound of the scores below it.
#[derive(Clone, Copy)]
enum Bound<'a> {
    /// The key is what is minimised.
    Key,
    /// The trees are those of a strategy that needs room now, and this task does not.
    Load,
    /// The key is a time. Waiting only ever turns out longer than when the bounds were taken: a late run is expected
    /// to end later still.
    Finish { now_s: f64, wait_cost_rate: f64 },
    /// The same, where prices count.
    Priced { now_s: f64, wait_cost_rate: f64, price: &'a PriceRule },
}

impl Bound<'_> {
    #[inline]
    fn lower(&self, bounds: &Bounds, base_s: f64) -> f64 {
        match *self {
            Bound::Key => bounds.key,
            Bound::Load => f64::from(bounds.load_or_price),
            Bound::Finish { now_s, wait_cost_rate } => {
                least_finish_s(bounds, base_s, now_s, wait_cost_rate)
            }
            Bound::Priced { now_s, wait_cost_rate, price } => {
                pricing::least_priced_s(bounds, base_s, now_s, wait_cost_rate, price)
            }
        }
    }
}

#[inline]
fn least_finish_s(bounds: &Bounds, base_s: f64, now_s: f64, wait_cost_rate: f64) -> f64 {
    // Bounds are kept in single precision. Without the last factor, equal workers would seem slightly better, and every
    // free one would be looked at.
    let run_s = base_s * f64::from(bounds.factor) + f64::from(bounds.rtt_s);
    (bounds.key - now_s).max(0.0) * wait_cost_rate + run_s * (1.0 + 1e-7)
}

/// Long tasks may wait for a fast worker, where they gain most; short ones should take a free one. An uncertain task
/// may be a long one.
pub(crate) fn surcharge_of(recipe: &Recipe, task: &Task) -> f64 {
    match recipe.score {
        Score::ExpectedFinish { wait_surcharge } => {
            wait_surcharge / (task.size * task.log_variance.exp()).max(MIN_SIZE)
        }
        _ => 0.0,
    }
}

/// Tasks below a tenth of the usual length all count as equally short.
const MIN_SIZE: f64 = 0.1;
