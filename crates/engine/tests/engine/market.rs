//! Schedulers and workers that trade with each other: adverts, offers, leases, jobs, the pool and receipts.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use hypha_engine::job::{JobPlan, JobState, JobView};
use hypha_engine::{
    Advertiser, Command, Effect, FromWorker, Image, Reply, RunCommand, RunId, Scheduler,
    SchedulerEvent, SchedulerStep, Settings, Signer, Terms, ToWorker, WorkerEffect, WorkerEvent,
    WorkerImage, WorkerMachine, WorkerStep,
};
use hypha_machine::{Batch, Machine, MemoryDisk};
use hypha_market::{GangRole, GangSpec, LedgerSum, PoolSettings, SimulatedNotary};
use hypha_model::{
    ExecutorClass, JobId, Maximise, Money, Priority, Requirement, SchedulerId, Span, TaskSpec,
    TaskState, Time, Worker, WorkerId,
};

use crate::harness::{START, commit, completed, name, step, task, worker, worker_id};

/// How long a message takes.
const TRIP: Span = Span::from_millis(10);
/// How long everything runs.
const RUN: Span = Span::from_secs(20);

/// Schedulers and workers, connected to each other.
struct Market {
    now: Time,
    schedulers: BTreeMap<SchedulerId, SchedulerNode>,
    workers: BTreeMap<WorkerId, WorkerNode>,
    queue: BinaryHeap<Reverse<(Time, u64, Delivery)>>,
    deliveries: Vec<Option<(Node, Input)>>,
    runs: BTreeMap<RunId, u32>,
}

type Delivery = usize;

struct SchedulerNode {
    machine: Scheduler,
    batch: Batch<Scheduler, ()>,
    disk: MemoryDisk<Image>,
    settings: Settings,
}

struct WorkerNode {
    machine: Option<WorkerMachine>,
    batch: Batch<WorkerMachine, ()>,
    disk: MemoryDisk<WorkerImage>,
    worker: Arc<Worker>,
}

#[derive(Clone, Copy)]
enum Node {
    Scheduler(SchedulerId),
    Worker(WorkerId),
}

enum Input {
    Scheduler(SchedulerEvent),
    Worker(WorkerEvent),
}

fn scheduler_id(n: u8) -> SchedulerId {
    format!("00000000-0000-7000-8000-0000000001{n:02x}").parse().unwrap()
}

fn units(units: u64) -> Money {
    Money::from_micros(units * 1_000_000)
}

impl Market {
    fn new(schedulers: &[Settings], workers: &[(u8, Terms)]) -> Market {
        let mut market = Market {
            now: START,
            schedulers: BTreeMap::new(),
            workers: BTreeMap::new(),
            queue: BinaryHeap::new(),
            deliveries: Vec::new(),
            runs: BTreeMap::new(),
        };
        for (n, settings) in schedulers.iter().enumerate() {
            let id = scheduler_id(n as u8 + 1);
            let settings =
                Settings { organisation: Some(name(&format!("org{}", n + 1))), ..settings.clone() };
            market.start_scheduler(id, settings, MemoryDisk::default());
        }
        for (n, terms) in workers {
            let mut worker = worker(*n);
            worker.executors[0].class = ExecutorClass::Train;
            let inference = hypha_model::Executor {
                class: ExecutorClass::Inference,
                name: name("infer"),
                ..worker.executors[0].clone()
            };
            worker.executors.push(inference);
            market.start_worker(Arc::new(worker), terms.clone(), MemoryDisk::default());
        }
        market
    }

    fn start_scheduler(&mut self, id: SchedulerId, settings: Settings, disk: MemoryDisk<Image>) {
        let mut first = SchedulerStep::default();
        let image = disk.image.clone();
        let mut machine = Scheduler::recover(id, settings.clone(), image, 7, self.now, &mut first);
        machine.set_notary(Arc::new(SimulatedNotary(Signer::Scheduler(id))));
        let node = SchedulerNode { machine, batch: Batch::from(first), disk, settings };
        self.schedulers.insert(id, node);
        let node = self.schedulers.get_mut(&id).unwrap();
        let done = commit(&mut node.batch, &mut node.disk);
        self.scheduler_effects(id, done.at_once.into_iter().chain(done.send).collect());
        for worker in self.workers.keys().copied().collect::<Vec<_>>() {
            self.connect(id, worker);
        }
    }

