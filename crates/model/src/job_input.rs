//! `[scheduler.job]` as users write it, and its conversion to a [`JobSpec`]; its `resources` alone become
//! [`JobResources`]. All problems are reported at once.

mod training;

use serde::Deserialize;

use self::training::{CheckpointInput, GptInput, RateScheduleInput, TrainingInput, WarmStartInput};
use crate::amount::{FieldError, parse_count, parse_gigabytes, parse_milli};
use crate::executor::ExecutorClass;
use crate::input_value::InputValue;
use crate::job::{
    AdamW, JobResources, JobSpec, ModelSource, ModelType, Nesterov, PriceRange, Secret, Source,
};
use crate::money::Money;
use crate::name::Name;
use crate::requirement::Requirement;

/// More workers than a round can wait for, and as many as one advert calls for.
pub const MAX_WORKERS: u32 = 4_096;
/// The largest models come in a few hundred files.
pub const MAX_FILENAMES: usize = 4_096;
/// As many as there are resources, and room to report a mistake.
pub const MAX_RESOURCE_ENTRIES: usize = 16;

/// A training job.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobInput {
    model: ModelInput,
    preprocessor: Option<SourceInput>,
    dataset: DatasetInput,
    inner_optimizer: AdamWInput,
    outer_optimizer: NesterovInput,
    resources: ResourcesInput,
    rounds: Option<InputValue>,
    samples: Option<InputValue>,
    epochs: Option<InputValue>,
    round_time: Option<InputValue>,
    samples_per_round: Option<InputValue>,
    batch_size: Option<InputValue>,
    codec: Option<InputValue>,
    quorum: Option<InputValue>,
    collection_timeout: Option<InputValue>,
    warm_start: Option<WarmStartInput>,
    checkpoint: Option<CheckpointInput>,
    export: Option<InputValue>,
    seed: Option<InputValue>,
    fixed_steps: Option<InputValue>,
}

