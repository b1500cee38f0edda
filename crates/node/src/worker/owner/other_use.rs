//! Measures how much of this machine processes other than the worker's use: all that is in use, less what the worker's
//! processes use.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use hypha_market::OtherUse;
use hypha_model::Name;

use super::process_tree::ProcessTree;
use crate::hardware::GpuMeter;

/// See the module documentation.
pub(super) struct OtherUseMeter {
    /// `/proc`.
    proc: PathBuf,
    /// The worker.
    own: u32,
    except: Vec<Name>,
    gpus: Option<GpuMeter>,
    last: CpuTimes,
}

/// Times of the processor since boot, of all cores together, in ticks of the kernel.
#[derive(Clone, Copy, Default)]
struct CpuTimes {
    total: u64,
    busy: u64,
    /// Of the worker's processes.
    own: u64,
}

impl OtherUseMeter {
    pub(super) fn new(except: Vec<Name>, with_gpus: bool) -> io::Result<OtherUseMeter> {
        let mut meter = OtherUseMeter::of(Path::new("/proc"), std::process::id(), except)?;
        if with_gpus {
            meter.gpus = GpuMeter::new();
            if meter.gpus.is_none() {
                tracing::warn!("no NVIDIA GPUs found: `gpu` in [offer.yield] has no effect");
            }
        }
        Ok(meter)
    }

    fn of(proc: &Path, own: u32, except: Vec<Name>) -> io::Result<OtherUseMeter> {
        let last = CpuTimes::default();
        let mut meter = OtherUseMeter { proc: proc.to_owned(), own, except, gpus: None, last };
        meter.measure()?;
        Ok(meter)
    }

    /// What others have used since the last call.
    pub(super) fn measure(&mut self) -> io::Result<OtherUse> {
        let tree = ProcessTree::read(&self.proc, self.own, &self.except)?;
        let stat = fs::read_to_string(self.proc.join("stat"))?;
        let (total, busy) = all_cores(&stat).ok_or(io::ErrorKind::InvalidData)?;
        let now = CpuTimes { total, busy, own: tree.ticks };
        let last = std::mem::replace(&mut self.last, now);
        Ok(OtherUse {
            cpu_permille: now.others_since(last),
            gpu_permille: self
                .gpus
                .as_mut()
                .map_or(0, |gpus| gpus.measure(|id| !tree.contains(id))),
        })
    }
}

impl CpuTimes {
    fn others_since(self, last: CpuTimes) -> u16 {
        // A child that its parent did not wait for takes its time with it, and then the sum is less than before.
        let own = self.own.saturating_sub(last.own);
        let others = self.busy.saturating_sub(last.busy).saturating_sub(own);
        match self.total.saturating_sub(last.total) {
            0 => 0,
            total => (others as f64 / total as f64 * 1e3).round().min(1e3) as u16,
        }
    }
}

/// The total and the busy time of the first line of `/proc/stat`. Other virtual machines' use of the host (`steal`) is
/// not the owner's, and guests are in the time of their hosts.
fn all_cores(stat: &str) -> Option<(u64, u64)> {
    let numbers = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let times: Vec<u64> = numbers.take(8).map_while(|number| number.parse().ok()).collect();
    let [user, nice, system, idle, io_wait, irq, soft_irq, steal] = times[..] else { return None };
    let busy = user + nice + system + irq + soft_irq;
    Some((busy + idle + io_wait + steal, busy))
}

#[cfg(test)]
mod tests {
    use super::super::process_tree::tests::process;
    use super::*;

    struct FakeProc(tempfile::TempDir);

    impl FakeProc {
        fn new() -> FakeProc {
            FakeProc(tempfile::tempdir().unwrap())
        }

        /// The busy and the idle time of the machine, and the time of the worker and of a task.
        fn set(&self, busy: u64, idle: u64, worker: u64, task: u64) {
            let proc = self.0.path();
            let stat = format!("cpu  {busy} 0 0 {idle} 0 0 0 0 9 9\ncpu0 1 1 1 1\n");
            fs::write(proc.join("stat"), stat).unwrap();
            process(proc, 7, 1, "worker", [worker, 0, 0, 0]);
            process(proc, 8, 7, "task", [task, 0, 0, 0]);
        }
    }

    #[test]
    fn own_processes_do_not_count() {
        let proc = FakeProc::new();
        proc.set(5_000, 10_000, 50, 500);
        let mut meter = OtherUseMeter::of(proc.0.path(), 7, Vec::new()).unwrap();
        let mut check = |times: [u64; 4], expected: u16| {
            let [busy, idle, worker, task] = times;
            proc.set(busy, idle, worker, task);
            assert_eq!(meter.measure().unwrap().cpu_permille, expected, "{times:?}");
        };
        check([5_000, 11_000, 50, 500], 0);
        check([5_600, 11_400, 150, 900], 100);
        check([6_600, 11_400, 150, 900], 1_000);
        check([6_600, 11_400, 150, 900], 0);
        // A task that has ended took its time with it.
        check([6_700, 11_500, 150, 0], 500);
    }

    #[test]
    fn malformed_stat_is_an_error() {
        let proc = FakeProc::new();
        proc.set(1, 1, 1, 1);
        for text in ["", "cpu 1 2 3\n", "cpu a 2 3 4 5 6 7 8\n", "intr 1 2 3 4 5 6 7 8\n"] {
            fs::write(proc.0.path().join("stat"), text).unwrap();
            assert!(OtherUseMeter::of(proc.0.path(), 7, Vec::new()).is_err(), "{text}");
        }
    }

    #[test]
    fn this_machine_is_measured() {
        let other = OtherUseMeter::new(Vec::new(), true).unwrap().measure().unwrap();
        assert!(other.cpu_permille <= 1_000, "{other:?}");
    }
}
