//! A scheduler in memory: a real machine, an image of the durable state, and scripted workers.
//!
//! Time stands still but for a millisecond per event; [`Memory::advance`] lets more of it pass. Workers `1`
//! and `2` serve `echo` (returns its input), `fail` (fails at once, and is retried if the input is `"retry"`)
//! and `sleep`. Attempts of `sleep` and of all other models stay [`HeldAttempt`] until the test ends them.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::FutureExt;
use futures::stream::{self, StreamExt};
use hypha_api::{
    JobChanges, NewBackEnd, Object, ObjectError, ObjectFuture, RegisterError, RegisterFuture,
    SchedulerApi, ServiceFuture, ServiceUnavailable, SubmitResult, Watch, WatchSender,
    watch_channel,
};
use hypha_engine::InstanceNotification;
use hypha_engine::record::StoredTask;
use hypha_engine::store::{Filter, Page};
use hypha_engine::{
    Command, Dispatch, Effect, FromWorker, Image, LeaseRequest, NewTask, Notice, Outcome, Reply,
    Scheduler, SchedulerEvent, SchedulerStep, Settings, ToWorker,
};
use hypha_machine::{Batch, Machine, MemoryDisk, Released};
use hypha_market::{Advert, Offer, OfferedRole, Portion};
use hypha_model::{
    AttemptId, Capacity, Device, Digest, Epoch, Executor, ExecutorClass, FailureKind, Fence,
    LeaseId, Money, Name, ObjectRef, OfferId, Payload, Rng, SchedulerId, Span, TaskError, TaskId,
    TaskResult, Time, Worker, WorkerId,
};
use tokio::sync::{Notify, watch};
use uuid::Uuid;

pub(crate) const START: Time = Time::from_micros(1_700_000_000_000_000);
/// A condition that has not come true by then never will.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) struct Memory {
    state: Mutex<State>,
    changed: Notify,
}

pub(crate) struct State {
    pub(crate) scheduler: Scheduler,
    pub(crate) disk: MemoryDisk<Image>,
    batch: Batch<Scheduler, ()>,
    now: Time,
    rng: Rng,
    workers: BTreeMap<WorkerId, u8>,
    /// The next messages of workers.
    worker_messages: VecDeque<(WorkerId, FromWorker)>,
    held: Vec<HeldAttempt>,
    /// Attempts that workers were ordered to stop.
    cancelled: Vec<AttemptId>,
    watched: Vec<(TaskId, WatchSender)>,
    job_changes: watch::Sender<u64>,
    /// Offers that are not accepted yet.
    offers: BTreeMap<OfferId, Arc<Advert>>,
    /// What workers ask for an hour; `None` for no offers.
    pub(crate) asked_price: Option<Money>,
    unavailable: Option<String>,
    objects: BTreeMap<(TaskId, Digest), Vec<u8>>,
    /// Healthy task instances and servers, with their models.
    healthy: BTreeMap<String, Vec<Name>>,
    pub(crate) servers: Vec<NewBackEnd>,
    pub(crate) notifications: Vec<InstanceNotification>,
    /// Secrets of attempts at task instances.
    pub(crate) secrets: Vec<String>,
    /// How often the machine was locked to be read.
    pub(crate) reads: usize,
    /// How many tasks came with each submission.
    pub(crate) submissions: Vec<usize>,
}

/// An attempt that a worker has begun and not ended.
#[derive(Clone)]
pub(crate) struct HeldAttempt {
    pub(crate) worker: WorkerId,
    pub(crate) dispatch: Arc<Dispatch>,
}

impl HeldAttempt {
    pub(crate) fn task(&self) -> TaskId {
        self.dispatch.attempt.task
    }
    pub(crate) fn input(&self) -> &[u8] {
        self.dispatch.spec.input.bytes()
    }
}

impl Memory {
    /// With two workers.
    pub(crate) fn new() -> Arc<Memory> {
        let memory = Memory::with(Settings::default());
        for n in [1, 2] {
            memory.add_worker(n, &["echo", "sleep", "fail"]);
        }
        memory
    }