    fn start_worker(&mut self, worker: Arc<Worker>, terms: Terms, disk: MemoryDisk<WorkerImage>) {
        let mut first = WorkerStep::default();
        let id = worker.id;
        let WorkerImage { epoch, left, receipts } = disk.image.clone();
        let notary = Arc::new(SimulatedNotary(Signer::Worker(id)));
        let seed = u64::from(id.uuid().as_bytes()[15]);
        let machine = WorkerMachine::start(Arc::clone(&worker), epoch, left, seed, &mut first)
            .with_terms(terms)
            .with_receipts(notary, receipts.into_values().collect());
        let (machine, batch) = (Some(machine), Batch::from(first));
        self.workers.insert(id, WorkerNode { machine, batch, disk, worker });
        let node = self.workers.get_mut(&id).unwrap();
        let done = commit(&mut node.batch, &mut node.disk);
        self.worker_effects(id, done.at_once.into_iter().chain(done.send).collect());
        for scheduler in self.schedulers.keys().copied().collect::<Vec<_>>() {
            self.connect(scheduler, id);
        }
    }

    fn connect(&mut self, scheduler: SchedulerId, worker: WorkerId) {
        let organisation = self.schedulers[&scheduler].settings.organisation.clone().unwrap();
        let connected = WorkerEvent::SchedulerConnected(Advertiser { scheduler, organisation });
        self.post(Node::Worker(worker), TRIP, Input::Worker(connected));
        let found = SchedulerEvent::WorkerFound(Arc::clone(&self.workers[&worker].worker));
        self.post(Node::Scheduler(scheduler), TRIP, Input::Scheduler(found));
    }

    fn kill_worker(&mut self, n: u8) {
        let id = worker_id(n);
        self.workers.get_mut(&id).unwrap().machine = None;
        for scheduler in self.schedulers.keys().copied().collect::<Vec<_>>() {
            let lost = SchedulerEvent::WorkerDisconnected(id);
            self.post(Node::Scheduler(scheduler), TRIP, Input::Scheduler(lost));
        }
    }

    fn restart_scheduler(&mut self, n: u8) {
        let node = self.schedulers.remove(&scheduler_id(n)).unwrap();
        self.start_scheduler(scheduler_id(n), node.settings, node.disk);
    }

    fn post(&mut self, to: Node, after: Span, input: Input) {
        let at = self.deliveries.len();
        self.deliveries.push(Some((to, input)));
        self.queue.push(Reverse((self.now + after, at as u64, at)));
    }

    fn scheduler_effects(&mut self, from: SchedulerId, effects: Vec<Effect>) {
        let organisation = self.schedulers[&from].settings.organisation.clone().unwrap();
        let all: Vec<WorkerId> = self.workers.keys().copied().collect();
        for effect in effects {
            match effect {
                Effect::ToWorker { worker, message } => {
                    let event = WorkerEvent::SchedulerMessageReceived { scheduler: from, message };
                    self.post(Node::Worker(worker), TRIP, Input::Worker(event));
                }
                Effect::GossipAdvert(advert) => {
                    for worker in &all {
                        let from =
                            Advertiser { scheduler: from, organisation: organisation.clone() };
                        let advert = Arc::clone(&advert);
                        let event = WorkerEvent::AdvertReceived { from, advert };
                        self.post(Node::Worker(*worker), TRIP, Input::Worker(event));
                    }
                }
                Effect::GossipAdvertClosed(advert) => {
                    for worker in &all {
                        let event = WorkerEvent::AdvertClosed { scheduler: from, advert };
                        self.post(Node::Worker(*worker), TRIP, Input::Worker(event));
                    }
                }
                _ => {}
            }
        }
    }

    fn worker_effects(&mut self, from: WorkerId, effects: Vec<WorkerEffect>) {
        for effect in effects {
            match effect {
                WorkerEffect::Send(sent) => {
                    let message = sent.message.into();
                    let event = SchedulerEvent::WorkerMessageReceived { worker: from, message };
                    self.post(Node::Scheduler(sent.to), TRIP, Input::Scheduler(event));
                }
                WorkerEffect::Run(RunCommand::Start { id, .. }) => {
                    *self.runs.entry(id).or_default() += 1;
                    let ended = WorkerEvent::Ended { id, outcome: completed(), run: None };
                    self.post(Node::Worker(from), RUN, Input::Worker(ended));
                }
                WorkerEffect::Run(RunCommand::Stop(id)) => {
                    let ended = WorkerEvent::Ended { id, outcome: completed(), run: None };
                    self.post(Node::Worker(from), TRIP, Input::Worker(ended));
                }
            }
        }
    }

