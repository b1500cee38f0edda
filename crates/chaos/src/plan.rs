//! Which faults strike which nodes in a round, and when. Drawn from the seed.

use std::fmt;
use std::time::Duration;

use crate::back_end::Protocol;
use crate::random::Random;

/// A fault of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NodeFault {
    SchedulerKilled,
    WorkersKilled,
    SchedulerStopped,
    WorkerFrozen,
    /// The second time soon after its start, perhaps before it has recovered.
    SchedulerKilledTwice,
    WorkersStopped,
    SchedulerFrozen,
    BothKilled,
    /// The scheduler's.
    DiskFull,
}

impl NodeFault {
    pub(crate) const ALL: [NodeFault; 9] = [
        NodeFault::SchedulerKilled,
        NodeFault::WorkersKilled,
        NodeFault::SchedulerStopped,
        NodeFault::WorkerFrozen,
        NodeFault::SchedulerKilledTwice,
        NodeFault::WorkersStopped,
        NodeFault::SchedulerFrozen,
        NodeFault::BothKilled,
        NodeFault::DiskFull,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            NodeFault::SchedulerKilled => "scheduler killed",
            NodeFault::WorkersKilled => "worker killed",
            NodeFault::SchedulerStopped => "scheduler stopped",
            NodeFault::WorkerFrozen => "worker frozen",
            NodeFault::SchedulerKilledTwice => "scheduler killed twice",
            NodeFault::WorkersStopped => "worker stopped",
            NodeFault::SchedulerFrozen => "scheduler frozen",
            NodeFault::BothKilled => "scheduler and worker killed",
            NodeFault::DiskFull => "disk full",
        }
    }
}

/// A fault of a back end meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BackEndFault {
    ServerKilled,
    InstanceFailing,
    ServerFrozen,
    InstanceKilled,
    ServerFailing,
    InstanceFrozen,
}

impl BackEndFault {
    pub(crate) const ALL: [BackEndFault; 6] = [
        BackEndFault::ServerKilled,
        BackEndFault::InstanceFailing,
        BackEndFault::ServerFrozen,
        BackEndFault::InstanceKilled,
        BackEndFault::ServerFailing,
        BackEndFault::InstanceFrozen,
    ];

    pub(crate) fn protocol(self) -> Protocol {
        match self {
            BackEndFault::ServerKilled
            | BackEndFault::ServerFrozen
            | BackEndFault::ServerFailing => Protocol::Json,
            BackEndFault::InstanceFailing
            | BackEndFault::InstanceKilled
            | BackEndFault::InstanceFrozen => Protocol::Instance,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            BackEndFault::ServerKilled => "server killed",
            BackEndFault::InstanceFailing => "instance failing",
            BackEndFault::ServerFrozen => "server frozen",
            BackEndFault::InstanceKilled => "instance killed",
            BackEndFault::ServerFailing => "server failing",
            BackEndFault::InstanceFrozen => "instance frozen",
        }
    }
}

/// A gap at which a node kills itself. The names are those of the node's `CrashPoint`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CrashPoint {
    AcceptedBeforeCommit,
    ResultBeforeCommit,
    CommittedBeforeSend,
    SentBeforeReply,
    RanBeforeReport,
}

impl CrashPoint {
    pub(crate) const ALL: [CrashPoint; 5] = [
        CrashPoint::AcceptedBeforeCommit,
        CrashPoint::ResultBeforeCommit,
        CrashPoint::CommittedBeforeSend,
        CrashPoint::SentBeforeReply,
        CrashPoint::RanBeforeReport,
    ];

    pub(crate) fn is_in_worker(self) -> bool {
        self == CrashPoint::RanBeforeReport
    }
}

impl fmt::Display for CrashPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// One round.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) point: CrashPoint,
    /// How many times the point is passed before the crash.
    pub(crate) count: u64,
    /// The worker that the point is planted in, if it is a worker's point.
    pub(crate) planted: usize,
    /// One after the other.
    pub(crate) nodes: [NodeStep; 2],
    pub(crate) back_end: BackEndStep,
    /// From the first submit to the start of the planted node.
    pub(crate) before: Duration,
    /// From the crash at the point to the node's next start.
    pub(crate) downtime: Duration,
    /// From the last start to the end of the load.
    pub(crate) after: Duration,
}

/// A fault of nodes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NodeStep {
    pub(crate) fault: NodeFault,
    /// The workers that it hits, if it hits workers.
    pub(crate) workers: Vec<usize>,
    /// From the previous step to this.
    pub(crate) before: Duration,
    /// How long they are down.
    pub(crate) downtime: Duration,
    /// From there to the second kill, for nodes that are killed twice.
    pub(crate) until_second_kill: Duration,
    /// How long they are frozen, or the disk is full.
    pub(crate) stall: Duration,
    /// Whether the scheduler is killed while its disk is full.
    pub(crate) killed_while_full: bool,
}