    /// With these settings and no workers.
    pub(crate) fn with(settings: Settings) -> Arc<Memory> {
        let mut step = SchedulerStep::default();
        let id = SchedulerId::from_uuid(Uuid::from_u128(9));
        let disk = MemoryDisk::default();
        let image = Image::default();
        let scheduler = Scheduler::recover(id, settings, image, 1, START, &mut step);
        let state = State {
            scheduler,
            disk,
            batch: Batch::from(step),
            now: START,
            rng: Rng::new(3),
            workers: BTreeMap::new(),
            worker_messages: VecDeque::new(),
            held: Vec::new(),
            cancelled: Vec::new(),
            watched: Vec::new(),
            job_changes: watch::Sender::new(0),
            offers: BTreeMap::new(),
            asked_price: None,
            unavailable: None,
            objects: BTreeMap::new(),
            healthy: BTreeMap::new(),
            servers: Vec::new(),
            reads: 0,
            submissions: Vec::new(),
            notifications: Vec::new(),
            secrets: Vec::new(),
        };
        Arc::new(Memory { state: Mutex::new(state), changed: Notify::new() })
    }

    /// A worker that serves these models (none: any), four tasks at once.
    pub(crate) fn add_worker(&self, n: u8, models: &[&str]) -> WorkerId {
        let worker = worker(n, models);
        let id = worker.id;
        self.with_state(|state| {
            state.workers.insert(id, n);
            state.event(SchedulerEvent::WorkerFound(Arc::new(worker)));
        });
        id
    }

    /// A worker that serves any model on GPUs, four tasks at once.
    pub(crate) fn add_gpu_worker(&self, n: u8, gpus: usize) {
        let mut worker = worker(n, &[]);
        let device = Device {
            model: "A100".parse().unwrap(),
            memory_bytes: 40_000_000_000,
            milli_gpu: 1_000,
        };
        worker.capacity.devices = vec![device; gpus];
        self.with_state(|state| {
            state.workers.insert(worker.id, n);
            state.event(SchedulerEvent::WorkerFound(Arc::new(worker)));
        });
    }

    /// A worker that takes any part of a job.
    pub(crate) fn add_training_worker(&self, n: u8) {
        let worker = training_worker(n);
        self.with_state(|state| {
            state.workers.insert(worker.id, n);
            state.event(SchedulerEvent::WorkerFound(Arc::new(worker)));
        });
    }

    /// A worker reports the GPUs of an attempt.
    pub(crate) fn assign_devices(&self, held: &HeldAttempt, devices: &[u32]) {
        let (attempt, fence) = held.ids();
        let devices = devices.to_vec();
        self.say(held, FromWorker::DevicesAssigned { attempt, fence, devices });
    }

    pub(crate) fn lose_worker(&self, n: u8) {
        self.with_state(|state| {
            let id = worker_id(n);
            state.workers.remove(&id);
            state.held.retain(|held| held.worker != id);
            state.event(SchedulerEvent::WorkerDisconnected(id));
        });
    }

    /// Acknowledges nothing from now on, or everything again.
    pub(crate) fn set_unavailable(&self, reason: Option<&str>) {
        self.with_state(|state| state.unavailable = reason.map(str::to_owned));
    }

    /// Lets time pass.
    pub(crate) fn advance(&self, span: Span) {
        self.with_state(|state| {
            let end = state.now + span;
            while let Some(wake) = state.scheduler.wake_at(state.now)
                && wake <= end
            {
                state.now = state.now.max(wake);
                state.event(SchedulerEvent::Woke);
            }
            state.now = state.now.max(end);
        });
    }

    /// The attempts that workers have begun and not ended.
    pub(crate) fn held(&self) -> Vec<HeldAttempt> {
        self.lock().held.clone()
    }

    /// Waits for an attempt of a task for `model` that has begun.
    pub(crate) async fn wait_for_attempt(&self, model: &str) -> HeldAttempt {
        let of_model = |held: &HeldAttempt| {
            held.dispatch.spec.requirement.model.as_ref().is_some_and(|name| name.as_str() == model)
        };
        self.until(|state| state.held.iter().find(|held| of_model(held)).cloned()).await
    }

    /// Waits until a worker was ordered to stop an attempt of `task`.
    pub(crate) async fn wait_for_cancel(&self, task: TaskId) -> AttemptId {
        self.until(|state| state.cancelled.iter().find(|one| one.task == task).copied()).await
    }

