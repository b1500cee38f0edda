//! Trains small language models of the GPT-2 architecture on the processor, with no other program involved.

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
