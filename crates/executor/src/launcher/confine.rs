//! Applies the sandbox to this process, then becomes the program.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus, Scope, path_beneath_rules,
};
use rustix::process::{
    Resource, Rlimit, Signal, set_parent_process_death_signal, setrlimit, setsid,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, CpuSet, clear_ambient_capability_set, sched_setaffinity,
    set_capabilities, set_no_new_privs,
};
use thiserror::Error;

use super::{LAUNCH_VARIABLE, LaunchSpec, cgroup};
use crate::process::Confinement;

/// Paths that programs of any kind need to read. Of `/etc` only files without secrets: a node's keys may be
/// there.
const SYSTEM_READ: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/proc",
    "/sys",
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/gai.conf",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/locale.alias",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/pki/ca-trust",
    "/etc/pki/tls/certs",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
];
/// Devices without state that one attempt could leave to another.
const PLAIN_DEVICES: &[&str] =
    &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];
/// The prefix of the GPU driver's devices.
const GPU_DEVICE_PREFIX: &str = "nvidia";
/// The newest set of rights that we can grant; a right that the kernel does not know is not restricted.
const FILE_RIGHTS: ABI = ABI::V5;
/// Rights that every kernel with Landlock knows; without them there is no sandbox.
const LEAST_RIGHTS: ABI = ABI::V1;
/// The first kernels that confine signals and abstract sockets.
const SCOPES: ABI = ABI::V6;

#[derive(Debug, Error)]
pub(super) enum ConfineError {
    #[error("the launcher was given nothing to launch")]
    NoLaunch,
    #[error("what to launch cannot be read: {0}")]
    BadLaunch(#[from] serde_json::Error),
    #[error("cannot {what}: {error}")]
    System { what: &'static str, error: io::Error },
    #[error(
        "the file system cannot be confined: {0}; run a kernel with Landlock, or set \
         `confinement` to `best-effort`"
    )]
    Landlock(#[from] RulesetError),
    #[error(
        "this kernel has no Landlock, so the program could write anywhere; run one that has, or set \
         `confinement` to `best-effort`"
    )]
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

/// The order matters: each step needs rights that a later one gives up.
fn prepare() -> Result<LaunchSpec, ConfineError> {
    let text = std::env::var_os(LAUNCH_VARIABLE).ok_or(ConfineError::NoLaunch)?;
    let launch: LaunchSpec = serde_json::from_slice(text.as_encoded_bytes())?;
    if let Some(path) = &launch.cgroup {
        // First: memory that is used from here on counts.
        cgroup::enter(path)
            .map_err(|error| ConfineError::System { what: "enter the control group", error })?;
    }
    setsid().map_err(|error| failed("begin a session", error))?;
    // A supervisor that is killed from outside cannot clean up: at least the program dies with it.
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| failed("follow the supervisor", error))?;
    pin(&launch.cpus)?;
    limit(&launch)?;
    set_no_new_privs(true).map_err(|error| failed("give up new privileges", error))?;
    drop_capabilities()?;
    confine_files(&launch)?;
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

fn confine_files(launch: &LaunchSpec) -> Result<(), ConfineError> {
    let required = launch.confinement == Confinement::Required;
    let least = if required { CompatLevel::HardRequirement } else { CompatLevel::BestEffort };
    let program: Vec<&Path> = named_file(&launch.command).into_iter().collect();
    let plain = PLAIN_DEVICES.iter().map(PathBuf::from);
    let devices: Vec<PathBuf> = plain.chain(gpu_devices(launch.gpu)).collect();
    let own = std::iter::once(&launch.directory).chain(&launch.write);

    let read = AccessFs::from_read(FILE_RIGHTS);
    let all = AccessFs::from_all(FILE_RIGHTS);
    let on_device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    let status = Ruleset::default()
        .set_compatibility(least)
        .handle_access(AccessFs::from_all(LEAST_RIGHTS))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .scope(Scope::from_all(SCOPES))?
        .create()?
        .add_rules(path_beneath_rules(SYSTEM_READ, read))?
        .add_rules(path_beneath_rules(&launch.read, read))?
        .add_rules(path_beneath_rules(program, read))?
        .add_rules(path_beneath_rules(devices, on_device))?
        .add_rules(path_beneath_rules(own, all))?
        .restrict_self()?;
    match status.ruleset {
        RulesetStatus::NotEnforced if required => Err(ConfineError::NoLandlock),
        _ => Ok(()),
    }
}

/// The program's own file, which may be outside the system's directories.
fn named_file(command: &Path) -> Option<&Path> {
    (command.components().count() > 1 && command.is_file()).then_some(command)
}

/// All devices of the driver: which GPUs a program uses is chosen by `CUDA_VISIBLE_DEVICES`.
fn gpu_devices(wanted: bool) -> Vec<PathBuf> {
    let entries = wanted.then(|| std::fs::read_dir("/dev").ok()).flatten();
    let names = entries.into_iter().flatten().filter_map(Result::ok);
    let of_driver = names.filter(|entry| {
        entry.file_name().to_str().is_some_and(|name| name.starts_with(GPU_DEVICE_PREFIX))
    });
    of_driver.map(|entry| entry.path()).collect()
}
