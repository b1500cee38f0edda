//! What a scheduler wants of a worker, and whose turn it is to have it.

use std::sync::Arc;

use hypha_model::{Requirement, Time, Worker};

use super::{FixedPortion, LeaseRequest, TURN_DURATION};
use crate::divide::Claim;
use crate::portion::Portion;

/// What a scheduler wants, and since when it has it or is short of it.
#[derive(Clone, Debug)]
pub(super) struct Wants {
    pub(super) minimum: Option<Arc<Requirement>>,
    /// What a reservation could be accepted for instead of its minimum.
    pub(super) instead: Vec<Arc<Requirement>>,
    pub(super) maximum: Option<Arc<Requirement>>,
    pub(super) demand: Option<Arc<Requirement>>,
    pub(super) is_short: bool,
    pub(super) since: Time,
}

impl Wants {
    /// What a request asks for, by a scheduler that wanted `before`.
    pub(super) fn new(wanted: &LeaseRequest, before: Option<&Wants>, now: Time) -> Wants {
        Wants {
            minimum: wanted.minimum.clone(),
            instead: Vec::new(),
            maximum: wanted.maximum.clone(),
            demand: wanted.demand.clone().or_else(|| wanted.minimum.clone()),
            is_short: before.is_some_and(|before| before.is_short),
            since: before.map_or(now, |before| before.since),
        }
    }

    /// What a reservation wants, which waits until it holds what one of its requirements needs: the first that the
    /// worker could cover, and any of the others as far as there is room.
    pub(super) fn fixed(wanted: &FixedPortion, worker: &Worker, now: Time) -> Wants {
        let mut requirements = match wanted {
            FixedPortion::AnyOf(requirements) => requirements.clone(),
            FixedPortion::AllFree(needs) => vec![Arc::clone(needs)],
            FixedPortion::Whole => Vec::new(),
        }
        .into_iter()
        .filter(|needs| needs.satisfied_by(worker).is_ok());
        let requirement = requirements.next();
        Wants {
            minimum: requirement.clone(),
            instead: requirements.collect(),
            maximum: requirement,
            demand: None,
            is_short: true,
            since: now,
        }
    }

    pub(super) fn claim<'a>(&'a self, holds: &'a Portion, fixed: Option<&'a Portion>) -> Claim<'a> {
        let (minimum, maximum) = (self.minimum.as_deref(), self.maximum.as_deref());
        let demand = self.demand.as_deref();
        Claim { holds, fixed, instead: &self.instead, minimum, maximum, demand }
    }

    /// Updates whether the limit covers the demand.
    pub(super) fn update(&mut self, now: Time, worker: &Worker, limit: &Portion) {
        let needs = self.demand.as_deref();
        let is_short = needs.is_some_and(|needs| limit.refusal_for(worker, needs).is_some());
        if std::mem::replace(&mut self.is_short, is_short) != is_short {
            self.since = now;
        }
    }

    /// Whether it has what it needs, and has not had it for a whole turn.
    pub(super) fn has_turn(&self, now: Time) -> bool {
        self.demand.is_some() && !self.is_short && self.since + TURN_DURATION > now
    }

    /// Lower goes first: the holder that has its turn, then the one that has been short for longest, then the others.
    pub(super) fn turn_order(&self, now: Time) -> (u8, Time) {
        let class = match (self.has_turn(now), self.is_short) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => 2,
        };
        (class, self.since)
    }
}
