//! The scheduler's machine, shared by all parts of this process that have events or requests for it.

use std::future::ready;
use std::sync::Arc;

use futures::FutureExt;
use hypha_api::{JobChanges, ServiceFuture, ServiceUnavailable, SubmitResult, Watch};
use hypha_driver::SharedMachine;
use hypha_engine::store::AnyStore;
use hypha_engine::{Command, FromWorker, NewTask, Reply, Scheduler, SchedulerEvent, SchedulerStep};
use hypha_model::{TaskId, Time, WorkerId};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::effects::{Requester, SchedulerEffectHandler, SchedulerMachine};

/// See the module documentation.
pub(crate) struct SchedulerCore {
    pub(super) machine: Arc<SchedulerMachine>,
}

impl SchedulerCore {
    pub(super) fn new(
        scheduler: Scheduler,
        step: SchedulerStep,
        store: AnyStore,
        handler: SchedulerEffectHandler,
    ) -> SchedulerCore {
        let machine = Arc::new(SharedMachine::new(scheduler, step, store, handler));
        machine.handler().set_machine(&machine);
        SchedulerCore { machine }
    }

    /// Steps the machine with an event.
    pub(crate) fn handle_event(&self, event: SchedulerEvent) {
        self.machine.step_events([event]);
    }

    /// Steps the machine with a worker's messages. If the store fails they are lost: workers repeat unrecorded reports.
    pub(crate) fn handle_worker_messages(
        &self,
        worker: WorkerId,
        messages: impl Iterator<Item = FromWorker>,
    ) {
        let handler = self.machine.handler();
        let unseen = messages.filter_map(|message| match message {
            // Only the first piece of a stream concerns the machine.
            FromWorker::Output { attempt, fence, piece } => {
                let piece = handler.forward_output(worker, fence, piece)?;
                Some(FromWorker::Output { attempt, fence, piece })
            }
            other => Some(other),
        });
        self.machine.step_events(unseen.map(|message| SchedulerEvent::WorkerMessageReceived {
            worker,
            message: message.into(),
        }));
    }

    /// Executes a command; the reply comes when its records are durable.
    pub(super) fn execute(&self, command: Command) -> ServiceFuture<Reply> {
        let (answer, answered) = oneshot::channel();
        let event = SchedulerEvent::CommandReceived(command);
        let give =
            |requester: Requester, reply| requester.into_reply(reply, |_, _| Vec::new()).send();
        self.machine.request(event, Requester::Command(answer), give);
        answered.map(|answer| answer.unwrap_or_else(|_| Err(stopping()))).boxed()
    }

    /// Submits tasks, and watches them from the beginning if `watch` is set.
    pub(super) fn submit(
        &self,
        tasks: Vec<NewTask>,
        watch: bool,
    ) -> ServiceFuture<Vec<SubmitResult>> {
        if !tasks.iter().any(|task| task.stored) {
            return ready(self.submit_unstored(tasks, watch)).boxed();
        }
        let (answer, answered) = oneshot::channel();
        let event = SchedulerEvent::CommandReceived(Command::SubmitTasks(tasks));
        let runtime = Handle::try_current().ok();
        self.machine.request_with_next_commit(event, Requester::Submit { answer, watch, runtime });
        answered.map(|answer| answer.unwrap_or_else(|_| Err(stopping()))).boxed()
    }

    /// Submits tasks that are not stored: there are no records to commit, so the reply comes at once.
    fn submit_unstored(
        &self,
        tasks: Vec<NewTask>,
        watch: bool,
    ) -> Result<Vec<SubmitResult>, ServiceUnavailable> {
        let event = SchedulerEvent::CommandReceived(Command::SubmitTasks(tasks));
        let accepted =
            self.machine.request(event, Requester::Synchronous, |_, reply| match reply {
                Reply::Submitted(answers) => Some(self.machine.handler().accept(answers, watch)),
                _ => None,
            });
        accepted.flatten().ok_or_else(|| {
            let stopped = self.stopped();
            ServiceUnavailable(stopped.unwrap_or_else(|| "the scheduler did not reply".to_owned()))
        })
    }

    /// Watches a task from now on.
    pub(super) fn watch(&self, task: TaskId) -> Watch {
        self.machine.handler().watch(task)
    }

    /// Changes whenever a job has changed. Get it before you look at the job, so that no change is missed.
    pub(super) fn job_changes(&self) -> JobChanges {
        self.machine.handler().job_changes.subscribe()
    }

    /// Reads from the machine.
    pub(super) fn read<T>(&self, look: impl FnOnce(&Scheduler, Time) -> T) -> T {
        self.machine.read(look)
    }

    /// Waits until this worker has granted a lease.
    pub(super) async fn wait_for_lease(&self, worker: WorkerId) {
        loop {
            // Created before the check, so that a grant in between is not missed.
            let granted = self.machine.handler().leased.notified();
            if self.read(|scheduler, _| scheduler.lease_of(worker).is_some()) {
                return;
            }
            granted.await;
        }
    }

    /// The time of the machine's clock.
    pub(super) fn now(&self) -> Time {
        hypha_driver::EffectHandler::now(self.machine.handler())
    }

