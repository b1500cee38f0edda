//! What this machine's kernel can do to confine a program, and what it leaves open.

use std::fmt;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{Confinement, ProcessConfig};
use crate::launcher::{LAUNCH_VARIABLE, LaunchSpec, REHEARSAL_STAGE};

/// The first Landlock that keeps files from being truncated, in Linux 6.2.
const LANDLOCK_TRUNCATION: u32 = 3;
/// The first that confines signals and abstract sockets, in Linux 6.12.
const LANDLOCK_SCOPES: u32 = 6;
/// The first that confines sockets with a path, in Linux 7.1.
const LANDLOCK_SOCKETS: u32 = 9;

/// How the programs of an executor are confined on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// Whether programs get a root directory of their own, and if not, why.
    pub own_root: Result<(), String>,
    /// The version of Landlock's interface; 0 without Landlock.
    pub landlock_abi: u32,
}

/// Why an executor's programs cannot be confined as its configuration requires.
#[derive(Debug, Error)]
pub enum SandboxError {
    /// The launcher could not try it.
    #[error("cannot find out how programs can be confined here: {0}")]
    Rehearsal(String),
    /// Neither namespaces nor a Landlock that suffices.
    #[error(
        "programs cannot be confined here. `confinement = \"required\"` needs user and mount namespaces ({own_root}) \
         or Landlock 3 of Linux 6.2 ({}); provide one of them, or set `confinement` to `best-effort`",
        Landlock(*.landlock_abi)
    )]
    NotConfined {
        /// Why there is no root directory of its own.
        own_root: String,
        /// The version of Landlock's interface.
        landlock_abi: u32,
    },
    /// Namespaces are required.
    #[error(
        "`confinement = \"namespaces\"` needs user and mount namespaces, and this machine provides none: \
         {0}; enable them, or set `confinement` to `required`"
    )]
    NoNamespaces(String),
    /// Only a network namespace keeps a program from the network.
    #[error(
        "`network = false` needs a network namespace, and this machine provides none: {0}; enable user \
         namespaces, set `network` to `true`, or set `confinement` to `best-effort`"
    )]
    Network(String),
}

struct Landlock(u32);

impl fmt::Display for Landlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("no Landlock"),
            abi => write!(f, "Landlock {abi}"),
        }
    }
}

impl Sandbox {
    /// Rehearses the launch of a program of `config`, below `work_root`.
    pub(super) fn detect(
        config: &ProcessConfig,
        work_root: &Path,
    ) -> Result<Sandbox, SandboxError> {
        let launch = LaunchSpec {
            command: config.command.clone(),
            args: Vec::new(),
            environment: Default::default(),
            directory: work_root.to_owned(),
            cgroup: None,
            confinement: config.confinement,
            own_root: true,
            network: config.network,
            read: config.read.clone(),
            write: config.write.clone(),
            gpu: true,
            cpus: Vec::new(),
            open_files: config.limits.open_files,
            file_bytes: None,
            address_space_bytes: None,
        };
        rehearse(config, &launch)
            .map_err(|error| SandboxError::Rehearsal(error.to_string()))
            .and_then(|sandbox| sandbox.map_err(SandboxError::Rehearsal))
    }

    /// Whether this is what `confinement` and `network` require.
    pub(super) fn check(
        &self,
        confinement: Confinement,
        network: bool,
    ) -> Result<(), SandboxError> {
        let Err(own_root) = &self.own_root else { return Ok(()) };
        match confinement {
            Confinement::BestEffort => Ok(()),
            Confinement::Namespaces => Err(SandboxError::NoNamespaces(own_root.clone())),
            Confinement::Required if self.landlock_abi < LANDLOCK_TRUNCATION => {
                let landlock_abi = self.landlock_abi;
                Err(SandboxError::NotConfined { own_root: own_root.clone(), landlock_abi })
            }
            Confinement::Required if !network => Err(SandboxError::Network(own_root.clone())),
            Confinement::Required => Ok(()),
        }
    }

