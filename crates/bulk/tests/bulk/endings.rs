//! Every way in which a transfer ends before all bytes have arrived: both sides get the reason.

use std::time::Duration;

use bytes::Bytes;
use hypha_bulk::{CHUNK_BYTES, Digest, Header, Limits, ReceiveError, SendError, Sender, Source};
use hypha_wire::bulk::{ChunkHead, ControlMessage, Open, TransferId};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::faults::Fault;
use crate::world::{ComparingSink, ScriptedSink, Side, header, limits, outgoing, pattern};

/// "Promptly" in paused time: well below the time after which a lost peer is given up.
const PROMPTLY: Duration = Duration::from_secs(2);

fn bytes() -> Bytes {
    pattern(20 * CHUNK_BYTES)
}

#[tokio::test(start_paused = true)]
async fn a_refusal_reaches_the_sender_with_its_reason() {
    let (side, mut incoming) = Side::pipe(limits());
    let sender = Sender::new(limits());
    let connector = side.connector(|_| Fault::None);
    let send = sender.send(connector, outgoing("x", bytes().len()), bytes());
    let refuse = async { incoming.recv().await.unwrap().refuse("round 1 is closed").await };
    let (sent, ()) = tokio::join!(send, refuse);
    let error = sent.unwrap_err();
    assert!(matches!(&error, SendError::Refused(reason) if reason == "round 1 is closed"));
}

