//! Chooses the scheduler's store. All other code uses it as a [`SchedulerStore`](hypha_engine::SchedulerStore).

use std::path::Path;

use hypha_engine::Image;
use hypha_engine::store::{AnyStore, erase_store};
use hypha_store::{Store, StoreError};

/// Opens the store in `data_dir`, and reads the durable state. Takes a while for many tasks.
pub(super) fn open(data_dir: &Path) -> Result<(AnyStore, Image), StoreError> {
    let (store, recovered) = Store::open(&data_dir.join("tasks.sqlite"))?;
    Ok((erase_store(store), recovered.image))
}
