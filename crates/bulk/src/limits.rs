//! Every bound of a transfer.

use std::time::Duration;

/// The bounds of transfers. The defaults suit links between continents; tests use shorter times.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Until a stream is there and the other side has said that it heard. Several round trips of a slow link.
    pub open_within: Duration,
    /// Until the receiving application has decided. It may look at a disk first, but not wait for a person.
    pub decide_within: Duration,
    /// Without a byte for this long, a stream counts as broken. It is noticed before twice this time has passed.
    /// Longer than TCP needs to recover from a burst of loss.
    pub stall_after: Duration,
    /// The longest that one read of a source or one write to a sink may take. A disk that needs longer has failed.
    pub step_within: Duration,
    /// How long a receiver keeps a transfer whose stream broke. Above the longest pause between two tries.
    pub resume_within: Duration,
    /// Streams in a row that brought not one chunk further, before the sender gives up.
    pub tries: u32,
    /// The pause before the second try. It doubles with each, and a random part of it is taken off.
    pub backoff_first: Duration,
    /// The longest pause between two tries.
    pub backoff_most: Duration,
    /// How long a sender keeps asking a receiver that is busy. A round's uploads drain within this time.
    pub busy_within: Duration,
    /// What a busy receiver asks a sender to wait.
    pub busy_pause: Duration,
    /// How long one side waits for the other's last message when it ends a transfer early.
    pub last_word: Duration,
    /// Transfers from one peer at once, decided and undecided: a job needs a handful.
    pub inbound_per_peer: usize,
    /// Transfers from all peers at once. Each has a buffer of one chunk, so this is 64 MiB.
    pub inbound_total: usize,
    /// Transfers that wait for the application to take them.
    pub undecided: usize,
    /// Streams that have not said yet what they carry.
    pub openings: usize,
    /// Ended transfers that are remembered, so that a sender that missed the receipt learns of it.
    pub remembered: usize,
    /// For how long they are. Above the time in which a sender gives up.
    pub remember_for: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            open_within: Duration::from_secs(10),
            decide_within: Duration::from_secs(30),
            stall_after: Duration::from_secs(15),
            step_within: Duration::from_secs(120),
            resume_within: Duration::from_secs(60),
            tries: 8,
            backoff_first: Duration::from_millis(100),
            backoff_most: Duration::from_secs(10),
            busy_within: Duration::from_secs(600),
            busy_pause: Duration::from_millis(500),
            last_word: Duration::from_secs(2),
            inbound_per_peer: 32,
            inbound_total: 256,
            undecided: 64,
            openings: 64,
            remembered: 4096,
            remember_for: Duration::from_secs(600),
        }
    }
}

impl Limits {
    /// How often a side that waits for its own disk says that it is still there.
    pub(crate) fn alive_every(&self) -> Duration {
        self.stall_after / 3
    }
}
