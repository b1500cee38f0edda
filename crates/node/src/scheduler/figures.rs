//! The figures of a scheduler, under the names that its documents give.

use std::sync::Weak;

use hypha_engine::record::{AcceptedTask, FinishedTask};
use hypha_model::{Span, TaskState};
use hypha_placement::Slot;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::core::Core;

/// What is measured as it happens.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    selection: Histogram,
    latency: Histogram,
    waiting: Histogram,
}

impl Figures {
    pub(crate) fn new(registry: &mut Registry) -> Figures {
        let figures = Figures {
            // A decision takes microseconds; 20 buckets of factor two reach half a second.
            selection: Histogram::new(exponential_buckets(1e-6, 2.0, 20)),
            // From a millisecond to a day.
            latency: Histogram::new(exponential_buckets(1e-3, 2.0, 27)),
            waiting: Histogram::new(exponential_buckets(1e-3, 2.0, 27)),
        };
        registry.register(
            "hypha_scheduler_worker_selection_duration_seconds",
            "How long one choice of a worker took",
            figures.selection.clone(),
        );
        registry.register(
            "hypha_scheduler_task_latency_seconds",
            "From submission to the end of a task",
            figures.latency.clone(),
        );
        registry.register(
            "hypha_scheduler_task_waiting_seconds",
            "From submission to the start of the attempt that ended a task",
            figures.waiting.clone(),
        );
        figures
    }

    /// So many choices, at least one, took this long.
    pub(super) fn selected(&self, choices: u64, took: Span) {
        self.selection.observe(took.as_secs_f64() / choices as f64);
    }

    pub(super) fn ended(&self, accepted: &AcceptedTask, finished: &FinishedTask) {
        if finished.state != TaskState::Completed {
            return;
        }
        self.latency.observe(finished.finished.since(accepted.submitted).as_secs_f64());
        if let Some(started) = finished.started {
            self.waiting.observe(started.since(accepted.submitted).as_secs_f64());
        }
    }
}

/// What is looked up when somebody asks.
#[derive(Debug)]
pub(crate) struct Present(Weak<Core>);

impl Present {
    pub(crate) fn of(core: Weak<Core>) -> Present {
        Present(core)
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").finish_non_exhaustive()
    }
}

impl Collector for Present {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let Some(core) = self.0.upgrade() else { return Ok(()) };
        let (counts, waiting, open) = core.read(|scheduler, _| {
            (*scheduler.counts(), scheduler.waiting_tasks(), scheduler.open_tasks())
        });
        let (mut workers, mut next) = ((0, 0, 0), Some(Slot(0)));
        while let Some(from) = next {
            let part = core.read(|scheduler, now| scheduler.workers_part(from, now));
            for (view, _) in &part.items {
                workers.0 += usize::from(view.available);
                workers.1 += usize::from(view.in_flight > 0);
                workers.2 += 1;
            }
            next = part.next;
        }
        let gauges = [
            ("tasks_queued", "Tasks that wait for a worker", waiting),
            ("tasks_open", "Tasks that have not ended", open),
            ("workers_available", "Workers that take tasks", workers.0),
            ("workers_busy", "Workers that have tasks", workers.1),
            ("workers_known", "Workers that are known, available or not", workers.2),
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
            ("attempts_retried", "Attempts that were made again", counts.retried),
            (
                "late_results",
                "Results that came late or twice and were dropped",
                counts.late_results,
            ),
            ("leases_lost", "Leases that ended before they were given back", counts.leases_lost),
            (
                "quarantines",
                "Times that a failing worker or executor was left alone",
                counts.quarantines,
            ),
            ("tasks_stolen", "Tasks that an idle worker took from another's queue", counts.stolen),
        ];
        for (name, help, value) in counters {
            let name = format!("hypha_scheduler_{name}");
            let counter = ConstCounter::new(value);
            let metric = encoder.encode_descriptor(&name, help, None, counter.metric_type())?;
            counter.encode(metric)?;
        }
        let name = "hypha_scheduler_attempts_failed";
        let help = "Attempts that gave no result, by what went wrong and whose fault it was";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (kind, count) in counts.failures.iter() {
            let labels = [("kind", kind.as_str()), ("fault", kind.fault().as_str())];
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
