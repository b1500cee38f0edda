//! The decisions of DiLoCo training: how much each member trains in a round, when a round closes, which samples were used,
//! and how the run proceeds.

pub mod budget;
pub mod message;
pub mod round;
pub mod run;
pub mod schedule;
pub mod slices;

pub use run::TrainingRun;
