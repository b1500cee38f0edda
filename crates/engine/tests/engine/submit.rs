//! Submitting: durable first, one task for each key, bounded.

use std::sync::Arc;

use hypha_engine::{Command, NewTask, Record, Reply, Settings, SubmitRejection};
use hypha_model::{DeadlinePolicy, Requirement, Span, TaskSpec, TaskState};
use hypha_placement::DeadlineStatus;

use crate::harness::*;

#[test]
fn a_task_is_durable_before_its_submit_is_answered() {
    let mut rig = Rig::with_workers(&[1]);
    let id = rig.submit(task());
    let step = &rig.steps[0];
    assert!(matches!(&step.persist[0], Record::Accepted(accepted) if accepted.id == id));
    assert!(
        matches!(&step.persist[1], Record::AttemptDispatched { attempt, .. } if attempt.task == id)
    );
    assert!(matches!(step.reply, Some(Reply::Submitted(_))));
}

#[test]
fn ids_grow_in_the_order_of_submits_whatever_the_clock_does() {
    let mut rig = Rig::new(Settings::default());
    let Reply::Submitted(answers) = rig.ask(Command::SubmitTasks(vec![task(); 100])) else {
        panic!("no answer to a submit")
    };
    let mut ids: Vec<_> = answers.iter().map(|answer| answer.unwrap().task).collect();
    for restarted in [false, true] {
        rig.now = START;
        if restarted {
            rig.restart();
        }
        ids.push(rig.submit(task()));
    }
    assert!(ids.is_sorted_by_key(|id| id.moment()));
    ids.dedup_by_key(|id| id.moment());
    assert_eq!(ids.len(), 102, "each has its own time");
}

#[test]
fn a_repeated_key_returns_the_first_task() {
    let mut rig = Rig::with_workers(&[1]);
    let (first, assignment) = rig.dispatched(keyed("a"));
    let again = |rig: &mut Rig| {
        let answer = rig.try_submit(keyed("a")).unwrap();
        assert!(
            !rig.persisted().any(|record| matches!(record, Record::Accepted(_)))
                || !answer.repeated
        );
        (answer.task == first, answer.repeated)
    };
    assert_eq!(again(&mut rig), (true, true), "while it runs");
    assert_eq!(rig.try_submit(keyed("a")).unwrap().worker, Some(worker_id(1)));
    assert_ne!(rig.submit(keyed("b")), first, "another key");
    rig.finish(&assignment);
    assert_eq!(again(&mut rig), (true, true), "after its end");
    rig.restart();
    assert_eq!(again(&mut rig), (true, true), "after a restart");
    let ttl = rig.settings.key_ttl;
    rig.now = rig.now + ttl;
    assert_eq!(again(&mut rig), (false, false), "after its time");
}

#[test]
fn idempotency_keys_are_per_tenant() {
    let mut rig = Rig::new(Settings::default());
    let of = |tenant: Option<&str>| {
        let spec = with_spec(|spec| spec.tenant = tenant.map(name)).spec;
        NewTask { spec, ..keyed("a") }
    };
    let (none, a, b) = (rig.submit(of(None)), rig.submit(of(Some("a"))), rig.submit(of(Some("b"))));
    assert!(none != a && a != b && b != none);
    for restarted in [false, true] {
        assert_eq!(rig.submit(of(Some("a"))), a, "restarted: {restarted}");
        assert_eq!(rig.submit(of(None)), none, "restarted: {restarted}");
        rig.restart();
    }
}

#[test]
fn an_expired_key_does_not_expire_its_successor_after_a_restart() {
    let mut rig = Rig::with_workers(&[1]);
    let (first, assignment) = rig.dispatched(keyed("a"));
    rig.finish(&assignment);
    rig.now = rig.now + rig.settings.key_ttl;
    let second = rig.submit(keyed("a"));
    assert_ne!(first, second);
    rig.restart();
    rig.wait(secs(60));
    assert_eq!(rig.submit(keyed("a")), second, "the key is the second task's");
}

#[test]
fn keys_are_forgotten_in_the_order_of_ends_after_a_restart() {
    let mut rig = Rig::with_workers(&[1, 2]);
    let (_, long) = rig.dispatched(keyed("long"));
    rig.now = rig.now + secs(1);
    let (short_id, short) = rig.dispatched(keyed("short"));
    rig.finish(&short);
    rig.now = rig.now + secs(100);
    rig.finish(&long);
    rig.restart();
    rig.now = rig.now + rig.settings.key_ttl - secs(50);
    assert_ne!(rig.submit(keyed("short")), short_id, "its time is over, the older task's is not");
}

