//! How failed attempts are retried, from two sections with different spellings of the same settings.
//! `[scheduler.retry]` wins key by key; a warning reports where the other section was given too and
//! disagrees.

use std::time::Duration;

use hypha_engine::RetryPolicy;

use super::Warnings;
use super::settings::span;
use crate::diagnostic::Diagnostic;
use crate::parse::{self, Choice};
use crate::reader::Reader;
use crate::roles::{count, seconds};

/// How delays grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backoff {
    Exponential,
    Constant,
    None,
}

impl Choice for Backoff {
    const NAMES: &'static [(&'static str, Backoff)] = &[
        ("exponential", Backoff::Exponential),
        ("constant", Backoff::Constant),
        ("none", Backoff::None),
    ];
}

pub(super) fn read(
    section: &Reader<'_>,
    warnings: &mut Warnings,
) -> Result<RetryPolicy, Diagnostic> {
    let retry = section.section("retry")?;
    let older = section.section("fault_tolerance")?;
    let max_attempts = max_attempts(&retry, &older, warnings)?;
    let (base, max) = backoff_range(&retry, &older, warnings)?;
    Ok(RetryPolicy {
        max_attempts,
        backoff_base: span(base),
        backoff_max: span(max),
        retry_on_timeout: retry.get("retry_on_timeout", parse::switch)?,
        retry_on_worker_failure: retry.get("retry_on_worker_failure", parse::switch)?,
    })
}

/// The defaults of both sections agree.
fn max_attempts(
    retry: &Reader<'_>,
    older: &Reader<'_>,
    warnings: &mut Warnings,
) -> Result<u32, Diagnostic> {
    let enabled = older.get("enable_retries", parse::switch)?;
    let said = match enabled {
        true => older.get("max_retries", count)?.saturating_add(1),
        false => 1,
    };
    if retry.given("max_attempts").is_none() {
        return Ok(said);
    }
    let attempts = retry.get("max_attempts", count)?;
    if attempts != said {
        let loser = if enabled { "max_retries" } else { "enable_retries" };
        warnings.wins((retry, "max_attempts"), (older, loser));
    }
    Ok(attempts)
}

/// The first and the longest delay.
fn backoff_range(
    retry: &Reader<'_>,
    older: &Reader<'_>,
    warnings: &mut Warnings,
) -> Result<(Duration, Duration), Diagnostic> {
    let base_given = retry.given("backoff_base").is_some();
    let max_given = retry.given("backoff_max").is_some();
    let base = retry.get("backoff_base", seconds)?;
    let max = retry.get("backoff_max", seconds)?;
    if base_given && max_given && max < base {
        return Err(retry.fault("backoff_max", "the longest delay is shorter than `backoff_base`"));
    }
    // A given bound also applies to the one that was not given.
    let base = if base_given { base } else { base.min(max) };
    let max = if max_given { max } else { max.max(base) };
    match older.get("retry_backoff", parse::choice)? {
        Backoff::Exponential => Ok((base, max)),
        Backoff::Constant if max_given => {
            if max > base {
                warnings.wins((retry, "backoff_max"), (older, "retry_backoff"));
            }
            Ok((base, max))
        }
        Backoff::Constant => Ok((base, base)),
        Backoff::None if !base_given && !max_given => Ok((Duration::ZERO, Duration::ZERO)),
        Backoff::None => {
            if !base.is_zero() && !max.is_zero() {
                let winner = if base_given { "backoff_base" } else { "backoff_max" };
                warnings.wins((retry, winner), (older, "retry_backoff"));
            }
            Ok((base, max))
        }
    }
}
