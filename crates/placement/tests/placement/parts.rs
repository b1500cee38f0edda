//! What concerns very many tasks or workers is done in parts.

use hypha_model::TaskSpec;
use hypha_placement::{Action, FullExplanation, MOST_ASKED, Slot, Strategy, TaskRef};

use crate::bench::{Bench, executor, plain};

/// More than one plan binds or hands over.
const MANY: usize = 3_000;
/// What one plan does, or a little more.
const MOST: usize = 1_100;

#[test]
fn a_plan_does_so_much_and_the_next_ones_the_rest() {
    let wide = || {
        let mut wide = plain();
        wide.executors = vec![executor("vllm", &[], MANY as u32)];
        wide
    };
    for strategy in [Strategy::RoundRobin, Strategy::Fifo, Strategy::default()] {
        let mut bench = Bench::new(strategy);
        let tasks: Vec<TaskRef> = (0..MANY).map(|_| bench.arrive(TaskSpec::default())).collect();
        bench.join(wide());
        let (mut given, mut plans) = (0, 0);
        while given < MANY {
            let actions = bench.plan();
            assert!(!actions.is_empty() && actions.len() <= 2 * MOST, "{strategy}: {given}");
            given += actions.iter().filter(|it| matches!(it, Action::Dispatch { .. })).count();
            plans += 1;
            let again = bench.placement.plan_at();
            assert!(given == MANY || again == Some(bench.now), "{strategy}: {again:?}");
        }
        assert!(plans >= MANY / MOST, "{strategy}: {plans} plans");
        assert!(tasks.iter().all(|task| bench.placement.worker_of(*task) == Some(Slot(0))));
        bench.placement.check(bench.now).unwrap();
    }
}

#[test]
fn parts_of_an_explanation_add_up_to_the_whole() {
    let mut bench = Bench::of(Strategy::default(), 600);
    let task = bench.arrive(TaskSpec::default());
    let (mut parts, mut next) = (Vec::new(), Some(Slot(0)));
    while let Some(from) = next {
        let (predictor, now) = (&bench.predictor, bench.now);
        let part = bench.placement.explain_part(task, predictor, now, from, 256).unwrap();
        assert!(part.verdicts.len() <= 256);
        next = part.next;
        parts.push(part);
    }
    assert_eq!(parts.len(), 3);
    let whole = bench.placement.explain_fully(task, &bench.predictor, bench.now);
    assert_eq!(Some(FullExplanation::of_parts(parts)), whole);
}

#[test]
fn the_reason_of_tasks_that_ask_for_the_same_is_found_once() {
    let mut bench = Bench::of(Strategy::Fifo, 2 * MOST_ASKED);
    bench.placement.slots().into_iter().for_each(|slot| {
        bench.placement.set_available(slot, false, bench.now);
    });
    let tasks = [(); 3].map(|()| bench.arrive(TaskSpec::default()));
    let mut reasons = bench.placement.waiting_reasons();
    for task in tasks {
        let reason = reasons.of(task, bench.now).unwrap();
        assert_eq!(reason.refusals.total(), MOST_ASKED as u64);
        assert_eq!(reason.not_looked_at, MOST_ASKED as u64);
    }
    assert_eq!(reasons.looked_at(), MOST_ASKED);
}
