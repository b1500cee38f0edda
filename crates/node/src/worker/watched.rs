//! A server behind an executor, asked again and again whether it is well.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hypha_backends::Server;
use hypha_model::Name;
use tokio::sync::{Notify, mpsc};

use super::driver::Event;

/// How often a server is asked whether it is well.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// How often one is asked that is not: most are back within seconds, and a connection that is refused costs nobody much.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// See the head of this file. Cheap to clone.
#[derive(Clone)]
pub(super) struct Watched {
    pub(super) server: Server,
    /// The place of the executor in the worker's list.
    executor: usize,
    name: Name,
    events: mpsc::Sender<Event>,
    problem: Arc<Mutex<Option<String>>>,
    /// A task did not reach it: look sooner.
    missed: Arc<Notify>,
}

impl Watched {
    /// Watches a server for as long as the runtime lives; when it goes or comes back, `events` hears of it.
    pub(super) fn start(
        server: Server,
        executor: usize,
        name: Name,
        events: &mpsc::Sender<Event>,
    ) -> Watched {
        let (events, problem, missed) = (events.clone(), Arc::default(), Arc::default());
        let watched = Watched { server, executor, name, events, problem, missed };
        tokio::spawn(watched.clone().look());
        watched
    }

    /// Why it is not well, if it is not.
    pub(super) fn problem(&self) -> Option<String> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A task could not be sent to it. It is not well from now on, until a look finds otherwise.
    pub(super) async fn was_not_reached(&self, error: &str) {
        self.note(Some(error.to_owned()));
        self.say(false).await;
        self.missed.notify_one();
    }

    async fn look(self) {
        loop {
            let problem = self.server.health().await.err().map(|error| error.to_string());
            let well = problem.is_none();
            self.note(problem);
            // Also when it is no news: a task that did not reach it may have said otherwise meanwhile.
            self.say(well).await;
            let pause = if well { LOOK_EVERY } else { LOOK_AGAIN };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.missed.notified() => tokio::time::sleep(LOOK_AGAIN).await,
            }
        }
    }

    async fn say(&self, well: bool) {
        let _ = self.events.send(Event::Looked(self.executor, well)).await;
    }

    /// Notes how it is, and logs it when that has changed.
    fn note(&self, problem: Option<String>) {
        let before = {
            let mut known = self.problem.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *known, problem.clone())
        };
        let executor = &self.name;
        match (before, &problem) {
            (None, Some(problem)) => {
                tracing::warn!(%executor, "the server is away, and is given nothing: {problem}");
            }
            (Some(_), None) => tracing::info!(%executor, "the server is well again"),
            _ => {}
        }
    }
}
