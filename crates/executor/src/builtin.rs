//! Models that are part of the worker, for tests, benchmarks and first steps.

mod openai;

use std::time::{Duration, Instant};

use axum::body::Bytes;
use hypha_model::{InputKind, Payload};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Attempt;
use crate::outcome::{RunError, RunOutcome};
use crate::running::{MAX_PERMILLE, RunControl, RunHandle};

/// Two matrices of this size take 64 MiB, more than most caches and less than any worker, and their product some
/// seconds.
const MAX_BURN_SIZE: usize = 2_048;
/// How often a sleep reports its progress.
const SLEEP_REPORTS: u16 = 10;
/// Without a pause between the numbers, counting this far takes a second.
const MAX_COUNT: u64 = 1_000_000;
/// How much of an invalid input is repeated: enough to recognise it.
const MAX_SHOWN_BYTES: usize = 80;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sleep {
    ms: u64,
}

impl Sleep {
    const EXPECTED: &str = r#"{"ms": N}, N a number of milliseconds"#;
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Burn {
    size: usize,
}

impl Burn {
    const EXPECTED: &str = r#"{"size": N}, N the rows of the matrices"#;
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Count {
    to: u64,
    every_ms: u64,
}

impl Count {
    const EXPECTED: &str = r#"{"to": N, "every_ms": M}, N a number and M milliseconds"#;
}

/// What `echo` streams.
#[derive(Debug)]
pub(crate) enum EchoStream {
    /// Its input in words, each with the space after it. Split lazily, so that nothing waits in memory.
    Input { input: Payload, at: usize },
    /// The events of a response in OpenAI's format.
    Events(std::vec::IntoIter<Bytes>),
}

pub(crate) fn start(attempt: Attempt) -> RunHandle {
    let refused = |error: RunError| RunHandle::ended(error.into());
    match attempt.model.as_str() {
        "echo" if attempt.form != InputKind::Task => {
            match openai::echo(attempt.form, attempt.id, &attempt.model, &attempt.input) {
                Ok((payload, events)) if attempt.stream => RunHandle::ended_with_stream(
                    RunOutcome::Completed { payload },
                    EchoStream::Events(events.into_iter()),
                ),
                Ok((payload, _)) => RunHandle::ended(RunOutcome::Completed { payload }),
                Err(error) => refused(error),
            }
        }
        "echo" if attempt.stream => {
            let words = EchoStream::Input { input: attempt.input.clone(), at: 0 };
            RunHandle::ended_with_stream(RunOutcome::Completed { payload: attempt.input }, words)
        }
        "echo" => RunHandle::ended(RunOutcome::Completed { payload: attempt.input }),
        "sleep" => match input::<Sleep>(&attempt.input, Sleep::EXPECTED) {
            Ok(Sleep { ms }) => {
                spawn(move |control| sleep(Duration::from_millis(ms), attempt.input, control))
            }
            Err(error) => refused(error),
        },
        "burn" => match input::<Burn>(&attempt.input, Burn::EXPECTED) {
            Ok(Burn { size }) if size <= MAX_BURN_SIZE => spawn(move |control| burn(size, control)),
            Ok(Burn { size }) => refused(RunError::Input(format!(
                "`size` is {size} and may be at most {MAX_BURN_SIZE}"
            ))),
            Err(error) => refused(error),
        },
        "count" => match input::<Count>(&attempt.input, Count::EXPECTED) {
            Ok(Count { to, every_ms }) if to <= MAX_COUNT => {
                spawn(move |control| count(to, Duration::from_millis(every_ms), control))
            }
            Ok(Count { to, .. }) => {
                refused(RunError::Input(format!("`to` is {to} and may be at most {MAX_COUNT}")))
            }
            Err(error) => refused(error),
        },
        other => refused(RunError::UnknownModel(other.to_owned())),
    }
}

pub(crate) fn run_at_once(attempt: &Attempt) -> Option<RunOutcome> {
    let at_once =
        attempt.model.as_str() == "echo" && !attempt.stream && attempt.form == InputKind::Task;
    at_once.then(|| RunOutcome::Completed { payload: attempt.input.clone() })
}

impl EchoStream {
    pub(crate) fn next(&mut self) -> Option<Bytes> {
        let (input, at) = match self {
            EchoStream::Input { input, at } => (input, at),
            EchoStream::Events(events) => return events.next(),
        };
        let rest = input.bytes().get(*at..).filter(|rest| !rest.is_empty())?;
        let word = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
        let space = rest[word..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        let piece = Bytes::copy_from_slice(&rest[..word + space]);
        *at += piece.len();
        Some(piece)
    }
}

fn spawn<F>(run: impl FnOnce(RunControl) -> F) -> RunHandle
where
    F: Future<Output = RunOutcome> + Send + 'static,
{
    RunHandle::spawn(&TaskTracker::new(), CancellationToken::new(), run)
}

fn input<T: DeserializeOwned>(payload: &Payload, expected: &str) -> Result<T, RunError> {
    let bytes = payload.bytes().trim_ascii();
    // An array would be parsed as the fields in their order.
    let object = bytes.starts_with(b"{").then(|| serde_json::from_slice(bytes).ok()).flatten();
    object.ok_or_else(|| {
        RunError::Input(format!("expected {expected}, and got {}", describe_input(bytes)))
    })
}

/// An input as an error shows it.
fn describe_input(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "nothing".to_owned();
    }
    let start = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_SHOWN_BYTES)]);
    let rest = if bytes.len() > MAX_SHOWN_BYTES { "…" } else { "" };
    let text = if bytes.starts_with(b"\"") { "the string " } else { "" };
    format!("{text}{start}{rest}")
}

