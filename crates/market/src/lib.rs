//! The market: which scheduler holds which portion of a worker, and for how long.
//!
//! A lease names a [`Portion`] of a worker: cores, memory, disk, GPUs with memory and share, and slots of its
//! executors. Several schedulers may hold portions of one worker; contested capacity is divided max-min fair
//! ([`divide`]). The owner's side is the [`LeaseBook`], with the one ledger of the worker; the holder's side is a
//! [`HeldLease`] for each worker. [`Terms`] are what the owner asks for it.

mod advert;
mod arbiter;
mod auction;
mod book;
mod divide;
mod gang;
mod holder;
mod ledger_csv;
mod pool;
mod portion;
mod receipt;
mod terms;

pub use advert::{
    Advert, Advertiser, MAX_LEASE_TTL, MAX_MEMBERS, MAX_OFFERS_WANTED, MAX_ROLES, Offer,
    OfferedRole, WINDOW_RANGE, WantedRole,
};
pub use arbiter::{
    Arbiter, COMPARISON_WINDOW, Ignored, MAX_ADVERTS_PER_SCHEDULER, MAX_OPEN_ADVERTS, OpenAdvert,
    RESERVED_AFTER_WINDOW, SchedulerRecord, answer_delay,
};
pub use auction::{
    Auction, Choice, GrantRecord, Member, NotCounted, NotCountedBy, OfferRefusal, RoleExplanation,
    RoleShortfall, ScoreParts, Scored, Shortfall, Valuation, WorkerStanding, backoff,
    offers_wanted,
};
pub use book::{
    FixedPortion, Holder, LeaseBook, LeaseDecision, LeaseGrant, LeaseKey, LeaseRequest,
    MAX_HOLDERS, Reservation, TURN_DURATION,
};
pub use divide::{Claim, divide, portion_for};
pub use gang::{
    GRANT_TIMEOUT, Gang, GangAction, GangContext, GangMember, GangMutant, GangRole, GangSpec,
    LossReason, Receivers, StoredMember,
};
pub use holder::{HOLDER_SHARE, HeldLease, heartbeat_interval};
pub use ledger_csv::ledger_csv;
pub use pool::{Demand, PoolSettings, PoolSize};
pub use portion::{DevicePart, Portion};
pub use receipt::{
    LeaseAccount, LedgerSum, LedgerSums, Notary, Receipt, ReceiptRefusal, Signature, SignedReceipt,
    Signer, SimulatedNotary, add_to_ledger,
};
pub use terms::{
    Hours, HoursError, LocalTime, OtherUse, OwnerReason, OwnerState, OwnerUse, Pricing, Terms,
    TermsRefusal, Weekday, YieldTerms,
};
