//! Export and import: what is written is read back, and what is not a model is refused.

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::activations::Activations;
use crate::import::{ImportError, import};
use crate::model::{Batch, Model};
use crate::trainer::Trainer;

const CONFIG: Config = Config { layers: 2, width: 8, heads: 2, context: 6, vocabulary: 11 };

fn parameters() -> Vec<f32> {
    Layout::new(&CONFIG).initial_values(5)
}

fn exported() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    export(directory.path(), &CONFIG, &parameters()).unwrap();
    directory
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn exported_model_is_imported_unchanged_and_goes_on_learning() {
    let mut trainer = Trainer::new(CONFIG, 5, 1).unwrap();
    let tokens: Vec<u32> = (0..14).map(|i| i % 11).collect();
    trainer.step(&tokens, 2, 1e-2).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let nested = directory.path().join("runs/1");
    export(&nested, &CONFIG, trainer.parameters()).unwrap();
    let (config, values) = import(&nested).unwrap();
    assert_eq!((config, &values[..]), (CONFIG, trainer.parameters()));
    assert_eq!(names(&nested), [CONFIG_FILE, MODEL_FILE], "only whole files are left");

    trainer.step(&tokens, 2, 1e-2).unwrap();
    export(&nested, &CONFIG, trainer.parameters()).unwrap();
    assert_eq!(import(&nested).unwrap().1, trainer.parameters(), "the newer export replaces");
}

#[test]
fn exports_of_equal_models_are_equal_files() {
    let (a, b) = (exported(), exported());
    for name in [CONFIG_FILE, MODEL_FILE] {
        let read = |directory: &TempDir| fs::read(directory.path().join(name)).unwrap();
        assert_eq!(read(&a), read(&b), "{name}");
    }
}

#[test]
fn exported_files_are_what_transformers_expects() {
    let directory = exported();
    let text = fs::read_to_string(directory.path().join(CONFIG_FILE)).unwrap();
    let config: Value = serde_json::from_str(&text).unwrap();
    let expected = [
        ("architectures", json!(["GPT2LMHeadModel"])),
        ("model_type", json!("gpt2")),
        ("n_layer", json!(2)),
        ("n_embd", json!(8)),
        ("n_head", json!(2)),
        ("n_positions", json!(6)),
        ("vocab_size", json!(11)),
        ("tie_word_embeddings", json!(true)),
        ("activation_function", json!("gelu_new")),
        ("layer_norm_epsilon", json!(1e-5)),
    ];
    for (field, value) in expected {
        assert_eq!(config[field], value, "{field}");
    }
    let bytes = fs::read(directory.path().join(MODEL_FILE)).unwrap();
    let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
    let info = metadata.info("transformer.h.1.attn.c_attn.weight").unwrap();
    assert_eq!((info.dtype, &info.shape[..]), (Dtype::F32, &[8, 24][..]));
}

#[test]
fn invalid_models_are_not_exported() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model");
    let mut diverged = parameters();
    let place = Layout::new(&CONFIG).tensors()[3].clone();
    diverged[place.range.start] = f32::INFINITY;
    let cases = [
        (CONFIG, vec![0.0; 3], "3 parameters for a model with"),
        (Config { heads: 3, ..CONFIG }, parameters(), "not a multiple of 3 heads"),
        (CONFIG, diverged, "transformer.h.0.ln_1.bias holds inf"),
    ];
    for (config, values, expected) in cases {
        let error = export(&path, &config, &values).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!path.exists(), "{error}");
    }
    fs::write(&path, "a file").unwrap();
    let error = export(&path, &CONFIG, &parameters()).unwrap_err().to_string();
    assert!(error.starts_with("cannot write") && error.contains("model"), "{error}");
}

#[test]
fn model_of_another_size_is_not_replaced() {
    let directory = exported();
    let other = Config { heads: 4, ..CONFIG };
    let error = export(directory.path(), &other, &parameters()).unwrap_err().to_string();
    assert!(error.contains("already holds a model of another size"), "{error}");
    assert_eq!(import(directory.path()).unwrap(), (CONFIG, parameters()));
}

