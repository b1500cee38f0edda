//! The terms on which the owner of a worker offers it: prices, which organisations and what work are served, and when.
//!
//! Prices are for an hour of one device: a GPU, or the worker where no GPU is used.

mod hours;
mod owner_use;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use hypha_model::resource::WHOLE_GPU;
use hypha_model::{Executor, ExecutorClass, Money, Name, Priority, RefusalKind, Worker};
use serde::{Deserialize, Serialize};

use crate::advert::{Advertiser, WantedRole};
use crate::portion::Portion;

pub use hours::{Hours, HoursError, LocalTime, Weekday};
pub use owner_use::{OtherUse, OwnerUse, YieldTerms};

/// The terms of a worker's owner.
#[derive(Clone, Debug, PartialEq)]
pub struct Terms {
    /// The published price of an hour of a device.
    pub price: Money,
    /// The least price of an hour of a device. It is not published, but a lower bid is answered with it.
    pub floor: Money,
    /// Whether parts of the worker are offered.
    pub pricing: Pricing,
    /// The organisations that are served, each with the highest priority that it may use; `None` is all of them.
    pub organisations: Option<BTreeMap<Name, Option<Priority>>>,
    /// The kinds of work that may run; `None` is all of them.
    pub classes: Option<Vec<ExecutorClass>>,
    /// The executors that may run; `None` is all of them.
    pub executors: Option<Vec<Name>>,
    /// When the worker may be used.
    pub hours: Hours,
    /// When the machine counts as used by its owner; `None` is never.
    pub yields: Option<YieldTerms>,
}

/// How a worker is priced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pricing {
    /// Only all of it is offered, at its price or the bid.
    Whole,
    /// Parts of it are offered, at the bid but not below the floor.
    #[default]
    Flexible,
}

/// What the owner does with the machine at present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerState {
    /// The owner has paused the worker.
    pub is_paused: bool,
    /// The owner uses the machine.
    pub is_used_by_owner: bool,
    /// It is not within the hours of the terms.
    pub is_off_hours: bool,
}

/// Why the owner of a worker lets it take nothing new.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OwnerReason {
    /// The owner has paused the worker.
    Paused,
    /// It is not within the hours of the terms.
    OffHours,
    /// The owner uses the machine.
    InUse,
}

/// Why an advert is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TermsRefusal {
    /// The worker takes nothing new at present.
    Owner(OwnerReason),
    /// The organisation is not served.
    Organisation,
    /// The kind of work is not run.
    Class,
    /// No executor that may run fits the role.
    Executor,
}

impl Default for Terms {
    /// Everything is served at any time, for nothing.
    fn default() -> Terms {
        Terms {
            price: Money::ZERO,
            floor: Money::ZERO,
            pricing: Pricing::default(),
            organisations: None,
            classes: None,
            executors: None,
            hours: Hours::default(),
            yields: None,
        }
    }
}

impl OwnerState {
    /// Why nothing new is taken, if nothing is. A pause is named first: only the owner can end it.
    pub fn refusal(self) -> Option<OwnerReason> {
        if self.is_paused {
            return Some(OwnerReason::Paused);
        }
        if self.is_off_hours {
            return Some(OwnerReason::OffHours);
        }
        self.is_used_by_owner.then_some(OwnerReason::InUse)
    }
}

impl Terms {
    /// The price of an hour of `portion` for a role with this bid, which is for the whole portion.
    pub fn price(&self, bid: Money, portion: &Portion) -> Money {
        for_devices(self.least_price(), portion).max(bid)
    }

    /// What is offered to a role that needs `needed`.
    pub fn portion(&self, needed: Portion, worker: &Worker) -> Portion {
        match self.pricing {
            Pricing::Whole => Portion::whole(worker),
            Pricing::Flexible => needed,
        }
    }

