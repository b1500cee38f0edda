//! The worker's loop: carries messages and the ends of runs to the machine, and out what it wants sent and run.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hypha_engine::{
    FromWorker, Outcome, Run, RunId, Said, ToWorker, WorkerEvent, WorkerMachine, WorkerRecord,
    WorkerStep,
};
use hypha_model::{Payload, SchedulerId};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::runners::{Runners, Stopper};
use super::{channels::Outbox, epoch};
use crate::clock::Clock;
use crate::crash::{CrashPoint, crash_point};

/// Events that wait for the loop; whoever brings more waits.
pub(super) const MAX_EVENTS: usize = 4_096;

/// Events that are stepped together: what they want sent goes out in one frame.
const BATCH: usize = 1_024;

/// How long a scheduler may take to hear that this worker leaves: some round trips. After that the next life tells
/// it.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// What happens at a worker.
pub(super) enum Event {
    /// A scheduler has opened a channel.
    Opened(SchedulerId, Outbox),
    /// The channel with this number is closed.
    Closed(SchedulerId, u64),
    /// A scheduler said some things.
    Said(SchedulerId, Vec<ToWorker>),
    Progressed(RunId, u16),
    Produced(RunId, Payload),
    Ended(RunId, Outcome),
    /// Whether the server behind the executor at this place is well.
    Looked(usize, bool),
}

pub(super) struct Driver {
    machine: WorkerMachine,
    clock: Clock,
    data_dir: PathBuf,
    runners: Arc<Runners>,
    events: mpsc::Sender<Event>,
    outboxes: HashMap<SchedulerId, Outbox>,
    stoppers: HashMap<RunId, Stopper>,
    /// Where messages for the worker's own surface go.
    local: mpsc::Sender<FromWorker>,
}

impl Driver {
    pub(super) fn new(
        machine: WorkerMachine,
        clock: Clock,
        data_dir: PathBuf,
        runners: Arc<Runners>,
        events: mpsc::Sender<Event>,
        local: mpsc::Sender<FromWorker>,
    ) -> Driver {
        let (outboxes, stoppers) = (HashMap::new(), HashMap::new());
        Driver { machine, clock, data_dir, runners, events, outboxes, stoppers, local }
    }

    /// Runs until told to stop, and then until the holder of the lease knows. What the machine wanted at its start
    /// is in `step`.
    pub(super) async fn run(
        mut self,
        mut happened: mpsc::Receiver<Event>,
        mut step: WorkerStep,
        stop: CancellationToken,
    ) {
        self.live(&mut happened, &mut step, stop.cancelled()).await;
        step.clear();
        self.machine.step(self.clock.now(), WorkerEvent::AskedToLeave, &mut step);
        self.carry_out(&mut step).await;
        let told = async {
            while self.is_heard() {
                let Some(event) = happened.recv().await else { return };
                step.clear();
                self.happened(event, &mut step);
                self.carry_out(&mut step).await;
            }
        };
        if tokio::time::timeout(LEAVE_WITHIN, told).await.is_err() {
            tracing::warn!("the scheduler does not answer that this worker leaves; leaving");
        }
    }

    /// Whether somebody is still to answer that the worker leaves, and can.
    fn is_heard(&self) -> bool {
        self.machine.leaves().is_some_and(|holder| self.outboxes.contains_key(&holder))
    }

