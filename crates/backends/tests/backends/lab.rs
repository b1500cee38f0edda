//! HTTP workers with a test in place of the scheduler.

use std::sync::Arc;
use std::time::Duration;

use hypha_backends::{
    BackEndSettings, Format, HttpSettings, HttpWorkers, MessageHandler, NewBackEnd, SchedulerHandle,
};
use hypha_engine::{Dispatch, FromWorker, LeaseRequest, Outcome, ToWorker};
use hypha_model::{
    AttemptId, Epoch, Fence, InputKind, LeaseId, Name, Payload, Requirement, SchedulerId, Span,
    TaskId, TaskSpec, Time, Worker, WorkerId,
};
use tokio::sync::mpsc;
use uuid::Uuid;

/// Longer than any step of a test takes on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) struct Lab {
    pub(crate) workers: HttpWorkers,
    messages: mpsc::Receiver<(WorkerId, FromWorker)>,
    requests: u64,
    pub(crate) directory: tempfile::TempDir,
}

/// A worker with a lease.
#[derive(Clone)]
pub(crate) struct Leased {
    pub(crate) worker: Arc<Worker>,
    pub(crate) lease: LeaseId,
    pub(crate) epoch: Epoch,
}

impl Lab {
    pub(crate) fn new() -> Lab {
        Lab::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut HttpSettings)) -> Lab {
        Lab::opened(tempfile::tempdir().unwrap(), change)
    }

    pub(crate) fn opened(
        directory: tempfile::TempDir,
        change: impl FnOnce(&mut HttpSettings),
    ) -> Lab {
        let (sender, messages) = mpsc::channel(1_000);
        let mut settings = HttpSettings {
            public_url: Some("http://127.0.0.1:9".to_owned()),
            // No result is found by polling unless a test sets a shorter interval.
            poll_interval: Duration::from_secs(600),
            ..HttpSettings::new(directory.path())
        };
        change(&mut settings);
        let on_message = Arc::new(move |worker, message| {
            let _ = sender.try_send((worker, message));
        });
        let workers = HttpWorkers::open(settings, scheduler(on_message)).unwrap();
        Lab { workers, messages, requests: 0, directory }
    }

    /// The next message, except those about health and about the id of a task at an instance.
    pub(crate) async fn next_message(&mut self) -> (WorkerId, FromWorker) {
        loop {
            let next = self.next_any_message().await;
            if !matches!(next.1, FromWorker::Unreachable { .. } | FromWorker::Delegated { .. }) {
                return next;
            }
        }
    }

    /// The next message.
    pub(crate) async fn next_any_message(&mut self) -> (WorkerId, FromWorker) {
        let next = tokio::time::timeout(DEADLINE, self.messages.recv()).await;
        next.expect("no message arrived").unwrap()
    }

    /// Waits until the back end is reported to be healthy, or not to be.
    pub(crate) async fn wait_for_health(&mut self, healthy: bool) {
        loop {
            if let FromWorker::Unreachable { executors, .. } = self.next_any_message().await.1
                && executors.is_empty() == healthy
            {
                return;
            }
        }
    }

    /// A summary of the next message.
    pub(crate) async fn next_summary(&mut self) -> String {
        summary(&self.next_message().await.1)
    }

    /// A summary of the next message, except starts: of a short run only the end may be reported.
    pub(crate) async fn ends(&mut self) -> String {
        loop {
            let next = self.next_summary().await;
            if !next.starts_with("started ") && !next.starts_with("accepted ") {
                return next;
            }
        }
    }

    /// The next messages are these, in any order: each run reports from a task of its own.
    pub(crate) async fn assert_messages_in_any_order<const N: usize>(
        &mut self,
        expected: [&str; N],
    ) {
        let mut messages = Vec::new();
        while messages.len() < N {
            messages.push(self.next_summary().await);
        }
        messages.sort();
        assert_eq!(messages, expected);
    }

    /// Leases a worker, and waits until its back end is healthy.
    pub(crate) async fn lease(&mut self, worker: &Arc<Worker>) -> Leased {
        let ttl = Span::from_secs(60);
        self.requests += 1;
        self.workers.send(
            worker.id,
            ToWorker::RequestLease(LeaseRequest {
                request: self.requests,
                ttl,
                ..LeaseRequest::default()
            }),
        );
        let (mut leased, mut is_healthy) = (None, true);
        loop {
            if let (Some(leased), true) = (&leased, is_healthy) {
                return Leased::clone(leased);
            }
            match self.next_any_message().await {
                (_, FromWorker::Unreachable { executors, .. }) => is_healthy = executors.is_empty(),
                (id, _) if id != worker.id => {}
                (id, FromWorker::LeaseGranted { request, lease, epoch, .. })
                    if id == worker.id && request == self.requests =>
                {
                    leased = Some(Leased { worker: Arc::clone(worker), lease, epoch });
                }
                other => panic!("no lease: {other:?}"),
            }
        }
    }

    /// Sends a heartbeat, and returns a summary of the next message: the response, if no other message was pending.
    pub(crate) async fn heartbeat(&mut self, leased: &Leased, nonce: u64) -> String {
        let (lease, epoch) = (leased.lease, leased.epoch);
        self.workers
            .send(leased.worker.id, ToWorker::Heartbeat { lease, epoch, nonce, demand: None });
        self.next_summary().await
    }

    pub(crate) fn dispatch(&self, leased: &Leased, fence: u64, input: &str) {
        self.dispatch_spec(leased, fence, spec(input));
    }

    pub(crate) fn dispatch_spec(&self, leased: &Leased, fence: u64, spec: TaskSpec) {
        self.hand_over(leased, fence, spec, None);
    }

    /// Dispatches a task that an instance may have under this id.
    pub(crate) fn resume(&self, leased: &Leased, fence: u64, handle: &str) {
        self.hand_over(leased, fence, spec("1"), Some(Arc::from(handle)));
    }

    fn hand_over(&self, leased: &Leased, fence: u64, spec: TaskSpec, resume: Option<Arc<str>>) {
        let dispatch = Dispatch {
            lease: leased.lease,
            epoch: leased.epoch,
            attempt: attempt(fence),
            fence: Fence(fence),
            timeout: spec.timeout.unwrap_or(Span::from_secs(600)),
            interactive: false,
            resume,
            spec: Arc::new(spec),
        };
        self.workers.send(leased.worker.id, ToWorker::Dispatch(Arc::new(dispatch)));
    }

    pub(crate) fn cancel(&self, leased: &Leased, fence: u64) {
        let message = ToWorker::Cancel { attempt: attempt(fence), fence: Fence(fence) };
        self.workers.send(leased.worker.id, message);
    }

    pub(crate) fn recorded(&self, leased: &Leased, fence: u64) {
        let message = ToWorker::Recorded { attempt: attempt(fence), fence: Fence(fence) };
        self.workers.send(leased.worker.id, message);
    }

    pub(crate) async fn server(&mut self, url: String, format: Format, concurrency: u32) -> Leased {
        let new = new_back_end(url, format, concurrency);
        let worker = self.workers.register_back_end(new).await.unwrap();
        self.lease(&worker).await
    }

    pub(crate) async fn instance(&mut self, instance: &super::fake::Instance) -> Leased {
        let port = instance.address.port();
        let worker = self.workers.register_instance("127.0.0.1", port, None).await.unwrap();
        self.lease(&worker).await
    }
}

