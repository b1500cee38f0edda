//! What a client prefers where several workers could run a task, and what is to happen to a task that comes too late.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What counts when a worker is chosen.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Maximise {
    /// The earliest result.
    #[default]
    Speed,
    /// The lowest price of the run.
    Cost,
    /// Both.
    Balance,
}

/// What happens to a submission whose deadline no worker can meet.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum DeadlinePolicy {
    /// It is accepted and marked: predictions may be wrong.
    #[default]
    Accept,
    /// It is refused.
    Refuse,
}

impl Maximise {
    /// All values.
    pub const ALL: [Maximise; 3] = [Maximise::Speed, Maximise::Cost, Maximise::Balance];

    /// The word that users write and see.
    pub const fn as_str(self) -> &'static str {
        match self {
            Maximise::Speed => "speed",
            Maximise::Cost => "cost",
            Maximise::Balance => "balance",
        }
    }
}

impl DeadlinePolicy {
    /// All values.
    pub const ALL: [DeadlinePolicy; 2] = [DeadlinePolicy::Accept, DeadlinePolicy::Refuse];

    /// The word that users write and see.
    pub const fn as_str(self) -> &'static str {
        match self {
            DeadlinePolicy::Accept => "accept",
            DeadlinePolicy::Refuse => "refuse",
        }
    }
}

/// A word that is none of those that are known.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("is unknown: use {known}")]
pub struct UnknownPreference {
    known: &'static str,
}

impl FromStr for Maximise {
    type Err = UnknownPreference;
    fn from_str(text: &str) -> Result<Maximise, UnknownPreference> {
        let known = "`speed`, `cost` or `balance`";
        let found = Maximise::ALL.into_iter().find(|value| value.as_str() == text);
        found.ok_or(UnknownPreference { known })
    }
}

impl FromStr for DeadlinePolicy {
    type Err = UnknownPreference;
    fn from_str(text: &str) -> Result<DeadlinePolicy, UnknownPreference> {
        let known = "`accept` or `refuse`";
        let found = DeadlinePolicy::ALL.into_iter().find(|value| value.as_str() == text);
        found.ok_or(UnknownPreference { known })
    }
}

impl fmt::Display for Maximise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for DeadlinePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preferences_are_one_word_everywhere() {
        for value in Maximise::ALL {
            assert_eq!(value.to_string().parse(), Ok(value));
            assert_eq!(serde_json::to_string(&value).unwrap(), format!("\"{value}\""));
        }
        for value in DeadlinePolicy::ALL {
            assert_eq!(value.to_string().parse(), Ok(value));
            assert_eq!(serde_json::to_string(&value).unwrap(), format!("\"{value}\""));
        }
        let error = "Cost".parse::<Maximise>().unwrap_err().to_string();
        assert_eq!(error, "is unknown: use `speed`, `cost` or `balance`");
    }
}