    /// Waits until `look` returns something.
    pub(crate) async fn until<T>(&self, mut look: impl FnMut(&mut State) -> Option<T>) -> T {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if let Some(found) = look(&mut self.lock()) {
                    return found;
                }
                changed.await;
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, wait).await.expect("the condition did not come true")
    }

    pub(crate) fn progress(&self, held: &HeldAttempt, permille: u16) {
        let (attempt, fence) = held.ids();
        self.say(held, FromWorker::Progress { attempt, fence, permille });
    }

    pub(crate) fn output(&self, held: &HeldAttempt, piece: &[u8]) {
        let (attempt, fence) = held.ids();
        self.say(held, FromWorker::Output { attempt, fence, piece: Payload::from(piece) });
    }

    pub(crate) fn complete(&self, held: &HeldAttempt, result: &[u8]) {
        self.finish(held, Outcome::Completed { result: Payload::from(result).into() });
    }

    /// Ends it after a run of `run`, which passes.
    pub(crate) fn complete_after(&self, held: &HeldAttempt, run: Span) {
        self.advance(run);
        let result = Payload::from(&b"1"[..]).into();
        self.finish_after(held, Outcome::Completed { result }, run);
    }

    /// Ends it with a result that was stored as an object.
    pub(crate) fn complete_with(&self, held: &HeldAttempt, object: ObjectRef) {
        self.finish(held, Outcome::Completed { result: TaskResult::Object(object) });
    }

    pub(crate) fn fail(&self, held: &HeldAttempt, kind: FailureKind, error: &str) {
        self.fail_with(held, TaskError::new(kind, error));
    }

    pub(crate) fn fail_with(&self, held: &HeldAttempt, error: TaskError) {
        self.finish(held, Outcome::Failed(error));
    }

    pub(crate) fn time_out(&self, held: &HeldAttempt) {
        self.finish(held, Outcome::TimedOut);
    }

    pub(crate) fn fail_unreachable(&self, held: &HeldAttempt, error: &str) {
        self.finish(held, Outcome::Unreachable { error: error.to_owned() });
    }

    /// Lets a day pass, after which all keys are forgotten.
    pub(crate) fn forget_keys(&self) {
        self.advance(Span::from_secs(25 * 3_600));
    }

    /// Stores a large result of a task, and returns its name.
    pub(crate) fn put_object(&self, held: &HeldAttempt, bytes: &[u8]) -> ObjectRef {
        let object = ObjectRef {
            digest: Payload::from(bytes).digest(),
            bytes: bytes.len() as u64,
            by_digest: false,
        };
        let key = (held.task(), object.digest);
        self.with_state(|state| state.objects.insert(key, bytes.to_vec()));
        object
    }

    /// Damages a stored object.
    pub(crate) fn damage(&self, held: &HeldAttempt, object: ObjectRef) {
        let key = (held.task(), object.digest);
        self.with_state(|state| state.objects.get_mut(&key).unwrap()[0] ^= 1);
    }

    /// From now on there is a healthy task instance or server at `host:port`, for these models.
    pub(crate) fn set_healthy(&self, address: &str, models: &[&str]) {
        let models = models.iter().map(|model| model.parse().unwrap()).collect();
        self.with_state(|state| state.healthy.insert(address.to_owned(), models));
    }

    fn finish(&self, held: &HeldAttempt, outcome: Outcome) {
        self.finish_after(held, outcome, Span::from_millis(5));
    }

    fn finish_after(&self, held: &HeldAttempt, outcome: Outcome, run: Span) {
        let (attempt, fence) = held.ids();
        self.with_state(|state| {
            state.held.retain(|other| other.ids() != held.ids());
            let message = FromWorker::Finished { attempt, fence, run, outcome };
            state.event(SchedulerEvent::WorkerMessageReceived {
                worker: held.worker,
                message: message.into(),
            });
        });
    }

    fn say(&self, held: &HeldAttempt, message: FromWorker) {
        let event =
            SchedulerEvent::WorkerMessageReceived { worker: held.worker, message: message.into() };
        self.with_state(|state| state.event(event));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn with_state<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.lock());
        self.changed.notify_waiters();
        result
    }

    fn answer<T: Send + 'static>(&self, give: impl FnOnce(&mut State) -> T) -> ServiceFuture<T> {
        let result = self.with_state(|state| match &state.unavailable {
            Some(reason) => Err(ServiceUnavailable(reason.clone())),
            None => Ok(give(state)),
        });
        futures::future::ready(result).boxed()
    }

    fn register(&self, address: &str, models: &[Name], concurrency: u32) -> RegisterFuture {
        let registered = self.with_state(|state| {
            let served = state.healthy.get(address).cloned().ok_or_else(|| {
                RegisterError::Unhealthy(format!("no healthy server answers at {address}"))
            })?;
            let id = instance_id(address);
            let mut worker = worker(0, &[]);
            worker.id = id;
            worker.executors[0].models = if models.is_empty() { served } else { models.to_vec() };
            worker.executors[0].concurrency = concurrency;
            state.workers.insert(id, 0);
            state.execute(Command::RegisterWorker(Arc::new(worker)), false);
            Ok(id)
        });
        futures::future::ready(registered).boxed()
    }
}

