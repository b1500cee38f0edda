//! The peer network of a node: who is there, who may talk, who offers what, and how bytes get there.
//!
//! One task drives libp2p ([`driver`]); everything else talks to it through [`Net`] and hears of it through
//! [`NetEvent`]s. Decisions about work are made elsewhere: this crate only finds, trusts, asks and carries.

mod behaviour;
mod bulk;
mod channel;
mod codec;
mod driver;
mod figures;
mod gatekeeper;
mod guard;
mod handle;
mod peers;
mod port;
mod probe;
mod rate;
mod settings;
mod shelves;
mod statement;
mod transport;
mod upgrade;

pub use bulk::{Bulk, Carrier};
pub use channel::{Channel, ChannelReader, ChannelWriter, Opened, Taken};
pub use guard::{Guard, ip_of};
pub use handle::{
    AskError, FoundDataset, FoundWorker, Net, NetEvent, Peer, Publication, Question, Reachability,
    StartError, scheduler_id, worker_id,
};
pub use hypha_bulk::{
    Header, Incoming, Limits as BulkLimits, Outgoing, SendError, Sent, Sink, Source,
};
pub use libp2p::{Multiaddr, PeerId, multiaddr};
pub use peers::Link;
pub use probe::{ProbeError, probe};
pub use settings::{Limits, RelayLimits, Settings};
