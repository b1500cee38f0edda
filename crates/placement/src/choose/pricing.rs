//! Decisions about tasks that weigh the prices of workers.

use hypha_model::Span;

use super::{Evaluation, least_finish_s};
use crate::WorkerSlot;
use crate::index::{Bounds, Need};
use crate::price::PriceRule;

impl Evaluation<'_> {
    /// A worker by its price, of those where the task is in time and does not wait for too long; if there is none, by
    /// speed. Two searches at most, or three where local workers are preferred.
    #[inline(never)]
    pub(super) fn select_by_price(
        &mut self,
        need: &Need,
        max_local_wait: Option<Span>,
        cursor: &mut usize,
    ) -> (Option<WorkerSlot>, bool) {
        let found = self.select(need, cursor);
        if found.0.is_some() {
            return found;
        }
        let price = self.price.take();
        let found = self.select_by_speed(need, max_local_wait, cursor);
        if found.0.is_none() {
            self.price = price;
        }
        found
    }
}

/// Apart, so that the bound without prices stays short enough to be inlined.
#[inline(never)]
pub(super) fn least_priced_s(
    bounds: &Bounds,
    base_s: f64,
    now_s: f64,
    wait_cost_rate: f64,
    price: &PriceRule,
) -> f64 {
    let wait_s = (bounds.key - now_s).max(0.0);
    let finish_s = wait_s + base_s * f64::from(bounds.factor);
    // Where no task would be in time, or would begin soon enough, there is nothing to find.
    if wait_s > price.max_wait_s || finish_s > price.max_finish_s {
        return f64::INFINITY;
    }
    let cost_s = base_s * f64::from(f32::from_bits(bounds.load_or_price)) * price.rate;
    least_finish_s(bounds, base_s, now_s, wait_cost_rate) + cost_s * (1.0 + 1e-7)
}