impl HeldAttempt {
    fn ids(&self) -> (AttemptId, Fence) {
        (self.dispatch.attempt, self.dispatch.fence)
    }
}

impl State {
    pub(crate) fn now(&self) -> Time {
        self.now
    }

    /// The attempts that workers have begun and not ended.
    pub(crate) fn held(&self) -> &[HeldAttempt] {
        &self.held
    }

    /// How many watches there are.
    pub(crate) fn watchers(&self) -> usize {
        self.watched.len()
    }

    fn event(&mut self, event: SchedulerEvent) {
        self.step(event);
        self.deliver_worker_messages();
    }

    fn step(&mut self, event: SchedulerEvent) {
        self.now = self.now + Span::from_millis(1);
        self.batch.step_event(&mut self.scheduler, self.now, event);
        let released = self.commit();
        self.handle_effects(released.effects);
    }

    fn execute(&mut self, command: Command, watching: bool) -> (Reply, Vec<Watch>) {
        self.now = self.now + Span::from_millis(1);
        let event = SchedulerEvent::CommandReceived(command);
        let at_once = self.batch.step_request(&mut self.scheduler, self.now, event, ());
        let mut released = self.commit();
        let reply = at_once.or_else(|| released.replies.pop());
        let ((), reply) = reply.expect("every command is answered");
        let mut watches = Vec::new();
        if let (true, Reply::Submitted(answers)) = (watching, &reply) {
            for submitted in answers.iter().flatten() {
                let (watched, watch) = watch_channel();
                self.watched.push((submitted.task, watched));
                watches.push(watch);
            }
        }
        self.handle_effects(released.effects);
        self.deliver_worker_messages();
        (reply, watches)
    }

    /// Effects that need no commit come first.
    fn commit(&mut self) -> Released<Scheduler, ()> {
        let mut effects = self.batch.take_at_once();
        let Ok(mut released) = self.batch.seal().write(&mut self.disk);
        effects.append(&mut released.effects);
        Released { effects, ..released }
    }

