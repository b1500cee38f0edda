//! A job as the API shows it. The highest price that it pays is in none of it.

use hypha_engine::job::{JobState, JobView, MemberView, RoleView};
use hypha_model::{AdvertId, FailureKind, JobId, LeaseId, Name, WorkerId};
use serde::Serialize;
use utoipa::ToSchema;

use super::reason;
use crate::service::SchedulerApi;
use crate::timestamp::Timestamp;

/// A job.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Job)]
pub(crate) struct JobBody {
    /// Its id, `job-` and a UUID.
    #[schema(value_type = String, example = "job-018bcfe5-6800-7000-8000-000000000000")]
    pub(crate) id: JobId,
    /// What it is called.
    #[schema(value_type = Option<String>, required)]
    name: Option<Name>,
    /// `waiting`, `running`, `completed`, `failed` or `cancelled`.
    #[schema(value_type = String, example = "running")]
    pub(crate) status: JobState,
    /// When it was submitted.
    #[schema(value_type = String, format = DateTime)]
    submitted_at: Timestamp,
    /// When it ended.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    finished_at: Option<Timestamp>,
    /// Its roles.
    roles: Vec<RoleBody>,
    /// Its members; left out where many jobs are listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    members: Option<Vec<MemberBody>>,
    /// How many members were lost; each was replaced, or is advertised for.
    lost: u32,
    /// Why it lacks workers, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// What its last advert lacked, for each role.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    shortfall: Vec<ShortfallBody>,
    /// The advert that is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    advert: Option<AdvertId>,
    /// When the next advert is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    next_advert_at: Option<Timestamp>,
    /// Why it failed.
    #[schema(required)]
    error: Option<String>,
    /// The kind of failure, for programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    error_kind: Option<FailureKind>,
    /// The tenant on whose behalf it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    tenant: Option<Name>,
}

/// A role of a job.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = JobRole)]
pub(crate) struct RoleBody {
    /// `worker` or `parameter_server`.
    #[schema(value_type = String)]
    name: Name,
    /// How many members are wanted.
    count: u32,
    /// How many there must be.
    minimum: u32,
    /// How many there are.
    present: u32,
    /// How many have done their work.
    done: u32,
    /// What is offered for an hour of each.
    bid: f64,
}

/// A member of a job.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = JobMember)]
pub(crate) struct MemberBody {
    /// Its role.
    #[schema(value_type = String)]
    role: Name,
    /// Its worker.
    #[schema(value_type = String, format = "uuid")]
    worker: WorkerId,
    /// The name in the worker's certificate.
    #[schema(required)]
    worker_name: Option<String>,
    /// `leased`, or `running` once its part has begun.
    status: &'static str,
    /// How far its part is, from 0 to 1.
    progress: f64,
    /// What an hour costs.
    price: f64,
    /// Its lease.
    #[schema(value_type = String)]
    lease: LeaseId,
    /// Until when the scheduler relies on the lease; it is renewed well before.
    #[schema(value_type = String, format = DateTime)]
    until: Timestamp,
    /// Since when it has the lease.
    #[schema(value_type = String, format = DateTime)]
    joined_at: Timestamp,
}

/// What an advert lacked for a role.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = JobShortfall)]
pub(crate) struct ShortfallBody {
    #[schema(value_type = String)]
    role: Name,
    /// How many members the offers sufficed for.
    present: u32,
    /// How many its minimum lacks.
    missing: u32,
    /// Offers that did not count, by reason: `invalid`, `too_expensive`, `late`, `too_many`, `expired`.
    #[schema(value_type = Object)]
    not_counted: hypha_market::NotCountedBy,
}

impl JobBody {
    /// All of a job.
    pub(crate) fn whole(service: &dyn SchedulerApi, view: JobView) -> JobBody {
        let members = view.members.iter().map(|member| MemberBody::of(service, member)).collect();
        JobBody { members: Some(members), ..JobBody::summary(view) }
    }

    /// The same without the members.
    pub(crate) fn summary(view: JobView) -> JobBody {
        let reason = match (&view.shortfall, view.state) {
            (Some(shortfall), _) => Some(reason::describe(shortfall)),
            (None, JobState::Waiting) => Some("offers are being collected".to_owned()),
            (None, _) => None,
        };
        let shortfall = view.shortfall.iter().flat_map(|shortfall| &shortfall.roles);
        let shortfall = shortfall.map(|role| ShortfallBody {
            role: role.role.clone(),
            present: role.present,
            missing: role.missing,
            not_counted: role.not_counted.clone(),
        });
        let (error, error_kind) = match view.error {
            Some(error) => (Some(error.message.to_string()), Some(error.kind)),
            None => (None, None),
        };
        JobBody {
            id: view.id,
            status: view.state,
            submitted_at: Timestamp(view.submitted),
            finished_at: view.finished.map(Timestamp),
            roles: view.roles.iter().map(|role| RoleBody::of(role, &view.members)).collect(),
            members: None,
            lost: view.lost,
            reason,
            shortfall: shortfall.collect(),
            advert: view.advert,
            next_advert_at: view.next_advert.map(Timestamp),
            error,
            error_kind,
            name: view.name,
            tenant: view.tenant,
        }
    }
}

impl RoleBody {
    fn of(role: &RoleView, members: &[MemberView]) -> RoleBody {
        let present = members.iter().filter(|member| member.role == role.name).count();
        RoleBody {
            name: role.name.clone(),
            count: role.count,
            minimum: role.minimum,
            present: present as u32,
            done: role.done,
            bid: role.bid.as_f64(),
        }
    }
}

impl MemberBody {
    fn of(service: &dyn SchedulerApi, member: &MemberView) -> MemberBody {
        MemberBody {
            role: member.role.clone(),
            worker: member.worker,
            worker_name: service.worker_name(member.worker),
            status: if member.is_running { "running" } else { "leased" },
            progress: f64::from(member.progress_permille) / 1_000.0,
            price: member.price.as_f64(),
            lease: member.lease,
            until: Timestamp(member.until),
            joined_at: Timestamp(member.joined),
        }
    }
}
