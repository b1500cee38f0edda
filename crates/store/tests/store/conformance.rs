//! The SQLite store passes the conformance suite of stores.

use std::path::PathBuf;

use hypha_conformance::{Harness, store_conformance};
use hypha_engine::Image;
use hypha_machine::{BoxFuture, Rows};
use hypha_store::{MachineStore, Store, StoreError};
use tempfile::TempDir;

store_conformance!(Sqlite, block_on);

/// A directory with a database for each incarnation of the process.
struct Sqlite {
    dir: TempDir,
    incarnations: u32,
}

impl Default for Sqlite {
    fn default() -> Sqlite {
        Sqlite { dir: tempfile::tempdir().unwrap(), incarnations: 0 }
    }
}

impl Sqlite {
    fn path(&self) -> PathBuf {
        self.dir.path().join(format!("incarnation-{}.db", self.incarnations))
    }
}

impl Harness for Sqlite {
    type Error = StoreError;
    type Store = Store;
    type Machine = MachineStore;

    fn open(&mut self) -> (Store, Image) {
        let (store, recovered) = Store::open(&self.path()).unwrap();
        (store, recovered.image)
    }

    /// The next incarnation gets a copy of the file and its log, taken while the store is open: closing it would
    /// checkpoint the log.
    fn crash(&mut self, store: Store) -> (Store, Image) {
        let before = self.path();
        self.incarnations += 1;
        let log = |database: PathBuf| database.with_extension("db-wal");
        // In this order: the log only grows meanwhile, and is not checkpointed before it is far larger than here.
        std::fs::copy(&before, self.path()).unwrap();
        std::fs::copy(log(before), log(self.path())).unwrap();
        drop(store);
        self.open()
    }

    fn machine<'a>(
        &'a self,
        store: &'a Store,
        name: &'a str,
    ) -> BoxFuture<'a, (MachineStore, Rows)> {
        Box::pin(async { store.machine(name.parse().unwrap()).await.unwrap() })
    }

    /// `meta` is the last table that a scheduler's commit writes, so the rest of the transaction has to be rolled back.
    fn fail_writes(&mut self, fail: bool) {
        let connection = rusqlite::Connection::open(self.path()).unwrap();
        for table in ["meta", "machine_rows"] {
            let sql = match fail {
                true => format!(
                    "CREATE TRIGGER fail_{table} BEFORE INSERT ON {table} \
                     BEGIN SELECT RAISE(FAIL, 'a planted fault'); END"
                ),
                false => format!("DROP TRIGGER fail_{table}"),
            };
            connection.execute_batch(&sql).unwrap();
        }
    }

    fn in_parallel(work: Vec<Box<dyn FnOnce() + Send + '_>>) {
        std::thread::scope(|scope| {
            work.into_iter().for_each(|work| drop(scope.spawn(work)));
        });
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}