// Not flattened from `SourceInput`: serde cannot deny unknown fields through `flatten`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelInput {
    repository: Option<InputValue>,
    revision: Option<InputValue>,
    #[serde(default)]
    filenames: Vec<InputValue>,
    token: Option<Secret>,
    r#type: InputValue,
    gpt: Option<GptInput>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct SourceInput {
    repository: InputValue,
    revision: Option<InputValue>,
    filenames: Vec<InputValue>,
    token: Option<Secret>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct DatasetInput {
    dataset: InputValue,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct AdamWInput {
    learning_rate: InputValue,
    betas: Option<Vec<InputValue>>,
    epsilon: Option<InputValue>,
    weight_decay: Option<InputValue>,
    schedule: Option<RateScheduleInput>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct NesterovInput {
    learning_rate: InputValue,
    momentum: InputValue,
}

/// The workers that a job needs, apart from what they run.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object of resources")]
pub struct ResourcesInput {
    num_workers: InputValue,
    min_workers: Option<InputValue>,
    #[serde(default)]
    worker: Vec<ResourceEntryInput>,
    parameter_server: Option<Vec<ResourceEntryInput>>,
    worker_price: Option<PriceInput>,
    parameter_server_price: Option<PriceInput>,
}

/// `{ type, min }` or `{ kind }`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct ResourceEntryInput {
    r#type: Option<InputValue>,
    min: Option<InputValue>,
    kind: Option<InputValue>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct PriceInput {
    bid: InputValue,
    max: InputValue,
}

impl TryFrom<JobInput> for JobSpec {
    type Error = Vec<FieldError>;

    fn try_from(input: JobInput) -> Result<JobSpec, Vec<FieldError>> {
        let mut problems = Problems::default();
        let spec = problems.job(input);
        match spec {
            Some(spec) if problems.0.is_empty() => Ok(spec),
            _ => Err(problems.0),
        }
    }
}

impl TryFrom<ResourcesInput> for JobResources {
    type Error = Vec<FieldError>;

    fn try_from(input: ResourcesInput) -> Result<JobResources, Vec<FieldError>> {
        let mut problems = Problems::default();
        let resources = problems.resources(&input);
        match resources {
            Some(resources) if problems.0.is_empty() => Ok(resources),
            _ => Err(problems.0),
        }
    }
}

/// All problems found so far. Each method reads one part; `None` means that the part has a problem.
#[derive(Default)]
struct Problems(Vec<FieldError>);

impl Problems {
    fn job(&mut self, input: JobInput) -> Option<JobSpec> {
        // Every part is read before the first `?`, so that every part's problems are found.
        let model_type = self.note(model_type(&input.model.r#type));
        let model = self.model(input.model);
        let preprocessor = input.preprocessor.map(|input| self.source("preprocessor", input));
        let dataset = self.note(input.dataset.dataset.as_name("dataset.dataset"));
        let inner_optimizer = self.adamw(&input.inner_optimizer);
        let outer_optimizer = self.nesterov(&input.outer_optimizer);
        let resources = self.resources(&input.resources);
        let training = self.training(&TrainingInput {
            rounds: input.rounds,
            samples: input.samples,
            epochs: input.epochs,
            round_time: input.round_time,
            samples_per_round: input.samples_per_round,
            batch_size: input.batch_size,
            codec: input.codec,
            quorum: input.quorum,
            collection_timeout: input.collection_timeout,
            warm_start: input.warm_start,
            checkpoint: input.checkpoint,
            export: input.export,
            seed: input.seed,
            fixed_steps: input.fixed_steps,
        });
        Some(JobSpec {
            model: model?,
            model_type: model_type?,
            preprocessor: preprocessor.flatten(),
            dataset: dataset?,
            inner_optimizer: inner_optimizer?,
            outer_optimizer: outer_optimizer?,
            resources: resources.map(|resources| JobResources {
                // Training has one in any case.
                parameter_server: Some(resources.parameter_server.unwrap_or(Requirement {
                    class: ExecutorClass::Aggregate,
                    ..Requirement::default()
                })),
                ..resources
            })?,
            training: training?,
        })
    }

    /// The files of a repository, or the size of a new model for the native trainer.
    fn model(&mut self, input: ModelInput) -> Option<ModelSource> {
        let ModelInput { repository, revision, filenames, token, r#type, gpt } = input;
        match (repository, gpt) {
            (Some(repository), None) => {
                let source = SourceInput { repository, revision, filenames, token };
                self.source("model", source).map(ModelSource::Repository)
            }
            (None, Some(gpt)) => {
                if r#type.as_str() != "causal-lm" {
                    let problem = "is not the type of a GPT: use `causal-lm`";
                    self.0.push(FieldError::new("model.type", &r#type, problem));
                }
                if revision.is_some() || !filenames.is_empty() || token.is_some() {
                    let problem = "is a model of its own: leave out revision, filenames and token";
                    self.0.push(FieldError::new("model.gpt", "gpt", problem));
                }
                self.gpt(&gpt).map(ModelSource::Gpt)
            }
            (repository, _) => {
                let given = repository.map_or("nothing".to_owned(), |given| given.to_string());
                let problem = "was given: give either `model.repository` or `[model.gpt]`";
                self.0.push(FieldError::new("model", given, problem));
                None
            }
        }
    }

    fn resources(&mut self, input: &ResourcesInput) -> Option<JobResources> {
        let num_workers = self.note(workers("resources.num_workers", &input.num_workers));
        let min_workers = match &input.min_workers {
            None => num_workers,
            Some(given) => self.note(workers("resources.min_workers", given)),
        };
        if let (Some(given), Some(min), Some(all)) = (&input.min_workers, min_workers, num_workers)
            && min > all
        {
            let problem = format!("is more than num_workers = {all}: lower it");
            self.0.push(FieldError::new("resources.min_workers", given, problem));
        }
        let worker = self.resource_entries("resources.worker", ExecutorClass::Train, &input.worker);
        let parameter_server = input.parameter_server.as_ref().map(|entries| {
            let class = ExecutorClass::Aggregate;
            self.resource_entries("resources.parameter_server", class, entries)
        });
        let price = |problems: &mut Problems, at: &str, given: &Option<PriceInput>| {
            given.as_ref().and_then(|given| problems.price(at, given))
        };
        let worker_price = price(self, "resources.worker_price", &input.worker_price);
        let at = "resources.parameter_server_price";
        let parameter_server_price = price(self, at, &input.parameter_server_price);
        Some(JobResources {
            num_workers: num_workers?,
            min_workers: min_workers?,
            worker,
            parameter_server,
            worker_price,
            parameter_server_price,
        })
    }

    fn source(&mut self, at: &str, input: SourceInput) -> Option<Source> {
        let repository = self.note(path(&format!("{at}.repository"), &input.repository));
        let revision = input.revision.map(|given| path(&format!("{at}.revision"), &given));
        let revision = revision.and_then(|revision| self.note(revision));
        let field = format!("{at}.filenames");
        let filenames: Vec<Name> =
            input.filenames.iter().filter_map(|given| self.note(path(&field, given))).collect();
        if !(1..=MAX_FILENAMES).contains(&input.filenames.len()) {
            let problem = format!("files were given: give from 1 to {MAX_FILENAMES}");
            self.0.push(FieldError::new(&field, input.filenames.len(), problem));
        }
        Some(Source { repository: repository?, revision, filenames, token: input.token })
    }

    fn adamw(&mut self, input: &AdamWInput) -> Option<AdamW> {
        let at = "inner_optimizer";
        let learning_rate =
            self.note(positive(&format!("{at}.learning_rate"), &input.learning_rate));
        let field = format!("{at}.betas");
        let betas = match input.betas.as_deref() {
            None => Some(AdamW::BETAS),
            Some([first, second]) => {
                let (first, second) =
                    (self.note(decay(&field, first)), self.note(decay(&field, second)));
                first.zip(second).map(|(first, second)| [first, second])
            }
            Some(other) => {
                let problem = "numbers were given: give two such as [0.9, 0.999]";
                self.0.push(FieldError::new(&field, other.len(), problem));
                None
            }
        };
        let epsilon = input.epsilon.as_ref().map(|given| positive(&format!("{at}.epsilon"), given));
        let epsilon = epsilon.map_or(Some(AdamW::EPSILON), |epsilon| self.note(epsilon));
        let field = format!("{at}.weight_decay");
        let weight_decay = self.optional(&field, &input.weight_decay, decay);
        let schedule = input.schedule.as_ref().map(|schedule| self.rate_schedule(schedule));
        Some(AdamW {
            learning_rate: learning_rate?,
            betas: betas?,
            epsilon: epsilon?,
            weight_decay: weight_decay.unwrap_or(AdamW::WEIGHT_DECAY),
            schedule: schedule.unwrap_or_default(),
        })
    }

    fn nesterov(&mut self, input: &NesterovInput) -> Option<Nesterov> {
        let learning_rate = positive("outer_optimizer.learning_rate", &input.learning_rate);
        let learning_rate = self.note(learning_rate);
        let momentum = self.note(decay("outer_optimizer.momentum", &input.momentum));
        Some(Nesterov { learning_rate: learning_rate?, momentum: momentum? })
    }

    fn resource_entries(
        &mut self,
        at: &str,
        class: ExecutorClass,
        needs: &[ResourceEntryInput],
    ) -> Requirement {
        let mut requirement = Requirement { class, ..Requirement::default() };
        if needs.len() > MAX_RESOURCE_ENTRIES {
            let problem = format!("entries were given: give at most {MAX_RESOURCE_ENTRIES}");
            self.0.push(FieldError::new(at, needs.len(), problem));
            return requirement;
        }
        let mut seen = Vec::new();
        for (nth, need) in needs.iter().enumerate() {
            let read = apply(&format!("{at}[{nth}]"), need, &mut requirement);
            let Some(what) = self.note(read) else { continue };
            if seen.contains(&what) {
                let problem = "was given before: give each once";
                self.0.push(FieldError::new(&format!("{at}[{nth}]"), what, problem));
            }
            seen.push(what);
        }
        requirement
    }

    fn price(&mut self, at: &str, input: &PriceInput) -> Option<PriceRange> {
        let bid = self.note(Money::parse(&format!("{at}.bid"), input.bid.as_str()));
        let max = self.note(Money::parse(&format!("{at}.max"), input.max.as_str()));
        let (bid, max) = (bid?, max?);
        if bid > max {
            // Without max: it is in no answer and no log, not even in this one.
            let problem = "is more than max: raise max or lower the bid";
            self.0.push(FieldError::new(&format!("{at}.bid"), &input.bid, problem));
        }
        Some(PriceRange { bid, max })
    }

    fn note<T>(&mut self, read: Result<T, FieldError>) -> Option<T> {
        read.map_err(|problem| self.0.push(problem)).ok()
    }
}

fn model_type(given: &InputValue) -> Result<ModelType, FieldError> {
    match given.as_str() {
        "vision-classification" => Ok(ModelType::VisionClassification),
        "causal-lm" => Ok(ModelType::CausalLm),
        "torch" => Ok(ModelType::Torch),
        other => {
            let problem =
                "is not a model type: use `vision-classification`, `causal-lm` or `torch`";
            Err(FieldError::new("model.type", other, problem))
        }
    }
}

/// A name that is also part of a path or an address on the machine that fetches it, and must not lead outside.
fn path(field: &str, given: &InputValue) -> Result<Name, FieldError> {
    let name = given.as_name(field)?;
    let inside = |part: &str| !matches!(part, "" | "." | "..");
    if name.as_str().contains('\\') || !name.as_str().split('/').all(inside) {
        let problem = "is an invalid path: give one without `..` and without a leading slash";
        return Err(FieldError::new(field, given, problem));
    }
    Ok(name)
}

fn workers(field: &str, given: &InputValue) -> Result<u32, FieldError> {
    match parse_count(field, given.as_str(), MAX_WORKERS)? {
        0 => Err(FieldError::new(field, given, "is invalid: give at least 1")),
        count => Ok(count),
    }
}

/// Reads one entry into `requirement` and returns its kind.
fn apply(
    at: &str,
    need: &ResourceEntryInput,
    requirement: &mut Requirement,
) -> Result<&'static str, FieldError> {
    let (given, min) = match (&need.r#type, &need.min, &need.kind) {
        (Some(given), Some(min), None) => (given, min.as_str()),
        (None, None, Some(kind)) => {
            requirement.executor = Some(kind.as_name(&format!("{at}.kind"))?);
            return Ok("kind");
        }
        _ => {
            let problem = "must have `type` and `min`, or `kind` alone";
            return Err(FieldError::new(at, "this entry", problem));
        }
    };
    let field = format!("{at}.min");
    Ok(match given.as_str() {
        "GPU" => {
            requirement.min_gpus = 1;
            requirement.gpu_memory_bytes = parse_gigabytes(&field, min)?;
            "GPU"
        }
        "CPU" => {
            requirement.cpu_milli = parse_milli(&field, min)?;
            "CPU"
        }
        "Memory" => {
            requirement.memory_bytes = parse_gigabytes(&field, min)?;
            "Memory"
        }
        "Storage" => {
            requirement.storage_bytes = parse_gigabytes(&field, min)?;
            "Storage"
        }
        _ => {
            let problem = "is not a resource: use `GPU`, `CPU`, `Memory` or `Storage`";
            return Err(FieldError::new(&format!("{at}.type"), given, problem));
        }
    })
}

fn positive(field: &str, given: &InputValue) -> Result<f64, FieldError> {
    match given.as_str().parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err(FieldError::new(field, given, "is not a number above 0: give one such as 0.001")),
    }
}

fn decay(field: &str, given: &InputValue) -> Result<f64, FieldError> {
    match given.as_str().parse::<f64>() {
        Ok(number) if (0.0..1.0).contains(&number) => Ok(number),
        _ => Err(FieldError::new(field, given, "is not from 0 to below 1: give one such as 0.9")),
    }
}

#[cfg(test)]
mod tests;
