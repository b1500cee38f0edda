//! The metrics of a scheduler, under the names that docs/telemetry.md lists.

use std::sync::Weak;

use hypha_engine::record::{AcceptedTask, FinishedTask};
use hypha_model::{Span, TaskState};
use hypha_placement::WorkerSlot;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::core::SchedulerCore;

/// Metrics that are observed as events happen.
#[derive(Clone, Debug)]
pub(crate) struct SchedulerMetrics {
    selection: Histogram,
    latency: Histogram,
    waiting: Histogram,
}

impl SchedulerMetrics {
    pub(crate) fn new(registry: &mut Registry) -> SchedulerMetrics {
        let metrics = SchedulerMetrics {
            // A decision takes microseconds; 20 buckets of factor two reach half a second.
            selection: Histogram::new(exponential_buckets(1e-6, 2.0, 20)),
            // From a millisecond to a day.
            latency: Histogram::new(exponential_buckets(1e-3, 2.0, 27)),
            waiting: Histogram::new(exponential_buckets(1e-3, 2.0, 27)),
        };
        registry.register(
            "hypha_scheduler_worker_selection_duration_seconds",
            "How long the selection of a worker took",
            metrics.selection.clone(),
        );
        registry.register(
            "hypha_scheduler_task_latency_seconds",
            "From submission to the end of a task",
            metrics.latency.clone(),
        );
        registry.register(
            "hypha_scheduler_task_waiting_seconds",
            "From submission to the start of the attempt that ended a task",
            metrics.waiting.clone(),
        );
        metrics
    }

    /// This many choices, at least one, took this long in all.
    pub(super) fn observe_selection(&self, choices: u64, took: Span) {
        self.selection.observe(took.as_secs_f64() / choices as f64);
    }

    pub(super) fn observe_end(&self, accepted: &AcceptedTask, finished: &FinishedTask) {
        if finished.state != TaskState::Completed {
            return;
        }
        self.latency.observe(finished.finished.since(accepted.submitted).as_secs_f64());
        if let Some(started) = finished.started {
            self.waiting.observe(started.since(accepted.submitted).as_secs_f64());
        }
    }
}

/// Metrics that are read from the machine when they are collected.
#[derive(Debug)]
pub(crate) struct StateCollector(Weak<SchedulerCore>);

impl StateCollector {
    pub(crate) fn of(core: Weak<SchedulerCore>) -> StateCollector {
        StateCollector(core)
    }
}

impl std::fmt::Debug for SchedulerCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SchedulerCore").finish_non_exhaustive()
    }
}

impl Collector for StateCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let Some(core) = self.0.upgrade() else { return Ok(()) };
        let (mut workers, mut running, mut next) = ((0, 0, 0), 0, Some(WorkerSlot(0)));
        while let Some(from) = next {
            let part = core.read(|scheduler, now| scheduler.workers_part(from, now));
            for (view, _) in &part.items {
                workers.0 += usize::from(view.available);
                workers.1 += usize::from(view.in_flight > 0);
                workers.2 += 1;
                running += view.running as usize;
            }
            next = part.next;
        }
        let (counts, queued, open, market) = core.read(|scheduler, _| {
            let queued = scheduler.queued_tasks(running);
            (*scheduler.counts(), queued, scheduler.open_tasks(), scheduler.market_figures())
        });
        let gauges = [
            ("tasks_queued", "Tasks that have not started", queued),
            ("tasks_open", "Tasks that have not ended", open),
            ("workers_available", "Workers that take tasks", workers.0),
            ("workers_busy", "Workers that have tasks", workers.1),
            ("workers_known", "Workers that are known, available or not", workers.2),
            ("jobs_open", "Jobs that have not ended", market.jobs),
            ("jobs_waiting", "Jobs that wait for workers", market.jobs_waiting),
            ("market_leases", "Leases at a price, of jobs and of the pool", market.leases),
            ("pool_workers", "Workers that are leased for tasks at a price", market.pool_workers),
        ];
        for (name, help, value) in gauges {
            let name = format!("hypha_scheduler_{name}");
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            let metric = encoder.encode_descriptor(&name, help, None, gauge.metric_type())?;
            gauge.encode(metric)?;
        }
        let counters = [
            ("tasks_submitted", "Tasks that were accepted", counts.submitted),
            ("tasks_rejected", "Tasks that were not accepted", counts.rejected),
            ("tasks_completed", "Tasks that ended with a result", counts.completed),
            ("tasks_failed", "Tasks of which no attempt succeeded", counts.failed),
            ("tasks_cancelled", "Tasks that were cancelled", counts.cancelled),
            ("tasks_expired", "Tasks whose deadline passed", counts.expired),
            ("attempts_retried", "Attempts that were retried", counts.retried),
            (
                "late_results",
                "Results that came late or twice and were dropped",
                counts.late_results,
            ),
            ("leases_lost", "Leases that ended without being released", counts.leases_lost),
            (
                "quarantines",
                "Times that a failing worker or executor was quarantined",
                counts.quarantines,
            ),
            ("market_adverts", "Adverts for workers", counts.adverts),
            ("market_offers", "Offers of workers", counts.offers),
            (
                "receipts_refused",
                "Receipts of workers that were not what was agreed",
                counts.receipts_refused,
            ),
            ("tasks_stolen", "Tasks that an idle worker took from another's queue", counts.stolen),
        ];
        for (name, help, value) in counters {
            let name = format!("hypha_scheduler_{name}");
            let counter = ConstCounter::new(value);
            let metric = encoder.encode_descriptor(&name, help, None, counter.metric_type())?;
            counter.encode(metric)?;
        }
        let name = "hypha_scheduler_market_price_per_hour";
        let help = "What an hour of all leases costs";
        let gauge = ConstGauge::new(market.price.as_f64());
        let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
        gauge.encode(metric)?;
        let name = "hypha_scheduler_attempts_failed";
        let help = "Attempts that gave no result, by what went wrong and whose fault it was";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (kind, count) in counts.failures.iter() {
            let labels = [("kind", kind.as_str()), ("fault", kind.origin().as_str())];
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
