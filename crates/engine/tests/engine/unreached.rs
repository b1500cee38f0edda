//! Servers that cannot be reached: nothing was tried there, so nothing is used up, and nobody is asked in vain.

use hypha_engine::record::NOBODY_LEFT;
use hypha_engine::scheduler::Unused;
use hypha_engine::{Ask, Effect, FromWorker, Notice, Outcome, SchedulerEvent, Settings, ToWorker};
use hypha_model::{FailureKind, Name, Refusal, RefusalKind, Span, TaskError, TaskState};

use crate::blame::{asking, joined, of_models};
use crate::harness::*;

fn unreached() -> Outcome {
    Outcome::Unreached { error: "connection refused".to_owned() }
}

fn beats(rig: &Rig) -> usize {
    rig.told(1).iter().filter(|told| matches!(told, ToWorker::Heartbeat { .. })).count()
}

#[test]
fn a_task_waits_until_the_server_is_found_well() {
    let mut rig = Rig::with_workers(&[1]);
    for unwell in 1..=5 {
        let (id, given) = rig.dispatched(task());
        // The same server takes no word for some seconds.
        rig.silence(1);
        rig.finish_with(&given, unreached());
        let since = rig.now;
        let why = rig.scheduler.why_unused(worker_id(1), None);
        assert_eq!(why, Some(Unused::Unreached { since }));
        rig.wait(secs(4));
        assert_eq!((beats(&rig), rig.dispatches().len()), (0, 0), "not at once");
        rig.wait(secs(4));
        assert_eq!((beats(&rig), rig.dispatches().len()), (1, 0), "looked at");
        rig.workers.get_mut(&worker_id(1)).unwrap().silent = false;
        rig.wait(secs(2));
        let again = rig.dispatches();
        assert_eq!(again.len(), 1, "found well {unwell}");
        assert_eq!(rig.scheduler.why_unused(worker_id(1), None), None);
        assert_eq!(
            (rig.stored(id).failures, &*rig.view(id).failed[0].reason),
            (0, "connection refused")
        );
        rig.finish(&again[0]);
        assert_eq!(rig.ended(id).state, TaskState::Completed);
    }
    let counts = rig.scheduler.counts();
    assert_eq!((counts.quarantines, counts.leases_lost), (0, 0));
    assert_eq!(rig.scheduler.workers(rig.now)[0].0.health.failed, 0);
}

#[test]
fn a_question_from_before_finds_nobody_well() {
    let mut rig = Rig::with_workers(&[1]);
    let (_, given) = rig.dispatched(task());
    rig.accept(&given);
    rig.silence(1);
    rig.wait(secs(30));
    let beat = rig.told(1).into_iter().find_map(|told| match told {
        ToWorker::Heartbeat { lease, epoch, nonce, .. } => Some((lease, epoch, nonce)),
        _ => None,
    });
    let (lease, epoch, nonce) = beat.expect("a heartbeat is under way");
    rig.now = rig.now + Span::from_millis(1);
    rig.finish_with(&given, unreached());
    let holding = Vec::new();
    rig.say(1, FromWorker::Alive { lease, epoch, nonce, portion: None, holding });
    assert!(rig.scheduler.why_unused(worker_id(1), None).is_some());
}

#[test]
fn a_server_that_stays_away_is_lost_and_asked_for_again_and_again() {
    let mut rig = Rig::with_workers(&[1]);
    let (id, given) = rig.dispatched(task());
    rig.silence(1);
    rig.finish_with(&given, unreached());
    rig.wait(secs(25));
    assert_eq!(rig.scheduler.lease_of(worker_id(1)), None);
    rig.wait(secs(600));
    assert_eq!((rig.view(id).state, rig.stored(id).failures), (TaskState::Queued, 0));
    rig.workers.get_mut(&worker_id(1)).unwrap().silent = false;
    rig.wait(secs(30));
    assert!(!rig.dispatches().is_empty());
}

