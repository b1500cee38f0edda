//! Carries messages over a channel to a peer, whatever its protocol: all that wait go into a frame together, up to a size,
//! and what comes in is handed on frame by frame.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use hypha_net::{Channel, ChannelReader, ChannelWriter};
use hypha_wire::Frame;
use tokio::sync::mpsc;

/// Messages that wait for one peer: some for each attempt that can be there, and pieces of results. It is reached only
/// when the stream stands still.
pub(crate) const MAX_QUEUED_MESSAGES: usize = 16_384;

/// What may be large and goes into one frame together; a larger one goes alone.
const MAX_BATCH_BYTES: usize = 1 << 20;

/// How long a frame may take to be written: a stream that stands still is as good as lost.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Writes what waits, and hands what comes to `on_frame`, until the channel ends, nobody can send any more, or `on_frame` says
/// that nobody listens. Returns why it ended.
pub(crate) async fn exchange_messages<W: Frame, R: Frame, T: Future<Output = bool>>(
    channel: Channel<W, R>,
    waiting: mpsc::Receiver<W::Item>,
    on_frame: impl FnMut(Vec<R::Item>) -> T,
) -> String {
    let ended = tokio::select! {
        ended = write(channel.writer, waiting) => ended,
        ended = read(channel.reader, on_frame) => ended,
    };
    ended.err().map_or_else(|| "it was closed".to_owned(), |error| error.to_string())
}

async fn read<R: Frame, T: Future<Output = bool>>(
    mut reader: ChannelReader<R>,
    mut on_frame: impl FnMut(Vec<R::Item>) -> T,
) -> io::Result<()> {
    while let Some(frame) = reader.next().await? {
        if !on_frame(frame.into_items()).await {
            break;
        }
    }
    Ok(())
}

async fn write<W: Frame>(
    mut writer: ChannelWriter<W>,
    mut waiting: mpsc::Receiver<W::Item>,
) -> io::Result<()> {
    let (mut taken, mut left) = (Vec::new(), VecDeque::new());
    loop {
        if left.is_empty() {
            if waiting.recv_many(&mut taken, W::MAX_ITEMS).await == 0 {
                return Ok(());
            }
            left.extend(taken.drain(..));
        }
        if let Some(frame) = pack::<W>(&mut left) {
            tokio::time::timeout(WRITE_TIMEOUT, writer.send(&frame))
                .await
                .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        }
    }
}

/// As many as fit into one frame.
fn pack<W: Frame>(left: &mut VecDeque<W::Item>) -> Option<W> {
    let mut frame = None;
    let mut together = 0;
    while let Some(item) = left.pop_front() {
        let bytes = W::bytes_of(&item);
        if bytes > W::MAX_ITEM_BYTES {
            // It would end the stream, and with it everybody else's tasks.
            tracing::error!(bytes, "a message is too large to be sent; dropped");
            continue;
        }
        together += bytes;
        if together > MAX_BATCH_BYTES && frame.is_some() {
            left.push_front(item);
            break;
        }
        frame.get_or_insert_with(W::default).push(item);
    }
    frame
}

#[cfg(test)]
mod tests {
    use hypha_engine::FromWorker;
    use hypha_model::{AttemptId, Fence, Payload, Rng, TaskId, Time};
    use hypha_wire::dispatch::{MAX_PAYLOAD_BYTES, Report, Reports};

    use super::*;

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
    fn frames_are_packed_up_to_a_size_limit() {
        let sizes = [10, MAX_BATCH_BYTES - 10, 1, MAX_PAYLOAD_BYTES, 5, MAX_PAYLOAD_BYTES + 1];
        let mut left: VecDeque<_> = sizes.into_iter().map(piece).collect();
        let mut packed = Vec::new();
        while let Some(frame) = pack::<Reports>(&mut left) {
            let size = |report: &Report| match report {
                Report::Output { piece, .. } => piece.bytes().len(),
                _ => panic!("{report:?}"),
            };
            packed.push(frame.reports.iter().map(size).collect::<Vec<_>>());
        }
        let expected = [vec![10, MAX_BATCH_BYTES - 10], vec![1], vec![MAX_PAYLOAD_BYTES], vec![5]];
        assert_eq!(packed, expected);
        assert!(left.is_empty());
    }
}
