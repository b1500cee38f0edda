//! The strategies by name, and the recipe that each name stands for.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A strategy with its parameters. As configuration: `{ name = "weighted", weight = 1.0 }`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case", deny_unknown_fields)]
pub enum Strategy {
    /// In the order of arrival, to the first worker that fits.
    Fifo,
    /// In the order of priority, then arrival, to the least loaded worker.
    Priority,
    /// To one worker after the other.
    #[serde(alias = "round-robin")]
    RoundRobin,
    /// To the least loaded worker that can run it, or to the one that `pick` chooses.
    #[serde(alias = "capability-based")]
    CapabilityBased {
        /// What load means.
        #[serde(default)]
        load_metric: LoadMetric,
        /// How to choose among the workers that fit.
        #[serde(default)]
        pick: Pick,
    },
    /// To the worker with the best record: speed, success, latency and load.
    #[serde(alias = "performance-aware")]
    PerformanceAware,
    /// To the least `running / gpus + failure penalty`.
    #[serde(alias = "load-balancing")]
    LoadBalancing {
        /// After how many seconds a failure's penalty has halved.
        #[serde(default = "default_penalty_half_life_s")]
        penalty_half_life_s: f64,
    },
    /// A queue for each worker; idle workers take the newest task from the longest queue.
    #[serde(alias = "work-stealing")]
    WorkStealing {
        /// Tasks are stolen from a queue that is longer than this.
        #[serde(default = "default_steal_threshold")]
        steal_threshold: u32,
    },
    /// To the best learned speed, success and capacity.
    Adaptive {
        /// The weight of the newest completion in the moving averages.
        #[serde(default = "default_learning_rate")]
        learning_rate: f64,
    },
    /// To the least expected backlog and run time.
    #[serde(alias = "shortest-queue")]
    ShortestQueue,
    /// To the least mean + weight × error.
    Weighted {
        /// How much an uncertain estimate counts against a worker.
        #[serde(default = "default_weight")]
        weight: f64,
    },
    /// To the least of one sample from each worker's distribution.
    Probabilistic,
    /// To the first worker with room.
    #[serde(alias = "first-fit")]
    FirstFit,
    /// To the worker with the least left over.
    #[serde(alias = "best-fit")]
    BestFit,
    /// To the worker with the most left over.
    #[serde(alias = "worst-fit")]
    WorstFit,
    /// To a worker drawn at random.
    Random,
    /// To the less loaded of two drawn at random.
    #[serde(alias = "power-of-two")]
    PowerOfTwo,
    /// Late binding: what should run next, where it is expected to finish first.
    Predictive(Predictive),
}

/// The parameters of `predictive`; `docs/scheduling.md` gives the reasons for the defaults.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Predictive {
    /// How far a long task is put back behind shorter ones while there is a backlog. Zero is first come, first served;
    /// large is shortest first, with a worse tail.
    pub ageing: f64,
    /// How much more a second of waiting for a busy worker costs than a second of running, for a task of the usual
    /// length: a task that waits for the fast worker also makes those behind it wait.
    pub wait_surcharge: f64,
    /// How many waiting tasks are looked at before a free worker is left idle.
    pub lookahead: u32,
    /// How often a worker that has had no task for long gets one although another looks better.
    pub exploration: f64,
}

/// The measure of load in `capability-based`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoadMetric {
    /// Tasks bound to the worker.
    #[default]
    TaskCount,
    /// Share of the cores that they require.
    CpuUsage,
    /// Share of the memory that they require.
    MemoryUsage,
}

/// How `capability-based` picks among the workers that fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pick {
    /// The least loaded.
    #[default]
    LeastLoaded,
    /// Any.
    Random,
    /// The best record.
    Performance,
}

/// A strategy as stages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Recipe {
    pub(crate) order: Order,
    pub(crate) bind: Bind,
    pub(crate) score: Score,
    pub(crate) select: Select,
    /// Steal from queues longer than this.
    pub(crate) steal_above: Option<u32>,
}

