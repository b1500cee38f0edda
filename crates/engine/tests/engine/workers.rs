//! Leases, heartbeats, quarantine, removal.

use std::sync::Arc;

use hypha_engine::{
    Command, FromWorker, LeaseRequest, NewTask, Record, Reply, SchedulerEvent, Settings, ToWorker,
};
use hypha_model::{
    AttemptId, Epoch, FailureKind, Fence, LeaseId, Payload, Refusal, RefusalKind, Requirement, Rng,
    Span, TaskId, TaskSpec, TaskState,
};
use hypha_placement::Strategy;
use hypha_predict::Predictor;

use crate::harness::*;

fn found(rig: &mut Rig, n: u8) -> u64 {
    rig.event(SchedulerEvent::WorkerFound(Arc::new(worker(n))));
    request(rig, n).expect("a lease is requested")
}

fn request(rig: &Rig, n: u8) -> Option<u64> {
    rig.sent_to(n).iter().rev().find_map(|told| match told {
        ToWorker::RequestLease(LeaseRequest { request, .. }) => Some(*request),
        _ => None,
    })
}

fn grant(rig: &mut Rig, n: u8, request: u64, ttl: Span) {
    let lease = LeaseId::new(rig.now, &mut Rng::new(request));
    let holding = Vec::new();
    rig.receive(
        n,
        FromWorker::LeaseGranted { request, lease, epoch: Epoch(1), ttl, portion: None, holding },
    );
}

fn heartbeats(rig: &Rig, n: u8) -> usize {
    rig.sent_to(n).iter().filter(|told| matches!(told, ToWorker::Heartbeat { .. })).count()
}

#[test]
fn a_worker_gets_no_tasks_before_its_lease_and_only_the_newest_request_counts() {
    let mut rig = Rig::new(Settings::default());
    let first = found(&mut rig, 1);
    rig.submit(task());
    rig.wait(secs(60));
    let second = request(&rig, 1).expect("it is requested again");
    assert!(second > first);
    grant(&mut rig, 1, first, secs(120));
    assert_eq!((rig.scheduler.lease_of(worker_id(1)), rig.dispatches().len()), (None, 0), "late");
    let refusal = Refusal::without_amount(RefusalKind::Busy);
    rig.receive(1, FromWorker::LeaseRefused { request: second, refusal });
    rig.wait(secs(30));
    let third = request(&rig, 1).expect("a refusal is not permanent");
    grant(&mut rig, 1, third, secs(120));
    assert_eq!(rig.dispatches().len(), 1);
}

#[test]
fn the_holder_relies_on_four_fifths_of_the_ttl_from_sending() {
    // 120 s are requested: a longer grant is cut to that, a shorter one counts as it is.
    for (granted, counted) in [(120, 96), (1_000_000, 96), (50, 40)] {
        let mut rig = Rig::new(Settings::default());
        let request = found(&mut rig, 1);
        let sent = rig.now;
        rig.now = rig.now + secs(1);
        grant(&mut rig, 1, request, secs(granted));
        let lease = rig.scheduler.lease_of(worker_id(1)).unwrap();
        assert_eq!(lease.until.since(sent), secs(counted), "{granted} s granted");
        // A heartbeat renews by the granted TTL, not by the requested one.
        rig.workers.entry(worker_id(1)).or_default();
        rig.wait(secs(31));
        let until = rig.scheduler.lease_of(worker_id(1)).unwrap().until;
        assert!(until <= rig.now + secs(counted), "{granted} s granted");
        assert!(until >= rig.now + secs(counted) - secs(31), "{granted} s granted");
    }
}

#[test]
fn a_lease_that_is_not_renewed_expires() {
    let settings = Settings { max_consecutive_failures: 100, ..Settings::default() };
    let mut rig = Rig::new(settings);
    rig.join(1);
    let (id, assignment) = rig.dispatched(task());
    rig.start(&assignment);
    rig.silence(1);
    rig.wait(secs(95));
    assert!(rig.scheduler.lease_of(worker_id(1)).is_some());
    rig.wait(secs(1));
    assert_eq!(rig.scheduler.lease_of(worker_id(1)), None);
    assert_eq!(rig.view(id).last_error.unwrap(), "the lease has expired");
}

