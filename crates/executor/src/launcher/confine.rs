//! Applies the sandbox to this process, then becomes the program.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible, LandlockStatus, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, path_beneath_rules,
};
use rustix::process::{
    Resource, Rlimit, Signal, set_parent_process_death_signal, setrlimit, setsid,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, CpuSet, clear_ambient_capability_set, sched_setaffinity,
    set_capabilities, set_no_new_privs,
};
use thiserror::Error;

use super::grants::{Access, Grants};
use super::own_root::{self, OwnRootError};
use super::{LAUNCH_VARIABLE, LaunchSpec, cgroup};
use crate::process::{Confinement, Sandbox};

/// The newest set of rights that we can grant; a right that the kernel does not know is not restricted.
const FILE_RIGHTS: ABI = ABI::V9;
/// The first kernels (6.2) that keep a file from being truncated: with fewer rights, what is outside can be
/// destroyed.
const LEAST_RIGHTS: ABI = ABI::V3;
/// The first kernels that confine signals and abstract sockets.
const SCOPES: ABI = ABI::V6;
/// The first kernels that confine TCP.
const TCP: ABI = ABI::V4;

#[derive(Debug, Error)]
pub(super) enum ConfineError {
    #[error("the launcher was given nothing to launch")]
    NoLaunch,
    #[error("what to launch cannot be read: {0}")]
    BadLaunch(#[from] serde_json::Error),
    #[error("cannot {what}: {error}")]
    System { what: &'static str, error: io::Error },
    #[error(transparent)]
    OwnRoot(#[from] OwnRootError),
    #[error("the file system cannot be confined: {0}")]
    Landlock(#[from] RulesetError),
    #[error("this kernel has no Landlock")]
    NoLandlock,
    #[error("cannot start `{command}`: {error}")]
    Start { command: String, error: io::Error },
}

/// Returns only if it failed.
pub(super) fn become_program() -> ConfineError {
    match prepare() {
        Ok(launch) => {
            let error = Command::new(&launch.command)
                .args(&launch.args)
                .env_clear()
                .envs(&launch.environment)
                .current_dir(&launch.directory)
                .exec();
            ConfineError::Start { command: launch.command.display().to_string(), error }
        }
        Err(error) => error,
    }
}

/// Reports what this machine can do for the launch in the environment, which it rehearses: only the program is
/// not started.
pub(super) fn rehearse() -> Result<Sandbox, ConfineError> {
    let launch = launch_spec()?;
    let grants = Grants::of(&launch);
    let own_root = own_root::enter(&grants.resolved(), &launch.directory, launch.network);
    set_no_new_privs(true).map_err(|error| failed("give up new privileges", error))?;
    let best_effort = LaunchSpec { own_root: true, ..launch };
    let landlock_abi = match confine_files(&best_effort, &grants)? {
        LandlockStatus::Available { effective_abi, .. } => effective_abi as u32,
        _ => 0,
    };
    Ok(Sandbox { own_root: own_root.map_err(|error| error.to_string()), landlock_abi })
}

fn launch_spec() -> Result<LaunchSpec, ConfineError> {
    let text = std::env::var_os(LAUNCH_VARIABLE).ok_or(ConfineError::NoLaunch)?;
    Ok(serde_json::from_slice(text.as_encoded_bytes())?)
}

/// The order matters: each step needs rights that a later one gives up.
fn prepare() -> Result<LaunchSpec, ConfineError> {
    let launch = launch_spec()?;
    if let Some(path) = &launch.cgroup {
        // First: memory that is used from here on counts.
        cgroup::enter(path)
            .map_err(|error| ConfineError::System { what: "enter the control group", error })?;
    }
    setsid().map_err(|error| failed("begin a session", error))?;
    let grants = Grants::of(&launch);
    if launch.own_root {
        own_root::enter(&grants.resolved(), &launch.directory, launch.network)?;
    }
    // A supervisor that is killed from outside cannot clean up: at least the program dies with it.
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| failed("follow the supervisor", error))?;
    pin(&launch.cpus)?;
    limit(&launch)?;
    set_no_new_privs(true).map_err(|error| failed("give up new privileges", error))?;
    drop_capabilities()?;
    confine_files(&launch, &grants)?;
    Ok(launch)
}

fn failed(what: &'static str, error: rustix::io::Errno) -> ConfineError {
    ConfineError::System { what, error: error.into() }
}

fn pin(cpus: &[usize]) -> Result<(), ConfineError> {
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
    sched_setaffinity(None, &set).map_err(|error| failed("keep to the given CPUs", error))
}

fn limit(launch: &LaunchSpec) -> Result<(), ConfineError> {
    let set = |resource, most: u64| {
        // Any process may lower a limit and few may raise one: never ask for more than there is.
        let most = rustix::process::getrlimit(resource).maximum.map_or(most, |max| most.min(max));
        let both = Rlimit { current: Some(most), maximum: Some(most) };
        setrlimit(resource, both).map_err(|error| failed("limit resources", error))
    };
    // A core file would contain the attempt's input.
    set(Resource::Core, 0)?;
    set(Resource::Nofile, launch.open_files)?;
    if let Some(bytes) = launch.file_bytes {
        set(Resource::Fsize, bytes)?;
    }
    // CUDA reserves more addresses than any machine has memory.
    if let Some(bytes) = launch.address_space_bytes.filter(|_| !launch.gpu) {
        set(Resource::As, bytes)?;
    }
    Ok(())
}

/// A worker that runs as root must not pass that on to its attempts. With no_new_privs, an exec regains none.
fn drop_capabilities() -> Result<(), ConfineError> {
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    clear_ambient_capability_set()
        .and_then(|()| set_capabilities(None, sets))
        .map_err(|error| failed("drop capabilities", error))
}

/// Applies Landlock, beneath a root of its own or instead of one.
fn confine_files(launch: &LaunchSpec, grants: &Grants) -> Result<LandlockStatus, ConfineError> {
    let required = !launch.own_root && launch.confinement != Confinement::BestEffort;
    let least = if required { CompatLevel::HardRequirement } else { CompatLevel::BestEffort };
    let read = AccessFs::from_read(FILE_RIGHTS);
    let all = AccessFs::from_all(FILE_RIGHTS);
    let on_device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    let mut ruleset = Ruleset::default()
        .set_compatibility(least)
        .handle_access(AccessFs::from_all(LEAST_RIGHTS))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .scope(Scope::from_all(SCOPES))?;
    // In a network of its own a program may use TCP as it likes.
    if !launch.network && !launch.own_root {
        ruleset = ruleset.handle_access(AccessNet::from_all(TCP))?;
    }
    let status = ruleset
        .create()?
        .add_rules(path_beneath_rules(grants.with(Access::Read), read))?
        .add_rules(path_beneath_rules(grants.with(Access::Device), on_device))?
        .add_rules(path_beneath_rules(grants.with(Access::Write), all))?
        .restrict_self()?;
    match status.ruleset {
        RulesetStatus::NotEnforced if required => Err(ConfineError::NoLandlock),
        _ => Ok(status.landlock),
    }
}
