//! Values of the owner's terms: hours, the time zone that they are in, and priorities by organisation.

use std::collections::BTreeMap;

use hypha_market::Hours;
use hypha_model::{Name, Priority};
use jiff::tz::{Offset, TimeZone};

use super::{Problem, list, number, text};
use crate::sourced_value::{Origin, Raw, SourcedValue};

const HOURS: &str = "a list of hours such as [\"Mon-Fri 18:00-08:00\", \"Sat-Sun\"]";
const TIME_ZONE: &str =
    "the name of a time zone such as \"Europe/Berlin\", or an offset such as \"+02:00\"";
const PRIORITIES: &str = "a table of priorities by organisation such as { lab = 50 }";

/// No place is further from UTC.
const MAX_OFFSET_HOURS: i32 = 14;

pub(crate) fn hours(given: &SourcedValue) -> Result<Hours, Problem> {
    let range = |item: &SourcedValue| {
        let range = text(item, "hours in quotes")?;
        Hours::parse([range]).map_err(|error| Problem::new(error.to_string()))?;
        Ok(range.to_owned())
    };
    let ranges = list(given, HOURS, range)?;
    if ranges.is_empty() {
        let message = "the list is empty, so the worker would never be used: give hours, or leave the key out for \
                       all hours";
        return Err(Problem::new(message));
    }
    let all = Hours::parse(ranges.iter().map(String::as_str));
    all.map_err(|error| Problem::new(error.to_string()))
}

pub(crate) fn time_zone(given: &SourcedValue) -> Result<TimeZone, Problem> {
    let written = text(given, TIME_ZONE)?;
    if written.starts_with(['+', '-']) {
        let offset =
            offset(written).ok_or_else(|| Problem::new(format!("expected {TIME_ZONE}")))?;
        return Ok(TimeZone::fixed(offset));
    }
    TimeZone::get(written).map_err(|_| match jiff::tz::db().is_definitively_empty() {
        true => Problem::new(
            "this system has no time zone database: install `tzdata`, or give an offset such as \"+02:00\"",
        ),
        false => Problem::new(format!("not in this system's time zone database: expected {TIME_ZONE}")),
    })
}

/// `+02:00` or `-09:30`.
fn offset(text: &str) -> Option<Offset> {
    let (sign, digits) = match text.split_at_checked(1)? {
        ("+", digits) => (1, digits),
        ("-", digits) => (-1, digits),
        _ => return None,
    };
    let number = |text: &str| {
        let is_number = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse::<i32>().ok()).flatten()
    };
    let (hours, minutes) = digits.split_once(':')?;
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    let is_valid = minutes < 60 && hours * 60 + minutes <= MAX_OFFSET_HOURS * 60;
    is_valid.then(|| Offset::from_seconds(sign * (hours * 60 + minutes) * 60).ok()).flatten()
}

pub(crate) fn priorities(given: &SourcedValue) -> Result<BTreeMap<Name, Priority>, Problem> {
    let Raw::Table(table) = &given.raw else { return Err(Problem::expected(PRIORITIES, given)) };
    let entry = |(name, (_, value)): (&String, &(Origin, SourcedValue))| {
        let invalid = |problem: Problem| problem.at(value);
        let name =
            name.parse().map_err(|error| invalid(Problem::new(format!("not a name: {error}"))))?;
        let priority = number(value).map_err(invalid)?;
        let not_finite = || invalid(Problem::new("expected a number"));
        Ok((name, Priority::new(priority).ok_or_else(not_finite)?))
    };
    table.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read() {
        let seconds = |text| offset(text).map(Offset::seconds);
        assert_eq!(seconds("+02:00"), Some(7_200));
        assert_eq!(seconds("-09:30"), Some(-34_200));
        assert_eq!(seconds("+14:00"), Some(50_400));
        for bad in
            ["", "+", "02:00", "+2:00", "+02:60", "+14:01", "+02", "+02:0x", "+-2:00", "−02:00"]
        {
            assert_eq!(seconds(bad), None, "{bad}");
        }
    }
}
