//! What the market is measured by: utilisation against a packer that knows everything, the time from advert to lease, and
//! what gossip costs.

use hypha_model::{Rng, Span, Time};

use super::packer;
use super::plain::{self, CORES, PlainJob, PlainMarket};
use crate::checkers::Violation;
use crate::world::{MarketCounts, START};

/// No measurement takes longer, in virtual time.
const LONGEST: Span = Span::from_secs(24 * 3_600);
/// The jobs of the measurements of latency and mesh.
const LATENCY_JOBS: usize = 100;

/// Utilisation of the market and of the packer.
#[derive(Clone, Copy, Debug)]
pub struct Utilisation {
    /// The time that all jobs took, in seconds.
    pub market_s: f64,
    /// The same with the packer.
    pub packer_s: f64,
    /// What no schedule can beat: the work over the capacity, or the longest job.
    pub bound_s: f64,
    /// The work of all jobs, in seconds of all workers.
    pub work_s: f64,
}

/// Time from advert to lease, and messages.
#[derive(Clone, Debug)]
pub struct Leasing {
    /// How many leases there were.
    pub leases: u64,
    /// Half of the leases were granted within this, in milliseconds.
    pub p50_ms: f64,
    /// 99 of 100.
    pub p99_ms: f64,
    /// All counts.
    pub counts: MarketCounts,
}

/// Runs `jobs` jobs through competing schedulers, and packs the same jobs centrally.
pub fn utilisation(market: &PlainMarket, jobs: usize) -> Result<Utilisation, Violation> {
    let mut rng = Rng::new(market.seed ^ 0x7061_636b);
    let jobs: Vec<PlainJob> = (0..jobs).map(|_| large_job(&mut rng)).collect();
    let counts = run(market, &jobs)?;
    let end = counts.last_end.unwrap_or(START);
    let first = START + Span::from_secs(1);
    Ok(Utilisation {
        market_s: end.since(first).as_secs_f64(),
        packer_s: packer::makespan_s(market.workers, CORES, &jobs),
        bound_s: packer::bound_s(market.workers, CORES, &jobs),
        work_s: packer::work_s(market.workers, CORES, &jobs),
    })
}

/// Small gangs, one after the other, on workers that are idle: how long it takes from advert to lease, and how many
/// messages.
pub fn leasing(market: &PlainMarket) -> Result<Leasing, Violation> {
    let job = |index: usize| PlainJob { at_s: 2.0 * index as f64, roles: vec![(4, 2_000, 1.0)] };
    let jobs: Vec<PlainJob> = (0..LATENCY_JOBS).map(job).collect();
    let counts = run(market, &jobs)?;
    let mut sorted = counts.lease_latencies_ms.clone();
    sorted.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let index = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(index.saturating_sub(1)).copied().unwrap_or_default()
    };
    Ok(Leasing { leases: counts.leases, p50_ms: at(0.5), p99_ms: at(0.99), counts })
}

/// Runs all jobs to their ends.
pub fn run(market: &PlainMarket, jobs: &[PlainJob]) -> Result<MarketCounts, Violation> {
    let mut world = plain::world(market, jobs);
    let deadline: Time = START + LONGEST;
    world.run(deadline)?;
    Ok(world.market_counts().cloned().unwrap_or_default())
}

/// One to three roles of one to four members with one to four cores, for half a minute to three.
fn large_job(rng: &mut Rng) -> PlainJob {
    let role = |rng: &mut Rng| {
        let (members, cores) = (1 + rng.below(4) as u32, 500 * (2 + rng.below(7)));
        (members, cores, 30.0 + 150.0 * rng.unit())
    };
    let roles = (0..=rng.below(3)).map(|_| role(rng)).collect();
    PlainJob { at_s: 60.0 * rng.unit(), roles }
}
