//! What the nodes of a network on this machine need on the disk.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use hypha_model::{NodeRole, SchedulerId};
use hypha_pki::inspect::{Item, inspect};
use hypha_pki::issue::{self, Authority, Validity};

use crate::usage::Failure;

const ORGANISATION: &str = "hypha-up";

/// A node of a network on this machine.
pub(crate) struct NodeFiles {
    pub(crate) name: String,
    pub(crate) role: NodeRole,
    /// What its configuration says beside its certificates.
    pub(crate) config: String,
}

impl NodeFiles {
    pub(crate) fn new(
        name: impl Into<String>,
        role: NodeRole,
        config: impl Into<String>,
    ) -> NodeFiles {
        NodeFiles { name: name.into(), role, config: config.into() }
    }
}

/// A gateway, a scheduler and so many workers with built-in models.
pub(super) fn plan(workers: u16) -> Vec<NodeFiles> {
    let mut nodes = vec![
        NodeFiles::new("gateway", NodeRole::Gateway, GATEWAY),
        NodeFiles::new("scheduler", NodeRole::Scheduler, SCHEDULER),
    ];
    nodes.extend((1..=workers).map(|number| {
        let name = format!("worker-{number}");
        let config = WORKER.replace("{name}", &name);
        NodeFiles::new(name, NodeRole::Worker, config)
    }));
    nodes
}

/// Makes what is missing: an authority, and a certificate and a configuration for each node. Returns the whole path
/// of the directory.
pub(crate) fn prepare(directory: &Path, nodes: &[NodeFiles]) -> Result<PathBuf, Failure> {
    let named = |error: io::Error| {
        Failure::work(format!("cannot use the directory {}: {error}", directory.display()))
    };
    fs::create_dir_all(directory).map_err(named)?;
    let directory = directory.canonicalize().map_err(named)?;
    let files = Files { directory };
    let (authority, trust) = files.authority()?;
    for node in nodes {
        files.node(&authority, &trust, node)?;
    }
    Ok(files.directory)
}

/// The id of the scheduler with this certificate, by which its API is told from another's.
pub(super) fn scheduler_id(path: &Path) -> Result<SchedulerId, Failure> {
    let items = inspect(crate::usage::read_text(path)?.as_bytes());
    let items =
        items.map_err(|error| Failure::work(format!("cannot use {}: {error}", path.display())))?;
    let id = items.iter().find_map(|item| match item {
        Item::Certificate(facts) if !facts.authority => facts.peer_id(),
        _ => None,
    });
    let id = id.map(|peer| hypha_net::scheduler_id(&peer));
    id.ok_or_else(|| {
        let problem = "there is no node's certificate in it";
        Failure::work(format!("cannot use {}: {problem}", path.display()))
    })
}

/// The same of a directory in which `hypha up` has run before; nothing of another, and nothing is made.
pub(super) fn lock_existing(directory: &Path) -> Result<Option<File>, Failure> {
    match directory.join(LOCK).exists() {
        true => lock(directory).map(Some),
        false => Ok(None),
    }
}

const LOCK: &str = "up.lock";

/// Keeps another `hypha up` away from the directory for as long as it is held.
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

pub(crate) const GATEWAY: &str = r#"listen_addresses = ["/ip4/127.0.0.1/tcp/0"]
"#;

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

struct Files {
    directory: PathBuf,
}

impl Files {
    /// The authority of this network, as it was made at the first start, and the certificate to trust.
    fn authority(&self) -> Result<(Authority, String), Failure> {
        let names = ["root-cert.pem", "ca-cert.pem", "ca-key.pem"];
        let paths = names.map(|name| self.directory.join(name));
        if paths.iter().all(|path| path.exists()) {
            let [root, cert, key] = paths.map(|path| crate::usage::read_text(&path));
            let authority = Authority::from_pem(&cert?, &key?).map_err(Failure::work)?;
            return Ok((authority, root?));
        }
        let validity = |days| Validity::days(SystemTime::now(), days);
        let root = issue::root(ORGANISATION, validity(issue::ROOT_DAYS)).map_err(Failure::work)?;
        let authority =
            issue::organisation(&root, ORGANISATION, validity(issue::ORGANISATION_DAYS))
                .map_err(Failure::work)?;
        // The root's key is not kept: this network needs no other organisation.
        self.write("root-cert.pem", &root.cert_pem(), false)?;
        self.write("ca-key.pem", &authority.key_pem(), true)?;
        self.write("ca-cert.pem", &authority.cert_pem(), false)?;
        Ok((authority, root.cert_pem()))
    }

    fn node(&self, authority: &Authority, trust: &str, node: &NodeFiles) -> Result<(), Failure> {
        let NodeFiles { name, role, config } = node;
        if !self.directory.join(format!("{name}-cert.pem")).exists() {
            let validity = Validity::days(SystemTime::now(), issue::NODE_DAYS);
            let issued =
                issue::node(authority, name, *role, &[], validity).map_err(Failure::work)?;
            self.write(&format!("{name}-key.pem"), &issued.key_pem, true)?;
            self.write(&format!("{name}-trust.pem"), trust, false)?;
            self.write(&format!("{name}-cert.pem"), &issued.cert_pem, false)?;
        }
        let file = format!("{name}.toml");
        if self.directory.join(&file).exists() {
            return Ok(());
        }
        let config = format!(
            "# Made by `hypha up`, which leaves it alone from now on.\n\
             cert_pem = \"{name}-cert.pem\"\n\
             key_pem = \"{name}-key.pem\"\n\
             trust_pem = \"{name}-trust.pem\"\n\
             metrics_address = \"127.0.0.1:0\"\n\
             {config}"
        );
        self.write(&file, &config, false)
    }

    fn write(&self, name: &str, text: &str, secret: bool) -> Result<(), Failure> {
        let path = self.directory.join(name);
        let mode = if secret { 0o600 } else { 0o644 };
        let written = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(mode)
            .open(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|error| Failure::work(format!("cannot write {}: {error}", path.display())))
    }
}
