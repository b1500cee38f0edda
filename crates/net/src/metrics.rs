//! The metrics of the network, for `/metrics`.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Default)]
pub(crate) struct Metrics {
    pub(crate) peers: Family<PeerLabels, Gauge>,
    pub(crate) refused_connections: Counter,
    pub(crate) expelled: Counter,
    pub(crate) shared_keys: Gauge,
    pub(crate) requests: Family<RequestLabels, Counter>,
    pub(crate) records: Gauge,
    pub(crate) refused_records: Family<SourceLabels, Counter>,
    pub(crate) lost_events: Counter,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct PeerLabels {
    pub(crate) role: &'static str,
    pub(crate) link: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    pub(crate) result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct SourceLabels {
    pub(crate) source: &'static str,
}

/// Where a record came from.
#[derive(Clone, Copy)]
pub(crate) enum RecordSource {
    Directory,
    Gossip,
}

impl RecordSource {
    pub(crate) fn labels(self) -> SourceLabels {
        let source = match self {
            RecordSource::Directory => "directory",
            RecordSource::Gossip => "gossip",
        };
        SourceLabels { source }
    }
}

impl Metrics {
    pub(crate) fn register(registry: &mut Registry) -> Metrics {
        let metrics = Metrics::default();
        let net = registry.sub_registry_with_prefix("hypha_net");
        net.register("peers", "Connected peers by role and link", metrics.peers.clone());
        net.register(
            "connections_refused",
            "Connections that were refused",
            metrics.refused_connections.clone(),
        );
        net.register(
            "peers_expelled",
            "Peers disconnected because their certificate is no longer valid",
            metrics.expelled.clone(),
        );
        net.register(
            "shared_keys",
            "Peers whose key is used by several nodes at once",
            metrics.shared_keys.clone(),
        );
        net.register("requests", "Requests of peers by result", metrics.requests.clone());
        net.register("records", "Directory records stored for others", metrics.records.clone());
        net.register(
            "records_refused",
            "Records and gossip that were rejected",
            metrics.refused_records.clone(),
        );
        net.register(
            "events_lost",
            "Events dropped because the node did not read them",
            metrics.lost_events.clone(),
        );
        metrics
    }
}
