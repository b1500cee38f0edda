//! A scheduler, its durable state, and workers that answer by a script.

use std::collections::BTreeMap;
use std::sync::Arc;

use hypha_engine::record::{FinishedTask, StoredTask};
use hypha_engine::scheduler::TaskView;
use hypha_engine::{
    Command, Dispatch, Effect, FromWorker, Image, LeaseRequest, NewTask, Notice, Outcome, Record,
    Reply, Scheduler, SchedulerEvent, SchedulerStep, Settings, SubmitRejection, Submitted,
    ToWorker,
};
use hypha_machine::{Apply, Batch, Machine, MemoryDisk, Released};
use hypha_model::{
    AttemptId, Capacity, Epoch, Executor, ExecutorClass, FailureKind, Fence, LeaseId, Money, Name,
    Payload, Rng, SchedulerId, Span, TaskError, TaskId, TaskSpec, Time, Worker, WorkerId,
};
use hypha_placement::Strategy;

pub(crate) const START: Time = Time::from_micros(1_700_000_000_000_000);

/// A scheduler with its disk and workers. `steps` has the steps of the last call.
pub(crate) struct Rig {
    pub(crate) now: Time,
    pub(crate) settings: Settings,
    pub(crate) scheduler: Scheduler,
    batch: Batch<Scheduler, ()>,
    pub(crate) disk: MemoryDisk<Image>,
    pub(crate) steps: Vec<Committed<Scheduler>>,
    /// The workers that answer heartbeats and lease requests.
    pub(crate) workers: BTreeMap<WorkerId, Script>,
    /// Open tasks that are not stored.
    pub(crate) unstored: usize,
    rng: Rng,
}

/// The output of one step.
pub(crate) struct Committed<M: Machine> {
    pub(crate) persist: Vec<M::Record>,
    pub(crate) send: Vec<M::Effect>,
    pub(crate) at_once: Vec<M::Effect>,
    /// The reply that waited for the commit.
    pub(crate) reply: Option<M::Reply>,
    /// The reply that did not wait.
    pub(crate) reply_at_once: Option<M::Reply>,
}

/// Commits what is in a batch.
pub(crate) fn commit<M, I>(batch: &mut Batch<M, ()>, disk: &mut MemoryDisk<I>) -> Committed<M>
where
    M: Machine<Record: Clone>,
    I: Apply<M::Record>,
{
    let at_once = batch.take_at_once();
    let sealed = batch.seal();
    let persist = sealed.records().to_vec();
    let Ok(Released { effects, mut replies }) = sealed.write(disk);
    let reply = replies.pop().map(|((), reply)| reply);
    assert!(replies.is_empty(), "at most one reply a step");
    Committed { persist, send: effects, at_once, reply, reply_at_once: None }
}

/// Steps a machine with one event, and commits.
pub(crate) fn step<M, I>(
    machine: &mut M,
    (batch, disk): (&mut Batch<M, ()>, &mut MemoryDisk<I>),
    now: Time,
    event: M::Event,
) -> Committed<M>
where
    M: Machine<Record: Clone>,
    I: Apply<M::Record>,
{
    let reply_at_once = batch.step_request(machine, now, event, ()).map(|((), reply)| reply);
    Committed { reply_at_once, ..commit(batch, disk) }
}

/// A scripted worker.
#[derive(Clone, Default)]
pub(crate) struct Script {
    pub(crate) silent: bool,
    pub(crate) holding: Vec<(AttemptId, Fence)>,
    /// Its executors whose back ends are unreachable.
    pub(crate) unreachable: Vec<Name>,
}

impl Rig {
    pub(crate) fn new(settings: Settings) -> Rig {
        let mut step = SchedulerStep::default();
        let scheduler = Scheduler::recover(
            scheduler_id(),
            settings.clone(),
            Image::default(),
            1,
            START,
            &mut step,
        );
        let mut rig = Rig {
            now: START,
            settings,
            scheduler,
            batch: Batch::default(),
            disk: MemoryDisk::default(),
            steps: Vec::new(),
            unstored: 0,
            workers: BTreeMap::new(),
            rng: Rng::new(5),
        };
        rig.start_with(step);
        rig
    }

    /// With early binding: the third task of a worker is bound to it and not dispatched.
    pub(crate) fn early() -> Rig {
        Rig::new(Settings { strategy: Strategy::RoundRobin, ..Settings::default() })
    }

