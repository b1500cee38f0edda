//! Group commit: what many events want durable goes to the disk in one transaction, then everything that waited
//! for it leaves. Meanwhile the next events are collected.
//!
//! Whoever gives back the machine's lock and finds nothing under way hands the records to the store's thread; that
//! thread lets out what waited for them, and goes on with what was collected meanwhile. No other thread takes
//! part: under load each hand-over would wait for a processor.

use std::sync::Arc;
use std::time::Duration;

use hypha_engine::{Effect, Record, Scheduler, SchedulerEvent, SchedulerStep, Settings, ToWorker};
use hypha_model::{SchedulerId, Time};
use hypha_predict::LookupTable;
use hypha_store::StoreError;
use tokio_util::sync::CancellationToken;

use super::core::Core;
use crate::crash::{CrashPoint, crash_point};

/// How long after a failure the store is tried again: a disk that is full stays so for a while.
const RETRY: Duration = Duration::from_secs(1);

impl Core {
    /// Commits `step` and lets out what it sends, and then the next, until there is nothing more. Never waits: the
    /// rest is done when the disk has answered.
    pub(super) fn pump(self: &Arc<Core>, mut step: SchedulerStep) {
        while step.persist.is_empty() {
            match self.let_out(step) {
                Some(next) => step = next,
                None => return,
            }
        }
        crash_points_before(&step.persist);
        let records = std::mem::take(&mut step.persist);
        let forgotten = records.iter().filter_map(forgotten_worker).collect();
        let core = Arc::clone(self);
        self.store.commit(records, move |committed| match committed {
            Ok(()) => {
                crash_points_after(&step.send);
                core.forget_workers(forgotten);
                if let Some(next) = core.let_out(step) {
                    core.pump(next);
                }
            }
            Err(error) => core.failed(&error),
        });
    }

    /// Waits until everything that was wanted is durable and has left, and then takes no more.
    pub(super) async fn settle(&self) {
        loop {
            let settled = self.settled.notified();
            if self.close() {
                return;
            }
            settled.await;
        }
    }

    /// What `step` waited for is durable. Returns what is next.
    fn let_out(&self, mut step: SchedulerStep) -> Option<SchedulerStep> {
        self.carry_out(step.send.drain(..));
        let next = self.next_commit(step);
        if next.is_none() {
            self.settled.notify_waiters();
        }
        next
    }

    /// The store has failed: nothing is acknowledged until it works again.
    fn failed(&self, error: &StoreError) {
        let why = format!("the scheduler cannot store anything: {error}");
        tracing::error!("{why}; nothing is acknowledged until it can");
        self.abandon(&why);
        self.settled.notify_waiters();
        self.broken.notify_one();
    }
}

/// Wakes the machine when it wants to be woken, and begins anew after a failure of the store.
pub(super) struct Alarm {
    pub(super) core: Arc<Core>,
    pub(super) id: SchedulerId,
    pub(super) settings: Settings,
    /// For the mode `lookup_table`.
    pub(super) table: LookupTable,
}

impl Alarm {
    /// Runs until told to stop, and then until what is left is committed.
    pub(super) async fn run(self, stop: CancellationToken) {
        // What the machine wanted when it was made.
        self.core.leave(self.core.lock());
        while !stop.is_cancelled() {
            let until = self.set();
            let timer = async {
                match until {
                    Some(until) => tokio::time::sleep_until(self.core.clock.instant(until)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.core.earlier.notified() => {}
                () = timer => self.core.tell(SchedulerEvent::Woke),
                () = self.core.broken.notified() => self.start_anew(&stop).await,
                () = stop.cancelled() => {}
            }
        }
        self.core.settle().await;
    }

    /// Until when to sleep.
    fn set(&self) -> Option<Time> {
        let mut machine = self.core.lock();
        // A machine that is not stepped would want to be woken again and again.
        let until = machine.step.wake_at.filter(|_| machine.stopped.is_none());
        machine.asleep_until = until;
        until
    }

    /// Goes on from what is on the disk, as soon as the store works again.
    async fn start_anew(&self, stop: &CancellationToken) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(RETRY) => {}
                () = stop.cancelled() => return,
            }
            match self.core.store.recover().await {
                Ok(recovered) => {
                    let mut machine = self.core.lock();
                    let (now, mut step) = (self.core.clock.now(), SchedulerStep::default());
                    let mode = recovered.image.mode;
                    let counts = *machine.scheduler.counts();
                    machine.scheduler = Scheduler::recover(
                        self.id,
                        self.settings.clone(),
                        recovered.image,
                        rand::random(),
                        now,
                        &mut step,
                    );
                    // Whoever collects figures takes a step back for a new process.
                    machine.scheduler.count_on_from(&counts);
                    super::give_table(&mut machine.scheduler, &self.table, mode, now, &mut step);
                    let workers = self.core.known_workers();
                    super::introduce_removed(&mut machine.scheduler, workers, now, &mut step);
                    machine.step = step;
                    machine.stopped = None;
                    tracing::info!("the store works again; the scheduler goes on");
                    return self.core.leave(machine);
                }
                Err(error) => tracing::debug!("the store still fails: {error}"),
            }
        }
    }
}

fn forgotten_worker(record: &Record) -> Option<hypha_model::WorkerId> {
    match record {
        Record::WorkerForgotten(worker) => Some(*worker),
        _ => None,
    }
}

fn crash_points_before(records: &[Record]) {
    if cfg!(feature = "crash-points") {
        if records.iter().any(|record| matches!(record, Record::Accepted(_))) {
            crash_point(CrashPoint::AcceptedBeforeCommit);
        }
        if records.iter().any(|record| matches!(record, Record::Finished(_))) {
            crash_point(CrashPoint::ResultBeforeCommit);
        }
    }
}

fn crash_points_after(send: &[Effect]) {
    let told = |effect: &Effect| {
        let dispatch = matches!(effect, Effect::ToWorker { message: ToWorker::Dispatch(_), .. });
        dispatch || matches!(effect, Effect::Reply { .. })
    };
    if cfg!(feature = "crash-points") && send.iter().any(told) {
        crash_point(CrashPoint::CommittedBeforeSend);
    }
}
