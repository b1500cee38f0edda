//! `hypha certutil`: an operator's certificates, from the root to a node.

mod files;
mod show;
#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::{Args, Subcommand};
use hypha_model::NodeRole;
use hypha_pki::inspect::{PemItem, inspect};
use hypha_pki::issue::{self, Authority, IssueError, IssuedCertificate, MAX_DAYS, Validity};
use hypha_pki::{Material, Pki, Zeroizing, file_stem};

use crate::usage::{Failure, print, read_text};
use files::FileSet;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Create the root certificate of a network, which all of its nodes trust
    Root(RootArguments),
    /// Create the certificate authority of an organisation, and its empty revocation list
    Org(OrgArguments),
    /// Create a node's key and certificate; the certificate names the role of the node
    Node(NodeArguments),
    /// Revoke certificates: update the revocation list of the authority that issued them
    Revoke(RevokeArguments),
    /// Show the contents of certificates and revocation lists; nothing is verified
    Show {
        /// PEM files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

#[derive(Args)]
pub(crate) struct RootArguments {
    /// The operator of the network
    #[arg(short, long, value_name = "ORG", visible_alias = "organization")]
    organisation: String,
    #[command(flatten)]
    output: Output,
    /// Days for which it is valid
    #[arg(long, default_value_t = issue::ROOT_DAYS, value_parser = days())]
    days: u32,
}

#[derive(Args)]
pub(crate) struct OrgArguments {
    /// The root's certificate
    #[arg(long, value_name = "FILE")]
    root_cert: PathBuf,
    /// The root's private key
    #[arg(long, value_name = "FILE")]
    root_key: PathBuf,
    /// The organisation
    #[arg(short, long, value_name = "ORG", visible_alias = "organization")]
    organisation: String,
    #[command(flatten)]
    output: Output,
    /// Days for which it is valid; never longer than the root
    #[arg(long, default_value_t = issue::ORGANISATION_DAYS, value_parser = days())]
    days: u32,
}

#[derive(Args)]
pub(crate) struct NodeArguments {
    /// The organisation's certificate
    #[arg(long, value_name = "FILE")]
    ca_cert: PathBuf,
    /// The organisation's private key
    #[arg(long, value_name = "FILE")]
    ca_key: PathBuf,
    /// The roots that the node will trust [default: the `…-trust.pem` beside the organisation's
    /// `…-cert.pem`]
    #[arg(long, value_name = "FILE")]
    trust: Option<PathBuf>,
    /// The node
    #[arg(short, long)]
    name: String,
    /// The role of the node: gateway, scheduler, worker or data
    #[arg(long)]
    role: NodeRole,
    /// A further host name or IP address of the node; may be repeated
    #[arg(short, long = "san", value_name = "SAN")]
    sans: Vec<String>,
    #[command(flatten)]
    output: Output,
    /// Days for which it is valid; never longer than the organisation's
    #[arg(long, default_value_t = issue::NODE_DAYS, value_parser = days())]
    days: u32,
    /// Renew: certify this private key instead of a new one, so that the peer id stays and a running node
    /// picks up the certificate
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct RevokeArguments {
    /// The certificate of the authority that issued the certificates to revoke
    #[arg(long, value_name = "FILE")]
    ca_cert: PathBuf,
    /// Its private key
    #[arg(long, value_name = "FILE")]
    ca_key: PathBuf,
    /// The revocation list to update; it is created if it does not exist
    #[arg(long, value_name = "FILE")]
    crl: PathBuf,
    /// The certificates to revoke; without any, the list is written unchanged, under a new number
    #[arg(value_name = "CERT")]
    certificates: Vec<PathBuf>,
}

#[derive(Args)]
struct Output {
    /// The directory to write to; it is created if it does not exist
    #[arg(short, long = "dir", value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    /// Overwrite files that exist, private keys too
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(command: Command) -> Result<(), Failure> {
    let now = SystemTime::now();
    match command {
        Command::Root(arguments) => root(&arguments, now),
        Command::Org(arguments) => org(&arguments, now),
        Command::Node(arguments) => node(&arguments, now),
        Command::Revoke(arguments) => revoke(&arguments, now),
        Command::Show { files } => show::run(&files, now),
    }
}

fn days() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(MAX_DAYS))
}

fn root(arguments: &RootArguments, now: SystemTime) -> Result<(), Failure> {
    let validity = Validity::days(now, arguments.days);
    let root = issue::root(&arguments.organisation, validity).map_err(refused)?;
    let stem = file_stem(&arguments.organisation);
    let mut files = FileSet::new(&arguments.output.directory);
    files.add(format!("{stem}-root-ca-cert.pem"), root.cert_pem());
    files.add_secret(format!("{stem}-root-ca-key.pem"), root.key_pem());
    print(&files.write(arguments.output.force)?)
}

fn org(arguments: &OrgArguments, now: SystemTime) -> Result<(), Failure> {
    let root = authority(&arguments.root_cert, &arguments.root_key)?;
    let validity = Validity::days(now, arguments.days);
    let organisation =
        issue::organisation(&root, &arguments.organisation, validity).map_err(refused)?;
    let stem = file_stem(&arguments.organisation);
    let mut files = FileSet::new(&arguments.output.directory);
    files.add(format!("{stem}-ca-cert.pem"), organisation.cert_pem());
    files.add_secret(format!("{stem}-ca-key.pem"), organisation.key_pem());
    files.add(format!("{stem}-ca-trust.pem"), root.cert_pem());
    let list = issue::empty_crl(&organisation, now).map_err(refused)?;
    files.add(format!("{stem}-ca-crl.pem"), list);
    print(&files.write(arguments.output.force)?)
}

fn node(arguments: &NodeArguments, now: SystemTime) -> Result<(), Failure> {
    let authority = authority(&arguments.ca_cert, &arguments.ca_key)?;
    let trust = trust(arguments, &authority)?;
    let issued = issue_node(arguments, &authority, now)?;
    // Refuse here what a node would refuse to start with.
    let material = Material::from_pem(&issued.cert_pem, &issued.key_pem, &trust, None);
    Pki::from_material(&material, now).map_err(|error| {
        let what = "the organisation's certificate and the trusted roots do not match";
        Failure::usage(format!("{what}: {error}"))
    })?;

    let name = &arguments.name;
    let mut files = FileSet::new(&arguments.output.directory);
    files.add(format!("{name}-cert.pem"), issued.cert_pem);
    if arguments.key.is_none() {
        files.add_secret(format!("{name}-key.pem"), issued.key_pem);
    }
    files.add(format!("{name}-trust.pem"), trust);
    let written = files.write(arguments.output.force)?;
    print(&format!("{written}peer id {}\n", issued.certificate.peer_id))
}

fn issue_node(
    arguments: &NodeArguments,
    authority: &Authority,
    now: SystemTime,
) -> Result<IssuedCertificate, Failure> {
    let NodeArguments { name, role, sans, .. } = arguments;
    let validity = Validity::days(now, arguments.days);
    let issued = match &arguments.key {
        None => issue::node(authority, name, *role, sans, validity),
        Some(key) => issue::renew(authority, &read_secret(key)?, name, *role, sans, validity),
    };
    issued.map_err(refused)
}

/// The roots to give to a node: those that came with the organisation's certificate.
fn trust(arguments: &NodeArguments, authority: &Authority) -> Result<String, Failure> {
    if let Some(trust) = &arguments.trust {
        return read_certificates(trust);
    }
    if authority.is_root() {
        return Ok(authority.cert_pem());
    }
    let beside = arguments
        .ca_cert
        .to_str()
        .and_then(|path| path.strip_suffix("-cert.pem"))
        .map(|stem| PathBuf::from(format!("{stem}-trust.pem")));
    match beside {
        Some(path) if path.exists() => read_certificates(&path),
        Some(path) => Err(Failure::usage(format!(
            "{} does not exist: name the roots that the node will trust with --trust",
            path.display()
        ))),
        None => Err(Failure::usage("name the roots that the node will trust with --trust")),
    }
}

/// The text goes into a file that every user may read.
fn read_certificates(path: &Path) -> Result<String, Failure> {
    let text = read_text(path)?;
    let named = |problem: &dyn Display| Failure::usage(format!("{}: {problem}", path.display()));
    let items = inspect(text.as_bytes()).map_err(|error| named(&error))?;
    match items.iter().all(|item| matches!(item, PemItem::Certificate(_))) {
        true => Ok(text),
        false => Err(named(&"it must contain certificates and nothing else")),
    }
}

fn revoke(arguments: &RevokeArguments, now: SystemTime) -> Result<(), Failure> {
    let authority = authority(&arguments.ca_cert, &arguments.ca_key)?;
    let existing = match arguments.crl.exists() {
        true => Some(read_text(&arguments.crl)?),
        false => None,
    };
    let mut texts = Vec::new();
    for path in &arguments.certificates {
        let text = read_text(path)?;
        // One at a time first, so that a refusal names the file.
        issue::revoke(&authority, None, &[&text], now)
            .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
        texts.push(text);
    }
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let outcome = issue::revoke(&authority, existing.as_deref(), &texts, now)
        .map_err(|error| Failure::usage(format!("{}: {error}", arguments.crl.display())))?;
    files::replace(&arguments.crl, &outcome.crl_pem)?;

    let mut report = String::new();
    for serial in &outcome.revoked {
        report.push_str(&format!("revoked serial {serial}\n"));
    }
    for serial in &outcome.already {
        report.push_str(&format!("serial {serial} was already revoked\n"));
    }
    print(&format!("{report}wrote {}\n", arguments.crl.display()))
}

fn authority(cert: &Path, key: &Path) -> Result<Authority, Failure> {
    let (cert_text, key_text) = (read_text(cert)?, read_secret(key)?);
    Authority::from_pem(&cert_text, &key_text).map_err(|error| {
        let files = format!("{} and {}", cert.display(), key.display());
        Failure::usage(format!("{files}: {error}"))
    })
}

fn read_secret(path: &Path) -> Result<Zeroizing<String>, Failure> {
    Ok(Zeroizing::new(read_text(path)?))
}

/// Every error but a failure of the encoder is caused by the arguments.
fn refused(error: IssueError) -> Failure {
    match error {
        IssueError::Encode(_) => Failure::work(error),
        _ => Failure::usage(error),
    }
}