    /// With the default settings and these workers, leased.
    pub(crate) fn with_workers(workers: &[u8]) -> Rig {
        let mut rig = Rig::new(Settings::default());
        workers.iter().for_each(|n| rig.join(*n));
        rig
    }

    /// The process is killed and started again, from the durable state.
    pub(crate) fn restart(&mut self) {
        let mut step = SchedulerStep::default();
        let image = self.disk.image.clone();
        let settings = self.settings.clone();
        self.steps.clear();
        self.scheduler =
            Scheduler::recover(scheduler_id(), settings, image, 1, self.now, &mut step);
        self.start_with(step);
        self.answer();
    }

    /// One event, and the answers of the workers to the messages that follow from it.
    pub(crate) fn event(&mut self, event: SchedulerEvent) {
        self.steps.clear();
        self.step(event);
        self.answer();
    }

    pub(crate) fn receive(&mut self, worker: u8, message: FromWorker) {
        self.event(SchedulerEvent::WorkerMessageReceived {
            worker: worker_id(worker),
            message: message.into(),
        });
    }

    pub(crate) fn ask(&mut self, command: Command) -> Reply {
        self.event(SchedulerEvent::CommandReceived(command));
        let replies = self.steps.iter().flat_map(|step| [&step.reply, &step.reply_at_once]);
        let replies: Vec<&Reply> = replies.flatten().collect();
        assert_eq!(replies.len(), 1, "one reply for each request");
        replies[0].clone()
    }

    pub(crate) fn try_submit(&mut self, task: NewTask) -> Result<Submitted, SubmitRejection> {
        match self.ask(Command::SubmitTasks(vec![task])) {
            Reply::Submitted(answers) => answers[0],
            other => panic!("{other:?} is no answer to a submit"),
        }
    }

    pub(crate) fn submit(&mut self, task: NewTask) -> TaskId {
        self.try_submit(task).expect("there is room").task
    }

    /// Submits, and expects the task to be dispatched at once.
    pub(crate) fn dispatched(&mut self, task: NewTask) -> (TaskId, Assignment) {
        let id = self.submit(task);
        let assignment = self.dispatches();
        assert_eq!(assignment.len(), 1, "dispatched at once");
        (id, assignment[0].clone())
    }

    /// The worker is found, and grants the requested lease.
    pub(crate) fn join(&mut self, n: u8) {
        self.join_as(worker(n));
    }

    pub(crate) fn join_as(&mut self, worker: Worker) {
        let id = worker.id;
        self.workers.entry(id).or_default().silent = false;
        self.event(SchedulerEvent::WorkerFound(Arc::new(worker)));
        assert!(self.scheduler.lease_of(id).is_some(), "the lease is granted");
    }

    /// Lets time pass: the scheduler is woken whenever it wants to be.
    pub(crate) fn wait(&mut self, span: Span) {
        let end = self.now + span;
        self.steps.clear();
        // Waking it early does no harm: it only does what is due.
        let mut next = Some(self.now);
        let mut steps = 0;
        while let Some(wake) = next
            && wake <= end
        {
            self.now = wake.max(self.now);
            self.step(SchedulerEvent::Woke);
            self.answer();
            next = self.scheduler.wake_at(self.now);
            steps += 1;
            assert!(steps < 100_000, "the scheduler spins at {}", self.now);
        }
        self.now = end;
    }

    pub(crate) fn sent(&self) -> impl Iterator<Item = &Effect> {
        self.steps.iter().flat_map(|step| step.at_once.iter().chain(&step.send))
    }

    pub(crate) fn persisted(&self) -> impl Iterator<Item = &Record> {
        self.steps.iter().flat_map(|step| &step.persist)
    }

    /// The messages to this worker.
    pub(crate) fn sent_to(&self, n: u8) -> Vec<ToWorker> {
        let told = |effect: &Effect| match effect {
            Effect::ToWorker { worker, message } if *worker == worker_id(n) => {
                Some(message.clone())
            }
            _ => None,
        };
        self.sent().filter_map(told).collect()
    }

    pub(crate) fn dispatches(&self) -> Vec<Assignment> {
        let assignment = |effect: &Effect| match effect {
            Effect::ToWorker { worker, message: ToWorker::Dispatch(dispatch) } => {
                Some(Assignment { worker: *worker, dispatch: Arc::clone(dispatch) })
            }
            _ => None,
        };
        self.sent().filter_map(assignment).collect()
    }

