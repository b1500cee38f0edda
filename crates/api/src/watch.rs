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
    /// Only what the watcher acts on wakes it.
    quiet: bool,
}

/// A watch and its other end.
pub fn watch() -> (Watched, Watch) {
    let shared = Arc::<Shared>::default();
    (Watched(Arc::clone(&shared)), Watch(shared))
}

impl Watch {
    /// From now on only pieces, the end and delays wake whoever waits; other notices come before the next of these, or
    /// when [`Watch::told`] asks for them.
    pub(crate) fn quietly(self) -> Watch {
        self.0.lock().quiet = true;
        self
    }

    /// A notice that has come already.
    pub(crate) fn told(&mut self) -> Option<Notice> {
        self.0.lock().notices.pop_front()
    }

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
        let wakes = !state.quiet
            || matches!(notice, Notice::Output(_) | Notice::Ended { .. } | Notice::Delayed { .. });
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
        if wakes {
            self.0.news.notify_one();
        }
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

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::task::noop_waker_ref;
    use hypha_model::{Payload, Time};
    use std::task::{Context, Poll};

    use super::*;

    #[test]
    fn a_quiet_watch_is_woken_only_by_what_it_acts_on_and_misses_nothing() {
        let (watched, watch) = watch();
        let mut watch = watch.quietly();
        let piece = || Notice::Output(Payload::from(b"x".as_slice()));
        let mut next = Box::pin(watch.next());
        let mut cx = Context::from_waker(noop_waker_ref());
        assert!(next.poll_unpin(&mut cx).is_pending());
        assert!(watched.tell(Notice::Running));
        assert!(next.poll_unpin(&mut cx).is_pending(), "nobody was woken");
        assert!(watched.tell(piece()));
        assert_eq!(next.poll_unpin(&mut cx), Poll::Ready(Some(Notice::Running)));
        drop(next);
        assert_eq!(watch.told(), Some(piece()));
        assert!(watched.tell(Notice::Progress(7)));
        assert_eq!(watch.told(), Some(Notice::Progress(7)));
        assert_eq!(watch.told(), None);
        let mut next = Box::pin(watch.next());
        assert!(next.poll_unpin(&mut cx).is_pending());
        watched.tell(Notice::Delayed { until: Time::ZERO, reason: String::new() });
        assert!(next.poll_unpin(&mut cx).is_ready());
    }
}
