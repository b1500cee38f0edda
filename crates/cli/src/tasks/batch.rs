//! `hypha submit --batch`: a file of tasks in, a file of results out. However a run ended, the next one
//! continues where it stopped: each line has a key, under which the scheduler knows its task.

mod in_flight;
mod meter;
mod reasons;
mod results;
mod source;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hypha_client::{ClientError, Scheduler, TaskState, TaskStatus};
use serde_json::json;
use tokio::sync::Semaphore;

use self::in_flight::InFlightLines;
use self::meter::{ProgressReporter, REPORT_INTERVAL};
use self::reasons::Reasons;
use self::results::Results;
use self::source::{Line, Source};
use super::connection::{block_on, failure, retry_while_unavailable_reporting};
use super::result;
use super::submit::Batch;
use super::text::count;
use crate::usage::{Failure, print};

/// How often the scheduler is asked for the state of a task that has not ended: as often as it is reported.
const POLL_INTERVAL: Duration = REPORT_INTERVAL;

/// The first answer comes earlier, so that the first progress report includes it.
const FIRST_POLL: Duration = Duration::from_secs(5);

/// Large results that are fetched at once, each into memory.
const FETCHED_AT_ONCE: usize = 2;

/// The outcomes of the lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Tally {
    tasks: u64,
    completed: u64,
    failed: u64,
    /// Refused by the scheduler. These are not in the results, and the next run retries them.
    refused: u64,
    /// Of all these, how many an earlier run has processed.
    earlier: u64,
    /// Why tasks failed.
    reasons: Reasons,
}

pub(super) fn run(
    given: &Batch,
    file: &Path,
    out: &Path,
    scheduler: &Scheduler,
    json: bool,
) -> Result<(), Failure> {
    let source = Source::open(file, &given.run)?;
    let mut results = Results::open(out)?;
    let tally = check_lines(file, &given.run, &results)?;
    let meter = ProgressReporter::new(&tally);
    let mut drive = BatchRunner { source, results: &mut results, meter, tally };
    let ended = block_on(drive.all(scheduler, usize::from(given.in_flight)));
    let tally = drive.tally;
    drive.meter.finish();
    eprint!("{}", tally.reasons);
    let none = results.lines() == 0;
    results.finish()?;
    ended?;
    if json {
        print(&format!("{:#}\n", tally.json()))?;
    }
    let summary = match none {
        true => format!("{tally}; there are no results"),
        false => format!("{tally}; the results are in {}", out.display()),
    };
    match tally.completed == tally.tasks {
        true => {
            eprintln!("{summary}");
            Ok(())
        }
        false => Err(Failure::work(summary)),
    }
}

/// Reads every line once before anything is submitted: a mistake in the last one should not cost the others.
fn check_lines(file: &Path, run: &str, results: &Results) -> Result<Tally, Failure> {
    let mut tally = Tally { reasons: results.reasons().clone(), ..Tally::default() };
    let mut own_keys = BTreeSet::new();
    let mut source = Source::open(file, run)?;
    while let Some(line) = source.next()? {
        tally.tasks += 1;
        if line.own_key && !own_keys.insert(line.key.clone()) {
            let problem = "has the key of an earlier line; give each its own, or none";
            return Err(source.wrong(line.number, &problem));
        }
        let Some(done) = results.of(line.number) else { continue };
        if done.key != line.key {
            let problem = "has changed since its result was written; use another --out";
            return Err(source.wrong(line.number, &problem));
        }
        tally.earlier += 1;
        tally.count(done.status);
    }
    match results.lines() == tally.earlier {
        true => Ok(tally),
        false => Err(Failure::usage(format!(
            "{}: has results of lines that {} does not have; use another --out",
            results.path().display(),
            file.display()
        ))),
    }
}

struct BatchRunner<'a> {
    source: Source,
    results: &'a mut Results,
    meter: ProgressReporter,
    tally: Tally,
}

