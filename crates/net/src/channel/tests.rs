//! Channels with a peer that breaks the protocol. This module has access to the bare streams.

use std::time::SystemTime;

use futures::{AsyncReadExt as _, AsyncWriteExt as _, poll};
use hypha_model::{Payload, Span};
use hypha_pki::issue::{self, Authority, Validity};
use hypha_pki::{Material, Pki};
use hypha_wire::dispatch::{AttemptKey, Order, Orders, Report, Reports, TaskProtocol};
use hypha_wire::frame::LENGTH_BYTES;
use libp2p::Multiaddr;
use prometheus_client::registry::Registry;

use super::*;
use crate::handle::NetEvent;
use crate::settings::{Limits, Settings};

/// Longer than anything here takes, even on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

struct Lab {
    root: Authority,
    ca: Authority,
}

impl Lab {
    fn new() -> Lab {
        let validity = Validity::days(SystemTime::now(), 1);
        let root = issue::root("lab", validity).unwrap();
        let ca = issue::organisation(&root, "acme", validity).unwrap();
        Lab { root, ca }
    }

    /// A node, and its listen address.
    async fn node(&self, role: NodeRole) -> (Net, Multiaddr) {
        let validity = Validity::days(SystemTime::now(), 1);
        let issued = issue::node(&self.ca, "node", role, &[], validity).unwrap();
        let root = self.root.cert_pem();
        let material = Material::from_pem(&issued.cert_pem, &issued.key_pem, &root, None);
        let pki = Pki::from_material(&material, SystemTime::now()).unwrap();
        let settings = Settings {
            role,
            agent: "hypha/test".into(),
            incarnation: None,
            listen: vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()],
            external: Vec::new(),
            gateways: Vec::new(),
            excluded: Vec::new(),
            excluded_is_configured: false,
            relay_circuit: false,
            relay: None,
            bulk_listen: Vec::new(),
            bulk_external: Vec::new(),
            limits: Limits::for_node(),
        };
        let (net, mut events) = Net::start(settings, pki, None, &mut Registry::default()).unwrap();
        let address = loop {
            if let NetEvent::Listening(address) = events.recv().await.unwrap() {
                break address;
            }
        };
        tokio::spawn(async move { while events.recv().await.is_some() {} });
        (net, address)
    }

    /// Connected to `address`.
    async fn scheduler(&self, address: &Multiaddr) -> Net {
        let (net, _) = self.node(NodeRole::Scheduler).await;
        net.dial(address.clone()).await.unwrap();
        net
    }
}

/// A worker and a scheduler with a working channel.
struct Pair {
    lab: Lab,
    worker: Net,
    address: Multiaddr,
    channels: mpsc::Receiver<AcceptedChannel<TaskProtocol>>,
    scheduler: Net,
    opened: OpenedChannel<TaskProtocol>,
    channel: AcceptedChannel<TaskProtocol>,
}

impl Pair {
    async fn new() -> Pair {
        let lab = Lab::new();
        let (worker, address) = lab.node(NodeRole::Worker).await;
        let mut channels = worker.accept_channels::<TaskProtocol>().unwrap();
        let scheduler = lab.scheduler(&address).await;
        let opened = scheduler.open_channel::<TaskProtocol>(worker.own()).await.unwrap();
        let channel = within(channels.recv()).await.unwrap();
        assert_eq!(channel.peer, scheduler.own());
        Pair { lab, worker, address, channels, scheduler, opened, channel }
    }

    /// Another scheduler's stream, bare, and the worker's end of it.
    async fn bare(&mut self) -> (Stream, AcceptedChannel<TaskProtocol>, Net) {
        let rogue = self.lab.scheduler(&self.address).await;
        let (stream, channel) = self.bare_of(&rogue).await;
        (stream, channel, rogue)
    }

    async fn bare_of(&mut self, rogue: &Net) -> (Stream, AcceptedChannel<TaskProtocol>) {
        let mut stream = open(rogue, self.worker.own()).await;
        let channel = within(self.channels.recv()).await.unwrap();
        assert_eq!(channel.peer, rogue.own());
        assert_eq!(greeting(&mut stream).await, Reports::default());
        (stream, channel)
    }

    /// Checks that messages pass in both directions.
    async fn still_works(&mut self) {
        within(self.opened.writer.send(&orders(7))).await.unwrap();
        assert_eq!(within(self.channel.reader.next()).await.unwrap(), Some(orders(7)));
        within(self.channel.writer.send(&reports(8))).await.unwrap();
        assert_eq!(within(self.opened.reader.next()).await.unwrap(), Some(reports(8)));
    }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future).await.expect("it takes too long")
}

