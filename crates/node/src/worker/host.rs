//! The host of the worker's machine: the channels to schedulers, the runs, and the files with its epoch.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hypha_engine::{
    Advertiser, FromWorker, Notary, Outcome, OutgoingMessage, OwnerState, RunCommand, RunId,
    ToWorker, WorkerEffect, WorkerEvent, WorkerMachine, WorkerRecord, WorkerStep,
};
use hypha_machine::Disk;
use hypha_market::Terms;
use hypha_model::{AdvertId, AttemptId, Payload, SchedulerId, Usage, Worker};
use hypha_net::{Multiaddr, PeerId, scheduler_id};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::offers::OfferSender;
use super::runners::{Runners, Stopper};
use super::start_reports::StartReports;
use super::{channels::Outbox, epoch, receipts};
use crate::crash::{CrashPoint, crash_point};
use crate::machine_loop::{MachineHost, MachineLoop};

/// Inputs queued for the loop; when there are more, senders wait.
pub(super) const MAX_EVENTS: usize = 4_096;

/// How long a scheduler may take to acknowledge that this worker leaves: some round trips. After that, the next
/// incarnation reports it.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// An input of the worker's loop.
pub(super) enum WorkerInput {
    /// A scheduler has opened a channel.
    ChannelOpened(SchedulerId, Outbox),
    /// The channel with this number is closed.
    ChannelClosed(SchedulerId, u64),
    /// A scheduler has sent messages.
    Received(SchedulerId, Vec<ToWorker>),
    Progressed(RunId, u16),
    Output(RunId, Payload),
    Ended(RunId, Outcome),
    /// Calls may have run long enough for their start to be reported.
    StartsDue,
    /// Whether the back end of the executor at this index is healthy.
    HealthChecked(usize, bool),
    /// How much of the machine is in use.
    UsageMeasured(Usage),
    /// What the owner wants has changed.
    OwnerChanged(OwnerState),
    /// An advert arrived by gossip.
    AdvertReceived(Box<ReceivedAdvert>),
    /// The end of an advert arrived by gossip.
    AdvertClosed(PeerId, AdvertId),
    /// Others reach this node through a relay, or no longer.
    ReachabilityChanged {
        is_relayed: bool,
    },
}

/// An advert, and the scheduler that it is by.
pub(super) struct ReceivedAdvert {
    pub(super) from: PeerId,
    pub(super) organisation: String,
    pub(super) addresses: Vec<Multiaddr>,
    pub(super) advert: hypha_wire::Advert,
}

/// See the module documentation.
pub(super) struct WorkerHost {
    pub(super) worker: Arc<Worker>,
    pub(super) files: EpochFiles,
    /// What the owner wants, for the next incarnation.
    pub(super) owner: OwnerState,
    pub(super) terms: Terms,
    pub(super) runners: Arc<Runners>,
    pub(super) events: mpsc::Sender<WorkerInput>,
    /// Messages for the worker's own task instance.
    pub(super) local: mpsc::Sender<FromWorker>,
    pub(super) outboxes: HashMap<SchedulerId, Outbox>,
    pub(super) runs: HashMap<RunId, ActiveRun>,
    pub(super) starts: StartReports,
    pub(super) offers: OfferSender,
    /// Signs receipts.
    pub(super) notary: Arc<dyn Notary>,
    /// Whether others reach this node through a relay.
    pub(super) is_relayed: bool,
}

/// A run that has not ended.
pub(super) struct ActiveRun {
    attempt: AttemptId,
    stopper: Stopper,
}

/// The files in which a worker keeps its epoch.
pub(super) struct EpochFiles(pub(super) PathBuf);

/// Runs until `stop`, and then until the holders of leases have acknowledged that this worker leaves.
pub(super) async fn run(
    mut machine_loop: MachineLoop<WorkerMachine, WorkerHost>,
    stop: CancellationToken,
) {
    machine_loop.run(stop.cancelled()).await;
    let leaving = async {
        machine_loop.step(WorkerEvent::LeaveRequested).await?;
        while has_unacknowledged_leave(&machine_loop) && machine_loop.next().await? {}
        io::Result::Ok(())
    };
    match tokio::time::timeout(LEAVE_TIMEOUT, leaving).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!("cannot record that this worker leaves: {error}"),
        Err(_) => tracing::warn!(
            "a scheduler did not acknowledge in time that this worker leaves; leaving anyway"
        ),
    }
}

/// Whether a connected scheduler has yet to acknowledge that the worker leaves.
fn has_unacknowledged_leave(machine_loop: &MachineLoop<WorkerMachine, WorkerHost>) -> bool {
    let outboxes = &machine_loop.host().outboxes;
    machine_loop.machine().unreleased_holders().any(|holder| outboxes.contains_key(&holder))
}

