//! Prices of workers, and tasks that weigh them.
//!
//! A price counts in seconds: the seconds that a worker at the usual price would run for the same money. The score of
//! a worker for a task that maximises `cost` or `balance` is its expected finish, as by `speed`, and a
//! multiple of those seconds. Both are sums of a factor of the worker and the task's run time, so that the trees bound them
//! (`Bounds::load_or_price`).

use hypha_model::{Maximise, Money, Refusal, RefusalKind, Span, Time};

use crate::explain::ScoreTerms;
use crate::member::Member;
use crate::strategy::{Bind, Recipe, Score};
use crate::{Placement, PlacementRequest, WorkerSlot};

/// A second at the usual price counts as much as a second of time.
const BALANCE_WEIGHT: f64 = 1.0;
/// So much that time decides only between workers that cost about the same.
const COST_WEIGHT: f64 = 100.0;
/// From its submission on, a task waits for a cheaper worker for at most this many of its runs; then speed decides. A
/// few runs are enough for a worker that runs such tasks to have room again, and nobody calls that being stuck.
pub const MAX_RUNS_WAITED_FOR_PRICE: f64 = 8.0;

/// The prices of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prices {
    /// Workers that have a price.
    count: u32,
    /// The logarithms of their prices, in billionths: integers, so that the sum is exact.
    log_sum: i64,
}

impl Prices {
    pub(crate) fn replace(&mut self, before: Money, after: Money) {
        if before > Money::ZERO {
            self.count -= 1;
            self.log_sum -= log_of(before);
        }
        if after > Money::ZERO {
            self.count += 1;
            self.log_sum += log_of(after);
        }
    }

    /// The usual price for an hour: the geometric mean, which neither one very dear worker nor one very cheap one
    /// moves far. `None` if no worker has a price.
    fn usual(&self) -> Option<f64> {
        (self.count > 0).then(|| (self.log_sum as f64 / 1e9 / f64::from(self.count)).exp())
    }
}

fn log_of(price: Money) -> i64 {
    (price.as_f64().ln() * 1e9).round() as i64
}

/// How the price of a worker counts for a task, at present.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PriceRule {
    pub(crate) maximise: Maximise,
    /// Seconds for each second that a worker of the price 1 runs.
    pub(crate) rate: f64,
    /// How much a second at the usual price counts.
    pub(crate) weight: f64,
    /// How long the task still waits for a cheaper worker.
    pub(crate) max_wait_s: f64,
    /// The time until its deadline.
    pub(crate) max_finish_s: f64,
}

impl PriceRule {
    /// What `run_s` on a worker adds to its score.
    pub(crate) fn cost_s(&self, member: &Member, run_s: f64) -> f64 {
        self.rate * member.price.as_f64() * run_s
    }

    /// Why a worker will not do, however cheap it is: the task would not be in time, or would wait there for too long.
    pub(crate) fn refusal(&self, terms: &ScoreTerms, run_error_s: f64) -> Option<Refusal> {
        let finish_s = terms.wait_s + terms.run_s + terms.transfer_s + terms.risk_s + run_error_s;
        let (most_s, present_s) = match terms.wait_s > self.max_wait_s {
            true => (self.max_wait_s, terms.wait_s),
            false => (self.max_finish_s, finish_s),
        };
        let micros = |seconds: f64| (seconds * 1e6) as u64;
        (present_s > most_s).then(|| Refusal {
            kind: RefusalKind::TooSlow,
            needed: micros(most_s),
            present: micros(present_s),
        })
    }
}

impl Placement {
    /// The price of a worker for an hour from now on; none is as good as nothing.
    pub fn set_price(&mut self, slot: WorkerSlot, price: Option<Money>, now: Time) {
        self.pool.set_price(slot, price.unwrap_or_default(), now);
    }

    /// The price of a worker for an hour.
    pub fn price(&self, slot: WorkerSlot) -> Option<Money> {
        self.pool.member(slot).map(|member| member.price).filter(|price| *price > Money::ZERO)
    }

    /// How prices count for a task that takes about `predicted_s`; `None` if only speed does.
    pub(crate) fn price_rule(
        &self,
        request: &PlacementRequest,
        predicted_s: f64,
        recipe: &Recipe,
        now: Time,
    ) -> Option<PriceRule> {
        let usual_price = self.pool.prices().usual()?;
        let requirement = &request.spec.requirement;
        let maximise = requirement.maximise.unwrap_or(self.preferences.maximise);
        let weight = match maximise {
            Maximise::Speed => return None,
            Maximise::Balance => BALANCE_WEIGHT,
            Maximise::Cost => COST_WEIGHT,
        };
        // A task that is bound to a worker at once would wait for it, however long.
        let predicts = matches!(recipe.score, Score::ExpectedFinish { .. });
        if !predicts || recipe.bind == Bind::AtSubmit {
            return None;
        }
        let until =
            request.submitted + Span::from_secs_f64(MAX_RUNS_WAITED_FOR_PRICE * predicted_s);
        let deadline = requirement.deadline.map_or(Time::MAX, |span| request.submitted + span);
        (until > now).then(|| PriceRule {
            maximise,
            rate: weight / usual_price,
            weight,
            max_wait_s: until.since(now).as_secs_f64(),
            max_finish_s: deadline.since(now).as_secs_f64(),
        })
    }
}