async fn sleep(time: Duration, payload: Payload, control: RunControl) -> RunOutcome {
    let part = time / u32::from(SLEEP_REPORTS);
    let begun = tokio::time::Instant::now();
    for report in 1..=SLEEP_REPORTS {
        // Computed from the start, so that late wake-ups do not add up.
        let until = match report {
            SLEEP_REPORTS => begun.checked_add(time),
            _ => begun.checked_add(part * u32::from(report)),
        };
        let nap = async {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = nap => {}
            () = control.cancel.cancelled() => return RunOutcome::Cancelled,
        }
        control.reporter.progress.send_replace(MAX_PERMILLE / SLEEP_REPORTS * report);
    }
    RunOutcome::Completed { payload }
}

/// Counts from 1, and returns the last number.
async fn count(to: u64, every: Duration, control: RunControl) -> RunOutcome {
    let mut due = Some(tokio::time::Instant::now());
    for number in 1..=to {
        // Added up from the start, so that late wake-ups do not.
        due = due.and_then(|due| due.checked_add(every));
        let pause = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = control.cancel.cancelled() => return RunOutcome::Cancelled,
            () = pause => {}
        }
        let permille = u16::try_from(number * u64::from(MAX_PERMILLE) / to);
        let permille = permille.unwrap_or(MAX_PERMILLE);
        control
            .reporter
            .progress
            .send_if_modified(|known| std::mem::replace(known, permille) != permille);
    }
    RunOutcome::Completed { payload: Payload::from(to.to_string().into_bytes()) }
}

async fn burn(size: usize, control: RunControl) -> RunOutcome {
    let work = tokio::task::spawn_blocking(move || multiply(size, &control));
    match work.await {
        Ok(Some((trace, seconds))) => {
            let result = serde_json::json!({ "size": size, "trace": trace, "seconds": seconds });
            RunOutcome::Completed { payload: Payload::from(result.to_string().into_bytes()) }
        }
        Ok(None) => RunOutcome::Cancelled,
        Err(error) => RunError::Worker(error.to_string()).into(),
    }
}

/// The trace of a matrix product and how long it took; `None` if it was cancelled.
fn multiply(size: usize, control: &RunControl) -> Option<(f64, f64)> {
    let begun = Instant::now();
    // Small integers: the product is exact, so that its trace can be checked.
    let left: Vec<f64> = (0..size * size).map(|at| (at % 7) as f64).collect();
    let right: Vec<f64> = (0..size * size).map(|at| (at % 5) as f64).collect();
    let mut product = vec![0.0; size];
    let mut trace = 0.0;
    for row in 0..size {
        if control.cancel.is_cancelled() {
            return None;
        }
        product.fill(0.0);
        for at in 0..size {
            let factor = left[row * size + at];
            for (sum, value) in product.iter_mut().zip(&right[at * size..(at + 1) * size]) {
                *sum += factor * value;
            }
        }
        trace += product[row];
        let permille = u16::try_from((row + 1) * usize::from(MAX_PERMILLE) / size);
        control.reporter.progress.send_replace(permille.unwrap_or(MAX_PERMILLE));
    }
    Some((trace, begun.elapsed().as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::running::RunReporter;

    #[test]
    fn the_product_is_right() {
        let control = || RunControl {
            reporter: RunReporter {
                progress: tokio::sync::watch::channel(0).0,
                output: tokio::sync::mpsc::channel(1).0,
            },
            cancel: CancellationToken::new(),
        };
        // [[0,1],[2,3]] times [[0,1],[2,3]] has 2 and 11 on its diagonal.
        let (trace, _) = multiply(2, &control()).unwrap();
        assert_eq!(trace, 13.0);
        let cancelled = control();
        cancelled.cancel.cancel();
        assert_eq!(multiply(2, &cancelled), None);
    }

    #[test]
    fn words_come_one_by_one_and_make_up_the_whole() {
        let check = |input: &str, expected: &[&str]| {
            let mut words = EchoStream::Input { input: Payload::from(input.as_bytes()), at: 0 };
            let pieces: Vec<Bytes> = std::iter::from_fn(|| words.next()).collect();
            assert_eq!(pieces, expected);
            assert_eq!(pieces.concat(), input.as_bytes());
        };
        check("", &[]);
        check("one", &["one"]);
        check("  two  words\n", &["  ", "two  ", "words\n"]);
        check("\u{fc}ber \u{e4}lles", &["\u{fc}ber ", "\u{e4}lles"]);
    }
}
