//! `hypha ROLE init`: writes a configuration file to start with.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use hypha_config::{Flags, TemplateValues};
use hypha_model::{Name, NodeRole};

use crate::usage::{Failure, print};

#[derive(Args)]
pub(crate) struct Init {
    /// The node's name; its certificate files are expected to be named after it
    #[arg(short, long)]
    name: Name,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// A gateway to join through, such as /ip4/203.0.113.7/tcp/4001; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    gateway: Vec<String>,
    /// An address of this machine to listen on, such as /ip4/0.0.0.0/tcp/4001; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<String>,
    /// The certificate, instead of NAME-cert.pem beside the configuration
    #[arg(long, value_name = "FILE")]
    cert: Option<PathBuf>,
    /// Its private key, instead of NAME-key.pem
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// The authorities to trust, instead of NAME-trust.pem
    #[arg(long, value_name = "FILE")]
    trust: Option<PathBuf>,
    /// Revocation lists; none by default
    #[arg(long, value_name = "FILE")]
    crl: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(role: NodeRole, init: Init) -> Result<(), Failure> {
    let next = write(role, &init)?;
    let file = init.output.display();
    print(&format!("wrote {file}\nnext: {next}`hypha {role} run -c {file}`\n"))
}

/// Writes the file, and prints what remains to be done before the node can run.
fn write(role: NodeRole, init: &Init) -> Result<String, Failure> {
    if init.name.as_str().contains(['/', '\\']) {
        return Err(Failure::usage(
            "--name: files are named after it, so it cannot contain a slash",
        ));
    }
    let directory = init.output.parent().unwrap_or(Path::new(""));
    let relative_to = |path: &Option<PathBuf>| {
        path.as_deref().map(|path| relative_to(directory, path)).transpose().map_err(Failure::work)
    };
    let filled = TemplateValues {
        name: init.name.to_string(),
        cert_pem: relative_to(&init.cert)?,
        key_pem: relative_to(&init.key)?,
        trust_pem: relative_to(&init.trust)?,
        crls_pem: relative_to(&init.crl)?,
        ..TemplateValues::default()
    };
    let (gateway, listen) = (init.gateway.clone(), init.listen.clone());
    let flags = Flags { gateway, listen, ..Flags::default() };
    let filled = filled.with_flags(&flags).map_err(Failure::usage)?;
    store(&init.output, &hypha_config::template(role, &filled), init.force)?;

    let mut next = String::new();
    if role != NodeRole::Gateway && filled.gateway_addresses.is_empty() {
        next.push_str("enter the gateways under `gateway_addresses`, ");
    }
    let files =
        [("cert", &filled.cert_pem), ("key", &filled.key_pem), ("trust", &filled.trust_pem)].map(
            |(what, given)| {
                let named = || PathBuf::from(format!("{}-{what}.pem", filled.name));
                directory.join(given.clone().unwrap_or_else(named))
            },
        );
    let missing = files.iter().filter(|file| !file.exists());
    let missing: Vec<_> = missing.map(|file| file.display().to_string()).collect();
    if !missing.is_empty() {
        next.push_str(&format!("put the certificates at {}, ", missing.join(", ")));
    }
    Ok(if next.is_empty() { next } else { next + "then " })
}

/// `path`, given relative to the working directory, as the configuration in `directory` must state it.
fn relative_to(directory: &Path, path: &Path) -> std::io::Result<PathBuf> {
    if path.is_absolute() {
        return Ok(path.to_owned());
    }
    let directory = std::env::current_dir()?.join(directory);
    let absolute = std::path::absolute(path)?;
    Ok(absolute
        .strip_prefix(std::path::absolute(directory)?)
        .map(Path::to_owned)
        .unwrap_or(absolute))
}

fn store(path: &Path, text: &str, force: bool) -> Result<(), Failure> {
    let mut options = OpenOptions::new();
    options.write(true);
    if force {
        options.create(true).truncate(true);
    } else {
        options.create_new(true);
    }
    let shown = path.display();
    let written = options.open(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => {
            Failure::usage(format!("{shown} exists: give --force to replace it, or another name"))
        }
        _ => Failure::work(format!("cannot write {shown}: {error}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        init: Init,
    }

    fn written(role: NodeRole, arguments: &[&str]) -> Result<String, String> {
        let line = Line::try_parse_from(["init"].iter().chain(arguments)).unwrap();
        write(role, &line.init).map_err(|failure| failure.to_string())
    }

    #[test]
    fn written_configuration_is_valid_once_its_certificates_exist() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
        for role in NodeRole::ALL {
            let file = path(&format!("{role}.toml"));
            let name = format!("{role} \"1\"");
            let gateway = "/dns4/gateway.example.org/tcp/4001";
            let arguments = ["-n", &name, "-o", &file, "--gateway", gateway];
            let next = written(role, &arguments).unwrap();
            assert!(next.starts_with("put the certificates at "), "{next}");
            let error = hypha_config::check(role, Path::new(&file), &[], &Flags::default());
            assert_eq!(error.unwrap_err().iter().count(), 3);
            for what in ["cert", "key", "trust"] {
                std::fs::write(path(&format!("{name}-{what}.pem")), "").unwrap();
            }
            hypha_config::check(role, Path::new(&file), &[], &Flags::default()).unwrap();
            let again = written(role, &arguments).unwrap_err();
            assert!(again.contains("give --force"), "{again}");
            assert_eq!(written(role, &[&arguments[..], &["--force"]].concat()).unwrap(), "");
        }
    }

    #[test]
    fn relative_paths_still_name_the_same_file() {
        let here = std::env::current_dir().unwrap();
        let seen = |directory: &str, path: &str| {
            relative_to(Path::new(directory), Path::new(path)).unwrap()
        };
        assert_eq!(seen("", "a.pem"), Path::new("a.pem"));
        assert_eq!(seen(".", "./a.pem"), Path::new("a.pem"));
        assert_eq!(seen("certs", "certs/a.pem"), Path::new("a.pem"));
        assert_eq!(seen("etc", "certs/a.pem"), here.join("certs/a.pem"));
        assert_eq!(seen("etc", "/x/a.pem"), Path::new("/x/a.pem"));
    }

    #[test]
    fn a_bad_address_or_name_writes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("x.toml");
        let output = file.to_str().unwrap();
        let error =
            written(NodeRole::Worker, &["-n", "w", "-o", output, "--gateway", "10.0.0.1:4001"]);
        assert!(error.unwrap_err().starts_with("--gateway: malformed address: expected "));
        let error = written(NodeRole::Worker, &["-n", "../w", "-o", output]);
        assert!(error.unwrap_err().starts_with("--name: "));
        assert!(!file.exists());
    }
}
