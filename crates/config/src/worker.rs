//! A worker's configuration.

mod executor;
mod offer;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use hypha_model::Name;

pub(crate) use executor::RuntimeName;
pub use executor::{
    Confinement, Environment, ExecutorConfig, LimitsConfig, ProgramConfig, Runtime, ServerConfig,
};
pub use offer::OfferConfig;

use crate::diagnostic::Diagnostic;
use crate::network::NetworkConfig;
use crate::observe::ObserveConfig;
use crate::parse;
use crate::reader::Reader;
use crate::roles::{seconds, size};
use crate::scheduler::is_loopback;
use crate::sealed::Build;

/// A worker's configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerConfig {
    /// Certificates and addresses.
    pub network: NetworkConfig,
    /// Logs, metrics and traces.
    pub observe: ObserveConfig,
    /// Its region.
    pub region: Option<Name>,
    /// The name of its hardware.
    pub hardware: Option<Name>,
    /// The time to live of its record.
    pub record_ttl: Duration,
    /// The directory for what it keeps; need not exist.
    pub data_dir: PathBuf,
    /// The largest result that is sent in a message.
    pub max_result_bytes: u64,
    /// What it offers.
    pub resources: Resources,
    /// What it can run and, by its owner's terms, may run.
    pub executors: Vec<ExecutorConfig>,
    /// The terms on which it is offered.
    pub offer: OfferConfig,
    /// The settings of its task instance, if it is to be one.
    pub task_instance: Option<TaskInstanceConfig>,
}

/// What a worker offers; amounts that are `None` are detected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Thousandths of a core.
    pub cpu_milli: Option<u64>,
    /// Main memory.
    pub memory_bytes: Option<u64>,
    /// Disk space.
    pub storage_bytes: Option<u64>,
    /// The GPUs; an empty list offers none.
    pub gpus: Option<Vec<Gpu>>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its model.
    pub model: Name,
    /// Its memory.
    pub memory_bytes: u64,
}

/// A worker as a task instance: schedulers reach it over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskInstanceConfig {
    /// The address that it is served at.
    pub bind: SocketAddr,
    /// The accepted bearer tokens; always given where `bind` is not loopback.
    pub tokens_file: Option<PathBuf>,
    /// The model that it reports to serve: the one given, else the first that an executor names.
    pub model: Option<Name>,
}

impl Build for WorkerConfig {
    fn build(
        reader: &Reader<'_>,
        network: NetworkConfig,
        observe: ObserveConfig,
    ) -> Result<WorkerConfig, Diagnostic> {
        let mut executors = executor::read(reader)?;
        let offer = offer::read(&reader.section("offer")?, &executors)?;
        executors.retain(|executor| offer.terms.may_run(&executor.executor()));
        Ok(WorkerConfig {
            network,
            observe,
            region: reader.optional("region", parse::label)?,
            hardware: reader.optional("hardware", parse::label)?,
            record_ttl: reader.get("record_ttl", seconds)?,
            data_dir: reader.required_path("data_dir")?,
            max_result_bytes: reader.get("max_result_size", size)?,
            resources: resources(&reader.section("resources")?)?,
            task_instance: task_instance(&reader.section("task_instance")?, &executors)?,
            executors,
            offer,
        })
    }
}

fn resources(section: &Reader<'_>) -> Result<Resources, Diagnostic> {
    let gpu = |entry: &Reader<'_>| {
        Ok(Gpu {
            model: entry.get("model", parse::label)?,
            memory_bytes: entry.get("memory", parse::bytes)?,
        })
    };
    let gpus = section.entries("gpu")?;
    Ok(Resources {
        cpu_milli: section.optional("cpu", parse::cores)?,
        memory_bytes: section.optional("memory", parse::bytes)?,
        storage_bytes: section.optional("storage", parse::bytes)?,
        gpus: gpus.map(|entries| entries.iter().map(gpu).collect()).transpose()?,
    })
}

fn task_instance(
    section: &Reader<'_>,
    executors: &[ExecutorConfig],
) -> Result<Option<TaskInstanceConfig>, Diagnostic> {
    let tokens_file = section.path("tokens_file")?;
    let model = section.optional("model", parse::label)?;
    let Some(bind) = section.optional("bind", parse::socket)? else {
        // An operator who gives these believes that it is on.
        return match ["tokens_file", "model"].into_iter().find(|key| section.given(key).is_some()) {
            Some(key) => Err(section.fault(key, "nothing is served without `bind`: give it too")),
            None => Ok(None),
        };
    };
    if !is_loopback(bind) && tokens_file.is_none() {
        return Err(section.fault(
            "bind",
            "anyone who can reach this address could use the worker: give `tokens_file`",
        ));
    }
    if let Some(model) = &model
        && !executors.iter().any(|one| one.executor().serves(model))
    {
        return Err(section.fault("model", "no executor serves this model"));
    }
    let first = || executors.iter().find_map(|one| one.models.first().cloned());
    Ok(Some(TaskInstanceConfig { bind, tokens_file, model: model.or_else(first) }))
}
