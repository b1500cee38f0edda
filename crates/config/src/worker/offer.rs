//! The terms on which the owner of a worker offers it.

use std::collections::BTreeMap;

use hypha_market::{Pricing, Terms, YieldTerms};
use hypha_model::{Name, Priority, Span};
use jiff::tz::TimeZone;

use super::ExecutorConfig;
use crate::diagnostic::Diagnostic;
use crate::parse::{self, Choice};
use crate::reader::Reader;
use crate::roles::seconds;

/// The terms of a worker's owner, and what is needed to observe them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OfferConfig {
    /// The terms.
    pub terms: Terms,
    /// The time zone of the hours; `None` is the system's.
    pub time_zone: Option<TimeZone>,
    /// Programs whose use of the machine is not the owner's.
    pub except: Vec<Name>,
}

impl Choice for Pricing {
    const NAMES: &'static [(&'static str, Pricing)] =
        &[("whole", Pricing::Whole), ("flexible", Pricing::Flexible)];
}

pub(super) fn read(
    section: &Reader<'_>,
    executors: &[ExecutorConfig],
) -> Result<OfferConfig, Diagnostic> {
    let floor = section.get("floor", parse::price)?;
    let price = section.optional("price", parse::price)?.unwrap_or(floor);
    if floor > price {
        return Err(section.fault("floor", "is above `price`: lower it, or raise `price`"));
    }
    let hours = section.optional("hours", parse::hours)?;
    let time_zone = section.optional("time_zone", parse::time_zone)?;
    if time_zone.is_some() && hours.is_none() {
        let message = "it is the time zone of `hours`: give them too";
        return Err(section.fault("time_zone", message));
    }
    let (yields, except) = yields(&section.section("yield")?)?;
    let terms = Terms {
        price,
        floor,
        pricing: section.get("strategy", parse::choice)?,
        organisations: organisations(section)?,
        classes: section.optional("classes", parse::choices)?,
        executors: section.optional("executors", parse::labels)?,
        hours: hours.unwrap_or_default(),
        yields,
    };
    check_executors(section, &terms, executors)?;
    Ok(OfferConfig { terms, time_zone, except })
}

fn organisations(
    section: &Reader<'_>,
) -> Result<Option<BTreeMap<Name, Option<Priority>>>, Diagnostic> {
    let names = section.optional("organisations", parse::labels)?;
    if names.as_ref().is_some_and(Vec::is_empty) {
        let message = "the list is empty, so no organisation would be served: give names, or leave the key out \
                       for all organisations";
        return Err(section.fault("organisations", message));
    }
    let mut ceilings = section.optional("priority_ceiling", parse::priorities)?.unwrap_or_default();
    let served = names.map(|names| {
        let with_ceiling = |name: Name| {
            let ceiling = ceilings.remove(&name);
            (name, ceiling)
        };
        names.into_iter().map(with_ceiling).collect()
    });
    if let Some(stranger) = ceilings.keys().next() {
        let message = format!("`{stranger}` is not in `organisations`: add it there");
        return Err(section.fault("priority_ceiling", &message));
    }
    Ok(served)
}

fn yields(section: &Reader<'_>) -> Result<(Option<YieldTerms>, Vec<Name>), Diagnostic> {
    let lasting = section.get("for", seconds)?;
    let terms = YieldTerms {
        cpu_above_permille: section.optional("load", parse::share)?,
        gpu_above_permille: section.optional("gpu", parse::share)?,
        lasting: Span::from_micros(u64::try_from(lasting.as_micros()).unwrap_or(u64::MAX)),
    };
    let is_given = terms.cpu_above_permille.is_some() || terms.gpu_above_permille.is_some();
    // An owner who gives these believes that the worker yields.
    let stray = match (section.changed("for", seconds)?, section.changed("except", parse::labels)?)
    {
        (Some(_), _) => Some("for"),
        (None, Some(_)) => Some("except"),
        (None, None) => None,
    };
    if let Some(stray) = stray.filter(|_| !is_given) {
        let message = "the worker never yields without `load` or `gpu`: give one of them too";
        return Err(section.fault(stray, message));
    }
    Ok((is_given.then_some(terms), section.get("except", parse::labels)?))
}

/// The names are those of executors, and some executor may run, unless there is none.
fn check_executors(
    section: &Reader<'_>,
    terms: &Terms,
    executors: &[ExecutorConfig],
) -> Result<(), Diagnostic> {
    let is_unknown = |name: &&Name| !executors.iter().any(|executor| executor.name == **name);
    if let Some(unknown) = terms.executors.iter().flatten().find(is_unknown) {
        let message = format!("no executor is called `{unknown}`: use the names of [[executors]]");
        return Err(section.fault("executors", &message));
    }
    let may_run = executors.iter().any(|executor| terms.may_run(&executor.executor()));
    let limiting = ["executors", "classes"].into_iter().find(|key| section.given(key).is_some());
    match limiting.filter(|_| !may_run && !executors.is_empty()) {
        Some(key) => {
            let message =
                "none of the [[executors]] may run: allow one, or leave the key out for all";
            Err(section.fault(key, message))
        }
        None => Ok(()),
    }
}
