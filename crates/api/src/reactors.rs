//! Threads that serve connections. Each has its own reactor, and a connection stays on one of them: a request
//! is handled where its caches are warm, and wakes no other thread.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::{Notify, oneshot};

/// With more than these, the scheduler behind them is the bottleneck.
const MAX_REACTORS: usize = 16;

/// Shorter than any timer that a request sets, and long enough to cost nothing.
const EARLIEST_TIMER: Duration = Duration::from_millis(4);

/// See the module documentation. Dropping them ends the connections that they serve.
pub(crate) struct ReactorPool(Vec<Reactor>);

struct Reactor {
    runtime: Handle,
    /// Its number of connections.
    load: Arc<AtomicUsize>,
    first_timer: Arc<FirstTimer>,
    /// Its thread runs until this is dropped; `None` if the thread is not ours.
    _shutdown: Option<oneshot::Sender<()>>,
}

impl ReactorPool {
    /// One for each processor.
    pub(crate) fn new() -> io::Result<ReactorPool> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        (0..processors.min(MAX_REACTORS))
            .map(Reactor::new)
            .collect::<io::Result<Vec<_>>>()
            .map(ReactorPool)
    }

    /// The runtime that this is called in.
    pub(crate) fn current() -> ReactorPool {
        let (load, first_timer) = (Arc::default(), Arc::default());
        ReactorPool(vec![Reactor {
            runtime: Handle::current(),
            load,
            first_timer,
            _shutdown: None,
        }])
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Serves a connection in the reactor with the lowest load.
    pub(crate) fn spawn<F: Future<Output = ()> + Send + 'static>(&self, serve: F) {
        let load = |reactor: &&Reactor| reactor.load.load(Ordering::Relaxed);
        if let Some(reactor) = self.0.iter().min_by_key(load) {
            let load_guard = LoadGuard::new(&reactor.load);
            let first_timer = Arc::clone(&reactor.first_timer);
            reactor.runtime.spawn(async move {
                let mut serve = pin!(serve);
                poll_fn(|cx| {
                    first_timer.polled();
                    serve.as_mut().poll(cx)
                })
                .await;
                drop(load_guard);
            });
        }
    }
}

impl Reactor {
    fn new(number: usize) -> io::Result<Reactor> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (shutdown, dropped) = oneshot::channel::<()>();
        std::thread::Builder::new().name(format!("http-{number}")).spawn(move || {
            // Nothing is ever sent: it ends when the sender is dropped.
            let _ = runtime.block_on(dropped);
            // A DNS lookup may take long, and its result is no longer needed.
            runtime.shutdown_background();
        })?;
        let first_timer = Arc::<FirstTimer>::default();
        handle.spawn(FirstTimer::run(Arc::clone(&first_timer)));
        Ok(Reactor {
            runtime: handle,
            load: Arc::default(),
            first_timer,
            _shutdown: Some(shutdown),
        })
    }
}

/// Keeps one timer pending while its reactor is busy, so that the timers of requests, which rarely fire, are never the
/// earliest. The runtime wakes its reactor with a system call, and runs its loop once more, for each new timer that is
/// due before all others, even if its own thread sets it.
#[derive(Default)]
struct FirstTimer {
    state: AtomicU8,
    started: Notify,
}

impl FirstTimer {
    /// No timer is pending.
    const STOPPED: u8 = 0;
    /// A timer is pending, and no connection was polled since it was set.
    const QUIET: u8 = 1;
    /// A timer is pending or about to be set, and a connection was polled.
    const BUSY: u8 = 2;

    /// A connection is polled.
    fn polled(&self) {
        if self.state.swap(FirstTimer::BUSY, Ordering::Relaxed) == FirstTimer::STOPPED {
            self.started.notify_one();
        }
    }

    async fn run(timer: Arc<FirstTimer>) {
        loop {
            if timer.state.swap(FirstTimer::QUIET, Ordering::Relaxed) == FirstTimer::BUSY {
                tokio::time::sleep(EARLIEST_TIMER).await;
            } else {
                timer.state.store(FirstTimer::STOPPED, Ordering::Relaxed);
                timer.started.notified().await;
            }
        }
    }
}

/// Counts as one while it lives, even if the future that it counts is dropped.
struct LoadGuard(Arc<AtomicUsize>);

impl LoadGuard {
    fn new(load: &Arc<AtomicUsize>) -> LoadGuard {
        load.fetch_add(1, Ordering::Relaxed);
        LoadGuard(Arc::clone(load))
    }
}