#[test]
fn missed_heartbeats_are_repeated_and_then_the_worker_is_lost() {
    let mut rig = Rig::with_workers(&[1]);
    let (id, assignment) = rig.dispatched(task());
    rig.start(&assignment);
    rig.silence(1);
    rig.wait(secs(30));
    assert_eq!(heartbeats(&rig, 1), 1);
    rig.wait(secs(5));
    assert_eq!(heartbeats(&rig, 1), 1, "the first miss");
    rig.wait(secs(5));
    assert_eq!(heartbeats(&rig, 1), 1, "the second miss");
    assert_eq!(rig.view(id).state, TaskState::Running);
    rig.wait(secs(5));
    assert_eq!(rig.view(id).last_error.unwrap(), "the worker did not respond in time");
    assert!(
        rig.is_cancelled(&assignment) && request(&rig, 1).is_some(),
        "a new lease is requested"
    );
    assert_eq!(rig.scheduler.counts().leases_lost, 1);
    // An answer in between resets the count of misses.
    let mut rig = Rig::with_workers(&[1]);
    for _ in 0..3 {
        rig.silence(1);
        rig.wait(secs(1));
        while heartbeats(&rig, 1) == 0 {
            rig.wait(secs(1));
        }
        rig.workers.get_mut(&worker_id(1)).unwrap().silent = false;
        rig.wait(secs(20));
    }
    assert_eq!(rig.scheduler.counts().leases_lost, 0);
}

/// Run times are unknown at first: one fast run is no evidence against the worker that has had no task.
#[test]
fn equal_workers_get_consecutive_tasks_in_turn() {
    let mut rig = Rig::with_workers(&[1, 2]);
    let mut counts = [0; 2];
    for at in 0..40 {
        rig.now = rig.now + secs(1);
        let (_, assignment) = rig.dispatched(task());
        rig.start(&assignment);
        // Quick, slow, and anything between.
        rig.now = rig.now + Span::from_millis(50 + 37 * (at * 7 % 10));
        counts[usize::from(assignment.n() - 1)] += 1;
        let (attempt, fence) = (assignment.dispatch.attempt, assignment.dispatch.fence);
        let run = Span::from_millis(50 + 37 * (at * 7 % 10));
        let outcome = completed();
        rig.receive(assignment.n(), FromWorker::Finished { attempt, fence, run, outcome });
    }
    assert!(counts.iter().all(|count| (15..=25).contains(count)), "{counts:?}");
}

/// A frozen process keeps its connections and sends nothing. With the seed's times: 5 s for an answer, three of them.
#[test]
fn a_worker_that_does_not_acknowledge_is_unresponsive_and_others_get_the_task() {
    let mut rig = Rig::with_workers(&[1, 2]);
    let (running, frozen) = rig.dispatched(task());
    rig.start(&frozen);
    rig.silence(frozen.n());
    let other = 3 - frozen.n();
    // Its slot is in use: this task and the next ones go to the other, which finishes them.
    for _ in 0..3 {
        let (_, assignment) = rig.dispatched(task());
        assert_eq!(assignment.n(), other);
        rig.finish(&assignment);
    }
    // Under an early strategy, the frozen worker gets one task although it is busy, and the other gets one.
    rig.ask(Command::SetStrategy(Strategy::RoundRobin));
    let assignment: Vec<Assignment> = (0..2).map(|_| rig.dispatched(task()).1).collect();
    let [lost] = &assignment
        .iter()
        .filter(|assignment| assignment.n() == frozen.n())
        .collect::<Vec<_>>()[..]
    else {
        panic!("each got one: {assignment:?}");
    };
    assignment
        .iter()
        .filter(|assignment| assignment.n() == other)
        .for_each(|assignment| rig.start(assignment));
    rig.wait(secs(4));
    assert_eq!(heartbeats(&rig, frozen.n()), 0);
    rig.wait(secs(1));
    assert_eq!(heartbeats(&rig, frozen.n()), 1, "at once, before the next one is due");
    let id = lost.dispatch.attempt.task;
    assert!(rig.is_cancelled(lost));
    rig.wait(Span::from_millis(10));
    assert_eq!(rig.view(id).worker, Some(worker_id(other)), "reassigned after one missed answer");
    assert_eq!(rig.view(id).last_error.unwrap(), "the worker did not answer in time");
    assert_eq!(rig.stored(id).failures, 0, "which uses up no attempt");
    for _ in 0..4 {
        let next = rig.submit(task());
        assert_eq!(rig.view(next).worker, Some(worker_id(other)), "the frozen one gets no tasks");
    }
    // A running attempt stays with it until the worker is lost: after two more missed answers.
    rig.wait(secs(9));
    assert_eq!(rig.view(running).state, TaskState::Running);
    assert!(rig.scheduler.lease_of(frozen.worker).is_some());
    rig.wait(secs(1));
    assert_eq!(rig.view(running).last_error.unwrap(), "the worker did not respond in time");
    assert_eq!(rig.scheduler.lease_of(frozen.worker), None);
    let failed = |rig: &Rig| {
        let workers = rig.scheduler.workers(rig.now);
        let mut found = workers.iter().filter(|(view, _)| view.worker.id == frozen.worker);
        found.next().map(|(view, _)| view.health.failed)
    };
    assert_eq!(failed(&rig), Some(1), "one silence, one failure");
}

