//! Messages of a task channel on their way out: all that wait go into a frame together, up to a size.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use hypha_engine::{FromWorker, ToWorker};
use hypha_net::ChannelWriter;
use hypha_wire::Message;
use hypha_wire::dispatch::{MAX_MESSAGES, MAX_PAYLOAD_BYTES, Orders, Report, Reports};
use tokio::sync::mpsc;

/// Inputs or results that go into one frame together; a larger one goes alone.
const MAX_TOGETHER_BYTES: usize = 1 << 20;

/// How long a frame may take to be written: a stream that stands still is as good as lost.
const WRITE_WITHIN: Duration = Duration::from_secs(30);

/// A frame of one direction.
pub(crate) trait Frame: Message + Default {
    /// What it is made of.
    type Piece;

    /// The size of what may be large in a piece.
    fn bytes_of(piece: &Self::Piece) -> usize;

    fn add(&mut self, piece: Self::Piece);
}

/// Writes what waits, until nobody can send any more.
pub(crate) async fn write<F: Frame>(
    mut writer: ChannelWriter<F>,
    mut waiting: mpsc::Receiver<F::Piece>,
) -> io::Result<()> {
    let (mut taken, mut left) = (Vec::new(), VecDeque::new());
    loop {
        if left.is_empty() {
            if waiting.recv_many(&mut taken, MAX_MESSAGES).await == 0 {
                return Ok(());
            }
            left.extend(taken.drain(..));
        }
        if let Some(frame) = pack::<F>(&mut left) {
            tokio::time::timeout(WRITE_WITHIN, writer.send(&frame))
                .await
                .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        }
    }
}

/// As many as fit into one frame.
fn pack<F: Frame>(left: &mut VecDeque<F::Piece>) -> Option<F> {
    let mut frame = None;
    let mut together = 0;
    while let Some(piece) = left.pop_front() {
        let bytes = F::bytes_of(&piece);
        if bytes > MAX_PAYLOAD_BYTES {
            // It would end the stream, and with it everybody else's tasks.
            tracing::error!(bytes, "a message is too large to be sent, and is left out");
            continue;
        }
        together += bytes;
        if together > MAX_TOGETHER_BYTES && frame.is_some() {
            left.push_front(piece);
            break;
        }
        frame.get_or_insert_with(F::default).add(piece);
    }
    frame
}

impl Frame for Orders {
    type Piece = ToWorker;

    fn bytes_of(piece: &ToWorker) -> usize {
        match piece {
            ToWorker::Dispatch(dispatch) => dispatch.spec.input.bytes().len(),
            _ => 0,
        }
    }

    fn add(&mut self, piece: ToWorker) {
        self.orders.push(piece.into());
    }
}

impl Frame for Reports {
    type Piece = FromWorker;

    fn bytes_of(piece: &FromWorker) -> usize {
        use hypha_engine::Outcome::Completed;
        match piece {
            FromWorker::Finished { outcome: Completed { result, .. }, .. } => result.bytes().len(),
            FromWorker::Output { piece, .. } => piece.bytes().len(),
            _ => 0,
        }
    }

    fn add(&mut self, piece: FromWorker) {
        self.reports.push(Report::from(piece));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hypha_model::{AttemptId, Fence, Payload, Rng, TaskId, Time};

    fn piece(bytes: usize) -> FromWorker {
        let task = TaskId::new(Time::ZERO, &mut Rng::new(1));
        let attempt = AttemptId { task, number: 1 };
        FromWorker::Output {
            attempt,
            fence: Fence(1),
            piece: Payload::from(vec![0; bytes].as_slice()),
        }
    }

    #[test]
    fn frames_are_filled_up_to_a_size_and_nothing_is_lost_but_what_cannot_be_sent() {
        let sizes = [10, MAX_TOGETHER_BYTES - 10, 1, MAX_PAYLOAD_BYTES, 5, MAX_PAYLOAD_BYTES + 1];
        let mut left: VecDeque<_> = sizes.into_iter().map(piece).collect();
        let mut packed = Vec::new();
        while let Some(frame) = pack::<Reports>(&mut left) {
            let size = |report: &Report| match report {
                Report::Output { piece, .. } => piece.bytes().len(),
                _ => panic!("{report:?}"),
            };
            packed.push(frame.reports.iter().map(size).collect::<Vec<_>>());
        }
        let expected =
            [vec![10, MAX_TOGETHER_BYTES - 10], vec![1], vec![MAX_PAYLOAD_BYTES], vec![5]];
        assert_eq!(packed, expected);
        assert!(left.is_empty());
    }
}
