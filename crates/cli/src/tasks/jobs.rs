//! `hypha job submit`, `show` and `cancel`, and `hypha jobs`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use hypha_client::{
    ClientError, JobId, JobMember, JobRole, JobState, JobStatus, Json, Scheduler, Timestamp,
};
use hypha_model::Time;

use super::connection::{ConnectionArguments, block_on, failure, retry_while_unavailable};
use super::job_file;
use super::text::{ago, clean, count, fit, now, took};
use crate::scheduler::{or_dash, table};
use crate::usage::{Failure, print};

/// The largest page that a scheduler returns.
const MAX_PAGE: usize = 1_000;

#[derive(Subcommand)]
pub(crate) enum JobCommand {
    /// Submit a job
    Submit(Submit),
    /// Show a job with its members
    Show(Show),
    /// Cancel jobs: their workers are released
    Cancel(Cancel),
}

#[derive(Args)]
pub(crate) struct Submit {
    /// The job: JSON if the name ends in .json, else TOML
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Wait for the end of the job, and show its changes
    #[arg(long)]
    wait: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
}

#[derive(Args)]
pub(crate) struct Show {
    /// The job
    id: JobId,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
}

#[derive(Args)]
pub(crate) struct Cancel {
    /// The jobs
    #[arg(required = true, value_name = "ID")]
    ids: Vec<JobId>,
    /// Print each job after the cancellation as a line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
}

#[derive(Args)]
pub(crate) struct Jobs {
    /// Only jobs in this state
    #[arg(long)]
    status: Option<StateArgument>,
    /// How many jobs are listed
    #[arg(long, value_name = "JOBS", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
}

#[derive(Clone, Copy, ValueEnum)]
enum StateArgument {
    Waiting,
    Running,
    Completed,
    Failed,
    Cancelled,
}

impl From<StateArgument> for JobState {
    fn from(given: StateArgument) -> JobState {
        match given {
            StateArgument::Waiting => JobState::Waiting,
            StateArgument::Running => JobState::Running,
            StateArgument::Completed => JobState::Completed,
            StateArgument::Failed => JobState::Failed,
            StateArgument::Cancelled => JobState::Cancelled,
        }
    }
}

pub(super) fn run(command: &JobCommand) -> Result<(), Failure> {
    match command {
        JobCommand::Submit(arguments) => submit(arguments),
        JobCommand::Show(arguments) => show(arguments),
        JobCommand::Cancel(arguments) => cancel(arguments),
    }
}

fn submit(arguments: &Submit) -> Result<(), Failure> {
    let job = job_file::read(&arguments.file)?;
    let scheduler = arguments.connection.connect()?;
    block_on(async {
        let job = scheduler.submit_job(&job).await.map_err(failure)?;
        let id = job.id;
        if !arguments.json {
            print(&format!("{id} submitted\n"))?;
        }
        let job = match arguments.wait {
            true => wait_for_end(&scheduler, id).await?,
            false => job,
        };
        match (arguments.json, arguments.wait) {
            (true, _) => print(&format!("{:#}\n", Json::of(&job)))?,
            (false, true) => print(&details(&job, now()))?,
            (false, false) => {}
        }
        match job.status {
            JobState::Failed | JobState::Cancelled => Err(Failure::work(ending(&job))),
            _ => Ok(()),
        }
    })
}

fn show(arguments: &Show) -> Result<(), Failure> {
    let scheduler = arguments.connection.connect()?;
    block_on(async {
        let job = scheduler.job(arguments.id).await.map_err(failure)?;
        match arguments.json {
            true => print(&format!("{:#}\n", Json::of(&job))),
            false => print(&details(&job, now())),
        }
    })
}

/// Each of them is attempted, even if others fail.
fn cancel(arguments: &Cancel) -> Result<(), Failure> {
    let scheduler = arguments.connection.connect()?;
    block_on(async {
        let mut failed = None;
        for id in &arguments.ids {
            match scheduler.cancel_job(*id).await {
                Ok(job) if arguments.json => print(&format!("{}\n", Json::of(&job)))?,
                Ok(job) => print(&format!("{id} {}\n", job.status))?,
                Err(error) => {
                    // The caller reports the last one.
                    if let Some(earlier) = failed.replace(failure(error)) {
                        eprintln!("hypha: {earlier}");
                    }
                }
            }
        }
        failed.map_or(Ok(()), Err)
    })
}

