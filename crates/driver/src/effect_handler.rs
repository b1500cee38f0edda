//! What surrounds a shared machine.

use hypha_machine::{Machine, Released};
use hypha_model::Time;

use crate::Stopped;

/// Carries out what a machine wants. No method may wait; where it is said that the machine is locked, none may use it.
pub trait EffectHandler<M: Machine>: Send + Sync + 'static {
    /// How the requester of an event is reached.
    type Requester: Send + 'static;

    /// The time, which never goes back.
    fn now(&self) -> Time;

    /// The machine has made a step that began at `began`. The machine is locked.
    fn stepped(&self, _machine: &M, _began: Time) {}

    /// These records are about to be made durable.
    fn committing(&self, _records: &[M::Record]) {}

    /// The records of a batch are durable: carries out its effects, and gives its replies. Empties both. Batches come
    /// one after the other, in the order of their events.
    fn handle_released(&self, released: &mut Released<M, Self::Requester>);

    /// Carries out effects that have nothing durable at stake. They may come from many threads at once.
    fn handle_at_once(&self, effects: Vec<M::Effect>);

    /// Says to a requester that there will be no reply.
    fn refuse(&self, requester: Self::Requester, why: &Stopped);

    /// The machine wants to be woken earlier than [`crate::SharedMachine::set_alarm`] said.
    fn wake_earlier(&self);

    /// Nothing is left to be committed.
    fn settled(&self);

    /// The journal has failed, and the machine is stopped: it has to begin anew from what is durable
    /// ([`crate::SharedMachine::restart`]).
    fn journal_failed(&self, why: &Stopped);
}
