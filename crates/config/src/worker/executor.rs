//! What a worker can run.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use hypha_model::{Executor, ExecutorClass, Name};

use crate::backend::BackendFormat;
use crate::diagnostic::Diagnostic;
use crate::parse::{self, Choice, UrlUse};
use crate::reader::Reader;
use crate::roles::{count, seconds, size};

/// One thing that a worker can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorConfig {
    /// The kind of work.
    pub class: ExecutorClass,
    /// The name by which a task may request it.
    pub name: Name,
    /// How it runs.
    pub runtime: Runtime,
    /// The models it serves; none means any.
    pub models: Vec<Name>,
    /// How many tasks it runs at once.
    pub concurrency: u32,
}

/// How an executor runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// A program is started.
    Process(ProgramConfig),
    /// A server is called.
    Http(ServerConfig),
    /// Part of the worker.
    Builtin,
}

/// A program and what it may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramConfig {
    /// The program: a path, or a bare name that is searched for in the system's directories.
    pub cmd: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its environment, besides what every task gets.
    pub environment: Environment,
    /// Whether it is kept running and given one task after the other.
    pub warm: bool,
    /// What it may read, besides the system's programs and libraries.
    pub read: Vec<PathBuf>,
    /// What it may write, besides its work directory.
    pub write: Vec<PathBuf>,
    /// Whether it may use the machine's network.
    pub network: bool,
    /// The sandbox without which it does not run.
    pub confinement: Confinement,
    /// Its limits.
    pub limits: LimitsConfig,
}

/// Variables that may contain credentials: shown by name only.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment(pub BTreeMap<String, String>);

/// The sandbox without which a program does not run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Confinement {
    /// Namespaces, or a Landlock that keeps files from being read, written and truncated.
    #[default]
    Required,
    /// Namespaces.
    Namespaces,
    /// None: it runs in whatever sandbox there is.
    BestEffort,
}

/// Limits of one task's program; where one is `None`, the executor's default applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitsConfig {
    /// Main memory of all its processes, unless the task sets its own limit.
    pub memory_bytes: Option<u64>,
    /// Processes at once.
    pub processes: Option<u32>,
    /// Files that each process may have open.
    pub open_files: Option<u32>,
    /// The largest file that it may write.
    pub file_bytes: Option<u64>,
    /// The largest result that is accepted.
    pub result_bytes: Option<u64>,
    /// How much of the end of its output is kept for a failure.
    pub output_bytes: Option<u64>,
    /// How long it has to end by itself before it is killed.
    pub grace: Option<Duration>,
}

/// A server and how it is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// Its base address, without a slash at the end.
    pub url: String,
    /// Its protocol.
    pub format: BackendFormat,
    /// The path of its health check.
    pub health_path: Option<String>,
    /// The file that holds its key.
    pub api_key_file: Option<PathBuf>,
}

/// How an executor runs, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuntimeName {
    Process,
    Http,
    Builtin,
}

impl ExecutorConfig {
    /// What is published about it.
    pub fn executor(&self) -> Executor {
        Executor {
            class: self.class,
            name: self.name.clone(),
            models: self.models.clone(),
            concurrency: self.concurrency,
        }
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.keys().map(|name| (name, "redacted"))).finish()
    }
}

impl Choice for RuntimeName {
    const NAMES: &'static [(&'static str, RuntimeName)] = &[
        ("process", RuntimeName::Process),
        ("http", RuntimeName::Http),
        ("builtin", RuntimeName::Builtin),
    ];
}

impl Choice for Confinement {
    const NAMES: &'static [(&'static str, Confinement)] = &[
        ("required", Confinement::Required),
        ("namespaces", Confinement::Namespaces),
        ("best-effort", Confinement::BestEffort),
    ];
}

/// Keys that only one runtime has.
const PROCESS_KEYS: &[&str] =
    &["cmd", "args", "environment", "warm", "read", "write", "network", "confinement", "limits"];
const HTTP_KEYS: &[&str] = &["url", "format", "health_path", "api_key_file"];

pub(super) fn read(reader: &Reader<'_>) -> Result<Vec<ExecutorConfig>, Diagnostic> {
    let mut executors: Vec<ExecutorConfig> = Vec::new();
    for entry in reader.entries("executors")?.unwrap_or_default() {
        let executor = executor(&entry)?;
        let same =
            |one: &ExecutorConfig| (one.class, &one.name) == (executor.class, &executor.name);
        if executors.iter().any(same) {
            return Err(entry.fault("name", "another executor of this class has this name"));
        }
        executors.push(executor);
    }
    Ok(executors)
}

fn executor(entry: &Reader<'_>) -> Result<ExecutorConfig, Diagnostic> {
    Ok(ExecutorConfig {
        class: entry.get("class", parse::choice)?,
        name: entry.get("name", parse::label)?,
        runtime: runtime(entry)?,
        models: entry.get("models", parse::labels)?,
        concurrency: entry.get("concurrency", count)?,
    })
}

fn runtime(entry: &Reader<'_>) -> Result<Runtime, Diagnostic> {
    let runtime = entry.get("runtime", parse::choice)?;
    for (keys, owner, word) in
        [(PROCESS_KEYS, RuntimeName::Process, "process"), (HTTP_KEYS, RuntimeName::Http, "http")]
    {
        let stray = keys.iter().find(|key| runtime != owner && entry.given(key).is_some());
        if let Some(key) = stray {
            let message = format!("only an executor with runtime = \"{word}\" has this key");
            return Err(entry.fault(key, &message));
        }
    }
    match runtime {
        RuntimeName::Process => program(entry).map(Runtime::Process),
        RuntimeName::Http => server(entry).map(Runtime::Http),
        RuntimeName::Builtin => Ok(Runtime::Builtin),
    }
}

fn program(entry: &Reader<'_>) -> Result<ProgramConfig, Diagnostic> {
    let missing = || entry.fault("runtime", "this runtime starts a program: give `cmd` too");
    let limits = entry.section("limits")?;
    Ok(ProgramConfig {
        cmd: entry.program("cmd")?.ok_or_else(missing)?,
        args: entry.get("args", parse::texts)?,
        environment: Environment(
            entry.optional("environment", parse::environment)?.unwrap_or_default(),
        ),
        warm: entry.get("warm", parse::switch)?,
        read: entry.paths("read")?,
        write: entry.paths("write")?,
        network: entry.get("network", parse::switch)?,
        confinement: entry.get("confinement", parse::choice)?,
        limits: LimitsConfig {
            memory_bytes: limits.optional("memory", parse::bytes)?,
            processes: limits.optional("processes", count)?,
            open_files: limits.optional("open_files", count)?,
            file_bytes: limits.optional("file_size", size)?,
            result_bytes: limits.optional("result", size)?,
            output_bytes: limits.optional("output", size)?,
            grace: limits.optional("grace", seconds)?,
        },
    })
}

fn server(entry: &Reader<'_>) -> Result<ServerConfig, Diagnostic> {
    let url = entry.optional("url", |given| parse::url(given, UrlUse::Server))?;
    let missing = || entry.fault("runtime", "this runtime calls a server: give `url` too");
    Ok(ServerConfig {
        url: url.ok_or_else(missing)?,
        format: entry.get("format", parse::choice)?,
        health_path: entry.optional("health_path", parse::url_path)?,
        api_key_file: entry.path("api_key_file")?,
    })
}