    fn handle(&mut self, to: Node, input: Input) -> Option<Reply> {
        match (to, input) {
            (Node::Scheduler(id), Input::Scheduler(event)) => {
                let node = self.schedulers.get_mut(&id)?;
                let disk = (&mut node.batch, &mut node.disk);
                let done = step(&mut node.machine, disk, self.now, event);
                let effects = done.at_once.into_iter().chain(done.send).collect();
                self.scheduler_effects(id, effects);
                done.reply.or(done.reply_at_once)
            }
            (Node::Worker(id), Input::Worker(event)) => {
                let node = self.workers.get_mut(&id)?;
                let machine = node.machine.as_mut()?;
                let done = step(machine, (&mut node.batch, &mut node.disk), self.now, event);
                machine.check().unwrap();
                let effects = done.at_once.into_iter().chain(done.send).collect();
                self.worker_effects(id, effects);
                None
            }
            _ => None,
        }
    }

    /// Lets time pass until `until` holds.
    #[track_caller]
    fn run_until(&mut self, most: Span, what: &str, until: impl Fn(&Market) -> bool) {
        let end = self.now + most;
        while !until(self) {
            let wakes = self.schedulers.iter().filter_map(|(id, node)| {
                Some((node.machine.wake_at(self.now)?, Node::Scheduler(*id)))
            });
            let of_workers = self.workers.iter().filter_map(|(id, node)| {
                Some((node.machine.as_ref()?.wake_at(self.now)?, Node::Worker(*id)))
            });
            let wake = wakes.chain(of_workers).min_by_key(|(at, _)| *at);
            let next = self.queue.peek().map(|Reverse((at, ..))| *at);
            let (at, delivery) = match (wake, next) {
                (Some((wake, node)), next) if next.is_none_or(|next| wake < next) => {
                    let woke = match node {
                        Node::Scheduler(_) => Input::Scheduler(SchedulerEvent::Woke),
                        Node::Worker(_) => Input::Worker(WorkerEvent::Woke),
                    };
                    (wake, (node, woke))
                }
                (_, Some(at)) => {
                    let Some(Reverse((_, _, delivery))) = self.queue.pop() else { unreachable!() };
                    (at, self.deliveries[delivery].take().unwrap())
                }
                _ => panic!("nothing happens any more, and not: {what}"),
            };
            assert!(at <= end, "not in time: {what}");
            self.now = self.now.max(at);
            self.handle(delivery.0, delivery.1);
        }
    }

    fn wait(&mut self, span: Span) {
        let end = self.now + span;
        self.run_until(span, "time passes", |market| {
            let wakes =
                market.schedulers.values().filter_map(|node| node.machine.wake_at(market.now));
            let machines = market.workers.values().filter_map(|node| node.machine.as_ref());
            let of_workers = machines.filter_map(|machine| machine.wake_at(market.now));
            let next = market.queue.peek().map(|Reverse((at, ..))| *at);
            wakes.chain(of_workers).chain(next).all(|at| at > end)
        });
        self.now = end;
    }

    fn command(&mut self, n: u8, command: Command) -> Reply {
        let event = SchedulerEvent::CommandReceived(command);
        self.handle(Node::Scheduler(scheduler_id(n)), Input::Scheduler(event)).unwrap()
    }

    fn submit(&mut self, n: u8, plan: JobPlan) -> JobId {
        let Reply::JobSubmitted(Some(id)) = self.command(n, Command::SubmitJob(Arc::new(plan)))
        else {
            panic!("not accepted");
        };
        id
    }

    fn job(&self, n: u8, id: JobId) -> JobView {
        self.schedulers[&scheduler_id(n)].machine.job(id).unwrap()
    }

