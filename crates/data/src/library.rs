//! The data sets that a node serves, by name.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use hypha_model::Name;

use crate::{Dataset, DatasetError, SliceIndex, SliceReader};

/// Data sets by name.
#[derive(Clone, Debug, Default)]
pub struct Library {
    datasets: BTreeMap<Name, Dataset>,
}

impl Library {
    /// Opens directories under the names that the operator gave them; a manifest's own name does not matter here.
    pub fn open<'a>(
        directories: impl IntoIterator<Item = (Name, &'a Path)>,
    ) -> Result<Library, DatasetError> {
        let mut datasets = BTreeMap::new();
        for (name, directory) in directories {
            let dataset = Dataset::open(directory)?;
            if datasets.insert(name.clone(), dataset).is_some() {
                return Err(DatasetError::DuplicateDataset(name));
            }
        }
        Ok(Library { datasets })
    }

    /// The names, in order.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.datasets.keys()
    }

    /// The data set of this name.
    pub fn get(&self, name: &str) -> Result<&Dataset, DatasetError> {
        self.datasets.get(name).ok_or_else(|| DatasetError::UnknownDataset(name.into()))
    }

    /// Opens a range of the bytes of a slice.
    pub fn read(
        &self,
        name: &str,
        index: SliceIndex,
        range: Range<u64>,
    ) -> Result<SliceReader, DatasetError> {
        self.get(name)?.read(index, range)
    }
}
