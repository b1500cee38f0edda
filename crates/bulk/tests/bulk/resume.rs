//! How transfers resume after faults, and at what cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hypha_bulk::{
    BoxedStream, CHUNK_BYTES, ChunkDigests, Digest, FileSink, FileSource, Limits, SendError,
    Sender, Source, SourceReader,
};
use hypha_wire::bulk::OpenResponse;
use tokio_util::sync::CancellationToken;

use crate::faults::Fault;
use crate::world::{ComparingSink, ScriptedSink, Side, limits, outgoing, pattern};

const CHUNK: u64 = CHUNK_BYTES as u64;

fn digest_of(bytes: &[u8]) -> Digest {
    Digest(*blake3::hash(bytes).as_bytes())
}

#[tokio::test(start_paused = true)]
async fn every_length_arrives() {
    for length in [0, 1, 1024, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES] {
        for promised in [false, true] {
            let (side, mut incoming) = Side::pipe(limits());
            let bytes = pattern(length);
            let mut outgoing = outgoing("x", length);
            outgoing.header.digest = promised.then(|| digest_of(&bytes));
            let sender = Sender::new(limits());
            let send = sender.send(side.connector(|_| Fault::None), outgoing, bytes.clone());
            let receive = async {
                incoming.recv().await.unwrap().accept(ComparingSink::new(bytes.clone())).await
            };
            let (sent, received) = tokio::join!(send, receive);
            let sent = sent.unwrap();
            assert_eq!((sent.streams, sent.bytes_sent), (1, length as u64));
            assert_eq!(sent.digest, digest_of(&bytes));
            assert_eq!(received.unwrap().digest, sent.digest);
        }
    }
}

/// After a loss only unverified bytes are sent again.
#[tokio::test(start_paused = true)]
async fn a_transfer_resumes_after_the_last_verified_chunk() {
    for fault in [Fault::Cut { after: 5 * CHUNK }, Fault::Stall { after: 5 * CHUNK }] {
        let (side, mut incoming) = Side::pipe(limits());
        let bytes = pattern(10 * CHUNK_BYTES);
        let connector = side.connector(move |stream| match stream {
            0 => fault,
            _ => Fault::None,
        });
        let sender = Sender::new(limits());
        let send = sender.send(connector, outgoing("x", bytes.len()), bytes.clone());
        let receive = async {
            incoming.recv().await.unwrap().accept(ComparingSink::new(bytes.clone())).await
        };
        let (sent, received) = tokio::join!(send, receive);
        let sent = sent.unwrap();
        assert_eq!(received.unwrap().streams, 2);
        assert_eq!(sent.streams, 2);
        // Four chunks arrived whole; the fifth did not.
        assert_eq!(sent.bytes_sent, 4 * CHUNK + 6 * CHUNK, "{fault:?}");
    }
}

