//! Wakes the scheduler's machine at the times that it requests, and restarts it after a failure of the store.

use std::sync::Arc;
use std::time::Duration;

use hypha_engine::store::AnyStore;
use hypha_engine::{Image, Notary, Scheduler, SchedulerEvent, SchedulerStep, Settings};
use hypha_model::SchedulerId;
use hypha_predict::LookupTable;
use tokio_util::sync::CancellationToken;

use super::core::SchedulerCore;
use super::effects::SchedulerEffectHandler;

/// How long after a failure the store is retried: a full disk stays full for a while.
const STORE_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// See the module documentation.
pub(super) struct WakeTimer {
    pub(super) core: Arc<SchedulerCore>,
    pub(super) id: SchedulerId,
    pub(super) settings: Settings,
    /// Signs receipts.
    pub(super) notary: Arc<dyn Notary>,
    /// For the mode `lookup_table`.
    pub(super) table: LookupTable,
}

impl WakeTimer {
    /// Runs until `stop`, and then until the remaining records are committed.
    pub(super) async fn run(self, stop: CancellationToken) {
        self.core.machine.start();
        while !stop.is_cancelled() {
            let until = self.core.machine.set_alarm();
            let timer = async {
                match until {
                    Some(until) => self.handler().clock.sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.handler().earlier.notified() => {}
                () = timer => self.core.machine.wake(),
                () = self.handler().store_failed.notified() => self.recover(&stop).await,
                () = stop.cancelled() => {}
            }
        }
        self.settle().await;
    }

    fn handler(&self) -> &SchedulerEffectHandler {
        self.core.machine.handler()
    }

    fn store(&self) -> &AnyStore {
        self.core.machine.journal()
    }

    /// Waits until all records are durable and all effects carried out, and then closes the machine: it must not take
    /// the end of this process for the loss of all its workers.
    async fn settle(&self) {
        loop {
            let settled = self.handler().settled.notified();
            if self.core.machine.close("the scheduler is stopping") {
                return;
            }
            settled.await;
        }
    }

    /// Restarts from the durable state as soon as the store works again.
    async fn recover(&self, stop: &CancellationToken) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(STORE_RETRY_INTERVAL) => {}
                () = stop.cancelled() => return,
            }
            match self.store().recover().await {
                Ok(image) => return self.restart(image),
                Err(error) => tracing::debug!("the store still fails: {error}"),
            }
        }
    }

    fn restart(&self, image: Image) {
        let now = self.core.now();
        let mode = image.mode;
        let mut step = SchedulerStep::default();
        let mut machine = Scheduler::recover(
            self.id,
            self.settings.clone(),
            image,
            rand::random(),
            now,
            &mut step,
        );
        machine.set_notary(Arc::clone(&self.notary));
        super::apply_lookup_table(&mut machine, &self.table, mode, now, &mut step);
        let transport = self.handler().transport();
        super::add_removed_workers(&mut machine, transport.registered_workers(), now, &mut step);
        self.core.machine.restart(|failed| {
            // Counters never decrease within a process.
            machine.continue_counts(failed.counts());
            (machine, step)
        });
        tracing::info!("the store works again; the scheduler has recovered");
        // Workers that connected while the machine took no events; it takes them again from here on.
        let connected = self.handler().transport().connected_workers();
        self.core.machine.step_events(connected.into_iter().map(SchedulerEvent::WorkerFound));
    }
}
