//! Jobs: gangs of workers, each of which runs a part of it. What users submit, what is durable, and views.

use std::collections::BTreeMap;
use std::sync::Arc;

use hypha_machine::{RowChange, RowRecord, Rows};
use hypha_market::{
    GangSpec, LeaseAccount, LedgerSum, LossReason, Portion, Shortfall, StoredMember,
};
use hypha_model::{
    AdvertId, AttemptId, Fence, JobId, LeaseId, Money, Name, TaskError, TaskSpec, Time, WorkerId,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// A job: a gang, and what each of its roles runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobPlan {
    /// What it is called.
    pub name: Option<Name>,
    /// On whose behalf.
    pub tenant: Option<Name>,
    /// The workers that it needs.
    pub gang: Arc<GangSpec>,
    /// For each role of the gang, what its members run.
    pub programs: Vec<Arc<TaskSpec>>,
}

/// A job as it was accepted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AcceptedJob {
    /// Its id.
    pub id: JobId,
    /// What is requested.
    pub plan: Arc<JobPlan>,
    /// When.
    pub submitted: Time,
}

/// A member of a job's gang, and its run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredRun {
    /// The member, with its lease.
    pub member: StoredMember,
    /// The run, as the worker knows it.
    pub attempt: AttemptId,
    /// Its token.
    pub fence: Fence,
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

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndedJob {
    /// The job.
    pub job: JobId,
    /// Completed, failed or cancelled.
    pub state: JobState,
    /// When.
    pub finished: Time,
    /// What went wrong, if it failed.
    pub error: Option<TaskError>,
    /// How many members were lost and replaced.
    pub lost: u32,
    /// For each role, how many members had done their work.
    #[serde(default)]
    pub done: Vec<u32>,
}

/// What is made durable of jobs. Stored as rows.
#[derive(Clone, Debug, PartialEq)]
pub enum JobRecord {
    /// A job was accepted.
    Accepted(Arc<AcceptedJob>),
    /// A member was leased, and is about to run its part.
    MemberJoined {
        /// The job.
        job: JobId,
        /// The member.
        run: Arc<StoredRun>,
    },
    /// A member is gone.
    MemberLeft {
        /// The job.
        job: JobId,
        /// The lease that it had.
        lease: LeaseId,
        /// For each role, how many members have done their work.
        done: Vec<u32>,
    },
    /// The gang of the job is formed, and its members begin.
    Formed(JobId),
    /// The job has ended.
    Ended(Arc<EndedJob>),
    /// A job that ended long ago is deleted.
    Forgotten(JobId),
    /// A worker was leased for the pool.
    PoolJoined(Box<StoredMember>),
    /// A worker is no longer in the pool.
    PoolLeft(WorkerId),
    /// The account of a lease has changed.
    Account {
        /// The lease.
        lease: LeaseId,
        /// Its account.
        account: Box<LeaseAccount>,
    },
    /// The account of a lease is replaced by the sum of its worker's.
    Settled {
        /// The lease.
        lease: LeaseId,
        /// The worker.
        worker: WorkerId,
        /// The sum of the worker's settled leases.
        sum: LedgerSum,
    },
}

/// A job with all that is durable of it.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredJob {
    /// As it was accepted.
    pub accepted: Arc<AcceptedJob>,
    /// Its members.
    pub runs: BTreeMap<LeaseId, Arc<StoredRun>>,
    /// For each role, how many members have done their work.
    pub done: Vec<u32>,
    /// Whether its gang was formed.
    pub is_formed: bool,
    /// How it ended, if it has.
    pub ended: Option<Arc<EndedJob>>,
}

/// A view of a job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobView {
    /// Its id.
    pub id: JobId,
    /// What it is called.
    pub name: Option<Name>,
    /// On whose behalf.
    pub tenant: Option<Name>,
    /// Its state.
    pub state: JobState,
    /// When it was submitted.
    pub submitted: Time,
    /// When it ended.
    pub finished: Option<Time>,
    /// What went wrong, if it failed.
    pub error: Option<TaskError>,
    /// How many members were lost and replaced.
    pub lost: u32,
    /// Its roles.
    pub roles: Vec<RoleView>,
    /// Its members.
    pub members: Vec<MemberView>,
    /// Why it waits for workers, if it does.
    pub shortfall: Option<Shortfall>,
    /// The advert that is open.
    pub advert: Option<AdvertId>,
    /// When the next advert is sent.
    pub next_advert: Option<Time>,
}