impl MachineHost<WorkerMachine> for WorkerHost {
    type Input = WorkerInput;
    type Disk = EpochFiles;

    fn on_input(&mut self, event: WorkerInput, events: &mut Vec<WorkerEvent>) {
        match event {
            WorkerInput::ChannelOpened(scheduler, outbox) => {
                events.extend(advertiser(scheduler, &outbox).map(WorkerEvent::SchedulerConnected));
                self.outboxes.insert(scheduler, outbox);
            }
            WorkerInput::ChannelClosed(scheduler, number) => {
                if self.outboxes.get(&scheduler).is_some_and(|outbox| outbox.number == number) {
                    self.outboxes.remove(&scheduler);
                }
            }
            WorkerInput::Received(scheduler, messages) => {
                let event = |message| WorkerEvent::SchedulerMessageReceived { scheduler, message };
                events.extend(messages.into_iter().map(event));
            }
            WorkerInput::Progressed(id, permille) => {
                events.push(WorkerEvent::Progressed { id, permille })
            }
            WorkerInput::Output(id, piece) => self.forward_output(id, piece),
            WorkerInput::Ended(id, outcome) => {
                self.runs.remove(&id);
                self.starts.take(id);
                events.push(WorkerEvent::Ended { id, outcome, run: None });
            }
            WorkerInput::StartsDue => self.report_starts(),
            WorkerInput::HealthChecked(executor, is_healthy) => {
                events.push(WorkerEvent::BackEndChecked { executor, is_healthy })
            }
            WorkerInput::UsageMeasured(usage) => events.push(WorkerEvent::UsageMeasured(usage)),
            WorkerInput::OwnerChanged(state) => {
                self.owner = state;
                events.push(WorkerEvent::OwnerChanged(state));
            }
            WorkerInput::AdvertReceived(received) => {
                let ReceivedAdvert { from, organisation, addresses, advert } = *received;
                let scheduler = self.offers.remember(from, addresses);
                if let Ok(organisation) = organisation.parse() {
                    let from = Advertiser { scheduler, organisation };
                    let advert = Arc::new(advert.into());
                    events.push(WorkerEvent::AdvertReceived { from, advert });
                }
            }
            WorkerInput::AdvertClosed(from, advert) => {
                events.push(WorkerEvent::AdvertClosed { scheduler: scheduler_id(&from), advert });
            }
            WorkerInput::ReachabilityChanged { is_relayed } => {
                self.is_relayed = is_relayed;
                events.push(WorkerEvent::ReachabilityChanged { is_relayed });
            }
        }
    }

    fn disk(&mut self) -> &mut EpochFiles {
        &mut self.files
    }

    async fn handle_effects(&mut self, effects: Vec<WorkerEffect>, events: &mut Vec<WorkerEvent>) {
        let mut effects = effects.into_iter().peekable();
        while let Some(effect) = effects.next() {
            match effect {
                // Reported later if the call takes a while.
                WorkerEffect::Send(sent)
                    if StartReports::is_deferred(&sent, effects.peek(), |executor| {
                        self.runners.is_call(executor)
                    }) => {}
                WorkerEffect::Send(sent) => self.send(sent).await,
                WorkerEffect::Run(RunCommand::Start { id, dispatch, executor, devices }) => {
                    // Runs that take no time end here, and may let other runs begin.
                    if let Some(outcome) = self.runners.run_at_once(executor, &dispatch) {
                        events.push(WorkerEvent::Ended { id, outcome, run: None });
                        continue;
                    }
                    let (runners, out) = (Arc::clone(&self.runners), self.events.clone());
                    let (attempt, is_call) = (dispatch.attempt, runners.is_call(executor));
                    let stopper = runners.start(id, executor, dispatch, devices, out);
                    self.runs.insert(id, ActiveRun { attempt, stopper });
                    if is_call {
                        let due = self.starts.add(id, attempt, Instant::now());
                        self.schedule_start_reports(due);
                    }
                }
                WorkerEffect::Run(RunCommand::Stop(id)) => match self.runs.get(&id) {
                    Some(run) => run.stopper.stop(),
                    // It has ended meanwhile, and its end is queued as an input.
                    None => tracing::debug!(?id, "the run to stop has ended already"),
                },
            }
        }
    }

    fn start(&mut self) -> io::Result<(WorkerMachine, WorkerStep)> {
        let (machine, step) = start(&self.worker, &self.files, self.owner, self.terms.clone())?;
        let machine = self.files.with_receipts(machine, &self.notary)?;
        let connected = self.outboxes.iter().filter_map(|(id, outbox)| advertiser(*id, outbox));
        let machine = machine.with_schedulers(connected).with_reachability(self.is_relayed);
        Ok((machine, step))
    }

