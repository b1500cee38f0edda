//! The figures of the network, for `/metrics`.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Default)]
pub(crate) struct Figures {
    pub(crate) peers: Family<PeerLabels, Gauge>,
    pub(crate) refused_connections: Counter,
    pub(crate) expelled: Counter,
    pub(crate) questions: Family<QuestionLabels, Counter>,
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
pub(crate) struct QuestionLabels {
    pub(crate) result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct SourceLabels {
    pub(crate) source: &'static str,
}

/// Where a record came from.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    Directory,
    Gossip,
}

impl Source {
    pub(crate) fn labels(self) -> SourceLabels {
        let source = match self {
            Source::Directory => "directory",
            Source::Gossip => "gossip",
        };
        SourceLabels { source }
    }
}

impl Figures {
    pub(crate) fn register(registry: &mut Registry) -> Figures {
        let figures = Figures::default();
        let net = registry.sub_registry_with_prefix("hypha_net");
        net.register("peers", "Connected peers by role and link", figures.peers.clone());
        net.register(
            "connections_refused",
            "Connections that were not let in",
            figures.refused_connections.clone(),
        );
        net.register(
            "peers_expelled",
            "Peers disconnected because their certificate no longer counts",
            figures.expelled.clone(),
        );
        net.register("questions", "Questions of peers by result", figures.questions.clone());
        net.register("records", "Directory records kept for others", figures.records.clone());
        net.register(
            "records_refused",
            "Records and gossip that were not believed",
            figures.refused_records.clone(),
        );
        net.register(
            "events_lost",
            "Events dropped because the node did not read them",
            figures.lost_events.clone(),
        );
        figures
    }
}
