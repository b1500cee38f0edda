//! A worker: says what it offers, and stays findable.

use hypha_config::WorkerConfig;
use hypha_model::Worker;
use hypha_net::{Net, Publication, worker_id};

use crate::{NodeError, hardware};

pub(crate) async fn start(config: &WorkerConfig, net: &Net) -> Result<(), NodeError> {
    let capacity = hardware::capacity(&config.resources);
    let worker = Worker {
        id: worker_id(&net.own()),
        capacity,
        executors: config.executors.iter().map(|executor| executor.executor()).collect(),
        hardware: config.hardware.clone(),
        region: config.region.clone(),
        price: config.price,
    };
    if worker.executors.is_empty() {
        tracing::warn!(
            "no [[executors]] are configured: this worker will be found, and can run nothing"
        );
    }
    tracing::info!(
        worker = %worker.id,
        cores = worker.capacity.cpu_milli / 1_000,
        memory_gb = worker.capacity.memory_bytes / 1_000_000_000,
        gpus = worker.capacity.devices.len(),
        executors = worker.executors.len(),
        "offering"
    );
    net.publish(Publication::Worker { worker, ttl: config.record_ttl }).await;
    Ok(())
}
