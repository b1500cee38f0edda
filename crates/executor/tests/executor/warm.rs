//! Warm processes.

use std::num::NonZeroUsize;

use hypha_executor::{Attempt, Executor, RunError, RunEvent, RunOutcome};

use crate::support::{Bench, CALL, attempt, eventually, failure, lives, pids, text, within};

/// Does what its input says, and writes its process id to `KEPT` when it starts.
const SCRIPT: &str = r#"
echo $$ >> KEPT
while :; do
    code=$(call GET /v1/next -o input -D head -w '%{http_code}') || exit 0
    [ $code = 200 ] || continue
    case "$(cat input)" in
        die) echo last words >&2; exit 3;;
        leave) exit 0;;
        half) call POST /v1/output -d half; exit 4;;
        once) call PUT /v1/result -d $$; sleep 0.5; exit 0;;
        hang) setsid sleep 1000 & echo $! >> KEPT; sleep 1000;;
        fail) echo chatter; call POST /v1/failure -d 'not this one';;
        pieces) call POST /v1/output -d a; call POST /v1/output -d b;;
        twice) call PUT /v1/result -d first; call PUT /v1/result -d second;;
        forget) call GET /v1/next >&2; exit 1;;
        wait) until [ -e KEPT.go ]; do sleep 0.02; done; call PUT /v1/result -d $$;;
        devices) call PUT /v1/result -d "$$ $CUDA_VISIBLE_DEVICES";;
        head) call PUT /v1/result -d "$(grep -i '^hypha-' head | sort)";;
        *) echo heard $(cat input) >&2; call PUT /v1/result -d $$;;
    esac
done
"#;

fn bench(processes: usize) -> (Bench, std::path::PathBuf) {
    let mut bench = Bench::new(&format!("{CALL}{SCRIPT}"));
    bench.config.warm = NonZeroUsize::new(processes);
    let kept = bench.keep();
    (bench, kept)
}

async fn run(executor: &Executor, attempt: Attempt) -> RunOutcome {
    within(executor.start(attempt).outcome()).await
}

async fn pid(executor: &Executor, input: &str) -> u32 {
    text(&run(executor, attempt("m", input)).await).parse().unwrap()
}

#[tokio::test]
async fn warm_process_serves_attempts_one_after_another() {
    let (bench, kept) = bench(1);
    let executor = bench.executor();
    let first = pid(&executor, "a").await;
    assert_eq!(pid(&executor, "b").await, first);
    assert_eq!(pids(&kept, 1).await, [first]);
    let head = text(&run(&executor, attempt("m", "head")).await).to_lowercase();
    let id = attempt("m", "").id.to_string();
    for expected in
        [format!("hypha-attempt: {id}"), "hypha-model: m".into(), "hypha-stream: f".into()]
    {
        assert!(head.contains(&expected), "{head}");
    }
    within(executor.stop()).await;
    assert!(!lives(first));
    bench.assert_empty();
}

#[tokio::test]
async fn concurrent_attempts_get_a_process_each_and_more_wait() {
    let (bench, kept) = bench(2);
    let executor = bench.executor();
    let all: Vec<_> = (0..5).map(|_| executor.start(attempt("m", "wait"))).collect();
    let started = pids(&kept, 2).await;
    std::fs::write(format!("{}.go", kept.display()), "").unwrap();
    for running in all {
        let by: u32 = text(&within(running.outcome()).await).parse().unwrap();
        assert!(started.contains(&by));
    }
    assert_eq!(pids(&kept, 2).await, started);
}

#[tokio::test]
async fn warm_process_that_dies_fails_its_attempt_and_is_restarted() {
    let (bench, _) = bench(1);
    let executor = bench.executor();
    let first = pid(&executor, "private").await;
    let died = failure(run(&executor, attempt("m", "die")).await);
    assert_eq!(died.error, RunError::Exit(3));
    // No output of another attempt is included.
    assert_eq!(died.output, "last words\n");
    assert!(!lives(first));
    assert_ne!(pid(&executor, "a").await, first);
    let half = failure(run(&executor, attempt("m", "half")).await);
    assert_eq!(half.error, RunError::Exit(4));
    let left = failure(run(&executor, attempt("m", "leave")).await);
    assert_eq!(left.error, RunError::NoResult);
    let forgot = failure(run(&executor, attempt("m", "forget")).await);
    assert!(forgot.output.contains("no answer yet"), "{forgot:?}");
}

#[tokio::test]
async fn warm_process_that_cannot_start_fails_its_attempt() {
    let (mut bench, _) = bench(1);
    bench.config.args[1] = "echo no such model >&2; exit 5".to_owned();
    let failed = failure(bench.run(attempt("m", "")).await);
    assert_eq!((failed.error, failed.output.as_str()), (RunError::Exit(5), "no such model\n"));
    bench.assert_empty();
}

#[tokio::test]
async fn warm_process_that_died_while_idle_fails_no_attempt() {
    let (bench, _) = bench(1);
    let executor = bench.executor();
    let idle = pid(&executor, "a").await;
    let killed = std::process::Command::new("kill").args(["-KILL", &idle.to_string()]).status();
    assert!(killed.unwrap().success());
    // Until then, its leftover children may still take an attempt.
    eventually("it is noticed", || bench.is_empty().then_some(())).await;
    let another = pid(&executor, "once").await;
    assert_ne!(another, idle);
    // This one is still alive, and exits without fetching its attempt.
    assert_ne!(pid(&executor, "b").await, another);
}

