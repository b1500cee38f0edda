//! Typed access to a checked tree: the value that was given, else the table's default.

use std::path::PathBuf;

use crate::check::Context;
use crate::diagnostic::Diagnostic;
use crate::key::Key;
use crate::keys;
use crate::parse::{self, Problem};
use crate::sourced_value::{Origin, Raw, SourcedValue, Table};

static EMPTY: Table = Table::new();

/// One table of a configuration with the keys that it may have.
pub struct Reader<'a> {
    pub(crate) context: &'a Context<'a>,
    table: &'a Table,
    keys: Vec<&'static Key>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(tree: &'a Table, context: &'a Context<'a>) -> Reader<'a> {
        Reader { context, table: tree, keys: keys::of(context.role).collect() }
    }

    /// The value of `name` as `parse` reads it, or its default, or `None` if it has no default.
    pub(crate) fn optional<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&SourcedValue) -> Result<T, Problem>,
    ) -> Result<Option<T>, Diagnostic> {
        let default = match self.table.contains_key(name) {
            true => None,
            false => self.key(name)?.default_value(self.context.role),
        };
        let Some(given) = self.given(name).or(default.as_ref()) else { return Ok(None) };
        parse(given).map(Some).map_err(|problem| {
            let origin = problem.origin.as_ref().unwrap_or(&given.origin);
            self.context.diagnostic(origin, name, &problem.message)
        })
    }

    /// The value of a key that is required or has a default.
    pub(crate) fn get<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&SourcedValue) -> Result<T, Problem>,
    ) -> Result<T, Diagnostic> {
        let value = self.optional(name, parse)?;
        value.ok_or_else(|| self.fault(name, "is missing"))
    }

    pub(crate) fn path(&self, name: &str) -> Result<Option<PathBuf>, Diagnostic> {
        self.optional(name, |given| {
            Ok(self.context.path(parse::text(given, parse::PATH)?, &given.origin))
        })
    }

    pub(crate) fn required_path(&self, name: &str) -> Result<PathBuf, Diagnostic> {
        self.path(name)?.ok_or_else(|| self.fault(name, "is missing"))
    }

    pub(crate) fn paths(&self, name: &str) -> Result<Vec<PathBuf>, Diagnostic> {
        self.get(name, |given| {
            let written = parse::paths(given)?;
            Ok(written.into_iter().map(|(text, origin)| self.context.path(text, origin)).collect())
        })
    }

    /// A program: a bare name stays one, anything else is a path.
    pub(crate) fn program(&self, name: &str) -> Result<Option<PathBuf>, Diagnostic> {
        self.optional(name, |given| {
            let written = parse::text(given, parse::PATH)?;
            Ok(match written.contains('/') {
                true => self.context.path(written, &given.origin),
                false => PathBuf::from(written),
            })
        })
    }

    /// The section `name`, empty if it was not given.
    pub(crate) fn section(&self, name: &str) -> Result<Reader<'a>, Diagnostic> {
        let keys = self.key(name)?.below().iter().collect();
        let table = match self.given(name).map(|given| &given.raw) {
            Some(Raw::Table(table)) => table,
            _ => &EMPTY,
        };
        Ok(Reader { context: self.context, table, keys })
    }

    /// The entries of `name`, if it was given.
    pub(crate) fn entries(&self, name: &str) -> Result<Option<Vec<Reader<'a>>>, Diagnostic> {
        let below = self.key(name)?.below();
        let Some(given) = self.given(name) else { return Ok(None) };
        let Raw::List(items) = &given.raw else { return Ok(None) };
        let entry = |item: &'a SourcedValue| match &item.raw {
            Raw::Table(table) => {
                Some(Reader { context: self.context, table, keys: below.iter().collect() })
            }
            _ => None,
        };
        Ok(Some(items.iter().filter_map(entry).collect()))
    }

    /// The value of `name` as it was given.
    pub(crate) fn given(&self, name: &str) -> Option<&'a SourcedValue> {
        self.table.get(name).map(|(_, given)| given)
    }

    /// The origin of the value of `name`, if it was given and is not the default.
    pub(crate) fn changed<T: PartialEq>(
        &self,
        name: &str,
        parse: impl Fn(&SourcedValue) -> Result<T, Problem>,
    ) -> Result<Option<&'a Origin>, Diagnostic> {
        let Some(given) = self.given(name) else { return Ok(None) };
        let default = self.key(name)?.default_value(self.context.role);
        let usual = default.and_then(|default| parse(&default).ok());
        let same = usual.is_some() && self.optional(name, parse)? == usual;
        Ok((!same).then_some(&given.origin))
    }

    /// A fault of the value of `name` that depends on other values.
    pub(crate) fn fault(&self, name: &str, message: &str) -> Diagnostic {
        let origin = self.given(name).map_or(&Origin::Default, |given| &given.origin);
        self.context.diagnostic(origin, name, message)
    }

    /// Reading a key that is not in the table is a bug in this crate. It fails for every input, so that no
    /// test misses it.
    fn key(&self, name: &str) -> Result<&'static Key, Diagnostic> {
        let known = self.keys.iter().find(|key| key.name == name);
        known.copied().ok_or_else(|| self.fault(name, "is not in the table of keys"))
    }
}
