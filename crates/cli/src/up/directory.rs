//! The directory of `hypha up`: the configurations of its nodes, the identity of its scheduler, and its lock.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

use hypha_local::{GATEWAY_CONFIG, NodeFiles};
use hypha_model::{NodeRole, SchedulerId};
use hypha_pki::inspect::{PemItem, inspect};

use crate::usage::Failure;

/// A gateway, a scheduler and a number of workers with built-in models.
pub(super) fn plan(workers: u16) -> Vec<NodeFiles> {
    let mut nodes = vec![
        NodeFiles::new("gateway", NodeRole::Gateway, GATEWAY_CONFIG),
        NodeFiles::new("scheduler", NodeRole::Scheduler, SCHEDULER),
    ];
    nodes.extend((1..=workers).map(|number| {
        let name = format!("worker-{number}");
        let config = WORKER.replace("{name}", &name);
        NodeFiles::new(name, NodeRole::Worker, config)
    }));
    nodes
}

const SCHEDULER: &str = r#"listen_addresses = ["/ip4/127.0.0.1/tcp/0"]
data_dir = "scheduler-data"

[scheduler]
selection_algorithm = "predictive"
discovery_interval = 10
"#;

const WORKER: &str = r#"listen_addresses = ["/ip4/127.0.0.1/tcp/0"]
data_dir = "{name}-data"

[[executors]]
name = "builtin"
runtime = "builtin"
models = ["echo", "sleep", "burn"]
concurrency = 16
"#;

/// The id of the scheduler with this certificate, which distinguishes its API from another's.
pub(super) fn scheduler_id(path: &Path) -> Result<SchedulerId, Failure> {
    let items = inspect(crate::usage::read_text(path)?.as_bytes());
    let items =
        items.map_err(|error| Failure::work(format!("cannot use {}: {error}", path.display())))?;
    let id = items.iter().find_map(|item| match item {
        PemItem::Certificate(parsed) if !parsed.authority => parsed.peer_id(),
        _ => None,
    });
    let id = id.map(|peer| hypha_net::scheduler_id(&peer));
    id.ok_or_else(|| {
        let problem = "it contains no node's certificate";
        Failure::work(format!("cannot use {}: {problem}", path.display()))
    })
}

/// The same for a directory in which `hypha up` has run before; `None` for another, and nothing is created.
pub(super) fn lock_existing(directory: &Path) -> Result<Option<File>, Failure> {
    match directory.join(LOCK).exists() {
        true => lock(directory).map(Some),
        false => Ok(None),
    }
}

const LOCK: &str = "up.lock";

/// Locks the directory against another `hypha up` for as long as it is held.
pub(super) fn lock(directory: &Path) -> Result<File, Failure> {
    let path = directory.join(LOCK);
    let named = |error: io::Error| Failure::work(format!("cannot use {}: {error}", path.display()));
    let file = File::create(&path).map_err(named)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Failure::work(format!(
            "another `hypha up` runs in {}; stop it, or give another --dir",
            directory.display()
        ))),
        Err(TryLockError::Error(error)) => Err(named(error)),
    }
}