impl BatchRunner<'_> {
    async fn all(&mut self, scheduler: &Scheduler, most: usize) -> Result<(), Failure> {
        // A scheduler that was never reachable is not waited for; one that becomes unreachable is.
        if let Err(error @ ClientError::Unreachable { .. }) = scheduler.scheduler().await {
            return Err(failure(error));
        }
        let in_flight_lines = InFlightLines::default();
        let fetching = Semaphore::new(FETCHED_AT_ONCE);
        let mut beat = tokio::time::interval(REPORT_INTERVAL);
        // The first tick is immediate.
        beat.tick().await;
        // Dropping it stops the waiting here; the tasks themselves continue, and the next run finds them.
        let mut waiting = FuturesUnordered::new();
        let mut stop = std::pin::pin!(tokio::signal::ctrl_c());
        loop {
            while waiting.len() < most
                && let Some(line) = self.next_line()?
            {
                waiting.push(result_of(scheduler, line, &in_flight_lines, &fetching));
            }
            let ended = tokio::select! {
                ended = waiting.next() => ended,
                _ = beat.tick() => {
                    self.meter.report(&self.tally, in_flight_lines.summary(scheduler).await);
                    continue;
                }
                _ = &mut stop => return Err(self.stopped("interrupted")),
            };
            match ended {
                None => return Ok(()),
                Some((line, outcome)) => self.ended(line, outcome)?,
            }
        }
    }

    fn next_line(&mut self) -> Result<Option<Line>, Failure> {
        while let Some(line) = self.source.next()? {
            if self.results.of(line.number).is_none() {
                return Ok(Some(line));
            }
        }
        Ok(None)
    }

    fn ended(
        &mut self,
        line: EndedLine,
        outcome: Result<TaskStatus, ClientError>,
    ) -> Result<(), Failure> {
        match outcome {
            Ok(task) => {
                self.tally.count(task.status);
                if task.status != TaskState::Completed {
                    self.tally.reasons.add(task.error.as_deref());
                }
                self.results.add(line.number, &line.key, task)?;
            }
            // An error that every line would meet ends the run.
            Err(error) if error.is_transient() || error.is_auth_error() => {
                return Err(self.stopped(&failure(error).to_string()));
            }
            Err(error @ ClientError::Malformed { .. }) => {
                return Err(self.stopped(&error.to_string()));
            }
            Err(error) => {
                self.tally.refused += 1;
                self.meter.say(&self.source.wrong(line.number, &error).to_string());
            }
        }
        self.meter.show(&self.tally);
        Ok(())
    }

    fn stopped(&self, why: &str) -> Failure {
        Failure::work(format!("{why}; {}; run the same command again to continue", self.tally))
    }
}

/// The line whose task has ended.
struct EndedLine {
    number: u64,
    key: String,
}

/// Submits the task of a line, or finds it again, and waits for its end.
async fn result_of(
    scheduler: &Scheduler,
    line: Line,
    in_flight_lines: &InFlightLines,
    fetching: &Semaphore,
) -> (EndedLine, Result<TaskStatus, ClientError>) {
    let ended = EndedLine { number: line.number, key: line.key };
    let kept = |error: &ClientError| in_flight_lines.retrying(line.number, error);
    let task = line.task;
    in_flight_lines.sent(line.number);
    let submit = async || scheduler.submit_and_wait(task.clone(), FIRST_POLL).await;
    let mut outcome = retry_while_unavailable_reporting(submit, &kept).await;
    while let Ok(task) = &outcome
        && !task.has_ended()
    {
        in_flight_lines.update(line.number, task);
        let id = task.id;
        let look = async || scheduler.wait(id, POLL_INTERVAL).await;
        outcome = retry_while_unavailable_reporting(look, &kept).await;
    }
    if let Ok(task) = &mut outcome
        && task.large_result().is_some()
    {
        // The semaphore is never closed.
        let _turn = fetching.acquire().await;
        let fetch = async || result::fetched(scheduler, task).await;
        match retry_while_unavailable_reporting(fetch, &kept).await {
            Ok(result) => {
                task.result = result;
                task.more.remove("result_object");
            }
            Err(error) => outcome = Err(error),
        }
    }
    in_flight_lines.ended(line.number);
    (ended, outcome)
}

impl Tally {
    fn count(&mut self, status: TaskState) {
        match status {
            TaskState::Completed => self.completed += 1,
            _ => self.failed += 1,
        }
    }

    fn processed(&self) -> u64 {
        self.completed + self.failed + self.refused
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "tasks": self.tasks,
            "completed": self.completed,
            "failed": self.failed,
            "refused": self.refused,
            "earlier": self.earlier,
            "reasons": self.reasons.json(),
        })
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} done", self.processed(), count(self.tasks, "task"))?;
        write!(f, ", {} completed", self.completed)?;
        for (count, what) in [(self.failed, "failed"), (self.refused, "refused")] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        match self.earlier {
            0 => Ok(()),
            earlier => write!(f, " ({earlier} of them by an earlier run)"),
        }
    }
}

#[cfg(test)]
mod tests;
