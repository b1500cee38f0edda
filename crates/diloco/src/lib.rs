//! The decisions of DiLoCo training: how much each member trains in a round, when a round closes, which samples were used,
//! and how the run proceeds.

pub mod budget;
pub mod round;
pub mod schedule;
pub mod slices;
