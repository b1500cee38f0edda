//! Exchanges messages with a peer over a channel of any protocol. Queued messages are sent together in one frame, up to
//! a size; received messages are passed on frame by frame.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use hypha_net::{Channel, ChannelReader, ChannelWriter};
use hypha_wire::Frame;
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep, sleep};

/// Messages queued for one peer: several for each attempt that can be there, and pieces of results. The limit is
/// reached only when the stream stalls.
pub(crate) const MAX_QUEUED_MESSAGES: usize = 16_384;

/// The total size of the variable parts of the messages in one frame; a larger message is sent alone.
const MAX_BATCH_BYTES: usize = 1 << 20;

/// How long the write of a frame may take: a stream that stalls for longer is treated as lost.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a deferrable message waits for another: long enough that, under load, it leaves with the next, and far
/// shorter than the time after which its receiver repeats the report that it acknowledges.
const MAX_DELAY: Duration = Duration::from_millis(20);

/// Writes queued messages and passes received ones to `on_frame`, until the channel ends, all senders are dropped, or
/// `on_frame` returns false. Returns why it ended.
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
    waiting: mpsc::Receiver<W::Item>,
) -> io::Result<()> {
    let mut outgoing = Outgoing::<W>::new(waiting);
    while let Some(frame) = outgoing.next().await {
        tokio::time::timeout(WRITE_TIMEOUT, writer.send(&frame))
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    }
    Ok(())
}

/// Messages that are queued to be sent.
struct Outgoing<W: Frame> {
    waiting: mpsc::Receiver<W::Item>,
    taken: Vec<W::Item>,
    left: VecDeque<W::Item>,
    /// When deferrable messages are sent even if no other message comes. It is not cancelled when they leave sooner: it
    /// would be set again for nearly every frame.
    timer: Pin<Box<Sleep>>,
    is_timed: bool,
}

impl<W: Frame> Outgoing<W> {
    fn new(waiting: mpsc::Receiver<W::Item>) -> Outgoing<W> {
        let (taken, left) = (Vec::new(), VecDeque::new());
        Outgoing { waiting, taken, left, timer: Box::pin(sleep(MAX_DELAY)), is_timed: false }
    }

    /// The next frame; `None` when all senders are dropped and nothing is left.
    async fn next(&mut self) -> Option<W> {
        loop {
            while self.left.len() < W::MAX_ITEMS && self.left.iter().all(W::can_wait) {
                if !self.take_more().await {
                    break;
                }
            }
            if self.left.is_empty() {
                return None;
            }
            if let Some(frame) = pack::<W>(&mut self.left) {
                return Some(frame);
            }
        }
    }

    /// Waits for messages. Returns whether deferrable messages may wait longer.
    async fn take_more(&mut self) -> bool {
        if !self.left.is_empty() && !self.is_timed {
            self.timer.as_mut().reset(Instant::now() + MAX_DELAY);
            self.is_timed = true;
        }
        let room = W::MAX_ITEMS - self.left.len();
        tokio::select! {
            biased;
            count = self.waiting.recv_many(&mut self.taken, room) => {
                self.left.extend(self.taken.drain(..));
                count > 0
            }
            () = self.timer.as_mut(), if self.is_timed => {
                self.is_timed = false;
                self.left.is_empty()
            }
        }
    }
}

/// Packs as many messages as fit into one frame.
fn pack<W: Frame>(left: &mut VecDeque<W::Item>) -> Option<W> {
    let mut frame = None;
    let mut together = 0;
    while let Some(item) = left.pop_front() {
        let bytes = W::bytes_of(&item);
        if bytes > W::MAX_ITEM_BYTES {
            // Sending it would end the stream, and with it all other tasks of the peer.
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
    use hypha_engine::{FromWorker, ToWorker};
    use hypha_model::{AttemptId, Fence, Payload, Rng, TaskId, Time};
    use hypha_wire::dispatch::{MAX_PAYLOAD_BYTES, Orders, Report, Reports};

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

    #[tokio::test(start_paused = true)]
    async fn deferrable_messages_go_with_the_next_message_or_after_a_delay() {
        let task = TaskId::new(Time::ZERO, &mut Rng::new(1));
        let (attempt, fence) = (AttemptId { task, number: 1 }, Fence(1));
        let (recorded, cancel) =
            (ToWorker::Recorded { attempt, fence }, ToWorker::Cancel { attempt, fence });
        let (messages, waiting) = mpsc::channel(8);
        let mut outgoing = Outgoing::<Orders>::new(waiting);
        let began = Instant::now();
        for message in [&recorded, &cancel, &recorded] {
            messages.send(message.clone()).await.unwrap();
        }
        let items = |frame: Option<Orders>| frame.unwrap().into_items();
        let together = [recorded.clone(), cancel.clone(), recorded.clone()];
        assert_eq!(items(outgoing.next().await), together);
        assert_eq!(began.elapsed(), Duration::ZERO);
        messages.send(recorded.clone()).await.unwrap();
        let soon = tokio::time::timeout(MAX_DELAY / 2, outgoing.next()).await;
        assert!(soon.is_err(), "a deferrable message waits");
        assert_eq!(items(outgoing.next().await), std::slice::from_ref(&recorded));
        assert!(began.elapsed() >= MAX_DELAY);
        messages.send(recorded.clone()).await.unwrap();
        drop(messages);
        assert_eq!(items(outgoing.next().await), [recorded]);
        assert!(outgoing.next().await.is_none());
    }
}
