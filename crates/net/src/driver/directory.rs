//! The directory: what this node publishes, what it stores for others, and searches.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hypha_model::capability::listings_of;
use hypha_model::{CapabilityQuery, Name};
use hypha_wire::record::{DatasetRecord, Farewell, SignedKind, SignedRecord, WorkerRecord};
use hypha_wire::record_set::RecordSet;
use hypha_wire::worker::Worker as WireWorker;
use hypha_wire::{Message, decode, encode};
use libp2p::kad::{
    self, GetRecordOk, InboundRequest, QueryId, QueryResult, Quorum, Record, RecordKey,
};
use libp2p::{Multiaddr, PeerId};
use tokio::sync::oneshot;

use super::Driver;
use crate::handle::{FoundDataset, FoundWorker, Publication, worker_id};
use crate::metrics::RecordSource;
use crate::rate::RateLimiter;
use crate::record_sets::{InsertOutcome, MAX_PER_AUTHOR, dataset_key, worker_key, worker_keys};
use crate::statement::{Statement, VerifiedStatement, author_of, sign, unix_ms};

/// A record is refreshed three times before it would expire, so that two lost refreshes do no harm.
const REFRESHES_PER_TTL: u32 = 3;

/// After a change, publishing waits this long for the next: at start, addresses become known one by one.
const PUBLISH_DELAY: Duration = Duration::from_millis(300);
/// The same once something is published: it is still valid, so there is no hurry.
const REPUBLISH_DELAY: Duration = Duration::from_secs(3);

/// How long a search may take. Servers that have died are queried too, and would delay it for ten seconds.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(4);

/// Searches in flight at once; more return nothing, which callers treat as "retry later".
const MAX_SEARCHES: usize = 256;

/// Records that a peer may put in a second, and at once: a worker on all its lists, and again after a change.
const PUTS_PER_SECOND: u32 = 100;
const PUT_BURST: u32 = 1_024;
const MAX_PUT_PEERS: usize = 16_384;

/// Farewells that are remembered: longer than the records that they void.
const MAX_FAREWELLS: usize = 8_192;

/// Addresses that a record carries: those that work best come first.
pub(super) const MAX_ADDRESSES: usize = 8;

pub(super) struct Directory {
    publication: Option<Publication>,
    /// Whether the publication was announced by gossip since it last changed.
    announced: bool,
    next_publish: Option<Instant>,
    last_sequence: u64,
    farewells: HashMap<PeerId, u64>,
    searches: HashMap<u64, Search>,
    queries: HashMap<QueryId, u64>,
    next_search: u64,
    puts: RateLimiter<PeerId>,
}

struct Search {
    open_queries: HashSet<QueryId>,
    /// The servers that answered each query.
    answered: HashMap<QueryId, HashSet<PeerId>>,
    found: HashMap<PeerId, Arc<VerifiedStatement>>,
    until: Instant,
    target: SearchTarget,
}

enum SearchTarget {
    Workers { query: CapabilityQuery, reply: oneshot::Sender<Vec<FoundWorker>> },
    Dataset { name: Name, reply: oneshot::Sender<Vec<FoundDataset>> },
}

impl Directory {
    pub(super) fn new() -> Directory {
        Directory {
            publication: None,
            announced: false,
            next_publish: None,
            last_sequence: 0,
            farewells: HashMap::new(),
            searches: HashMap::new(),
            queries: HashMap::new(),
            next_search: 0,
            puts: RateLimiter::new(PUTS_PER_SECOND, PUT_BURST, MAX_PUT_PEERS),
        }
    }

    /// The published addresses of this node are stale.
    pub(super) fn addresses_changed(&mut self) {
        if self.publication.is_some() {
            let delay = if self.announced { REPUBLISH_DELAY } else { PUBLISH_DELAY };
            self.next_publish = Some(Instant::now() + delay);
        }
    }

    /// The records of `author` up to `sequence` are void, even if other peers still repeat them.
    pub(super) fn record_farewell(&mut self, author: PeerId, sequence: u64) {
        if self.farewells.len() >= MAX_FAREWELLS {
            self.farewells.clear();
        }
        self.farewells.insert(author, sequence);
    }

    /// Whether the author has published a farewell since.
    pub(super) fn has_left(&self, verified: &VerifiedStatement) -> bool {
        let farewell = self.farewells.get(&author_of(verified));
        farewell.is_some_and(|farewell| verified.statement.sequence() <= *farewell)
    }

