//! A collector that fails costs neither the process nor a caller's time. That `stop` returns is the test.

use axum::http::StatusCode;
use hypha_telemetry::{Metrics, Protocol, Settings, StartError, start};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use crate::receiver::{Receiver, with_connections};
use crate::settings;

/// More spans than the queue holds: they must be dropped, not waited for.
const MANY: usize = 10_000;

async fn check(protocol: Protocol, port: u16) {
    let mut telemetry = start(&settings(protocol, port)).unwrap();
    telemetry.export_metrics(&Metrics::new("1", "worker"));
    for number in 0..MANY {
        tracing::info_span!("work", number).in_scope(|| ());
    }
    telemetry.stop().await;
    // Tracing still works.
    tracing::info_span!("after").in_scope(|| tracing::info!("still here"));
}

pub(crate) async fn unused_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().port()
}

#[tokio::test]
async fn an_absent_collector_over_http() {
    check(Protocol::HttpProtobuf, unused_port().await).await;
}

#[tokio::test]
async fn an_absent_collector_over_grpc() {
    check(Protocol::Grpc, unused_port().await).await;
}

async fn closing() -> u16 {
    with_connections(|stream| async {
        drop(stream);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_collector_that_closes_connections_over_http() {
    check(Protocol::HttpProtobuf, closing().await).await;
}

#[tokio::test]
async fn a_collector_that_closes_connections_over_grpc() {
    check(Protocol::Grpc, closing().await).await;
}

/// Reads and never answers.
async fn silent() -> u16 {
    with_connections(|mut stream| async move {
        let mut buffer = vec![0; 1 << 16];
        while stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_collector_that_never_answers_over_http() {
    check(Protocol::HttpProtobuf, silent().await).await;
}

#[tokio::test]
async fn a_collector_that_never_answers_over_grpc() {
    check(Protocol::Grpc, silent().await).await;
}

#[tokio::test]
async fn a_collector_that_answers_500_over_http() {
    let receiver = Receiver::answering(|_| StatusCode::INTERNAL_SERVER_ERROR).await;
    check(Protocol::HttpProtobuf, receiver.port).await;
    assert!(!receiver.spans().is_empty() && !receiver.metrics().is_empty());
}

#[tokio::test]
async fn a_collector_that_answers_unavailable_over_grpc() {
    let receiver = Receiver::answering(|_| StatusCode::SERVICE_UNAVAILABLE).await;
    check(Protocol::Grpc, receiver.port).await;
    assert!(!receiver.spans().is_empty() && !receiver.metrics().is_empty());
}

/// The headers hold credentials: they go to the endpoint and nowhere else.
#[tokio::test]
async fn a_redirect_is_not_followed() {
    let receiver = Receiver::answering(|_| StatusCode::TEMPORARY_REDIRECT).await;
    let telemetry = start(&settings(Protocol::HttpProtobuf, receiver.port)).unwrap();
    tracing::info_span!("work").in_scope(|| ());
    telemetry.stop().await;
    assert_eq!(receiver.requests().len(), 1);
}

#[tokio::test]
async fn dropping_instead_of_stopping_does_not_panic() {
    let mut telemetry = start(&settings(Protocol::Grpc, unused_port().await)).unwrap();
    telemetry.export_metrics(&Metrics::new("1", "worker"));
    tracing::info_span!("work").in_scope(|| ());
    drop(telemetry);
    tracing::info_span!("after").in_scope(|| tracing::info!("still here"));
}

#[test]
fn invalid_settings_are_reported_in_one_line() {
    let base = || settings(Protocol::HttpProtobuf, 1);
    let check = |settings: Settings, expected: &str| {
        let error = start(&settings).unwrap_err();
        let line = error.to_string();
        assert!(line.contains(expected) && !line.contains('\n'), "{line}");
    };
    check(Settings { log_filter: "info,hypha=loud".to_owned(), ..base() }, "info,hypha=loud");
    check(Settings { sample_ratio: 1.5, ..base() }, "from 0 to 1, not 1.5");
    check(Settings { sample_ratio: f64::NAN, ..base() }, "from 0 to 1, not NaN");
    check(Settings { endpoint: Some("collector:4318".to_owned()), ..base() }, "not an address");
}

#[tokio::test]
async fn start_can_be_repeated_after_invalid_settings() {
    let wrong = Settings { endpoint: Some("collector".to_owned()), ..Settings::default() };
    assert!(matches!(start(&wrong), Err(StartError::Endpoint(_))));
    start(&Settings::default()).unwrap().stop().await;
}
