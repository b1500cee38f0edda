//! `hypha cancel`.

use clap::Args;
use hypha_client::TaskId;
use serde_json::json;

use super::reach::{Reach, block_on, failure};
use crate::usage::{Failure, print};

#[derive(Args)]
pub(crate) struct Cancel {
    /// The tasks
    #[arg(required = true, value_name = "ID")]
    ids: Vec<TaskId>,
    /// Print the tasks as they are then, each as a line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

/// Each of them is tried, whatever becomes of the others.
pub(super) fn run(cancel: &Cancel) -> Result<(), Failure> {
    let scheduler = cancel.reach.connect()?;
    block_on(async {
        let mut failed = None;
        for id in &cancel.ids {
            match scheduler.cancel(*id).await {
                Ok(task) if cancel.json => print(&format!("{}\n", json!(task)))?,
                Ok(task) => print(&format!("{id} {}\n", task.status))?,
                Err(error) => {
                    let problem = Failure::work(format!("{id}: {}", failure(error)));
                    // The last one is reported by the caller.
                    if let Some(earlier) = failed.replace(problem) {
                        eprintln!("hypha: {earlier}");
                    }
                }
            }
        }
        failed.map_or(Ok(()), Err)
    })
}
