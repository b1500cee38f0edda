//! Random pools, tasks and interleavings, for every strategy, checked against the tests' own bookkeeping.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hypha_model::{
    Capacity, Device, Executor, ExecutorClass, Maximise, Money, Priority, Requirement, Rng, Span,
    TaskSpec, Time, Worker, WorkerId,
};
use hypha_placement::{
    Action, AttemptEnd, Health, LoadMetric, Pick, Placement, PlacementRequest, Preferences,
    Strategy, TaskRef, WorkerSlot,
};
use hypha_predict::{Predictor, Settings, WorkerKey};

use crate::fixture::{GIB, name, spec_of};

const SEQUENCES: u64 = 200;
const STEPS: usize = 60;

/// Every strategy with its defaults, and the variants that a configuration can choose.
pub(crate) fn strategies() -> Vec<Strategy> {
    let mut all = Strategy::all().to_vec();
    for load_metric in [LoadMetric::CpuUsage, LoadMetric::MemoryUsage] {
        all.push(Strategy::CapabilityBased { load_metric, pick: Pick::LeastLoaded });
    }
    for pick in [Pick::Random, Pick::Performance] {
        all.push(Strategy::CapabilityBased { load_metric: LoadMetric::TaskCount, pick });
    }
    all
}

/// The test's own record of a task.
#[derive(Clone)]
struct TrackedTask {
    request: PlacementRequest,
    at: Location,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Location {
    Waiting,
    Bound(WorkerSlot),
    Dispatched(WorkerSlot),
}

struct Scenario {
    rng: Rng,
    placement: Placement,
    predictor: Predictor,
    preferences: Preferences,
    now: Time,
    workers: BTreeMap<WorkerSlot, (Arc<Worker>, WorkerKey, bool, Span)>,
    tasks: BTreeMap<TaskRef, TrackedTask>,
    free: Vec<TaskRef>,
    suspended: BTreeSet<(WorkerSlot, usize)>,
    log: Vec<Action>,
}

pub(crate) fn random_worker(rng: &mut Rng) -> Worker {
    let pick = |rng: &mut Rng, of: &[&str]| name(of[rng.below(of.len() as u64) as usize]);
    let executors = (0..1 + rng.below(2))
        .map(|_| Executor {
            class: match rng.below(5) {
                0 => ExecutorClass::Train,
                _ => ExecutorClass::Inference,
            },
            name: pick(rng, &["vllm", "llama.cpp"]),
            models: match rng.below(3) {
                0 => vec![pick(rng, &["llama", "gpt"])],
                1 => vec![name("llama"), name("gpt")],
                _ => Vec::new(),
            },
            concurrency: rng.below(4) as u32,
        })
        .collect();
    let device = |rng: &mut Rng| Device {
        model: name("A100"),
        memory_bytes: (8 + 8 * rng.below(3)) * GIB,
        milli_gpu: 1_000,
    };
    Worker {
        id: WorkerId::new(Time::ZERO, rng),
        capacity: Capacity {
            cpu_milli: 1_000 * rng.below(9),
            memory_bytes: rng.below(17) * GIB,
            storage_bytes: rng.below(3) * GIB,
            devices: (0..rng.below(4)).map(|_| device(rng)).collect(),
        },
        executors,
        hardware: rng.chance(0.5).then(|| pick(rng, &["A100", "T4", "H100"])),
        region: rng.chance(0.5).then(|| pick(rng, &["eu", "us"])),
        price: Money::default(),
    }
}

pub(crate) fn random_spec(rng: &mut Rng) -> TaskSpec {
    let some = |rng: &mut Rng, most: u64| if rng.chance(0.3) { rng.below(most) } else { 0 };
    let mut spec = spec_of(0.1 + 3.0 * rng.unit());
    spec.tenant = rng.chance(0.3).then(|| name(["acme", "beta"][rng.below(2) as usize]));
    spec.requirement = Requirement {
        class: if rng.chance(0.1) { ExecutorClass::Train } else { ExecutorClass::Inference },
        model: rng.chance(0.4).then(|| name(["llama", "gpt"][rng.below(2) as usize])),
        executor: rng.chance(0.1).then(|| name("vllm")),
        cpu_milli: 500 * some(rng, 9),
        memory_bytes: GIB * some(rng, 9),
        storage_bytes: GIB * some(rng, 3),
        min_gpus: some(rng, 3) as u32,
        gpu_memory_bytes: GIB * some(rng, 20),
        milli_gpu: 250 * (1 + rng.below(4) as u32),
        priority: Priority::from_milli(rng.below(3) as i32 * 500),
        deadline: rng.chance(0.2).then(|| Span::from_secs_f64(5.0 * rng.unit())),
        maximise: rng.chance(0.5).then(|| Maximise::ALL[rng.below(3) as usize]),
        ..spec.requirement
    };
    spec
}

impl Scenario {
    fn new(strategy: Strategy, seed: u64) -> Scenario {
        let mut rng = Rng::new(seed);
        let preferences = Preferences {
            max_rtt: rng.chance(0.3).then(|| Span::from_millis(50)),
            prefer_region: rng.chance(0.3).then(|| name("eu")),
            max_local_wait: Span::from_secs(rng.below(3)),
            max_in_flight: rng.chance(0.3).then(|| 1 + rng.below(6) as u32),
            maximise: Maximise::ALL[rng.below(3) as usize],
        };
        let placement = Placement::new(strategy, preferences.clone(), rng.next_u64());
        let mut scenario = Scenario {
            rng,
            placement,
            predictor: Predictor::new(Settings::default()),
            preferences,
            now: Time::from_micros(1_000_000),
            workers: BTreeMap::new(),
            tasks: BTreeMap::new(),
            free: (0..40).map(TaskRef).collect(),
            suspended: BTreeSet::new(),
            log: Vec::new(),
        };
        (0..1 + scenario.rng.below(8)).for_each(|_| scenario.join());
        scenario
    }

