//! Drives any machine as the node's driver does: events keep stepping it while a commit is in flight, and only a
//! commit releases the effects that waited for it. A crash may happen at any point.

use hypha_machine::{Batch, Released, Step};
use hypha_model::Span;

use super::World;
use super::event_queue::{NodeEvent, WorldEvent};
use super::faults::CrashPoint;
use super::host::{Release, Role};
use super::nodes::Node;
use crate::checkers::Violation;

/// A process that has sent a part of a step's effects may have sent its immediate ones, or not.
const IMMEDIATE_SENT_SHARE: f64 = 0.5;

impl World {
    /// Steps a machine with an event. A machine that is down does not receive it.
    pub(super) fn tell<R: Role>(&mut self, at: usize, event: R::Event) -> Result<(), Violation> {
        self.step::<R>(at, event, None)
    }

    /// Sends a request to a machine. A machine that is down does not reply.
    pub(super) fn ask<R: Role>(
        &mut self,
        at: usize,
        event: R::Event,
        requester: R::Requester,
    ) -> Result<(), Violation> {
        self.step::<R>(at, event, Some(requester))
    }

    /// A timer, commit or restart of a node is due.
    pub(super) fn node_event<R: Role>(
        &mut self,
        at: usize,
        event: NodeEvent,
    ) -> Result<(), Violation> {
        let host = &mut R::hosts(self)[at];
        match event {
            NodeEvent::Wake { at: wake } if host.wake_at == Some(wake) => {
                host.wake_at = None;
                self.tell::<R>(at, R::woke())
            }
            NodeEvent::CommitEnds { machine } if host.machine_generation == machine => {
                self.end_commit::<R>(at)?;
                self.begin_commit::<R>(at)?;
                self.set_alarm::<R>(at);
                R::stepped(self, at)
            }
            NodeEvent::Restart if host.is_up && host.machine.is_none() => self.begin::<R>(at),
            NodeEvent::Wake { .. } | NodeEvent::CommitEnds { .. } | NodeEvent::Restart => Ok(()),
        }
    }

    /// Starts the process of a node, if it is down.
    pub(super) fn start<R: Role>(&mut self, at: usize) -> Result<(), Violation> {
        let host = &mut R::hosts(self)[at];
        host.crash = None;
        if host.is_up {
            return Ok(());
        }
        host.is_up = true;
        host.clock = host.clock.set_by(std::mem::take(&mut host.clock_set_by));
        R::process_changed(self, at, true);
        self.begin::<R>(at)
    }

    /// Ends the process of a node, with all that is not durable.
    pub(super) fn end_process<R: Role>(&mut self, at: usize) {
        self.note(|| format!("{} crashes", R::node(at)));
        let host = &mut R::hosts(self)[at];
        host.is_up = false;
        host.incarnation += 1;
        self.lose_machine::<R>(at);
        R::process_changed(self, at, false);
    }

    fn step<R: Role>(
        &mut self,
        at: usize,
        event: R::Event,
        requester: Option<R::Requester>,
    ) -> Result<(), Violation> {
        let now = self.now;
        let host = &mut R::hosts(self)[at];
        let local = host.clock.local(now);
        let Some(machine) = &mut host.machine else { return Ok(()) };
        let reply = match requester {
            Some(requester) => host.batch.step_request(machine, local, event, requester),
            None => {
                host.batch.step_event(machine, local, event);
                None
            }
        };
        let at_once = host.batch.take_at_once();
        let crash = host.crash.take();
        if crash.is_none() || self.rng.chance(IMMEDIATE_SENT_SHARE) {
            if let Some((requester, reply)) = reply {
                R::reply(self, at, requester, reply, Release::AtOnce)?;
            }
            for effect in at_once {
                R::handle(self, at, effect, Release::AtOnce)?;
            }
        }
        if let Some(point) = crash {
            return self.crash::<R>(at, point);
        }
        self.begin_commit::<R>(at)?;
        self.set_alarm::<R>(at);
        R::stepped(self, at)
    }

    /// Commits the records of the steps so far, if no commit is in flight.
    fn begin_commit<R: Role>(&mut self, at: usize) -> Result<(), Violation> {
        let host = &mut R::hosts(self)[at];
        if host.in_flight.is_some() || host.batch.is_empty() {
            return Ok(());
        }
        match host.batch.seal().release_unrecorded() {
            Ok(released) => self.release::<R>(at, released),
            Err(sealed) => {
                host.in_flight = Some(sealed);
                let machine = host.machine_generation;
                let most = self.max_commit_time(R::node(at));
                if most == Span::ZERO {
                    return self.end_commit::<R>(at);
                }
                let ends = self.now + Span::from_micros(1 + self.rng.below(most.as_micros()));
                self.events
                    .add(ends, WorldEvent::Node(R::node(at), NodeEvent::CommitEnds { machine }));
                Ok(())
            }
        }
    }

