//! Which faults strike the world of a seed, and when.

use hypha_model::{Rng, Span, Time};
use hypha_placement::Strategy;

use super::{FAULT_PERIOD, FaultKind, Scope};
use crate::world::{CrashPoint, Fault, FaultProbabilities, FaultSchedule, Node, START};

/// The longest commit: much shorter than any response timeout, so that no response is late because of it.
const MAX_COMMIT_TIME: Span = Span::from_millis(50);
/// Clocks are set by up to this: more than every backoff and lease, and less than idempotency keys are kept.
const MAX_CLOCK_STEP: Span = Span::from_secs(1_200);
/// Before the last fault, every process runs and every disk works, to do the work that was deferred until then.
const SETTLE_MARGIN: Span = Span::from_secs(1);

pub(super) fn draw(
    rng: &mut Rng,
    scope: &Scope,
    workers: usize,
    schedulers: usize,
) -> FaultSchedule {
    let drawn = FaultSampler { scope, workers, schedulers, end: START + FAULT_PERIOD };
    let mut fault_schedule = FaultSchedule::default();
    drawn.crashes(rng, &mut fault_schedule);
    drawn.interruptions(rng, &mut fault_schedule);
    drawn.operations(rng, &mut fault_schedule);
    drawn.recoveries(&mut fault_schedule);
    fault_schedule.probabilities = FaultProbabilities {
        executor_error: if scope.includes(FaultKind::ExecutorError) {
            0.05 * rng.unit()
        } else {
            0.0
        },
        corruption: if scope.includes(FaultKind::Corruption) { 0.02 * rng.unit() } else { 0.0 },
        ..FaultProbabilities::default()
    };
    if scope.includes(FaultKind::GroupCommit) && rng.chance(0.6) {
        fault_schedule.max_commit_time =
            Span::from_micros(1 + rng.below(MAX_COMMIT_TIME.as_micros()));
    }
    drawn.replaced_links(rng, &mut fault_schedule);
    fault_schedule
}

struct FaultSampler<'a> {
    scope: &'a Scope,
    workers: usize,
    schedulers: usize,
    end: Time,
}

