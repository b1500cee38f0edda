//! The machine under its lock, and the commits.

use std::fmt;

use hypha_machine::{Batch, FailedCommit, Journal, Machine, Released, Sealed, Step};
use hypha_model::Time;

use crate::effect_handler::EffectHandler;
use crate::sync::{Arc, AtomicBool, Mutex, MutexGuard, Ordering, lock};

/// Events that one caller steps before it releases the lock. A step takes microseconds, so others wait for some hundred
/// microseconds at most.
pub const MAX_EVENTS_PER_HOLD: usize = 64;
/// Requests that a commit takes from the inbox under one hold of the lock: as many as a server has connections under
/// load, so that they share one wait for the disk.
pub const MAX_REQUESTS_PER_HOLD: usize = 1_024;

/// See the crate documentation.
pub struct SharedMachine<M: Machine, J, C: EffectHandler<M>> {
    guarded: Mutex<Guarded<M, C::Requester>>,
    /// Requests that the machine has not seen. Their replies wait for the disk anyway, so the next commit steps them,
    /// and their callers do not wait for the machine's lock. Bounded by the number of requests in flight.
    inbox: Mutex<Vec<(M::Event, C::Requester)>>,
    /// Whether a batch is being committed or its effects carried out. Only changed under the machine's lock.
    committing: AtomicBool,
    journal: J,
    handler: C,
}

