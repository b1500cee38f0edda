//! The roles of Hypha as pure state machines.
//!
//! A machine is stepped with the time and one event, and says what is to be done: what to make durable,
//! what to send, what to run, and when to wake it. It knows no clock, no socket, no disk. A driver (the
//! node, or the simulator) carries a step out under one rule: **nothing in `send` or `run` leaves before
//! `persist` is durable.**
//!
//! Steps accumulate: a driver may step through many events into one [`Step`] and commit them together.

pub mod message;
pub mod mutant;
pub mod record;
pub mod scheduler;
pub mod worker;

use hypha_model::Time;

pub use message::{Dispatch, FromWorker, Outcome, ToWorker};
pub use mutant::Mutant;
pub use record::{Image, Record};
pub use scheduler::{
    Command, Effect, NewTask, Notice, Reject, Reply, RetryPolicy, Scheduler, SchedulerEvent,
    SchedulerStep, Settings, Submitted,
};
pub use worker::{Leaving, Run, RunId, Said, WorkerEvent, WorkerMachine, WorkerRecord, WorkerStep};

/// What a driver has to do after one or more events: persist first, then the rest.
#[derive(Clone, Debug)]
pub struct Step<P, S, R> {
    /// To be made durable, in this order, in one transaction.
    pub persist: Vec<P>,
    /// To be sent once that is durable.
    pub send: Vec<S>,
    /// May be sent at once: of requests that are not stored, so that nothing durable is at stake.
    pub at_once: Vec<S>,
    /// To be run or stopped once that is durable.
    pub run: Vec<R>,
    /// When the machine wants to be stepped with its `Woke` event at the latest. Replaces any earlier wish.
    pub wake_at: Option<Time>,
}

impl<P, S, R> Default for Step<P, S, R> {
    fn default() -> Self {
        Step {
            persist: Vec::new(),
            send: Vec::new(),
            at_once: Vec::new(),
            run: Vec::new(),
            wake_at: None,
        }
    }
}

impl<P, S, R> Step<P, S, R> {
    /// Empties the step for the next events, keeping its space.
    pub fn clear(&mut self) {
        self.persist.clear();
        self.send.clear();
        self.at_once.clear();
        self.run.clear();
        self.wake_at = None;
    }
}
