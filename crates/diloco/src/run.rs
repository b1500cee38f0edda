//! A training run: one round after the other, until its length is reached.
//!
//! [`TrainingRun`] is a pure state machine inside the scheduler's job. It takes what happened with the time, collects
//! [`Action`]s, and says when it wants to be woken.
//!
//! **The state of a run is where its parameters are.** What must survive is a [`RunState`], which the parameter server stores
//! with its checkpoint. The scheduler stores nothing: after a restart it asks the server. If the server goes back to an older
//! checkpoint, the ledger goes back with it, so no sample is lost or counted twice.
//!
//! A round is `Open` → `Freeze` → `Commit`. Which deltas are in it is what the server says when it is frozen; until then,
//! what the run knows of accepted deltas only tells it when to close the round. So samples of a member that is lost stay
//! ASSIGNED until the round closes, which does not wait for it: its delta may have been accepted just before.

mod members;
mod plan;
mod server;
mod state;
mod view;

use std::collections::BTreeMap;

use hypha_model::{Span, Time, WorkerId};
use serde::{Deserialize, Serialize};

use crate::budget::{MemberRefusal, MemoryProfile};
use crate::message::{FromServer, FromTrainer, ParametersId, ToServer, ToTrainer};
use crate::round::{CloseReason, Grace, Verdict};
use crate::schedule::{Progress, Schedule};
use members::Member;
use plan::{Current, Step};

pub use state::RunState;
pub use view::{MemberState, MemberView, RunView, Stage};

/// How long an answer may take before a message is repeated. Longer than a round trip around the world under load.
const RETRY: Span = Span::from_secs(1);

/// What a run is made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunConfig {
    /// How it proceeds.
    pub schedule: Schedule,
    /// How many samples each slice of the data set has.
    pub slice_samples: Vec<u32>,
    /// Of the order of the slices.
    pub seed: u64,
    /// What decides the batch of a member.
    pub memory: MemoryProfile,
    /// No round begins with fewer members.
    pub min_members: u32,
    /// More are refused.
    pub max_members: u32,
    /// The part of the expected deltas, in thousandths, with which a round may close.
    pub quorum_milli: u32,
    /// A member from which nothing is heard for this long is reported.
    pub stall_after: Span,
    /// Rounds that are the same whatever fails.
    pub fixed: Option<FixedMode>,
}

/// Every round has the same members, steps and batch, and waits for all. The samples of a member are a function of the seed
/// and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FixedMode {
    /// How many members.
    pub members: u32,
    /// Steps of each in a round.
    pub steps: u32,
    /// Samples of a step.
    pub batch: u32,
}

/// What the job has to do for the run.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Send to a trainer.
    ToTrainer {
        /// To which.
        member: WorkerId,
        /// What.
        message: ToTrainer,
    },
    /// Send to the parameter server.
    ToServer(ToServer),
    /// A worker cannot be a member.
    MemberRefused {
        /// Which.
        member: WorkerId,
        /// Why.
        refusal: MemberRefusal,
    },
    /// A member has work and says nothing.
    MemberStalled {
        /// Which.
        member: WorkerId,
        /// For how long.
        silent: Span,
    },
    /// A member's assignments fail again and again. It gets no more.
    MemberUnfit {
        /// Which.
        member: WorkerId,
        /// Why the last one failed.
        reason: String,
    },
    /// A round is in the parameters.
    RoundClosed(RoundSummary),
    /// The run has reached its length.
    Finished,
    /// The run cannot continue.
    Broken {
        /// Why.
        reason: String,
    },
}

/// A round that is in the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundSummary {
    /// Its number.
    pub round: u64,
    /// Updates applied to the parameters.
    pub version: u64,
    /// Why it closed.
    pub reason: CloseReason,
    /// Deltas in it.
    pub deltas: u32,
    /// Assignments whose delta is not in it.
    pub dropped: u32,
    /// Samples that it used.
    pub samples: u64,
    /// The mean loss over them.
    pub loss: Option<f64>,
    /// From opening to commit.
    pub took: Span,
}

/// A fault that can be planted, to show that a checker notices. Has no effect without the `mutants` feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunMutant {
    /// Numbers of assignments begin anew when the scheduler restarts.
    ReusedAssignments,
    /// Samples of a lost member are AVAILABLE at once, although its delta may be accepted.
    ReleasedAtOnce,
    /// Samples of accepted deltas are AVAILABLE again.
    ReleasedAccepted,
    /// All samples of an assignment count as USED, although its member stopped early.
    SettledWhole,
    /// A round is committed with the deltas that were reported, without being frozen.
    CommittedUnfrozen,
    /// The ledger does not go back with the parameters.
    KeptLedger,
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct TrainingRun {
    config: RunConfig,
    /// As of the server's parameters, and what is ASSIGNED in the current round.
    state: RunState,
    /// The server's, if it has told.
    parameters: Option<ParametersId>,
    /// Whether the server has told its state since it was lost.
    is_server_known: bool,
    current: Option<Current>,
    members: BTreeMap<WorkerId, Member>,
    grace: Grace,
    /// The last assignment or revision.
    last_id: u64,
    /// When unanswered messages to the server are repeated.
    retry_at: Time,
    is_paused: bool,
    has_ended: bool,
    mutant: Option<RunMutant>,
    actions: Vec<Action>,
}

