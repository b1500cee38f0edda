//! Whether the kernel's control groups (version 2) can be used for attempts, and where.
//!
//! A group that has groups with limits below it may contain no process of its own. So the worker moves itself
//! into a group beside its attempts, which is only safe where it is the only process: in a service or scope
//! that was delegated to it. Anywhere else attempts are watched instead.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use thiserror::Error;

use super::Directory;
use crate::launcher::cgroup::{Cgroup, CgroupSpec};

/// The worker's own group. A service manager may also start it there.
const WORKER_GROUP: &str = "hypha-worker";
/// The prefix of the groups of attempts, before the name of the work directory.
const PREFIX: &str = "hypha-";
/// Required controllers.
const REQUIRED_CONTROLLERS: [&str; 2] = ["memory", "pids"];
/// Controllers that are used where available.
const OPTIONAL_CONTROLLER: &str = "cpu";
/// More than any attempt has, to test whether a limit can be set.
const TRIAL_BYTES: u64 = 1 << 40;

#[derive(Debug, Error)]
enum CgroupsUnavailable {
    #[error("cgroup v2 is not mounted")]
    NotMounted,
    #[error("cgroup v2 has no `{0}` controller here")]
    NoController(&'static str),
    #[error("the worker is not alone in its group `{0}`: run it as a service with `Delegate=yes`")]
    NotAlone(PathBuf),
    #[error("cannot {what}: {error}")]
    Io { what: &'static str, error: io::Error },
}

/// The parent of the groups of attempts. Determined once per process, since it moves the process.
pub(super) fn detected() -> Option<PathBuf> {
    static DETECTED: OnceLock<Option<PathBuf>> = OnceLock::new();
    let detected = DETECTED.get_or_init(|| match detect() {
        Ok(root) => {
            tracing::info!(group = %root.display(), "attempts are limited by cgroup v2");
            Some(root)
        }
        Err(why) => {
            tracing::info!(%why, "attempts are limited by watching them: cgroup v2 is not usable");
            None
        }
    });
    detected.clone()
}

/// The group of the attempt that works in `directory`.
pub(super) fn attempt_group(root: &Path, directory: &Directory) -> PathBuf {
    let name = directory.path().file_name().unwrap_or_default();
    root.join(format!("{PREFIX}{}", name.to_string_lossy()))
}

fn detect() -> Result<PathBuf, CgroupsUnavailable> {
    let read = |path| {
        fs::read_to_string(path)
            .map_err(|error| CgroupsUnavailable::Io { what: "read /proc", error })
    };
    let own = own_group(&read("/proc/self/mountinfo")?, &read("/proc/self/cgroup")?)
        .ok_or(CgroupsUnavailable::NotMounted)?;
    prepare(&own, std::process::id())
}

/// The directory of this process's group.
fn own_group(mounts: &str, groups: &str) -> Option<PathBuf> {
    let path = Path::new(groups.lines().find_map(|line| line.strip_prefix("0::"))?);
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        if !kind.starts_with("cgroup2 ") {
            return None;
        }
        let mut fields = mount.split(' ').skip(3);
        let (root, at) = (fields.next()?, fields.next()?);
        // A path with `..` leads out of the mount.
        let below = path.strip_prefix(root).ok()?;
        let inside = below.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        inside.then(|| Path::new(at).join(below))
    })
}

/// Prepares `own`, the group of process `pid`, or its parent, for the groups of attempts.
fn prepare(own: &Path, pid: u32) -> Result<PathBuf, CgroupsUnavailable> {
    let failed = |what| move |error| CgroupsUnavailable::Io { what, error };
    let moved = own.file_name().is_some_and(|name| name == WORKER_GROUP);
    let root = if moved { own.parent().unwrap_or(own) } else { own };
    let controllers = fs::read_to_string(root.join("cgroup.controllers"))
        .map_err(failed("read its controllers"))?;
    let has = |name: &str| controllers.split_whitespace().any(|controller| controller == name);
    if let Some(missing) = REQUIRED_CONTROLLERS.into_iter().find(|name| !has(name)) {
        return Err(CgroupsUnavailable::NoController(missing));
    }
    let here =
        fs::read_to_string(root.join("cgroup.procs")).map_err(failed("read its processes"))?;
    let alone = here.split_whitespace().all(|other| other.parse() == Ok(pid));
    if !alone {
        return Err(CgroupsUnavailable::NotAlone(root.to_owned()));
    }
    let leaf = root.join(WORKER_GROUP);
    if !moved {
        make(&leaf).map_err(failed("create a group"))?;
        fs::write(leaf.join("cgroup.procs"), pid.to_string()).map_err(failed("move the worker"))?;
    }
    enable_limits(root, has(OPTIONAL_CONTROLLER)).inspect_err(|_| {
        if !moved {
            // Restores the previous state. If that fails too, the worker runs as well where it is.
            let _ = fs::write(root.join("cgroup.procs"), pid.to_string());
            let _ = fs::remove_dir(&leaf);
        }
    })?;
    Ok(root.to_owned())
}

