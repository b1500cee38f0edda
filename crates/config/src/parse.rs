//! Parses given values. Messages state what was expected and never repeat the value.

mod address;
mod offer;
mod pairs;
mod texts;
mod url;
mod web;

use std::net::SocketAddr;
use std::time::Duration;

use hypha_model::amount::{self, FieldError};
use hypha_model::requirement_input::MIN_BARE_BYTES;
use hypha_model::{ExecutorClass, Maximise, Money, Name};
use hypha_placement::Strategy;
use ipnet::IpNet;

pub(crate) use self::address::{AddressUse, addresses};
pub(crate) use self::offer::{hours, priorities, time_zone};
pub(crate) use self::pairs::{attributes, headers};
pub(crate) use self::texts::{environment, paths, texts};
pub(crate) use self::url::{UrlUse, url, url_path};
pub(crate) use self::web::{host_port, hosts, origins};
use crate::sourced_value::{Origin, Raw, SourcedValue};

pub(crate) const PATH: &str = "a path in quotes";
const SOCKET: &str = "an address and a port such as \"127.0.0.1:9101\"";
const NETWORKS: &str = "a list of address ranges such as [\"10.0.0.0/8\", \"fc00::/7\"]";
const LABELS: &str = "a list of names such as [\"llama-2-7b\"]";
const LOG_FILTER: &str = "a level (off, error, warn, info, debug or trace), or levels by target such as \
                          \"info,hypha_net=debug\"";
const NUMBER: &str = "a number such as 0.5";
const RATIO: &str = "a number from 0 to 1 such as 0.1";
const SHARE: &str = "a number from 0.01 to 0.99 such as 0.25";

/// What is wrong with a value.
#[derive(Debug)]
pub(crate) struct Problem {
    /// The position, if not the start of the value.
    pub(crate) origin: Option<Origin>,
    pub(crate) message: String,
}

impl Problem {
    pub(crate) fn new(message: impl Into<String>) -> Problem {
        Problem { origin: None, message: message.into() }
    }

    pub(crate) fn expected(what: &str, given: &SourcedValue) -> Problem {
        match given.raw {
            Raw::Bare(_) => Problem::new(format!("expected {what}")),
            _ => Problem::new(format!("expected {what}, found {}", given.what())),
        }
    }

    /// The problem is in `given`, a part of the value.
    pub(crate) fn at(mut self, given: &SourcedValue) -> Problem {
        self.origin.get_or_insert_with(|| given.origin.clone());
        self
    }
}

impl From<FieldError> for Problem {
    fn from(error: FieldError) -> Problem {
        Problem::new(format!("the value {}", error.problem))
    }
}

/// A type with a word for each of its values.
pub(crate) trait Choice: Copy + 'static {
    const NAMES: &'static [(&'static str, Self)];
}

/// The words of a type.
pub(crate) fn names<C: Choice>() -> Vec<&'static str> {
    C::NAMES.iter().map(|(name, _)| *name).collect()
}

pub(crate) fn choice<C: Choice>(given: &SourcedValue) -> Result<C, Problem> {
    let index = one_of(given, &names::<C>())?;
    C::NAMES.get(index).map(|(_, value)| *value).ok_or_else(|| Problem::new("unknown choice"))
}

pub(crate) fn one_of(given: &SourcedValue, names: &[&str]) -> Result<usize, Problem> {
    let found = given.text().and_then(|text| names.iter().position(|name| *name == text));
    found.ok_or_else(|| none_of(given, names))
}

pub(crate) fn choices<C: Choice>(given: &SourcedValue) -> Result<Vec<C>, Problem> {
    let indices = some_of(given, &names::<C>())?;
    Ok(indices.into_iter().filter_map(|at| C::NAMES.get(at)).map(|(_, value)| *value).collect())
}

pub(crate) fn some_of(given: &SourcedValue, names: &[&str]) -> Result<Vec<usize>, Problem> {
    list(given, "a list of words in quotes", |item| one_of(item, names))
}

fn none_of(given: &SourcedValue, names: &[&str]) -> Problem {
    let quoted: Vec<_> = names.iter().map(|name| format!("\"{name}\"")).collect();
    let what = format!("one of {}", quoted.join(", "));
    match given.text() {
        Some(_) => Problem::new(format!("expected {what}")),
        None => Problem::expected(&what, given),
    }
}

impl Choice for Maximise {
    const NAMES: &'static [(&'static str, Maximise)] =
        &[("speed", Maximise::Speed), ("cost", Maximise::Cost), ("balance", Maximise::Balance)];
}

impl Choice for ExecutorClass {
    const NAMES: &'static [(&'static str, ExecutorClass)] = &[
        ("inference", ExecutorClass::Inference),
        ("train", ExecutorClass::Train),
        ("aggregate", ExecutorClass::Aggregate),
    ];
}