/// Stalls and losses as often as there are chunks: each stream makes progress by one.
#[tokio::test(start_paused = true)]
async fn only_attempts_without_progress_are_counted() {
    let (side, mut incoming) = Side::pipe(limits());
    let few = Limits { max_attempts: 2, ..limits() };
    let bytes = pattern(30 * CHUNK_BYTES);
    let connector = side.connector(|_| Fault::Cut { after: CHUNK + CHUNK / 2 });
    let sender = Sender::new(few);
    let send = sender.send(connector, outgoing("x", bytes.len()), bytes.clone());
    let receive =
        async { incoming.recv().await.unwrap().accept(ComparingSink::new(bytes.clone())).await };
    let (sent, received) = tokio::join!(send, receive);
    assert!(sent.unwrap().streams >= 30);
    received.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_stream_is_given_up() {
    let (side, mut incoming) = Side::pipe(limits());
    let bytes = pattern(CHUNK_BYTES);
    let (opened, real) = (AtomicU64::new(0), Arc::new(side.connector(|_| Fault::None)));
    let connector = move || {
        let (number, real) = (opened.fetch_add(1, Ordering::Relaxed), Arc::clone(&real));
        async move {
            match number {
                // The other end is never read, and stays open.
                0..3 => {
                    let (near, far) = tokio::io::duplex(1 << 20);
                    std::mem::forget(far);
                    Ok(Box::new(near) as BoxedStream)
                }
                _ => hypha_bulk::Connector::connect(&*real).await,
            }
        }
    };
    let sender = Sender::new(limits());
    let send = sender.send(connector, outgoing("x", bytes.len()), bytes.clone());
    let receive =
        async { incoming.recv().await.unwrap().accept(ComparingSink::new(bytes.clone())).await };
    let (sent, received) = tokio::join!(send, receive);
    assert_eq!(sent.unwrap().streams, 4);
    assert_eq!(received.unwrap().streams, 1);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_chunk_is_sent_again_and_never_reaches_the_sink() {
    let (side, mut incoming) = Side::pipe(limits());
    let bytes = pattern(4 * CHUNK_BYTES);
    let connector = side.connector(|stream| match stream {
        0 => Fault::Flip { at: CHUNK + CHUNK / 2 },
        _ => Fault::None,
    });
    let sender = Sender::new(limits());
    let send = sender.send(connector, outgoing("x", bytes.len()), bytes.clone());
    let receive =
        async { incoming.recv().await.unwrap().accept(ComparingSink::new(bytes.clone())).await };
    let (sent, received) = tokio::join!(send, receive);
    assert_eq!(sent.unwrap().streams, 2);
    received.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_link_that_damages_everything_is_given_up_with_the_reason() {
    let (side, mut incoming) = Side::pipe(limits());
    let bytes = pattern(4 * CHUNK_BYTES);
    let connector = side.connector(|_| Fault::Flip { at: CHUNK / 2 });
    let sender = Sender::new(Limits { max_attempts: 4, ..limits() });
    let sink = ScriptedSink::new();
    let send = sender.send(connector, outgoing("x", bytes.len()), bytes);
    let receive = async { incoming.recv().await.unwrap().accept(sink.clone()).await };
    let (sent, received) = tokio::join!(send, receive);
    let error = sent.unwrap_err().to_string();
    assert!(error.contains("4 attempts") && error.contains("damaged"), "{error}");
    let error = received.map(drop).unwrap_err().to_string();
    assert!(error.contains("did not reconnect") && error.contains("damaged"), "{error}");
    assert_eq!(sink.held(), 0);
    assert_eq!(*sink.abandoned.lock().unwrap(), Some(true));
}

/// A slow disk on either side is not a stall, however long it takes.
#[tokio::test(start_paused = true)]
async fn slow_is_not_stalled() {
    let pause = limits().stall_timeout * 10;
    for (slow_sink, slow_source) in [(true, false), (false, true), (true, true)] {
        let (side, mut incoming) = Side::pipe(limits());
        let bytes = pattern(5 * CHUNK_BYTES + 1);
        let mut sink = ScriptedSink::new();
        sink.pause = if slow_sink { pause } else { Duration::ZERO };
        let source = SlowSource {
            bytes: bytes.clone(),
            pause: if slow_source { pause } else { Duration::ZERO },
        };
        let sender = Sender::new(limits());
        let connector = side.connector(|_| Fault::None);
        let send = sender.send(connector, outgoing("x", bytes.len()), source);
        let receive = async { incoming.recv().await.unwrap().accept(sink.clone()).await };
        let (sent, received) = tokio::join!(send, receive);
        assert_eq!((sent.unwrap().streams, received.unwrap().streams), (1, 1));
        assert!(*sink.got.lock().unwrap() == bytes);
    }
}

#[derive(Clone)]
struct SlowSource {
    bytes: Bytes,
    pause: Duration,
}

impl Source for SlowSource {
    type Reader = SlowSource;
    fn length(&self) -> u64 {
        self.bytes.len() as u64
    }
    async fn open(&self, offset: u64) -> std::io::Result<SlowSource> {
        tokio::time::sleep(self.pause).await;
        Ok(SlowSource { bytes: self.bytes.slice(offset as usize..), pause: self.pause })
    }
}

impl SourceReader for SlowSource {
    async fn next(&mut self, length: usize) -> std::io::Result<Bytes> {
        tokio::time::sleep(self.pause).await;
        Ok(self.bytes.split_to(length))
    }
}

/// The sink gets all bytes once, though the sender opens the transfer twice.
#[tokio::test(start_paused = true)]
async fn a_lost_receipt_is_sent_again() {
    let (side, mut incoming) = Side::pipe(limits());
    let bytes = pattern(2 * CHUNK_BYTES);
    // The receipt follows these.
    let mut before = Vec::new();
    hypha_wire::put_frame(&mut before, &OpenResponse::Acknowledged).unwrap();
    hypha_wire::put_frame(&mut before, &OpenResponse::Accept { offset: 0 }).unwrap();
    let connector = side.connector(move |stream| match stream {
        0 => Fault::Deaf { after: before.len() as u64 },
        _ => Fault::None,
    });
    let sender = Sender::new(limits());
    let send = sender.send(connector, outgoing("x", bytes.len()), bytes.clone());
    let receive =
        async { incoming.recv().await.unwrap().accept(ComparingSink::new(bytes.clone())).await };
    let (sent, received) = tokio::join!(send, receive);
    let sent = sent.unwrap();
    assert_eq!((sent.streams, sent.bytes_sent), (2, 2 * CHUNK));
    let received = received.unwrap();
    assert_eq!((received.streams, received.sink.finished()), (1, 1));
    assert!(incoming.try_recv().is_err(), "it arrived twice");
}

#[tokio::test(start_paused = true)]
async fn bytes_that_change_between_two_streams_are_noticed() {
    struct Changing(Bytes, AtomicU64);
    impl Source for Changing {
        type Reader = Bytes;
        fn length(&self) -> u64 {
            self.0.len() as u64
        }
        async fn open(&self, offset: u64) -> std::io::Result<Bytes> {
            let mut bytes = self.0.to_vec();
            bytes.iter_mut().for_each(|byte| *byte ^= self.1.load(Ordering::Relaxed) as u8);
            self.1.fetch_add(1, Ordering::Relaxed);
            Ok(Bytes::from(bytes).slice(offset as usize..))
        }
    }
    let (side, mut incoming) = Side::pipe(limits());
    let bytes = pattern(4 * CHUNK_BYTES);
    let connector = side.connector(|stream| match stream {
        0 => Fault::Cut { after: CHUNK + CHUNK / 2 },
        _ => Fault::None,
    });
    let sender = Sender::new(limits());
    let source = Changing(bytes.clone(), AtomicU64::new(0));
    let send = sender.send(connector, outgoing("x", bytes.len()), source);
    let receive = async { incoming.recv().await.unwrap().accept(ScriptedSink::new()).await };
    let (sent, received) = tokio::join!(send, receive);
    assert!(matches!(sent, Err(SendError::Changed)), "{sent:?}");
    assert!(received.map(drop).unwrap_err().to_string().contains("changed"));
}

/// A file that another process began is resumed, with and without a promised digest.
#[tokio::test]
async fn a_file_transfer_resumes_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let bytes = pattern(5 * CHUNK_BYTES + 9);
    let source = directory.path().join("source");
    std::fs::write(&source, &bytes).unwrap();
    for promised in [false, true] {
        let target = directory.path().join(format!("target-{promised}"));
        let part = target.with_extension("part");
        std::fs::write(&part, &bytes[..3 * CHUNK_BYTES + 17]).unwrap();

        let (side, mut incoming) = Side::pipe(limits());
        let mut outgoing = outgoing("x", bytes.len());
        outgoing.header.digest = promised.then(|| digest_of(&bytes));
        let sender = Sender::new(limits());
        let connector = side.connector(|_| Fault::None);
        let source = FileSource::new(&source).await.unwrap();
        let send = sender.send(connector, outgoing, source);
        let receive = async {
            let incoming = incoming.recv().await.unwrap();
            let (sink, held) = FileSink::open(&target, incoming.header().length).await.unwrap();
            assert_eq!(held.bytes(), 3 * CHUNK);
            incoming.accept_from(sink, held, CancellationToken::new()).await
        };
        let (sent, received) = tokio::join!(send, receive);
        let sent = sent.unwrap();
        assert_eq!((sent.bytes_sent, sent.digest), (2 * CHUNK + 9, digest_of(&bytes)));
        received.unwrap();
        assert!(std::fs::read(&target).unwrap() == bytes);
        assert!(!part.exists());
    }
}

/// The held bytes turn out to be of another transfer: none of them are kept.
#[tokio::test]
async fn held_bytes_of_another_transfer_are_discarded() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("target");
    let part = target.with_extension("part");
    std::fs::write(&part, vec![1; 2 * CHUNK_BYTES]).unwrap();
    let bytes = pattern(4 * CHUNK_BYTES);
    let (side, mut incoming) = Side::pipe(limits());
    let sender = Sender::new(limits());
    let connector = side.connector(|_| Fault::None);
    let send = sender.send(connector, outgoing("x", bytes.len()), bytes);
    let receive = async {
        let incoming = incoming.recv().await.unwrap();
        let (sink, held) = FileSink::open(&target, incoming.header().length).await.unwrap();
        incoming.accept_from(sink, held, CancellationToken::new()).await
    };
    let (sent, received) = tokio::join!(send, receive);
    assert!(sent.unwrap_err().to_string().contains("digest"));
    assert!(received.map(drop).unwrap_err().to_string().contains("was promised"));
    assert!(!part.exists() && !target.exists());
}

#[tokio::test(start_paused = true)]
async fn a_transfer_resumes_only_from_whole_chunks() {
    let (side, mut incoming) = Side::pipe(limits());
    let bytes = pattern(4 * CHUNK_BYTES);
    let held = ChunkDigests::of_reader(&bytes[..10], 10).await.unwrap();
    let sender = Sender::new(limits());
    let connector = side.connector(|_| Fault::None);
    let send = sender.send(connector, outgoing("x", bytes.len()), bytes);
    let receive = async {
        let incoming = incoming.recv().await.unwrap();
        incoming.accept_from(ScriptedSink::new(), held, CancellationToken::new()).await
    };
    let (sent, received) = tokio::join!(send, receive);
    assert!(matches!(sent, Err(SendError::Refused(_))), "{sent:?}");
    assert!(received.is_err());
}
