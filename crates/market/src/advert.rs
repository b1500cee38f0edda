//! What a scheduler wants, and what a worker offers for it.
//!
//! One advert calls for all members of a gang: some workers of one role (trainers), some of another (a parameter
//! server). A worker answers with an offer for which it has reserved capacity; an offer may be for any one of several
//! roles, and the scheduler accepts it for one. The highest price that a scheduler pays is in neither.

use std::fmt;
use std::sync::Arc;

use hypha_model::amount::FieldError;
use hypha_model::{
    AdvertId, Epoch, Money, Name, OfferId, Priority, Requirement, SchedulerId, Span, Worker,
    WorkerId,
};
use serde::{Deserialize, Serialize};

use crate::portion::Portion;

/// Roles of one advert: a job has two, and a few more are conceivable.
pub const MAX_ROLES: usize = 8;
/// Workers that one advert calls for, over all roles. More than any job of today uses, and a choice among offers for so
/// many takes milliseconds.
pub const MAX_MEMBERS: u32 = 4_096;
/// The shortest and the longest time for which offers are collected: a round trip, and what a person would wait for.
pub const WINDOW_RANGE: (Span, Span) = (Span::from_millis(50), Span::from_secs(30));
/// The longest lease that an advert may ask for.
pub const MAX_LEASE_TTL: Span = Span::from_secs(600);
/// Offers that a scheduler asks for in all.
pub const MAX_OFFERS_WANTED: u32 = 10_000;

/// A scheduler's call for workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Advert {
    /// Its id.
    pub id: AdvertId,
    /// The roles that are to be filled, all of them or none.
    pub roles: Vec<WantedRole>,
    /// Higher goes first.
    pub priority: Priority,
    /// Whether the leases may be taken back, with notice, for work of a higher priority or for the owner.
    pub is_preemptible: bool,
    /// The gang runs already and has lost members: it goes before others of equal priority.
    pub is_replacement: bool,
    /// For how long the scheduler has waited for these workers, over earlier adverts.
    pub waited: Span,
    /// For how long offers are collected, from when the advert was sent.
    pub window: Span,
    /// How many offers are enough. Workers that hear of the end of the advert send none.
    pub offers_wanted: u32,
    /// The TTL of the leases that are wanted.
    pub lease_ttl: Span,
}

/// A role of an advert.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WantedRole {
    /// Its name, such as `worker` or `parameter_server`.
    pub name: Name,
    /// The requirement of each member.
    pub requirement: Arc<Requirement>,
    /// How many members are wanted.
    pub count: u32,
    /// How many members there must be.
    pub minimum: u32,
    /// Whether each member is to have all that is free of its worker, not only what it requires.
    #[serde(default)]
    pub wants_all: bool,
    /// The price that is offered for an hour of each.
    pub bid: Money,
}

/// A worker's offer for an advert. The capacity is reserved for [`Offer::reserved_for`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    /// Its id.
    pub id: OfferId,
    /// The advert.
    pub advert: AdvertId,
    /// The worker, as it describes itself.
    pub worker: Arc<Worker>,
    /// The worker's incarnation.
    pub epoch: Epoch,
    /// The roles that it is for, with what is offered for each; it is accepted for one of them.
    pub roles: Vec<OfferedRole>,
    /// How long the capacity is reserved, from when the offer was sent.
    pub reserved_for: Span,
    /// How fast the worker is, in thousandths of the usual speed for the role, if it has measured that.
    pub speed_milli: Option<u32>,
    /// The work that is queued on the worker.
    pub backlog: Span,
    /// Whether the worker is reached through a relay.
    pub is_relayed: bool,
}

/// What is offered for one role of an advert.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OfferedRole {
    /// The role, by its index in the advert.
    pub role: u16,
    /// What an hour of it costs.
    pub price: Money,
    /// What the lease would cover.
    pub portion: Portion,
}

/// A scheduler that advertises, as its certificate and its connection show it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Advertiser {
    /// Its id.
    pub scheduler: SchedulerId,
    /// Its organisation.
    pub organisation: Name,
}

impl Advert {
    /// Whether every field is within its bounds. A peer may send anything.
    pub fn validate(&self) -> Result<(), FieldError> {
        if self.roles.is_empty() || self.roles.len() > MAX_ROLES {
            let problem = format!("roles: give 1 to {MAX_ROLES}");
            return Err(FieldError::new("roles", self.roles.len(), problem));
        }
        for role in &self.roles {
            if role.count == 0 {
                return Err(FieldError::new("count", 0, "workers: give at least 1"));
            }
            if role.minimum > role.count {
                let problem = format!("is more than the count, {}", role.count);
                return Err(FieldError::new("minimum", role.minimum, problem));
            }
        }
        let members = self.roles.iter().fold(0u32, |sum, role| sum.saturating_add(role.count));
        within("count", members, 1, MAX_MEMBERS)?;
        within("window", self.window, WINDOW_RANGE.0, WINDOW_RANGE.1)?;
        within("lease_ttl", self.lease_ttl, Span::from_secs(1), MAX_LEASE_TTL)?;
        within("offers_wanted", self.offers_wanted, 1, MAX_OFFERS_WANTED)
    }

    /// How many workers it calls for, over all roles.
    pub fn members(&self) -> u32 {
        self.roles.iter().map(|role| role.count).sum()
    }
}

impl Offer {
    /// The worker that offers.
    pub fn worker_id(&self) -> WorkerId {
        self.worker.id
    }

    /// Whether it answers `advert`, and offers what that asks for.
    pub fn validate(&self, advert: &Advert) -> Result<(), FieldError> {
        if self.advert != advert.id {
            return Err(FieldError::new("advert", self.advert, "is another advert"));
        }
        let mut last = None;
        for offered in &self.roles {
            let Some(wanted) = advert.roles.get(usize::from(offered.role)) else {
                return Err(FieldError::new("role", offered.role, "is not in the advert"));
            };
            if last.replace(offered.role).is_some_and(|last| last >= offered.role) {
                return Err(FieldError::new("role", offered.role, "is repeated or out of order"));
            }
            let portion = &offered.portion;
            if portion.clamped_to(&self.worker) != *portion {
                return Err(FieldError::new(
                    "portion",
                    offered.role,
                    "is more than the worker has",
                ));
            }
            if portion.refusal_for(&self.worker, &wanted.requirement).is_some() {
                return Err(FieldError::new("portion", offered.role, "does not cover the role"));
            }
        }
        match last {
            Some(_) => Ok(()),
            None => Err(FieldError::new("roles", 0, "roles: give at least 1")),
        }
    }

    /// What is offered for a role of the advert.
    pub fn for_role(&self, role: u16) -> Option<&OfferedRole> {
        self.roles.iter().find(|offered| offered.role == role)
    }
}

fn within<T: PartialOrd + fmt::Display>(
    field: &str,
    given: T,
    least: T,
    most: T,
) -> Result<(), FieldError> {
    if (&least..=&most).contains(&&given) {
        return Ok(());
    }
    Err(FieldError::new(field, given, format!("is out of range: give {least} to {most}")))
}
