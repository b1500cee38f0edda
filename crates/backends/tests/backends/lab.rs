//! HTTP workers with a test in the scheduler's place.

use std::sync::Arc;
use std::time::Duration;

use hypha_backends::{Format, HttpSettings, HttpWorkers, NewServer, ServerConfig};
use hypha_engine::{Dispatch, FromWorker, Outcome, ToWorker};
use hypha_model::{
    AttemptId, Epoch, Fence, Form, LeaseId, Name, Payload, Requirement, Span, TaskId, TaskSpec,
    Worker, WorkerId,
};
use tokio::sync::mpsc;
use uuid::Uuid;

/// Longer than anything here takes on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) struct Lab {
    pub(crate) workers: HttpWorkers,
    said: mpsc::Receiver<(WorkerId, FromWorker)>,
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
        let (sender, said) = mpsc::channel(1_000);
        let mut settings = HttpSettings {
            public_url: Some("http://127.0.0.1:9".to_owned()),
            // Nothing is found by polling unless a test wants it.
            poll_interval: Duration::from_secs(600),
            ..HttpSettings::new(directory.path())
        };
        change(&mut settings);
        let hear = Arc::new(move |worker, message| {
            let _ = sender.try_send((worker, message));
        });
        let workers = HttpWorkers::open(settings, hear).unwrap();
        Lab { workers, said, directory }
    }

    /// What is said next.
    pub(crate) async fn hears(&mut self) -> (WorkerId, FromWorker) {
        let next = tokio::time::timeout(DEADLINE, self.said.recv()).await;
        next.expect("nobody says anything").unwrap()
    }

    /// What is said next, in short.
    pub(crate) async fn short(&mut self) -> String {
        short(&self.hears().await.1)
    }

    /// What is said next, in short, but for beginnings: a short run may be told of at its end alone.
    pub(crate) async fn ends(&mut self) -> String {
        loop {
            let said = self.short().await;
            if !said.starts_with("started ") {
                return said;
            }
        }
    }

    /// Asserts that nothing has been said that was not heard. Everything that could be said must have been waited for.
    pub(crate) fn silent(&mut self) {
        if let Ok((_, message)) = self.said.try_recv() {
            panic!("said: {}", short(&message));
        }
    }

    pub(crate) async fn lease(&mut self, worker: &Arc<Worker>) -> Leased {
        let ttl = Span::from_secs(60);
        self.workers.send(worker.id, ToWorker::RequestLease { request: 7, ttl });
        match self.hears().await {
            (id, FromWorker::LeaseGranted { request: 7, lease, epoch, .. }) if id == worker.id => {
                Leased { worker: Arc::clone(worker), lease, epoch }
            }
            other => panic!("no lease: {other:?}"),
        }
    }

    /// Asks whether the worker is there, and gives what it answers: all before that has been said.
    pub(crate) async fn beat(&mut self, leased: &Leased, nonce: u64) -> String {
        let (lease, epoch) = (leased.lease, leased.epoch);
        self.workers.send(leased.worker.id, ToWorker::Heartbeat { lease, epoch, nonce });
        self.short().await
    }

    pub(crate) fn dispatch(&self, leased: &Leased, fence: u64, input: &str) {
        self.dispatch_spec(leased, fence, spec(input));
    }

    pub(crate) fn dispatch_spec(&self, leased: &Leased, fence: u64, spec: TaskSpec) {
        let dispatch = Dispatch {
            lease: leased.lease,
            epoch: leased.epoch,
            attempt: attempt(fence),
            fence: Fence(fence),
            timeout: spec.timeout.unwrap_or(Span::from_secs(600)),
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
        let new = new_server(url, format, concurrency);
        let worker = self.workers.register_server(new).await.unwrap();
        self.lease(&worker).await
    }

    pub(crate) async fn instance(&mut self, instance: &super::fake::Instance) -> Leased {
        let port = instance.address.port();
        let worker = self.workers.register_instance("127.0.0.1", port).await.unwrap();
        self.lease(&worker).await
    }
}

pub(crate) fn new_server(url: String, format: Format, concurrency: u32) -> NewServer {
    let config = ServerConfig::new(url, format);
    NewServer { config, models: vec![name("m")], concurrency, trusted: false }
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
        form: Form::Task,
        ..TaskSpec::default()
    }
}

pub(crate) fn short(message: &FromWorker) -> String {
    match message {
        FromWorker::LeaseGranted { holding, .. } => format!("granted, holding {}", held(holding)),
        FromWorker::LeaseRefused { refusal, .. } => format!("lease refused: {refusal}"),
        FromWorker::Alive { nonce, holding, .. } => {
            format!("alive {nonce}, holding {}", held(holding))
        }
        FromWorker::LeaseUnknown { .. } => "lease unknown".to_owned(),
        FromWorker::Accepted { fence, .. } => format!("accepted {}", fence.0),
        FromWorker::Refused { fence, refusal, .. } => format!("refused {}: {refusal}", fence.0),
        FromWorker::Started { fence, .. } => format!("started {}", fence.0),
        FromWorker::Running { fence, .. } => format!("running {}", fence.0),
        FromWorker::Left { .. } => "left".to_owned(),
        FromWorker::Away { .. } => "away".to_owned(),
        FromWorker::Progress { fence, permille, .. } => format!("progress {} {permille}", fence.0),
        FromWorker::Output { fence, piece, .. } => {
            format!("output {}: {}", fence.0, String::from_utf8_lossy(piece.bytes()))
        }
        FromWorker::Finished { fence, outcome, .. } => match outcome {
            Outcome::Completed { result, digest } => {
                assert_eq!(result.digest(), *digest);
                format!("completed {}: {}", fence.0, String::from_utf8_lossy(result.bytes()))
            }
            Outcome::Failed { error, retry } => format!("failed {} {retry}: {error}", fence.0),
            Outcome::TimedOut => format!("timed out {}", fence.0),
            Outcome::Unreached { error } => format!("unreached {}: {error}", fence.0),
        },
    }
}

fn held(holding: &[(AttemptId, Fence)]) -> String {
    format!("{:?}", holding.iter().map(|(_, fence)| fence.0).collect::<Vec<_>>())
}