#[tokio::test]
async fn cancelling_an_attempt_ends_its_process_tree() {
    let (bench, kept) = bench(1);
    let executor = bench.executor();
    let first = pid(&executor, "a").await;
    let running = executor.start(attempt("m", "hang"));
    let both = pids(&kept, 2).await;
    assert!(both.contains(&first) && both.iter().all(|pid| lives(*pid)));
    running.cancel();
    assert_eq!(within(running.outcome()).await, RunOutcome::Cancelled);
    assert!(both.iter().all(|pid| !lives(*pid)));
    bench.assert_empty();
    assert_ne!(pid(&executor, "b").await, first);
    // An attempt that still waits for a process can be cancelled, too.
    let busy = executor.start(attempt("m", "hang"));
    pids(&kept, 4).await;
    let waiting = executor.start(attempt("m", "c"));
    waiting.cancel();
    assert_eq!(within(waiting.outcome()).await, RunOutcome::Cancelled);
    drop(busy);
}

#[tokio::test]
async fn a_reported_failure_does_not_cost_the_process() {
    let (bench, _) = bench(1);
    let executor = bench.executor();
    let first = pid(&executor, "a").await;
    let failed = failure(run(&executor, attempt("m", "fail")).await);
    assert_eq!(failed.error, RunError::Reported("not this one".to_owned()));
    assert_eq!(pid(&executor, "b").await, first);
}

#[tokio::test]
async fn pieces_are_the_result_once_the_next_attempt_is_requested() {
    let (bench, _) = bench(1);
    let executor = bench.executor();
    assert_eq!(text(&run(&executor, attempt("m", "pieces")).await), "ab");
    let mut streamed = attempt("m", "pieces");
    streamed.stream = true;
    let mut running = executor.start(streamed);
    assert_eq!(within(running.next()).await, Some(RunEvent::Output("a".into())));
    assert_eq!(within(running.next()).await, Some(RunEvent::Output("b".into())));
    assert_eq!(within(running.next()).await, None);
    assert_eq!(text(&within(running.outcome()).await), "ab");
}

#[tokio::test]
async fn second_answer_is_never_taken_for_the_next_attempt() {
    let (bench, _) = bench(1);
    let executor = bench.executor();
    // The second is queued before the first is answered: when a second answer comes, it waits to be fetched.
    let twice = executor.start(attempt("m", "twice"));
    let next = executor.start(attempt("m", "pieces"));
    assert_eq!(text(&within(twice.outcome()).await), "first");
    assert_eq!(text(&within(next.outcome()).await), "ab");
}

#[tokio::test]
async fn devices_are_those_the_process_was_started_with() {
    let (bench, kept) = bench(1);
    let executor = bench.executor();
    let on = async |device: u32| {
        let mut attempt = attempt("m", "devices");
        attempt.devices = vec![device];
        let text = text(&run(&executor, attempt).await);
        let (pid, devices) = text.split_once(' ').unwrap();
        assert_eq!(devices, device.to_string());
        pid.parse::<u32>().unwrap()
    };
    let first = on(0).await;
    assert_eq!(on(0).await, first);
    // There is room for one: it ends before the other starts.
    let second = on(1).await;
    assert!(!lives(first));
    let another_model = text(&run(&executor, attempt("other", "devices")).await);
    assert!(!another_model.starts_with(&second.to_string()) && !lives(second));
    pids(&kept, 3).await;
}

#[tokio::test]
async fn idle_processes_of_two_kinds_live_beside_each_other() {
    let (bench, kept) = bench(2);
    let executor = bench.executor();
    for _ in 0..3 {
        run(&executor, attempt("one", "a")).await;
        run(&executor, attempt("two", "a")).await;
    }
    let both = pids(&kept, 2).await;
    // A third kind replaces the least recently used one.
    run(&executor, attempt("three", "a")).await;
    assert!(!lives(both[0]) && lives(both[1]));
}

#[tokio::test]
async fn dropping_the_executor_ends_warm_processes() {
    let (bench, kept) = bench(2);
    let executor = bench.executor();
    pid(&executor, "a").await;
    let busy = executor.start(attempt("m", "hang"));
    let two = pids(&kept, 2).await;
    drop(executor);
    assert_eq!(within(busy.outcome()).await, RunOutcome::Cancelled);
    eventually("all end", || two.iter().all(|pid| !lives(*pid)).then_some(())).await;
}

#[tokio::test]
async fn stopping_waits_until_nothing_is_left() {
    let (bench, kept) = bench(2);
    let executor = bench.executor();
    let idle = pid(&executor, "a").await;
    let busy = [executor.start(attempt("m", "hang")), executor.start(attempt("m", "hang"))];
    let all = pids(&kept, 4).await;
    assert!(all.contains(&idle));
    within(executor.stop()).await;
    assert!(all.iter().all(|pid| !lives(*pid)));
    bench.assert_empty();
    for running in busy {
        assert_eq!(within(running.outcome()).await, RunOutcome::Cancelled);
    }
    assert_eq!(run(&executor, attempt("m", "a")).await, RunOutcome::Cancelled);
}

#[tokio::test]
async fn warm_program_also_runs_once() {
    let (mut bench, kept) = bench(1);
    bench.config.warm = None;
    let by: u32 = text(&bench.run(attempt("m", "a")).await).parse().unwrap();
    assert_eq!(pids(&kept, 1).await, [by]);
}