    pub(crate) fn is_cancelled(&self, assignment: &Assignment) -> bool {
        let (attempt, fence) = (assignment.dispatch.attempt, assignment.dispatch.fence);
        self.sent_to(assignment.n()).contains(&ToWorker::Cancel { attempt, fence })
    }

    pub(crate) fn notices(&self, id: TaskId) -> Vec<Notice> {
        let notice = |effect: &Effect| match effect {
            Effect::Notice { task, notice } if *task == id => Some(notice.clone()),
            _ => None,
        };
        self.sent().filter_map(notice).collect()
    }

    pub(crate) fn view(&self, task: TaskId) -> TaskView {
        self.scheduler.task_view(task, self.now).expect("the task has not ended")
    }

    pub(crate) fn stored(&self, task: TaskId) -> &StoredTask {
        &self.disk.image.tasks[&task]
    }

    pub(crate) fn ended(&self, task: TaskId) -> &FinishedTask {
        self.stored(task).finished.as_ref().expect("the task has ended")
    }

    /// How many ends were recorded during the last call.
    pub(crate) fn ends(&self) -> usize {
        self.persisted().filter(|record| matches!(record, Record::Finished(_))).count()
    }

    pub(crate) fn finish(&mut self, assignment: &Assignment) {
        self.finish_with(assignment, completed());
    }

    pub(crate) fn finish_with(&mut self, assignment: &Assignment, outcome: Outcome) {
        let fence = assignment.dispatch.fence;
        if let Some(script) = self.workers.get_mut(&assignment.worker) {
            script.holding.retain(|(_, held)| *held != fence);
        }
        self.receive(assignment.n(), assignment.finished(outcome));
    }

    pub(crate) fn accept(&mut self, assignment: &Assignment) {
        let (attempt, fence) = (assignment.dispatch.attempt, assignment.dispatch.fence);
        self.receive(assignment.n(), FromWorker::Accepted { attempt, fence });
    }

    pub(crate) fn start(&mut self, assignment: &Assignment) {
        let (attempt, fence) = (assignment.dispatch.attempt, assignment.dispatch.fence);
        self.receive(assignment.n(), FromWorker::Started { attempt, fence });
    }

    pub(crate) fn silence(&mut self, n: u8) {
        self.workers.entry(worker_id(n)).or_default().silent = true;
    }

    fn step(&mut self, event: SchedulerEvent) {
        let durable = (&mut self.batch, &mut self.disk);
        let committed = step(&mut self.scheduler, durable, self.now, event);
        self.keep(committed);
    }

    fn start_with(&mut self, step: SchedulerStep) {
        self.batch = Batch::from(step);
        let committed = commit(&mut self.batch, &mut self.disk);
        self.keep(committed);
    }

    fn keep(&mut self, committed: Committed<Scheduler>) {
        self.scheduler.check(self.now).expect("the incremental state is consistent");
        let open = self.disk.image.tasks.values().filter(|task| task.finished.is_none()).count();
        assert_eq!(open, self.scheduler.open_tasks() - self.unstored, "the open tasks are durable");
        self.steps.push(committed);
    }

    /// The workers answer, until there are no more messages.
    fn answer(&mut self) {
        let mut at = 0;
        while at < self.steps.len() {
            for effect in self.steps[at].send.clone() {
                let Effect::ToWorker { worker, message } = effect else { continue };
                let Some(script) = self.workers.get_mut(&worker) else { continue };
                if let Some(message) = script.message_before_answer(&message) {
                    self.step(SchedulerEvent::WorkerMessageReceived {
                        worker,
                        message: message.into(),
                    });
                }
                let Some(script) = self.workers.get_mut(&worker) else { continue };
                if let Some(message) = script.answer(message, self.now, &mut self.rng) {
                    self.step(SchedulerEvent::WorkerMessageReceived {
                        worker,
                        message: message.into(),
                    });
                }
            }
            at += 1;
        }
    }
}