    /// Grows with every record, also over restarts: it follows the clock, and never goes back while running.
    fn next_sequence(&mut self) -> u64 {
        self.last_sequence = unix_ms().max(self.last_sequence + 1);
        self.last_sequence
    }
}

impl Driver {
    pub(super) fn publish(&mut self, publication: Publication) {
        self.directory.publication = Some(publication);
        self.directory.announced = false;
        self.directory.addresses_changed();
    }

    pub(super) fn refresh_publication(&mut self, now: Instant) {
        if self.directory.next_publish.is_none_or(|due| due > now) || !self.has_gateway() {
            return;
        }
        let Some(publication) = self.directory.publication.clone() else { return };
        let ttl = match &publication {
            Publication::Worker { ttl, .. } | Publication::Datasets { ttl, .. } => *ttl,
        };
        self.directory.next_publish = Some(now + ttl / REFRESHES_PER_TTL);
        let sequence = self.directory.next_sequence();
        for (keys, signed) in self.records_of(&publication, sequence) {
            for key in keys {
                self.put(key, &signed, sequence, ttl);
            }
            if !self.directory.announced && signed.kind == SignedKind::Worker {
                self.directory.announced = self.gossip(&signed);
            }
        }
    }

    fn records_of(
        &self,
        publication: &Publication,
        sequence: u64,
    ) -> Vec<(Vec<RecordKey>, SignedRecord)> {
        let credentials = self.gatekeeper.credentials();
        let own = self.own();
        let peer = own.to_bytes();
        let organisation = credentials.pki.own().organisation.clone();
        let addresses = write_addresses(&self.own_addresses());
        let bulk_addresses = write_addresses(&self.bulk_addresses());
        let issued_unix_ms = unix_ms();
        let ttl_ms = |ttl: Duration| u32::try_from(ttl.as_millis()).unwrap_or(u32::MAX);
        let mut records = Vec::new();
        match publication {
            Publication::Worker { worker, ttl } => {
                let record = WorkerRecord {
                    peer,
                    organisation,
                    sequence,
                    issued_unix_ms,
                    ttl_ms: ttl_ms(*ttl),
                    worker: WireWorker::from_model(worker),
                    addresses,
                    bulk_addresses,
                };
                let keys = listings_of(worker).iter().map(|one| worker_key(one, &own)).collect();
                records.push((keys, sign(&credentials.pki, SignedKind::Worker, &record)));
            }
            Publication::Datasets { names, ttl } => {
                for name in names {
                    let record = DatasetRecord {
                        peer: peer.clone(),
                        organisation: organisation.clone(),
                        sequence,
                        issued_unix_ms,
                        ttl_ms: ttl_ms(*ttl),
                        name: name.to_string(),
                        slices: None,
                        bytes: None,
                        addresses: addresses.clone(),
                        bulk_addresses: bulk_addresses.clone(),
                    };
                    let signed = sign(&credentials.pki, SignedKind::Dataset, &record);
                    records.push((vec![dataset_key(name)], signed));
                }
            }
        }
        let signed = |(mut keys, signed): (Vec<RecordKey>, Result<SignedRecord, _>)| {
            if keys.len() > MAX_PER_AUTHOR {
                tracing::warn!("listed under {MAX_PER_AUTHOR} of {} names only", keys.len());
                keys.truncate(MAX_PER_AUTHOR);
            }
            match signed {
                Ok(signed) => Some((keys, signed)),
                Err(error) => {
                    tracing::warn!("cannot publish: {error}");
                    None
                }
            }
        };
        records.into_iter().filter_map(signed).collect()
    }

    /// The gateways of this node hold all that it publishes: they are queried first, over a connection that
    /// exists. The servers closest to the key hold it too, for nodes with other gateways.
    fn put(&mut self, key: RecordKey, signed: &SignedRecord, sequence: u64, ttl: Duration) {
        let own = self.own();
        let gateways = self.connected_gateways();
        let Ok(value) = encode(signed) else { return };
        let until = Instant::now() + ttl;
        let kad = &mut self.swarm.behaviour_mut().kad;
        kad.store_mut().insert(key.clone(), own, sequence, until, signed.clone());
        let record = Record { key, value, publisher: None, expires: Some(until) };
        if !gateways.is_empty() {
            kad.put_record_to(record.clone(), gateways.into_iter(), Quorum::One);
        }
        if let Err(error) = kad.put_record(record, Quorum::One) {
            tracing::warn!("cannot publish: {error}");
        }
    }

