//! What goes wrong in the world of a seed, and when.

use hypha_model::{Rng, Span, Time};
use hypha_placement::Strategy;

use super::{Scope, TROUBLE, Trouble};
use crate::world::{CrashPoint, Fault, Node, Odds, START, Timetable};

/// The longest commit: much shorter than what is waited for an answer, so that no answer is late because of it.
const MOST_COMMIT: Span = Span::from_millis(50);
/// Clocks are set by up to this: more than every backoff and lease, and less than keys are kept.
const MOST_CLOCK_STEP: Span = Span::from_secs(1_200);
/// Before the end of the trouble, every process runs and every disk works, to do what was put off until then.
const SETTLING: Span = Span::from_secs(1);

pub(super) fn draw(rng: &mut Rng, scope: &Scope, workers: usize, schedulers: usize) -> Timetable {
    let drawn = Draw { scope, workers, schedulers, end: START + TROUBLE };
    let mut timetable = Timetable::default();
    drawn.crashes(rng, &mut timetable);
    drawn.interruptions(rng, &mut timetable);
    drawn.operations(rng, &mut timetable);
    drawn.recoveries(&mut timetable);
    timetable.odds = Odds {
        executor_error: if scope.has(Trouble::ExecutorError) { 0.05 * rng.unit() } else { 0.0 },
        corruption: if scope.has(Trouble::Corruption) { 0.02 * rng.unit() } else { 0.0 },
        ..Odds::default()
    };
    if scope.has(Trouble::GroupCommit) && rng.chance(0.6) {
        timetable.commits_take = Span::from_micros(1 + rng.below(MOST_COMMIT.as_micros()));
    }
    drawn.replaced_links(rng, &mut timetable);
    timetable
}

struct Draw<'a> {
    scope: &'a Scope,
    workers: usize,
    schedulers: usize,
    end: Time,
}

impl Draw<'_> {
    fn times(&self, rng: &mut Rng, trouble: Trouble, most: u64) -> u64 {
        if self.scope.has(trouble) { rng.below(most + 1) } else { 0 }
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
        (from, to.min(self.end - SETTLING))
    }

    /// Processes die, or are told to end, and come back.
    fn crashes(&self, rng: &mut Rng, timetable: &mut Timetable) {
        let faults = &mut timetable.faults;
        for _ in 0..self.times(rng, Trouble::WorkerCrash, 4) {
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
        for _ in 0..self.times(rng, Trouble::WorkerStop, 3) {
            let (at, worker) = (any_time(rng), self.worker(rng));
            faults.push((at, Fault::StopWorker { worker }));
            // Once it is gone.
            let back = at + Span::from_millis(250 + rng.below(4_000));
            faults.push((back, Fault::Start { node: Node::Worker(worker) }));
        }
        for _ in 0..self.times(rng, Trouble::SchedulerCrash, 3) {
            let (at, node) = (any_time(rng), Node::Scheduler(self.scheduler(rng)));
            faults.push((at, Fault::Crash { node, point: any_point(rng) }));
            let back = at + Span::from_millis(10 + rng.below(8_000));
            faults.push((back, Fault::Start { node }));
        }
        for _ in 0..self.times(rng, Trouble::ClockStep, 3) {
            let (at, node) = (any_time(rng), self.node(rng));
            let by = rng.below(MOST_CLOCK_STEP.as_micros()) as i64;
            let by_micros = if rng.chance(0.5) { by } else { -by };
            faults.push((at, Fault::SetClock { node, by_micros }));
        }
    }

    /// Processes, disks and connections do not work for a while.
    fn interruptions(&self, rng: &mut Rng, timetable: &mut Timetable) {
        for _ in 0..self.times(rng, Trouble::WorkerFreeze, 3) {
            let (from, to) = self.period(rng, 8_000);
            timetable.freezes.push((from, to, Node::Worker(self.worker(rng))));
        }
        for _ in 0..self.times(rng, Trouble::SchedulerFreeze, 2) {
            let (from, to) = self.period(rng, 8_000);
            timetable.freezes.push((from, to, Node::Scheduler(self.scheduler(rng))));
        }
        for _ in 0..self.times(rng, Trouble::StoreFailure, 2) {
            let (from, to) = self.period(rng, 8_000);
            timetable.full_disks.push((from, to, self.node(rng)));
        }
        for _ in 0..self.times(rng, Trouble::Partition, 3) {
            let (worker, scheduler) = (self.worker(rng), self.scheduler(rng));
            let (from, to) = self.period(rng, 10_000);
            timetable.partitions.push((from, to, scheduler, worker));
        }
        for _ in 0..self.times(rng, Trouble::Slowness, 2) {
            let (at, worker) = (any_time(rng), self.worker(rng));
            let factor = 1.0 + 20.0 * rng.unit();
            timetable.faults.push((at, Fault::SlowWorker { worker, factor }));
            timetable.faults.push((self.end, Fault::SlowWorker { worker, factor: 1.0 }));
        }
    }

    /// Connections are replaced by others.
    fn replaced_links(&self, rng: &mut Rng, timetable: &mut Timetable) {
        for _ in 0..self.times(rng, Trouble::Relink, 4) {
            let (scheduler, worker) = (self.scheduler(rng), self.worker(rng));
            timetable.faults.push((any_time(rng), Fault::ReplaceLink { scheduler, worker }));
        }
    }

    /// What clients and operators do.
    fn operations(&self, rng: &mut Rng, timetable: &mut Timetable) {
        let faults = &mut timetable.faults;
        for _ in 0..self.times(rng, Trouble::Cancel, 1 + self.scope.tasks as u64 / 20) {
            let index = rng.below(self.scope.tasks.max(1) as u64) as usize;
            faults.push((any_time(rng), Fault::CancelTask { index }));
        }
        for _ in 0..self.times(rng, Trouble::Switch, 3) {
            let all = Strategy::all();
            let strategy = all[rng.below(all.len() as u64) as usize];
            let scheduler = self.scheduler(rng);
            faults.push((any_time(rng), Fault::SwitchStrategy { scheduler, strategy }));
        }
        for _ in 0..self.times(rng, Trouble::Removal, 1) {
            let (at, worker) = (any_time(rng), self.worker(rng));
            let scheduler = self.scheduler(rng);
            faults.push((at, Fault::RemoveWorker { scheduler, worker }));
            // It comes back in its next life.
            faults.push((at + Span::from_secs(3), Fault::KillWorker { worker, noticed: true }));
            let back = at + Span::from_secs(4);
            faults.push((back, Fault::Start { node: Node::Worker(worker) }));
        }
    }

    /// After the trouble everybody is up.
    fn recoveries(&self, timetable: &mut Timetable) {
        let nodes = (0..self.workers).map(Node::Worker);
        let nodes = nodes.chain((0..self.schedulers).map(Node::Scheduler));
        timetable.faults.extend(nodes.map(|node| (self.end, Fault::Start { node })));
        let later = self.end + Span::from_secs(1);
        let found = (0..self.workers).map(|worker| (later, Fault::FindWorker { worker }));
        timetable.faults.extend(found);
    }
}

pub(super) fn any_time(rng: &mut Rng) -> Time {
    START + Span::from_micros(rng.below(TROUBLE.as_micros()))
}

fn any_point(rng: &mut Rng) -> CrashPoint {
    let points = [CrashPoint::BeforePersist, CrashPoint::BeforeSend, CrashPoint::AmidSend];
    points[rng.below(3) as usize]
}
