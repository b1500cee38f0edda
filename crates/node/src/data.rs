//! A data node: publishes which data sets it serves.

use hypha_config::DataConfig;
use hypha_net::{Net, Publication};

use crate::NodeError;

pub(crate) async fn start(config: &DataConfig, net: &Net) -> Result<(), NodeError> {
    let names: Vec<_> = config.datasets.iter().map(|dataset| dataset.name.clone()).collect();
    if names.is_empty() {
        tracing::warn!("no [[datasets]] are configured: this node has nothing to serve");
    }
    for dataset in &config.datasets {
        tracing::info!(name = %dataset.name, path = %dataset.path.display(), "serving");
    }
    net.publish(Publication::Datasets { names, ttl: config.record_ttl }).await;
    Ok(())
}
