//! The machine under its lock, and the commits.

use std::fmt;

use hypha_machine::{Batch, Failed, Journal, Machine, Released, Sealed, Step};
use hypha_model::Time;

use crate::carrier::Carrier;
use crate::sync::{Arc, AtomicBool, Mutex, MutexGuard, Ordering, lock};

/// Events that one caller steps before it gives the lock back. A step takes microseconds, so others wait for some
/// hundred of them at most.
pub const MAX_EVENTS_PER_HOLD: usize = 64;
/// Requests that a commit takes in under one hold of the lock: as many as a server has connections under load, so that
/// they share one wait for the disk.
pub const MAX_REQUESTS_PER_HOLD: usize = 1_024;

/// See the head of this crate.
pub struct Shared<M: Machine, J, C: Carrier<M>> {
    held: Mutex<Held<M, C::Requester>>,
    /// Requests that the machine has not seen. They wait for the disk anyway, so the next commit takes them in, and
    /// their callers do not wait for the machine's lock. As many as there are requests in flight.
    inbox: Mutex<Vec<(M::Event, C::Requester)>>,
    /// Whether a batch is being committed or carried out. Only changed under the machine's lock.
    committing: AtomicBool,
    journal: J,
    carrier: C,
}

struct Held<M: Machine, Q> {
    machine: M,
    batch: Batch<M, Q>,
    asleep_until: Option<Time>,
    stopped: Option<Stopped>,
}

