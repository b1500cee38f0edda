//! What the supervisor is told about a program.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Directory, House};
use crate::Job;
use crate::bridge::{Bridge, Jobs};
use crate::launcher::cgroup::Plan;
use crate::launcher::{Launch, Order};

/// Where programs are looked for: a node's own search path is not the job's business.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How the program is started for `job`, which is its only one or the first of several.
pub(super) fn order(
    house: &House,
    job: &Job,
    jobs: Jobs,
    directory: &Directory,
    bridge: &Bridge,
) -> Order {
    let config = &house.config;
    let limits = &config.limits;
    let memory_bytes = memory_limit(house, job);
    Order {
        launch: Launch {
            command: config.command.clone(),
            args: config.args.clone(),
            environment: environment(house, job, jobs, directory, bridge),
            directory: directory.path().to_owned(),
            cgroup: None,
            confinement: config.confinement,
            read: config.read.clone(),
            write: config.write.clone(),
            gpu: !job.devices.is_empty(),
            cpus: job.cpus.clone(),
            open_files: limits.open_files,
            file_bytes: limits.file_bytes,
            address_space_bytes: limits.address_space_bytes,
        },
        input: directory.input(),
        cgroup: house.cgroups.as_ref().map(|root| Plan {
            path: super::cgroups::of_job(root, directory),
            memory_bytes,
            processes: limits.processes,
            cpus: (!job.cpus.is_empty()).then_some(job.cpus.len() as u64),
        }),
        memory_bytes,
        processes: limits.processes,
        grace_ms: u64::try_from(limits.grace.as_millis()).unwrap_or(u64::MAX),
    }
}

/// What the job asks for, or what the executor allows to one that does not say.
pub(super) fn memory_limit(house: &House, job: &Job) -> Option<u64> {
    job.memory_bytes.or(house.config.limits.memory_bytes)
}

fn environment(
    house: &House,
    job: &Job,
    jobs: Jobs,
    directory: &Directory,
    bridge: &Bridge,
) -> BTreeMap<String, String> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let own = text(directory.path());
    let devices: Vec<String> = job.devices.iter().map(u32::to_string).collect();
    let which = match jobs {
        Jobs::One => ("HYPHA_JOB", job.id.to_string()),
        Jobs::OneAfterAnother => ("HYPHA_WARM", "1".to_owned()),
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
        ("HYPHA_MODEL", job.model.to_string()),
        ("HYPHA_BRIDGE", text(bridge.path())),
        ("HYPHA_BRIDGE_TOKEN", bridge.token().to_owned()),
    ];
    let mut environment = house.config.environment.clone();
    // A search path may be the operator's choice; the rest is what the job was placed with.
    for (name, value) in given {
        let entry = environment.entry(name.to_owned());
        match name {
            "PATH" | "LANG" => entry.or_insert(value),
            _ => entry.insert_entry(value).into_mut(),
        };
    }
    environment
}
