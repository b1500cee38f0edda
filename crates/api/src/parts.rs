//! Reads large amounts of the scheduler's state in parts: each is bounded, and other requests are served in
//! between.

use hypha_engine::Scheduler;
use hypha_engine::scheduler::{LeaseView, Part, TaskView};
use hypha_model::{TaskId, Time};
use hypha_placement::{FullExplanation, WorkerSlot, WorkerView};

use crate::service::SchedulerApi;

/// Applies `look` to each worker. A worker that joins or leaves meanwhile may be left out.
pub(crate) async fn read_workers<T>(
    service: &dyn SchedulerApi,
    mut look: impl FnMut(&Scheduler, WorkerView, Option<LeaseView>) -> T,
) -> Vec<T> {
    let mut all = Vec::new();
    read_in_parts(service, |scheduler, from, now| {
        let Part { items, next } = scheduler.workers_part(from, now);
        all.extend(items.into_iter().map(|(view, lease)| look(scheduler, view, lease)));
        next
    })
    .await;
    all
}

/// Passes every worker's verdict on a task to `look`; `None` for a task that has ended.
pub(crate) async fn read_explanation(
    service: &dyn SchedulerApi,
    task: TaskId,
    mut look: impl FnMut(&Scheduler, &[hypha_placement::WorkerVerdict]),
) -> Option<FullExplanation> {
    let (mut parts, mut has_ended) = (Vec::new(), false);
    read_in_parts(service, |scheduler, from, now| {
        let part = scheduler.explain_part(task, from, now);
        has_ended |= part.is_none();
        let part = part?;
        look(scheduler, &part.verdicts);
        let next = part.next;
        parts.push(part);
        next
    })
    .await;
    (!has_ended).then(|| FullExplanation::of_parts(parts))
}

/// Views of tasks, each with its time; `None` for those that have ended.
pub(crate) async fn read_tasks(
    service: &dyn SchedulerApi,
    ids: &[TaskId],
) -> Vec<Option<(TaskView, Time)>> {
    let mut views = Vec::with_capacity(ids.len());
    while views.len() < ids.len() {
        service.read(&mut |scheduler, now| {
            let part = scheduler.task_views(&ids[views.len()..], now);
            views.extend(part.into_iter().map(|view| view.map(|view| (view, now))));
        });
        if views.len() < ids.len() {
            tokio::task::yield_now().await;
        }
    }
    views
}

/// Calls `read` repeatedly, each time under a new lock of the machine, until it returns no next slot.
pub(crate) async fn read_in_parts(
    service: &dyn SchedulerApi,
    mut read: impl FnMut(&Scheduler, WorkerSlot, Time) -> Option<WorkerSlot>,
) {
    let mut next = Some(WorkerSlot(0));
    while let Some(from) = next {
        service.read(&mut |scheduler, now| next = read(scheduler, from, now));
        if next.is_some() {
            tokio::task::yield_now().await;
        }
    }
}
