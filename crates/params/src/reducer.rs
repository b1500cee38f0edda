//! The reduce of a round: stages the fragments of each member, and adds a delta once all of it is verified.
//!
//! A delta counts whole or not at all, and once. Pushing a fragment again is acknowledged and changes nothing.

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroUsize;
use std::thread;

use thiserror::Error;

use crate::accumulator::{Accumulator, MAX_TOTAL_WEIGHT, add_fragment};
use crate::codec::{Codec, ValueFault};
use crate::fragment::{CheckedFragment, FragmentHeader, Kind, MemberId};
use crate::layout::Layout;
use crate::staging::Staging;

/// What a reducer accepts, and how it works.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// The largest Euclidean norm of a delta; `None` if only its values are limited.
    pub max_norm: Option<f64>,
    /// The threads that add a complete delta.
    pub threads: NonZeroUsize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { max_norm: None, threads: NonZeroUsize::MIN }
    }
}

/// What became of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// It waits for the others of its delta.
    Staged {
        /// How many are missing.
        missing: u32,
    },
    /// It was the last: the delta counts.
    Counted,
    /// It had been pushed before.
    Duplicate,
}

/// Why a fragment does not count.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Rejection {
    /// It is not a part of a delta.
    #[error("an update cannot be pushed, only a delta")]
    Kind,
    /// It belongs to another round.
    #[error("the fragment is of round {given}, but round {current} is open")]
    Round {
        /// Of the fragment.
        given: u64,
        /// The open one.
        current: u64,
    },
    /// Its sender is not the member that the header names.
    #[error("the sender is {sender}, but the fragment names {named}")]
    Sender {
        /// Who sent it.
        sender: MemberId,
        /// Whom the header names.
        named: MemberId,
    },
    /// The member does not take part in the round.
    #[error("{0} is not a member of this round")]
    Member(MemberId),
    /// The layout has no such fragment.
    #[error("no fragment {fragment} of {count} values in this layout")]
    Shape {
        /// Its index.
        fragment: u32,
        /// The number of its values.
        count: u32,
    },
    /// The digest is not that of the bytes. The member may push the fragment again.
    #[error("fragment {0} does not have the digest that it names: send it again")]
    Digest(u32),
    /// Another fragment with this index was pushed before, or one with another weight.
    #[error("fragment {0} contradicts what the member has pushed before")]
    Conflict(u32),
    /// The delta is rejected as a whole.
    #[error("the delta is rejected: {0}")]
    Delta(#[from] DeltaRejection),
}

/// Why a delta is rejected as a whole, for the rest of the round.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum DeltaRejection {
    /// A value is invalid.
    #[error("in fragment {fragment}, {fault}")]
    Value {
        /// The index of the fragment.
        fragment: u32,
        /// What is wrong.
        fault: ValueFault,
    },
    /// The norm is too large.
    #[error("its norm of {norm} is above {max}")]
    Norm {
        /// Of the delta.
        norm: f64,
        /// The limit.
        max: f64,
    },
    /// The weight is zero, or the sum of weights would reach [`MAX_TOTAL_WEIGHT`].
    #[error(
        "its weight of {weight} is zero, or with {total} the sum is not below {MAX_TOTAL_WEIGHT}"
    )]
    Weight {
        /// Of the delta.
        weight: u32,
        /// Of the deltas that count already.
        total: u32,
    },
}

/// Why a push was not accepted.
#[derive(Debug, Error)]
pub enum PushError {
    /// The fragment does not count.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// The staging failed; the fragment may be pushed again.
    #[error("cannot stage a fragment: {0}")]
    Staging(#[from] io::Error),
    /// A staged delta could not be read back while it was added: the sum is incomplete, and the round has to begin anew.
    #[error("the sum of this round is damaged: begin the round again")]
    Damaged,
}

/// The sum of a round's deltas so far. Memory: 8 bytes a parameter, and a digest for each fragment of each member.
#[derive(Debug)]
pub struct Reducer<S> {
    limits: Limits,
    staging: S,
    accumulator: Accumulator,
    round: u64,
    members: BTreeMap<MemberId, Delta>,
    /// Of members only: others may be any number.
    rejections: BTreeMap<MemberId, u32>,
    total_weight: u32,
    is_damaged: bool,
}

/// What is known of a member's delta.
#[derive(Debug)]
enum Delta {
    /// Nothing has arrived.
    Expected,
    /// Some fragments are here, or all if it counts.
    Received {
        weight: u32,
        fragments: Vec<Option<Received>>,
        missing: u32,
    },
    Rejected(DeltaRejection),
}

#[derive(Clone, Copy, Debug)]
struct Received {
    digest: [u8; 32],
    codec: Codec,
    squares: f64,
}

impl<S: Staging> Reducer<S> {
    /// A reducer without members; [`Reducer::begin`] opens its first round.
    pub fn new(layout: Layout, limits: Limits, staging: S) -> Reducer<S> {
        Reducer {
            limits,
            staging,
            accumulator: Accumulator::new(layout),
            round: 0,
            members: BTreeMap::new(),
            rejections: BTreeMap::new(),
            total_weight: 0,
            is_damaged: false,
        }
    }

