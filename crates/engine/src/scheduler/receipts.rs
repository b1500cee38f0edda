//! Receipts for leases at a price: the scheduler countersigns what workers issue, and sums them.

use std::sync::Arc;

use hypha_market::{
    LeaseAccount, LedgerSum, LedgerSums, Notary, ReceiptRefusal, SignedReceipt, StoredMember,
    add_to_ledger,
};
use hypha_model::{LeaseId, Time, WorkerId};

use super::{Effect, Scheduler, SchedulerStep};
use crate::job::JobRecord;
use crate::message::ToWorker;
use crate::mutant::Mutant;
use crate::record::Record;

/// Leases of which the account is kept; of older ones that are settled, only the sums are.
const MAX_ACCOUNTS: usize = 10_000;

impl Scheduler {
    /// Signs receipts with `notary`.
    pub fn set_notary(&mut self, notary: Arc<dyn Notary>) {
        self.notary = Some(notary);
    }

    /// The last receipt that was countersigned for each lease that is remembered.
    pub fn accounts(&self) -> impl Iterator<Item = (LeaseId, &LeaseAccount)> {
        self.jobs.accounts.iter().map(|(lease, account)| (*lease, account))
    }

    /// What was paid, by organisation and worker; the organisation is the scheduler's own.
    pub fn ledger(&self, now: Time) -> LedgerSums {
        let mut sums = LedgerSums::new();
        let Some(organisation) = self.settings.organisation.clone() else { return sums };
        for (worker, sum) in &self.jobs.settled {
            sums.insert((organisation.clone(), *worker), sum.clone());
        }
        for account in self.jobs.accounts.values() {
            let held = account.left.unwrap_or(now).since(account.joined);
            let is_final = account.last.as_ref().is_some_and(|last| last.receipt.is_final);
            let confirmed = account.last.as_ref().map(|last| &last.receipt);
            // After the last receipt nothing is owed, whatever the clocks say.
            let held = confirmed.filter(|_| is_final).map_or(held, |receipt| receipt.held);
            let key = (organisation.clone(), account.worker);
            add_to_ledger(&mut sums, key, account.price, confirmed, held);
        }
        sums
    }

    pub(super) fn open_account(&mut self, member: &StoredMember, step: &mut SchedulerStep) {
        let (worker, price, joined) = (member.worker, member.price, member.joined);
        let ttl = member.ttl;
        let (left, last, counted_from) = (None, None, None);
        let account = LeaseAccount { worker, price, ttl, joined, left, last, counted_from };
        self.put_account(member.lease, account, step);
        self.settle_oldest(step);
    }

    /// A lease has ended, as far as the scheduler knows.
    pub(super) fn close_account(&mut self, now: Time, lease: LeaseId, step: &mut SchedulerStep) {
        if let Some(account) = self.jobs.accounts.get(&lease)
            && account.left.is_none()
        {
            let account = LeaseAccount { left: Some(now), ..account.clone() };
            self.put_account(lease, account, step);
        }
    }

    pub(super) fn receipt_issued(
        &mut self,
        now: Time,
        worker: WorkerId,
        signed: &SignedReceipt,
        step: &mut SchedulerStep,
    ) {
        match self.countersign(now, worker, signed, step) {
            Ok(()) if signed.receipt.is_final => self.release_confirmed(signed.receipt.lease),
            Ok(()) => {}
            Err(_) => self.counts.receipts_refused += 1,
        }
    }

    fn countersign(
        &mut self,
        now: Time,
        worker: WorkerId,
        signed: &SignedReceipt,
        step: &mut SchedulerStep,
    ) -> Result<(), ReceiptRefusal> {
        let lease = signed.receipt.lease;
        let (Some(notary), Some(organisation)) = (&self.notary, &self.settings.organisation) else {
            return Err(ReceiptRefusal::Signature);
        };
        let known = self.jobs.accounts.get(&lease).filter(|account| account.worker == worker);
        let mut account = known.ok_or(ReceiptRefusal::UnknownLease)?.clone();
        let number = account.last.as_ref().map(|last| last.receipt.number);
        let last = account.countersign(now, (self.id, organisation), signed, &**notary)?.clone();
        if number != Some(last.receipt.number) {
            match self.is(Mutant::LostReceipt) {
                true => drop(self.jobs.accounts.insert(lease, account)),
                false => self.put_account(lease, account, step),
            }
        }
        let message = ToWorker::ReceiptCountersigned(Arc::new(last));
        step.send(Effect::ToWorker { worker, message });
        Ok(())
    }

    fn put_account(&mut self, lease: LeaseId, account: LeaseAccount, step: &mut SchedulerStep) {
        step.persist(Record::Job(JobRecord::Account { lease, account: Box::new(account.clone()) }));
        self.jobs.accounts.insert(lease, account);
    }

    /// Replaces the oldest account by its sum, if there are too many.
    fn settle_oldest(&mut self, step: &mut SchedulerStep) {
        if self.jobs.accounts.len() <= MAX_ACCOUNTS {
            return;
        }
        let is_over = |(_, account): &(&LeaseId, &LeaseAccount)| account.left.is_some();
        let is_final = |account: &LeaseAccount| {
            account.last.as_ref().is_some_and(|last| last.receipt.is_final)
        };
        // One that has its last receipt, if there is one: nothing more can come for it.
        let mut over = self.jobs.accounts.iter().filter(is_over);
        let settled = over.clone().find(|(_, account)| is_final(account)).or_else(|| over.next());
        let Some(lease) = settled.map(|(lease, _)| *lease) else { return };
        let Some(account) = self.jobs.accounts.remove(&lease) else { return };
        let sum = self.jobs.settled.entry(account.worker).or_default();
        if let Some(last) = &account.last {
            sum.held += last.receipt.held;
            sum.amount = sum.amount.saturating_add(last.receipt.amount());
        }
        sum.leases += 1;
        let (worker, sum): (WorkerId, LedgerSum) = (account.worker, sum.clone());
        step.persist(Record::Job(JobRecord::Settled { lease, worker, sum }));
    }
}
