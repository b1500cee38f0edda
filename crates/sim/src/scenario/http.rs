//! HTTP workers of the world of a seed, the faults of their back ends, and tasks for them. Drawn separately:
//! the world of a seed is otherwise the same with and without them.

use std::sync::Arc;

use hypha_engine::NewTask;
use hypha_model::{
    Capacity, Executor, ExecutorClass, Money, Requirement, Rng, Span, TaskSpec, Time, Worker,
};

use super::fault_schedule::any_time;
use super::{FAULT_PERIOD, FaultKind, Scope, name};
use crate::network::Clock;
use crate::world::{BackEndCondition, BackEndKind, Fault, FaultSchedule, START, WorkerSetup};

/// The share of worlds with HTTP workers: the others cover worlds without them.
const HTTP_WORLD_SHARE: f64 = 0.7;
/// The share of tasks that require no amounts, so that HTTP workers can run them.
const UNSIZED_TASK_SHARE: f64 = 0.5;
/// The share of these that only one kind of HTTP worker may run.
const HTTP_ONLY_SHARE: f64 = 0.3;
/// Separates these draws from those of the world.
const SALT: u64 = 0x6874_7470;

pub(super) fn draw(
    seed: u64,
    scope: &Scope,
    schedulers: usize,
    workers: &mut Vec<WorkerSetup>,
    tasks: &mut [(Time, NewTask, f64, usize)],
    fault_schedule: &mut FaultSchedule,
) {
    let mut rng = Rng::new(seed ^ SALT);
    if !scope.includes(FaultKind::Http) || !rng.chance(HTTP_WORLD_SHARE) {
        return;
    }
    let first = workers.len();
    for scheduler in 0..schedulers {
        for kind in [BackEndKind::Server, BackEndKind::Instance] {
            for _ in 0..rng.below(3) {
                workers.push(worker(&mut rng, workers.len(), scheduler, kind, scope));
            }
        }
    }
    let http = first..workers.len();
    for (_, task, _, scheduler) in tasks {
        require_http_worker(&mut rng, task, *scheduler, &workers[first..]);
    }
    if scope.includes(FaultKind::BackEnd) {
        http.clone().for_each(|worker| back_end(&mut rng, worker, fault_schedule));
        fault_schedule.probabilities.callbacks = if rng.chance(0.7) { rng.unit() } else { 0.0 };
    }
    if scope.includes(FaultKind::Removal) && !http.is_empty() && rng.chance(0.2) {
        let worker = http.start + rng.below(http.len() as u64) as usize;
        let (at, scheduler) = (any_time(&mut rng), workers[worker].known_to[0]);
        fault_schedule.faults.push((at, Fault::RemoveWorker { scheduler, worker }));
        fault_schedule.faults.push((at + Span::from_secs(4), Fault::FindWorker { worker }));
    }
    // A worker that was forgotten meanwhile is registered again.
    let later = START + FAULT_PERIOD + Span::from_secs(1);
    fault_schedule.faults.extend(http.map(|worker| (later, Fault::FindWorker { worker })));
}

fn worker(
    rng: &mut Rng,
    at: usize,
    scheduler: usize,
    kind: BackEndKind,
    scope: &Scope,
) -> WorkerSetup {
    let executor = name(executor_of(kind)).map(|name_of| Executor {
        class: ExecutorClass::Inference,
        name: name_of,
        models: ["a", "b"].into_iter().filter_map(name).collect(),
        concurrency: 1 + rng.below(3) as u32,
    });
    WorkerSetup {
        worker: Arc::new(Worker {
            id: WorkerSetup::id(at),
            capacity: Capacity::default(),
            executors: executor.into_iter().collect(),
            hardware: None,
            region: None,
            price: Money::ZERO,
        }),
        speed: [0.5, 1.0, 2.0, 4.0][rng.below(4) as usize],
        clock: Clock::new(START, Span::ZERO, 1.0),
        known_to: vec![scheduler],
        mutant: scope.mutant,
        back_end: Some(kind),
        terms: hypha_engine::Terms::default(),
        owner: hypha_engine::OwnerState::default(),
        batch_slowdown: 0.0,
    }
}

const fn executor_of(kind: BackEndKind) -> &'static str {
    match kind {
        BackEndKind::Server => "http",
        BackEndKind::Instance => "instance",
    }
}

/// Lets HTTP workers run the task, and perhaps no other worker.
fn require_http_worker(rng: &mut Rng, task: &mut NewTask, scheduler: usize, http: &[WorkerSetup]) {
    let (is_for_any, is_for_http, which) =
        (rng.chance(UNSIZED_TASK_SHARE), rng.chance(HTTP_ONLY_SHARE), rng.next_u64());
    if !is_for_any {
        return;
    }
    let known = |worker: &&WorkerSetup| worker.known_to[0] == scheduler;
    let known: Vec<&WorkerSetup> = http.iter().filter(known).collect();
    let chosen = known.get(which as usize % known.len().max(1)).filter(|_| is_for_http);
    let executor = chosen.and_then(|worker| Some(worker.worker.executors.first()?.name.clone()));
    let mut spec = TaskSpec::clone(&task.spec);
    let Requirement { class, model, priority, deadline, .. } = spec.requirement;
    spec.requirement =
        Requirement { class, model, priority, deadline, executor, ..Requirement::default() };
    task.spec = Arc::new(spec);
}

/// The faults of one back end.
fn back_end(rng: &mut Rng, worker: usize, fault_schedule: &mut FaultSchedule) {
    let end = START + FAULT_PERIOD;
    for _ in 0..rng.below(4) {
        let from = any_time(rng);
        let to = (from + Span::from_millis(10 + rng.below(6_000))).min(end);
        let conditions = [
            BackEndCondition::Unreachable,
            BackEndCondition::Hung,
            BackEndCondition::Busy,
            BackEndCondition::Failing,
        ];
        let condition = conditions[rng.below(4) as usize];
        fault_schedule.back_end_conditions.push((from, to, worker, condition));
        if condition == BackEndCondition::Unreachable && rng.chance(0.5) {
            fault_schedule.faults.push((from, Fault::KillBackEnd { worker }));
        }
    }
    for _ in 0..rng.below(3) {
        fault_schedule.faults.push((any_time(rng), Fault::KillBackEnd { worker }));
    }
    for _ in 0..rng.below(3) {
        fault_schedule.faults.push((any_time(rng), Fault::WipeBackEnd { worker }));
    }
    if rng.chance(0.3) {
        let factor = 1.0 + 20.0 * rng.unit();
        fault_schedule.faults.push((any_time(rng), Fault::SlowWorker { worker, factor }));
        fault_schedule.faults.push((end, Fault::SlowWorker { worker, factor: 1.0 }));
    }
}
