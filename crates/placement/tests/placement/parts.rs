//! Operations on very many tasks or workers are done in parts.

use hypha_model::TaskSpec;
use hypha_placement::{
    Action, FullExplanation, MAX_WORKERS_CHECKED, Strategy, TaskRef, WorkerSlot,
};

use crate::fixture::{Fixture, executor, plain};

/// More than one plan binds or dispatches.
const MANY: usize = 3_000;
/// The limit of one plan, or a little more.
const MOST: usize = 1_100;

#[test]
fn a_plan_is_bounded_and_the_next_plans_continue() {
    let wide = || {
        let mut wide = plain();
        wide.executors = vec![executor("vllm", &[], MANY as u32)];
        wide
    };
    for strategy in [Strategy::RoundRobin, Strategy::Fifo, Strategy::default()] {
        let mut fixture = Fixture::new(strategy);
        let tasks: Vec<TaskRef> = (0..MANY).map(|_| fixture.arrive(TaskSpec::default())).collect();
        fixture.join(wide());
        let (mut dispatched, mut plans) = (0, 0);
        while dispatched < MANY {
            let actions = fixture.plan();
            assert!(!actions.is_empty() && actions.len() <= 2 * MOST, "{strategy}: {dispatched}");
            dispatched += actions.iter().filter(|it| matches!(it, Action::Dispatch { .. })).count();
            plans += 1;
            let again = fixture.placement.plan_at();
            assert!(dispatched == MANY || again == Some(fixture.now), "{strategy}: {again:?}");
        }
        assert!(plans >= MANY / MOST, "{strategy}: {plans} plans");
        assert!(tasks.iter().all(|task| fixture.placement.worker_of(*task) == Some(WorkerSlot(0))));
        fixture.placement.check(fixture.now).unwrap();
    }
}

#[test]
fn parts_of_an_explanation_add_up_to_the_whole() {
    let mut fixture = Fixture::of(Strategy::default(), 600);
    let task = fixture.arrive(TaskSpec::default());
    let (mut parts, mut next) = (Vec::new(), Some(WorkerSlot(0)));
    while let Some(from) = next {
        let (predictor, now) = (&fixture.predictor, fixture.now);
        let part = fixture.placement.explain_part(task, predictor, now, from, 256).unwrap();
        assert!(part.verdicts.len() <= 256);
        next = part.next;
        parts.push(part);
    }
    assert_eq!(parts.len(), 3);
    let whole = fixture.placement.explain_fully(task, &fixture.predictor, fixture.now);
    assert_eq!(Some(FullExplanation::of_parts(parts)), whole);
}

#[test]
fn reason_of_tasks_with_equal_requirements_is_found_once() {
    let mut fixture = Fixture::of(Strategy::Fifo, 2 * MAX_WORKERS_CHECKED);
    fixture.placement.worker_slots().into_iter().for_each(|slot| {
        fixture.placement.set_available(slot, false, fixture.now);
    });
    let tasks = [(); 3].map(|()| fixture.arrive(TaskSpec::default()));
    let mut reasons = fixture.placement.waiting_reasons();
    for task in tasks {
        let reason = reasons.of(task, fixture.now).unwrap();
        assert_eq!(reason.refusals.total(), MAX_WORKERS_CHECKED as u64);
        assert_eq!(reason.not_looked_at, MAX_WORKERS_CHECKED as u64);
    }
    assert_eq!(reasons.looked_at(), MAX_WORKERS_CHECKED);
}