#[test]
fn an_unresponsive_worker_gets_tasks_again_after_any_message() {
    for late_by in ["a task", "a heartbeat"] {
        let mut wide = worker(1);
        wide.executors[0].concurrency = 2;
        let mut rig = Rig::new(Settings::default());
        rig.workers.entry(worker_id(1)).or_default();
        rig.event(SchedulerEvent::WorkerFound(Arc::new(wide)));
        let (id, assignment) = rig.dispatched(task());
        if late_by == "a heartbeat" {
            rig.start(&assignment);
            rig.wait(secs(29));
        }
        rig.silence(1);
        rig.wait(secs(6));
        let next = rig.submit(task());
        assert_eq!(rig.view(next).worker, None, "late with {late_by}");
        assert_eq!(rig.view(id).worker, Some(worker_id(1)), "there is no other worker");
        rig.accept(&assignment);
        assert_eq!(rig.view(next).worker, Some(worker_id(1)), "late with {late_by}");
        assert_eq!(rig.scheduler.counts().leases_lost, 0);
    }
}

#[test]
fn one_lost_message_does_not_make_a_worker_unresponsive() {
    let mut rig = Rig::early();
    [1, 2].iter().for_each(|n| rig.join(*n));
    let (_, first) = rig.dispatched(task());
    let (_, second) = rig.dispatched(task());
    rig.start(&second);
    rig.now = rig.now + secs(2);
    // The first worker sends a message about another task: only the dispatch was lost.
    let nobody = AttemptId { task: second.dispatch.attempt.task, number: 9 };
    rig.receive(first.n(), FromWorker::Accepted { attempt: nobody, fence: Fence(1) });
    rig.wait(secs(3));
    let again = rig.dispatches();
    assert_eq!(again.len(), 1);
    assert_eq!((again[0].n(), again[0].dispatch.fence), (first.n(), first.dispatch.fence));
    assert_eq!(heartbeats(&rig, first.n()), 0);
}

#[test]
fn tasks_without_retry_or_other_workers_stay_with_an_unresponsive_worker() {
    let retry = hypha_engine::RetryPolicy { retry_on_worker_failure: false, ..Default::default() };
    let mut rig = Rig::new(Settings { retry, ..Settings::default() });
    [1, 2].iter().for_each(|n| rig.join(*n));
    let (_, assignment) = rig.dispatched(task());
    rig.silence(assignment.n());
    rig.wait(secs(5));
    assert_eq!(rig.dispatches()[0].dispatch.fence, assignment.dispatch.fence, "sent again");

    // There is another worker, with another model.
    let mut rig = Rig::new(Settings::default());
    for (n, model) in [(1, "other"), (2, "special")] {
        let mut worker = worker(n);
        worker.executors[0].models = vec![name(model)];
        rig.workers.entry(worker_id(n)).or_default();
        rig.event(SchedulerEvent::WorkerFound(Arc::new(worker)));
    }
    let wants = with_spec(|spec| spec.requirement.model = Some(name("special")));
    let (_, assignment) = rig.dispatched(wants);
    assert_eq!(assignment.n(), 2);
    rig.silence(2);
    rig.wait(secs(5));
    assert!(!rig.is_cancelled(&assignment));
    assert!(rig.dispatches().iter().any(|again| again.dispatch.fence == assignment.dispatch.fence));
}

