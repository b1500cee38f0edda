//! Applies environment and flags to the file: later ones win, key by key; a list replaces a list.

use hypha_model::NodeRole;

use crate::check::Context;
use crate::diagnostic::{Diagnostic, SourceLocation};
use crate::key::{Key, Kind};
use crate::keys;
use crate::sourced_value::{self, Origin, Raw, SourcedValue, Table};
use crate::suggest;

/// The prefix of a variable that stands for a key.
const PREFIX: &str = "HYPHA_";

/// The flags that stand for keys, as they were typed. An empty one was not given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// `--gateway`, for `gateway_addresses`.
    pub gateway: Vec<String>,
    /// `--listen`, for `listen_addresses`.
    pub listen: Vec<String>,
    /// `--external`, for `external_addresses`.
    pub external: Vec<String>,
    /// `--relay-circuit`, for `relay_circuit`.
    pub relay_circuit: Option<bool>,
    /// `--exclude-cidr`, for `exclude_cidr`.
    pub exclude_cidr: Vec<String>,
}

/// Applies `flags` to `tree`.
pub(crate) fn flags(tree: &mut Table, flags: &Flags) {
    let lists = [
        ("--gateway", "gateway_addresses", &flags.gateway),
        ("--listen", "listen_addresses", &flags.listen),
        ("--external", "external_addresses", &flags.external),
        ("--exclude-cidr", "exclude_cidr", &flags.exclude_cidr),
    ];
    for (flag, key, values) in lists.into_iter().filter(|(_, _, values)| !values.is_empty()) {
        let item = |text: &String| SourcedValue::new(Raw::Bare(text.clone()), Origin::Flag(flag));
        let list = Raw::List(values.iter().map(item).collect());
        put(tree, key, list, Origin::Flag(flag));
    }
    if let Some(on) = flags.relay_circuit {
        put(tree, "relay_circuit", Raw::Switch(on), Origin::Flag("--relay-circuit"));
    }
}

fn put(table: &mut Table, key: &str, raw: Raw, origin: Origin) {
    table.insert(key.to_owned(), (origin.clone(), SourcedValue::new(raw, origin)));
}

/// Applies the `HYPHA_*` variables to `tree`. An empty one counts as not set.
///
/// A variable of another role is skipped, because roles may share an environment. So is one that matches no
/// key at all, because other software invents such names too (Kubernetes makes `HYPHA_GATEWAY_PORT` of a
/// service called `hypha-gateway`); but one that is nearly a key is a typo, and an error.
pub(crate) fn environment(
    tree: &mut Table,
    environment: &[(String, String)],
    context: &Context<'_>,
) -> Vec<Diagnostic> {
    let own = variables(context.role);
    let others: Vec<_> = NodeRole::ALL.into_iter().flat_map(variables).collect();
    let mut found = Vec::new();
    for (name, text) in environment.iter().filter(|(name, _)| name.starts_with(PREFIX)) {
        if text.is_empty() {
            continue;
        }
        let location = SourceLocation::Variable(name.clone());
        if let Some((_, path, key)) = own.iter().find(|(variable, _, _)| variable == name) {
            match read(key, text, &Origin::Variable(name.clone())) {
                Ok(given) => insert(tree, path, given),
                Err(message) => found.push(Diagnostic { location, message }),
            }
        } else if !others.iter().any(|(variable, _, _)| variable == name)
            && let Some(close) = closest(name, &others)
        {
            let message = format!("matches no key; did you mean {close}?");
            found.push(Diagnostic { location, message });
        }
    }
    found
}

/// Each key that a variable can set: the variable, the key's path, the key.
fn variables(role: NodeRole) -> Vec<(String, Vec<&'static str>, &'static Key)> {
    let mut all = Vec::new();
    for key in keys::of(role) {
        below(key, &[], &mut all);
    }
    let name = |path: &[&str]| format!("{PREFIX}{}", path.join("__").to_uppercase());
    all.into_iter().map(|(path, key)| (name(&path), path, key)).collect()
}

fn below(
    key: &'static Key,
    within: &[&'static str],
    all: &mut Vec<(Vec<&'static str>, &'static Key)>,
) {
    let path = [within, &[key.name]].concat();
    match key.kind {
        Kind::Section(keys) => keys.iter().for_each(|inner| below(inner, &path, all)),
        _ => all.push((path, key)),
    }
}

/// The comparison ignores the prefix: it would make short names look alike.
fn closest<'a>(
    name: &str,
    known: &'a [(String, Vec<&'static str>, &'static Key)],
) -> Option<&'a str> {
    let rest = |name: &'a str| name.strip_prefix(PREFIX).unwrap_or(name);
    let name = name.strip_prefix(PREFIX).unwrap_or(name);
    let close = suggest::closest(name, known.iter().map(|(variable, _, _)| rest(variable)))?;
    known.iter().map(|(variable, _, _)| variable.as_str()).find(|one| rest(one) == close)
}

fn read(key: &Key, text: &str, origin: &Origin) -> Result<SourcedValue, String> {
    let bare = |text: &str| SourcedValue::new(Raw::Bare(text.to_owned()), origin.clone());
    if !key.kind.is_list() {
        return Ok(bare(text.trim()));
    }
    if text.trim_start().starts_with('[') {
        return sourced_value::value(text.trim(), origin).map_err(|malformed| malformed.message);
    }
    if let Kind::Entries(_) = key.kind {
        return Err("expected a TOML list of tables such as [{ name = \"…\" }]".to_owned());
    }
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    Ok(SourcedValue::new(Raw::List(items.map(bare).collect()), origin.clone()))
}

/// Puts `given` at `path`, unless a parent is not a table: that fault of the file is reported elsewhere.
fn insert(tree: &mut Table, path: &[&str], given: SourcedValue) {
    let Some((last, sections)) = path.split_last() else { return };
    let mut table = tree;
    for section in sections {
        let origin = given.origin.clone();
        let empty = (origin.clone(), SourcedValue::new(Raw::Table(Table::new()), origin));
        match &mut table.entry((*section).to_owned()).or_insert(empty).1.raw {
            Raw::Table(inner) => table = inner,
            _ => return,
        }
    }
    table.insert((*last).to_owned(), (given.origin.clone(), given));
}
