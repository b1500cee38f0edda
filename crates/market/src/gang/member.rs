//! The lease of one member, as its holder keeps it: renewed at a third of its time, repeated if no answer comes.

use hypha_model::{Epoch, LeaseId, Money, OfferId, Rng, Span, Time, WorkerId};
use serde::{Deserialize, Serialize};

use super::GangAction;
use crate::holder::HOLDER_SHARE;
use crate::portion::Portion;

/// A lease is renewed after this share of its TTL.
const RENEW_AFTER: f64 = 1.0 / 3.0;
/// A renewal that was not answered is repeated after this share of the TTL: several times before the holder's time is
/// over, so that no single lost message ends a lease.
const REPEAT_AFTER: f64 = 1.0 / 12.0;
/// Renewals are spread by up to this share of their interval, so that those of many leases do not come at once.
const JITTER: f64 = 0.1;
/// Renewals without an answer that are remembered: an answer to any of them counts.
const MAX_UNANSWERED: usize = 8;

/// What is durable of a member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredMember {
    /// Its role, by its index in the gang.
    pub role: u16,
    /// Its worker.
    pub worker: WorkerId,
    /// The offer that was accepted.
    pub offer: OfferId,
    /// What an hour costs.
    pub price: Money,
    /// What its lease covers.
    pub portion: Portion,
    /// Its lease.
    pub lease: LeaseId,
    /// The epoch of the lease.
    pub epoch: Epoch,
    /// For how long each renewal extends it.
    pub ttl: Span,
    /// When it was granted.
    pub joined: Time,
}

/// A member of a gang.
#[derive(Clone, Debug, PartialEq)]
pub struct GangMember {
    stored: StoredMember,
    /// Until when the holder relies on the lease.
    until: Time,
    /// After a restart: whether its worker has confirmed the lease.
    is_confirmed: bool,
    /// Until when the worker lets it keep what it has taken back.
    preempted: Option<Time>,
    /// Renewals that were not answered, the oldest first.
    unanswered: Vec<(u64, Time)>,
    next: Time,
}

/// Why a member is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossReason {
    /// The worker did not renew the lease in time.
    Expired,
    /// The worker does not know the lease: it was restarted.
    Unknown,
    /// The worker left.
    Left,
    /// The worker did not take the member's part.
    Refused,
    /// The worker took it back for its owner, or for work of a higher priority.
    Preempted,
}

impl GangMember {
    pub(super) fn granted(
        stored: StoredMember,
        sent: Time,
        now: Time,
        rng: &mut Rng,
    ) -> GangMember {
        let until = sent + stored.ttl.mul_f64(HOLDER_SHARE);
        let next = now + renewal_interval(stored.ttl, rng);
        GangMember {
            until,
            next,
            stored,
            is_confirmed: true,
            preempted: None,
            unanswered: Vec::new(),
        }
    }

    pub(super) fn recover(stored: StoredMember, now: Time) -> GangMember {
        // Its worker keeps it for a TTL from the last renewal at most.
        let until = now + stored.ttl.mul_f64(HOLDER_SHARE);
        let (is_confirmed, preempted, unanswered) = (false, None, Vec::new());
        GangMember { until, next: now, stored, is_confirmed, preempted, unanswered }
    }

    /// What is durable of it.
    pub fn stored(&self) -> &StoredMember {
        &self.stored
    }

    /// Whether work may be sent to it.
    pub fn is_usable(&self, now: Time) -> bool {
        self.is_confirmed && now < self.until
    }

    /// Until when its holder relies on it.
    pub fn until(&self) -> Time {
        self.until
    }

    pub(super) fn wake_at(&self) -> Time {
        self.until.min(self.next)
    }

    pub(super) fn is_expired(&self, now: Time) -> bool {
        self.until <= now
    }

    pub(super) fn expiry_reason(&self) -> LossReason {
        if self.preempted.is_some() { LossReason::Preempted } else { LossReason::Expired }
    }

    pub(super) fn is_renewal_due(&self, now: Time) -> bool {
        self.next <= now
    }

    pub(super) fn renew(&mut self, now: Time, nonce: u64, rng: &mut Rng) -> GangAction {
        if self.unanswered.len() >= MAX_UNANSWERED {
            self.unanswered.remove(0);
        }
        self.unanswered.push((nonce, now));
        let jitter = 1.0 - JITTER * rng.unit();
        self.next = now + self.ttl.mul_f64(REPEAT_AFTER * jitter).max(Span::from_millis(10));
        GangAction::Renew { worker: self.worker, lease: self.lease, epoch: self.epoch, nonce }
    }

    pub(super) fn renewed(&mut self, now: Time, epoch: Epoch, nonce: u64) -> bool {
        let sent = self.unanswered.iter().find(|(number, _)| *number == nonce).map(|(_, at)| *at);
        let (Some(sent), true) = (sent, epoch == self.epoch) else { return false };
        self.unanswered.retain(|(_, at)| *at > sent);
        self.is_confirmed = true;
        let until = sent + self.ttl.mul_f64(HOLDER_SHARE);
        self.until = self.preempted.map_or(until, |end| until.min(end));
        // The answer to an early renewal must not postpone the next one beyond its time.
        self.next = (sent + self.ttl.mul_f64(RENEW_AFTER)).max(now);
        true
    }

    pub(super) fn preempted(&mut self, now: Time, grace: Span) {
        // The holder stops first.
        let end = now + grace.mul_f64(HOLDER_SHARE);
        self.preempted = Some(self.preempted.map_or(end, |known| known.min(end)));
        self.until = self.until.min(end);
    }

    pub(super) fn expire_by(&mut self, at: Time) {
        self.until = self.until.min(at);
    }

    pub(super) fn renew_by(&mut self, at: Time) {
        self.next = self.next.min(at);
    }

    pub(super) fn release(&self) -> GangAction {
        GangAction::Release { worker: self.worker, lease: self.lease, epoch: self.epoch }
    }
}

impl std::ops::Deref for GangMember {
    type Target = StoredMember;
    fn deref(&self) -> &StoredMember {
        &self.stored
    }
}

fn renewal_interval(ttl: Span, rng: &mut Rng) -> Span {
    ttl.mul_f64(RENEW_AFTER * (1.0 - JITTER * rng.unit()))
}