/// Which waiting task is looked at first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Order {
    Arrival,
    Priority,
    Predicted { ageing: f64 },
}

/// When a task is bound to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bind {
    /// At once, to a worker that could run it when idle; it waits in that worker's queue.
    AtSubmit,
    /// When a worker has room for it now; until then it waits in the scheduler's queue.
    WithRoom,
    /// When the worker where it is expected to finish first has room.
    Late,
}

/// The quantity that is minimised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Score {
    /// Nothing: all workers that fit are equal.
    Nothing,
    Load(LoadMetric),
    QueueLength,
    PastPerformance,
    GpuLoad {
        penalty_half_life_s: f64,
    },
    Learned {
        learning_rate: f64,
    },
    FreeAmount,
    /// The negated free amount.
    NegatedFreeAmount,
    /// Backlog + run time + weight × error.
    Finish {
        error_weight: f64,
    },
    /// A sample of backlog + run time.
    SampledFinish,
    /// Backlog with a surcharge + run + transfer + risk.
    ExpectedFinish {
        wait_surcharge: f64,
    },
}

/// Which of the scored workers is selected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Select {
    First,
    Cursor,
    Least,
    Random,
    LeastOfTwoRandom,
    /// The least of a sample of this many, or of all in a smaller pool.
    LeastOfSample(usize),
    LeastOrExplore {
        probability: f64,
    },
}

/// How many workers `probabilistic` samples; in smaller pools it samples all of them. 32 draws miss the best tenth of
/// a pool once in thirty decisions.
pub const PROBABILISTIC_CANDIDATES: usize = 32;

pub(crate) fn default_penalty_half_life_s() -> f64 {
    300.0
}
fn default_steal_threshold() -> u32 {
    2
}
fn default_learning_rate() -> f64 {
    0.1
}
fn default_weight() -> f64 {
    1.0
}

impl Default for Predictive {
    fn default() -> Predictive {
        Predictive { ageing: 2.0, wait_surcharge: 3.0, lookahead: 16, exploration: 0.01 }
    }
}

impl Default for Strategy {
    fn default() -> Strategy {
        Strategy::Predictive(Predictive::default())
    }
}

impl Strategy {
    /// Every strategy with its default parameters, in the order of the documents.
    pub fn all() -> [Strategy; 17] {
        [
            Strategy::Fifo,
            Strategy::Priority,
            Strategy::RoundRobin,
            Strategy::CapabilityBased { load_metric: LoadMetric::default(), pick: Pick::default() },
            Strategy::PerformanceAware,
            Strategy::LoadBalancing { penalty_half_life_s: default_penalty_half_life_s() },
            Strategy::WorkStealing { steal_threshold: default_steal_threshold() },
            Strategy::Adaptive { learning_rate: default_learning_rate() },
            Strategy::ShortestQueue,
            Strategy::Weighted { weight: default_weight() },
            Strategy::Probabilistic,
            Strategy::FirstFit,
            Strategy::BestFit,
            Strategy::WorstFit,
            Strategy::Random,
            Strategy::PowerOfTwo,
            Strategy::default(),
        ]
    }

