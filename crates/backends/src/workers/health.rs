//! Checks the health of back ends at intervals, and wakes their machines.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use hypha_engine::WorkerEvent;
use hypha_engine::back_end::HealthCheck;
use tokio::sync::Notify;

use super::Inner;
use super::effects::{HttpEffectHandler, HttpMachine, WorkerBackEnd};
use crate::transport::lock;

/// How often an unhealthy back end is checked, at least: most are back within seconds, and a refused connection costs
/// little.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How late a machine may be woken, so that several are woken together. Runs have timers of their own; alarms are only
/// for results that are sent again and for leases that end.
const WAKE_TOLERANCE: Duration = Duration::from_millis(100);

/// Checks one back end until its worker is dropped.
pub(super) async fn monitor(machine: Weak<HttpMachine>, interval: Duration) {
    let retry = RETRY_INTERVAL.min(interval);
    loop {
        let Some(machine) = machine.upgrade() else { return };
        let handler = machine.handler();
        let mut used = handler.used.subscribe();
        tokio::select! {
            biased;
            () = handler.closed.cancelled() => return,
            // It cannot fail: the handler holds the sender.
            _ = used.wait_for(|used| *used) => {}
        }
        let is_healthy = check(handler).await;
        // Also if nothing has changed: a call that did not reach it may have reported otherwise meanwhile.
        machine.step_events([WorkerEvent::BackEndChecked { executor: 0, is_healthy }]);
        let check_soon = handler.check_soon.notified();
        let delay = if is_healthy { interval } else { retry };
        tokio::select! {
            () = handler.closed.cancelled() => return,
            () = tokio::time::sleep(delay) => {}
            () = check_soon => tokio::time::sleep(retry).await,
        }
    }
}

async fn check(handler: &HttpEffectHandler) -> bool {
    let in_flight_before = handler.in_flight();
    let result = match &handler.back_end {
        WorkerBackEnd::Http(server) => server.check().await,
        WorkerBackEnd::Instance(instance) => instance.check(&handler.worker).await,
    };
    let checked = match result {
        Ok(()) => HealthCheck::Healthy,
        Err(error) => error.health_check(),
    };
    let in_flight = in_flight_before.max(handler.in_flight());
    let (was_healthy, is_healthy, problem) = {
        let mut health = lock(&handler.health);
        let was_healthy = health.problem().is_none();
        let is_healthy = health.checked(checked, in_flight);
        (was_healthy, is_healthy, health.problem().unwrap_or_default().to_owned())
    };
    match (was_healthy, is_healthy) {
        (true, false) => {
            tracing::warn!(worker = %handler.worker.id, "a back end gets no tasks: {problem}");
        }
        (false, true) => tracing::info!(worker = %handler.worker.id, "a back end is healthy again"),
        _ => {}
    }
    is_healthy
}

/// Notifies the task that wakes all machines that one of them requests to be woken earlier.
#[derive(Default)]
pub(super) struct AlarmNotifier {
    /// Whether it was notified and has not checked since: a machine requests an alarm with every run, and most runs are
    /// shorter than the time that it takes to set one.
    is_requested: AtomicBool,
    requested: Notify,
}

impl AlarmNotifier {
    pub(super) fn request(&self) {
        if !self.is_requested.swap(true, Ordering::AcqRel) {
            self.requested.notify_one();
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
            // Alarms that are requested meanwhile are handled together.
            () = alarms.requested.notified() => tokio::time::sleep(WAKE_TOLERANCE).await,
        }
        alarms.is_requested.store(false, Ordering::Release);
        let Some(workers) = workers.upgrade() else { return };
        let members: Vec<Arc<HttpMachine>> =
            lock(&workers.members).values().map(|member| Arc::clone(&member.machine)).collect();
        next_us = members.iter().map(wake_one).min().unwrap_or(u64::MAX);
    }
}

/// Wakes a machine if it is due. Returns when it is due next.
fn wake_one(machine: &Arc<HttpMachine>) -> u64 {
    let handler = machine.handler();
    let now = hypha_driver::EffectHandler::now(handler);
    let is_requested = handler.wants_alarm.swap(false, Ordering::AcqRel);
    let alarm_us = handler.alarm_us.load(Ordering::Relaxed);
    if !is_requested && alarm_us > now.as_micros() {
        return alarm_us;
    }
    if machine.set_alarm().is_some_and(|at| at <= now) {
        machine.wake();
    }
    let alarm_us = machine.set_alarm().map_or(u64::MAX, |at| at.as_micros());
    handler.alarm_us.store(alarm_us, Ordering::Relaxed);
    alarm_us
}
