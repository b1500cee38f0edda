//! What the sources of pure crates must not name: the outside world, clocks, chance from the
//! operating system, and maps without an order.

use super::Violation;
use super::paths::{NamedPath, named_paths, test_blocks};
use super::tokens::{Kind, Token, macro_calls, tokens};
use super::workspace::TextFile;

/// The one file that may name the hash maps of std: it wraps them so that nobody can iterate.
const MAP_WRAPPER: &str = "crates/model/src/map.rs";

const OUTSIDE: &str = "pure code does not touch the outside: return it in the step and let a \
                       driver carry it out";
const CLOCK: &str = "pure code reads no clock: take the time as an argument";
const CHANCE: &str = "pure code has no chance of its own: draw from a generator made of the seed \
                      that was given";
const UNORDERED: &str = "its order differs from run to run: use `Map` or `Set` of the model \
                         crate, or a `BTreeMap` or `BTreeSet`";
const PRINTING: &str = "pure code prints nothing: return the text, or make it an outcome";

/// Paths that nothing in a pure crate may start with.
const ROOTS: &[(&[&str], &str)] = &[
    (&["std", "fs"], OUTSIDE),
    (&["std", "net"], OUTSIDE),
    (&["std", "process"], OUTSIDE),
    (&["std", "env"], OUTSIDE),
    (&["std", "thread"], OUTSIDE),
    (&["tokio"], OUTSIDE),
    (&["libp2p"], OUTSIDE),
    (&["rand", "rng"], CHANCE),
    (&["rand", "random"], CHANCE),
];

/// Kept apart from [`ROOTS`] because [`MAP_WRAPPER`] may use them.
const UNORDERED_ROOTS: &[&[&str]] = &[
    &["std", "collections", "HashMap"],
    &["std", "collections", "HashSet"],
    &["std", "collections", "hash_map"],
    &["std", "collections", "hash_set"],
];

/// Parts of paths: the type may come from anywhere.
const PARTS: &[(&[&str], &str)] = &[
    (&["Instant", "now"], CLOCK),
    (&["SystemTime", "now"], CLOCK),
    (&["Uuid", "now_v7"], CLOCK),
    (&["Uuid", "new_v4"], CHANCE),
];

/// Names that mean the same wherever they stand, after a dot too.
const WORDS: &[(&str, &str)] = &[
    ("thread_rng", CHANCE),
    ("from_os_rng", CHANCE),
    ("try_from_os_rng", CHANCE),
    ("from_entropy", CHANCE),
    ("OsRng", CHANCE),
    ("RandomState", UNORDERED),
];

const MACROS: &[&str] = &["println", "eprintln", "print", "eprint"];

pub(super) fn check(file: &TextFile) -> Vec<Violation> {
    let all = tokens(&file.text);
    let test_blocks = test_blocks(&all);
    let product: Vec<Token<'_>> = all
        .iter()
        .enumerate()
        .filter(|(index, _)| !test_blocks.iter().any(|block| block.contains(index)))
        .map(|(_, token)| *token)
        .collect();

    let mut violations = Vec::new();
    let mut refuse = |line, name: String, why: &str| {
        violations.push(Violation::new(
            &file.path,
            line,
            format!("`{name}` in a pure crate; {why}"),
        ));
    };
    for path in named_paths(&product, &[]) {
        if let Some((name, why)) = refused_path(&path, file.path == MAP_WRAPPER) {
            refuse(path.line, name, why);
        }
    }
    for token in product.iter().filter(|token| token.kind == Kind::Word) {
        if let Some((name, why)) = WORDS.iter().find(|(name, _)| token.is_word(name)) {
            refuse(token.line, (*name).to_owned(), why);
        }
    }
    for (name, line) in macro_calls(&product).filter(|(name, _)| MACROS.contains(name)) {
        refuse(line, format!("{name}!"), PRINTING);
    }
    violations
}

fn refused_path(path: &NamedPath<'_>, may_wrap_maps: bool) -> Option<(String, &'static str)> {
    let root = ROOTS.iter().find(|(root, _)| path.reaches(root));
    let part = || PARTS.iter().find(|(part, _)| path.contains(part));
    if let Some((name, why)) = root.or_else(part) {
        return Some((name.join("::"), why));
    }
    let unordered = UNORDERED_ROOTS.iter().find(|root| path.reaches(root))?;
    (!may_wrap_maps).then(|| (unordered.join("::"), UNORDERED))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    /// The lines that are refused in `source`, in a file at `path`.
    fn refused_in(path: &str, source: &str) -> Vec<usize> {
        let file = TextFile { path: path.into(), text: source.into() };
        let mut lines: Vec<_> = check(&file).iter().map(|violation| violation.line).collect();
        lines.sort_unstable();
        lines.dedup();
        lines
    }

    fn refused(source: &str) -> Vec<usize> {
        refused_in("crates/engine/src/lib.rs", source)
    }

    #[test]
    fn each_forbidden_name_is_caught() {
        for bad in [
            "std::fs::read(p)",
            "use std::net::TcpStream;",
            "std::process::exit(1)",
            "std::env::var(n)",
            "std::thread::sleep(d)",
            "tokio::spawn(f)",
            "use libp2p::PeerId;",
            "Instant::now()",
            "std::time::SystemTime::now()",
            "Uuid::now_v7()",
            "uuid::Uuid::new_v4()",
            "rand::rng()",
            "rand::thread_rng()",
            "StdRng::from_os_rng()",
            "let mut state = RandomState::new();",
            "println!(\"{x}\")",
            "eprintln!(\"{x}\")",
            "let seen: std::collections::HashMap<A, B>;",
            "use std::collections::HashSet;",
            "use std::collections::hash_map::Entry;",
        ] {
            assert_eq!(refused(bad), [1], "{bad}");
        }
    }

    #[test]
    fn other_spellings_of_the_same_are_caught() {
        assert_eq!(refused("use std::{\n    fmt,\n    fs,\n};"), [3]);
        assert_eq!(refused("use std::collections::{BTreeMap,\n HashMap};"), [2]);
        assert_eq!(refused("use std::time::Instant as Clock;\nClock::now()"), [2]);
        assert_eq!(refused("use std::collections;\ncollections::HashMap::new()"), [2]);
        assert_eq!(refused("use std::collections::*;"), [1]);
    }

    #[test]
    fn pure_code_passes() {
        for good in [
            "use std::collections::{BTreeMap, BTreeSet};",
            "use std::{fmt, time::Duration};",
            "fn step(now: Time) -> Step { self.clock.now() }",
            "// tokio and std::fs are for others",
            "/// `Instant::now` is forbidden",
            "const TEXT: &str = \"std::fs println!()\";",
            "use crate::env; env::read()",
            "use rand::rngs::SmallRng; SmallRng::seed_from_u64(seed)",
            "Uuid::from_u128(n)",
            "#[cfg(test)]\nmod tests {\n use std::collections::HashMap;\n fn f() { println!() }\n}",
        ] {
            assert_eq!(refused(good), NONE, "{good}");
        }
    }

    #[test]
    fn only_the_wrapper_may_name_hash_maps_and_only_them() {
        let source = "use std::collections::{HashMap, HashSet};";
        assert_eq!(refused_in(MAP_WRAPPER, source), NONE);
        assert_eq!(refused_in("crates/placement/src/map.rs", source), [1]);
        assert_eq!(refused_in(MAP_WRAPPER, "std::fs::read(p)"), [1]);
    }
}
