//! No task starves: a task that fits on a worker begins within a bound, whatever arrives later, under every strategy;
//! and interactive tasks do not queue behind batch tasks.

use std::collections::BTreeMap;

use hypha_model::{Priority, RefusalKind, Requirement, Rng, TaskSpec, Worker};
use hypha_placement::{Action, Preferences, Strategy, TaskRef, WorkerSlot};

use crate::fixture::{Fixture, GIB, executor, plain, spec_of};
use crate::random::strategies;

/// A worker with 24 GB that runs three tasks at once.
fn worker() -> Worker {
    let mut worker = Worker { executors: vec![executor("vllm", &[], 3)], ..plain() };
    worker.capacity.memory_bytes = 24 * GIB;
    worker
}

fn of(memory_gib: u64, seconds: f64, priority: i32) -> TaskSpec {
    let mut spec = spec_of(seconds);
    spec.requirement = Requirement {
        memory_bytes: memory_gib * GIB,
        priority: Priority::from_milli(priority),
        ..spec.requirement
    };
    spec
}

/// Workers that begin tasks in the order that placement assumes.
struct World {
    fixture: Fixture,
    /// When each started task ends, in milliseconds.
    ends: BTreeMap<(u64, TaskRef), ()>,
    runs_ms: BTreeMap<TaskRef, u64>,
    running: BTreeMap<TaskRef, WorkerSlot>,
    begun: Vec<TaskRef>,
    at_ms: u64,
}

impl World {
    fn new(strategy: Strategy, workers: usize) -> World {
        let mut fixture = Fixture::new(strategy);
        (0..workers).for_each(|_| {
            fixture.join(worker());
        });
        World {
            fixture,
            ends: BTreeMap::new(),
            runs_ms: BTreeMap::new(),
            running: BTreeMap::new(),
            begun: Vec::new(),
            at_ms: 0,
        }
    }

    /// A task that states a run time in its specification, and takes `really_ms`.
    fn arrive(&mut self, spec: TaskSpec, really_ms: u64, interactive: bool) -> TaskRef {
        let mut request = self.fixture.request(spec);
        request.interactive = interactive;
        let task = self.fixture.arrive_with(request);
        self.runs_ms.insert(task, really_ms);
        self.plan();
        task
    }

    fn plan(&mut self) {
        for action in self.fixture.plan() {
            if let Action::Dispatch { task, slot } = action {
                self.running.insert(task, slot);
            }
        }
        self.begin();
    }

    /// Tasks that placement assumes to run have begun.
    fn begin(&mut self) {
        for task in self.running.keys().copied().collect::<Vec<_>>() {
            if !self.begun.contains(&task) && self.fixture.placement.has_started(task) {
                self.begun.push(task);
                self.ends.insert((self.at_ms + self.runs_ms[&task], task), ());
            }
        }
    }

    /// Time passes until `at_ms`; tasks that end by then end.
    fn until(&mut self, at_ms: u64) {
        while let Some(((ends_ms, task), ())) = self.ends.first_key_value().map(|(k, v)| (*k, *v))
            && ends_ms <= at_ms
        {
            self.ends.pop_first();
            self.fixture.later((ends_ms - self.at_ms) as f64 / 1e3);
            self.at_ms = ends_ms;
            self.running.remove(&task);
            self.fixture.complete(task, self.runs_ms[&task] as f64 / 1e3);
            self.plan();
        }
        self.fixture.later((at_ms - self.at_ms) as f64 / 1e3);
        self.at_ms = at_ms;
        self.plan();
    }

    fn has_started(&self, task: TaskRef) -> bool {
        self.begun.contains(&task)
    }
}

/// Small tasks arrive without end; when does the large one begin?
fn large_begins_after_ms(strategy: Strategy, seed: u64) -> Option<u64> {
    let mut rng = Rng::new(seed);
    let workers = 1 + rng.below(2) as usize;
    let mut world = World::new(strategy, workers);
    let interactive_share = if rng.chance(0.5) { 0.3 } else { 0.0 };
    let mut large = None;
    for at in 0..400 {
        if at == 30 {
            large = Some(world.arrive(of(20, 1.0, 100_000), 1_000, false));
        }
        // They take up to three times as long as stated, or a third.
        let really_ms = 300 + rng.below(2_700);
        let interactive = rng.chance(interactive_share);
        world.arrive(of(8, 1.0, 0), really_ms, interactive);
        world.until(world.at_ms + 400 / workers as u64);
        if large.is_some_and(|large| world.has_started(large)) {
            return Some((at - 30) * 400 / workers as u64);
        }
    }
    None
}

