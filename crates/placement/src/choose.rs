//! One decision: filter, score and select over the pool, and what is remembered of it.

use hypha_model::{Refusal, RefusalKind, Rng, Time};
use hypha_predict::{Estimate, HardwareKey, Predictor};

use crate::capability::LOCAL;
use crate::explain::{Candidate, Explanation, FullExplanation, MAX_VERDICTS, RUNNERS_UP, Refusals};
use crate::explain::{Terms, Verdict};
use crate::index::{Bounds, Need};
use crate::member::Member;
use crate::pool::Pool;
use crate::strategy::{Bind, Recipe, Score, Select};
use crate::{Placement, Slot, Task, TaskRef, Ticket};

/// Random draws that meet a worker which refuses are repeated this often; then a search finds the next
/// one that does not.
const DRAWS: usize = 8;
/// A worker is worth another try when it has not been given anything for this many typical run times.
const STALE_RUNS: f64 = 50.0;

/// Space that decisions reuse.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch {
    /// The task's run time on each hardware that was asked for.
    bases: Vec<(HardwareKey, Estimate)>,
    /// Waiting that tasks looked at earlier in this plan add to the worker that they wait for.
    pub(crate) extra_wait: Vec<(Slot, f64)>,
    /// The best so far, best first.
    best: Vec<(f64, Slot)>,
    refusals: Refusals,
    looked_at: u64,
}

/// One decision under way.
struct Look<'a> {
    pool: &'a Pool,
    ticket: &'a Ticket,
    recipe: &'a Recipe,
    predictor: &'a Predictor,
    now: Time,
    max_rtt_s: f64,
    avoid_tried: bool,
    /// How much dearer waiting is than running.
    surcharge: f64,
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
    ) -> Option<Slot> {
        let entry = self.tasks.get_mut(task.0 as usize)?.as_mut()?;
        let max_rtt = self.preferences.max_rtt;
        let mut look = Look {
            pool: &self.pool,
            ticket: &entry.ticket,
            recipe,
            predictor,
            now,
            max_rtt_s: max_rtt.map_or(f64::INFINITY, hypha_model::Span::as_secs_f64),
            avoid_tried: false,
            surcharge: surcharge_of(recipe, entry),
            rng: &mut self.rng,
            scratch: &mut self.scratch,
        };
        look.scratch.bases.clear();
        look.scratch.refusals = Refusals::default();
        look.scratch.looked_at = 0;

        let mut need = entry.need;
        if recipe.bind == Bind::WithRoom {
            need.room_by_s = now.as_secs_f64();
        }
        let near_first = self.preferences.prefer_region.is_some();
        let (slot, explored) = look.in_passes(need, near_first, &mut self.cursor);
        let mut explanation = look.explain(self.strategy.name(), slot, explored);
        if self.silent {
            explanation.refusals = Refusals::default();
            explanation.not_looked_at = 0;
        }
        if let Some(slot) = slot {
            if let Some(member) = self.pool.member(slot) {
                let base = predictor.base(&entry.ticket.query, member.hardware);
                entry.base_s = base.mean_s;
                entry.estimate = predictor.estimate(&entry.ticket.query, member.predict);
            }
            self.statistics.explored += u64::from(explored);
        } else {
            self.statistics.waited += 1;
        }
        self.statistics.refusals.add(&explanation.refusals);
        match &mut entry.explanation {
            Some(old) => **old = explanation,
            none => *none = Some(Box::new(explanation)),
        }
        slot
    }

    /// Every worker's answer for a task, on the present state of the pool.
    pub fn explain_fully(
        &mut self,
        task: TaskRef,
        predictor: &Predictor,
        now: Time,
    ) -> Option<FullExplanation> {
        let entry = self.tasks.get(task.0 as usize)?.as_ref()?;
        let version = self.pool.version();
        let decided = entry.explanation.as_ref().map(|explanation| explanation.version);
        let max_rtt = self.preferences.max_rtt;
        // Scores that are samples are drawn from a copy: a reader must not change later decisions.
        let mut rng = self.rng.clone();
        let mut look = Look {
            pool: &self.pool,
            ticket: &entry.ticket,
            recipe: &self.recipe,
            predictor,
            now,
            max_rtt_s: max_rtt.map_or(f64::INFINITY, hypha_model::Span::as_secs_f64),
            avoid_tried: false,
            surcharge: surcharge_of(&self.recipe, entry),
            rng: &mut rng,
            scratch: &mut self.scratch,
        };
        look.scratch.bases.clear();
        look.scratch.extra_wait.clear();
        let slots = self.pool.slots();
        let mut verdicts: Vec<Verdict> =
            slots.iter().filter_map(|slot| look.verdict(*slot)).collect();
        let score = |verdict: &Verdict| verdict.candidate.map_or(f64::INFINITY, |c| c.score);
        verdicts.sort_by(|a, b| score(a).total_cmp(&score(b)));
        let left_off = verdicts.len().saturating_sub(MAX_VERDICTS) as u64;
        verdicts.truncate(MAX_VERDICTS);
        Some(FullExplanation { as_decided: decided == Some(version), version, verdicts, left_off })
    }
}

