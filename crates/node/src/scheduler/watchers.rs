//! The clients that watch tasks.

use std::collections::HashMap;

use hypha_api::{Watch, WatchSender, watch_channel};
use hypha_engine::Notice;
use hypha_model::{Fence, Payload, TaskId, WorkerId};

/// Up to this many watched tasks, abandoned watches are not looked for.
const MIN_SWEEP_TASKS: usize = 1_024;

/// See the module documentation.
#[derive(Default)]
pub(super) struct Watchers {
    by_task: HashMap<TaskId, Vec<WatchSender>>,
    /// Attempts that stream, by their fencing tokens, and the token of each task that streams.
    streams: HashMap<Fence, (WorkerId, TaskId)>,
    streaming: HashMap<TaskId, Fence>,
    /// With this many tasks, abandoned watches are dropped: a task that has ended sends no notice.
    sweep_at: usize,
}

impl Watchers {
    pub(super) fn add(&mut self, task: TaskId) -> Watch {
        self.sweep();
        let (watched, watch) = watch_channel();
        let watches = self.by_task.entry(task).or_default();
        if watches.len() == watches.capacity() {
            // A task that runs long may be polled often, and abandoned watches are noticed only when they are sent to.
            watches.retain(WatchSender::has_watcher);
            // Room for as many as are left, so that the search costs little for each watch.
            watches.reserve(watches.len().max(1));
        }
        watches.push(watched);
        watch
    }

    /// From now on, the output of the attempt with this token goes to the watches of the task.
    pub(super) fn start_stream(&mut self, task: TaskId, worker: WorkerId, fence: Fence) {
        self.end_stream(task);
        self.streams.insert(fence, (worker, task));
        self.streaming.insert(task, fence);
    }

    /// Forwards a piece if its attempt streams; otherwise returns it.
    pub(super) fn forward_output(
        &mut self,
        worker: WorkerId,
        fence: Fence,
        piece: Payload,
    ) -> Option<Payload> {
        match self.streams.get(&fence) {
            Some((at, task)) if *at == worker => {
                let task = *task;
                self.notify(task, &Notice::Output(piece));
                None
            }
            _ => Some(piece),
        }
    }

    fn end_stream(&mut self, task: TaskId) {
        if let Some(fence) = self.streaming.remove(&task) {
            self.streams.remove(&fence);
        }
    }

    pub(super) fn notify(&mut self, task: TaskId, notice: &Notice) {
        if matches!(notice, Notice::Ended { .. } | Notice::Delayed { .. } | Notice::Scheduled(_)) {
            self.end_stream(task);
        }
        let Some(watched) = self.by_task.get_mut(&task) else { return };
        watched.retain(|one| one.send(notice.clone()));
        if watched.is_empty() || matches!(notice, Notice::Ended { .. }) {
            self.by_task.remove(&task);
        }
    }

    pub(super) fn clear(&mut self) {
        self.streams.clear();
        self.streaming.clear();
        self.by_task.clear();
    }

    fn sweep(&mut self) {
        if self.by_task.len() < self.sweep_at.max(MIN_SWEEP_TASKS) {
            return;
        }
        self.by_task.retain(|_, watched| {
            watched.retain(WatchSender::has_watcher);
            !watched.is_empty()
        });
        // Twice the tasks that are left, so that a sweep costs little for each watch.
        self.sweep_at = 2 * self.by_task.len();
    }
}

#[cfg(test)]
mod tests {
    use hypha_model::{Rng, Time};

    use super::*;

    #[test]
    fn abandoned_watches_are_dropped() {
        let mut rng = Rng::new(1);
        let mut watchers = Watchers::default();
        let task = TaskId::new(Time::ZERO, &mut rng);
        let kept: Vec<Watch> = (0..10).map(|_| watchers.add(task)).collect();
        for _ in 0..100_000 {
            drop(watchers.add(task));
        }
        let of_one = watchers.by_task[&task].capacity();
        assert!(of_one < 100, "{of_one} watches of one task that is polled often");
        watchers.notify(task, &Notice::Running);
        assert_eq!(watchers.by_task[&task].len(), kept.len());
        for _ in 0..100_000 {
            drop(watchers.add(TaskId::new(Time::ZERO, &mut rng)));
        }
        assert!(watchers.by_task.len() <= 2 * MIN_SWEEP_TASKS, "{}", watchers.by_task.len());
    }

    #[tokio::test]
    async fn streamed_pieces_bypass_the_machine() {
        let mut rng = Rng::new(1);
        let task = TaskId::new(Time::ZERO, &mut rng);
        let worker = WorkerId::new(Time::ZERO, &mut rng);
        let piece = |text: &str| Payload::from(text.as_bytes());
        let mut watchers = Watchers::default();
        let mut watch = watchers.add(task);
        assert!(
            watchers.forward_output(worker, Fence(1), piece("a")).is_some(),
            "the machine sees the first piece"
        );
        watchers.start_stream(task, worker, Fence(1));
        assert!(watchers.forward_output(worker, Fence(1), piece("b")).is_none());
        match watch.next().await {
            Some(Notice::Output(given)) => assert_eq!(given, piece("b")),
            other => panic!("{other:?}"),
        }
        let elsewhere = WorkerId::new(Time::ZERO, &mut rng);
        assert!(
            watchers.forward_output(elsewhere, Fence(1), piece("c")).is_some(),
            "not an attempt of this worker"
        );
        watchers.start_stream(task, worker, Fence(2));
        assert!(
            watchers.forward_output(worker, Fence(1), piece("d")).is_some(),
            "the attempt is void"
        );
        watchers.notify(task, &Notice::Scheduled(worker));
        assert!(
            watchers.forward_output(worker, Fence(2), piece("e")).is_some(),
            "the task was scheduled again"
        );
        assert!(watchers.streams.is_empty() && watchers.streaming.is_empty());
    }
}
