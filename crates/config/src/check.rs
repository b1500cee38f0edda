//! Checks the tree against the table of keys: unknown and missing keys, wrong types, files that do not exist.
//! Reports all faults at once, so that a configuration can be corrected in one pass.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use hypha_model::NodeRole;

use crate::diagnostic::{Diagnostic, SourceLocation};
use crate::key::{Key, Kind};
use crate::keys;
use crate::sourced_value::{Origin, Raw, SourcedValue, Table};
use crate::suggest;

/// Context that the values of one configuration share.
pub(crate) struct Context<'a> {
    /// The file as the user named it.
    pub(crate) file: &'a Path,
    pub(crate) role: NodeRole,
}

impl Context<'_> {
    /// `message` about the value of `key`, which came from `origin`.
    pub(crate) fn diagnostic(&self, origin: &Origin, key: &str, message: &str) -> Diagnostic {
        let (location, message) = match origin {
            Origin::File(position) => {
                let location = SourceLocation::File(self.file.to_owned(), Some(*position));
                (location, format!("`{key}`: {message}"))
            }
            Origin::Default => {
                (SourceLocation::File(self.file.to_owned(), None), format!("`{key}`: {message}"))
            }
            Origin::Variable(name) => (SourceLocation::Variable(name.clone()), message.to_owned()),
            Origin::Flag(name) => (SourceLocation::Flag(name), message.to_owned()),
        };
        Diagnostic { location, message }
    }

    /// The origin of a value, for a warning: the file and the line, or the variable or flag.
    pub(crate) fn at(&self, origin: &Origin) -> String {
        match origin {
            Origin::File(position) => format!("{}:{}", self.file.display(), position.line),
            Origin::Variable(name) => name.clone(),
            Origin::Flag(name) => (*name).to_owned(),
            Origin::Default => self.file.display().to_string(),
        }
    }

    /// The path that `written` means. A path in the file is relative to the file, so that a node can be
    /// started from anywhere; any other is relative to the working directory, as in any shell.
    pub(crate) fn path(&self, written: &str, origin: &Origin) -> PathBuf {
        match (origin, self.file.parent()) {
            (Origin::File(_) | Origin::Default, Some(directory)) => directory.join(written),
            _ => PathBuf::from(written),
        }
    }
}

/// Every fault of `tree`.
pub(crate) fn check(tree: &Table, context: &Context<'_>) -> Vec<Diagnostic> {
    let mut checker = Checker { context, found: Vec::new() };
    let keys: Vec<_> = keys::of(context.role).collect();
    checker.table(tree, &keys, "", None);
    checker.found
}

struct Checker<'a> {
    context: &'a Context<'a>,
    found: Vec<Diagnostic>,
}