fn make(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Enables limits for groups below `root`, removes those of an earlier incarnation, and tests one.
fn enable_limits(root: &Path, cpu: bool) -> Result<(), CgroupsUnavailable> {
    let control = root.join("cgroup.subtree_control");
    let wanted = REQUIRED_CONTROLLERS.map(|name| format!("+{name}")).join(" ");
    fs::write(&control, wanted)
        .map_err(|error| CgroupsUnavailable::Io { what: "limit groups below it", error })?;
    if cpu {
        // Optional: affinity works without it.
        let _ = fs::write(&control, format!("+{OPTIONAL_CONTROLLER}"));
    }
    for entry in fs::read_dir(root).into_iter().flatten().filter_map(Result::ok) {
        // Earlier versions called them `job-…`.
        let name = entry.file_name().to_string_lossy().into_owned();
        if ["run-", "job-"].iter().any(|it| name.starts_with(&format!("{PREFIX}{it}"))) {
            // A group that its supervisor is still killing is not empty, and stays.
            let _ = fs::remove_dir(entry.path());
        }
    }
    let trial = CgroupSpec {
        path: root.join(format!("{PREFIX}trial-{}", std::process::id())),
        memory_bytes: Some(TRIAL_BYTES),
        processes: 1,
        cpus: None,
    };
    Cgroup::make(&trial)
        .map(drop)
        .map_err(|error| CgroupsUnavailable::Io { what: "limit a group below it", error })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_found_under_any_mount() {
        let check = |mounts: &str, groups: &str, expected: Option<&str>| {
            assert_eq!(own_group(mounts, groups), expected.map(PathBuf::from), "{mounts} {groups}");
        };
        let unified = "24 1 0:22 / /proc rw - proc proc rw\n\
                       30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
        check(unified, "0::/a.service\n", Some("/sys/fs/cgroup/a.service"));
        check(unified, "0::/\n", Some("/sys/fs/cgroup"));
        check(unified, "0::/../elsewhere\n", None);
        check(unified, "4:memory:/a\n", None);
        let part = "30 23 0:26 /docker/x /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
        check(part, "0::/docker/x/y\n", Some("/sys/fs/cgroup/y"));
        check(part, "0::/other\n", None);
        check("31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n", "0::/\n", None);
    }

    struct Fake(tempfile::TempDir);

    impl Fake {
        fn new(controllers: &str, processes: &str) -> Fake {
            let fake = Fake(tempfile::tempdir().unwrap());
            fs::write(fake.0.path().join("cgroup.controllers"), controllers).unwrap();
            fs::write(fake.0.path().join("cgroup.procs"), processes).unwrap();
            fake
        }

        fn read(&self, name: &str) -> String {
            fs::read_to_string(self.0.path().join(name)).unwrap()
        }
    }

    #[test]
    fn worker_alone_in_its_group_makes_room_for_its_attempts() {
        let fake = Fake::new("cpu io memory pids\n", "7\n");
        let stale =
            ["run", "job"].map(|it| fake.0.path().join(format!("hypha-{it}-0123456789abcdef")));
        stale.iter().for_each(|it| fs::create_dir(it).unwrap());
        assert_eq!(prepare(fake.0.path(), 7).unwrap(), fake.0.path());
        assert_eq!(fake.read("hypha-worker/cgroup.procs"), "7");
        assert_eq!(fake.read("cgroup.subtree_control"), "+cpu");
        assert!(!stale.iter().any(|it| it.exists()));
    }

    #[test]
    fn a_worker_that_was_moved_before_stays_where_it_is() {
        let fake = Fake::new("memory pids\n", "");
        let leaf = fake.0.path().join(WORKER_GROUP);
        fs::create_dir(&leaf).unwrap();
        assert_eq!(prepare(&leaf, 7).unwrap(), fake.0.path());
        assert_eq!(fake.read("cgroup.subtree_control"), "+memory +pids");
        assert!(!leaf.join("cgroup.procs").exists());
    }

    #[test]
    fn others_are_never_disturbed() {
        let check = |fake: &Fake, expected: &str| {
            let why = prepare(fake.0.path(), 7).unwrap_err().to_string();
            assert!(why.contains(expected), "{why}");
            assert!(!fake.0.path().join("cgroup.subtree_control").exists());
            assert!(!fake.0.path().join(WORKER_GROUP).exists());
        };
        check(&Fake::new("cpu memory pids\n", "7\n8\n"), "not alone");
        check(&Fake::new("cpu memory pids\n", "17\n"), "not alone");
        check(&Fake::new("hugetlb memory_hot\n", "7\n"), "no `memory` controller");
    }

    #[test]
    fn a_failure_is_undone() {
        let fake = Fake::new("memory pids\n", "7\n");
        // Cannot be written to.
        fs::create_dir(fake.0.path().join("cgroup.subtree_control")).unwrap();
        assert!(prepare(fake.0.path(), 7).is_err());
        assert_eq!(fake.read("cgroup.procs"), "7");
    }
}
