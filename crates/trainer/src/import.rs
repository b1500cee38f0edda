//! Import: reads the directory that [`export`](crate::export()) or `save_pretrained` of transformers has written.
//!
//! The files may come from anyone. What they claim is compared with their size before memory is taken for it, and a
//! model that would compute something else than GPT-2 is refused.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use thiserror::Error;

use crate::config::{Config, ConfigError};
use crate::layers::norm;
use crate::params::{Layout, Tensor};

pub(crate) const CONFIG_FILE: &str = "config.json";
pub(crate) const MODEL_FILE: &str = "model.safetensors";

/// Of `config.json`: a hundred times what the library writes.
const MAX_CONFIG_BYTES: u64 = 1 << 18;

/// Of the part of `model.safetensors` that names the tensors, which takes some hundred bytes for each of them.
const MAX_HEADER_BYTES: u64 = 1 << 24;

/// Why a directory cannot be imported.
#[derive(Debug, Error)]
pub enum ImportError {
    /// A file cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
    /// The size is not JSON, or a field is missing or of another type.
    #[error("{} is not the config of a GPT-2 model: {error}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// Where it is wrong.
        error: serde_json::Error,
    },
    /// The model computes something else.
    #[error("{} has {field} {actual}, this model has {expected}: import a GPT-2 model with it", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The field that differs.
        field: &'static str,
        /// Its value.
        actual: String,
        /// What it would have to be.
        expected: String,
    },
    /// There is no model of this size.
    #[error("{}: {error}", path.display())]
    Size {
        /// The file.
        path: PathBuf,
        /// What is wrong with the size.
        error: ConfigError,
    },
    /// A file is longer or shorter than its contents can be.
    #[error("{} has {actual} bytes instead of {min} to {max}: it is truncated or belongs to another model", path.display())]
    FileSize {
        /// The file.
        path: PathBuf,
        /// Its size.
        actual: u64,
        /// The smallest that a valid file has.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// The file is damaged.
    #[error("{} is not a valid safetensors file: {error}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where it is wrong.
        error: safetensors::SafeTensorError,
    },
    /// A tensor of the model is not in the file.
    #[error("{} lacks the tensor {tensor}: it is not of a GPT-2 model of this size", path.display())]
    MissingTensor {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
    },
    /// The file has a tensor that the model would leave out.
    #[error("{} has the tensor {tensor}, which this model does not: it would be lost", path.display())]
    UnknownTensor {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
    },
    /// A tensor is of another shape.
    #[error(
        "tensor {tensor} has the shape {actual:?} instead of {expected:?}: it belongs to another model"
    )]
    Shape {
        /// The tensor's name.
        tensor: String,
        /// Its dimensions.
        actual: Vec<usize>,
        /// Those of the model.
        expected: Vec<usize>,
    },
    /// A tensor's numbers are of another type.
    #[error("tensor {tensor} holds {dtype} instead of F32: convert the model to single precision")]
    NumberType {
        /// The tensor's name.
        tensor: String,
        /// The type, as the format calls it.
        dtype: String,
    },
    /// A parameter is infinite or not a number.
    #[error("tensor {tensor} holds {value}: the model has diverged or its file is damaged")]
    NotFinite {
        /// The tensor's name.
        tensor: String,
        /// The value.
        value: f32,
    },
}

/// Reads the model of `directory`: its size and its parameters, laid out as [`Layout`] says.
pub fn import(directory: &Path) -> Result<(Config, Vec<f32>), ImportError> {
    let config = read_config(directory)?;
    let path = directory.join(MODEL_FILE);
    // Before the layout is made: its size, too, is what the config claims.
    let value_bytes = 4 * config.parameter_count() as u64;
    let bytes = read_file(&path, value_bytes..=value_bytes + MAX_HEADER_BYTES)?;
    let file = match SafeTensors::deserialize(&bytes) {
        Ok(file) => file,
        Err(error) => return Err(ImportError::Damaged { path, error }),
    };
    let layout = Layout::new(&config);
    let mut parameters = Vec::with_capacity(layout.len());
    for tensor in layout.tensors() {
        read_tensor(&mut parameters, &path, &file, tensor)?;
    }
    let is_known = |name: &&str| layout.tensors().iter().any(|tensor| tensor.name == **name);
    // All of the model's tensors are there: one more is one that it does not have.
    if file.len() > layout.tensors().len()
        && let Some(name) = file.names().into_iter().filter(|name| !is_known(name)).min()
    {
        return Err(ImportError::UnknownTensor { path, tensor: name.to_owned() });
    }
    Ok((config, parameters))
}

