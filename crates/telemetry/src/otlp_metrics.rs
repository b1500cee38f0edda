//! The registry's metrics as OTLP: a task that reads the same text as `/metrics` shows, once a minute.
//!
//! The registry exposes its metrics only to an encoder, so its text is the one common form. A line
//! that is not understood is left out.

use std::time::{Duration, SystemTime};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
    ResourceMetrics, ScopeMetrics, Sum, metric::Data, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::collector::Collector;
use crate::health::ExportHealth;
use crate::metrics::Metrics;

/// What OpenTelemetry's own exporters use: metrics are for trends.
const EXPORT_EVERY: Duration = Duration::from_secs(60);

/// Exports until `stop` changes or is dropped, and then once more, so that the last metrics arrive.
pub(crate) async fn export(
    metrics: Metrics,
    resource: Vec<KeyValue>,
    collector: Collector,
    mut stop: watch::Receiver<bool>,
) {
    let health = ExportHealth::new("metrics");
    let mut due = tokio::time::interval(EXPORT_EVERY);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let last = tokio::select! {
            _ = due.tick() => false,
            _ = stop.changed() => true,
        };
        let scope_metrics = vec![ScopeMetrics {
            scope: Some(InstrumentationScope { name: "hypha".to_owned(), ..Default::default() }),
            metrics: otlp_from_openmetrics(
                &metrics.encode(),
                nanos(metrics.since),
                nanos(SystemTime::now()),
            ),
            ..Default::default()
        }];
        let request = ExportMetricsServiceRequest {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(Resource { attributes: resource.clone(), ..Default::default() }),
                scope_metrics,
                ..Default::default()
            }],
        };
        let outcome = collector.send(request).await;
        health.record(outcome.as_ref().map(|_| ()).map_err(String::as_str));
        if last {
            return;
        }
    }
}

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// OpenMetrics text to OTLP. Names stay as `/metrics` shows them, so that one query fits both.
fn otlp_from_openmetrics(text: &str, since: u64, now: u64) -> Vec<Metric> {
    let mut families: Vec<Family> = Vec::new();
    for line in text.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            let (Some(word), Some(name)) = (words.next(), words.next()) else { continue };
            let said = words.next().unwrap_or_default();
            // The encoder begins every family with its help.
            if word == "HELP" {
                families.push(Family { name, help: said, ..Family::default() });
            }
            match (word, families.last_mut()) {
                ("TYPE", Some(family)) => family.kind = said,
                ("UNIT", Some(family)) => family.unit = said,
                _ => {}
            }
        } else if let (Some(sample), Some(family)) = (parse_sample(line), families.last_mut()) {
            family.samples.push(sample);
        }
    }
    let families = families.into_iter().filter(|family| !family.samples.is_empty());
    families.map(|family| family.into_metric(since, now)).collect()
}

#[derive(Default)]
struct Family<'a> {
    name: &'a str,
    kind: &'a str,
    unit: &'a str,
    help: &'a str,
    samples: Vec<Sample<'a>>,
}

struct Sample<'a> {
    name: &'a str,
    labels: Vec<(&'a str, String)>,
    value: &'a str,
}

impl Family<'_> {
    fn into_metric(self, since: u64, now: u64) -> Metric {
        let temporality = AggregationTemporality::Cumulative.into();
        let numbers = |samples: Vec<Sample<'_>>| -> Vec<NumberDataPoint> {
            samples.into_iter().filter_map(|it| it.into_number(since, now)).collect()
        };
        // A counter's samples end in `_total`, those of an info in `_info`; a histogram's are its parts.
        let sample_name = self.samples.first().map_or(self.name, |it| it.name);
        let (name, data) = match self.kind {
            "histogram" => {
                let data_points = histogram_points(self.samples, self.name, since, now);
                let histogram = Histogram { data_points, aggregation_temporality: temporality };
                (self.name, Data::Histogram(histogram))
            }
            "counter" => {
                let sum = Sum {
                    data_points: numbers(self.samples),
                    aggregation_temporality: temporality,
                    is_monotonic: true,
                };
                (sample_name, Data::Sum(sum))
            }
            _ => (sample_name, Data::Gauge(Gauge { data_points: numbers(self.samples) })),
        };
        Metric {
            name: name.to_owned(),
            description: self.help.to_owned(),
            unit: self.unit.to_owned(),
            data: Some(data),
            ..Default::default()
        }
    }
}

impl Sample<'_> {
    fn into_number(self, since: u64, now: u64) -> Option<NumberDataPoint> {
        // The encoder writes 1 for an integer and 1.0 for a float, so a series keeps its type.
        let value = match self.value.parse::<i64>() {
            Ok(value) => number_data_point::Value::AsInt(value),
            Err(_) => number_data_point::Value::AsDouble(self.value.parse().ok()?),
        };
        Some(NumberDataPoint {
            attributes: attributes(self.labels),
            start_time_unix_nano: since,
            time_unix_nano: now,
            value: Some(value),
            ..Default::default()
        })
    }
}

/// The encoder writes each series as its sum, its count and its buckets, which count what is below them.
fn histogram_points(
    samples: Vec<Sample<'_>>,
    family: &str,
    since: u64,
    now: u64,
) -> Vec<HistogramDataPoint> {
    let mut points: Vec<HistogramDataPoint> = Vec::new();
    let mut below = 0;
    for sample in samples {
        match sample.name.strip_prefix(family) {
            Some("_sum") => {
                below = 0;
                points.push(HistogramDataPoint {
                    attributes: attributes(sample.labels),
                    start_time_unix_nano: since,
                    time_unix_nano: now,
                    sum: sample.value.parse().ok(),
                    ..Default::default()
                });
            }
            Some("_count") => {
                if let Some(point) = points.last_mut() {
                    point.count = sample.value.parse().unwrap_or_default();
                }
            }
            Some("_bucket") => {
                let bound = sample.labels.iter().find(|(key, _)| *key == "le");
                let (Some(point), Some((_, bound)), Ok(count)) =
                    (points.last_mut(), bound, sample.value.parse::<u64>())
                else {
                    continue;
                };
                point.bucket_counts.push(count.saturating_sub(below));
                below = count;
                // The last bucket is everything above the last bound, and is not named.
                point.explicit_bounds.extend(bound.parse().ok().filter(|it: &f64| it.is_finite()));
            }
            _ => {}
        }
    }
    points
}

fn attributes(labels: Vec<(&str, String)>) -> Vec<KeyValue> {
    let text = |value| AnyValue { value: Some(any_value::Value::StringValue(value)) };
    let pair = |(key, value): (&str, String)| KeyValue {
        key: key.to_owned(),
        value: Some(text(value)),
        ..Default::default()
    };
    labels.into_iter().map(pair).collect()
}

/// `name{key="value",…} 1`, where an exemplar may follow.
fn parse_sample(line: &str) -> Option<Sample<'_>> {
    let (name, mut rest) = line.split_at(line.find(['{', ' '])?);
    let mut labels = Vec::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        // A comma also stands before a label set that turned out to be empty.
        while !rest.trim_start_matches(',').starts_with('}') {
            let (key, behind) = rest.trim_start_matches(',').split_once("=\"")?;
            let (value, behind) = unquote(behind)?;
            labels.push((key, value));
            rest = behind;
        }
        rest = rest.split_once('}')?.1;
    }
    Some(Sample { name, labels, value: rest.split_ascii_whitespace().next()? })
}

/// What stands before the closing quotation mark, and the text behind it.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match chars.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            _ => value.push(char),
        }
    }
    None
}

#[cfg(test)]
mod tests;
