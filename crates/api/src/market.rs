//! `/api/v1/market`: adverts, leases and prices, and what was paid.

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::HeaderValue;
use axum::response::Response;
use axum::routing::get;
use hypha_engine::job::{AdvertView, MarketEvent, MarketEventKind};
use hypha_market::{LedgerSum, LossReason, ledger_csv};
use hypha_model::{AdvertId, JobId, LeaseId, Name, WorkerId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, OpenApi, ToSchema};

use crate::app_state::AppState;
use crate::caller::Caller;
use crate::error::Error;
use crate::params::{QueryFields, QueryParams};
use crate::response;
use crate::service::SchedulerApi;
use crate::timestamp::Timestamp;

/// Events in one response: as many as the scheduler keeps.
const MAX_EVENTS: usize = 1_024;
/// Leases in one response, at about two hundred bytes each.
const MAX_LEASES: usize = 10_000;

/// The routes.
pub(crate) fn routes() -> Router<AppState> {
    Router::new().route("/api/v1/market", get(show)).route("/api/v1/market/ledger", get(ledger))
}

/// The schemas of the routes.
pub(crate) fn openapi() -> utoipa::openapi::OpenApi {
    #[derive(OpenApi)]
    #[openapi(
        paths(show, ledger),
        tags((name = "market", description = "Adverts, offers, leases and prices"))
    )]
    struct Document;
    Document::openapi()
}

/// Which events are wanted.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct MarketParams {
    /// Only events after this one: `sequence` of the previous response.
    after: Option<u64>,
}

impl QueryFields for MarketParams {
    const EXPECTED: &'static [(&'static str, &'static str)] =
        &[("after", "`sequence` of the previous response")];
}

/// How the ledger is written.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct LedgerParams {
    /// `json`, or `csv` for a spreadsheet.
    #[param(value_type = Option<String>, pattern = "^(json|csv)$")]
    format: Option<LedgerFormat>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum LedgerFormat {
    #[default]
    Json,
    Csv,
}

impl QueryFields for LedgerParams {
    const EXPECTED: &'static [(&'static str, &'static str)] = &[("format", "json or csv")];
}

/// The market, as this scheduler sees it.
#[derive(Serialize, ToSchema)]
#[schema(as = Market)]
pub(crate) struct MarketBody {
    /// The incarnation of the scheduler: sequences begin again with each.
    epoch: u64,
    /// The sequence of the last event.
    sequence: u64,
    /// The adverts that are open.
    adverts: Vec<AdvertBody>,
    /// The leases of jobs.
    leases: Vec<LeaseBody>,
    /// Leases that are left out because there are too many.
    leases_left_off: usize,
    /// The events after `after`, the oldest first. Only the last thousand or so are kept.
    events: Vec<EventBody>,
}

/// An advert.
#[derive(Serialize, ToSchema)]
#[schema(as = MarketAdvert)]
pub(crate) struct AdvertBody {
    #[schema(value_type = String)]
    id: AdvertId,
    /// The job that it is for; null for the pool of workers for tasks.
    #[schema(value_type = Option<String>, required)]
    job: Option<JobId>,
    /// How many workers are wanted.
    wanted: u32,
    /// The highest bid of its roles.
    bid: f64,
    /// How many offers count so far.
    offers: u32,
}

/// A lease.
#[derive(Serialize, ToSchema)]
#[schema(as = MarketLease)]
pub(crate) struct LeaseBody {
    #[schema(value_type = String)]
    lease: LeaseId,
    #[schema(value_type = String)]
    job: JobId,
    #[schema(value_type = String)]
    role: Name,
    #[schema(value_type = String, format = "uuid")]
    worker: WorkerId,
    /// The name in the worker's certificate.
    #[schema(required)]
    worker_name: Option<String>,
    /// What an hour costs.
    price: f64,
    /// Until when the scheduler relies on it.
    #[schema(value_type = String, format = DateTime)]
    until: Timestamp,
}