impl Placement {
    /// A task that was told to wait although a worker would take it, or without a reason. An index that
    /// misses a worker shows here; the simulator calls it after every step.
    pub fn unexplained(&mut self, predictor: &Predictor, now: Time) -> Option<String> {
        let heads: Vec<TaskRef> = self.waiting.heads().map(|(_, _, task)| task).collect();
        for task in heads {
            let Some(decision) = self.explanation(task) else { continue };
            if decision.chosen.is_some() || decision.version != self.pool.version() {
                continue;
            }
            if decision.refusals.total() + decision.not_looked_at == 0 && self.pool.len() > 0 {
                return Some(format!("{task:?} was refused by everybody for no reason"));
            }
            let full = self.explain_fully(task, predictor, now)?;
            if let Some(taker) = full.verdicts.iter().find(|verdict| verdict.candidate.is_some()) {
                return Some(format!("{task:?} waits and {} would take it", taker.worker));
            }
        }
        None
    }
}

impl Look<'_> {
    /// Those that have not failed the task go first, and among them the near ones if these are preferred.
    fn in_passes(
        &mut self,
        need: Need,
        near_first: bool,
        cursor: &mut usize,
    ) -> (Option<Slot>, bool) {
        let near = Need { abilities: need.abilities | LOCAL, ..need };
        for avoid_tried in [true, false] {
            self.avoid_tried = avoid_tried;
            if avoid_tried && self.ticket.tried.is_empty() {
                continue;
            }
            if near_first {
                let found = self.select(&near, cursor);
                if found.0.is_some() {
                    return found;
                }
            }
            let found = self.select(&need, cursor);
            if found.0.is_some() {
                return found;
            }
        }
        (None, false)
    }

    fn select(&mut self, need: &Need, cursor: &mut usize) -> (Option<Slot>, bool) {
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
            Select::LeastOfTwoRandom => {
                self.draw_and_score(2, need);
                (self.best_or_search(need), false)
            }
            Select::LeastOfSample(size) => {
                if self.pool.len() <= size {
                    for slot in 0..self.pool.end() as u32 {
                        self.look_at(Slot(slot), need);
                    }
                } else {
                    self.draw_and_score(size, need);
                }
                (self.best_or_search(need), false)
            }
            Select::LeastOrExplore { probability } => {
                if self.rng.chance(probability)
                    && let Some(slot) = self.stale_worker(need)
                {
                    return (Some(slot), true);
                }
                (self.least(need), false)
            }
        }
    }

    /// The first slot at or after `from`. Only recipes with one tree in the order of slots ask for it.
    fn first_from(&mut self, from: usize, need: &Need) -> Option<Slot> {
        let pool = self.pool;
        let tree = pool.trees().first()?;
        let found = tree.first_from(from, need, &mut |at| {
            pool.slot_at(0, at).is_some_and(|slot| self.accepts(slot))
        })?;
        pool.slot_at(0, found)
    }

    /// The worker with the least score, over all trees, the most promising tree first.
    fn least(&mut self, need: &Need) -> Option<Slot> {
        let pool = self.pool;
        let now_s = self.now.as_secs_f64();
        let by_time = self.recipe.by_time();
        let surcharge = self.surcharge;
        let mut best = f64::INFINITY;
        let lower_of = |look: &mut Self, tree: usize| {
            let root = pool.trees()[tree].root();
            if !root.may_hold(need) {
                return (f64::INFINITY, 0.0);
            }
            if !by_time {
                return (root.key, 0.0);
            }
            let base_s = look.base(pool.hardware_of_tree(tree)).mean_s;
            (lower_finish(root, now_s, base_s, surcharge), base_s)
        };
        // Few trees: the next most promising is found by a scan instead of a sort.
        let mut after = (f64::NEG_INFINITY, 0);
        for _ in 0..pool.trees().len() {
            let mut next: Option<(f64, usize, f64)> = None;
            for tree in 0..pool.trees().len() {
                let (lower, base_s) = lower_of(self, tree);
                let later = lower > after.0 || (lower == after.0 && tree >= after.1);
                if later && next.is_none_or(|(least, ..)| lower < least) {
                    next = Some((lower, tree, base_s));
                }
            }
            let Some((lower, tree, base_s)) = next else { break };
            if lower >= best || lower == f64::INFINITY {
                break;
            }
            after = (lower, tree + 1);
            let lower = |bounds: &Bounds| match by_time {
                true => lower_finish(bounds, now_s, base_s, surcharge),
                false => bounds.key,
            };
            let mut visit = |position: usize| {
                let slot = pool.slot_at(tree, position)?;
                self.look_at(slot, need)
            };
            pool.trees()[tree].least(need, &lower, &mut visit, &mut best);
        }
        self.scratch.best.first().map(|(_, slot)| *slot)
    }

    /// A worker that fits, each about equally likely.
    fn draw(&mut self, need: &Need) -> Option<Slot> {
        let end = self.pool.end();
        for _ in 0..DRAWS {
            let slot = Slot(self.rng.below(end as u64) as u32);
            if self.may_hold(slot, need) && self.accepts(slot) {
                return Some(slot);
            }
        }
        if self.recipe.by_time() {
            return self.least(need);
        }
        let from = self.rng.below(end as u64) as usize;
        self.first_from(from, need).or_else(|| self.first_from(0, need))
    }

    fn draw_and_score(&mut self, count: usize, need: &Need) {
        for _ in 0..count {
            if let Some(slot) = self.draw(need) {
                let score = self.score(slot);
                self.remember(score, slot);
            }
        }
    }

    fn best_or_search(&mut self, need: &Need) -> Option<Slot> {
        match self.scratch.best.first() {
            Some((_, slot)) => Some(*slot),
            None => self.least(need),
        }
    }

    /// A worker with room that has not been given anything for long.
    fn stale_worker(&mut self, need: &Need) -> Option<Slot> {
        let stale_s = STALE_RUNS * self.predictor.typical_s();
        for _ in 0..DRAWS {
            let slot = Slot(self.rng.below(self.pool.end() as u64) as u32);
            let Some(member) = self.pool.member(slot) else { continue };
            if self.now.since(member.last_given).as_secs_f64() >= stale_s
                && self.may_hold(slot, need)
                && self.accepts(slot)
                && member.refuses_now(&self.ticket.spec.requirement).is_none()
            {
                let score = self.score(slot);
                self.remember(score, slot);
                return Some(slot);
            }
        }
        None
    }

    fn may_hold(&self, slot: Slot, need: &Need) -> bool {
        need.abilities & LOCAL == 0 || self.pool.member(slot).is_some_and(|member| member.local)
    }

    fn look_at(&mut self, slot: Slot, need: &Need) -> Option<f64> {
        if !self.may_hold(slot, need) || !self.accepts(slot) {
            return None;
        }
        let score = self.score(slot);
        self.remember(score, slot);
        Some(score)
    }

    fn remember(&mut self, score: f64, slot: Slot) {
        let best = &mut self.scratch.best;
        if best.len() > RUNNERS_UP && best.last().is_some_and(|(worst, _)| score >= *worst) {
            return;
        }
        if best.iter().any(|(_, other)| *other == slot) {
            return;
        }
        let at = best.partition_point(|(other, _)| *other <= score);
        best.insert(at, (score, slot));
        best.truncate(RUNNERS_UP + 1);
    }

    /// The filter stage.
    fn accepts(&mut self, slot: Slot) -> bool {
        self.scratch.looked_at += 1;
        match self.refusal(slot) {
            None => true,
            Some(refusal) => {
                self.scratch.refusals.count(refusal.kind);
                false
            }
        }
    }

    fn refusal(&self, slot: Slot) -> Option<Refusal> {
        let Some(member) = self.pool.member(slot) else {
            return Some(Refusal::plain(RefusalKind::Unavailable));
        };
        let requirement = &self.ticket.spec.requirement;
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
        if self.avoid_tried && self.ticket.tried.contains(&slot) {
            return Some(Refusal::plain(RefusalKind::TriedBefore));
        }
        match self.recipe.bind {
            Bind::WithRoom => member.refuses_now(requirement),
            Bind::AtSubmit | Bind::Late => None,
        }
    }

    /// The score stage: lower is better.
    fn score(&mut self, slot: Slot) -> f64 {
        let Some(member) = self.pool.member(slot) else { return f64::INFINITY };
        match self.recipe.score {
            Score::SampledFinish => {
                let run = self.base(member.hardware).scaled(member.factor);
                member.wait(self.now).sample(self.rng) + run.sample(self.rng)
            }
            Score::Finish { .. } | Score::ExpectedFinish { .. } => self.terms(slot, member).total(),
            ref score => member.key(score, self.now),
        }
    }

    /// What an expected finish is the sum of.
    fn terms(&mut self, slot: Slot, member: &Member) -> Terms {
        let wait = member.wait(self.now);
        let base = self.base(member.hardware);
        let run_s = base.mean_s * member.factor;
        let extra_s: f64 = self
            .scratch
            .extra_wait
            .iter()
            .filter(|(other, _)| *other == slot)
            .map(|(_, seconds)| seconds)
            .sum();
        let terms = Terms { wait_s: wait.mean_s + extra_s, run_s, ..Terms::default() };
        match self.recipe.score {
            Score::Finish { error_weight } => {
                let run_error_s = base.error_s * member.factor;
                let error_s = wait.error_s.hypot(run_error_s) * error_weight;
                Terms { error_s, ..terms }
            }
            _ => Terms {
                surcharge_s: self.surcharge * terms.wait_s,
                transfer_s: member.rtt_s,
                risk_s: member.health.extra_tries() * run_s,
                ..terms
            },
        }
    }

    fn base(&mut self, hardware: HardwareKey) -> Estimate {
        if let Some((_, base)) = self.scratch.bases.iter().find(|(other, _)| *other == hardware) {
            return *base;
        }
        let base = self.predictor.base(&self.ticket.query, hardware);
        self.scratch.bases.push((hardware, base));
        base
    }

    fn candidate(&mut self, slot: Slot, score: f64) -> Option<Candidate> {
        let member = self.pool.member(slot)?;
        let terms = match self.recipe.score {
            Score::Finish { .. } | Score::ExpectedFinish { .. } => Some(self.terms(slot, member)),
            _ => None,
        };
        Some(Candidate { worker: member.worker.id, score, terms })
    }

    fn explain(
        &mut self,
        strategy: &'static str,
        chosen: Option<Slot>,
        explored: bool,
    ) -> Explanation {
        let mut runners_up = Vec::new();
        for at in 0..self.scratch.best.len() {
            let (score, slot) = self.scratch.best[at];
            if Some(slot) != chosen
                && let Some(candidate) = self.candidate(slot, score)
            {
                runners_up.push(candidate);
            }
        }
        runners_up.truncate(RUNNERS_UP);
        let chosen = chosen.and_then(|slot| {
            let score = self.score(slot);
            self.candidate(slot, score)
        });
        Explanation {
            strategy,
            at: self.now,
            version: self.pool.version(),
            chosen,
            explored,
            runners_up,
            refusals: self.scratch.refusals,
            not_looked_at: (self.pool.len() as u64).saturating_sub(self.scratch.looked_at),
        }
    }

    fn verdict(&mut self, slot: Slot) -> Option<Verdict> {
        let member = self.pool.member(slot)?;
        let requirement = &self.ticket.spec.requirement;
        let mut refusals: Vec<Refusal> = self.refusal(slot).into_iter().collect();
        for refusal in requirement.refusals_by(&member.worker.capacity) {
            if !refusals.contains(&refusal) {
                refusals.push(refusal);
            }
        }
        let candidate = match refusals.is_empty() {
            true => {
                let score = self.score(slot);
                self.candidate(slot, score)
            }
            false => None,
        };
        Some(Verdict { worker: member.worker.id, candidate, refusals })
    }
}

/// Nobody below these bounds finishes earlier. Waiting only ever turns out longer than when the bounds
/// were taken: what runs late is expected to run later still.
fn lower_finish(bounds: &Bounds, now_s: f64, base_s: f64, surcharge: f64) -> f64 {
    (bounds.key - now_s).max(0.0) * (1.0 + surcharge) + base_s * f64::from(bounds.factor)
}

/// Long tasks may wait for a fast worker, where they gain most; short ones should take what is free. An
/// uncertain task may be a long one.
fn surcharge_of(recipe: &Recipe, task: &Task) -> f64 {
    match recipe.score {
        Score::ExpectedFinish { wait_surcharge } => {
            wait_surcharge / (task.size * task.log_variance.exp()).max(LEAST_SIZE)
        }
        _ => 0.0,
    }
}

/// Below a tenth of the usual length tasks are all equally short.
const LEAST_SIZE: f64 = 0.1;
