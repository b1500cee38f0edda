//! A job as a client writes it, and its conversion into a [`JobPlan`].

use std::sync::Arc;

use hypha_engine::job::JobPlan;
use hypha_market::{GangRole, GangSpec, MAX_LEASE_TTL, MAX_MEMBERS, WINDOW_RANGE};
use hypha_model::amount::{FieldError, parse_count, parse_priority, parse_seconds};
use hypha_model::input_value::InputValue;
use hypha_model::{
    JobResources, Maximise, Money, Name, PriceRange, Requirement, ResourcesInput, Span, TaskSpec,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::caller::Caller;
use crate::error::Error;
use crate::tasks::form::{field_error, payload, timeout};

/// The largest input of a role. A thousand ended jobs are kept with theirs.
const MAX_INPUT_BYTES: usize = 1 << 20;

/// How long offers are collected by default: several round trips on any link.
const DEFAULT_WINDOW: Span = Span::from_millis(500);
/// The TTL of a member's lease by default: a scheduler that restarts has this long to find its members again.
const DEFAULT_LEASE_TTL: Span = Span::from_secs(60);
/// The shortest TTL: renewals come several times within it.
const MIN_LEASE_TTL: Span = Span::from_secs(1);
/// The price range where none is given: workers that ask for nothing.
const FREE: PriceRange = PriceRange { bid: Money::ZERO, max: Money::ZERO };

/// A job to be run.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewJob)]
pub(crate) struct JobForm<'a> {
    /// What it is called.
    #[serde(default)]
    #[schema(value_type = Option<String>, min_length = 1, max_length = 256, pattern = "^[!-~]+$")]
    name: Option<InputValue>,
    /// The workers that it needs.
    #[schema(value_type = Resources)]
    resources: ResourcesInput,
    /// What each worker runs.
    #[serde(borrow)]
    run: RunForm<'a>,
    /// What the parameter server runs.
    #[serde(borrow, default)]
    parameter_server_run: Option<RunForm<'a>>,
    /// Jobs with a higher priority go first. Any number.
    #[serde(default)]
    #[schema(value_type = Option<f64>)]
    priority: Option<InputValue>,
    /// Whether its workers may be taken back, with notice, for work of a higher priority or for their owner.
    #[serde(default)]
    preemptible: Option<bool>,
    /// What offers are ranked by: `speed`, `cost` or `balance`.
    #[serde(default)]
    #[schema(value_type = Option<String>, pattern = "^(speed|cost|balance)$")]
    maximise: Option<InputValue>,
    /// The most that an hour of all workers together may cost.
    #[serde(default)]
    #[schema(value_type = Option<f64>, minimum = 0.0, maximum = 1000000.0, multiple_of = 0.5)]
    budget_per_hour: Option<InputValue>,
    /// The TTL of each worker's lease, in seconds or with a unit.
    #[serde(default)]
    #[schema(value_type = Option<f64>, minimum = 1.0, maximum = 600.0, multiple_of = 0.5)]
    lease_ttl: Option<InputValue>,
    /// How long offers are collected, in milliseconds.
    #[serde(default)]
    #[schema(value_type = Option<u32>, minimum = 50, maximum = 30000)]
    window_ms: Option<InputValue>,
}

/// What a member runs.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = JobRun)]
pub(crate) struct RunForm<'a> {
    /// The model; only workers that serve it are considered.
    #[schema(value_type = String, example = "count", min_length = 1, max_length = 256, pattern = "^[!-~]+$")]
    model: InputValue,
    /// Any JSON; passed to the executor unchanged.
    #[serde(borrow, default)]
    #[schema(value_type = serde_json::Value)]
    input: Option<&'a RawValue>,
    /// How long it may take, in seconds or with a unit; a week by default.
    #[serde(default)]
    #[schema(value_type = Option<f64>, exclusive_minimum = 0.0, maximum = 315360000.0, multiple_of = 0.5)]
    timeout: Option<InputValue>,
}

/// The workers that a job needs.
#[derive(ToSchema)]
#[expect(dead_code, reason = "the schema of what the model reads")]
pub(crate) struct Resources {
    /// How many workers are wanted.
    #[schema(minimum = 1, maximum = 4095)]
    num_workers: u32,
    /// How many workers there must be; all of them by default.
    #[schema(minimum = 1, maximum = 1)]
    min_workers: Option<u32>,
    /// The requirements of each worker.
    #[schema(max_items = 1)]
    worker: Option<Vec<ResourceEntry>>,
    /// The requirements of the parameter server; without them there is none.
    #[schema(max_items = 1)]
    parameter_server: Option<Vec<ResourceEntry>>,
    /// What is paid for an hour of a worker; without it, only workers that ask for nothing are used.
    worker_price: Option<Price>,
    /// What is paid for an hour of the parameter server.
    parameter_server_price: Option<Price>,
}

