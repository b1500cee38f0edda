//! Faults that can be planted, to show that checkers notice them. Without the `mutants` feature they have no effect.

use crate::Placement;

/// A planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementMutant {
    /// Refusals are not counted.
    SilentRefusals,
    /// No reservations are made for the tasks that have waited longest.
    NoReservations,
    /// However long a task waits, those with a higher priority go first.
    UnagedPriorities,
    /// The shares of tenants do not count.
    UnfairShares,
}

impl Placement {
    /// Plants a fault.
    pub fn mutate(&mut self, mutant: PlacementMutant) {
        self.mutant = Some(mutant);
    }

    pub(crate) fn is(&self, mutant: PlacementMutant) -> bool {
        cfg!(feature = "mutants") && self.mutant == Some(mutant)
    }
}
