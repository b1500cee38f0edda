//! What a scheduler knows about the machines of its workers: when they were last heard from, how much of them is in use,
//! and which GPUs a task has.

use hypha_engine::{FromWorker, Settings, SubmitRejection, ToWorker};
use hypha_model::{Device, GpuIds, Usage};

use crate::harness::*;

/// Worker 1 with two GPUs, which runs two tasks at once.
fn with_gpus() -> Rig {
    let mut rig = Rig::new(Settings::default());
    let device = Device { model: name("A100"), memory_bytes: 40 << 30, milli_gpu: 1_000 };
    let mut worker = worker(1);
    worker.executors[0].concurrency = 2;
    worker.capacity.devices = vec![device; 2];
    rig.join_as(worker);
    rig
}

fn on_gpu(ids: &[u32]) -> hypha_engine::NewTask {
    with_spec(|spec| {
        let add = |all: GpuIds, id: &u32| all.with(*id).unwrap();
        spec.requirement.gpu_ids = ids.iter().fold(GpuIds::default(), add);
        spec.requirement.min_gpus = ids.len() as u32;
    })
}

#[test]
fn every_message_updates_when_a_worker_was_last_seen() {
    let mut rig = Rig::with_workers(&[1]);
    let (_, assignment) = rig.dispatched(task());
    let (attempt, fence) = (assignment.dispatch.attempt, assignment.dispatch.fence);
    for message in [
        FromWorker::Accepted { attempt, fence },
        FromWorker::Started { attempt, fence },
        FromWorker::Progress { attempt, fence, permille: 500 },
        FromWorker::Unreachable { executors: Vec::new(), owner: None },
        assignment.finished(completed()),
    ] {
        rig.wait(secs(1));
        rig.receive(1, message.clone());
        let (worker, _) = rig.scheduler.workers(rig.now).remove(0);
        assert_eq!(worker.health.last_seen, rig.now, "{message:?}");
    }
}

#[test]
fn a_task_has_the_gpus_that_its_worker_reports() {
    let mut rig = with_gpus();
    let (id, assignment) = rig.dispatched(on_gpu(&[1]));
    assert!(rig.view(id).devices.is_empty());
    let (attempt, fence) = (assignment.dispatch.attempt, assignment.dispatch.fence);
    let devices = vec![1];
    rig.receive(1, FromWorker::DevicesAssigned { attempt, fence, devices });
    rig.start(&assignment);
    assert_eq!(rig.view(id).devices, [1]);
    // The next attempt has none until its worker reports them.
    rig.finish_with(&assignment, failed(true));
    assert!(rig.view(id).devices.is_empty());
}

#[test]
fn a_task_that_names_gpus_is_accepted_only_if_they_are_free() {
    let mut rig = with_gpus();
    let ids = |task: &hypha_engine::NewTask| task.spec.requirement.gpu_ids;
    let unknown = on_gpu(&[2]);
    assert_eq!(rig.try_submit(unknown.clone()), Err(SubmitRejection::GpusUnknown(ids(&unknown))));
    let (_, assignment) = rig.dispatched(on_gpu(&[1]));
    let both = on_gpu(&[0, 1]);
    assert_eq!(rig.try_submit(both.clone()), Err(SubmitRejection::GpusTaken(ids(&both))));
    assert_eq!(rig.scheduler.counts().rejected, 2);
    assert!(rig.try_submit(on_gpu(&[0])).is_ok());
    rig.finish(&assignment);
    assert!(rig.try_submit(on_gpu(&[1])).is_ok());
}

#[test]
fn measured_use_is_known_after_a_heartbeat() {
    let mut rig = Rig::with_workers(&[1]);
    rig.silence(1);
    rig.wait(secs(30));
    let heartbeat = rig.sent_to(1).into_iter().find_map(|message| match message {
        ToWorker::Heartbeat { lease, epoch, nonce, .. } => Some((lease, epoch, nonce)),
        _ => None,
    });
    let (lease, epoch, nonce) = heartbeat.expect("a heartbeat was sent");
    let usage = Usage { cpu_permille: 250, memory_permille: 750 };
    let (portion, holding) = (None, Vec::new());
    rig.receive(1, FromWorker::Alive { lease, epoch, nonce, portion, usage: Some(usage), holding });
    let (worker, _) = rig.scheduler.workers(rig.now).remove(0);
    assert_eq!(worker.usage, Some(usage));
}
