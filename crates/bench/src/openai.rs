//! `hypha bench openai`: the OpenAI route in front of fast fake back ends, next to the back ends themselves, nginx, and
//! a minimal relay.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;

use crate::fake::COMPLETION;
use crate::histogram::RoundStatistics;
use crate::http::{HttpConnection, request};
use crate::lab::Lab;
use crate::load::{self, LoadResult, Target, Until};
use crate::noise::Meter;
use crate::report::{Goal, Report, Unit};
use crate::swarm::{Plan, Swarm};
use crate::{MAX_CONNECTIONS, MAX_ROUNDS, RunOptions, nginx, seconds};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Connections, each with one request at a time; several numbers are measured one after the other
    #[arg(
        long, value_delimiter = ',', default_value = "1,64",
        value_parser = clap::value_parser!(u32).range(1..=MAX_CONNECTIONS)
    )]
    connections: Vec<u32>,
    /// Seconds of each turn
    #[arg(long, default_value = "5", value_parser = seconds)]
    seconds: Duration,
    /// Turns of each
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=MAX_ROUNDS))]
    rounds: u32,
    #[command(flatten)]
    pub(crate) options: RunOptions,
}

/// The number of back ends.
const BACKENDS: usize = 4;

/// Concurrent requests per back end: more than there are connections by default, so that none waits.
const CONCURRENCY: u32 = 256;

/// The warm-up of each target.
const WARM_UP: Duration = Duration::from_millis(300);

/// The maximum latency that the scheduler may add to a request, as a multiple of what nginx adds.
const NGINX_ADDS: f64 = 1.5;

/// The same relative to the bare relay, which is the goal where the relay itself misses the other.
const RELAY_ADDS: f64 = 1.3;

/// The minimum rate of the scheduler, relative to a reference.
const RATE: f64 = 0.8;

/// The same through a worker, relative to nginx.
const WORKER_RATE: f64 = 0.5;

const DIRECT: &str = "direct";
const RELAY: &str = "bare relay";
const NGINX: &str = "nginx";
const SCHEDULER: &str = "scheduler";
const WORKER: &str = "scheduler and worker";

pub(crate) async fn measure(arguments: &Arguments) -> anyhow::Result<Report> {
    let lab = Lab::new(arguments.options.dir.as_deref())?;
    let count = format!("--count={BACKENDS}");
    let (_backends, backends) = lab.server("backends", &["fake-backends".into(), count])?;
    let mut relay = vec!["fake-relay".to_owned()];
    relay.extend(backends.iter().map(SocketAddr::to_string));
    let (_relay, relay) = lab.server("relay", &relay)?;
    let nginx = nginx::start(&lab, &backends).await?;
    let swarm = Swarm::start(&lab, &plan(&backends)).await?;

    let target = |name, address, model| Target { name, address, request: chat_request(model) };
    let mut targets = vec![target(DIRECT, backends[0], "fake"), target(RELAY, relay[0], "fake")];
    targets.extend(nginx.iter().map(|(_, address)| target(NGINX, *address, "fake")));
    targets.push(target(SCHEDULER, swarm.api, "fake"));
    targets.push(target(WORKER, swarm.api, "fake-by-worker"));
    for target in &targets {
        check(target).await?;
    }
    let mut report = Report::new("openai")
        .setting("connections", arguments.connections.clone())
        .setting("seconds", arguments.seconds.as_secs_f64())
        .setting("rounds", arguments.rounds)
        .setting("backends", BACKENDS);
    let meter = Meter::start();
    for connections in &arguments.connections {
        let measured = measure_targets(&targets, *connections as usize, arguments).await?;
        report_results(&mut report, *connections, &targets, &measured);
    }
    if nginx.is_none() {
        report.note("nginx is not installed, so the scheduler is not compared with it");
    }
    meter.and_then(|meter| meter.stop()).into_iter().for_each(|noise| report.noise(noise));
    Ok(report)
}

/// All back ends at the scheduler, and all of them again behind a worker, as another model.
fn plan(backends: &[SocketAddr]) -> Plan {
    let server = |backend: &SocketAddr| {
        format!(
            "[[scheduler.backends]]\n\
             url = \"http://{backend}\"\n\
             models = [\"fake\"]\n\
             concurrency = {CONCURRENCY}\n"
        )
    };
    let executor = |(number, backend): (usize, &SocketAddr)| {
        format!(
            "[[executors]]\n\
             name = \"backend-{number}\"\n\
             runtime = \"http\"\n\
             url = \"http://{backend}\"\n\
             models = [\"fake-by-worker\"]\n\
             concurrency = {CONCURRENCY}\n"
        )
    };
    Plan {
        scheduler: backends.iter().map(server).collect(),
        workers: vec![backends.iter().enumerate().map(executor).collect()],
        servers: backends.len(),
    }
}

fn chat_request(model: &str) -> Arc<[u8]> {
    let body = format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"hello"}}]}}"#);
    request("POST", "/v1/chat/completions", body.as_bytes()).into()
}