pub(crate) fn text<'a>(given: &'a SourcedValue, what: &str) -> Result<&'a str, Problem> {
    match given.text() {
        Some("") => Err(Problem::new(format!("expected {what}, found an empty string"))),
        Some(text) if text.contains('\0') => {
            Err(Problem::new(format!("expected {what}, found a string with a NUL byte")))
        }
        Some(text) => Ok(text),
        None => Err(Problem::expected(what, given)),
    }
}

pub(crate) fn switch(given: &SourcedValue) -> Result<bool, Problem> {
    match &given.raw {
        Raw::Switch(switch) => Ok(*switch),
        Raw::Bare(text) if text == "true" => Ok(true),
        Raw::Bare(text) if text == "false" => Ok(false),
        _ => Err(Problem::expected("true or false", given)),
    }
}

/// The items of a list, each parsed by `item`.
pub(crate) fn list<T>(
    given: &SourcedValue,
    what: &str,
    item: impl Fn(&SourcedValue) -> Result<T, Problem>,
) -> Result<Vec<T>, Problem> {
    let Raw::List(items) = &given.raw else {
        return Err(Problem::expected(what, given));
    };
    let parse = |(index, one): (usize, &SourcedValue)| {
        item(one).map_err(|mut problem| {
            // The items of a variable or a flag have no positions.
            if items.len() > 1 && !matches!(one.origin, Origin::File(_)) {
                problem.message = format!("item {}: {}", index + 1, problem.message);
            }
            problem.at(one)
        })
    };
    items.iter().enumerate().map(parse).collect()
}

pub(crate) fn networks(given: &SourcedValue) -> Result<Vec<IpNet>, Problem> {
    list(given, NETWORKS, |item| {
        let wrong = || Problem::new("expected an address range such as \"10.0.0.0/8\"");
        let net: IpNet = item.text().ok_or_else(wrong)?.parse().map_err(|_| wrong())?;
        if net != net.trunc() {
            // Taken literally, it would cover more addresses than it seems to; refuse it.
            return Err(Problem::new(
                "the address has bits beyond its prefix length: give the first address of the range",
            ));
        }
        Ok(net)
    })
}

pub(crate) fn socket(given: &SourcedValue) -> Result<SocketAddr, Problem> {
    let text = given.text().ok_or_else(|| Problem::expected(SOCKET, given))?;
    text.parse().map_err(|_| Problem::new(format!("expected {SOCKET}")))
}

pub(crate) fn label(given: &SourcedValue) -> Result<Name, Problem> {
    let text = given.text().ok_or_else(|| Problem::expected("a name in quotes", given))?;
    text.parse().map_err(|error| Problem::new(format!("not a name: {error}")))
}

pub(crate) fn labels(given: &SourcedValue) -> Result<Vec<Name>, Problem> {
    list(given, LABELS, label)
}

/// The filter's grammar is richer than this check, which only catches typos: a misspelt level would be taken
/// as the name of a target, and nothing would be logged.
pub(crate) fn log_filter(given: &SourcedValue) -> Result<String, Problem> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let filter = text(given, LOG_FILTER)?;
    let known = |level: &str| LEVELS.contains(&level.trim().to_ascii_lowercase().as_str());
    // A filter by span fields has commas and equals signs of its own.
    let fine = filter.contains('[')
        || filter.split(',').all(|part| match part.rsplit_once('=') {
            Some((target, level)) => !target.trim().is_empty() && known(level),
            None => known(part),
        });
    if fine { Ok(filter.to_owned()) } else { Err(Problem::new(format!("expected {LOG_FILTER}"))) }
}

/// A strategy with its default parameters. The parser's own message is not used: it repeats the input.
pub(crate) fn strategy(given: &SourcedValue) -> Result<Strategy, Problem> {
    let found = given.text().and_then(|text| text.parse().ok());
    found.ok_or_else(|| none_of(given, &Strategy::all().map(|strategy| strategy.name())))
}

/// The names of all strategies, in both spellings.
pub(crate) fn strategy_names() -> Vec<String> {
    let both = |strategy: Strategy| {
        let name = strategy.name();
        let hyphens = name.replace('_', "-");
        let other = (hyphens != name).then_some(hyphens);
        std::iter::once(name.to_owned()).chain(other)
    };
    Strategy::all().into_iter().flat_map(both).collect()
}

pub(crate) fn ratio(given: &SourcedValue) -> Result<f64, Problem> {
    let number = given.number().ok_or_else(|| Problem::expected(RATIO, given))?;
    match number.parse::<f64>() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
        _ => Err(Problem::new(format!("expected {RATIO}"))),
    }
}

/// A share, in thousandths.
pub(crate) fn share(given: &SourcedValue) -> Result<u16, Problem> {
    let number = given.number().ok_or_else(|| Problem::expected(SHARE, given))?;
    match number.parse::<f64>() {
        Ok(share) if (0.01..=0.99).contains(&share) => Ok((share * 1e3).round() as u16),
        _ => Err(Problem::new(format!("expected {SHARE}"))),
    }
}

