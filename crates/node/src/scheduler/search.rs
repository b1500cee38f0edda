//! Finding workers of the swarm, and staying connected to them. Which of them are used is the machine's choice.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use hypha_model::{CapabilityQuery, NodeRole};
use hypha_net::{FoundWorker, Net, PeerId};
use hypha_wire::request::{RequestBody, ResponseBody};
use tokio::sync::mpsc;
use tracing::Instrument;

use super::core::Core;
use super::links::{Link, Links};
use super::names::Names;

/// News that wait for the search loop. It takes one within the time of a search.
const NEWS: usize = 1_024;

/// While a worker that was found is not connected, the next look comes this soon: it is back, or its record has ended.
const RETRY: Duration = Duration::from_secs(10);

/// The first search may come before the directory has heard of anyone; until a worker is found it is repeated soon.
const SOON: Duration = Duration::from_secs(2);

/// How long a worker may take to answer the first question.
const GREETING: Duration = Duration::from_secs(10);

/// A handle to the search loop.
pub(crate) struct Searching {
    news: mpsc::Sender<News>,
}

enum News {
    Look,
    Announced(Box<FoundWorker>),
    Joined(PeerId),
    Left(PeerId),
}

impl Searching {
    pub(super) fn start(
        net: Net,
        interval: Duration,
        core: Weak<Core>,
        links: Arc<Links>,
        names: &Arc<Names>,
    ) -> Searching {
        let (news, heard) = mpsc::channel(NEWS);
        let names = names.clone();
        let search = Search { net, interval, core, links, names, known: HashMap::new() };
        tokio::spawn(search.run(heard));
        Searching { news }
    }

    /// The directory may have more to say now.
    pub(crate) fn look(&self) {
        self.tell(News::Look);
    }

    pub(crate) fn announced(&self, found: FoundWorker) {
        self.tell(News::Announced(Box::new(found)));
    }

    pub(crate) fn joined(&self, peer: PeerId) {
        self.tell(News::Joined(peer));
    }

    pub(crate) fn left(&self, peer: PeerId) {
        self.tell(News::Left(peer));
    }

    fn tell(&self, news: News) {
        // What does not fit is found by the next search.
        let _ = self.news.try_send(news);
    }
}

struct Search {
    net: Net,
    interval: Duration,
    core: Weak<Core>,
    links: Arc<Links>,
    names: Arc<Names>,
    known: HashMap<PeerId, Known>,
}

struct Known {
    found: FoundWorker,
    link: Link,
}

impl Search {
    async fn run(mut self, mut heard: mpsc::Receiver<News>) {
        loop {
            let all_connected = self.look().await;
            let pause = match (self.known.is_empty(), all_connected) {
                (true, _) => SOON.min(self.interval),
                (false, false) => RETRY.min(self.interval),
                (false, true) => self.interval,
            };
            let due = tokio::time::sleep(pause);
            tokio::pin!(due);
            loop {
                tokio::select! {
                    () = &mut due => break,
                    news = heard.recv() => match news {
                        Some(News::Look) => break,
                        Some(News::Announced(found)) => self.found(*found).await,
                        Some(News::Joined(peer)) => self.joined(peer),
                        Some(News::Left(peer)) => self.lost(peer, "it said farewell").await,
                        None => return,
                    },
                }
            }
        }
    }

    /// Looks who is there; whether all that are known are connected.
    async fn look(&mut self) -> bool {
        let found = self.net.get_records_matching(CapabilityQuery::default()).await;
        let there: HashSet<_> = found.iter().map(|found| found.peer).collect();
        for found in found {
            self.found(found).await;
        }
        let peers = self.net.peers().await;
        // Without a gateway nobody was asked: then a worker that is not found may well be there.
        let asked = peers.iter().any(|peer| peer.role == NodeRole::Gateway);
        let connected: HashSet<_> = peers.iter().map(|peer| peer.id).collect();
        let apart: Vec<_> =
            self.known.keys().filter(|peer| !connected.contains(peer)).copied().collect();
        for peer in apart.iter().filter(|peer| asked && !there.contains(peer)) {
            self.lost(*peer, "its record has ended").await;
        }
        apart.is_empty()
    }

    async fn found(&mut self, found: FoundWorker) {
        let peer = found.peer;
        if let Some(name) = &found.name {
            self.names.put(found.worker.id, name);
        }
        if let Some(known) = self.known.get_mut(&peer) {
            if known.found.sequence > found.sequence {
                return;
            }
            if known.found.worker != found.worker {
                known.link.describe(&found.worker);
                if let Some(core) = self.core.upgrade() {
                    let worker = Arc::new(found.worker.clone());
                    core.tell(hypha_engine::SchedulerEvent::WorkerFound(worker));
                }
            }
            if known.found.addresses != found.addresses {
                self.net.keep(peer, found.addresses.clone()).await;
            }
            known.found = found;
            return;
        }
        let (worker, organisation) = (&found.worker, &found.organisation);
        let name = found.name.as_deref().unwrap_or_default();
        tracing::info!(%peer, name, worker = %worker.id, organisation, "found a worker");
        self.net.keep(peer, found.addresses.clone()).await;
        let (net, core, links) = (self.net.clone(), self.core.clone(), self.links.clone());
        let link = Link::new(net, core, links, peer, found.worker.clone());
        self.known.insert(peer, Known { found, link });
    }

    /// A worker that has just connected gets its stream, and is asked how it is: a link that carries no answers
    /// is better known at once.
    fn joined(&self, peer: PeerId) {
        let Some(known) = self.known.get(&peer) else { return };
        known.link.connected();
        let net = self.net.clone();
        let greeting = async move {
            let asked =
                net.ask(peer, RequestBody::Health, GREETING, hypha_telemetry::traceparent());
            match asked.await {
                Ok(ResponseBody::Health(health)) => {
                    tracing::info!(%peer, version = health.version, ready = health.ready, "a worker answers");
                }
                Ok(_) => tracing::warn!(%peer, "a worker answered something else than its health"),
                Err(error) => {
                    tracing::warn!(%peer, "a worker is connected and does not answer: {error}")
                }
            }
        };
        tokio::spawn(greeting.instrument(tracing::info_span!("greet a worker", %peer)));
    }

    async fn lost(&mut self, peer: PeerId, why: &str) {
        if let Some(known) = self.known.remove(&peer) {
            tracing::info!(%peer, worker = %known.found.worker.id, "a worker is gone: {why}");
            self.net.let_go(peer).await;
        }
    }
}