/// The least amount of a resource; `{"kind": NAME}` instead requires an executor by its name.
#[derive(ToSchema)]
#[expect(dead_code, reason = "the schema of what the model reads")]
pub(crate) struct ResourceEntry {
    /// `GPU` (its memory), `CPU`, `Memory` or `Storage`.
    #[schema(pattern = "^(GPU|CPU|Memory|Storage)$")]
    r#type: String,
    /// In GB, or in cores.
    #[schema(minimum = 0.0, maximum = 100000.0, multiple_of = 0.5)]
    min: f64,
}

/// A price range.
#[derive(ToSchema)]
#[expect(dead_code, reason = "the schema of what the model reads")]
pub(crate) struct Price {
    /// The price that workers are shown.
    #[schema(minimum = 0.0, maximum = 100.0, multiple_of = 0.5)]
    bid: f64,
    /// The highest price that is paid. It never leaves the scheduler. At least the bid.
    #[schema(minimum = 100.0, maximum = 1000000.0, multiple_of = 0.5)]
    max: f64,
}

impl JobForm<'_> {
    /// The plan, on behalf of `caller`.
    pub(crate) fn into_plan(self, caller: &Caller) -> Result<JobPlan, Error> {
        let resources = JobResources::try_from(self.resources).map_err(field_errors)?;
        let has_server = resources.parameter_server.is_some();
        check_members(&resources)?;
        let priority = optional("priority", &self.priority, parse_priority)?.unwrap_or_default();
        caller.check_priority(priority)?;
        let worker = Part {
            role: Name::literal("worker"),
            count: resources.num_workers,
            minimum: resources.min_workers,
            requirement: resources.worker,
            price: resources.worker_price.unwrap_or(FREE),
        };
        let mut parts = vec![worker.with_run("run", self.run, caller)?];
        match (resources.parameter_server, self.parameter_server_run) {
            (Some(requirement), Some(run)) => {
                let server = Part {
                    role: Name::literal("parameter_server"),
                    count: 1,
                    minimum: 1,
                    requirement,
                    price: resources.parameter_server_price.unwrap_or(FREE),
                };
                parts.push(server.with_run("parameter_server_run", run, caller)?);
            }
            (Some(_), None) => {
                let problem = "parameter_server_run: say what the parameter server runs, \
                               or leave resources.parameter_server out";
                return Err(Error::unprocessable(problem));
            }
            (None, Some(_)) => {
                let problem = "resources.parameter_server: say what the parameter server needs \
                               (`[]` if nothing), or leave parameter_server_run out";
                return Err(Error::unprocessable(problem));
            }
            (None, None) => {}
        }
        if !has_server && resources.parameter_server_price.is_some() {
            let problem = "resources.parameter_server_price: there is no parameter server; \
                           leave it out";
            return Err(Error::unprocessable(problem));
        }
        let (roles, programs) = parts.into_iter().unzip();
        let budget = optional("budget_per_hour", &self.budget_per_hour, Money::parse)?;
        let window = optional("window_ms", &self.window_ms, |field, text| {
            parse_count(field, text, u32::MAX).map(|ms| Span::from_millis(ms.into()))
        })?;
        let lease_ttl = optional("lease_ttl", &self.lease_ttl, parse_seconds)?;
        let name = self.name.map(|name| name.as_name("name")).transpose();
        Ok(JobPlan {
            name: name.map_err(field_error)?,
            tenant: caller.tenant.clone(),
            gang: Arc::new(GangSpec {
                roles,
                priority,
                is_preemptible: self.preemptible.unwrap_or_default(),
                maximise: maximise(self.maximise.as_ref())?,
                budget,
                window: within("window_ms", window.unwrap_or(DEFAULT_WINDOW), WINDOW_RANGE)?,
                lease_ttl: within(
                    "lease_ttl",
                    lease_ttl.unwrap_or(DEFAULT_LEASE_TTL),
                    (MIN_LEASE_TTL, MAX_LEASE_TTL),
                )?,
            }),
            programs,
        })
    }
}

/// One role, before it is known what it runs.
struct Part {
    role: Name,
    count: u32,
    minimum: u32,
    requirement: Requirement,
    price: PriceRange,
}

