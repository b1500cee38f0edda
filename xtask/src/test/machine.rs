//! Packages and capabilities of the machine that tests need.

use std::path::Path;
use std::process::Command;

use anyhow::bail;

use crate::cargo::{self, succeeds};

/// A Debian package that tests need, and why.
struct DebianPackage {
    name: &'static str,
    why: &'static str,
}

/// Without these some tests are skipped, and print that.
const OPTIONAL_PACKAGES: &[DebianPackage] =
    &[DebianPackage { name: "valgrind", why: "counting instructions" }];

/// The crates bring or build everything else that they need.
const DEBIAN_PACKAGES: &[DebianPackage] = &[
    DebianPackage { name: "curl", why: "the examples of the documents" },
    DebianPackage { name: "iproute2", why: "hosts in network namespaces" },
    DebianPackage { name: "nftables", why: "NAT and partitions between these hosts" },
    DebianPackage { name: "python3", why: "programs that workers run, and clients" },
    DebianPackage { name: "python3-venv", why: "an environment for clients written in Python" },
];

/// Whether this machine has a capability; None if there is no such capability.
///
/// A capability is something that some machines have and others cannot get. A test may be skipped because one
/// of these is missing, and for no other reason.
pub(super) fn has_capability(name: &str) -> Option<bool> {
    match name {
        // As this user, without a user namespace around it: that is what `ip netns` needs too.
        "netns" => Some(succeeds("unshare", &["--net", "true"])),
        "userns" => Some(succeeds("unshare", &["--user", "--mount", "--map-root-user", "true"])),
        "gpu" => {
            Some(["/dev/nvidiactl", "/dev/nvidia0"].iter().any(|path| Path::new(path).exists()))
        }
        _ => None,
    }
}

/// Installs missing packages, and reports that.
pub(super) fn prepare(root: &Path) -> anyhow::Result<()> {
    let is_root = succeeds("sh", &["-c", "test \"$(id -u)\" = 0"]);
    let missing = missing_packages(DEBIAN_PACKAGES, is_installed);
    if !missing.is_empty() {
        install_packages(&missing, is_root)?;
    }
    let optional = missing_packages(OPTIONAL_PACKAGES, is_installed);
    if !optional.is_empty()
        && let Err(error) = install_packages(&optional, is_root)
    {
        println!("test: going on without: {error:#}");
    }
    if !cargo::has_plugin(root, "nextest") {
        println!("test: cargo-nextest is missing, installing it; this takes some minutes");
        let mut install = cargo::command(root);
        install.args(["install", "--locked", "cargo-nextest"]);
        if !cargo::run(&mut install)? {
            bail!("cannot install cargo-nextest; install it by hand and try again");
        }
    }
    Ok(())
}

fn missing_packages(
    wanted: &[DebianPackage],
    is_installed: impl Fn(&str) -> bool,
) -> Vec<&DebianPackage> {
    wanted.iter().filter(|package| !is_installed(package.name)).collect()
}

fn install_packages(missing: &[&DebianPackage], is_root: bool) -> anyhow::Result<()> {
    let names: Vec<_> = missing.iter().map(|package| package.name).collect();
    if !is_root {
        let reasons: Vec<_> =
            missing.iter().map(|package| format!("{} ({})", package.name, package.why)).collect();
        bail!(
            "the tests need {}; run `sudo apt-get install {}` or its like on your system",
            reasons.join(", "),
            names.join(" ")
        );
    }
    for package in missing {
        println!("test: installing {}: {}", package.name, package.why);
    }
    for (arguments, packages) in
        [(&["update"][..], &[][..]), (&["install", "-y", "--no-install-recommends"], &names)]
    {
        let mut apt = Command::new("apt-get");
        apt.args(arguments).args(packages).env("DEBIAN_FRONTEND", "noninteractive");
        if !cargo::run(&mut apt)? {
            bail!("`{}` failed; see above, and install by hand", cargo::shown(&apt));
        }
    }
    Ok(())
}

/// On a system without dpkg nothing counts as missing: the tests themselves will show it.
fn is_installed(package: &str) -> bool {
    let query = Command::new("dpkg-query")
        .args(["--show", "--showformat=${db:Status-Status}", package])
        .output();
    query.map_or(true, |output| output.stdout == b"installed")
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: &[DebianPackage] = &[
        DebianPackage { name: "iproute2", why: "network namespaces" },
        DebianPackage { name: "wrk", why: "load" },
    ];

    #[test]
    fn only_missing_packages_are_installed() {
        let missing = |installed: &[&str]| -> Vec<&str> {
            let found = missing_packages(WANTED, |name| installed.contains(&name));
            found.iter().map(|package| package.name).collect()
        };
        assert_eq!(missing(&[]), ["iproute2", "wrk"]);
        assert_eq!(missing(&["iproute2"]), ["wrk"]);
        assert_eq!(missing(&["iproute2", "wrk"]), [""; 0]);
    }

    #[test]
    fn without_root_the_error_says_what_to_install() {
        let missing: Vec<_> = WANTED.iter().collect();
        let error = install_packages(&missing, false).expect_err("not root").to_string();
        assert!(error.contains("wrk (load)"), "{error}");
        assert!(error.contains("apt-get install iproute2 wrk"), "{error}");
    }

    #[test]
    fn capabilities_are_probed_or_unknown() {
        assert!(has_capability("netns").is_some() && has_capability("gpu").is_some());
        assert_eq!(has_capability("sunshine"), None);
        assert!(succeeds("true", &[]));
        assert!(!succeeds("false", &[]));
        assert!(!succeeds("no-such-program-anywhere", &[]));
    }
}
