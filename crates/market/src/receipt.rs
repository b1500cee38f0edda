//! Receipts: what was held, by whom, for how long and at which price. One for each lease, which grows with every renewal.
//!
//! The worker signs a receipt when a lease is renewed, and when it ends; the scheduler countersigns it. Each keeps the
//! last one, so the sums of what is countersigned agree on both sides, also over crashes. What is not countersigned yet
//! is at most the time since the last renewal.

use std::collections::BTreeMap;

use hypha_model::{LeaseId, Money, Name, SchedulerId, Span, Time, WorkerId};
use serde::{Deserialize, Serialize};

use crate::portion::Portion;

/// How much more time than it counted itself a scheduler countersigns: clocks may drift by a tenth, and messages take time.
/// A worker counts until the release arrives: if it is lost, until the lease ends by itself.
const TOLERANCE: (f64, Span) = (1.1, Span::from_secs(5));

/// What a lease has cost so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Receipt {
    /// The lease.
    pub lease: LeaseId,
    /// Its worker.
    pub worker: WorkerId,
    /// The scheduler that holds it.
    pub scheduler: SchedulerId,
    /// The organisation of the scheduler.
    pub organisation: Name,
    /// What it covers.
    pub portion: Portion,
    /// What an hour costs.
    pub price: Money,
    /// For how long it has been held.
    pub held: Span,
    /// Grows by one with each receipt of the lease.
    pub number: u32,
    /// Whether the lease has ended.
    pub is_final: bool,
}

/// A signature, with the public key that it can be verified with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// The public key.
    pub key: Vec<u8>,
    /// The signature.
    pub bytes: Vec<u8>,
}

/// A receipt that its worker has signed, and perhaps its scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SignedReceipt {
    /// The receipt.
    pub receipt: Receipt,
    /// The worker's signature.
    pub worker: Signature,
    /// The scheduler's signature.
    pub scheduler: Option<Signature>,
}

/// Who a signature is by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signer {
    /// A worker.
    Worker(WorkerId),
    /// A scheduler.
    Scheduler(SchedulerId),
}

/// Signs with the key of this node, and verifies the signatures of others. Both only compute.
pub trait Notary: Send + Sync {
    /// Signs bytes.
    fn sign(&self, bytes: &[u8]) -> Signature;
    /// Whether `signature` is by `signer`, whose id belongs to the key, and is for these bytes.
    fn verify(&self, signer: Signer, bytes: &[u8], signature: &Signature) -> bool;
}

/// Why a receipt is not countersigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReceiptRefusal {
    /// The scheduler holds no such lease, and held none.
    UnknownLease,
    /// It is not what was agreed: the worker, the price, or who holds it.
    OtherTerms,
    /// It counts more time than has passed, or less than an earlier one.
    Time,
    /// Its signature is not valid.
    Signature,
}

/// What a scheduler knows of a lease that it holds or held.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeaseAccount {
    /// Its worker.
    pub worker: WorkerId,
    /// What an hour costs.
    pub price: Money,
    /// For how long each renewal extended it.
    #[serde(default)]
    pub ttl: Span,
    /// When it was granted.
    pub joined: Time,
    /// When it ended, as far as the scheduler knows.
    pub left: Option<Time>,
    /// The last receipt that was countersigned.
    pub last: Option<SignedReceipt>,
    /// Since when time counts for this incarnation of the scheduler, if not since `joined`.
    #[serde(skip)]
    pub counted_from: Option<Time>,
}

/// The sum of the receipts of one organisation at one worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerSum {
    /// How many leases.
    pub leases: u64,
    /// How long they were held, as countersigned.
    pub held: Span,
    /// What that costs.
    pub amount: Money,
    /// How long they were held beyond that.
    pub unconfirmed_held: Span,
    /// What that would cost.
    pub unconfirmed_amount: Money,
}

/// Sums by organisation and worker.
pub type LedgerSums = BTreeMap<(Name, WorkerId), LedgerSum>;

impl Receipt {
    /// The bytes that are signed.
    pub fn bytes(&self) -> Vec<u8> {
        // Integers and names in a fixed order: two nodes write the same bytes.
        let mut bytes = b"hypha receipt 1\n".to_vec();
        let portion = &self.portion;
        let devices: Vec<String> = portion
            .devices
            .iter()
            .map(|part| format!("{}:{}", part.memory_bytes, part.milli_gpu))
            .collect();
        let slots: Vec<String> = portion.slots.iter().map(u32::to_string).collect();
        let text = format!(
            "{}\n{}\n{}\n{}\n{} {} {} [{}] [{}]\n{}\n{}\n{}\n{}\n",
            self.lease,
            self.worker,
            self.scheduler,
            self.organisation,
            portion.cpu_milli,
            portion.memory_bytes,
            portion.storage_bytes,
            devices.join(" "),
            slots.join(" "),
            self.price.as_micros(),
            self.held.as_micros(),
            self.number,
            self.is_final,
        );
        bytes.extend_from_slice(text.as_bytes());
        bytes
    }

