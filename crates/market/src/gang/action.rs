//! What a gang is to have, and what it wants done.

use std::sync::Arc;

use hypha_model::{
    AdvertId, Epoch, LeaseId, Maximise, Money, Name, OfferId, Priority, Requirement, Span, WorkerId,
};
use serde::{Deserialize, Serialize};

use super::member::{GangMember, LossReason};
use crate::advert::Advert;
use crate::auction::{Choice, Shortfall};

/// What a gang is to have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GangSpec {
    /// Its roles.
    pub roles: Vec<GangRole>,
    /// Higher goes first.
    pub priority: Priority,
    /// Whether its leases may be taken back, with notice.
    pub is_preemptible: bool,
    /// What it values.
    pub maximise: Maximise,
    /// The most that an hour of all of it may cost.
    pub budget: Option<Money>,
    /// How long offers are collected.
    pub window: Span,
    /// The TTL of its leases.
    pub lease_ttl: Span,
}

/// A role of a gang.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GangRole {
    /// Its name.
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
    /// The highest price that is paid. It never leaves the scheduler.
    pub max: Money,
}

/// What a gang wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum GangAction {
    /// Send the advert.
    Advertise {
        /// The advert.
        advert: Arc<Advert>,
        /// To whom.
        to: Receivers,
    },
    /// End the advert for those that it was sent to.
    CloseAdvert {
        /// The advert.
        advert: AdvertId,
        /// To whom.
        to: Receivers,
    },
    /// Accept an offer for one role of its advert.
    Accept {
        /// Whose.
        worker: WorkerId,
        /// The offer.
        offer: OfferId,
        /// The role, by its index in the advert.
        role: u16,
        /// Repeated in the answer.
        request: u64,
        /// The TTL of the lease.
        ttl: Span,
    },
    /// Decline an offer. If it was accepted before, its lease is released.
    Decline {
        /// Whose.
        worker: WorkerId,
        /// The offer.
        offer: OfferId,
    },
    /// Renew a lease.
    Renew {
        /// Whose.
        worker: WorkerId,
        /// The lease.
        lease: LeaseId,
        /// Its epoch.
        epoch: Epoch,
        /// Repeated in the answer.
        nonce: u64,
    },
    /// Release a lease.
    Release {
        /// Whose.
        worker: WorkerId,
        /// The lease.
        lease: LeaseId,
        /// Its epoch.
        epoch: Epoch,
    },
    /// A member was leased: make that durable before anything relies on it.
    Joined(LeaseId),
    /// A member's lease has ended.
    Lost {
        /// The member.
        member: Box<GangMember>,
        /// Why.
        reason: LossReason,
    },
    /// All minimums are met, for the first time.
    Formed(Box<Choice>),
    /// An advert brought too little.
    Short(Box<Shortfall>),
    /// A worker granted an offer that was accepted, or did not.
    Answered {
        /// The worker.
        worker: WorkerId,
        /// Whether it granted.
        is_granted: bool,
    },
}

/// Who gets an advert.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receivers {
    /// These workers, directly.
    pub workers: Vec<WorkerId>,
    /// Whether all others get it by gossip.
    pub is_gossiped: bool,
}
