//! Channels between schedulers and workers: in order, only for schedulers, and ended with the connection.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hypha_model::{
    Digest, InputKind, LeaseId, Metadata, NodeRole, Payload, Requirement, Rng, TaskId, Time,
};
use hypha_net::{
    AcceptedChannel, Channel, ChannelReader, ChannelWriter, Multiaddr, Net, OpenedChannel, PeerId,
};
use hypha_pki::Reloader;
use hypha_wire::dispatch::{
    AttemptKey, DispatchBody, Order, Orders, Report, Reports, TaskProtocol,
};
use hypha_wire::{ChannelProtocol, Message};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::lab::{DEADLINE, Lab, Node, answer_health, eventually, settings};

/// Frames that are sent one after the other.
const FRAMES: u64 = 300;
/// Messages in each.
const MESSAGES: u64 = 20;

/// Schedulers that open channels at once, how many each, and how often.
const SCHEDULERS: usize = 5;
const CHANNELS_EACH: usize = 3;
const ROUNDS: usize = 5;

/// A worker that accepts channels.
struct WorkerFixture {
    lab: Lab,
    node: Node,
    address: Multiaddr,
    channels: mpsc::Receiver<AcceptedChannel<TaskProtocol>>,
}

impl WorkerFixture {
    async fn new() -> WorkerFixture {
        let lab = Lab::new();
        let node = lab.node(NodeRole::Worker, &[]).await;
        let address = node.listening().await;
        let channels = node.net.accept_channels::<TaskProtocol>().unwrap();
        WorkerFixture { lab, node, address, channels }
    }

    /// A node that is connected to the worker.
    async fn connected_node(&self, role: NodeRole) -> Node {
        let node = self.lab.node(role, &[]).await;
        node.net.dial(self.address.clone()).await.unwrap();
        node
    }

    /// A channel from `scheduler`, and the worker's end of it.
    async fn channel(
        &mut self,
        scheduler: &Node,
    ) -> (OpenedChannel<TaskProtocol>, AcceptedChannel<TaskProtocol>) {
        let opened =
            within(scheduler.net.open_channel::<TaskProtocol>(self.node.id())).await.unwrap();
        let channel = within(self.channels.recv()).await.unwrap();
        assert_eq!(channel.peer, scheduler.id());
        (opened, channel)
    }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future).await.expect("it takes too long")
}

fn attempt(fence: u64) -> AttemptKey {
    let task = TaskId::new(Time::from_micros(fence), &mut Rng::new(fence));
    AttemptKey { task, number: 1, fence }
}

fn work(fence: u64, input: Payload) -> Order {
    let work = DispatchBody {
        lease: LeaseId::new(Time::ZERO, &mut Rng::new(1)),
        epoch: 1,
        attempt: attempt(fence),
        timeout_us: 1_000_000,
        requirement: Requirement::default(),
        input,
        metadata: Metadata::default(),
        tenant: None,
        form: InputKind::Task,
        stream: false,
        interactive: false,
        resume: None,
    };
    Order::Dispatch(Box::new(work))
}

fn result(fence: u64, result: Payload) -> Report {
    let digest = Digest::from_bytes([0; 32]);
    Report::Completed { attempt: attempt(fence), run_us: 1, result, digest, object: None }
}

/// Frames of numbered messages, small and a little larger.
fn orders(frame: u64) -> Orders {
    let input = |number: u64| Payload::from(vec![7; (number % 7 * 500) as usize]);
    let numbers = frame * MESSAGES..(frame + 1) * MESSAGES;
    Orders { orders: numbers.map(|number| work(number, input(number))).collect(), skipped: 0 }
}

fn reports(frame: u64) -> Reports {
    let numbers = frame * MESSAGES..(frame + 1) * MESSAGES;
    let reports = numbers.map(|number| result(number, Payload::from(vec![9; 100]))).collect();
    Reports { reports, skipped: 0 }
}

async fn write<M: Message>(writer: &mut ChannelWriter<M>, frame: impl Fn(u64) -> M) {
    for number in 0..FRAMES {
        writer.send(&frame(number)).await.unwrap();
    }
}

async fn read<M: Message + PartialEq>(reader: &mut ChannelReader<M>, frame: impl Fn(u64) -> M) {
    for number in 0..FRAMES {
        let next = reader.next().await.unwrap();
        assert!(next == Some(frame(number)), "frame {number} is out of order, damaged, or missing");
    }
}