impl Drop for LoadGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::future::pending;

    use super::*;

    #[test]
    fn connections_are_spread_evenly_and_end_with_the_pool() {
        let reactors = ReactorPool((0..3).map(|number| Reactor::new(number).unwrap()).collect());
        let (sender, receiver) = std::sync::mpsc::sync_channel(16);
        for _ in 0..9 {
            let sender = sender.clone();
            reactors.spawn(async move {
                sender.send(std::thread::current().id()).unwrap();
                pending::<()>().await;
            });
        }
        drop(sender);
        let mut each = HashMap::new();
        receiver.iter().take(9).for_each(|thread| *each.entry(thread).or_insert(0) += 1);
        assert_eq!(each.into_values().collect::<Vec<_>>(), [3, 3, 3]);
        drop(reactors);
        // The pending futures are dropped, and their senders with them.
        assert!(receiver.recv().is_err());
    }

    #[test]
    fn least_loaded_reactor_is_used_next() {
        let reactors = ReactorPool((0..2).map(|number| Reactor::new(number).unwrap()).collect());
        let (sender, receiver) = std::sync::mpsc::sync_channel(16);
        let (end, ended) = oneshot::channel::<()>();
        let spawn = |reactors: &ReactorPool, until: oneshot::Receiver<()>| {
            let sender = sender.clone();
            reactors.spawn(async move {
                sender.send(std::thread::current().id()).unwrap();
                let _ = until.await;
            });
        };
        spawn(&reactors, ended);
        let first = receiver.recv().unwrap();
        let (_kept, never) = oneshot::channel();
        spawn(&reactors, never);
        assert_ne!(receiver.recv().unwrap(), first);
        end.send(()).unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while reactors.0.iter().all(|reactor| reactor.load.load(Ordering::Relaxed) > 0) {
            assert!(std::time::Instant::now() < until, "the load is not released");
            std::thread::yield_now();
        }
        let (_kept, never) = oneshot::channel();
        spawn(&reactors, never);
        assert_eq!(receiver.recv().unwrap(), first);
    }

    /// With the virtual clock, which runs ahead whenever the runtime is idle.
    #[tokio::test(start_paused = true)]
    async fn first_timer_is_pending_while_connections_are_polled_and_not_afterwards() {
        let timer = Arc::<FirstTimer>::default();
        let state = || timer.state.load(Ordering::Relaxed);
        tokio::spawn(FirstTimer::run(Arc::clone(&timer)));
        tokio::task::yield_now().await;
        assert_eq!(state(), FirstTimer::STOPPED, "a timer for an idle reactor");
        for _ in 0..3 {
            timer.polled();
            tokio::task::yield_now().await;
            assert_eq!(state(), FirstTimer::QUIET, "no timer although a connection was polled");
            // Polled again before the timer ends: it is set again.
            timer.polled();
            tokio::time::sleep(EARLIEST_TIMER + Duration::from_millis(1)).await;
            assert_eq!(state(), FirstTimer::QUIET, "the timer was not set again");
            tokio::time::sleep(EARLIEST_TIMER * 2).await;
            assert_eq!(state(), FirstTimer::STOPPED, "the timer outlives its use");
        }
    }

    /// Bytes are written to wake the thread of a reactor: how often has this thread written so far?
    #[cfg(target_os = "linux")]
    fn writes_of_this_thread() -> u64 {
        let counts = std::fs::read_to_string("/proc/thread-self/io").unwrap();
        let line = counts.lines().find_map(|line| line.strip_prefix("syscw: "));
        line.unwrap().parse().unwrap()
    }

    /// How often a runtime wakes its own thread while 1,000 requests each set a timer that does not fire.
    #[cfg(target_os = "linux")]
    fn wakeups_for_requests(with_first_timer: bool) -> u64 {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let timer = Arc::<FirstTimer>::default();
            if with_first_timer {
                tokio::spawn(FirstTimer::run(Arc::clone(&timer)));
            }
            let before = writes_of_this_thread();
            for _ in 0..1_000 {
                timer.polled();
                tokio::task::yield_now().await;
                let mut request_timer = pin!(tokio::time::sleep(Duration::from_secs(60)));
                let set = poll_fn(|cx| std::task::Poll::Ready(request_timer.as_mut().poll(cx)));
                assert!(set.await.is_pending());
            }
            writes_of_this_thread() - before
        })
    }

    /// Whether it is worth having: if the runtime wakes no thread for a new earliest timer, remove [`FirstTimer`].
    #[cfg(target_os = "linux")]
    #[test]
    fn timers_of_requests_do_not_wake_a_reactor_with_a_first_timer() {
        let without = wakeups_for_requests(false);
        assert!(without >= 1_000, "{without} wake-ups: the runtime has changed");
        let with = wakeups_for_requests(true);
        // The timer itself wakes the reactor when it is set, every few milliseconds.
        assert!(with < without / 2, "{with} wake-ups, {without} without a first timer");
    }
}