    fn join(&mut self) {
        let worker = Arc::new(random_worker(&mut self.rng));
        let key = self.predictor.add_worker(worker.id, worker.hardware.as_ref());
        let hardware = self.predictor.hardware(worker.hardware.as_ref());
        let health = Health::default();
        let slot = self.placement.add_worker(Arc::clone(&worker), key, hardware, health, self.now);
        assert!(self.workers.insert(slot, (worker, key, false, Span::ZERO)).is_none());
        self.set_available(slot, true);
        if self.rng.chance(0.7) {
            self.record_contact(slot);
        }
        self.set_price(slot);
    }

    fn set_price(&mut self, slot: WorkerSlot) {
        let price = Money::from_micros(1 + self.rng.below(10_000_000));
        let price = self.rng.chance(0.7).then_some(price);
        self.placement.set_price(slot, price, self.now);
        assert_eq!(self.placement.view(slot, self.now).unwrap().price, price);
    }

    fn set_available(&mut self, slot: WorkerSlot, available: bool) {
        self.placement.set_available(slot, available, self.now);
        self.workers.get_mut(&slot).unwrap().2 = available;
    }

    /// Suspends an executor, or resumes it: tasks that are bound and only it could run return, and no others.
    fn set_suspended(&mut self, slot: WorkerSlot) {
        let executors = self.workers[&slot].0.executors.len() as u64;
        let executor = self.rng.below(executors) as usize;
        let alone = self.suspended.insert((slot, executor));
        if !alone {
            self.suspended.remove(&(slot, executor));
        }
        self.placement.set_suspended(slot, executor, alone, self.now);
        let mut back = self.placement.bound_to(slot);
        back.retain(|task| self.placement.release_unschedulable(*task, slot, self.now));
        back.sort();
        let stranded = |known: &TrackedTask| {
            known.at == Location::Bound(slot)
                && !self.has_executor(slot, &known.request.spec.requirement)
        };
        let expected: Vec<TaskRef> =
            self.tasks.iter().filter(|(_, known)| stranded(known)).map(|(task, _)| *task).collect();
        assert_eq!(back, expected);
        for task in back {
            self.tasks.get_mut(&task).unwrap().at = Location::Waiting;
        }
    }

    /// Whether an executor would do that is not suspended.
    fn has_executor(&self, slot: WorkerSlot, requirement: &Requirement) -> bool {
        let mut fit = requirement.executors_of(&self.workers[&slot].0);
        fit.any(|at| !self.suspended.contains(&(slot, at)))
    }

    fn record_contact(&mut self, slot: WorkerSlot) {
        let rtt = Span::from_millis(self.rng.below(100));
        self.placement.record_contact(slot, rtt, self.now);
        // A change of less than a tenth is ignored.
        self.workers.get_mut(&slot).unwrap().3 = self.placement.view(slot, self.now).unwrap().rtt;
    }

