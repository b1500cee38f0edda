//! The owner's terms of a worker.

use hypha_config::{Flags, OfferConfig, WorkerConfig};
use hypha_market::{Hours, Pricing, Terms, YieldTerms};
use hypha_model::{ExecutorClass, Money, Name, Priority, Span};
use jiff::tz::{Offset, TimeZone};

use crate::{CERTIFICATES, Home};

const EXECUTORS: &str = "[[executors]]\nname = 'chat'\nruntime = 'builtin'\n\
                         [[executors]]\nname = 'trainer'\nclass = 'train'\nruntime = 'builtin'\n";

fn load(offer: &str) -> Result<WorkerConfig, String> {
    let text = format!("{CERTIFICATES}[offer]\n{offer}\n{EXECUTORS}");
    Home::new().load(&text, &[], &Flags::default())
}

#[track_caller]
fn terms(offer: &str) -> Terms {
    load(offer).unwrap().offer.terms
}

fn units(units: u64) -> Money {
    Money::from_micros(units * 1_000_000)
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

#[test]
fn all_terms_are_read() {
    let offer = load(
        "price = 110.0\nfloor = 90\nstrategy = 'whole'\norganisations = ['lab', 'acme']\n\
         classes = ['inference', 'train']\nexecutors = ['chat']\n\
         hours = ['Mon-Fri 18:00-08:00', 'Sat-Sun']\ntime_zone = '+02:00'\n\
         [offer.priority_ceiling]\nlab = 50\n\
         [offer.yield]\nload = 0.25\ngpu = 0.1\nfor = '2m'\nexcept = ['ollama']\n",
    );
    let expected = OfferConfig {
        terms: Terms {
            price: units(110),
            floor: units(90),
            pricing: Pricing::Whole,
            organisations: Some([(name("lab"), Priority::new(50.0)), (name("acme"), None)].into()),
            classes: Some(vec![ExecutorClass::Inference, ExecutorClass::Train]),
            executors: Some(vec![name("chat")]),
            hours: Hours::parse(["Mon-Fri 18:00-08:00", "Sat-Sun"]).unwrap(),
            yields: Some(YieldTerms {
                cpu_above_permille: Some(250),
                gpu_above_permille: Some(100),
                lasting: Span::from_secs(120),
            }),
        },
        time_zone: Some(TimeZone::fixed(Offset::constant(2))),
        except: vec![name("ollama")],
    };
    assert_eq!(offer.unwrap().offer, expected);
}

#[test]
fn without_terms_everything_is_served_for_nothing() {
    let config: WorkerConfig = Home::new().good(EXECUTORS);
    assert_eq!(config.offer, OfferConfig::default());
    assert_eq!(config.executors.len(), 2);
    assert_eq!(terms(""), Terms::default());
}

#[test]
fn price_is_at_least_the_floor() {
    assert_eq!((terms("floor = 5").price, terms("floor = 5").floor), (units(5), units(5)));
    assert_eq!((terms("price = 5").price, terms("price = 5").floor), (units(5), Money::ZERO));
    assert_eq!(terms("price = 5\nfloor = 5").floor, units(5));
}

#[test]
fn executors_that_may_not_run_are_not_offered() {
    let offered = |offer: &str| {
        let executors = load(offer).unwrap().executors;
        executors.into_iter().map(|executor| executor.name).collect::<Vec<_>>()
    };
    assert_eq!(offered(""), [name("chat"), name("trainer")]);
    assert_eq!(offered("executors = ['trainer']"), [name("trainer")]);
    assert_eq!(offered("classes = ['inference']"), [name("chat")]);
}

#[test]
fn time_zones_are_names_or_offsets() {
    let zone = |text: &str| {
        load(&format!("hours = ['Sat']\ntime_zone = '{text}'")).unwrap().offer.time_zone.unwrap()
    };
    assert_eq!(zone("UTC"), TimeZone::UTC);
    assert_eq!(zone("Europe/Berlin").iana_name(), Some("Europe/Berlin"));
    assert_eq!(zone("-03:00"), TimeZone::fixed(Offset::constant(-3)));
}

#[test]
fn invalid_terms_are_refused() {
    let check = |offer: &str, expected: &str| {
        assert_eq!(load(offer).unwrap_err(), expected, "{offer}");
    };
    check(
        "price = -1",
        "node.toml:5:9: `offer.price`: the value is negative: give a price such as 110.0",
    );
    check(
        "price = nan",
        "node.toml:5:9: `offer.price`: the value is not finite: give a price such as 110.0",
    );
    check(
        "floor = inf",
        "node.toml:5:9: `offer.floor`: the value is not finite: give a price such as 110.0",
    );
    check(
        "price = 1\nfloor = 1.5",
        "node.toml:6:9: `floor`: is above `price`: lower it, or raise `price`",
    );
    check(
        "strategy = 'half'",
        "node.toml:5:12: `offer.strategy`: expected one of \"whole\", \"flexible\"",
    );
    check(
        "organisations = []",
        "node.toml:5:17: `organisations`: the list is empty, so no organisation would be served: give names, or \
         leave the key out for all organisations",
    );
    check(
        "organisations = ['lab']\npriority_ceiling = { acme = 5 }",
        "node.toml:6:20: `priority_ceiling`: `acme` is not in `organisations`: add it there",
    );
    check(
        "organisations = ['lab']\npriority_ceiling = { lab = inf }",
        "node.toml:6:28: `offer.priority_ceiling`: expected a number such as 0.5",
    );
    check(
        "classes = ['training']",
        "node.toml:5:12: `offer.classes`: expected one of \"inference\", \"train\", \"aggregate\"",
    );
    check(
        "classes = ['aggregate']",
        "node.toml:5:11: `classes`: none of the [[executors]] may run: allow one, or leave the key out for all",
    );
    check(
        "executors = ['chat', 'chart']",
        "node.toml:5:13: `executors`: no executor is called `chart`: use the names of [[executors]]",
    );
    check(
        "executors = []",
        "node.toml:5:13: `executors`: none of the [[executors]] may run: allow one, or leave the key out for all",
    );
    check(
        "hours = []",
        "node.toml:5:9: `offer.hours`: the list is empty, so the worker would never be used: give hours, or leave \
         the key out for all hours",
    );
    check(
        "hours = ['Sat', 'Funday']",
        "node.toml:5:17: `offer.hours`: expected hours such as \"Mon-Fri 18:00-08:00\", \"Sat-Sun\" or \
         \"22:00-06:00\"",
    );
    check(
        "hours = ['Sat']\ntime_zone = 'Europe/Atlantis'",
        "node.toml:6:13: `offer.time_zone`: not in this system's time zone database: expected the name of a time \
         zone such as \"Europe/Berlin\", or an offset such as \"+02:00\"",
    );
    check(
        "hours = ['Sat']\ntime_zone = '+2'",
        "node.toml:6:13: `offer.time_zone`: expected the name of a time zone such as \"Europe/Berlin\", or an \
         offset such as \"+02:00\"",
    );
    check(
        "time_zone = 'UTC'",
        "node.toml:5:13: `time_zone`: it is the time zone of `hours`: give them too",
    );
    for bad in ["0", "1", "25", "nan", "-0.5"] {
        check(
            &format!("yield.load = {bad}"),
            "node.toml:5:14: `offer.yield.load`: expected a number from 0.01 to 0.99 such as 0.25",
        );
    }
    check(
        "yield.load = 0.5\nyield.for = 0",
        "node.toml:6:13: `offer.yield.for`: the value is too small: the least is 1 seconds",
    );
    check(
        "yield.for = 60",
        "node.toml:5:13: `for`: the worker never yields without `load` or `gpu`: give one of them too",
    );
}
