//! Prices, hours and refusals.

use std::sync::Arc;

use hypha_model::{Capacity, Device, Executor, Requirement, SchedulerId, WorkerId};

use super::*;
use crate::portion::DevicePart;

fn units(units: u64) -> Money {
    Money::from_micros(units * 1_000_000)
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn with_gpus(shares: &[u32]) -> Portion {
    let part = |milli_gpu: &u32| DevicePart { memory_bytes: 0, milli_gpu: *milli_gpu };
    Portion { devices: shares.iter().map(part).collect(), ..Portion::default() }
}

fn at(day: u8, hour: u16, minute: u16) -> LocalTime {
    LocalTime::new(Weekday::from_monday(day).unwrap(), hour * 60 + minute).unwrap()
}

#[test]
fn price_is_by_device_and_never_below_the_floor() {
    let flexible = Terms { price: units(5), floor: units(3), ..Terms::default() };
    let whole = Terms { pricing: Pricing::Whole, ..flexible.clone() };
    let check = |terms: &Terms, shares: &[u32], bid: u64, micros: u64| {
        let price = terms.price(units(bid), &with_gpus(shares));
        assert_eq!(price.as_micros(), micros, "{:?}, {shares:?}, {bid}", terms.pricing);
    };
    check(&flexible, &[], 0, 3_000_000);
    check(&flexible, &[], 4, 4_000_000);
    check(&flexible, &[1_000, 1_000], 4, 6_000_000);
    check(&flexible, &[1_000, 0], 4, 4_000_000);
    check(&flexible, &[500], 0, 1_500_000);
    check(&whole, &[], 4, 5_000_000);
    check(&whole, &[1_000, 1_000], 9, 10_000_000);
    check(&whole, &[1_000, 1_000], 11, 11_000_000);
    // A third of a millionth is rounded up, and the largest price does not overflow.
    let least = Terms { floor: Money::from_micros(1), ..Terms::default() };
    check(&least, &[333], 0, 1);
    let most = Terms { floor: Money::MAX, ..Terms::default() };
    check(&most, &[1_000, 1_000], 0, u64::MAX);
}

#[test]
fn hours_cross_midnight_and_the_end_of_the_week() {
    let check = |ranges: &[&str], inside: &[LocalTime], outside: &[LocalTime]| {
        let hours = Hours::parse(ranges.iter().copied()).unwrap();
        inside.iter().for_each(|at| assert!(hours.contains(*at), "{ranges:?} at {at:?}"));
        outside.iter().for_each(|at| assert!(!hours.contains(*at), "{ranges:?} at {at:?}"));
    };
    let (mon, fri, sat, sun) = (0, 4, 5, 6);
    check(
        &["Mon-Fri 18:00-08:00"],
        &[at(mon, 18, 0), at(1, 7, 59), at(fri, 23, 59), at(sat, 7, 59)],
        &[at(mon, 7, 59), at(mon, 17, 59), at(1, 8, 0), at(sat, 8, 0), at(sun, 20, 0)],
    );
    check(
        &["Mon-Fri 18:00-08:00", "sat-sun"],
        &[at(sat, 8, 0), at(sun, 23, 59)],
        &[at(mon, 0, 0), at(mon, 12, 0)],
    );
    check(&["Sun 22:00-06:00"], &[at(mon, 5, 59)], &[at(mon, 6, 0), at(sun, 5, 0)]);
    check(&["Sat-Mon"], &[at(sat, 0, 0), at(mon, 23, 59)], &[at(1, 0, 0), at(fri, 23, 59)]);
    check(&["22:00-24:00"], &[at(2, 22, 0), at(2, 23, 59)], &[at(3, 0, 0), at(2, 21, 59)]);
    check(&[], &[], &[at(mon, 0, 0)]);
    assert!(Hours::default().contains(at(mon, 0, 0)), "always");
    assert!(Hours::default().is_always() && !Hours::parse(["Mon"]).unwrap().is_always());
}

#[test]
fn malformed_hours_are_refused() {
    let bad = [
        "",
        "Mo",
        "Mon-",
        "Mon 8-18",
        "Mon 08:00",
        "Mon 25:00-26:00",
        "Mon 08:60-10:00",
        "Mon 08:00-08:00",
        "24:00-01:00",
        "Mon 08:00-09:00 x",
        "Mon +8:00-09:00",
        "08:00-09:00 Mon",
    ];
    for text in bad {
        assert_eq!(Hours::parse([text]), Err(HoursError), "{text}");
    }
    assert_eq!(LocalTime::new(Weekday::from_monday(0).unwrap(), 24 * 60), None);
    assert_eq!(Weekday::from_monday(7), None);
}

fn worker() -> Worker {
    let executor = |class, text: &str| Executor {
        class,
        name: name(text),
        models: Vec::new(),
        concurrency: 2,
    };
    let device = Device { model: name("gpu"), memory_bytes: 8, milli_gpu: WHOLE_GPU };
    Worker {
        id: "00000000-0000-7000-8000-000000000001".parse::<WorkerId>().unwrap(),
        capacity: Capacity {
            cpu_milli: 4_000,
            memory_bytes: 16,
            storage_bytes: 16,
            devices: vec![device; 2],
        },
        executors: vec![
            executor(ExecutorClass::Inference, "chat"),
            executor(ExecutorClass::Train, "trainer"),
        ],
        hardware: None,
        region: None,
        price: Money::ZERO,
    }
}

#[test]
fn refusal_names_the_term_that_is_not_met() {
    let from = |organisation: &str| Advertiser {
        scheduler: "00000000-0000-7000-8000-0000000000aa".parse::<SchedulerId>().unwrap(),
        organisation: name(organisation),
    };
    let role = |class| WantedRole {
        name: name("worker"),
        requirement: Arc::new(Requirement { class, ..Requirement::default() }),
        count: 1,
        minimum: 1,
        wants_all: false,
        bid: Money::ZERO,
    };
    let ceiling = Priority::from_milli(5_000);
    let terms = Terms {
        organisations: Some([(name("acme"), None), (name("lab"), Some(ceiling))].into()),
        classes: Some(vec![ExecutorClass::Inference, ExecutorClass::Train]),
        executors: Some(vec![name("chat")]),
        hours: Hours::parse(["Mon 08:00-18:00"]).unwrap(),
        ..Terms::default()
    };
    let (day, night) = (at(0, 12, 0), at(0, 3, 0));
    let none = OwnerState::default();
    let used = OwnerState { is_used_by_owner: true, ..none };
    let paused = OwnerState { is_paused: true, ..used };
    let inference = ExecutorClass::Inference;
    let cases = [
        (day, none, "acme", inference, None),
        (night, none, "acme", inference, Some(TermsRefusal::Owner(OwnerReason::OffHours))),
        (day, used, "acme", inference, Some(TermsRefusal::Owner(OwnerReason::InUse))),
        (night, paused, "acme", inference, Some(TermsRefusal::Owner(OwnerReason::Paused))),
        (day, none, "other", inference, Some(TermsRefusal::Organisation)),
        (day, none, "lab", ExecutorClass::Aggregate, Some(TermsRefusal::Class)),
        (day, none, "lab", ExecutorClass::Train, Some(TermsRefusal::Executor)),
    ];
    for (now, state, organisation, class, expected) in cases {
        let refusal = terms.refusal(now, state, &from(organisation), &role(class), &worker());
        assert_eq!(refusal, expected, "{organisation} {class:?} {state:?}");
        let all = Terms::default().refusal(now, none, &from(organisation), &role(class), &worker());
        assert_eq!(all, None, "the default terms serve everything");
    }
    assert_eq!(terms.priority_ceiling(&name("lab")), Some(ceiling));
    assert_eq!(terms.priority_ceiling(&name("acme")), None);
    assert_eq!(Terms::default().priority_ceiling(&name("lab")), None);
}

#[test]
fn whole_pricing_offers_the_whole_worker() {
    let (worker, needed) = (worker(), with_gpus(&[500, 0]));
    let flexible = Terms::default();
    assert_eq!(flexible.portion(needed.clone(), &worker), needed);
    let whole = Terms { pricing: Pricing::Whole, ..flexible };
    assert_eq!(whole.portion(needed, &worker), Portion::whole(&worker));
}

#[test]
fn shared_lease_is_refused_to_others_and_if_a_price_is_asked_for() {
    let lab_only = Terms { organisations: Some([(name("lab"), None)].into()), ..Terms::default() };
    let with_floor = Terms { price: units(5), floor: units(1), ..lab_only.clone() };
    let (lab, other) = (name("lab"), name("other"));
    let check = |terms: &Terms, organisation: Option<&Name>, expected: Option<RefusalKind>| {
        assert_eq!(terms.shared_lease_refusal(organisation), expected, "{organisation:?}");
    };
    for organisation in [Some(&lab), Some(&other), None] {
        check(&Terms::default(), organisation, None);
    }
    check(&lab_only, Some(&lab), None);
    check(&lab_only, Some(&other), Some(RefusalKind::NotServed));
    check(&lab_only, None, Some(RefusalKind::NotServed));
    check(&with_floor, Some(&lab), Some(RefusalKind::Price));
    check(&with_floor, Some(&other), Some(RefusalKind::NotServed));
    // The published price alone keeps nothing from being leased, unless only the whole is offered, at that price.
    let priced = Terms { price: units(5), ..Terms::default() };
    check(&priced, Some(&lab), None);
    let whole = Terms { pricing: Pricing::Whole, ..priced };
    check(&whole, Some(&lab), Some(RefusalKind::Price));
}

#[test]
fn executor_may_run_if_its_class_and_its_name_may() {
    let may_run = |terms: &Terms| {
        let executors = worker().executors;
        executors.iter().map(|executor| terms.may_run(executor)).collect::<Vec<_>>()
    };
    let by_class = Terms { classes: Some(vec![ExecutorClass::Train]), ..Terms::default() };
    let by_name = Terms { executors: Some(vec![name("chat")]), ..Terms::default() };
    let by_both = Terms { executors: Some(vec![name("chat")]), ..by_class.clone() };
    assert_eq!(may_run(&Terms::default()), [true, true]);
    assert_eq!(may_run(&by_class), [false, true]);
    assert_eq!(may_run(&by_name), [true, false]);
    assert_eq!(may_run(&by_both), [false, false]);
}
