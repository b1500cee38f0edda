//! Every bound of a transfer.

use std::time::Duration;

/// The bounds of transfers. The defaults suit links between continents; tests use shorter times.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Until a stream is open and the other side has acknowledged it. Several round trips of a slow link.
    pub open_timeout: Duration,
    /// Until the receiving application has decided. It may read a disk first, but not wait for a person.
    pub decision_timeout: Duration,
    /// Without a byte for this long, a stream counts as broken. It is noticed before twice this time has passed.
    /// Longer than TCP needs to recover from a burst of loss.
    pub stall_timeout: Duration,
    /// The longest that one read of a source or one write to a sink may take. A slower disk counts as failed.
    pub io_timeout: Duration,
    /// How long a receiver keeps a transfer whose stream broke. Above the longest backoff between two attempts.
    pub resume_timeout: Duration,
    /// Streams in a row that made no progress, not even one chunk, before the sender gives up.
    pub max_attempts: u32,
    /// The backoff before the second attempt. It doubles with each, less a random part.
    pub backoff_initial: Duration,
    /// The longest backoff between two attempts.
    pub backoff_max: Duration,
    /// How long a sender keeps retrying a busy receiver. A round's uploads drain within this time.
    pub busy_timeout: Duration,
    /// The retry delay that a busy receiver sends to a sender.
    pub busy_retry_after: Duration,
    /// How long one side waits for the other's last message when it ends a transfer early.
    pub close_timeout: Duration,
    /// Transfers from one peer at once, decided and undecided: a job needs a handful.
    pub inbound_per_peer: usize,
    /// Transfers from all peers at once. Each has a buffer of one chunk, so this is 64 MiB.
    pub inbound_total: usize,
    /// Transfers that wait for the application to accept them.
    pub undecided: usize,
    /// Streams that have not identified their transfer yet.
    pub openings: usize,
    /// Ended transfers that are remembered, so that a sender that missed the receipt gets it.
    pub remembered: usize,
    /// How long they are remembered. Above the time in which a sender gives up.
    pub remember_for: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            open_timeout: Duration::from_secs(10),
            decision_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(15),
            io_timeout: Duration::from_secs(120),
            resume_timeout: Duration::from_secs(60),
            max_attempts: 8,
            backoff_initial: Duration::from_millis(100),
            backoff_max: Duration::from_secs(10),
            busy_timeout: Duration::from_secs(600),
            busy_retry_after: Duration::from_millis(500),
            close_timeout: Duration::from_secs(2),
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
    /// How often a side that waits for its own disk sends a keep-alive.
    pub(crate) fn keep_alive_interval(&self) -> Duration {
        self.stall_timeout / 3
    }
}
