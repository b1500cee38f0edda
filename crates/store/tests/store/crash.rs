//! The process dies, or the tail of the log is lost: acknowledged commits are kept, and no commit is torn.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use hypha_conformance::atomicity::{TASKS_PER_COMMIT, is_committed, records};
use hypha_conformance::{commit, start_commit};
use hypha_model::Rng;
use hypha_store::Store;

/// A power failure as SQLite sees it: only a part of the log reached the disk.
#[tokio::test]
async fn a_log_cut_anywhere_holds_whole_commits() {
    const COMMITS: u64 = 12;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tasks.db");
    let log = |path: &Path| path.with_extension("db-wal");
    let (store, _) = Store::open(&path).unwrap();
    let mut lengths = Vec::new();
    for number in 0..COMMITS {
        commit(&store, records(number)).unwrap();
        lengths.push(written(&std::fs::read(log(&path)).unwrap()));
    }
    let whole = std::fs::read(log(&path)).unwrap();
    let last = lengths[COMMITS as usize - 1];
    assert!(last < whole.len() as u64, "the file is not longer than its contents");
    let mut rng = Rng::new(3);
    let ends = lengths.iter().flat_map(|length| [*length - 1, *length]);
    let random = (0..20).map(|_| lengths[0] + rng.below(last)).collect::<Vec<u64>>();
    let cuts = ends.chain(random).filter(|cut| (lengths[0]..=last).contains(cut));
    for cut in cuts.chain([last + 1, whole.len() as u64]) {
        let copy = dir.path().join(format!("copy-{cut}.db"));
        std::fs::copy(&path, &copy).unwrap();
        std::fs::write(log(&copy), &whole[..cut as usize]).unwrap();
        let (copied, _) = Store::open(&copy).unwrap();
        for number in 0..COMMITS {
            let expected = lengths[number as usize] <= cut;
            assert_eq!(
                is_committed(&copied, number).await,
                expected,
                "commit {number}, cut at {cut}"
            );
        }
    }
}

/// The length of the contents of a log, whose file is longer: each frame has the salt of the log that it belongs to.
fn written(log: &[u8]) -> u64 {
    const HEADER: usize = 32;
    const FRAME: usize = 24 + 4_096;
    let (header, frames) = log.split_at(HEADER);
    let own = frames.chunks_exact(FRAME).take_while(|frame| frame[8..16] == header[16..24]);
    (HEADER + own.count() * FRAME) as u64
}

#[tokio::test]
async fn a_killed_process_keeps_its_acknowledged_commits() {
    let seed = 11;
    let mut rng = Rng::new(seed);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tasks.db");
    let mut acknowledged = 0;
    for incarnation in 0..6 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crash::commits_until_it_is_killed", "--ignored", "--nocapture"])
            .env(PATH, &path)
            .env(FIRST, acknowledged.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let last = acknowledged + 1 + rng.below(60);
        let read = |line: std::io::Result<String>| {
            let line = line.unwrap();
            // The test harness writes the name of the test before the first line.
            line.split_once("durable ").map(|(_, number)| number.parse::<u64>().unwrap())
        };
        while acknowledged < last {
            let line = lines.next().expect("the child ended by itself");
            acknowledged = read(line).map_or(acknowledged, |number| number + 1);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // The output that it wrote before it died counts.
        for number in lines.filter_map(read) {
            acknowledged = number + 1;
        }
        let (store, found) = Store::open(&path).unwrap();
        for number in 0..acknowledged {
            assert!(
                is_committed(&store, number).await,
                "incarnation {incarnation}: commit {number} is lost"
            );
        }
        // Further commits may have been kept, but only whole and in order.
        let mut unknown = acknowledged;
        while is_committed(&store, unknown).await {
            unknown += 1;
        }
        for number in unknown..unknown + 100 {
            assert!(
                !is_committed(&store, number).await,
                "incarnation {incarnation}: commit {number} was kept without the ones before it"
            );
        }
        let open = found.image.tasks.values().filter(|task| task.finished.is_none()).count();
        assert_eq!(open as u64, unknown * (TASKS_PER_COMMIT - 1));
        acknowledged = unknown;
    }
}

const PATH: &str = "HYPHA_STORE_TEST_PATH";
const FIRST: &str = "HYPHA_STORE_TEST_FIRST";

#[test]
#[ignore = "the child of a_killed_process_keeps_its_acknowledged_commits: it does not end by itself"]
fn commits_until_it_is_killed() {
    let path = std::env::var_os(PATH).unwrap();
    let first: u64 = std::env::var(FIRST).unwrap().parse().unwrap();
    let (store, _) = Store::open(Path::new(&path)).unwrap();
    let mut in_flight = std::collections::VecDeque::new();
    for number in first.. {
        in_flight.push_back((number, start_commit(&store, records(number))));
        if in_flight.len() > 8 {
            let (number, committing) = in_flight.pop_front().unwrap();
            committing.wait().unwrap();
            let mut out = std::io::stdout().lock();
            writeln!(out, "durable {number}").unwrap();
            out.flush().unwrap();
        }
    }
}
