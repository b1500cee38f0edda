//! Start and stop: the subscriber of the process, the exporters behind it, and a bounded shutdown.

use std::io::{IsTerminal, stderr};
use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use thiserror::Error;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::Subscriber;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{EnvFilter, Registry, fmt};

use crate::collector::{Collector, EndpointError};
use crate::metrics::Metrics;
use crate::settings::{LogFormat, Settings};
use crate::{otlp_metrics, spans};

/// How long [`Telemetry::stop`] waits for the last data to be accepted. A node's own shutdown takes some
/// seconds as well, and supervisors kill after ten.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// Telemetry that cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The filter is invalid.
    #[error(
        "log filter {filter:?} is invalid ({reason}); give a level such as info, or info,libp2p=debug"
    )]
    Filter {
        /// The given filter.
        filter: String,
        /// The fault in it.
        reason: String,
    },
    /// Not from 0 to 1.
    #[error("the telemetry sample ratio must be from 0 to 1, not {0}")]
    Ratio(f64),
    /// The collector cannot be addressed.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The operating system cannot create a thread.
    #[error("no thread for telemetry: {0}")]
    Thread(#[source] std::io::Error),
    /// There is one subscriber a process.
    #[error("telemetry was already started in this process; start it once")]
    AlreadyStarted,
}

/// Running telemetry. Kept until the process ends, then [stopped](Telemetry::stop); dropping it instead loses
/// data that was not yet sent.
#[derive(Debug)]
pub struct Telemetry {
    export: Option<Exporters>,
}

/// Checks the settings and installs the subscriber of this process. Works inside and outside of a runtime,
/// and does not wait for the collector.
pub fn start(settings: &Settings) -> Result<Telemetry, StartError> {
    let filter = EnvFilter::builder().parse(&settings.log_filter).map_err(|e| {
        StartError::Filter { filter: settings.log_filter.clone(), reason: e.to_string() }
    })?;
    if !(0.0..=1.0).contains(&settings.sample_ratio) {
        return Err(StartError::Ratio(settings.sample_ratio));
    }
    let export = match &settings.endpoint {
        Some(endpoint) => Some(Exporters::new(endpoint, settings)?),
        None => None,
    };
    let traces = export.as_ref().map(|it| trace_layer(it.provider.tracer("hypha")));
    let subscriber = Registry::default()
        .with(traces)
        .with(console_layer(settings.log_format).with_filter(filter));
    tracing::subscriber::set_global_default(subscriber).map_err(|_| StartError::AlreadyStarted)?;
    Ok(Telemetry { export })
}

impl Telemetry {
    /// Exports these metrics from now on, if there is a collector.
    pub fn export_metrics(&mut self, metrics: &Metrics) {
        if let Some(export) = &mut self.export {
            export.start_metrics(metrics.clone());
        }
    }

    /// Sends the remaining data and stops, within [`STOP_TIMEOUT`]. Logging to the console continues.
    pub async fn stop(mut self) {
        if let Some(export) = self.export.take() {
            export.stop().await;
        }
    }
}

/// The parts that exist only with a collector.
#[derive(Debug)]
struct Exporters {
    collector: Collector,
    resource: Resource,
    provider: SdkTracerProvider,
    stop: watch::Sender<bool>,
    metric_exports: Vec<JoinHandle<()>>,
    /// Taken by `drop` only.
    runtime: Option<Runtime>,
}

impl Exporters {
    fn new(endpoint: &str, settings: &Settings) -> Result<Exporters, StartError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("telemetry")
            .enable_all()
            .build()
            .map_err(StartError::Thread)?;
        // From here on `Exporters` owns it: dropping a runtime in async code would panic.
        let handle = runtime.handle().clone();
        let runtime = Some(runtime);
        let resource = spans::resource(settings);
        let collector = match Collector::new(endpoint, settings, handle) {
            Ok(collector) => collector,
            Err(error) => {
                runtime.into_iter().for_each(Runtime::shutdown_background);
                return Err(error.into());
            }
        };
        let provider = spans::provider(settings, resource.clone(), collector.clone());
        let stop = watch::Sender::new(false);
        Ok(Exporters { collector, resource, provider, stop, metric_exports: Vec::new(), runtime })
    }

    fn start_metrics(&mut self, metrics: Metrics) {
        let Some(runtime) = &self.runtime else { return };
        let resource = ResourceAttributesWithSchema::from(&self.resource).attributes.0;
        let (collector, stop) = (self.collector.clone(), self.stop.subscribe());
        self.metric_exports
            .push(runtime.spawn(otlp_metrics::export(metrics, resource, collector, stop)));
    }

    async fn stop(mut self) {
        let provider = self.provider.clone();
        // The SDK blocks a thread, and takes at most the time that it is given.
        let spans = tokio::task::spawn_blocking(move || {
            let _ = provider.shutdown_with_timeout(STOP_TIMEOUT);
        });
        self.stop.send_replace(true);
        let metric_exports = std::mem::take(&mut self.metric_exports);
        let last = async {
            for export in metric_exports {
                let _ = export.await;
            }
            let _ = spans.await;
        };
        // The failure of each export was logged where it occurred.
        let _ = tokio::time::timeout(STOP_TIMEOUT, last).await;
    }
}

impl Drop for Exporters {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Spans from `info` up, whatever the console shows: lower levels contain each poll of the swarm and the
/// exporter's own requests, which would feed on themselves.
fn trace_layer<S>(tracer: SdkTracer) -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    tracing_opentelemetry::layer()
        .with_tracer(tracer)
        .with_threads(false)
        .with_tracked_inactivity(false)
        .with_context_activation(false)
        .with_filter(LevelFilter::INFO)
}

fn console_layer<S>(format: LogFormat) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
{
    // A closed stderr must not end the process: the layer would report that by writing to stderr, and panic.
    let layer = fmt::layer().with_writer(stderr).log_internal_errors(false);
    match format {
        LogFormat::Json => layer.json().boxed(),
        LogFormat::Human => {
            let plain = std::env::var_os("NO_COLOR").is_some_and(|it| !it.is_empty());
            layer.with_ansi(stderr().is_terminal() && !plain).boxed()
        }
    }
}
