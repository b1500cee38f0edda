//! The owner's book of leases: nothing is granted twice, and the limits settle.

use hypha_model::{Capacity, Device, Executor, ExecutorClass, Money, Rng, WorkerId};

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key(SchedulerId, u32);

impl LeaseKey for Key {
    fn scheduler(&self) -> SchedulerId {
        self.0
    }
}

const TTL: Span = Span::from_secs(30);

fn worker(gpus: usize, slots: u32) -> Arc<Worker> {
    let name = |text: &str| text.parse().unwrap();
    let device = Device { model: name("A100"), memory_bytes: 80, milli_gpu: 1_000 };
    Arc::new(Worker {
        id: WorkerId::new(Time::ZERO, &mut Rng::new(1)),
        capacity: Capacity {
            cpu_milli: 8_000,
            memory_bytes: 100,
            storage_bytes: 0,
            devices: vec![device; gpus],
        },
        executors: vec![Executor {
            class: ExecutorClass::Inference,
            name: name("echo"),
            models: Vec::new(),
            concurrency: slots,
        }],
        hardware: None,
        region: None,
        price: Money::default(),
    })
}

fn at(seconds: u64) -> Time {
    Time::from_micros(seconds * 1_000_000)
}

fn scheduler(number: u128) -> SchedulerId {
    SchedulerId::new(Time::ZERO, &mut Rng::new(number as u64))
}

fn shared(number: u128) -> Holder {
    Holder::shared(scheduler(number))
}

fn gpu() -> Option<Arc<Requirement>> {
    Some(Arc::new(Requirement { min_gpus: 1, ..Requirement::default() }))
}

/// A book, with the numbers of requests and leases.
struct Rig {
    book: LeaseBook<Key>,
    worker: Arc<Worker>,
    asked: u64,
}

impl Rig {
    fn new(worker: Arc<Worker>) -> Rig {
        Rig { book: LeaseBook::new(Arc::clone(&worker)), worker, asked: 0 }
    }

    fn ask(&mut self, now: Time, holder: u128, ask: LeaseRequest) -> LeaseDecision {
        self.asked += 1;
        let ask = LeaseRequest { request: self.asked, ttl: TTL, ..ask };
        let id = LeaseId::new(now, &mut Rng::new(self.asked));
        let answer = self.book.request(now, scheduler(holder), &ask, || id);
        self.book.check().unwrap();
        answer
    }

    fn lease(&mut self, now: Time, holder: u128) -> LeaseId {
        match self.ask(now, holder, LeaseRequest::default()) {
            LeaseDecision::Granted(granted) => granted.lease,
            other => panic!("{other:?}"),
        }
    }

    /// Renews, and returns how many slots and whole GPUs the lease covers.
    fn renew(&mut self, now: Time, holder: u128, demand: Option<Arc<Requirement>>) -> (u32, usize) {
        let (id, _) = self.book.lease_of(shared(holder)).unwrap();
        let granted = self.book.renew(now, shared(holder), id, demand).unwrap();
        self.book.check().unwrap();
        let portion = granted.portion.unwrap_or_else(|| Portion::whole(&self.worker));
        let gpus = portion.devices.iter().filter(|device| device.milli_gpu == 1_000).count();
        (portion.slots[0], gpus)
    }
}

#[test]
fn a_single_holder_has_everything_and_shares_when_another_requests_a_lease() {
    let mut rig = Rig::new(worker(2, 4));
    rig.lease(at(0), 1);
    assert_eq!(rig.renew(at(1), 1, None), (4, 2));
    // All is held: the second has an empty lease, until the first renews.
    let granted = rig.ask(at(2), 2, LeaseRequest::default());
    let LeaseDecision::Granted(LeaseGrant { portion: Some(portion), .. }) = granted else {
        panic!()
    };
    assert!(portion.is_empty());
    assert_eq!(rig.book.early_renewals(at(2)).len(), 1, "the first is told to renew");
    assert_eq!(rig.renew(at(3), 1, None), (2, 1));
    assert_eq!(rig.renew(at(3), 2, None), (2, 1));
    assert_eq!(rig.book.early_renewals(at(3)), [], "it has settled");
    // When the second has released its lease, the first has all of it again.
    rig.book.release(shared(2));
    assert_eq!(rig.book.early_renewals(at(4)).len(), 1);
    assert_eq!(rig.renew(at(4), 1, None), (4, 2));
}

