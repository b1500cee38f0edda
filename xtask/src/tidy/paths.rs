//! The paths that a source file names (`std::fs::read`), with its `use` declarations seen through,
//! and which of its lines are test code.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use super::tokens::{Kind, Token, after_bracket, tokens};
use super::workspace::TextFile;

/// Something named in the source. `use std::{fs, io as i}` names `std::fs` and `std::io`; after
/// it, `i::Read` names `std::io::Read`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamedPath<'a> {
    /// `*` is the last of a glob import.
    pub(super) segments: Vec<&'a str>,
    pub(super) line: usize,
    /// The index of the token after the path.
    pub(super) end: usize,
}

impl NamedPath<'_> {
    /// Whether these segments follow one another somewhere in the path.
    pub(super) fn contains(&self, wanted: &[&str]) -> bool {
        self.segments.windows(wanted.len()).any(|window| window == wanted)
    }

    /// Whether the path is `wanted` or something in it, or a glob that may bring it in.
    pub(super) fn reaches(&self, wanted: &[&str]) -> bool {
        match self.segments.split_last() {
            Some((&"*", outer)) if outer.len() < wanted.len() => wanted.starts_with(outer),
            _ => self.segments.starts_with(wanted),
        }
    }
}

/// All paths of a file, outside `skipped` token ranges.
///
/// A name that two `use` declarations of the file bring in (in two modules, say) gives one path
/// for each, since scopes are not followed.
pub(super) fn named_paths<'a>(
    tokens: &[Token<'a>],
    skipped: &[Range<usize>],
) -> Vec<NamedPath<'a>> {
    let mut uses = Vec::new();
    let mut others = Vec::new();
    let mut index = 0;
    while index < tokens.len() {
        if let Some(range) = skipped.iter().find(|range| range.contains(&index)) {
            index = range.end;
        } else if opens_use(tokens, index) {
            index = use_tree(tokens, index + 1, &[], &mut uses);
        } else if opens_path(tokens, index) {
            let path = plain_path(tokens, index);
            index = path.end;
            others.push(path);
        } else {
            index += 1;
        }
    }

    let mut imported: BTreeMap<&str, Vec<Vec<&str>>> = BTreeMap::new();
    for (name, path) in &uses {
        imported.entry(name).or_default().push(path.segments.clone());
    }
    let mut paths: Vec<_> = uses.into_iter().map(|(_, path)| path).collect();
    for path in others {
        let meanings = path.segments.first().and_then(|first| imported.get(first));
        for outer in meanings.into_iter().flatten() {
            let segments = [outer.as_slice(), &path.segments[1..]].concat();
            paths.push(NamedPath { segments, ..path.clone() });
        }
        if meanings.is_none() {
            paths.push(path);
        }
    }
    paths
}

