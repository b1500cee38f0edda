//! Which store a scheduler has. Everything else knows it only as a [`SchedulerStore`](hypha_engine::SchedulerStore).

use std::path::Path;

use hypha_engine::Image;
use hypha_engine::store::{AnyStore, erase_store};
use hypha_store::{Store, StoreError};

/// Opens the store in `data_dir`, and reads what is durable. Takes a while for many tasks.
pub(super) fn open(data_dir: &Path) -> Result<(AnyStore, Image), StoreError> {
    let (store, recovered) = Store::open(&data_dir.join("tasks.sqlite"))?;
    Ok((erase_store(store), recovered.image))
}
