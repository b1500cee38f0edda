//! Batches the pieces of a streamed result. A source with thousands of pieces ready would fill the channel to its
//! scheduler, which is then closed for all tasks of the worker: pieces that are ready together are sent together.

use hypha_engine::RunId;
use hypha_model::Payload;
use tokio::sync::mpsc;

use super::host::WorkerInput;

/// The first pieces are sent one by one: the client sees them arrive, and a model that generates yields them singly.
const MAX_UNBATCHED_PIECES: usize = 64;

/// The size of a batch: some thousand words, and small enough to be sent at once.
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

    /// Adds the next piece. Call [`PieceBatcher::flush`] as soon as no other is ready.
    pub(super) async fn add(&mut self, piece: &[u8]) {
        self.pending.extend_from_slice(piece);
        self.sent += 1;
        if self.sent <= MAX_UNBATCHED_PIECES || self.pending.len() >= MAX_BATCH_BYTES {
            self.flush().await;
        }
    }

    /// Whether pieces wait to be sent.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    pub(super) async fn flush(&mut self) {
        if self.has_pending() {
            let piece = Payload::from(std::mem::take(&mut self.pending));
            // It fails only when the loop has ended, and with it the worker.
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
