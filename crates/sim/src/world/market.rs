//! The market in a world: jobs, gossip, owners, and those who do not keep to the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hypha_engine::job::{JobPlan, JobRecord, JobState, accounts_of};
use hypha_engine::{
    Advert, Advertiser, Command, FromWorker, Record, ToWorker, WorkerEvent, WorkerMachine,
};
use hypha_market::{GRANT_TIMEOUT, OwnerReason};
use hypha_model::{AdvertId, JobId, LeaseId, Money, OfferId, Priority, Rng, Span, TaskSpec, Time};

use super::World;
use super::clients::Requester;
use super::event_queue::WorldEvent;
use super::nodes::{Node, SchedulerSetup, scheduler_index, worker_index};
use crate::checkers::{Promise, Violation};

/// A client that got no answer submits its job again after this long.
const CLIENT_RETRY_AFTER: Span = Span::from_secs(2);
/// Gossip takes up to this many hops in a small world.
const MAX_HOPS: u64 = 3;
/// How often it is looked whether all receipts are settled, after the last job.
const SETTLE_CHECK_INTERVAL: Span = Span::from_secs(1);
/// Slow clocks: a lease of an hour ends after this many hours.
const SLOW_CLOCK: f64 = 1.0 / 0.9;
/// The time for messages and commits, beside the time that a lease lasts.
const MARGIN: Span = Span::from_secs(3);
/// How often a job may lose members to one place of a job with a higher priority: it is replaced elsewhere meanwhile, and
/// the other may fail to form.
const PREEMPTIONS_PER_PLACE: u32 = 4;

/// What a world with a market has besides.
pub struct MarketSetup {
    /// The jobs, in order of time.
    pub jobs: Vec<MarketJob>,
    /// The TTL of all leases of jobs.
    pub lease_ttl: Span,
    /// For each scheduler and worker how long gossip takes, and how many messages one of it costs; `None` draws a few
    /// hops for each.
    pub mesh: Option<Arc<Mesh>>,
    /// Schedulers that flood workers with adverts and answer nothing.
    pub rogues: Vec<Rogue>,
    /// From then on nothing goes wrong any more: what is not countersigned must be little. `None` does not check it.
    pub quiet_from: Option<Time>,
}

/// A job, and when it is submitted.
#[derive(Clone, Debug)]
pub struct MarketJob {
    /// When.
    pub at: Time,
    /// To which scheduler.
    pub scheduler: usize,
    /// What is submitted. Its programs come from [`program`].
    pub plan: Arc<JobPlan>,
    /// For each role, how long a member runs at speed 1, in seconds.
    pub run_s: Vec<f64>,
}

/// How gossip spreads from each scheduler.
pub struct Mesh {
    /// For each scheduler and worker, how long a message takes.
    pub delays: Vec<Vec<Span>>,
    /// How many messages it takes to reach all.
    pub messages: u64,
}

/// A scheduler that sends adverts and never answers an offer.
#[derive(Clone, Debug)]
pub struct Rogue {
    /// What it advertises each time, with new ids.
    pub advert: Advert,
    /// How many at a time.
    pub adverts: usize,
    /// How often.
    pub interval: Span,
    /// Until when.
    pub until: Time,
}

/// What was counted.
#[derive(Clone, Debug, Default)]
pub struct MarketCounts {
    /// Adverts that went out by gossip, and their ends.
    pub gossiped: u64,
    /// What all nodes of the mesh sent each other for them.
    pub mesh_messages: u64,
    /// Gossip that workers received.
    pub deliveries: u64,
    /// Offers that workers sent.
    pub offers: u64,
    /// Messages between one scheduler and one worker that are about adverts, offers and grants, offers included.
    pub direct: u64,
    /// Leases that were granted to gangs.
    pub leases: u64,
    /// Leases that were taken back for others.
    pub preemptions: u64,
    /// From advert to lease, in milliseconds.
    pub lease_latencies_ms: Vec<f64>,
    /// Offers of each worker that were accepted, with when.
    pub accepts: Vec<(usize, Time)>,
    /// When the last job ended.
    pub last_end: Option<Time>,
    /// For each job by its index, when it was completed.
    pub completed: Vec<Option<Time>>,
}

