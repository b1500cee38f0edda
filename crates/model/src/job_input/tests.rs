//! The seed's example is read as it stands; each invalid change to it is named.

use super::*;
use crate::time::Span;
use crate::training::{Checkpoint, Codec, GptSize, Length, RateSchedule, Training, WarmStart};

const SEED: &str = include_str!("seed.toml");

/// As nested in the configuration.
#[derive(Deserialize)]
struct Config {
    scheduler: Scheduler,
}

#[derive(Deserialize)]
struct Scheduler {
    job: JobInput,
}

fn read(toml: &str) -> Result<JobSpec, String> {
    let config: Config = toml::from_str(toml).map_err(|error| error.to_string())?;
    JobSpec::try_from(config.scheduler.job)
        .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
}

#[test]
fn the_seed_is_read() {
    let name = |text: &str| text.parse::<Name>().unwrap();
    let spec = read(SEED).unwrap();
    let expected = JobSpec {
        model: ModelSource::Repository(Source {
            repository: name("owner/repo"),
            revision: Some(name("main")),
            filenames: vec![name("config.json"), name("model.safetensors")],
            token: Some(Secret::new("hf_secret".into())),
        }),
        model_type: ModelType::VisionClassification,
        preprocessor: Some(Source {
            repository: name("l45k/Resnet50"),
            revision: None,
            filenames: vec![name("preprocessor_config.json")],
            token: Some(Secret::new("hf_secret".into())),
        }),
        dataset: name("imagenet"),
        inner_optimizer: AdamW {
            learning_rate: 0.001,
            betas: [0.9, 0.999],
            epsilon: 1e-8,
            weight_decay: 0.01,
            schedule: RateSchedule::default(),
        },
        outer_optimizer: Nesterov { learning_rate: 0.7, momentum: 0.9 },
        resources: seed_resources(),
        training: Training::default(),
    };
    assert_eq!(spec, expected);
    let stored = serde_json::to_string(&spec).unwrap();
    assert_eq!(serde_json::from_str::<JobSpec>(&stored).unwrap(), spec);
}

fn seed_resources() -> JobResources {
    let name = |text: &str| text.parse::<Name>().unwrap();
    JobResources {
        num_workers: 4,
        min_workers: 4,
        worker: Requirement {
            class: ExecutorClass::Train,
            executor: Some(name("diloco-transformer")),
            cpu_milli: 2_000,
            memory_bytes: 8_000_000_000,
            min_gpus: 1,
            gpu_memory_bytes: 10_000_000_000,
            ..Requirement::default()
        },
        parameter_server: Some(Requirement {
            class: ExecutorClass::Aggregate,
            executor: Some(name("parameter-server")),
            cpu_milli: 4_000,
            memory_bytes: 16_000_000_000,
            ..Requirement::default()
        }),
        worker_price: Some(PriceRange {
            bid: Money::from_micros(110_000_000),
            max: Money::from_micros(160_000_000),
        }),
        parameter_server_price: Some(PriceRange {
            bid: Money::from_micros(80_000_000),
            max: Money::from_micros(120_000_000),
        }),
    }
}

