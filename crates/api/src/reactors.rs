//! Threads that serve connections. Each has its own reactor, and a connection stays on one of them: a request
//! is handled where its caches are warm, and wakes no other thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// With more than these, the scheduler behind them is the bottleneck.
const MAX_REACTORS: usize = 16;

/// See the module documentation. Dropping them ends the connections that they serve.
pub(crate) struct ReactorPool(Vec<Reactor>);

struct Reactor {
    runtime: Handle,
    /// Its number of connections.
    load: Arc<AtomicUsize>,
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
        ReactorPool(vec![Reactor {
            runtime: Handle::current(),
            load: Arc::default(),
            _shutdown: None,
        }])
    }

    /// Serves a connection in the reactor with the lowest load.
    pub(crate) fn spawn<F: Future<Output = ()> + Send + 'static>(&self, serve: F) {
        let load = |reactor: &&Reactor| reactor.load.load(Ordering::Relaxed);
        if let Some(reactor) = self.0.iter().min_by_key(load) {
            let load_guard = LoadGuard::new(&reactor.load);
            reactor.runtime.spawn(async move {
                serve.await;
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
        Ok(Reactor { runtime: handle, load: Arc::default(), _shutdown: Some(shutdown) })
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
        let (told, tells) = std::sync::mpsc::sync_channel(16);
        for _ in 0..9 {
            let told = told.clone();
            reactors.spawn(async move {
                told.send(std::thread::current().id()).unwrap();
                pending::<()>().await;
            });
        }
        drop(told);
        let mut each = HashMap::new();
        tells.iter().take(9).for_each(|thread| *each.entry(thread).or_insert(0) += 1);
        assert_eq!(each.into_values().collect::<Vec<_>>(), [3, 3, 3]);
        drop(reactors);
        // The future that waits for ever is dropped, and its end of the channel with it.
        assert!(tells.recv().is_err());
    }

    #[test]
    fn least_loaded_reactor_is_used_next() {
        let reactors = ReactorPool((0..2).map(|number| Reactor::new(number).unwrap()).collect());
        let (told, tells) = std::sync::mpsc::sync_channel(16);
        let (end, ended) = oneshot::channel::<()>();
        let tell = |reactors: &ReactorPool, until: oneshot::Receiver<()>| {
            let told = told.clone();
            reactors.spawn(async move {
                told.send(std::thread::current().id()).unwrap();
                let _ = until.await;
            });
        };
        tell(&reactors, ended);
        let first = tells.recv().unwrap();
        let (_kept, never) = oneshot::channel();
        tell(&reactors, never);
        assert_ne!(tells.recv().unwrap(), first);
        end.send(()).unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while reactors.0.iter().all(|reactor| reactor.load.load(Ordering::Relaxed) > 0) {
            assert!(std::time::Instant::now() < until, "the load is not released");
            std::thread::yield_now();
        }
        let (_kept, never) = oneshot::channel();
        tell(&reactors, never);
        assert_eq!(tells.recv().unwrap(), first);
    }
}