#[test]
fn large_task_starts_although_small_ones_keep_arriving() {
    for strategy in strategies() {
        for seed in 0..6 {
            let begins = large_begins_after_ms(strategy, seed);
            // Strategies that bind at submission put it behind the tasks that wait already: thirty tasks, at most
            // three seconds each, three at a time. Under the others, running tasks have ended after three seconds, and
            // so have those that overtook it before that.
            assert!(begins.is_some_and(|ms| ms < 45_000), "{strategy} {seed}: {begins:?}");
        }
    }
}

#[test]
fn task_without_priority_is_not_starved() {
    let mut fixture = Fixture::of(Strategy::Priority, 1);
    let first = fixture.arrive(of(0, 1.0, 1_000));
    fixture.plan();
    let low = fixture.arrive(of(0, 1.0, 0));
    let mut running = first;
    for _ in 0..1_000 {
        fixture.later(1.0);
        let high = fixture.arrive(of(0, 1.0, 1_000));
        fixture.complete(running, 1.0);
        fixture.plan();
        if fixture.where_is(low).is_some() {
            return;
        }
        running = high;
    }
    panic!("the task without priority waits for ever");
}

#[test]
fn task_blocked_by_a_reservation_is_refused_as_reserved() {
    for strategy in [Strategy::Fifo, Strategy::BestFit, Strategy::Priority] {
        let mut world = World::new(strategy, 1);
        world.arrive(of(8, 5.0, 0), 5_000, false);
        let large = world.arrive(of(20, 1.0, 0), 1_000, false);
        let small = world.arrive(of(8, 50.0, 0), 50_000, false);
        assert!(!world.has_started(large) && !world.has_started(small), "{strategy}");
        let explanation = world.fixture.placement.explanation(small).unwrap();
        let reasons: Vec<_> = explanation.refusals.iter().collect();
        assert_eq!(reasons, [(RefusalKind::Reserved, 1)], "{strategy}");
        // Tasks that end in time, and tasks that fit beside, may begin.
        let short = world.arrive(of(8, 1.0, 0), 1_000, false);
        let beside = world.arrive(of(4, 50.0, 0), 50_000, false);
        assert!(world.has_started(short) && world.has_started(beside), "{strategy}");
        // Backfill must fit beside all tasks, not only the first.
        let too_much = world.arrive(of(1, 60.0, 0), 60_000, false);
        assert!(!world.has_started(too_much), "{strategy}");
        world.until(5_000);
        assert!(world.has_started(large) && !world.has_started(small), "{strategy}");
    }
}

#[test]
fn interactive_tasks_do_not_queue_behind_batch_tasks() {
    for strategy in strategies() {
        let mut world = World::new(strategy, 1);
        // So that run times are known.
        world.arrive(of(0, 8.0, 0), 8_000, false);
        world.until(8_000);
        for _ in 0..80 {
            world.arrive(of(0, 8.0, 0), 8_000, false);
        }
        world.until(9_000);
        let chat = world.arrive(of(0, 0.01, 0), 10, true);
        world.until(8_000 + 8_000 + 100);
        assert!(world.has_started(chat), "{strategy}");
    }
}

#[test]
fn batch_tasks_progress_under_interactive_load() {
    for strategy in strategies() {
        let mut world = World::new(strategy, 1);
        let batches: Vec<TaskRef> =
            (0..30).map(|_| world.arrive(of(0, 0.5, 0), 500, false)).collect();
        for _ in 0..300 {
            // More than the worker can run.
            world.arrive(of(0, 0.5, 0), 500, true);
            world.until(world.at_ms + 100);
        }
        let begun = batches.iter().filter(|task| world.has_started(**task)).count();
        // Six begin each second, a fifth of them batch tasks.
        assert!(begun >= 27, "{strategy}: {begun}");
    }
}