    /// Why an advert of `from` for `role` is not served at the local time `now`. The priority of an organisation is
    /// limited to its ceiling and is no reason to refuse.
    pub fn refusal(
        &self,
        now: LocalTime,
        state: OwnerState,
        from: &Advertiser,
        role: &WantedRole,
        worker: &Worker,
    ) -> Option<TermsRefusal> {
        let is_off_hours = state.is_off_hours || !self.hours.contains(now);
        self.refusal_in(OwnerState { is_off_hours, ..state }, from, role, worker)
    }

    /// The same in a state of the owner that includes the hours.
    pub fn refusal_in(
        &self,
        state: OwnerState,
        from: &Advertiser,
        role: &WantedRole,
        worker: &Worker,
    ) -> Option<TermsRefusal> {
        state.refusal().map(TermsRefusal::Owner).or_else(|| self.refusal_of(from, role, worker))
    }

    /// The highest priority that an organisation may use; `None` is any.
    pub fn priority_ceiling(&self, organisation: &Name) -> Option<Priority> {
        *self.organisations.as_ref()?.get(organisation)?
    }

    /// Why a scheduler gets no shared lease, which bids nothing. `None` is an organisation that is not known.
    pub fn shared_lease_refusal(&self, organisation: Option<&Name>) -> Option<RefusalKind> {
        if !self.serves(organisation) {
            return Some(RefusalKind::NotServed);
        }
        (self.least_price() > Money::ZERO).then_some(RefusalKind::Price)
    }

    /// Whether an executor may run.
    pub fn may_run(&self, executor: &Executor) -> bool {
        self.classes.as_ref().is_none_or(|classes| classes.contains(&executor.class))
            && self.executors.as_ref().is_none_or(|allowed| allowed.contains(&executor.name))
    }

    fn serves(&self, organisation: Option<&Name>) -> bool {
        let is_served = |served: &BTreeMap<Name, _>| {
            organisation.is_some_and(|organisation| served.contains_key(organisation))
        };
        self.organisations.as_ref().is_none_or(is_served)
    }

    /// The price of an hour of a device if nothing is bid.
    fn least_price(&self) -> Money {
        match self.pricing {
            Pricing::Whole => self.price,
            Pricing::Flexible => self.floor,
        }
    }

    fn refusal_of(
        &self,
        from: &Advertiser,
        role: &WantedRole,
        worker: &Worker,
    ) -> Option<TermsRefusal> {
        if !self.serves(Some(&from.organisation)) {
            return Some(TermsRefusal::Organisation);
        }
        let class = role.requirement.class;
        if !self.classes.as_ref().is_none_or(|classes| classes.contains(&class)) {
            return Some(TermsRefusal::Class);
        }
        let allowed = self.executors.as_ref()?;
        let may_run = |at: usize| {
            worker.executors.get(at).is_some_and(|executor| allowed.contains(&executor.name))
        };
        (!role.requirement.executors_of(worker).any(may_run)).then_some(TermsRefusal::Executor)
    }
}

impl OwnerReason {
    /// The reason in words, as `hypha workers` shows it.
    pub fn describe(self) -> &'static str {
        match self {
            OwnerReason::Paused => "paused by its owner",
            OwnerReason::OffHours => "outside its hours",
            OwnerReason::InUse => "in use by its owner",
        }
    }
}

impl fmt::Display for TermsRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TermsRefusal::Owner(reason) => reason.describe(),
            TermsRefusal::Organisation => "the organisation is not served",
            TermsRefusal::Class => "this kind of work may not run there",
            TermsRefusal::Executor => "no executor that may run there fits",
        })
    }
}

/// The price of the GPUs of `portion`, shares rounded up to a millionth; of one device if there are none.
fn for_devices(by_device: Money, portion: &Portion) -> Money {
    let milli: u64 = portion.devices.iter().map(|part| u64::from(part.milli_gpu)).sum();
    if milli == 0 {
        return by_device;
    }
    let product = u128::from(by_device.as_micros()) * u128::from(milli);
    let micros = product.div_ceil(u128::from(WHOLE_GPU));
    Money::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}
