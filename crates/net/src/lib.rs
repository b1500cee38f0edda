//! The peer network of a node: connections, admission, the directory, requests, channels and bulk transfers.
//!
//! One task drives libp2p ([`driver`]); the rest of the node sends it commands through [`Net`] and receives
//! [`NetEvent`]s. Decisions about work are made elsewhere: this crate only discovers, authenticates and transports.

mod behaviour;
mod bulk;
mod channel;
mod codec;
mod crl_follower;
mod driver;
mod gatekeeper;
mod guard;
mod handle;
mod metrics;
mod muxer;
mod peers;
mod port;
mod probe;
mod rate;
mod record_sets;
mod settings;
mod statement;
mod transport;
mod upgrade;

pub use bulk::{Bulk, BulkCarrier};
pub use channel::{AcceptedChannel, Channel, ChannelReader, ChannelWriter, OpenedChannel};
pub use guard::{Guard, ip_of};
pub use handle::{
    FoundDataset, FoundWorker, Net, NetEvent, Peer, PeerRequest, Publication, Reachability,
    RequestError, StartError, scheduler_id, worker_id,
};
pub use hypha_bulk::{
    Header, Incoming, Limits as BulkLimits, Outgoing, SendError, Sent, Sink, Source,
};
pub use libp2p::{Multiaddr, PeerId, multiaddr};
pub use peers::Link;
pub use probe::{ProbeError, probe};
pub use settings::{Limits, RelayLimits, Settings};
