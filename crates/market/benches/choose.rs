//! The cost of choosing a gang of 64 workers and a parameter server from 10,000 offers, without a budget and with one that
//! the best set exceeds, and of collecting an offer. The goal: a choice takes less than 10 ms.

#![allow(clippy::unwrap_used)] // on constants of this file

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BatchSize, Criterion};
use hypha_market::{
    Advert, Auction, Offer, OfferedRole, Portion, Valuation, WantedRole, WorkerStanding,
};
use hypha_model::{
    AdvertId, Capacity, Epoch, Executor, ExecutorClass, Money, OfferId, Requirement, Rng, Span,
    Time, Worker, WorkerId,
};

const OFFERS: u32 = 10_000;
const MEMBERS: u32 = 64;
const BID: Money = Money::from_micros(1_000_000);
const MAX: Money = Money::from_micros(2_000_000);

fn advert(rng: &mut Rng) -> Arc<Advert> {
    let role = |name: &str, count: u32| WantedRole {
        name: name.parse().unwrap(),
        requirement: Arc::new(Requirement { cpu_milli: 1_000, ..Requirement::default() }),
        count,
        minimum: count,
        wants_all: false,
        bid: BID,
    };
    Arc::new(Advert {
        id: AdvertId::new(Time::ZERO, rng),
        roles: vec![role("worker", MEMBERS), role("parameter_server", 1)],
        priority: Default::default(),
        is_preemptible: false,
        is_replacement: false,
        waited: Span::ZERO,
        window: Span::from_secs(1),
        offers_wanted: OFFERS,
        lease_ttl: Span::from_secs(30),
    })
}

/// An offer for both roles, of a worker with its own price and speed.
fn offer(advert: AdvertId, rng: &mut Rng) -> (Arc<Offer>, WorkerStanding) {
    let executor = Executor {
        class: ExecutorClass::default(),
        name: "echo".parse().unwrap(),
        models: Vec::new(),
        concurrency: 1,
    };
    let worker = Worker {
        id: WorkerId::new(Time::ZERO, rng),
        capacity: Capacity { cpu_milli: 1_000 + rng.below(4_000), ..Capacity::default() },
        executors: vec![executor],
        hardware: None,
        region: None,
        price: Money::default(),
    };
    let portion = Portion::whole(&worker);
    let mut role = |role: u16| OfferedRole {
        role,
        price: Money::from_micros(500_000 + rng.below(1_500_000)),
        portion: portion.clone(),
    };
    let roles = vec![role(0), role(1)];
    let offer = Offer {
        id: OfferId::new(Time::ZERO, rng),
        advert,
        worker: Arc::new(worker),
        epoch: Epoch::default(),
        roles,
        reserved_for: Span::from_secs(10),
        speed_milli: Some(500 + rng.below(1_000) as u32),
        backlog: Span::from_micros(rng.below(10_000_000)),
        is_relayed: rng.chance(0.3),
    };
    let round_trip = Span::from_micros(rng.below(100_000));
    (Arc::new(offer), WorkerStanding { round_trip, ..WorkerStanding::default() })
}

fn main() {
    let mut criterion = Criterion::default()
        .configure_from_args()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(3));
    let mut rng = Rng::new(1);
    let advert = advert(&mut rng);
    let offers: Vec<_> = (0..OFFERS).map(|_| offer(advert.id, &mut rng)).collect();
    let collect = |budget: Option<Money>| {
        let valuation = Valuation { budget, ..Valuation::BALANCE };
        let mut auction =
            Auction::new(Arc::clone(&advert), vec![MAX, MAX], valuation, None, Time::ZERO);
        for (offer, standing) in &offers {
            auction.offered(Time::ZERO, Arc::clone(offer), *standing).unwrap();
        }
        auction
    };
    let unlimited = collect(None);
    let members = unlimited.choose(Time::ZERO).unwrap().members;
    let price: u64 = members.iter().map(|member| member.price.as_micros()).sum();
    let limited = collect(Some(Money::from_micros(price / 100 * 85)));
    assert!(limited.choose(Time::ZERO).is_ok(), "a budget that can be kept");
    criterion.bench_function("choose", |b| b.iter(|| black_box(unlimited.choose(Time::ZERO))));
    criterion.bench_function("choose within a budget", |b| {
        b.iter(|| black_box(limited.choose(Time::ZERO)));
    });
    criterion.bench_function("collect all", |b| {
        b.iter_batched(|| (), |()| collect(None), BatchSize::LargeInput);
    });
    criterion.final_summary();
}
