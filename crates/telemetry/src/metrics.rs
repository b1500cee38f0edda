//! The metrics of a node: registered once, shown on `/metrics`, exported by OTLP.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use prometheus_client::encoding::text;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::process::ProcessMetrics;

/// A shared handle on the one registry of a node. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    /// When counting began, which OTLP wants to know of every counter.
    pub(crate) since: SystemTime,
}

impl Metrics {
    /// The content type of what [`Metrics::encode`] gives.
    pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

    /// A registry that knows this process and `hypha_build_info`.
    pub fn new(version: &str, role: &str) -> Metrics {
        let mut registry = Registry::default();
        let build = Info::new([("version", version.to_owned()), ("role", role.to_owned())]);
        registry.register("hypha_build", "The version and the role of this node", build);
        registry.register_collector(Box::new(ProcessMetrics));
        Metrics { registry: Arc::new(Mutex::new(registry)), since: SystemTime::now() }
    }

    /// Access to the registry, to register metrics. Nothing can be shown meanwhile, so keep it short.
    pub fn with<T>(&self, access: impl FnOnce(&mut Registry) -> T) -> T {
        access(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// All metrics as OpenMetrics text, which Prometheus reads.
    pub fn encode(&self) -> String {
        let mut shown = String::new();
        let complete = self.with(|registry| text::encode_registry(&mut shown, registry));
        if complete.is_err() {
            // One collector that fails must not hide the metrics before it.
            shown.truncate(shown.rfind('\n').map_or(0, |end| end + 1));
            tracing::error!("a metric cannot be encoded; it and those behind it are not shown");
        }
        shown.push_str("# EOF\n");
        shown
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("since", &self.since).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::collector::Collector;
    use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, GaugeValueEncoder};
    use prometheus_client::metrics::MetricType;
    use prometheus_client::metrics::counter::Counter;

    #[test]
    fn every_node_shows_its_build_and_its_process() {
        let shown = Metrics::new("1.2.3", "worker").encode();
        let has = |start: &str| shown.lines().any(|line| line.starts_with(start));
        assert!(has("hypha_build_info{version=\"1.2.3\",role=\"worker\"} 1"), "{shown}");
        if cfg!(target_os = "linux") {
            for name in [
                "process_resident_memory_bytes ",
                "process_cpu_seconds_total ",
                "process_open_fds ",
                "process_start_time_seconds ",
            ] {
                assert!(has(name), "{name} in {shown}");
            }
        }
        assert!(shown.ends_with("# EOF\n"), "{shown}");
    }

    #[test]
    fn registered_metric_shows_its_present_value() {
        let metrics = Metrics::new("0", "data");
        let counter: Counter = Counter::default();
        metrics.with(|registry| registry.register("attempts", "Attempts", counter.clone()));
        counter.inc_by(3);
        assert!(metrics.clone().encode().contains("\nattempts_total 3\n"));
    }

    #[derive(Debug)]
    struct Broken;
    impl Collector for Broken {
        fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
            encoder
                .encode_descriptor("broken", "Half a line", None, MetricType::Gauge)?
                .encode_gauge(&Broken)
        }
    }
    impl EncodeGaugeValue for Broken {
        fn encode(&self, _: &mut GaugeValueEncoder) -> fmt::Result {
            Err(fmt::Error)
        }
    }

    #[test]
    fn a_broken_collector_does_not_hide_the_rest() {
        let metrics = Metrics::new("0", "data");
        metrics.with(|registry| registry.register_collector(Box::new(Broken)));
        let shown = metrics.encode();
        assert!(shown.contains("hypha_build_info"), "{shown}");
        assert!(shown.ends_with("# TYPE broken gauge\n# EOF\n"), "{shown}");
    }
}
