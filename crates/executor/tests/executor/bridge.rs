//! Programs that talk to their worker.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use hypha_executor::{RunError, RunEvent, RunOutcome};

use crate::support::{Bench, CALL, attempt, eventually, failure, text, within};

fn bench(script: &str) -> Bench {
    Bench::new(&format!("{CALL}{script}"))
}

#[tokio::test]
async fn input_and_result_can_go_over_the_bridge() {
    let bench = bench(
        "echo noise; call GET /v1/input > got; echo -n ' and back' >> got; \
         call PUT /v1/result --data-binary @got",
    );
    assert_eq!(text(&bench.run(attempt("m", "there")).await), "there and back");
}

#[tokio::test]
async fn progress_and_status_are_reported() {
    let bench = bench(
        r#"call POST /v1/progress -d '{"permille": 250}'; call GET /v1/status > status; sleep 1000"#,
    );
    let executor = bench.executor();
    let running = executor.start(attempt("m", "12345"));
    let directory = bench.directory().await;
    let mut progress = running.progress();
    assert_eq!(*within(progress.wait_for(|permille| *permille > 0)).await.unwrap(), 250);
    let status = eventually("the status is written", || {
        let text = std::fs::read_to_string(directory.join("status")).ok()?;
        serde_json::from_str::<serde_json::Value>(&text).ok()
    })
    .await;
    assert_eq!((&status["progress"], &status["input_bytes"]), (&250.into(), &5.into()));
    assert!(status["attempt"].is_string(), "{status}");
    let mode = std::fs::metadata(directory.join("bridge")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    running.cancel();
    assert_eq!(within(running.outcome()).await, RunOutcome::Cancelled);
}

/// A piece that no message could carry is refused, and earlier pieces still count.
#[tokio::test]
async fn piece_that_is_too_large_is_refused() {
    let mut bench = bench(
        "head -c 8388608 /dev/zero > most; call POST /v1/output --data-binary @most >&2; \
         head -c 8388609 /dev/zero > more; call POST /v1/output --data-binary @more >&2; exit 1",
    );
    bench.config.limits.result_bytes = 64 << 20;
    let failure = failure(bench.run(attempt("m", "")).await);
    assert_eq!(failure.error, RunError::Exit(1));
    let told =
        "a piece is at most 8388608 bytes: post several, or send all of it to PUT /v1/result";
    assert_eq!(failure.output.matches("413").count(), 1, "{}", failure.output);
    assert!(failure.output.contains(told), "{}", failure.output);
}

#[tokio::test]
async fn bridge_refuses_invalid_requests() {
    let check = async |script: &str, expected: &str| {
        let mut bench = bench(&format!("{script} >&2; exit 1"));
        bench.config.limits.result_bytes = 1_000;
        let failure = failure(bench.run(attempt("m", "")).await);
        assert_eq!(failure.error, RunError::Exit(1));
        assert!(failure.output.contains(expected), "{script}: {}", failure.output);
    };
    check("HYPHA_BRIDGE_TOKEN=guess; call GET /v1/input", "401").await;
    check("HYPHA_BRIDGE_TOKEN=; call GET /openapi.json", "HYPHA_BRIDGE_TOKEN").await;
    check("call POST /v1/progress -d '{\"permille\": 1001}'", "at most 1000").await;
    check("call POST /v1/progress -d nonsense", "400").await;
    check(
        "head -c 2000 /dev/zero > big; call PUT /v1/result --data-binary @big",
        "a result is at most 1000 bytes",
    )
    .await;
    check(
        "head -c 600 /dev/zero > half; call POST /v1/output --data-binary @half; \
           call POST /v1/output --data-binary @half",
        "larger than a result",
    )
    .await;
    check("call GET /v1/input -H 'Hypha-Attempt: another'", "another attempt").await;
    check("head -c 600 /dev/zero > half; call GET /v1/next; call GET /v1/next", "410").await;
    check("call GET /v2", "no such route").await;
    check("call DELETE /v1/result", "405").await;
    check("call GET /openapi.json", "/v1/progress").await;
}

#[tokio::test]
async fn program_can_report_an_error() {
    let bench = bench("echo on the way >&2; call POST /v1/failure -d 'out of tokens'; exit 9");
    let failure = failure(bench.run(attempt("m", "")).await);
    assert_eq!(failure.error, RunError::Reported("out of tokens".to_owned()));
    assert_eq!(failure.output, "on the way\n");
    assert!(failure.error.kind().is_retryable());
}

#[tokio::test]
async fn program_can_reject_its_input() {
    for (script, why) in [
        ("call POST /v1/refusal -d 'no such language'; exit 9", "no such language"),
        ("exit 65", "the program ended with exit code 65"),
    ] {
        let failure = failure(bench(script).run(attempt("m", "")).await);
        assert_eq!(failure.error, RunError::Input(why.to_owned()));
        assert!(!failure.error.kind().is_retryable());
    }
}

#[tokio::test]
async fn pieces_arrive_while_the_program_runs_and_make_up_the_result() {
    let bench = bench(
        "call POST /v1/output -d one; until [ -e go ]; do sleep 0.02; done; call POST /v1/output -d two",
    );
    let executor = bench.executor();
    let mut attempt = attempt("m", "");
    attempt.stream = true;
    let mut running = executor.start(attempt);
    assert_eq!(within(running.next()).await, Some(RunEvent::Output("one".into())));
    std::fs::write(bench.directory().await.join("go"), "").unwrap();
    assert_eq!(within(running.next()).await, Some(RunEvent::Output("two".into())));
    assert_eq!(within(running.next()).await, None);
    assert_eq!(text(&within(running.outcome()).await), "onetwo");
}

/// More pieces than can wait for a reader.
const MANY_PIECES: usize = 40;

fn many_pieces() -> Bench {
    bench(&format!(
        "i=0; while [ $i -lt {MANY_PIECES} ]; do call POST /v1/output -d $i. && echo $i >> sent; \
         i=$((i+1)); done"
    ))
}

#[tokio::test]
async fn a_program_waits_for_a_slow_reader() {
    let bench = many_pieces();
    let executor = bench.executor();
    let mut attempt = attempt("m", "");
    attempt.stream = true;
    let mut running = executor.start(attempt);
    let sent = bench.directory().await.join("sent");
    let count = || std::fs::read_to_string(&sent).unwrap_or_default().lines().count();
    eventually("as many as may wait are sent", || (count() >= 16).then_some(())).await;
    // Long enough for a program that does not wait to send some more.
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert_eq!(count(), 16);
    }
    for expected in 0..MANY_PIECES {
        let piece = RunEvent::Output(format!("{expected}.").into());
        assert_eq!(within(running.next()).await, Some(piece));
    }
    assert_eq!(within(running.next()).await, None);
    assert!(text(&within(running.outcome()).await).ends_with("38.39."));
}

#[tokio::test]
async fn unread_stream_blocks_nothing() {
    let bench = many_pieces();
    let mut wanted = attempt("m", "");
    wanted.stream = true;
    assert!(text(&bench.run(wanted).await).ends_with("38.39."));
    assert!(text(&bench.run(attempt("m", "")).await).ends_with("38.39."));
}

#[tokio::test]
async fn a_program_that_waits_for_its_reader_can_be_cancelled() {
    let bench = many_pieces();
    let executor = bench.executor();
    let mut attempt = attempt("m", "");
    attempt.stream = true;
    let mut running = executor.start(attempt);
    assert!(within(running.next()).await.is_some());
    running.cancel();
    // Ends even while pieces wait, and the reader sees the end.
    while within(running.next()).await.is_some() {}
    assert_eq!(within(running.outcome()).await, RunOutcome::Cancelled);
    bench.assert_empty();
}