/// The size of the model in `directory`.
pub(crate) fn read_config(directory: &Path) -> Result<Config, ImportError> {
    let path = directory.join(CONFIG_FILE);
    let bytes = read_file(&path, 1..=MAX_CONFIG_BYTES)?;
    let fields: Fields = match serde_json::from_slice(&bytes) {
        Ok(fields) => fields,
        Err(error) => return Err(ImportError::Config { path, error }),
    };
    if let Some((field, actual, expected)) = fields.first_difference() {
        return Err(ImportError::Unsupported { path, field, actual, expected });
    }
    let config = Config {
        layers: fields.n_layer,
        width: fields.n_embd,
        heads: fields.n_head,
        context: fields.n_positions,
        vocabulary: fields.vocab_size,
    };
    match config.validate() {
        Ok(()) => Ok(config),
        Err(error) => Err(ImportError::Size { path, error }),
    }
}

/// The fields of `config.json` that change what the model computes, with the library's defaults.
#[derive(Debug, Deserialize)]
struct Fields {
    model_type: String,
    n_layer: usize,
    n_embd: usize,
    n_head: usize,
    n_positions: usize,
    vocab_size: usize,
    #[serde(default)]
    n_inner: Option<usize>,
    #[serde(default = "gelu_new")]
    activation_function: String,
    #[serde(default = "epsilon")]
    layer_norm_epsilon: f64,
    #[serde(default = "yes")]
    tie_word_embeddings: bool,
    #[serde(default = "yes")]
    scale_attn_weights: bool,
    #[serde(default)]
    scale_attn_by_inverse_layer_idx: bool,
    #[serde(default)]
    add_cross_attention: bool,
}

fn gelu_new() -> String {
    "gelu_new".to_owned()
}

fn epsilon() -> f64 {
    norm::EPSILON
}

fn yes() -> bool {
    true
}

impl Fields {
    /// The first field in which the model is not this crate's: its name, its value and the value that it should have.
    fn first_difference(&self) -> Option<(&'static str, String, String)> {
        let inner = self.n_embd.saturating_mul(4);
        let fields = [
            ("model_type", self.model_type.clone(), "gpt2".to_owned()),
            ("n_inner", self.n_inner.unwrap_or(inner).to_string(), inner.to_string()),
            ("activation_function", self.activation_function.clone(), gelu_new()),
            ("layer_norm_epsilon", self.layer_norm_epsilon.to_string(), epsilon().to_string()),
            ("tie_word_embeddings", self.tie_word_embeddings.to_string(), true.to_string()),
            ("scale_attn_weights", self.scale_attn_weights.to_string(), true.to_string()),
            (
                "scale_attn_by_inverse_layer_idx",
                self.scale_attn_by_inverse_layer_idx.to_string(),
                false.to_string(),
            ),
            ("add_cross_attention", self.add_cross_attention.to_string(), false.to_string()),
        ];
        fields.into_iter().find(|(_, actual, expected)| actual != expected)
    }
}

/// A whole file, if it is of a size that its contents can have.
fn read_file(path: &Path, sizes: std::ops::RangeInclusive<u64>) -> Result<Vec<u8>, ImportError> {
    let failed = |error| ImportError::Io { path: path.to_owned(), error };
    let file = File::open(path).map_err(failed)?;
    let actual = file.metadata().map_err(failed)?.len();
    if !sizes.contains(&actual) {
        let (min, max) = sizes.into_inner();
        return Err(ImportError::FileSize { path: path.to_owned(), actual, min, max });
    }
    let mut bytes = Vec::new();
    // A file that grows meanwhile is cut here, and found damaged.
    file.take(actual).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// Adds the values of the tensor in `file` that should be as `expected` says.
fn read_tensor(
    parameters: &mut Vec<f32>,
    path: &Path,
    file: &SafeTensors<'_>,
    expected: &Tensor,
) -> Result<(), ImportError> {
    let tensor = expected.name.clone();
    let Ok(view) = file.tensor(&tensor) else {
        return Err(ImportError::MissingTensor { path: path.to_owned(), tensor });
    };
    if view.dtype() != Dtype::F32 {
        return Err(ImportError::NumberType { tensor, dtype: format!("{:?}", view.dtype()) });
    }
    if view.shape() != expected.shape {
        let (actual, expected) = (view.shape().to_vec(), expected.shape.clone());
        return Err(ImportError::Shape { tensor, actual, expected });
    }
    let (values, _) = view.data().as_chunks();
    parameters.extend(values.iter().map(|bytes| f32::from_le_bytes(*bytes)));
    match parameters[expected.range.clone()].iter().find(|value| !value.is_finite()) {
        Some(&value) => Err(ImportError::NotFinite { tensor, value }),
        None => Ok(()),
    }
}
