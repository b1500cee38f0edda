//! A request on its way through the scheduler, from submission to its end. Whoever drops it before that
//! has lost interest, and it is cancelled.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hypha_engine::record::{AcceptedTask, FinishedTask};
use hypha_engine::scheduler::Stranded;
use hypha_engine::{Command, NewTask, Notice};
use hypha_model::{Payload, Span, TaskId};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use super::error::Error;
use crate::backend::{Accepted, Answer, Backend, Unavailable};
use crate::watch::Watch;

/// See the head of this file.
pub(super) struct Call {
    backend: Arc<dyn Backend>,
    task: TaskId,
    watch: Watch,
    patience: Patience,
    /// When it is looked whether anybody is there who would take it.
    look_at: Instant,
    /// Since when no worker runs it, if none does.
    waits: Option<Instant>,
    ended: bool,
}

/// After this it is looked for the first time whether anybody is there. Most requests run by then.
const GLANCE: Duration = Duration::from_millis(100);

/// For how long a request waits for its turn.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    /// Until then in all.
    pub(super) until: Instant,
    /// For this long if nobody is there who would take it; not at all if nobody has been there for this long.
    pub(super) if_away: Duration,
}

/// What a client is told.
pub(super) enum News {
    /// A piece of the answer.
    Piece(Payload),
    /// It has ended.
    Ended(Arc<AcceptedTask>, Arc<FinishedTask>),
    /// No worker took it for as long as it may wait.
    NoWorker,
    /// Nobody who would take it is there, and it has waited for one.
    Away(Stranded),
    /// Nothing more will be heard of it.
    Lost,
}

impl Call {
    /// Submits a task, and watches it.
    pub(super) async fn place(
        backend: Arc<dyn Backend>,
        task: NewTask,
        patience: Patience,
    ) -> Result<Call, Error> {
        let answer = Some(backend.submit(vec![task], true));
        let accepted = Submitting { backend: Arc::clone(&backend), answer }.await?;
        let Some(first) = accepted.into_iter().next() else { return Err(Error::lost()) };
        let (submitted, watch) = first?;
        // It was asked for, hence it is there.
        let Some(watch) = watch else { return Err(Error::lost()) };
        let watch = watch.quietly();
        let (task, now) = (submitted.task, Instant::now());
        let look_at = patience.first_look(now);
        Ok(Call { backend, task, watch, patience, look_at, waits: Some(now), ended: false })
    }

    /// The task.
    pub(super) fn task(&self) -> TaskId {
        self.task
    }

    /// What comes next. After anything but a piece, nothing does.
    pub(super) async fn next(&mut self) -> News {
        loop {
            let notice = match self.waits {
                None => self.watch.next().await,
                Some(since) => match timeout_at(self.look_at, self.watch.next()).await {
                    Ok(notice) => notice,
                    // That it runs by now woke nobody.
                    Err(_) => match self.watch.told() {
                        Some(notice) => Some(notice),
                        None => match self.look(since) {
                            Some(news) => return news,
                            None => continue,
                        },
                    },
                },
            };
            match notice {
                Some(Notice::Output(piece)) => {
                    self.waits = None;
                    if !piece.bytes().is_empty() {
                        return News::Piece(piece);
                    }
                }
                Some(Notice::Ended { accepted, finished }) => {
                    self.ended = true;
                    return News::Ended(accepted, finished);
                }
                Some(Notice::Running | Notice::Progress(_)) => self.waits = None,
                Some(Notice::Delayed { .. }) => {
                    let now = Instant::now();
                    self.waits = Some(now);
                    self.look_at = self.patience.first_look(now);
                }
                // Bound to a worker, it still waits for its turn, and may be taken away again.
                Some(Notice::Scheduled(_)) => {}
                None => return News::Lost,
            }
        }
    }
}

impl Call {
    /// It has waited for a while: why it should not wait on. Whoever has been away for long is not waited for.
    fn look(&mut self, since: Instant) -> Option<News> {
        let Patience { until, if_away } = self.patience;
        let now = Instant::now();
        if until <= now {
            return Some(News::NoWorker);
        }
        let waited = now.saturating_duration_since(since);
        let again = if waited < if_away { since } else { now };
        self.look_at = again.checked_add(if_away).map_or(until, |look| look.min(until));
        let (task, mut stranded) = (self.task, None);
        self.backend.read(&mut |scheduler, now| {
            stranded = scheduler.stranded(task).filter(|stranded| {
                let away = stranded.since.map_or(Span::ZERO, |since| now.since(since));
                waited.max(Duration::from_micros(away.as_micros())) >= if_away
            });
        });
        stranded.map(News::Away)
    }
}

impl Patience {
    fn first_look(&self, now: Instant) -> Instant {
        self.until.min(now + self.if_away.min(GLANCE))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.ended {
            let cancelled = self.backend.ask(Command::CancelTask(self.task));
            in_background(async move {
                // A scheduler that cannot answer is stopping, and the request ends with it.
                let _ = cancelled.await;
            });
        }
    }
}

/// The submission itself. The client may go before it is known which task it became.
struct Submitting {
    backend: Arc<dyn Backend>,
    answer: Option<Answer<Vec<Accepted>>>,
}

impl Future for Submitting {
    type Output = Result<Vec<Accepted>, Unavailable>;

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
        let backend = Arc::clone(&self.backend);
        in_background(async move {
            for accepted in answer.await.into_iter().flatten().flatten() {
                let _ = backend.ask(Command::CancelTask(accepted.0.task)).await;
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
