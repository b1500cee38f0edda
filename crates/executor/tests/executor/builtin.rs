//! Builtin models.

use hypha_executor::{Executor, RunError, RunEvent, RunOutcome};

use crate::support::{attempt, failure, text, within};

async fn run(model: &str, input: &str) -> RunOutcome {
    within(Executor::Builtin.start(attempt(model, input)).outcome()).await
}

#[tokio::test]
async fn echo_returns_its_input() {
    assert_eq!(text(&run("echo", "anything \u{fc}").await), "anything \u{fc}");
}

#[tokio::test]
async fn echo_streams_words_if_asked_to() {
    let mut running = Executor::Builtin.start(attempt("echo", "in words"));
    assert_eq!(running.next().await, None);
    let mut wanted = attempt("echo", "in words");
    wanted.stream = true;
    let mut running = Executor::Builtin.start(wanted);
    assert_eq!(running.next().await, Some(RunEvent::Output("in ".into())));
    assert_eq!(running.next().await, Some(RunEvent::Output("words".into())));
    assert_eq!(running.next().await, None);
    assert_eq!(text(&running.outcome().await), "in words");
}

/// Needs no runtime.
#[test]
fn immediate_models_run_at_once() {
    let outcome = Executor::Builtin.run_at_once(&attempt("echo", "quick")).unwrap();
    assert_eq!(text(&outcome), "quick");
    let mut streamed = attempt("echo", "quick");
    streamed.stream = true;
    assert_eq!(Executor::Builtin.run_at_once(&streamed), None);
    assert_eq!(Executor::Builtin.run_at_once(&attempt("sleep", r#"{"ms": 0}"#)), None);
    assert_eq!(Executor::Builtin.run_at_once(&attempt("nothing", "")), None);
}

#[tokio::test]
async fn progress_is_reported_as_it_occurs() {
    let mut running = Executor::Builtin.start(attempt("sleep", r#"{"ms": 20}"#));
    let mut last = 0;
    while let Some(event) = within(running.next()).await {
        let RunEvent::Progress(permille) = event else { panic!("{event:?}") };
        assert!(permille > last, "{permille} after {last}");
        last = permille;
    }
    assert_eq!(last, 1_000);
}

#[tokio::test]
async fn sleep_reports_progress_and_ends() {
    let running = Executor::Builtin.start(attempt("sleep", r#"{"ms": 20}"#));
    let progress = running.progress();
    assert_eq!(text(&within(running.outcome()).await), r#"{"ms": 20}"#);
    assert_eq!(*progress.borrow(), 1_000);
}

#[tokio::test]
async fn count_reports_progress_and_returns_the_number() {
    let mut running = Executor::Builtin.start(attempt("count", r#"{"to": 4, "every_ms": 20}"#));
    let mut seen = Vec::new();
    while let Some(event) = within(running.next()).await {
        let RunEvent::Progress(permille) = event else { panic!("{event:?}") };
        seen.push(permille);
    }
    assert!(seen.is_sorted() && seen.len() > 1, "{seen:?}");
    assert_eq!(seen.last(), Some(&1_000));
    assert_eq!(text(&within(running.outcome()).await), "4");
    assert_eq!(text(&run("count", r#"{"to": 0, "every_ms": 9}"#).await), "0");
    assert_eq!(text(&run("count", r#"{"to": 1000, "every_ms": 0}"#).await), "1000");
}

#[tokio::test]
async fn builtin_models_can_be_cancelled() {
    let check = async |model, input| {
        let running = Executor::Builtin.start(attempt(model, input));
        let canceller = running.canceller();
        canceller.cancel();
        assert_eq!(within(running.outcome()).await, RunOutcome::Cancelled);
    };
    check("sleep", r#"{"ms": 3600000}"#).await;
    check("sleep", r#"{"ms": 18446744073709551615}"#).await;
    check("burn", r#"{"size": 2048}"#).await;
    check("count", r#"{"to": 1000000, "every_ms": 0}"#).await;
    check("count", r#"{"to": 2, "every_ms": 18446744073709551615}"#).await;
}

#[tokio::test]
async fn burn_multiplies() {
    let result: serde_json::Value =
        serde_json::from_str(&text(&run("burn", r#"{"size": 2}"#).await)).unwrap();
    assert_eq!((result["size"].as_u64(), result["trace"].as_f64()), (Some(2), Some(13.0)));
}

#[tokio::test]
async fn invalid_input_is_refused_permanently() {
    let long = format!("\"{}\"", "x".repeat(1_000));
    for (model, input, says) in [
        ("sleep", "", r#"expected {"ms": N}, N a number of milliseconds, and got nothing"#),
        ("sleep", r#"{"ms": -1}"#, r#"and got {"ms": -1}"#),
        ("sleep", r#""{\"ms\": 5}""#, r#"and got the string "{\"ms\": 5}""#),
        ("sleep", "[5]", r#"expected {"ms": N}, N a number of milliseconds, and got [5]"#),
        ("sleep", "\u{fc}", "and got \u{fc}"),
        ("sleep", &long, "xxx…"),
        ("burn", r#"{"size": 100000}"#, "may be at most 2048"),
        ("burn", r#"{"ms": 1}"#, r#"expected {"size": N}, N the rows of the matrices"#),
        ("count", r#"{"to": 1}"#, r#"expected {"to": N, "every_ms": M}"#),
        ("count", r#"{"to": 1000001, "every_ms": 1}"#, "may be at most 1000000"),
        ("llama", "{}", "llama"),
    ] {
        let error = failure(run(model, input).await).error;
        assert!(matches!(error, RunError::Input(_) | RunError::UnknownModel(_)), "{error}");
        assert!(!error.kind().is_retryable(), "{error}");
        let text = error.to_string();
        assert!(text.contains(says) && text.len() < 250, "{text}");
    }
}