/// Gossip of a scheduler.
#[derive(Clone, Debug)]
pub(crate) enum Gossip {
    Advert(Arc<Advert>),
    Closed(AdvertId),
}

/// An event of the market.
#[derive(Clone, Debug)]
pub(crate) enum MarketWorldEvent {
    SubmitJob { index: usize },
    Gossiped { worker: usize, scheduler: usize, gossip: Gossip },
    Connected { worker: usize, scheduler: usize },
    Flood { rogue: usize },
    SettleCheck,
}

/// The state of the market's environment and of its checkers.
pub(super) struct Market {
    setup: MarketSetup,
    counts: MarketCounts,
    answered: BTreeSet<usize>,
    jobs: BTreeMap<JobId, ObservedJob>,
    accepted: BTreeSet<usize>,
    job_of: BTreeMap<LeaseId, JobId>,
    adverts: BTreeMap<AdvertId, Time>,
    offers: BTreeMap<OfferId, AdvertId>,
    /// Leases for no formed gang, and since when.
    unformed: BTreeMap<LeaseId, Time>,
    preempted: BTreeSet<LeaseId>,
    rng: Rng,
}

struct ObservedJob {
    index: usize,
    priority: Priority,
    ended: bool,
    preempted: u32,
}

/// What a member of a role of a job runs: its input says which.
pub fn program(job: usize, role: usize, requirement: hypha_model::Requirement) -> Arc<TaskSpec> {
    let mut input = [0; 8];
    input[..4].copy_from_slice(&(job as u32).to_le_bytes());
    input[4..].copy_from_slice(&(role as u32).to_le_bytes());
    let input = hypha_model::Payload::from(input.as_slice());
    Arc::new(TaskSpec { requirement, input, ..TaskSpec::default() })
}

impl MarketWorldEvent {
    pub(super) fn required_node(&self) -> Option<Node> {
        match self {
            MarketWorldEvent::Gossiped { worker, .. }
            | MarketWorldEvent::Connected { worker, .. } => Some(Node::Worker(*worker)),
            MarketWorldEvent::SubmitJob { .. }
            | MarketWorldEvent::Flood { .. }
            | MarketWorldEvent::SettleCheck => None,
        }
    }

    pub(super) fn describe(&self) -> String {
        match self {
            MarketWorldEvent::SubmitJob { index } => format!("client submits job {index}"),
            MarketWorldEvent::Gossiped { worker, scheduler, gossip } => {
                format!("worker {worker} hears of scheduler {scheduler}: {gossip:?}")
            }
            MarketWorldEvent::Connected { worker, scheduler } => {
                format!("scheduler {scheduler} connects to worker {worker}")
            }
            MarketWorldEvent::Flood { rogue } => format!("rogue {rogue} floods"),
            MarketWorldEvent::SettleCheck => "receipts are looked at".to_owned(),
        }
    }
}

impl Market {
    pub(super) fn new(setup: MarketSetup) -> Market {
        let completed = vec![None; setup.jobs.len()];
        Market {
            counts: MarketCounts { completed, ..MarketCounts::default() },
            setup,
            answered: BTreeSet::new(),
            jobs: BTreeMap::new(),
            accepted: BTreeSet::new(),
            job_of: BTreeMap::new(),
            adverts: BTreeMap::new(),
            offers: BTreeMap::new(),
            unformed: BTreeMap::new(),
            preempted: BTreeSet::new(),
            rng: Rng::new(0x6d61_726b_6574),
        }
    }

    /// How long the part of a job runs.
    pub(super) fn run_s(&self, spec: &TaskSpec) -> Option<f64> {
        let bytes: [u8; 8] = spec.input.bytes().try_into().ok()?;
        let number = |bytes: &[u8]| Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize);
        let (job, role) = (number(&bytes[..4])?, number(&bytes[4..])?);
        self.setup.jobs.get(job)?.run_s.get(role).copied()
    }

    fn has_ended(&self) -> bool {
        self.accepted.len() == self.setup.jobs.len() && self.jobs.values().all(|job| job.ended)
    }

    fn places_above(&self, priority: Priority) -> u32 {
        let above = self.setup.jobs.iter().filter(|job| job.plan.gang.priority > priority);
        above.flat_map(|job| &job.plan.gang.roles).map(|role| role.count).sum()
    }
}