/// It answers heartbeats and loses its attempts: each loss counts.
#[test]
fn a_worker_that_loses_tasks_is_quarantined() {
    let mut rig = Rig::with_workers(&[1, 2]);
    let swallows = 1;
    for _ in 0..20 {
        for assignment in rig.dispatches() {
            if assignment.n() != swallows {
                rig.finish(&assignment);
            }
        }
        let id = rig.submit(task());
        if rig.view(id).worker == Some(worker_id(2)) {
            rig.finish(&rig.dispatches()[0].clone());
            continue;
        }
        rig.wait(secs(5) + Span::from_millis(10));
        let again = rig.dispatches().iter().find(|assignment| assignment.n() == 2).cloned();
        rig.finish(&again.expect("the other gets it"));
    }
    assert_eq!(rig.scheduler.counts().quarantines, 1);
}

#[test]
fn an_unresponsive_draining_worker_still_gets_its_bound_tasks() {
    let mut rig = Rig::early();
    rig.join(1);
    let tasks: Vec<TaskId> = (0..3).map(|_| rig.submit(task())).collect();
    rig.ask(Command::RemoveWorker(worker_id(1)));
    rig.silence(1);
    rig.wait(secs(6));
    assert_eq!(rig.view(tasks[2]).worker, Some(worker_id(1)), "there is no other worker");
    rig.workers.get_mut(&worker_id(1)).unwrap().silent = false;
    let mut assignment = rig.dispatches();
    assert_eq!(assignment.len(), 2);
    while let Some(next) = assignment.pop() {
        rig.finish(&next);
        assignment.extend(rig.dispatches());
    }
    for task in tasks {
        assert_eq!(rig.ended(task).state, TaskState::Completed);
    }
}

#[test]
fn a_worker_that_does_not_know_its_lease_or_disconnects_loses_its_tasks() {
    for hangs_up in [true, false] {
        let mut rig = Rig::with_workers(&[1]);
        let (id, assignment) = rig.dispatched(task());
        rig.silence(1);
        let lease = rig.scheduler.lease_of(worker_id(1)).unwrap();
        let wrong = FromWorker::LeaseUnknown { lease: lease.lease, epoch: Epoch(9) };
        rig.receive(1, wrong);
        assert!(rig.scheduler.lease_of(worker_id(1)).is_some(), "of another incarnation");
        if hangs_up {
            rig.event(SchedulerEvent::WorkerDisconnected(worker_id(1)));
        } else {
            let (lease, epoch) = (lease.lease, lease.epoch);
            rig.receive(1, FromWorker::LeaseUnknown { lease, epoch });
        }
        assert_eq!(rig.scheduler.lease_of(worker_id(1)), None);
        assert!(rig.is_cancelled(&assignment) && rig.view(id).last_error.is_some());
    }
}

/// A worker that runs many attempts at once and dies repeatedly.
#[test]
fn a_worker_that_dies_fails_once_however_many_attempts_it_had() {
    let mut many = worker(1);
    many.executors[0].concurrency = 8;
    let many = Arc::new(many);
    let mut rig = Rig::new(Settings::default());
    let health = |rig: &Rig| {
        let workers = rig.scheduler.workers(rig.now);
        (workers[0].0.available, workers[0].0.health.failed)
    };
    for death in 1..=2 {
        rig.workers.entry(worker_id(1)).or_default().silent = false;
        rig.event(SchedulerEvent::WorkerFound(Arc::clone(&many)));
        assert_eq!(health(&rig), (true, death - 1), "its next incarnation is leased at once");
        let assignment: Vec<Assignment> = (0..8).map(|_| rig.dispatched(task()).1).collect();
        assignment.iter().for_each(|assignment| rig.start(assignment));
        rig.silence(1);
        rig.event(SchedulerEvent::WorkerDisconnected(worker_id(1)));
        assert_eq!(health(&rig), (false, death));
        assignment.iter().for_each(|assignment| {
            rig.ask(Command::CancelTask(assignment.dispatch.attempt.task));
        });
        rig.workers.clear();
    }
    assert_eq!(rig.scheduler.counts().quarantines, 0);
    // The third death in a row is one too many.
    rig.workers.entry(worker_id(1)).or_default();
    rig.event(SchedulerEvent::WorkerFound(Arc::clone(&many)));
    rig.dispatched(task());
    rig.event(SchedulerEvent::WorkerDisconnected(worker_id(1)));
    assert_eq!(rig.scheduler.counts().quarantines, 1);
    rig.event(SchedulerEvent::WorkerFound(many));
    assert_eq!(health(&rig), (false, 3), "quarantined");
    rig.wait(secs(30));
    assert_eq!(health(&rig), (true, 3), "and no longer");
}

