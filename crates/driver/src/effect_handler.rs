//! The interface between a shared machine and its surroundings.

use hypha_machine::{Machine, Released};
use hypha_model::Time;

use crate::Stopped;

/// Carries out the effects of a machine. No method may block. A method that runs with the machine locked must not use
/// the [`SharedMachine`](crate::SharedMachine).
pub trait EffectHandler<M: Machine>: Send + Sync + 'static {
    /// Identifies the requester of an event, for its reply.
    type Requester: Send + 'static;

    /// The time. It never goes back.
    fn now(&self) -> Time;

    /// The machine made a step that began at `began`. The machine is locked.
    fn stepped(&self, _machine: &M, _began: Time) {}

    /// These records are about to be committed.
    fn committing(&self, _records: &[M::Record]) {}

    /// The records of a batch are durable: carries out its effects and delivers its replies. Empties both. Batches
    /// arrive one after the other, in the order of their events.
    fn handle_released(&self, released: &mut Released<M, Self::Requester>);

    /// Carries out effects that do not depend on a commit. May be called from many threads at once.
    fn handle_at_once(&self, effects: Vec<M::Effect>);

    /// Reports to a requester that there will be no reply.
    fn refuse(&self, requester: Self::Requester, why: &Stopped);

    /// The machine wants to be woken earlier than [`crate::SharedMachine::set_alarm`] returned.
    fn wake_earlier(&self);

    /// No commit is pending or in flight.
    fn settled(&self);

    /// The journal failed, and the machine is stopped: it has to restart from its durable state
    /// ([`crate::SharedMachine::restart`]).
    fn journal_failed(&self, why: &Stopped);
}
