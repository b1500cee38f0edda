//! Kinds of trouble, and their names.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Kinds of trouble, each of which can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// Messages are lost.
    Loss,
    /// Messages arrive twice.
    Duplication,
    /// Messages take their time and overtake each other.
    Delay,
    /// A scheduler and a worker cannot reach each other for a while.
    Partition,
    /// Connections are replaced by others, and what travels on them is lost.
    Relink,
    /// Workers die and come back without their memory.
    WorkerCrash,
    /// Workers are stopped in order and started again.
    WorkerStop,
    /// Workers' processes are stopped for a while, with all they have in hand, and go on.
    WorkerFreeze,
    /// Schedulers die at the worst moments and come back with what was durable.
    SchedulerCrash,
    /// Schedulers' processes are stopped for a while, and go on.
    SchedulerFreeze,
    /// Commits take time: steps are collected meanwhile, and a crash loses several.
    GroupCommit,
    /// Disks are full for a while: nothing is acknowledged, and machines begin anew from what is durable.
    StoreFailure,
    /// Systems' clocks are set forward or back: the next process sees it.
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
    /// Small tasks come without end, and large ones between them: a world of its own, for every tenth seed.
    Stream,
}

impl Trouble {
    /// All kinds.
    pub const ALL: [Trouble; 25] = [
        Trouble::Loss,
        Trouble::Duplication,
        Trouble::Delay,
        Trouble::Partition,
        Trouble::Relink,
        Trouble::WorkerCrash,
        Trouble::WorkerStop,
        Trouble::WorkerFreeze,
        Trouble::SchedulerCrash,
        Trouble::SchedulerFreeze,
        Trouble::GroupCommit,
        Trouble::StoreFailure,
        Trouble::ClockStep,
        Trouble::Slowness,
        Trouble::Drift,
        Trouble::ExecutorError,
        Trouble::Corruption,
        Trouble::Cancel,
        Trouble::Deadline,
        Trouble::Switch,
        Trouble::Removal,
        Trouble::Rival,
        Trouble::Http,
        Trouble::BackEnd,
        Trouble::Stream,
    ];

    /// The word for it on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Trouble::Loss => "loss",
            Trouble::Duplication => "duplication",
            Trouble::Delay => "delay",
            Trouble::Partition => "partition",
            Trouble::Relink => "relink",
            Trouble::WorkerCrash => "worker-crash",
            Trouble::WorkerStop => "worker-stop",
            Trouble::WorkerFreeze => "worker-freeze",
            Trouble::SchedulerCrash => "scheduler-crash",
            Trouble::SchedulerFreeze => "scheduler-freeze",
            Trouble::GroupCommit => "group-commit",
            Trouble::StoreFailure => "store-failure",
            Trouble::ClockStep => "clock-step",
            Trouble::Slowness => "slowness",
            Trouble::Drift => "drift",
            Trouble::ExecutorError => "executor-error",
            Trouble::Corruption => "corruption",
            Trouble::Cancel => "cancel",
            Trouble::Deadline => "deadline",
            Trouble::Switch => "switch",
            Trouble::Removal => "removal",
            Trouble::Rival => "rival",
            Trouble::Http => "http",
            Trouble::BackEnd => "back-end",
            Trouble::Stream => "stream",
        }
    }
}

/// No such kind of trouble.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("`{0}` is not a kind of trouble: use one of {known}", known = Trouble::ALL.map(Trouble::as_str).join(", "))]
pub struct UnknownTrouble(String);

impl FromStr for Trouble {
    type Err = UnknownTrouble;
    fn from_str(text: &str) -> Result<Trouble, UnknownTrouble> {
        Trouble::ALL
            .into_iter()
            .find(|trouble| trouble.as_str() == text)
            .ok_or_else(|| UnknownTrouble(text.chars().take(64).collect()))
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
