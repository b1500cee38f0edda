//! The registry is encoded for real: what this reads is what the encoder writes.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Labelled;
use prometheus_client::metrics::gauge::Gauge as Level;
use prometheus_client::metrics::histogram::Histogram as Buckets;
use prometheus_client::registry::{Registry, Unit};

use super::*;

type Labels = Vec<(String, String)>;

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn converted(registry: &Registry) -> Vec<Metric> {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    otlp_from_openmetrics(&text, 1, 2)
}

fn pairs(attributes: &[KeyValue]) -> Labels {
    let text = |it: &KeyValue| match it.value.as_ref().and_then(|it| it.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => text.clone(),
        other => panic!("not a text: {other:?}"),
    };
    attributes.iter().map(|it| (it.key.clone(), text(it))).collect()
}

fn points(metric: &Metric) -> Vec<(Labels, number_data_point::Value)> {
    let points = match metric.data.as_ref().unwrap() {
        Data::Sum(sum) => {
            assert!(sum.is_monotonic);
            assert_eq!(sum.aggregation_temporality, AggregationTemporality::Cumulative as i32);
            &sum.data_points
        }
        Data::Gauge(gauge) => &gauge.data_points,
        other => panic!("not a number: {other:?}"),
    };
    for point in points {
        assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (1, 2));
    }
    points.iter().map(|it| (pairs(&it.attributes), it.value.unwrap())).collect()
}

#[test]
fn counters_are_sums_and_keep_all_characters_of_labels() {
    let mut registry = Registry::default();
    let attempts: Labelled<Labels, Counter> = Labelled::default();
    registry.register("attempts", "How often", attempts.clone());
    let hostile = labels(&[("peer", "a\"b\\n\n,}={ # ä"), ("kind", "")]);
    attempts.get_or_create(&hostile).inc_by(7);

    let metrics = converted(&registry);
    assert_eq!(metrics.len(), 1);
    assert_eq!(
        (metrics[0].name.as_str(), metrics[0].description.as_str()),
        ("attempts_total", "How often.")
    );
    assert!(matches!(metrics[0].data, Some(Data::Sum(_))));
    assert_eq!(points(&metrics[0]), [(hostile, number_data_point::Value::AsInt(7))]);
}

#[test]
fn gauges_keep_their_type_and_unit() {
    let mut registry = Registry::default();
    let (whole, part) =
        (Level::<i64>::default(), Level::<f64, std::sync::atomic::AtomicU64>::default());
    registry.register_with_unit("memory", "Memory", Unit::Bytes, whole.clone());
    registry.register("load", "Load", part.clone());
    whole.set(-5);
    part.set(2.0);

    let metrics = converted(&registry);
    assert_eq!((metrics[0].name.as_str(), metrics[0].unit.as_str()), ("memory_bytes", "bytes"));
    assert!(matches!(metrics[0].data, Some(Data::Gauge(_))));
    assert_eq!(points(&metrics[0])[0].1, number_data_point::Value::AsInt(-5));
    assert_eq!(points(&metrics[1])[0].1, number_data_point::Value::AsDouble(2.0));
}

#[test]
fn histograms_count_each_bucket_alone_and_each_series_apart() {
    let mut registry = Registry::default();
    let times = Labelled::<Labels, Buckets>::new_with_constructor(|| Buckets::new([0.5, 1.0]));
    registry.register("wait", "Wait", times.clone());
    let (fast, slow) = (labels(&[("kind", "fast")]), labels(&[("kind", "slow")]));
    for seconds in [0.1, 0.2, 0.7] {
        times.get_or_create(&fast).observe(seconds);
    }
    for seconds in [0.1, 0.1, 0.1, 0.1, 9.0] {
        times.get_or_create(&slow).observe(seconds);
    }

    let metrics = converted(&registry);
    let Some(Data::Histogram(histogram)) = &metrics[0].data else { panic!("{metrics:?}") };
    assert_eq!(metrics[0].name, "wait");
    let point = |labels: &Labels| {
        histogram.data_points.iter().find(|it| pairs(&it.attributes) == *labels).unwrap()
    };
    assert_eq!(histogram.data_points.len(), 2);
    assert_eq!(point(&fast).explicit_bounds, [0.5, 1.0]);
    assert_eq!(point(&fast).bucket_counts, [2, 1, 0]);
    assert_eq!((point(&fast).count, point(&fast).sum), (3, Some(1.0)));
    assert_eq!(point(&slow).bucket_counts, [4, 0, 1]);
}

#[test]
fn labels_and_prefixes_of_a_part_are_kept() {
    let mut registry = Registry::default();
    let part = registry.sub_registry_with_prefix("net");
    let part = part.sub_registry_with_label(("side".into(), "in".into()));
    let attempts: Labelled<Labels, Counter> = Labelled::default();
    part.register("attempts", "Attempts", attempts.clone());
    attempts.get_or_create(&labels(&[])).inc();
    attempts.get_or_create(&labels(&[("a", "b")])).inc();

    let metrics = converted(&registry);
    assert_eq!(metrics[0].name, "net_attempts_total");
    let mut found: Vec<_> = points(&metrics[0]).into_iter().map(|it| it.0).collect();
    found.sort();
    assert_eq!(found, [labels(&[("side", "in")]), labels(&[("side", "in"), ("a", "b")])]);
}

#[test]
fn metrics_of_every_node_are_converted() {
    let metrics = otlp_from_openmetrics(&Metrics::new("1", "worker").encode(), 1, 2);
    let build = metrics.iter().find(|it| it.name == "hypha_build_info").unwrap();
    assert_eq!(points(build)[0].0, labels(&[("version", "1"), ("role", "worker")]));
}

#[test]
fn lines_that_are_not_samples_are_left_out() {
    for line in [
        "",
        "x",
        "# EOF",
        "x{",
        "x{a",
        "x{a=\"",
        "x{a=\"\\",
        "x{a=\"b\"",
        "x{a=\"b\"}",
        "é{ü=\"\\é",
    ] {
        let metrics = otlp_from_openmetrics(&format!("# HELP x y\n# TYPE x gauge\n{line}\n"), 1, 2);
        assert!(metrics.is_empty(), "{line}: {metrics:?}");
    }
}