async fn open(net: &Net, peer: PeerId) -> Stream {
    within(net.shared.streams.clone().open_stream(peer, StreamProtocol::new(TaskProtocol::NAME)))
        .await
        .unwrap()
}

async fn greeting(stream: &mut Stream) -> Reports {
    let mut length = [0; LENGTH_BYTES];
    within(stream.read_exact(&mut length)).await.unwrap();
    let mut bytes = vec![0; u32::from_be_bytes(length) as usize];
    within(stream.read_exact(&mut bytes)).await.unwrap();
    hypha_wire::decode(&bytes).unwrap()
}

fn orders(request: u64) -> Orders {
    let ttl_us = Span::from_secs(1).as_micros();
    let order = Order::RequestLease { request, ttl_us, least: None, wish: None, short_of: None };
    Orders { orders: vec![order], skipped: 0 }
}

fn reports(request: u64) -> Reports {
    let refusal = hypha_model::Refusal::without_amount(hypha_model::RefusalKind::Busy);
    Reports { reports: vec![Report::LeaseRefused { request, refusal }], skipped: 0 }
}

fn large(bytes: usize) -> Reports {
    let task = hypha_model::TaskId::from_uuid(uuid::Uuid::nil());
    let attempt = AttemptKey { task, number: 1, fence: 1 };
    let piece = Payload::from(vec![7; bytes]);
    Reports { reports: vec![Report::Output { attempt, piece }], skipped: 0 }
}