    /// What a program can do here although it should not.
    pub(super) fn gaps(&self, network: bool) -> Vec<&'static str> {
        let own_root = self.own_root.is_ok();
        let all = [
            (!own_root && self.landlock_abi == 0, "read and write every file of the worker's user"),
            (
                !own_root && (1..LANDLOCK_TRUNCATION).contains(&self.landlock_abi),
                "truncate every file of the worker's user",
            ),
            (!own_root, "change modes, owners and dates of files of the worker's user"),
            (
                !own_root && self.landlock_abi < LANDLOCK_SOCKETS,
                "connect to unix sockets of other programs",
            ),
            (
                (!own_root || network) && self.landlock_abi < LANDLOCK_SCOPES,
                "connect to abstract unix sockets of other programs",
            ),
            (
                self.landlock_abi < LANDLOCK_SCOPES,
                "send signals to other processes of the worker's user",
            ),
            (!own_root && !network, "use the network, although `network` is off"),
        ];
        all.into_iter().filter(|(open, _)| *open).map(|(_, gap)| gap).collect()
    }
}

impl fmt::Display for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let landlock = Landlock(self.landlock_abi);
        match &self.own_root {
            Ok(()) => write!(f, "a root directory of its own, and {landlock}"),
            Err(why) => write!(f, "{landlock}, and no root directory of its own ({why})"),
        }
    }
}

fn rehearse(config: &ProcessConfig, launch: &LaunchSpec) -> io::Result<Result<Sandbox, String>> {
    let output = Command::new(&config.launcher.program)
        .args(&config.launcher.args)
        .arg(REHEARSAL_STAGE)
        .env_clear()
        .env(LAUNCH_VARIABLE, serde_json::to_string(launch)?)
        .stdin(Stdio::null())
        .output()?;
    if output.status.success() {
        return Ok(Ok(serde_json::from_slice(&output.stdout)?));
    }
    Ok(Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(own_root: bool, landlock_abi: u32) -> Sandbox {
        let own_root = if own_root { Ok(()) } else { Err("they are switched off".to_owned()) };
        Sandbox { own_root, landlock_abi }
    }

    #[test]
    fn each_confinement_requires_what_it_names() {
        use Confinement::{BestEffort, Namespaces, Required};
        let check = |own_root, landlock_abi, confinement, network, expected: Option<&str>| {
            let error = sandbox(own_root, landlock_abi).check(confinement, network).err();
            let error = error.map(|error| error.to_string());
            let matches = match (&error, expected) {
                (None, None) => true,
                (Some(error), Some(expected)) => error.contains(expected),
                _ => false,
            };
            assert!(matches, "{own_root} {landlock_abi} {confinement:?} {network}: {error:?}");
        };
        check(true, 0, Required, true, None);
        check(true, 0, Namespaces, false, None);
        check(false, 3, Required, true, None);
        check(false, 3, Required, false, Some("`network = false` needs a network namespace"));
        check(
            false,
            2,
            Required,
            true,
            Some("(they are switched off) or Landlock 3 of Linux 6.2 (Landlock 2)"),
        );
        check(false, 0, Required, true, Some("(no Landlock)"));
        check(false, 9, Namespaces, true, Some("they are switched off"));
        check(false, 0, BestEffort, false, None);
    }

    #[test]
    fn gaps_are_named_exactly() {
        let check = |own_root, landlock_abi, network, expected: &[&str]| {
            let gaps = sandbox(own_root, landlock_abi).gaps(network);
            let same = gaps.len() == expected.len()
                && gaps.iter().zip(expected).all(|(gap, part)| gap.contains(part));
            assert!(same, "{own_root} {landlock_abi} {network}: {gaps:?}");
        };
        check(true, 6, true, &[]);
        check(true, 5, true, &["abstract", "signals"]);
        check(true, 5, false, &["signals"]);
        check(false, 9, true, &["modes"]);
        check(false, 6, true, &["modes", "to unix sockets"]);
        check(false, 3, false, &["modes", "to unix sockets", "abstract", "signals", "network"]);
        check(false, 2, true, &["truncate", "modes", "to unix sockets", "abstract", "signals"]);
        check(
            false,
            0,
            true,
            &["read and write", "modes", "to unix sockets", "abstract", "signals"],
        );
    }
}
