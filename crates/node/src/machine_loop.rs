//! Drives a machine that one task owns: a loop that takes what happens, commits what the machine wants durable, and
//! has the rest carried out.
//!
//! A machine that many threads use is driven by [`hypha_driver::SharedMachine`] instead.

use std::convert::Infallible;
use std::pin::Pin;
use std::time::Duration;

use hypha_machine::{Batch, Disk, Machine, Released, Step};
use tokio::sync::mpsc;

use crate::clock::Clock;

/// Inputs that are stepped together: what they want sent leaves together.
const MAX_INPUTS_PER_COMMIT: usize = 1_024;

/// How long after a failed commit the machine is started anew: a full disk stays so for a while.
const RESTART_AFTER: Duration = Duration::from_secs(1);

/// What surrounds the machine of a loop.
pub(crate) trait MachineHost<M: Machine>: Sized {
    /// What happens outside.
    type Input;
    /// Makes records durable.
    type Disk: Disk<M::Record, Error: std::fmt::Display>;

    /// Something happened: says what that means to the machine, if anything.
    fn on_input(&mut self, input: Self::Input, events: &mut Vec<M::Event>);

    /// Where records go.
    fn disk(&mut self) -> &mut Self::Disk;

    /// Carries out effects whose records are durable. What follows from them at once goes to `events`.
    async fn handle_effects(&mut self, effects: Vec<M::Effect>, events: &mut Vec<M::Event>);

    /// The machine from what is durable, with what it wants at its start.
    fn start(&mut self) -> StartResult<M, Self>;

    /// The machine has been given up: stops what it started.
    fn abandon(&mut self);

    /// Whether nothing is left of a machine that was given up.
    fn is_idle(&self) -> bool;
}

/// See the head of this file.
pub(crate) struct MachineLoop<M: Machine, S: MachineHost<M>> {
    machine: M,
    batch: Batch<M, Infallible>,
    host: S,
    inputs: mpsc::Receiver<S::Input>,
    clock: Clock,
    /// Events that the machine has not seen.
    events: Vec<M::Event>,
}

impl<M: Machine, S: MachineHost<M>> MachineLoop<M, S> {
    pub(crate) fn new(
        machine: M,
        step: Step<M>,
        host: S,
        inputs: mpsc::Receiver<S::Input>,
        clock: Clock,
    ) -> MachineLoop<M, S> {
        let batch = Batch::from(step);
        MachineLoop { machine, batch, host, inputs, clock, events: Vec::new() }
    }

    pub(crate) fn machine(&self) -> &M {
        &self.machine
    }

    pub(crate) fn host(&self) -> &S {
        &self.host
    }

    /// Runs until told to stop. If the disk fails, the machine begins anew from what is durable as soon as it can.
    pub(crate) async fn run(&mut self, stopped: impl Future<Output = ()>) {
        tokio::pin!(stopped);
        while let Err(error) = self.drive(stopped.as_mut()).await {
            tracing::error!("cannot store anything: {error}; restarting when the disk works again");
            tokio::select! {
                () = &mut stopped => return,
                () = self.restart() => {}
            }
        }
    }

    /// One more event, now.
    pub(crate) async fn step(&mut self, event: M::Event) -> Result<(), DiskError<M, S>> {
        self.events.push(event);
        self.commit().await
    }

    /// Waits for the next input and takes it; false if none can come any more.
    pub(crate) async fn next(&mut self) -> Result<bool, DiskError<M, S>> {
        let Some(input) = self.inputs.recv().await else { return Ok(false) };
        self.host.on_input(input, &mut self.events);
        self.commit().await?;
        Ok(true)
    }

    /// Runs until told to stop or no input can come any more, or the disk fails.
    async fn drive(
        &mut self,
        mut stopped: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(), DiskError<M, S>> {
        let mut inputs = Vec::with_capacity(MAX_INPUTS_PER_COMMIT);
        loop {
            self.commit().await?;
            let wake = self.machine.wake_at(self.clock.now());
            let timer = async {
                match wake {
                    Some(wake) => self.clock.sleep_until(wake).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = &mut stopped => return Ok(()),
                () = timer => self.events.push(M::woke()),
                count = self.inputs.recv_many(&mut inputs, MAX_INPUTS_PER_COMMIT) => {
                    if count == 0 {
                        return Ok(());
                    }
                    for input in inputs.drain(..) {
                        self.host.on_input(input, &mut self.events);
                    }
                }
            }
        }
    }

    /// Steps the machine with the events that it has not seen, and carries out what it wants, until nothing is left.
    async fn commit(&mut self) -> Result<(), DiskError<M, S>> {
        loop {
            for event in self.events.drain(..) {
                self.batch.step_event(&mut self.machine, self.clock.now(), event);
            }
            let at_once = self.batch.take_at_once();
            if self.batch.is_empty() && at_once.is_empty() {
                return Ok(());
            }
            self.host.handle_effects(at_once, &mut self.events).await;
            let Released { effects, .. } = self.batch.seal().write(self.host.disk())?;
            self.host.handle_effects(effects, &mut self.events).await;
        }
    }

    /// Replaces a machine whose records could not be made durable.
    async fn restart(&mut self) {
        self.host.abandon();
        self.events.clear();
        while !self.host.is_idle() {
            let Some(input) = self.inputs.recv().await else { return };
            self.host.on_input(input, &mut self.events);
            // The machine that they are for is no more.
            self.events.clear();
        }
        loop {
            tokio::time::sleep(RESTART_AFTER).await;
            match self.host.start() {
                Ok((machine, step)) => {
                    self.machine = machine;
                    self.batch = Batch::from(step);
                    return;
                }
                Err(error) => tracing::debug!("cannot restart yet: {error}"),
            }
        }
    }
}

/// A machine with what it wants at its start.
pub(crate) type StartResult<M, S> = Result<(M, Step<M>), DiskError<M, S>>;

/// Why the disk of a loop failed.
pub(crate) type DiskError<M, S> =
    <<S as MachineHost<M>>::Disk as Disk<<M as Machine>::Record>>::Error;