    /// What the scheduler's and the workers' receipts add up to.
    fn ledgers(&self, n: u8) -> (LedgerSum, LedgerSum) {
        let mut both = (LedgerSum::default(), LedgerSum::default());
        for sum in self.schedulers[&scheduler_id(n)].machine.ledger(self.now).values() {
            both.0.held += sum.held;
            both.0.amount = both.0.amount.saturating_add(sum.amount);
            both.0.leases += sum.leases;
        }
        for node in self.workers.values() {
            for receipts in node.disk.image.receipts.values() {
                let Some(last) = &receipts.confirmed else { continue };
                if last.receipt.scheduler == scheduler_id(n) {
                    both.1.held += last.receipt.held;
                    both.1.amount = both.1.amount.saturating_add(last.receipt.amount());
                    both.1.leases += 1;
                }
            }
        }
        both
    }

    fn leases(&self) -> usize {
        let sum = |node: &WorkerNode| {
            node.machine.as_ref().map_or(0, |machine| machine.fixed_leases().count())
        };
        self.workers.values().map(sum).sum()
    }
}

fn train() -> Arc<Requirement> {
    let class = ExecutorClass::Train;
    Arc::new(Requirement { class, cpu_milli: 3_000, ..Requirement::default() })
}

fn plan(count: u32, minimum: u32, (bid, max): (u64, u64)) -> JobPlan {
    let role = GangRole {
        name: name("worker"),
        requirement: train(),
        count,
        minimum,
        wants_all: false,
        bid: units(bid),
        max: units(max),
    };
    let gang = GangSpec {
        roles: vec![role],
        priority: Priority::default(),
        is_preemptible: false,
        maximise: Maximise::Balance,
        budget: None,
        window: Span::from_millis(200),
        lease_ttl: Span::from_secs(12),
    };
    let spec = TaskSpec { requirement: (*train()).clone(), ..TaskSpec::default() };
    JobPlan { name: None, tenant: None, gang: Arc::new(gang), programs: vec![Arc::new(spec)] }
}

fn priced(floor: u64) -> Terms {
    Terms { price: units(floor), floor: units(floor), ..Terms::default() }
}

fn free(count: u8) -> Vec<(u8, Terms)> {
    (1..=count).map(|n| (n, Terms::default())).collect()
}

fn ended(n: u8, id: JobId) -> impl Fn(&Market) -> bool {
    move |market: &Market| market.job(n, id).state.is_final()
}

#[test]
fn a_gang_is_leased_runs_and_is_released_and_both_sides_keep_the_same_receipts() {
    let mut market = Market::new(&[Settings::default()], &free(5));
    market.wait(Span::from_secs(1));
    let id = market.submit(1, plan(3, 3, (2, 2)));
    market.run_until(Span::from_secs(2), "formed", |market| {
        market.job(1, id).state == JobState::Running
    });
    assert_eq!(market.job(1, id).members.len(), 3);
    market.run_until(Span::from_secs(60), "completed", ended(1, id));
    assert_eq!(market.job(1, id).state, JobState::Completed);
    market.run_until(Span::from_secs(5), "released", |market| market.leases() == 0);
    market.wait(Span::from_secs(1));
    let (paid, earned) = market.ledgers(1);
    assert_eq!(paid, earned);
    assert_eq!(paid.leases, 3);
    assert!(paid.held >= RUN.times(3) && paid.held < (RUN + Span::from_secs(1)).times(3));
    assert!(market.runs.values().all(|runs| *runs == 1));
}

#[test]
fn prices_stay_between_floor_and_max() {
    let mut workers = free(0);
    workers.extend([(1, priced(5)), (2, priced(3)), (3, priced(9)), (4, priced(4))]);
    let mut market = Market::new(&[Settings::default()], &workers);
    market.wait(Span::from_secs(1));
    let id = market.submit(1, plan(2, 2, (1, 5)));
    market.run_until(Span::from_secs(5), "formed", |market| {
        market.job(1, id).state == JobState::Running
    });
    let mut members: Vec<(WorkerId, Money)> =
        market.job(1, id).members.iter().map(|member| (member.worker, member.price)).collect();
    members.sort_unstable();
    assert_eq!(members, [(worker_id(2), units(3)), (worker_id(4), units(4))], "the cheapest win");
    let none = market.submit(1, plan(1, 1, (1, 2)));
    market.wait(Span::from_secs(3));
    let view = market.job(1, none);
    assert_eq!((view.state, view.members.len()), (JobState::Waiting, 0));
    let shortfall = serde_json::to_value(view.shortfall.unwrap()).unwrap();
    assert!(shortfall["roles"][0]["not_counted"]["too_expensive"].as_u64().unwrap() > 0);
}

