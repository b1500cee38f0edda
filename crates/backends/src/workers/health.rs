//! Asks back ends again and again whether they are well, and wakes their machines.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use hypha_engine::WorkerEvent;
use hypha_engine::back_end::Checked;
use tokio::sync::Notify;

use super::Inner;
use super::carrier::{BackEnd, HttpCarrier, HttpMachine};
use crate::transport::{HttpError, locked};

/// How often an unhealthy back end is asked, at least: most are back within seconds, and a connection that is
/// refused costs little.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How late a machine may be woken, so that those that want to be are woken together. Runs end in time by themselves;
/// what is left are results that are sent again, and leases that end.
const TOGETHER: Duration = Duration::from_millis(100);

/// Watches one back end until its worker is dropped.
pub(super) async fn watch(machine: Weak<HttpMachine>, interval: Duration) {
    let retry = RETRY_INTERVAL.min(interval);
    loop {
        let Some(machine) = machine.upgrade() else { return };
        let carrier = machine.carrier();
        let mut used = carrier.used.subscribe();
        tokio::select! {
            biased;
            () = carrier.closed.cancelled() => return,
            // The carrier has the other end of it.
            _ = used.wait_for(|used| *used) => {}
        }
        let well = look(carrier).await;
        // Also when it is no news: a call that did not reach it may have said otherwise meanwhile.
        machine.tell([WorkerEvent::Looked { executor: 0, well }]);
        let missed = carrier.missed.notified();
        let pause = if well { interval } else { retry };
        tokio::select! {
            () = carrier.closed.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
            () = missed => tokio::time::sleep(retry).await,
        }
    }
}

async fn look(carrier: &HttpCarrier) -> bool {
    let result = match &carrier.back_end {
        BackEnd::Server(server) => server.check().await,
        BackEnd::Instance(instance) => instance.check(&carrier.worker).await,
    };
    let checked = match result {
        Ok(()) => Checked::Well,
        Err(error @ HttpError::Late(_)) => Checked::Late(error.to_string()),
        Err(error) => Checked::Failed(error.to_string()),
    };
    let in_flight = carrier.in_flight();
    let (was_well, is_well, problem) = {
        let mut health = locked(&carrier.health);
        let was_well = health.problem().is_none();
        let is_well = health.checked(checked, in_flight);
        (was_well, is_well, health.problem().unwrap_or_default().to_owned())
    };
    match (was_well, is_well) {
        (true, false) => {
            tracing::warn!(worker = %carrier.worker.id, "a back end gets no tasks: {problem}");
        }
        (false, true) => tracing::info!(worker = %carrier.worker.id, "a back end is well again"),
        _ => {}
    }
    is_well
}

/// Tells the task that wakes the machines of all workers that one of them wants to be woken earlier.
#[derive(Default)]
pub(super) struct Alarms {
    /// Whether it has been told, and has not looked since: a machine asks with every run, and most run for less than
    /// it takes to set an alarm.
    asked: AtomicBool,
    told: Notify,
}

impl Alarms {
    pub(super) fn ask(&self) {
        if !self.asked.swap(true, Ordering::AcqRel) {
            self.told.notify_one();
        }
    }
}

/// Wakes the machines of all workers in time.
pub(super) async fn wake(workers: Weak<Inner>) {
    let mut next_us = u64::MAX;
    loop {
        let Some((alarms, now)) = workers
            .upgrade()
            .map(|workers| (Arc::clone(&workers.alarms), (workers.scheduler.now)()))
        else {
            return;
        };
        let timer = async {
            match next_us {
                u64::MAX => std::future::pending().await,
                at => tokio::time::sleep(Duration::from_micros(at - now.as_micros().min(at))).await,
            }
        };
        tokio::select! {
            () = timer => {}
            // What is asked for meanwhile is looked at together.
            () = alarms.told.notified() => tokio::time::sleep(TOGETHER).await,
        }
        alarms.asked.store(false, Ordering::Release);
        let Some(workers) = workers.upgrade() else { return };
        let members: Vec<Arc<HttpMachine>> =
            locked(&workers.members).values().map(|member| Arc::clone(&member.machine)).collect();
        next_us = members.iter().map(wake_one).min().unwrap_or(u64::MAX);
    }
}

/// Wakes a machine if its time has come. Returns when it wants to be woken next.
fn wake_one(machine: &Arc<HttpMachine>) -> u64 {
    let carrier = machine.carrier();
    let now = hypha_driver::Carrier::now(carrier);
    let asks = carrier.wants_alarm.swap(false, Ordering::AcqRel);
    let alarm_us = carrier.alarm_us.load(Ordering::Relaxed);
    if !asks && alarm_us > now.as_micros() {
        return alarm_us;
    }
    if machine.set_alarm().is_some_and(|at| at <= now) {
        machine.wake();
    }
    let alarm_us = machine.set_alarm().map_or(u64::MAX, |at| at.as_micros());
    carrier.alarm_us.store(alarm_us, Ordering::Relaxed);
    alarm_us
}