    pub(super) fn find_workers(
        &mut self,
        query: CapabilityQuery,
        reply: oneshot::Sender<Vec<FoundWorker>>,
    ) {
        let keys: Vec<_> = query.listings().iter().flat_map(worker_keys).collect();
        self.search(keys, SearchTarget::Workers { query, reply });
    }

    pub(super) fn find_dataset(&mut self, name: Name, reply: oneshot::Sender<Vec<FoundDataset>>) {
        self.search(vec![dataset_key(&name)], SearchTarget::Dataset { name, reply });
    }

    fn search(&mut self, keys: Vec<RecordKey>, target: SearchTarget) {
        if self.directory.searches.len() >= MAX_SEARCHES {
            tracing::warn!("{MAX_SEARCHES} searches are in flight, one is dropped");
            return;
        }
        let id = self.directory.next_search;
        self.directory.next_search += 1;
        let kad = &mut self.swarm.behaviour_mut().kad;
        let open: HashSet<_> = keys.into_iter().map(|key| kad.get_record(key)).collect();
        self.directory.queries.extend(open.iter().map(|query| (*query, id)));
        let until = Instant::now() + SEARCH_TIMEOUT;
        let search = Search {
            open_queries: open,
            answered: HashMap::new(),
            found: HashMap::new(),
            until,
            target,
        };
        self.directory.searches.insert(id, search);
    }

    pub(super) fn finish_expired_searches(&mut self, now: Instant) {
        let expired: Vec<_> = self
            .directory
            .searches
            .iter()
            .filter(|(_, search)| search.until <= now)
            .map(|(id, _)| *id)
            .collect();
        expired.into_iter().for_each(|id| self.finish_search(id));
    }

    fn finish_search(&mut self, id: u64) {
        let Some(search) = self.directory.searches.remove(&id) else { return };
        for query in search.open_queries {
            self.directory.queries.remove(&query);
            if let Some(mut query) = self.swarm.behaviour_mut().kad.query_mut(&query) {
                query.finish();
            }
        }
        match search.target {
            SearchTarget::Workers { query, reply } => {
                let mut found: Vec<_> =
                    search.found.values().filter_map(|verified| found_worker(verified)).collect();
                found.retain(|found| query.satisfied_by(&found.worker));
                found.sort_by_key(|found| found.peer);
                let _ = reply.send(found);
            }
            SearchTarget::Dataset { name, reply } => {
                let found = search.found.values().filter_map(|verified| found_dataset(verified));
                let mut found: Vec<_> = found.filter(|found| found.name == name).collect();
                found.sort_by_key(|found| found.peer);
                let _ = reply.send(found);
            }
        }
    }

    pub(super) fn on_kad(&mut self, event: kad::Event) {
        match event {
            kad::Event::OutboundQueryProgressed { id, result, step, .. } => {
                if let QueryResult::GetRecord(Ok(GetRecordOk::FoundRecord(found))) = result {
                    self.on_record_set(id, &found.record.value);
                    found.peer.into_iter().for_each(|server| self.on_server_response(id, server));
                }
                if step.last
                    && let Some(search) = self.directory.queries.remove(&id)
                    && let Some(state) = self.directory.searches.get_mut(&search)
                {
                    state.open_queries.remove(&id);
                    if state.open_queries.is_empty() {
                        self.finish_search(search);
                    }
                }
            }
            kad::Event::InboundRequest {
                request: InboundRequest::PutRecord { source, record: Some(record), .. },
            } => self.on_put(source, &record),
            _ => {}
        }
    }

    /// Gateways hold everything, so when all of them have responded the query is complete.
    fn on_server_response(&mut self, query: QueryId, server: PeerId) {
        let gateways = self.connected_gateways();
        let Some(search) = self.directory.queries.get(&query) else { return };
        let Some(search) = self.directory.searches.get_mut(search) else { return };
        let answered = search.answered.entry(query).or_default();
        answered.insert(server);
        if !gateways.is_empty()
            && gateways.iter().all(|gateway| answered.contains(gateway))
            && let Some(mut query) = self.swarm.behaviour_mut().kad.query_mut(&query)
        {
            query.finish();
        }
    }