impl TrainingRun {
    /// A run that asks the server where it is, as soon as it is woken.
    pub fn new(config: RunConfig) -> TrainingRun {
        TrainingRun {
            state: RunState::new(&config),
            config,
            parameters: None,
            is_server_known: false,
            current: None,
            members: BTreeMap::new(),
            grace: Grace::default(),
            last_id: 0,
            retry_at: Time::ZERO,
            is_paused: false,
            has_ended: false,
            mutant: None,
            actions: Vec::new(),
        }
    }

    /// Plants a fault. Does nothing without the `mutants` feature.
    pub fn mutate(&mut self, mutant: Option<RunMutant>) {
        self.mutant = mutant;
    }

    /// A worker runs the trainer, perhaps again.
    pub fn member_joined(&mut self, now: Time, member: WorkerId) {
        self.join(now, member);
        self.tick(now);
    }

    /// A worker runs the trainer no more.
    pub fn member_lost(&mut self, now: Time, member: WorkerId) {
        self.lose(now, member);
        self.tick(now);
    }

    /// A trainer has sent a message. Those of workers that have not joined are ignored.
    pub fn trainer_said(&mut self, now: Time, member: WorkerId, message: FromTrainer) {
        self.hear_trainer(now, member, message);
        self.tick(now);
    }

    /// The parameter server is gone. Members continue; the next one says where it is.
    pub fn server_lost(&mut self, now: Time) {
        self.is_server_known = false;
        self.retry_at = now;
        self.tick(now);
    }

    /// The parameter server has sent a message.
    pub fn server_said(&mut self, now: Time, message: FromServer) {
        self.hear_server(now, message);
        self.tick(now);
    }

    /// No further round begins; the open one ends as usual.
    pub fn pause(&mut self) {
        self.is_paused = true;
    }

    /// Rounds begin again.
    pub fn resume(&mut self, now: Time) {
        self.is_paused = false;
        self.tick(now);
    }

    /// Does what is due. To be called at [`TrainingRun::wake_at`].
    pub fn tick(&mut self, now: Time) {
        if self.has_ended {
            return;
        }
        self.ask_members(now);
        if !self.is_server_known {
            if self.is_retry_due(now) {
                self.tell_server(ToServer::Tell);
            }
            return;
        }
        if self.current.is_none() {
            self.open_round(now);
        }
        self.ask_server(now);
        self.close_round(now);
    }

    /// When to call [`TrainingRun::tick`], unless something happens before.
    pub fn wake_at(&self) -> Time {
        if self.has_ended {
            return Time::MAX;
        }
        let members = self.members_wake_at();
        if !self.is_server_known {
            return members.min(self.retry_at);
        }
        let Some(current) = &self.current else { return members };
        let retry = if current.is_unanswered() { self.retry_at } else { Time::MAX };
        let verdict = match (&current.step, self.verdict(current, Time::ZERO)) {
            (Step::Training, Verdict::Wait(until)) => until,
            (Step::Training, Verdict::Close(_)) => Time::ZERO,
            _ => Time::MAX,
        };
        members.min(retry).min(verdict)
    }

    /// Takes what is to be done, in order.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Whether the run has reached its length, or cannot continue.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// As of the server's parameters, and what is ASSIGNED in the current round.
    pub fn state(&self) -> &RunState {
        &self.state
    }

    fn progress(&self) -> Progress {
        self.state.progress()
    }

    fn is(&self, mutant: RunMutant) -> bool {
        cfg!(feature = "mutants") && self.mutant == Some(mutant)
    }

    fn tell_trainer(&mut self, member: WorkerId, message: ToTrainer) {
        self.actions.push(Action::ToTrainer { member, message });
    }

    fn tell_server(&mut self, message: ToServer) {
        self.actions.push(Action::ToServer(message));
    }

    /// Whether it is time to repeat what the server has not answered; if so, the next time is later.
    fn is_retry_due(&mut self, now: Time) -> bool {
        let is_due = now >= self.retry_at;
        if is_due {
            self.retry_at = now + RETRY;
        }
        is_due
    }

    /// A number that no assignment or revision has had, also before a restart: the driver's time never runs backwards.
    fn fresh_id(&mut self, now: Time) -> u64 {
        let least = if self.is(RunMutant::ReusedAssignments) { 0 } else { now.as_micros() };
        self.last_id = least.max(self.last_id + 1);
        self.last_id
    }

    fn break_off(&mut self, reason: String) {
        self.has_ended = true;
        self.actions.push(Action::Broken { reason });
    }
}

#[cfg(test)]
mod tests;