#[test]
fn runs_beyond_a_smaller_limit_continue_and_are_not_replaced() {
    let mut rig = Rig::new(worker(0, 2));
    rig.lease(at(0), 1);
    let core = Requirement { cpu_milli: 4_000, ..Requirement::default() };
    let (a, b) = (Key(scheduler(1), 1), Key(scheduler(1), 2));
    assert!(
        rig.book.begin(a, shared(1), &core, 0).is_some()
            && rig.book.begin(b, shared(1), &core, 0).is_some()
    );
    rig.lease(at(1), 2);
    assert_eq!(rig.renew(at(2), 1, None), (1, 0));
    assert_eq!(rig.renew(at(2), 2, None), (0, 0), "both still run");
    rig.book.end(a, 0);
    assert!(!rig.book.fits(shared(1), &core, 0), "its portion is in use");
    assert_eq!(rig.renew(at(3), 2, None), (1, 0));
    assert!(rig.book.fits(shared(2), &core, 0));
    rig.book.end(b, 0);
    assert!(rig.book.fits(shared(1), &core, 0));
}

#[test]
fn the_portion_of_a_vanished_holder_is_free_after_its_ttl() {
    let mut rig = Rig::new(worker(1, 2));
    rig.lease(at(0), 1);
    rig.lease(at(1), 2);
    assert_eq!(rig.renew(at(20), 2, gpu()), (0, 0));
    assert_eq!(rig.book.wake_at(at(20)), Some(at(30)));
    assert_eq!(rig.book.expired(at(29)), None);
    assert_eq!(rig.book.expired(at(30)), Some(shared(1)));
    rig.book.release(shared(1));
    assert_eq!(rig.renew(at(30), 2, gpu()), (2, 1));
}

#[test]
fn a_run_that_outlives_its_lease_keeps_its_room_and_counts_against_the_next() {
    let mut rig = Rig::new(worker(0, 2));
    rig.lease(at(0), 1);
    let core = Requirement { cpu_milli: 4_000, ..Requirement::default() };
    let key = Key(scheduler(1), 1);
    assert!(rig.book.begin(key, shared(1), &core, 0).is_some());
    rig.book.release(shared(1));
    rig.lease(at(1), 2);
    assert_eq!(rig.renew(at(1), 2, None), (1, 0), "half of it is still in use");
    rig.lease(at(2), 1);
    assert_eq!(rig.renew(at(2), 1, None), (1, 0));
    assert!(!rig.book.fits(shared(1), &core, 0), "it is at its limit");
    rig.book.end(key, 0);
    rig.book.check().unwrap();
    assert!(rig.book.fits(shared(1), &core, 0));
}

#[test]
fn two_holders_that_need_the_same_gpu_take_turns() {
    let mut rig = Rig::new(worker(1, 2));
    rig.lease(at(0), 1);
    assert_eq!(rig.renew(at(1), 1, gpu()).1, 1);
    rig.lease(at(2), 2);
    assert_eq!(rig.renew(at(3), 2, gpu()).1, 0);
    // The first has it for a turn, then the other.
    assert_eq!(rig.renew(at(4), 1, gpu()).1, 1);
    assert_eq!(rig.book.wake_at(at(4)), Some(at(0) + TURN_DURATION));
    assert_eq!(rig.renew(at(10), 1, gpu()).1, 0);
    assert_eq!(rig.renew(at(11), 2, gpu()).1, 1);
    assert_eq!(rig.renew(at(12), 2, gpu()).1, 1, "it has its turn");
    assert_eq!(rig.renew(at(12), 1, gpu()).1, 0);
    assert_eq!(rig.renew(at(22), 2, gpu()).1, 0);
    assert_eq!(rig.renew(at(22), 1, gpu()).1, 1);
    // Without another holder that needs it, it stays.
    assert_eq!(rig.renew(at(23), 2, None).1, 0);
    assert_eq!(rig.renew(at(40), 1, gpu()).1, 1);
}