    /// The name, as the seeds spell it, with underscores.
    pub const fn name(&self) -> &'static str {
        match self {
            Strategy::Fifo => "fifo",
            Strategy::Priority => "priority",
            Strategy::RoundRobin => "round_robin",
            Strategy::CapabilityBased { .. } => "capability_based",
            Strategy::PerformanceAware => "performance_aware",
            Strategy::LoadBalancing { .. } => "load_balancing",
            Strategy::WorkStealing { .. } => "work_stealing",
            Strategy::Adaptive { .. } => "adaptive",
            Strategy::ShortestQueue => "shortest_queue",
            Strategy::Weighted { .. } => "weighted",
            Strategy::Probabilistic => "probabilistic",
            Strategy::FirstFit => "first_fit",
            Strategy::BestFit => "best_fit",
            Strategy::WorstFit => "worst_fit",
            Strategy::Random => "random",
            Strategy::PowerOfTwo => "power_of_two",
            Strategy::Predictive(_) => "predictive",
        }
    }

    /// Refuses invalid parameters.
    pub fn validate(&self) -> Result<(), StrategyError> {
        let within = |parameter, value: f64, low: f64, high: f64| {
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                Err(StrategyError::Parameter { strategy: self.name(), parameter, value, low, high })
            }
        };
        match *self {
            Strategy::LoadBalancing { penalty_half_life_s } => {
                within("penalty_half_life_s", penalty_half_life_s, 0.001, 1e9)
            }
            Strategy::Adaptive { learning_rate } => {
                within("learning_rate", learning_rate, 1e-6, 1.0)
            }
            Strategy::Weighted { weight } => within("weight", weight, 0.0, 1e6),
            Strategy::Predictive(Predictive { ageing, wait_surcharge, lookahead, exploration }) => {
                within("ageing", ageing, 0.0, 1e9)?;
                within("wait_surcharge", wait_surcharge, 0.0, 1e6)?;
                within(
                    "lookahead",
                    f64::from(lookahead),
                    f64::from(MIN_LOOKAHEAD),
                    f64::from(MAX_LOOKAHEAD),
                )?;
                within("exploration", exploration, 0.0, 1.0)
            }
            _ => Ok(()),
        }
    }

    /// The stages that the name stands for.
    pub(crate) fn recipe(&self) -> Recipe {
        use Bind::{AtSubmit, Late, WithRoom};
        use Order::Arrival;
        let least = |score| (Arrival, AtSubmit, score, Select::Least);
        let (order, bind, score, select) = match *self {
            Strategy::Fifo | Strategy::FirstFit => {
                (Arrival, WithRoom, Score::Nothing, Select::First)
            }
            Strategy::Priority => {
                (Order::Priority, WithRoom, Score::Load(LoadMetric::TaskCount), Select::Least)
            }
            Strategy::RoundRobin => (Arrival, AtSubmit, Score::Nothing, Select::Cursor),
            Strategy::CapabilityBased { load_metric, pick } => match pick {
                Pick::LeastLoaded => least(Score::Load(load_metric)),
                Pick::Random => (Arrival, AtSubmit, Score::Nothing, Select::Random),
                Pick::Performance => least(Score::PastPerformance),
            },
            Strategy::PerformanceAware => least(Score::PastPerformance),
            Strategy::LoadBalancing { penalty_half_life_s } => {
                least(Score::GpuLoad { penalty_half_life_s })
            }
            Strategy::WorkStealing { .. } => least(Score::QueueLength),
            Strategy::Adaptive { learning_rate } => least(Score::Learned { learning_rate }),
            Strategy::ShortestQueue => least(Score::Finish { error_weight: 0.0 }),
            Strategy::Weighted { weight } => least(Score::Finish { error_weight: weight }),
            Strategy::Probabilistic => {
                let select = Select::LeastOfSample(PROBABILISTIC_CANDIDATES);
                (Arrival, AtSubmit, Score::SampledFinish, select)
            }
            Strategy::BestFit => (Arrival, WithRoom, Score::FreeAmount, Select::Least),
            Strategy::WorstFit => (Arrival, WithRoom, Score::NegatedFreeAmount, Select::Least),
            Strategy::Random => (Arrival, AtSubmit, Score::Nothing, Select::Random),
            Strategy::PowerOfTwo => {
                let load = Score::Load(LoadMetric::TaskCount);
                (Arrival, AtSubmit, load, Select::LeastOfTwoRandom)
            }
            Strategy::Predictive(Predictive { ageing, wait_surcharge, exploration, .. }) => {
                let select = Select::LeastOrExplore { probability: exploration };
                (
                    Order::Predicted { ageing },
                    Late,
                    Score::ExpectedFinish { wait_surcharge },
                    select,
                )
            }
        };
        let steal_above = match *self {
            Strategy::WorkStealing { steal_threshold } => Some(steal_threshold),
            _ => None,
        };
        Recipe { order, bind, score, select, steal_above }
    }
}

