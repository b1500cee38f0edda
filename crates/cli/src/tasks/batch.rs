//! `hypha submit --batch`: a file of tasks in, a file of results out. Run again after whatever ended it, it
//! goes on where it was: each line has a key, under which the scheduler knows its task.

mod meter;
mod reasons;
mod results;
mod source;
mod under_way;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hypha_client::{ClientError, Scheduler, TaskState, TaskStatus};
use serde_json::json;
use tokio::sync::Semaphore;

use self::meter::{LINE_PAUSE, Meter};
use self::reasons::Reasons;
use self::results::Results;
use self::source::{Line, Source};
use self::under_way::UnderWay;
use super::reach::{block_on, failure, patiently_telling};
use super::result;
use super::submit::Batch;
use super::text::count;
use crate::usage::{Failure, print};

/// How often the scheduler is asked how a task is that has not ended: as often as that is told.
const LOOK_EVERY: Duration = LINE_PAUSE;

/// The first answer comes earlier, so that the first line which is told has it.
const FIRST_LOOK: Duration = Duration::from_secs(5);

/// Large results that are fetched at once, each into memory.
const FETCHED_AT_ONCE: usize = 2;

/// What became of the lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Tally {
    tasks: u64,
    completed: u64,
    failed: u64,
    /// Not taken by the scheduler. These are not in the results, and tried again by the next run.
    refused: u64,
    /// Of all these, how many an earlier run has seen to.
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
    let tally = survey(file, &given.run, &results)?;
    let meter = Meter::new(&tally);
    let mut drive = Drive { source, results: &mut results, meter, tally };
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

/// Reads every line once before anything is submitted: a slip in the last one should not cost the others.
fn survey(file: &Path, run: &str, results: &Results) -> Result<Tally, Failure> {
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
            let problem = "was another when its result was written; use another --out";
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

struct Drive<'a> {
    source: Source,
    results: &'a mut Results,
    meter: Meter,
    tally: Tally,
}

impl Drive<'_> {
    async fn all(&mut self, scheduler: &Scheduler, most: usize) -> Result<(), Failure> {
        // One that was never there is not waited for, as one that goes away is.
        if let Err(error @ ClientError::Unreachable { .. }) = scheduler.scheduler().await {
            return Err(failure(error));
        }
        let under_way = UnderWay::default();
        let fetching = Semaphore::new(FETCHED_AT_ONCE);
        let mut beat = tokio::time::interval(LINE_PAUSE);
        // The first comes at once.
        beat.tick().await;
        // Dropping it ends what waits here; the tasks themselves go on, and the next run finds them.
        let mut waiting = FuturesUnordered::new();
        let mut stop = std::pin::pin!(tokio::signal::ctrl_c());
        loop {
            while waiting.len() < most
                && let Some(line) = self.next_line()?
            {
                waiting.push(result_of(scheduler, line, &under_way, &fetching));
            }
            let ended = tokio::select! {
                ended = waiting.next() => ended,
                _ = beat.tick() => {
                    self.meter.tell(&self.tally, under_way.told(scheduler).await);
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
        line: Ended,
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
            // What will meet every line is not tried with each of them.
            Err(error) if error.may_pass() || error.is_about_the_token() => {
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
        Failure::work(format!("{why}; {}; run the same command again to go on", self.tally))
    }
}

/// The line whose task has ended.
struct Ended {
    number: u64,
    key: String,
}

/// Submits the task of a line, or finds it again, and waits for its end.
async fn result_of(
    scheduler: &Scheduler,
    line: Line,
    under_way: &UnderWay,
    fetching: &Semaphore,
) -> (Ended, Result<TaskStatus, ClientError>) {
    let ended = Ended { number: line.number, key: line.key };
    let kept = |error: &ClientError| under_way.kept(line.number, error);
    let task = line.task;
    under_way.sent(line.number);
    let submit = async || scheduler.submit_and_wait(task.clone(), FIRST_LOOK).await;
    let mut outcome = patiently_telling(submit, &kept).await;
    while let Ok(task) = &outcome
        && !task.has_ended()
    {
        under_way.is(line.number, task);
        let id = task.id;
        let look = async || scheduler.wait(id, LOOK_EVERY).await;
        outcome = patiently_telling(look, &kept).await;
    }
    if let Ok(task) = &mut outcome
        && task.large_result().is_some()
    {
        // Nobody closes it.
        let _turn = fetching.acquire().await;
        let fetch = async || result::fetched(scheduler, task).await;
        match patiently_telling(fetch, &kept).await {
            Ok(result) => {
                task.result = result;
                task.more.remove("result_object");
            }
            Err(error) => outcome = Err(error),
        }
    }
    under_way.ended(line.number);
    (ended, outcome)
}

impl Tally {
    fn count(&mut self, status: TaskState) {
        match status {
            TaskState::Completed => self.completed += 1,
            _ => self.failed += 1,
        }
    }

    fn seen_to(&self) -> u64 {
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
        write!(f, "{} of {} done", self.seen_to(), count(self.tasks, "task"))?;
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
