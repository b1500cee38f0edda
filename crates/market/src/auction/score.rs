//! What an offer is worth to a job, in integers, so that sums do not depend on their order.

use hypha_model::{Money, Requirement, Span};
use serde::Serialize;

use crate::advert::{Offer, OfferedRole, WantedRole};
use crate::portion::Portion;

/// At this round trip half of the points for latency are left: most links on a continent are shorter.
const HALF_LATENCY: Span = Span::from_millis(100);
/// At this backlog half of the points for readiness are left: a gang starts when its last member does.
const HALF_BACKLOG: Span = Span::from_secs(60);
/// A relay carries the traffic of others too: the points for latency are divided by this.
const RELAY_DIVISOR: u64 = 2;

/// Accepted offers of a worker that are remembered.
const MAX_REMEMBERED_GRANTS: u32 = 32;

/// What the scheduler knows about a worker from its own history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerStanding {
    /// Its predicted speed for this model, in thousandths of the usual, if that is known.
    pub speed_milli: Option<u32>,
    /// The share of attempts that succeeded, in thousandths.
    pub success_milli: u32,
    /// The round trip.
    pub round_trip: Span,
    /// The share of accepted offers that it granted, in thousandths.
    pub granted_milli: u32,
}

/// How often a worker granted what it had offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrantRecord {
    granted: u32,
    refused: u32,
}

impl GrantRecord {
    /// An offer was accepted, and granted or not.
    pub fn record(&mut self, is_granted: bool) {
        match is_granted {
            true => self.granted += 1,
            false => self.refused += 1,
        }
        // What is older counts less and less, so a worker that was mended recovers.
        if self.granted + self.refused >= MAX_REMEMBERED_GRANTS {
            (self.granted, self.refused) = (self.granted / 2, self.refused / 2);
        }
    }

    /// The share of accepted offers that were granted, in thousandths; as if one more had been.
    pub fn granted_milli(self) -> u32 {
        (self.granted + 1) * 1_000 / (self.granted + self.refused + 1)
    }
}

/// What a job values: the weight of each part of a score, and a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Valuation {
    /// The weight of capacity for the price.
    pub value: u32,
    /// The weight of speed.
    pub speed: u32,
    /// The weight of reliability.
    pub reliability: u32,
    /// The weight of latency.
    pub latency: u32,
    /// The weight of readiness.
    pub readiness: u32,
    /// The most that an hour of the whole set may cost.
    pub budget: Option<Money>,
}

/// The parts of a score, each from 0 to 1,000,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ScoreParts {
    /// Capacity for the price, relative to the requirement and the bid.
    pub value: u64,
    /// Expected speed; 500,000 is the usual.
    pub speed: u64,
    /// How often it succeeded and granted what it had offered.
    pub reliability: u64,
    /// 1,000,000 without a round trip; half as much through a relay.
    pub latency: u64,
    /// 1,000,000 without a backlog.
    pub readiness: u64,
}

impl Default for WorkerStanding {
    /// Of a worker that is not known.
    fn default() -> WorkerStanding {
        WorkerStanding {
            speed_milli: None,
            success_milli: 1_000,
            round_trip: HALF_LATENCY,
            granted_milli: 1_000,
        }
    }
}

impl Valuation {
    /// Speed first.
    pub const SPEED: Valuation =
        Valuation { value: 1, speed: 6, reliability: 2, latency: 1, readiness: 1, budget: None };
    /// Capacity for the price first.
    pub const COST: Valuation =
        Valuation { value: 6, speed: 1, reliability: 2, latency: 1, readiness: 1, budget: None };
    /// Both alike.
    pub const BALANCE: Valuation =
        Valuation { value: 3, speed: 3, reliability: 3, latency: 1, readiness: 1, budget: None };

    /// The weighted sum.
    pub(super) fn score(&self, parts: &ScoreParts) -> u64 {
        u64::from(self.value) * parts.value
            + u64::from(self.speed) * parts.speed
            + u64::from(self.reliability) * parts.reliability
            + u64::from(self.latency) * parts.latency
            + u64::from(self.readiness) * parts.readiness
    }
}

impl ScoreParts {
    pub(super) fn of(
        wanted: &WantedRole,
        offered: &OfferedRole,
        offer: &Offer,
        standing: &WorkerStanding,
    ) -> ScoreParts {
        let speed = standing.speed_milli.or(offer.speed_milli).unwrap_or(1_000);
        let bid = u128::from(wanted.bid.as_micros().max(1));
        let price = u128::from(offered.price.as_micros());
        let capacity = u128::from(capacity_milli(&wanted.requirement, &offered.portion));
        let kept = |milli: u32| u64::from(milli.min(1_000));
        let direct = halved_at(HALF_LATENCY, standing.round_trip);
        ScoreParts {
            // The price is never in the denominator alone, so it may be zero.
            value: share(capacity * bid, price * 1_000),
            speed: share(speed.into(), 1_000),
            reliability: kept(standing.success_milli) * kept(standing.granted_milli),
            latency: if offer.is_relayed { direct / RELAY_DIVISOR } else { direct },
            readiness: halved_at(HALF_BACKLOG, offer.backlog),
        }
    }
}

/// 1,000,000 for nothing, and half of that for `half`.
fn halved_at(half: Span, given: Span) -> u64 {
    share(half.as_micros().into(), given.as_micros().into())
}

/// `a / (a + b)` in millionths.
fn share(a: u128, b: u128) -> u64 {
    (a.saturating_mul(1_000_000) / a.saturating_add(b).max(1)).min(1_000_000) as u64
}

/// What is offered, in thousandths of what the role uses: GPUs if it wants some, otherwise the scarcer of cores and memory.
fn capacity_milli(requirement: &Requirement, portion: &Portion) -> u64 {
    let ratio = |has: u64, needs: u64| {
        let milli = u128::from(has) * 1_000 / u128::from(needs.max(1));
        // More than tenfold is of no use to a role.
        (needs > 0).then_some(milli.min(10_000) as u64)
    };
    let of_gpus = || {
        let gpus = u64::from(requirement.min_gpus);
        let memory = portion.devices.iter().fold(0u64, |sum, d| sum.saturating_add(d.memory_bytes));
        let share = portion.devices.iter().map(|d| u64::from(d.milli_gpu)).sum();
        let by_memory = ratio(memory, requirement.gpu_memory_bytes.saturating_mul(gpus));
        let by_share = ratio(share, u64::from(requirement.milli_gpu) * gpus);
        by_memory.into_iter().chain(by_share).min()
    };
    let of_host = || {
        let cores = ratio(portion.cpu_milli, requirement.cpu_milli);
        cores.into_iter().chain(ratio(portion.memory_bytes, requirement.memory_bytes)).min()
    };
    of_gpus().or_else(of_host).unwrap_or(1_000)
}
