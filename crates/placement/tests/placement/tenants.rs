//! Tenants share the pool by weight, whatever each has queued, and priorities of one do not keep the others out.

use hypha_model::{Priority, Requirement, Rng, TaskSpec, Worker};
use hypha_placement::{Action, MAX_CONSECUTIVE_BY_PRIORITY, Strategy, TaskRef};

use crate::fixture::{Fixture, GIB, asking, executor, name, plain};

fn of(tenant: &str, requirement: Requirement) -> TaskSpec {
    TaskSpec { tenant: Some(name(tenant)), ..asking(requirement) }
}

fn memory(gib: u64) -> Requirement {
    Requirement { memory_bytes: gib * GIB, ..Requirement::default() }
}

/// A worker that runs `slots` tasks at once, with 64 GiB.
fn worker(slots: u32) -> Worker {
    let mut worker = Worker { executors: vec![executor("vllm", &[], slots)], ..plain() };
    worker.capacity.memory_bytes = 64 * GIB;
    worker
}

fn started(actions: &[Action]) -> Vec<TaskRef> {
    let start = |action: &Action| match action {
        Action::Dispatch { task, .. } => Some(*task),
        _ => None,
    };
    actions.iter().filter_map(start).collect()
}

/// Strategies that keep tasks in the scheduler's queue.
fn queued() -> [Strategy; 5] {
    let fits = [Strategy::BestFit, Strategy::WorstFit];
    [Strategy::Fifo, Strategy::Priority, Strategy::default(), fits[0], fits[1]]
}

#[test]
fn a_newcomer_does_not_wait_behind_the_backlog_of_another_tenant() {
    for strategy in queued() {
        let mut fixture = Fixture::new(strategy);
        fixture.join(worker(4));
        (0..100).for_each(|_| _ = fixture.arrive(of("acme", Requirement::default())));
        let first = started(&fixture.plan());
        assert_eq!(first.len(), 4, "{strategy:?}");
        fixture.later(1.0);
        let newcomer = fixture.arrive(of("beta", Requirement::default()));
        fixture.complete(first[0], 1.0);
        assert_eq!(started(&fixture.plan()), [newcomer], "{strategy:?}");
    }
}

/// Both have more than the pool can run: while they do, the weighted shares differ by no more than a task of each.
#[test]
fn shares_follow_the_weights_of_the_dominant_resource() {
    for strategy in queued() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let mut fixture = Fixture::new(strategy);
            fixture.join(worker(32));
            let weights = [1.0 + rng.below(4) as f64, 1.0];
            // Slots are what both lack; more memory would leave slots that only one of them can use.
            let sizes = [1 + rng.below(2), 0];
            for _ in 0..400 {
                for (tenant, size) in ["acme", "beta"].into_iter().zip(sizes) {
                    fixture.arrive(of(tenant, memory(size)));
                }
            }
            for (tenant, weight) in ["acme", "beta"].into_iter().zip(weights) {
                fixture.placement.set_weight(&name(tenant), weight);
            }
            let mut running = started(&fixture.plan());
            for _ in 0..200 {
                fixture.later(0.1);
                let ended = running.swap_remove(rng.below(running.len() as u64) as usize);
                fixture.complete(ended, 1.0);
                running.extend(started(&fixture.plan()));
            }
            let views = fixture.placement.tenants();
            let shares: Vec<f64> =
                views.iter().map(|view| view.dominant_share / view.weight).collect();
            let task = |size: u64| (size as f64 / 64.0).max(1.0 / 32.0);
            let one_task = task(sizes[0]) / weights[0] + task(sizes[1]) / weights[1];
            let apart = (shares[0] - shares[1]).abs();
            assert!(apart <= one_task + 1e-9, "{strategy:?} {seed}: {views:?}");
            assert!(views.iter().all(|view| view.queued > 0), "the test is too weak");
        }
    }
}

#[test]
fn priority_goes_before_share_and_not_for_ever() {
    for strategy in [Strategy::Priority, Strategy::default()] {
        let mut fixture = Fixture::new(strategy);
        fixture.join(worker(1));
        let urgent = Requirement { priority: Priority::from_milli(50), ..Requirement::default() };
        (0..100).for_each(|_| _ = fixture.arrive(of("acme", urgent.clone())));
        (0..100).for_each(|_| _ = fixture.arrive(of("beta", Requirement::default())));
        let mut order = Vec::new();
        for _ in 0..20 {
            let next = started(&fixture.plan())[0];
            order.push(next.0 < 100);
            // The tenant keeps a share: its next task would go behind the other's.
            fixture.later(0.1);
            fixture.complete(next, 0.1);
        }
        // With one slot no share is held when the next begins, and arrival decides the tie.
        assert!(order.iter().all(|urgent| *urgent), "{strategy:?}: {order:?}");

        let mut fixture = Fixture::new(strategy);
        fixture.join(worker(2));
        (0..100).for_each(|_| _ = fixture.arrive(of("acme", urgent.clone())));
        let mut running = started(&fixture.plan());
        (0..100).for_each(|_| _ = fixture.arrive(of("beta", Requirement::default())));
        let mut order = Vec::new();
        for _ in 0..20 {
            fixture.later(0.1);
            let ended = running.remove(0);
            fixture.complete(ended, 0.1);
            let next = started(&fixture.plan());
            order.extend(next.iter().map(|task| task.0 < 100));
            running.extend(next);
        }
        let most = MAX_CONSECUTIVE_BY_PRIORITY as usize;
        let by_share = order.iter().filter(|urgent| !**urgent).count();
        assert!(order[..most].iter().all(|urgent| *urgent), "{strategy:?}: {order:?}");
        assert!((2..=order.len() / 2).contains(&by_share), "{strategy:?}: {order:?}");
    }
}

#[test]
fn equal_shares_go_by_deadline() {
    let mut fixture = Fixture::new(Strategy::Fifo);
    fixture.join(worker(1));
    let due = |seconds: u64| Requirement {
        deadline: Some(hypha_model::Span::from_secs(seconds)),
        ..Requirement::default()
    };
    let none = fixture.arrive(of("acme", Requirement::default()));
    let late = fixture.arrive(of("beta", due(60)));
    let soon = fixture.arrive(of("gamma", due(10)));
    for expected in [soon, late, none] {
        assert_eq!(started(&fixture.plan()), [expected]);
        fixture.complete(expected, 0.1);
    }
}

#[test]
fn views_of_tenants_count_their_tasks() {
    let mut fixture = Fixture::new(Strategy::Fifo);
    fixture.join(worker(4));
    for spec in [of("acme", memory(32)), of("acme", memory(64)), TaskSpec::default()] {
        fixture.arrive(spec);
    }
    fixture.placement.set_weight(&name("acme"), 2.5);
    fixture.placement.set_weight(&name("acme"), f64::NAN);
    fixture.plan();
    let views = fixture.placement.tenants();
    let shown: Vec<_> = views
        .iter()
        .map(|view| {
            (view.tenant.clone(), view.weight, view.dominant_share, view.running, view.queued)
        })
        .collect();
    assert_eq!(shown, [(None, 1.0, 0.25, 1, 0), (Some(name("acme")), 2.5, 0.5, 1, 1)]);
}
