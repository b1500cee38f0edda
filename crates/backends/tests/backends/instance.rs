//! A task instance as a worker of a scheduler.

use std::time::Duration;

use hypha_engine::{FromWorker, InstanceNotification, Outcome, ToWorker};
use hypha_model::{Metadata, Payload, Span, TaskSpec};
use serde_json::json;

use super::fake::{self, Instance};
use super::lab::{Lab, Leased, attempt, spec};

/// A lab with one instance that runs `replicas` tasks at once.
async fn with_instance(replicas: u32) -> (Lab, Instance, Leased) {
    let instance = Instance::start("m", replicas).await;
    let mut lab = Lab::new();
    let leased = lab.instance(&instance).await;
    (lab, instance, leased)
}

fn done(instance: &Instance, index: usize, result: serde_json::Value) -> InstanceNotification {
    InstanceNotification {
        task: instance.id(index),
        secret: Some(instance.secret(index)),
        status: Some("completed".to_owned()),
        result: Some(Payload::from(result.to_string().into_bytes())),
        ..InstanceNotification::default()
    }
}

#[tokio::test]
async fn a_task_is_handed_over_and_its_notification_ends_it() {
    let (mut lab, instance, leased) = with_instance(1).await;
    let metadata = Metadata::of_numbers(&[("input_tokens", 5.0)]);
    lab.dispatch_spec(&leased, 1, TaskSpec { metadata, ..spec("{not json") });
    assert!(lab.next_summary().await.starts_with("failed 1 false: the input is not JSON"));
    lab.recorded(&leased, 1);
    let metadata = Metadata::of_numbers(&[("input_tokens", 5.0)]);
    lab.dispatch_spec(&leased, 2, TaskSpec { metadata, ..spec("{\"prompt\": \"p\"}") });
    assert_eq!(lab.next_summary().await, "started 2");
    let got = instance.state.lock().unwrap().got[0].clone();
    assert_eq!(got["input_data"], json!({"prompt": "p"}));
    assert_eq!(got["metadata"], json!({"input_tokens": 5.0}));
    assert_eq!(got["task_id"], json!(attempt(2).task));
    let url = got["callback_url"].as_str().unwrap();
    assert!(url.starts_with("http://127.0.0.1:9/notify/task_complete?secret="), "{url}");
    assert_eq!(instance.secret(0).len(), 32, "128 bits");
    lab.workers.notified(done(&instance, 0, json!({"echo": 7})));
    assert_eq!(lab.next_summary().await, "completed 2: {\"echo\":7}");
    // Repeating it with another result changes nothing.
    lab.workers.notified(done(&instance, 0, json!(8)));
    assert_eq!(lab.heartbeat(&leased, 1).await, "alive 1, holding [2]");
    lab.recorded(&leased, 2);
    assert_eq!(lab.heartbeat(&leased, 2).await, "alive 2, holding []");
    lab.workers.notified(done(&instance, 0, json!(9)));
    assert_eq!(lab.heartbeat(&leased, 3).await, "alive 3, holding []");
}

#[tokio::test]
async fn instance_gets_no_more_tasks_than_it_runs_at_once() {
    let (mut lab, instance, leased) = with_instance(1).await;
    for fence in 1..=3 {
        lab.dispatch(&leased, fence, "1");
    }
    lab.assert_messages_in_any_order(["accepted 2", "accepted 3", "started 1"]).await;
    assert_eq!(instance.state.lock().unwrap().got.len(), 1, "the other tasks are queued here");
    lab.workers.notified(done(&instance, 0, json!(1)));
    assert_eq!(lab.next_summary().await, "completed 1: 1");
    assert_eq!(lab.next_summary().await, "started 2");
}

