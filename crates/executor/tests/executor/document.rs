//! The programs that `docs/executors.md` shows, run unchanged.

use std::num::NonZeroUsize;

use hypha_executor::RunEvent;

use crate::support::{Bench, attempt, text, within};

const DOCUMENT: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/executors.md"));

/// The only block in `language`.
fn block(language: &str) -> &'static str {
    let fence = format!("\n```{language}\n");
    let (_, rest) = DOCUMENT.split_once(&fence).expect("a block in this language");
    assert!(!rest.contains(&fence), "more than one block of {language}");
    rest.split_once("\n```\n").expect("an end").0
}

/// A bench for the Python program.
fn python() -> Bench {
    let mut bench = Bench::new("");
    let program = bench.root.path().join("upper.py");
    std::fs::write(&program, block("python")).unwrap();
    bench.config.command = "python3".into();
    bench.config.args = vec![program.display().to_string()];
    bench.config.read = vec![program];
    bench
}

#[tokio::test]
async fn the_shell_script_counts_words() {
    let bench = Bench::new(block("sh"));
    assert_eq!(text(&bench.run(attempt("m", "one two three")).await), "{\"words\": 3}");
}

#[tokio::test]
async fn the_python_program_runs_warm_and_streams() {
    let mut bench = python();
    bench.config.warm = NonZeroUsize::new(1);
    let executor = bench.executor();
    for _ in 0..2 {
        let mut attempt = attempt("upper", "one two");
        attempt.stream = true;
        let mut running = executor.start(attempt);
        assert_eq!(within(running.next()).await, Some(RunEvent::Output("ONE ".into())));
        assert_eq!(within(running.next()).await, Some(RunEvent::Output("TWO ".into())));
        assert_eq!(text(&within(running.outcome()).await), "ONE TWO");
    }
    let nothing = executor.start(attempt("upper", ""));
    assert_eq!(text(&within(nothing.outcome()).await), "");
    within(executor.stop()).await;
    bench.assert_empty();
}

#[tokio::test]
async fn the_python_program_also_runs_once() {
    assert_eq!(text(&python().run(attempt("upper", "once")).await), "ONCE");
}