#[test]
fn a_worker_that_dies_is_replaced_and_the_job_completes() {
    let mut market = Market::new(&[Settings::default()], &free(5));
    market.wait(Span::from_secs(1));
    let id = market.submit(1, plan(3, 3, (1, 1)));
    market.run_until(Span::from_secs(2), "formed", |market| {
        market.job(1, id).state == JobState::Running
    });
    market.run_until(Span::from_secs(1), "all run", |market| market.runs.len() == 3);
    let victim = market.job(1, id).members[0].worker;
    market.kill_worker(victim.uuid().as_bytes()[15]);
    market.run_until(Span::from_secs(60), "completed", ended(1, id));
    let view = market.job(1, id);
    assert_eq!((view.state, view.lost), (JobState::Completed, 1));
    assert_eq!(market.runs.len(), 4, "each of the others ran once");
}

#[test]
fn a_restarted_scheduler_keeps_its_leases_and_the_work_goes_on() {
    let mut market = Market::new(&[Settings::default()], &free(4));
    market.wait(Span::from_secs(1));
    let id = market.submit(1, plan(2, 2, (1, 1)));
    market.run_until(Span::from_secs(2), "formed", |market| {
        market.job(1, id).state == JobState::Running
    });
    let members = |market: &Market| {
        market.job(1, id).members.iter().map(|member| member.lease).collect::<Vec<_>>()
    };
    let before = members(&market);
    market.wait(Span::from_secs(5));
    market.restart_scheduler(1);
    market.wait(Span::from_secs(5));
    assert_eq!(members(&market), before);
    market.run_until(Span::from_secs(30), "completed", ended(1, id));
    assert_eq!(market.job(1, id).state, JobState::Completed);
    assert!(market.runs.values().all(|runs| *runs == 1), "nothing ran twice");
    market.wait(Span::from_secs(11));
    let (paid, earned) = market.ledgers(1);
    assert_eq!(paid, earned);
}

#[test]
fn two_schedulers_that_want_the_same_workers_both_get_them_in_turn() {
    let settings = Settings::default();
    let mut market = Market::new(&[settings.clone(), settings], &free(4));
    market.wait(Span::from_secs(1));
    let first = market.submit(1, plan(3, 3, (1, 1)));
    let second = market.submit(2, plan(3, 3, (1, 1)));
    market.run_until(Span::from_secs(180), "both completed", |market| {
        ended(1, first)(market) && ended(2, second)(market)
    });
    assert_eq!(market.job(1, first).state, JobState::Completed);
    assert_eq!(market.job(2, second).state, JobState::Completed);
}

#[test]
fn work_of_a_higher_priority_takes_back_leases_that_may_be() {
    let settings = Settings::default();
    let mut market = Market::new(&[settings.clone(), settings], &free(2));
    market.wait(Span::from_secs(1));
    let low = {
        let mut plan = plan(2, 2, (1, 1));
        let gang = GangSpec { is_preemptible: true, ..(*plan.gang).clone() };
        plan.gang = Arc::new(gang);
        market.submit(1, plan)
    };
    market.run_until(Span::from_secs(10), "formed", |market| {
        market.job(1, low).state == JobState::Running
    });
    let high = {
        let mut plan = plan(2, 2, (1, 1));
        let priority = Priority::from_milli(5_000);
        plan.gang = Arc::new(GangSpec { priority, ..(*plan.gang).clone() });
        plan.programs = vec![Arc::new(TaskSpec {
            timeout: Some(Span::from_secs(60)),
            ..(*plan.programs[0]).clone()
        })];
        market.submit(2, plan)
    };
    market.run_until(Span::from_secs(120), "the high one completed", ended(2, high));
    assert_eq!(market.job(2, high).state, JobState::Completed);
    market.run_until(Span::from_secs(300), "the low one too", ended(1, low));
    assert_eq!(market.job(1, low).state, JobState::Completed);
}

