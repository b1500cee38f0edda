//! Steps that are committed together, and the effects that their commit releases.

use hypha_model::Time;

use crate::Machine;
use crate::durable::{Disk, Journal};
use crate::step::{Reply, Step};

/// Collects the steps of many events. `Q` is how the driver reaches the requester of an event.
pub struct Batch<M: Machine, Q> {
    step: Step<M>,
    replies: Vec<(Q, M::Reply)>,
    /// Empty, with the space of an earlier batch.
    spare: Released<M, Q>,
}

/// A batch whose effects and replies are inaccessible until its records are durable. Dropping it loses them all, as a
/// crash does.
///
/// Its commit hands them out:
///
/// ```
/// # use hypha_machine::{Disk, Machine, Sealed};
/// fn effects<M: Machine, Q, D: Disk<M::Record>>(sealed: Sealed<M, Q>, disk: &mut D) -> Vec<M::Effect> {
///     sealed.write(disk).map(|released| released.effects).unwrap_or_default()
/// }
/// ```
///
/// and nothing else does:
///
/// ```compile_fail
/// # use hypha_machine::{Disk, Machine, Sealed};
/// fn effects<M: Machine, Q, D: Disk<M::Record>>(sealed: Sealed<M, Q>, disk: &mut D) -> Vec<M::Effect> {
///     sealed.released.effects
/// }
/// ```
pub struct Sealed<M: Machine, Q> {
    records: Vec<M::Record>,
    released: Released<M, Q>,
}

/// The effects and replies of a batch whose records are durable.
pub struct Released<M: Machine, Q> {
    /// To be carried out in this order.
    pub effects: Vec<M::Effect>,
    /// To be sent to their requesters.
    pub replies: Vec<(Q, M::Reply)>,
}

/// A batch that could not be made durable.
#[derive(Debug)]
pub struct FailedCommit<Q, E> {
    /// Why.
    pub error: E,
    /// The requesters that will get no reply.
    pub requesters: Vec<Q>,
}

impl<M: Machine, Q> Batch<M, Q> {
    /// Steps the machine with an event that has no requester.
    pub fn step_event(&mut self, machine: &mut M, now: Time, event: M::Event) {
        machine.step(now, event, &mut self.step);
        self.step.reply = None;
    }

    /// Steps the machine with a request. Returns the reply if it may be sent at once; otherwise the commit releases it.
    pub fn step_request(
        &mut self,
        machine: &mut M,
        now: Time,
        event: M::Event,
        requester: Q,
    ) -> Option<(Q, M::Reply)> {
        machine.step(now, event, &mut self.step);
        match self.step.reply.take() {
            Some(Reply::AtOnce(reply)) => Some((requester, reply)),
            Some(Reply::Sealed(reply)) => {
                self.replies.push((requester, reply));
                None
            }
            None => None,
        }
    }

    /// Adds a reply that could be sent at once to those that wait for the commit.
    pub fn reply_with_commit(&mut self, requester: Q, reply: M::Reply) {
        self.replies.push((requester, reply));
    }

    /// Takes the effects that may be carried out at once.
    pub fn take_at_once(&mut self) -> Vec<M::Effect> {
        std::mem::take(&mut self.step.at_once)
    }

    /// The records to be made durable so far.
    pub fn records(&self) -> &[M::Record] {
        &self.step.records
    }

    /// Whether there is nothing to commit or to release.
    pub fn is_empty(&self) -> bool {
        let Step { records, later, flush, effects, .. } = &self.step;
        let flushes = *flush && !later.is_empty();
        records.is_empty() && effects.is_empty() && self.replies.is_empty() && !flushes
    }

    /// Seals everything so far; the batch is empty afterwards, except for effects that may be carried out at once.
    pub fn seal(&mut self) -> Sealed<M, Q> {
        let spare = std::mem::take(&mut self.spare);
        let mut records = std::mem::take(&mut self.step.records);
        // Effects alone need no commit, and deferred records do not delay them.
        if !records.is_empty() || self.step.flush {
            self.step.flush = false;
            if !self.step.later.is_empty() {
                let rest = std::mem::replace(&mut records, std::mem::take(&mut self.step.later));
                records.extend(rest);
            }
        }
        Sealed {
            records,
            released: Released {
                effects: std::mem::replace(&mut self.step.effects, spare.effects),
                replies: std::mem::replace(&mut self.replies, spare.replies),
            },
        }
    }

    /// Reuses the allocations of a released batch for later batches.
    pub fn reuse(&mut self, mut done: Released<M, Q>) {
        done.effects.clear();
        done.replies.clear();
        self.spare = done;
    }

    /// Drops everything so far and returns the requesters that will get no reply.
    pub fn abandon(&mut self) -> impl Iterator<Item = Q> + use<M, Q> {
        self.step = Step::default();
        std::mem::take(&mut self.replies).into_iter().map(|(requester, _)| requester)
    }
}

impl<M: Machine, Q> From<Step<M>> for Batch<M, Q> {
    /// A batch that begins with the step of a machine's constructor.
    fn from(mut step: Step<M>) -> Self {
        // There was no requester yet.
        step.reply = None;
        Batch { step, ..Batch::default() }
    }
}

impl<M: Machine, Q> Default for Batch<M, Q> {
    fn default() -> Self {
        Batch { step: Step::default(), replies: Vec::new(), spare: Released::default() }
    }
}

impl<M: Machine, Q> Sealed<M, Q> {
    /// The records to be made durable.
    pub fn records(&self) -> &[M::Record] {
        &self.records
    }

    /// Releases a batch without records; a batch with records is returned unchanged.
    pub fn release_unrecorded(self) -> Result<Released<M, Q>, Sealed<M, Q>> {
        if self.records.is_empty() { Ok(self.released) } else { Err(self) }
    }

    /// Writes the records, and releases the effects and replies.
    pub fn write<D: Disk<M::Record>>(self, disk: &mut D) -> Result<Released<M, Q>, D::Error> {
        if !self.records.is_empty() {
            disk.write(self.records)?;
        }
        Ok(self.released)
    }

    /// Hands the records to a journal, which calls `then` as soon as they are durable or have failed. Without records,
    /// `then` is called immediately.
    pub fn commit<J: Journal<M::Record>>(
        self,
        journal: &J,
        then: impl FnOnce(Result<Released<M, Q>, FailedCommit<Q, J::Error>>) + Send + 'static,
    ) where
        M: 'static,
        M::Effect: Send,
        M::Reply: Send,
        Q: Send + 'static,
    {
        if self.records.is_empty() {
            return then(Ok(self.released));
        }
        let released = self.released;
        let done = move |done: Result<(), J::Error>| match done {
            Ok(()) => then(Ok(released)),
            Err(error) => {
                let requesters = released.replies.into_iter().map(|(requester, _)| requester);
                then(Err(FailedCommit { error, requesters: requesters.collect() }));
            }
        };
        journal.commit(self.records, Box::new(done));
    }
}

impl<M: Machine, Q> Default for Released<M, Q> {
    fn default() -> Self {
        Released { effects: Vec::new(), replies: Vec::new() }
    }
}