/// Something that happened on the market.
#[derive(Serialize, ToSchema)]
#[schema(as = MarketEvent)]
pub(crate) struct EventBody {
    sequence: u64,
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    /// `advertised`, `offered`, `leased`, `lost`, `released` or `short`.
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    job: Option<JobId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    advert: Option<AdvertId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "uuid")]
    worker: Option<WorkerId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    lease: Option<LeaseId>,
    /// With `advertised`: the highest bid of its roles.
    #[serde(skip_serializing_if = "Option::is_none")]
    bid: Option<f64>,
    /// With `offered` and `leased`: what an hour costs.
    #[serde(skip_serializing_if = "Option::is_none")]
    price: Option<f64>,
    /// With `advertised`: how many workers are wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    wanted: Option<u32>,
    /// With `advertised`: to how many workers it went directly.
    #[serde(skip_serializing_if = "Option::is_none")]
    asked: Option<u32>,
    /// With `advertised`: whether it went to all others by gossip.
    #[serde(skip_serializing_if = "Option::is_none")]
    is_gossiped: Option<bool>,
    /// With `offered`: whether the offer counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    counts: Option<bool>,
    /// With `short`: how many workers the minimums lack.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<u32>,
    /// With `short`: whether the budget does not suffice.
    #[serde(skip_serializing_if = "Option::is_none")]
    is_over_budget: Option<bool>,
    /// With `lost`: `expired`, `unknown`, `left`, `refused` or `preempted`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    reason: Option<LossReason>,
}

/// What was paid.
#[derive(Serialize, ToSchema)]
#[schema(as = Ledger)]
pub(crate) struct LedgerBody {
    /// By organisation and worker.
    entries: Vec<LedgerEntry>,
}

/// What one organisation paid for one worker.
#[derive(Serialize, ToSchema)]
pub(crate) struct LedgerEntry {
    #[schema(value_type = String)]
    organisation: Name,
    #[schema(value_type = String, format = "uuid")]
    worker: WorkerId,
    /// The name in the worker's certificate.
    #[schema(required)]
    worker_name: Option<String>,
    /// How many leases.
    leases: u64,
    /// How long they were held, as both sides have signed.
    held_seconds: f64,
    /// What that costs.
    amount: f64,
    /// How long they were held beyond that.
    unconfirmed_seconds: f64,
    /// What that would cost.
    unconfirmed_amount: f64,
}

/// Open adverts, leases with their prices, and recent events. Administrators see all, others those of their own jobs.
#[utoipa::path(
    get, path = "/api/v1/market", tag = "market", params(MarketParams),
    responses((status = 200, description = "The market", body = MarketBody))
)]
async fn show(
    State(app): State<AppState>,
    caller: Caller,
    QueryParams(params): QueryParams<MarketParams>,
) -> Result<Response, Error> {
    let service = &*app.service;
    let (mut body, mut events, mut jobs) = (None, Vec::new(), Vec::new());
    service.read(&mut |scheduler, _| {
        let sequence = scheduler.market_sequence();
        // A sequence that is not reached yet is of an earlier incarnation.
        let after = params.after.filter(|after| *after <= sequence).unwrap_or_default();
        let may_see = |job: Option<JobId>| match job.and_then(|job| scheduler.job_tenant(job)) {
            Some(tenant) => caller.may_see_tenant(tenant),
            None => caller.require_admin().is_ok(),
        };
        events = scheduler.market_events(after, MAX_EVENTS);
        events.retain(|event| may_see(event.job));
        let adverts = scheduler.open_adverts().into_iter();
        jobs = scheduler.active_jobs().filter(|(job, _)| may_see(Some(*job))).collect();
        body = Some(MarketBody {
            epoch: scheduler.epoch().0,
            sequence,
            adverts: adverts.filter(|it| may_see(it.job)).map(AdvertBody::of).collect(),
            leases: Vec::new(),
            leases_left_off: 0,
            events: Vec::new(),
        });
    });
    let mut body = body.ok_or_else(Error::internal)?;
    body.events = events.into_iter().map(|event| EventBody::of(service, event)).collect();
    for (job, members) in jobs {
        if body.leases.len() + members > MAX_LEASES {
            body.leases_left_off += members;
            continue;
        }
        body.leases.extend(leases(service, job));
        tokio::task::yield_now().await;
    }
    Ok(response::json(StatusCode::OK, &body))
}

fn leases(service: &dyn SchedulerApi, job: JobId) -> Vec<LeaseBody> {
    let mut view = None;
    service.read(&mut |scheduler, _| view = scheduler.job(job));
    let members = view.map(|view| view.members).unwrap_or_default().into_iter();
    let lease = |member: hypha_engine::job::MemberView| LeaseBody {
        lease: member.lease,
        job,
        worker_name: service.worker_name(member.worker),
        worker: member.worker,
        price: member.price.as_f64(),
        until: Timestamp(member.until),
        role: member.role,
    };
    members.map(lease).collect()
}

