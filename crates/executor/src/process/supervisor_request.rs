//! The request to the supervisor of a program.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Directory, ProcessState};
use crate::Attempt;
use crate::bridge::{Bridge, BridgeMode};
use crate::launcher::cgroup::CgroupSpec;
use crate::launcher::{LaunchSpec, SupervisorRequest};

/// The search path of programs: a node's own search path does not apply to attempts.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How the program is started for `attempt`, which is its only one or the first of several.
pub(super) fn supervisor_request(
    state: &ProcessState,
    attempt: &Attempt,
    mode: BridgeMode,
    directory: &Directory,
    bridge: &Bridge,
) -> SupervisorRequest {
    let config = &state.config;
    let limits = &config.limits;
    let memory_bytes = memory_limit(state, attempt);
    SupervisorRequest {
        launch: LaunchSpec {
            command: config.command.clone(),
            args: config.args.clone(),
            environment: environment(state, attempt, mode, directory, bridge),
            directory: directory.path().to_owned(),
            cgroup: None,
            confinement: config.confinement,
            own_root: state.sandbox.own_root.is_ok(),
            network: config.network,
            read: config.read.clone(),
            write: config.write.clone(),
            gpu: !attempt.devices.is_empty(),
            cpus: attempt.cpus.clone(),
            open_files: limits.open_files,
            file_bytes: limits.file_bytes,
            address_space_bytes: limits.address_space_bytes,
        },
        input: directory.input(),
        cgroup: state.cgroups.as_ref().map(|root| CgroupSpec {
            path: super::cgroups::attempt_group(root, directory),
            memory_bytes,
            processes: limits.processes,
            cpus: (!attempt.cpus.is_empty()).then_some(attempt.cpus.len() as u64),
        }),
        memory_bytes,
        processes: limits.processes,
        grace_ms: u64::try_from(limits.grace.as_millis()).unwrap_or(u64::MAX),
    }
}

/// The attempt's memory limit, or the executor's default.
pub(super) fn memory_limit(state: &ProcessState, attempt: &Attempt) -> Option<u64> {
    attempt.memory_bytes.or(state.config.limits.memory_bytes)
}

fn environment(
    state: &ProcessState,
    attempt: &Attempt,
    mode: BridgeMode,
    directory: &Directory,
    bridge: &Bridge,
) -> BTreeMap<String, String> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let own = text(directory.path());
    let devices: Vec<String> = attempt.devices.iter().map(u32::to_string).collect();
    let which = match mode {
        BridgeMode::Single => ("HYPHA_ATTEMPT", attempt.id.to_string()),
        BridgeMode::Sequential => ("HYPHA_WARM", "1".to_owned()),
    };
    let given = [
        ("PATH", SEARCH_PATH.to_owned()),
        ("LANG", "C.UTF-8".to_owned()),
        ("HOME", own.clone()),
        ("TMPDIR", own),
        // The order in which the ledger numbers them; the default puts the fastest first.
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()),
        ("CUDA_VISIBLE_DEVICES", devices.join(",")),
        which,
        ("HYPHA_MODEL", attempt.model.to_string()),
        ("HYPHA_BRIDGE", text(bridge.path())),
        ("HYPHA_BRIDGE_TOKEN", bridge.token().to_owned()),
    ];
    let mut environment = state.config.environment.clone();
    // The operator may set the search path; the rest is fixed by the attempt's placement.
    for (name, value) in given {
        let entry = environment.entry(name.to_owned());
        match name {
            "PATH" | "LANG" => entry.or_insert(value),
            _ => entry.insert_entry(value).into_mut(),
        };
    }
    environment
}