    /// How long a commit takes at most. Nothing of an HTTP worker is durable: its scheduler knows its runs.
    fn max_commit_time(&self, node: Node) -> Span {
        match node {
            Node::Worker(at) if self.is_http(at) => Span::ZERO,
            _ => self.fault_schedule.max_commit_time,
        }
    }

    /// The disk has answered.
    fn end_commit<R: Role>(&mut self, at: usize) -> Result<(), Violation> {
        let full_until = self.fault_schedule.full_until(R::node(at), self.now);
        let host = &mut R::hosts(self)[at];
        let Some(sealed) = host.in_flight.take() else { return Ok(()) };
        host.disk.is_full = full_until.is_some();
        match sealed.write(&mut host.disk) {
            Ok(released) => {
                self.report_persisted::<R>(at)?;
                self.release::<R>(at, released)
            }
            Err(why) => {
                self.note(|| format!("{}: {why}", R::node(at)));
                self.lose_machine::<R>(at);
                let again_at = full_until.unwrap_or(self.now);
                self.events.add(again_at, WorldEvent::Node(R::node(at), NodeEvent::Restart));
                Ok(())
            }
        }
    }

    fn report_persisted<R: Role>(&mut self, at: usize) -> Result<(), Violation> {
        let written = std::mem::take(&mut R::hosts(self)[at].disk.written);
        R::persisted(self, at, &written)
    }

    fn release<R: Role>(
        &mut self,
        at: usize,
        mut released: Released<R, R::Requester>,
    ) -> Result<(), Violation> {
        for effect in released.effects.drain(..) {
            R::handle(self, at, effect, Release::Committed)?;
        }
        for (requester, reply) in released.replies.drain(..) {
            R::reply(self, at, requester, reply, Release::Committed)?;
        }
        R::hosts(self)[at].batch.reuse(released);
        Ok(())
    }

    /// The process dies during its oldest commit. Later steps are lost in any case.
    fn crash<R: Role>(&mut self, at: usize, point: CrashPoint) -> Result<(), Violation> {
        let full = self.fault_schedule.full_until(R::node(at), self.now).is_some();
        let host = &mut R::hosts(self)[at];
        host.disk.is_full = full;
        let sealed = host.in_flight.take().unwrap_or_else(|| host.batch.seal());
        if point != CrashPoint::BeforePersist
            && let Ok(mut released) = sealed.write(&mut host.disk)
        {
            self.report_persisted::<R>(at)?;
            if point == CrashPoint::DuringSend {
                let part =
                    |rng: &mut hypha_model::Rng, len: usize| rng.below(len as u64 + 1) as usize;
                released.effects.truncate(part(&mut self.rng, released.effects.len()));
                released.replies.truncate(part(&mut self.rng, released.replies.len()));
                self.release::<R>(at, released)?;
            }
        }
        self.end_process::<R>(at);
        Ok(())
    }

    /// A new machine begins from what is durable.
    fn begin<R: Role>(&mut self, at: usize) -> Result<(), Violation> {
        let now = self.now;
        let host = &mut R::hosts(self)[at];
        let mut step = Step::default();
        let (image, local) = (host.disk.image().clone(), host.clock.local(now));
        host.machine = Some(R::start(&host.setup, image, host.seed, local, &mut step));
        host.batch = Batch::from(step);
        R::machine_changed(self, at, true);
        self.begin_commit::<R>(at)?;
        self.set_alarm::<R>(at);
        Ok(())
    }

    /// The machine has ended, with everything that is not durable.
    fn lose_machine<R: Role>(&mut self, at: usize) {
        let host = &mut R::hosts(self)[at];
        host.machine = None;
        host.machine_generation += 1;
        host.batch = Batch::default();
        host.in_flight = None;
        host.wake_at = None;
        R::machine_changed(self, at, false);
    }

    fn set_alarm<R: Role>(&mut self, at: usize) {
        let now = self.now;
        let host = &mut R::hosts(self)[at];
        let wanted = host.machine.as_ref().and_then(|it| it.wake_at(host.clock.local(now)));
        let wake = wanted.map(|wake| host.clock.true_time(wake).max(now));
        if wake != host.wake_at {
            host.wake_at = wake;
            if let Some(at_time) = wake {
                self.events
                    .add(at_time, WorldEvent::Node(R::node(at), NodeEvent::Wake { at: at_time }));
            }
        }
    }
}
