//! A back end as a worker of a scheduler.

use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::FutureExt;
use futures::future::BoxFuture;
use hypha_backends::Format;
use hypha_engine::{FromWorker, ToWorker};
use hypha_model::{Span, TaskSpec};
use tokio::sync::watch;

use super::fake;
use super::lab::{DEADLINE, Lab, name, new_back_end, spec, summary};

#[tokio::test]
async fn a_task_is_completed() {
    let (address, _) = fake::serve_with(|seen| seen.body.clone().into_response()).await;
    let mut lab = Lab::new();
    let leased = lab.server(format!("http://{address}"), Format::Json, 2).await;
    lab.dispatch(&leased, 1, "{\"a\": 1}");
    assert_eq!(lab.ends().await, "completed 1: {\"a\": 1}");
    lab.dispatch(&leased, 1, "{\"a\": 1}");
    assert_eq!(lab.next_summary().await, "completed 1: {\"a\": 1}", "dispatched twice, run once");
    assert_eq!(lab.heartbeat(&leased, 3).await, "alive 3, holding [1]");
    lab.recorded(&leased, 1);
    assert_eq!(lab.heartbeat(&leased, 4).await, "alive 4, holding []");
    // The scheduler may be on a thread of its own.
    std::thread::scope(|scope| {
        scope.spawn(|| lab.dispatch(&leased, 5, "5"));
    });
    assert_eq!(lab.ends().await, "completed 5: 5");
    std::thread::scope(|scope| {
        scope.spawn(|| lab.workers.forget(leased.worker.id));
    });
}

#[tokio::test]
async fn failures_and_timeouts_are_reported() {
    let (address, _) = fake::serve_with(|seen| match seen.body.first() {
        Some(b'1') => StatusCode::BAD_REQUEST.into_response(),
        Some(b'2') => StatusCode::BAD_GATEWAY.into_response(),
        _ => fake::manual_body().1,
    })
    .await;
    let mut lab = Lab::new();
    let leased = lab.server(format!("http://{address}"), Format::Json, 1).await;
    for (fence, expected) in [
        (1, "failed 1 false: the back end answered 400: "),
        (2, "failed 2 true: the back end answered 502: "),
    ] {
        lab.dispatch(&leased, fence, &fence.to_string());
        assert_eq!(lab.ends().await, expected);
    }
    let (silent, _count) = fake::never_answering().await;
    let leased = lab.server(format!("http://{silent}"), Format::Json, 1).await;
    let short_timeout = TaskSpec { timeout: Some(Span::from_millis(20)), ..spec("3") };
    lab.dispatch_spec(&leased, 3, short_timeout);
    assert_eq!(lab.next_summary().await, "started 3");
    assert_eq!(lab.next_summary().await, "timed out 3");
}

#[tokio::test]
async fn runs_are_limited_by_concurrency_and_queued_in_order() {
    let (address, mut count) = fake::never_answering().await;
    let mut lab = Lab::new();
    let leased = lab.server(format!("http://{address}"), Format::Json, 2).await;
    for fence in 1..=4 {
        lab.dispatch(&leased, fence, "1");
    }
    let mut messages = vec![];
    for _ in 0..4 {
        messages.push(lab.next_summary().await);
    }
    messages.sort();
    assert_eq!(messages, ["accepted 3", "accepted 4", "started 1", "started 2"]);
    lab.dispatch(&leased, 4, "1");
    assert_eq!(lab.next_summary().await, "accepted 4");
    lab.cancel(&leased, 3);
    lab.cancel(&leased, 1);
    assert_eq!(lab.next_summary().await, "started 4");
    // One connection for each health check, of which the first was kept for 1; one for 2, and one for 4.
    tokio::time::timeout(DEADLINE, count.wait_for(|count| *count >= 4)).await.unwrap().unwrap();
    lab.workers.forget(leased.worker.id);
    assert!(!lab.workers.knows(leased.worker.id));
    lab.dispatch(&leased, 5, "1");
    assert_eq!(lab.next_summary().await, "refused 5: unavailable");
}

#[tokio::test]
async fn pieces_are_reported_before_the_end() {
    let (pieces, response) = fake::manual_body();
    let response = std::sync::Arc::new(std::sync::Mutex::new(Some(response)));
    let (address, _) = fake::serve_with(move |_| response.lock().unwrap().take().unwrap()).await;
    let mut lab = Lab::new();
    let leased = lab.server(format!("http://{address}"), Format::Json, 1).await;
    lab.dispatch_spec(&leased, 1, TaskSpec { stream: true, ..spec("1") });
    assert_eq!(lab.next_summary().await, "started 1");
    for piece in ["a", "b"] {
        pieces.send(piece.into()).await.unwrap();
        assert_eq!(lab.next_summary().await, format!("output 1: {piece}"));
    }
    drop(pieces);
    assert_eq!(lab.next_summary().await, "completed 1: ab");
}