#[tokio::test]
async fn notification_without_a_result_triggers_a_fetch() {
    let (mut lab, instance, leased) = with_instance(1).await;
    instance.state.lock().unwrap().own_ids = true;
    lab.dispatch(&leased, 1, "1");
    assert_eq!(lab.next_summary().await, "started 1");
    let result = json!({"status": "completed", "result": [7], "execution_time": 0.001});
    instance.state.lock().unwrap().results.insert("own/0".to_owned(), result);
    let bare = InstanceNotification { result: None, ..done(&instance, 0, json!(0)) };
    lab.workers.notified(bare);
    match lab.next_message().await.1 {
        FromWorker::Finished { run, outcome: Outcome::Completed { result }, .. } => {
            assert_eq!(result.payload().unwrap().bytes(), b"[7]");
            assert_eq!(run, Span::from_micros(1), "as the instance reports, in milliseconds");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(instance.state.lock().unwrap().polls, ["own/0"], "under the instance's own id");
}

#[tokio::test]
async fn unauthenticated_notification_only_triggers_a_poll() {
    let (mut lab, instance, leased) = with_instance(1).await;
    instance.state.lock().unwrap().own_ids = true;
    lab.dispatch(&leased, 1, "1");
    assert_eq!(lab.next_summary().await, "started 1");
    let forged = |secret: Option<&str>, task: &str| InstanceNotification {
        secret: secret.map(str::to_owned),
        task: task.to_owned(),
        ..done(&instance, 0, json!("forged"))
    };
    lab.workers.notified(forged(None, "no such task"));
    lab.workers.notified(forged(Some(&"0".repeat(32)), &instance.id(0)));
    instance.until(|state| state.polls.len() == 1).await;
    assert_eq!(
        lab.heartbeat(&leased, 1).await,
        "alive 1, holding [1]",
        "the forged notifications changed nothing"
    );
    let result = json!({"status": "completed", "result": "real"});
    instance.state.lock().unwrap().results.insert("own/0".to_owned(), result);
    lab.workers.notified(forged(None, "own/0"));
    assert_eq!(lab.next_summary().await, "completed 1: \"real\"");
}

#[tokio::test]
async fn a_secret_is_good_for_its_own_attempt_only() {
    let (mut lab, instance, leased) = with_instance(2).await;
    lab.dispatch(&leased, 1, "1");
    lab.dispatch(&leased, 2, "2");
    lab.assert_messages_in_any_order(["started 1", "started 2"]).await;
    assert_ne!(instance.secret(0), instance.secret(1));
    // The task id in it does not matter: the secret of the second task ends the second.
    let crossed = InstanceNotification { task: instance.id(0), ..done(&instance, 1, json!("two")) };
    lab.workers.notified(crossed);
    assert_eq!(lab.next_summary().await, "completed 2: \"two\"");
    assert_eq!(lab.heartbeat(&leased, 1).await, "alive 1, holding [1, 2]");
}

#[tokio::test]
async fn without_notifications_results_are_found_by_polling() {
    let instance = Instance::start("m", 1).await;
    let mut lab = Lab::with(|settings| {
        settings.poll_interval = Duration::from_millis(10);
        settings.public_url = None;
    });
    let leased = lab.instance(&instance).await;
    lab.dispatch(&leased, 1, "1");
    lab.dispatch(&leased, 2, "2");
    lab.assert_messages_in_any_order(["accepted 2", "started 1"]).await;
    instance.until(|state| state.polls.len() >= 3).await;
    let first = instance.id(0);
    {
        let mut state = instance.state.lock().unwrap();
        assert!(state.polls.iter().all(|id| *id == first), "a queued task is not polled for");
        assert_eq!(state.got[0]["callback_url"], json!(null));
        state.results.insert(first, json!({"status": "failed", "error": "broke"}));
        let second = attempt(2).task.to_string();
        state.results.insert(second, json!({"status": "completed", "result": null}));
    }
    assert_eq!(lab.next_summary().await, "failed 1 true: the task instance failed: broke");
    assert_eq!(lab.next_summary().await, "started 2");
    assert_eq!(lab.next_summary().await, "completed 2: null");
}

#[tokio::test]
async fn results_that_are_malformed_huge_or_errors_do_no_harm() {
    let instance = Instance::start("m", 1).await;
    let mut lab = Lab::with(|settings| {
        settings.poll_interval = Duration::from_millis(10);
        settings.max_response_bytes = 1_000;
    });
    let leased = lab.instance(&instance).await;
    lab.dispatch(&leased, 1, "1");
    assert_eq!(lab.next_summary().await, "started 1");
    for odd in [json!("completed"), json!({"status": 5}), json!([]), json!({"result": 1})] {
        let polls = {
            let mut state = instance.state.lock().unwrap();
            let id = state.got[0]["task_id"].as_str().unwrap().to_owned();
            state.results.insert(id, odd);
            state.polls.len()
        };
        instance.until(|state| state.polls.len() >= polls + 2).await;
        assert_eq!(lab.heartbeat(&leased, 1).await, "alive 1, holding [1]");
    }
    let huge = json!({"status": "completed", "result": "x".repeat(2_000)});
    let id = instance.id(0);
    instance.state.lock().unwrap().results.insert(id, huge);
    let end = lab.next_summary().await;
    assert!(
        end.starts_with("failed 1 false: the response is larger than the limit of 1000 bytes"),
        "{end}"
    );
}

#[tokio::test]
async fn instance_may_refuse_a_task() {
    for (status, expected) in [
        (429, "failed 1 true: the back end answered 429: no"),
        (503, "failed 1 true: the back end answered 503: no"),
        (422, "failed 1 false: the back end answered 422: no"),
        (500, "failed 1 true: the back end answered 500: no"),
    ] {
        let (mut lab, instance, leased) = with_instance(1).await;
        instance.state.lock().unwrap().refuse = Some(status);
        lab.dispatch(&leased, 1, "1");
        assert_eq!(lab.next_summary().await, expected);
        instance.state.lock().unwrap().refuse = None;
        lab.dispatch(&leased, 2, "1");
        assert_eq!(lab.next_summary().await, "started 2", "the next task is enqueued all the same");
    }
}

#[tokio::test]
async fn cancelled_task_reports_nothing_and_keeps_its_slot_until_it_ends() {
    let (mut lab, instance, leased) = with_instance(1).await;
    lab.dispatch(&leased, 1, "1");
    lab.dispatch(&leased, 2, "2");
    lab.assert_messages_in_any_order(["accepted 2", "started 1"]).await;
    lab.cancel(&leased, 1);
    assert_eq!(lab.heartbeat(&leased, 1).await, "alive 1, holding [2]");
    lab.workers.notified(done(&instance, 0, json!("late")));
    assert_eq!(lab.next_summary().await, "started 2");
    assert_eq!(lab.heartbeat(&leased, 2).await, "alive 2, holding [2]");
}

#[tokio::test]
async fn attempt_is_abandoned_after_its_timeout() {
    let (mut lab, instance, leased) = with_instance(1).await;
    lab.dispatch_spec(&leased, 1, TaskSpec { timeout: Some(Span::from_millis(20)), ..spec("1") });
    assert_eq!(lab.next_summary().await, "started 1");
    assert_eq!(lab.next_summary().await, "timed out 1");
    lab.workers.notified(done(&instance, 0, json!("late")));
    assert_eq!(lab.heartbeat(&leased, 1).await, "alive 1, holding [1]", "until it is recorded");
}

#[tokio::test]
async fn restarted_instance_has_lost_its_tasks() {
    let instance = Instance::start("m", 1).await;
    let mut lab = Lab::with(|settings| settings.health_interval = Duration::from_millis(10));
    let leased = lab.instance(&instance).await;
    lab.dispatch(&leased, 1, "1");
    lab.dispatch(&leased, 2, "2");
    lab.assert_messages_in_any_order(["accepted 2", "started 1"]).await;
    instance.state.lock().unwrap().status["instance_id"] = json!("two");
    let end = lab.next_summary().await;
    assert!(end.starts_with("failed 1 true: the task instance was restarted"), "{end}");
    assert_eq!(lab.next_summary().await, "started 2", "a task that it did not have is not lost");
    instance.state.lock().unwrap().status["model_type"] = json!("other");
    lab.wait_for_health(false).await;
}

#[tokio::test]
async fn unresponsive_instance_does_not_affect_other_workers() {
    let mut lab = Lab::with(|settings| {
        settings.call_timeout = Duration::from_secs(600);
        settings.health_timeout = Duration::from_secs(600);
    });
    let (healthy, frozen) = (Instance::start("m", 1).await, Instance::start("m", 1).await);
    let (at_healthy, at_frozen) = (lab.instance(&healthy).await, lab.instance(&frozen).await);
    frozen.state.lock().unwrap().frozen = true;
    let (lease, epoch) = (at_frozen.lease, at_frozen.epoch);
    for fence in 100..200 {
        lab.dispatch(&at_frozen, fence, "1");
        let beat = ToWorker::Heartbeat { lease, epoch, nonce: fence, demand: None };
        lab.workers.send(at_frozen.worker.id, beat);
    }
    let mut refused = 0;
    for fence in 1..=20 {
        lab.dispatch(&at_healthy, fence, "1");
        let mut next = lab.next_summary().await;
        while next != format!("started {fence}") {
            refused += u32::from(next.starts_with("refused "));
            next = lab.next_summary().await;
        }
        lab.workers.notified(done(&healthy, fence as usize - 1, json!(fence)));
        assert_eq!(lab.next_summary().await, format!("completed {fence}: {fence}"));
        lab.recorded(&at_healthy, fence);
    }
    assert_eq!(lab.heartbeat(&at_healthy, 1).await, "alive 1, holding []");
    assert_eq!(refused, 35, "one would run, 64 would be queued");
}

#[tokio::test]
async fn attempts_queued_behind_an_unreachable_instance_fail_fast() {
    let mut lab = Lab::with(|settings| settings.call_timeout = Duration::from_millis(50));
    let instance = Instance::start("m", 1).await;
    let leased = lab.instance(&instance).await;
    instance.state.lock().unwrap().frozen = true;
    for fence in 1..=3 {
        lab.dispatch(&leased, fence, "1");
    }
    let mut ends = vec![lab.ends().await, lab.ends().await, lab.ends().await];
    ends.sort();
    let error = "the task instance did not accept it: the back end";
    assert!(
        ends[0].starts_with(&format!("failed 1 true: {error}")),
        "it may have the task: {ends:?}"
    );
    assert!(ends[1].starts_with(&format!("unreachable 2: {error}")), "{ends:?}");
    assert!(ends[2].starts_with(&format!("unreachable 3: {error}")), "{ends:?}");
    assert_eq!(
        instance.state.lock().unwrap().asked,
        1,
        "the queued attempts were not sent one by one"
    );
}

#[tokio::test]
async fn fast_instance_may_be_done_before_it_responds() {
    let (mut lab, instance, leased) = with_instance(1).await;
    instance.state.lock().unwrap().frozen_after_enqueue = true;
    lab.dispatch(&leased, 1, "1");
    instance.until(|state| state.got.len() == 1).await;
    lab.workers.notified(done(&instance, 0, json!("early")));
    assert_eq!(lab.next_summary().await, "started 1");
    assert_eq!(lab.next_summary().await, "completed 1: \"early\"");
}

#[tokio::test]
async fn repeated_dispatch_is_enqueued_once() {
    let (mut lab, instance, leased) = with_instance(1).await;
    lab.dispatch(&leased, 1, "1");
    assert_eq!(lab.next_summary().await, "started 1");
    lab.dispatch(&leased, 1, "1");
    assert_eq!(lab.next_summary().await, "started 1");
    let (lease, epoch) = (leased.lease, leased.epoch);
    lab.workers.send(leased.worker.id, ToWorker::ReleaseLease { lease, epoch });
    lab.dispatch(&leased, 2, "1");
    assert_eq!(lab.next_summary().await, "lease unknown");
    assert_eq!(instance.state.lock().unwrap().got.len(), 1);
    lab.workers.forget(leased.worker.id);
    lab.dispatch(&leased, 3, "1");
    assert_eq!(lab.next_summary().await, "refused 3: unavailable");
}

#[tokio::test]
async fn unreachable_instance_did_not_receive_the_task() {
    let (address, serving) =
        fake::serve_one_request_per_connection(r#"{"model_type": "m", "status": "running"}"#).await;
    let mut lab = Lab::new();
    let worker = lab.workers.register_instance("127.0.0.1", address.port(), None).await.unwrap();
    let leased = lab.lease(&worker).await;
    serving.abort();
    super::back_end_worker::wait_until_gone(address).await;
    for fence in [1, 2] {
        lab.dispatch(&leased, fence, "1");
    }
    for fence in [1, 2] {
        let end = lab.ends().await;
        let expected = "the task instance did not accept it: no connection to";
        assert!(end.starts_with(&format!("unreachable {fence}: {expected}")), "{end}");
    }
}

#[tokio::test]
async fn task_enqueued_before_a_restart_is_resumed() {
    let instance = Instance::start("m", 2).await;
    let mut lab = Lab::with(|settings| settings.poll_interval = Duration::from_millis(10));
    let leased = lab.instance(&instance).await;
    instance.state.lock().unwrap().results.extend([
        ("running".to_owned(), json!({"status": "running"})),
        ("ended".to_owned(), json!({"status": "completed", "result": "kept"})),
    ]);
    lab.resume(&leased, 1, "ended");
    assert_eq!(lab.next_summary().await, "started 1");
    assert_eq!(lab.next_summary().await, "completed 1: \"kept\"");
    lab.resume(&leased, 2, "running");
    assert_eq!(lab.next_summary().await, "started 2");
    match lab.next_any_message().await.1 {
        FromWorker::Delegated { handle, .. } => assert!(handle.starts_with("running"), "{handle}"),
        other => panic!("{other:?}"),
    }
    let done = json!({"status": "completed", "result": 2});
    instance.state.lock().unwrap().results.insert("running".to_owned(), done);
    assert_eq!(lab.next_summary().await, "completed 2: 2");
    assert!(instance.state.lock().unwrap().got.is_empty(), "no task is run twice");
    // Another incarnation of the instance had it: it is not enqueued a second time under the same attempt.
    lab.resume(&leased, 3, "forgotten\u{1f}zero");
    assert_eq!(lab.ends().await, "refused 3: busy");
    assert!(instance.state.lock().unwrap().got.is_empty(), "no task is run twice");
    // This incarnation had it and does not report it yet: many instances do not until a task is done.
    lab.resume(&leased, 4, "quiet\u{1f}one");
    assert_eq!(lab.next_summary().await, "started 4");
    instance.until(|state| state.polls.iter().filter(|id| *id == "quiet").count() >= 2).await;
    let done = json!({"status": "completed", "result": 4});
    instance.state.lock().unwrap().results.insert("quiet".to_owned(), done);
    assert_eq!(lab.next_summary().await, "completed 4: 4");
    assert!(instance.state.lock().unwrap().got.is_empty(), "no task is run twice");
}

#[tokio::test]
async fn resumed_task_is_polled_before_the_first_health_check() {
    let instance = Instance::start("m", 2).await;
    let mut lab = Lab::with(|settings| settings.health_interval = Duration::from_millis(10));
    let leased = lab.instance(&instance).await;
    instance.state.lock().unwrap().status["status"] = json!("loading");
    lab.wait_for_health(false).await;
    let done = json!({"status": "completed", "result": "kept"});
    instance.state.lock().unwrap().results.insert("kept".to_owned(), done);
    lab.dispatch(&leased, 1, "1");
    lab.resume(&leased, 2, "kept");
    let mut ends = [lab.ends().await, lab.ends().await];
    ends.sort();
    assert_eq!(ends[0], "completed 2: \"kept\"");
    assert!(ends[1].starts_with("unreachable 1: "), "it gets no new tasks: {ends:?}");
}
