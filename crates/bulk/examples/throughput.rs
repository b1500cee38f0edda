//! What `hypha bench net` measures, without the rest of the command: for tuning.
//!
//! `cargo run --release -p hypha-bulk --example throughput -- [GIGABYTES] [ROUNDS]`

use std::io::Write;
use std::process::Stdio;
use std::time::SystemTime;

use anyhow::Context;
use hypha_bulk::bench::{Carrier, Dedicated, Pattern, Plain, Remote, TlsPair, measure, obey};
use hypha_model::NodeRole;
use hypha_pki::issue::{self, Validity};
use hypha_pki::{Material, Pki};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, stdin, stdout};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "obey") {
        let mut input = BufReader::new(stdin());
        let mut identity = String::new();
        input.read_line(&mut identity).await?;
        let identity: [String; 3] = serde_json::from_str(&identity)?;
        return Ok(obey(&carriers(&identity).await?, input, stdout()).await?);
    }
    let number = |at: usize, usual| {
        arguments.get(at).map_or(Ok(usual), |text| text.parse()).context("not a number")
    };
    let (gigabytes, rounds) = (number(0, 1)?, number(1, 5)?);
    let [own, other] = identities()?;
    let mut child = tokio::process::Command::new(std::env::current_exe()?)
        .arg("obey")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let (to, from) = (child.stdin.take(), child.stdout.take());
    let mut to = to.context("no input")?;
    to.write_all((serde_json::to_string(&other)? + "\n").as_bytes()).await?;
    let from = BufReader::new(from.context("no output")?);
    let mut remote = Remote::connect(from, to).await?;
    let carriers = carriers(&own).await?;
    let told = |round| _ = write!(std::io::stderr(), "{round} ");
    let rows = measure(&carriers, &mut remote, gigabytes << 30, rounds as usize, told).await?;
    for row in &rows {
        let ratio = |of: f64, reference: f64| 100.0 * of / reference;
        println!(
            "{:10} {:6.0} MB/s ({:3.0} %)  {:6.0} MB/s both ways ({:3.0} %)",
            row.carrier,
            row.one_way / 1e6,
            ratio(row.one_way, rows[0].one_way),
            row.two_way / 1e6,
            ratio(row.two_way, rows[0].two_way),
        );
    }
    Ok(())
}

/// Certificate, key and root for each of the two processes.
fn identities() -> anyhow::Result<[[String; 3]; 2]> {
    let validity = Validity::days(SystemTime::now(), 1);
    let root = issue::root("Bench", validity)?;
    let organisation = issue::organisation(&root, "Bench", validity)?;
    let identity = |name| -> anyhow::Result<[String; 3]> {
        let node = issue::node(&organisation, name, NodeRole::Worker, &[], validity)?;
        Ok([node.cert_pem, node.key_pem.to_string(), root.cert_pem()])
    };
    Ok([identity("one")?, identity("two")?])
}

async fn carriers([cert, key, trust]: &[String; 3]) -> anyhow::Result<Vec<Box<dyn Carrier>>> {
    let material = Material::from_pem(cert, key, trust, None);
    let pki = Pki::from_material(&material, SystemTime::now())?;
    let server = pki.server_config(&[]);
    let tls = TlsPair { server, client: pki.client_config(&[]), name: Pki::server_name() };
    let pattern = Pattern::default();
    Ok(vec![
        Box::new(Plain::start(tls.clone(), pattern.clone()).await?),
        Box::new(Dedicated::start(tls, pattern).await?),
    ])
}
