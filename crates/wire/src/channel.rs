//! A channel between two roles: a stream that stays open, on which each side sends frames of messages to the other.
//!
//! The messages of a machine and those on the wire are different types, since an interface between releases must not
//! change because a machine does. A [`Frame`] converts between the two.

use hypha_model::NodeRole;

use crate::codec::Message;

/// Which roles may have a channel with each other, and its messages.
pub trait ChannelProtocol: Send + Sync + 'static {
    /// Its name on the network.
    const NAME: &'static str;
    /// The role that opens it.
    const OPENER: NodeRole;
    /// The role that accepts it, and greets.
    const ACCEPTOR: NodeRole;

    /// What the opener sends.
    type FromOpener: Frame;
    /// What the acceptor sends. An empty frame is the greeting.
    type FromAcceptor: Frame;
}

/// Messages of one direction that are sent together. The default has none.
pub trait Frame: Message + Default + Send + Sync + 'static {
    /// A message, as the machines have it.
    type Item: Send + 'static;
    /// The most messages of a frame.
    const MAX_ITEMS: usize;
    /// The most that [`Frame::bytes_of`] may be.
    const MAX_ITEM_BYTES: usize;

    /// The size of the variable part of a message.
    fn bytes_of(item: &Self::Item) -> usize;

    /// Whether a message may go with the next one, a little later: nothing waits for it.
    fn can_wait(_item: &Self::Item) -> bool {
        false
    }

    /// Adds a message.
    fn push(&mut self, item: Self::Item);

    /// The messages, in order.
    fn into_items(self) -> Vec<Self::Item>;
}