#[test]
fn each_task_of_a_batch_has_its_own_result() {
    let mut rig = Rig::new(Settings { max_queue: 2, ..Settings::default() });
    let batch = vec![keyed("a"), keyed("a"), keyed("b"), keyed("c"), keyed("b")];
    let Reply::Submitted(answers) = rig.ask(Command::SubmitTasks(batch)) else { panic!() };
    let seen: Vec<Option<bool>> =
        answers.iter().map(|answer| answer.ok().map(|submitted| submitted.repeated)).collect();
    assert_eq!(seen, [Some(false), Some(true), Some(false), None, Some(true)]);
    assert_eq!(answers[0].unwrap().task, answers[1].unwrap().task);
    assert!(matches!(answers[3], Err(SubmitRejection::QueueFull { retry_after_s: 1..=60 })));
    assert_eq!((rig.disk.image.tasks.len(), rig.scheduler.counts().rejected), (2, 1));
}

#[test]
fn there_is_room_again_when_a_task_has_ended() {
    let mut rig = Rig::new(Settings { max_queue: 1, ..Settings::default() });
    let id = rig.submit(task());
    assert!(rig.try_submit(task()).is_err());
    rig.ask(Command::CancelTask(id));
    assert!(rig.try_submit(task()).is_ok());
}

#[test]
fn a_quota_counts_the_open_tasks_of_a_tenant() {
    let of = |tenant: &str, task: NewTask| {
        let spec = with_spec(|spec| spec.tenant = Some(name(tenant))).spec;
        NewTask { spec, quota: Some(2), ..task }
    };
    let over = Err(SubmitRejection::OverQuota { open: 2, quota: 2 });
    let mut rig = Rig::with_workers(&[1]);
    let first = rig.submit(of("acme", keyed("a")));
    rig.unstored = 1;
    let request = rig.submit(of("acme", unstored()));
    assert_eq!(rig.try_submit(of("acme", task())), over);
    assert!(rig.try_submit(of("acme", keyed("a"))).unwrap().repeated, "it does not count twice");
    assert!(rig.try_submit(of("umbrella", task())).is_ok());
    assert!(rig.try_submit(NewTask { quota: Some(0), ..task() }).is_ok(), "without a tenant");
    rig.unstored = 0;
    rig.ask(Command::CancelTask(request));
    rig.submit(of("acme", task()));
    assert_eq!(rig.try_submit(of("acme", task())), over);
    // Stored tasks also count in the next incarnation.
    rig.restart();
    assert_eq!(rig.try_submit(of("acme", unstored())), over);
    rig.ask(Command::CancelTask(first));
    rig.submit(of("acme", task()));
    assert_eq!(rig.try_submit(of("acme", bound_at_once())), over, "it is rejected, not bound");
    assert_eq!(rig.scheduler.open_tasks_of(&name("acme")), 2);
}

#[test]
fn a_task_bound_at_once_names_its_worker_or_leaves_no_trace() {
    let mut rig = Rig::new(Settings::default());
    let keyed = NewTask { idempotency_key: Some(Arc::from("a")), ..bound_at_once() };
    assert_eq!(rig.try_submit(keyed.clone()), Err(SubmitRejection::NoWorker));
    assert_eq!((rig.persisted().count(), rig.scheduler.open_tasks()), (0, 0));
    rig.join(1);
    let first = rig.try_submit(keyed).unwrap();
    assert_eq!((first.worker, first.repeated), (Some(worker_id(1)), false), "the key is free");
    // The worker is busy now; the next is bound to it nevertheless.
    let second = rig.try_submit(bound_at_once()).unwrap();
    assert_eq!(second.worker, Some(worker_id(1)));
    assert_eq!(rig.view(second.task).state, TaskState::Scheduled);
    assert!(matches!(rig.persisted().next(), Some(Record::Accepted(_))));
}

#[test]
fn the_end_of_time_does_not_stop_the_machine() {
    let mut rig = Rig::with_workers(&[1]);
    let mut forever = with_spec(|spec| spec.timeout = Some(Span::MAX));
    forever.idempotency_key = Some(Arc::from("a"));
    rig.submit(forever);
    rig.now = hypha_model::Time::MAX;
    rig.event(hypha_engine::SchedulerEvent::Woke);
    rig.submit(with_deadline(u64::MAX));
}

