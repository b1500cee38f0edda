//! Bulk transfer: named bytes to a peer, over any stream.
//!
//! A [`Sender`] takes a [`Source`] and a [`Connector`]; a [`Receiver`] is given incoming streams, and passes
//! each new transfer to the application as an [`Incoming`], which is accepted with a [`Sink`] or refused. A transfer
//! outlives its streams: when one breaks or stalls, the sender opens another and resumes after the last chunk that
//! was verified. Bytes reach a sink only after their chunk's digest was checked.
//!
//! This crate does not know the transport of the streams, except [`tcp`], the dedicated connection.

pub mod bench;
mod digest;
mod io;
mod limits;
mod receive;
mod registry;
mod send;
mod sink;
mod source;
pub mod tcp;

pub use digest::ChunkDigests;
pub use hypha_wire::bulk::{
    CHUNK_BYTES, Digest, Header, JobBytes, Refusal, RefusalKind, TransferId,
};
pub use io::{BoxedStream, Stream};
pub use limits::Limits;
pub use receive::{Incoming, ReceiveError, Received, Receiver};
pub use registry::PeerKey;
pub use send::{Connector, Outgoing, SendError, Sender, Sent};
pub use sink::{DiscardSink, FileSink, MemorySink, Sink};
pub use source::{FileSource, Source, SourceReader};