#[test]
fn a_lease_below_its_minimum_is_refused_and_room_is_made_for_it() {
    let mut rig = Rig::new(worker(2, 4));
    rig.lease(at(0), 1);
    let role = LeaseRequest { minimum: gpu(), maximum: gpu(), ..LeaseRequest::default() };
    assert_eq!(rig.ask(at(1), 2, role.clone()), LeaseDecision::Refused(RefusalKind::Busy));
    assert_eq!(rig.renew(at(2), 1, gpu()).1, 1, "room is made at the next renewal");
    let LeaseDecision::Granted(granted) = rig.ask(at(3), 2, role.clone()) else { panic!() };
    assert_eq!(granted.portion.unwrap().slots, [1]);
    // A minimum is not taken away, whatever other holders need.
    let both = Some(Arc::new(Requirement { min_gpus: 2, ..Requirement::default() }));
    assert_eq!(rig.renew(at(20), 1, both.clone()).1, 1);
    assert_eq!(rig.renew(at(25), 2, None).1, 1);
    // A refused holder keeps its earlier lease, and an impossible request does not wait.
    let more = LeaseRequest { minimum: both, ..role };
    assert_eq!(rig.ask(at(26), 2, more), LeaseDecision::Refused(RefusalKind::Busy));
    assert_eq!(rig.renew(at(27), 2, None).1, 1);
    let cores = Requirement { cpu_milli: 9_000, ..Requirement::default() };
    let impossible = LeaseRequest { minimum: Some(Arc::new(cores)), ..LeaseRequest::default() };
    assert_eq!(rig.ask(at(28), 3, impossible), LeaseDecision::Refused(RefusalKind::Cpu));
    assert!(rig.book.waiting.is_empty());
}

#[test]
fn a_superseded_request_is_not_answered() {
    let mut rig = Rig::new(worker(0, 1));
    let first = rig.lease(at(0), 1);
    let ask = LeaseRequest { request: 7, ttl: TTL, ..LeaseRequest::default() };
    let id = LeaseId::new(at(1), &mut Rng::new(77));
    assert!(matches!(
        rig.book.request(at(1), scheduler(1), &ask, || id),
        LeaseDecision::Granted(_)
    ));
    assert!(!rig.book.holds(scheduler(1), first) && rig.book.holds(scheduler(1), id));
    let again = rig.book.request(at(1), scheduler(1), &ask, || first);
    assert!(
        matches!(again, LeaseDecision::Granted(LeaseGrant { lease, .. }) if lease == id),
        "granted once"
    );
    let old = LeaseRequest { request: 6, ..ask };
    assert_eq!(rig.book.request(at(1), scheduler(1), &old, || first), LeaseDecision::Superseded);
}

#[test]
fn holders_are_bounded() {
    let mut rig = Rig::new(worker(0, 1));
    for holder in 1..=MAX_HOLDERS as u128 {
        rig.lease(at(0), holder);
    }
    assert_eq!(
        rig.ask(at(0), 1_000, LeaseRequest::default()),
        LeaseDecision::Refused(RefusalKind::Busy)
    );
    assert!(
        matches!(rig.ask(at(0), 1, LeaseRequest::default()), LeaseDecision::Granted(_)),
        "it has one"
    );
}

fn offer(scheduler_number: u128, number: u64) -> Holder {
    Holder::offer(scheduler(scheduler_number), OfferId::new(Time::ZERO, &mut Rng::new(number)))
}

impl Rig {
    fn reserve(&mut self, now: Time, holder: Holder, wanted: FixedPortion) -> Option<bool> {
        self.asked += 1;
        let id = LeaseId::new(now, &mut Rng::new(self.asked));
        let reserved = self.book.reserve(now, holder, reservation(wanted, 0, false), || id);
        self.book.check().unwrap();
        reserved
    }
}

fn reservation(portion: FixedPortion, priority: i32, is_preemptible: bool) -> Reservation {
    let priority = Priority::from_milli(priority * 1_000);
    let (is_replacement, standing) = (false, 10);
    let time = Span::from_secs(5);
    Reservation { portion, time, priority, is_preemptible, is_replacement, standing }
}

fn one_gpu() -> FixedPortion {
    FixedPortion::AnyOf(vec![gpu().unwrap()])
}