#[test]
fn a_pool_grows_for_tasks_and_shrinks_when_they_are_done() {
    let pool = PoolSettings { bid: units(2), max: units(4), ..PoolSettings::default() };
    let settings = Settings { pool: Some(pool), ..Settings::default() };
    let workers: Vec<_> = (1..=6).map(|n| (n, priced(3))).collect();
    let mut market = Market::new(&[settings], &workers);
    market.wait(Span::from_secs(2));
    assert_eq!(market.leases(), 0, "nothing is leased without tasks");
    // The scheduler learns how long such tasks take.
    market.command(1, Command::SubmitTasks(vec![task()]));
    market.wait(RUN + Span::from_secs(2));
    assert_eq!(market.leases(), 1);
    let tasks = vec![task(); 12];
    let Reply::Submitted(answers) = market.command(1, Command::SubmitTasks(tasks)) else {
        panic!("not submitted");
    };
    let ids: Vec<_> = answers.into_iter().map(|answer| answer.unwrap().task).collect();
    market.run_until(Span::from_secs(600), "all completed", |market| {
        let tasks = &market.schedulers[&scheduler_id(1)].disk.image.tasks;
        let is_done = |finished: &Arc<hypha_engine::record::FinishedTask>| {
            finished.state == TaskState::Completed
        };
        ids.iter().all(|id| tasks[id].finished.as_ref().is_some_and(is_done))
    });
    assert!(market.leases() > 1, "it grew: {}", market.leases());
    let pools = market.schedulers[&scheduler_id(1)].machine.pools(market.now);
    assert_eq!(pools[0].price, units(3 * pools[0].workers.len() as u64));
    market.run_until(Span::from_secs(400), "released", |market| market.leases() == 0);
    market.wait(Span::from_secs(11));
    let (paid, earned) = market.ledgers(1);
    assert_eq!(paid, earned);
}

#[test]
fn a_restarted_scheduler_keeps_its_pool_and_the_tasks_in_flight() {
    let pool = PoolSettings { bid: units(2), max: units(4), ..PoolSettings::default() };
    let settings = Settings { pool: Some(pool), ..Settings::default() };
    let workers: Vec<_> = (1..=4).map(|n| (n, priced(3))).collect();
    let mut market = Market::new(&[settings], &workers);
    market.wait(Span::from_secs(1));
    let Reply::Submitted(answers) = market.command(1, Command::SubmitTasks(vec![task()])) else {
        panic!("not submitted");
    };
    let id = answers[0].as_ref().unwrap().task;
    market.run_until(Span::from_secs(30), "runs", |market| !market.runs.is_empty());
    market.wait(Span::from_secs(5));
    market.restart_scheduler(1);
    market.run_until(Span::from_secs(60), "completed", |market| {
        market.schedulers[&scheduler_id(1)].disk.image.tasks[&id].finished.is_some()
    });
    assert_eq!(market.runs.values().sum::<u32>(), 1, "it ran once");
}

#[test]
fn messages_of_the_market_that_make_no_sense_change_nothing() {
    let mut market = Market::new(&[Settings::default()], &free(1));
    market.wait(Span::from_secs(1));
    let mut rng = hypha_model::Rng::new(1);
    let offer = hypha_model::OfferId::new(START, &mut rng);
    let advert = hypha_model::AdvertId::new(START, &mut rng);
    let scheduler = scheduler_id(1);
    for message in [
        ToWorker::AcceptOffer { offer, role: 0, request: 1, ttl: Span::from_secs(5) },
        ToWorker::DeclineOffer(offer),
        ToWorker::CloseAdvert(advert),
    ] {
        let event = WorkerEvent::SchedulerMessageReceived { scheduler, message };
        market.handle(Node::Worker(worker_id(1)), Input::Worker(event));
    }
    for message in [
        FromWorker::NotOffered(advert),
        FromWorker::OfferUnknown(offer),
        FromWorker::Preempted {
            lease: hypha_model::LeaseId::new(START, &mut rng),
            epoch: hypha_model::Epoch(1),
            grace: Span::ZERO,
        },
    ] {
        let message = message.into();
        let event = SchedulerEvent::WorkerMessageReceived { worker: worker_id(1), message };
        market.handle(Node::Scheduler(scheduler), Input::Scheduler(event));
    }
    market.wait(Span::from_secs(1));
    assert_eq!(market.leases(), 0);
}
