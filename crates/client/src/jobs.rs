//! Jobs and the market, as the API shows them.

use std::fmt;

use hypha_model::{JobId, WorkerId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::download::StreamedBody;
use crate::error::ClientError;
use crate::events::Frames;
use crate::json::Json;
use crate::timestamp::Timestamp;

/// A job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    /// Its id.
    pub id: JobId,
    /// What it is called.
    #[serde(default)]
    pub name: Option<String>,
    /// Its state.
    pub status: JobState,
    /// When it was submitted.
    #[serde(default)]
    pub submitted_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default)]
    pub finished_at: Option<Timestamp>,
    /// Its roles.
    #[serde(default)]
    pub roles: Vec<JobRole>,
    /// Its members; none where many jobs are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<JobMember>,
    /// How many members were lost.
    #[serde(default)]
    pub lost: u32,
    /// Why it lacks workers, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When the next advert is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_advert_at: Option<Timestamp>,
    /// Why it failed.
    #[serde(default)]
    pub error: Option<String>,
    /// Further fields.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// It waits for its workers.
    Waiting,
    /// Its workers run.
    Running,
    /// All members have done their work.
    Completed,
    /// A member failed.
    Failed,
    /// A client or an operator cancelled it.
    Cancelled,
}

/// A role of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRole {
    /// Its name.
    pub name: String,
    /// How many members are wanted.
    pub count: u32,
    /// How many there must be.
    #[serde(default)]
    pub minimum: u32,
    /// How many there are.
    #[serde(default)]
    pub present: u32,
    /// How many have done their work.
    #[serde(default)]
    pub done: u32,
    /// What is offered for an hour of each.
    #[serde(default)]
    pub bid: f64,
    /// Further fields.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// A member of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobMember {
    /// Its role.
    pub role: String,
    /// Its worker.
    pub worker: WorkerId,
    /// The name in the worker's certificate.
    #[serde(default)]
    pub worker_name: Option<String>,
    /// `leased` or `running`.
    #[serde(default)]
    pub status: String,
    /// How far it is, from 0 to 1.
    #[serde(default)]
    pub progress: f64,
    /// What an hour costs.
    #[serde(default)]
    pub price: f64,
    /// Until when the scheduler relies on its lease.
    #[serde(default)]
    pub until: Option<Timestamp>,
    /// Further fields.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// Some jobs, the latest first.
#[derive(Clone, Debug, Deserialize)]
pub struct JobPage {
    /// The jobs, without their members.
    pub jobs: Vec<JobStatus>,
    /// The start of the next page; `None` if this was the last.
    #[serde(default)]
    pub next: Option<String>,
}

/// The market, as the scheduler sees it.
#[derive(Clone, Debug, Deserialize)]
pub struct Market {
    /// The incarnation of the scheduler: sequences begin again with each.
    #[serde(default)]
    pub epoch: u64,
    /// The sequence of the last event.
    #[serde(default)]
    pub sequence: u64,
    /// What happened, the oldest first.
    #[serde(default)]
    pub events: Vec<MarketEvent>,
    /// Further fields: `adverts` and `leases`.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// Something that happened on the market. Which fields there are depends on the event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MarketEvent {
    /// Grows by one with each event.
    pub sequence: u64,
    /// When.
    pub at: Timestamp,
    /// `advertised`, `offered`, `leased`, `lost`, `released`, `short`, or one that this client does not know.
    pub event: String,
    /// The job that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// The worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerId>,
    /// The name in the worker's certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_name: Option<String>,
    /// What is offered for an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bid: Option<f64>,
    /// What an hour costs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<f64>,
    /// How many workers are wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<u32>,
    /// How many workers were asked directly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<u32>,
    /// Whether all others were asked by gossip.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_gossiped: Option<bool>,
    /// Whether the offer counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<bool>,
    /// How many workers are missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<u32>,
    /// Whether the budget does not suffice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_over_budget: Option<bool>,
    /// Why the lease was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Further fields.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// What was paid for leases.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ledger {
    /// By organisation and worker.
    pub entries: Vec<LedgerEntry>,
}

/// What one organisation paid for one worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LedgerEntry {
    /// The organisation.
    pub organisation: String,
    /// The worker.
    pub worker: WorkerId,
    /// The name in the worker's certificate.
    #[serde(default)]
    pub worker_name: Option<String>,
    /// How many leases.
    pub leases: u64,
    /// How long they were held, as both sides have signed.
    pub held_seconds: f64,
    /// What that costs.
    pub amount: f64,
    /// How long they were held beyond that.
    #[serde(default)]
    pub unconfirmed_seconds: f64,
    /// What that would cost.
    #[serde(default)]
    pub unconfirmed_amount: f64,
    /// Further fields.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl JobStatus {
    /// Whether it will not change any more.
    pub fn has_ended(&self) -> bool {
        self.status.is_final()
    }
}

impl JobState {
    /// Whether the job will not change any more.
    pub const fn is_final(self) -> bool {
        matches!(self, JobState::Completed | JobState::Failed | JobState::Cancelled)
    }

    /// The name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            JobState::Waiting => "waiting",
            JobState::Running => "running",
            JobState::Completed => "completed",
            JobState::Failed => "failed",
            JobState::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The changes of a job, each with the whole job. Dropping it closes the connection and does not affect the job.
pub struct JobEvents {
    frames: Frames,
    ended: bool,
}

impl JobEvents {
    pub(crate) fn new(body: StreamedBody) -> JobEvents {
        JobEvents { frames: Frames::new(body), ended: false }
    }

    /// The job after its next change; `None` after the last. After an error no more come: [`crate::Scheduler::job`]
    /// returns its present state.
    pub async fn next(&mut self) -> Option<Result<JobStatus, ClientError>> {
        if self.ended {
            return None;
        }
        let next = self.receive().await;
        self.ended = next.as_ref().map_or(true, JobStatus::has_ended);
        Some(next)
    }

    async fn receive(&mut self) -> Result<JobStatus, ClientError> {
        loop {
            let frame = self.frames.next("the events ended before the job").await?;
            let data: Option<Json> = frame.data.parse().ok();
            // A kind of event that this client does not know may have other data.
            if let Some(job) = data.and_then(|data| data.read()) {
                return Ok(job);
            }
        }
    }
}