/// A scheduler with a clock of its own.
pub(crate) fn scheduler(on_message: MessageHandler) -> SchedulerHandle {
    let began = std::time::Instant::now();
    let now = Arc::new(move || {
        let micros = began.elapsed().as_micros() as u64;
        Time::from_micros(1_700_000_000_000_000 + micros)
    });
    SchedulerHandle { id: SchedulerId::from_uuid(Uuid::from_u128(1)), now, on_message }
}

pub(crate) fn new_back_end(url: String, format: Format, concurrency: u32) -> NewBackEnd {
    let config = BackEndSettings::new(url, format);
    NewBackEnd { config, models: vec![name("m")], concurrency, trusted: false }
}

pub(crate) fn name(text: &str) -> Name {
    text.parse().unwrap()
}

pub(crate) fn attempt(fence: u64) -> AttemptId {
    let task = TaskId::from_uuid(Uuid::from_u128(u128::from(fence)));
    AttemptId { task, number: 1 }
}

pub(crate) fn spec(input: &str) -> TaskSpec {
    TaskSpec {
        requirement: Requirement { model: Some(name("m")), ..Requirement::default() },
        input: Payload::from(input.as_bytes()),
        form: InputKind::Task,
        ..TaskSpec::default()
    }
}

pub(crate) fn summary(message: &FromWorker) -> String {
    match message {
        FromWorker::LeaseGranted { holding, .. } => format!("granted, holding {}", held(holding)),
        FromWorker::LeaseRefused { refusal, .. } => format!("lease refused: {refusal}"),
        FromWorker::Alive { nonce, holding, .. } => {
            format!("alive {nonce}, holding {}", held(holding))
        }
        FromWorker::LeaseUnknown { .. } => "lease unknown".to_owned(),
        FromWorker::RenewEarly { .. } => "renew early".to_owned(),
        FromWorker::Accepted { fence, .. } => format!("accepted {}", fence.0),
        FromWorker::Delegated { fence, handle, .. } => format!("delegated {} {handle}", fence.0),
        FromWorker::DevicesAssigned { fence, devices, .. } => format!("{} on {devices:?}", fence.0),
        FromWorker::Refused { fence, refusal, .. } => format!("refused {}: {refusal}", fence.0),
        FromWorker::Started { fence, .. } => format!("started {}", fence.0),
        FromWorker::Running { fence, .. } => format!("running {}", fence.0),
        FromWorker::Left { .. } => "left".to_owned(),
        FromWorker::Offered(_)
        | FromWorker::NotOffered(_)
        | FromWorker::OfferUnknown(_)
        | FromWorker::ReceiptIssued(_)
        | FromWorker::Preempted { .. } => "of the market".to_owned(),
        FromWorker::Unreachable { .. } => "unreachable".to_owned(),
        FromWorker::Progress { fence, permille, .. } => format!("progress {} {permille}", fence.0),
        FromWorker::Output { fence, piece, .. } => {
            format!("output {}: {}", fence.0, String::from_utf8_lossy(piece.bytes()))
        }
        FromWorker::Finished { fence, outcome, .. } => match outcome {
            Outcome::Completed { result } => {
                assert!(result.digest_matches());
                let payload = result.payload().unwrap();
                format!("completed {}: {}", fence.0, String::from_utf8_lossy(payload.bytes()))
            }
            Outcome::Failed(error) => {
                format!("failed {} {}: {error}", fence.0, error.kind.is_retryable())
            }
            Outcome::TimedOut => format!("timed out {}", fence.0),
            Outcome::Unreachable { error } => format!("unreachable {}: {error}", fence.0),
        },
    }
}

fn held(holding: &[(AttemptId, Fence)]) -> String {
    format!("{:?}", holding.iter().map(|(_, fence)| fence.0).collect::<Vec<_>>())
}
