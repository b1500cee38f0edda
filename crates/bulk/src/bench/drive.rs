//! The two processes: one drives and measures, the other executes its commands.

use std::collections::BTreeMap;
use std::io;
use std::time::Instant;

use serde::Serialize;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::Carrier;

/// The longest line between the two: a few addresses.
const MAX_LINE: u64 = 4096;

/// The throughput of a carrier: medians over the rounds, in bytes per second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its name.
    pub carrier: &'static str,
    /// From one process to the other.
    pub one_way: f64,
    /// In both directions at once, added up.
    pub two_way: f64,
}

/// The other process, as the driver sees it.
pub struct Remote<R, W> {
    from: R,
    to: W,
    addresses: BTreeMap<String, String>,
}

impl<R: AsyncBufRead + Unpin, W: AsyncWrite + Unpin> Remote<R, W> {
    /// Waits until it is ready.
    pub async fn connect(mut from: R, to: W) -> io::Result<Remote<R, W>> {
        let mut addresses = BTreeMap::new();
        loop {
            let line = read_line(&mut from).await?;
            match line.split_once(' ') {
                Some((carrier, address)) => {
                    addresses.insert(carrier.to_owned(), address.to_owned());
                }
                None => return Ok(Remote { from, to, addresses }),
            }
        }
    }

    async fn send_command(&mut self, carrier: &dyn Carrier, bytes: u64) -> io::Result<()> {
        let command = format!("{} {} {bytes}\n", carrier.name(), carrier.address());
        self.to.write_all(command.as_bytes()).await?;
        self.to.flush().await
    }

    async fn wait_done(&mut self) -> io::Result<()> {
        match read_line(&mut self.from).await?.as_str() {
            "done" => Ok(()),
            problem => Err(io::Error::other(format!("the other process: {problem}"))),
        }
    }
}

/// Executes the driver's commands until it closes its end.
pub async fn serve_commands<R, W>(
    carriers: &[Box<dyn Carrier>],
    mut from: R,
    mut to: W,
) -> io::Result<()>
where
    R: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut hello = String::new();
    for carrier in carriers {
        hello += &format!("{} {}\n", carrier.name(), carrier.address());
    }
    to.write_all((hello + "ready\n").as_bytes()).await?;
    to.flush().await?;
    loop {
        let command = match read_line(&mut from).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            command => command?,
        };
        let answer = match execute(carriers, &command).await {
            Ok(()) => "done".to_owned(),
            Err(error) => error.to_string().replace('\n', " "),
        };
        to.write_all((answer + "\n").as_bytes()).await?;
        to.flush().await?;
    }
}

async fn execute(carriers: &[Box<dyn Carrier>], command: &str) -> io::Result<()> {
    let unclear = || io::Error::other(format!("`{command}` is not a valid command"));
    let [name, address, bytes] =
        <[&str; 3]>::try_from(command.split(' ').collect::<Vec<_>>()).map_err(|_| unclear())?;
    let bytes = bytes.parse().map_err(|_| unclear())?;
    let carrier = carriers.iter().find(|carrier| carrier.name() == name).ok_or_else(unclear)?;
    carrier.send(address, bytes).await
}

/// Measures each carrier, in turn, so that other load on the machine affects all alike. `after_round` is called with
/// the number of rounds that are done.
pub async fn measure<R, W>(
    carriers: &[Box<dyn Carrier>],
    remote: &mut Remote<R, W>,
    bytes: u64,
    rounds: usize,
    mut after_round: impl FnMut(usize),
) -> io::Result<Vec<Row>>
where
    R: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut taken = vec![(Vec::new(), Vec::new()); carriers.len()];
    // The first round warms caches and buffers up and is not counted.
    for round in 0..=rounds {
        for (index, carrier) in carriers.iter().enumerate() {
            let one_way = one_way(carrier.as_ref(), remote, bytes).await?;
            let two_way = two_way(carrier.as_ref(), remote, bytes).await?;
            if round > 0 {
                taken[index].0.push(one_way);
                taken[index].1.push(two_way);
            }
        }
        after_round(round);
    }
    let rows = carriers.iter().zip(taken).map(|(carrier, (one_way, two_way))| Row {
        carrier: carrier.name(),
        one_way: median(one_way),
        two_way: median(two_way),
    });
    Ok(rows.collect())
}

async fn one_way<R, W>(
    carrier: &dyn Carrier,
    remote: &Remote<R, W>,
    bytes: u64,
) -> io::Result<f64> {
    let to = address_of(carrier, remote)?;
    let started = Instant::now();
    carrier.send(to, bytes).await?;
    Ok(bytes as f64 / started.elapsed().as_secs_f64())
}

async fn two_way<R, W>(
    carrier: &dyn Carrier,
    remote: &mut Remote<R, W>,
    bytes: u64,
) -> io::Result<f64>
where
    R: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let to = address_of(carrier, remote)?.to_owned();
    let started = Instant::now();
    remote.send_command(carrier, bytes).await?;
    tokio::try_join!(carrier.send(&to, bytes), remote.wait_done())?;
    Ok(2.0 * bytes as f64 / started.elapsed().as_secs_f64())
}

fn address_of<'a, R, W>(carrier: &dyn Carrier, remote: &'a Remote<R, W>) -> io::Result<&'a str> {
    let missing = || io::Error::other(format!("the other process has no {}", carrier.name()));
    remote.addresses.get(carrier.name()).map(String::as_str).ok_or_else(missing)
}

async fn read_line<R: AsyncBufRead + Unpin>(from: &mut R) -> io::Result<String> {
    let mut line = String::new();
    match from.take(MAX_LINE).read_line(&mut line).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(line.trim_end().to_owned()),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::CarrierFuture;

    struct Counts(std::sync::atomic::AtomicU64);

    impl Carrier for Counts {
        fn name(&self) -> &'static str {
            "counts"
        }
        fn address(&self) -> String {
            "here".into()
        }
        fn send<'a>(&'a self, to: &'a str, bytes: u64) -> CarrierFuture<'a, ()> {
            assert_eq!(to, "here");
            self.0.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
            Box::pin(async { Ok(()) })
        }
    }

    #[tokio::test]
    async fn both_processes_do_their_part() {
        let carriers = || vec![Box::new(Counts(0.into())) as Box<dyn Carrier>];
        let (near, far) = tokio::io::duplex(1024);
        let other = tokio::spawn(async move {
            let (from, to) = tokio::io::split(far);
            serve_commands(&carriers(), tokio::io::BufReader::new(from), to).await
        });
        let (from, to) = tokio::io::split(near);
        let from = tokio::io::BufReader::new(from);
        let mut remote = Remote::connect(from, to).await.unwrap();
        let mut rounds = Vec::new();
        let rows = measure(&carriers(), &mut remote, 7, 2, |round| rounds.push(round)).await;
        assert_eq!(rows.unwrap()[0].carrier, "counts");
        assert_eq!(rounds, [0, 1, 2]);
        drop(remote);
        other.await.unwrap().unwrap();
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
