//! A worker as it describes itself, however it was found.

use serde::{Deserialize, Serialize};

use crate::executor::Executor;
use crate::id::WorkerId;
use crate::money::Money;
use crate::name::Name;
use crate::resource::Capacity;

/// What a worker states about itself: in a record, an offer or a registration.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Worker {
    /// Its id.
    pub id: WorkerId,
    /// What it offers.
    pub capacity: Capacity,
    /// What it can run.
    pub executors: Vec<Executor>,
    /// A label that workers of the same hardware share; many report none.
    pub hardware: Option<Name>,
    /// A label of its location; many report none.
    pub region: Option<Name>,
    /// What an hour of it costs.
    pub price: Money,
}

impl Worker {
    /// How many tasks it runs at once, over all executors.
    pub fn concurrency(&self) -> u32 {
        self.executors.iter().fold(0, |sum, executor| sum.saturating_add(executor.concurrency))
    }
}