/// Checks that the response is the back end's.
async fn check(target: &Target) -> anyhow::Result<()> {
    let named = || format!("{} does not respond", target.name);
    let mut connection = HttpConnection::connect(target.address).await.with_context(named)?;
    let response = connection.exchange(&target.request).await.with_context(named)?;
    let body = String::from_utf8_lossy(connection.body(&response));
    ensure!(
        connection.status() == 200 && body == COMPLETION,
        "{} returns {}: {body}",
        target.name,
        connection.status()
    );
    Ok(())
}

/// The turns of each target.
async fn measure_targets(
    targets: &[Target],
    connections: usize,
    arguments: &Arguments,
) -> anyhow::Result<Vec<Vec<LoadResult>>> {
    for target in targets {
        let until = Until::Elapsed(WARM_UP.min(arguments.seconds));
        load::run(target, connections, until).await?;
    }
    let mut measured: Vec<Vec<LoadResult>> = targets.iter().map(|_| Vec::new()).collect();
    for _ in 0..arguments.rounds {
        for (target, done) in targets.iter().zip(&mut measured) {
            let until = Until::Elapsed(arguments.seconds);
            done.push(load::run(target, connections, until).await?);
        }
    }
    Ok(measured)
}

fn report_results(
    report: &mut Report,
    connections: u32,
    targets: &[Target],
    measured: &[Vec<LoadResult>],
) {
    let of = |name: &str| {
        targets.iter().position(|target| target.name == name).and_then(|at| measured.get(at))
    };
    let plural = if connections == 1 { "" } else { "s" };
    let at = |name: &str| format!("{connections} connection{plural}, {name}");
    let p50 = |done: &LoadResult| done.times.quantile_us(0.5);
    for (target, done) in targets.iter().zip(measured) {
        let name = at(target.name);
        let rates = RoundStatistics::of(done.iter().map(LoadResult::rate));
        report.rounds(name.clone(), rates, Unit::PerSecond("requests/s"));
        report.rounds(
            format!("{name}, p50"),
            RoundStatistics::of(done.iter().map(p50)),
            Unit::Micros,
        );
        let p99 = RoundStatistics::of(done.iter().map(|done| done.times.quantile_us(0.99)));
        report.rounds(format!("{name}, p99"), p99, Unit::Micros);
    }
    // Each turn is compared with the reference's turn beside it.
    let compare = |name: &str, reference: &str, difference: fn(&LoadResult, &LoadResult) -> f64| {
        let pairs = of(name)?.iter().zip(of(reference)?);
        Some(RoundStatistics::of(pairs.map(|(done, reference)| difference(done, reference))))
    };
    let added = |done: &LoadResult, direct: &LoadResult| {
        done.times.quantile_us(0.5) - direct.times.quantile_us(0.5)
    };
    let ratio = |done: &LoadResult, reference: &LoadResult| done.rate() / reference.rate();
    for target in targets.iter().skip(1) {
        if let Some(rounds) = compare(target.name, DIRECT, added) {
            let name = at(&format!("{} adds to p50", target.name));
            report.rounds(name, rounds, Unit::Micros);
        }
    }
    let adds = |name: &str| {
        let pairs = of(name)?.iter().zip(of(DIRECT)?);
        Some(pairs.map(|(done, direct)| added(done, direct)).collect::<Vec<f64>>())
    };
    let adds_ratio = |name: &str, reference: &str| {
        let (own, others) = (adds(name)?, adds(reference)?);
        Some(RoundStatistics::of(own.iter().zip(&others).map(|(own, other)| own / other)))
    };
    // Without nginx, or if the bare relay itself misses the goal against nginx, the relay is the reference.
    if connections == 1 {
        let relay = adds_ratio(RELAY, NGINX).map(|relay| relay.median);
        let instead = relay.is_none_or(|relay| !Goal::Below(NGINX_ADDS).is_met(relay));
        for (name, reference, goal) in [
            (SCHEDULER, NGINX, Some(NGINX_ADDS)),
            (SCHEDULER, RELAY, instead.then_some(RELAY_ADDS)),
            (WORKER, NGINX, None),
            (WORKER, RELAY, None),
            (RELAY, NGINX, None),
        ] {
            if let Some(ratios) = adds_ratio(name, reference) {
                report.rounds(at(&format!("{name} adds / {reference} adds")), ratios, Unit::Ratio);
                goal.into_iter().for_each(|most| report.goal(Goal::Below(most)));
            }
        }
    }
    let relay = compare(RELAY, NGINX, ratio).map(|relay| relay.median);
    let instead = |least: f64| relay.is_none_or(|relay| !Goal::AtLeast(least).is_met(relay));
    for (name, reference, goal) in [
        (SCHEDULER, NGINX, Some(RATE)),
        (SCHEDULER, RELAY, instead(RATE).then_some(RATE)),
        (WORKER, NGINX, Some(WORKER_RATE)),
        (WORKER, RELAY, instead(WORKER_RATE).then_some(RATE)),
        (RELAY, NGINX, None),
    ] {
        if let Some(rounds) = compare(name, reference, ratio) {
            report.rounds(at(&format!("{name} / {reference}")), rounds, Unit::Ratio);
            if connections > 1 {
                goal.into_iter().for_each(|least| report.goal(Goal::AtLeast(least)));
            }
        }
    }
}
