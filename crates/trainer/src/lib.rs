//! Trains small language models of the GPT-2 architecture on the processor, with no other program involved.
//!
//! A [`Trainer`] learns from batches of tokens, its [`Generator`] continues texts, [`export()`] writes a model that the
//! Python library transformers reads, and [`import()`] reads it. A run repeats exactly for a seed and a number of threads.
//!
//! ```
//! use hypha_trainer::{Config, Sampling, Trainer};
//!
//! let config = Config { layers: 1, width: 16, heads: 2, context: 16, vocabulary: 256 };
//! let mut trainer = Trainer::new(config, 1, 2)?;
//! let tokens: Vec<u32> = b"abcabcabcabc".iter().map(|byte| u32::from(*byte)).collect();
//! for _ in 0..50 {
//!     trainer.step(&tokens, 1, 1e-2)?;
//! }
//! let likeliest = Sampling { temperature: 0.0, top_k: 0 };
//! let next = trainer.generator().generate(&tokens[..6], 3, likeliest, 1)?;
//! assert_eq!(next, [b'a', b'b', b'c'].map(u32::from));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where to start reading
//!
//! To learn how a language model works, read in this order:
//!
//! 1. `config.rs` and `params.rs`: how large a model is, which tensors it has, what values they start with.
//! 2. `layers/`: one layer a file, each with its `forward` and `backward`, from `embedding`, `linear`, `gelu` and `norm`
//!    to `attention` and `loss`.
//! 3. `model.rs`: the layers in order, and in reverse for the gradient. `activations.rs` is what one pass keeps for the
//!    other, `gradient_check.rs` how we know that the gradient is right.
//! 4. `adamw.rs` and `schedule.rs`: what a gradient changes, and by how much.
//! 5. `trainer.rs`: all of it together, on several threads. `state.rs` saves it.
//! 6. `generate.rs`: text from the model, without computing anything twice.
//! 7. `export.rs` and `import.rs`: the model as files.
//!
//! `gemm.rs` and `real.rs` are below the layers: matrix products and sums that are fast and always round alike.

mod activations;
mod adamw;
mod config;
mod export;
mod gemm;
mod generate;
#[cfg(test)]
mod gradient_check;
mod import;
mod layers;
mod model;
mod params;
mod real;
mod schedule;
mod state;
mod trainer;

pub use adamw::AdamWSettings;
pub use config::{Config, ConfigError, MAX_PARAMETERS};
pub use export::{ExportError, export};
pub use generate::{GenerateError, Generator, Sampling};
pub use import::{ImportError, import};
pub use params::{Layout, Tensor};
pub use schedule::Schedule;
pub use state::StateError;
pub use trainer::{MAX_THREADS, TrainError, Trainer};