    fn on_record_set(&mut self, query: QueryId, bytes: &[u8]) {
        let Some(id) = self.directory.queries.get(&query).copied() else { return };
        let Ok(record_set) = decode::<RecordSet>(bytes) else {
            return self.count_refused(RecordSource::Directory);
        };
        let credentials = self.gatekeeper.credentials();
        for entry in record_set.entries.iter().filter(|entry| entry.remaining_ms > 0) {
            match self.verifier.verify(&credentials.pki, &entry.signed) {
                Ok(verified) if self.directory.has_left(&verified) => {}
                Ok(verified) => {
                    let Some(search) = self.directory.searches.get_mut(&id) else { return };
                    let newest =
                        search.found.entry(author_of(&verified)).or_insert(verified.clone());
                    if newest.statement.sequence() < verified.statement.sequence() {
                        *newest = verified;
                    }
                }
                Err(error) => {
                    tracing::debug!("rejected a record of the directory: {error}");
                    self.count_refused(RecordSource::Directory);
                }
            }
        }
    }

    fn on_put(&mut self, source: PeerId, record: &Record) {
        let accepted = self.directory.puts.take(source, Instant::now())
            && record.value.len() <= SignedRecord::MAX_BYTES
            && self.store_record(record);
        if !accepted {
            tracing::debug!(%source, "a record was not stored");
            self.count_refused(RecordSource::Directory);
        }
    }

    fn store_record(&mut self, record: &Record) -> bool {
        let Ok(signed) = decode::<SignedRecord>(&record.value) else { return false };
        let credentials = self.gatekeeper.credentials();
        let Ok(verified) = self.verifier.verify(&credentials.pki, &signed) else { return false };
        let author = author_of(&verified);
        if self.directory.has_left(&verified) {
            return true;
        }
        let belongs = match &verified.statement {
            Statement::Worker(content) => content.worker(worker_id(&author)).is_ok_and(|worker| {
                listings_of(&worker).iter().any(|one| worker_key(one, &author) == record.key)
            }),
            Statement::Dataset(content) => {
                content.name.parse().is_ok_and(|name| dataset_key(&name) == record.key)
            }
            Statement::Farewell(_) | Statement::Advert(_) | Statement::AdvertClosed(_) => false,
        };
        let until = Instant::now() + verified.statement.ttl();
        let sequence = verified.statement.sequence();
        let store = self.swarm.behaviour_mut().kad.store_mut();
        belongs
            && store.insert(record.key.clone(), author, sequence, until, signed)
                != InsertOutcome::Full
    }

    /// Publishes to all peers that this node's records are void.
    pub(super) fn publish_farewell(&mut self) {
        if self.directory.publication.take().is_none() {
            return;
        }
        let farewell = Farewell {
            peer: self.own().to_bytes(),
            sequence: self.directory.next_sequence(),
            issued_unix_ms: unix_ms(),
        };
        let credentials = self.gatekeeper.credentials();
        match sign(&credentials.pki, SignedKind::Farewell, &farewell) {
            Ok(signed) => drop(self.gossip(&signed)),
            Err(error) => tracing::warn!("cannot publish the farewell: {error}"),
        }
    }

    pub(super) fn count_refused(&self, source: RecordSource) {
        self.metrics.refused_records.get_or_create(&source.labels()).inc();
    }
}

pub(super) fn found_worker(verified: &VerifiedStatement) -> Option<FoundWorker> {
    let Statement::Worker(record) = &verified.statement else { return None };
    let peer = author_of(verified);
    Some(FoundWorker {
        peer,
        name: verified.author.names.first().cloned(),
        organisation: record.organisation.clone(),
        worker: record.worker(worker_id(&peer)).ok()?,
        addresses: read_addresses(&record.addresses),
        bulk_addresses: read_addresses(&record.bulk_addresses),
        sequence: record.sequence,
    })
}

fn found_dataset(verified: &VerifiedStatement) -> Option<FoundDataset> {
    let Statement::Dataset(record) = &verified.statement else { return None };
    Some(FoundDataset {
        peer: author_of(verified),
        organisation: record.organisation.clone(),
        name: record.name.parse().ok()?,
        addresses: read_addresses(&record.addresses),
        bulk_addresses: read_addresses(&record.bulk_addresses),
    })
}

pub(super) fn read_addresses(addresses: &[Vec<u8>]) -> Vec<Multiaddr> {
    addresses.iter().filter_map(|bytes| Multiaddr::try_from(bytes.clone()).ok()).collect()
}

/// Addresses as a record carries them.
pub(crate) fn write_addresses(addresses: &[Multiaddr]) -> Vec<Vec<u8>> {
    addresses.iter().take(MAX_ADDRESSES).map(Multiaddr::to_vec).collect()
}