#[test]
fn it_does_not_go_on_for_ever() {
    let mut rig = Rig::with_workers(&[1]);
    let (id, mut given) = rig.dispatched(task());
    for unreachable in 1..=100 {
        rig.finish_with(&given, unreached());
        if unreachable == 100 {
            break;
        }
        assert_eq!(rig.view(id).state, TaskState::Queued, "after {unreachable}");
        // Found well each time, and never reached.
        while rig.dispatches().is_empty() {
            rig.wait(secs(1));
        }
        given = rig.dispatches().remove(0);
    }
    let error = TaskError::new(FailureKind::BackendUnreachable, "connection refused");
    assert_eq!(rig.ended(id).error, Some(error));
}

/// A client who waits on the line is served by another server, or told soon that there is none.
#[test]
fn who_waits_on_the_line_is_told_soon_if_nobody_is_left() {
    let mut rig = Rig::with_workers(&[1, 2]);
    rig.unstored = 1;
    let (id, given) = rig.dispatched(unstored());
    rig.finish_with(&given, unreached());
    rig.wait(rig.settings.least_pause);
    let again = rig.dispatches();
    assert_eq!(again.len(), 1, "replaced at once");
    assert_ne!(again[0].worker, given.worker);
    rig.unstored = 0;
    rig.finish_with(&again[0], unreached());
    let ended = rig.sent().find_map(|effect| match effect {
        Effect::Notice { task, notice: Notice::Ended { finished, .. } } if *task == id => {
            finished.error.clone()
        }
        _ => None,
    });
    let message = format!("{NOBODY_LEFT}: connection refused");
    assert_eq!(ended, Some(TaskError::new(FailureKind::BackendUnreachable, message)));
}

fn set_away(rig: &mut Rig, executors: &[&str]) -> Vec<Name> {
    let executors: Vec<Name> = executors.iter().map(|one| name(one)).collect();
    rig.workers.get_mut(&worker_id(1)).unwrap().away = executors.clone();
    executors
}

/// Of a worker that forwards to several servers, only the one that is away is given nothing.
#[test]
fn one_executor_is_away_and_the_others_are_used() {
    let mut rig = joined(Settings::default(), of_models(1));
    let (id, given) = rig.dispatched(asking("a"));
    let since = rig.now;
    set_away(&mut rig, &["for-a"]);
    rig.finish_with(&given, unreached());
    for minutes in 1..=10 {
        rig.wait(secs(60));
        assert!(rig.dispatches().is_empty(), "after {minutes} minutes");
        assert!((5..=15).contains(&beats(&rig)), "{} looks in a minute", beats(&rig));
    }
    assert_eq!((rig.view(id).state, rig.stored(id).failures), (TaskState::Queued, 0));
    let why = |rig: &Rig, executor| rig.scheduler.why_executor_unused(worker_id(1), executor);
    assert_eq!(why(&rig, 0), Some(Unused::Unreached { since }));
    assert_eq!(why(&rig, 1), None);
    assert_eq!(rig.scheduler.why_unused(worker_id(1), None), None);
    let wanted = asking("a").spec;
    let why = rig.scheduler.why_unused(worker_id(1), Some(&wanted.requirement));
    assert_eq!(why, Some(Unused::Unreached { since }));
    let (_, other) = rig.dispatched(asking("b"));
    rig.finish(&other);

    set_away(&mut rig, &[]);
    rig.wait(secs(11));
    let again = rig.dispatches();
    assert!(!again.is_empty(), "found well");
    rig.finish(&again[0]);
    assert_eq!(rig.ended(id).state, TaskState::Completed);
    rig.wait(secs(120));
    assert!(beats(&rig) <= 5, "asked as seldom as before");
}

