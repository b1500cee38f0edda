//! An interactive request in the scheduler, from submission to its end. Its task is cancelled if it is dropped before
//! that.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hypha_engine::record::{AcceptedTask, FinishedTask};
use hypha_engine::scheduler::Unschedulable;
use hypha_engine::{Command, NewTask, Notice};
use hypha_model::{Payload, Span, TaskId};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use super::error::OpenAiError;
use crate::service::{SchedulerApi, ServiceFuture, ServiceUnavailable, SubmitResult};
use crate::watch::Watch;

/// See the module documentation.
pub(super) struct Call {
    service: Arc<dyn SchedulerApi>,
    task: TaskId,
    watch: Watch,
    timeouts: WaitTimeouts,
    /// When to check whether any worker can run the task.
    check_at: Instant,
    /// Since when no worker runs the task, if none does.
    waiting_since: Option<Instant>,
    ended: bool,
}

/// The delay before the first check whether any worker can run the task. Most requests run by then.
const FIRST_CHECK_DELAY: Duration = Duration::from_millis(100);

/// How long a request waits for a worker.
#[derive(Clone, Copy)]
pub(super) struct WaitTimeouts {
    /// The wait ends at this time at the latest.
    pub(super) until: Instant,
    /// The wait while no worker can run the task. There is no wait if no worker has been able to for this long.
    pub(super) if_unschedulable: Duration,
}

/// An event of a request.
pub(super) enum CallEvent {
    /// A piece of the response.
    Piece(Payload),
    /// The task has ended.
    Ended(Arc<AcceptedTask>, Arc<FinishedTask>),
    /// No worker ran the task within the wait.
    NoWorker,
    /// No worker can run the task, and the wait for one is over.
    Unschedulable(Unschedulable),
    /// There will be no further events.
    Lost,
}

impl Call {
    /// Submits a task and watches it.
    pub(super) async fn submit(
        service: Arc<dyn SchedulerApi>,
        task: NewTask,
        timeouts: WaitTimeouts,
    ) -> Result<Call, OpenAiError> {
        let reply = Some(service.submit(vec![task], true));
        let accepted = Submitting { service: Arc::clone(&service), reply }.await?;
        let Some(first) = accepted.into_iter().next() else { return Err(OpenAiError::lost()) };
        let (submitted, watch) = first?;
        // The submit requested a watch.
        let Some(watch) = watch else { return Err(OpenAiError::lost()) };
        let watch = watch.quietly();
        let (task, now) = (submitted.task, Instant::now());
        let check_at = timeouts.first_check(now);
        Ok(Call {
            service,
            task,
            watch,
            timeouts,
            check_at,
            waiting_since: Some(now),
            ended: false,
        })
    }

    /// The task.
    pub(super) fn task(&self) -> TaskId {
        self.task
    }

    /// The next event. Every event but a piece is the last.
    pub(super) async fn next(&mut self) -> CallEvent {
        loop {
            let notice = match self.waiting_since {
                None => self.watch.next().await,
                Some(since) => match timeout_at(self.check_at, self.watch.next()).await {
                    Ok(notice) => notice,
                    // A quiet watch does not wake its reader when the task starts.
                    Err(_) => match self.watch.try_next() {
                        Some(notice) => Some(notice),
                        None => match self.check_unschedulable(since) {
                            Some(event) => return event,
                            None => continue,
                        },
                    },
                },
            };
            match notice {
                Some(Notice::Output(piece)) => {
                    self.waiting_since = None;
                    if !piece.bytes().is_empty() {
                        return CallEvent::Piece(piece);
                    }
                }
                Some(Notice::Ended { accepted, finished }) => {
                    self.ended = true;
                    return CallEvent::Ended(accepted, finished);
                }
                Some(Notice::Running | Notice::Progress(_)) => self.waiting_since = None,
                Some(Notice::Delayed { .. }) => {
                    let now = Instant::now();
                    self.waiting_since = Some(now);
                    self.check_at = self.timeouts.first_check(now);
                }
                // A task that is bound to a worker still waits, and may be moved to another.
                Some(Notice::Scheduled(_)) => {}
                None => return CallEvent::Lost,
            }
        }
    }
}

impl Call {
    /// The request has waited for a while: why it should not wait longer, if so. Workers that have been unavailable for
    /// long are not waited for.
    fn check_unschedulable(&mut self, since: Instant) -> Option<CallEvent> {
        let WaitTimeouts { until, if_unschedulable } = self.timeouts;
        let now = Instant::now();
        if until <= now {
            return Some(CallEvent::NoWorker);
        }
        let waited = now.saturating_duration_since(since);
        let again = if waited < if_unschedulable { since } else { now };
        self.check_at = again.checked_add(if_unschedulable).map_or(until, |check| check.min(until));
        let (task, mut unschedulable) = (self.task, None);
        self.service.read(&mut |scheduler, now| {
            unschedulable = scheduler.unschedulable(task).filter(|unschedulable| {
                let unschedulable_for =
                    unschedulable.since.map_or(Span::ZERO, |since| now.since(since));
                waited.max(Duration::from_micros(unschedulable_for.as_micros())) >= if_unschedulable
            });
        });
        unschedulable.map(CallEvent::Unschedulable)
    }
}

impl WaitTimeouts {
    fn first_check(&self, now: Instant) -> Instant {
        self.until.min(now + self.if_unschedulable.min(FIRST_CHECK_DELAY))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.ended {
            let cancelled = self.service.execute(Command::CancelTask(self.task));
            in_background(async move {
                // A scheduler that does not reply is stopping, and the task ends with it.
                let _ = cancelled.await;
            });
        }
    }
}

/// A pending submit. The client may disconnect before the id of the task is known.
struct Submitting {
    service: Arc<dyn SchedulerApi>,
    reply: Option<ServiceFuture<Vec<SubmitResult>>>,
}

impl Future for Submitting {
    type Output = Result<Vec<SubmitResult>, ServiceUnavailable>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(reply) = &mut self.reply else { return Poll::Pending };
        let polled = reply.as_mut().poll(cx);
        if polled.is_ready() {
            self.reply = None;
        }
        polled
    }
}

impl Drop for Submitting {
    fn drop(&mut self) {
        let Some(reply) = self.reply.take() else { return };
        let service = Arc::clone(&self.service);
        in_background(async move {
            for accepted in reply.await.into_iter().flatten().flatten() {
                let _ = service.execute(Command::CancelTask(accepted.0.task)).await;
            }
        });
    }
}

fn in_background(work: impl Future<Output = ()> + Send + 'static) {
    // Without a runtime the process is stopping, and every request with it.
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(work);
    }
}