    fn handle_effects(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Notice { task, notice } => self.notify_watchers(task, &notice),
                Effect::ToWorker { worker, message } => self.handle_worker_message(worker, message),
                Effect::JobChanged(_) => self.job_changes.send_modify(|count| *count += 1),
                _ => {}
            }
        }
    }

    fn deliver_worker_messages(&mut self) {
        while let Some((worker, message)) = self.worker_messages.pop_front() {
            self.step(SchedulerEvent::WorkerMessageReceived { worker, message: message.into() });
        }
    }

    fn notify_watchers(&mut self, task: TaskId, notice: &Notice) {
        let ended = matches!(notice, Notice::Ended { .. });
        self.watched.retain(|(watching, watched)| {
            *watching != task || (watched.send(notice.clone()) && !ended)
        });
    }

    /// A worker's reaction to a message.
    fn handle_worker_message(&mut self, worker: WorkerId, message: ToWorker) {
        if !self.workers.contains_key(&worker) {
            return;
        }
        let mut say = |message| self.worker_messages.push_back((worker, message));
        match message {
            ToWorker::RequestLease(LeaseRequest { request, ttl, .. }) => {
                let lease = LeaseId::new(self.now, &mut self.rng);
                let epoch = Epoch(1);
                say(FromWorker::LeaseGranted {
                    request,
                    lease,
                    epoch,
                    ttl,
                    portion: None,
                    holding: Vec::new(),
                });
            }
            ToWorker::Heartbeat { lease, epoch, nonce, .. } => {
                let of_worker = |held: &&HeldAttempt| held.worker == worker;
                let holding = self.held.iter().filter(of_worker).map(HeldAttempt::ids).collect();
                say(FromWorker::Alive { lease, epoch, nonce, portion: None, usage: None, holding });
            }
            ToWorker::Dispatch(dispatch) => {
                let (attempt, fence) = (dispatch.attempt, dispatch.fence);
                say(FromWorker::Accepted { attempt, fence });
                say(FromWorker::Started { attempt, fence });
                let input = dispatch.spec.input.clone();
                let model = dispatch.spec.requirement.model.as_ref().map_or("", Name::as_str);
                let outcome = match model {
                    "echo" => Outcome::Completed { result: input.into() },
                    "fail" => {
                        let kind = match input.bytes() == b"\"retry\"" {
                            true => FailureKind::ProgramFailed,
                            false => FailureKind::InvalidInput,
                        };
                        Outcome::Failed(TaskError::new(kind, "it was told to fail"))
                    }
                    _ => return self.held.push(HeldAttempt { worker, dispatch }),
                };
                let run = Span::from_millis(2);
                say(FromWorker::Finished { attempt, fence, run, outcome });
            }
            ToWorker::Advertise(advert) => match self.asked_price {
                None => say(FromWorker::NotOffered(advert.id)),
                Some(price) => {
                    let n = self.workers.get(&worker).copied().unwrap_or_default();
                    let offer = training_offer(n, &advert, price, (self.now, &mut self.rng));
                    self.offers.insert(offer.id, advert);
                    say(FromWorker::Offered(Arc::new(offer)));
                }
            },
            ToWorker::AcceptOffer { offer, request, ttl, .. } => match self.offers.remove(&offer) {
                None => say(FromWorker::OfferUnknown(offer)),
                Some(_) => say(FromWorker::LeaseGranted {
                    request,
                    lease: LeaseId::new(self.now, &mut self.rng),
                    epoch: Epoch(1),
                    ttl,
                    portion: None,
                    holding: Vec::new(),
                }),
            },
            ToWorker::Cancel { attempt, fence } => {
                self.held.retain(|held| held.ids() != (attempt, fence));
                self.cancelled.push(attempt);
            }
            _ => {}
        }
    }
}

impl SchedulerApi for Memory {
    fn now(&self) -> Time {
        self.lock().now
    }

    fn execute(&self, command: Command) -> ServiceFuture<Reply> {
        self.answer(|state| state.execute(command, false).0)
    }

    fn submit(&self, tasks: Vec<NewTask>, watch: bool) -> ServiceFuture<Vec<SubmitResult>> {
        self.answer(|state| {
            state.submissions.push(tasks.len());
            let (reply, watches) = state.execute(Command::SubmitTasks(tasks), watch);
            let Reply::Submitted(answers) = reply else { panic!("{reply:?} to a submit") };
            let mut watches = watches.into_iter();
            answers.into_iter().map(|answer| answer.map(|ok| (ok, watches.next()))).collect()
        })
    }

    fn watch(&self, task: TaskId) -> Watch {
        let (watched, watch) = watch_channel();
        self.with_state(|state| state.watched.push((task, watched)));
        watch
    }

    fn job_changes(&self) -> JobChanges {
        self.lock().job_changes.subscribe()
    }

    fn read(&self, look: &mut dyn FnMut(&Scheduler, Time)) {
        let mut state = self.lock();
        state.reads += 1;
        look(&state.scheduler, state.now);
    }

    fn stored(&self, task: TaskId) -> ServiceFuture<Option<StoredTask>> {
        self.answer(|state| state.disk.image.tasks.get(&task).cloned())
    }

    fn list(&self, filter: Filter, behind: Option<TaskId>, limit: usize) -> ServiceFuture<Page> {
        self.answer(|state| {
            let before = |task: &&StoredTask| behind.is_none_or(|behind| task.accepted.id < behind);
            let mut tasks: Vec<StoredTask> = (state.disk.image.tasks.values().rev())
                .filter(before)
                .filter(|task| filter.matches(task))
                .take(limit + 1)
                .cloned()
                .collect();
            let more = tasks.len() > limit;
            tasks.truncate(limit);
            let next = tasks.last().filter(|_| more).map(|task| task.accepted.id);
            Page { tasks, next }
        })
    }

