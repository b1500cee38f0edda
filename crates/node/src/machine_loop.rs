//! Drives a machine that one task owns: a loop that takes inputs, commits the machine's records, and has its effects
//! carried out.
//!
//! A machine that many threads use is driven by [`hypha_driver::SharedMachine`] instead.

use std::convert::Infallible;
use std::pin::Pin;
use std::time::Duration;

use hypha_machine::{Batch, Disk, Machine, Released, Step};
use tokio::sync::mpsc;

use crate::clock::Clock;

/// Inputs that are handled in one commit; their effects are carried out together.
const MAX_INPUTS_PER_COMMIT: usize = 1_024;

/// How long after a failed commit the machine is restarted: a full disk stays full for a while.
const RESTART_AFTER: Duration = Duration::from_secs(1);

/// Connects the machine of a loop to its inputs and its disk, and carries out its effects.
pub(crate) trait MachineHost<M: Machine>: Sized {
    /// An input from outside of the machine.
    type Input;
    /// Makes records durable.
    type Disk: Disk<M::Record, Error: std::fmt::Display>;

    /// Turns an input into events of the machine, if it concerns it.
    fn on_input(&mut self, input: Self::Input, events: &mut Vec<M::Event>);

    /// The disk that records are written to.
    fn disk(&mut self) -> &mut Self::Disk;

    /// Carries out effects whose records are durable. Events that they cause at once are added to `events`.
    async fn handle_effects(&mut self, effects: Vec<M::Effect>, events: &mut Vec<M::Event>);

    /// Starts the machine from its durable state. Returns it with its first step.
    fn start(&mut self) -> StartResult<M, Self>;

    /// Stops the runs of a machine that is abandoned.
    fn abandon(&mut self);

    /// Whether all runs of an abandoned machine have ended.
    fn is_idle(&self) -> bool;
}

/// See the module documentation.
pub(crate) struct MachineLoop<M: Machine, S: MachineHost<M>> {
    machine: M,
    batch: Batch<M, Infallible>,
    host: S,
    inputs: mpsc::Receiver<S::Input>,
    clock: Clock,
    /// Events that the machine has not been stepped with.
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

    /// Runs until `stopped`. If the disk fails, the machine restarts from its durable state as soon as it can.
    pub(crate) async fn run(&mut self, stopped: impl Future<Output = ()>) {
        tokio::pin!(stopped);
        while let Err(error) = self.drive(stopped.as_mut()).await {
            tracing::error!("cannot write to the disk: {error}; restarting when it works again");
            tokio::select! {
                () = &mut stopped => return,
                () = self.restart() => {}
            }
        }
    }

    /// Steps the machine with one more event, and commits.
    pub(crate) async fn step(&mut self, event: M::Event) -> Result<(), DiskError<M, S>> {
        self.events.push(event);
        self.commit().await
    }

    /// Waits for the next input and handles it. Returns false if all senders are dropped.
    pub(crate) async fn next(&mut self) -> Result<bool, DiskError<M, S>> {
        let Some(input) = self.inputs.recv().await else { return Ok(false) };
        self.host.on_input(input, &mut self.events);
        self.commit().await?;
        Ok(true)
    }

    /// Runs until `stopped`, until all senders of inputs are dropped, or until the disk fails.
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

    /// Steps the machine with the waiting events, commits, and carries out its effects, until no event is left.
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
            // They are for the abandoned machine.
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

/// A machine and its first step.
pub(crate) type StartResult<M, S> = Result<(M, Step<M>), DiskError<M, S>>;

/// Why the disk of a loop failed.
pub(crate) type DiskError<M, S> =
    <<S as MachineHost<M>>::Disk as Disk<<M as Machine>::Record>>::Error;
