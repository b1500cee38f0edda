//! The output of a machine. A machine can only add to it; only a batch reads it.

use crate::Machine;

/// The output of a machine for one or more events.
pub struct Step<M: Machine> {
    pub(crate) records: Vec<M::Record>,
    /// To be made durable with the next commit, before `records`.
    pub(crate) later: Vec<M::Record>,
    /// Whether `later` is committed now rather than with the next commit.
    pub(crate) flush: bool,
    pub(crate) effects: Vec<M::Effect>,
    pub(crate) at_once: Vec<M::Effect>,
    pub(crate) reply: Option<Reply<M::Reply>>,
}

/// The reply to the requester of the event that is being stepped.
pub(crate) enum Reply<R> {
    /// To be sent when every record before it is durable.
    Sealed(R),
    /// May be sent at once.
    AtOnce(R),
}

/// A position among the records of a step.
#[derive(Clone, Copy, Debug)]
pub struct Mark(usize);

impl<M: Machine> Step<M> {
    /// Makes a record durable, after those that were added before it.
    pub fn persist(&mut self, record: M::Record) {
        self.records.push(record);
    }

    /// The position of the next record.
    pub fn mark(&self) -> Mark {
        Mark(self.records.len())
    }

    /// Makes a record durable before those that were added since `mark` was taken in this step.
    pub fn persist_before(&mut self, mark: Mark, record: M::Record) {
        self.records.insert(mark.0.min(self.records.len()), record);
    }

    /// Makes a record durable with the next commit, whenever there is one, before the records that are added from now
    /// on. Nothing waits for it, and nothing may rely on it: it amends what an earlier commit made durable.
    pub fn persist_later(&mut self, record: M::Record) {
        self.later.push(record);
    }

    /// Commits the records of [`Step::persist_later`] now.
    pub fn flush(&mut self) {
        self.flush = true;
    }

    /// Carries out an effect once every record so far is durable.
    pub fn send(&mut self, effect: M::Effect) {
        self.effects.push(effect);
    }

    /// Carries out an effect at once: it relies on no record.
    pub fn send_at_once(&mut self, effect: M::Effect) {
        self.at_once.push(effect);
    }

    /// Replies to the requester of this event once every record so far is durable.
    pub fn reply(&mut self, reply: M::Reply) {
        self.reply = Some(Reply::Sealed(reply));
    }

    /// Replies to the requester of this event at once: the reply relies on no record.
    pub fn reply_at_once(&mut self, reply: M::Reply) {
        self.reply = Some(Reply::AtOnce(reply));
    }
}

impl<M: Machine> Default for Step<M> {
    fn default() -> Self {
        Step {
            records: Vec::new(),
            later: Vec::new(),
            flush: false,
            effects: Vec::new(),
            at_once: Vec::new(),
            reply: None,
        }
    }
}
