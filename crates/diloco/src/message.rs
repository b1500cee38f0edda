//! The messages between the scheduler's run, its trainers and its parameter server.
//!
//! Every message may be lost, repeated, or arrive after a later one. So each names the assignment or the round that it is
//! about, and carries the whole of what it says instead of a change. The run repeats what was not answered.
//!
//! The rules for those who answer:
//!
//! - **Trainer.** It ignores `Train` and `Extend` of an assignment with a lower number than one that it has seen. It answers
//!   a `Train` with `Progress` at once, and then reports periodically. It keeps the encoded delta until it gets a `Train` of
//!   another assignment; a `Train` of the assignment that it has pushed makes it push the same bytes again. If it has no
//!   work of that assignment left, because it restarted, it begins anew. It always makes at least one step.
//! - **Server.** It accepts a delta whole and once, if its assignment is of the open round, the round is not frozen, and the
//!   delta has no more samples than it knows to be assigned; so a **late delta is dropped**. `Open` of a higher round
//!   replaces the open round with all that was accepted in it; of the same round, it adds; of a lower one, it is ignored.
//!   `Open` and `Commit` with other parameters than its own are answered with `State`. It commits only what it has frozen,
//!   and only if `accepted` is exactly that. Repeated messages get the same answers.

use hypha_model::{Span, Time, WorkerId};
use serde::{Deserialize, Serialize};

use crate::budget::Budget;
use crate::schedule::{Codec, RateRange};
use crate::slices::{AssignmentId, Entry, SliceId};

/// Names the content of the parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ParametersId {
    /// How many updates were applied.
    pub version: u64,
    /// Drawn at random by the server whenever it starts from a checkpoint that may not be its newest. A version is unique
    /// in a lineage only: a trainer with the same version of another lineage has to fetch the parameters anew.
    pub lineage: u64,
}

/// From the scheduler to a trainer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToTrainer {
    /// Train, and push the delta.
    Train(Training),
    /// The assignment has more entries now.
    Extend {
        /// The assignment.
        assignment: AssignmentId,
        /// All of its entries, in order; the trainer's are the first of them.
        entries: Vec<Entry>,
        /// Replaces the budget.
        budget: Budget,
    },
    /// Stop training: the round closed without the delta. Has no effect on a delta that was pushed.
    Abandon {
        /// The assignment.
        assignment: AssignmentId,
    },
    /// Send `Ready`.
    Tell,
}

/// What a trainer does in a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Training {
    /// The round.
    pub round: u64,
    /// The assignment.
    pub assignment: AssignmentId,
    /// The samples, in order. The delta says how many of them went into it, from the first.
    pub entries: Vec<Entry>,
    /// How much of them it is expected to train on, and until when.
    pub budget: Budget,
    /// The learning rate.
    pub rate: RateRange,
    /// How the delta is encoded.
    pub codec: Codec,
    /// The parameters to start from.
    pub parameters: ParametersId,
    /// Slices that it will probably need next.
    pub prefetch: Vec<SliceId>,
}

/// From a trainer to the scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromTrainer {
    /// It can train. Sent on start, after a reconnect, and when asked.
    Ready {
        /// The memory that it has for training.
        memory_bytes: u64,
        /// Slices that it has.
        cached: Vec<SliceId>,
        /// The assignment that it works on, or whose delta it has.
        assignment: Option<AssignmentId>,
    },
    /// How far it is. All numbers are totals of the assignment.
    Progress {
        /// The assignment.
        assignment: AssignmentId,
        /// Steps made.
        steps: u32,
        /// Samples trained on.
        samples: u64,
        /// The mean loss of recent steps.
        loss: Option<f64>,
        /// The time that the steps took.
        busy: Span,
    },
    /// The server has the delta.
    Pushed {
        /// The assignment.
        assignment: AssignmentId,
        /// Samples that went into it.
        samples: u64,
        /// The mean loss over them.
        loss: Option<f64>,
    },
    /// The assignment failed here.
    Failed {
        /// The assignment.
        assignment: AssignmentId,
        /// Why.
        reason: String,
    },
}

/// From the scheduler to the parameter server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToServer {
    /// Accept these deltas. Answered with `Opened`. Sent again with additions.
    Open {
        /// Names this message in its answer.
        revision: u64,
        /// The round.
        round: OpenRound,
    },
    /// Accept no further deltas. Answered with `Frozen`.
    Freeze {
        /// The round.
        round: u64,
    },
    /// Apply the mean of the accepted deltas, store a checkpoint, publish the update. Answered with `Committed`.
    Commit(Commit),
    /// Send `State`.
    Tell,
}

/// How a frozen round is committed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Commit {
    /// The round.
    pub round: u64,
    /// The parameters before it.
    pub parameters: ParametersId,
    /// What `Frozen` said.
    pub accepted: Vec<(AssignmentId, u64)>,
    /// Stored with the checkpoint: the state of the run after this round.
    pub attachment: Vec<u8>,
    /// Whether the checkpoint is also stored outside of the server's machine.
    pub is_stored_outside: bool,
}

/// The deltas that a round consists of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenRound {
    /// The round. Numbers never go back, except with a checkpoint.
    pub round: u64,
    /// The parameters that its deltas are based on.
    pub parameters: ParametersId,
    /// When members stop training.
    pub deadline: Time,
    /// The deltas that may be pushed.
    pub assignments: Vec<OpenAssignment>,
}

/// A delta that may be pushed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenAssignment {
    /// By this member.
    pub member: WorkerId,
    /// For this assignment.
    pub assignment: AssignmentId,
    /// Encoded so.
    pub codec: Codec,
    /// The samples, in order. The server only keeps them, for a scheduler that restarts.
    pub entries: Vec<Entry>,
}

/// From the parameter server to the scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromServer {
    /// Where it is. Sent on start, and when asked.
    State(ServerState),
    /// It accepts the deltas of this `Open`.
    Opened {
        /// The round.
        round: u64,
        /// That of the `Open`.
        revision: u64,
    },
    /// A delta is part of the round.
    Accepted {
        /// The round.
        round: u64,
        /// The assignment.
        assignment: AssignmentId,
        /// Samples that went into the delta.
        samples: u64,
    },
    /// A delta is not part of the round.
    Rejected {
        /// The round.
        round: u64,
        /// The assignment.
        assignment: AssignmentId,
        /// What is wrong with it.
        reason: String,
    },
    /// The round has these deltas and gets no others.
    Frozen {
        /// The round.
        round: u64,
        /// The assignments, and the samples that went into each delta, in order of the assignments.
        accepted: Vec<(AssignmentId, u64)>,
    },
    /// The round is in the parameters, and in a checkpoint on disk.
    Committed {
        /// The round.
        round: u64,
        /// The parameters now.
        parameters: ParametersId,
    },
}

/// Where the parameter server is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerState {
    /// Its parameters.
    pub parameters: ParametersId,
    /// What was stored with their checkpoint; `None` before the first round.
    pub attachment: Option<Vec<u8>>,
    /// The open round.
    pub open: Option<OpenState>,
}

/// The open round of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenState {
    /// As it was opened.
    pub round: OpenRound,
    /// The deltas that it has, and the samples that went into each, in order of the assignments.
    pub accepted: Vec<(AssignmentId, u64)>,
    /// Whether it accepts no more.
    pub is_frozen: bool,
}
