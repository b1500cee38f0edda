//! Portions of a worker: two schedulers share it, and each uses no more than its portion.

use std::sync::Arc;

use hypha_engine::scheduler::Unavailability;
use hypha_engine::{FromWorker, LeaseRequest, NewTask, Portion, Settings, ToWorker};
use hypha_model::{Epoch, LeaseId, Requirement, Rng, Span, TaskSpec, TaskState};

use crate::harness::*;

/// A task that needs this much memory.
fn needs(memory_bytes: u64) -> NewTask {
    let requirement = Requirement { memory_bytes, ..Requirement::default() };
    NewTask { spec: Arc::new(TaskSpec { requirement, ..TaskSpec::default() }), ..task() }
}

/// Half of the worker's cores and memory, and as many slots.
fn half(slots: u32) -> Portion {
    let whole = Portion::whole(&worker(1));
    Portion {
        cpu_milli: whole.cpu_milli / 2,
        memory_bytes: whole.memory_bytes / 2,
        slots: vec![slots],
        ..whole
    }
}

/// A scheduler that holds a portion of worker 1.
struct SharedWorkerRig {
    rig: Rig,
    lease: LeaseId,
}

impl SharedWorkerRig {
    fn new(portion: Option<Portion>) -> SharedWorkerRig {
        let mut rig = Rig::new(Settings::default());
        rig.event(hypha_engine::SchedulerEvent::WorkerFound(Arc::new(worker(1))));
        let request = rig.sent_to(1).iter().find_map(|told| match told {
            ToWorker::RequestLease(LeaseRequest { request, .. }) => Some(*request),
            _ => None,
        });
        let (lease, ttl) = (LeaseId::new(rig.now, &mut Rng::new(9)), secs(120));
        let (request, epoch, holding) = (request.unwrap(), Epoch(1), Vec::new());
        rig.receive(1, FromWorker::LeaseGranted { request, lease, epoch, ttl, portion, holding });
        SharedWorkerRig { rig, lease }
    }

    /// The next heartbeat, and the demand that it carries.
    fn heartbeat(&mut self, within: Span) -> (u64, Option<Arc<Requirement>>) {
        self.rig.wait(within);
        self.last_heartbeat().expect("a heartbeat is sent")
    }

    fn last_heartbeat(&self) -> Option<(u64, Option<Arc<Requirement>>)> {
        self.rig.sent_to(1).iter().rev().find_map(|told| match told {
            ToWorker::Heartbeat { nonce, demand, .. } => Some((*nonce, demand.clone())),
            _ => None,
        })
    }

    fn renew(&mut self, nonce: u64, portion: Option<Portion>) {
        let (lease, epoch, holding) = (self.lease, Epoch(1), Vec::new());
        self.rig
            .receive(1, FromWorker::Alive { lease, epoch, nonce, portion, usage: None, holding });
    }
}

#[test]
fn a_scheduler_dispatches_no_more_than_its_portion_runs() {
    let mut shared = SharedWorkerRig::new(Some(half(1)));
    let large = shared.rig.submit(needs(6 << 30));
    assert_eq!(shared.rig.dispatches().len(), 0, "half of the worker is too small");
    shared.rig.submit(needs(3 << 30));
    assert_eq!(shared.rig.dispatches().len(), 1);
    let state = |shared: &SharedWorkerRig| {
        shared.rig.scheduler.task_view(large, shared.rig.now).unwrap().state
    };
    assert_eq!(state(&shared), TaskState::Queued);
    let wanted = Requirement { memory_bytes: 6 << 30, ..Requirement::default() };
    let why = shared.rig.scheduler.unavailability_of(worker_id(1), Some(&wanted));
    assert_eq!(why, Some(Unavailability::LeasedToOthers));

    // It reports the demand with an early heartbeat, and gets a larger portion.
    let (nonce, demand) = shared.heartbeat(Settings::default().health_check_timeout);
    assert_eq!(demand.unwrap().memory_bytes, 6 << 30);
    shared.renew(nonce, None);
    assert_eq!(shared.rig.scheduler.lease_of(worker_id(1)).unwrap().portion, None);
    assert_eq!(shared.rig.scheduler.unavailability_of(worker_id(1), Some(&wanted)), None);
}

#[test]
fn a_waiting_attempt_that_exceeds_the_portion_is_withdrawn_and_uses_up_no_attempt() {
    let mut shared = SharedWorkerRig::new(None);
    let large = shared.rig.submit(needs(6 << 30));
    let assignment = shared.rig.dispatches();
    let (attempt, fence) = (assignment[0].dispatch.attempt, assignment[0].dispatch.fence);
    shared.rig.receive(1, FromWorker::Accepted { attempt, fence });
    let (lease, epoch) = (shared.lease, Epoch(1));
    shared.rig.receive(1, FromWorker::RenewEarly { lease, epoch });
    let (nonce, _) = shared.last_heartbeat().unwrap();
    let (portion, holding) = (Some(half(1)), vec![(attempt, fence)]);
    shared.rig.receive(1, FromWorker::Alive { lease, epoch, nonce, portion, usage: None, holding });
    let cancelled = ToWorker::Cancel { attempt, fence };
    assert!(shared.rig.sent_to(1).contains(&cancelled));
    let view = shared.rig.scheduler.task_view(large, shared.rig.now).unwrap();
    assert_eq!(view.state, TaskState::Queued);
    let requeued = shared.rig.disk.image.tasks[&large].failures;
    assert_eq!(requeued, 0, "no attempt is used up");
}

#[test]
fn a_worker_with_an_empty_portion_gets_no_tasks() {
    let mut shared = SharedWorkerRig::new(Some(Portion::empty(&worker(1))));
    shared.rig.submit(task());
    assert_eq!(shared.rig.dispatches().len(), 0);
    let why = shared.rig.scheduler.unavailability_of(worker_id(1), None);
    assert_eq!(why, Some(Unavailability::LeasedToOthers));
    let (nonce, demand) = shared.heartbeat(Settings::default().health_check_timeout);
    assert!(demand.is_some());
    shared.renew(nonce, Some(half(1)));
    assert_eq!(shared.rig.dispatches().len(), 1, "as soon as it has a portion");
}

#[test]
fn a_lease_is_renewed_at_once_when_the_worker_requests_it() {
    let mut shared = SharedWorkerRig::new(None);
    assert!(shared.last_heartbeat().is_none());
    let (lease, epoch) = (shared.lease, Epoch(1));
    shared.rig.receive(1, FromWorker::RenewEarly { lease, epoch: Epoch(2) });
    assert!(shared.last_heartbeat().is_none(), "the lease of another incarnation");
    shared.rig.receive(1, FromWorker::RenewEarly { lease, epoch });
    let (nonce, demand) = shared.last_heartbeat().expect("at once");
    assert_eq!(demand, None, "with all of the worker there is no demand");
    // A change while the answer is in flight is not missed.
    shared.rig.receive(1, FromWorker::RenewEarly { lease, epoch });
    shared.renew(nonce, Some(half(1)));
    assert!(shared.heartbeat(Span::ZERO).0 > nonce);
}

#[test]
fn a_portion_is_clamped_to_what_the_worker_has() {
    let boast = Portion { memory_bytes: u64::MAX, slots: vec![1_000; 9], ..half(1) };
    let shared = SharedWorkerRig::new(Some(boast));
    let portion = shared.rig.scheduler.lease_of(worker_id(1)).unwrap().portion.unwrap();
    assert_eq!((portion.memory_bytes, portion.slots[0]), (8 << 30, 1));
}
