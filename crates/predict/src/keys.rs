//! Dense keys, so that learned values are stored in arrays, and the names of the two modes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

macro_rules! key {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);
    };
}

key!(
    /// A kind of hardware, by the label that workers report. Zero: not stated.
    HardwareKey(u16)
);
key!(
    /// A model, by its name. Zero: not stated.
    ModelKey(u32)
);
key!(
    /// A worker, as long as it is not forgotten; the number is reused after that.
    WorkerKey(u32)
);

/// Where predictions come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Learned from measurements.
    #[default]
    Default,
    /// Looked up in a table, and learned where the table has no row.
    LookupTable,
}

impl Mode {
    /// The name that users write.
    pub const fn as_str(self) -> &'static str {
        match self {
            Mode::Default => "default",
            Mode::LookupTable => "lookup_table",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A mode that does not exist.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{0}` is not a predictor mode: use `default` or `lookup_table`")]
pub struct UnknownMode(String);

impl FromStr for Mode {
    type Err = UnknownMode;
    fn from_str(text: &str) -> Result<Mode, UnknownMode> {
        match text {
            "default" => Ok(Mode::Default),
            "lookup_table" => Ok(Mode::LookupTable),
            other => Err(UnknownMode(other.chars().take(64).collect())),
        }
    }
}

/// The mode `lookup_table` was requested, but there is no table.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("there is no lookup table: give one in the configuration, or use the mode `default`")]
pub struct NoLookupTable;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_have_the_names_that_users_write() {
        for mode in [Mode::Default, Mode::LookupTable] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert_eq!(serde_json::to_string(&mode).unwrap(), format!("\"{mode}\""));
        }
        let error = "Default".parse::<Mode>().unwrap_err().to_string();
        assert_eq!(error, "`Default` is not a predictor mode: use `default` or `lookup_table`");
    }
}
