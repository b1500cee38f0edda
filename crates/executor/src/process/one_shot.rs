//! One process per attempt: its input on standard input, its result from standard output, or both over the
//! bridge.

use tokio_util::sync::CancellationToken;

use hypha_model::Payload;

use super::output::Stdout;
use super::supervised::{ProgramEnd, SupervisedProgram, run_error_of};
use super::supervisor_request::supervisor_request;
use super::{Directory, ProcessError, ProcessState};
use crate::Attempt;
use crate::bridge::{Bridge, BridgeMode, ProgramAnswer};
use crate::outcome::{RunError, RunFailure, RunOutcome};
use crate::running::RunControl;

/// Why the program was stopped.
#[derive(Clone, Copy)]
enum StopReason {
    Cancelled,
    TooLarge,
}

pub(super) async fn run(
    state: &ProcessState,
    attempt: Attempt,
    control: RunControl,
) -> Result<RunOutcome, ProcessError> {
    if control.cancel.is_cancelled() {
        return Ok(RunOutcome::Cancelled);
    }
    let config = &state.config;
    let result_bytes = config.limits.result_bytes;
    let directory = Directory::make(&config.work_root, &attempt.input)
        .await
        .map_err(ProcessError::Directory)?;
    let bridge =
        Bridge::open(&directory, BridgeMode::Single, result_bytes).map_err(ProcessError::Bridge)?;
    bridge.set_current(&attempt, control.reporter);
    let request = supervisor_request(state, &attempt, BridgeMode::Single, &directory, &bridge);
    let too_large = CancellationToken::new();
    let stdout = Stdout::Result(result_bytes, too_large.clone());
    let program = SupervisedProgram::start(state, request, stdout)?;
    let ended = program.supervise(stop_reason(&control.cancel, &too_large)).await;
    let answer = bridge.take().and_then(|current| current.into_parts().0);
    // Removed off the loop, and before the outcome: capacity that is reported free is free.
    directory.remove().await;
    Ok(conclude(ended?, answer, result_bytes))
}

async fn stop_reason(cancel: &CancellationToken, too_large: &CancellationToken) -> StopReason {
    tokio::select! {
        () = cancel.cancelled() => StopReason::Cancelled,
        () = too_large.cancelled() => StopReason::TooLarge,
    }
}

/// The outcome of the run.
fn conclude(
    ended: ProgramEnd<StopReason>,
    answer: Option<ProgramAnswer>,
    result_bytes: usize,
) -> RunOutcome {
    let ProgramEnd { exit_reason, stopped, output } = ended;
    let too_large = || RunError::ResultTooLarge { limit_bytes: result_bytes as u64 };
    let error = match (stopped, run_error_of(exit_reason), answer) {
        (Some(StopReason::Cancelled), ..) => return RunOutcome::Cancelled,
        (_, Some(error @ (RunError::Memory { .. } | RunError::Processes { .. })), _) => error,
        (Some(StopReason::TooLarge), ..) => too_large(),
        // The program's own message says more than its exit code.
        (None, _, Some(ProgramAnswer::Failure(why))) => RunError::Reported(why),
        (None, _, Some(ProgramAnswer::Refusal(why))) => RunError::Input(why),
        (None, Some(error), _) => error,
        (None, None, Some(ProgramAnswer::Result(payload))) => {
            return RunOutcome::Completed { payload };
        }
        (None, None, None) => match output.stdout {
            Some(bytes) => return RunOutcome::Completed { payload: Payload::from(bytes) },
            None => too_large(),
        },
    };
    RunOutcome::Failed(RunFailure { error, output: output.tail })
}