/// With fewer, a few tasks that wait for the fast worker would keep all others from the idle workers.
pub const MIN_LOOKAHEAD: u32 = 8;
/// More than this would make one decision slow without finding better ones.
pub const MAX_LOOKAHEAD: u32 = 1_024;

impl Recipe {
    /// How a task that must be bound at submission is placed where the strategy would wait. A fit to the free amounts
    /// tells nothing about a queue: the strategy's own choice would put all such tasks into the same one.
    pub(crate) fn bound_at_submit(self) -> Recipe {
        match self.bind {
            Bind::AtSubmit => self,
            Bind::Late => Recipe { bind: Bind::AtSubmit, ..self },
            Bind::WithRoom => Recipe {
                bind: Bind::AtSubmit,
                score: Score::Load(LoadMetric::TaskCount),
                select: Select::Least,
                ..self
            },
        }
    }

    /// The same, for workers that have room now.
    pub(crate) fn with_room(self) -> Recipe {
        Recipe { bind: Bind::WithRoom, ..self }
    }

    /// Whether the score is a time, so that leaves are grouped by speed and keyed by when they are free.
    pub(crate) fn is_time_based(&self) -> bool {
        matches!(
            self.score,
            Score::Finish { .. } | Score::SampledFinish | Score::ExpectedFinish { .. }
        )
    }
}

/// A strategy that cannot be used.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum StrategyError {
    /// No strategy has that name.
    #[error("unknown strategy `{name}`: use one of {known}")]
    Unknown {
        /// The requested name.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// A parameter is outside its range.
    #[error("strategy {strategy}: {parameter} is {value}, it must be from {low} to {high}")]
    Parameter {
        /// The strategy.
        strategy: &'static str,
        /// The parameter.
        parameter: &'static str,
        /// The value.
        value: f64,
        /// The least valid value.
        low: f64,
        /// The greatest valid value.
        high: f64,
    },
}

impl FromStr for Strategy {
    type Err = StrategyError;
    /// By name, with hyphens or underscores, with default parameters.
    fn from_str(text: &str) -> Result<Strategy, StrategyError> {
        let spelled = text.replace('-', "_");
        Strategy::all().into_iter().find(|strategy| strategy.name() == spelled).ok_or_else(|| {
            StrategyError::Unknown {
                name: text.chars().take(64).collect(),
                known: Strategy::all().map(|strategy| strategy.name()).join(", "),
            }
        })
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_strategy_is_found_under_both_spellings_and_as_configuration() {
        for strategy in Strategy::all() {
            let name = strategy.name();
            assert_eq!(name.parse::<Strategy>().unwrap(), strategy);
            assert_eq!(name.replace('_', "-").parse::<Strategy>().unwrap(), strategy);
            assert_eq!(strategy.validate(), Ok(()));
            for spelled in [name.to_owned(), name.replace('_', "-")] {
                let named = serde_json::json!({ "name": spelled });
                assert_eq!(serde_json::from_value::<Strategy>(named).unwrap(), strategy);
            }
        }
    }

    #[test]
    fn wrong_names_and_parameters_are_refused() {
        let error = "best".parse::<Strategy>().unwrap_err().to_string();
        assert!(
            error.starts_with("unknown strategy `best`: use one of fifo, priority,"),
            "{error}"
        );
        let error = Strategy::Adaptive { learning_rate: f64::NAN }.validate().unwrap_err();
        assert!(error.to_string().contains("learning_rate is NaN"), "{error}");
        let unknown = serde_json::json!({ "name": "weighted", "wait": 1 });
        assert!(serde_json::from_value::<Strategy>(unknown).is_err());
    }
}
