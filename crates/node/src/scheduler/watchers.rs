//! The clients that watch tasks.

use std::collections::HashMap;

use hypha_api::{Watch, Watched, watch};
use hypha_engine::Notice;
use hypha_model::TaskId;

/// Watched tasks that are kept without looking whether anybody still listens.
const FEW_TASKS: usize = 1_024;

/// See the head of this file.
#[derive(Default)]
pub(super) struct Watchers {
    by_task: HashMap<TaskId, Vec<Watched>>,
    /// With this many tasks, watches that nobody listens to any more are dropped: a task that has ended sends no
    /// notice.
    sweep_at: usize,
}

impl Watchers {
    pub(super) fn add(&mut self, task: TaskId) -> Watch {
        self.sweep();
        let (watched, watch) = watch();
        self.by_task.entry(task).or_default().push(watched);
        watch
    }

    pub(super) fn notify(&mut self, task: TaskId, notice: &Notice) {
        let Some(watched) = self.by_task.get_mut(&task) else { return };
        watched.retain(|one| one.tell(notice.clone()));
        if watched.is_empty() || matches!(notice, Notice::Ended { .. }) {
            self.by_task.remove(&task);
        }
    }

    pub(super) fn clear(&mut self) {
        self.by_task.clear();
    }

    fn sweep(&mut self) {
        if self.by_task.len() < self.sweep_at.max(FEW_TASKS) {
            return;
        }
        self.by_task.retain(|_, watched| {
            watched.retain(Watched::is_watched);
            !watched.is_empty()
        });
        // Twice what is left, so that a sweep costs little for each watch.
        self.sweep_at = 2 * self.by_task.len();
    }
}