pub(crate) fn number(given: &SourcedValue) -> Result<f64, Problem> {
    let number = given.number().ok_or_else(|| Problem::expected(NUMBER, given))?;
    let finite = number.parse().ok().filter(|number: &f64| number.is_finite());
    finite.ok_or_else(|| Problem::new(format!("expected {NUMBER}")))
}

pub(crate) fn count(given: &SourcedValue, min: u32, max: u32) -> Result<u32, Problem> {
    let expected = || Problem::expected("a whole number", given);
    let count = amount::parse_count("", given.number().ok_or_else(expected)?, max)?;
    if count < min {
        return Err(Problem::new(format!("the value is too small: the least is {min}")));
    }
    Ok(count)
}

pub(crate) fn seconds(
    given: &SourcedValue,
    min: Duration,
    max: Duration,
) -> Result<Duration, Problem> {
    let expected =
        || Problem::expected("a number of seconds such as 60, or a string such as \"5m\"", given);
    let written = given.number().or_else(|| given.text()).ok_or_else(expected)?;
    within(Duration::from_micros(amount::parse_seconds("", written)?.as_micros()), min, max)
}

/// A bare number counts milliseconds; a string states its unit.
pub(crate) fn millis(
    given: &SourcedValue,
    min: Duration,
    max: Duration,
) -> Result<Duration, Problem> {
    let expected =
        || Problem::expected("a number of milliseconds such as 100, or \"100ms\"", given);
    let written = given.number().or_else(|| given.text()).ok_or_else(expected)?;
    let micros = amount::parse_seconds("", written)?.as_micros();
    let bare = written.trim_end().ends_with(|last: char| last.is_ascii_digit() || last == '.');
    within(Duration::from_micros(if bare { micros / 1_000 } else { micros }), min, max)
}

fn within(span: Duration, min: Duration, max: Duration) -> Result<Duration, Problem> {
    let shown = |bound: Duration| match bound.subsec_nanos() {
        0 => format!("{} seconds", bound.as_secs()),
        _ => format!("{} milliseconds", bound.as_micros() as f64 / 1e3),
    };
    if span < min {
        Err(Problem::new(format!("the value is too small: the least is {}", shown(min))))
    } else if span > max {
        Err(Problem::new(format!("the value is too large: the most is {}", shown(max))))
    } else {
        Ok(span)
    }
}

/// A size that may be small. The bounds are powers of two.
pub(crate) fn size(given: &SourcedValue, min: u64, max: u64) -> Result<u64, Problem> {
    let expected = || Problem::expected("a number of bytes or a string such as \"1MiB\"", given);
    let shown = |bytes: u64| match bytes.trailing_zeros() / 10 {
        0 => format!("{bytes} bytes"),
        1 => format!("{}KiB", bytes >> 10),
        2 => format!("{}MiB", bytes >> 20),
        _ => format!("{}GiB", bytes >> 30),
    };
    let written = given.number().or_else(|| given.text()).ok_or_else(expected)?;
    let bytes = amount::parse_bytes("", written)?;
    if bytes < min {
        let problem = format!("{bytes} bytes are too few: the least is {}", shown(min));
        Err(Problem::new(problem + "; write a unit, such as \"1MiB\""))
    } else if bytes > max {
        Err(Problem::new(format!("the value is too large: the most is {}", shown(max))))
    } else {
        Ok(bytes)
    }
}

pub(crate) fn bytes(given: &SourcedValue) -> Result<u64, Problem> {
    let expected = || Problem::expected("a number of bytes or a string such as \"16GiB\"", given);
    let written = given.number().or_else(|| given.text()).ok_or_else(expected)?;
    let bytes = above_zero(amount::parse_bytes("", written)?)?;
    // No machine offers 16 bytes of memory: a unit was forgotten.
    if bytes < MIN_BARE_BYTES {
        let problem = format!("{bytes} bytes are too few; write a unit, such as \"16GiB\"");
        return Err(Problem::new(problem));
    }
    Ok(bytes)
}

/// Thousandths of a core.
pub(crate) fn cores(given: &SourcedValue) -> Result<u64, Problem> {
    let expected = || Problem::expected("a number of cores such as 4 or 0.5", given);
    above_zero(amount::parse_milli("", given.number().ok_or_else(expected)?)?)
}

pub(crate) fn price(given: &SourcedValue) -> Result<Money, Problem> {
    let expected = || Problem::expected("a price such as 1.25", given);
    Ok(Money::parse("", given.number().ok_or_else(expected)?)?)
}

fn above_zero(amount: u64) -> Result<u64, Problem> {
    if amount == 0 { Err(Problem::new("the value must be above zero")) } else { Ok(amount) }
}
