//! The simulated store passes the suite of all stores.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use hypha_conformance::{Harness, Transfer, store_conformance};
use hypha_engine::{Image, Record};
use hypha_machine::{BoxFuture, Rows};
use hypha_sim::disk::FaultDisk;
use hypha_sim::store::{SharedDisk, SimulatedStore, SimulatedStoreError};

store_conformance!(Simulated, now);

/// A disk for the scheduler, and one for each machine.
struct Simulated {
    scheduler: SharedDisk<Record, Image>,
    machines: Mutex<BTreeMap<String, SharedDisk<Transfer, Rows>>>,
}

impl Default for Simulated {
    fn default() -> Simulated {
        Simulated { scheduler: disk(), machines: Mutex::default() }
    }
}

impl Harness for Simulated {
    type Error = SimulatedStoreError;
    type Store = SimulatedStore<Record, Image>;
    type Machine = SimulatedStore<Transfer, Rows>;

    fn open(&mut self) -> (Self::Store, Image) {
        SimulatedStore::open(&self.scheduler)
    }

    fn crash(&mut self, store: Self::Store) -> (Self::Store, Image) {
        drop(store);
        self.open()
    }

    fn machine<'a>(
        &'a self,
        _: &'a Self::Store,
        name: &'a str,
    ) -> BoxFuture<'a, (Self::Machine, Rows)> {
        Box::pin(async {
            let mut machines = self.machines.lock().unwrap();
            SimulatedStore::open(machines.entry(name.to_owned()).or_insert_with(disk))
        })
    }

    fn fail_writes(&mut self, fail: bool) {
        self.scheduler.lock().unwrap().is_full = fail;
        for disk in self.machines.lock().unwrap().values() {
            disk.lock().unwrap().is_full = fail;
        }
    }

    #[allow(clippy::disallowed_methods, reason = "the test is about threads")]
    fn in_parallel(work: Vec<Box<dyn FnOnce() + Send + '_>>) {
        std::thread::scope(|scope| {
            work.into_iter().for_each(|work| drop(scope.spawn(work)));
        });
    }
}

fn disk<R, I: Default>() -> SharedDisk<R, I> {
    Arc::new(Mutex::new(FaultDisk::new(I::default())))
}

/// A simulated store never waits.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("a simulated store waits for something"),
    }
}
