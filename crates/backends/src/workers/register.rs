//! Registers workers: checks their health, determines what they serve, and saves their locations.

use std::collections::BTreeMap;
use std::sync::Arc;

use hypha_model::name::NameError;
use hypha_model::{Capacity, Executor, ExecutorClass, Money, Name, Payload, Worker, WorkerId};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use thiserror::Error;

use super::effects::WorkerBackEnd;
use super::file::{self, Location, SavedWorker};
use super::http_back_end::HttpBackEnd;
use super::instance::{self, InstanceBackEnd};
use super::{HttpWorkerEntry, HttpWorkers, MAX_WORKERS};
use crate::back_end::{BackEnd, BackEndSettings, BackEndSettingsError, Format};
use crate::transport::{HttpError, Origin, Target, lock};

/// The largest concurrency of a back end: more than any serves well.
const MAX_CONCURRENCY: u32 = 4_096;

/// A back end to register.
#[derive(Clone, Debug)]
pub struct NewBackEnd {
    /// Its settings. Their allowed networks are ignored.
    pub config: BackEndSettings,
    /// The models that it serves; if empty, they are requested from the back end, if its format permits it.
    pub models: Vec<Name>,
    /// How many requests it gets at once.
    pub concurrency: u32,
    /// Whether it is in the operator's configuration. Such a back end may be in any network, need not be healthy yet if
    /// its models are given, and is not saved, because it is in the configuration.
    pub trusted: bool,
}

/// Why a worker was not registered.
#[derive(Debug, Error)]
pub enum RegisterError {
    /// The request is invalid.
    #[error("{0}")]
    Invalid(String),
    /// It is outside of the networks in which clients may register workers.
    #[error("{0} is outside of the allowed networks")]
    NotAllowed(std::net::IpAddr),
    /// It is unreachable or unhealthy.
    #[error("{0}")]
    Unhealthy(String),
    /// There are too many workers.
    #[error("there are {MAX_WORKERS} HTTP workers already: remove one first")]
    TooMany,
    /// Its location cannot be saved.
    #[error("the worker could not be saved to the disk: {0}")]
    NotSaved(std::io::Error),
}

/// Loopback and the private ranges.
pub fn default_networks() -> Vec<IpNet> {
    let v4 = |a, b, bits| IpNet::from(Ipv4Net::new_assert([a, b, 0, 0].into(), bits));
    let v6 = |address: [u16; 8], bits| IpNet::from(Ipv6Net::new_assert(address.into(), bits));
    vec![
        v4(127, 0, 8),
        v4(10, 0, 8),
        v4(172, 16, 12),
        v4(192, 168, 16),
        v6([0, 0, 0, 0, 0, 0, 0, 1], 128),
        v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7),
    ]
}

impl HttpWorkers {
    /// Registers the task instance at `host` and `port`, if it is healthy. The same location is the same worker, also
    /// after a restart, and `localhost` is the same location as `127.0.0.1`. Its model is the one that it reports, which
    /// must be `model` if both are known.
    ///
    /// A task instance does not report its hardware, so its capacity is empty: tasks that require amounts of memory or
    /// GPUs go to workers that offer them.
    pub async fn register_instance(
        &self,
        host: &str,
        port: u16,
        model: Option<&Name>,
    ) -> Result<Arc<Worker>, RegisterError> {
        let target = Target::new(host, port, "/".to_owned())?;
        let origin = Origin::new(&target, Some(Arc::clone(&self.0.allowed)))?;
        let status = instance::probe(&origin, self.0.settings.health_timeout).await?;
        if let Some(problem) = status.problem() {
            return Err(RegisterError::Unhealthy(problem));
        }
        let model = instance_model(status.model.as_deref(), model)?;
        // It may be known by an id from before names of loopback were the same location.
        let id = self.instance_at(host, port).unwrap_or_else(|| {
            derived_id(&format!("task-instance {}", target.canonical_authority()))
        });
        let worker = worker(id, "task-instance", vec![model], status.replicas)?;
        let authority = target.authority();
        let location = Location::Instance { host: target.host, port };
        let back_end = self.back_end_at(&location)?;
        self.insert(worker, authority, Some(location), (back_end, None)).await
    }