#[test]
fn a_reservation_becomes_a_lease_of_the_same_portion() {
    let mut rig = Rig::new(worker(2, 4));
    let held = offer(1, 1);
    assert_eq!(rig.reserve(at(0), held, one_gpu()), Some(true));
    assert_eq!(rig.reserve(at(0), held, one_gpu()), None, "an offer is made once");
    assert_eq!(rig.book.holders().count(), 0, "it is not accepted yet");
    let granted = rig.book.accept(at(1), held, 0, TTL).unwrap();
    assert_eq!(rig.book.accept(at(2), held, 0, TTL).unwrap(), granted, "a repeat gets the same");
    let portion = granted.portion.unwrap();
    assert_eq!((portion.slots[0], portion.cpu_milli), (1, 0));
    assert_eq!(rig.book.holder_of(scheduler(1), granted.lease), Some(held));
    assert_eq!(rig.book.holder_of(scheduler(2), granted.lease), None);
    // The same scheduler may hold a shared lease beside it, of the rest.
    rig.lease(at(3), 1);
    assert_eq!(rig.renew(at(4), 1, None), (3, 1));
    // Others, whatever they need, take nothing from it.
    rig.lease(at(5), 2);
    let both = Some(Arc::new(Requirement { min_gpus: 2, ..Requirement::default() }));
    for second in 6..30 {
        assert!(rig.renew(at(second), 2, both.clone()).1 <= 1);
        rig.renew(at(second), 1, None);
        let renewed = rig.book.renew(at(second), held, granted.lease, None).unwrap();
        assert_eq!(renewed.portion.as_ref(), Some(&portion));
    }
}

#[test]
fn a_reservation_that_is_not_accepted_ends() {
    let mut rig = Rig::new(worker(1, 2));
    let held = offer(1, 1);
    assert_eq!(rig.reserve(at(0), held, one_gpu()), Some(true));
    assert_eq!(rig.reserve(at(1), offer(2, 2), one_gpu()), Some(false), "it waits");
    assert_eq!(rig.book.wake_at(at(1)), Some(at(5)));
    assert_eq!(rig.book.expired(at(5)), Some(held));
    rig.book.release(held);
    assert_eq!(rig.book.accept(at(5), held, 0, TTL), None, "too late");
    assert_eq!(rig.book.accept(at(5), offer(2, 2), 0, TTL), None, "too early");
    assert_eq!(rig.book.cover_reservations(at(5)), [offer(2, 2)]);
    assert!(rig.book.accept(at(5), offer(2, 2), 0, TTL).is_some());
}

#[test]
fn shared_leases_make_room_for_a_reservation_and_running_work_does_not() {
    let mut rig = Rig::new(worker(2, 2));
    rig.lease(at(0), 1);
    let key = Key(scheduler(1), 1);
    let needs = gpu().unwrap();
    assert!(rig.book.begin(key, shared(1), &needs, 0).is_some());
    // One GPU is idle, and leased: its holder is asked to renew.
    assert_eq!(rig.reserve(at(1), offer(2, 1), one_gpu()), Some(false));
    assert_eq!(rig.book.early_renewals(at(1)).len(), 1);
    assert_eq!(rig.book.cover_reservations(at(1)), [], "not before its holder knows");
    assert_eq!(rig.renew(at(2), 1, None).1, 1);
    assert_eq!(rig.book.cover_reservations(at(2)), [offer(2, 1)]);
    // The other one is in use.
    assert_eq!(rig.reserve(at(3), offer(2, 2), one_gpu()), Some(false));
    rig.renew(at(3), 1, None);
    assert_eq!(rig.book.cover_reservations(at(3)), []);
    rig.book.end(key, 0);
    assert_eq!(rig.book.cover_reservations(at(3)), [offer(2, 2)]);
    rig.book.check().unwrap();
}

#[test]
fn all_of_a_worker_is_reserved_once_nothing_is_held() {
    let mut rig = Rig::new(worker(2, 4));
    rig.lease(at(0), 1);
    assert_eq!(rig.reserve(at(1), offer(2, 1), FixedPortion::Whole), Some(false));
    assert_eq!(rig.renew(at(2), 1, None), (0, 0));
    assert_eq!(rig.book.cover_reservations(at(2)), [offer(2, 1)]);
    let granted = rig.book.accept(at(2), offer(2, 1), 0, TTL).unwrap();
    assert_eq!(granted.portion, Some(Portion::whole(&rig.worker)));
    assert_eq!(rig.renew(at(3), 1, gpu()), (0, 0));
    rig.book.release(offer(2, 1));
    assert_eq!(rig.renew(at(4), 1, None), (4, 2));
}

#[test]
fn a_reservation_holds_nothing_until_it_holds_everything() {
    // Two reservations that each need both GPUs must not hold one each.
    let mut rig = Rig::new(worker(2, 4));
    let both = || {
        let requirement = Requirement { min_gpus: 2, ..Requirement::default() };
        FixedPortion::AnyOf(vec![Arc::new(requirement)])
    };
    assert_eq!(rig.reserve(at(0), offer(1, 1), one_gpu()), Some(true));
    assert_eq!(rig.reserve(at(1), offer(2, 2), both()), Some(false));
    assert_eq!(rig.reserve(at(1), offer(3, 3), both()), Some(false));
    assert!(rig.book.limit_of(offer(2, 2)).unwrap().is_empty());
    rig.book.release(offer(1, 1));
    assert_eq!(rig.book.cover_reservations(at(2)).len(), 1, "one of them has all");
    let impossible = Requirement { min_gpus: 3, ..Requirement::default() };
    let impossible = FixedPortion::AnyOf(vec![Arc::new(impossible)]);
    assert_eq!(rig.reserve(at(3), offer(1, 4), impossible), None);
}

