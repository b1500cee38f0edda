//! Pieces of a result on their way to the loop. A source that has thousands at hand would fill the channel to its
//! scheduler, which is closed then, for all tasks of the worker: what need not wait for each other goes together.

use hypha_engine::RunId;
use hypha_model::Payload;
use tokio::sync::mpsc;

use super::host::WorkerInput;

/// So many pieces go one by one. Whoever watches sees them come, and a model that speaks gives them singly anyway.
const MAX_UNBATCHED_PIECES: usize = 64;

/// Bytes that go together: some thousand words, and few enough to be sent at once.
const MAX_BATCH_BYTES: usize = 64 << 10;

/// The pieces of one run.
pub(super) struct PieceBatcher<'a> {
    id: RunId,
    events: &'a mpsc::Sender<WorkerInput>,
    sent: usize,
    pending: Vec<u8>,
}

impl PieceBatcher<'_> {
    pub(super) fn new(id: RunId, events: &mpsc::Sender<WorkerInput>) -> PieceBatcher<'_> {
        PieceBatcher { id, events, sent: 0, pending: Vec::new() }
    }

    /// Takes the next piece. Call [`PieceBatcher::flush`] as soon as there is not another at hand.
    pub(super) async fn add(&mut self, piece: &[u8]) {
        self.pending.extend_from_slice(piece);
        self.sent += 1;
        if self.sent <= MAX_UNBATCHED_PIECES || self.pending.len() >= MAX_BATCH_BYTES {
            self.flush().await;
        }
    }

    /// Whether something waits for more.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    pub(super) async fn flush(&mut self) {
        if self.has_pending() {
            let piece = Payload::from(std::mem::take(&mut self.pending));
            // Without the loop the worker is at its end.
            let _ = self.events.send(WorkerInput::Output(self.id, piece)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use hypha_model::{Fence, SchedulerId};

    use super::*;

    #[tokio::test]
    async fn many_pieces_go_in_few_messages_and_in_order() {
        let (events, mut taken) = mpsc::channel(50_001);
        let id = RunId { scheduler: SchedulerId::LOCAL, fence: Fence(1) };
        let mut batcher = PieceBatcher::new(id, &events);
        let words: Vec<String> = (0..50_000).map(|number| format!("word-{number} ")).collect();
        for word in &words {
            batcher.add(word.as_bytes()).await;
        }
        assert!(batcher.has_pending());
        batcher.flush().await;
        batcher.flush().await;
        drop(events);
        let mut pieces = Vec::new();
        while let Some(WorkerInput::Output(_, piece)) = taken.recv().await {
            pieces.push(piece.bytes().to_vec());
        }
        let first: Vec<_> =
            words[..MAX_UNBATCHED_PIECES].iter().map(|word| word.as_bytes()).collect();
        assert_eq!(pieces[..MAX_UNBATCHED_PIECES], first);
        assert!(pieces.len() < 100, "{} messages", pieces.len());
        assert!(pieces.concat() == words.concat().into_bytes());
    }
}
