//! Detects the resources of this machine that the configuration does not set, and measures their use.

use std::collections::HashMap;
use std::time::Duration;

use hypha_config::Resources;
use hypha_model::resource::WHOLE_GPU;
use hypha_model::{Capacity, Device, Name, Usage};
use sysinfo::{Disks, MemoryRefreshKind, RefreshKind, System};

pub(crate) fn capacity(configured: &Resources) -> Capacity {
    Capacity {
        cpu_milli: configured.cpu_milli.unwrap_or_else(cpu_milli),
        memory_bytes: configured.memory_bytes.unwrap_or_else(memory_bytes),
        storage_bytes: configured.storage_bytes.unwrap_or_else(storage_bytes),
        devices: match &configured.gpus {
            Some(gpus) => gpus
                .iter()
                .map(|gpu| Device {
                    model: gpu.model.clone(),
                    memory_bytes: gpu.memory_bytes,
                    milli_gpu: WHOLE_GPU,
                })
                .collect(),
            None => gpus(),
        },
    }
}

/// Measures how much of this machine is in use, by whatever runs on it.
pub(crate) struct UsageMeter(System);

impl UsageMeter {
    /// How often to measure: a mean over less than a second would be noise, and heartbeats are some seconds apart.
    pub(crate) const INTERVAL: Duration = Duration::from_secs(5);

    /// `None` where the machine cannot be measured.
    pub(crate) fn new() -> Option<UsageMeter> {
        let nothing = RefreshKind::nothing();
        let mut meter = UsageMeter(System::new_with_specifics(nothing).ok()?);
        meter.measure();
        Some(meter)
    }

    /// The use of the cores since the last call, and of the memory now.
    pub(crate) fn measure(&mut self) -> Usage {
        let system = &mut self.0;
        system.refresh_cpu_usage();
        system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
        let (used, total) = match system.cgroup_limits() {
            Some(limits) if limits.total_memory < system.total_memory() => {
                (limits.rss, limits.total_memory)
            }
            _ => (system.used_memory(), system.total_memory()),
        };
        let permille = |share: f64| (share.clamp(0.0, 1.0) * 1e3).round() as u16;
        Usage {
            cpu_permille: permille(f64::from(system.global_cpu_usage()) / 100.0),
            memory_permille: permille(used as f64 / total.max(1) as f64),
        }
    }
}

/// Measures how much of NVIDIA's GPUs some processes use.
pub(crate) struct GpuMeter {
    nvml: nvml_wrapper::Nvml,
    /// For each GPU, the time of the last sample that was read, in the driver's microseconds.
    read_until: Vec<u64>,
}

impl GpuMeter {
    /// `None` where there are no GPUs.
    pub(crate) fn new() -> Option<GpuMeter> {
        let nvml = nvml_wrapper::Nvml::init().ok()?;
        let count = nvml.device_count().ok().filter(|count| *count > 0)?;
        Some(GpuMeter { nvml, read_until: vec![0; count as usize] })
    }

    /// The share of the GPU that the counted processes use most, in thousandths.
    pub(crate) fn measure(&mut self, is_counted: impl Fn(u32) -> bool) -> u16 {
        let gpus = self.read_until.iter_mut().zip(0..);
        let used = gpus.filter_map(|(read_until, index)| {
            let gpu = self.nvml.device_by_index(index).ok()?;
            let percent = match gpu.process_utilization_stats(*read_until) {
                Ok(samples) => {
                    let last = samples.iter().map(|sample| sample.timestamp).max();
                    *read_until = last.unwrap_or(*read_until);
                    let samples = samples.iter().map(|one| (one.pid, one.timestamp, one.sm_util));
                    latest_use(samples.filter(|(process, ..)| is_counted(*process)))
                }
                // No samples since then: nothing has run.
                Err(nvml_wrapper::error::NvmlError::NotFound) => 0,
                // Not every GPU tells how much each process uses.
                Err(_) if has_process(&gpu, &is_counted) => gpu.utilization_rates().ok()?.gpu,
                Err(_) => 0,
            };
            Some(percent)
        });
        (used.max().unwrap_or(0).min(100) * 10) as u16
    }
}