impl Script {
    /// While one of its executors is unreachable, a worker reports that before it answers.
    fn message_before_answer(&self, message: &ToWorker) -> Option<FromWorker> {
        let asked = matches!(message, ToWorker::RequestLease(_) | ToWorker::Heartbeat { .. });
        (asked && !self.silent && !self.unreachable.is_empty())
            .then(|| FromWorker::Unreachable { executors: self.unreachable.clone(), owner: None })
    }

    fn answer(&mut self, message: ToWorker, now: Time, rng: &mut Rng) -> Option<FromWorker> {
        if self.silent {
            return None;
        }
        let holding = self.holding.clone();
        match message {
            ToWorker::RequestLease(LeaseRequest { request, ttl, .. }) => {
                let (lease, epoch) = (LeaseId::new(now, rng), Epoch(1));
                Some(FromWorker::LeaseGranted {
                    request,
                    lease,
                    epoch,
                    ttl,
                    portion: None,
                    holding,
                })
            }
            ToWorker::Heartbeat { lease, epoch, nonce, .. } => {
                Some(FromWorker::Alive { lease, epoch, nonce, portion: None, usage: None, holding })
            }
            ToWorker::Dispatch(dispatch) => {
                if !holding.contains(&(dispatch.attempt, dispatch.fence)) {
                    self.holding.push((dispatch.attempt, dispatch.fence));
                }
                None
            }
            ToWorker::Cancel { fence, .. } | ToWorker::Recorded { fence, .. } => {
                self.holding.retain(|(_, held)| *held != fence);
                None
            }
            _ => None,
        }
    }
}

/// An attempt that was dispatched to a worker.
#[derive(Clone, Debug)]
pub(crate) struct Assignment {
    pub(crate) worker: WorkerId,
    pub(crate) dispatch: Arc<Dispatch>,
}

impl Assignment {
    pub(crate) fn n(&self) -> u8 {
        self.worker.uuid().as_bytes()[15]
    }

    pub(crate) fn finished(&self, outcome: Outcome) -> FromWorker {
        let (attempt, fence) = (self.dispatch.attempt, self.dispatch.fence);
        FromWorker::Finished { attempt, fence, run: Span::from_millis(10), outcome }
    }
}

pub(crate) fn completed() -> Outcome {
    Outcome::Completed { result: Payload::from(&b"42"[..]).into() }
}

pub(crate) fn failed(retry: bool) -> Outcome {
    let kind = if retry { FailureKind::ProgramFailed } else { FailureKind::InvalidInput };
    Outcome::Failed(TaskError::new(kind, "out of memory"))
}

pub(crate) fn scheduler_id() -> SchedulerId {
    "00000000-0000-7000-8000-0000000000aa".parse().expect("a UUID")
}

pub(crate) fn worker_id(n: u8) -> WorkerId {
    format!("00000000-0000-7000-8000-0000000000{n:02x}").parse().expect("a UUID")
}

pub(crate) fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

pub(crate) fn worker(n: u8) -> Worker {
    let executor = Executor {
        class: ExecutorClass::Inference,
        name: name("test"),
        models: Vec::new(),
        concurrency: 1,
    };
    Worker {
        id: worker_id(n),
        capacity: Capacity { cpu_milli: 4_000, memory_bytes: 8 << 30, ..Capacity::default() },
        executors: vec![executor],
        hardware: None,
        region: None,
        price: Money::ZERO,
    }
}

pub(crate) fn task() -> NewTask {
    NewTask {
        spec: Arc::new(TaskSpec::default()),
        idempotency_key: None,
        bind_at_once: false,
        stored: true,
        quota: None,
        weight: None,
    }
}

/// An interactive task.
pub(crate) fn unstored() -> NewTask {
    NewTask { stored: false, ..task() }
}

pub(crate) fn keyed(key: &str) -> NewTask {
    NewTask { idempotency_key: Some(Arc::from(key)), ..task() }
}

pub(crate) fn bound_at_once() -> NewTask {
    NewTask { bind_at_once: true, ..task() }
}

pub(crate) fn with_spec(change: impl FnOnce(&mut TaskSpec)) -> NewTask {
    let mut spec = TaskSpec::default();
    change(&mut spec);
    NewTask { spec: Arc::new(spec), ..task() }
}

pub(crate) fn with_deadline(secs: u64) -> NewTask {
    with_spec(|spec| spec.requirement.deadline = Some(Span::from_secs(secs)))
}

pub(crate) fn secs(secs: u64) -> Span {
    Span::from_secs(secs)
}
