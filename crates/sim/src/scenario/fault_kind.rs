//! Fault kinds, and their names.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Fault kinds, each of which can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// Messages are lost.
    Loss,
    /// Messages arrive twice.
    Duplication,
    /// Messages are delayed and overtake each other.
    Delay,
    /// A scheduler and a worker cannot reach each other for a while.
    Partition,
    /// Connections are replaced by others, and messages in flight on them are lost.
    Relink,
    /// Workers die and restart without their memory.
    WorkerCrash,
    /// Workers are stopped gracefully and started again.
    WorkerStop,
    /// Workers' processes are suspended for a while, with everything in flight, and resume.
    WorkerFreeze,
    /// Schedulers die at the worst moments and restart from what is durable.
    SchedulerCrash,
    /// Schedulers' processes are suspended for a while, and resume.
    SchedulerFreeze,
    /// Commits take time: steps are collected meanwhile, and a crash loses several.
    GroupCommit,
    /// Disks are full for a while: nothing is acknowledged, and machines restart from what is durable.
    StoreFailure,
    /// System clocks are set forward or back: the next process sees it.
    ClockStep,
    /// Workers become slow.
    Slowness,
    /// Clocks run up to 10 % fast or slow.
    Drift,
    /// Executors fail.
    ExecutorError,
    /// Results do not match their digest.
    Corruption,
    /// Clients cancel.
    Cancel,
    /// Tasks have deadlines.
    Deadline,
    /// Operators switch strategies.
    Switch,
    /// Operators remove workers.
    Removal,
    /// There is a second scheduler.
    Rival,
    /// There are HTTP workers.
    Http,
    /// Back ends of HTTP workers die, hang, refuse, fail, forget, and call back late, twice or never.
    BackEnd,
    /// Small tasks arrive continuously, and large ones between them: a world of its own, for every tenth seed.
    Stream,
    /// Owners pause their workers, or use them. In worlds with a market.
    Owner,
}

impl FaultKind {
    /// All kinds.
    pub const ALL: [FaultKind; 26] = [
        FaultKind::Loss,
        FaultKind::Duplication,
        FaultKind::Delay,
        FaultKind::Partition,
        FaultKind::Relink,
        FaultKind::WorkerCrash,
        FaultKind::WorkerStop,
        FaultKind::WorkerFreeze,
        FaultKind::SchedulerCrash,
        FaultKind::SchedulerFreeze,
        FaultKind::GroupCommit,
        FaultKind::StoreFailure,
        FaultKind::ClockStep,
        FaultKind::Slowness,
        FaultKind::Drift,
        FaultKind::ExecutorError,
        FaultKind::Corruption,
        FaultKind::Cancel,
        FaultKind::Deadline,
        FaultKind::Switch,
        FaultKind::Removal,
        FaultKind::Rival,
        FaultKind::Http,
        FaultKind::BackEnd,
        FaultKind::Stream,
        FaultKind::Owner,
    ];

    /// Its name on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            FaultKind::Loss => "loss",
            FaultKind::Duplication => "duplication",
            FaultKind::Delay => "delay",
            FaultKind::Partition => "partition",
            FaultKind::Relink => "relink",
            FaultKind::WorkerCrash => "worker-crash",
            FaultKind::WorkerStop => "worker-stop",
            FaultKind::WorkerFreeze => "worker-freeze",
            FaultKind::SchedulerCrash => "scheduler-crash",
            FaultKind::SchedulerFreeze => "scheduler-freeze",
            FaultKind::GroupCommit => "group-commit",
            FaultKind::StoreFailure => "store-failure",
            FaultKind::ClockStep => "clock-step",
            FaultKind::Slowness => "slowness",
            FaultKind::Drift => "drift",
            FaultKind::ExecutorError => "executor-error",
            FaultKind::Corruption => "corruption",
            FaultKind::Cancel => "cancel",
            FaultKind::Deadline => "deadline",
            FaultKind::Switch => "switch",
            FaultKind::Removal => "removal",
            FaultKind::Rival => "rival",
            FaultKind::Http => "http",
            FaultKind::BackEnd => "back-end",
            FaultKind::Stream => "stream",
            FaultKind::Owner => "owner",
        }
    }
}

/// No such fault kind.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("`{0}` is not a fault kind: use one of {known}", known = FaultKind::ALL.map(FaultKind::as_str).join(", "))]
pub struct UnknownFaultKind(String);

impl FromStr for FaultKind {
    type Err = UnknownFaultKind;
    fn from_str(text: &str) -> Result<FaultKind, UnknownFaultKind> {
        FaultKind::ALL
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| UnknownFaultKind(text.chars().take(64).collect()))
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
