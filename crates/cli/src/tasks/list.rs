//! `hypha tasks`: many tasks as a table, or one in full.

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use hypha_client::{Event, Json, Scheduler, TaskFilter, TaskId, TaskState, TaskStatus, WorkerId};

use super::connection::{ConnectionArguments, block_on, failure};
use super::follow::{EventViewer, JsonViewer, follow_events, line};
use super::result;
use super::roster::{Membership, Roster};
use super::show::{details, lines};
use super::text::now;
use super::waiting;
use crate::usage::{Failure, print};

/// The largest page that a scheduler returns.
const MAX_PAGE: usize = 1_000;
/// Often enough to look live, seldom enough to be cheap.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Moves the cursor to the top and clears everything below.
const CLEAR: &str = "\x1b[H\x1b[J";

#[derive(Args)]
pub(crate) struct Tasks {
    /// The task to show; without it, all tasks are listed, the latest first
    id: Option<TaskId>,
    /// Only tasks in this state: queued, scheduled, running, completed, failed, cancelled or expired
    #[arg(long, conflicts_with = "id")]
    status: Option<TaskState>,
    /// Only tasks for this model
    #[arg(long, conflicts_with = "id")]
    model: Option<String>,
    /// Only tasks of this worker: its name, its id, or a prefix of its id
    #[arg(long, value_name = "WORKER", conflicts_with = "id")]
    worker: Option<String>,
    /// How many tasks are listed
    #[arg(
        long,
        value_name = "TASKS",
        default_value_t = 20,
        conflicts_with = "id",
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    limit: u32,
    /// Keep showing changes, until Ctrl-C or the end of the task
    #[arg(long)]
    watch: bool,
    /// Print the complete result of the task, unchanged
    #[arg(long, requires = "id", conflicts_with_all = ["watch", "json"])]
    result: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
}

pub(super) fn run(tasks: &Tasks) -> Result<(), Failure> {
    let scheduler = tasks.connection.connect()?;
    block_on(async {
        match tasks.id {
            Some(id) if tasks.result => result::print_raw(&scheduler, id).await,
            Some(id) if tasks.watch => follow(&scheduler, id, tasks.json).await,
            Some(id) => {
                let task = scheduler.task(id).await.map_err(failure)?;
                match tasks.json {
                    true => print(&format!("{:#}\n", Json::of(&task))),
                    false => print(&described(&scheduler, &task).await),
                }
            }
            None if tasks.watch => tasks.watch_list(&scheduler).await,
            None => {
                let worker = tasks.worker(&scheduler).await?;
                let found = tasks.list(&scheduler, worker).await?;
                match tasks.json {
                    true => print(&format!("{:#}\n", Json::of(&found))),
                    false => print(&lines(&found, now())),
                }
            }
        }
    })
}

impl Tasks {
    /// The worker that was named.
    async fn worker(&self, scheduler: &Scheduler) -> Result<Option<WorkerId>, Failure> {
        let Some(given) = &self.worker else { return Ok(None) };
        match given.parse() {
            // A worker that is gone still has its tasks.
            Ok(id) => Ok(Some(id)),
            Err(_) => {
                match Roster::fetch(scheduler)
                    .await
                    .find(given, &[Membership::Active, Membership::Draining])
                {
                    Ok((id, _)) => Ok(Some(id)),
                    Err(failure) => Err(Failure::usage(format!("--worker: {failure}"))),
                }
            }
        }
    }

    async fn list(
        &self,
        scheduler: &Scheduler,
        worker: Option<WorkerId>,
    ) -> Result<Vec<TaskStatus>, Failure> {
        let limit = self.limit as usize;
        let mut found = Vec::new();
        let mut pages = scheduler.tasks(TaskFilter {
            status: self.status,
            model: self.model.clone(),
            worker,
            since: None,
            limit: Some(limit.min(MAX_PAGE)),
        });
        while found.len() < limit
            && let Some(page) = pages.next().await.map_err(failure)?
        {
            found.extend(page.tasks);
        }
        found.truncate(limit);
        Ok(found)
    }

    /// Until Ctrl-C. The listener is set up once: a new one would miss earlier signals.
    async fn watch_list(&self, scheduler: &Scheduler) -> Result<(), Failure> {
        let worker = self.worker(scheduler).await?;
        tokio::select! {
            _ = tokio::signal::ctrl_c() => Ok(()),
            ended = self.list_again_and_again(scheduler, worker) => ended,
        }
    }

    async fn list_again_and_again(
        &self,
        scheduler: &Scheduler,
        worker: Option<WorkerId>,
    ) -> Result<(), Failure> {
        let clear = if std::io::stdout().is_terminal() && !self.json { CLEAR } else { "" };
        loop {
            match self.list(scheduler, worker).await {
                Ok(found) if self.json => print(&format!("{}\n", Json::of(&found)))?,
                Ok(found) => print(&format!("{clear}{}\n", lines(&found, now())))?,
                // It may be restarting; the user wants to see it come back.
                Err(failure) => eprintln!("hypha: {failure}"),
            }
            tokio::time::sleep(WATCH_INTERVAL).await;
        }
    }
}

async fn follow(scheduler: &Scheduler, id: TaskId, json: bool) -> Result<(), Failure> {
    if json {
        return follow_events(scheduler, id, &mut JsonViewer).await.map(|_| ());
    }
    let mut lines = LineViewer(Roster::fetch(scheduler).await);
    let task = follow_events(scheduler, id, &mut lines).await?;
    print(&format!("\n{}", described(scheduler, &task).await))
}

/// Every event but the last as a line.
struct LineViewer(Roster);

impl EventViewer for LineViewer {
    fn see(&mut self, event: &Event) -> Result<(), Failure> {
        match event.is_last() {
            true => Ok(()),
            false => print(&format!("{}\n", line(&self.0, event))),
        }
    }
}

async fn described(scheduler: &Scheduler, task: &TaskStatus) -> String {
    let roster = Roster::fetch(scheduler).await;
    // The time and the failures of a retried task have lines of their own.
    let why = match task.delayed_until() {
        Some(_) => None,
        None => waiting::why(scheduler, task, &roster).await,
    };
    let result = result::in_short(scheduler, task).await;
    details(task, why, result, &roster, now())
}
