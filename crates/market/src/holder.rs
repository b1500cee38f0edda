//! The holder's side: one lease of one worker, requested, held and renewed.

use hypha_model::{Epoch, LeaseId, RefusalKind, Span, Time};

/// The holder of a lease counts this share of its time from *sending* the request, the owner counts all of it from
/// receiving: so the holder stops first under clocks that drift by up to 10 %.
pub const HOLDER_SHARE: f64 = 0.8;
/// A lease that is shorter than the interval of heartbeats is renewed this often within its time, so that one lost
/// heartbeat does not end it.
const HEARTBEATS_PER_LEASE: f64 = 3.0;
/// How often the interval between two requests for a lease is doubled, at most.
const MAX_DOUBLINGS: u32 = 6;

/// A lease, as its holder knows it.
#[derive(Clone, Copy, Debug)]
pub enum HeldLease {
    /// Requested; requested again at `retry_at`.
    Requested {
        /// Repeated in the answer.
        request: u64,
        /// When it was requested.
        sent: Time,
        /// When it is requested again.
        retry_at: Time,
        /// How often it was requested.
        requests_sent: u32,
        /// Why the last request was refused, if it was.
        refused: Option<RefusalKind>,
    },
    /// Granted, and renewed by heartbeats.
    Held {
        /// The lease.
        lease: LeaseId,
        /// Its epoch.
        epoch: Epoch,
        /// For how long each heartbeat renews it.
        ttl: Span,
        /// Until when the holder relies on it.
        until: Time,
        /// The heartbeat that has not been answered.
        unanswered: Option<(u64, Time)>,
        /// Consecutive heartbeats that were not answered in time.
        missed: u32,
        /// When the next heartbeat is sent.
        next: Time,
    },
}

impl HeldLease {
    /// To be requested at `at`.
    pub fn request_at(now: Time, at: Time) -> HeldLease {
        HeldLease::Requested {
            request: 0,
            sent: now,
            retry_at: at,
            requests_sent: 0,
            refused: None,
        }
    }

    /// The lease and its epoch, if it is held.
    pub fn id(&self) -> Option<(LeaseId, Epoch)> {
        match *self {
            HeldLease::Held { lease, epoch, .. } => Some((lease, epoch)),
            HeldLease::Requested { .. } => None,
        }
    }

    /// A request was sent at `now` under this number. The interval to the next doubles, up to `longest`.
    pub fn request_sent(&mut self, now: Time, number: u64, (first, longest): (Span, Span)) {
        if let HeldLease::Requested { request, sent, retry_at, requests_sent, .. } = self {
            (*request, *sent) = (number, now);
            *requests_sent = requests_sent.saturating_add(1);
            let doubled = first.times(1 << (*requests_sent).min(MAX_DOUBLINGS));
            *retry_at = now + doubled.min(longest.max(first));
        }
    }

    /// The answer to request `answered` grants it for `ttl`. Returns when the request was sent and until when the lease
    /// holds, if it is the last request and there is time left.
    pub fn granted(&self, now: Time, answered: u64, ttl: Span) -> Option<(Time, /* until */ Time)> {
        let HeldLease::Requested { request, sent, .. } = *self else { return None };
        let until = sent + ttl.mul_f64(HOLDER_SHARE);
        (request == answered && until > now).then_some((sent, until))
    }

    /// The heartbeat `answered` of this lease was answered. Returns when it was sent, if it was unanswered.
    pub fn renewed(&mut self, named: (LeaseId, Epoch), answered: u64) -> Option<Time> {
        let HeldLease::Held { lease, epoch, ttl, until, unanswered, missed, .. } = self else {
            return None;
        };
        let (_, sent) =
            unanswered.filter(|(nonce, _)| (*lease, *epoch) == named && *nonce == answered)?;
        (*unanswered, *missed) = (None, 0);
        *until = (*until).max(sent + ttl.mul_f64(HOLDER_SHARE));
        Some(sent)
    }

    /// The next heartbeat is sent at `at` at the latest.
    pub fn renew_by(&mut self, at: Time) {
        if let HeldLease::Held { next, .. } = self {
            *next = (*next).min(at);
        }
    }
}

/// The interval of heartbeats. They renew the lease, so several must fit into it.
pub fn heartbeat_interval(usual: Span, ttl: Span) -> Span {
    usual.min(ttl.mul_f64(HOLDER_SHARE / HEARTBEATS_PER_LEASE))
}