    fn any_slot(&mut self) -> Option<WorkerSlot> {
        let at = self.rng.below(self.workers.len() as u64) as usize;
        self.workers.keys().nth(at).copied()
    }

    fn any_task(&mut self, wanted: impl Fn(&Location) -> bool) -> Option<TaskRef> {
        let found: Vec<TaskRef> =
            self.tasks.iter().filter(|(_, known)| wanted(&known.at)).map(|(t, _)| *t).collect();
        found.get(self.rng.below(found.len() as u64) as usize).copied()
    }

    fn arrive(&mut self) {
        let Some(task) = self.free.pop() else { return };
        let spec = random_spec(&mut self.rng);
        let failed_on = match self.any_slot() {
            Some(slot) if self.rng.chance(0.2) => Box::from([slot]),
            _ => Box::default(),
        };
        let request = PlacementRequest {
            query: self.predictor.query(&spec),
            submitted: self.now,
            bind_at_once: self.rng.chance(0.1),
            interactive: self.rng.chance(0.2),
            spec: Arc::new(spec),
            failed_on,
        };
        self.placement.arrive(task, request.clone(), &self.predictor);
        self.tasks.insert(task, TrackedTask { request, at: Location::Waiting });
    }

    fn finish(&mut self, task: TaskRef) {
        let known = self.tasks.remove(&task).unwrap();
        let run = Span::from_secs_f64(0.1 + 3.0 * self.rng.unit());
        let ending = match self.rng.below(4) {
            0 => AttemptEnd::Failed,
            1 => AttemptEnd::Withdrawn,
            _ => AttemptEnd::Completed(run),
        };
        let request = self.placement.finish(task, ending, self.now).unwrap();
        assert!(Arc::ptr_eq(&request.spec, &known.request.spec));
        assert!(self.placement.finish(task, ending, self.now).is_none(), "finished twice");
        if let (AttemptEnd::Completed(_), Location::Dispatched(slot)) = (ending, known.at) {
            let key = self.workers[&slot].1;
            self.predictor.observe(&request.query, key, run);
            self.placement.set_factor(slot, self.predictor.factor(key), self.now);
        }
        self.free.push(task);
    }

    fn remove(&mut self, slot: WorkerSlot) {
        // Usually dispatched tasks are taken back first; a careless caller must not lose any either.
        let in_flight: Vec<TaskRef> = self.tasks_at(|at| at == Location::Dispatched(slot));
        if self.rng.chance(0.7) {
            for task in in_flight {
                self.placement.finish(task, AttemptEnd::Withdrawn, self.now);
                self.tasks.remove(&task);
                self.free.push(task);
            }
        }
        let mut back = self.placement.remove_worker(slot, self.now);
        back.sort();
        let expected =
            self.tasks_at(|at| at == Location::Bound(slot) || at == Location::Dispatched(slot));
        assert_eq!(back, expected);
        for task in back {
            self.tasks.get_mut(&task).unwrap().at = Location::Waiting;
        }
        let (_, key, ..) = self.workers.remove(&slot).unwrap();
        self.suspended.retain(|(other, _)| *other != slot);
        self.predictor.forget_worker(key);
        // Slots are reused: failures on the old worker must not count against the next one.
        for known in self.tasks.values_mut() {
            let slots = std::mem::take(&mut known.request.failed_on);
            known.request.failed_on = slots.into_iter().filter(|other| *other != slot).collect();
        }
    }

    fn tasks_at(&self, wanted: impl Fn(Location) -> bool) -> Vec<TaskRef> {
        self.tasks.iter().filter(|(_, known)| wanted(known.at)).map(|(task, _)| *task).collect()
    }