/// A worker that acknowledges and sends nothing is lost, as one that disconnects.
#[test]
fn unacknowledged_attempts_of_a_silent_worker_count_once() {
    let mut rig = Rig::early();
    rig.join(1);
    rig.silence(1);
    for _ in 0..2 {
        rig.dispatched(task());
        rig.now = rig.now + secs(1);
    }
    rig.wait(secs(25));
    assert_eq!(rig.scheduler.workers(rig.now)[0].0.health.failed, 1);
}

fn once() -> Settings {
    let retry = hypha_engine::RetryPolicy { max_attempts: 1, ..Default::default() };
    Settings { retry, ..Settings::default() }
}

#[test]
fn a_replaced_connection_uses_up_no_attempt() {
    let mut rig = Rig::new(once());
    rig.join(1);
    let (id, assignment) = rig.dispatched(task());
    rig.start(&assignment);
    rig.event(SchedulerEvent::WorkerReconnected(worker_id(1)));
    let asked = rig.sent_to(1);
    assert!(matches!(asked[..], [ToWorker::Heartbeat { .. }]), "sent at once: {asked:?}");
    assert_eq!((rig.view(id).state, rig.view(id).attempts), (TaskState::Running, 1));

    // Pieces of output are sent once, and some may be missing.
    let (attempt, fence) = (assignment.dispatch.attempt, assignment.dispatch.fence);
    let piece = Payload::from(&b"piece"[..]);
    rig.receive(1, FromWorker::Output { attempt, fence, piece });
    rig.event(SchedulerEvent::WorkerReconnected(worker_id(1)));
    assert!(rig.is_cancelled(&assignment));
    assert_eq!((rig.stored(id).failures, rig.stored(id).failed.len()), (0, 1));
    rig.wait(Span::from_millis(10));
    let again = rig.dispatches().pop().unwrap();
    rig.finish(&again);
    assert_eq!(rig.ended(id).state, TaskState::Completed);
}

#[test]
fn a_new_incarnation_behind_a_replaced_connection_has_lost_the_attempts() {
    let mut rig = Rig::new(Settings::default());
    rig.join(1);
    let (id, assignment) = rig.dispatched(task());
    rig.start(&assignment);
    let lease = rig.scheduler.lease_of(worker_id(1)).unwrap();
    rig.silence(1);
    rig.event(SchedulerEvent::WorkerReconnected(worker_id(1)));
    rig.receive(1, FromWorker::LeaseUnknown { lease: lease.lease, epoch: lease.epoch });
    assert_eq!(rig.stored(id).failures, 1);
}

#[test]
fn a_worker_that_stops_gracefully_uses_up_no_attempt() {
    let mut rig = Rig::new(Settings { strategy: Strategy::RoundRobin, ..once() });
    rig.join(1);
    let (id, assignment) = rig.dispatched(task());
    rig.start(&assignment);
    let (waits, _) = rig.dispatched(task());
    let lease = rig.scheduler.lease_of(worker_id(1)).unwrap();
    let left = FromWorker::Left { epoch: lease.epoch, lease: Some(lease.lease) };
    rig.silence(1);
    rig.receive(1, left.clone());
    let release = ToWorker::ReleaseLease { lease: lease.lease, epoch: lease.epoch };
    assert!(rig.sent_to(1).contains(&release), "it waits for this");
    assert_eq!(rig.scheduler.lease_of(worker_id(1)), None);
    rig.event(SchedulerEvent::WorkerDisconnected(worker_id(1)));
    let workers = rig.scheduler.workers(rig.now);
    assert_eq!((workers[0].0.health.failed, rig.scheduler.counts().leases_lost), (0, 0));
    for id in [id, waits] {
        assert_eq!(rig.view(id).last_error.unwrap(), "the worker stopped and returned the attempt");
    }
    rig.join(2);
    rig.wait(Span::from_millis(10));
    assert_eq!(rig.dispatches().len(), 2, "without backoff");
    assert_eq!(rig.stored(id).failures, 0);

    // Its next incarnation is used at once; a late message of the last one does not affect it.
    rig.event(SchedulerEvent::WorkerFound(Arc::new(worker(1))));
    let asked = request(&rig, 1).expect("a lease is requested");
    let (lease, ttl) = (LeaseId::new(rig.now, &mut Rng::new(1)), secs(100));
    rig.receive(
        1,
        FromWorker::LeaseGranted {
            request: asked,
            lease,
            epoch: Epoch(2),
            ttl,
            portion: None,
            holding: vec![],
        },
    );
    let tasks = [rig.submit(task()), rig.submit(task())];
    rig.receive(1, left);
    let here = |id: &TaskId| rig.view(*id).worker == Some(worker_id(1));
    assert!(tasks.iter().any(here), "it keeps its tasks");
    assert!(rig.scheduler.lease_of(worker_id(1)).is_some());
}