/// The token ranges of `#[cfg(test)] mod … { … }`.
pub(super) fn test_blocks(tokens: &[Token<'_>]) -> Vec<Range<usize>> {
    test_mods(tokens)
        .filter(|(_, body)| tokens.get(*body).is_some_and(|token| token.is_mark("{")))
        .map(|(start, body)| start..after_bracket(tokens, body))
        .collect()
}

/// The files that hold test code only, because `#[cfg(test)] mod …;` in another file names them
/// or a folder around them.
pub(super) fn test_modules(files: &[TextFile]) -> BTreeSet<String> {
    let mut stems = Vec::new();
    for file in files {
        let tokens = tokens(&file.text);
        for (_, after_name) in test_mods(&tokens) {
            if tokens.get(after_name).is_some_and(|token| token.is_mark(";")) {
                stems.push(format!(
                    "{}/{}",
                    module_folder(&file.path),
                    tokens[after_name - 1].text
                ));
            }
        }
    }
    let is_test = |path: &str| {
        stems.iter().any(|stem| {
            let rest = path.strip_prefix(stem.as_str());
            rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        })
    };
    files.iter().map(|file| &file.path).filter(|path| is_test(path)).cloned().collect()
}

/// Where the modules that a file declares are looked for.
fn module_folder(path: &str) -> String {
    let path = Path::new(path);
    let folder = path.parent().map(|parent| parent.display().to_string()).unwrap_or_default();
    match path.file_stem().and_then(|stem| stem.to_str()) {
        None | Some("lib" | "main" | "mod") => folder,
        Some(stem) => format!("{folder}/{stem}"),
    }
}

/// Each `#[cfg(test)] mod name`: where its attribute starts, and the index after its name.
fn test_mods(tokens: &[Token<'_>]) -> impl Iterator<Item = (usize, usize)> {
    (0..tokens.len()).filter(|&start| is_cfg_test(&tokens[start..])).filter_map(move |start| {
        let mut at = after_bracket(tokens, start + 1);
        while tokens.get(at)?.is_mark("#") {
            at = after_bracket(tokens, at + 1);
        }
        if tokens.get(at)?.is_word("pub") {
            at += 1;
            if tokens.get(at)?.is_mark("(") {
                at = after_bracket(tokens, at);
            }
        }
        tokens.get(at)?.is_word("mod").then_some((start, at + 2))
    })
}

/// `#[cfg(test)]` or `#[cfg(all(test, …))]`. `any(test, …)` is also built without tests.
fn is_cfg_test(tokens: &[Token<'_>]) -> bool {
    let texts: Vec<_> = tokens.iter().take(7).map(|token| token.text).collect();
    texts.starts_with(&["#", "[", "cfg", "(", "test", ")", "]"])
        || texts == ["#", "[", "cfg", "(", "all", "(", "test"]
}

fn opens_use(tokens: &[Token<'_>], index: usize) -> bool {
    // `use<'a>` in a type says what is captured.
    tokens[index].is_word("use") && !tokens.get(index + 1).is_some_and(|next| next.is_mark("<"))
}

fn opens_path(tokens: &[Token<'_>], index: usize) -> bool {
    let before = |steps: usize| index.checked_sub(steps).map(|at| &tokens[at]);
    let is_member = before(1).is_some_and(|token| token.is_mark("."))
        // `0..end` is no member access.
        && !before(2).is_some_and(|token| token.is_mark("."));
    tokens[index].kind == Kind::Word && !is_member
}

fn plain_path<'a>(tokens: &[Token<'a>], start: usize) -> NamedPath<'a> {
    let mut segments = vec![tokens[start].text];
    let mut end = start + 1;
    while let [separator, name, ..] = &tokens[end..] {
        if !separator.is_mark("::") || name.kind != Kind::Word {
            break;
        }
        segments.push(name.text);
        end += 2;
    }
    NamedPath { segments, line: tokens[start].line, end }
}

/// Reads one tree of a `use` declaration; returns the index of the token that ended it.
fn use_tree<'a>(
    tokens: &[Token<'a>],
    start: usize,
    outer: &[&'a str],
    found: &mut Vec<(&'a str, NamedPath<'a>)>,
) -> usize {
    let mut segments = outer.to_vec();
    let mut line = tokens.get(start).map_or(0, |token| token.line);
    let mut index = start;
    let mut renamed = None;
    while let Some(token) = tokens.get(index) {
        if token.is_mark("{") {
            let end = after_bracket(tokens, index);
            index += 1;
            while index + 1 < end {
                index = use_tree(tokens, index, &segments, found).min(end - 1);
                index += usize::from(tokens[index].is_mark(","));
            }
            return end;
        } else if token.is_word("as") {
            renamed = tokens.get(index + 1).map(|name| name.text);
            index += 1;
        } else if token.kind == Kind::Word || token.is_mark("*") {
            segments.push(token.text);
            line = token.line;
        } else if !token.is_mark("::") {
            break;
        }
        index += 1;
    }
    if segments.len() > 1 && segments.last() == Some(&"self") {
        segments.pop();
    }
    if let Some(&last) = segments.last() {
        found.push((renamed.unwrap_or(last), NamedPath { segments, line, end: index }));
    }
    // A mark that belongs in no tree would otherwise be met again for ever.
    index.max(start + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &str, expected: &[&str]) {
        let tokens = tokens(source);
        let paths = named_paths(&tokens, &test_blocks(&tokens));
        let found: Vec<_> = paths.iter().map(|path| path.segments.join("::")).collect();
        let found: Vec<_> = found.iter().map(String::as_str).collect();
        assert_eq!(found, expected, "{source}");
    }

    #[test]
    fn use_trees_are_spread_out() {
        check("use std::{fs, io::{self, Read as R}};", &["std::fs", "std::io", "std::io::Read"]);
        check("use std::collections::*;", &["std::collections::*"]);
        check("use ::std::{net,};", &["std::net"]);
        check("use a::{b}; c::d();", &["a::b", "c::d"]);
        check("use ; x::y", &["x::y"]);
    }

    #[test]
    fn names_are_seen_through_their_imports() {
        check(
            "use std::time::Instant as I; I::now()",
            &["std::time::Instant", "std::time::Instant::now"],
        );
        check("use std::env; env::var(x.env)", &["std::env", "std::env::var", "x"]);
    }

    #[test]
    fn test_blocks_are_left_out() {
        check("a::b #[cfg(test)] mod tests { c::d } e::f", &["a::b", "e::f"]);
        check("#[cfg(test)] #[allow(x)] pub(crate) mod t { c::d } e", &["e"]);
        check("#[cfg(all(test, unix))] mod t { c::d }", &[]);
        check(
            "#[cfg(any(test, unix))] mod t { c }",
            &["cfg", "any", "test", "unix", "mod", "t", "c"],
        );
    }

    #[test]
    fn test_modules_in_files_of_their_own_are_known() {
        let file = |path: &str, text: &str| TextFile { path: path.into(), text: text.into() };
        let found = test_modules(&[
            file("crates/a/src/lib.rs", "#[cfg(test)] mod tests; mod b;"),
            file("crates/a/src/tests.rs", ""),
            file("crates/a/src/tests/more.rs", ""),
            file("crates/a/src/b.rs", "#[cfg(test)] mod tests;"),
            file("crates/a/src/b/tests.rs", ""),
            file("crates/a/src/b/testsuite.rs", ""),
        ]);
        let expected =
            ["crates/a/src/b/tests.rs", "crates/a/src/tests.rs", "crates/a/src/tests/more.rs"];
        assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_glob_reaches_what_it_may_bring_in() {
        let path =
            |segments: &[&'static str]| NamedPath { segments: segments.to_vec(), line: 1, end: 0 };
        assert!(path(&["std", "*"]).reaches(&["std", "fs"]));
        assert!(path(&["std", "fs", "*"]).reaches(&["std", "fs"]));
        assert!(!path(&["std", "fmt", "*"]).reaches(&["std", "fs"]));
        assert!(!path(&["std"]).reaches(&["std", "fs"]));
    }
}
