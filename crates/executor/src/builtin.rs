//! Models that are part of the worker, for tests, benchmarks and first steps.

mod openai;

use std::time::{Duration, Instant};

use axum::body::Bytes;
use hypha_model::{Form, Payload};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Job;
use crate::outcome::{JobError, Outcome};
use crate::running::{MAX_PERMILLE, Reins, Running};

/// Two matrices of this size take 64 MiB, more than most caches and less than any worker, and their product some
/// seconds.
const MAX_BURN_SIZE: usize = 2_048;
/// How many reports a sleep makes of its progress.
const SLEEP_REPORTS: u16 = 10;
/// How much of an input that is not understood is repeated: enough to recognise it.
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

/// What `echo` streams.
#[derive(Debug)]
pub(crate) enum Words {
    /// Its input in words, each with the space after it. Cut as they are asked for, so that nothing waits in
    /// memory.
    Input { input: Payload, at: usize },
    /// The events of an answer in OpenAI's shape.
    Events(std::vec::IntoIter<Bytes>),
}

pub(crate) fn start(job: Job) -> Running {
    let refused = |error: JobError| Running::ended(error.into());
    match job.model.as_str() {
        "echo" if job.form != Form::Task => {
            match openai::echo(job.form, job.id, &job.model, &job.input) {
                Ok((payload, events)) if job.stream => Running::spoken(
                    Outcome::Completed { payload },
                    Words::Events(events.into_iter()),
                ),
                Ok((payload, _)) => Running::ended(Outcome::Completed { payload }),
                Err(error) => refused(error),
            }
        }
        "echo" if job.stream => {
            let words = Words::Input { input: job.input.clone(), at: 0 };
            Running::spoken(Outcome::Completed { payload: job.input }, words)
        }
        "echo" => Running::ended(Outcome::Completed { payload: job.input }),
        "sleep" => match input::<Sleep>(&job.input, Sleep::EXPECTED) {
            Ok(Sleep { ms }) => {
                spawn(move |reins| sleep(Duration::from_millis(ms), job.input, reins))
            }
            Err(error) => refused(error),
        },
        "burn" => match input::<Burn>(&job.input, Burn::EXPECTED) {
            Ok(Burn { size }) if size <= MAX_BURN_SIZE => spawn(move |reins| burn(size, reins)),
            Ok(Burn { size }) => refused(JobError::Input(format!(
                "`size` is {size} and may be at most {MAX_BURN_SIZE}"
            ))),
            Err(error) => refused(error),
        },
        other => refused(JobError::UnknownModel(other.to_owned())),
    }
}

pub(crate) fn run_at_once(job: &Job) -> Option<Outcome> {
    let at_once = job.model.as_str() == "echo" && !job.stream && job.form == Form::Task;
    at_once.then(|| Outcome::Completed { payload: job.input.clone() })
}

impl Words {
    pub(crate) fn next(&mut self) -> Option<Bytes> {
        let (input, at) = match self {
            Words::Input { input, at } => (input, at),
            Words::Events(events) => return events.next(),
        };
        let rest = input.bytes().get(*at..).filter(|rest| !rest.is_empty())?;
        let word = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
        let space = rest[word..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        let piece = Bytes::copy_from_slice(&rest[..word + space]);
        *at += piece.len();
        Some(piece)
    }
}

fn spawn<F>(run: impl FnOnce(Reins) -> F) -> Running
where
    F: Future<Output = Outcome> + Send + 'static,
{
    Running::spawn(&TaskTracker::new(), CancellationToken::new(), run)
}

fn input<T: DeserializeOwned>(payload: &Payload, expected: &str) -> Result<T, JobError> {
    let bytes = payload.bytes().trim_ascii();
    // A list would be read as the fields in their order.
    let object = bytes.starts_with(b"{").then(|| serde_json::from_slice(bytes).ok()).flatten();
    object.ok_or_else(|| JobError::Input(format!("expected {expected}, and got {}", given(bytes))))
}

/// An input as an error shows it.
fn given(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "nothing".to_owned();
    }
    let start = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_SHOWN_BYTES)]);
    let rest = if bytes.len() > MAX_SHOWN_BYTES { "…" } else { "" };
    let text = if bytes.starts_with(b"\"") { "the text " } else { "" };
    format!("{text}{start}{rest}")
}

async fn sleep(time: Duration, payload: Payload, reins: Reins) -> Outcome {
    let part = time / u32::from(SLEEP_REPORTS);
    let begun = tokio::time::Instant::now();
    for report in 1..=SLEEP_REPORTS {
        // Counted from the beginning, so that late wakings do not add up.
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
            () = reins.cancel.cancelled() => return Outcome::Cancelled,
        }
        reins.reports.progress.send_replace(MAX_PERMILLE / SLEEP_REPORTS * report);
    }
    Outcome::Completed { payload }
}

async fn burn(size: usize, reins: Reins) -> Outcome {
    let work = tokio::task::spawn_blocking(move || multiply(size, &reins));
    match work.await {
        Ok(Some((trace, seconds))) => {
            let result = serde_json::json!({ "size": size, "trace": trace, "seconds": seconds });
            Outcome::Completed { payload: Payload::from(result.to_string().into_bytes()) }
        }
        Ok(None) => Outcome::Cancelled,
        Err(error) => JobError::Worker(error.to_string()).into(),
    }
}

/// The trace of a matrix product and how long it took; none if it was cancelled.
fn multiply(size: usize, reins: &Reins) -> Option<(f64, f64)> {
    let begun = Instant::now();
    // Small whole numbers: the product is exact, so that its trace can be checked.
    let left: Vec<f64> = (0..size * size).map(|at| (at % 7) as f64).collect();
    let right: Vec<f64> = (0..size * size).map(|at| (at % 5) as f64).collect();
    let mut product = vec![0.0; size];
    let mut trace = 0.0;
    for row in 0..size {
        if reins.cancel.is_cancelled() {
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
        reins.reports.progress.send_replace(permille.unwrap_or(MAX_PERMILLE));
    }
    Some((trace, begun.elapsed().as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::running::Reports;

    #[test]
    fn the_product_is_right() {
        let reins = || Reins {
            reports: Reports {
                progress: tokio::sync::watch::channel(0).0,
                output: tokio::sync::mpsc::channel(1).0,
            },
            cancel: CancellationToken::new(),
        };
        // [[0,1],[2,3]] times [[0,1],[2,3]] has 2 and 11 on its diagonal.
        let (trace, _) = multiply(2, &reins()).unwrap();
        assert_eq!(trace, 13.0);
        let cancelled = reins();
        cancelled.cancel.cancel();
        assert_eq!(multiply(2, &cancelled), None);
    }

    #[test]
    fn words_come_one_by_one_and_make_up_the_whole() {
        let check = |input: &str, expected: &[&str]| {
            let mut words = Words::Input { input: Payload::from(input.as_bytes()), at: 0 };
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
