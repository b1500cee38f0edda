//! Commands that only `hypha scheduler` has: list workers and data sets, create tokens.

use clap::{Args, Subcommand};
use hypha_config::SchedulerConfig;
use hypha_model::amount::{parse_bytes, parse_milli};
use hypha_model::{CapabilityQuery, Name, NodeRole};
use hypha_net::{FoundDataset, FoundWorker};
use serde_json::{Value, json};

use crate::role::{self, ConfigArguments, failure, look};
use crate::usage::{Failure, print};

#[derive(Subcommand)]
pub(crate) enum Command {
    #[command(flatten)]
    Node(role::Command),
    /// List the workers in the network, all or those that match a query
    Workers(Workers),
    /// List the nodes that serve a data set
    Datasets(Datasets),
    /// Create a bearer token for the HTTP API, and add it to a token file
    Token(crate::token::Token),
}

#[derive(Args)]
pub(crate) struct Workers {
    #[command(flatten)]
    config_arguments: ConfigArguments,
    /// What a worker must have, as KEY=VALUE; may be repeated. Keys: models, executor, min_memory, cpu_cores,
    /// gpu_required, min_gpu_memory
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',')]
    query: Vec<String>,
    #[command(flatten)]
    options: QueryOptions,
}

#[derive(Args)]
pub(crate) struct Datasets {
    /// The name under which the data set is advertised
    name: Name,
    #[command(flatten)]
    config_arguments: ConfigArguments,
    #[command(flatten)]
    options: QueryOptions,
}

#[derive(Args)]
struct QueryOptions {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Seconds to wait
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    timeout: f64,
}

pub(crate) fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Node(command) => role::run(NodeRole::Scheduler, command),
        Command::Workers(workers) => {
            let query = parse_query(&workers.query)?;
            let config: SchedulerConfig = workers.config_arguments.load()?;
            let look = look(NodeRole::Scheduler, &config.network, workers.options.timeout)?;
            let found = hypha_node::find_workers(&look, query).map_err(failure)?;
            match workers.options.json {
                true => print(&format!("{:#}\n", worker_json(&found))),
                false if found.is_empty() && workers.query.is_empty() => {
                    print("no workers are known\n")
                }
                false => print(&worker_table(&found)),
            }
        }
        Command::Token(token) => crate::token::run(token),
        Command::Datasets(datasets) => {
            let config: SchedulerConfig = datasets.config_arguments.load()?;
            let look = look(NodeRole::Scheduler, &config.network, datasets.options.timeout)?;
            let found = hypha_node::find_datasets(&look, datasets.name).map_err(failure)?;
            match datasets.options.json {
                true => print(&format!("{:#}\n", dataset_json(&found))),
                false => print(&dataset_table(&found)),
            }
        }
    }
}

fn parse_query(pairs: &[String]) -> Result<CapabilityQuery, Failure> {
    let mut query = CapabilityQuery::default();
    for pair in pairs {
        let (key, value) = match pair.split_once('=') {
            Some(both) => both,
            None if pair == "gpu_required" => (pair.as_str(), "true"),
            None => return Err(Failure::usage(format!("--query {pair}: expected KEY=VALUE"))),
        };
        let wrong =
            |problem: &dyn std::fmt::Display| Failure::usage(format!("--query {key}: {problem}"));
        let name = || value.parse::<Name>().map_err(|error| wrong(&error));
        match key {
            "models" => query.models.push(name()?),
            "executor" => query.executor = Some(name()?),
            "min_memory" => {
                query.min_memory_bytes = parse_bytes(key, value).map_err(|e| wrong(&e))?
            }
            "min_gpu_memory" => {
                query.min_gpu_memory_bytes = parse_bytes(key, value).map_err(|e| wrong(&e))?;
            }
            "cpu_cores" => query.cpu_milli = parse_milli(key, value).map_err(|e| wrong(&e))?,
            "gpu_required" => {
                query.gpu_required = value.parse().map_err(|_| wrong(&"expected true or false"))?;
            }
            _ => {
                return Err(wrong(
                    &"no such key; use models, executor, min_memory, cpu_cores, gpu_required or min_gpu_memory",
                ));
            }
        }
    }
    Ok(query)
}

