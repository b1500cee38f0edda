//! How much of a worker is in use: what was measured on its machine, and what was given to it since.

use hypha_model::Usage;

use crate::member::Member;
use crate::strategy::LoadMetric;

/// A measurement, and what the worker had when it arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeasuredUsage {
    pub(crate) usage: Usage,
    cpu_milli: u128,
    memory_bytes: u128,
    load: usize,
}

impl Member {
    /// Records a measurement of the machine.
    pub(crate) fn set_usage(&mut self, usage: Usage) {
        self.measured = Some(MeasuredUsage {
            usage,
            cpu_milli: self.demanded_cpu_milli,
            memory_bytes: self.demanded_memory_bytes,
            load: self.load(),
        });
    }

    /// The share of the cores or of the memory that is in use, as far as is known: as much as the tasks that are bound
    /// to the worker require or, if that is more, what was measured and what the tasks since then will use.
    pub(crate) fn used_share(&self, metric: LoadMetric) -> f64 {
        let capacity = &self.worker.capacity;
        let measured = self.measured.as_ref();
        let (demanded, total, then) = match metric {
            LoadMetric::MemoryUsage => (
                self.demanded_memory_bytes,
                capacity.memory_bytes,
                measured.map(|it| (it.usage.memory_permille, it.memory_bytes)),
            ),
            LoadMetric::TaskCount | LoadMetric::CpuUsage => (
                self.demanded_cpu_milli,
                capacity.cpu_milli,
                measured.map(|it| (it.usage.cpu_permille, it.cpu_milli)),
            ),
        };
        let load = self.load();
        let share = |demanded: u128| if total == 0 { 0.0 } else { demanded as f64 / total as f64 };
        // The number of tasks only breaks ties.
        let ties = load as f64 * 1e-9;
        match (then, measured) {
            (Some((permille, demanded_then)), Some(measured)) => {
                let added = share(demanded.saturating_sub(demanded_then));
                // A task that states no amount is assumed to use the share of its slot. Otherwise the worker with the
                // lowest measurement would get all tasks until the next one.
                let arrived = load.saturating_sub(measured.load) as f64 / f64::from(self.slots());
                let expected = f64::from(permille) / 1e3 + added.max(arrived);
                expected.max(share(demanded)) + ties
            }
            // A worker that states no amount cannot be compared by it.
            _ if total == 0 => load as f64,
            _ => share(demanded) + ties,
        }
    }
}
