//! The pool of workers that are leased for tasks at a price.

use hypha_market::PoolSettings;

use super::settings::span;
use crate::diagnostic::Diagnostic;
use crate::parse;
use crate::reader::Reader;
use crate::roles::{count, seconds};

/// `None` without a bid: every worker that is found is used, at no price.
pub(super) fn read(section: &Reader<'_>) -> Result<Option<PoolSettings>, Diagnostic> {
    let Some(bid) = section.optional("bid", parse::price)? else {
        let given = ["max", "budget_per_hour"];
        let stray = given.into_iter().find(|key| section.given(key).is_some());
        let changed = [
            ("min_workers", section.changed("min_workers", count)?.is_some()),
            ("max_workers", section.changed("max_workers", count)?.is_some()),
            ("target_wait", section.changed("target_wait", seconds)?.is_some()),
            ("idle_after", section.changed("idle_after", seconds)?.is_some()),
        ];
        let stray = stray.or_else(|| Some(changed.iter().find(|(_, is_changed)| *is_changed)?.0));
        return match stray {
            // An operator who gives these believes that there is a pool.
            Some(key) => Err(section.fault(key, "there is no pool without `bid`: give it too")),
            None => Ok(None),
        };
    };
    let max = section.optional("max", parse::price)?.unwrap_or(bid);
    if bid > max {
        return Err(section.fault("bid", "is above `max`: lower it, or raise `max`"));
    }
    let budget = section.optional("budget_per_hour", parse::price)?;
    if budget.is_some_and(|budget| budget < bid) {
        let message = "is below `bid`, so no worker could be leased: raise it, or lower `bid`";
        return Err(section.fault("budget_per_hour", message));
    }
    let settings = PoolSettings {
        bid,
        max,
        budget,
        min_workers: section.get("min_workers", count)?,
        max_workers: section.get("max_workers", count)?,
        target_wait: span(section.get("target_wait", seconds)?),
        idle_after: span(section.get("idle_after", seconds)?),
        ..PoolSettings::default()
    };
    if settings.min_workers > settings.max_workers {
        let message = "is above `max_workers`: lower it, or raise `max_workers`";
        return Err(section.fault("min_workers", message));
    }
    Ok(Some(settings))
}
