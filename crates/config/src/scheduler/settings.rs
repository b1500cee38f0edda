//! The settings of the scheduler's machine, from the keys of the file.

use std::time::Duration;

use hypha_engine::Settings;
use hypha_model::{Maximise, Name, Span};
use hypha_placement::{LoadMetric, Pick, Predictive, Preferences, Strategy, StrategyError};

use super::{Warnings, pool, retry};
use crate::diagnostic::Diagnostic;
use crate::parse::{self, Choice};
use crate::reader::Reader;
use crate::roles::{count, seconds};

/// A [`Pick`] by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PickBy(Pick);

/// A [`LoadMetric`] by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoadBy(LoadMetric);

impl Choice for PickBy {
    const NAMES: &'static [(&'static str, PickBy)] = &[
        ("least-loaded", PickBy(Pick::LeastLoaded)),
        ("random", PickBy(Pick::Random)),
        ("performance", PickBy(Pick::Performance)),
    ];
}

impl Choice for LoadBy {
    const NAMES: &'static [(&'static str, LoadBy)] = &[
        ("task-count", LoadBy(LoadMetric::TaskCount)),
        ("cpu-usage", LoadBy(LoadMetric::CpuUsage)),
        ("memory-usage", LoadBy(LoadMetric::MemoryUsage)),
    ];
}

pub(super) fn read(
    section: &Reader<'_>,
    region: Option<&Name>,
    warnings: &mut Warnings,
) -> Result<Settings, Diagnostic> {
    let tolerance = section.section("fault_tolerance")?;
    let max_queue = section.get("max_queue", count)?;
    Ok(Settings {
        strategy: strategy(section, warnings)?,
        preferences: preferences(section, region, warnings)?,
        max_queue: usize::try_from(max_queue).unwrap_or(usize::MAX),
        task_timeout: span(section.get("task_timeout", seconds)?),
        retry: retry::read(section, warnings)?,
        health_check_interval: span(tolerance.get("health_check_interval", seconds)?),
        health_check_timeout: span(tolerance.get("health_check_timeout", seconds)?),
        max_consecutive_failures: tolerance.get("max_consecutive_failures", count)?,
        quarantine: span(tolerance.get("quarantine", seconds)?),
        lease_ttl: span(section.get("lease_ttl", seconds)?),
        key_ttl: span(section.get("result_ttl", seconds)?),
        pool: pool::read(&section.section("pool")?)?,
        ..Settings::default()
    })
}

pub(super) fn span(duration: Duration) -> Span {
    Span::from_micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}

fn preferences(
    section: &Reader<'_>,
    region: Option<&Name>,
    warnings: &mut Warnings,
) -> Result<Preferences, Diagnostic> {
    let balancing = section.section("load_balancing")?;
    let local = balancing.get("prefer_local_workers", parse::switch)?;
    if let (true, None, Some(given)) = (local, region, balancing.given("prefer_local_workers")) {
        let why = "without `region`: set it at the top of the file";
        warnings.no_effect(&balancing, "prefer_local_workers", &given.origin, why);
    }
    let unused =
        balancing.changed("max_local_wait", seconds)?.filter(|_| !local || region.is_none());
    if let Some(origin) = unused {
        let why = "without `region` and `prefer_local_workers`";
        warnings.no_effect(&balancing, "max_local_wait", origin, why);
    }
    let latency = |given: &_| parse::millis(given, Duration::ZERO, Duration::MAX);
    Ok(Preferences {
        max_rtt: balancing.optional("max_network_latency", latency)?.map(span),
        prefer_region: region.filter(|_| local).cloned(),
        max_local_wait: span(balancing.get("max_local_wait", seconds)?),
        max_in_flight: section.optional("max_concurrent_tasks", count)?,
        maximise: maximise(section, warnings)?,
    })
}

/// What counts when a worker is chosen. Only one strategy weighs prices.
fn maximise(section: &Reader<'_>, warnings: &mut Warnings) -> Result<Maximise, Diagnostic> {
    let strategy = section.get("selection_algorithm", parse::strategy)?;
    if !matches!(strategy, Strategy::Predictive(_))
        && let Some(origin) = section.changed("maximise", parse::choice::<Maximise>)?
    {
        let why = format!("with `{strategy}`: only `predictive` weighs prices");
        warnings.no_effect(section, "maximise", origin, &why);
    }
    section.get("maximise", parse::choice)
}