impl World {
    pub(super) fn begin_market(&mut self) {
        let Some(market) = &self.market else { return };
        for (index, job) in market.setup.jobs.iter().enumerate() {
            let submit = MarketWorldEvent::SubmitJob { index };
            self.events.add(job.at, WorldEvent::Market(submit));
        }
        for rogue in 0..market.setup.rogues.len() {
            self.events.add(self.now, WorldEvent::Market(MarketWorldEvent::Flood { rogue }));
        }
    }

    /// What was counted on the market.
    pub fn market_counts(&self) -> Option<&MarketCounts> {
        self.market.as_ref().map(|market| &market.counts)
    }

    pub(super) fn market_has_ended(&self) -> bool {
        self.market.as_ref().is_none_or(Market::has_ended)
    }

    /// Checks that every job has ended.
    pub(super) fn check_jobs_ended(&self) -> Result<(), Violation> {
        let Some(market) = self.market.as_ref().filter(|market| !market.has_ended()) else {
            return Ok(());
        };
        let open = market.jobs.iter().find(|(_, job)| !job.ended);
        let what = match open {
            Some((id, job)) => {
                let view = self.schedulers.iter().find_map(|node| node.machine.as_ref()?.job(*id));
                let left = market.jobs.values().filter(|job| !job.ended).count();
                format!("job {} and {} others have not ended: {view:?}", job.index, left - 1)
            }
            None => format!("{} jobs were accepted", market.accepted.len()),
        };
        Err(Violation { promise: Promise::JobsProgress, what })
    }

    pub(super) fn handle_market_event(&mut self, event: MarketWorldEvent) -> Result<(), Violation> {
        match event {
            MarketWorldEvent::SubmitJob { index } => self.submit_job(index),
            MarketWorldEvent::Gossiped { worker, scheduler, gossip } => {
                if let Some(market) = &mut self.market {
                    market.counts.deliveries += 1;
                }
                let Some(from) = self.advertiser(scheduler) else { return Ok(()) };
                let event = match gossip {
                    Gossip::Advert(advert) => WorkerEvent::AdvertReceived { from, advert },
                    Gossip::Closed(advert) => {
                        WorkerEvent::AdvertClosed { scheduler: from.scheduler, advert }
                    }
                };
                self.tell::<WorkerMachine>(worker, event)
            }
            MarketWorldEvent::Connected { worker, scheduler } => {
                let Some(from) = self.advertiser(scheduler) else { return Ok(()) };
                self.tell::<WorkerMachine>(worker, WorkerEvent::SchedulerConnected(from))
            }
            MarketWorldEvent::Flood { rogue } => {
                self.flood(rogue);
                Ok(())
            }
            MarketWorldEvent::SettleCheck => Ok(()),
        }
    }

    fn submit_job(&mut self, index: usize) -> Result<(), Violation> {
        let Some(market) = self.market.as_ref().filter(|it| !it.answered.contains(&index)) else {
            return Ok(());
        };
        let Some(job) = market.setup.jobs.get(index).cloned() else { return Ok(()) };
        let again = MarketWorldEvent::SubmitJob { index };
        self.events.add(self.now + CLIENT_RETRY_AFTER, WorldEvent::Market(again));
        self.request(job.scheduler, Requester::Job(index), Command::SubmitJob(job.plan))
    }

    pub(super) fn job_answered(&mut self, index: usize) {
        if let Some(market) = &mut self.market {
            market.answered.insert(index);
        }
    }

    /// A scheduler, also one that is none of this world's, as workers know it.
    fn advertiser(&self, scheduler: usize) -> Option<Advertiser> {
        let host = self.schedulers.get(scheduler);
        let settings = host.map(|host| host.setup.settings.clone()).unwrap_or_default();
        let id = SchedulerSetup::new(scheduler, settings.clone()).id;
        let organisation = settings.organisation.or_else(|| "rogue".parse().ok());
        Some(Advertiser { scheduler: id, organisation: organisation? })
    }

    /// A channel between the two is open: the worker knows the scheduler's certificate.
    pub(super) fn connect(&mut self, scheduler: usize, worker: usize) -> Result<(), Violation> {
        if self.market.is_some() && !self.is_http(worker) {
            let connected = MarketWorldEvent::Connected { worker, scheduler };
            self.events.add(self.now, WorldEvent::Market(connected));
        }
        Ok(())
    }