    /// The task instance at `host` and `port`, if one was registered.
    pub fn instance_at(&self, host: &str, port: u16) -> Option<WorkerId> {
        let wanted = Target::new(host, port, "/".to_owned()).ok()?.canonical_authority();
        let is_there = |member: &HttpWorkerEntry| match &member.location {
            Some(location @ Location::Instance { .. }) => {
                location.target().is_ok_and(|target| target.canonical_authority() == wanted)
            }
            _ => false,
        };
        let members = lock(&self.0.members);
        members.iter().find(|(_, member)| is_there(member)).map(|(id, _)| *id)
    }

    /// Registers a back end, if it is healthy. The same address is the same worker, also after a restart.
    pub async fn register_back_end(&self, new: NewBackEnd) -> Result<Arc<Worker>, RegisterError> {
        let allowed = (!new.trusted).then(|| Arc::clone(&self.0.allowed));
        let config = BackEndSettings {
            allowed_networks: allowed,
            check_timeout: self.0.settings.health_timeout,
            ..new.config
        };
        let target = Target::parse(&config.url)?;
        let url =
            format!("http://{}{}", target.canonical_authority(), target.path.trim_end_matches('/'));
        let location = Location::Server {
            url: config.url.clone(),
            format: config.format,
            health_path: config.health_path.clone(),
        };
        let saved = (!new.trusted && config.api_key.is_none()).then_some(location);
        let format = config.format;
        let server = BackEnd::new(config)?;
        let models = match (new.models.is_empty(), format) {
            (false, _) => new.models,
            (true, Format::Openai) => server.models().await?,
            (true, Format::Json) => {
                return Err(RegisterError::Invalid(
                    "a back end of format json cannot list its models: name them".to_owned(),
                ));
            }
        };
        if models.is_empty() {
            return Err(RegisterError::Unhealthy("the back end lists no model".to_owned()));
        }
        let problem = match (server.health().await, new.trusted) {
            (Ok(()), _) => None,
            (Err(error), true) => Some(error.to_string()),
            (Err(error), false) => return Err(error.into()),
        };
        let id = derived_id(&format!("server {format:?} {}", url.trim_end_matches("/v1")));
        let worker = worker(id, "http", models, new.concurrency)?;
        let back_end = WorkerBackEnd::Http(HttpBackEnd(server));
        self.insert(worker, target.authority(), saved, (back_end, problem)).await
    }

    /// The back end at `location`.
    pub(super) fn back_end_at(&self, location: &Location) -> Result<WorkerBackEnd, RegisterError> {
        let inner = &self.0;
        match location {
            Location::Instance { .. } => {
                let target = location.target()?;
                let origin = Origin::new(&target, Some(Arc::clone(&inner.allowed)))?;
                let secrets = Arc::clone(&inner.secrets);
                let instance = InstanceBackEnd::new(origin, &inner.settings, secrets);
                Ok(WorkerBackEnd::Instance(instance))
            }
            Location::Server { url, format, health_path } => {
                let server = BackEnd::new(BackEndSettings {
                    health_path: health_path.clone(),
                    check_timeout: inner.settings.health_timeout,
                    max_response_bytes: inner.settings.max_response_bytes,
                    allowed_networks: Some(Arc::clone(&inner.allowed)),
                    ..BackEndSettings::new(url, *format)
                })?;
                Ok(WorkerBackEnd::Http(HttpBackEnd(server)))
            }
        }
    }

