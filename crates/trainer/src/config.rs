//! The size of a model, and which sizes are valid.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Of a trained model, so that the four buffers of this size (parameters, two moments, and a gradient for each thread)
/// stay countable in bytes and a mistyped width is an error instead of an allocation that fails.
pub const MAX_PARAMETERS: usize = 1 << 31;

/// The dimensions of a GPT-2 model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Blocks of attention and feed-forward layers.
    pub layers: usize,
    /// Numbers that describe a token between blocks; a multiple of `heads`.
    pub width: usize,
    /// Attention heads in a block.
    pub heads: usize,
    /// Tokens that the model sees at most.
    pub context: usize,
    /// Different tokens; 256 where a token is a byte.
    pub vocabulary: usize,
}

/// Why a [`Config`] is invalid.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ConfigError {
    /// A dimension is zero.
    #[error("{0} is zero: give the model at least one")]
    Zero(&'static str),
    /// The heads cannot share the width evenly.
    #[error("width {width} is not a multiple of {heads} heads: change one of them")]
    UnevenHeads {
        /// As configured.
        width: usize,
        /// As configured.
        heads: usize,
    },
    /// More parameters than [`MAX_PARAMETERS`].
    #[error(
        "the model has more than {MAX_PARAMETERS} parameters: choose fewer layers or a smaller width"
    )]
    TooLarge,
}

impl Config {
    /// Says whether a model of this size can be made.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let dimensions = [
            ("layers", self.layers),
            ("width", self.width),
            ("heads", self.heads),
            ("context", self.context),
            ("vocabulary", self.vocabulary),
        ];
        if let Some((name, _)) = dimensions.iter().find(|(_, value)| *value == 0) {
            return Err(ConfigError::Zero(name));
        }
        if !self.width.is_multiple_of(self.heads) {
            return Err(ConfigError::UnevenHeads { width: self.width, heads: self.heads });
        }
        let is_small = self.count_parameters().is_some_and(|count| count <= MAX_PARAMETERS);
        if is_small { Ok(()) } else { Err(ConfigError::TooLarge) }
    }

    /// The width of one head.
    pub(crate) fn head_width(&self) -> usize {
        self.width / self.heads
    }

    /// The width inside a feed-forward layer.
    pub(crate) fn inner_width(&self) -> usize {
        4 * self.width
    }

    /// The number of parameters of a valid size.
    pub(crate) fn parameter_count(&self) -> usize {
        self.count_parameters().unwrap_or(usize::MAX)
    }

    fn count_parameters(&self) -> Option<usize> {
        let matrices = self.width.checked_mul(self.width)?.checked_mul(12)?;
        let block = matrices.checked_add(self.width.checked_mul(13)?)?;
        let rows = self.vocabulary.checked_add(self.context)?.checked_add(2)?;
        self.layers.checked_mul(block)?.checked_add(rows.checked_mul(self.width)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Layout;

    const VALID: Config = Config { layers: 2, width: 12, heads: 3, context: 8, vocabulary: 17 };

    #[test]
    fn invalid_sizes_are_refused_with_the_reason() {
        let cases = [
            (VALID, Ok(())),
            (Config { layers: 0, ..VALID }, Err(ConfigError::Zero("layers"))),
            (Config { vocabulary: 0, ..VALID }, Err(ConfigError::Zero("vocabulary"))),
            (Config { heads: 5, ..VALID }, Err(ConfigError::UnevenHeads { width: 12, heads: 5 })),
            (Config { layers: 1 << 40, ..VALID }, Err(ConfigError::TooLarge)),
            (Config { context: usize::MAX, ..VALID }, Err(ConfigError::TooLarge)),
        ];
        for (config, expected) in cases {
            assert_eq!(config.validate(), expected, "{config:?}");
        }
    }

    #[test]
    fn parameters_are_counted_as_they_are_laid_out() {
        assert_eq!(VALID.count_parameters(), Some(Layout::new(&VALID).len()));
    }
}