    fn abandon(&mut self) {
        self.runs.values().for_each(|run| run.stopper.stop());
    }

    fn is_idle(&self) -> bool {
        self.runs.is_empty()
    }
}

/// Starts the next incarnation of a worker. Returns its machine with its first step.
pub(super) fn start(
    worker: &Arc<Worker>,
    files: &EpochFiles,
    owner: OwnerState,
    terms: Terms,
) -> io::Result<(WorkerMachine, WorkerStep)> {
    let (last, left) = (epoch::read(&files.0)?, epoch::read_left(&files.0));
    let mut step = WorkerStep::default();
    let seed = rand::random();
    let machine = WorkerMachine::start(Arc::clone(worker), last, left, seed, &mut step);
    Ok((machine.with_owner(owner).with_terms(terms), step))
}

fn advertiser(scheduler: SchedulerId, outbox: &Outbox) -> Option<Advertiser> {
    Some(Advertiser { scheduler, organisation: outbox.organisation.clone()? })
}

impl WorkerHost {
    /// Reports the starts of calls that have run for a while.
    fn report_starts(&mut self) {
        let (due, next) = self.starts.take_due(Instant::now());
        due.into_iter().for_each(|id| self.report_start(id));
        self.schedule_start_reports(next);
    }

    fn schedule_start_reports(&self, after: Option<Duration>) {
        let Some(after) = after else { return };
        let events = self.events.clone();
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            let _ = events.send(WorkerInput::StartsDue).await;
        });
    }

    /// Reports the start of a run, if that is still to be done.
    fn report_start(&mut self, id: RunId) {
        let Some(message) = self.starts.take(id) else { return };
        // If there is no room for it, the report of its end implies the start.
        let _ = match self.outboxes.get(&id.scheduler) {
            Some(outbox) => outbox.messages.try_send(message),
            None if id.scheduler == SchedulerId::LOCAL => self.local.try_send(message),
            None => return,
        };
    }

    /// Sends a piece of a result to its scheduler without the machine, unless the run is being stopped.
    fn forward_output(&mut self, id: RunId, piece: Payload) {
        self.report_start(id);
        let Some(run) = self.runs.get(&id).filter(|run| !run.stopper.is_stopped()) else { return };
        let (attempt, fence) = (run.attempt, id.fence);
        // The worker's own task instance returns whole results only.
        if let Some(outbox) = self.outboxes.get(&id.scheduler)
            && outbox.messages.try_send(FromWorker::Output { attempt, fence, piece }).is_err()
        {
            // It is better to repeat a stream than to lose a piece of it.
            tracing::warn!(scheduler = %id.scheduler, "too many messages are queued for a scheduler: closing its channel");
            self.outboxes.remove(&id.scheduler);
        }
    }

    async fn send(&mut self, OutgoingMessage { to, message }: OutgoingMessage) {
        if matches!(message, FromWorker::Finished { .. }) {
            crash_point(CrashPoint::RanBeforeReport);
        }
        if to == SchedulerId::LOCAL {
            // The worker's own task instance always receives.
            let _ = self.local.send(message).await;
            return;
        }
        if let Some(outbox) = self.outboxes.get(&to) {
            // The machine repeats every message that matters until it is acknowledged.
            let _ = outbox.messages.try_send(message);
        } else if let FromWorker::Offered(offer) = message {
            self.offers.send(to, &offer);
        }
    }
}

impl EpochFiles {
    /// The machine, with the receipts that are not countersigned.
    pub(super) fn with_receipts(
        &self,
        machine: WorkerMachine,
        notary: &Arc<dyn Notary>,
    ) -> io::Result<WorkerMachine> {
        let receipts = receipts::worker_receipts(&self.0)?;
        Ok(machine.with_receipts(Arc::clone(notary), receipts))
    }

    /// Checks that the files can be written, so that a failing disk is noticed before a lease is granted.
    pub(super) fn probe(&self) -> io::Result<()> {
        epoch::write(&self.0, epoch::read(&self.0)?)
    }
}

impl Disk<WorkerRecord> for EpochFiles {
    type Error = io::Error;

    fn write(&mut self, records: Vec<WorkerRecord>) -> io::Result<()> {
        for record in records {
            match record {
                WorkerRecord::Started(started) => epoch::write(&self.0, started)?,
                WorkerRecord::Left(left) => epoch::write_left(&self.0, &left)?,
                WorkerRecord::Receipt(stored) => receipts::write(&self.0, &stored)?,
            }
        }
        Ok(())
    }
}
