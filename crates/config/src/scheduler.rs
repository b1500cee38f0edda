//! A scheduler's configuration.

mod api;
mod pool;
mod retry;
mod settings;

use std::path::PathBuf;
use std::time::Duration;

use hypha_engine::Settings;
use hypha_model::Name;

pub use api::ApiConfig;
pub(crate) use api::is_loopback;
pub(crate) use retry::Backoff;
pub(crate) use settings::{LoadBy, PickBy};

use crate::backend::{self, BackendConfig};
use crate::diagnostic::Diagnostic;
use crate::network::NetworkConfig;
use crate::observe::ObserveConfig;
use crate::parse;
use crate::reader::Reader;
use crate::roles::{seconds, size};
use crate::sealed::Build;
use crate::sourced_value::Origin;

/// The directory of large results in `data_dir`, unless another is given.
const OBJECTS: &str = "objects";

/// A scheduler's configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct SchedulerConfig {
    /// Certificates and addresses.
    pub network: NetworkConfig,
    /// Logs, metrics and traces.
    pub observe: ObserveConfig,
    /// The directory for what must survive a restart; need not exist.
    pub data_dir: PathBuf,
    /// Its region.
    pub region: Option<Name>,
    /// Where metrics of training jobs are sent to.
    pub status_bridge: Option<String>,
    /// The settings of the scheduler's machine.
    pub settings: Settings,
    /// The interval between searches for workers.
    pub discovery_interval: Duration,
    /// How long ended tasks are kept.
    pub result_ttl: Duration,
    /// The largest result that is kept with its task.
    pub max_result_bytes: u64,
    /// Where larger results are kept; need not exist.
    pub object_store: PathBuf,
    /// Run times for the predictor's mode `lookup_table`.
    pub lookup_table: Option<PathBuf>,
    /// The HTTP API.
    pub api: ApiConfig,
    /// HTTP servers that are called directly.
    pub backends: Vec<BackendConfig>,
    /// Warnings to log, a line each with its position: settings that are allowed but probably not meant.
    pub warnings: Vec<String>,
}

impl Build for SchedulerConfig {
    fn build(
        reader: &Reader<'_>,
        network: NetworkConfig,
        observe: ObserveConfig,
    ) -> Result<SchedulerConfig, Diagnostic> {
        let section = reader.section("scheduler")?;
        let mut warnings = Warnings::default();
        let data_dir = reader.required_path("data_dir")?;
        let region = reader.optional("region", parse::label)?;
        let status_bridge = reader.optional("status_bridge", parse::host_port)?;
        let settings = settings::read(&section, region.as_ref(), &mut warnings)?;
        let object_store = match section.given("object_store") {
            Some(_) => section.required_path("object_store")?,
            None => data_dir.join(OBJECTS),
        };
        Ok(SchedulerConfig {
            network,
            observe,
            data_dir,
            region,
            status_bridge,
            settings,
            discovery_interval: section.get("discovery_interval", seconds)?,
            result_ttl: section.get("result_ttl", seconds)?,
            max_result_bytes: section.get("max_result_size", size)?,
            object_store,
            lookup_table: section.path("lookup_table")?,
            api: ApiConfig::read(&section.section("api")?)?,
            backends: backend::backends(&section)?,
            warnings: warnings.0,
        })
    }
}

/// Settings that are allowed but probably not meant.
#[derive(Debug, Default)]
struct Warnings(Vec<String>);

impl Warnings {
    /// The value of `key` in `section`, which came from `origin`, has no effect.
    fn no_effect(&mut self, section: &Reader<'_>, key: &str, origin: &Origin, why: &str) {
        let at = section.context.at(origin);
        self.0.push(format!("{at}: `{key}` has no effect {why}"));
    }

    /// Both were given and disagree.
    fn wins(&mut self, winner: (&Reader<'_>, &str), loser: (&Reader<'_>, &str)) {
        let (Some(won), Some(lost)) = (winner.0.given(winner.1), loser.0.given(loser.1)) else {
            return;
        };
        let at = winner.0.context.at(&won.origin);
        let other = match &lost.origin {
            Origin::File(position) => format!("at line {}", position.line),
            other => format!("of {}", loser.0.context.at(other)),
        };
        self.0.push(format!("{at}: `{}` wins over `{}` {other}", winner.1, loser.1));
    }
}