struct Guarded<M: Machine, Q> {
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

impl<M, J, C> SharedMachine<M, J, C>
where
    M: Machine + Send + 'static,
    M::Event: Send,
    M::Record: Send,
    M::Effect: Send,
    M::Reply: Send,
    J: Journal<M::Record> + Send + Sync + 'static,
    J::Error: fmt::Display,
    C: EffectHandler<M>,
{
    /// A machine and the step that its construction made. Nothing is committed before the first call.
    pub fn new(machine: M, step: Step<M>, journal: J, handler: C) -> SharedMachine<M, J, C> {
        let batch = Batch::from(step);
        let guarded = Guarded { machine, batch, asleep_until: None, stopped: None };
        SharedMachine {
            guarded: Mutex::new(guarded),
            inbox: Mutex::new(Vec::new()),
            committing: AtomicBool::new(false),
            journal,
            handler,
        }
    }

    /// The handler of its effects.
    pub fn handler(&self) -> &C {
        &self.handler
    }

    /// The journal of its records.
    pub fn journal(&self) -> &J {
        &self.journal
    }

    /// Steps the machine with these events, in this order. Drops them if the machine is stopped. The machine is not
    /// locked while the iterator makes an event, which may take long.
    pub fn step_events(self: &Arc<Self>, events: impl IntoIterator<Item = M::Event>) {
        let mut events = events.into_iter();
        while let Some(first) = events.next() {
            // Mostly there is one event, and then this does not allocate.
            let others: Vec<M::Event> = events.by_ref().take(MAX_EVENTS_PER_HOLD - 1).collect();
            let mut guarded = lock(&self.guarded);
            if guarded.stopped.is_some() {
                return;
            }
            for event in std::iter::once(first).chain(others) {
                let began = self.handler.now();
                let Guarded { machine, batch, .. } = &mut *guarded;
                batch.step_event(machine, began, event);
                self.handler.stepped(&guarded.machine, began);
            }
            self.unlock_and_commit(guarded);
        }
    }

    /// Steps the machine with a request now. A reply that does not depend on a commit goes to `at_once`, with the
    /// machine locked, so that no effect of this or a later step is carried out before it. Any other reply is delivered
    /// with its commit ([`EffectHandler::handle_released`]).
    pub fn request<T>(
        self: &Arc<Self>,
        event: M::Event,
        requester: C::Requester,
        at_once: impl FnOnce(C::Requester, M::Reply) -> T,
    ) -> Option<T> {
        let mut guarded = lock(&self.guarded);
        let reply = self.step_request(&mut guarded, event, requester);
        let answered = reply.map(|(requester, reply)| at_once(requester, reply));
        self.unlock_and_commit(guarded);
        answered
    }

    /// Steps the machine with a request at the next commit, without waiting for its lock: for requests whose reply
    /// waits for the disk anyway.
    pub fn request_with_next_commit(self: &Arc<Self>, event: M::Event, requester: C::Requester) {
        lock(&self.inbox).push((event, requester));
        // A commit in flight reads the inbox when it ends.
        if !self.committing.load(Ordering::SeqCst) {
            let mut guarded = lock(&self.guarded);
            self.step_inbox(&mut guarded);
            self.unlock_and_commit(guarded);
        }
    }

    /// Reads the machine. `look` should be short, since all other callers wait.
    pub fn read<T>(&self, look: impl FnOnce(&M, Time) -> T) -> T {
        let guarded = lock(&self.guarded);
        look(&guarded.machine, self.handler.now())
    }

    /// Why the machine takes no events, if it does not.
    pub fn stopped(&self) -> Option<Stopped> {
        lock(&self.guarded).stopped.clone()
    }

    /// When to wake the machine ([`SharedMachine::wake`]). Until then, [`EffectHandler::wake_earlier`] is called if the
    /// machine wants to be woken earlier.
    pub fn set_alarm(&self) -> Option<Time> {
        let mut guarded = lock(&self.guarded);
        // A stopped machine is not stepped, so it would want to be woken again and again.
        let running = guarded.stopped.is_none();
        let until = running.then(|| guarded.machine.wake_at(self.handler.now())).flatten();
        guarded.asleep_until = until;
        until
    }

    /// The time of the alarm was reached.
    pub fn wake(self: &Arc<Self>) {
        self.step_events([M::woke()]);
    }

    /// Begins to commit the step that the machine's construction made.
    pub fn start(self: &Arc<Self>) {
        self.unlock_and_commit(lock(&self.guarded));
    }

    /// Replaces a stopped machine by one that `make` constructs from the durable state, with the step of its
    /// construction.
    pub fn restart(self: &Arc<Self>, make: impl FnOnce(&M) -> (M, Step<M>)) {
        let mut guarded = lock(&self.guarded);
        let (machine, step) = make(&guarded.machine);
        guarded.machine = machine;
        guarded.batch = Batch::from(step);
        guarded.stopped = None;
        self.unlock_and_commit(guarded);
    }

    /// Stops the machine if all records are durable and all effects carried out, or if it has already failed. Returns
    /// whether it is stopped; if not, [`EffectHandler::settled`] is called when it is worth another attempt.
    pub fn close(&self, why: &str) -> bool {
        let mut guarded = lock(&self.guarded);
        let nothing_left = guarded.batch.is_empty() && lock(&self.inbox).is_empty();
        let settled = !self.committing.load(Ordering::SeqCst);
        if settled && (nothing_left || guarded.stopped.is_some()) {
            guarded.stopped = Some(Stopped(why.into()));
            return true;
        }
        false
    }

    /// Stops the machine at once: it takes no more events. What was not durable by now may be lost, as in a crash.
    pub fn halt(&self, why: &str) {
        lock(&self.guarded).stopped.get_or_insert_with(|| Stopped(why.into()));
    }

    /// Releases the lock, begins to commit the pending records, and carries out the effects that do not depend on them.
    fn unlock_and_commit(self: &Arc<Self>, mut guarded: MutexGuard<'_, Guarded<M, C::Requester>>) {
        let sealed = self.begin_commit(&mut guarded);
        let at_once = self.unlock(guarded);
        match sealed {
            // The journal writes while this thread carries out the effects.
            Some(sealed) if !sealed.records().is_empty() => {
                self.commit_batches(sealed);
                self.run_at_once(at_once);
            }
            Some(sealed) => {
                self.run_at_once(at_once);
                self.commit_batches(sealed);
            }
            None => self.run_at_once(at_once),
        }
    }

    /// Releases the lock. Returns the effects that do not depend on a commit.
    fn unlock(&self, mut guarded: MutexGuard<'_, Guarded<M, C::Requester>>) -> Vec<M::Effect> {
        let at_once = guarded.batch.take_at_once();
        let wake =
            guarded.machine.wake_at(self.handler.now()).filter(|_| guarded.stopped.is_none());
        let earlier = match (wake, guarded.asleep_until) {
            (Some(wake), Some(asleep)) => wake < asleep,
            (Some(_), None) => true,
            (None, _) => false,
        };
        if earlier {
            // Reported only once: the handler sets the alarm again.
            guarded.asleep_until = wake;
        }
        drop(guarded);
        if earlier {
            self.handler.wake_earlier();
        }
        at_once
    }

    fn run_at_once(&self, effects: Vec<M::Effect>) {
        if !effects.is_empty() {
            self.handler.handle_at_once(effects);
        }
    }

    /// The batch to commit now, if there is one and no commit is in flight.
    fn begin_commit(
        &self,
        guarded: &mut Guarded<M, C::Requester>,
    ) -> Option<Sealed<M, C::Requester>> {
        if guarded.stopped.is_some()
            || guarded.batch.is_empty()
            || self.committing.swap(true, Ordering::SeqCst)
        {
            return None;
        }
        Some(guarded.batch.seal())
    }

    /// Commits a batch and carries out its effects, and then the next, until no batch is left. Never blocks: the rest
    /// runs when the journal calls back.
    fn commit_batches(self: &Arc<Self>, mut sealed: Sealed<M, C::Requester>) {
        let sealed = loop {
            match sealed.release_unrecorded() {
                Ok(released) => match self.finish_batch(released) {
                    Some(next) => sealed = next,
                    None => return,
                },
                Err(with_records) => break with_records,
            }
        };
        self.handler.committing(sealed.records());
        let shared = Arc::clone(self);
        sealed.commit(&self.journal, move |committed| match committed {
            Ok(released) => {
                if let Some(next) = shared.finish_batch(released) {
                    shared.commit_batches(next);
                }
            }
            Err(FailedCommit { error, requesters }) => shared.fail(&error.to_string(), requesters),
        });
    }

    /// A batch is durable: carries out its effects. Returns the next batch.
    fn finish_batch(
        self: &Arc<Self>,
        mut released: Released<M, C::Requester>,
    ) -> Option<Sealed<M, C::Requester>> {
        self.handler.handle_released(&mut released);
        let mut guarded = lock(&self.guarded);
        guarded.batch.reuse(released);
        self.step_inbox(&mut guarded);
        let mut next = None;
        if guarded.stopped.is_none() && !guarded.batch.is_empty() {
            next = Some(guarded.batch.seal());
        } else {
            self.committing.store(false, Ordering::SeqCst);
            // Requests that arrived while the flag was set rely on this thread to step them.
            if !lock(&self.inbox).is_empty() {
                self.step_inbox(&mut guarded);
                next = self.begin_commit(&mut guarded);
            }
        }
        let at_once = self.unlock(guarded);
        self.run_at_once(at_once);
        if next.is_none() {
            self.handler.settled();
        }
        next
    }

    /// Steps the machine with requests of the inbox.
    fn step_inbox(&self, guarded: &mut Guarded<M, C::Requester>) {
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
            // These requests get a reply at once only if they are refused. It can wait for the commit.
            if let Some((requester, reply)) = self.step_request(guarded, event, requester) {
                guarded.batch.reply_with_commit(requester, reply);
            }
        }
    }

    fn step_request(
        &self,
        guarded: &mut Guarded<M, C::Requester>,
        event: M::Event,
        requester: C::Requester,
    ) -> Option<(C::Requester, M::Reply)> {
        if let Some(why) = &guarded.stopped {
            self.handler.refuse(requester, why);
            return None;
        }
        let began = self.handler.now();
        let Guarded { machine, batch, .. } = guarded;
        let reply = batch.step_request(machine, began, event, requester);
        self.handler.stepped(&guarded.machine, began);
        reply
    }

    /// The journal failed: nothing is acknowledged until the machine restarts.
    fn fail(&self, error: &str, mut abandoned: Vec<C::Requester>) {
        let why = Stopped(format!("it cannot store anything: {error}").into());
        let mut guarded = lock(&self.guarded);
        guarded.stopped = Some(why.clone());
        self.committing.store(false, Ordering::SeqCst);
        while !lock(&self.inbox).is_empty() {
            self.step_inbox(&mut guarded);
        }
        abandoned.extend(guarded.batch.abandon());
        drop(guarded);
        abandoned.into_iter().for_each(|requester| self.handler.refuse(requester, &why));
        self.handler.journal_failed(&why);
        self.handler.settled();
    }
}