/// The sum of what each process used last. Samples are a process, a time, and percent.
fn latest_use(samples: impl Iterator<Item = (u32, u64, u32)>) -> u32 {
    let mut latest: HashMap<u32, (u64, u32)> = HashMap::new();
    for (process, time, percent) in samples {
        let known = latest.entry(process).or_default();
        if time >= known.0 {
            *known = (time, percent);
        }
    }
    latest.values().map(|(_, percent)| *percent).fold(0, u32::saturating_add)
}

/// Whether a counted process uses a GPU.
fn has_process(gpu: &nvml_wrapper::Device<'_>, is_counted: impl Fn(u32) -> bool) -> bool {
    let compute = gpu.running_compute_processes().unwrap_or_default();
    let graphics = gpu.running_graphics_processes().unwrap_or_default();
    compute.iter().chain(&graphics).any(|process| is_counted(process.pid))
}

/// The cores that this process may use; in a container they may be fewer than the machine has.
fn cpu_milli() -> u64 {
    std::thread::available_parallelism().map_or(1_000, |cores| cores.get() as u64 * 1_000)
}

fn memory_bytes() -> u64 {
    let wanted = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    let Ok(system) = System::new_with_specifics(wanted) else {
        tracing::warn!("cannot detect the size of the memory; set [resources] memory");
        return 0;
    };
    let container = system.cgroup_limits().map_or(u64::MAX, |limits| limits.total_memory);
    system.total_memory().min(container)
}

/// The largest free space of any disk, in whole gibibytes: with exact values the worker would differ at each start, and
/// a scheduler would take back the tasks that it has dispatched to it.
fn storage_bytes() -> u64 {
    const STEP: u64 = 1 << 30;
    let Ok(disks) = Disks::new_with_refreshed_list() else { return 0 };
    disks.iter().map(|disk| disk.available_space()).max().unwrap_or(0) / STEP * STEP
}

/// NVIDIA's GPUs. Without a driver there are none, which is no error.
fn gpus() -> Vec<Device> {
    let nvml = match nvml_wrapper::Nvml::init() {
        Ok(nvml) => nvml,
        Err(error) => {
            tracing::debug!("no GPUs found: {error}");
            return Vec::new();
        }
    };
    let count = nvml.device_count().unwrap_or(0);
    (0..count)
        .filter_map(|index| {
            let device = nvml.device_by_index(index).ok()?;
            let name = device.name().unwrap_or_else(|_| "NVIDIA GPU".into());
            Some(Device {
                model: name.parse::<Name>().ok()?,
                memory_bytes: device.memory_info().ok()?.total,
                milli_gpu: WHOLE_GPU,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configured_resources_override_detected_ones() {
        let configured = Resources {
            cpu_milli: Some(1_500),
            memory_bytes: Some(7),
            storage_bytes: Some(8),
            gpus: Some(Vec::new()),
        };
        let capacity = capacity(&configured);
        assert_eq!(
            (capacity.cpu_milli, capacity.memory_bytes, capacity.storage_bytes),
            (1_500, 7, 8)
        );
        assert!(capacity.devices.is_empty());
    }

    #[test]
    fn use_of_a_gpu_is_the_latest_of_each_process() {
        let samples = [(1, 10, 5), (2, 10, 7), (1, 20, 30), (1, 15, 90)];
        assert_eq!(latest_use(samples.into_iter()), 37);
        assert_eq!(latest_use([].into_iter()), 0);
    }

    #[test]
    fn usage_is_measured() {
        let usage = UsageMeter::new().unwrap().measure();
        assert!((1..=1_000).contains(&usage.memory_permille), "{usage:?}");
        assert!(usage.cpu_permille <= 1_000, "{usage:?}");
    }

    #[test]
    fn resources_are_detected() {
        let none =
            Resources { cpu_milli: None, memory_bytes: None, storage_bytes: None, gpus: None };
        let capacity = capacity(&none);
        assert!(capacity.cpu_milli >= 1_000 && capacity.memory_bytes > 1 << 20);
    }
}