fn frame<M: Message>(message: &M) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_frame(&mut bytes, message).unwrap();
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn both_ends_know_the_organisation_of_the_other() {
    let pair = Pair::new().await;
    assert_eq!(pair.channel.organisation, "acme");
    assert_eq!(pair.opened.organisation, "acme");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_bytes_end_their_channel() {
    let mut pair = Pair::new().await;
    let too_large = u32::try_from(Orders::MAX_BYTES + 1).unwrap().to_be_bytes();
    let garbage = [&5_u32.to_be_bytes()[..], &[1, 0xc1, 0xc1, 0xc1, 0xc1]].concat();
    let newer = [&2_u32.to_be_bytes()[..], &[2, 0x80]].concat();
    let cases: [(&[u8], &str); 5] = [
        (b"GET / HTTP/1.1\r\n\r\n", "are too many"),
        (&too_large, "are too many"),
        (&[0xff; 1 << 16], "are too many"),
        (&garbage, "not a message to a worker"),
        (&newer, "use the same release"),
    ];
    for (bytes, expected) in cases {
        let (mut stream, mut channel, _rogue) = pair.bare().await;
        stream.write_all(bytes).await.unwrap();
        stream.flush().await.unwrap();
        let error = within(channel.reader.next()).await.unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(channel.reader.frames.buffered_bytes() <= LENGTH_BYTES, "it is not buffered");
        pair.still_works().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_frame_blocks_no_other_channel() {
    let mut pair = Pair::new().await;
    let (mut stream, mut channel, _rogue) = pair.bare().await;
    let whole = frame(&orders(1));
    stream.write_all(&whole[..whole.len() / 2]).await.unwrap();
    stream.flush().await.unwrap();
    let waiting = tokio::spawn(async move {
        let next = channel.reader.next().await;
        (next, channel)
    });
    for _ in 0..20 {
        pair.still_works().await;
    }
    assert!(!waiting.is_finished());
    // A partial message does not count.
    stream.close().await.unwrap();
    let (next, _) = within(waiting).await.unwrap();
    assert_eq!(next.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    pair.still_works().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_does_not_read_blocks_no_other_channel() {
    let mut pair = Pair::new().await;
    let (stream, mut channel, _rogue) = pair.bare().await;
    let sending = tokio::spawn(async move {
        let message = large(8 << 20);
        // More than all buffers hold; sending blocks, and is bounded.
        while channel.writer.send(&message).await.is_ok() {}
    });
    for _ in 0..20 {
        pair.still_works().await;
    }
    assert!(!sending.is_finished());
    drop(stream);
    within(sending).await.unwrap();
    pair.still_works().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_when_a_reader_is_interrupted() {
    let mut pair = Pair::new().await;
    let (mut stream, mut channel, _rogue) = pair.bare().await;
    let bytes = [frame(&orders(1)), frame(&orders(2)), frame(&orders(3))].concat();
    let mut read = Vec::new();
    for part in bytes.chunks(7) {
        stream.write_all(part).await.unwrap();
        stream.flush().await.unwrap();
        // Polled once and dropped, whether or not the part has arrived.
        if let std::task::Poll::Ready(next) = poll!(std::pin::pin!(channel.reader.next())) {
            read.push(next.unwrap().unwrap());
        }
    }
    while read.len() < 3 {
        read.push(within(channel.reader.next()).await.unwrap().unwrap());
    }
    assert_eq!(read, [orders(1), orders(2), orders(3)]);
    stream.close().await.unwrap();
    assert_eq!(within(channel.reader.next()).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_follows_a_partly_sent_message() {
    let mut pair = Pair::new().await;
    let (_stream, mut channel, _rogue) = pair.bare().await;
    let whole = large(16 << 20);
    // The other end does not read, and no buffer can hold it: it cannot be written at once.
    assert!(poll!(std::pin::pin!(channel.writer.send(&whole))).is_pending());
    let error = within(channel.writer.send(&reports(1))).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    // A message that was never begun breaks nothing.
    let too_large = large((16 << 20) + 1);
    let error = within(pair.channel.writer.send(&too_large)).await.unwrap_err();
    assert!(error.to_string().contains("at most 16777216"), "{error}");
    pair.still_works().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_keeps_little_of_a_large_message() {
    let mut pair = Pair::new().await;
    let message = large(10 << 20);
    let (sent, read) = tokio::join!(pair.channel.writer.send(&message), pair.opened.reader.next());
    sent.unwrap();
    assert_eq!(read.unwrap(), Some(message));
    assert!(pair.channel.writer.buffer.capacity() <= RETAINED_BYTES);
}

#[tokio::test(flavor = "multi_thread")]
async fn channels_of_one_scheduler_are_limited() {
    let mut pair = Pair::new().await;
    let rogue = pair.lab.scheduler(&pair.address).await;
    let mut held = Vec::new();
    for _ in 0..CHANNELS_PER_PEER {
        held.push(pair.bare_of(&rogue).await);
    }
    let mut one_more = open(&rogue, pair.worker.own()).await;
    let mut rest = Vec::new();
    // The end, or a reset: no greeting in any case.
    let _ = within(one_more.read_to_end(&mut rest)).await;
    assert_eq!(rest, [0; 0]);
    let error = rogue.open_channel::<TaskProtocol>(pair.worker.own()).await.err().unwrap();
    assert_ne!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    assert!(pair.channels.try_recv().is_err());
    pair.still_works().await;
    // Other schedulers are not counted, and closed channels no longer count.
    let (_stream, _channel, _other) = pair.bare().await;
    held.pop();
    let opened = within(rogue.open_channel::<TaskProtocol>(pair.worker.own())).await;
    assert!(opened.is_ok(), "{:?}", opened.err());
    drop(held);
    pair.still_works().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_stream_is_opened_again() {
    let lab = Lab::new();
    let (worker, address) = lab.node(NodeRole::Worker).await;
    let scheduler = lab.scheduler(&address).await;
    let mut streams =
        worker.shared.streams.clone().accept(StreamProtocol::new(TaskProtocol::NAME)).unwrap();
    let dropping = tokio::spawn(async move {
        for _ in 1..MAX_OPEN_ATTEMPTS {
            drop(streams.next().await.unwrap());
        }
        let (_, mut stream) = streams.next().await.unwrap();
        stream.write_all(&frame(&Reports::default())).await.unwrap();
        stream.flush().await.unwrap();
        (streams, stream)
    });
    let opened = within(scheduler.open_channel::<TaskProtocol>(worker.own())).await;
    assert!(opened.is_ok(), "{:?}", opened.err());
    drop(within(dropping).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn channels_are_opened_to_workers_only() {
    let lab = Lab::new();
    for role in [NodeRole::Data, NodeRole::Scheduler, NodeRole::Gateway] {
        let (other, address) = lab.node(role).await;
        let scheduler = lab.scheduler(&address).await;
        let error = scheduler.open_channel::<TaskProtocol>(other.own()).await.err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
        // A scheduler that pretends to be one.
        let _taken =
            other.shared.streams.clone().accept(StreamProtocol::new(TaskProtocol::NAME)).unwrap();
        let error = scheduler.open_channel::<TaskProtocol>(other.own()).await.err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn accepting_channels_can_stop_and_start_again() {
    let mut pair = Pair::new().await;
    assert!(pair.worker.accept_channels::<TaskProtocol>().is_err(), "one at a time");
    pair.channels.close();
    let until = Instant::now() + DEADLINE;
    let mut channels = loop {
        match pair.worker.accept_channels::<TaskProtocol>() {
            Ok(channels) => break channels,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        tokio::task::yield_now().await;
    };
    // Accepted channels stay open.
    pair.still_works().await;
    let opened =
        within(pair.scheduler.open_channel::<TaskProtocol>(pair.worker.own())).await.unwrap();
    assert!(within(channels.recv()).await.is_some());
    drop(opened);
}
