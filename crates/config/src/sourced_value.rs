//! Values as they were given, each with its origin: the tree in which file, environment and flags are merged.

use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::diagnostic::Position;

/// The origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The file.
    File(Position),
    /// An environment variable.
    Variable(String),
    /// A flag.
    Flag(&'static str),
    /// The table of keys.
    Default,
}

/// A value and its origin.
#[derive(Clone, Debug)]
pub(crate) struct SourcedValue {
    pub(crate) raw: Raw,
    pub(crate) origin: Origin,
}

/// A value whose kind has not been checked.
#[derive(Clone, Debug)]
pub(crate) enum Raw {
    Text(String),
    /// A number in decimal digits, as written.
    Number(String),
    Switch(bool),
    /// A date or a time, which no key accepts.
    Date,
    /// From the environment or a flag, where a number, a boolean and a string look alike.
    Bare(String),
    List(Vec<SourcedValue>),
    Table(Table),
}

/// A table: for each key, its position and its value.
pub(crate) type Table = BTreeMap<String, (Origin, SourcedValue)>;

impl SourcedValue {
    pub(crate) fn new(raw: Raw, origin: Origin) -> SourcedValue {
        SourcedValue { raw, origin }
    }

    /// Its kind, for "found …".
    pub(crate) fn what(&self) -> &'static str {
        match self.raw {
            Raw::Text(_) => "a string",
            Raw::Number(_) => "a number",
            Raw::Switch(_) => "a boolean",
            Raw::Date => "a date",
            Raw::Bare(_) => "something else",
            Raw::List(_) => "a list",
            Raw::Table(_) => "a table",
        }
    }

    /// The value as a string, if it may be one.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.raw {
            Raw::Text(text) | Raw::Bare(text) => Some(text),
            _ => None,
        }
    }

    /// The value as a number, if it may be one.
    pub(crate) fn number(&self) -> Option<&str> {
        match &self.raw {
            Raw::Number(text) | Raw::Bare(text) => Some(text),
            _ => None,
        }
    }
}

/// A file that is not TOML.
#[derive(Debug)]
pub(crate) struct InvalidToml {
    pub(crate) position: Option<Position>,
    pub(crate) message: String,
}

/// The tree of a TOML document.
pub(crate) fn document(text: &str) -> Result<Table, InvalidToml> {
    let table = DeTable::parse(text).map_err(|error| malformed(text, &error))?;
    let lines = Lines::new(text);
    Ok(convert_table(table.get_ref(), &|offset| Origin::File(lines.position(offset))))
}

/// One TOML value that came from `origin`; its own positions mean nothing to the user.
pub(crate) fn value(text: &str, origin: &Origin) -> Result<SourcedValue, InvalidToml> {
    let value = DeValue::parse(text).map_err(|error| malformed(text, &error))?;
    Ok(convert(&value, &|_| origin.clone()))
}

/// The parser's own `Display` quotes the source, its message does not.
fn malformed(text: &str, error: &toml::de::Error) -> InvalidToml {
    InvalidToml {
        position: error.span().map(|span| Position::of(text, span.start)),
        message: format!("not valid TOML: {}", error.message()),
    }
}

fn convert(value: &Spanned<DeValue<'_>>, origin: &dyn Fn(usize) -> Origin) -> SourcedValue {
    let raw = match value.get_ref() {
        DeValue::String(text) => Raw::Text(text.to_string()),
        DeValue::Integer(integer) => {
            // An integer beyond 128 bits stays as written: every kind refuses it.
            let written = integer.as_str();
            let decimal = i128::from_str_radix(written, integer.radix());
            Raw::Number(decimal.map_or_else(|_| written.to_owned(), |value| value.to_string()))
        }
        DeValue::Float(float) => Raw::Number(float.as_str().trim_start_matches('+').to_owned()),
        DeValue::Boolean(switch) => Raw::Switch(*switch),
        DeValue::Datetime(_) => Raw::Date,
        DeValue::Array(items) => Raw::List(items.iter().map(|i| convert(i, origin)).collect()),
        DeValue::Table(table) => Raw::Table(convert_table(table, origin)),
    };
    SourcedValue::new(raw, origin(value.span().start))
}

fn convert_table(table: &DeTable<'_>, origin: &dyn Fn(usize) -> Origin) -> Table {
    table
        .iter()
        .map(|(key, value)| {
            let at = origin(key.span().start);
            (key.get_ref().to_string(), (at, convert(value, origin)))
        })
        .collect()
}

/// The start of each line, so that a long file is not scanned again for each of its values.
struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn new(text: &'a str) -> Lines<'a> {
        let after_newlines = text.match_indices('\n').map(|(newline, _)| newline + 1);
        Lines { text, starts: std::iter::once(0).chain(after_newlines).collect() }
    }

    fn position(&self, offset: usize) -> Position {
        let index = self.starts.partition_point(|start| *start <= offset).saturating_sub(1);
        let start = self.starts.get(index).copied().unwrap_or(0);
        let within = Position::of(self.text.get(start..).unwrap_or(""), offset - start);
        Position { line: index + within.line, column: within.column }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_know_their_place() {
        let text = "a = 1\n'ä' = [2,\n  'x']\n[s]\nb = 0x1F\n[[t]]\n[[t]]\nc.d = +1.5\n";
        let tree = document(text).unwrap();
        let at = |given: &SourcedValue| match &given.origin {
            Origin::File(position) => (position.line, position.column),
            other => panic!("{other:?}"),
        };
        assert_eq!(at(&tree["a"].1), (1, 5));
        let Raw::List(items) = &tree["ä"].1.raw else { panic!() };
        assert_eq!((at(&items[0]), at(&items[1])), ((2, 8), (3, 3)));
        let Raw::Table(section) = &tree["s"].1.raw else { panic!() };
        assert_eq!(section["b"].1.number(), Some("31"));
        let Raw::List(entries) = &tree["t"].1.raw else { panic!() };
        assert_eq!((at(&entries[0]), at(&entries[1])), ((6, 1), (7, 1)));
        let Raw::Table(entry) = &entries[1].raw else { panic!() };
        let Raw::Table(dotted) = &entry["c"].1.raw else { panic!() };
        assert_eq!(dotted["d"].1.number(), Some("1.5"));
    }
}