#[test]
fn the_resources_of_the_seed_are_read_alone_from_toml_and_from_json() {
    let whole: toml::Value = toml::from_str(SEED).unwrap();
    let resources = &whole["scheduler"]["job"]["resources"];
    let input: ResourcesInput = resources.clone().try_into().unwrap();
    assert_eq!(JobResources::try_from(input), Ok(seed_resources()));
    let input: ResourcesInput =
        serde_json::from_str(&serde_json::to_string(resources).unwrap()).unwrap();
    assert_eq!(JobResources::try_from(input), Ok(seed_resources()));

    let few: ResourcesInput =
        serde_json::from_str(r#"{"num_workers": 9, "min_workers": 2}"#).unwrap();
    let few = JobResources::try_from(few).unwrap();
    assert_eq!((few.num_workers, few.min_workers, few.parameter_server), (9, 2, None));
}

#[test]
fn secrets_are_not_shown() {
    let config: Config = toml::from_str(SEED).unwrap();
    let shown = format!("{:?} {:?}", config.scheduler.job, read(SEED));
    assert!(shown.contains("***") && !shown.contains("hf_secret"), "{shown}");
}

#[test]
fn invalid_fields_are_named() {
    // A line of the seed, its replacement, and the beginning of the message.
    let cases = [
        ("num_workers = 4", "num_workers = 0", "resources.num_workers: `0` is invalid"),
        ("num_workers = 4", "num_workers = -4", "resources.num_workers: `-4` is negative"),
        (
            "num_workers = 4",
            "num_workers = 1e9",
            "resources.num_workers: `1000000000` is too large",
        ),
        (
            "num_workers = 4",
            "num_workers = 4\nmin_workers = 5",
            "resources.min_workers: `5` is more than num_workers = 4",
        ),
        (
            "num_workers = 4",
            "num_workers = 4\nmin_workers = 0",
            "resources.min_workers: `0` is invalid",
        ),
        ("bid = 110.0", "bid = 200", "resources.worker_price.bid: `200` is more than max: raise"),
        ("bid = 110.0", "bid = nan", "resources.worker_price.bid: `NaN` is not finite"),
        ("max = 120.0", "max = -1", "resources.parameter_server_price.max: `-1` is negative"),
        ("min = 10.0", "min = -10.0", "resources.worker[0].min: `-10` is negative"),
        ("min = 10.0", "min = inf", "resources.worker[0].min: `inf` is not finite"),
        ("min = 10.0", "", "resources.worker[0]: `this entry` must have `type` and `min`"),
        ("\"GPU\"", "\"TPU\"", "resources.worker[0].type: `TPU` is not a resource"),
        ("\"GPU\"", "\"CPU\"", "resources.worker[1]: `CPU` was given before"),
        ("\"diloco-transformer\"", "\"\"", "resources.worker[3].kind: `` is refused"),
        ("= 0.001", "= 0.0", "inner_optimizer.learning_rate: `0` is not a number above 0"),
        ("= 0.001", "= nan", "inner_optimizer.learning_rate: `NaN` is not a number above 0"),
        ("= 0.001", "= 1\nepsilon = -1", "inner_optimizer.epsilon: `-1` is not a number above 0"),
        (
            "= 0.001",
            "= 1\nbetas = [1.0, 0.9]",
            "inner_optimizer.betas: `1` is not from 0 to below 1",
        ),
        ("= 0.001", "= 1\nbetas = [0.9, -0.1]", "inner_optimizer.betas: `-0.1` is not from 0"),
        ("= 0.001", "= 1\nbetas = [0.9]", "inner_optimizer.betas: `1` numbers were given"),
        (
            "momentum = 0.9",
            "momentum = 1",
            "outer_optimizer.momentum: `1` is not from 0 to below 1",
        ),
        ("\"model.safetensors\"", "\"../x\"", "model.filenames: `../x` is an invalid path"),
        ("\"model.safetensors\"", "\"/etc/x\"", "model.filenames: `/etc/x` is an invalid path"),
        ("[\"preprocessor_config.json\"]", "[]", "preprocessor.filenames: `0` files were given"),
        ("\"owner/repo\"", "\"owner/../x\"", "model.repository: `owner/../x` is an invalid path"),
        ("\"vision-classification\"", "\"gpt\"", "model.type: `gpt` is not a model type"),
        ("\"imagenet\"", "7", "dataset.dataset: `7` is not a text"),
    ];
    for (line, instead, expected) in cases {
        assert!(SEED.contains(line), "{line}");
        let error = read(&SEED.replacen(line, instead, 1)).expect_err(instead);
        assert!(error.starts_with(expected), "{instead} gave: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    let unknown = read(&SEED.replacen("momentum", "momemtum", 1)).unwrap_err();
    assert!(unknown.contains("unknown field `momemtum`"), "{unknown}");
    let missing = read(&SEED.replacen("num_workers = 4", "", 1)).unwrap_err();
    assert!(missing.contains("missing field `num_workers`"), "{missing}");
}

#[test]
fn all_problems_are_reported_at_once() {
    let spoilt = SEED.replace("num_workers = 4", "num_workers = 0").replace("= 0.7", "= -0.7");
    assert_eq!(read(&spoilt).unwrap_err().lines().count(), 2);
}

/// A job for the native trainer, with every key.
const NATIVE: &str = r#"
[scheduler.job]
samples = 100000
round_time = "30s"
samples_per_round = 4096
batch_size = 4
codec = "int4"
quorum = "all"
collection_timeout = 20
export = "/models/shakespeare"
seed = 7
fixed_steps = 30
warm_start = { share = 0.25, steps = 2 }
checkpoint = { every = 5, keep = 2, url = "s3://bucket/runs" }
dataset = { dataset = "corpus" }
outer_optimizer = { learning_rate = 0.9, momentum = 0.8 }
resources = { num_workers = 2 }

[scheduler.job.model]
type = "causal-lm"
gpt = { layers = 4, width = 96, heads = 4, context = 64 }

[scheduler.job.inner_optimizer]
learning_rate = 0.002
betas = [0.9, 0.99]
weight_decay = 0.1
schedule = { warm_up = 0.05, end = 0.1 }
"#;

#[test]
fn every_key_of_training_is_read() {
    let spec = read(NATIVE).unwrap();
    let size = GptSize { layers: 4, width: 96, heads: 4, context: 64, vocabulary: 256 };
    assert_eq!(spec.model, ModelSource::Gpt(size));
    assert_eq!(size.parameters(), 478_272);
    let inner = spec.inner_optimizer;
    assert_eq!(
        (inner.weight_decay, inner.schedule),
        (0.1, RateSchedule { warm_up: 0.05, end: 0.1 })
    );
    let expected = Training {
        length: Length::Samples(100_000),
        round_time: Span::from_secs(30),
        samples_per_round: Some(4_096),
        batch_size: 4,
        codec: Codec::Int4,
        quorum_milli: 1_000,
        collection_timeout: Span::from_secs(20),
        warm_start: WarmStart { milli: 250, steps: 2 },
        checkpoint: Checkpoint {
            every: 5,
            keep: 2,
            url: Some("s3://bucket/runs".parse().unwrap()),
        },
        export: Some("/models/shakespeare".parse().unwrap()),
        seed: 7,
        fixed_steps: Some(30),
    };
    assert_eq!(spec.training, expected);
    let stored = serde_json::to_string(&spec).unwrap();
    assert_eq!(serde_json::from_str::<JobSpec>(&stored).unwrap(), spec);
}

#[test]
fn invalid_keys_of_training_are_named() {
    let cases = [
        ("samples = 100000", "samples = 0", "samples: `0` is invalid: give at least 1"),
        (
            "samples = 100000",
            "samples = 1\nrounds = 2",
            "rounds: `2` is not the only length: give `rounds`, `samples` or `epochs`",
        ),
        ("\"30s\"", "0", "round_time: `0` is invalid: give more than 0s, at most 24h"),
        ("\"30s\"", "\"25h\"", "round_time: `25h` is invalid"),
        ("= 4096", "= 8388608", "samples_per_round: `8388608` is too large"),
        ("batch_size = 4", "batch_size = 0", "batch_size: `0` is invalid: give at least 1"),
        ("\"int4\"", "\"int3\"", "codec: `int3` is not a codec: use `fp32`, `fp16`, `int8`"),
        ("\"all\"", "1.5", "quorum: `1.5` is not from 0 to 1"),
        ("\"all\"", "0", "quorum: `0` is invalid: give more than 0"),
        ("share = 0.25", "share = -1", "warm_start.share: `-1` is not from 0 to 1"),
        ("keep = 2", "keep = 0", "checkpoint.keep: `0` is invalid: give at least 1"),
        ("s3://bucket", "http://x", "checkpoint.url: `http://x/runs` is not a place for"),
        ("width = 96", "width = 97", "model.gpt.width: `97` is not a multiple of heads = 4"),
        ("layers = 4", "layers = 0", "model.gpt.layers: `0` is invalid: give at least 1"),
        ("\"causal-lm\"", "\"torch\"", "model.type: `torch` is not the type of a GPT"),
        (
            "\"causal-lm\"",
            "\"causal-lm\"\nrepository = \"a/b\"",
            "model: `a/b` was given: give either `model.repository` or `[model.gpt]`",
        ),
        (
            "\"causal-lm\"",
            "\"causal-lm\"\nrevision = \"main\"",
            "model.gpt: `gpt` is a model of its own: leave out revision, filenames and token",
        ),
        ("end = 0.1", "end = 2", "inner_optimizer.schedule.end: `2` is not from 0 to 1"),
        ("weight_decay = 0.1", "weight_decay = 1", "inner_optimizer.weight_decay: `1` is not"),
    ];
    for (line, instead, expected) in cases {
        assert!(NATIVE.contains(line), "{line}");
        let error = read(&NATIVE.replacen(line, instead, 1)).expect_err(instead);
        assert!(error.starts_with(expected), "{instead} gave: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}
