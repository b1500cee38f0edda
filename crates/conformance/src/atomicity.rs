//! Commits of several tasks that show whether they are whole or torn.

use std::fmt::Debug;

use hypha_engine::{Record, SchedulerStore};
use hypha_model::TaskState;

use crate::samples::{accepted, attempted, finished, id};

/// Tasks of one commit; the first has ended, the second has been attempted, the third waits.
pub const TASKS_PER_COMMIT: u64 = 3;

/// The records of a commit that [`is_committed`] recognises.
pub fn records(number: u64) -> Vec<Record> {
    let first = number * TASKS_PER_COMMIT;
    vec![
        accepted(first),
        accepted(first + 1),
        attempted(first, 1, 1),
        attempted(first + 1, 1, 2),
        finished(first, TaskState::Completed),
        accepted(first + 2),
    ]
}

/// Whether the commit is in the store. Panics if only a part of it is.
pub async fn is_committed<S: SchedulerStore>(store: &S, number: u64) -> bool
where
    S::Error: Debug,
{
    let first = number * TASKS_PER_COMMIT;
    let mut found = Vec::new();
    for task in first..first + TASKS_PER_COMMIT {
        found.push(store.task(id(task)).await.unwrap());
    }
    match &found[..] {
        [None, None, None] => false,
        [Some(ended), Some(attempted), Some(waiting)] => {
            assert!(ended.finished.is_some() && ended.current.is_none(), "{number}");
            assert!(attempted.finished.is_none() && attempted.current.is_some(), "{number}");
            assert!(waiting.finished.is_none() && waiting.current.is_none(), "{number}");
            true
        }
        _ => panic!("only a part of commit {number} is in the store"),
    }
}