#[test]
fn an_offer_for_several_roles_is_narrowed_to_the_one_that_is_accepted() {
    let mut rig = Rig::new(worker(2, 4));
    let (small, large) = (gpu().unwrap(), Requirement { min_gpus: 2, ..Requirement::default() });
    let impossible = Arc::new(Requirement { min_gpus: 3, ..Requirement::default() });
    let any = FixedPortion::AnyOf(vec![small, impossible, Arc::new(large)]);
    let held = offer(1, 1);
    assert_eq!(rig.reserve(at(0), held, any), Some(true));
    let gpus = |portion: &Portion| portion.devices.iter().filter(|d| d.milli_gpu > 0).count();
    let choices: Vec<_> =
        rig.book.choices(held).iter().map(|(at, portion)| (*at, gpus(portion))).collect();
    assert_eq!(choices, [(0, 1), (2, 2)], "what does not fit is not offered");
    assert_eq!(gpus(rig.book.limit_of(held).unwrap()), 2, "until it is accepted");
    assert_eq!(rig.book.accept(at(1), held, 1, TTL), None, "not offered");
    let granted = rig.book.accept(at(1), held, 0, TTL).unwrap();
    assert_eq!(gpus(&granted.portion.unwrap()), 1);
    assert_eq!(rig.reserve(at(1), offer(2, 2), one_gpu()), Some(true), "the rest is free");
}

#[test]
fn only_leases_of_lower_priority_that_may_be_taken_back_are() {
    let mut rig = Rig::new(worker(2, 4));
    let lease = |rig: &mut Rig, number: u64, priority: i32, is_preemptible: bool| {
        let holder = offer(number.into(), number);
        let id = LeaseId::new(at(0), &mut Rng::new(number));
        let wanted = reservation(one_gpu(), priority, is_preemptible);
        let held = rig.book.reserve(at(0), holder, wanted, || id);
        let granted = rig.book.accept(at(0), holder, 0, TTL).map(|grant| grant.lease);
        (holder, held, granted)
    };
    let (first, _, id) = lease(&mut rig, 1, 5, true);
    let (second, ..) = lease(&mut rig, 2, 1, false);
    let (waits, held, _) = lease(&mut rig, 3, 5, true);
    assert_eq!(held, Some(false));
    let grace = Span::from_secs(3);
    assert_eq!(rig.book.preempt_for(at(1), waits, grace), [], "its priority is not higher");
    let (waits, ..) = lease(&mut rig, 4, 6, true);
    assert_eq!(rig.book.preempt_for(at(1), waits, grace), [(first, id.unwrap())]);
    assert_eq!(rig.book.preempt_for(at(1), waits, grace), [], "once");
    // A renewal does not extend it, and when it has ended the other gets its capacity.
    rig.book.renew(at(2), first, id.unwrap(), None).unwrap();
    assert_eq!(rig.book.expired(at(3)), None);
    assert_eq!(rig.book.expired(at(4)), Some(first));
    rig.book.release(first);
    let covered = rig.book.cover_reservations(at(4));
    assert!(covered.len() == 1 && !covered.contains(&second), "{covered:?}");
    rig.book.check().unwrap();
}

