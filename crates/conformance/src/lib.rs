//! What every store of a scheduler must do, as tests that each implementation runs.
//!
//! A store implements [`SchedulerStore`] and keeps the rows of other machines. Its crate's tests implement a
//! [`Harness`] and call [`store_conformance!`], which makes a test of each check. A check that only some stores could
//! pass does not belong here.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests of other crates")]

pub mod atomicity;
mod commits;
mod forgetting;
mod harness;
mod ledger;
mod pending_commit;
mod queries;
mod recovery;
mod rows;
pub mod samples;

pub use commits::{
    acknowledged_commits_survive_a_crash, commits_in_flight_keep_their_order,
    commits_of_several_threads_keep_the_order_of_each, failed_commit_leaves_nothing,
    failed_commit_stops_later_ones_until_recovery,
};
pub use forgetting::{
    finished_tasks_are_forgotten_with_their_keys, forgetting_is_exact_within_a_millisecond,
    forgetting_works_while_commits_fail, many_tasks_are_forgotten, the_last_id_outlives_its_task,
};
pub use harness::Harness;
pub use ledger::Transfer;
pub use pending_commit::{PendingCommit, commit, start_commit};
pub use queries::{
    key_belongs_to_its_tenant_and_its_latest_task, lists_are_filtered_and_come_in_pages,
    pages_are_bounded, task_is_found_by_its_id_and_by_its_key,
    tasks_of_the_same_moment_are_kept_apart,
};
pub use recovery::{
    details_of_an_attempt_add_up, failed_attempts_are_those_of_the_last_record,
    recovery_finds_settings_and_workers, recovery_gives_what_the_records_add_up_to,
};
pub use rows::{
    failed_rows_stop_their_machine_until_it_recovers, machines_have_rows_of_their_own,
    rows_and_tasks_are_committed_side_by_side, rows_are_what_the_records_add_up_to,
};

#[cfg(doc)]
use hypha_engine::SchedulerStore;

/// Makes a test of each check. Takes the type of the [`Harness`], which is `Default`, and a function that runs a future
/// to completion.
#[macro_export]
macro_rules! store_conformance {
    ($harness:ty, $block_on:path) => {
        $crate::store_conformance! { $harness, $block_on:
            acknowledged_commits_survive_a_crash
            commits_in_flight_keep_their_order
            commits_of_several_threads_keep_the_order_of_each
            failed_commit_leaves_nothing
            failed_commit_stops_later_ones_until_recovery
            details_of_an_attempt_add_up
            failed_attempts_are_those_of_the_last_record
            recovery_finds_settings_and_workers
            recovery_gives_what_the_records_add_up_to
            key_belongs_to_its_tenant_and_its_latest_task
            lists_are_filtered_and_come_in_pages
            pages_are_bounded
            task_is_found_by_its_id_and_by_its_key
            tasks_of_the_same_moment_are_kept_apart
            finished_tasks_are_forgotten_with_their_keys
            forgetting_is_exact_within_a_millisecond
            forgetting_works_while_commits_fail
            many_tasks_are_forgotten
            the_last_id_outlives_its_task
            failed_rows_stop_their_machine_until_it_recovers
            machines_have_rows_of_their_own
            rows_are_what_the_records_add_up_to
            rows_and_tasks_are_committed_side_by_side
        }
    };
    ($harness:ty, $block_on:path: $($check:ident)+) => {
        $(
            #[test]
            fn $check() {
                $block_on($crate::$check(<$harness>::default()));
            }
        )+
    };
}
