//! The load: connections that each send the same request again as soon as its answer is there. The same generator
//! for every contestant, on one thread.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::task::JoinSet;

use crate::spread::Times;
use crate::wire::Wire;

/// Somebody to be loaded, and what to say.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    pub(crate) request: Arc<[u8]>,
}

/// What came of it.
#[derive(Default)]
pub(crate) struct Done {
    pub(crate) times: Times,
    pub(crate) elapsed: Duration,
}

/// Until when.
#[derive(Clone, Copy)]
pub(crate) enum Until {
    Elapsed(Duration),
    /// So many requests of each connection.
    Count(u64),
}

impl Done {
    pub(crate) fn rate(&self) -> f64 {
        self.times.count() as f64 / self.elapsed.as_secs_f64()
    }
}

/// Loads `target`. Any answer but one of success fails the measurement.
pub(crate) async fn run(target: &Target, connections: usize, until: Until) -> anyhow::Result<Done> {
    let mut wires = Vec::with_capacity(connections);
    for _ in 0..connections {
        let wire = Wire::connect(target.address).await;
        wires.push(wire.with_context(|| format!("cannot connect to {}", target.name))?);
    }
    let began = Instant::now();
    let mut running = JoinSet::new();
    for wire in wires {
        running.spawn(repeat(wire, target.request.clone(), began, until));
    }
    let mut done = Done::default();
    while let Some(ended) = running.join_next().await {
        let times = ended.context("a connection was lost")?;
        done.times.merge(&times.with_context(|| format!("{} failed", target.name))?);
    }
    done.elapsed = began.elapsed();
    Ok(done)
}

async fn repeat(
    mut wire: Wire,
    request: Arc<[u8]>,
    began: Instant,
    until: Until,
) -> anyhow::Result<Times> {
    let mut times = Times::default();
    let mut sent = began;
    let on = |now: Instant, count: u64| match until {
        Until::Elapsed(time) => now - began < time,
        Until::Count(most) => count < most,
    };
    while on(sent, times.count()) {
        let answer = wire.ask(&request).await?;
        let status = wire.status();
        ensure!(
            (200..300).contains(&status),
            "it answered {status}: {}",
            String::from_utf8_lossy(wire.body(&answer)).chars().take(300).collect::<String>()
        );
        let now = Instant::now();
        times.add(now - sent);
        sent = now;
    }
    Ok(times)
}
