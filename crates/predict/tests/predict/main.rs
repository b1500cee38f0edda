//! The predictor as its callers see it.

// Helpers of tests are test code, which the lint does not recognise.
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
