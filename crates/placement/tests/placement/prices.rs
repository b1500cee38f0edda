//! Tasks that maximise cost or balance weigh the prices of workers, and do not wait for a cheap one for ever.

use hypha_model::{Maximise, Money, RefusalKind, Rng, Span, TaskSpec};
use hypha_placement::{
    FullExplanation, MAX_RUNS_WAITED_FOR_PRICE, Predictive, Preferences, Strategy, WorkerSlot,
};

use crate::fixture::{Fixture, spec_of};

fn predictive() -> Strategy {
    Strategy::Predictive(Predictive { exploration: 0.0, ..Predictive::default() })
}

/// Workers of these speeds and prices for an hour.
fn pool(workers: &[(f64, u64)], preferences: Preferences) -> Fixture {
    let mut fixture = Fixture::with(predictive(), preferences);
    for (speed, price) in workers {
        let slot = fixture.join_fast(*speed);
        let price = (*price > 0).then(|| Money::from_micros(price * 1_000_000));
        fixture.placement.set_price(slot, price, fixture.now);
    }
    fixture
}

/// A task of ten seconds on a worker of the speed 1.
fn task(maximise: Option<Maximise>, deadline_s: Option<f64>) -> TaskSpec {
    let mut spec = spec_of(10.0);
    spec.requirement.maximise = maximise;
    spec.requirement.deadline = deadline_s.map(Span::from_secs_f64);
    spec
}

/// Where a task goes that arrives alone.
fn check(
    workers: &[(f64, u64)],
    (maximise, deadline_s): (Maximise, Option<f64>),
    expected: Option<u32>,
) {
    let spec = task(Some(maximise), deadline_s);
    let placed = pool(workers, Preferences::default()).place(spec).map(|slot| slot.0);
    assert_eq!(placed, expected, "{workers:?} {maximise} {deadline_s:?}");
    // The same as the scheduler's default, and a task's own choice goes before that.
    let by_default = Preferences { maximise, ..Preferences::default() };
    let placed = pool(workers, by_default.clone()).place(task(None, deadline_s));
    assert_eq!(placed.map(|slot| slot.0), expected, "{workers:?} {maximise} by default");
    let own = pool(workers, by_default).place(task(Some(Maximise::Speed), deadline_s));
    let speed = pool(workers, Preferences::default()).place(task(None, deadline_s));
    assert_eq!(own, speed, "{workers:?} {maximise}: its own choice");
}

#[test]
fn price_and_speed_decide_as_the_task_states() {
    use Maximise::{Balance, Cost, Speed};
    // Four times as fast and eight times as expensive.
    let dear = [(1.0, 1), (4.0, 8)];
    check(&dear, (Speed, None), Some(1));
    check(&dear, (Cost, None), Some(0));
    check(&dear, (Balance, None), Some(1));
    // Twice as fast and forty times as expensive.
    let dearer = [(1.0, 1), (2.0, 40)];
    check(&dearer, (Balance, None), Some(0));
    // What counts is the price of the run, not that of the hour.
    let fast_and_cheap = [(1.0, 2), (4.0, 5)];
    check(&fast_and_cheap, (Cost, None), Some(1));
    // A worker without a price costs nothing.
    check(&[(4.0, 5), (1.0, 0)], (Cost, None), Some(1));
    // Where none has a price, and where they cost the same, speed decides.
    check(&[(1.0, 0), (4.0, 0)], (Cost, None), Some(1));
    check(&[(1.0, 1), (4.0, 4)], (Balance, None), Some(1));
}

#[test]
fn cheap_worker_must_meet_the_deadline() {
    let workers = [(1.0, 1), (4.0, 100)];
    for maximise in [Maximise::Cost, Maximise::Balance] {
        check(&workers, (maximise, Some(60.0)), Some(0));
        check(&workers, (maximise, Some(5.0)), Some(1));
        // None meets it: speed decides.
        check(&workers, (maximise, Some(1.0)), Some(1));
    }
}

#[test]
fn task_waits_for_a_cheap_worker_and_not_for_ever() {
    let mut fixture = pool(&[(1.0, 1), (1.0, 100)], Preferences::default());
    let cost = || task(Some(Maximise::Cost), None);
    assert_eq!(fixture.place(cost()), Some(WorkerSlot(0)));
    // The cheap worker will be free in ten seconds, and never is.
    let waiting = fixture.arrive(cost());
    let start = fixture.now;
    fixture.plan();
    assert_eq!(fixture.where_is(waiting), None);
    while fixture.where_is(waiting).is_none() {
        let waited = fixture.now.since(start).as_secs_f64();
        assert!(waited < 10.0 * (MAX_RUNS_WAITED_FOR_PRICE + 1.0), "waits for {waited} s");
        let at = fixture.placement.plan_at().expect("another plan");
        assert!(at > fixture.now, "no time passes");
        fixture.now = at;
        fixture.plan();
    }
    assert_eq!(fixture.where_is(waiting), Some(1));
    let waited = fixture.now.since(start).as_secs_f64();
    assert!(waited > 10.0, "it did not wait: {waited} s");
}