#[test]
fn a_grant_overtaken_by_a_graceful_stop_is_ignored() {
    for overtaken in [true, false] {
        let mut rig = Rig::new(Settings::default());
        rig.silence(1);
        let asked = found(&mut rig, 1);
        if overtaken {
            let lease = hypha_model::LeaseId::new(rig.now, &mut hypha_model::Rng::new(1));
            rig.receive(1, FromWorker::Left { epoch: Epoch(1), lease: Some(lease) });
        }
        grant(&mut rig, 1, asked, secs(120));
        assert_eq!(rig.scheduler.lease_of(worker_id(1)).is_none(), overtaken);
    }
}

/// Both were stopped: the worker's next incarnation tells the scheduler's.
#[test]
fn a_graceful_stop_while_the_scheduler_is_down_uses_up_no_attempt() {
    for in_order in [true, false] {
        let mut rig = Rig::new(once());
        rig.join(1);
        let (id, assignment) = rig.dispatched(task());
        rig.start(&assignment);
        rig.silence(1);
        rig.restart();
        if in_order {
            rig.receive(1, FromWorker::Left { epoch: Epoch(1), lease: None });
        }
        let asked = found(&mut rig, 1);
        grant(&mut rig, 1, asked, secs(120));
        if in_order {
            rig.wait(Span::from_millis(10));
            assert_eq!(rig.view(id).state, TaskState::Scheduled, "retried");
            assert_eq!(rig.stored(id).failures, 0);
        } else {
            let error = rig.ended(id).error.as_ref().unwrap();
            assert!(error.message.starts_with("lost: the scheduler was restarted"), "{error}");
            assert_eq!(error.kind, FailureKind::Interrupted);
        }
    }
}

/// How the last attempt of a worker that is to be removed may end.
#[test]
fn a_removed_worker_finishes_its_attempts_and_is_forgotten() {
    type End = fn(&mut Rig, &Assignment);
    let ends: [(&str, End); 4] = [
        ("finished", |rig, assignment| rig.finish(assignment)),
        ("failed", |rig, assignment| rig.finish_with(assignment, failed(true))),
        ("cancelled", |rig, assignment| {
            rig.ask(Command::CancelTask(assignment.dispatch.attempt.task));
        }),
        ("lost", |rig, assignment| {
            rig.event(SchedulerEvent::WorkerDisconnected(assignment.worker))
        }),
    ];
    for (what, end) in ends {
        let mut rig = Rig::with_workers(&[1]);
        let (_, assignment) = rig.dispatched(task());
        rig.start(&assignment);
        assert_eq!(rig.ask(Command::RemoveWorker(worker_id(1))), Reply::WorkerRemoved(true));
        let waiting = rig.submit(task());
        assert_eq!(rig.view(waiting).state, TaskState::Queued, "{what}: it gets no new tasks");
        let lease = rig.scheduler.lease_of(worker_id(1)).unwrap();
        rig.silence(1);
        end(&mut rig, &assignment);
        assert!(rig.disk.image.workers.is_empty(), "{what}");
        assert!(rig.scheduler.workers(rig.now).is_empty(), "{what}");
        let release = ToWorker::ReleaseLease { lease: lease.lease, epoch: lease.epoch };
        assert_eq!(rig.sent_to(1).contains(&release), what != "lost", "{what}");
        assert_eq!(rig.ask(Command::RemoveWorker(worker_id(1))), Reply::WorkerRemoved(false));
    }
}

