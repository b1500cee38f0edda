//! The predictor as its callers see it.

// Helpers of tests are tests, which the lint does not see.
#![allow(clippy::unwrap_used)]

mod absurd;
mod bounds;
mod calibration;
mod cold;
mod learning;
mod oracle;
mod restart;
mod table;
mod world;