/// Tasks that must be bound at once keep the worker's own queue from ever being empty.
#[test]
fn queued_tasks_begin_although_a_workers_own_queue_never_empties() {
    for strategy in [Strategy::Fifo, Strategy::WorstFit, Strategy::default()] {
        let mut world = World::new(strategy, 1);
        let mut waits = None;
        for at in 0..100 {
            if at == 10 {
                waits = Some(world.arrive(of(1, 1.0, 0), 1_000, false));
            }
            let mut request = world.fixture.request(of(1, 1.0, 0));
            request.bind_at_once = true;
            let task = world.fixture.arrive_with(request);
            world.runs_ms.insert(task, 1_000);
            world.plan();
            world.until(world.at_ms + 250);
        }
        assert!(waits.is_some_and(|task| world.has_started(task)), "{strategy}");
    }
}

/// With a limit on tasks in flight, bound tasks and the queue alternate, and so do the workers: no task waits for
/// another queue to be empty.
#[test]
fn bound_tasks_are_dispatched_although_the_queue_never_empties() {
    for strategy in [Strategy::Fifo, Strategy::default()] {
        let preferences = Preferences { max_in_flight: Some(1), ..Preferences::default() };
        let mut fixture = Fixture::with(strategy, preferences);
        (0..3).for_each(|_| {
            fixture.join(worker());
        });
        let mut running = fixture.arrive(spec_of(1.0));
        fixture.plan();
        let bound: Vec<TaskRef> = (0..6)
            .map(|_| {
                let mut request = fixture.request(spec_of(1.0));
                request.bind_at_once = true;
                fixture.arrive_with(request)
            })
            .collect();
        let mut begun = Vec::new();
        for _ in 0..40 {
            fixture.arrive(spec_of(1.0));
            fixture.later(1.0);
            fixture.complete(running, 1.0);
            let next = fixture.plan().into_iter().find_map(|action| match action {
                Action::Dispatch { task, .. } => Some(task),
                _ => None,
            });
            running = next.expect("each plan dispatches one");
            begun.push(running);
        }
        for task in bound {
            let position = begun.iter().position(|other| *other == task);
            assert!(
                position.is_some_and(|position| position < 14),
                "{strategy}: {position:?} of {begun:?}"
            );
        }
        let from_queue = begun.iter().take(12).filter(|task| task.0 > 6).count();
        assert!(from_queue >= 5, "the queue is served, too: {begun:?}");
    }
}

/// Tasks that are bound to a worker begin although later ones keep arriving in the queue, more than the worker can run.
#[test]
fn bound_tasks_start_although_the_queue_is_never_empty() {
    for strategy in [Strategy::Fifo, Strategy::BestFit, Strategy::default()] {
        let mut world = World::new(strategy, 1);
        let mut bound = Vec::new();
        for at in 0..200 {
            let mut request = world.fixture.request(of(8, 1.0, 0));
            request.bind_at_once = at % 5 == 0;
            let task = world.fixture.arrive_with(request);
            if at % 5 == 0 {
                bound.push((at, task));
            }
            world.runs_ms.insert(task, 1_000);
            world.plan();
            // Three at once, a second each: it would have to be 333.
            world.until(world.at_ms + 250);
        }
        // After 50 s, the tasks of the first 35 s have begun, with some seconds to spare.
        for (at, task) in bound.into_iter().filter(|(at, _)| *at < 4 * 30) {
            assert!(world.has_started(task), "{strategy}: the task that arrived as number {at}");
        }
    }
}

/// Tasks that return from a worker that is lost go before those that arrived later.
#[test]
fn tasks_of_a_lost_worker_keep_their_place() {
    let mut fixture = Fixture::new(Strategy::RoundRobin);
    let (lost, left) = (fixture.join(worker()), fixture.join(worker()));
    let tasks = fixture.arrive_many(40);
    let dispatched = dispatched_tasks(&fixture.plan());
    let waiting: Vec<TaskRef> =
        tasks.into_iter().filter(|task| !dispatched.contains(task)).collect();
    fixture.placement.set_available(lost, false, fixture.now);
    fixture.placement.release_bound(lost, usize::MAX, fixture.now);
    let mut begun = dispatched_tasks(&fixture.plan());
    while let Some(running) = fixture.placement.dispatched_to(left).first().copied() {
        fixture.later(1.0);
        fixture.complete(running, 1.0);
        begun.extend(dispatched_tasks(&fixture.plan()));
    }
    assert_eq!(begun, waiting, "in the order of arrival");
}

fn dispatched_tasks(actions: &[Action]) -> Vec<TaskRef> {
    let dispatched = |action: &Action| match action {
        Action::Dispatch { task, .. } => Some(*task),
        _ => None,
    };
    actions.iter().filter_map(dispatched).collect()
}