    async fn live(
        &mut self,
        happened: &mut mpsc::Receiver<Event>,
        step: &mut WorkerStep,
        stopped: impl Future<Output = ()>,
    ) {
        tokio::pin!(stopped);
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            self.carry_out(step).await;
            let wake = step.wake_at;
            step.clear();
            let timer = async {
                match wake {
                    Some(wake) => tokio::time::sleep_until(self.clock.instant(wake)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = &mut stopped => return,
                () = timer => self.machine.step(self.clock.now(), WorkerEvent::Woke, step),
                count = happened.recv_many(&mut batch, BATCH) => {
                    if count == 0 {
                        return;
                    }
                    step.wake_at = wake;
                    batch.drain(..).for_each(|event| self.happened(event, step));
                }
            }
        }
    }

    fn happened(&mut self, event: Event, step: &mut WorkerStep) {
        let now = self.clock.now();
        match event {
            Event::Opened(scheduler, outbox) => drop(self.outboxes.insert(scheduler, outbox)),
            Event::Closed(scheduler, number) => {
                if self.outboxes.get(&scheduler).is_some_and(|outbox| outbox.number == number) {
                    self.outboxes.remove(&scheduler);
                }
            }
            Event::Said(scheduler, messages) => {
                for message in messages {
                    let event = WorkerEvent::SchedulerSaid { scheduler, message };
                    self.machine.step(now, event, step);
                }
            }
            Event::Progressed(id, permille) => {
                self.machine.step(now, WorkerEvent::Progressed { id, permille }, step);
            }
            Event::Produced(id, piece) => {
                self.machine.step(now, WorkerEvent::Produced { id, piece }, step);
            }
            Event::Ended(id, outcome) => self.ended(id, outcome, step),
            Event::Looked(executor, well) => {
                self.machine.step(now, WorkerEvent::Looked { executor, well }, step);
            }
        }
    }

    fn ended(&mut self, id: RunId, outcome: Outcome, step: &mut WorkerStep) {
        self.stoppers.remove(&id);
        self.machine.step(self.clock.now(), WorkerEvent::Ended { id, outcome }, step);
    }

    /// Persists, sends, runs. Runs that take no time end here, and may let others begin.
    async fn carry_out(&mut self, step: &mut WorkerStep) {
        for record in step.persist.drain(..) {
            let written = match record {
                // It was written once when the worker started.
                WorkerRecord::Started(life) => epoch::write(&self.data_dir, life),
                WorkerRecord::Left(left) => epoch::write_left(&self.data_dir, left),
            };
            if let Err(error) = written {
                tracing::error!("cannot write {}: {error}", self.data_dir.display());
            }
        }
        while !step.run.is_empty() || !step.send.is_empty() {
            for run in std::mem::take(&mut step.run) {
                match run {
                    Run::Start { id, dispatch, executor, devices } => {
                        let runners = self.runners.clone();
                        match runners.run_at_once(executor, &dispatch) {
                            Some(outcome) => self.ended(id, outcome, step),
                            None => {
                                let events = self.events.clone();
                                let started =
                                    runners.start(id, executor, dispatch, devices, events);
                                self.stoppers.insert(id, started);
                            }
                        }
                    }
                    Run::Stop(id) => match self.stoppers.get(&id) {
                        Some(stopper) => stopper.stop(),
                        // It ended while we were told to stop it: its end is on its way.
                        None => tracing::debug!(?id, "nothing to stop"),
                    },
                }
            }
            let ended = |said: &Said| matches!(said.message, FromWorker::Finished { .. });
            if cfg!(feature = "crash-points") && step.send.iter().any(ended) {
                crash_point(CrashPoint::RanBeforeReport);
            }
            for Said { to, message } in std::mem::take(&mut step.send) {
                self.say(to, message).await;
            }
        }
    }

    async fn say(&mut self, to: SchedulerId, message: FromWorker) {
        if to == SchedulerId::LOCAL {
            // The worker's own surface always reads.
            let _ = self.local.send(message).await;
            return;
        }
        let is_piece = matches!(message, FromWorker::Output { .. });
        if let Some(outbox) = self.outboxes.get(&to)
            && outbox.messages.try_send(message).is_err()
            // The machine repeats everything else that matters until it is answered.
            && is_piece
        {
            // A stream that lost a piece is worse than one that is made anew.
            tracing::warn!(scheduler = %to, "too many messages wait for a scheduler: closing its channel");
            self.outboxes.remove(&to);
        }
    }
}
