//! Strings that are passed on unchanged: arguments, variables, paths.

use std::collections::BTreeMap;

use super::{PATH, Problem, list, text};
use crate::sourced_value::{Origin, Raw, SourcedValue};

const TEXTS: &str = "a list of strings such as [\"-u\", \"serve.py\"]";
const PATHS: &str = "a list of paths such as [\"/srv/models\"]";
const ENVIRONMENT: &str = "a table of strings such as { HF_HUB_OFFLINE = \"1\" }";

pub(crate) fn texts(given: &SourcedValue) -> Result<Vec<String>, Problem> {
    list(given, TEXTS, |item| passable(item).map(str::to_owned))
}

/// Paths as written, each with its origin, which decides what it is relative to.
pub(crate) fn paths(given: &SourcedValue) -> Result<Vec<(&str, &Origin)>, Problem> {
    let Raw::List(items) = &given.raw else { return Err(Problem::expected(PATHS, given)) };
    let one = |item| text(item, PATH).map_err(|problem| problem.at(item));
    items.iter().map(|item| Ok((one(item)?, &item.origin))).collect()
}

/// Variables for a program. Values may be secrets: no message repeats one.
pub(crate) fn environment(given: &SourcedValue) -> Result<BTreeMap<String, String>, Problem> {
    let Raw::Table(table) = &given.raw else { return Err(Problem::expected(ENVIRONMENT, given)) };
    let variable = |(name, (_, value)): (&String, &(Origin, SourcedValue))| {
        if name.is_empty() || name.contains(['=', '\0']) {
            let message = "a variable's name must not be empty or contain an equals sign";
            return Err(Problem::new(message).at(value));
        }
        let text = passable(value).map_err(|problem| problem.at(value))?;
        Ok((name.clone(), text.to_owned()))
    };
    table.iter().map(variable).collect()
}

/// A string that the system can pass to a program.
fn passable(given: &SourcedValue) -> Result<&str, Problem> {
    match given.text() {
        Some(text) if text.contains('\0') => {
            Err(Problem::new("a string must not contain a NUL byte"))
        }
        Some(text) => Ok(text),
        None => Err(Problem::expected("a string in quotes", given)),
    }
}
