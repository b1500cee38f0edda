//! Placement from outside: what holds for every strategy, and what each one is for.

// Helpers of tests are test code, which the lint does not recognise.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod deadlines;
mod explained;
mod fixture;
mod locality;
mod parked;
mod parts;
mod prices;
mod random;
mod records;
mod resources;
mod spread;
mod starving;
mod strategies;
mod tenants;