#[test]
fn failed_export_leaves_no_partial_file() {
    let directory = tempfile::tempdir().unwrap();
    // A directory in the place of the file: the rename fails after everything is written.
    fs::create_dir(directory.path().join(CONFIG_FILE)).unwrap();
    let error = export(directory.path(), &CONFIG, &parameters()).unwrap_err().to_string();
    assert!(error.starts_with("cannot write") && error.contains(CONFIG_FILE), "{error}");
    assert_eq!(names(directory.path()), [CONFIG_FILE]);
}

/// The error of an import after `damage` was done to an export.
fn error_after(damage: impl FnOnce(&Path)) -> String {
    let directory = exported();
    damage(directory.path());
    let error: ImportError = import(directory.path()).unwrap_err();
    let error = error.to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

#[test]
fn config_that_is_not_of_this_model_is_refused_with_its_field() {
    let cases = [
        ("model_type", json!("llama"), "model_type llama"),
        ("n_inner", json!(7), "n_inner 7"),
        ("activation_function", json!("relu"), "activation_function relu"),
        ("layer_norm_epsilon", json!(1e-6), "layer_norm_epsilon 0.000001"),
        ("tie_word_embeddings", json!(false), "tie_word_embeddings false"),
        ("scale_attn_weights", json!(false), "scale_attn_weights false"),
        ("scale_attn_by_inverse_layer_idx", json!(true), "scale_attn_by_inverse_layer_idx true"),
        ("add_cross_attention", json!(true), "add_cross_attention true"),
        ("n_layer", json!(0), "layers is zero"),
        ("n_head", json!(3), "not a multiple of 3 heads"),
        ("n_positions", json!(-1), "invalid value: integer `-1`"),
        ("n_embd", json!(null), "invalid type: null"),
        ("vocab_size", json!(1u64 << 60), "more than"),
        // Valid on its own, but the file has no parameters for it.
        ("n_positions", json!(1u64 << 27), "model.safetensors has"),
        ("vocab_size", json!(12), "transformer.wte.weight has the shape [11, 8]"),
    ];
    for (field, value, expected) in cases {
        let error = error_after(|directory| {
            let path = directory.join(CONFIG_FILE);
            let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            config[field] = value;
            fs::write(&path, config.to_string()).unwrap();
        });
        assert!(error.contains(expected), "{field}: {error}");
    }
}

#[test]
fn config_needs_only_the_fields_without_a_default() {
    let directory = exported();
    let config = json!({
        "model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2, "n_positions": 6,
        "vocab_size": 11, "n_inner": null, "transformers_version": "4.0.0",
    });
    fs::write(directory.path().join(CONFIG_FILE), config.to_string()).unwrap();
    assert_eq!(import(directory.path()).unwrap(), (CONFIG, parameters()));
}

#[test]
fn missing_and_damaged_files_are_refused_with_their_name() {
    type Damage = fn(&[u8]) -> Vec<u8>;
    let cases: [(&str, Damage, &str); 7] = [
        (CONFIG_FILE, |_| Vec::new(), "config.json has 0 bytes"),
        (CONFIG_FILE, |bytes| bytes[..40].to_vec(), "config.json is not the config of a GPT-2"),
        (CONFIG_FILE, |_| vec![b' '; 1 << 19], "config.json has 524288 bytes"),
        (MODEL_FILE, |_| Vec::new(), "model.safetensors has 0 bytes"),
        (MODEL_FILE, |bytes| bytes[..bytes.len() - 1].to_vec(), "model.safetensors is not a valid"),
        (MODEL_FILE, |bytes| [bytes, &[0; 4]].concat(), "model.safetensors is not a valid"),
        (
            MODEL_FILE,
            |bytes| [&u64::MAX.to_le_bytes(), &bytes[8..]].concat(),
            "model.safetensors is not a valid",
        ),
    ];
    for (name, damage, expected) in cases {
        let error = error_after(|directory| {
            let path = directory.join(name);
            let bytes = damage(&fs::read(&path).unwrap());
            fs::write(&path, bytes).unwrap();
        });
        assert!(error.contains(expected), "{error}");
        let error = error_after(|directory| fs::remove_file(directory.join(name)).unwrap());
        assert!(error.starts_with("cannot read") && error.contains(name), "{error}");
    }
}

/// One tensor of a file, to change.
struct Entry {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl View for &Entry {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

#[test]
fn tensors_that_do_not_fit_are_refused_with_their_name() {
    type Change = fn(&mut Vec<Entry>);
    let cases: [(Change, &str); 7] = [
        // Padding, so that the file is long enough to be opened.
        (
            |entries| {
                let removed = entries.remove(4);
                entries.push(Entry { name: "lm_head.weight".to_owned(), ..removed });
            },
            "lacks the tensor transformer.h.0.attn.c_attn.weight",
        ),
        (|entries| entries[4].shape = vec![24, 8], "c_attn.weight has the shape [24, 8]"),
        (|entries| entries[4].shape = vec![192], "c_attn.weight has the shape [192]"),
        (|entries| entries[1].dtype = Dtype::I32, "wpe.weight holds I32 instead of F32"),
        (
            |entries| {
                entries[1].dtype = Dtype::BF16;
                entries[1].shape[1] *= 2;
            },
            "wpe.weight holds BF16 instead of F32",
        ),
        (
            |entries| entries[2].bytes[4..8].copy_from_slice(&f32::NAN.to_le_bytes()),
            "transformer.h.0.ln_1.weight holds NaN",
        ),
        (
            |entries| {
                let bytes = vec![0; 4];
                let name = "lm_head.weight".to_owned();
                entries.push(Entry { name, dtype: Dtype::F32, shape: vec![1], bytes });
            },
            "has the tensor lm_head.weight, which this model does not",
        ),
    ];
    for (change, expected) in cases {
        let error = error_after(|directory| {
            let parameters = parameters();
            let bytes = |tensor: &Tensor| {
                parameters[tensor.range.clone()].iter().flat_map(|v| v.to_le_bytes()).collect()
            };
            let layout = Layout::new(&CONFIG);
            let mut entries: Vec<Entry> = layout
                .tensors()
                .iter()
                .map(|tensor| Entry {
                    name: tensor.name.clone(),
                    dtype: Dtype::F32,
                    shape: tensor.shape.clone(),
                    bytes: bytes(tensor),
                })
                .collect();
            change(&mut entries);
            let entries = entries.iter().map(|entry| (entry.name.as_str(), entry));
            safetensors::serialize_to_file(entries, None, &directory.join(MODEL_FILE)).unwrap();
        });
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn model_of_transformers_has_the_same_logits_here() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers");
    let (config, parameters) = import(&directory).unwrap();
    assert_eq!(config, CONFIG);
    let expected: Value =
        serde_json::from_slice(&fs::read(directory.join("logits.json")).unwrap()).unwrap();
    let numbers = |value: &Value| -> Vec<f64> {
        let rows = value.as_array().unwrap().iter();
        rows.flat_map(|row| row.as_array().unwrap()).map(|value| value.as_f64().unwrap()).collect()
    };
    // A batch has one token more than the model sees; what it is does not matter to the logits.
    let tokens: Vec<u32> = numbers(&expected["tokens"])
        .chunks(config.context)
        .flat_map(|row| row.iter().map(|token| *token as u32).chain([0]))
        .collect();
    let mut activations = Activations::default();
    let batch = Batch { tokens: &tokens, sequences: 2 };
    Model::new(config).compute_logits(&parameters, &mut activations, batch);
    let expected = numbers(&expected["logits"]);
    assert_eq!(activations.logits.len(), expected.len());
    for (actual, expected) in activations.logits.iter().zip(expected) {
        assert!((f64::from(*actual) - expected).abs() < 1e-5, "{actual} is not {expected}");
    }
}