    /// Adds a worker, unless it is registered unchanged already, and saves it. `problem` is that of its back end.
    async fn insert(
        &self,
        worker: Worker,
        authority: String,
        location: Option<Location>,
        (back_end, problem): (WorkerBackEnd, Option<String>),
    ) -> Result<Arc<Worker>, RegisterError> {
        let (id, is_saved) = (worker.id, location.is_some());
        let worker = Arc::new(worker);
        let replaced = {
            let mut members = lock(&self.0.members);
            let is_new = !members.contains_key(&id);
            if is_new && members.len() >= MAX_WORKERS && !evict_removed(&mut members) {
                return Err(RegisterError::TooMany);
            }
            match members.get(&id) {
                // A back end whose key may have changed is always replaced; its tasks are retried.
                Some(known) if is_saved && known.worker == worker && known.location == location => {
                    return Ok(Arc::clone(&known.worker));
                }
                _ => {
                    let machine = self.start(Arc::clone(&worker), back_end, problem);
                    let worker = Arc::clone(&worker);
                    let member =
                        HttpWorkerEntry { worker, authority, location, machine, removed: false };
                    members.insert(id, member)
                }
            }
        };
        if let Some(old) = &replaced {
            old.machine.handler().close();
        }
        let needs_save = is_saved || replaced.as_ref().is_some_and(|old| old.location.is_some());
        if needs_save && let Err(error) = self.save().await {
            // A worker that is not on the disk is not acknowledged; one that was registered before stays.
            let is_new = replaced.is_none();
            if is_new && let Some(member) = lock(&self.0.members).remove(&id) {
                member.machine.handler().close();
            }
            return Err(RegisterError::NotSaved(error));
        }
        Ok(worker)
    }

    /// Writes the locations of the workers.
    pub(super) async fn save(&self) -> std::io::Result<()> {
        let _one_at_a_time = self.0.file.lock().await;
        let saved = |member: &HttpWorkerEntry| {
            let location = member.location.clone()?;
            Some(SavedWorker { worker: Worker::clone(&member.worker), location })
        };
        let rows: Vec<SavedWorker> = lock(&self.0.members).values().filter_map(saved).collect();
        let directory = self.0.settings.directory.clone();
        tokio::task::spawn_blocking(move || file::write(&directory, &rows))
            .await
            .map_err(std::io::Error::other)?
    }
}

/// The model of a task instance that reports `reported`, and is registered for `given`.
fn instance_model(reported: Option<&str>, given: Option<&Name>) -> Result<Name, RegisterError> {
    let invalid = |error: NameError| {
        RegisterError::Unhealthy(format!("the name of the task instance's model: {error}"))
    };
    let reported = reported.map(str::parse::<Name>).transpose().map_err(invalid)?;
    match (reported, given) {
        (Some(reported), Some(given)) if reported != *given => Err(RegisterError::Invalid(
            format!("the task instance serves `{reported}`, and not `{given}`"),
        )),
        (Some(model), _) => Ok(model),
        (None, Some(given)) => Ok(given.clone()),
        (None, None) => Err(RegisterError::Unhealthy(
            "the task instance does not report its model: give its model_name".to_owned(),
        )),
    }
}

/// Drops a removed worker, if there is one.
fn evict_removed(workers: &mut BTreeMap<WorkerId, HttpWorkerEntry>) -> bool {
    let removed = workers.iter().find(|(_, member)| member.removed).map(|(id, _)| *id);
    let Some(member) = removed.and_then(|id| workers.remove(&id)) else { return false };
    member.machine.handler().close();
    true
}

fn worker(
    id: WorkerId,
    name: &str,
    models: Vec<Name>,
    concurrency: u32,
) -> Result<Worker, RegisterError> {
    let name =
        name.parse().map_err(|error: NameError| RegisterError::Invalid(error.to_string()))?;
    let concurrency = concurrency.clamp(1, MAX_CONCURRENCY);
    let executor = Executor { class: ExecutorClass::Inference, name, models, concurrency };
    Ok(Worker {
        id,
        capacity: Capacity::default(),
        executors: vec![executor],
        hardware: None,
        region: None,
        price: Money::default(),
    })
}

/// The same text gives the same id on every machine and after every restart.
fn derived_id(text: &str) -> WorkerId {
    let digest = Payload::from(text.as_bytes()).digest();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest.as_bytes()[..16]);
    WorkerId::from_uuid(uuid::Builder::from_custom_bytes(bytes).into_uuid())
}

impl From<HttpError> for RegisterError {
    fn from(error: HttpError) -> RegisterError {
        match error {
            HttpError::Address(reason) => RegisterError::Invalid(reason),
            HttpError::NotAllowed(address) => RegisterError::NotAllowed(address),
            other => RegisterError::Unhealthy(other.to_string()),
        }
    }
}

impl From<BackEndSettingsError> for RegisterError {
    fn from(error: BackEndSettingsError) -> RegisterError {
        RegisterError::Invalid(error.to_string())
    }
}