    /// Opens a round and forgets the one before.
    pub fn begin(
        &mut self,
        round: u64,
        members: impl IntoIterator<Item = MemberId>,
    ) -> io::Result<()> {
        self.staging.clear()?;
        self.accumulator.clear();
        self.round = round;
        self.members = members.into_iter().map(|member| (member, Delta::Expected)).collect();
        self.rejections.clear();
        self.total_weight = 0;
        self.is_damaged = false;
        Ok(())
    }

    /// Takes a fragment from `sender`, whom the transport has authenticated. A rejection counts against the sender.
    pub fn push(
        &mut self,
        sender: MemberId,
        checked: CheckedFragment,
    ) -> Result<Pushed, PushError> {
        let result = self.take(sender, checked);
        if let Err(PushError::Rejected(_)) = &result
            && self.members.contains_key(&sender)
        {
            let count = self.rejections.entry(sender).or_default();
            *count = count.saturating_add(1);
        }
        result
    }

    /// How many pushes of each member were rejected in this round, without those that had none. Senders that are not
    /// members are not counted here.
    pub fn rejections(&self) -> &BTreeMap<MemberId, u32> {
        &self.rejections
    }

    /// The cut of the parameters.
    pub fn layout(&self) -> Layout {
        self.accumulator.layout()
    }

    /// The open round.
    pub fn round(&self) -> u64 {
        self.round
    }

    /// The sum of the weights of the deltas that count.
    pub fn total_weight(&self) -> u32 {
        self.total_weight
    }

    /// The members whose deltas count, in the order of their ids.
    pub fn counted(&self) -> impl Iterator<Item = MemberId> {
        let is_counted = |delta: &Delta| matches!(delta, Delta::Received { missing: 0, .. });
        self.members.iter().filter(move |(_, delta)| is_counted(delta)).map(|(member, _)| *member)
    }

    /// The weighted sums; `None` if they are damaged.
    pub fn sums(&self) -> Option<&[i64]> {
        (!self.is_damaged).then(|| self.accumulator.sums())
    }

    fn take(&mut self, sender: MemberId, checked: CheckedFragment) -> Result<Pushed, PushError> {
        if self.is_damaged {
            return Err(PushError::Damaged);
        }
        let CheckedFragment { fragment, is_intact, values } = checked;
        let header = *fragment.header();
        self.admit(sender, &header, is_intact)?;
        if self.is_duplicate(&header)? {
            return Ok(Pushed::Duplicate);
        }
        let squares = values.map_err(|fault| {
            self.reject(sender, DeltaRejection::Value { fragment: header.fragment, fault })
        })?;
        // With every fragment: other deltas may have been added after the first one of this delta.
        self.check_weight(sender, header.weight)?;
        self.staging.put(sender, header.fragment, fragment.payload())?;
        match self.record(&header, squares) {
            0 => self.complete(sender, header.weight),
            missing => Ok(Pushed::Staged { missing }),
        }
    }

    fn admit(
        &self,
        sender: MemberId,
        header: &FragmentHeader,
        is_intact: bool,
    ) -> Result<(), Rejection> {
        if header.kind != Kind::Delta {
            return Err(Rejection::Kind);
        }
        if header.member != sender {
            return Err(Rejection::Sender { sender, named: header.member });
        }
        if header.round != self.round {
            return Err(Rejection::Round { given: header.round, current: self.round });
        }
        let delta = self.members.get(&sender).ok_or(Rejection::Member(sender))?;
        if !header.fits(&self.layout()) {
            let (fragment, count) = (header.fragment, header.count);
            return Err(Rejection::Shape { fragment, count });
        }
        if !is_intact {
            return Err(Rejection::Digest(header.fragment));
        }
        match delta {
            Delta::Rejected(reason) => Err((*reason).into()),
            Delta::Expected | Delta::Received { .. } => Ok(()),
        }
    }

