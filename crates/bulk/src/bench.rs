//! Measuring: throughput between two processes, next to a plain copy over TCP and TLS.
//!
//! Both processes run the same [`Carrier`]s. One, the driver, measures; the other executes its commands, line by line,
//! over its standard input and output.

mod carriers;
mod drive;
mod source;

use std::io;
use std::pin::Pin;

pub use carriers::{Dedicated, Plain, TlsPair};
pub use drive::{Remote, Row, measure, serve_commands};
pub use source::Pattern;

/// The future of a carrier's operation.
pub type CarrierFuture<'a, T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send + 'a>>;

/// A transport to the other process: each is a row of the result.
pub trait Carrier: Send + Sync {
    /// One word, the same in both processes.
    fn name(&self) -> &'static str;

    /// Its address for the other process, without spaces.
    fn address(&self) -> String;

    /// Sends the first `bytes` of the pattern to the carrier of the same name at `to`, and returns when it has
    /// confirmed their digest. May run several times at once.
    fn send<'a>(&'a self, to: &'a str, bytes: u64) -> CarrierFuture<'a, ()>;
}