/// A task that no worker has room for has a reason before any plan has considered it.
#[test]
fn a_queued_task_has_a_reason() {
    let mut rig = Rig::with_workers(&[1]);
    let waiting: Vec<_> = (0..100).map(|_| rig.submit(task())).collect();
    let view = rig.view(waiting[99]);
    assert_eq!(view.state, hypha_model::TaskState::Queued);
    let explanation = view.explanation.expect("a reason");
    let refusals: Vec<_> = explanation.refusals.iter().collect();
    assert_eq!(refusals, [(hypha_model::RefusalKind::Busy, 1)]);
}

/// The statistics of a scheduler, as in seed 004, and a worker's health, as in seed 000.
#[test]
fn statistics_and_health_count_what_was_done() {
    let mut rig = Rig::with_workers(&[1]);
    let (_, assignment) = rig.dispatched(task());
    rig.start(&assignment);
    rig.finish(&assignment);
    let (_, assignment) = rig.dispatched(task());
    rig.finish_with(&assignment, failed(true));
    let mut impossible = task();
    let mut spec = (*impossible.spec).clone();
    spec.requirement.memory_bytes = u64::MAX;
    impossible.spec = std::sync::Arc::new(spec);
    rig.submit(impossible);

    let (_, done) = rig.scheduler.strategy();
    assert_eq!((done.assigned, done.completed, done.failed), (2, 1, 1));
    assert!(done.waited >= 1, "{done:?}");
    let (worker, _) = rig.scheduler.workers(rig.now).remove(0);
    let health = worker.health;
    assert_eq!((health.completed, health.failed, health.consecutive_failures), (1, 1, 1));
    assert!(health.last_seen > hypha_model::Time::ZERO && health.last_seen <= rig.now);
}

/// A worker on which tasks are known to take ten milliseconds.
fn measured() -> Rig {
    let mut rig = Rig::with_workers(&[1]);
    for _ in 0..50 {
        let (_, assignment) = rig.dispatched(task());
        rig.start(&assignment);
        rig.wait(Span::from_millis(10));
        rig.finish(&assignment);
    }
    rig
}

fn within(deadline_ms: u64, deadline_policy: DeadlinePolicy) -> NewTask {
    let deadline = Some(Span::from_millis(deadline_ms));
    let requirement = Requirement { deadline, deadline_policy, ..Requirement::default() };
    NewTask { spec: Arc::new(TaskSpec { requirement, ..TaskSpec::default() }), ..task() }
}

#[test]
fn deadline_that_no_worker_can_meet_is_refused_or_marked() {
    use DeadlinePolicy::{Accept, Refuse};
    let mut rig = measured();
    let rejected = rig.scheduler.counts().rejected;
    let Err(SubmitRejection::DeadlineUnreachable { least, left }) =
        rig.try_submit(within(2, Refuse))
    else {
        panic!("it is accepted")
    };
    assert_eq!(left, Span::from_millis(2));
    assert!(least > left && least <= Span::from_millis(10), "{least}");
    assert_eq!(rig.scheduler.counts().rejected, rejected + 1);
    assert_eq!(rig.scheduler.open_tasks(), 0);
    assert_eq!(rig.persisted().count(), 0, "a refusal leaves no record");

    let marked = |rig: &mut Rig, task| {
        let submitted = rig.try_submit(task).unwrap();
        let outlook = submitted.deadline.expect("an outlook");
        assert_eq!(rig.view(submitted.task).deadline.map(|it| it.status), Some(outlook.status));
        assert!(outlook.finish > rig.now);
        rig.ask(Command::CancelTask(submitted.task));
        outlook.status
    };
    assert_eq!(marked(&mut rig, within(2, Accept)), DeadlineStatus::Unreachable);
    assert_eq!(marked(&mut rig, within(1_000, Accept)), DeadlineStatus::OnTrack);
    assert_eq!(marked(&mut rig, within(1_000, Refuse)), DeadlineStatus::OnTrack);
}

#[test]
fn deadline_is_not_refused_without_knowledge() {
    // Nothing was measured: a guess is no reason to refuse.
    let mut rig = Rig::with_workers(&[1]);
    assert!(rig.try_submit(within(2, DeadlinePolicy::Refuse)).is_ok());
    // No worker: one may come.
    let mut rig = Rig::new(Settings::default());
    let submitted = rig.try_submit(within(2, DeadlinePolicy::Refuse)).unwrap();
    assert_eq!((submitted.deadline, rig.view(submitted.task).deadline), (None, None));
    // Without a deadline there is nothing to expect.
    let submitted = measured().try_submit(task()).unwrap();
    assert_eq!(submitted.deadline, None);
}