    /// Why nothing is acknowledged at present.
    pub(super) fn stopped(&self) -> Option<String> {
        self.machine.stopped().map(|why| why.to_string())
    }
}

pub(super) fn stopping() -> ServiceUnavailable {
    ServiceUnavailable("the scheduler is stopping".to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::{OnceLock, Weak};

    use hypha_engine::{Image, LeaseRequest, Notice, Settings, ToWorker};
    use hypha_model::{
        Capacity, Epoch, Executor, ExecutorClass, LeaseId, Money, Payload, Rng, SchedulerId,
        TaskSpec, Worker,
    };

    use super::super::effects::Transport;
    use super::super::metrics::SchedulerMetrics;
    use super::*;
    use crate::clock::Clock;

    /// A worker that responds within the call that sends it a message: no other can be faster.
    #[derive(Clone, Default)]
    struct InstantWorker(Arc<OnceLock<Weak<SchedulerCore>>>);

    impl Transport for InstantWorker {
        fn send(&self, worker: WorkerId, message: ToWorker) {
            let Some(core) = self.0.get().and_then(Weak::upgrade) else { return };
            let responses = match message {
                ToWorker::RequestLease(LeaseRequest { request, ttl, .. }) => {
                    let lease = LeaseId::new(Time::ZERO, &mut Rng::new(1));
                    let (epoch, holding) = (Epoch(1), Vec::new());
                    vec![FromWorker::LeaseGranted {
                        request,
                        lease,
                        epoch,
                        ttl,
                        portion: None,
                        holding,
                    }]
                }
                ToWorker::Dispatch(dispatch) => {
                    let (attempt, fence) = (dispatch.attempt, dispatch.fence);
                    let piece = |text: &str| FromWorker::Output {
                        attempt,
                        fence,
                        piece: Payload::from(text.as_bytes()),
                    };
                    vec![FromWorker::Started { attempt, fence }, piece("one "), piece("two")]
                }
                _ => Vec::new(),
            };
            for response in responses {
                core.handle_worker_messages(worker, std::iter::once(response));
            }
        }

        fn advertise(&self, _: Arc<hypha_engine::Advert>) {}
        fn close_advert(&self, _: hypha_model::AdvertId) {}
        fn forget(&self, _: WorkerId) {}
        fn mark_removed(&self, _: WorkerId) {}

        fn registered_workers(&self) -> Vec<Arc<Worker>> {
            Vec::new()
        }

        fn connected_workers(&self) -> Vec<Arc<Worker>> {
            Vec::new()
        }
    }

    fn worker() -> Worker {
        Worker {
            id: WorkerId::new(Time::ZERO, &mut Rng::new(2)),
            capacity: Capacity::default(),
            executors: vec![Executor {
                class: ExecutorClass::Inference,
                name: "e".parse().unwrap(),
                models: Vec::new(),
                concurrency: 1,
            }],
            hardware: None,
            region: None,
            price: Money::default(),
        }
    }

    #[tokio::test]
    async fn watch_misses_no_notice_of_a_fast_worker() {
        let directory = tempfile::tempdir().unwrap();
        let (store, _) = super::super::store::open(directory.path()).unwrap();
        let (mut step, clock) = (SchedulerStep::default(), Clock::new());
        let (id, settings) = (SchedulerId::LOCAL, Settings::default());
        let machine = Scheduler::recover(id, settings, Image::default(), 1, clock.now(), &mut step);
        let metrics = SchedulerMetrics::new(&mut prometheus_client::registry::Registry::default());
        let transport = InstantWorker::default();
        let handler = SchedulerEffectHandler::new(clock, metrics, Box::new(transport.clone()));
        let core = Arc::new(SchedulerCore::new(machine, step, store, handler));
        transport.0.set(Arc::downgrade(&core)).unwrap();
        core.machine.start();
        core.handle_event(SchedulerEvent::WorkerFound(Arc::new(worker())));
        let leased = core.wait_for_lease(worker().id);
        tokio::time::timeout(std::time::Duration::from_secs(20), leased).await.unwrap();
        let spec = Arc::new(TaskSpec { stream: true, ..TaskSpec::default() });
        let task = NewTask {
            spec,
            idempotency_key: None,
            bind_at_once: false,
            stored: true,
            quota: None,
            weight: None,
        };
        let mut accepted = core.submit(vec![task], true).await.unwrap();
        let mut watch = accepted.remove(0).unwrap().1.unwrap();
        let (mut pieces, mut notices) = (Vec::new(), Vec::new());
        while pieces.len() < 2 {
            let next = tokio::time::timeout(std::time::Duration::from_secs(20), watch.next());
            match next.await.expect("a piece was lost").expect("the watch has ended") {
                Notice::Output(piece) => pieces.push(piece.bytes().to_vec()),
                other => notices.push((other, pieces.len())),
            }
        }
        assert_eq!(pieces.concat(), b"one two");
        let [(Notice::Scheduled(_), 0), (Notice::Running, 0)] = notices[..] else {
            panic!("notices in another order: {notices:?}");
        };
    }
}