    /// Sends something to all workers, with the losses and delays of gossip.
    pub(super) fn gossip(&mut self, scheduler: usize, gossip: Gossip) {
        let (now, network) = (self.now, self.network);
        let Some(market) = &mut self.market else { return };
        market.counts.gossiped += 1;
        if let Gossip::Advert(advert) = &gossip {
            market.adverts.entry(advert.id).or_insert(now);
        }
        let mesh = market.setup.mesh.clone();
        market.counts.mesh_messages += mesh.as_ref().map_or(0, |mesh| mesh.messages);
        for worker in 0..self.workers.len() {
            let arrivals = match &mesh {
                Some(mesh) => [Some(now + mesh.delays[scheduler][worker]), None],
                None => {
                    let hops = 1 + self.rng.below(MAX_HOPS);
                    let relayed = (1..hops)
                        .fold(now, |at, _| network.deliveries(at, &mut self.rng)[0].unwrap_or(at));
                    network.deliveries(relayed, &mut self.rng)
                }
            };
            if self.fault_schedule.is_partitioned(scheduler, worker, now) {
                continue;
            }
            for at in arrivals.into_iter().flatten() {
                let gossip = gossip.clone();
                let event = MarketWorldEvent::Gossiped { worker, scheduler, gossip };
                self.events.add(at, WorldEvent::Market(event));
            }
        }
    }

    fn flood(&mut self, rogue: usize) {
        let (now, scheduler) = (self.now, self.schedulers.len() + rogue);
        let Some(market) = &mut self.market else { return };
        let Some(plan) = market.setup.rogues.get(rogue).cloned() else { return };
        let ids: Vec<AdvertId> =
            (0..plan.adverts).map(|_| AdvertId::new(now, &mut market.rng)).collect();
        for id in ids {
            let advert = Arc::new(Advert { id, ..plan.advert.clone() });
            for worker in 0..self.workers.len() {
                let gossip = Gossip::Advert(Arc::clone(&advert));
                let event = MarketWorldEvent::Gossiped { worker, scheduler, gossip };
                self.events.add(now + self.network.latency, WorldEvent::Market(event));
            }
        }
        if now + plan.interval < plan.until {
            let again = MarketWorldEvent::Flood { rogue };
            self.events.add(now + plan.interval, WorldEvent::Market(again));
        }
    }

    pub(super) fn count_to_worker(&mut self, worker: usize, message: &ToWorker) {
        let now = self.now;
        let Some(market) = &mut self.market else { return };
        if let ToWorker::Advertise(advert) = message {
            market.adverts.entry(advert.id).or_insert(now);
        }
        if let ToWorker::AcceptOffer { .. } = message {
            market.counts.accepts.push((worker, now));
        }
        if matches!(
            message,
            ToWorker::Advertise(_)
                | ToWorker::CloseAdvert(_)
                | ToWorker::AcceptOffer { .. }
                | ToWorker::DeclineOffer(_)
        ) {
            market.counts.direct += 1;
        }
    }

