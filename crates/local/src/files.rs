//! The files of the nodes of a network on this machine.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::Context;
use hypha_model::NodeRole;
use hypha_pki::issue::{self, Authority, Validity};

const ORGANISATION: &str = "hypha-up";

/// A node of a network on this machine.
pub struct NodeFiles {
    /// The name of its files and its certificate.
    pub name: String,
    /// The role in its certificate.
    pub role: NodeRole,
    /// Its configuration without the certificates.
    pub config: String,
}

impl NodeFiles {
    /// A node with this configuration.
    pub fn new(name: impl Into<String>, role: NodeRole, config: impl Into<String>) -> NodeFiles {
        NodeFiles { name: name.into(), role, config: config.into() }
    }
}

/// Creates what is missing: an authority, and a certificate and a configuration for each node. Returns the
/// absolute path of the directory.
pub fn prepare(directory: &Path, nodes: &[NodeFiles]) -> anyhow::Result<PathBuf> {
    let problem = || format!("cannot use the directory {}", directory.display());
    fs::create_dir_all(directory).with_context(problem)?;
    let directory = directory.canonicalize().with_context(problem)?;
    let files = Files { directory };
    let (authority, trust) = files.authority()?;
    for node in nodes {
        files.node(&authority, &trust, node)?;
    }
    Ok(files.directory)
}

/// A gateway's configuration without the certificates.
pub const GATEWAY_CONFIG: &str = r#"listen_addresses = ["/ip4/127.0.0.1/tcp/0"]
"#;

struct Files {
    directory: PathBuf,
}

impl Files {
    /// The authority of this network, created at the first start, and the certificate to trust.
    fn authority(&self) -> anyhow::Result<(Authority, String)> {
        let names = ["root-cert.pem", "ca-cert.pem", "ca-key.pem"];
        let paths = names.map(|name| self.directory.join(name));
        if paths.iter().all(|path| path.exists()) {
            let [root, cert, key] = paths.map(|path| read(&path));
            let authority = Authority::from_pem(&cert?, &key?)?;
            return Ok((authority, root?));
        }
        let validity = |days| Validity::days(SystemTime::now(), days);
        let root = issue::root(ORGANISATION, validity(issue::ROOT_DAYS))?;
        let authority =
            issue::organisation(&root, ORGANISATION, validity(issue::ORGANISATION_DAYS))?;
        // The root's key is not kept: this network needs no other organisation.
        self.write("root-cert.pem", &root.cert_pem(), false)?;
        self.write("ca-key.pem", &authority.key_pem(), true)?;
        self.write("ca-cert.pem", &authority.cert_pem(), false)?;
        Ok((authority, root.cert_pem()))
    }

    fn node(&self, authority: &Authority, trust: &str, node: &NodeFiles) -> anyhow::Result<()> {
        let NodeFiles { name, role, config } = node;
        if !self.directory.join(format!("{name}-cert.pem")).exists() {
            let validity = Validity::days(SystemTime::now(), issue::NODE_DAYS);
            let issued = issue::node(authority, name, *role, &[], validity)?;
            self.write(&format!("{name}-key.pem"), &issued.key_pem, true)?;
            self.write(&format!("{name}-trust.pem"), trust, false)?;
            self.write(&format!("{name}-cert.pem"), &issued.cert_pem, false)?;
        }
        let file = format!("{name}.toml");
        if self.directory.join(&file).exists() {
            return Ok(());
        }
        let config = format!(
            "# Made by `hypha up`, which does not change it again.\n\
             cert_pem = \"{name}-cert.pem\"\n\
             key_pem = \"{name}-key.pem\"\n\
             trust_pem = \"{name}-trust.pem\"\n\
             metrics_address = \"127.0.0.1:0\"\n\
             {config}"
        );
        self.write(&file, &config, false)
    }

    fn write(&self, name: &str, text: &str, secret: bool) -> anyhow::Result<()> {
        let path = self.directory.join(name);
        let mode = if secret { 0o600 } else { 0o644 };
        let written = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(mode)
            .open(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()));
        written.with_context(|| format!("cannot write {}", path.display()))
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn existing_files_are_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let nodes = [NodeFiles::new("gateway", NodeRole::Gateway, GATEWAY_CONFIG)];
        let made = prepare(directory.path(), &nodes).unwrap();
        let certificate = read(&made.join("gateway-cert.pem")).unwrap();
        fs::write(made.join("gateway.toml"), "edited").unwrap();
        let more = NodeFiles::new("worker-1", NodeRole::Worker, "");
        prepare(directory.path(), &[nodes.into_iter().next().unwrap(), more]).unwrap();
        assert_eq!(read(&made.join("gateway-cert.pem")).unwrap(), certificate);
        assert_eq!(read(&made.join("gateway.toml")).unwrap(), "edited");
        assert!(read(&made.join("worker-1.toml")).unwrap().contains("worker-1-key.pem"));
    }
}