fn worker_table(found: &[FoundWorker]) -> String {
    if found.is_empty() {
        return "no worker matches\n".into();
    }
    let header = [
        "name",
        "worker",
        "organisation",
        "cores",
        "memory",
        "gpus",
        "executors",
        "price/h",
        "region",
    ];
    let mut rows = vec![header.map(str::to_owned)];
    for one in found {
        let (worker, capacity) = (&one.worker, &one.worker.capacity);
        let executors = worker.executors.iter().map(|executor| {
            let models: Vec<_> = executor.models.iter().map(Name::as_str).collect();
            let models = if models.is_empty() { "any model".into() } else { models.join("+") };
            format!("{} ({models})", executor.name)
        });
        let gpus = capacity
            .devices
            .iter()
            .map(|gpu| format!("{} {}", gpu.model, gigabytes(gpu.memory_bytes)));
        rows.push([
            or_dash(one.name.clone().unwrap_or_default()),
            worker.id.to_string(),
            one.organisation.clone(),
            format!("{}", capacity.cpu_milli as f64 / 1_000.0),
            gigabytes(capacity.memory_bytes),
            or_dash(gpus.collect::<Vec<_>>().join(", ")),
            or_dash(executors.collect::<Vec<_>>().join(", ")),
            worker.price.to_string(),
            or_dash(worker.region.as_ref().map_or(String::new(), ToString::to_string)),
        ]);
    }
    table(&rows)
}

fn dataset_table(found: &[FoundDataset]) -> String {
    if found.is_empty() {
        return "no node serves it\n".into();
    }
    let mut rows = vec![["peer", "organisation", "address"].map(str::to_owned)];
    for one in found {
        let address = one.addresses.first().map_or(String::new(), ToString::to_string);
        rows.push([one.peer.to_string(), one.organisation.clone(), or_dash(address)]);
    }
    table(&rows)
}

fn worker_json(found: &[FoundWorker]) -> Value {
    let one = |one: &FoundWorker| {
        json!({
            "peer": one.peer.to_string(),
            "name": one.name,
            "organisation": one.organisation,
            "worker": one.worker,
            "addresses": texts(&one.addresses),
            "bulk_addresses": texts(&one.bulk_addresses),
        })
    };
    found.iter().map(one).collect()
}

fn dataset_json(found: &[FoundDataset]) -> Value {
    let one = |one: &FoundDataset| {
        json!({
            "peer": one.peer.to_string(),
            "organisation": one.organisation,
            "name": one.name,
            "addresses": texts(&one.addresses),
            "bulk_addresses": texts(&one.bulk_addresses),
        })
    };
    found.iter().map(one).collect()
}

fn texts<T: ToString>(items: &[T]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.1} GB", bytes as f64 / 1e9)
}

pub(crate) fn or_dash(text: String) -> String {
    if text.is_empty() { "-".into() } else { text }
}

pub(crate) fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_is_parsed_and_an_invalid_one_is_explained() {
        let pairs = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let query = parse_query(&pairs(
            "models=llama models=mistral min_memory=16GB gpu_required cpu_cores=2.5 min_gpu_memory=24GB executor=vllm",
        ))
        .unwrap();
        assert_eq!(query.models.len(), 2);
        assert_eq!(query.min_memory_bytes, 16_000_000_000);
        assert_eq!(query.cpu_milli, 2_500);
        assert!(query.gpu_required);
        for (wrong, says) in [
            ("memory=4", "no such key"),
            ("models", "expected KEY=VALUE"),
            ("gpu_required=maybe", "true or false"),
            ("min_memory=lots", "min_memory"),
        ] {
            let error = parse_query(&pairs(wrong)).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