#[test]
fn task_does_not_wait_where_it_would_wait_for_too_long() {
    let mut fixture = pool(&[(1.0, 1), (1.0, 100)], Preferences::default());
    let mut long = spec_of(10.0 * MAX_RUNS_WAITED_FOR_PRICE + 50.0);
    long.requirement.maximise = Some(Maximise::Cost);
    assert_eq!(fixture.place(long), Some(WorkerSlot(0)));
    assert_eq!(fixture.place(task(Some(Maximise::Cost), None)), Some(WorkerSlot(1)));
}

#[test]
fn waiting_task_takes_a_cheaper_worker_that_comes() {
    let mut fixture = pool(&[(1.0, 10), (1.0, 1_000)], Preferences::default());
    let cost = || task(Some(Maximise::Cost), None);
    assert_eq!(fixture.place(cost()), Some(WorkerSlot(0)));
    let waiting = fixture.arrive(cost());
    fixture.plan();
    assert_eq!(fixture.where_is(waiting), None);
    fixture.placement.set_price(WorkerSlot(1), Some(Money::from_micros(1)), fixture.now);
    fixture.plan();
    assert_eq!(fixture.where_is(waiting), Some(1));
}

#[test]
fn decision_by_price_explains_itself() {
    let mut fixture = pool(&[(1.0, 1), (4.0, 100)], Preferences::default());
    let special = fixture.arrive(task(Some(Maximise::Cost), None));
    fixture.plan();
    let decided = fixture.placement.explanation(special).unwrap();
    assert_eq!(decided.maximise, Maximise::Cost);
    let chosen = decided.chosen.unwrap();
    let terms = chosen.terms.unwrap();
    // The run at a tenth of the usual price, a hundred times.
    assert!((terms.cost_s - 100.0 * terms.run_s / 10.0).abs() < 1e-6, "{terms:?}");
    assert_eq!(chosen.score, terms.total());

    // The cheap worker is too slow for it.
    let special = fixture.arrive(task(Some(Maximise::Cost), Some(5.0)));
    fixture.plan();
    let decided = fixture.placement.explanation(special).unwrap();
    assert_eq!(decided.maximise, Maximise::Cost);
    let full = fixture.placement.explain_fully(special, &fixture.predictor, fixture.now).unwrap();
    let refusals = |full: &FullExplanation| {
        full.verdicts
            .iter()
            .flat_map(|it| it.refusals.clone())
            .map(|it| it.kind)
            .collect::<Vec<_>>()
    };
    assert_eq!(refusals(&full), [RefusalKind::TooSlow]);

    // A task that speed decides about says so.
    let mut fixture = pool(&[(1.0, 1), (4.0, 100)], Preferences::default());
    let special = fixture.arrive(task(Some(Maximise::Balance), Some(0.1)));
    fixture.plan();
    assert_eq!(fixture.placement.explanation(special).unwrap().maximise, Maximise::Speed);
}

/// The trees find a worker that costs little more than the best, in pools of any prices and loads.
#[test]
fn search_by_price_agrees_with_a_linear_scan() {
    let (mut decided, mut off) = (0, 0);
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let workers: Vec<(f64, u64)> = (0..20 + rng.below(60))
            .map(|_| ([0.5, 1.0, 2.0, 4.0][rng.below(4) as usize], rng.below(40)))
            .collect();
        let mut fixture = pool(&workers, Preferences::default());
        for _ in 0..workers.len() / 2 {
            fixture.place(spec_of(1.0 + 40.0 * rng.unit()));
        }
        for maximise in [Maximise::Cost, Maximise::Balance] {
            let deadline_s = rng.chance(0.3).then(|| 1.0 + 30.0 * rng.unit());
            let mut spec = task(Some(maximise), deadline_s);
            spec.requirement.estimated_time = Some(Span::from_secs_f64(1.0 + 20.0 * rng.unit()));
            let special = fixture.arrive(spec);
            fixture.plan();
            let explained = fixture.placement.explanation(special).unwrap().clone();
            if explained.maximise == Maximise::Speed {
                continue;
            }
            decided += 1;
            let chosen = explained.chosen.unwrap();
            // Its own worker has changed since; the others have not.
            let full =
                fixture.placement.explain_fully(special, &fixture.predictor, fixture.now).unwrap();
            let others = full.verdicts.iter().filter(|it| it.worker != chosen.worker);
            let best = others
                .filter_map(|it| it.candidate)
                .map(|it| it.score)
                .fold(f64::INFINITY, f64::min);
            off += u32::from(chosen.score > best * 1.01 + 0.001);
        }
    }
    assert!(decided > 80, "{decided} decisions are too few");
    assert_eq!(off, 0, "of {decided}");
}