pub(super) fn list(arguments: &Jobs) -> Result<(), Failure> {
    let scheduler = arguments.connection.connect()?;
    block_on(async {
        let limit = arguments.limit as usize;
        let status = arguments.status.map(JobState::from);
        let (mut found, mut cursor) = (Vec::new(), None);
        loop {
            let most = (limit - found.len()).min(MAX_PAGE);
            let page = scheduler.jobs(status, most, cursor).await.map_err(failure)?;
            found.extend(page.jobs);
            cursor = page.next;
            if cursor.is_none() || found.len() >= limit {
                break;
            }
        }
        match arguments.json {
            true => print(&format!("{:#}\n", Json::of(&found))),
            false => print(&lines(&found, now())),
        }
    })
}

/// Waits for the end of a job, however long that takes. Its changes go to standard error.
async fn wait_for_end(scheduler: &Scheduler, id: JobId) -> Result<JobStatus, Failure> {
    let mut said = String::new();
    loop {
        let events = retry_while_unavailable(async || scheduler.job_events(id).await).await;
        let mut events = events.map_err(failure)?;
        while let Some(next) = events.next().await {
            let job = match next {
                Ok(job) => job,
                // The scheduler restarts, or the connection broke: the job goes on.
                Err(error) if error.is_transient() => break,
                Err(error @ ClientError::Lost { .. }) => {
                    eprintln!("hypha: {error}");
                    break;
                }
                Err(error) => return Err(failure(error)),
            };
            if job.has_ended() {
                return Ok(job);
            }
            let line = progress_line(&job);
            if line != said {
                eprintln!("{id} is {line}");
                said = line;
            }
        }
    }
}

/// `waiting: worker: 2 of 3 found`, or `running: worker 1 of 2 done, parameter_server 0 of 1 done`.
fn progress_line(job: &JobStatus) -> String {
    let roles: Vec<String> = (job.roles.iter())
        .map(|role| format!("{} {} of {} done", clean(&role.name), role.done, role.count))
        .collect();
    match (&job.reason, job.status) {
        (Some(reason), status) => format!("{status}: {}", clean(reason)),
        (None, status) => format!("{status}: {}", roles.join(", ")),
    }
}

/// Why a job did not complete.
fn ending(job: &JobStatus) -> String {
    let error = job.error.as_deref().map_or_else(|| "no reason is known".to_owned(), clean);
    match job.status {
        JobState::Cancelled => format!("{} was cancelled", job.id),
        status => format!("{} {status}: {error}", job.id),
    }
}

/// A line for each job.
fn lines(jobs: &[JobStatus], now: Time) -> String {
    if jobs.is_empty() {
        return "no jobs\n".to_owned();
    }
    let mut rows =
        vec![["job", "status", "name", "submitted", "members", "lost"].map(str::to_owned)];
    for job in jobs {
        let sum = |of: fn(&JobRole) -> u32| job.roles.iter().map(of).sum::<u32>();
        rows.push([
            job.id.to_string(),
            job.status.to_string(),
            or_dash(clean(job.name.as_deref().unwrap_or_default())),
            or_dash(job.submitted_at.as_ref().map_or(String::new(), |at| ago(now, at))),
            format!("{} of {}", sum(|role| role.present + role.done), sum(|role| role.count)),
            job.lost.to_string(),
        ]);
    }
    fit(&mut rows, 2);
    table(&rows)
}

/// Everything about one job.
fn details(job: &JobStatus, now: Time) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            text += &format!("{name:<13}{}\n", clean(&value));
        }
    };
    let at = |at: &Option<Timestamp>| at.as_ref().map(|at| format!("{at} ({})", ago(now, at)));
    line("job", Some(job.id.to_string()));
    line("name", job.name.clone());
    line("status", Some(job.status.to_string()));
    line("submitted", at(&job.submitted_at));
    line("finished", at(&job.finished_at));
    line("waiting", job.reason.clone());
    let next = job.next_advert_at.as_ref();
    line("next advert", next.map(|at| format!("in {}", took(at.time().since(now)))));
    job.roles.iter().for_each(|role| line("role", Some(role_line(role))));
    line("lost", (job.lost > 0).then(|| count(job.lost.into(), "member")));
    line("error", job.error.clone());
    let tenant = job.more.get("tenant").and_then(|tenant| tenant.as_str());
    line("tenant", tenant.map(str::to_owned));
    if !job.members.is_empty() {
        text += "\n";
        text += &members(&job.members, now);
    }
    text
}

