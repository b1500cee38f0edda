//! One commit of a store: 16 tasks are accepted and attempted, and the 16 before have ended.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use hypha_engine::Record;
use hypha_engine::record::{AcceptedTask, FinishedTask};
use hypha_machine::Journal;
use hypha_model::{
    AttemptId, Fence, Payload, Rng, Span, TaskId, TaskSpec, TaskState, Time, WorkerId,
};
use hypha_store::Store;

use crate::tasks::{START, spec};

const TASKS: usize = 16;

pub(crate) fn run(rounds: u64) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let (store, _) = Store::open(&directory.path().join("counts.db"))?;
    let mut builder = RecordBuilder::new();
    let mut before = Vec::new();
    for _ in 0..rounds {
        let mut records = Vec::new();
        let ended = std::mem::replace(&mut before, (0..TASKS).map(|_| builder.id()).collect());
        records
            .extend(before.iter().flat_map(|id| [builder.accepted(*id), builder.attempted(*id)]));
        records.extend(ended.into_iter().map(|id| builder.finished(id)));
        let (done, committed) = sync_channel(1);
        store.commit(records, Box::new(move |result| drop(done.send(result))));
        committed.recv()??;
    }
    Ok(())
}

struct RecordBuilder {
    now: Time,
    rng: Rng,
    spec: Arc<TaskSpec>,
    worker: WorkerId,
    result: Payload,
}

impl RecordBuilder {
    fn new() -> RecordBuilder {
        let mut rng = Rng::new(1);
        RecordBuilder {
            now: START,
            spec: Arc::new(spec(&mut rng)),
            worker: WorkerId::new(START, &mut rng),
            rng,
            result: Payload::from(vec![b'y'; 100]),
        }
    }

    fn id(&mut self) -> TaskId {
        self.now = self.now + Span::from_micros(60);
        TaskId::new(self.now, &mut self.rng)
    }

    fn accepted(&self, id: TaskId) -> Record {
        Record::Accepted(Arc::new(AcceptedTask {
            id,
            spec: Arc::clone(&self.spec),
            submitted: self.now,
            deadline: None,
            idempotency_key: None,
            bind_at_once: false,
        }))
    }

    fn attempted(&self, task: TaskId) -> Record {
        let attempt = AttemptId { task, number: 1 };
        Record::AttemptDispatched { attempt, fence: Fence(1), worker: self.worker, at: self.now }
    }

    fn finished(&self, task: TaskId) -> Record {
        Record::Finished(Arc::new(FinishedTask {
            task,
            state: TaskState::Completed,
            attempts: 1,
            worker: Some(self.worker),
            started: Some(self.now),
            finished: self.now,
            result: Some(self.result.clone().into()),
            error: None,
            failed: Default::default(),
        }))
    }
}
