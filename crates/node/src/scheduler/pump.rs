//! Group commit: what many events want durable goes to the disk in one transaction, then everything that waited
//! for it leaves. Meanwhile the next events are collected.

use std::sync::Arc;
use std::time::Duration;

use hypha_engine::{Effect, Record, Scheduler, SchedulerEvent, SchedulerStep, Settings, ToWorker};
use hypha_model::SchedulerId;
use hypha_predict::LookupTable;
use hypha_store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

use super::core::Core;
use crate::crash::{CrashPoint, crash_point};

/// How long after a failure the store is tried again: a disk that is full stays so for a while.
const RETRY: Duration = Duration::from_secs(1);

pub(super) struct Pump {
    pub(super) core: Arc<Core>,
    pub(super) store: Arc<Store>,
    pub(super) id: SchedulerId,
    pub(super) settings: Settings,
    /// For the mode `lookup_table`.
    pub(super) table: LookupTable,
}

impl Pump {
    /// Runs until told to stop, and then commits what is left.
    pub(super) async fn run(self, stop: CancellationToken) {
        let mut step = SchedulerStep::default();
        loop {
            if !self.take(&mut step) {
                if stop.is_cancelled() {
                    return;
                }
                self.sleep(&stop).await;
                continue;
            }
            if let Err(error) = self.commit(&mut step).await {
                self.start_anew(error, &stop).await;
                step.clear();
                continue;
            }
            self.core.carry_out(step.send.drain(..));
            step.clear();
        }
    }

    /// Takes what was collected; false if there is nothing to do yet.
    fn take(&self, step: &mut SchedulerStep) -> bool {
        let mut machine = self.core.lock();
        let now = self.core.clock.now();
        if machine.step.wake_at.is_some_and(|wake| wake <= now) {
            machine.step(&self.core, SchedulerEvent::Woke);
        }
        if !machine.has_work() {
            machine.asleep_until = machine.step.wake_at;
            return false;
        }
        machine.asleep_until = None;
        std::mem::swap(&mut machine.step, step);
        machine.step.wake_at = step.wake_at;
        // Another step may have left these behind between its lock and ours.
        machine.step.at_once.append(&mut step.at_once);
        true
    }

    async fn sleep(&self, stop: &CancellationToken) {
        let until = self.core.lock().asleep_until;
        let timer = async {
            match until {
                Some(until) => tokio::time::sleep_until(self.core.clock.instant(until)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.core.work.notified() => {}
            () = timer => {}
            () = stop.cancelled() => {}
        }
    }

    async fn commit(&self, step: &mut SchedulerStep) -> Result<(), StoreError> {
        if step.persist.is_empty() {
            return Ok(());
        }
        if cfg!(feature = "crash-points") {
            let has = |wanted: fn(&Record) -> bool| step.persist.iter().any(wanted);
            if has(|record| matches!(record, Record::Accepted(_))) {
                crash_point(CrashPoint::AcceptedBeforeCommit);
            }
            if has(|record| matches!(record, Record::Finished(_))) {
                crash_point(CrashPoint::ResultBeforeCommit);
            }
        }
        let forgotten = |record: &Record| match record {
            Record::WorkerForgotten(worker) => Some(*worker),
            _ => None,
        };
        let forgotten: Vec<_> = step.persist.iter().filter_map(forgotten).collect();
        self.store.commit(std::mem::take(&mut step.persist)).await?.await?;
        let told = |effect: &Effect| {
            matches!(
                effect,
                Effect::Reply { .. } | Effect::ToWorker { message: ToWorker::Dispatch(_), .. }
            )
        };
        if cfg!(feature = "crash-points") && step.send.iter().any(told) {
            crash_point(CrashPoint::CommittedBeforeSend);
        }
        self.core.forget_workers(forgotten);
        Ok(())
    }

    /// The store has failed: nothing is acknowledged until it works again, and then the machine goes on from
    /// what is on the disk.
    async fn start_anew(&self, error: StoreError, stop: &CancellationToken) {
        let why = format!("the scheduler cannot store anything: {error}");
        tracing::error!("{why}; nothing is acknowledged until it can");
        self.core.abandon(&mut self.core.lock(), &why);
        loop {
            tokio::select! {
                () = tokio::time::sleep(RETRY) => {}
                () = stop.cancelled() => return,
            }
            match self.store.recover().await {
                Ok(recovered) => {
                    let mut machine = self.core.lock();
                    let (now, mut step) = (self.core.clock.now(), SchedulerStep::default());
                    let mode = recovered.image.mode;
                    machine.scheduler = Scheduler::recover(
                        self.id,
                        self.settings.clone(),
                        recovered.image,
                        rand::random(),
                        now,
                        &mut step,
                    );
                    super::give_table(&mut machine.scheduler, &self.table, mode, now, &mut step);
                    machine.step = step;
                    machine.stopped = None;
                    tracing::info!("the store works again; the scheduler goes on");
                    return;
                }
                Err(error) => tracing::debug!("the store still fails: {error}"),
            }
        }
    }
}
