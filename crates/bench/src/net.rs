//! `hypha bench net`: bulk transfer to a second process of this program over loopback, with all carriers in turn.

use std::process::Stdio;
use std::time::SystemTime;

use anyhow::Context;
use clap::Args;
use hypha_bulk::bench::{
    Carrier, Dedicated, Pattern, Plain, Remote, Row, TlsPair, measure, serve_commands,
};
use hypha_model::NodeRole;
use hypha_pki::issue::{self, Validity};
use hypha_pki::{Material, Pki};
use indicatif::ProgressBar;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use crate::stream::Stream;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Bytes of each transfer
    #[arg(long, default_value = "1GiB", value_parser = bytes)]
    bytes: u64,
    /// Number of measurements of each; the median is reported
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn bytes(text: &str) -> Result<u64, String> {
    let bytes = hypha_model::amount::parse_bytes("", text).map_err(|error| error.to_string())?;
    match bytes {
        0 => Err("at least one byte is needed".into()),
        _ => Ok(bytes),
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<String> {
    let rows = on_runtime(drive(arguments))?;
    Ok(match arguments.json {
        true => json(arguments, &rows) + "\n",
        false => table(&rows),
    })
}

/// The other process: it carries out commands from its standard input.
pub(crate) fn peer() -> anyhow::Result<()> {
    on_runtime(async {
        let mut input = BufReader::new(tokio::io::stdin());
        let mut identity = String::new();
        input.read_line(&mut identity).await?;
        let identity = serde_json::from_str(&identity).context("no identity was received")?;
        serve_commands(&carriers(&identity).await?, input, tokio::io::stdout())
            .await
            .context("cannot read commands")
    })
}

fn on_runtime<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let done = runtime.block_on(work);
    // A pending read of standard input would keep the process running.
    runtime.shutdown_background();
    done
}

async fn drive(arguments: &Arguments) -> anyhow::Result<Vec<Row>> {
    let [own, other] = identities()?;
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut child = tokio::process::Command::new(program)
        .args(["bench", "net-peer"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("cannot start a second process")?;
    let (to, from) = (child.stdin.take(), child.stdout.take());
    let mut to = to.context("the second process has no input")?;
    let from = BufReader::new(from.context("the second process has no output")?);
    // Its key goes through the pipe: arguments and the environment can be read by others.
    to.write_all((serde_json::to_string(&other)? + "\n").as_bytes()).await?;
    let mut remote = Remote::connect(from, to).await.context("the second process is not ready")?;
    let carriers = carriers(&own).await?;
    // The progress bar includes the warm-up round.
    let bar = ProgressBar::new(u64::from(arguments.rounds) + 1);
    let rounds = arguments.rounds as usize;
    let rows = measure(&carriers, &mut remote, arguments.bytes, rounds, |_| bar.inc(1)).await;
    bar.finish_and_clear();
    drop(remote);
    let _ = child.wait().await;
    rows.context("a transfer failed")
}

/// Certificate, key and root.
type Identity = [String; 3];

fn identities() -> anyhow::Result<[Identity; 2]> {
    let validity = Validity::days(SystemTime::now(), 1);
    let root = issue::root("Bench", validity)?;
    let organisation = issue::organisation(&root, "Bench", validity)?;
    let identity = |name| -> anyhow::Result<Identity> {
        let node = issue::node(&organisation, name, NodeRole::Worker, &[], validity)?;
        Ok([node.cert_pem, node.key_pem.to_string(), root.cert_pem()])
    };
    Ok([identity("one")?, identity("two")?])
}

/// All carriers, the same in both processes. The first is the reference.
async fn carriers([cert, key, trust]: &Identity) -> anyhow::Result<Vec<Box<dyn Carrier>>> {
    let material = Material::from_pem(cert, key, trust, None);
    let pki = Pki::from_material(&material, SystemTime::now())?;
    let server = pki.server_config(&[]);
    let tls = TlsPair { server, client: pki.client_config(&[]), name: Pki::server_name() };
    let pattern = Pattern::default();
    Ok(vec![
        Box::new(Plain::start(tls.clone(), pattern.clone()).await?),
        Box::new(Dedicated::start(tls, pattern.clone()).await?),
        Box::new(Stream::start(pki, pattern).await?),
    ])
}

/// Each row with its speed relative to the first row's, one way and both ways.
fn ratios(rows: &[Row]) -> impl Iterator<Item = (&Row, f64, f64)> {
    let reference = rows.first();
    rows.iter().map(move |row| {
        let of = |speed: f64, reference: Option<f64>| reference.map_or(f64::NAN, |r| speed / r);
        (
            row,
            of(row.one_way, reference.map(|row| row.one_way)),
            of(row.two_way, reference.map(|row| row.two_way)),
        )
    })
}

fn table(rows: &[Row]) -> String {
    let mut text =
        format!("{:<12}{:>14}{:>8}{:>16}{:>8}\n", "carrier", "one way", "", "both ways", "");
    for (row, one_way, two_way) in ratios(rows) {
        text += &format!(
            "{:<12}{:>9.0} MB/s{:>6.0} %{:>11.0} MB/s{:>6.0} %\n",
            row.carrier,
            row.one_way / 1e6,
            one_way * 100.0,
            row.two_way / 1e6,
            two_way * 100.0,
        );
    }
    text
}

fn json(arguments: &Arguments, rows: &[Row]) -> String {
    let rows: Vec<_> = ratios(rows)
        .map(|(row, one_way, two_way)| {
            serde_json::json!({
                "carrier": row.carrier,
                "one_way_bytes_per_second": row.one_way,
                "two_way_bytes_per_second": row.two_way,
                "one_way_ratio": one_way,
                "two_way_ratio": two_way,
            })
        })
        .collect();
    let (bytes, rounds) = (arguments.bytes, arguments.rounds);
    serde_json::json!({ "bytes": bytes, "rounds": rounds, "carriers": rows }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_compared_with_the_first() {
        let row = |carrier, one_way, two_way| Row { carrier, one_way, two_way };
        let rows = [row("plain", 2e9, 1e9), row("dedicated", 1.8e9, 0.85e9)];
        let text = table(&rows);
        assert!(text.lines().nth(2).unwrap().contains("1800 MB/s    90 %"), "{text}");
        assert!(text.lines().nth(2).unwrap().ends_with("850 MB/s    85 %"), "{text}");
        let arguments = Arguments { bytes: 1, rounds: 2, json: true };
        let parsed: serde_json::Value = serde_json::from_str(&json(&arguments, &rows)).unwrap();
        assert_eq!(parsed["carriers"][1]["one_way_ratio"], 0.9);
    }

    #[test]
    fn sizes_are_parsed() {
        assert_eq!(bytes("64MiB"), Ok(64 << 20));
        assert!(bytes("0").is_err() && bytes("much").is_err());
    }
}
