//! Programs: their input, their result, how they end.

use std::time::Duration;

use hypha_executor::{OpenError, Process, RunError, RunOutcome};

use crate::support::{Bench, attempt, eventually, failure, lives, pids, text, within};

#[tokio::test]
async fn input_goes_in_and_output_comes_out() {
    let bench = Bench::new("tr a-z A-Z");
    assert_eq!(text(&bench.run(attempt("m", "hello")).await), "HELLO");
    bench.assert_empty();
}

#[tokio::test]
async fn environment_is_clean_and_names_the_attempt() {
    let mut bench = Bench::new("env; pwd");
    bench.config.environment.insert("MINE".to_owned(), "yes".to_owned());
    bench.config.environment.insert("HOME".to_owned(), "/elsewhere".to_owned());
    let mut attempt = attempt("llama", "");
    attempt.devices = vec![1, 3];
    let text = text(&bench.run(attempt).await);
    let lines: Vec<&str> = text.lines().collect();
    for expected in ["MINE=yes", "CUDA_VISIBLE_DEVICES=1,3", "HYPHA_MODEL=llama"] {
        assert!(lines.contains(&expected), "{expected} is missing in {text}");
    }
    assert!(lines.iter().any(|line| line.starts_with("HYPHA_ATTEMPT=")), "{text}");
    let directory = lines.last().unwrap();
    assert!(lines.contains(&format!("HOME={directory}").as_str()), "{text}");
    let directory = std::path::Path::new(directory);
    assert_eq!(directory.parent().unwrap().file_name().unwrap(), "work", "{text}");
    assert!(directory.file_name().unwrap().to_str().unwrap().starts_with("run-"), "{text}");
    // The test runner's own environment has these.
    assert!(!text.contains("CARGO") && !text.contains("HYPHA_LAUNCH"), "{text}");
}

#[tokio::test]
async fn attempt_runs_on_its_cpus_only() {
    let bench = Bench::new("grep Cpus_allowed_list /proc/self/status");
    let mut attempt = attempt("m", "");
    attempt.cpus = vec![0];
    assert_eq!(text(&bench.run(attempt).await).trim(), "Cpus_allowed_list:\t0");
}

#[tokio::test]
async fn a_failure_has_its_code_and_the_end_of_its_output() {
    let mut bench = Bench::new(
        "echo out; i=0; while [ $i -lt 3000 ]; do echo line $i >&2; i=$((i+1)); done; exit 3",
    );
    bench.config.limits.output_bytes = 100;
    let failure = failure(bench.run(attempt("m", "")).await);
    assert_eq!(failure.error, RunError::Exit(3));
    assert!(failure.output.ends_with("line 2999\n"), "{}", failure.output);
    assert_eq!(failure.output.len(), 100);
    assert!(failure.error.kind().is_retryable());
    bench.assert_empty();
}

#[tokio::test]
async fn a_failure_without_errors_shows_what_it_printed() {
    let failure = failure(Bench::new("echo only this; kill -ABRT $$").run(attempt("m", "")).await);
    assert_eq!((failure.error, failure.output.as_str()), (RunError::Signal(6), "only this\n"));
}

#[tokio::test]
async fn missing_program_is_named() {
    let mut bench = Bench::new("");
    bench.config.command = "no-such-program".into();
    let failure = failure(bench.run(attempt("m", "")).await);
    assert_eq!(failure.error, RunError::Exit(127));
    assert!(failure.output.contains("cannot start `no-such-program`"), "{}", failure.output);
}

#[tokio::test]
async fn a_lost_launcher_is_the_workers_fault() {
    let mut bench = Bench::new("true");
    let launcher = bench.root.path().join("launcher");
    std::os::unix::fs::symlink(&bench.config.launcher.program, &launcher).unwrap();
    bench.config.launcher.program = launcher.clone();
    let executor = bench.executor();
    std::fs::remove_file(&launcher).unwrap();
    let missing = failure(within(executor.start(attempt("m", "")).outcome()).await);
    assert!(matches!(missing.error, RunError::Worker(_)) && missing.error.kind().is_retryable());
    std::os::unix::fs::symlink("/bin/true", &launcher).unwrap();
    let mute = failure(within(executor.start(attempt("m", "")).outcome()).await);
    assert!(mute.error.to_string().contains("without a report"), "{}", mute.error);
    bench.assert_empty();
}

#[tokio::test]
async fn a_result_that_is_too_large_ends_the_program() {
    let mut bench = Bench::new("echo $$ > pid; trap 'exit 0' TERM; while :; do echo more; done");
    bench.config.limits.result_bytes = 1_000;
    let failure = failure(bench.run(attempt("m", "")).await);
    assert_eq!(failure.error, RunError::ResultTooLarge { limit_bytes: 1_000 });
    assert!(failure.output.len() <= bench.config.limits.output_bytes);
    assert!(!failure.error.kind().is_retryable());
}

#[tokio::test]
async fn daemonised_children_are_killed_on_cancel() {
    let bench = Bench::new(
        "setsid sh -c 'sh -c \"echo \\$\\$ >> pids; exec sleep 1000\" & \
         echo $$ >> pids; exec sleep 1000' & echo $$ >> pids; exec sleep 1000",
    );
    let executor = bench.executor();
    let running = executor.start(attempt("m", ""));
    let file = bench.directory().await.join("pids");
    let pids = pids(&file, 3).await;
    assert!(pids.iter().all(|pid| lives(*pid)));
    running.cancel();
    assert_eq!(within(running.outcome()).await, RunOutcome::Cancelled);
    // Not even a zombie: each was reaped before the outcome came.
    assert_eq!(pids.iter().filter(|pid| lives(**pid)).count(), 0);
    bench.assert_empty();
}