#[tokio::test(start_paused = true)]
async fn an_undecided_transfer_is_refused() {
    let (side, mut incoming) = Side::pipe(limits());
    let sender = Sender::new(limits());
    let connector = side.connector(|_| Fault::None);
    let send = sender.send(connector, outgoing("x", bytes().len()), bytes());
    let ignore = async { drop(incoming.recv().await.unwrap()) };
    let (sent, ()) = timeout(PROMPTLY, async { tokio::join!(send, ignore) }).await.unwrap();
    assert!(matches!(sent, Err(SendError::Ended(_))), "{sent:?}");
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_ends_both_sides() {
    let (side, mut incoming) = Side::pipe(limits());
    let sender = Sender::new(limits());
    let mut sink = ScriptedSink::new();
    sink.fails_after = Some(3 * CHUNK_BYTES);
    let connector = side.connector(|_| Fault::None);
    let send = sender.send(connector, outgoing("x", bytes().len()), bytes());
    let receive = async { incoming.recv().await.unwrap().accept(sink.clone()).await };
    let (sent, received) = tokio::join!(send, receive);
    let error = sent.unwrap_err();
    assert!(matches!(&error, SendError::Ended(_)) && error.to_string().contains("no space left"));
    assert!(matches!(received, Err(ReceiveError::Sink(_))));
    assert_eq!(*sink.abandoned.lock().unwrap(), Some(false));
}

#[tokio::test(start_paused = true)]
async fn a_source_that_fails_ends_both_sides() {
    struct Broken(u64);
    impl Source for Broken {
        type Reader = Bytes;
        fn length(&self) -> u64 {
            self.0
        }
        async fn open(&self, _: u64) -> std::io::Result<Bytes> {
            Ok(pattern(2 * CHUNK_BYTES))
        }
    }
    let (side, mut incoming) = Side::pipe(limits());
    let sender = Sender::new(limits());
    let length = 4 * CHUNK_BYTES;
    let connector = side.connector(|_| Fault::None);
    let send = sender.send(connector, outgoing("x", length), Broken(length as u64));
    let receive = async { incoming.recv().await.unwrap().accept(ScriptedSink::new()).await };
    let (sent, received) = tokio::join!(send, receive);
    assert!(matches!(sent, Err(SendError::Source(_))), "{sent:?}");
    assert!(matches!(received, Err(ReceiveError::Stopped(_))));
}

/// How the sender ends it.
#[derive(Clone, Copy, Debug)]
enum Ending {
    Token,
    Drop,
}

/// Waits until some bytes have arrived, so that the transfer ends in the middle.
async fn arrived(sink: &ScriptedSink) {
    while sink.held() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_sender_that_cancels_notifies_the_receiver() {
    for ending in [Ending::Token, Ending::Drop] {
        let (side, mut incoming) = Side::pipe(limits());
        let mut sink = ScriptedSink::new();
        sink.pause = Duration::from_millis(10);
        let outgoing = outgoing("x", bytes().len());
        let cancel = outgoing.cancel.clone();
        let connector = side.connector(|_| Fault::None);
        let sending =
            tokio::spawn(
                async move { Sender::new(limits()).send(connector, outgoing, bytes()).await },
            );
        let incoming = incoming.recv().await.unwrap();
        let receiving = tokio::spawn(incoming.accept(sink.clone()));
        arrived(&sink).await;
        match ending {
            Ending::Token => cancel.cancel(),
            Ending::Drop => sending.abort(),
        }
        let received = timeout(PROMPTLY, receiving).await.unwrap().unwrap();
        assert!(matches!(&received, Err(ReceiveError::Stopped(_))), "{ending:?}");
        assert_eq!(*sink.abandoned.lock().unwrap(), Some(false));
        if let Ok(sent) = timeout(PROMPTLY, sending).await.unwrap() {
            assert!(matches!(sent, Err(SendError::Cancelled)), "{sent:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_cancels_notifies_the_sender() {
    for ending in [Ending::Token, Ending::Drop] {
        let (side, mut incoming) = Side::pipe(limits());
        let mut sink = ScriptedSink::new();
        sink.pause = Duration::from_millis(10);
        let connector = side.connector(|_| Fault::None);
        let sending = tokio::spawn(async move {
            Sender::new(limits()).send(connector, outgoing("x", bytes().len()), bytes()).await
        });
        let incoming = incoming.recv().await.unwrap();
        let cancel = CancellationToken::new();
        let accept = incoming.accept_from(sink.clone(), Default::default(), cancel.clone());
        let receiving = tokio::spawn(accept);
        arrived(&sink).await;
        match ending {
            Ending::Token => cancel.cancel(),
            Ending::Drop => receiving.abort(),
        }
        let sent = timeout(PROMPTLY, sending).await.unwrap().unwrap();
        assert!(matches!(&sent, Err(SendError::Ended(_))), "{ending:?} {sent:?}");
        if let Ok(received) = timeout(PROMPTLY, receiving).await.unwrap() {
            assert!(matches!(received, Err(ReceiveError::Cancelled)));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn cancelling_before_the_receiver_has_decided_ends_it_too() {
    let (side, mut incoming) = Side::pipe(limits());
    let outgoing = outgoing("x", bytes().len());
    let cancel = outgoing.cancel.clone();
    let connector = side.connector(|_| Fault::None);
    let sending =
        tokio::spawn(async move { Sender::new(limits()).send(connector, outgoing, bytes()).await });
    let incoming = incoming.recv().await.unwrap();
    cancel.cancel();
    let received = timeout(PROMPTLY, incoming.accept(ScriptedSink::new())).await.unwrap();
    assert!(matches!(received, Err(ReceiveError::Stopped(_))));
    assert!(matches!(sending.await.unwrap(), Err(SendError::Cancelled)));
}

/// One slot and three transfers: each gets it in turn.
#[tokio::test(start_paused = true)]
async fn a_busy_receiver_is_retried() {
    let limits = Limits { inbound_per_peer: 1, ..limits() };
    let (side, mut incoming) = Side::pipe(limits.clone());
    let mut sending = Vec::new();
    for name in ["a", "b", "c"] {
        let (sender, connector) = (Sender::new(limits.clone()), side.connector(|_| Fault::None));
        sending.push(tokio::spawn(async move {
            sender.send(connector, outgoing(name, bytes().len()), bytes()).await
        }));
    }
    for _ in 0..3 {
        incoming.recv().await.unwrap().accept(ComparingSink::new(bytes())).await.unwrap();
    }
    for sent in sending {
        sent.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_stays_busy_is_given_up() {
    let limits = Limits { inbound_per_peer: 0, ..limits() };
    let (side, _incoming) = Side::pipe(limits.clone());
    let connector = side.connector(|_| Fault::None);
    let sent = Sender::new(limits).send(connector, outgoing("x", bytes().len()), bytes()).await;
    assert!(matches!(sent, Err(SendError::Busy(_))), "{sent:?}");
}

/// A sender notices itself that its bytes do not match the promised digest; the receiver notices a dishonest one.
#[tokio::test(start_paused = true)]
async fn a_wrong_digest_in_the_header_fails_the_transfer() {
    let wrong = Digest([7; 32]);
    let (side, mut incoming) = Side::pipe(limits());
    let mut honest = outgoing("x", bytes().len());
    honest.header.digest = Some(wrong);
    let connector = side.connector(|_| Fault::None);
    let sender = Sender::new(limits());
    let send = sender.send(connector, honest, bytes());
    let receive = async { incoming.recv().await.unwrap().accept(ScriptedSink::new()).await };
    let (sent, received) = tokio::join!(send, receive);
    assert!(matches!(sent, Err(SendError::Changed)), "{sent:?}");
    assert!(matches!(received, Err(ReceiveError::Stopped(_))));

    for (promised, at_the_end) in [(Some(wrong), wrong), (None, wrong)] {
        let header = Header { digest: promised, ..header("x", 5) };
        let received = dishonest(header, b"bytes", at_the_end).await;
        assert!(
            matches!(received, Err(ReceiveError::Digest { promised, .. }) if promised == wrong)
        );
    }
}

/// A peer that sends arbitrary content in valid frames.
async fn dishonest(header: Header, chunk: &[u8], end: Digest) -> Result<(), ReceiveError> {
    use blake3::hazmat::HasherExt;
    use tokio::io::AsyncWriteExt;
    let (side, mut incoming) = Side::pipe(limits());
    let mut stream =
        hypha_bulk::Connector::connect(&side.connector(|_| Fault::None)).await.unwrap();
    let mut bytes = Vec::new();
    let open = Open { transfer: TransferId([1; 16]), header };
    hypha_wire::put_frame(&mut bytes, &open).unwrap();
    let digest = Digest(blake3::Hasher::new().update(chunk).finalize_non_root());
    bytes.extend(ChunkHead { length: chunk.len() as u32, digest }.to_bytes());
    bytes.extend(chunk);
    bytes.extend([0; 4]);
    hypha_wire::put_frame(&mut bytes, &ControlMessage::End { digest: end }).unwrap();
    stream.write_all(&bytes).await.unwrap();
    incoming.recv().await.unwrap().accept(ScriptedSink::new()).await.map(drop)
}

#[tokio::test(start_paused = true)]
async fn an_invalid_header_is_not_sent() {
    let (side, _incoming) = Side::pipe(limits());
    let send = async |outgoing| {
        let connector = side.connector(|_| Fault::None);
        Sender::new(limits()).send(connector, outgoing, pattern(5)).await
    };
    assert!(matches!(send(outgoing("x", 6)).await, Err(SendError::Length { .. })));
    let long = "x".repeat(100_000);
    assert!(matches!(send(outgoing(&long, 5)).await, Err(SendError::Header(_))));
}
