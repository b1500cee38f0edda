//! Which traces are exported, and how a trace goes from one node to the next.

use hypha_telemetry::{Protocol, Sampler, Settings, continue_trace, start, traceparent};

use crate::receiver::Receiver;
use crate::settings;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn with(sampler: Sampler, sample_ratio: f64, work: impl FnOnce()) -> Receiver {
    let receiver = Receiver::start().await;
    let base = settings(Protocol::HttpProtobuf, receiver.port);
    let telemetry = start(&Settings { sampler, sample_ratio, ..base }).unwrap();
    work();
    telemetry.stop().await;
    receiver
}

/// How many of 1000 traces that start here arrive.
async fn exported(sampler: Sampler, sample_ratio: f64) -> usize {
    let work = || (0..1000).for_each(|_| drop(tracing::info_span!("work")));
    with(sampler, sample_ratio, work).await.spans().len()
}

#[tokio::test]
async fn ratio_zero_exports_nothing() {
    assert_eq!(exported(Sampler::TraceIdRatio, 0.0).await, 0);
}

#[tokio::test]
async fn ratio_one_exports_everything() {
    assert_eq!(exported(Sampler::TraceIdRatio, 1.0).await, 1000);
}

#[tokio::test]
async fn a_ratio_exports_its_share() {
    // Ten standard deviations to each side: not a matter of luck.
    let count = exported(Sampler::ParentBasedTraceIdRatio, 0.1).await;
    assert!((5..=195).contains(&count), "{count} of 1000");
}

#[tokio::test]
async fn always_off_exports_nothing() {
    assert_eq!(exported(Sampler::AlwaysOff, 1.0).await, 0);
}

#[tokio::test]
async fn parent_based_always_off_begins_nothing_itself() {
    assert_eq!(exported(Sampler::ParentBasedAlwaysOff, 1.0).await, 0);
}

#[tokio::test]
async fn a_sampled_trace_of_a_peer_is_continued() {
    let mut sent_on = None;
    let receiver = with(Sampler::ParentBasedAlwaysOff, 0.0, || {
        // An open local span is not the parent of a peer's request.
        tracing::info_span!("unrelated").in_scope(|| {
            let span = tracing::info_span!("serve");
            continue_trace(&span, &format!("00-{TRACE}-{PARENT}-01"));
            sent_on = span.in_scope(traceparent);
        });
    })
    .await;
    let spans = receiver.spans();
    assert_eq!(spans.len(), 1, "{spans:?}");
    assert_eq!(
        (hex(&spans[0].trace_id).as_str(), hex(&spans[0].parent_span_id).as_str()),
        (TRACE, PARENT)
    );
    assert_eq!(sent_on, Some(format!("00-{TRACE}-{}-01", hex(&spans[0].span_id))));
}

#[tokio::test]
async fn an_unsampled_trace_of_a_peer_stays_unsampled() {
    let mut sent_on = None;
    let receiver = with(Sampler::ParentBasedTraceIdRatio, 1.0, || {
        let span = tracing::info_span!("serve");
        continue_trace(&span, &format!("00-{TRACE}-{PARENT}-00"));
        sent_on = span.in_scope(traceparent);
    })
    .await;
    assert_eq!(receiver.spans(), []);
    let sent_on = sent_on.unwrap();
    assert!(sent_on.starts_with(&format!("00-{TRACE}-")) && sent_on.ends_with("-00"), "{sent_on}");
}

#[tokio::test]
async fn invalid_trace_context_of_a_peer_is_ignored() {
    let zero = format!("00-{}-{PARENT}-01", "0".repeat(32));
    let long = format!("cc-{TRACE}-{PARENT}-01-{}", "a".repeat(10_000));
    let given = ["", "-", "00-é-ü-01", "zz", zero.as_str(), long.as_str(), &TRACE[..31]];
    let receiver = with(Sampler::ParentBasedAlwaysOn, 1.0, || {
        let outer = tracing::info_span!("outer").entered();
        for nonsense in given {
            let span = tracing::info_span!("serve");
            continue_trace(&span, nonsense);
        }
        drop(outer);
    })
    .await;
    let (outer, served): (Vec<_>, Vec<_>) =
        receiver.spans().into_iter().partition(|it| it.name == "outer");
    assert_eq!(served.len(), given.len());
    assert!(served.iter().all(|it| it.parent_span_id == outer[0].span_id), "{served:?}");
}

#[tokio::test]
async fn no_trace_context_outside_of_a_span() {
    with(Sampler::AlwaysOn, 1.0, || assert_eq!(traceparent(), None)).await;
}
