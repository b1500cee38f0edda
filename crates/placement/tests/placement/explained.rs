//! Explanations, and the indices behind them compared with a scan of every worker.

use std::sync::Arc;

use hypha_model::{RefusalKind, Requirement, Rng, Span, TaskSpec};
use hypha_placement::{AttemptEnd, Preferences, Strategy, WorkerSlot};

use crate::fixture::{Fixture, asking, name, plain, spec_of};
use crate::random::{random_spec, random_worker};

/// Strategies that take the least of all scores; those by time may miss it by this share.
fn exact() -> [(Strategy, f64); 11] {
    let all = Strategy::all();
    let named = |name: &str| *all.iter().find(|strategy| strategy.name() == name).unwrap();
    [
        (named("priority"), 0.0),
        (named("capability_based"), 0.0),
        (named("performance_aware"), 0.0),
        (named("load_balancing"), 0.0),
        (named("work_stealing"), 0.0),
        (named("adaptive"), 0.0),
        (named("best_fit"), 0.0),
        (named("worst_fit"), 0.0),
        (named("shortest_queue"), 0.0202),
        (named("weighted"), 0.0202),
        (
            Strategy::Predictive(hypha_placement::Predictive {
                exploration: 0.0,
                ..hypha_placement::Predictive::default()
            }),
            0.0202,
        ),
    ]
}

#[test]
fn index_finds_what_a_full_scan_finds() {
    for (strategy, noise) in exact() {
        let mut compared = 0;
        for seed in 0..150 {
            let mut rng = Rng::new(seed);
            let mut fixture = Fixture::new(strategy);
            for _ in 0..2 + rng.below(20) {
                let slot = fixture.join(random_worker(&mut rng));
                let factor = 0.2 + 3.0 * rng.unit();
                fixture.placement.set_factor(slot, factor, fixture.now);
                fixture.placement.record_contact(
                    slot,
                    Span::from_millis(rng.below(80)),
                    fixture.now,
                );
            }
            let mut open = Vec::new();
            for _ in 0..40 {
                fixture.later(0.3 * rng.unit());
                let task = fixture.arrive(random_spec(&mut rng));
                let full =
                    fixture.placement.explain_fully(task, &fixture.predictor, fixture.now).unwrap();
                let alone = fixture.placement.waiting() == 1;
                fixture.plan();
                let decided = fixture.placement.explanation(task);
                if let (true, Some(decided)) = (alone, decided) {
                    let least = full.verdicts[0].candidate.map(|least| least.score);
                    let chosen = decided.chosen.map(|chosen| chosen.score);
                    assert_eq!(chosen.is_some(), least.is_some(), "{strategy:?} seed {seed}");
                    if let (Some(chosen), Some(least)) = (chosen, least) {
                        compared += 1;
                        // Plus the millisecond that counts as equal.
                        let most = least + noise * (least.abs() + 0.1) + 1e-9;
                        assert!(chosen <= most, "{strategy:?} {seed}: {chosen} {least}");
                    }
                }
                open.push(task);
                if rng.chance(0.7) {
                    let task = open.swap_remove(rng.below(open.len() as u64) as usize);
                    let run = Span::from_secs_f64(2.0 * rng.unit());
                    fixture.placement.finish(task, AttemptEnd::Completed(run), fixture.now);
                }
            }
        }
        assert!(compared > 200, "{strategy:?} was compared {compared} times");
    }
}

#[test]
fn full_explanation_tells_whether_it_is_of_the_version_decided_on() {
    let mut fixture = Fixture::of(Strategy::BestFit, 1);
    let unschedulable =
        asking(Requirement { model: Some(name("gpt")), min_gpus: 9, ..Requirement::default() });
    let waits = fixture.arrive(unschedulable);
    fixture.plan();
    let explain = |fixture: &mut Fixture, task| {
        fixture.placement.explain_fully(task, &fixture.predictor, fixture.now).unwrap()
    };
    let full = explain(&mut fixture, waits);
    assert!(full.as_decided);
    assert_eq!(full.verdicts[0].candidate, None);
    let kinds: Vec<_> = full.verdicts[0].refusals.iter().map(|refusal| refusal.kind).collect();
    assert!(kinds.contains(&RefusalKind::Gpus), "{kinds:?}");
    // Reading changes nothing, and neither does time.
    fixture.later(5.0);
    fixture.placement.refresh(fixture.now);
    assert!(explain(&mut fixture, waits).as_decided);
    // A placed task has itself changed the pool; a new worker makes another version.
    let placed = fixture.arrive(TaskSpec::default());
    fixture.plan();
    assert!(!explain(&mut fixture, placed).as_decided);
    fixture.join(plain());
    assert!(!explain(&mut fixture, waits).as_decided);
}

#[test]
fn waiting_task_has_a_reason_under_every_strategy() {
    for strategy in crate::random::strategies() {
        let mut fixture = Fixture::of(strategy, 3);
        fixture.placement.remove_worker(WorkerSlot(1), fixture.now);
        fixture.placement.set_available(WorkerSlot(2), false, fixture.now);
        let task = fixture.arrive(asking(Requirement { min_gpus: 1, ..Requirement::default() }));
        fixture.plan();
        let explanation = fixture.placement.explanation(task).unwrap().clone();
        assert_eq!(explanation.chosen, None, "{strategy}");
        assert!(explanation.refusals.total() + explanation.not_looked_at >= 1, "{strategy}");
        let json = serde_json::to_value(&explanation).unwrap();
        assert_eq!(json["strategy"], strategy.name());
    }
}

#[test]
fn reading_explanations_does_not_change_later_decisions() {
    let scenario = |read: bool| {
        let mut fixture = Fixture::of(Strategy::Probabilistic, 6);
        (0..30)
            .map(|_| {
                let task = fixture.arrive(spec_of(1.0));
                if read {
                    fixture.placement.explain_fully(task, &fixture.predictor, fixture.now).unwrap();
                }
                fixture.plan();
                fixture.where_is(task)
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(scenario(true), scenario(false));
}

#[test]
fn preferences_appear_as_refusal_reasons() {
    let max_rtt = Some(Span::from_millis(10));
    let mut fixture =
        Fixture::with(Strategy::ShortestQueue, Preferences { max_rtt, ..Preferences::default() });
    let slot = fixture.join(plain());
    fixture.placement.record_contact(slot, Span::from_millis(20), fixture.now);
    let task = fixture.arrive(TaskSpec::default());
    fixture.plan();
    let explanation = fixture.placement.explanation(task).unwrap();
    assert_eq!(explanation.refusals.iter().collect::<Vec<_>>(), [(RefusalKind::TooFar, 1)]);
    assert!(Arc::strong_count(&fixture.placement.view(slot, fixture.now).unwrap().worker) > 1);
}
