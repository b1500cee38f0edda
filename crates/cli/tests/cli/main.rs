//! The `hypha` binary as users and programs see it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]
#![allow(unreachable_pub, missing_docs, reason = "nothing leaves a test binary")]

mod bench;
mod cluster;
mod command;
mod drain;
mod endings;
mod examples;
mod full;
mod hosts;
mod http;
mod https;
mod instances;
mod interrupted;
mod jobs;
mod lab;
mod market;
mod nat;
mod outcomes;
mod pause;
mod process;
mod programs;
mod python;
mod revocation;
mod scratch;
mod sharing;
mod sim;
mod startup;
mod streams;
mod swarm;
mod tasks;
mod terms;
mod traces;
mod unreachable;
mod up;