#[tokio::test]
async fn cancelling_ends_the_request_without_a_report() {
    let (pieces, response) = fake::manual_body();
    let response = std::sync::Arc::new(std::sync::Mutex::new(Some(response)));
    let (address, _) = fake::serve_with(move |_| response.lock().unwrap().take().unwrap()).await;
    let mut lab = Lab::new();
    let leased = lab.server(format!("http://{address}"), Format::Json, 1).await;
    lab.dispatch_spec(&leased, 1, TaskSpec { stream: true, ..spec("1") });
    assert_eq!(lab.next_summary().await, "started 1");
    pieces.send("a".into()).await.unwrap();
    assert_eq!(lab.next_summary().await, "output 1: a");
    lab.cancel(&leased, 1);
    tokio::time::timeout(DEADLINE, pieces.closed()).await.expect("the request was not ended");
    assert_eq!(lab.heartbeat(&leased, 2).await, "alive 2, holding []");
}

#[tokio::test]
async fn dispatch_is_refused_without_lease_or_for_unserved_model() {
    let (address, seen) = fake::serve_with(|_| "1".into_response()).await;
    let mut lab = Lab::new();
    let leased = lab.server(format!("http://{address}"), Format::Json, 1).await;
    let mut other = spec("1");
    other.requirement.model = Some(name("other"));
    lab.dispatch_spec(&leased, 1, other);
    assert_eq!(lab.next_summary().await, "refused 1: model not served");
    let again = lab.lease(&leased.worker).await;
    lab.dispatch(&leased, 2, "1");
    assert_eq!(lab.next_summary().await, "lease unknown");
    assert_eq!(lab.heartbeat(&leased, 3).await, "lease unknown");
    let (lease, epoch) = (again.lease, again.epoch);
    lab.workers.send(again.worker.id, ToWorker::ReleaseLease { lease, epoch });
    assert_eq!(lab.heartbeat(&again, 4).await, "lease unknown");
    assert!(seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn dispatch_is_refused_when_the_queue_is_full() {
    let (address, _count) = fake::never_answering().await;
    let mut lab = Lab::new();
    let leased = lab.server(format!("http://{address}"), Format::Json, 1).await;
    let mut refused = 0;
    for fence in 1..=70 {
        lab.dispatch(&leased, fence, "1");
        refused += u32::from(lab.next_summary().await.starts_with("refused"));
    }
    assert_eq!(refused, 5, "one runs, 64 are queued");
}

#[tokio::test]
async fn unhealthy_back_end_and_its_recovery_are_reported() {
    let healthy = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let switch = std::sync::Arc::clone(&healthy);
    let (address, _) =
        fake::serve_with(move |_| match switch.load(std::sync::atomic::Ordering::SeqCst) {
            true => r#"{"data":[{"id":"m"}]}"#.into_response(),
            false => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        })
        .await;
    let mut lab = Lab::with(|settings| settings.health_interval = Duration::from_millis(10));
    let mut new = new_back_end(format!("http://{address}"), Format::Openai, 1);
    new.models.clear();
    let worker = lab.workers.register_back_end(new).await.unwrap();
    assert_eq!(worker.executors[0].models, [name("m")]);
    let leased = lab.lease(&worker).await;
    healthy.store(false, std::sync::atomic::Ordering::SeqCst);
    lab.wait_for_health(false).await;
    lab.dispatch(&leased, 1, "\"hi\"");
    assert!(
        lab.ends().await.starts_with("unreachable 1: the back end answered 500"),
        "the back end is not called"
    );
    healthy.store(true, std::sync::atomic::Ordering::SeqCst);
    lab.wait_for_health(true).await;
}

#[tokio::test]
async fn unreachable_back_end_did_not_receive_the_request() {
    let (address, serving) =
        fake::serve_one_request_per_connection(r#"{"data":[{"id":"m"}]}"#).await;
    let mut lab = Lab::new();
    let leased = lab.server(format!("http://{address}"), Format::Openai, 1).await;
    serving.abort();
    let expected = format!("no connection to {address}: ");
    wait_until_gone(address).await;
    for fence in [1, 2] {
        lab.dispatch(&leased, fence, "\"hi\"");
    }
    let mut ends = vec![];
    while ends.len() < 2 {
        let message = lab.next_message().await.1;
        if let FromWorker::Finished { .. } = message {
            ends.push(summary(&message));
        }
    }
    ends.sort();
    for (end, fence) in ends.iter().zip([1, 2]) {
        assert!(end.starts_with(&format!("unreachable {fence}: {expected}")), "{end}");
    }
}

/// Waits until no process listens at `address` any more.
pub(crate) async fn wait_until_gone(address: std::net::SocketAddr) {
    let gone = async {
        while tokio::net::TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, gone).await.expect("a process still listens");
}

/// A scheduler whose disk is full records nothing, and receives the result again later.
#[tokio::test]
async fn result_is_reported_until_it_is_recorded() {
    let (address, _) = fake::serve_with(|seen| seen.body.clone().into_response()).await;
    let mut lab = Lab::new();
    let leased = lab.server(format!("http://{address}"), Format::Json, 1).await;
    lab.dispatch(&leased, 1, "1");
    for _ in 0..3 {
        assert_eq!(lab.ends().await, "completed 1: 1");
    }
    lab.recorded(&leased, 1);
    assert_eq!(lab.heartbeat(&leased, 1).await, "alive 1, holding []");
}

/// Serves `/v1/models`, and counts the requests for it; one that arrives while it is not healthy is never answered. Other
/// requests are answered by `respond`.
fn with_health(
    is_healthy: watch::Receiver<bool>,
    checks: watch::Sender<usize>,
    respond: impl Fn() -> BoxFuture<'static, Response> + Clone + Send + Sync + 'static,
) -> Router {
    let models = async move || {
        checks.send_modify(|count| *count += 1);
        let healthy = *is_healthy.borrow();
        if !healthy {
            std::future::pending::<()>().await;
        }
        r#"{"data":[{"id":"m"}]}"#
    };
    Router::new().route("/v1/models", get(models)).fallback(respond)
}

/// As a back end that serves one request at a time: the check waits behind a call, and no longer than that.
#[tokio::test]
async fn back_end_that_was_busy_when_its_check_began_is_alive() {
    let (is_healthy, healthy) = watch::channel(true);
    let (checks, mut checked) = watch::channel(0);
    let (release, released) = watch::channel(false);
    let respond = move || {
        let mut released = released.clone();
        async move {
            let _ = released.wait_for(|released| *released).await;
            "{}".into_response()
        }
        .boxed()
    };
    let address = fake::serve(with_health(healthy, checks, respond)).await;
    let mut lab = Lab::with(|settings| {
        settings.health_interval = Duration::from_millis(50);
        settings.health_timeout = Duration::from_millis(500);
    });
    let leased = lab.server(format!("http://{address}"), Format::Openai, 1).await;
    lab.dispatch(&leased, 1, "\"hi\"");
    assert_eq!(lab.next_summary().await, "started 1");
    is_healthy.send_replace(false);
    let before = *checked.borrow_and_update();
    // The first of these may have begun before the back end was busy.
    checked.wait_for(|count| *count >= before + 2).await.unwrap();
    is_healthy.send_replace(true);
    let during = *checked.borrow_and_update();
    release.send_replace(true);
    assert_eq!(lab.next_summary().await, "completed 1: {}");
    lab.recorded(&leased, 1);
    // The check that was not answered is over.
    checked.wait_for(|count| *count > during).await.unwrap();
    let (lease, epoch) = (leased.lease, leased.epoch);
    let heartbeat = ToWorker::Heartbeat { lease, epoch, nonce: 7, demand: None };
    lab.workers.send(leased.worker.id, heartbeat);
    let next = lab.next_any_message().await.1;
    assert!(matches!(next, FromWorker::Alive { .. }), "{next:?}");
}

#[tokio::test]
async fn an_error_makes_the_health_of_the_back_end_be_checked_soon() {
    let (is_healthy, healthy) = watch::channel(true);
    let (checks, _checked) = watch::channel(0);
    let respond = move || {
        is_healthy.send_replace(false);
        async { StatusCode::INTERNAL_SERVER_ERROR.into_response() }.boxed()
    };
    let address = fake::serve(with_health(healthy, checks, respond)).await;
    let mut lab = Lab::with(|settings| {
        settings.health_interval = Duration::from_secs(600);
        settings.health_timeout = Duration::from_millis(100);
    });
    let leased = lab.server(format!("http://{address}"), Format::Openai, 1).await;
    lab.dispatch(&leased, 1, "\"hi\"");
    assert_eq!(lab.ends().await, "failed 1 true: the back end answered 500: ");
    lab.wait_for_health(false).await;
}