/// A worker that looks after its servers says so before anything is tried in vain.
#[test]
fn what_is_said_to_be_away_is_not_tried_and_deadlines_are_kept() {
    let mut rig = joined(Settings::default(), of_models(1));
    let executors = set_away(&mut rig, &["for-a", "unknown"]);
    rig.say(1, FromWorker::Away { executors });
    let spec = |spec: &mut hypha_model::TaskSpec| {
        spec.requirement.model = Some(name("a"));
        spec.requirement.deadline = Some(secs(100));
    };
    let (ends, waits) = (rig.submit(with_spec(spec)), rig.submit(asking("a")));
    rig.wait(secs(101));
    assert!(rig.dispatches().is_empty());
    assert_eq!(rig.ended(ends).state, TaskState::Expired);
    // A new lease, of a scheduler that has forgotten, tells it again.
    rig.restart();
    assert!(rig.dispatches().is_empty(), "nothing is tried in vain");
    rig.wait(secs(60));
    assert!(rig.dispatches().is_empty());
    set_away(&mut rig, &[]);
    rig.wait(secs(11));
    assert_eq!(rig.view(waits).attempts, 1);
}

/// A worker that sees its server come back says so, and nothing waits for the next heartbeat.
#[test]
fn what_is_said_to_be_back_is_used_at_once() {
    let mut rig = joined(Settings::default(), of_models(1));
    let executors = set_away(&mut rig, &["for-a", "for-b"]);
    rig.say(1, FromWorker::Away { executors });
    let (a, b) = (rig.submit(asking("a")), rig.submit(asking("b")));
    assert!(rig.dispatches().is_empty());
    let executors = set_away(&mut rig, &["for-b"]);
    rig.say(1, FromWorker::Away { executors });
    assert_eq!((rig.view(a).attempts, rig.view(b).attempts), (1, 0));
    set_away(&mut rig, &[]);
    rig.say(1, FromWorker::Away { executors: vec![] });
    assert_eq!(rig.view(b).attempts, 1);
}

/// Whoever is gone is asked for a lease ever less often, but not one who answers that it is only away.
#[test]
fn a_server_that_is_lost_and_answers_is_looked_at_often() {
    let mut rig = Rig::with_workers(&[1]);
    rig.silence(1);
    rig.event(SchedulerEvent::WorkerDisconnected(worker_id(1)));
    rig.wait(secs(600));
    for _ in 0..10 {
        let asked = rig.told(1).iter().rev().find_map(|told| match told {
            ToWorker::RequestLease(Ask { request, .. }) => Some(*request),
            _ => None,
        });
        let refusal = Refusal::plain(RefusalKind::Unavailable);
        let request = asked.expect("it was asked");
        rig.say(1, FromWorker::LeaseRefused { request, refusal });
        rig.wait(secs(6));
    }
}

/// What is away and was left alone for failing is used when both are over.
#[test]
fn away_and_left_alone_are_two_reasons() {
    let mut rig = joined(Settings::default(), of_models(1));
    for _ in 0..3 {
        let (_, given) = rig.dispatched(asking("a"));
        rig.finish_with(&given, failed(true));
    }
    let waits = rig.submit(asking("a"));
    let executors = set_away(&mut rig, &["for-a"]);
    rig.say(1, FromWorker::Away { executors });
    rig.wait(secs(40));
    assert_eq!(rig.view(waits).attempts, 0, "the pause is over");
    set_away(&mut rig, &[]);
    rig.wait(secs(11));
    assert!(!rig.dispatches().is_empty());
}

/// Who waits for somebody who is busy is not stranded; who waits for somebody who is away is.
#[test]
fn a_task_is_stranded_if_nobody_would_take_it() {
    let mut rig = joined(Settings::default(), of_models(1));
    let (runs, given) = rig.dispatched(asking("a"));
    let waits = rig.submit(asking("a"));
    let why = |rig: &Rig, id| rig.scheduler.stranded(id).map(|stranded| stranded.why);
    assert_eq!((why(&rig, runs), why(&rig, waits)), (None, None));
    let executors = set_away(&mut rig, &["for-a"]);
    rig.say(1, FromWorker::Away { executors });
    let since = rig.now;
    assert_eq!(why(&rig, runs), None, "it may yet end well");
    assert_eq!(why(&rig, waits), Some(Some(Unused::Unreached { since })));
    rig.finish(&given);
    assert_eq!(why(&rig, runs), None, "it has ended");
    assert_eq!(why(&rig, waits), Some(Some(Unused::Unreached { since })));
}
