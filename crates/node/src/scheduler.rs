//! A scheduler: finds workers, and stays connected to them.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use hypha_config::SchedulerConfig;
use hypha_model::{CapabilityQuery, NodeRole};
use hypha_net::{FoundWorker, Net, PeerId};
use hypha_wire::request::{RequestBody, ResponseBody};
use tokio::sync::mpsc;
use tracing::Instrument;

/// News that wait for the search loop. It takes one within the time of a search.
const NEWS: usize = 1_024;

/// While a worker that was found is not connected, the next look comes this soon: it is back, or its record has ended.
const RETRY: Duration = Duration::from_secs(10);

/// The first search may come before the directory has heard of anyone; until a worker is found it is repeated soon.
const SOON: Duration = Duration::from_secs(2);

/// How long a worker may take to answer the first question.
const GREETING: Duration = Duration::from_secs(10);

/// A handle to the search loop.
pub(crate) struct Scheduler {
    news: mpsc::Sender<News>,
}

enum News {
    Look,
    Announced(Box<FoundWorker>),
    Joined(PeerId),
    Left(PeerId),
}

impl Scheduler {
    pub(crate) fn start(config: &SchedulerConfig, net: Net) -> Scheduler {
        let (news, heard) = mpsc::channel(NEWS);
        let search = Search { net, interval: config.discovery_interval, known: HashMap::new() };
        tokio::spawn(search.run(heard));
        Scheduler { news }
    }

    /// The directory may have more to say now.
    pub(crate) fn look(&mut self) {
        self.tell(News::Look);
    }

    pub(crate) fn announced(&mut self, found: FoundWorker) {
        self.tell(News::Announced(Box::new(found)));
    }

    pub(crate) fn joined(&mut self, peer: PeerId) {
        self.tell(News::Joined(peer));
    }

    pub(crate) fn left(&mut self, peer: PeerId) {
        self.tell(News::Left(peer));
    }

    fn tell(&mut self, news: News) {
        // What does not fit is found by the next search.
        let _ = self.news.try_send(news);
    }
}

struct Search {
    net: Net,
    interval: Duration,
    known: HashMap<PeerId, FoundWorker>,
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
                        Some(News::Joined(peer)) => self.greet(peer),
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
        match self.known.get(&peer) {
            Some(known) if known.sequence > found.sequence => return,
            Some(known) if known.addresses == found.addresses => {
                self.known.insert(peer, found);
                return;
            }
            Some(_) => {}
            None => {
                let (worker, organisation) = (&found.worker, &found.organisation);
                let name = found.name.as_deref().unwrap_or_default();
                tracing::info!(%peer, name, worker = %worker.id, organisation, "found a worker");
            }
        }
        self.net.keep(peer, found.addresses.clone()).await;
        self.known.insert(peer, found);
    }

    /// Asks a worker that has just connected how it is: a link that carries no answers is better known at once.
    fn greet(&self, peer: PeerId) {
        if !self.known.contains_key(&peer) {
            return;
        }
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
            tracing::info!(%peer, worker = %known.worker.id, "a worker is gone: {why}");
            self.net.let_go(peer).await;
        }
    }
}
