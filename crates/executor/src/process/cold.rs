//! A process a job: its input on standard input, its result from standard output, or both over the bridge.

use tokio_util::sync::CancellationToken;

use hypha_model::Payload;

use super::order::order;
use super::output::Stdout;
use super::supervised::{Ended, Supervised, error_of};
use super::{Directory, House, RunError};
use crate::Job;
use crate::bridge::{Answer, Bridge, Jobs};
use crate::outcome::{Failure, JobError, Outcome};
use crate::running::Reins;

/// Why the program was told to stop.
#[derive(Clone, Copy)]
enum Stopped {
    Cancelled,
    TooLarge,
}

pub(super) async fn run(house: &House, job: Job, reins: Reins) -> Result<Outcome, RunError> {
    if reins.cancel.is_cancelled() {
        return Ok(Outcome::Cancelled);
    }
    let config = &house.config;
    let result_bytes = config.limits.result_bytes;
    let directory =
        Directory::make(&config.work_root, &job.input).await.map_err(RunError::Directory)?;
    let bridge = Bridge::open(&directory, Jobs::One, result_bytes).map_err(RunError::Bridge)?;
    bridge.give(&job, reins.reports);
    let order = order(house, &job, Jobs::One, &directory, &bridge);
    let too_large = CancellationToken::new();
    let stdout = Stdout::Result(result_bytes, too_large.clone());
    let program = Supervised::start(house, order, stdout)?;
    let ended = program.attend(told_to_stop(&reins.cancel, &too_large)).await;
    let answer = bridge.take().and_then(|current| current.into_parts().0);
    // Removed off the loop, and before the outcome: room that is said to be free is free.
    directory.remove().await;
    Ok(conclude(ended?, answer, result_bytes))
}

async fn told_to_stop(cancel: &CancellationToken, too_large: &CancellationToken) -> Stopped {
    tokio::select! {
        () = cancel.cancelled() => Stopped::Cancelled,
        () = too_large.cancelled() => Stopped::TooLarge,
    }
}

/// What all of it comes to.
fn conclude(ended: Ended<Stopped>, answer: Option<Answer>, result_bytes: usize) -> Outcome {
    let Ended { ending, stopped, output } = ended;
    let too_large = || JobError::ResultTooLarge { limit_bytes: result_bytes as u64 };
    let error = match (stopped, error_of(ending), answer) {
        (Some(Stopped::Cancelled), ..) => return Outcome::Cancelled,
        (_, Some(error @ (JobError::Memory { .. } | JobError::Processes { .. })), _) => error,
        (Some(Stopped::TooLarge), ..) => too_large(),
        // What the program itself says is more than its exit code.
        (None, _, Some(Answer::Failure(why))) => JobError::Reported(why),
        (None, _, Some(Answer::Refusal(why))) => JobError::Input(why),
        (None, Some(error), _) => error,
        (None, None, Some(Answer::Result(payload))) => return Outcome::Completed { payload },
        (None, None, None) => match output.stdout {
            Some(bytes) => return Outcome::Completed { payload: Payload::from(bytes) },
            None => too_large(),
        },
    };
    Outcome::Failed(Failure { error, output: output.tail })
}
