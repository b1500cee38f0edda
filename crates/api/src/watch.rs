//! Watches a task: passes notices from the effect handler to the waiting request.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hypha_engine::Notice;
use tokio::sync::Notify;

/// Pieces of a result that wait for a client. A model produces some hundred a second at most: a client that
/// is this far behind has stopped reading.
const MAX_PIECES: usize = 4_096;

/// Bytes of such pieces: several times the largest that a worker sends. Beyond that, too, the client has
/// stopped reading.
const MAX_PIECES_BYTES: usize = 64 << 20;

/// Other notices that wait. Some may be dropped, but never the last.
const MAX_NOTICES: usize = 64;

/// The receiver of notices about one task.
pub struct Watch(Arc<WatchChannel>);

/// The sender of these notices. Dropping it ends the watch.
pub struct WatchSender(Arc<WatchChannel>);

#[derive(Default)]
struct WatchChannel {
    state: Mutex<NoticeQueue>,
    wakeup: Notify,
}

#[derive(Default)]
struct NoticeQueue {
    notices: VecDeque<Notice>,
    /// Bytes of pieces among them.
    bytes: usize,
    closed: bool,
    /// Only notices that the watcher acts on wake it.
    quiet: bool,
}

/// A watch and its sender.
pub fn watch_channel() -> (WatchSender, Watch) {
    let shared = Arc::<WatchChannel>::default();
    (WatchSender(Arc::clone(&shared)), Watch(shared))
}

impl Watch {
    /// From now on only pieces, the end and delays wake the watcher; other notices are delivered before the
    /// next of these, or when [`Watch::try_next`] is called.
    pub(crate) fn quietly(self) -> Watch {
        self.0.lock().quiet = true;
        self
    }

    /// A notice that has already arrived.
    pub(crate) fn try_next(&mut self) -> Option<Notice> {
        self.0.lock().pop()
    }

    /// The next notice; `None` when no more will come: after the last, or if the watcher was too slow for a
    /// stream of pieces.
    pub async fn next(&mut self) -> Option<Notice> {
        loop {
            let wakeup = self.0.wakeup.notified();
            {
                let mut state = self.0.lock();
                if let Some(notice) = state.pop() {
                    return Some(notice);
                }
                if state.closed {
                    return None;
                }
            }
            wakeup.await;
        }
    }
}

impl WatchSender {
    /// Whether the watch still exists.
    pub fn has_watcher(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Passes a notice on, and returns whether the watch still exists.
    pub fn send(&self, notice: Notice) -> bool {
        if !self.has_watcher() {
            return false;
        }
        let mut state = self.0.lock();
        let waiting = state.notices.len();
        let wakes = !state.quiet
            || matches!(notice, Notice::Output(_) | Notice::Ended { .. } | Notice::Delayed { .. });
        match &notice {
            // A stream with a gap is worse than none, and so is one that starts over without notice.
            Notice::Output(_) | Notice::Delayed { .. } if state.is_full() => {
                state.notices.clear();
                state.bytes = 0;
                state.closed = true;
            }
            Notice::Output(_) | Notice::Delayed { .. } | Notice::Ended { .. } => state.push(notice),
            _ if waiting >= MAX_NOTICES => {}
            _ => state.push(notice),
        }
        let open = !state.closed;
        drop(state);
        if wakes {
            self.0.wakeup.notify_one();
        }
        open
    }
}

impl NoticeQueue {
    fn push(&mut self, notice: Notice) {
        self.bytes += size(&notice);
        self.notices.push_back(notice);
    }

    fn pop(&mut self) -> Option<Notice> {
        let notice = self.notices.pop_front()?;
        self.bytes -= size(&notice);
        Some(notice)
    }

    fn is_full(&self) -> bool {
        self.notices.len() >= MAX_PIECES || self.bytes >= MAX_PIECES_BYTES
    }
}

fn size(notice: &Notice) -> usize {
    match notice {
        Notice::Output(piece) => piece.bytes().len(),
        _ => 0,
    }
}

impl Drop for WatchSender {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.wakeup.notify_one();
    }
}

impl WatchChannel {
    fn lock(&self) -> MutexGuard<'_, NoticeQueue> {
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
    fn quiet_watch_is_woken_only_by_relevant_notices_and_misses_none() {
        let (watched, watch) = watch_channel();
        let mut watch = watch.quietly();
        let piece = || Notice::Output(Payload::from(b"x".as_slice()));
        let mut next = Box::pin(watch.next());
        let mut cx = Context::from_waker(noop_waker_ref());
        assert!(next.poll_unpin(&mut cx).is_pending());
        assert!(watched.send(Notice::Running));
        assert!(next.poll_unpin(&mut cx).is_pending(), "the watcher was not woken");
        assert!(watched.send(piece()));
        assert_eq!(next.poll_unpin(&mut cx), Poll::Ready(Some(Notice::Running)));
        drop(next);
        assert_eq!(watch.try_next(), Some(piece()));
        assert!(watched.send(Notice::Progress(7)));
        assert_eq!(watch.try_next(), Some(Notice::Progress(7)));
        assert_eq!(watch.try_next(), None);
        let mut next = Box::pin(watch.next());
        assert!(next.poll_unpin(&mut cx).is_pending());
        watched.send(Notice::Delayed { until: Time::ZERO, reason: String::new() });
        assert!(next.poll_unpin(&mut cx).is_ready());
    }

    #[tokio::test]
    async fn slow_watcher_is_notified_that_the_result_starts_over() {
        let (watched, mut watch) = watch_channel();
        let piece = || Notice::Output(Payload::from(b"x".as_slice()));
        assert!((0..MAX_NOTICES).all(|_| watched.send(piece())));
        watched.send(Notice::Running);
        watched.send(Notice::Delayed { until: Time::ZERO, reason: String::new() });
        watched.send(piece());
        for _ in 0..MAX_NOTICES {
            assert_eq!(watch.next().await, Some(piece()));
        }
        // A mere state notice may be dropped.
        assert!(matches!(watch.next().await, Some(Notice::Delayed { .. })));
        assert_eq!(watch.next().await, Some(piece()));
    }

    #[tokio::test]
    async fn unread_pieces_are_bounded_in_number_and_bytes() {
        for (size, fit) in [(1, MAX_PIECES), (MAX_PIECES_BYTES / 4, 4), (MAX_PIECES_BYTES + 1, 1)] {
            let (watched, mut watch) = watch_channel();
            let piece = Payload::from(vec![0; size]);
            for _ in 0..fit {
                assert!(watched.send(Notice::Output(piece.clone())));
            }
            assert!(!watched.send(Notice::Output(piece)), "{size}");
            assert_eq!(watch.next().await, None, "it is at its end, and not at a gap");
        }
    }
}
