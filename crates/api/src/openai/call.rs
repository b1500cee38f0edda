//! A request on its way through the scheduler, from submission to its end. Whoever drops it before that
//! has lost interest, and it is cancelled.

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

/// See the head of this file.
pub(super) struct Call {
    service: Arc<dyn SchedulerApi>,
    task: TaskId,
    watch: Watch,
    timeouts: WaitTimeouts,
    /// When it is looked whether anybody is there who would take it.
    check_at: Instant,
    /// Since when no worker runs it, if none does.
    waiting_since: Option<Instant>,
    ended: bool,
}

/// After this it is looked for the first time whether anybody is there. Most requests run by then.
const FIRST_CHECK_DELAY: Duration = Duration::from_millis(100);

/// For how long a request waits for its turn.
#[derive(Clone, Copy)]
pub(super) struct WaitTimeouts {
    /// Until then in all.
    pub(super) until: Instant,
    /// For this long if nobody is there who would take it; not at all if nobody has been there for this long.
    pub(super) if_unschedulable: Duration,
}

/// What a client is told.
pub(super) enum CallEvent {
    /// A piece of the answer.
    Piece(Payload),
    /// It has ended.
    Ended(Arc<AcceptedTask>, Arc<FinishedTask>),
    /// No worker took it for as long as it may wait.
    NoWorker,
    /// Nobody who would take it is there, and it has waited for one.
    Unschedulable(Unschedulable),
    /// Nothing more will be heard of it.
    Lost,
}

impl Call {
    /// Submits a task, and watches it.
    pub(super) async fn submit(
        service: Arc<dyn SchedulerApi>,
        task: NewTask,
        timeouts: WaitTimeouts,
    ) -> Result<Call, OpenAiError> {
        let answer = Some(service.submit(vec![task], true));
        let accepted = Submitting { service: Arc::clone(&service), answer }.await?;
        let Some(first) = accepted.into_iter().next() else { return Err(OpenAiError::lost()) };
        let (submitted, watch) = first?;
        // It was asked for, hence it is there.
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

    /// What comes next. After anything but a piece, nothing does.
    pub(super) async fn next(&mut self) -> CallEvent {
        loop {
            let notice = match self.waiting_since {
                None => self.watch.next().await,
                Some(since) => match timeout_at(self.check_at, self.watch.next()).await {
                    Ok(notice) => notice,
                    // That it runs by now woke nobody.
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
                // Bound to a worker, it still waits for its turn, and may be taken away again.
                Some(Notice::Scheduled(_)) => {}
                None => return CallEvent::Lost,
            }
        }
    }
}

impl Call {
    /// It has waited for a while: why it should not wait on. Whoever has been away for long is not waited for.
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
                // A scheduler that cannot answer is stopping, and the request ends with it.
                let _ = cancelled.await;
            });
        }
    }
}

/// The submission itself. The client may go before it is known which task it became.
struct Submitting {
    service: Arc<dyn SchedulerApi>,
    answer: Option<ServiceFuture<Vec<SubmitResult>>>,
}

impl Future for Submitting {
    type Output = Result<Vec<SubmitResult>, ServiceUnavailable>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(answer) = &mut self.answer else { return Poll::Pending };
        let polled = answer.as_mut().poll(cx);
        if polled.is_ready() {
            self.answer = None;
        }
        polled
    }
}

impl Drop for Submitting {
    fn drop(&mut self) {
        let Some(answer) = self.answer.take() else { return };
        let service = Arc::clone(&self.service);
        in_background(async move {
            for accepted in answer.await.into_iter().flatten().flatten() {
                let _ = service.execute(Command::CancelTask(accepted.0.task)).await;
            }
        });
    }
}

fn in_background(work: impl Future<Output = ()> + Send + 'static) {
    // Without a runtime the process is ending, and every request with it.
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(work);
    }
}
