//! `hypha market watch` and `hypha market ledger`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use hypha_client::{Json, Ledger, LedgerEntry, MarketEvent, Scheduler};
use hypha_config::WorkerConfig;
use hypha_market::{LedgerSums, add_to_ledger, ledger_csv};
use hypha_model::Span;

use super::connection::{ConnectionArguments, block_on, failure};
use super::text::{clean, count, fit, took};
use crate::role::ConfigArguments;
use crate::scheduler::table;
use crate::usage::{Failure, print, print_bytes};

/// Often enough to look live, seldom enough to be cheap.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);
/// Events of the past that a watch begins with.
const PAST_EVENTS: usize = 20;

#[derive(Subcommand)]
pub(crate) enum MarketCommand {
    /// Show adverts, offers, leases and prices as they come, until Ctrl-C
    Watch(Watch),
    /// Show what was paid for leases, by organisation and worker
    Ledger(LedgerArguments),
}

#[derive(Args)]
pub(crate) struct Watch {
    /// Print each event as a line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
}

#[derive(Args)]
pub(crate) struct LedgerArguments {
    /// A worker's configuration file: its own receipts are summed, and no scheduler is asked
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["scheduler", "token", "token_file", "ca_file"])]
    config: Option<PathBuf>,
    /// Print CSV
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
}

pub(super) fn run(command: &MarketCommand) -> Result<(), Failure> {
    match command {
        MarketCommand::Watch(arguments) => watch(arguments),
        MarketCommand::Ledger(arguments) => ledger(arguments),
    }
}

fn watch(arguments: &Watch) -> Result<(), Failure> {
    let scheduler = arguments.connection.connect()?;
    block_on(async {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => Ok(()),
            ended = watch_events(&scheduler, arguments.json) => ended,
        }
    })
}

async fn watch_events(scheduler: &Scheduler, json: bool) -> Result<(), Failure> {
    // A scheduler that does not answer at the beginning is a mistake; later it may be restarting.
    let mut market = scheduler.market(None).await.map_err(failure)?;
    let past = market.events.len().saturating_sub(PAST_EVENTS);
    market.events.drain(..past);
    let mut said = None;
    loop {
        for event in &market.events {
            let line = match json {
                true => Json::of(event).to_string(),
                false => event_line(event),
            };
            if !print_bytes(format!("{line}\n").as_bytes())? {
                return Ok(());
            }
        }
        tokio::time::sleep(WATCH_INTERVAL).await;
        let after = market.sequence;
        market.events.clear();
        match scheduler.market(Some(after)).await {
            // After a restart, sequences begin again: what is before the last one is new.
            Ok(next) if next.epoch != market.epoch && after > 0 && next.sequence >= after => {
                market = scheduler.market(None).await.map_err(failure)?;
                said = None;
            }
            Ok(next) => {
                market = next;
                said = None;
            }
            Err(error) => {
                let problem = failure(error).to_string();
                if said.as_ref() != Some(&problem) {
                    eprintln!("hypha: {problem}");
                    said = Some(problem);
                }
            }
        }
    }
}

/// `10:11:12  leased      worker-1 (8ebc2130) at 110 an hour for job-…`.
fn event_line(event: &MarketEvent) -> String {
    let at = event.at.to_string();
    let time = at.get(11..19).unwrap_or(&at);
    let price =
        |price: Option<f64>| price.map_or("an unknown price".to_owned(), |it| it.to_string());
    let what = match event.event.as_str() {
        "advertised" => {
            let wanted = count(event.wanted.unwrap_or_default().into(), "worker");
            let asked = count(event.asked.unwrap_or_default().into(), "worker");
            let others = match event.is_gossiped {
                Some(true) => ", and all others by gossip",
                _ => "",
            };
            format!("{wanted} wanted at {} an hour: asked {asked}{others}", price(event.bid))
        }
        "offered" => {
            let counts = if event.counts == Some(false) { ", which does not count" } else { "" };
            format!("{} offers at {} an hour{counts}", worker(event), price(event.price))
        }
        "leased" => format!("{} at {} an hour", worker(event), price(event.price)),
        "lost" => {
            let reason = event.reason.as_deref().unwrap_or("no reason is known");
            format!("{}: {}", worker(event), clean(reason))
        }
        "short" if event.is_over_budget == Some(true) => "the offers exceed the budget".to_owned(),
        "short" => format!("{} missing", count(event.missing.unwrap_or_default().into(), "worker")),
        _ => worker(event),
    };
    let job = event.job.map_or(String::new(), |job| format!("  {job}"));
    format!("{time}  {:<10}  {what}{job}", clean(&event.event))
}

fn worker(event: &MarketEvent) -> String {
    let Some(id) = event.worker else { return "-".to_owned() };
    let short: String = id.to_string().chars().take(8).collect();
    match &event.worker_name {
        Some(name) => format!("{} ({short})", clean(name)),
        None => short,
    }
}

fn ledger(arguments: &LedgerArguments) -> Result<(), Failure> {
    if let Some(config) = &arguments.config {
        return ledger_of_worker(arguments, config);
    }
    let scheduler = arguments.connection.connect()?;
    block_on(async {
        if arguments.csv {
            let mut csv = scheduler.ledger_csv().await.map_err(failure)?;
            while let Some(piece) = csv.chunk().await.map_err(failure)? {
                print_bytes(&piece)?;
            }
            return Ok(());
        }
        let ledger = scheduler.ledger().await.map_err(failure)?;
        match arguments.json {
            true => print(&format!("{:#}\n", Json::of(&ledger))),
            false => print(&ledger_table(&ledger)),
        }
    })
}