impl Checker<'_> {
    fn table(&mut self, table: &Table, keys: &[&Key], section: &str, at: Option<&Origin>) {
        for (name, (origin, given)) in table {
            match keys.iter().find(|key| key.name == name) {
                Some(key) => self.value(key, given, &join(section, name)),
                None => {
                    let location = self.context.diagnostic(origin, "", "").location;
                    let message = unknown(name, keys, section, self.context.role);
                    self.found.push(Diagnostic { location, message });
                }
            }
        }
        for key in keys.iter().filter(|key| key.required() && !table.contains_key(key.name)) {
            let location = self.context.diagnostic(at.unwrap_or(&Origin::Default), "", "").location;
            let doc = key.doc.split_once(". ").map_or(key.doc, |(first, _)| first);
            let mut doc = doc.trim_end_matches('.').to_owned();
            if let Some(first) = doc.get_mut(..1) {
                first.make_ascii_lowercase();
            }
            let message = format!("`{}` is missing: {doc}", join(section, key.name));
            self.found.push(Diagnostic { location, message });
        }
    }

    fn value(&mut self, key: &Key, given: &SourcedValue, path: &str) {
        if let Err(problem) = key.kind.check(given) {
            let origin = problem.origin.as_ref().unwrap_or(&given.origin);
            self.found.push(self.context.diagnostic(origin, path, &problem.message));
            return;
        }
        let below: Vec<&Key> = key.below().iter().collect();
        match (key.kind, &given.raw) {
            (Kind::File | Kind::Path | Kind::Directory, _) => self.exists(key.kind, given, path),
            // A bare name is resolved when it is run.
            (Kind::Program, _) if given.text().is_some_and(|text| text.contains('/')) => {
                self.exists(Kind::File, given, path);
            }
            (Kind::Paths, Raw::List(items)) => {
                items.iter().for_each(|item| self.exists(Kind::Path, item, path));
            }
            (Kind::Environment | Kind::Priorities, _) => {}
            (_, Raw::Table(table)) => self.table(table, &below, path, Some(&given.origin)),
            (Kind::Entries(_), Raw::List(entries)) => {
                for entry in entries {
                    if let Raw::Table(table) = &entry.raw {
                        self.table(table, &below, path, Some(&entry.origin));
                    }
                }
            }
            _ => {}
        }
    }

    fn exists(&mut self, kind: Kind, given: &SourcedValue, path: &str) {
        let file = self.context.path(given.text().unwrap_or(""), &given.origin);
        let shown = file.display();
        let message = match (std::fs::metadata(&file), kind) {
            (Ok(found), Kind::File) if found.is_dir() => {
                format!("expected a file, found the directory {shown}")
            }
            (Ok(found), Kind::Directory) if !found.is_dir() => {
                format!("expected a directory, found the file {shown}")
            }
            (Ok(_), _) => return,
            (Err(error), Kind::Directory) if error.kind() == ErrorKind::NotFound => return,
            (Err(error), _) if error.kind() == ErrorKind::NotFound => {
                format!("there is no file {shown}: put it there or change the path")
            }
            (Err(error), _) => format!("cannot access {shown}: {error}"),
        };
        self.found.push(self.context.diagnostic(&given.origin, path, &message));
    }
}

fn join(section: &str, name: &str) -> String {
    if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") }
}

fn unknown(name: &str, keys: &[&Key], section: &str, role: NodeRole) -> String {
    // Enough to recognise it, too little to flood a log.
    const MAX_SHOWN: usize = 64;
    let shown: String = name.chars().take(MAX_SHOWN).flat_map(char::escape_debug).collect();
    let within = if section.is_empty() { String::new() } else { format!(" in `[{section}]`") };
    let hint = elsewhere(name, section, role)
        .or_else(|| {
            let close = suggest::closest(name, keys.iter().map(|key| key.name))?;
            Some(format!("; did you mean `{close}`?"))
        })
        .unwrap_or_default();
    format!("unknown key `{shown}`{within}{hint}")
}

/// A key that is valid in another section. A line added at the end of a file silently belongs to the last
/// section, which its author rarely expects.
fn elsewhere(name: &str, section: &str, role: NodeRole) -> Option<String> {
    if !section.is_empty() && keys::of(role).any(|key| key.name == name) {
        return Some("; it belongs at the top, above the first section".to_owned());
    }
    let mut headers = Vec::new();
    headers_with(name, keys::of(role), "", &mut headers);
    headers.retain(|(path, _)| path != section);
    // A section nested in this one is a better guess than one further away.
    let below = |path: &str| path.strip_prefix(section).is_some_and(|rest| rest.starts_with('.'));
    let nearest = headers.iter().find(|(path, _)| below(path)).or(headers.first());
    if let Some((_, header)) = nearest {
        return Some(format!("; it belongs under `{header}`"));
    }
    let has = |role: &NodeRole| keys::own(*role).iter().any(|key| key.name == name);
    let others: Vec<_> =
        NodeRole::ALL.iter().filter(|role| has(role)).map(|r| r.as_str()).collect();
    let others = (section.is_empty() && !others.is_empty()).then(|| others.join(" or "))?;
    Some(format!("; it is for a {others} node, and this file is for a {role} node"))
}

/// The path and the header of each section that has a key `name`.
fn headers_with<'a>(
    name: &str,
    keys: impl Iterator<Item = &'a Key>,
    within: &str,
    found: &mut Vec<(String, String)>,
) {
    for key in keys {
        let path = join(within, key.name);
        if key.below().iter().any(|below| below.name == name) {
            let header = match key.kind {
                Kind::Entries(_) => format!("[[{path}]]"),
                _ => format!("[{path}]"),
            };
            found.push((path.clone(), header));
        }
        headers_with(name, key.below().iter(), &path, found);
    }
}
