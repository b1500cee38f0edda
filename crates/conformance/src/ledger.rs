//! The records of a small machine, for checks of rows: a ledger of accounts, without the empty ones.

use hypha_machine::{RowChange, RowRecord};
use hypha_model::Rng;

/// A transfer between two accounts, as their balances afterwards.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// The accounts, and their balances from now on.
    pub(crate) balances: [(u8, u64); 2],
}

impl Transfer {
    /// Between few accounts, so that rows are overwritten and removed.
    pub(crate) fn any(rng: &mut Rng) -> Transfer {
        let mut balance = || (rng.below(6) as u8, rng.below(3));
        Transfer { balances: [balance(), balance()] }
    }

    /// From an account that is empty now to one that holds `amount`.
    pub(crate) fn all(from: u8, to: u8, amount: u64) -> Transfer {
        Transfer { balances: [(from, 0), (to, amount)] }
    }
}

impl RowRecord for Transfer {
    fn add_changes(&self, changes: &mut Vec<RowChange>) {
        changes.extend(self.balances.map(|(account, balance)| RowChange {
            key: vec![account],
            value: (balance > 0).then(|| balance.to_be_bytes().to_vec()),
        }));
    }
}
