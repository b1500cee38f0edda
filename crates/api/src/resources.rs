//! The resources of all available workers together, by kind.

use hypha_model::ledger::{Amounts, ResourceAmounts};
use hypha_placement::WorkerView;
use serde::Serialize;
use utoipa::ToSchema;

/// The resources of the available workers together, by kind.
#[derive(Default, Serialize, ToSchema)]
#[schema(as = Resources)]
pub(crate) struct ResourcesBody {
    cpu_cores: ResourceBody,
    memory_bytes: ResourceBody,
    storage_bytes: ResourceBody,
    /// GPUs; a share of one counts as that part.
    gpus: ResourceBody,
    gpu_memory_bytes: ResourceBody,
}

/// The amounts of one kind.
#[derive(Default, Serialize, ToSchema)]
#[schema(as = Resource)]
pub(crate) struct ResourceBody {
    /// What the workers offer to this scheduler.
    total: f64,
    /// What running tasks require.
    booked: f64,
    /// What is left.
    free: f64,
}

impl ResourcesBody {
    pub(crate) fn of<'a>(workers: impl Iterator<Item = &'a WorkerView>) -> ResourcesBody {
        let mut all = ResourcesBody::default();
        for WorkerView { amounts: ResourceAmounts { total, booked }, .. } in workers {
            let cores = |amounts: &Amounts| amounts.cpu_milli as f64 / 1e3;
            let gpus = |amounts: &Amounts| amounts.milli_gpu as f64 / 1e3;
            all.cpu_cores.add(cores(total), cores(booked));
            all.memory_bytes.add(total.memory_bytes as f64, booked.memory_bytes as f64);
            all.storage_bytes.add(total.storage_bytes as f64, booked.storage_bytes as f64);
            all.gpus.add(gpus(total), gpus(booked));
            all.gpu_memory_bytes.add(total.gpu_memory_bytes as f64, booked.gpu_memory_bytes as f64);
        }
        all
    }
}

impl ResourceBody {
    fn add(&mut self, total: f64, booked: f64) {
        self.total += total;
        self.booked += booked;
        // A lease may cover less than what its tasks still have.
        self.free += (total - booked).max(0.0);
    }
}
