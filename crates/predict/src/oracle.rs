//! Run times that are known beforehand, for the simulator's oracle: the task states its run time at speed 1, and the
//! label of its hardware gives the speed of a worker. No configuration or file enables it: a stored predictor leaves
//! it out.

use hypha_model::{Metadata, MetadataValue, Name};

use crate::estimate::Estimate;
use crate::keys::HardwareKey;
use crate::predictor::Predictor;
use crate::settings::Settings;

/// The number in a task's metadata that states its run time at speed 1, in seconds, to an oracle.
pub const ORACLE_RUN_S: &str = "run_s";

/// The speed of each hardware, by its key.
#[derive(Clone, Debug)]
pub(crate) struct OracleSpeeds(Vec<f64>);

impl Predictor {
    /// An oracle: a task with [`ORACLE_RUN_S`] takes exactly that, divided by the speed of the hardware, whatever was
    /// measured. Hardware that is not named, or is one too many ([`MAX_HARDWARE`](crate::MAX_HARDWARE)), has speed 1.
    pub fn oracle(speeds: &[(Name, f64)]) -> Predictor {
        let mut predictor = Predictor::new(Settings::default());
        let mut by_key = vec![1.0];
        for (name, speed) in speeds {
            let key = usize::from(predictor.hardware(Some(name)).0);
            if key > 0 {
                by_key.resize(by_key.len().max(key + 1), 1.0);
                by_key[key] = *speed;
            }
        }
        predictor.oracle = Some(OracleSpeeds(by_key));
        predictor
    }
}

impl OracleSpeeds {
    pub(crate) fn estimate(&self, run_s: f64, hardware: HardwareKey) -> Estimate {
        let speed = self.0.get(usize::from(hardware.0)).copied().unwrap_or(1.0);
        Estimate::exact(run_s / speed)
    }
}

/// The stated run time of a task at speed 1.
pub(crate) fn oracle_run_s(metadata: &Metadata) -> Option<f64> {
    match metadata.get(ORACLE_RUN_S) {
        Some(MetadataValue::Number(seconds)) => Some(*seconds),
        _ => None,
    }
}