impl Part {
    fn with_run(
        self,
        at: &str,
        run: RunForm<'_>,
        caller: &Caller,
    ) -> Result<(GangRole, Arc<TaskSpec>), Error> {
        let model = run.model.as_name(&format!("{at}.model")).map_err(field_error)?;
        let requirement = Requirement { model: Some(model), ..self.requirement };
        let limit = run.timeout.as_ref().map(|given| timeout(&format!("{at}.timeout"), given));
        let spec = TaskSpec {
            requirement: requirement.clone(),
            input: bounded(at, payload(&format!("{at}.input"), run.input)?)?,
            tenant: caller.tenant.clone(),
            timeout: limit.transpose()?,
            ..TaskSpec::default()
        };
        let role = GangRole {
            name: self.role,
            requirement: Arc::new(requirement),
            count: self.count,
            minimum: self.minimum,
            wants_all: false,
            bid: self.price.bid,
            max: self.price.max,
        };
        Ok((role, Arc::new(spec)))
    }
}

/// The parameter server is a member, too.
fn check_members(resources: &JobResources) -> Result<(), Error> {
    let server = u32::from(resources.parameter_server.is_some());
    if resources.num_workers.saturating_add(server) > MAX_MEMBERS {
        let most = MAX_MEMBERS - server;
        let problem = format!("is too large: the most is {most}, beside the parameter server");
        let error = FieldError::new("resources.num_workers", resources.num_workers, problem);
        return Err(field_error(error));
    }
    Ok(())
}

/// The input of a role is stored with its job, and sent to each member.
fn bounded(at: &str, input: hypha_model::Payload) -> Result<hypha_model::Payload, Error> {
    match input.bytes().len() <= MAX_INPUT_BYTES {
        true => Ok(input),
        false => Err(Error::unprocessable(format!(
            "{at}.input: it has {} bytes: give at most {MAX_INPUT_BYTES}",
            input.bytes().len()
        ))),
    }
}

fn maximise(given: Option<&InputValue>) -> Result<Maximise, Error> {
    match given.map(InputValue::as_str) {
        None | Some("balance") => Ok(Maximise::Balance),
        Some("speed") => Ok(Maximise::Speed),
        Some("cost") => Ok(Maximise::Cost),
        Some(other) => {
            let problem = "is unknown: use `speed`, `cost` or `balance`";
            Err(field_error(FieldError::new("maximise", other, problem)))
        }
    }
}

fn within(field: &str, given: Span, (least, most): (Span, Span)) -> Result<Span, Error> {
    if (least..=most).contains(&given) {
        return Ok(given);
    }
    let problem = format!("is out of range: give {least} to {most}");
    Err(field_error(FieldError::new(field, given, problem)))
}

fn optional<T>(
    field: &str,
    given: &Option<InputValue>,
    parse: impl Fn(&str, &str) -> Result<T, FieldError>,
) -> Result<Option<T>, Error> {
    given.as_ref().map(|given| parse(field, given.as_str())).transpose().map_err(field_error)
}

