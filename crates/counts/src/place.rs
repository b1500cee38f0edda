//! One placement decision of the default strategy among 1,000 unequal workers at 80 % load: a task arrives, one is
//! placed and begins, and one ends. And the same while tasks wait that no worker can run.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use anyhow::ensure;
use hypha_model::{ExecutorClass, Span, TaskSpec, Time};
use hypha_placement::{
    Action, AttemptEnd, Health, Placement, PlacementRequest, Predictive, Preferences, Strategy,
    TaskRef,
};
use hypha_predict::HardwareKey;

use crate::tasks::{SPEEDS, START, TrainedPredictor};

const WORKERS: usize = 1_000;
/// The run time on a worker of speed 1.
const RUN: Span = Span::from_secs(2);
/// The time between arrivals, so that the workers are busy for 80 % of the time.
const INTERVAL: Span = Span::from_micros(1_072);
/// Arrivals until as many tasks end as arrive.
const WARM_UP: u64 = 2_000;

/// Tasks that no worker can run, each with other requirements.
const UNSERVED: u32 = 100_000;

pub(crate) fn run(rounds: u64) -> anyhow::Result<()> {
    let mut scenario = PlacementScenario::new()?;
    (0..WARM_UP + rounds).for_each(|round| scenario.arrival(round as usize));
    Ok(())
}

pub(crate) fn unserved(rounds: u64) -> anyhow::Result<()> {
    let mut scenario = PlacementScenario::new()?;
    scenario.arrive_unserved()?;
    (0..WARM_UP + rounds).for_each(|round| scenario.arrival(round as usize));
    Ok(())
}

struct PlacementScenario {
    trained: TrainedPredictor,
    placement: Placement,
    now: Time,
    /// Running tasks, by their ends.
    ends: BinaryHeap<Reverse<(Time, u32, Span)>>,
    busy_until: Vec<Time>,
    /// Task numbers are reused, as in the scheduler.
    free: Vec<u32>,
    names: u32,
    actions: Vec<Action>,
}

impl PlacementScenario {
    fn new() -> anyhow::Result<PlacementScenario> {
        let trained = TrainedPredictor::new(WORKERS)?;
        let strategy = Strategy::Predictive(Predictive::default());
        let mut placement = Placement::new(strategy, Preferences::default(), 1);
        for (worker, key) in &trained.workers {
            let (worker, health) = (Arc::clone(worker), Health::default());
            let slot = placement.add_worker(worker, *key, HardwareKey(0), health, START);
            placement.set_factor(slot, trained.predictor.factor(*key), START);
            placement.record_contact(slot, Span::from_micros(500), START);
            placement.set_available(slot, true, START);
        }
        Ok(PlacementScenario {
            trained,
            placement,
            now: START,
            ends: BinaryHeap::new(),
            busy_until: vec![START; WORKERS],
            free: Vec::new(),
            names: 0,
            actions: Vec::new(),
        })
    }

    fn arrive_unserved(&mut self) -> anyhow::Result<()> {
        let TrainedPredictor { predictor, specs, queries, .. } = &self.trained;
        for at in 0..UNSERVED {
            let mut spec = TaskSpec::clone(&specs[0]);
            spec.requirement.class = ExecutorClass::Train;
            spec.requirement.model = Some(format!("absent-{at}").parse()?);
            let request = PlacementRequest {
                spec: Arc::new(spec),
                query: queries[0],
                submitted: self.now,
                bind_at_once: false,
                interactive: false,
                failed_on: Box::default(),
            };
            self.names += 1;
            self.placement.arrive(TaskRef(self.names), request, predictor);
        }
        // Each plan looks at some of them.
        while self.placement.plan_at().is_some_and(|at| at <= self.now) {
            self.placement.plan(predictor, self.now, &mut self.actions);
        }
        ensure!(self.actions.is_empty(), "a worker runs a task that none should");
        ensure!(self.placement.statistics().parked == u64::from(UNSERVED), "not all are parked");
        Ok(())
    }

    fn arrival(&mut self, round: usize) {
        self.now = self.now + INTERVAL;
        while let Some(Reverse((end, task, run))) = self.ends.peek().copied()
            && end <= self.now
        {
            self.ends.pop();
            self.placement.finish(TaskRef(task), AttemptEnd::Completed(run), self.now);
            self.free.push(task);
        }
        let task = self.free.pop().unwrap_or_else(|| {
            self.names += 1;
            self.names
        });
        let TrainedPredictor { predictor, specs, queries, .. } = &self.trained;
        let at = round % specs.len();
        let request = PlacementRequest {
            spec: Arc::clone(&specs[at]),
            query: queries[at],
            submitted: self.now,
            bind_at_once: false,
            interactive: false,
            failed_on: Box::default(),
        };
        self.placement.arrive(TaskRef(task), request, predictor);
        self.placement.plan(predictor, self.now, &mut self.actions);
        for action in self.actions.drain(..) {
            let Action::Dispatch { task, slot } = action else { continue };
            self.placement.mark_started(task, self.now);
            let worker = slot.0 as usize;
            let run = Span::from_micros(RUN.as_micros() / SPEEDS[worker % SPEEDS.len()]);
            let busy_until = &mut self.busy_until[worker];
            *busy_until = (*busy_until).max(self.now) + run;
            self.ends.push(Reverse((*busy_until, task.0, run)));
        }
    }
}
