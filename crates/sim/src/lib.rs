//! The machines of Hypha in virtual time.
//!
//! Two uses: [`check`] runs many small worlds in which everything goes wrong and checks the promises after
//! every step; [`compare`] runs a workload on a pool under each strategy and measures. Both step the same
//! machines as the node does. All of it repeats exactly for its seed.

pub mod amounts;
mod arrivals;
mod axis;
pub mod batching;
pub mod bound;
pub mod check;
pub mod checkers;
pub mod compare;
mod deaths;
pub mod disk;
pub mod frontier;
mod labels;
pub mod market;
pub mod mix;
pub mod network;
pub mod oracle;
pub mod plot;
pub mod pool;
pub mod predict;
pub mod report;
pub mod scenario;
pub mod stats;
pub mod store;
mod svg;
pub mod table;
mod timestamp;
pub mod trace;
pub mod workload;
pub mod workload_name;
pub mod world;
