//! Metrics about this process, read from `/proc` on each scrape. Where there is no `/proc` they are left out.

use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// The kernel shows times in hundredths of a second on every architecture that we build for.
const TICKS_A_SECOND: f64 = 100.0;

/// Memory, processor time, open files and start time of this process.
#[derive(Debug)]
pub(crate) struct ProcessMetrics;

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let mut put = |name, help, metric: Option<&dyn EncodeMetric>| match metric {
            Some(metric) => {
                metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
            }
            None => Ok(()),
        };
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let stat = read("/proc/self/stat");

        let memory = resident_bytes(&read("/proc/self/status")).map(ConstGauge::new);
        put(
            "process_resident_memory_bytes",
            "Memory in use that is not swapped out",
            memory.as_ref().map(|it| it as _),
        )?;
        let cpu = cpu_seconds(&stat).map(ConstCounter::new);
        put(
            "process_cpu_seconds",
            "Processor time used, by the program and on its behalf",
            cpu.as_ref().map(|it| it as _),
        )?;
        // The directory is itself open while it is read.
        let fds = fs::read_dir("/proc/self/fd").ok().map(|it| it.count().saturating_sub(1) as u64);
        let fds = fds.map(ConstGauge::new);
        put("process_open_fds", "Open file descriptors", fds.as_ref().map(|it| it as _))?;
        let start = start_seconds(&stat, &read("/proc/stat")).map(ConstGauge::new);
        put(
            "process_start_time_seconds",
            "When the process began, since 1970",
            start.as_ref().map(|it| it as _),
        )
    }
}

/// From `/proc/self/status`, which gives kilobytes; `statm` would need the page size.
fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    Some((ticks(stat, 14)? + ticks(stat, 15)?) / TICKS_A_SECOND)
}

fn start_seconds(stat: &str, system_stat: &str) -> Option<f64> {
    let boot = system_stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    let boot: f64 = boot.trim().parse().ok()?;
    Some(boot + ticks(stat, 22)? / TICKS_A_SECOND)
}

/// A field of `/proc/self/stat`, counted from 1 as in proc(5). The second is the program's name in
/// parentheses, which may itself contain spaces and parentheses, so counting starts after the last one.
fn ticks(stat: &str, field: usize) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(field - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str =
        "7 (a) b (c) S 1 7 7 0 -1 0 10 0 0 0 150 50 0 0 20 0 4 0 12345 99 88 18446744073709551615";

    #[test]
    fn fields_are_found_after_a_hostile_process_name() {
        assert_eq!(cpu_seconds(STAT), Some(2.0));
        assert_eq!(start_seconds(STAT, "cpu 1 2\nbtime 1000\n"), Some(1123.45));
        assert_eq!(resident_bytes("VmSize:\t9 kB\nVmRSS:\t  12 kB\n"), Some(12 * 1024));
    }

    #[test]
    fn missing_process_values_are_left_out() {
        assert_eq!(cpu_seconds(""), None);
        assert_eq!(start_seconds(STAT, ""), None);
        assert_eq!(resident_bytes("VmRSS: many"), None);
    }
}
