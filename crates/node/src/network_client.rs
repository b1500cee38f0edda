//! Queries the network with a node's certificates, without being that node: a node's health, workers and data sets.

use std::time::Duration;

use hypha_config::NetworkConfig;
use hypha_model::{CapabilityQuery, Name, NodeRole};
use hypha_net::{FoundDataset, FoundWorker, Multiaddr, Net, NetEvent, Settings};
use hypha_pki::{Certificate, Pki};
use hypha_wire::request::Health;

use crate::{NodeError, settings};

/// The certificates and gateways that a query uses, and how long it may take.
pub struct NetworkClient<'a> {
    /// The role of the certificate.
    pub role: NodeRole,
    /// Certificates, gateways.
    pub network: &'a NetworkConfig,
    /// This program's version.
    pub version: &'static str,
    /// How long a query may take in all.
    pub timeout: Duration,
}

/// Requests the health of the node at `address`.
pub fn probe(
    client: &NetworkClient<'_>,
    address: Multiaddr,
) -> Result<(Certificate, Health), NodeError> {
    let (settings, pki) = client.prepare()?;
    runtime()?.block_on(async {
        hypha_net::probe(&settings, pki, address, client.timeout).await.map_err(NodeError::failed)
    })
}

/// The workers that satisfy `query`.
pub fn find_workers(
    client: &NetworkClient<'_>,
    query: CapabilityQuery,
) -> Result<Vec<FoundWorker>, NodeError> {
    client.query(async |net| net.get_records_matching(query).await)
}

/// The nodes that serve the data set `name`.
pub fn find_datasets(
    client: &NetworkClient<'_>,
    name: Name,
) -> Result<Vec<FoundDataset>, NodeError> {
    client.query(async |net| net.find_dataset(name).await)
}

impl NetworkClient<'_> {
    fn prepare(&self) -> Result<(Settings, Pki), NodeError> {
        let pki =
            Pki::load(&settings::files(self.network, None)).map_err(NodeError::configuration)?;
        let mut settings = settings::network(self.role, self.network, None, self.version);
        // It is not the node itself: it does not listen, and holds no relay slot.
        settings.listen.clear();
        settings.external.clear();
        settings.bulk_listen.clear();
        settings.relay_circuit = false;
        settings.incarnation = None;
        Ok((settings, pki))
    }

    /// Joins through a gateway, sends the request, and leaves.
    fn query<T>(&self, request: impl AsyncFnOnce(&Net) -> T) -> Result<T, NodeError> {
        let (settings, pki) = self.prepare()?;
        if settings.gateways.is_empty() {
            let problem = "no gateway is configured: set gateway_addresses, or pass --gateway";
            return Err(NodeError::configuration(problem));
        }
        runtime()?.block_on(async {
            let (net, mut events) = Net::start(settings, pki, None, &mut Default::default())
                .map_err(NodeError::configuration)?;
            let response = tokio::time::timeout(self.timeout, async {
                while let Some(event) = events.recv().await {
                    if let NetEvent::GatewayChanged(_, Some(_)) = event {
                        break;
                    }
                }
                request(&net).await
            });
            let response = response.await;
            net.stop().await;
            let (timeout, gateways) = (self.timeout, &self.network.gateway_addresses);
            let tried: Vec<_> = gateways.iter().map(ToString::to_string).collect();
            response.map_err(|_| {
                let tried = tried.join(", ");
                NodeError::failed(format!(
                    "no gateway responded within {timeout:?}; is one running at {tried}?"
                ))
            })
        })
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, NodeError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| NodeError::failed(format!("cannot start: {error}")))
}