/// A view of a role of a job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RoleView {
    /// Its name.
    pub name: Name,
    /// How many members are wanted.
    pub count: u32,
    /// How many there must be.
    pub minimum: u32,
    /// How many have done their work.
    pub done: u32,
    /// The price that is offered for an hour of each.
    pub bid: Money,
}

/// A view of a member of a job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemberView {
    /// Its role.
    pub role: Name,
    /// Its worker.
    pub worker: WorkerId,
    /// Its lease.
    pub lease: LeaseId,
    /// Until when the scheduler relies on it.
    pub until: Time,
    /// What an hour costs.
    pub price: Money,
    /// What the lease covers.
    pub portion: Portion,
    /// Since when.
    pub joined: Time,
    /// Whether its run has begun.
    pub is_running: bool,
    /// How far it is, in thousandths.
    pub progress_permille: u16,
}

/// A view of an advert that is open.
#[derive(Clone, Debug, PartialEq)]
pub struct AdvertView {
    /// The advert.
    pub id: AdvertId,
    /// The job that it is for; `None` for the pool.
    pub job: Option<JobId>,
    /// How many members are wanted.
    pub wanted: u32,
    /// The highest bid of its roles.
    pub bid: Money,
    /// How many offers count so far.
    pub offers: u32,
}

/// What happened on the market, for those who watch it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MarketEvent {
    /// Grows by one with each event.
    pub sequence: u64,
    /// When.
    pub at: Time,
    /// For which job; `None` for the pool.
    pub job: Option<JobId>,
    /// What.
    #[serde(flatten)]
    pub kind: MarketEventKind,
}

/// The kinds of [`MarketEvent`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum MarketEventKind {
    /// An advert was sent.
    Advertised {
        /// The advert.
        advert: AdvertId,
        /// How many workers are wanted.
        wanted: u32,
        /// The highest bid of its roles.
        bid: Money,
        /// To how many workers it went directly.
        asked: u32,
        /// Whether it went to all others by gossip.
        is_gossiped: bool,
    },
    /// An offer arrived.
    Offered {
        /// The worker.
        worker: WorkerId,
        /// The lowest price of its roles.
        price: Money,
        /// Whether it counts.
        counts: bool,
    },
    /// A lease was granted.
    Leased {
        /// The worker.
        worker: WorkerId,
        /// The lease.
        lease: LeaseId,
        /// What an hour costs.
        price: Money,
    },
    /// A lease was lost.
    Lost {
        /// The worker.
        worker: WorkerId,
        /// The lease.
        lease: LeaseId,
        /// Why.
        reason: LossReason,
    },
    /// A lease was released.
    Released {
        /// The worker.
        worker: WorkerId,
        /// The lease.
        lease: LeaseId,
    },
    /// An advert brought too little.
    Short {
        /// How many members the minimums lack.
        missing: u32,
        /// Whether the budget does not suffice.
        is_over_budget: bool,
    },
}

impl JobState {
    /// Whether the job will not change any more.
    pub const fn is_final(self) -> bool {
        matches!(self, JobState::Completed | JobState::Failed | JobState::Cancelled)
    }
}

impl RowRecord for JobRecord {
    fn add_changes(&self, changes: &mut Vec<RowChange>) {
        let mut put = |key: String, value: Option<Vec<u8>>| {
            changes.push(RowChange { key: key.into_bytes(), value });
        };
        match self {
            JobRecord::Accepted(accepted) => put(accepted_key(accepted.id), json(&**accepted)),
            JobRecord::MemberJoined { job, run } => {
                put(member_key(*job, run.member.lease), json(&**run));
            }
            JobRecord::MemberLeft { job, lease, done } => {
                put(member_key(*job, *lease), None);
                put(done_key(*job), json(done));
            }
            JobRecord::Formed(job) => put(formed_key(*job), json(&true)),
            JobRecord::Ended(ended) => put(ended_key(ended.job), json(&**ended)),
            JobRecord::Forgotten(job) => {
                put(accepted_key(*job), None);
                put(done_key(*job), None);
                put(formed_key(*job), None);
                put(ended_key(*job), None);
            }
            JobRecord::PoolJoined(member) => put(pool_key(member.worker), json(&**member)),
            JobRecord::PoolLeft(worker) => put(pool_key(*worker), None),
            JobRecord::Account { lease, account } => put(account_key(*lease), json(&**account)),
            JobRecord::Settled { lease, worker, sum } => {
                put(account_key(*lease), None);
                put(settled_key(*worker), json(sum));
            }
        }
    }
}

