//! `hypha cancel`.

use clap::Args;
use hypha_client::{Json, TaskId};

use super::connection::{ConnectionArguments, block_on, failure};
use crate::usage::{Failure, print};

#[derive(Args)]
pub(crate) struct Cancel {
    /// The tasks
    #[arg(required = true, value_name = "ID")]
    ids: Vec<TaskId>,
    /// Print each task after the cancellation as a line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Each of them is attempted, even if others fail.
pub(super) fn run(cancel: &Cancel) -> Result<(), Failure> {
    let scheduler = cancel.connection.connect()?;
    block_on(async {
        let mut failed = None;
        for id in &cancel.ids {
            match scheduler.cancel(*id).await {
                Ok(task) if cancel.json => print(&format!("{}\n", Json::of(&task)))?,
                Ok(task) => print(&format!("{id} {}\n", task.status))?,
                Err(error) => {
                    let problem = Failure::work(named(*id, &failure(error).to_string()));
                    // The caller reports the last one.
                    if let Some(earlier) = failed.replace(problem) {
                        eprintln!("hypha: {earlier}");
                    }
                }
            }
        }
        failed.map_or(Ok(()), Err)
    })
}

/// The error, with the task that it is about.
fn named(id: TaskId, problem: &str) -> String {
    match problem.contains(&id.to_string()) {
        true => problem.to_owned(),
        false => format!("{id}: {problem}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_named_once() {
        let id: TaskId = "task-01890000-0000-7000-8000-000000000001".parse().unwrap();
        let unknown = format!("there is no task {id}");
        assert_eq!(named(id, &unknown), unknown);
        assert_eq!(named(id, "no"), format!("{id}: no"));
    }
}
