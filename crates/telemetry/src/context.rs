//! The trace context of a message, in the form of W3C Trace Context.

use std::collections::HashMap;

use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::TraceContextExt;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing_opentelemetry::OpenTelemetrySpanExt;

const TRACEPARENT: &str = "traceparent";

/// Four times what version 00 needs: later versions may append fields; longer input from a peer is not
/// parsed.
const MAX_TRACEPARENT_BYTES: usize = 4 * 55;

/// The trace context of the current span, to be put into a peer message. `None` outside of a span and where
/// no collector is configured. An unsampled trace has one as well, so that the peer follows that decision.
pub fn traceparent() -> Option<String> {
    let context = tracing::Span::current().context();
    if !context.span().span_context().is_valid() {
        return None;
    }
    let mut carrier = HashMap::new();
    TraceContextPropagator::new().inject_context(&context, &mut carrier);
    carrier.remove(TRACEPARENT)
}

/// Makes `span` a child of the span whose context a peer sent. Call it before the span has children or is
/// asked for its own [`traceparent`]; invalid input and late calls change nothing.
pub fn continue_trace(span: &tracing::Span, traceparent: &str) {
    if traceparent.len() > MAX_TRACEPARENT_BYTES {
        return;
    }
    let carrier = HashMap::from([(TRACEPARENT.to_owned(), traceparent.to_owned())]);
    // The empty context, not the current one: an open local span is not the parent of a peer's work.
    let nothing = opentelemetry::Context::new();
    let parent = TraceContextPropagator::new().extract_with_context(&nothing, &carrier);
    if parent.span().span_context().is_valid() {
        // An error means that there is no collector or that the span has begun: neither matters to the work.
        let _ = span.set_parent(parent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_collector_there_is_no_context_and_nothing_to_continue() {
        let span = tracing::info_span!("work");
        continue_trace(&span, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        assert_eq!(span.in_scope(traceparent), None);
    }
}