/// The end of the stream, or an error: not another message, and not silence.
async fn ends<M: Message>(reader: &mut ChannelReader<M>) {
    assert!(!matches!(within(reader.next()).await, Ok(Some(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_flow_both_ways_in_order() {
    let mut fixture = WorkerFixture::new().await;
    let scheduler = fixture.connected_node(NodeRole::Scheduler).await;
    let (Channel { writer: mut to_worker, reader: mut from_worker, .. }, mut channel) =
        fixture.channel(&scheduler).await;
    within(async {
        tokio::join!(
            write(&mut to_worker, orders),
            read(&mut channel.reader, orders),
            write(&mut channel.writer, reports),
            read(&mut from_worker, reports),
        );
    })
    .await;
    // Closed at one end, it ends at the other, after the messages that were sent.
    to_worker.send(&orders(1)).await.unwrap();
    drop((to_worker, from_worker));
    assert_eq!(within(channel.reader.next()).await.unwrap(), Some(orders(1)));
    ends(&mut channel.reader).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_inputs_and_results_pass() {
    let mut fixture = WorkerFixture::new().await;
    let scheduler = fixture.connected_node(NodeRole::Scheduler).await;
    let (Channel { writer: mut to_worker, reader: mut from_worker, .. }, mut channel) =
        fixture.channel(&scheduler).await;
    let mut bytes = vec![0; 10 << 20];
    blake3::Hasher::new().update(b"large").finalize_xof().fill(&mut bytes);
    let payload = Payload::from(bytes);
    let order = Orders { orders: vec![work(1, payload.clone())], skipped: 0 };
    let report = Reports { reports: vec![result(1, payload)], skipped: 0 };
    for _ in 0..3 {
        let (sent, read) =
            within(async { tokio::join!(to_worker.send(&order), channel.reader.next()) }).await;
        sent.unwrap();
        assert!(read.unwrap().as_ref() == Some(&order));
        let (sent, read) =
            within(async { tokio::join!(channel.writer.send(&report), from_worker.next()) }).await;
        sent.unwrap();
        assert!(read.unwrap().as_ref() == Some(&report));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_schedulers_open_channels() {
    let mut fixture = WorkerFixture::new().await;
    for role in [NodeRole::Worker, NodeRole::Data, NodeRole::Gateway] {
        let connected_node = fixture.connected_node(role).await;
        let opened =
            within(connected_node.net.open_channel::<TaskProtocol>(fixture.node.id())).await;
        let error = opened.err().unwrap();
        // It was refused at once each time, and did not time out.
        assert_ne!(error.kind(), io::ErrorKind::TimedOut, "{role}: {error}");
        assert!(fixture.channels.try_recv().is_err(), "a {role} has a channel");
        assert!(connected_node.healthy(fixture.node.id()).await);
    }
    let scheduler = fixture.connected_node(NodeRole::Scheduler).await;
    fixture.channel(&scheduler).await;
}

/// Another protocol, between other roles.
struct Slices;

impl ChannelProtocol for Slices {
    const NAME: &'static str = "/hypha/test-slices/1";
    const OPENER: NodeRole = NodeRole::Worker;
    const ACCEPTOR: NodeRole = NodeRole::Data;

    type FromOpener = Reports;
    type FromAcceptor = Orders;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_is_for_the_roles_and_messages_of_its_protocol() {
    let lab = Lab::new();
    let data = lab.node(NodeRole::Data, &[]).await;
    let address = data.listening().await;
    let mut channels = data.net.accept_channels::<Slices>().unwrap();
    let connected_node = async |role| {
        let node = lab.node(role, &[]).await;
        node.net.dial(address.clone()).await.unwrap();
        node
    };
    let worker = connected_node(NodeRole::Worker).await;
    let mut opened = within(worker.net.open_channel::<Slices>(data.id())).await.unwrap();
    let mut taken = within(channels.recv()).await.unwrap();
    assert_eq!((opened.peer, taken.peer), (data.id(), worker.id()));
    opened.writer.send(&reports(1)).await.unwrap();
    assert_eq!(within(taken.reader.next()).await.unwrap(), Some(reports(1)));
    taken.writer.send(&orders(2)).await.unwrap();
    assert_eq!(within(opened.reader.next()).await.unwrap(), Some(orders(2)));

    let scheduler = connected_node(NodeRole::Scheduler).await;
    assert!(within(scheduler.net.open_channel::<Slices>(data.id())).await.is_err());
    let error = within(scheduler.net.open_channel::<TaskProtocol>(data.id())).await.err().unwrap();
    assert!(error.to_string().ends_with("it is not a worker"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn channels_opened_at_once_by_several_schedulers_all_get_through() {
    let fixture = WorkerFixture::new().await;
    let worker = fixture.node.id();
    let mut schedulers = Vec::new();
    for _ in 0..SCHEDULERS {
        schedulers.push(fixture.connected_node(NodeRole::Scheduler).await);
    }
    let mut channels = fixture.channels;
    // Each message is answered with its own number, as long as the channel lasts.
    let lasting = Arc::new(AtomicUsize::new(0));
    let counted = lasting.clone();
    tokio::spawn(async move {
        while let Some(mut channel) = channels.recv().await {
            counted.fetch_add(1, Ordering::SeqCst);
            let counted = counted.clone();
            tokio::spawn(async move {
                while let Ok(Some(orders)) = channel.reader.next().await {
                    let fences = orders.orders.iter().map(|order| match order {
                        Order::Cancel(attempt) => Report::Accepted(*attempt),
                        other => panic!("{other:?}"),
                    });
                    let reports = Reports { reports: fences.collect(), skipped: 0 };
                    channel.writer.send(&reports).await.unwrap();
                }
                drop(channel);
                counted.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    for round in 0..ROUNDS {
        let mut opening = JoinSet::new();
        for (index, scheduler) in schedulers.iter().enumerate() {
            for channel in 0..CHANNELS_EACH {
                let net = scheduler.net.clone();
                let fence = ((round * SCHEDULERS + index) * CHANNELS_EACH + channel) as u64;
                opening.spawn(async move { exchange(net, worker, fence).await });
            }
        }
        let done = within(opening.join_all()).await;
        assert_eq!(done.len(), SCHEDULERS * CHANNELS_EACH);
        // A scheduler has few channels: those of this round must be free for the next.
        eventually("the channels of a round have ended", || async {
            lasting.load(Ordering::SeqCst) == 0
        })
        .await;
    }
}

/// Opens a channel, sends one message, and receives the same.
async fn exchange(net: Net, worker: PeerId, fence: u64) {
    let opened = net.open_channel::<TaskProtocol>(worker).await;
    assert!(opened.is_ok(), "{:?}", opened.err());
    let Channel { writer: mut orders, reader: mut reports, .. } = opened.unwrap();
    let cancel = Orders { orders: vec![Order::Cancel(attempt(fence))], skipped: 0 };
    orders.send(&cancel).await.unwrap();
    let received = reports.next().await.unwrap().unwrap();
    assert_eq!(received.reports, [Report::Accepted(attempt(fence))]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_connection_ends_both_readers() {
    let mut fixture = WorkerFixture::new().await;
    let scheduler = fixture.connected_node(NodeRole::Scheduler).await;
    let bystander = fixture.connected_node(NodeRole::Scheduler).await;
    let (Channel { writer: _to_worker, reader: mut from_worker, .. }, mut channel) =
        fixture.channel(&scheduler).await;
    let (Channel { writer: _to_too, reader: mut from_too, .. }, mut channel_too) =
        fixture.channel(&bystander).await;
    scheduler.net.stop().await;
    within(async { tokio::join!(ends(&mut channel.reader), ends(&mut from_worker)) }).await;
    // The writers notice as well, sooner or later.
    within(async { while channel.writer.send(&reports(0)).await.is_ok() {} }).await;

    channel_too.writer.send(&reports(1)).await.unwrap();
    assert_eq!(within(from_too.next()).await.unwrap(), Some(reports(1)));
    fixture.node.net.stop().await;
    within(async { tokio::join!(ends(&mut from_too), ends(&mut channel_too.reader)) }).await;
    assert!(within(bystander.net.open_channel::<TaskProtocol>(fixture.node.id())).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_that_is_revoked_loses_its_channel() {
    let lab = Lab::new();
    let (_directory, files) = lab.files(&lab.issue(NodeRole::Worker));
    let (pki, reloader) = Reloader::load(files.clone()).unwrap();
    let settings_of_worker = settings(NodeRole::Worker, &[]);
    let node = Node::try_start(settings_of_worker, pki, Some(reloader), answer_health).unwrap();
    let (address, channels) =
        (node.listening().await, node.net.accept_channels::<TaskProtocol>().unwrap());
    let mut fixture = WorkerFixture { lab, node, address, channels };

    let issued = fixture.lab.issue(NodeRole::Scheduler);
    let revoked = Node::start(settings(NodeRole::Scheduler, &[]), fixture.lab.pki_of(&issued));
    revoked.net.dial(fixture.address.clone()).await.unwrap();
    let bystander = fixture.connected_node(NodeRole::Scheduler).await;
    let (Channel { writer: mut to_worker, reader: mut from_worker, .. }, mut channel) =
        fixture.channel(&revoked).await;
    let (Channel { writer: mut to_too, reader: _from_too, .. }, mut channel_too) =
        fixture.channel(&bystander).await;

    std::fs::write(files.crls_pem.clone().unwrap(), fixture.lab.revoke(&issued)).unwrap();
    within(async { tokio::join!(ends(&mut channel.reader), ends(&mut from_worker)) }).await;
    within(async { while to_worker.send(&orders(0)).await.is_ok() {} }).await;
    assert!(within(revoked.net.open_channel::<TaskProtocol>(fixture.node.id())).await.is_err());
    assert!(fixture.channels.try_recv().is_err());

    to_too.send(&orders(1)).await.unwrap();
    assert_eq!(within(channel_too.reader.next()).await.unwrap(), Some(orders(1)));
}

/// They are never accepted: they wait, and their schedulers see no difference.
#[tokio::test(flavor = "multi_thread")]
async fn channels_that_are_not_accepted_block_nothing_else() {
    let fixture = WorkerFixture::new().await;
    let mut opened = Vec::new();
    for _ in 0..SCHEDULERS {
        let scheduler = fixture.connected_node(NodeRole::Scheduler).await;
        for _ in 0..4 {
            opened.push(
                within(scheduler.net.open_channel::<TaskProtocol>(fixture.node.id()))
                    .await
                    .unwrap(),
            );
        }
        let deadline = Duration::from_secs(10);
        let asked = hypha_wire::request::RequestBody::Health;
        scheduler.net.request(fixture.node.id(), asked, deadline, None).await.unwrap();
    }
    assert_eq!(opened.len(), SCHEDULERS * 4);
}
