//! The cost of one decision, with everything that keeps the state up to date: a task arrives, is placed, begins, and
//! another ends. For every strategy and from ten workers to a hundred thousand.
//!
//! The goals: from 100 to 10,000 workers no strategy becomes more than three times as expensive, and
//! `predictive` decides in under 5 µs at 10,000. The table at the end shows both.

#![allow(clippy::disallowed_macros, clippy::disallowed_methods)] // a bench reads clocks and prints
#![allow(clippy::unwrap_used)] // on constants of this file

mod crowd;

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::Criterion;
use crowd::{Crowd, MEAN_RUN_S, MOST_NOISE, SPEEDS, run};
use hypha_model::{Rng, Span, Time};
use hypha_placement::{
    Action, AttemptEnd, Placement, PlacementRequest, Strategy, TaskRef, WorkerSlot,
};

const SIZES: [usize; 5] = [10, 100, 1_000, 10_000, 100_000];
const UTILISATION: f64 = 0.8;
const NOBODY: u32 = u32::MAX;

/// Time, tasks and decisions, by the number of the strategy and the number of workers. A task that is held back or
/// finds no worker is decided more than once.
type Measured = BTreeMap<(usize, usize), (Duration, u64, u64)>;

/// A scheduler at work: tasks arrive at an even pace, and each ends in the tick given by its run time.
struct World<'a> {
    crowd: &'a Crowd,
    placement: Placement,
    tick: u64,
    tick_s: f64,
    /// The tasks that end in a tick, as lists through `next`: a wheel, so that the driver costs little.
    wheel: Vec<u32>,
    next: Vec<u32>,
    given_at: Vec<WorkerSlot>,
    /// For each worker, the tick in which it has finished all tasks dispatched to it.
    busy_until: Vec<u64>,
    free: Vec<u32>,
    actions: Vec<Action>,
    rng: Rng,
}

impl World<'_> {
    fn new(crowd: &Crowd, strategy: Strategy) -> World<'_> {
        let placement = crowd.placement(strategy);
        let size = crowd.workers.len();
        let speed: f64 = (0..size).map(|at| SPEEDS[at % SPEEDS.len()]).sum();
        let tick_s = MEAN_RUN_S / (UTILISATION * speed);
        // A worker has at most the tasks that it runs and one more.
        let longest = (2.0 * MEAN_RUN_S * MOST_NOISE.exp() / tick_s) as usize + 4;
        World {
            crowd,
            placement,
            tick: (1_000.0 / tick_s) as u64,
            tick_s,
            wheel: vec![NOBODY; longest],
            next: Vec::new(),
            given_at: Vec::new(),
            busy_until: vec![0; size],
            free: Vec::new(),
            actions: Vec::new(),
            rng: Rng::new(2),
        }
    }

    fn decisions(&self) -> u64 {
        let done = self.placement.statistics();
        done.assigned + done.held_back + done.waited
    }

    /// One arrival, and all ends at that time.
    fn step(&mut self) {
        self.tick += 1;
        let now = Time::from_micros((self.tick as f64 * self.tick_s * 1e6) as u64);
        let bucket = (self.tick % self.wheel.len() as u64) as usize;
        let mut ended = std::mem::replace(&mut self.wheel[bucket], NOBODY);
        while ended != NOBODY {
            let following = self.next[ended as usize];
            let run = Span::from_secs_f64(
                MEAN_RUN_S / SPEEDS[self.given_at[ended as usize].0 as usize % 3],
            );
            self.placement.finish(TaskRef(ended), AttemptEnd::Completed(run), now);
            self.free.push(ended);
            ended = following;
        }
        let task = self.free.pop().unwrap_or_else(|| {
            self.next.push(NOBODY);
            self.given_at.push(WorkerSlot(0));
            self.next.len() as u32 - 1
        });
        let request = PlacementRequest {
            spec: Arc::clone(&self.crowd.spec),
            query: self.crowd.query,
            submitted: now,
            bind_at_once: false,
            interactive: false,
            failed_on: Box::default(),
        };
        self.placement.arrive(TaskRef(task), request, &self.crowd.predictor);
        self.placement.plan(&self.crowd.predictor, now, &mut self.actions);
        for at in 0..self.actions.len() {
            let Action::Dispatch { task, slot } = self.actions[at] else { continue };
            self.placement.mark_started(task, now);
            let ticks = run(slot.0 as usize, &mut self.rng).as_secs_f64() / self.tick_s;
            let busy_until = &mut self.busy_until[slot.0 as usize];
            *busy_until = (*busy_until).max(self.tick) + (ticks as u64).max(1);
            let bucket = (*busy_until % self.wheel.len() as u64) as usize;
            self.given_at[task.0 as usize] = slot;
            self.next[task.0 as usize] = self.wheel[bucket];
            self.wheel[bucket] = task.0;
        }
        self.actions.clear();
    }
}

fn main() {
    let mut criterion = Criterion::default()
        .configure_from_args()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(400));
    let measured = RefCell::new(Measured::new());
    for size in SIZES {
        // Built when the first benchmark of this size is not filtered out.
        let crowd: OnceCell<Crowd> = OnceCell::new();
        for (row, strategy) in Strategy::all().into_iter().enumerate() {
            let mut world = None;
            criterion.bench_function(&format!("{strategy}/{size}"), |b| {
                let world = world.get_or_insert_with(|| {
                    let mut world =
                        World::new(crowd.get_or_init(|| Crowd::new(size, Vec::new(), 1)), strategy);
                    (0..5_000.max(3 * size)).for_each(|_| world.step());
                    world
                });
                b.iter_custom(|iterations| {
                    let before = world.decisions();
                    let start = Instant::now();
                    (0..iterations).for_each(|_| world.step());
                    let taken = start.elapsed();
                    let mut measured = measured.borrow_mut();
                    let (time, tasks, decisions) = measured.entry((row, size)).or_default();
                    *time += taken;
                    *tasks += iterations;
                    *decisions += world.decisions() - before;
                    taken
                });
            });
        }
    }
    criterion.final_summary();
    let measured = measured.borrow();
    print_table("ns per decision and its state update", &measured, |_, decisions| decisions);
    print_table("ns per task, from arrival to end", &measured, |tasks, _| tasks);
}

fn print_table(title: &str, measured: &Measured, per: impl Fn(u64, u64) -> u64) {
    println!("\n{title}, by strategy and number of workers");
    let sizes: String = SIZES.iter().map(|size| format!("{size:>9}")).collect();
    println!("{:<18}{sizes}   10,000 / 100", "");
    for (row, strategy) in Strategy::all().into_iter().enumerate() {
        let ns = |size: usize| {
            let (time, tasks, decisions) = measured.get(&(row, size))?;
            Some(time.as_nanos() as f64 / per(*tasks, *decisions) as f64)
        };
        let shown = |ns: Option<f64>| ns.map_or("-".to_owned(), |ns| format!("{ns:.0}"));
        let cells: String = SIZES.iter().map(|size| format!("{:>9}", shown(ns(*size)))).collect();
        let ratio = ns(10_000).zip(ns(100)).map_or(0.0, |(large, small)| large / small);
        println!("{:<18}{cells}   {ratio:>12.2}", strategy.name());
    }
}
