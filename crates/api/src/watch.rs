//! Watching a task: notices from where the scheduler's effects are carried out to whoever waits.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hypha_engine::Notice;
use tokio::sync::Notify;

/// Pieces of a result that wait for a client. A model gives some hundred a second at most: a client that is
/// this far behind has stopped reading.
const MAX_PIECES: usize = 4_096;

/// Other notices that wait. Some may be left out, but never the last.
const MAX_NOTICES: usize = 64;

/// Where notices about one task arrive.
pub struct Watch(Arc<Shared>);

/// Where they come from. Dropping it ends the watch.
pub struct Watched(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    news: Notify,
}

#[derive(Default)]
struct State {
    notices: VecDeque<Notice>,
    closed: bool,
}

/// A watch and its other end.
pub fn watch() -> (Watched, Watch) {
    let shared = Arc::<Shared>::default();
    (Watched(Arc::clone(&shared)), Watch(shared))
}

impl Watch {
    /// The next notice; `None` when no more will come: after the last, or if the watcher was too slow for a
    /// stream of pieces.
    pub async fn next(&mut self) -> Option<Notice> {
        loop {
            let news = self.0.news.notified();
            {
                let mut state = self.0.lock();
                if let Some(notice) = state.notices.pop_front() {
                    return Some(notice);
                }
                if state.closed {
                    return None;
                }
            }
            news.await;
        }
    }
}

impl Watched {
    /// Whether anybody is still interested.
    pub fn is_watched(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Passes a notice on, and says whether anybody is still interested.
    pub fn tell(&self, notice: Notice) -> bool {
        if !self.is_watched() {
            return false;
        }
        let mut state = self.0.lock();
        let waiting = state.notices.len();
        match &notice {
            // A stream with a gap is worse than none.
            Notice::Output(_) if waiting >= MAX_PIECES => {
                state.notices.clear();
                state.closed = true;
            }
            Notice::Output(_) | Notice::Ended { .. } => state.notices.push_back(notice),
            _ if waiting >= MAX_NOTICES => {}
            _ => state.notices.push_back(notice),
        }
        let open = !state.closed;
        drop(state);
        self.0.news.notify_one();
        open
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.news.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
