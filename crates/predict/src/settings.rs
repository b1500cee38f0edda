//! Settings that an operator may tune.

use serde::{Deserialize, Serialize};

/// Prior beliefs of the predictor, and how much it remembers. The defaults suit a mixed swarm.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// One sigma, as a logarithm, of the speeds of workers that report no hardware: `0.7` is a factor of 2.
    pub unknown_spread: f64,
    /// The same for workers of one hardware: `0.25` is 28 %.
    pub known_spread: f64,
    /// The expected run time before anything is known.
    pub first_guess_s: f64,
    /// How many workers that left are remembered, so that they need not be learned again.
    pub remembered_workers: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            unknown_spread: 0.7,
            known_spread: 0.25,
            first_guess_s: 1.0,
            remembered_workers: 4_096,
        }
    }
}

impl Settings {
    /// The settings with every number within its valid range.
    pub(crate) fn bounded(self) -> Settings {
        let or = |value: f64, default: f64| if value.is_finite() { value } else { default };
        let usual = Settings::default();
        Settings {
            unknown_spread: or(self.unknown_spread, usual.unknown_spread).clamp(0.01, 2.0),
            known_spread: or(self.known_spread, usual.known_spread).clamp(0.01, 2.0),
            first_guess_s: or(self.first_guess_s, usual.first_guess_s).clamp(1e-6, 1e9),
            ..self
        }
    }
}
