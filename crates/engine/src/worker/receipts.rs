//! Receipts for leases at a price: issued at each renewal and at the end, and repeated until the scheduler has
//! countersigned them.

use std::collections::BTreeMap;
use std::sync::Arc;

use hypha_market::{Holder, Notary, Portion, Receipt, SignedReceipt};
use hypha_model::{LeaseId, Money, Name, SchedulerId, Span, Time};
use serde::{Deserialize, Serialize};

use super::{WorkerMachine, WorkerRecord, WorkerStep, send_message};
use crate::message::FromWorker;
use crate::mutant::Mutant;

/// Leases whose last receipt is not countersigned. Those of schedulers that never come back are forgotten, the oldest
/// first; what is stored of them stays.
const MAX_UNCONFIRMED: usize = 4_096;
/// How often receipts of leases that have ended are repeated.
const REPEAT_AFTER: Span = Span::from_secs(10);

/// What is durable of the receipts of a lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredReceipts {
    /// The last one that the worker signed.
    pub issued: Arc<SignedReceipt>,
    /// The last one that the scheduler countersigned.
    pub confirmed: Option<Arc<SignedReceipt>>,
}

/// The receipts of a worker.
#[derive(Default)]
pub(super) struct Receipts {
    notary: Option<Arc<dyn Notary>>,
    accounts: BTreeMap<LeaseId, Account>,
    repeat_at: Option<Time>,
}

struct Account {
    holder: SchedulerId,
    organisation: Name,
    price: Money,
    portion: Portion,
    since: Time,
    stored: Option<StoredReceipts>,
    has_ended: bool,
}

impl StoredReceipts {
    /// The lease.
    pub fn lease(&self) -> LeaseId {
        self.issued.receipt.lease
    }

    /// Whether the last one is countersigned.
    pub fn is_confirmed(&self) -> bool {
        let issued = &self.issued.receipt;
        self.confirmed.as_ref().is_some_and(|last| last.receipt == *issued)
    }
}

impl WorkerMachine {
    /// An incarnation that signs receipts, and has these of earlier ones that are not countersigned. If they are too many,
    /// the last ones are repeated.
    pub fn with_receipts(
        mut self,
        notary: Arc<dyn Notary>,
        unconfirmed: Vec<StoredReceipts>,
    ) -> WorkerMachine {
        self.receipts.notary = Some(notary);
        let unconfirmed = unconfirmed.into_iter().rev().filter(|stored| !stored.is_confirmed());
        for stored in unconfirmed.take(MAX_UNCONFIRMED) {
            let receipt = &stored.issued.receipt;
            let account = Account {
                holder: receipt.scheduler,
                organisation: receipt.organisation.clone(),
                price: receipt.price,
                portion: receipt.portion.clone(),
                since: Time::ZERO,
                has_ended: true,
                stored: Some(stored.clone()),
            };
            self.receipts.accounts.insert(receipt.lease, account);
        }
        // At once: nothing else reminds this incarnation of them.
        self.receipts.repeat_at = (!self.receipts.accounts.is_empty()).then_some(Time::ZERO);
        self
    }

    /// An offer was accepted: its lease is held from now on.
    pub(super) fn open_account(
        &mut self,
        now: Time,
        holder: SchedulerId,
        lease: LeaseId,
        (price, portion): (Money, Portion),
    ) {
        let Some(organisation) = self.organisation_of(holder).cloned() else { return };
        let accounts = &mut self.receipts.accounts;
        if accounts.len() >= MAX_UNCONFIRMED {
            let first = accounts.iter().find(|(_, account)| account.has_ended);
            if let Some(lease) = first.map(|(lease, _)| *lease) {
                accounts.remove(&lease);
            }
        }
        let (stored, has_ended) = (None, false);
        let account =
            Account { holder, organisation, price, portion, since: now, stored, has_ended };
        accounts.entry(lease).or_insert(account);
    }

