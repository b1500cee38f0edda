//! Exports spans: sampled, queued up to a bound, sent in batches.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler as SdkSampler, SdkTracerProvider, SpanData,
    SpanExporter,
};

use crate::collector::Collector;
use crate::health::ExportHealth;
use crate::settings::{Sampler, Settings};

/// Spans that wait for the collector. About a kilobyte each, so an absent collector costs some megabytes at
/// most; further spans are dropped.
const MAX_QUEUED_SPANS: usize = 4096;

/// Spans in one request: some hundreds of kilobytes, below every collector's default limit.
const MAX_BATCH_SPANS: usize = 512;

/// How long a span waits for a batch to fill.
const BATCH_DELAY: Duration = Duration::from_secs(5);

/// The provider that feeds `collector`.
pub(crate) fn provider(
    settings: &Settings,
    resource: Resource,
    collector: Collector,
) -> SdkTracerProvider {
    let exporter =
        Exporter { collector, health: ExportHealth::new("traces"), resource: (&resource).into() };
    let batches = BatchConfigBuilder::default()
        .with_max_queue_size(MAX_QUEUED_SPANS)
        .with_max_export_batch_size(MAX_BATCH_SPANS)
        .with_scheduled_delay(BATCH_DELAY)
        .build();
    SdkTracerProvider::builder()
        .with_span_processor(BatchSpanProcessor::new(exporter, batches))
        .with_sampler(sampler(settings))
        .with_resource(resource)
        .build()
}

/// The resource of the spans and metrics. The environment is not read again: the configuration has done so.
pub(crate) fn resource(settings: &Settings) -> Resource {
    let pairs = settings.attributes.iter().cloned().map(|(key, value)| KeyValue::new(key, value));
    let resource = Resource::builder_empty().with_attributes(pairs);
    if settings.service_name.is_empty() {
        resource.build()
    } else {
        resource.with_service_name(settings.service_name.clone()).build()
    }
}

fn sampler(settings: &Settings) -> SdkSampler {
    let ratio = SdkSampler::TraceIdRatioBased(settings.sample_ratio);
    match settings.sampler {
        Sampler::AlwaysOn => SdkSampler::AlwaysOn,
        Sampler::AlwaysOff => SdkSampler::AlwaysOff,
        Sampler::TraceIdRatio => ratio,
        Sampler::ParentBasedAlwaysOn => SdkSampler::ParentBased(Box::new(SdkSampler::AlwaysOn)),
        Sampler::ParentBasedAlwaysOff => SdkSampler::ParentBased(Box::new(SdkSampler::AlwaysOff)),
        Sampler::ParentBasedTraceIdRatio => SdkSampler::ParentBased(Box::new(ratio)),
    }
}

#[derive(Debug)]
struct Exporter {
    collector: Collector,
    health: ExportHealth,
    resource: ResourceAttributesWithSchema,
}

impl SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let resource_spans = group_spans_by_resource_and_scope(batch, &self.resource);
        let outcome = self.collector.send(ExportTraceServiceRequest { resource_spans }).await;
        self.health.record(outcome.as_ref().map(|_| ()).map_err(String::as_str));
        outcome.map_err(OTelSdkError::InternalFailure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use opentelemetry::Key;

    fn service_name(name: &str) -> Option<String> {
        let settings = Settings {
            service_name: name.to_owned(),
            attributes: vec![("service.name".to_owned(), "attribute".to_owned())],
            ..Settings::default()
        };
        resource(&settings).get(&Key::new("service.name")).map(|it| it.to_string())
    }

    #[test]
    fn the_service_name_wins_over_the_attribute_unless_it_is_empty() {
        assert_eq!(service_name("name").as_deref(), Some("name"));
        assert_eq!(service_name("").as_deref(), Some("attribute"));
    }
}