/// The ledger of a worker of this machine, from the receipts in its `data_dir`.
fn ledger_of_worker(arguments: &LedgerArguments, config: &Path) -> Result<(), Failure> {
    let config: WorkerConfig = ConfigArguments::of(config.to_owned()).load()?;
    let receipts = hypha_node::worker_receipts(&config.data_dir).map_err(|error| {
        let data_dir = config.data_dir.display();
        Failure::work(format!("cannot read the receipts in data_dir {data_dir}: {error}"))
    })?;
    let mut sums = LedgerSums::new();
    for stored in &receipts {
        let issued = &stored.issued.receipt;
        let confirmed = stored.confirmed.as_ref().map(|signed| &signed.receipt);
        let key = (issued.organisation.clone(), issued.worker);
        add_to_ledger(&mut sums, key, issued.price, confirmed, issued.held);
    }
    if arguments.csv {
        let rows = sums.iter().map(|((name, worker), sum)| (name.as_str(), *worker, None, sum));
        return print(&ledger_csv(rows));
    }
    let entries = sums.into_iter().map(|((organisation, worker), sum)| LedgerEntry {
        organisation: organisation.to_string(),
        worker,
        worker_name: None,
        leases: sum.leases,
        held_seconds: sum.held.as_secs_f64(),
        amount: sum.amount.as_f64(),
        unconfirmed_seconds: sum.unconfirmed_held.as_secs_f64(),
        unconfirmed_amount: sum.unconfirmed_amount.as_f64(),
        more: Default::default(),
    });
    let ledger = Ledger { entries: entries.collect() };
    match arguments.json {
        true => print(&format!("{:#}\n", Json::of(&ledger))),
        false => print(&ledger_table(&ledger)),
    }
}

fn ledger_table(ledger: &Ledger) -> String {
    if ledger.entries.is_empty() {
        return "nothing was leased\n".to_owned();
    }
    let header =
        ["organisation", "worker", "leases", "held", "amount", "unconfirmed", "its amount"];
    let mut rows = vec![header.map(str::to_owned)];
    let held = |seconds: f64| took(Span::from_micros((seconds.max(0.0) * 1e6) as u64));
    for entry in &ledger.entries {
        let short: String = entry.worker.to_string().chars().take(8).collect();
        rows.push([
            clean(&entry.organisation),
            entry
                .worker_name
                .as_ref()
                .map_or(short.clone(), |it| format!("{} ({short})", clean(it))),
            entry.leases.to_string(),
            held(entry.held_seconds),
            entry.amount.to_string(),
            held(entry.unconfirmed_seconds),
            entry.unconfirmed_amount.to_string(),
        ]);
    }
    fit(&mut rows, 1);
    table(&rows)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn line(event: Value) -> String {
        let mut whole = json!({"sequence": 1, "at": "2026-01-01T10:11:12.000Z"});
        whole.as_object_mut().unwrap().extend(event.as_object().unwrap().clone());
        event_line(&serde_json::from_value(whole).unwrap())
    }

    #[test]
    fn events_are_lines() {
        let worker = "8ebc2130-610d-826e-b5b1-85a378d2ca34";
        let cases = [
            (
                json!({"event": "advertised", "wanted": 3, "asked": 1, "is_gossiped": true, "bid": 1.5}),
                "10:11:12  advertised  3 workers wanted at 1.5 an hour: asked 1 worker, and all others by gossip",
            ),
            (
                json!({"event": "offered", "worker": worker, "price": 2.0, "counts": false}),
                "10:11:12  offered     8ebc2130 offers at 2 an hour, which does not count",
            ),
            (
                json!({"event": "leased", "worker": worker, "worker_name": "w\u{7}", "price": 2.5}),
                "10:11:12  leased      w  (8ebc2130) at 2.5 an hour",
            ),
            (
                json!({"event": "lost", "worker": worker, "reason": "expired"}),
                "10:11:12  lost        8ebc2130: expired",
            ),
            (json!({"event": "released", "worker": worker}), "10:11:12  released    8ebc2130"),
            (json!({"event": "short", "missing": 2}), "10:11:12  short       2 workers missing"),
            (json!({"event": "auctioned"}), "10:11:12  auctioned   -"),
        ];
        for (event, expected) in cases {
            assert_eq!(line(event), expected);
        }
    }

    #[test]
    fn the_ledger_is_a_table() {
        let ledger: Ledger = serde_json::from_value(json!({"entries": [{
            "organisation": "lab", "worker": "8ebc2130-610d-826e-b5b1-85a378d2ca34",
            "worker_name": "worker-1", "leases": 2, "held_seconds": 90.5, "amount": 2.75,
            "unconfirmed_seconds": 1.5, "unconfirmed_amount": 0.05,
        }]}))
        .unwrap();
        let text = ledger_table(&ledger);
        let row = text.lines().nth(1).unwrap();
        assert!(row.starts_with("lab           worker-1 (8ebc2130)  2       1m    2.75"), "{text}");
        assert_eq!(ledger_table(&Ledger { entries: Vec::new() }), "nothing was leased\n");
    }
}