/// Why the machine takes no events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped(pub std::sync::Arc<str>);

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<M, J, C> Shared<M, J, C>
where
    M: Machine + Send + 'static,
    M::Event: Send,
    M::Record: Send,
    M::Effect: Send,
    M::Reply: Send,
    J: Journal<M::Record> + Send + Sync + 'static,
    J::Error: fmt::Display,
    C: Carrier<M>,
{
    /// A machine with what it wanted when it was made. Nothing of that is committed before the first call.
    pub fn new(machine: M, step: Step<M>, journal: J, carrier: C) -> Shared<M, J, C> {
        let batch = Batch::from(step);
        let held = Held { machine, batch, asleep_until: None, stopped: None };
        Shared {
            held: Mutex::new(held),
            inbox: Mutex::new(Vec::new()),
            committing: AtomicBool::new(false),
            journal,
            carrier,
        }
    }

    /// What surrounds the machine.
    pub fn carrier(&self) -> &C {
        &self.carrier
    }

    /// What makes its records durable.
    pub fn journal(&self) -> &J {
        &self.journal
    }

    /// These events happened, in this order. A stopped machine does not hear of them.
    pub fn tell(self: &Arc<Self>, events: impl IntoIterator<Item = M::Event>) {
        let mut events = events.into_iter().peekable();
        while events.peek().is_some() {
            let mut held = lock(&self.held);
            if held.stopped.is_some() {
                return;
            }
            for event in events.by_ref().take(MAX_EVENTS_PER_HOLD) {
                let began = self.carrier.now();
                let Held { machine, batch, .. } = &mut *held;
                batch.tell(machine, began, event);
                self.carrier.stepped(&held.machine, began);
            }
            self.leave(held);
        }
    }

    /// Asks the machine now. A reply that has nothing durable at stake goes to `at_once`, with the machine locked, so
    /// that nothing that follows from it is carried out before; any other comes with its commit
    /// ([`Carrier::released`]).
    pub fn ask<T>(
        self: &Arc<Self>,
        event: M::Event,
        requester: C::Requester,
        at_once: impl FnOnce(C::Requester, M::Reply) -> T,
    ) -> Option<T> {
        let mut held = lock(&self.held);
        let reply = self.step_request(&mut held, event, requester);
        let answered = reply.map(|(requester, reply)| at_once(requester, reply));
        self.leave(held);
        answered
    }

    /// Asks the machine when it is next committed, without waiting for its lock: for requests whose reply waits for
    /// the disk anyway.
    pub fn ask_with_next_commit(self: &Arc<Self>, event: M::Event, requester: C::Requester) {
        lock(&self.inbox).push((event, requester));
        // A commit in flight looks into the inbox when it ends.
        if !self.committing.load(Ordering::SeqCst) {
            let mut held = lock(&self.held);
            self.take_in(&mut held);
            self.leave(held);
        }
    }

    /// Looks at the machine: for as short as possible, since all others wait.
    pub fn read<T>(&self, look: impl FnOnce(&M, Time) -> T) -> T {
        let held = lock(&self.held);
        look(&held.machine, self.carrier.now())
    }

    /// Why the machine takes no events, if it does not.
    pub fn stopped(&self) -> Option<Stopped> {
        lock(&self.held).stopped.clone()
    }

    /// When to wake the machine ([`Shared::wake`]). Until then, [`Carrier::wake_earlier`] is called if it wants to be
    /// woken earlier.
    pub fn set_alarm(&self) -> Option<Time> {
        let mut held = lock(&self.held);
        // A machine that is not stepped would want to be woken again and again.
        let running = held.stopped.is_none();
        let until = running.then(|| held.machine.wake_at(self.carrier.now())).flatten();
        held.asleep_until = until;
        until
    }

    /// The time of the alarm has come.
    pub fn wake(self: &Arc<Self>) {
        self.tell([M::woke()]);
    }

    /// Begins to commit what the machine wanted when it was made.
    pub fn start(self: &Arc<Self>) {
        self.leave(lock(&self.held));
    }

    /// Replaces a stopped machine by one that was made from what is durable, with what it wanted then.
    pub fn restart(self: &Arc<Self>, make: impl FnOnce(&M) -> (M, Step<M>)) {
        let mut held = lock(&self.held);
        let (machine, step) = make(&held.machine);
        held.machine = machine;
        held.batch = Batch::from(step);
        held.stopped = None;
        self.leave(held);
    }

    /// Takes no more events if everything that was wanted is durable and has been carried out, or never will be. Says
    /// whether that is so; if not, [`Carrier::settled`] is called when it may be.
    pub fn close(&self, why: &str) -> bool {
        let mut held = lock(&self.held);
        let nothing_left = held.batch.is_empty() && lock(&self.inbox).is_empty();
        let settled = !self.committing.load(Ordering::SeqCst);
        if settled && (nothing_left || held.stopped.is_some()) {
            held.stopped = Some(Stopped(why.into()));
            return true;
        }
        false
    }

    /// Gives the lock back, begins to commit what is to be durable, and carries out what may leave at once.
    fn leave(self: &Arc<Self>, mut held: MutexGuard<'_, Held<M, C::Requester>>) {
        let sealed = self.begin_commit(&mut held);
        let at_once = self.unlock(held);
        match sealed {
            // The journal works while we do.
            Some(sealed) if !sealed.records().is_empty() => {
                self.pump(sealed);
                self.carry_out_at_once(at_once);
            }
            Some(sealed) => {
                self.carry_out_at_once(at_once);
                self.pump(sealed);
            }
            None => self.carry_out_at_once(at_once),
        }
    }

    /// Gives the lock back. Returns what may leave at once.
    fn unlock(&self, mut held: MutexGuard<'_, Held<M, C::Requester>>) -> Vec<M::Effect> {
        let at_once = held.batch.take_at_once();
        let wake = held.machine.wake_at(self.carrier.now()).filter(|_| held.stopped.is_none());
        let earlier = match (wake, held.asleep_until) {
            (Some(wake), Some(asleep)) => wake < asleep,
            (Some(_), None) => true,
            (None, _) => false,
        };
        if earlier {
            // Said once: the alarm is set anew because of it.
            held.asleep_until = wake;
        }
        drop(held);
        if earlier {
            self.carrier.wake_earlier();
        }
        at_once
    }

    fn carry_out_at_once(&self, effects: Vec<M::Effect>) {
        if !effects.is_empty() {
            self.carrier.at_once(effects);
        }
    }

    /// What is to be committed now, if there is something and no commit is in flight.
    fn begin_commit(&self, held: &mut Held<M, C::Requester>) -> Option<Sealed<M, C::Requester>> {
        if held.stopped.is_some()
            || held.batch.is_empty()
            || self.committing.swap(true, Ordering::SeqCst)
        {
            return None;
        }
        Some(held.batch.seal())
    }

    /// Commits a batch and carries it out, and then the next, until there is nothing more. Never waits: the rest is
    /// done when the journal has answered.
    fn pump(self: &Arc<Self>, mut sealed: Sealed<M, C::Requester>) {
        let sealed = loop {
            match sealed.release_unrecorded() {
                Ok(released) => match self.carry_out(released) {
                    Some(next) => sealed = next,
                    None => return,
                },
                Err(with_records) => break with_records,
            }
        };
        self.carrier.committing(sealed.records());
        let shared = Arc::clone(self);
        sealed.commit(&self.journal, move |committed| match committed {
            Ok(released) => {
                if let Some(next) = shared.carry_out(released) {
                    shared.pump(next);
                }
            }
            Err(Failed { error, requesters }) => shared.fail(&error.to_string(), requesters),
        });
    }

    /// A batch is durable. Returns the next.
    fn carry_out(
        self: &Arc<Self>,
        mut released: Released<M, C::Requester>,
    ) -> Option<Sealed<M, C::Requester>> {
        self.carrier.released(&mut released);
        let mut held = lock(&self.held);
        held.batch.reuse(released);
        self.take_in(&mut held);
        let mut next = None;
        if held.stopped.is_none() && !held.batch.is_empty() {
            next = Some(held.batch.seal());
        } else {
            self.committing.store(false, Ordering::SeqCst);
            // Requests that came before that count on us.
            if !lock(&self.inbox).is_empty() {
                self.take_in(&mut held);
                next = self.begin_commit(&mut held);
            }
        }
        let at_once = self.unlock(held);
        self.carry_out_at_once(at_once);
        if next.is_none() {
            self.carrier.settled();
        }
        next
    }

    /// Steps the machine with requests that wait.
    fn take_in(&self, held: &mut Held<M, C::Requester>) {
        let requests = {
            let mut inbox = lock(&self.inbox);
            match inbox.len() > MAX_REQUESTS_PER_HOLD {
                true => {
                    let rest = inbox.split_off(MAX_REQUESTS_PER_HOLD);
                    std::mem::replace(&mut *inbox, rest)
                }
                false => std::mem::take(&mut *inbox),
            }
        };
        for (event, requester) in requests {
            // What waits for the disk is answered at once only if it was refused: in its turn will do.
            if let Some((requester, reply)) = self.step_request(held, event, requester) {
                held.batch.reply_with_commit(requester, reply);
            }
        }
    }

    fn step_request(
        &self,
        held: &mut Held<M, C::Requester>,
        event: M::Event,
        requester: C::Requester,
    ) -> Option<(C::Requester, M::Reply)> {
        if let Some(why) = &held.stopped {
            self.carrier.refuse(requester, why);
            return None;
        }
        let began = self.carrier.now();
        let Held { machine, batch, .. } = held;
        let reply = batch.ask(machine, began, event, requester);
        self.carrier.stepped(&held.machine, began);
        reply
    }

    /// The journal has failed: nothing is acknowledged until the machine begins anew.
    fn fail(&self, error: &str, mut abandoned: Vec<C::Requester>) {
        let why = Stopped(format!("it cannot store anything: {error}").into());
        let mut held = lock(&self.held);
        held.stopped = Some(why.clone());
        self.committing.store(false, Ordering::SeqCst);
        while !lock(&self.inbox).is_empty() {
            self.take_in(&mut held);
        }
        abandoned.extend(held.batch.abandon());
        drop(held);
        abandoned.into_iter().for_each(|requester| self.carrier.refuse(requester, &why));
        self.carrier.failed(&why);
        self.carrier.settled();
    }
}