/// The time of removal is that of the first command; the worker is listed as removed once it is idle.
#[test]
fn removed_workers_are_listed_with_their_times_the_latest_first() {
    let mut rig = Rig::with_workers(&[1, 2]);
    let removed_workers = |rig: &Rig| -> Vec<_> {
        let views = rig.scheduler.removed_workers().into_iter();
        views.map(|view| (view.id, view.at, view.worker.map(|worker| worker.id))).collect()
    };
    let (_, assignment) = rig.dispatched(task());
    let (busy, idle) = match assignment.worker == worker_id(1) {
        true => (worker_id(1), worker_id(2)),
        false => (worker_id(2), worker_id(1)),
    };
    let first = rig.now;
    rig.ask(Command::RemoveWorker(busy));
    rig.wait(secs(1));
    let second = rig.now;
    rig.ask(Command::RemoveWorker(idle));
    assert_eq!(
        removed_workers(&rig),
        [(idle, second, Some(idle))],
        "the other one has an attempt left"
    );
    rig.wait(secs(1));
    assert_eq!(rig.ask(Command::RemoveWorker(busy)), Reply::WorkerRemoved(true));
    assert_eq!(rig.scheduler.removed_at(busy), Some(first), "a repeat changes nothing");
    rig.finish(&assignment);
    assert_eq!(removed_workers(&rig), [(idle, second, Some(idle)), (busy, first, Some(busy))]);
    rig.restart();
    assert_eq!(
        removed_workers(&rig),
        [(idle, second, None), (busy, first, None)],
        "not found since"
    );
    rig.event(SchedulerEvent::WorkerFound(Arc::new(worker(1))));
    let known = removed_workers(&rig).into_iter().filter_map(|(_, _, worker)| worker);
    assert_eq!(known.collect::<Vec<_>>(), [worker_id(1)]);
    rig.ask(Command::ReadmitWorker(idle));
    assert_eq!(removed_workers(&rig).len(), 1);
    assert_eq!(rig.scheduler.removed_at(idle), None);
}

#[test]
fn an_idle_worker_is_removed_at_once_and_its_late_grant_is_released() {
    let mut rig = Rig::new(Settings::default());
    let request = found(&mut rig, 1);
    rig.ask(Command::RemoveWorker(worker_id(1)));
    assert!(rig.disk.image.workers.is_empty());
    grant(&mut rig, 1, request, secs(120));
    assert!(matches!(rig.sent_to(1)[..], [ToWorker::ReleaseLease { .. }]));
}

#[test]
fn a_removed_worker_comes_back_when_it_is_registered_and_not_when_it_is_found() {
    for registered in [false, true] {
        let mut rig = Rig::with_workers(&[1]);
        let (_, assignment) = rig.dispatched(task());
        rig.ask(Command::RemoveWorker(worker_id(1)));
        rig.submit(task());
        rig.event(SchedulerEvent::WorkerFound(Arc::new(worker(1))));
        if registered {
            rig.ask(Command::RegisterWorker(Arc::new(worker(1))));
        }
        rig.finish(&assignment);
        assert_eq!(rig.dispatches().len(), usize::from(registered), "registered: {registered}");
        rig.event(SchedulerEvent::WorkerFound(Arc::new(worker(1))));
        assert_eq!(rig.scheduler.workers(rig.now).len(), usize::from(registered));
    }
}

#[test]
fn a_new_description_replaces_the_old_one() {
    let mut rig = Rig::with_workers(&[1]);
    let (id, assignment) = rig.dispatched(task());
    rig.finish_with(&assignment, failed(true));
    let (other, assignment) = rig.dispatched(task());
    let mut anew = worker(1);
    anew.capacity.cpu_milli = 1_000;
    rig.event(SchedulerEvent::WorkerFound(Arc::new(anew.clone())));
    assert!(rig.is_cancelled(&assignment), "its attempt is retried");
    let workers = rig.scheduler.workers(rig.now);
    assert_eq!(workers.len(), 1);
    assert_eq!(*workers[0].0.worker, anew);
    assert_eq!(workers[0].0.health.failed, 1, "a new description keeps the failures");
    assert_eq!(*rig.disk.image.workers[&worker_id(1)].0, anew);
    rig.wait(secs(4));
    assert!(!rig.dispatches().is_empty());
    for id in [id, other] {
        assert!(!rig.view(id).state.is_final());
    }
}

#[test]
fn a_lost_worker_is_forgotten_after_its_time() {
    let mut rig = Rig::with_workers(&[1]);
    rig.silence(1);
    rig.event(SchedulerEvent::WorkerDisconnected(worker_id(1)));
    rig.wait(secs(3_599));
    assert_eq!(rig.disk.image.workers.len(), 1);
    rig.wait(secs(1));
    assert!(rig.disk.image.workers.is_empty() && rig.scheduler.workers(rig.now).is_empty());
}

