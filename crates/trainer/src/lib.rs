//! Trains small language models of the GPT-2 architecture on the processor, with no other program involved.

mod activations;
mod adamw;
mod config;
mod gemm;
mod generate;
#[cfg(test)]
mod gradient_check;
mod layers;
mod model;
mod params;
mod real;
mod schedule;
mod trainer;

pub use adamw::AdamWSettings;
pub use config::{Config, ConfigError, MAX_PARAMETERS};
pub use generate::{GenerateError, Generator, Sampling};
pub use params::{Layout, Tensor};
pub use schedule::Schedule;
pub use trainer::{MAX_THREADS, TrainError, Trainer};