/// `worker: 2 of 2, 1 done, for 110 an hour each`.
fn role_line(role: &JobRole) -> String {
    let least = match role.minimum < role.count {
        true => format!(" (at least {})", role.minimum),
        false => String::new(),
    };
    let (present, all) = (role.present + role.done, role.count);
    format!("{}: {present} of {all}{least}, {} done, bid {}", role.name, role.done, role.bid)
}

fn members(members: &[JobMember], now: Time) -> String {
    let mut rows =
        vec![["role", "worker", "status", "progress", "price", "lease"].map(str::to_owned)];
    for member in members {
        let id = member.worker.to_string();
        let short: String = id.chars().take(8).collect();
        let worker = match &member.worker_name {
            Some(name) => format!("{} ({short})", clean(name)),
            None => short,
        };
        let left = member.until.as_ref().map(|until| took(until.time().since(now)));
        rows.push([
            clean(&member.role),
            worker,
            clean(&member.status),
            format!("{:.0} %", member.progress * 100.0),
            member.price.to_string(),
            or_dash(left.unwrap_or_default()),
        ]);
    }
    fit(&mut rows, 1);
    table(&rows)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn job(more: Value) -> JobStatus {
        let mut job = json!({
            "id": "job-01890000-0000-7000-8000-000000000001",
            "name": "first\u{1b}",
            "status": "running",
            "submitted_at": "2026-01-01T00:00:00.000Z",
            "roles": [
                {"name": "worker", "count": 2, "minimum": 1, "present": 1, "done": 1, "bid": 1.5},
                {"name": "parameter_server", "count": 1, "minimum": 1, "present": 1, "done": 0, "bid": 0.0},
            ],
            "lost": 1,
        });
        job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(job).unwrap()
    }

    fn now() -> Time {
        "2026-01-01T00:12:00Z".parse::<Timestamp>().unwrap().time()
    }

    #[test]
    fn a_table_of_jobs_fits_a_terminal() {
        let text = lines(&[job(json!({})), job(json!({"name": "x".repeat(200)}))], now());
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        let row = text.lines().nth(1).unwrap();
        assert!(row.starts_with("job-01890000-0000-7000-8000-000000000001  running"), "{row}");
        assert!(row.contains("12m ago") && row.contains("3 of 3"), "{row}");
        assert!(!text.contains('\u{1b}'));
        assert_eq!(lines(&[], now()), "no jobs\n");
    }

    #[test]
    fn details_show_roles_members_and_prices() {
        let member = json!({
            "role": "worker", "worker": "01890000-0000-7000-8000-000000000002",
            "worker_name": "worker-1", "status": "running", "progress": 0.25, "price": 1.75,
            "until": "2026-01-01T00:12:48Z", "lease": "lease-1",
        });
        let text =
            details(&job(json!({"members": [member], "reason": "worker: 0 of 1 found"})), now());
        assert!(
            text.contains("role         worker: 2 of 2 (at least 1), 1 done, bid 1.5\n"),
            "{text}"
        );
        assert!(text.contains("role         parameter_server: 1 of 1, 0 done, bid 0\n"), "{text}");
        assert!(text.contains("waiting      worker: 0 of 1 found\n"), "{text}");
        assert!(text.contains("lost         1 member\n"), "{text}");
        let row = "worker  worker-1 (01890000)  running  25 %      1.75   48.00 s\n";
        assert!(text.ends_with(row), "{text}");
    }

    #[test]
    fn an_ending_says_why() {
        let failed = job(json!({"status": "failed", "error": "out of\nmemory"}));
        assert!(ending(&failed).ends_with(" failed: out of memory"), "{}", ending(&failed));
        assert!(ending(&job(json!({"status": "cancelled"}))).ends_with(" was cancelled"));
        assert_eq!(
            progress_line(&job(json!({}))),
            "running: worker 1 of 2 done, parameter_server 0 of 1 done"
        );
    }
}