#[tokio::test]
async fn orphans_of_a_successful_program_are_killed() {
    let bench = Bench::new("setsid sleep 1000 > /dev/null 2>&1 & echo $!");
    let pid: u32 = text(&bench.run(attempt("m", "")).await).trim().parse().unwrap();
    assert!(!lives(pid));
}

#[tokio::test]
async fn program_that_ignores_sigterm_is_killed_after_the_grace_period() {
    let mut bench =
        Bench::new("trap 'echo asked >> asked' TERM; echo $$ > pids; while :; do sleep 0.02; done");
    let kept = bench.root.path().join("kept");
    std::fs::create_dir(&kept).unwrap();
    bench.config.write = vec![kept.clone()];
    bench.config.args[1] =
        bench.config.args[1].replace(">> asked", &format!(">> {}/asked", kept.display()));
    // Enough for a loaded machine to run the trap in.
    bench.config.limits.grace = Duration::from_secs(2);
    let executor = bench.executor();
    let running = executor.start(attempt("m", ""));
    let file = bench.directory().await.join("pids");
    let pids = pids(&file, 1).await;
    running.cancel();
    assert_eq!(within(running.outcome()).await, RunOutcome::Cancelled);
    assert!(!lives(pids[0]));
    assert_eq!(std::fs::read_to_string(kept.join("asked")).unwrap(), "asked\n");
}

#[tokio::test]
async fn program_that_stops_on_sigterm_is_not_waited_for() {
    let mut bench = Bench::new("trap 'exit 0' TERM; echo $$ > pids; while :; do sleep 0.02; done");
    // Longer than the test waits: it passes only if the grace period is not waited out.
    bench.config.limits.grace = Duration::from_secs(3_600);
    let executor = bench.executor();
    let running = executor.start(attempt("m", ""));
    let file = bench.directory().await.join("pids");
    pids(&file, 1).await;
    running.cancel();
    assert_eq!(within(running.outcome()).await, RunOutcome::Cancelled);
}

#[tokio::test]
async fn dropping_an_attempt_ends_it() {
    let bench = Bench::new("echo $$ > pids; exec sleep 1000");
    let executor = bench.executor();
    let running = executor.start(attempt("m", ""));
    let directory = bench.directory().await;
    let pids = pids(&directory.join("pids"), 1).await;
    drop(running);
    eventually("it ends", || (!lives(pids[0]) && !directory.exists()).then_some(())).await;
}

#[tokio::test]
async fn stopping_the_executor_ends_all_attempts() {
    let mut bench =
        Bench::new("echo $$ >> KEPT; setsid sleep 1000 & echo $! >> KEPT; exec sleep 1000");
    let kept = bench.keep();
    let executor = bench.executor();
    let all = [executor.start(attempt("m", "")), executor.start(attempt("m", ""))];
    let pids = pids(&kept, 4).await;
    within(executor.stop()).await;
    assert_eq!(pids.iter().filter(|pid| lives(**pid)).count(), 0);
    bench.assert_empty();
    for running in all {
        assert_eq!(within(running.outcome()).await, RunOutcome::Cancelled);
    }
    let late = executor.start(attempt("m", ""));
    assert_eq!(within(late.outcome()).await, RunOutcome::Cancelled);
}

#[tokio::test]
async fn dropping_the_executor_ends_all_attempts() {
    let mut bench = Bench::new("echo $$ >> KEPT; exec sleep 1000");
    let kept = bench.keep();
    let executor = bench.executor();
    let running = executor.start(attempt("m", ""));
    let pids = pids(&kept, 1).await;
    drop(executor.clone());
    assert!(lives(pids[0]));
    drop(executor);
    assert_eq!(within(running.outcome()).await, RunOutcome::Cancelled);
    assert!(!lives(pids[0]));
    bench.assert_empty();
}

#[tokio::test]
async fn a_directory_serves_one_executor() {
    let bench = Bench::new("true");
    let first = bench.executor();
    let second = Process::open(bench.config.clone());
    assert!(matches!(second, Err(OpenError::InUse(_))), "{second:?}");
    drop(first);
    bench.executor();
}

#[tokio::test]
async fn a_directory_whose_sockets_would_have_no_name_is_refused() {
    let mut bench = Bench::new("tr a-z A-Z");
    let taken = bench.root.path().canonicalize().unwrap().as_os_str().len();
    // With the names below it, the path of the socket is just as long as allowed.
    let most = 107 - "/run-0123456789abcdef/bridge".len();
    bench.config.work_root = bench.root.path().join("x".repeat(most - taken - 1));
    assert_eq!(text(&bench.run(attempt("m", "fits")).await), "FITS");
    bench.config.work_root = bench.root.path().join("x".repeat(most - taken));
    let refused = Process::open(bench.config.clone());
    assert!(matches!(refused, Err(OpenError::TooLong { .. })), "{refused:?}");
}

/// As when a worker is killed: no stop is requested.
#[test]
fn a_worker_that_vanishes_leaves_nothing_running() {
    let bench = Bench::new("setsid sleep 1000 & echo $$ $! > pids; exec sleep 1000");
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let life = runtime();
    let entered = life.enter();
    let executor = bench.executor();
    let running = executor.start(attempt("m", ""));
    let file = life.block_on(bench.directory()).join("pids");
    let pids = life.block_on(pids(&file, 2));
    drop(entered);
    life.shutdown_background();
    drop(running);
    runtime().block_on(eventually("it ends", || pids.iter().all(|pid| !lives(*pid)).then_some(())));
}
