//! Tasks with deadlines go first only as far as they must, and those that cannot be in time go last.

use hypha_model::{Priority, Requirement, Span, TaskSpec};
use hypha_placement::{
    Action, DeadlineOutlook, DeadlineStatus, MAX_CONSECUTIVE_URGENT, Strategy, TaskRef,
};

use crate::fixture::{Fixture, GIB, executor, plain, spec_of};

/// Strategies with an order of their own, other than that of arrival.
fn ordered() -> [Strategy; 2] {
    [Strategy::Priority, Strategy::default()]
}

/// A task of a second.
fn task(deadline_s: Option<f64>, priority: i32) -> TaskSpec {
    let mut spec = spec_of(1.0);
    spec.requirement.deadline = deadline_s.map(Span::from_secs_f64);
    spec.requirement.priority = Priority::from_milli(priority);
    spec
}

/// One worker on which such tasks take a second, which is busy.
fn busy(strategy: Strategy) -> (Fixture, TaskRef) {
    let mut fixture = Fixture::new(strategy);
    fixture.join_fast(1.0);
    let first = fixture.arrive(task(None, 0));
    assert_eq!(started(&fixture.plan()), [first]);
    (fixture, first)
}

fn started(actions: &[Action]) -> Vec<TaskRef> {
    let start = |action: &Action| match action {
        Action::Dispatch { task, .. } => Some(*task),
        _ => None,
    };
    actions.iter().filter_map(start).collect()
}

/// The order in which waiting tasks start, if each takes `run_s` on the one worker.
fn order(fixture: &mut Fixture, mut running: TaskRef, run_s: f64) -> Vec<u32> {
    let mut order = Vec::new();
    loop {
        fixture.later(run_s);
        fixture.complete(running, run_s);
        match started(&fixture.plan())[..] {
            [next] => running = next,
            _ => return order,
        }
        order.push(running.0);
    }
}

/// The tasks that arrive, each with its deadline and its priority, and the order in which they start.
fn check(strategy: Strategy, tasks: &[(Option<f64>, i32)], expected: &[u32]) {
    let (mut fixture, first) = busy(strategy);
    for (deadline_s, priority) in tasks {
        fixture.arrive(task(*deadline_s, *priority));
    }
    assert_eq!(order(&mut fixture, first, 0.01), expected, "{strategy:?}: {tasks:?}");
}

#[test]
fn urgent_tasks_go_first_by_deadline() {
    for strategy in ordered() {
        check(strategy, &[(None, 0), (None, 0), (Some(4.0), 0), (Some(3.0), 0)], &[4, 3, 1, 2]);
    }
    // In the order of arrival, a deadline is none.
    check(Strategy::Fifo, &[(None, 0), (Some(3.0), 0), (Some(2.0), 0)], &[1, 2, 3]);
}

#[test]
fn task_with_time_left_does_not_jump_the_queue() {
    for strategy in ordered() {
        check(strategy, &[(None, 0), (Some(3_600.0), 0), (None, 0)], &[1, 2, 3]);
        // It is urgent when it must be.
        let (mut fixture, first) = busy(strategy);
        for deadline in [None, Some(3_600.0)] {
            fixture.arrive(task(deadline, 0));
        }
        fixture.later(3_597.0);
        assert_eq!(order(&mut fixture, first, 0.01), [2, 1], "{strategy:?}");
    }
}

/// The more work has deadlines, the earlier it goes first: all of it is in time.
#[test]
fn burst_of_deadlines_is_served_in_time() {
    for strategy in ordered() {
        let (mut fixture, first) = busy(strategy);
        (0..40).for_each(|_| _ = fixture.arrive(task(None, 0)));
        (0..40).for_each(|_| _ = fixture.arrive(task(Some(70.0), 0)));
        let order = order(&mut fixture, first, 1.0);
        // Each takes a second, so the place in the order is the time of the start.
        let last = order.iter().rposition(|task| *task > 40).unwrap();
        assert!(last < 69, "{strategy:?}: the last starts after {last} s");
        assert!(order[0] <= 40, "{strategy:?}: none is urgent at first");
    }
}

#[test]
fn task_that_cannot_be_in_time_goes_last() {
    for strategy in ordered() {
        check(strategy, &[(Some(0.5), 0), (None, 0), (Some(3.0), 0)], &[3, 2, 1]);
        check(strategy, &[(Some(0.5), 5_000), (None, 0), (Some(3.0), 0)], &[3, 2, 1]);
        // It was urgent, and waited for too long.
        let (mut fixture, first) = busy(strategy);
        for deadline in [Some(1.5), None] {
            fixture.arrive(task(deadline, 0));
        }
        fixture.plan();
        assert_eq!(order(&mut fixture, first, 0.9), [2, 1], "{strategy:?}");
    }
}

#[test]
fn fastest_worker_decides_whether_a_deadline_can_be_met() {
    for strategy in ordered() {
        for (speed, expected) in [(4.0, [2, 1]), (1.0, [1, 2])] {
            let mut fixture = Fixture::new(strategy);
            (0..2).for_each(|_| _ = fixture.join_fast(1.0));
            fixture.join_fast(speed);
            let running: Vec<_> = (0..3).map(|_| fixture.arrive(task(None, 0))).collect();
            for _ in 0..3 {
                fixture.plan();
            }
            assert!(running.iter().all(|task| fixture.where_is(*task).is_some()), "{strategy:?}");
            let waiting = [None, Some(0.6)].map(|deadline| fixture.arrive(task(deadline, 0)).0);
            for task in running {
                fixture.complete(task, 0.01);
            }
            let order: Vec<u32> = started(&fixture.plan()).iter().map(|task| task.0).collect();
            assert_eq!(order, expected.map(|at| waiting[at - 1]), "{strategy:?} {speed}");
        }
    }
}