    /// Whether the fragment is here already. One that contradicts what is here is refused.
    fn is_duplicate(&self, header: &FragmentHeader) -> Result<bool, Rejection> {
        let Some(Delta::Received { weight, fragments, .. }) = self.members.get(&header.member)
        else {
            return Ok(false);
        };
        match fragments.get(header.fragment as usize).copied().flatten() {
            Some(received) if received.digest == header.digest => Ok(true),
            None if *weight == header.weight => Ok(false),
            Some(_) | None => Err(Rejection::Conflict(header.fragment)),
        }
    }

    /// Notes an admitted fragment, and returns how many are missing.
    fn record(&mut self, header: &FragmentHeader, squares: f64) -> u32 {
        let count = self.layout().fragments();
        let delta = self.members.entry(header.member).or_insert(Delta::Expected);
        if let Delta::Expected = delta {
            let fragments = vec![None; count as usize];
            *delta = Delta::Received { weight: header.weight, fragments, missing: count };
        }
        let Delta::Received { fragments, missing, .. } = delta else { return count };
        if let Some(slot) = fragments.get_mut(header.fragment as usize) {
            *slot = Some(Received { digest: header.digest, codec: header.codec, squares });
            *missing -= 1;
        }
        *missing
    }

    fn complete(&mut self, member: MemberId, weight: u32) -> Result<Pushed, PushError> {
        let Some(Delta::Received { fragments, .. }) = self.members.get(&member) else {
            return Err(Rejection::Member(member).into());
        };
        // By index and not by arrival, so that the verdict does not depend on the order.
        let norm = fragments.iter().flatten().map(|received| received.squares).sum::<f64>().sqrt();
        let codecs: Vec<Codec> = fragments.iter().flatten().map(|part| part.codec).collect();
        if let Some(max) = self.limits.max_norm
            && norm > max
        {
            return Err(self.reject(member, DeltaRejection::Norm { norm, max }).into());
        }
        let (staging, threads) = (&self.staging, self.limits.threads);
        if !add_staged(&mut self.accumulator, staging, member, &codecs, weight, threads) {
            self.is_damaged = true;
            return Err(PushError::Damaged);
        }
        self.total_weight += weight;
        self.discard(member);
        Ok(Pushed::Counted)
    }

    fn check_weight(&mut self, member: MemberId, weight: u32) -> Result<(), Rejection> {
        let total = self.total_weight;
        if weight == 0 || weight >= MAX_TOTAL_WEIGHT - total {
            return Err(self.reject(member, DeltaRejection::Weight { weight, total }));
        }
        Ok(())
    }

    fn reject(&mut self, member: MemberId, reason: DeltaRejection) -> Rejection {
        self.discard(member);
        self.members.insert(member, Delta::Rejected(reason));
        reason.into()
    }

    fn discard(&mut self, member: MemberId) {
        for fragment in 0..self.layout().fragments() {
            // What cannot be removed now only takes space until the next round begins, which reports it.
            let _ = self.staging.remove(member, fragment);
        }
    }
}

/// Adds a staged delta with several threads, each a contiguous part of the fragments. False if any could not be added.
fn add_staged(
    accumulator: &mut Accumulator,
    staging: &impl Staging,
    member: MemberId,
    codecs: &[Codec],
    weight: u32,
    threads: NonZeroUsize,
) -> bool {
    let mut parts: Vec<_> = (0..).zip(accumulator.fragments_mut().zip(codecs)).collect();
    let share = parts.len().div_ceil(threads.get());
    let add = |parts: &mut [(u32, (&mut [i64], &Codec))]| {
        let mut payload = Vec::new();
        parts.iter_mut().all(|(fragment, (sums, codec))| {
            staging.get(member, *fragment, &mut payload).is_ok()
                && add_fragment(sums, **codec, &payload, weight).is_ok()
        })
    };
    thread::scope(|scope| {
        let mut shares = parts.chunks_mut(share);
        let first = shares.next();
        let others: Vec<_> = shares.map(|share| scope.spawn(move || add(share))).collect();
        let first = first.is_none_or(add);
        others.into_iter().fold(first, |all, other| all & other.join().unwrap_or(false))
    })
}

impl From<DeltaRejection> for PushError {
    fn from(reason: DeltaRejection) -> PushError {
        PushError::Rejected(reason.into())
    }
}
