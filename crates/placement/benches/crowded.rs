//! The cost of one task on workers that run many at once, like inference servers that batch: `predictive` against
//! `fifo`, with every slot in use and a queue behind, so that each decision needs the remaining time of all runs. And
//! its cost while a hundred thousand tasks wait, each for a model that no worker serves: at most 1.2 times as much.
//!
//! The goal: whatever the number of tasks at once, `predictive` stays within a few microseconds of `fifo`, so that a
//! scheduler's whole cycle (some 17 µs) reaches at least 0.8 of what it reaches under `fifo`.

#![allow(clippy::disallowed_macros, clippy::disallowed_methods)] // a bench reads clocks and prints
#![allow(clippy::unwrap_used)] // on constants of this file

mod crowd;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crowd::{Crowd, MEAN_RUN_S, SPEEDS, START, run};
use hypha_model::{Requirement, Rng, Span, TaskSpec, Time};
use hypha_placement::{Action, AttemptEnd, Placement, PlacementRequest, Strategy, TaskRef};
use hypha_predict::{Predictor, Query};

const SIZES: [usize; 5] = [2, 10, 100, 1_000, 10_000];
const AT_ONCE: [u32; 3] = [1, 16, 256];
/// Open tasks for each that can run: a quarter as many wait as run.
const OPEN_PER_SLOT: f64 = 1.25;
const UNSERVED: u32 = 100_000;
const MEASURED: Duration = Duration::from_millis(400);

struct World {
    predictor: Predictor,
    placement: Placement,
    spec: Arc<TaskSpec>,
    query: Query,
    now: Time,
    ends: BinaryHeap<Reverse<(Time, u32, u32)>>,
    free: Vec<u32>,
    actions: Vec<Action>,
    rng: Rng,
}

impl World {
    fn new(strategy: Strategy, size: usize, at_once: u32, unserved: u32) -> World {
        let crowd = Crowd::new(size, vec!["llama".parse().unwrap()], at_once);
        let placement = crowd.placement(strategy);
        let Crowd { predictor, spec, query, .. } = crowd;
        let open = (OPEN_PER_SLOT * (size as u32 * at_once) as f64) as u32 + 2;
        let mut world = World {
            predictor,
            placement,
            spec,
            query,
            now: START,
            ends: BinaryHeap::new(),
            free: (0..open).collect(),
            actions: Vec::new(),
            rng: Rng::new(2),
        };
        for at in 0..unserved {
            let model = format!("absent-{at}").parse().ok();
            let requirement = Requirement { model, ..Requirement::default() };
            let spec = Arc::new(TaskSpec { requirement, ..TaskSpec::default() });
            world.submit(open + at, &spec);
        }
        let spec = Arc::clone(&world.spec);
        while let Some(task) = world.free.pop() {
            // Spread over the time of a run, as they are in a steady state.
            world.now = world.now + Span::from_micros(1_000_000 / u64::from(open).max(1));
            world.submit(task, &spec);
        }
        (0..2_000.max(open)).for_each(|_| world.step());
        world
    }

    fn submit(&mut self, task: u32, spec: &Arc<TaskSpec>) {
        let request = PlacementRequest {
            spec: Arc::clone(spec),
            query: self.query,
            submitted: self.now,
            bind_at_once: false,
            interactive: false,
            failed_on: Box::default(),
        };
        self.placement.arrive(TaskRef(task), request, &self.predictor);
        self.plan();
    }

    /// Plans, as a scheduler does after each event.
    fn plan(&mut self) {
        self.placement.plan(&self.predictor, self.now, &mut self.actions);
        let mut actions = std::mem::take(&mut self.actions);
        for action in actions.drain(..) {
            let Action::Dispatch { task, slot } = action else { continue };
            self.placement.mark_started(task, self.now);
            self.plan();
            let ends = self.now + run(slot.0 as usize, &mut self.rng);
            self.ends.push(Reverse((ends, task.0, slot.0)));
        }
        self.actions = actions;
    }

    /// One task ends and another arrives.
    fn step(&mut self) {
        let Some(Reverse((at, task, slot))) = self.ends.pop() else { return };
        self.now = self.now.max(at);
        let run = Span::from_secs_f64(MEAN_RUN_S / SPEEDS[slot as usize % SPEEDS.len()]);
        self.placement.finish(TaskRef(task), AttemptEnd::Completed(run), self.now);
        self.plan();
        let spec = Arc::clone(&self.spec);
        self.submit(task, &spec);
    }
}

/// Nanoseconds a task, the best of three rounds: other processes use the machine too.
fn measure(world: &mut World) -> f64 {
    let round = |world: &mut World| {
        let (start, mut tasks) = (Instant::now(), 0);
        while start.elapsed() < MEASURED {
            (0..100).for_each(|_| world.step());
            tasks += 100;
        }
        start.elapsed().as_nanos() as f64 / f64::from(tasks)
    };
    (0..3).map(|_| round(world)).fold(f64::INFINITY, f64::min)
}

fn main() {
    let most = std::env::args().find_map(|given| given.parse::<usize>().ok()).unwrap_or(10_000);
    println!("ns per task, from arrival to end, with every slot in use");
    println!("{:>9}{:>9}{:>9}{:>12}{:>9}", "workers", "at once", "fifo", "predictive", "more");
    for size in SIZES.into_iter().filter(|size| *size <= most) {
        for at_once in AT_ONCE {
            let [fifo, predictive] = [Strategy::Fifo, Strategy::default()]
                .map(|strategy| measure(&mut World::new(strategy, size, at_once, 0)));
            let more = predictive - fifo;
            println!("{size:>9}{at_once:>9}{fifo:>9.0}{predictive:>12.0}{more:>9.0}");
        }
    }
    println!("\nns per task while others wait for models that no worker serves");
    println!("{:>15}{:>9}{:>10}{:>9}", "strategy", "none", "100,000", "ratio");
    for strategy in [Strategy::Fifo, Strategy::ShortestQueue, Strategy::default()] {
        let [none, many] =
            [0, UNSERVED].map(|unserved| measure(&mut World::new(strategy, 10, 16, unserved)));
        println!("{:>15}{none:>9.0}{many:>10.0}{:>9.2}", strategy.name(), many / none);
    }
}
