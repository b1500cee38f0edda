//! The transitive dependencies of pure crates are on an allow-list.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

use super::Violation;
use super::workspace::{Crate, line_of_dependency};
use crate::cargo;

/// The allow-list, from the root.
pub(super) const ALLOW_LIST: &str = "xtask/pure-dependencies.txt";

/// The crates that `package` is linked with on this target, with all its features: a feature does not make a
/// dependency pure. Procedural macros run in the compiler and are left out.
///
/// `cargo metadata` is not suitable: it merges the features that the whole workspace enables, so that a pure
/// crate would be charged with what only the node enables.
pub(super) fn cargo_tree(root: &Path, package: &str) -> anyhow::Result<String> {
    cargo::output(cargo::command(root).args([
        "tree",
        "--locked",
        "--package",
        package,
        "--all-features",
        "--edges",
        "normal,no-proc-macro",
        "--prefix",
        "depth",
        "--format",
        "{p}",
    ]))
}

pub(super) fn check(crates: &[Crate], allow_list: &str) -> Vec<Violation> {
    let (allowed, mut violations) = parse_allow_list(allow_list);
    // Members are checked by themselves: the layers decide which of them may use which.
    let members: BTreeSet<_> = crates.iter().map(|member| member.package.as_str()).collect();
    for member in crates {
        let Some(tree) = &member.tree else { continue };
        let is_settled = |name: &str| members.contains(name);
        for chain in refused_chains(&parse_tree(tree), &allowed, &is_settled) {
            let (Some(direct), Some(refused)) = (chain.get(1), chain.last()) else {
                continue;
            };
            let line = line_of_dependency(&member.manifest_text, direct);
            let what = format!(
                "pure crate `{}` reaches `{refused}` ({}), which is not in {ALLOW_LIST}; drop the \
                 dependency or the feature that brings it, or enter it there with the reason why \
                 it is pure",
                member.name,
                chain.join(" -> "),
            );
            violations.push(Violation::new(&member.manifest, line, what));
        }
    }
    violations
}

/// The crates of the list, and the lines that are not entries.
fn parse_allow_list(text: &str) -> (BTreeSet<&str>, Vec<Violation>) {
    let mut allowed = BTreeSet::new();
    let mut violations = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut refuse = |what: &str| violations.push(Violation::new(ALLOW_LIST, index + 1, what));
        let (name, why) = line.split_once('#').unwrap_or((line, ""));
        if why.trim().is_empty() {
            refuse("an entry without a reason; write `crate # why it is pure`");
        }
        if !allowed.insert(name.trim()) {
            refuse("the crate is listed twice; keep one line");
        }
    }
    (allowed, violations)
}

/// The direct dependencies of each crate. The first name is the crate in question.
#[derive(Default)]
struct Graph<'a> {
    root: Option<&'a str>,
    edges: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

/// Parses lines such as `2serde_core v1.0.228 (*)`. Cargo shows the dependencies of a crate only at its first
/// occurrence, which is enough for a graph.
fn parse_tree(text: &str) -> Graph<'_> {
    let mut graph = Graph::default();
    let mut above: Vec<&str> = Vec::new();
    for line in text.lines() {
        let digits = line.len() - line.trim_start_matches(|at: char| at.is_ascii_digit()).len();
        let Ok(depth) = line[..digits].parse::<usize>() else {
            continue;
        };
        let name = line[digits..].split_whitespace().next().unwrap_or_default();
        above.truncate(depth);
        match above.last() {
            Some(user) => {
                graph.edges.entry(user).or_default().insert(name);
            }
            None => graph.root = Some(name),
        }
        above.push(name);
    }
    graph
}

/// The shortest chain to each crate that is not allowed. Dependencies of such a crate are not reported: they
/// go when the crate goes.
fn refused_chains<'a>(
    graph: &Graph<'a>,
    allowed: &BTreeSet<&str>,
    is_settled: &dyn Fn(&str) -> bool,
) -> Vec<Vec<&'a str>> {
    let Some(root) = graph.root else {
        return Vec::new();
    };
    let mut refused = Vec::new();
    let mut seen = BTreeSet::from([root]);
    let mut chains = VecDeque::from([vec![root]]);
    while let Some(chain) = chains.pop_front() {
        let used = chain.last().and_then(|last| graph.edges.get(last));
        for &name in used.into_iter().flatten() {
            if is_settled(name) || !seen.insert(name) {
                continue;
            }
            let longer = [chain.as_slice(), &[name]].concat();
            if allowed.contains(name) {
                chains.push_back(longer);
            } else {
                refused.push(longer);
            }
        }
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "\
0hypha-engine v0.1.0 (/src/crates/engine)
1hypha-model v0.1.0 (/src/crates/model)
2tokio v1.50.0
1nalgebra v0.35.0
2num-traits v0.2.19
3libm v0.2.16
1sneaky v2.0.0
2num-traits v0.2.19 (*)
2mio v1.0.0
";

    fn check_list(allow_list: &str) -> Vec<(usize, String)> {
        let manifest_text = "[dependencies]\nnalgebra = \"0.35\"\nsneaky = \"2\"\n".to_owned();
        let engine = Crate {
            name: "engine".into(),
            package: "hypha-engine".into(),
            manifest: "crates/engine/Cargo.toml".into(),
            manifest_text,
            tree: Some(TREE.into()),
            ..Crate::default()
        };
        let model = Crate { package: "hypha-model".into(), ..Crate::default() };
        let found = check(&[engine, model], allow_list).into_iter();
        found.map(|violation| (violation.line, violation.what)).collect()
    }

    #[test]
    fn unlisted_crate_is_reported_with_the_chain_to_it() {
        let found = check_list("nalgebra # algebra\nnum-traits # traits\nsneaky # so it says\n");
        assert_eq!(found.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [3, 2]);
        assert!(found[0].1.contains("`mio` (hypha-engine -> sneaky -> mio)"), "{found:?}");
        assert!(found[1].1.contains("nalgebra -> num-traits -> libm)"), "{found:?}");
    }

    #[test]
    fn behind_a_refused_crate_nothing_is_reported() {
        let found = check_list("nalgebra # algebra\nnum-traits # traits\nlibm # functions\n");
        assert_eq!(found.len(), 1);
        assert!(found[0].1.contains("reaches `sneaky`"), "{found:?}");
    }

    #[test]
    fn complete_list_passes_and_members_are_not_expanded() {
        let list = "# comment\n\nnalgebra # a\nnum-traits # b\nlibm # c\nsneaky # d\nmio # e\n";
        assert_eq!(check_list(list), []);
    }

    #[test]
    fn an_entry_has_one_line_and_a_reason() {
        let (allowed, violations) =
            parse_allow_list("# why\n\nserde # traits\nhalf\nserde # twice\n");
        assert_eq!(allowed.into_iter().collect::<Vec<_>>(), ["half", "serde"]);
        assert_eq!(violations.iter().map(|found| found.line).collect::<Vec<_>>(), [4, 5]);
    }
}
