//! Reads file, environment and flags into validated values.
//!
//! A configuration is a TOML file. The `HYPHA_*` variables (`HYPHA_LISTEN_ADDRESSES`,
//! `HYPHA_RELAY__MAX_CIRCUITS`) override it, and flags override both; `OTEL_*` wins over `telemetry_*`.
//! Faults are reported with file, line and column, all at once where that is cheap. The keys, their kinds,
//! defaults and documentation are in one table (`keys.rs`), from which the checks, [`template`] and
//! [`schema`] are derived.
//!
//! The environment is an argument: nothing here reads it.

mod backend;
mod check;
mod diagnostic;
mod key;
mod keys;
mod network;
mod observe;
mod overlay;
mod parse;
mod reader;
mod roles;
mod scheduler;
mod schema;
mod sourced_value;
mod suggest;
mod template;
mod worker;

use std::io::Read;
use std::path::Path;

use hypha_model::NodeRole;

pub use backend::{BackendConfig, BackendFormat};
pub use diagnostic::{Diagnostic, Diagnostics, Position, SourceLocation};
pub use network::{NetworkConfig, RESERVED_RANGES, excluded};
pub use observe::{Headers, LogFormat, ObserveConfig, Protocol, Sampler, TelemetrySettings};
pub use overlay::Flags;
pub use roles::{DataConfig, Dataset, GatewayConfig, RelayLimits};
pub use scheduler::{ApiConfig, SchedulerConfig};
pub use schema::schema;
pub use template::{TemplateValues, template};
pub use worker::{
    Confinement, Environment, ExecutorConfig, Gpu, LimitsConfig, OfferConfig, ProgramConfig,
    Resources, Runtime, ServerConfig, TaskInstanceConfig, WorkerConfig,
};

use crate::check::Context;
use crate::sourced_value::{InvalidToml, Table};

/// The largest file that is read: a thousand times a long configuration, and still cheap to keep in memory.
pub const MAX_FILE_BYTES: usize = 1 << 20;

/// The configuration of one role.
pub trait RoleConfig: sealed::Build {
    /// The role.
    const ROLE: NodeRole;

    /// Certificates and addresses.
    fn network(&self) -> &NetworkConfig;

    /// Logs, metrics and traces.
    fn observe(&self) -> &ObserveConfig;
}

mod sealed {
    use crate::reader::Reader;
    use crate::{Diagnostic, NetworkConfig, ObserveConfig};

    pub trait Build: Sized {
        fn build(
            reader: &Reader<'_>,
            network: NetworkConfig,
            observe: ObserveConfig,
        ) -> Result<Self, Diagnostic>;
    }
}

/// Reads the configuration file at `path`, applies `environment` and then `flags` to it, and checks
/// everything, including that the files it names exist.
pub fn load<R: RoleConfig>(
    path: &Path,
    environment: &[(String, String)],
    flags: &Flags,
) -> Result<R, Diagnostics> {
    parse::<R>(path, &read(path)?, environment, flags)
}

/// Like [`load`], for a file whose content is `bytes`. Relative paths in it are relative to the directory
/// that `path` is in.
pub fn parse<R: RoleConfig>(
    path: &Path,
    bytes: &[u8],
    environment: &[(String, String)],
    flags: &Flags,
) -> Result<R, Diagnostics> {
    let context = Context { file: path, role: R::ROLE };
    let mut tree = tree(path, bytes)?;
    let mut found = overlay::environment(&mut tree, environment, &context);
    overlay::flags(&mut tree, flags);
    found.extend(check::check(&tree, &context));
    Diagnostics::from_found(found)?;
    let reader = reader::Reader::new(&tree, &context);
    let network = NetworkConfig::read(&reader)?;
    let observe = ObserveConfig::read(&reader, environment)?;
    Ok(R::build(&reader, network, observe)?)
}

/// [`load`] for a role that is only known at run time, for its diagnostics. Returns warnings, a line each,
/// about settings that are allowed but probably not meant.
pub fn check(
    role: NodeRole,
    path: &Path,
    environment: &[(String, String)],
    flags: &Flags,
) -> Result<Vec<String>, Diagnostics> {
    let none = Vec::new();
    match role {
        NodeRole::Gateway => load::<GatewayConfig>(path, environment, flags).map(|_| none),
        NodeRole::Scheduler => {
            load::<SchedulerConfig>(path, environment, flags).map(|c| c.warnings)
        }
        NodeRole::Worker => load::<WorkerConfig>(path, environment, flags).map(|_| none),
        NodeRole::Data => load::<DataConfig>(path, environment, flags).map(|_| none),
    }
}

/// The role that the file at `path` is for, if its keys determine it: `[relay]` is a gateway's, `[scheduler]`
/// a scheduler's, `[resources]`, `[[executors]]`, `[offer]`, `[task_instance]`, `hardware` and
/// `max_result_size` are a worker's, `[[datasets]]` is a data node's. With keys of two roles, or with none of
/// these, the role is unknown.
pub fn guess_role(path: &Path) -> Result<Option<NodeRole>, Diagnostics> {
    let tree = tree(path, &read(path)?)?;
    Ok(roles::role_with(tree.keys().map(String::as_str)))
}

fn read(path: &Path) -> Result<Vec<u8>, Diagnostics> {
    let wrong = |error: std::io::Error| {
        let advice = match error.kind() {
            std::io::ErrorKind::NotFound => "; `hypha ROLE init` writes one",
            _ => "",
        };
        Diagnostics::of_file(path, format!("cannot read the configuration: {error}{advice}"))
    };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(wrong)?;
    file.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(wrong)?;
    if bytes.len() > MAX_FILE_BYTES {
        let message = format!("larger than {MAX_FILE_BYTES} bytes: is this a configuration?");
        return Err(Diagnostics::of_file(path, message));
    }
    Ok(bytes)
}

fn tree(path: &Path, bytes: &[u8]) -> Result<Table, Diagnostics> {
    let invalid = match std::str::from_utf8(bytes) {
        Ok(text) => match sourced_value::document(text) {
            Ok(tree) => return Ok(tree),
            Err(invalid) => invalid,
        },
        Err(error) => {
            let valid = String::from_utf8_lossy(bytes.get(..error.valid_up_to()).unwrap_or(&[]));
            let position = Position::of(&valid, valid.len());
            InvalidToml { position: Some(position), message: "not UTF-8 text".to_owned() }
        }
    };
    let location = SourceLocation::File(path.to_owned(), invalid.position);
    Err(Diagnostic { location, message: invalid.message }.into())
}
