//! A run as people see it.

use hypha_model::{Time, WorkerId};
use serde::{Deserialize, Serialize};

use super::TrainingRun;
use super::members::Member;
use super::plan::Step;

/// What a run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// It waits for the parameter server.
    WaitingForServer,
    /// It waits for members.
    WaitingForMembers,
    /// No further round begins.
    Paused,
    /// Members train.
    Training,
    /// The round closes.
    Closing,
    /// It has ended.
    Ended,
}

/// What a member does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberState {
    /// It has started and is not ready.
    Starting,
    /// It waits for a round.
    Waiting,
    /// It trains.
    Training,
    /// Its delta is in the round.
    Done,
    /// It says nothing.
    Stalled,
    /// Its assignments fail.
    Unfit,
}

/// A member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberView {
    /// Which worker.
    pub member: WorkerId,
    /// What it does.
    pub state: MemberState,
    /// Samples of a step.
    pub batch: Option<u32>,
    /// Its speed.
    pub samples_per_s: Option<f64>,
    /// Its loss.
    pub loss: Option<f64>,
    /// The part of the time since it joined in which it made no step, as far as it has reported.
    pub idle_share: f64,
}

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunView {
    /// What it does.
    pub stage: Stage,
    /// The current round, or the next.
    pub round: u64,
    /// Rounds that are in the parameters.
    pub rounds: u64,
    /// Samples that were USED.
    pub samples: u64,
    /// Samples of the whole run, if that is known.
    pub total_samples: Option<u64>,
    /// Passes over the data set that are complete.
    pub epochs: u32,
    /// The part of the run that is done, from 0 to 1.
    pub done: f64,
    /// The mean loss of the last round.
    pub loss: Option<f64>,
    /// The members.
    pub members: Vec<MemberView>,
}

impl TrainingRun {
    /// The run as people see it.
    pub fn view(&self, now: Time) -> RunView {
        let progress = self.progress();
        RunView {
            stage: self.stage(),
            round: self.current.as_ref().map_or(self.state.next_round, |it| it.round.number),
            rounds: progress.rounds,
            samples: progress.samples,
            total_samples: self.config.schedule.samples(&progress),
            epochs: self.state.ledger.completed_epochs(),
            done: self.config.schedule.done(&progress),
            loss: self.state.loss,
            members: self.members.iter().map(|(id, it)| self.member_view(now, *id, it)).collect(),
        }
    }

    fn stage(&self) -> Stage {
        match &self.current {
            _ if self.has_ended => Stage::Ended,
            _ if !self.is_server_known => Stage::WaitingForServer,
            Some(current) if matches!(current.step, Step::Training) => Stage::Training,
            Some(_) => Stage::Closing,
            None if self.is_paused => Stage::Paused,
            None => Stage::WaitingForMembers,
        }
    }

    fn member_view(&self, now: Time, id: WorkerId, member: &Member) -> MemberView {
        let current = self.current.as_ref();
        let mut of_member =
            current.iter().flat_map(|it| &it.assignments).filter(|(_, it)| it.member == id);
        let is_done = of_member.any(|(assignment, _)| {
            current.is_some_and(|current| current.round.is_accepted(*assignment))
        });
        let state = match () {
            () if member.is_unfit => MemberState::Unfit,
            () if member.is_stalled => MemberState::Stalled,
            () if member.batch.is_none() => MemberState::Starting,
            () if is_done => MemberState::Done,
            () if current.is_some_and(|it| it.awaits(id)) => MemberState::Training,
            () => MemberState::Waiting,
        };
        let there = now.since(member.joined_at).as_secs_f64().max(f64::EPSILON);
        MemberView {
            member: id,
            state,
            batch: member.batch,
            samples_per_s: member.meter.samples_per_s(),
            loss: member.loss,
            idle_share: (1.0 - member.total_busy.as_secs_f64() / there).clamp(0.0, 1.0),
        }
    }
}