    fn plan(&mut self) {
        let mut actions = Vec::new();
        self.placement.plan(&self.predictor, self.now, &mut actions);
        let mut decided = BTreeSet::new();
        for action in actions {
            let (task, slot, from, to) = match action {
                Action::Bind { task, slot } => (task, slot, None, Location::Bound(slot)),
                Action::Dispatch { task, slot } => (task, slot, None, Location::Dispatched(slot)),
                Action::Move { task, from, to } => (task, to, Some(from), Location::Bound(to)),
            };
            let known = &self.tasks[&task];
            assert!(self.has_executor(slot, &known.request.spec.requirement), "{action:?}");
            let served = self.placement.is_schedulable(&known.request.spec.requirement);
            assert!(
                served || known.at != Location::Waiting,
                "{action:?}, but no worker would take it"
            );
            let known = self.tasks.get_mut(&task).expect("a task that exists");
            match (known.at, action) {
                (Location::Waiting, Action::Bind { .. } | Action::Dispatch { .. }) => {}
                (Location::Bound(was), Action::Dispatch { .. }) => assert_eq!(was, slot),
                (Location::Bound(was), Action::Move { .. }) => assert_eq!(Some(was), from),
                (at, action) => panic!("{action:?} of a task that is {at:?}"),
            }
            let (worker, _, available, rtt) = &self.workers[&slot];
            let requirement = &known.request.spec.requirement;
            assert!(available, "{action:?} to a worker that is not available");
            assert_eq!(requirement.satisfied_by(worker), Ok(()), "{action:?}");
            if known.at == Location::Waiting || from.is_some() {
                assert!(self.preferences.max_rtt.is_none_or(|most| *rtt <= most), "{action:?}");
                decided.insert(task);
            }
            known.at = to;
            self.log.push(action);
        }
        // A task may be bound and stolen in one plan: the last location counts.
        for task in decided {
            let (Location::Bound(slot) | Location::Dispatched(slot)) = self.tasks[&task].at else {
                continue;
            };
            let worker = &self.workers[&slot].0;
            let explanation = self.placement.explanation(task).expect("an explanation");
            let chosen = explanation.chosen.expect("a chosen worker");
            assert_eq!(chosen.worker, worker.id, "{task:?}: {explanation:?}");
            assert!(explanation.runners_up.iter().all(|other| other.worker != worker.id));
        }
    }

    fn step(&mut self) {
        self.now = self.now + Span::from_millis(self.rng.below(400));
        match self.rng.below(100) {
            0..30 => self.arrive(),
            30..55 => self.plan(),
            55..65 => {
                if let Some(task) = self.any_task(|at| matches!(at, Location::Dispatched(_))) {
                    self.placement.mark_started(task, self.now);
                }
            }
            65..83 => {
                let in_flight = self.any_task(|at| matches!(at, Location::Dispatched(_)));
                let any = self.any_task(|_| true);
                let task = if self.rng.chance(0.8) { in_flight } else { any };
                task.into_iter().for_each(|task| self.finish(task));
            }
            83..88 => {
                if let Some(slot) = self.any_slot() {
                    let available = self.rng.chance(0.6);
                    self.set_available(slot, available);
                }
            }
            88..90 => self.join(),
            90..92 => {
                if let Some(slot) = self.any_slot() {
                    self.remove(slot);
                }
            }
            92..94 => {
                if let Some(slot) = self.any_slot() {
                    let mut back = self.placement.release_bound(slot, usize::MAX, self.now);
                    back.sort();
                    assert_eq!(back, self.tasks_at(|at| at == Location::Bound(slot)));
                    for task in back {
                        self.tasks.get_mut(&task).unwrap().at = Location::Waiting;
                    }
                }
            }
            94..96 => {
                let all = strategies();
                let strategy = all[self.rng.below(all.len() as u64) as usize];
                let back = *self.placement.strategy();
                for strategy in [strategy, back] {
                    self.switch(strategy);
                    if self.rng.chance(0.5) {
                        self.plan();
                    }
                }
            }
            96 => match self.any_slot() {
                Some(slot) if self.rng.chance(0.5) => self.set_price(slot),
                _ => self.placement.refresh(self.now),
            },
            97 => {
                if let Some(slot) = self.any_slot() {
                    self.set_suspended(slot);
                }
            }
            _ => {
                if let Some(slot) = self.any_slot() {
                    self.record_contact(slot);
                }
            }
        }
    }

    /// Switches in parts, with plans in between. Bound tasks wait again as soon as `reorder` reaches them.
    fn switch(&mut self, strategy: Strategy) {
        self.placement.begin_switch(strategy, self.now);
        let mut from = Some(0);
        while let Some(at) = from {
            let end = at + 1 + self.rng.below(8) as usize;
            let bound = |(task, known): (&TaskRef, &TrackedTask)| {
                let is_next = (at..end).contains(&(task.0 as usize));
                (is_next && matches!(known.at, Location::Bound(_))).then_some(*task)
            };
            let expected: Vec<TaskRef> = self.tasks.iter().filter_map(bound).collect();
            let (mut released, next) = self.placement.reorder(at, end - at, self.now);
            released.sort();
            assert_eq!(released, expected);
            for task in released {
                self.tasks.get_mut(&task).unwrap().at = Location::Waiting;
            }
            if self.rng.chance(0.2) {
                self.plan();
            }
            from = next;
        }
    }

