//! What the owner of this machine wants at present: a file in `data_dir` says whether the worker is paused.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hypha_engine::OwnerState;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::epoch::write_atomically;
use super::host::WorkerInput;

/// While it exists, the worker is paused.
const PAUSED_FILE: &str = "paused";

/// How often the owner's wishes are looked at: an owner who pauses the worker waits for it to take effect.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Pauses or resumes the worker with this `data_dir`, whether it runs or not. Returns whether that is a change.
pub fn set_paused(data_dir: &Path, is_paused: bool) -> io::Result<bool> {
    let was_paused = fs::exists(data_dir.join(PAUSED_FILE))?;
    match (was_paused, is_paused) {
        (false, true) => {
            fs::create_dir_all(data_dir)?;
            write_atomically(data_dir, PAUSED_FILE, "`hypha worker resume` removes this file")?;
        }
        (true, false) => {
            fs::remove_file(data_dir.join(PAUSED_FILE))?;
            File::open(data_dir)?.sync_all()?;
        }
        _ => {}
    }
    Ok(was_paused != is_paused)
}

/// See the module documentation.
pub(super) struct OwnerWatch {
    data_dir: PathBuf,
    state: OwnerState,
}

impl OwnerWatch {
    pub(super) fn new(data_dir: &Path) -> io::Result<OwnerWatch> {
        let mut watch = OwnerWatch { data_dir: data_dir.to_owned(), state: OwnerState::default() };
        watch.state = watch.look()?;
        if let Some(reason) = watch.state.refusal() {
            tracing::warn!("takes no new tasks: {}", reason.describe());
        }
        Ok(watch)
    }

    /// The state when it was last looked at.
    pub(super) fn state(&self) -> OwnerState {
        self.state
    }

    /// Reports changes until `stop`.
    pub(super) async fn run(mut self, events: mpsc::Sender<WorkerInput>, stop: CancellationToken) {
        let watch = async {
            loop {
                tokio::time::sleep(CHECK_INTERVAL).await;
                // What cannot be read now stays as it was.
                let Ok(state) = self.look() else { continue };
                if state != self.state {
                    self.changed(state, &events).await;
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = watch => {}
        }
    }

    async fn changed(&mut self, state: OwnerState, events: &mpsc::Sender<WorkerInput>) {
        self.state = state;
        match state.refusal() {
            Some(reason) => tracing::info!("takes no new tasks: {}", reason.describe()),
            None => tracing::info!("takes tasks again"),
        }
        let _ = events.send(WorkerInput::OwnerChanged(state)).await;
    }

    fn look(&self) -> io::Result<OwnerState> {
        let is_paused = fs::exists(self.data_dir.join(PAUSED_FILE))?;
        Ok(OwnerState { is_paused, ..OwnerState::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_is_seen_by_a_worker_that_starts_later() {
        let directory = tempfile::tempdir().unwrap();
        let data_dir = directory.path().join("new");
        let is_paused = || OwnerWatch::new(&data_dir).unwrap().state().is_paused;
        assert!(!is_paused());
        for (wanted, is_change) in [(true, true), (true, false), (false, true), (false, false)] {
            assert_eq!(set_paused(&data_dir, wanted).unwrap(), is_change, "{wanted}");
            assert_eq!(is_paused(), wanted);
        }
    }
}