/// Whatever holders do, the sums hold; and when nothing changes any more, the limits settle.
#[test]
fn any_sequence_of_events_keeps_the_book_consistent_and_settles() {
    for seed in 0..2_000 {
        let mut rng = Rng::new(seed);
        let mut rig = Rig::new(worker(rng.below(4) as usize, 1 + rng.below(4) as u32));
        let mut now = at(1);
        let mut runs: Vec<Key> = Vec::new();
        let wants = |rng: &mut Rng| {
            let requirement = Requirement {
                cpu_milli: rng.below(9_000),
                memory_bytes: rng.below(110),
                min_gpus: rng.below(4) as u32,
                gpu_memory_bytes: rng.below(90),
                milli_gpu: [250, 500, 1_000][rng.below(3) as usize],
                ..Requirement::default()
            };
            Some(Arc::new(requirement)).filter(|_| rng.chance(0.5))
        };
        for step in 0..60_u32 {
            now = now + Span::from_millis(rng.below(5_000));
            while let Some(holder) = rig.book.expired(now) {
                rig.book.release(holder);
            }
            let holder = 1 + u128::from(rng.below(4));
            match rng.below(8) {
                0 => {
                    let (minimum, maximum) = (wants(&mut rng), wants(&mut rng));
                    let minimum = minimum.filter(|_| rng.chance(0.3));
                    let _ = rig.ask(
                        now,
                        holder,
                        LeaseRequest { minimum, maximum, ..LeaseRequest::default() },
                    );
                }
                1 => rig.book.release(shared(holder)),
                6 => {
                    let wanted = match wants(&mut rng) {
                        Some(requirement) => FixedPortion::AnyOf(vec![requirement]),
                        None => FixedPortion::Whole,
                    };
                    let _ = rig.reserve(now, offer(holder, step.into()), wanted);
                }
                7 => {
                    let all: Vec<Holder> = rig.book.reservations().collect();
                    if !all.is_empty() {
                        let chosen = all[rng.below(all.len() as u64) as usize];
                        match rng.chance(0.5) {
                            true => drop(rig.book.accept(now, chosen, 0, TTL)),
                            false => rig.book.release(chosen),
                        }
                    }
                }
                2 | 3 => {
                    let demand = wants(&mut rng);
                    if let Some((id, _)) = rig.book.lease_of(shared(holder)) {
                        let _ = rig.book.renew(now, shared(holder), id, demand);
                    }
                }
                4 => {
                    let key = Key(scheduler(holder), step);
                    let held: Vec<Holder> = rig.book.holders().collect();
                    let of_scheduler = held.into_iter().filter(|held| held.scheduler == key.0);
                    for held in of_scheduler.collect::<Vec<_>>() {
                        let key = Key(key.0, step * 100 + runs.len() as u32);
                        if let Some(needs) = wants(&mut rng)
                            && let Ok(executor) = rig.book.executor_for(held, &needs)
                            && rig.book.fits(held, &needs, executor)
                        {
                            assert!(rig.book.begin(key, held, &needs, executor).is_some());
                            runs.push(key);
                        }
                    }
                }
                _ => {
                    if !runs.is_empty() {
                        let ended = runs.swap_remove(rng.below(runs.len() as u64) as usize);
                        rig.book.end(ended, 0);
                    }
                }
            }
            rig.book.cover_reservations(now);
            rig.book.check().unwrap_or_else(|error| panic!("seed {seed}, step {step}: {error}"));
        }
        for key in runs {
            rig.book.end(key, 0);
        }
        rig.book.allow_early_renewals();
        let mut rounds = 0;
        loop {
            let due = rig.book.early_renewals(now);
            if due.is_empty() {
                break;
            }
            rounds += 1;
            assert!(rounds < u32::from(MAX_EARLY_RENEWALS), "seed {seed} does not settle: {due:?}");
            for (holder, id) in due {
                let demand = rig.book.leases[&holder].terms.demand.clone();
                rig.book.renew(now, holder, id, demand).unwrap();
                rig.book.check().unwrap();
            }
        }
    }
}

#[test]
fn a_reservation_for_several_roles_gets_what_each_needs_from_a_shared_lease() {
    let mut two = (*worker(0, 1)).clone();
    let server = Executor { class: ExecutorClass::Aggregate, ..two.executors[0].clone() };
    two.executors.push(server);
    let mut rig = Rig::new(Arc::new(two));
    rig.lease(at(0), 1);
    let of_class = |class| Arc::new(Requirement { class, cpu_milli: 5_000, ..Default::default() });
    let roles = [ExecutorClass::Inference, ExecutorClass::Aggregate].map(of_class);
    let held = offer(1, 1);
    assert_eq!(rig.reserve(at(1), held, FixedPortion::AnyOf(roles.to_vec())), Some(false));
    rig.renew(at(2), 1, None);
    assert_eq!(rig.book.cover_reservations(at(2)), [held]);
    let choices: Vec<usize> = rig.book.choices(held).iter().map(|(role, _)| *role).collect();
    assert_eq!(choices, [0, 1], "the scheduler may accept it for either");
    let limit = rig.book.limit_of(shared(1)).unwrap();
    assert_eq!(limit.cpu_milli, 3_000, "each needs as much, and only one is accepted");
}