    /// What it has cost.
    pub fn amount(&self) -> Money {
        self.price.per_hour_for(self.held)
    }
}

impl SignedReceipt {
    /// A receipt that its worker signs.
    pub fn sign(receipt: Receipt, notary: &dyn Notary) -> SignedReceipt {
        let worker = notary.sign(&receipt.bytes());
        SignedReceipt { receipt, worker, scheduler: None }
    }

    /// Whether both signatures are valid.
    pub fn is_countersigned(&self, notary: &dyn Notary) -> bool {
        let (bytes, receipt) = (self.receipt.bytes(), &self.receipt);
        notary.verify(Signer::Worker(receipt.worker), &bytes, &self.worker)
            && self.scheduler.as_ref().is_some_and(|signature| {
                notary.verify(Signer::Scheduler(receipt.scheduler), &bytes, signature)
            })
    }
}

impl LeaseAccount {
    /// After a restart of the scheduler, whose clock may have been set back meanwhile: the lease has been held for as long
    /// as is countersigned, and for a TTL at most without a renewal.
    pub fn recovered(&mut self, now: Time) {
        let last = self.last.as_ref().map_or(Span::ZERO, |last| last.receipt.held);
        if self.left.is_none() {
            self.counted_from = Some(self.joined.min(now - (last + self.ttl)));
        }
    }

    /// Checks a receipt that arrived at `now`, and countersigns it. A receipt that is older than the last one changes
    /// nothing, and the last one is returned.
    pub fn countersign(
        &mut self,
        now: Time,
        (scheduler, organisation): (SchedulerId, &Name),
        signed: &SignedReceipt,
        notary: &dyn Notary,
    ) -> Result<&SignedReceipt, ReceiptRefusal> {
        let receipt = &signed.receipt;
        let is_agreed = (receipt.worker, receipt.scheduler) == (self.worker, scheduler)
            && receipt.organisation == *organisation
            && receipt.price == self.price;
        if !is_agreed {
            return Err(ReceiptRefusal::OtherTerms);
        }
        let bytes = receipt.bytes();
        if !notary.verify(Signer::Worker(receipt.worker), &bytes, &signed.worker) {
            return Err(ReceiptRefusal::Signature);
        }
        let from = self.counted_from.unwrap_or(self.joined);
        let elapsed = match self.left {
            Some(left) => left.since(from) + self.ttl,
            None => now.since(from),
        };
        let known = self.last.as_ref().map(|last| (last.receipt.number, last.receipt.held));
        if known.is_none_or(|(number, _)| receipt.number > number) {
            if receipt.held > elapsed.mul_f64(TOLERANCE.0) + TOLERANCE.1
                || known.is_some_and(|(_, held)| receipt.held < held)
            {
                return Err(ReceiptRefusal::Time);
            }
            let signature = notary.sign(&bytes);
            self.last = Some(SignedReceipt { scheduler: Some(signature), ..signed.clone() });
        }
        self.last.as_ref().ok_or(ReceiptRefusal::UnknownLease)
    }
}

/// Adds a lease to the sums: its last countersigned receipt, and for how long it has been held in all.
pub fn add_to_ledger(
    sums: &mut LedgerSums,
    key: (Name, WorkerId),
    price: Money,
    confirmed: Option<&Receipt>,
    held: Span,
) {
    let sum = sums.entry(key).or_default();
    let confirmed_held = confirmed.map_or(Span::ZERO, |receipt| receipt.held);
    let tail = Span::from_micros(held.as_micros().saturating_sub(confirmed_held.as_micros()));
    sum.leases += 1;
    sum.held += confirmed_held;
    sum.amount = sum.amount.saturating_add(confirmed.map_or(Money::ZERO, Receipt::amount));
    sum.unconfirmed_held += tail;
    sum.unconfirmed_amount = sum.unconfirmed_amount.saturating_add(price.per_hour_for(tail));
}

/// A notary for simulations: its signatures are digests of the signer and the bytes, which anyone could make.
#[derive(Clone, Copy, Debug)]
pub struct SimulatedNotary(pub Signer);

impl Notary for SimulatedNotary {
    fn sign(&self, bytes: &[u8]) -> Signature {
        let key = self.0.key();
        Signature { bytes: digest(&key, bytes), key }
    }

    fn verify(&self, signer: Signer, bytes: &[u8], signature: &Signature) -> bool {
        signature.key == signer.key() && signature.bytes == digest(&signature.key, bytes)
    }
}

impl Signer {
    fn key(self) -> Vec<u8> {
        match self {
            Signer::Worker(worker) => worker.uuid().as_bytes().to_vec(),
            Signer::Scheduler(scheduler) => scheduler.uuid().as_bytes().to_vec(),
        }
    }
}