#[test]
fn higher_priority_is_not_overtaken() {
    for strategy in ordered() {
        check(strategy, &[(None, 0), (Some(3.0), 0), (None, 1_000)], &[3, 2, 1]);
        check(strategy, &[(None, 0), (Some(3.0), 1_000), (Some(2.0), 0)], &[2, 3, 1]);
    }
}

#[test]
fn urgent_tasks_do_not_keep_the_others_out() {
    for strategy in ordered() {
        let (mut fixture, mut running) = busy(strategy);
        let others: Vec<_> = (0..5).map(|_| fixture.arrive(task(None, 0))).collect();
        let mut order = Vec::new();
        for _ in 0..25 {
            // More than the worker can do.
            (0..2).for_each(|_| _ = fixture.arrive(task(Some(2.0), 0)));
            fixture.later(0.5);
            fixture.complete(running, 0.5);
            running = started(&fixture.plan())[0];
            order.push(others.contains(&running));
        }
        let mut expected = [false; MAX_CONSECUTIVE_URGENT as usize + 1];
        expected[MAX_CONSECUTIVE_URGENT as usize] = true;
        assert_eq!(order, expected.repeat(5), "{strategy:?}");
    }
}

#[test]
fn no_room_is_kept_for_a_task_that_cannot_be_in_time() {
    let starts_before = |deadline_s| {
        let mut fixture = Fixture::new(Strategy::default());
        fixture.join_fast(1.0);
        let mut large_worker = plain();
        large_worker.capacity.memory_bytes = 4 * GIB;
        large_worker.executors = vec![executor("large", &[], 4)];
        fixture.join(large_worker);
        let of = |gib: u64, deadline_s| {
            let mut spec = task(deadline_s, 0);
            spec.requirement.memory_bytes = gib * GIB;
            spec
        };
        let small = fixture.arrive(of(1, None));
        fixture.plan();
        let large = fixture.arrive(of(4, deadline_s));
        fixture.plan();
        fixture.arrive(of(1, None));
        let later = started(&fixture.plan());
        assert!(fixture.where_is(small).is_some() && fixture.where_is(large).is_none());
        later.len()
    };
    assert_eq!((starts_before(None), starts_before(Some(0.2))), (0, 1));
}

#[test]
fn outlook_says_whether_a_task_is_in_time() {
    use DeadlineStatus::{AtRisk, OnTrack, Unreachable};
    for strategy in [Strategy::Fifo, Strategy::Priority, Strategy::default()] {
        let (mut fixture, _) = busy(strategy);
        (0..10).for_each(|_| _ = fixture.arrive(task(None, 0)));
        let start = fixture.now;
        // The deadline, and what is expected: in the order of arrival a task waits for those before it.
        let in_order = [(0.5, Unreachable), (3.0, AtRisk), (100.0, OnTrack)];
        let in_time = [(0.5, Unreachable), (1.3, AtRisk), (100.0, OnTrack)];
        let cases = if strategy == Strategy::Fifo { in_order } else { in_time };
        for (deadline_s, expected) in cases {
            let special = fixture.arrive(task(Some(deadline_s), 0));
            fixture.plan();
            let outlook = outlook(&fixture, special).unwrap();
            assert_eq!(outlook.status, expected, "{strategy:?} {deadline_s}");
            let finish_s = outlook.finish.since(start).as_secs_f64();
            assert!((0.9..30.0).contains(&finish_s), "{strategy:?} {deadline_s}: {finish_s}");
            fixture.complete(special, 0.0);
        }
        let without = fixture.arrive(task(None, 0));
        assert_eq!(outlook(&fixture, without), None);
        // No worker could run it: nothing is known.
        let requirement = Requirement {
            min_gpus: 1,
            deadline: Some(Span::from_secs(1)),
            ..Requirement::default()
        };
        let impossible = fixture.arrive(TaskSpec { requirement, ..TaskSpec::default() });
        assert_eq!(outlook(&fixture, impossible), None);
    }
}

#[test]
fn outlook_of_a_running_task_counts_what_is_left_of_its_run() {
    for strategy in [Strategy::RoundRobin, Strategy::default()] {
        let mut fixture = Fixture::new(strategy);
        fixture.join_fast(1.0);
        let task = fixture.arrive(task(Some(1.5), 0));
        fixture.plan();
        let status = |fixture: &Fixture| outlook(fixture, task).map(|it| it.status);
        assert_eq!(status(&fixture), Some(DeadlineStatus::OnTrack), "{strategy:?}");
        fixture.later(0.9);
        assert_eq!(status(&fixture), Some(DeadlineStatus::OnTrack), "{strategy:?}");
        // It takes longer than expected.
        fixture.later(0.59);
        assert_ne!(status(&fixture), Some(DeadlineStatus::OnTrack), "{strategy:?}");
    }
}

fn outlook(fixture: &Fixture, task: TaskRef) -> Option<DeadlineOutlook> {
    fixture.placement.deadline_outlook(task, &fixture.predictor, fixture.now)
}

/// Deadlines, switches of the strategy and returning tasks: what is indexed stays consistent.
#[test]
fn deadlines_survive_a_switch_of_the_strategy() {
    let (mut fixture, first) = busy(Strategy::Priority);
    for deadline in [Some(0.5), Some(2.0), Some(3_600.0), None] {
        fixture.arrive(task(deadline, 0));
    }
    fixture.plan();
    for strategy in [Strategy::Fifo, Strategy::default(), Strategy::Priority] {
        fixture.placement.switch(strategy, fixture.now);
        fixture.plan();
    }
    assert_eq!(order(&mut fixture, first, 0.01), [2, 3, 4, 1]);
    assert_eq!(fixture.placement.waiting(), 0);
}
