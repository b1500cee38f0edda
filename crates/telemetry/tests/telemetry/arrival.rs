//! Recorded data arrives completely, over both protocols.

use hypha_telemetry::prometheus_client::metrics::counter::Counter;
use hypha_telemetry::{Metrics, Protocol, StartError, start};
use opentelemetry_proto::tonic::metrics::v1::{metric::Data, number_data_point};

use crate::receiver::{Receiver, text};
use crate::settings;

fn work() {
    let outer = tracing::info_span!("place task", task = "t-1", worker = tracing::field::Empty);
    outer.in_scope(|| {
        outer.record("worker", "w-1");
        tracing::info_span!("score").in_scope(|| tracing::info!("chosen"));
        tracing::debug_span!("poll").in_scope(|| ());
    });
}

async fn check_spans(protocol: Protocol, path: &str) {
    let receiver = Receiver::start().await;
    let telemetry = start(&settings(protocol, receiver.port)).unwrap();
    work();
    telemetry.stop().await;

    let spans = receiver.spans();
    assert_eq!(spans.len(), 2, "debug spans are not exported: {spans:?}");
    let named = |name: &str| spans.iter().find(|it| it.name == name).unwrap();
    let (outer, inner) = (named("place task"), named("score"));
    assert_eq!(text(&outer.attributes, "task").as_deref(), Some("t-1"));
    assert_eq!(text(&outer.attributes, "worker").as_deref(), Some("w-1"));
    assert_eq!((&inner.trace_id, &inner.parent_span_id), (&outer.trace_id, &outer.span_id));
    assert_eq!(inner.events[0].name, "chosen");

    let resource = receiver.resource_spans()[0].resource.clone().unwrap().attributes;
    assert_eq!(text(&resource, "service.name").as_deref(), Some("scheduler-01"));
    assert_eq!(text(&resource, "deployment.environment").as_deref(), Some("test"));

    for request in receiver.requests() {
        assert_eq!(request.path, path);
        assert_eq!(request.headers["authorization"], "Basic sesame");
    }
}

#[tokio::test]
async fn spans_arrive_over_http() {
    check_spans(Protocol::HttpProtobuf, "/otlp/v1/traces").await;
}

#[tokio::test]
async fn spans_arrive_over_grpc() {
    check_spans(Protocol::Grpc, "grpc").await;
}

async fn check_metrics(protocol: Protocol, path: &str) {
    let receiver = Receiver::start().await;
    let mut telemetry = start(&settings(protocol, receiver.port)).unwrap();
    let metrics = Metrics::new("1.2.3", "scheduler");
    let placed: Counter = Counter::default();
    metrics.with(|registry| registry.register("placed", "Placed tasks", placed.clone()));
    telemetry.export_metrics(&metrics);
    receiver.wait_for_a_request().await;
    placed.inc_by(5);
    telemetry.stop().await;

    let arrived = receiver.metrics();
    assert!(arrived.iter().any(|it| it.name == "hypha_build_info"), "{arrived:?}");
    assert!(arrived.iter().any(|it| it.name == "process_open_fds"), "{arrived:?}");
    let last = arrived.iter().rfind(|it| it.name == "placed_total").unwrap();
    let Some(Data::Sum(sum)) = &last.data else { panic!("{last:?}") };
    assert_eq!(sum.data_points[0].value, Some(number_data_point::Value::AsInt(5)));
    assert!(sum.data_points[0].start_time_unix_nano <= sum.data_points[0].time_unix_nano);
    for request in receiver.requests() {
        assert_eq!(request.path, path);
        assert_eq!(request.headers["authorization"], "Basic sesame");
        let crate::receiver::Body::Metrics(request) = request.body else { panic!("spans") };
        let resource = request.resource_metrics[0].resource.clone().unwrap().attributes;
        assert_eq!(text(&resource, "service.name").as_deref(), Some("scheduler-01"));
    }
}

#[tokio::test]
async fn metrics_arrive_over_http_with_their_last_values() {
    check_metrics(Protocol::HttpProtobuf, "/otlp/v1/metrics").await;
}

#[tokio::test]
async fn metrics_arrive_over_grpc_with_their_last_values() {
    check_metrics(Protocol::Grpc, "grpc").await;
}

/// `start` and the work happen where there is no runtime.
fn check_outside_of_a_runtime(protocol: Protocol) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let receiver = runtime.block_on(Receiver::start());
    let telemetry = start(&settings(protocol, receiver.port)).unwrap();
    work();
    runtime.block_on(telemetry.stop());
    assert_eq!(receiver.spans().len(), 2);
}

#[test]
fn no_runtime_is_needed_to_start_over_http() {
    check_outside_of_a_runtime(Protocol::HttpProtobuf);
}

#[test]
fn no_runtime_is_needed_to_start_over_grpc() {
    check_outside_of_a_runtime(Protocol::Grpc);
}

#[tokio::test]
async fn a_process_starts_telemetry_once() {
    let receiver = Receiver::start().await;
    let telemetry = start(&settings(Protocol::HttpProtobuf, receiver.port)).unwrap();
    let second = start(&settings(Protocol::HttpProtobuf, receiver.port));
    assert!(matches!(second, Err(StartError::AlreadyStarted)), "{second:?}");
    work();
    telemetry.stop().await;
    assert_eq!(receiver.spans().len(), 2);
}
