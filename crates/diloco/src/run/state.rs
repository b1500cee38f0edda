//! What of a run must survive: it is stored with the server's checkpoint.

use std::collections::BTreeMap;

use hypha_model::WorkerId;
use serde::{Deserialize, Serialize};

use super::RunConfig;
use crate::schedule::Progress;
use crate::slices::SliceLedger;

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    /// Updates applied to the parameters that it belongs to.
    pub version: u64,
    /// The round that is opened next.
    pub next_round: u64,
    /// Rounds that contained a delta.
    pub rounds: u64,
    /// Which samples were USED.
    pub ledger: SliceLedger,
    /// In fixed mode, who has which place.
    pub places: Vec<Option<WorkerId>>,
    /// Samples a second of each member, so that a scheduler that restarts need not measure anew.
    pub speeds: BTreeMap<WorkerId, f64>,
    /// The mean loss of the last round.
    pub loss: Option<f64>,
}

impl RunState {
    /// That of a run that has not begun.
    pub fn new(config: &RunConfig) -> RunState {
        let lanes = config.fixed.map(|fixed| fixed.members);
        let epochs = config.schedule.epochs();
        RunState {
            version: 0,
            next_round: 0,
            rounds: 0,
            ledger: SliceLedger::new(config.slice_samples.clone(), config.seed, lanes, epochs),
            places: vec![None; lanes.unwrap_or(0) as usize],
            speeds: BTreeMap::new(),
            loss: None,
        }
    }

    /// How far the run is.
    pub fn progress(&self) -> Progress {
        Progress {
            rounds: self.rounds,
            samples: self.ledger.used_samples(),
            epoch_samples: self.ledger.epoch_samples(),
        }
    }

    /// As the server stores it.
    pub fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    /// From what the server has stored.
    pub fn decode(attachment: &[u8]) -> Result<RunState, serde_json::Error> {
        serde_json::from_slice(attachment)
    }
}
