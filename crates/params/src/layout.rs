//! How the flat vector of parameters is cut into fragments.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The longest fragment: 64 MiB as `fp32`, which a receiver holds in memory while it checks the digest.
pub const MAX_FRAGMENT_VALUES: u32 = 1 << 24;
/// The most fragments. The reducer remembers a digest for each fragment of each member.
pub const MAX_FRAGMENTS: u32 = 1 << 16;

/// The number of parameters and the length of a fragment; the last fragment may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked", into = "Unchecked")]
pub struct Layout {
    total: u64,
    fragment_values: u32,
}

/// Why there is no such layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// No parameters.
    #[error("a model without parameters cannot be cut into fragments")]
    Empty,
    /// The fragment's length is zero or above [`MAX_FRAGMENT_VALUES`].
    #[error("a fragment of {0} values is not possible: choose 1 to {MAX_FRAGMENT_VALUES}")]
    FragmentValues(u32),
    /// More than [`MAX_FRAGMENTS`] fragments.
    #[error("{0} fragments are more than {MAX_FRAGMENTS}: choose longer ones")]
    Fragments(u64),
    /// More parameters than this machine can address.
    #[error("{0} parameters are more than this machine can address")]
    Address(u64),
}

impl Layout {
    /// `total` parameters in fragments of `fragment_values`.
    pub fn new(total: u64, fragment_values: u32) -> Result<Layout, LayoutError> {
        if total == 0 {
            return Err(LayoutError::Empty);
        }
        if fragment_values == 0 || fragment_values > MAX_FRAGMENT_VALUES {
            return Err(LayoutError::FragmentValues(fragment_values));
        }
        let fragments = total.div_ceil(u64::from(fragment_values));
        if fragments > u64::from(MAX_FRAGMENTS) {
            return Err(LayoutError::Fragments(fragments));
        }
        usize::try_from(total).map_err(|_| LayoutError::Address(total))?;
        Ok(Layout { total, fragment_values })
    }

    /// The number of parameters.
    pub fn total(&self) -> usize {
        // It fits: the constructor has tried.
        self.total as usize
    }

    /// The length of every fragment but the last.
    pub fn fragment_values(&self) -> u32 {
        self.fragment_values
    }

    /// The number of fragments.
    pub fn fragments(&self) -> u32 {
        // At most MAX_FRAGMENTS.
        self.total.div_ceil(u64::from(self.fragment_values)) as u32
    }

    /// The parameters of a fragment, if there is such a fragment.
    pub fn range(&self, fragment: u32) -> Option<Range<usize>> {
        let length = self.fragment_values as usize;
        let start = (fragment as usize).checked_mul(length)?;
        (fragment < self.fragments()).then(|| start..self.total().min(start + length))
    }
}

/// A layout as it is stored, before it is checked.
#[derive(Serialize, Deserialize)]
struct Unchecked {
    total: u64,
    fragment_values: u32,
}

impl TryFrom<Unchecked> for Layout {
    type Error = LayoutError;

    fn try_from(unchecked: Unchecked) -> Result<Layout, LayoutError> {
        Layout::new(unchecked.total, unchecked.fragment_values)
    }
}

impl From<Layout> for Unchecked {
    fn from(layout: Layout) -> Unchecked {
        Unchecked { total: layout.total, fragment_values: layout.fragment_values }
    }
}
