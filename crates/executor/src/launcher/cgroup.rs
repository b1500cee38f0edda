//! A control group of the kernel around one program: limits that no process in it can evade.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The kernel counts threads, and the limit is one of processes: numerical libraries start some threads in
/// each.
const THREADS_PER_PROCESS: u64 = 16;
/// The period of `cpu.max`; the kernel's own default.
const CPU_PERIOD_MICROS: u64 = 100_000;
/// A group cannot be removed until its last zombie is reaped.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(1);
const REMOVE_RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// The parent of a program's group, and its limits.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CgroupSpec {
    pub(crate) path: PathBuf,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) processes: u64,
    /// CPU time, in whole CPUs; `None` means all.
    pub(crate) cpus: Option<u64>,
}

/// A group. Removed when it is dropped.
pub(crate) struct Cgroup {
    path: PathBuf,
    memory_bytes: Option<u64>,
}

/// Moves this process, and any program that it becomes, into the group at `path`.
pub(super) fn enter(path: &Path) -> io::Result<()> {
    fs::write(path.join("cgroup.procs"), "0")
}

impl Cgroup {
    pub(crate) fn make(plan: &CgroupSpec) -> io::Result<Cgroup> {
        fs::create_dir(&plan.path)?;
        // From here on the group is removed if a limit cannot be set.
        let mut cgroup = Cgroup { path: plan.path.clone(), memory_bytes: None };
        if let Some(bytes) = plan.memory_bytes {
            cgroup.set("memory.max", bytes)?;
            // Excess memory must not be swapped, which would slow all other processes down. Not every kernel
            // accounts swap, and not every one can kill a group as a whole.
            let _ = cgroup.set("memory.swap.max", 0);
            let _ = cgroup.set("memory.oom.group", 1);
            cgroup.memory_bytes = Some(bytes);
        }
        cgroup.set("pids.max", plan.processes.saturating_mul(THREADS_PER_PROCESS))?;
        if let Some(cpus) = plan.cpus {
            let micros = cpus.saturating_mul(CPU_PERIOD_MICROS);
            // The controller may be missing; then CPUs are limited by affinity alone.
            let _ = fs::write(cgroup.path.join("cpu.max"), format!("{micros} {CPU_PERIOD_MICROS}"));
        }
        Ok(cgroup)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the kernel enforces the memory limit, so that it need not be watched.
    pub(super) fn limits_memory(&self) -> bool {
        self.memory_bytes.is_some()
    }

    /// If the kernel killed a process here because memory ran out: the peak usage, and the limit.
    pub(super) fn oom_kill(&self) -> Option<(u64, u64)> {
        let limit = self.memory_bytes?;
        let events = fs::read_to_string(self.path.join("memory.events")).ok()?;
        let killed = events.lines().filter_map(|line| line.strip_prefix("oom_kill "));
        let killed: u64 = killed.filter_map(|count| count.trim().parse::<u64>().ok()).sum();
        let peak = fs::read_to_string(self.path.join("memory.peak")).ok();
        let peak = peak.and_then(|text| text.trim().parse().ok()).unwrap_or(limit);
        (killed > 0).then_some((peak, limit))
    }

    /// Kills the whole group at once, including processes that are being forked.
    pub(super) fn kill(&self) {
        // Kernels before 5.14 cannot; the rounds of kills that follow do it there.
        let _ = self.set("cgroup.kill", 1);
    }

    fn set(&self, name: &str, value: u64) -> io::Result<()> {
        fs::write(self.path.join(name), value.to_string())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let give_up = Instant::now() + REMOVE_TIMEOUT;
        while let Err(error) = fs::remove_dir(&self.path) {
            // A leftover group is removed when a worker starts.
            if error.kind() != io::ErrorKind::ResourceBusy || Instant::now() >= give_up {
                return;
            }
            std::thread::sleep(REMOVE_RETRY_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(root: &Path) -> CgroupSpec {
        CgroupSpec {
            path: root.join("attempt"),
            memory_bytes: Some(1_000_000),
            processes: 10,
            cpus: Some(2),
        }
    }

    #[test]
    fn limits_are_written_as_the_kernel_reads_them() {
        let root = tempfile::tempdir().unwrap();
        let cgroup = Cgroup::make(&plan(root.path())).unwrap();
        let read = |name: &str| fs::read_to_string(cgroup.path.join(name)).unwrap();
        assert_eq!(read("memory.max"), "1000000");
        assert_eq!(read("memory.oom.group"), "1");
        assert_eq!(read("pids.max"), "160");
        assert_eq!(read("cpu.max"), "200000 100000");
        assert!(cgroup.limits_memory());
    }

    #[test]
    fn out_of_memory_is_distinguished_from_other_exits() {
        let root = tempfile::tempdir().unwrap();
        let cgroup = Cgroup::make(&plan(root.path())).unwrap();
        let check = |events: &str, expected| {
            fs::write(cgroup.path.join("memory.events"), events).unwrap();
            assert_eq!(cgroup.oom_kill(), expected, "{events}");
        };
        assert_eq!(cgroup.oom_kill(), None);
        check("low 0\nhigh 0\nmax 7\noom 0\noom_kill 0\noom_group_kill 0\n", None);
        check("low 0\noom 1\noom_kill 3\noom_group_kill 1\n", Some((1_000_000, 1_000_000)));
        fs::write(cgroup.path.join("memory.peak"), "1000001\n").unwrap();
        check("oom_kill 1\n", Some((1_000_001, 1_000_000)));
    }

    #[test]
    fn group_that_cannot_be_limited_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let mut plan = plan(root.path());
        plan.path = root.path().join("missing").join("attempt");
        assert!(Cgroup::make(&plan).is_err());
        plan.path = root.path().join("attempt");
        plan.memory_bytes = None;
        plan.processes = 1;
        let cgroup = Cgroup::make(&plan).unwrap();
        assert!(!cgroup.limits_memory() && cgroup.oom_kill().is_none());
        // The kernel's own files vanish with their group.
        fs::remove_file(cgroup.path.join("pids.max")).unwrap();
        fs::remove_file(cgroup.path.join("cpu.max")).unwrap();
        let path = cgroup.path.clone();
        drop(cgroup);
        assert!(!path.exists());
    }
}