    /// Everything that must hold at any time.
    fn check(&mut self) {
        self.placement.check(self.now).unwrap();
        assert_eq!(self.placement.unexplained(&self.predictor, self.now), None);
        let waiting = self.tasks_at(|at| at == Location::Waiting);
        assert_eq!(self.placement.waiting(), waiting.len(), "what waits");
        for (task, known) in &self.tasks {
            let expected = match known.at {
                Location::Waiting => None,
                Location::Bound(slot) | Location::Dispatched(slot) => Some(slot),
            };
            assert_eq!(self.placement.worker_of(*task), expected, "{task:?} {:?}", known.at);
        }
        let in_flight = self.tasks_at(|at| matches!(at, Location::Dispatched(_)));
        assert!(self.preferences.max_in_flight.is_none_or(|most| in_flight.len() <= most as usize));
        for (slot, (worker, ..)) in &self.workers {
            self.check_worker(*slot, worker);
        }
    }

    fn check_worker(&self, slot: WorkerSlot, worker: &Worker) {
        let view = self.placement.view(slot, self.now).unwrap();
        let in_flight = self.tasks_at(|at| at == Location::Dispatched(slot));
        let mut dispatched = self.placement.dispatched_to(slot);
        dispatched.sort();
        assert_eq!(dispatched, in_flight);
        assert_eq!(view.in_flight as usize, in_flight.len());
        assert_eq!(view.queued as usize, self.tasks_at(|at| at == Location::Bound(slot)).len());
        let at_once: u32 =
            worker.executors.iter().map(|executor| executor.concurrency.max(1)).sum();
        assert!(view.running <= at_once && view.running <= view.in_flight);
        // Running tasks are among the dispatched; if even all of those fit, nothing can be booked twice.
        let asked = |amount: fn(&Requirement) -> u64| -> u64 {
            in_flight.iter().map(|task| amount(&self.tasks[task].request.spec.requirement)).sum()
        };
        let used = view.utilisation;
        for (used, asked, total) in [
            (used.cpu, asked(|r| r.cpu_milli), worker.capacity.cpu_milli),
            (used.memory, asked(|r| r.memory_bytes), worker.capacity.memory_bytes),
            (used.storage, asked(|r| r.storage_bytes), worker.capacity.storage_bytes),
        ] {
            assert!((0.0..=1.0).contains(&used));
            assert!(used * total as f64 <= asked as f64 * (1.0 + 1e-9));
        }
        // A worker without dispatched tasks runs none.
        if in_flight.is_empty() {
            assert_eq!(view.running, 0);
        }
    }

    /// Everything ends; nothing may be left behind.
    fn finish_all(&mut self) {
        while let Some(task) = self.tasks.keys().next().copied() {
            self.finish(task);
            self.check();
        }
        assert_eq!(self.placement.waiting(), 0);
        for slot in self.workers.keys() {
            assert_eq!(self.placement.backlog_s(*slot, self.now), Some((0.0, 0.0)));
        }
    }
}

fn run_scenario(strategy: Strategy, seed: u64, check: bool) -> Vec<Action> {
    let mut scenario = Scenario::new(strategy, seed);
    for _ in 0..STEPS {
        scenario.step();
        if check {
            scenario.check();
        }
    }
    if check {
        scenario.finish_all();
    }
    scenario.log
}

#[test]
fn random_operations_lose_nothing_overbook_nothing_and_are_explained() {
    for strategy in strategies() {
        let mut actions = 0;
        for seed in 0..SEQUENCES {
            let outcome = std::panic::catch_unwind(|| run_scenario(strategy, seed, true));
            let log = outcome.unwrap_or_else(|_| panic!("{strategy:?} fails with seed {seed}"));
            assert_eq!(
                log[..],
                run_scenario(strategy, seed, false)[..log.len()],
                "{strategy:?} {seed}"
            );
            actions += log.len();
        }
        assert!(actions > 2_000, "{strategy:?} took only {actions} actions: the test is too weak");
    }
}