impl FaultSampler<'_> {
    fn times(&self, rng: &mut Rng, kind: FaultKind, most: u64) -> u64 {
        if self.scope.includes(kind) { rng.below(most + 1) } else { 0 }
    }

    fn worker(&self, rng: &mut Rng) -> usize {
        rng.below(self.workers as u64) as usize
    }

    fn scheduler(&self, rng: &mut Rng) -> usize {
        rng.below(self.schedulers as u64) as usize
    }

    /// Any node, most often a scheduler.
    fn node(&self, rng: &mut Rng) -> Node {
        match rng.chance(0.7) {
            true => Node::Scheduler(self.scheduler(rng)),
            false => Node::Worker(self.worker(rng)),
        }
    }

    /// A period of up to this long that leaves time to settle.
    fn period(&self, rng: &mut Rng, most_ms: u64) -> (Time, Time) {
        let from = any_time(rng);
        let to = from + Span::from_millis(10 + rng.below(most_ms));
        (from, to.min(self.end - SETTLE_MARGIN))
    }

    /// Processes die, or are asked to stop, and restart.
    fn crashes(&self, rng: &mut Rng, fault_schedule: &mut FaultSchedule) {
        let faults = &mut fault_schedule.faults;
        for _ in 0..self.times(rng, FaultKind::WorkerCrash, 4) {
            let (at, worker) = (any_time(rng), self.worker(rng));
            let node = Node::Worker(worker);
            let back = at + Span::from_millis(10 + rng.below(8_000));
            let fault = match rng.chance(0.7) {
                true => Fault::KillWorker { worker, noticed: rng.chance(0.5) },
                false => Fault::Crash { node, point: any_point(rng) },
            };
            faults.push((at, fault));
            faults.push((back, Fault::Start { node }));
        }
        for _ in 0..self.times(rng, FaultKind::WorkerStop, 3) {
            let (at, worker) = (any_time(rng), self.worker(rng));
            faults.push((at, Fault::StopWorker { worker }));
            // Once it has ended.
            let back = at + Span::from_millis(250 + rng.below(4_000));
            faults.push((back, Fault::Start { node: Node::Worker(worker) }));
        }
        for _ in 0..self.times(rng, FaultKind::SchedulerCrash, 3) {
            let (at, node) = (any_time(rng), Node::Scheduler(self.scheduler(rng)));
            faults.push((at, Fault::Crash { node, point: any_point(rng) }));
            let back = at + Span::from_millis(10 + rng.below(8_000));
            faults.push((back, Fault::Start { node }));
        }
        for _ in 0..self.times(rng, FaultKind::ClockStep, 3) {
            let (at, node) = (any_time(rng), self.node(rng));
            let by = rng.below(MAX_CLOCK_STEP.as_micros()) as i64;
            let by_micros = if rng.chance(0.5) { by } else { -by };
            faults.push((at, Fault::SetClock { node, by_micros }));
        }
    }

    /// Processes, disks and connections do not work for a while.
    fn interruptions(&self, rng: &mut Rng, fault_schedule: &mut FaultSchedule) {
        for _ in 0..self.times(rng, FaultKind::WorkerFreeze, 3) {
            let (from, to) = self.period(rng, 8_000);
            fault_schedule.freezes.push((from, to, Node::Worker(self.worker(rng))));
        }
        for _ in 0..self.times(rng, FaultKind::SchedulerFreeze, 2) {
            let (from, to) = self.period(rng, 8_000);
            fault_schedule.freezes.push((from, to, Node::Scheduler(self.scheduler(rng))));
        }
        for _ in 0..self.times(rng, FaultKind::StoreFailure, 2) {
            let (from, to) = self.period(rng, 8_000);
            fault_schedule.full_disks.push((from, to, self.node(rng)));
        }
        for _ in 0..self.times(rng, FaultKind::Partition, 3) {
            let (worker, scheduler) = (self.worker(rng), self.scheduler(rng));
            let (from, to) = self.period(rng, 10_000);
            fault_schedule.partitions.push((from, to, scheduler, worker));
        }
        for _ in 0..self.times(rng, FaultKind::Slowness, 2) {
            let (at, worker) = (any_time(rng), self.worker(rng));
            let factor = 1.0 + 20.0 * rng.unit();
            fault_schedule.faults.push((at, Fault::SlowWorker { worker, factor }));
            fault_schedule.faults.push((self.end, Fault::SlowWorker { worker, factor: 1.0 }));
        }
    }

    /// Connections are replaced by others.
    fn replaced_links(&self, rng: &mut Rng, fault_schedule: &mut FaultSchedule) {
        for _ in 0..self.times(rng, FaultKind::Relink, 4) {
            let (scheduler, worker) = (self.scheduler(rng), self.worker(rng));
            fault_schedule.faults.push((any_time(rng), Fault::ReplaceLink { scheduler, worker }));
        }
    }

    /// The actions of clients and operators.
    fn operations(&self, rng: &mut Rng, fault_schedule: &mut FaultSchedule) {
        let faults = &mut fault_schedule.faults;
        for _ in 0..self.times(rng, FaultKind::Cancel, 1 + self.scope.tasks as u64 / 20) {
            let index = rng.below(self.scope.tasks.max(1) as u64) as usize;
            faults.push((any_time(rng), Fault::CancelTask { index }));
        }
        for _ in 0..self.times(rng, FaultKind::Switch, 3) {
            let all = Strategy::all();
            let strategy = all[rng.below(all.len() as u64) as usize];
            let scheduler = self.scheduler(rng);
            faults.push((any_time(rng), Fault::SwitchStrategy { scheduler, strategy }));
        }
        for _ in 0..self.times(rng, FaultKind::Removal, 1) {
            let (at, worker) = (any_time(rng), self.worker(rng));
            let scheduler = self.scheduler(rng);
            faults.push((at, Fault::RemoveWorker { scheduler, worker }));
            // It is registered again in its next incarnation.
            faults.push((at + Span::from_secs(3), Fault::KillWorker { worker, noticed: true }));
            let back = at + Span::from_secs(4);
            faults.push((back, Fault::Start { node: Node::Worker(worker) }));
        }
    }

    /// After the last fault every node is up.
    fn recoveries(&self, fault_schedule: &mut FaultSchedule) {
        let nodes = (0..self.workers).map(Node::Worker);
        let nodes = nodes.chain((0..self.schedulers).map(Node::Scheduler));
        fault_schedule.faults.extend(nodes.map(|node| (self.end, Fault::Start { node })));
        let later = self.end + Span::from_secs(1);
        let found = (0..self.workers).map(|worker| (later, Fault::FindWorker { worker }));
        fault_schedule.faults.extend(found);
    }
}

pub(super) fn any_time(rng: &mut Rng) -> Time {
    START + Span::from_micros(rng.below(FAULT_PERIOD.as_micros()))
}

fn any_point(rng: &mut Rng) -> CrashPoint {
    let points = [CrashPoint::BeforePersist, CrashPoint::BeforeSend, CrashPoint::DuringSend];
    points[rng.below(3) as usize]
}