/// The strategy of that name with the parameters that were given for it. Parameters of other strategies are
/// not refused, so that an operator can compare strategies by changing one line.
fn strategy(section: &Reader<'_>, warnings: &mut Warnings) -> Result<Strategy, Diagnostic> {
    let parameters = section.section("parameters")?;
    let number = |name| parameters.get(name, parse::number);
    let whole = |name| parameters.get(name, count);
    let strategy = match section.get("selection_algorithm", parse::strategy)? {
        Strategy::CapabilityBased { .. } => capability_based(section, warnings)?,
        other => {
            unused_balancing(section, other, warnings)?;
            match other {
                Strategy::LoadBalancing { .. } => {
                    Strategy::LoadBalancing { penalty_half_life_s: number("penalty_half_life_s")? }
                }
                Strategy::WorkStealing { .. } => {
                    Strategy::WorkStealing { steal_threshold: whole("steal_threshold")? }
                }
                Strategy::Adaptive { .. } => {
                    Strategy::Adaptive { learning_rate: number("learning_rate")? }
                }
                Strategy::Weighted { .. } => Strategy::Weighted { weight: number("weight")? },
                Strategy::Predictive(_) => Strategy::Predictive(Predictive {
                    ageing: number("ageing")?,
                    wait_surcharge: number("wait_surcharge")?,
                    lookahead: whole("lookahead")?,
                    exploration: number("exploration")?,
                }),
                plain => plain,
            }
        }
    };
    strategy.validate().map_err(|error| match error {
        StrategyError::Parameter { parameter, low, high, .. } => {
            parameters.fault(parameter, &format!("expected a number from {low} to {high}"))
        }
        other => section.fault("selection_algorithm", &other.to_string()),
    })?;
    for (name, owner) in PARAMETERS.into_iter().filter(|(_, owner)| *owner != strategy.name()) {
        if let Some(origin) = parameters.changed(name, parse::number)? {
            let why = format!("with `{strategy}`: it is a parameter of `{owner}`");
            warnings.no_effect(&parameters, name, origin, &why);
        }
    }
    Ok(strategy)
}

/// Each parameter and the strategy that has it.
const PARAMETERS: [(&str, &str); 8] = [
    ("ageing", "predictive"),
    ("wait_surcharge", "predictive"),
    ("lookahead", "predictive"),
    ("exploration", "predictive"),
    ("weight", "weighted"),
    ("learning_rate", "adaptive"),
    ("steal_threshold", "work_stealing"),
    ("penalty_half_life_s", "load_balancing"),
];

fn capability_based(section: &Reader<'_>, warnings: &mut Warnings) -> Result<Strategy, Diagnostic> {
    let balancing = section.section("load_balancing")?;
    let PickBy(pick) = balancing.get("strategy", parse::choice)?;
    let LoadBy(load_metric) = balancing.get("load_metric", parse::choice)?;
    let unused = balancing.changed("load_metric", parse::choice::<LoadBy>)?;
    if let (Pick::Random | Pick::Performance, Some(origin)) = (pick, unused) {
        let why = "unless `strategy` is \"least-loaded\"";
        warnings.no_effect(&balancing, "load_metric", origin, why);
    }
    Ok(Strategy::CapabilityBased { load_metric, pick })
}

fn unused_balancing(
    section: &Reader<'_>,
    strategy: Strategy,
    warnings: &mut Warnings,
) -> Result<(), Diagnostic> {
    let balancing = section.section("load_balancing")?;
    let given = [
        ("strategy", balancing.changed("strategy", parse::choice::<PickBy>)?),
        ("load_metric", balancing.changed("load_metric", parse::choice::<LoadBy>)?),
    ];
    for (key, origin) in given {
        if let Some(origin) = origin {
            let why = format!("with `{strategy}`: only `capability-based` uses it");
            warnings.no_effect(&balancing, key, origin, &why);
        }
    }
    Ok(())
}
