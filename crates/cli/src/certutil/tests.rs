//! The commands in the order in which an operator runs them.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;
use hypha_pki::inspect::{PemItem, inspect};
use hypha_pki::{CertificateFiles, LoadError, Pki};

use super::Command;
use crate::usage::Failure;

#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

struct CertificateDirectory(tempfile::TempDir);

impl CertificateDirectory {
    /// With a root, and the organisation `Acme Corp`.
    fn new() -> CertificateDirectory {
        let dir = CertificateDirectory(tempfile::tempdir().unwrap());
        dir.run("root -o operator -d @").unwrap();
        dir.run("org --root-cert @operator-root-ca-cert.pem --root-key @operator-root-ca-key.pem -o Acme_Corp -d @")
            .unwrap();
        dir
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `@` stands for the directory, `_` in an argument for a space.
    fn run(&self, line: &str) -> Result<(), Failure> {
        let dir = format!("{}/", self.0.path().display());
        let arguments = line.split(' ').map(|word| match word.strip_prefix('@') {
            Some(rest) => format!("{dir}{rest}"),
            None => word.replace('_', " "),
        });
        let arguments = std::iter::once("certutil".to_owned()).chain(arguments);
        super::run(Line::try_parse_from(arguments).unwrap().command)
    }

    fn node(&self, more: &str) -> Result<(), Failure> {
        let authority = "--ca-cert @Acme-Corp-ca-cert.pem --ca-key @Acme-Corp-ca-key.pem";
        self.run(&format!("node {authority} -n w-1 --role worker {more}"))
    }

    fn files(&self, directory: &str) -> CertificateFiles {
        CertificateFiles {
            cert_pem: self.path(directory).join("w-1-cert.pem"),
            key_pem: self.path(directory).join("w-1-key.pem"),
            trust_pem: self.path(directory).join("w-1-trust.pem"),
            crls_pem: Some(self.path("Acme-Corp-ca-crl.pem")),
            learned_crls: None,
            require_crl: false,
        }
    }

    #[track_caller]
    fn refused(&self, outcome: Result<(), Failure>, expected: &str) {
        let text = outcome.unwrap_err().to_string();
        assert!(text.contains(expected), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn certificates_from_root_to_node_let_the_node_start() {
    let dir = CertificateDirectory::new();
    dir.node("-s 127.0.0.1 -d @deep/w").unwrap();
    assert_eq!(names(&dir.path("deep/w")), ["w-1-cert.pem", "w-1-key.pem", "w-1-trust.pem"]);
    let pki = Pki::load(&dir.files("deep/w")).unwrap();
    assert_eq!(pki.own().organisation, "Acme Corp");
    assert_eq!(pki.own().names, ["w-1", "127.0.0.1"]);
}

#[cfg(unix)]
#[test]
fn keys_are_readable_by_their_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let dir = CertificateDirectory::new();
    dir.node("-d @").unwrap();
    for name in names(dir.0.path()) {
        let mode = fs::metadata(dir.path(&name)).unwrap().permissions().mode() & 0o077;
        let text = fs::read_to_string(dir.path(&name)).unwrap();
        assert_eq!(text.contains("PRIVATE KEY"), name.ends_with("-key.pem"), "{name}");
        assert!(mode == 0 || !name.ends_with("-key.pem"), "{name}: {mode:o}");
    }
}

#[test]
fn existing_files_are_overwritten_only_with_force() {
    let dir = CertificateDirectory::new();
    dir.node("-d @w").unwrap();
    let directory = dir.path("w");
    fs::remove_file(directory.join("w-1-cert.pem")).unwrap();
    let key = fs::read(directory.join("w-1-key.pem")).unwrap();
    dir.refused(dir.node("-d @w"), "w-1-key.pem exists, nothing was written: use --force");
    assert_eq!(names(&directory), ["w-1-key.pem", "w-1-trust.pem"]);
    assert_eq!(fs::read(directory.join("w-1-key.pem")).unwrap(), key);

    dir.node("-d @w --force").unwrap();
    assert_eq!(names(&directory), ["w-1-cert.pem", "w-1-key.pem", "w-1-trust.pem"]);
    assert_ne!(fs::read(directory.join("w-1-key.pem")).unwrap(), key);
}

#[test]
fn a_renewal_keeps_the_peer_id() {
    let dir = CertificateDirectory::new();
    dir.node("-d @w").unwrap();
    let before = Pki::load(&dir.files("w")).unwrap();
    dir.node("-d @w --key @w/w-1-key.pem --force").unwrap();
    let after = Pki::load(&dir.files("w")).unwrap();
    assert_eq!(after.own().peer_id, before.own().peer_id);
    assert_ne!(after.own().serial, before.own().serial);
}

#[test]
fn a_revoked_node_does_not_start() {
    let dir = CertificateDirectory::new();
    dir.node("-d @w").unwrap();
    let authority = "--ca-cert @Acme-Corp-ca-cert.pem --ca-key @Acme-Corp-ca-key.pem";
    let revoke = format!("revoke {authority} --crl @Acme-Corp-ca-crl.pem");
    dir.run(&format!("{revoke} @w/w-1-cert.pem")).unwrap();
    assert!(matches!(Pki::load(&dir.files("w")), Err(LoadError::Own { .. })));

    let list = fs::read(dir.path("Acme-Corp-ca-crl.pem")).unwrap();
    let foreign = dir.run(&format!("{revoke} @operator-root-ca-cert.pem"));
    dir.refused(foreign, "operator-root-ca-cert.pem: `operator root CA");
    assert_eq!(fs::read(dir.path("Acme-Corp-ca-crl.pem")).unwrap(), list);
    dir.run(&revoke).unwrap();
    let list = fs::read(dir.path("Acme-Corp-ca-crl.pem")).unwrap();
    match inspect(&list).unwrap().remove(0) {
        PemItem::Crl(parsed) => assert_eq!((parsed.number, parsed.revoked.len()), (3, 1)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn invalid_arguments_are_refused_in_one_line() {
    let dir = CertificateDirectory::new();
    dir.refused(dir.run("root -o ../x -d @"), "cannot name an organisation");
    dir.refused(dir.run("show @Acme-Corp-ca-key.pem"), "a private key, which is never shown");
    dir.refused(dir.run("show @missing.pem"), "missing.pem");
    dir.refused(dir.node("-s 1.2.3.4/8 -d @w"), "neither a host name nor an IP address");
    dir.refused(dir.node("--trust @Acme-Corp-ca-key.pem -d @w"), "certificates and nothing else");
    dir.run("root -o other -d @").unwrap();
    dir.refused(dir.node("--trust @other-root-ca-cert.pem -d @w"), "do not match");
    fs::rename(dir.path("Acme-Corp-ca-trust.pem"), dir.path("elsewhere.pem")).unwrap();
    dir.refused(dir.node("-d @w"), "with --trust");
    assert!(!dir.path("w").exists());
    dir.node("--trust @elsewhere.pem -d @w").unwrap();
}