fn field_errors(errors: Vec<FieldError>) -> Error {
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    Error::unprocessable(errors.join("; "))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::json;

    fn plan(form: &Value) -> Result<JobPlan, (u16, String)> {
        let form = form.to_string();
        let form = json::parse_object::<JobForm>(form.as_bytes());
        form.and_then(|form| form.into_plan(&Caller::ANONYMOUS_ADMIN))
            .map_err(|error| (error.status.as_u16(), error.message))
    }

    fn whole() -> Value {
        json!({
            "name": "first",
            "resources": {
                "num_workers": 4,
                "min_workers": 2,
                "worker": [{"type": "GPU", "min": 10.0}, {"kind": "diloco-transformer"}],
                "parameter_server": [{"type": "CPU", "min": 4}, {"kind": "parameter-server"}],
                "worker_price": {"bid": 110.0, "max": 160.0},
                "parameter_server_price": {"bid": 80, "max": 120},
            },
            "run": {"model": "count", "input": {"to": 10, "every_ms": 100}},
            "parameter_server_run": {"model": "count", "input": {"to": 9, "every_ms": 1}},
            "priority": 3,
            "preemptible": true,
            "maximise": "cost",
            "budget_per_hour": 700,
            "lease_ttl": "30s",
            "window_ms": 200,
        })
    }

    #[test]
    fn a_job_is_understood() {
        let plan = plan(&whole()).unwrap();
        let [worker, server] = &plan.gang.roles[..] else { panic!("{plan:?}") };
        assert_eq!((worker.name.as_str(), worker.count, worker.minimum), ("worker", 4, 2));
        assert_eq!(
            (server.name.as_str(), server.count, server.minimum),
            ("parameter_server", 1, 1)
        );
        let prices = [worker.bid, worker.max, server.bid, server.max].map(Money::as_f64);
        assert_eq!(prices, [110.0, 160.0, 80.0, 120.0]);
        assert_eq!(worker.requirement.gpu_memory_bytes, 10_000_000_000);
        assert_eq!(server.requirement.cpu_milli, 4_000);
        let executors = [worker, server].map(|role| role.requirement.executor.clone().unwrap());
        assert_eq!(
            executors.map(|name| name.to_string()),
            ["diloco-transformer", "parameter-server"]
        );
        for (role, program) in plan.gang.roles.iter().zip(&plan.programs) {
            assert_eq!(program.requirement, *role.requirement);
            assert_eq!(program.requirement.model.as_ref().unwrap().as_str(), "count");
        }
        assert_eq!(plan.programs[1].input.bytes(), br#"{"every_ms":1,"to":9}"#);
        let gang = &plan.gang;
        assert_eq!((gang.is_preemptible, gang.maximise), (true, Maximise::Cost));
        assert_eq!(gang.budget.map(Money::as_f64), Some(700.0));
        assert_eq!((gang.lease_ttl, gang.window), (Span::from_secs(30), Span::from_millis(200)));
    }

    #[test]
    fn a_job_needs_little() {
        let plan = plan(&json!({"resources": {"num_workers": 2}, "run": {"model": "count"}}));
        let plan = plan.unwrap();
        let [role] = &plan.gang.roles[..] else { panic!("{plan:?}") };
        assert_eq!((role.count, role.minimum), (2, 2));
        assert_eq!((role.bid, role.max), (Money::ZERO, Money::ZERO));
        assert_eq!((plan.gang.window, plan.gang.lease_ttl), (DEFAULT_WINDOW, DEFAULT_LEASE_TTL));
    }

    #[test]
    fn refusals_name_the_field() {
        // A pointer into the job, what is put there (null removes it), and the beginning of the message.
        let cases = [
            ("/resources/num_workers", json!(0), "resources.num_workers: `0` is invalid"),
            ("/resources/num_workers", json!(4_096), "resources.num_workers: `4096` is too large"),
            ("/resources/num_workers", json!(4_097), "resources.num_workers: `4097` is too large"),
            ("/resources/num_workers", json!(1.5), "resources.num_workers: `1.5` is finer"),
            ("/resources/min_workers", json!(5), "resources.min_workers: `5` is more than"),
            ("/resources/worker/0/min", json!(-1), "resources.worker[0].min: `-1` is negative"),
            (
                "/resources/worker/0/min",
                json!("10 bananas"),
                "resources.worker[0].min: `10 bananas`",
            ),
            ("/resources/worker/0/type", json!("TPU"), "resources.worker[0].type: `TPU` is not"),
            ("/resources/worker/1/kind", json!(""), "resources.worker[1].kind: `` is refused"),
            (
                "/resources/worker_price/bid",
                json!(-1),
                "resources.worker_price.bid: `-1` is negative",
            ),
            ("/resources/worker_price/bid", json!("NaN"), "resources.worker_price.bid: `NaN`"),
            (
                "/resources/worker_price/bid",
                json!(161),
                "resources.worker_price.bid: `161` is more",
            ),
            ("/resources/parameter_server", Value::Null, "resources.parameter_server: say what"),
            ("/parameter_server_run", Value::Null, "parameter_server_run: say what"),
            ("/run", Value::Null, "missing field `run`"),
            ("/run/model", json!(7), "run.model: `7` is not a text"),
            ("/run/input", json!("x".repeat(1 << 20)), "run.input: it has 1048578 bytes: give at"),
            ("/parameter_server_run/timeout", json!(0), "parameter_server_run.timeout: `0`"),
            ("/priority", json!("high"), "priority: `high`"),
            ("/maximise", json!("profit"), "maximise: `profit` is unknown"),
            ("/budget_per_hour", json!(-7), "budget_per_hour: `-7` is negative"),
            ("/lease_ttl", json!(601), "lease_ttl: `601.00 s` is out of range"),
            ("/lease_ttl", json!("0s"), "lease_ttl: `0 s` is out of range"),
            ("/window_ms", json!(49), "window_ms: `49.0 ms` is out of range"),
            ("/window_ms", json!(30_001), "window_ms: "),
            ("/name", json!(" x"), "name: ` x` is refused"),
            ("/preemptible", json!("yes"), "invalid type"),
            ("/priorty", json!(1), "unknown field `priorty`"),
        ];
        for (pointer, value, expected) in cases {
            let mut form = whole();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            let parent = form.pointer_mut(parent).unwrap().as_object_mut().unwrap();
            match value.is_null() {
                true => drop(parent.remove(key)),
                false => drop(parent.insert(key.to_owned(), value.clone())),
            }
            let (status, said) = plan(&form).expect_err(pointer);
            assert_eq!(status, 422, "{pointer} = {value}: {said}");
            assert!(said.starts_with(expected), "{pointer} = {value}: {said}");
        }
    }
}