    pub(super) fn count_from_worker(
        &mut self,
        worker: usize,
        message: &FromWorker,
    ) -> Result<(), Violation> {
        let owner = self.workers[worker].setup.owner.refusal();
        let Some(market) = &mut self.market else { return Ok(()) };
        match message {
            FromWorker::Offered(offer) => {
                market.counts.offers += 1;
                market.counts.direct += 1;
                market.offers.insert(offer.id, offer.advert);
            }
            FromWorker::NotOffered(_) | FromWorker::OfferUnknown(_) => market.counts.direct += 1,
            FromWorker::LeaseGranted { .. } => market.counts.direct += 1,
            FromWorker::Preempted { lease, .. } if market.preempted.insert(*lease) => {
                if matches!(owner, Some(OwnerReason::InUse | OwnerReason::OffHours)) {
                    return Ok(());
                }
                market.counts.preemptions += 1;
                let Some(id) = market.job_of.get(lease).copied() else { return Ok(()) };
                let Some(priority) = market.jobs.get(&id).map(|job| job.priority) else {
                    return Ok(());
                };
                let places = market.places_above(priority);
                let Some(job) = market.jobs.get_mut(&id) else { return Ok(()) };
                job.preempted += 1;
                if job.preempted > PREEMPTIONS_PER_PLACE * places {
                    let what = format!(
                        "job {} lost {} members to {places} places of a higher priority",
                        job.index, job.preempted
                    );
                    return Err(Violation { promise: Promise::NoPreemptionLoops, what });
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Something of a scheduler became durable.
    pub(super) fn market_persisted(
        &mut self,
        scheduler: usize,
        records: &[Record],
    ) -> Result<(), Violation> {
        let now = self.now;
        let Some(market) = &mut self.market else { return Ok(()) };
        for record in records {
            let Record::Job(record) = record else { continue };
            match record {
                JobRecord::Accepted(accepted) => {
                    let name = accepted.plan.name.as_ref().map(ToString::to_string);
                    let index = name.and_then(|name| name.strip_prefix("job-")?.parse().ok());
                    let Some(index) = index else { continue };
                    let priority = accepted.plan.gang.priority;
                    let observed = ObservedJob { index, priority, ended: false, preempted: 0 };
                    market.accepted.insert(index);
                    market.jobs.insert(accepted.id, observed);
                }
                JobRecord::Ended(ended) => {
                    let Some(job) = market.jobs.get_mut(&ended.job) else { continue };
                    job.ended = true;
                    if ended.state != JobState::Completed {
                        let what =
                            format!("job {} of scheduler {scheduler} is {ended:?}", job.index);
                        return Err(Violation { promise: Promise::JobsProgress, what });
                    }
                    market.counts.last_end = Some(now);
                    if let Some(completed) = market.counts.completed.get_mut(job.index) {
                        completed.get_or_insert(now);
                    }
                }
                JobRecord::MemberJoined { job, run } => {
                    market.counts.leases += 1;
                    market.job_of.insert(run.member.lease, *job);
                    let advert = market.offers.get(&run.member.offer);
                    if let Some(sent) = advert.and_then(|advert| market.adverts.get(advert)) {
                        let latency = now.since(*sent).as_millis_f64();
                        market.counts.lease_latencies_ms.push(latency);
                    }
                    let Some(index) = market.jobs.get(job).map(|job| job.index) else { continue };
                    let plan = &market.setup.jobs[index].plan;
                    let role = plan.gang.roles.get(usize::from(run.member.role));
                    let most = role.map_or(Money::ZERO, |role| role.max);
                    let host = worker_index(run.member.worker).and_then(|at| self.workers.get(at));
                    let least = host.map_or(Money::ZERO, |host| {
                        host.setup.terms.price(Money::ZERO, &run.member.portion)
                    });
                    let price = run.member.price;
                    if !(least..=most).contains(&price) {
                        let what = format!(
                            "job {index}: {price} is not between the owner's {least} and {most}"
                        );
                        return Err(Violation { promise: Promise::PriceInBounds, what });
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// An owner has paused a worker, or resumed it.
    pub(super) fn owner_changed(&mut self, worker: usize) {
        let state = self.workers[worker].setup.owner.refusal();
        self.note(|| format!("the owner of worker {worker}: {state:?}"));
    }

    /// Checks that every lease that a scheduler relies on is in its worker's book.
    pub(super) fn check_scheduler_market(&self, at: usize) -> Result<(), Violation> {
        if self.market.is_none() {
            return Ok(());
        }
        let host = &self.schedulers[at];
        let Some(machine) = &host.machine else { return Ok(()) };
        let local = host.clock.local(self.now);
        for (_, member) in machine.members().filter(|(_, member)| member.is_usable(local)) {
            let worker = worker_index(member.worker).and_then(|at| self.workers.get(at));
            let Some(owner) = worker.and_then(|worker| worker.machine.as_ref()) else { continue };
            if owner.epoch() == member.epoch
                && !owner.fixed_leases().any(|(_, lease, _)| lease == member.lease)
            {
                let what = format!(
                    "scheduler {at} relies on {} of {}, which no longer has it",
                    member.lease, member.worker
                );
                return Err(Violation { promise: Promise::NotBookedTwice, what });
            }
        }
        Ok(())
    }

    /// Checks the leases of a worker after a step: none is kept for a gang that is not formed, and little is not
    /// countersigned.
    pub(super) fn check_worker_market(&mut self, at: usize) -> Result<(), Violation> {
        let now = self.now;
        let Some(market) = &mut self.market else { return Ok(()) };
        let host = &self.workers[at];
        let Some(machine) = &host.machine else { return Ok(()) };
        let promise = Promise::ReplacementFirst;
        machine.check_order().map_err(|what| Violation { promise, what })?;
        let most = market.setup.lease_ttl.mul_f64(SLOW_CLOCK) + GRANT_TIMEOUT + MARGIN;
        for (scheduler, lease, _) in machine.fixed_leases() {
            let holder = scheduler_index(scheduler).and_then(|at| self.schedulers.get(at));
            let holder = holder.and_then(|holder| holder.machine.as_ref());
            if holder.and_then(|holder| holder.is_formed_with(lease)) == Some(true) {
                market.unformed.remove(&lease);
                continue;
            }
            let since = *market.unformed.entry(lease).or_insert(now);
            if now.since(since) > most {
                let what = format!("worker {at} has kept {lease} for no formed gang since {since}");
                return Err(Violation { promise: Promise::AllOrNone, what });
            }
        }
        if market.setup.quiet_from.is_none_or(|from| now < from) {
            return Ok(());
        }
        // One renewal interval, one repeat, and messages.
        let most = market.setup.lease_ttl.mul_f64(SLOW_CLOCK * (1.0 / 3.0 + 1.0 / 12.0)) + MARGIN;
        for (lease, held, confirmed) in machine.held_leases(host.clock.local(now)) {
            if held > confirmed + most {
                let what =
                    format!("{lease} of worker {at}: {held} held, {confirmed} countersigned");
                return Err(Violation { promise: Promise::ReceiptsAgree, what });
            }
        }
        Ok(())
    }

    /// Lets all leases end and all receipts arrive, and checks that both sides have the same.
    pub fn settle(&mut self, deadline: Time) -> Result<(), Violation> {
        if self.market.is_none() {
            return Ok(());
        }
        loop {
            let look_at = self.now + SETTLE_CHECK_INTERVAL;
            self.events.add(look_at, WorldEvent::Market(MarketWorldEvent::SettleCheck));
            while let Some((at, event)) = self.events.next() {
                self.now = at;
                self.handle_event(event)?;
                if at >= look_at {
                    break;
                }
            }
            let difference = self.receipt_difference();
            match difference {
                None => return Ok(()),
                Some(what) if self.now > deadline => {
                    return Err(Violation { promise: Promise::ReceiptsAgree, what });
                }
                Some(_) => {}
            }
        }
    }

    /// What is not the same on both sides, of what is durable.
    fn receipt_difference(&self) -> Option<String> {
        let accounts: Vec<_> =
            self.schedulers.iter().map(|host| accounts_of(&host.disk.image().jobs).0).collect();
        for (at, worker) in self.workers.iter().enumerate() {
            if worker.machine.as_ref().is_none_or(|it| it.fixed_leases().next().is_some()) {
                return Some(format!("worker {at} still has leases"));
            }
            for (lease, stored) in &worker.disk.image().receipts {
                let scheduler = scheduler_index(stored.issued.receipt.scheduler);
                let known = scheduler.and_then(|at| accounts.get(at));
                let account = known.and_then(|known| known.get(lease));
                let last = account.and_then(|account| account.last.as_ref());
                let of = |receipt: &hypha_market::Receipt| (receipt.number, receipt.held);
                let theirs = last.map(|last| of(&last.receipt));
                let ours = stored.confirmed.as_ref().map(|signed| of(&signed.receipt));
                // A lease that the scheduler never made durable is not paid for.
                if theirs != ours || (account.is_some() && !stored.is_confirmed()) {
                    return Some(format!(
                        "{lease} of worker {at}: it issued {:?}, has {ours:?} countersigned, and scheduler {scheduler:?} {theirs:?}",
                        of(&stored.issued.receipt)
                    ));
                }
            }
        }
        let known = |lease: &LeaseId| {
            self.workers.iter().any(|host| host.disk.image().receipts.contains_key(lease))
        };
        let countersigned = accounts.iter().flatten().filter(|(_, account)| account.last.is_some());
        countersigned
            .map(|(lease, _)| lease)
            .find(|lease| !known(lease))
            .map(|lease| format!("{lease} is countersigned, and no worker issued it"))
    }
}