/// What was paid for leases, by organisation and worker. What both sides have signed is apart from what they have not.
#[utoipa::path(
    get, path = "/api/v1/market/ledger", tag = "market", params(LedgerParams),
    responses((
        status = 200, description = "The ledger",
        content((LedgerBody = "application/json"), (String = "text/csv"))
    ))
)]
async fn ledger(
    State(app): State<AppState>,
    caller: Caller,
    QueryParams(params): QueryParams<LedgerParams>,
) -> Result<Response, Error> {
    caller.require_admin()?;
    let mut sums = None;
    app.service.read(&mut |scheduler, now| sums = Some(scheduler.ledger(now)));
    let named = |((organisation, worker), sum)| {
        let name = app.service.worker_name(worker);
        (organisation, worker, name, sum)
    };
    let rows: Vec<LedgerRow> = sums.unwrap_or_default().into_iter().map(named).collect();
    Ok(match params.format.unwrap_or_default() {
        LedgerFormat::Json => {
            let entries = rows.into_iter().map(LedgerEntry::of).collect();
            response::json(StatusCode::OK, &LedgerBody { entries })
        }
        LedgerFormat::Csv => {
            let text = ledger_csv(rows.iter().map(|(organisation, worker, name, sum)| {
                (organisation.as_str(), *worker, name.as_deref(), sum)
            }));
            let kind = HeaderValue::from_static("text/csv; charset=utf-8");
            response::with_type(StatusCode::OK, kind, Body::from(text))
        }
    })
}

/// A sum, with its worker's name.
type LedgerRow = (Name, WorkerId, Option<String>, LedgerSum);

impl LedgerEntry {
    fn of((organisation, worker, worker_name, sum): LedgerRow) -> LedgerEntry {
        LedgerEntry {
            organisation,
            worker,
            worker_name,
            leases: sum.leases,
            held_seconds: sum.held.as_secs_f64(),
            amount: sum.amount.as_f64(),
            unconfirmed_seconds: sum.unconfirmed_held.as_secs_f64(),
            unconfirmed_amount: sum.unconfirmed_amount.as_f64(),
        }
    }
}

impl AdvertBody {
    fn of(view: AdvertView) -> AdvertBody {
        let AdvertView { id, job, wanted, bid, offers } = view;
        AdvertBody { id, job, wanted, bid: bid.as_f64(), offers }
    }
}

impl EventBody {
    fn of(service: &dyn SchedulerApi, event: MarketEvent) -> EventBody {
        let mut body = EventBody::bare(&event);
        match event.kind {
            MarketEventKind::Advertised { advert, wanted, bid, asked, is_gossiped } => {
                (body.event, body.advert) = ("advertised", Some(advert));
                (body.wanted, body.bid) = (Some(wanted), Some(bid.as_f64()));
                (body.asked, body.is_gossiped) = (Some(asked), Some(is_gossiped));
            }
            MarketEventKind::Offered { worker, price, counts } => {
                (body.event, body.worker) = ("offered", Some(worker));
                (body.price, body.counts) = (Some(price.as_f64()), Some(counts));
            }
            MarketEventKind::Leased { worker, lease, price } => {
                (body.event, body.worker) = ("leased", Some(worker));
                (body.lease, body.price) = (Some(lease), Some(price.as_f64()));
            }
            MarketEventKind::Lost { worker, lease, reason } => {
                (body.event, body.worker) = ("lost", Some(worker));
                (body.lease, body.reason) = (Some(lease), Some(reason));
            }
            MarketEventKind::Released { worker, lease } => {
                (body.event, body.worker, body.lease) = ("released", Some(worker), Some(lease));
            }
            MarketEventKind::Short { missing, is_over_budget } => {
                (body.event, body.missing) = ("short", Some(missing));
                body.is_over_budget = Some(is_over_budget);
            }
        }
        body.worker_name = body.worker.and_then(|worker| service.worker_name(worker));
        body
    }

    fn bare(event: &MarketEvent) -> EventBody {
        EventBody {
            sequence: event.sequence,
            at: Timestamp(event.at),
            event: "",
            job: event.job,
            advert: None,
            worker: None,
            worker_name: None,
            lease: None,
            bid: None,
            price: None,
            wanted: None,
            asked: None,
            is_gossiped: None,
            counts: None,
            missing: None,
            is_over_budget: None,
            reason: None,
        }
    }
}
