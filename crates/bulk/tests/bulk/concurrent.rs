//! Four transfers in each direction at once, repeatedly, with and without faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hypha_bulk::{Incoming, Limits, Sender};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::faults::{Dice, Fault};
use crate::pki::Node;
use crate::world::{ComparingSink, Side, limits, outgoing, pattern};

const PER_DIRECTION: u64 = 4;
const ROUNDS: u64 = 20;

/// Bytes of each transfer: small, unless `HYPHA_BULK_BYTES` sets more (268435456, with `--release`).
fn bytes_each() -> usize {
    std::env::var("HYPHA_BULK_BYTES").ok().map_or((5 << 18) + 77, |text| text.parse().unwrap())
}

/// Which faults a run has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Weather {
    Calm,
    /// Stalls and lost connections.
    Rough,
    /// Damaged bytes as well, which TLS would not let through.
    Foul,
}

/// A fault on three of the first four streams of a transfer, so that each has some and completes.
fn fault(weather: Weather, seed: u64, stream: u64, length: u64) -> Fault {
    let mut dice = Dice::new(seed * 1000 + stream + 1);
    // After the opening: its loss has a test of its own, and a damaged one would be another opening.
    let at = 300 + dice.below(length);
    match dice.below(4) {
        _ if weather == Weather::Calm || stream > 3 => Fault::None,
        0 => Fault::None,
        1 => Fault::Stall { after: at },
        2 if weather == Weather::Foul => Fault::Flip { at: at.min(length) },
        _ => Fault::Cut { after: at },
    }
}

struct Direction {
    side: Side,
    incoming: mpsc::Receiver<Incoming>,
}

async fn check(directions: &mut [Direction], limits: &Limits, weather: Weather) {
    let length = bytes_each();
    let bytes = pattern(length + 100);
    let streams = Arc::new(AtomicU32::new(0));
    for round in 0..ROUNDS {
        let mut sending = JoinSet::new();
        let mut receiving = JoinSet::new();
        for (direction, Direction { side, incoming }) in directions.iter_mut().enumerate() {
            for index in 0..PER_DIRECTION {
                let seed = round * 100 + direction as u64 * 10 + index;
                // Different lengths, and different bytes.
                let part = bytes.slice(index as usize..length + 3 * index as usize);
                let connector =
                    side.connector(move |stream| fault(weather, seed, stream, length as u64));
                let sender = Sender::new(limits.clone());
                let streams = Arc::clone(&streams);
                sending.spawn(async move {
                    let outgoing = outgoing(&index.to_string(), part.len());
                    let sent = sender.send(connector, outgoing, part.clone()).await;
                    let sent = sent.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                    assert_eq!(sent.digest.0, *blake3::hash(&part).as_bytes());
                    streams.fetch_add(sent.streams, Ordering::Relaxed);
                });
            }
            for _ in 0..PER_DIRECTION {
                let incoming = incoming.recv().await.unwrap();
                receiving.spawn(receive(incoming, bytes.clone(), length));
            }
        }
        for tasks in [&mut sending, &mut receiving] {
            while let Some(done) = tasks.join_next().await {
                done.unwrap();
            }
        }
    }
    let transfers = (ROUNDS * PER_DIRECTION) as u32 * directions.len() as u32;
    let streams = streams.load(Ordering::Relaxed);
    match weather {
        Weather::Calm => assert_eq!(streams, transfers, "faults where there should be none"),
        _ => assert!(streams > transfers * 3 / 2, "{streams} streams: too few faults to test"),
    }
}

async fn receive(incoming: Incoming, bytes: Bytes, length: usize) {
    let index: usize = incoming.header().name.parse().unwrap();
    let part = bytes.slice(index..length + 3 * index);
    let received = incoming.accept(ComparingSink::new(part.clone())).await.unwrap();
    assert_eq!(received.digest.0, *blake3::hash(&part).as_bytes());
    assert_eq!(received.sink.finished(), 1);
}

fn pipes(limits: &Limits) -> Vec<Direction> {
    let pipe = || {
        let (side, incoming) = Side::pipe(limits.clone());
        Direction { side, incoming }
    };
    vec![pipe(), pipe()]
}

async fn connections(limits: &Limits) -> Vec<Direction> {
    let (one, two) = Node::pair();
    let mut directions = Vec::new();
    for (listens, dials) in [(&one, &two), (&two, &one)] {
        let (side, incoming) =
            Side::tcp(limits.clone(), Arc::clone(listens), Arc::clone(dials)).await;
        directions.push(Direction { side, incoming });
    }
    directions
}

#[tokio::test(start_paused = true)]
async fn over_pipes() {
    check(&mut pipes(&limits()), &limits(), Weather::Calm).await;
}

#[tokio::test(start_paused = true)]
async fn over_pipes_with_every_fault() {
    check(&mut pipes(&limits()), &limits(), Weather::Foul).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn over_connections() {
    // The default limits: on a busy machine a short stall limit would open second streams.
    let limits = Limits::default();
    check(&mut connections(&limits).await, &limits, Weather::Calm).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn over_connections_with_stalls_and_losses() {
    // So short that it also fires on a busy machine: that costs only a stream.
    let limits = Limits { stall_timeout: Duration::from_millis(100), ..limits() };
    check(&mut connections(&limits).await, &limits, Weather::Rough).await;
}
