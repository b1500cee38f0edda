//! Export: a model as a directory that `GPT2LMHeadModel.from_pretrained` of the Python library transformers reads.
//!
//! `config.json` says how large the model is, `model.safetensors` holds its parameters under the names of [`Layout`].
//! [`import`](crate::import) reads the directory again.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensorError, View};
use serde_json::json;
use thiserror::Error;

use crate::config::{Config, ConfigError};
use crate::import::{self, CONFIG_FILE, MODEL_FILE};
use crate::layers::norm;
use crate::params::{Layout, Tensor};

/// Why a model is not exported. A model that was in the directory before is still there.
#[derive(Debug, Error)]
pub enum ExportError {
    /// There is no model of this size.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The parameters do not fit the model.
    #[error("{actual} parameters for a model with {expected}: pass the config that they belong to")]
    ParameterCount {
        /// Values passed.
        actual: usize,
        /// Values of the model.
        expected: usize,
    },
    /// A parameter is infinite or not a number.
    #[error("{tensor} holds {value}: export the parameters of a run that has not diverged")]
    NotFinite {
        /// The first tensor with such a value.
        tensor: String,
        /// The value.
        value: f32,
    },
    /// The directory holds another model. To replace it would, for a moment, pair its size with these parameters.
    #[error("{} already holds a model of another size: choose an empty directory", path.display())]
    OtherModel {
        /// The directory.
        path: PathBuf,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {error}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
}

/// Writes a model to `directory`, which is made where it does not exist.
///
/// Each file is complete and on the disk before it takes its name, so that after a crash the directory holds the earlier
/// export or this one. Only a model of the same size is replaced.
pub fn export(directory: &Path, config: &Config, parameters: &[f32]) -> Result<(), ExportError> {
    config.validate()?;
    let (actual, expected) = (parameters.len(), config.parameter_count());
    if actual != expected {
        return Err(ExportError::ParameterCount { actual, expected });
    }
    let layout = Layout::new(config);
    for tensor in layout.tensors() {
        if let Some(&value) = parameters[tensor.range.clone()].iter().find(|v| !v.is_finite()) {
            return Err(ExportError::NotFinite { tensor: tensor.name.clone(), value });
        }
    }
    let in_directory = |error| ExportError::Io { path: directory.to_owned(), error };
    fs::create_dir_all(directory).map_err(in_directory)?;
    if directory.join(MODEL_FILE).exists() && import::read_config(directory).ok() != Some(*config) {
        return Err(ExportError::OtherModel { path: directory.to_owned() });
    }
    let text = format!("{:#}\n", hugging_face_config(config));
    write_atomically(directory, CONFIG_FILE, |path| fs::write(path, &text))?;
    write_atomically(directory, MODEL_FILE, |path| write_tensors(path, &layout, parameters))?;
    // The new names are durable only once the directory is.
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(in_directory)
}

fn hugging_face_config(config: &Config) -> serde_json::Value {
    json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_layer": config.layers,
        "n_embd": config.width,
        "n_head": config.heads,
        "n_positions": config.context,
        "vocab_size": config.vocabulary,
        "tie_word_embeddings": true,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": norm::EPSILON,
        "scale_attn_weights": true,
        // What the model was trained without; the library would add it where it trains on.
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        // The library's defaults are tokens of GPT-2's own vocabulary.
        "bos_token_id": null,
        "eos_token_id": null,
        "torch_dtype": "float32",
    })
}

/// Has `write` write a file of another name, and gives it its own when it is on the disk.
fn write_atomically(
    directory: &Path,
    name: &str,
    write: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<(), ExportError> {
    // The process's id, so that two processes that export to one directory do not write to one file.
    let part = directory.join(format!(".{name}.{}.part", std::process::id()));
    let written = write(&part)
        .and_then(|()| File::open(&part)?.sync_all())
        .and_then(|()| fs::rename(&part, directory.join(name)));
    written.map_err(|error| {
        let _ = fs::remove_file(&part); // The first error is the one to report.
        ExportError::Io { path: directory.join(name), error }
    })
}

fn write_tensors(path: &Path, layout: &Layout, parameters: &[f32]) -> io::Result<()> {
    let tensors = layout.tensors().iter().map(|tensor| {
        let values = &parameters[tensor.range.clone()];
        (tensor.name.as_str(), Values { tensor, values })
    });
    // Transformers refuses files that do not say which library their layout is from.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize_to_file(tensors, Some(metadata), path).map_err(|error| match error {
        SafeTensorError::IoError(error) => error,
        error => io::Error::other(error),
    })
}

/// A tensor's values, turned into bytes when it is their turn to be written.
struct Values<'a> {
    tensor: &'a Tensor,
    values: &'a [f32],
}

impl View for Values<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.tensor.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Owned(self.values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    fn data_len(&self) -> usize {
        size_of_val(self.values)
    }
}

#[cfg(test)]
mod tests;
