//! The confinement of programs.

use hypha_executor::RunError;

use crate::support::{Bench, attempt, failure, text};

const MIB: u64 = 1024 * 1024;

/// Whether a program complains that a path is not there, or not for it.
fn is_refused(output: &str) -> bool {
    ["Permission denied", "No such file", "nonexistent", "not permitted", "Read-only"]
        .iter()
        .any(|complaint| output.contains(complaint))
}

#[tokio::test]
async fn nothing_is_written_outside_the_work_directory() {
    let mut bench = Bench::new("");
    let outside = bench.root.path().join("outside");
    let script = format!("echo in > inside && cat inside; echo out > {}", outside.display());
    bench.config.args[1] = script;
    let failure = failure(bench.run(attempt("m", "")).await);
    assert!(is_refused(&failure.output), "{}", failure.output);
    assert!(!outside.exists());
}

#[tokio::test]
async fn nothing_is_read_that_was_not_allowed() {
    let mut bench = Bench::new("");
    let secret = bench.root.path().join("node.key");
    std::fs::write(&secret, "the key").unwrap();
    bench.config.args[1] = format!("cat {}", secret.display());
    let refused = failure(bench.run(attempt("m", "")).await);
    assert!(is_refused(&refused.output), "{}", refused.output);
    bench.config.read = vec![secret];
    assert_eq!(text(&bench.run(attempt("m", "")).await), "the key");
}

#[tokio::test]
async fn other_attempts_and_their_inputs_are_inaccessible() {
    let bench = Bench::new("echo $$ > pids; exec sleep 1000");
    let executor = bench.executor();
    let running = executor.start(attempt("m", "private"));
    let directory = bench.directory().await;
    let pids = crate::support::pids(&directory.join("pids"), 1).await;
    let mut other = Bench::new("");
    other.config.args[1] = format!(
        "cat {}/input; cat /proc/{}/environ; kill -KILL {}; exit 1",
        directory.display(),
        pids[0],
        pids[0],
    );
    let failure = failure(other.run(attempt("m", "")).await);
    assert!(!failure.output.contains("private") && !failure.output.contains("TOKEN"));
    assert_eq!(failure.output.lines().filter(|line| is_refused(line)).count(), 3, "{failure:?}");
    assert!(crate::support::lives(pids[0]));
    drop(running);
}

#[tokio::test]
async fn no_privileges_are_held_or_gained() {
    let bench = Bench::new("grep -E 'CapEff|CapPrm|NoNewPrivs' /proc/self/status; ulimit -c");
    let text = text(&bench.run(attempt("m", "")).await);
    let values: Vec<&str> = text.split_whitespace().filter(|word| !word.ends_with(':')).collect();
    assert_eq!(values, ["0000000000000000", "0000000000000000", "1", "0"]);
}

#[tokio::test]
async fn memory_is_summed_over_the_tree() {
    // Each holds 60 MiB: one fits, both do not.
    let eater = "head -c 60M /dev/zero | tail -c 60M | sleep 1000";
    let bench = Bench::new(&format!("{eater} & {eater}"));
    let mut attempt = attempt("m", "");
    attempt.memory_bytes = Some(100 * MIB);
    let failure = failure(bench.run(attempt).await);
    let RunError::Memory { used_bytes, limit_bytes } = failure.error else {
        panic!("{:?}", failure.error)
    };
    assert!(used_bytes > limit_bytes && limit_bytes == 100 * MIB);
    assert!(!failure.error.kind().is_retryable());
    bench.assert_empty();
}

#[tokio::test]
async fn files_and_processes_are_bounded() {
    let mut bench = Bench::new("head -c 100000 /dev/zero > large");
    bench.config.limits.file_bytes = Some(1_000);
    let file = failure(bench.run(attempt("m", "")).await);
    assert!(file.output.contains("File"), "{file:?}");

    let mut bench = Bench::new("for i in 1 2 3 4 5 6 7 8; do sleep 1000 & done; wait");
    bench.config.limits.processes = 5;
    let many = failure(bench.run(attempt("m", "")).await);
    assert!(matches!(many.error, RunError::Processes { limit: 5, .. }), "{many:?}");
}

#[tokio::test]
async fn fork_bomb_is_killed() {
    let mut bench = Bench::new("while :; do setsid sh -c 'sleep 1000 & sleep 1000' & done");
    bench.config.limits.processes = 20;
    let many = failure(bench.run(attempt("m", "")).await);
    assert!(matches!(many.error, RunError::Processes { limit: 20, .. }), "{many:?}");
    bench.assert_empty();
}