fn digest(key: &[u8], bytes: &[u8]) -> Vec<u8> {
    // FNV-1a: enough to notice that something differs.
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = key.iter().chain(bytes).fold(0xcbf2_9ce4_8422_2325, step);
    hash.to_be_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use hypha_model::Rng;

    use super::*;

    fn parts() -> (LeaseAccount, SchedulerId, Name, Receipt) {
        let mut rng = Rng::new(1);
        let worker = WorkerId::new(Time::ZERO, &mut rng);
        let scheduler = SchedulerId::new(Time::ZERO, &mut rng);
        let organisation: Name = "lab".parse().unwrap();
        let price = Money::from_micros(3_600_000);
        let receipt = Receipt {
            lease: LeaseId::new(Time::ZERO, &mut rng),
            worker,
            scheduler,
            organisation: organisation.clone(),
            portion: Portion::default(),
            price,
            held: Span::from_secs(10),
            number: 1,
            is_final: false,
        };
        let joined = Time::from_micros(1_000_000);
        let ttl = Span::from_secs(30);
        let account =
            LeaseAccount { worker, price, ttl, joined, left: None, last: None, counted_from: None };
        (account, scheduler, organisation, receipt)
    }

    #[test]
    fn a_receipt_is_countersigned_only_if_it_is_what_was_agreed() {
        let (mut account, scheduler, lab, receipt) = parts();
        let by_worker = SimulatedNotary(Signer::Worker(receipt.worker));
        let notary = SimulatedNotary(Signer::Scheduler(scheduler));
        let now = account.joined + Span::from_secs(10);
        let mut check = |receipt: Receipt, signed_by: &SimulatedNotary| {
            let signed = SignedReceipt::sign(receipt, signed_by);
            account.countersign(now, (scheduler, &lab), &signed, &notary).cloned()
        };
        let refused = [
            (
                Receipt { price: Money::from_micros(1), ..receipt.clone() },
                ReceiptRefusal::OtherTerms,
            ),
            (
                Receipt { organisation: "other".parse().unwrap(), ..receipt.clone() },
                ReceiptRefusal::OtherTerms,
            ),
            (Receipt { held: Span::from_secs(17), ..receipt.clone() }, ReceiptRefusal::Time),
        ];
        for (receipt, why) in refused {
            assert_eq!(check(receipt, &by_worker), Err(why));
        }
        assert_eq!(check(receipt.clone(), &notary), Err(ReceiptRefusal::Signature), "forged");
        let first = check(receipt.clone(), &by_worker).unwrap();
        assert!(first.is_countersigned(&notary));
        let mut changed = first.clone();
        changed.receipt.held = Span::from_secs(11);
        assert!(!changed.is_countersigned(&notary));
        let second = Receipt { number: 2, held: Span::from_secs(12), ..receipt.clone() };
        assert_eq!(check(second, &by_worker).unwrap().receipt.held, Span::from_secs(12));
        let late = check(receipt.clone(), &by_worker).unwrap();
        assert_eq!(late.receipt.number, 2, "an older one is answered with the last");
        let less = Receipt { number: 3, held: Span::from_secs(11), ..receipt };
        assert_eq!(check(less, &by_worker), Err(ReceiptRefusal::Time));
    }

    #[test]
    fn a_lease_whose_release_was_lost_is_settled_and_so_is_one_over_a_clock_that_was_set_back() {
        let (account, scheduler, lab, receipt) = parts();
        let by_worker = SimulatedNotary(Signer::Worker(receipt.worker));
        let notary = SimulatedNotary(Signer::Scheduler(scheduler));
        let check = |mut account: LeaseAccount, now: Time, held: u64| {
            let held = Span::from_secs(held);
            let signed = SignedReceipt::sign(Receipt { held, ..receipt.clone() }, &by_worker);
            account.countersign(now, (scheduler, &lab), &signed, &notary).map(drop)
        };
        let left = Some(account.joined + Span::from_secs(10));
        let released = LeaseAccount { left, ..account.clone() };
        let later = account.joined + Span::from_secs(100);
        assert_eq!(check(released.clone(), later, 40), Ok(()), "until its TTL was over");
        assert_eq!(check(released, later, 60), Err(ReceiptRefusal::Time));
        let mut recovered = LeaseAccount { joined: later, ..account };
        recovered.recovered(Time::from_micros(50_000_000));
        assert_eq!(check(recovered, Time::from_micros(52_000_000), 30), Ok(()));
    }

    #[test]
    fn sums_have_what_is_confirmed_and_the_rest_apart() {
        let (account, _, lab, receipt) = parts();
        let mut sums = LedgerSums::new();
        let key = (lab, receipt.worker);
        let price = account.price;
        add_to_ledger(&mut sums, key.clone(), price, Some(&receipt), Span::from_secs(14));
        add_to_ledger(&mut sums, key.clone(), price, None, Span::from_secs(1));
        let sum = &sums[&key];
        assert_eq!(
            (sum.leases, sum.held, sum.unconfirmed_held),
            (2, Span::from_secs(10), Span::from_secs(5))
        );
        assert_eq!(sum.amount, Money::from_micros(10_000));
        assert_eq!(sum.unconfirmed_amount, Money::from_micros(5_000));
    }
}
