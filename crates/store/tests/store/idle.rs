//! The memory of a store that has nothing to do.

use std::time::{Duration, Instant};

use hypha_conformance::commit;
use hypha_conformance::samples::accepted;
use hypha_engine::store::Filter;
use hypha_store::Store;

/// Enough for rows of several times the writer's cache.
const TASKS: u64 = 60_000;
const BATCH: u64 = 2_000;
/// A quarter of the cache of the writer: the allocator keeps pages that are still used in part.
const RELEASED_BYTES: u64 = 2 << 20;
const DEADLINE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn an_idle_store_releases_its_caches() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(&dir.path().join("tasks.db")).unwrap();
    for first in (0..TASKS).step_by(BATCH as usize) {
        commit(&store, (first..first + BATCH).map(accepted).collect()).unwrap();
    }
    let busy = anonymous_bytes();
    let began = Instant::now();
    while anonymous_bytes() + RELEASED_BYTES > busy {
        let now = anonymous_bytes();
        assert!(began.elapsed() < DEADLINE, "{busy} bytes while busy, still {now} when idle");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // It is used again as before.
    commit(&store, vec![accepted(TASKS)]).unwrap();
    assert_eq!(store.list(Filter::default(), None, 10).await.unwrap().tasks.len(), 10);
}

/// The memory of this process, without files.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}