    fn object(&self, task: TaskId, object: ObjectRef) -> ObjectFuture {
        let found = self.with_state(|state| {
            let Some(bytes) = state.objects.get(&(task, object.digest)) else { return Ok(None) };
            if Payload::from(&**bytes).digest() != object.digest {
                return Err(ObjectError::Corrupt);
            }
            let pieces: Vec<std::io::Result<bytes::Bytes>> =
                bytes.chunks(1_000).map(|piece| Ok(piece.to_vec().into())).collect();
            let pieces = stream::iter(pieces).boxed();
            Ok(Some(Object { bytes: bytes.len() as u64, pieces }))
        });
        futures::future::ready(found).boxed()
    }

    fn register_instance(&self, host: String, port: u16, model: Option<Name>) -> RegisterFuture {
        if port == 0 {
            let problem = "port 0 is not a port".to_owned();
            return futures::future::ready(Err(RegisterError::Invalid(problem))).boxed();
        }
        match host.parse::<IpAddr>() {
            Ok(ip) if !ip.is_loopback() => {
                futures::future::ready(Err(RegisterError::NotAllowed(ip))).boxed()
            }
            _ => self.register(&format!("{host}:{port}"), model.as_slice(), 4),
        }
    }

    fn instance_at(&self, host: &str, port: u16) -> Option<WorkerId> {
        let id = instance_id(&format!("{host}:{port}"));
        self.with_state(|state| state.workers.contains_key(&id).then_some(id))
    }

    fn register_back_end(&self, server: NewBackEnd) -> RegisterFuture {
        let address = server.url.trim_start_matches("http://").to_owned();
        if address == server.url {
            let problem = format!("`{address}` is not an http:// address");
            return futures::future::ready(Err(RegisterError::Invalid(problem))).boxed();
        }
        let registered = self.register(&address, &server.models, server.concurrency);
        self.with_state(|state| state.servers.push(server));
        registered
    }

    fn knows_secret(&self, secret: &str) -> bool {
        self.lock().secrets.iter().any(|known| known == secret)
    }

    fn deliver_notification(&self, notification: InstanceNotification) {
        self.with_state(|state| state.notifications.push(notification));
    }

    fn problems(&self) -> Vec<String> {
        self.lock().unavailable.iter().cloned().collect()
    }

    fn metrics(&self) -> String {
        let completed = self.lock().scheduler.counts().completed;
        format!("hypha_scheduler_tasks_completed_total {completed}\n")
    }
}

pub(crate) fn worker_id(n: u8) -> WorkerId {
    WorkerId::from_uuid(Uuid::from_u128(n.into()))
}

/// The same address is the same worker.
fn instance_id(address: &str) -> WorkerId {
    let digest = blake3::hash(address.as_bytes());
    WorkerId::from_uuid(Uuid::from_slice(&digest.as_bytes()[..16]).unwrap())
}

/// A worker that trains and aggregates with any model.
fn training_worker(n: u8) -> Worker {
    let mut worker = worker(n, &[]);
    worker.executors[0].class = ExecutorClass::Train;
    let server = Executor { class: ExecutorClass::Aggregate, ..worker.executors[0].clone() };
    worker.executors.push(server);
    worker
}

/// An offer of such a worker for all roles, at this price.
fn training_offer(n: u8, advert: &Advert, price: Money, (now, rng): (Time, &mut Rng)) -> Offer {
    let worker = Arc::new(training_worker(n));
    let role = |role: u16| OfferedRole { role, price, portion: Portion::whole(&worker) };
    Offer {
        id: OfferId::new(now, rng),
        advert: advert.id,
        epoch: Epoch(1),
        roles: (0..advert.roles.len() as u16).map(role).collect(),
        worker,
        reserved_for: Span::from_secs(5),
        speed_milli: None,
        backlog: Span::ZERO,
        is_relayed: false,
    }
}

fn worker(n: u8, models: &[&str]) -> Worker {
    Worker {
        id: worker_id(n),
        capacity: Capacity {
            cpu_milli: 8_000,
            memory_bytes: 16_000_000_000,
            storage_bytes: 100_000_000_000,
            devices: Vec::new(),
        },
        executors: vec![Executor {
            class: ExecutorClass::Inference,
            name: "builtin".parse().unwrap(),
            models: models.iter().map(|model| model.parse().unwrap()).collect(),
            concurrency: 4,
        }],
        hardware: None,
        region: None,
        price: Money::from_micros(1_500_000),
    }
}
