//! Measuring: throughput between two processes, next to a plain copy over TCP and TLS.
//!
//! Both processes run the same [`Carrier`]s. One, the driver, measures; the other does what it is told, line by line,
//! over its standard input and output.

mod carriers;
mod drive;
mod source;

use std::io;
use std::pin::Pin;

pub use carriers::{Dedicated, Plain, TlsPair};
pub use drive::{Remote, Row, measure, serve_commands};
pub use source::Pattern;

/// What a carrier's work returns.
pub type CarrierFuture<'a, T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send + 'a>>;

/// A way to get bytes to the other process: one more is one more row.
pub trait Carrier: Send + Sync {
    /// One word, the same in both processes.
    fn name(&self) -> &'static str;

    /// Where the other process finds it, without spaces.
    fn address(&self) -> String;

    /// Sends the first `bytes` of the pattern to the carrier of the same name at `to`, and returns when it has
    /// confirmed their digest. May run several times at once.
    fn send<'a>(&'a self, to: &'a str, bytes: u64) -> CarrierFuture<'a, ()>;
}