/// A fault of a back end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BackEndStep {
    pub(crate) fault: BackEndFault,
    /// Which of its kind.
    pub(crate) index: usize,
    /// From the first fault of nodes to this.
    pub(crate) before: Duration,
    /// How long it lasts.
    pub(crate) lasts: Duration,
    /// Whether a task instance remembers its tasks.
    pub(crate) remembers: bool,
    /// The status that it fails with.
    pub(crate) status: u16,
}

/// In every so many rounds, the scheduler is down or frozen for longer than a lease lasts, if it is at all.
const LONG_EVERY: u32 = 25;
/// A lease lasts two minutes by default.
const LONG_OUTAGE: Duration = Duration::from_secs(125);

impl Plan {
    /// Kinds rotate, so that a few rounds have them all; the rotations have lengths without a common divisor, so that
    /// more rounds have all pairs.
    pub(crate) fn draw(seed: u64, round: u32, workers: usize) -> Plan {
        let random = &mut Random::new(seed, u64::from(round) << 8);
        let turn = round as usize;
        let long = round.is_multiple_of(LONG_EVERY);
        Plan {
            point: CrashPoint::ALL[turn % CrashPoint::ALL.len()],
            count: random.in_range(2..=60),
            planted: random.index(workers),
            nodes: [2 * turn, 2 * turn + 1].map(|turn| NodeStep::draw(random, turn, workers, long)),
            back_end: BackEndStep::draw(random, turn),
            before: random.millis(100..=600),
            downtime: random.millis(0..=400),
            after: random.millis(200..=800),
        }
    }
}

impl NodeStep {
    fn draw(random: &mut Random, turn: usize, workers: usize, long: bool) -> NodeStep {
        let fault = NodeFault::ALL[turn % NodeFault::ALL.len()];
        let one = random.index(workers);
        // Now and then no worker is left to take over.
        let all = random.once_in(4) && fault != NodeFault::WorkerFrozen;
        let of_scheduler = !matches!(
            fault,
            NodeFault::WorkersKilled | NodeFault::WorkersStopped | NodeFault::WorkerFrozen
        );
        let lasting = |usual: Duration| if long && of_scheduler { LONG_OUTAGE } else { usual };
        NodeStep {
            fault,
            workers: if all { (0..workers).collect() } else { vec![one] },
            before: random.millis(50..=1_500),
            downtime: lasting(random.millis(0..=400)),
            until_second_kill: random.millis(0..=800),
            // A silent worker is unresponsive after 5 s, and lost after 15 s.
            stall: match fault {
                NodeFault::DiskFull => random.millis(500..=4_000),
                _ => lasting(random.millis(500..=18_000)),
            },
            killed_while_full: random.once_in(2),
        }
    }
}

impl BackEndStep {
    fn draw(random: &mut Random, turn: usize) -> BackEndStep {
        BackEndStep {
            fault: BackEndFault::ALL[turn % BackEndFault::ALL.len()],
            index: random.index(2),
            before: random.millis(0..=2_000),
            // Longer or shorter than the timeout of a health check.
            lasts: random.millis(200..=8_000),
            remembers: random.once_in(2),
            status: if random.once_in(2) { 429 } else { 500 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds<T: Ord>(rounds: u32, of: impl Fn(Plan) -> Vec<T>) -> usize {
        let plans = (1..=rounds).map(|round| Plan::draw(1, round, 2));
        let mut kinds: Vec<T> = plans.flat_map(of).collect();
        kinds.sort();
        kinds.dedup();
        kinds.len()
    }

    #[test]
    fn six_rounds_have_every_fault_and_45_every_pair_of_point_and_fault() {
        assert_eq!(kinds(5, |plan| vec![plan.point]), CrashPoint::ALL.len());
        let faults = |plan: &Plan| plan.nodes.each_ref().map(|step| step.fault);
        assert_eq!(kinds(5, |plan| faults(&plan).to_vec()), NodeFault::ALL.len());
        assert_eq!(kinds(6, |plan| vec![plan.back_end.fault]), BackEndFault::ALL.len());
        let pairs = |plan: Plan| faults(&plan).map(|fault| (plan.point, fault)).to_vec();
        assert_eq!(kinds(45, pairs), CrashPoint::ALL.len() * NodeFault::ALL.len());
    }

    #[test]
    fn a_seed_repeats_its_plan() {
        assert_eq!(Plan::draw(5, 3, 2), Plan::draw(5, 3, 2));
        assert_ne!(Plan::draw(5, 3, 2), Plan::draw(6, 3, 2));
    }
}
