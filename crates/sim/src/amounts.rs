//! Memory and GPUs that a worker has or a task needs, beside an executor, as people write them: `80GB`, `2gpu`, or
//! both as `80GB:2gpu`.

use std::fmt;

use hypha_model::amount::parse_bytes;
use hypha_model::resource::WHOLE_GPU;
use hypha_model::{Capacity, Device, Requirement};

/// Memory and GPUs. GPUs are whole ones, and one is like another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amounts {
    /// Main memory.
    pub memory_bytes: u64,
    /// GPUs.
    pub gpus: u32,
}

impl Amounts {
    /// More than any machine has.
    pub const MAX_GPUS: u32 = 64;

    /// Parses amounts separated by colons; `None` if one of them is invalid, or is named twice.
    pub fn parse(text: &str) -> Option<Amounts> {
        let mut amounts = Amounts::default();
        for part in text.split(':') {
            let is_again = match part.strip_suffix("gpu") {
                Some(count) if count.bytes().all(|byte| byte.is_ascii_digit()) => {
                    let count = count.parse().ok();
                    let count = count.filter(|count| (1..=Amounts::MAX_GPUS).contains(count))?;
                    std::mem::replace(&mut amounts.gpus, count) > 0
                }
                _ => {
                    // A bare number would mean bytes, which is never intended.
                    part.ends_with(|last: char| last.is_ascii_alphabetic()).then_some(())?;
                    let bytes = parse_bytes("memory", part).ok().filter(|bytes| *bytes > 0)?;
                    std::mem::replace(&mut amounts.memory_bytes, bytes) > 0
                }
            };
            if is_again {
                return None;
            }
        }
        Some(amounts)
    }

    /// Whether a machine with `other` has enough.
    pub fn fit(&self, other: &Amounts) -> bool {
        self.memory_bytes <= other.memory_bytes && self.gpus <= other.gpus
    }

    pub(crate) fn capacity(&self) -> Capacity {
        let device = || {
            let model = "gpu".parse().ok()?;
            Some(Device { model, memory_bytes: 0, milli_gpu: WHOLE_GPU })
        };
        Capacity {
            memory_bytes: self.memory_bytes,
            devices: (0..self.gpus).filter_map(|_| device()).collect(),
            ..Capacity::default()
        }
    }

    pub(crate) fn of(&self, requirement: Requirement) -> Requirement {
        Requirement { memory_bytes: self.memory_bytes, min_gpus: self.gpus, ..requirement }
    }
}

/// In the form that `parse` reads; zero amounts are left out.
impl fmt::Display for Amounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.memory_bytes > 0 {
            write!(f, "{}GB", self.memory_bytes as f64 / 1e9)?;
        }
        if self.gpus > 0 {
            let colon = if self.memory_bytes > 0 { ":" } else { "" };
            write!(f, "{colon}{}gpu", self.gpus)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<&str>) {
        let shown = Amounts::parse(text).map(|amounts| amounts.to_string());
        assert_eq!(shown.as_deref(), expected, "{text:?}");
    }

    #[test]
    fn amounts_round_trip_through_text() {
        check("80GB", Some("80GB"));
        check("2gpu", Some("2gpu"));
        check("2gpu:1.5gb", Some("1.5GB:2gpu"));
        check("512MiB", Some("0.536870912GB"));
        for wrong in
            ["", ":", "x", "24", "0GB", "0gpu", "-1gpu", "65gpu", "gpu", "1GB:2GB", "1gpu:1gpu"]
        {
            check(wrong, None);
        }
    }

    #[test]
    fn fit_agrees_with_worker_capacity() {
        let amounts: Vec<Amounts> = ["1GB", "2GB", "1gpu", "2GB:2gpu"]
            .iter()
            .filter_map(|text| Amounts::parse(text))
            .collect();
        for task in &amounts {
            for worker in &amounts {
                let refused = task.of(Requirement::default()).refused_by(&worker.capacity());
                assert_eq!(task.fit(worker), refused.is_none(), "{task} on {worker}: {refused:?}");
            }
        }
    }
}
