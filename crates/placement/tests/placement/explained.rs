//! Explanations, and the indices behind them against a look at every worker.

use std::sync::Arc;

use hypha_model::{RefusalKind, Requirement, Rng, Span, TaskSpec};
use hypha_placement::{Ending, Preferences, Slot, Strategy};

use crate::bench::{Bench, asking, name, plain, spec_of};
use crate::random::{random_spec, random_worker};

/// Strategies that take the least of all; those by time may miss it by this share.
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
fn an_index_finds_what_a_look_at_everybody_finds() {
    for (strategy, noise) in exact() {
        let mut compared = 0;
        for seed in 0..150 {
            let mut rng = Rng::new(seed);
            let mut bench = Bench::new(strategy);
            for _ in 0..2 + rng.below(20) {
                let slot = bench.join(random_worker(&mut rng));
                let factor = 0.2 + 3.0 * rng.unit();
                bench.placement.set_factor(slot, factor, bench.now);
                bench.placement.saw(slot, Some(Span::from_millis(rng.below(80))), bench.now);
            }
            let mut open = Vec::new();
            for _ in 0..40 {
                bench.later(0.3 * rng.unit());
                let task = bench.arrive(random_spec(&mut rng));
                let full =
                    bench.placement.explain_fully(task, &bench.predictor, bench.now).unwrap();
                let alone = bench.placement.waiting() == 1;
                bench.plan();
                let decided = bench.placement.explanation(task);
                if let (true, Some(decided)) = (alone, decided) {
                    let least = full.verdicts[0].candidate.map(|least| least.score);
                    let chosen = decided.chosen.map(|chosen| chosen.score);
                    assert_eq!(chosen.is_some(), least.is_some(), "{strategy:?} seed {seed}");
                    if let (Some(chosen), Some(least)) = (chosen, least) {
                        compared += 1;
                        // With the millisecond that does not count either.
                        let most = least + noise * (least.abs() + 0.1) + 1e-9;
                        assert!(chosen <= most, "{strategy:?} {seed}: {chosen} {least}");
                    }
                }
                open.push(task);
                if rng.chance(0.7) {
                    let task = open.swap_remove(rng.below(open.len() as u64) as usize);
                    let run = Span::from_secs_f64(2.0 * rng.unit());
                    bench.placement.finish(task, Ending::Completed(run), bench.now);
                }
            }
        }
        assert!(compared > 200, "{strategy:?} was compared {compared} times");
    }
}

#[test]
fn a_full_explanation_says_whether_it_is_the_state_decided_on() {
    let mut bench = Bench::of(Strategy::BestFit, 1);
    let nobody =
        asking(Requirement { model: Some(name("gpt")), min_gpus: 9, ..Requirement::default() });
    let waits = bench.arrive(nobody);
    bench.plan();
    let explain = |bench: &mut Bench, task| {
        bench.placement.explain_fully(task, &bench.predictor, bench.now).unwrap()
    };
    let full = explain(&mut bench, waits);
    assert!(full.as_decided);
    assert_eq!(full.verdicts[0].candidate, None);
    let kinds: Vec<_> = full.verdicts[0].refusals.iter().map(|refusal| refusal.kind).collect();
    assert!(kinds.contains(&RefusalKind::Gpus), "{kinds:?}");
    // A reader changes nothing, and neither does time.
    bench.later(5.0);
    bench.placement.refresh(bench.now);
    assert!(explain(&mut bench, waits).as_decided);
    // A placed task has changed the pool itself; a new worker is another state.
    let placed = bench.arrive(TaskSpec::default());
    bench.plan();
    assert!(!explain(&mut bench, placed).as_decided);
    bench.join(plain());
    assert!(!explain(&mut bench, waits).as_decided);
}

#[test]
fn a_waiting_task_has_a_reason_and_a_missing_worker_is_none() {
    for strategy in crate::random::strategies() {
        let mut bench = Bench::of(strategy, 3);
        bench.placement.remove_worker(Slot(1), bench.now);
        bench.placement.set_available(Slot(2), false, bench.now);
        let task = bench.arrive(asking(Requirement { min_gpus: 1, ..Requirement::default() }));
        bench.plan();
        let explanation = bench.placement.explanation(task).unwrap().clone();
        assert_eq!(explanation.chosen, None, "{strategy}");
        assert!(explanation.refusals.total() + explanation.not_looked_at >= 1, "{strategy}");
        let json = serde_json::to_value(&explanation).unwrap();
        assert_eq!(json["strategy"], strategy.name());
    }
}

#[test]
fn a_reader_does_not_change_later_decisions() {
    let story = |read: bool| {
        let mut bench = Bench::of(Strategy::Probabilistic, 6);
        (0..30)
            .map(|_| {
                let task = bench.arrive(spec_of(1.0));
                if read {
                    bench.placement.explain_fully(task, &bench.predictor, bench.now).unwrap();
                }
                bench.plan();
                bench.where_is(task)
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(story(true), story(false));
}

#[test]
fn preferences_are_told_as_reasons() {
    let max_rtt = Some(Span::from_millis(10));
    let mut bench =
        Bench::with(Strategy::ShortestQueue, Preferences { max_rtt, ..Preferences::default() });
    let slot = bench.join(plain());
    bench.placement.saw(slot, Some(Span::from_millis(20)), bench.now);
    let task = bench.arrive(TaskSpec::default());
    bench.plan();
    let explanation = bench.placement.explanation(task).unwrap();
    assert_eq!(explanation.refusals.iter().collect::<Vec<_>>(), [(RefusalKind::TooFar, 1)]);
    assert!(Arc::strong_count(&bench.placement.view(slot, bench.now).unwrap().worker) > 1);
}
