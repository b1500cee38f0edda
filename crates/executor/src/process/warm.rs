//! Processes that are kept warm: started once, then fed one job after another over their bridge.
//!
//! A process is kept for one model and one choice of devices, CPUs and memory: that of the job it was started for.
//! A job that another choice was made for gets another process, and one that lies idle makes room for it. So what
//! the ledger decided always holds. A job cannot be taken back from a program, so cancelling it ends the process.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hypha_model::{Name, Payload};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::order::{memory_limit, order};
use super::output::{Stdout, Written};
use super::supervised::{Ended, Supervised, error_of};
use super::{Directory, House, RunError};
use crate::Job;
use crate::bridge::{Answer, Bridge, Jobs};
use crate::outcome::{Failure, JobError, Outcome};
use crate::running::Reins;

/// All processes of one executor.
#[derive(Debug)]
pub(super) struct Pool {
    /// One for each job that has a process or is about to.
    slots: Semaphore,
    /// Those without a job, the one that was used last at the back.
    idle: Mutex<VecDeque<Kept>>,
}

struct Kept {
    kind: Kind,
    bridge: Bridge,
    written: Written,
    ended: JoinHandle<Result<Ended<()>, RunError>>,
    stop: CancellationToken,
    _stopping: DropGuard,
}

/// What a process was started for.
#[derive(Debug, PartialEq, Eq)]
struct Kind {
    model: Name,
    devices: Vec<u32>,
    cpus: Vec<usize>,
    memory_bytes: Option<u64>,
}

/// A process for a job.
struct Found {
    kept: Kept,
    /// Whether it has had a job before.
    used: bool,
}

impl Pool {
    pub(super) fn new(processes: NonZeroUsize) -> Pool {
        let processes = processes.get().min(Semaphore::MAX_PERMITS);
        Pool { slots: Semaphore::new(processes), idle: Mutex::new(VecDeque::new()) }
    }

    /// Lets go of what has ended with the executor.
    pub(super) fn clear(&self) {
        self.idle().clear();
    }

    fn idle(&self) -> MutexGuard<'_, VecDeque<Kept>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that fits, or those that have to go before one may be started.
    fn choose(&self, kind: &Kind) -> Result<Kept, Vec<Kept>> {
        let mut idle = self.idle();
        idle.retain(|kept| !kept.ended.is_finished());
        if let Some(at) = idle.iter().rposition(|kept| kept.kind == *kind) {
            return idle.remove(at).ok_or_else(Vec::new);
        }
        // Every slot that is free may have one idle process: the others are of jobs.
        let over = idle.len().saturating_sub(self.slots.available_permits());
        Err(idle.drain(..over).collect())
    }

    /// For the next job. In one step with the slot, so that none is counted twice.
    fn give_back(&self, kept: Kept, slot: SemaphorePermit<'_>) {
        let mut idle = self.idle();
        idle.push_back(kept);
        drop(slot);
    }
}

pub(super) async fn run(
    house: &House,
    pool: &Pool,
    job: Job,
    reins: Reins,
) -> Result<Outcome, RunError> {
    let Reins { mut reports, cancel } = reins;
    let Some(Ok(slot)) = cancel.run_until_cancelled(pool.slots.acquire()).await else {
        return Ok(Outcome::Cancelled);
    };
    loop {
        let Some(found) = cancel.run_until_cancelled(find(house, pool, &job)).await else {
            return Ok(Outcome::Cancelled);
        };
        let Found { mut kept, used } = found?;
        kept.bridge.give(&job, reports);
        let ended = tokio::select! {
            () = kept.bridge.answered() => None,
            ended = &mut kept.ended => Some(ended),
            () = cancel.cancelled() => {
                kept.stop().await;
                return Ok(Outcome::Cancelled);
            }
        };
        let Some(current) = kept.bridge.take() else {
            return Err(RunError::Supervisor("its job was lost".to_owned()));
        };
        let (taken, complete) = (current.is_taken(), current.is_answered());
        let (answer, returned) = current.into_parts();
        // Pieces of one that died are half a result, which is none.
        match (ended, answer.filter(|_| complete)) {
            (None, Some(answer)) => {
                let outcome = answered(answer, &kept);
                pool.give_back(kept, slot);
                return Ok(outcome);
            }
            // It has answered and ended at once.
            (_, Some(answer)) => return Ok(answered(answer, &kept)),
            // It ended between two jobs, before it knew of this one.
            (Some(_), None) if used && !taken => reports = returned,
            (Some(ended), None) => return died(ended),
            (None, None) => return Err(RunError::Supervisor("its answer was lost".to_owned())),
        }
    }
}

fn answered(answer: Answer, kept: &Kept) -> Outcome {
    let error = match answer {
        Answer::Result(payload) => return Outcome::Completed { payload },
        Answer::Failure(why) => JobError::Reported(why),
        Answer::Refusal(why) => JobError::Input(why),
    };
    Outcome::Failed(Failure { error, output: kept.written.tail() })
}

fn died(
    ended: Result<Result<Ended<()>, RunError>, tokio::task::JoinError>,
) -> Result<Outcome, RunError> {
    let ended = ended.map_err(|error| RunError::Supervisor(error.to_string()))??;
    if ended.stopped.is_some() {
        // Only the executor's own end stops one that has a job, besides the job's cancelling.
        return Ok(Outcome::Cancelled);
    }
    let error = error_of(ended.ending).unwrap_or(JobError::NoResult);
    Ok(Outcome::Failed(Failure { error, output: ended.output.tail }))
}

async fn find(house: &House, pool: &Pool, job: &Job) -> Result<Found, RunError> {
    let kind = Kind {
        model: job.model.clone(),
        devices: job.devices.clone(),
        cpus: job.cpus.clone(),
        memory_bytes: memory_limit(house, job),
    };
    match pool.choose(&kind) {
        Ok(kept) => {
            kept.written.forget();
            Ok(Found { kept, used: true })
        }
        Err(to_go) => {
            // Gone before the new one starts: both may not fit on the device.
            for kept in to_go {
                kept.stop().await;
            }
            Ok(Found { kept: start(house, job, kind).await?, used: false })
        }
    }
}

async fn start(house: &House, job: &Job, kind: Kind) -> Result<Kept, RunError> {
    let config = &house.config;
    let nothing = Payload::default();
    let directory =
        Directory::make(&config.work_root, &nothing).await.map_err(RunError::Directory)?;
    let jobs = Jobs::OneAfterAnother;
    let bridge =
        Bridge::open(&directory, jobs, config.limits.result_bytes).map_err(RunError::Bridge)?;
    let order = order(house, job, jobs, &directory, &bridge);
    let program = Supervised::start(house, order, Stdout::Chatter)?;
    let written = program.written();
    // Also stopped by the executor's end, whoever holds it then.
    let stop = house.stopping.child_token();
    let stopped = stop.clone();
    let ended = house.tasks.spawn(async move {
        let ended = program.attend(stopped.cancelled()).await;
        directory.remove().await;
        ended
    });
    Ok(Kept { kind, bridge, written, ended, _stopping: stop.clone().drop_guard(), stop })
}

impl Kept {
    async fn stop(self) {
        self.stop.cancel();
        // How it ended is of no interest any more.
        let _ = self.ended.await;
    }
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kept").field("kind", &self.kind).finish_non_exhaustive()
    }
}