/// The jobs that rows add up to. A row that cannot be read, which an older version never wrote, is left out.
pub fn jobs_of(rows: &Rows) -> BTreeMap<JobId, StoredJob> {
    let mut jobs = BTreeMap::new();
    for (key, value) in &rows.0 {
        let Some((kind, rest)) = std::str::from_utf8(key).ok().and_then(|key| key.split_once('/'))
        else {
            continue;
        };
        let (job, _) = rest.split_once('/').unwrap_or((rest, ""));
        let Ok(job) = job.parse::<JobId>() else { continue };
        // Keys sort by kind: `accepted` comes first.
        match kind {
            ACCEPTED => {
                if let Some(accepted) = read::<AcceptedJob>(value) {
                    let done = vec![0; accepted.plan.gang.roles.len()];
                    let accepted = Arc::new(accepted);
                    let (runs, is_formed, ended) = (BTreeMap::new(), false, None);
                    jobs.insert(job, StoredJob { accepted, runs, done, is_formed, ended });
                }
            }
            DONE => set(&mut jobs, job, read(value), |job, done| job.done = done),
            FORMED => set(&mut jobs, job, read(value), |job, is_formed| job.is_formed = is_formed),
            ENDED => set(&mut jobs, job, read(value), |job, end| job.ended = Some(Arc::new(end))),
            MEMBER => set(&mut jobs, job, read::<StoredRun>(value), |job, run| {
                job.runs.insert(run.member.lease, Arc::new(run));
            }),
            _ => {}
        }
    }
    jobs
}

/// The accounts of leases that rows add up to, and the sums of those that are settled.
pub fn accounts_of(
    rows: &Rows,
) -> (BTreeMap<LeaseId, LeaseAccount>, BTreeMap<WorkerId, LedgerSum>) {
    let (mut accounts, mut settled) = (BTreeMap::new(), BTreeMap::new());
    for (key, value) in &rows.0 {
        let Some((kind, id)) = std::str::from_utf8(key).ok().and_then(|key| key.split_once('/'))
        else {
            continue;
        };
        if kind == ACCOUNT
            && let (Ok(lease), Some(account)) = (id.parse(), read(value))
        {
            accounts.insert(lease, account);
        } else if kind == SETTLED
            && let (Ok(worker), Some(sum)) = (id.parse(), read(value))
        {
            settled.insert(worker, sum);
        }
    }
    (accounts, settled)
}

/// The members of the pool that rows add up to.
pub fn pool_of(rows: &Rows) -> Vec<StoredMember> {
    let from = format!("{POOL}/").into_bytes();
    let rows = rows.0.range(from.clone()..).take_while(|(key, _)| key.starts_with(&from));
    rows.filter_map(|(_, value)| read(value)).collect()
}

const ACCEPTED: &str = "accepted";
const POOL: &str = "pool";
const ACCOUNT: &str = "account";
const SETTLED: &str = "settled";
const DONE: &str = "done";
const ENDED: &str = "ended";
const FORMED: &str = "formed";
const MEMBER: &str = "member";

fn accepted_key(job: JobId) -> String {
    format!("{ACCEPTED}/{job}")
}

fn account_key(lease: LeaseId) -> String {
    format!("{ACCOUNT}/{lease}")
}

fn pool_key(worker: WorkerId) -> String {
    format!("{POOL}/{worker}")
}

fn settled_key(worker: WorkerId) -> String {
    format!("{SETTLED}/{worker}")
}

fn done_key(job: JobId) -> String {
    format!("{DONE}/{job}")
}

fn ended_key(job: JobId) -> String {
    format!("{ENDED}/{job}")
}

fn formed_key(job: JobId) -> String {
    format!("{FORMED}/{job}")
}

fn member_key(job: JobId, lease: LeaseId) -> String {
    format!("{MEMBER}/{job}/{lease}")
}

/// These types always serialise; if one did not, its row would be removed, and the conformance suite would notice.
fn json<T: Serialize>(value: &T) -> Option<Vec<u8>> {
    serde_json::to_vec(value).ok()
}

fn read<T: DeserializeOwned>(value: &[u8]) -> Option<T> {
    serde_json::from_slice(value).ok()
}

fn set<T>(
    jobs: &mut BTreeMap<JobId, StoredJob>,
    job: JobId,
    value: Option<T>,
    apply: impl FnOnce(&mut StoredJob, T),
) {
    if let (Some(job), Some(value)) = (jobs.get_mut(&job), value) {
        apply(job, value);
    }
}