    /// A lease is renewed, or has ended at `until`: what it has cost so far is signed.
    pub(super) fn issue_receipt(
        &mut self,
        until: Time,
        holder: Holder,
        lease: LeaseId,
        is_final: bool,
        step: &mut WorkerStep,
    ) {
        if !is_final && self.is(Mutant::SilentRenewals) {
            return;
        }
        let worker = self.worker.id;
        let Receipts { notary: Some(notary), accounts, repeat_at } = &mut self.receipts else {
            return;
        };
        let Some(account) = accounts.get_mut(&lease).filter(|account| !account.has_ended) else {
            return;
        };
        let last = account.stored.as_ref().map_or(0, |stored| stored.issued.receipt.number);
        let receipt = Receipt {
            lease,
            worker,
            scheduler: holder.scheduler,
            organisation: account.organisation.clone(),
            portion: account.portion.clone(),
            price: account.price,
            held: until.since(account.since),
            number: last + 1,
            is_final,
        };
        let issued = Arc::new(SignedReceipt::sign(receipt, &**notary));
        let confirmed = account.stored.take().and_then(|stored| stored.confirmed);
        let stored = StoredReceipts { issued: Arc::clone(&issued), confirmed };
        step.persist(WorkerRecord::Receipt(stored.clone()));
        (account.stored, account.has_ended) = (Some(stored), is_final);
        if is_final {
            *repeat_at = Some(repeat_at.unwrap_or(until + REPEAT_AFTER));
        }
        send_message(step, holder.scheduler, FromWorker::ReceiptIssued(issued));
    }

    pub(super) fn receipt_countersigned(
        &mut self,
        from: SchedulerId,
        signed: Arc<SignedReceipt>,
        step: &mut WorkerStep,
    ) {
        let Receipts { notary: Some(notary), accounts, .. } = &mut self.receipts else { return };
        let lease = signed.receipt.lease;
        let Some(account) = accounts.get_mut(&lease) else { return };
        let Some(stored) = &mut account.stored else { return };
        let is_newer = |known: &Arc<SignedReceipt>| known.receipt.number < signed.receipt.number;
        let is_new = stored.confirmed.as_ref().is_none_or(is_newer);
        // Only what this worker has signed counts, and the scheduler cannot change it.
        if account.holder != from
            || !is_new
            || signed.receipt.number > stored.issued.receipt.number
            || !signed.is_countersigned(&**notary)
        {
            return;
        }
        stored.confirmed = Some(signed);
        step.persist_later(WorkerRecord::Receipt(stored.clone()));
        step.flush();
        if account.has_ended && stored.is_confirmed() {
            accounts.remove(&lease);
        }
    }

    /// For each lease that is held at a price, how long it has been held, and how much of that is countersigned.
    pub fn held_leases(&self, now: Time) -> impl Iterator<Item = (LeaseId, Span, Span)> {
        let held = self.receipts.accounts.iter().filter(|(_, account)| !account.has_ended);
        held.map(move |(lease, account)| {
            let confirmed = account.stored.as_ref().and_then(|stored| stored.confirmed.as_ref());
            let confirmed = confirmed.map_or(Span::ZERO, |signed| signed.receipt.held);
            (*lease, now.since(account.since), confirmed)
        })
    }

    /// Sends the receipts again that a scheduler has not countersigned.
    pub(super) fn repeat_receipts(&self, to: SchedulerId, step: &mut WorkerStep) {
        let accounts = self.receipts.accounts.values();
        for account in accounts.filter(|account| account.holder == to && account.has_ended) {
            if let Some(stored) = account.stored.as_ref().filter(|stored| !stored.is_confirmed()) {
                let message = FromWorker::ReceiptIssued(Arc::clone(&stored.issued));
                send_message(step, to, message);
            }
        }
    }

    /// Repeats receipts that are due for it.
    pub(super) fn wake_receipts(&mut self, now: Time, step: &mut WorkerStep) {
        if self.receipts.repeat_at.is_none_or(|at| at > now) {
            return;
        }
        let ended = self.receipts.accounts.values().filter(|account| account.has_ended);
        let holders: std::collections::BTreeSet<SchedulerId> =
            ended.map(|account| account.holder).collect();
        self.receipts.repeat_at = (!holders.is_empty()).then(|| now + REPEAT_AFTER);
        for holder in holders {
            self.repeat_receipts(holder, step);
        }
    }

    pub(super) fn receipts_wake_at(&self) -> Option<Time> {
        self.receipts.repeat_at
    }
}