#[test]
fn a_completion_is_learned_however_many_models_were_named_meanwhile() {
    let of_model = |model: &str| {
        let requirement = Requirement { model: Some(name(model)), ..Requirement::default() };
        NewTask { spec: Arc::new(TaskSpec { requirement, ..TaskSpec::default() }), ..task() }
    };
    let mut rig = Rig::with_workers(&[1]);
    for _ in 0..20 {
        let (_, short) = rig.dispatched(of_model("short"));
        rig.finish(&short);
    }
    let (_, assignment) = rig.dispatched(of_model("real"));
    for at in 0..2 * hypha_predict::MAX_NEW_MODELS {
        rig.submit(of_model(&format!("made-up-{at}")));
    }
    let (attempt, fence) = (assignment.dispatch.attempt, assignment.dispatch.fence);
    let run = Span::from_secs(7);
    rig.now = rig.now + run;
    rig.receive(1, FromWorker::Finished { attempt, fence, run, outcome: completed() });
    rig.wait(secs(30));
    let snapshot = rig.disk.image.predictor.clone().expect("what was learned is saved");
    let mut predictor = Predictor::restore(hypha_predict::Settings::default(), snapshot);
    let worker = predictor.add_worker(worker_id(1), None);
    let query = predictor.query(&of_model("real").spec);
    let estimate = predictor.estimate(&query, worker);
    assert!(estimate.mean_s > 3.0, "{estimate:?} is the usual time of all models");
}

#[test]
fn learned_state_is_saved_periodically() {
    let mut rig = Rig::with_workers(&[1]);
    let saves = |rig: &Rig| {
        let predictors = rig.persisted().filter(|record| matches!(record, Record::Predictor(_)));
        let workers = rig.persisted().filter(|record| matches!(record, Record::Worker { .. }));
        (predictors.count(), workers.count())
    };
    rig.wait(secs(60));
    assert_eq!(saves(&rig), (0, 0), "nothing was learned");
    let (_, assignment) = rig.dispatched(task());
    rig.finish(&assignment);
    rig.wait(secs(30));
    assert_eq!(saves(&rig), (1, 1));
    assert_eq!(rig.disk.image.workers[&worker_id(1)].1.completed, 1);
    let (_, assignment) = rig.dispatched(task());
    rig.finish_with(&assignment, failed(false));
    let (id, assignment) = rig.dispatched(task());
    rig.finish_with(&assignment, failed(true));
    rig.ask(Command::CancelTask(id));
    rig.wait(secs(30));
    assert_eq!(saves(&rig), (0, 1), "a failure teaches nothing about run times");
    assert_eq!(rig.disk.image.workers[&worker_id(1)].1.failed, 1);
}

#[test]
fn settings_of_zero_do_not_stop_time() {
    let zero = Settings {
        health_check_interval: Span::ZERO,
        health_check_timeout: Span::ZERO,
        lease_ttl: Span::ZERO,
        save_interval: Span::ZERO,
        min_plan_interval: Span::ZERO,
        quarantine: Span::ZERO,
        forget_worker_after: Span::ZERO,
        key_ttl: Span::ZERO,
        task_timeout: Span::ZERO,
        ..Settings::default()
    };
    let mut rig = Rig::new(zero);
    rig.event(SchedulerEvent::WorkerFound(Arc::new(worker(1))));
    rig.submit(keyed("a"));
    rig.wait(Span::from_millis(500));
}

#[test]
fn tasks_bound_to_a_draining_worker_are_run_by_it() {
    let mut rig = Rig::with_workers(&[1]);
    let mut assignment = Vec::new();
    let mut submit = || {
        let task = rig.submit(bound_at_once());
        assignment.extend(rig.dispatches());
        task
    };
    let tasks = [submit(), submit(), submit()];
    rig.ask(Command::RemoveWorker(worker_id(1)));
    assert!(rig.try_submit(bound_at_once()).is_err(), "no new tasks");
    while let Some(next) = assignment.pop() {
        rig.finish(&next);
        assignment.extend(rig.dispatches());
    }
    for task in tasks {
        assert_eq!(rig.ended(task).state, TaskState::Completed);
    }
    assert!(rig.scheduler.workers(rig.now).is_empty(), "then it is forgotten");
}
