//! Decision records: each has its three headings, and the index lists them all.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use super::documents::{links, prose, target_path};
use super::workspace::TextFile;

const FOLDER: &str = "docs/adr/";
const INDEX: &str = "docs/adr/README.md";
const HEADINGS: &[&str] = &["Context", "Decision", "What was given up"];

pub(super) fn check(documents: &[TextFile]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let index = documents.iter().find(|document| document.path == INDEX);
    let listed: BTreeSet<_> = index
        .map(|index| links(&index.text))
        .unwrap_or_default()
        .into_iter()
        .filter_map(|(_, target)| target_path(INDEX, &target))
        .collect();

    let mut by_number: BTreeMap<&str, &str> = BTreeMap::new();
    for document in documents {
        let Some(name) = document.path.strip_prefix(FOLDER) else {
            continue;
        };
        if document.path == INDEX {
            continue;
        }
        let mut refuse = |what| violations.push(Violation::new(&document.path, 1, what));
        let Some(number) = number(name) else {
            refuse("a record's file is named NNNN-what-was-decided.md; rename it".to_owned());
            continue;
        };
        if let Some(other) = by_number.insert(number, name) {
            refuse(format!("number {number} is taken by {other}; take the next free one"));
        }
        for heading in HEADINGS {
            if !has_section(&document.text, heading) {
                refuse(format!("the section `## {heading}` is missing or empty; write it"));
            }
        }
        if !listed.contains(&document.path) {
            refuse(format!("the record is not in the index; link it in {INDEX}"));
        }
    }
    violations
}

fn number(name: &str) -> Option<&str> {
    let (number, rest) = name.split_once('-')?;
    let is_number = number.len() == 4 && number.chars().all(|digit| digit.is_ascii_digit());
    (is_number && rest.len() > ".md".len()).then_some(number)
}

/// Whether there is text between this heading and the next one of any depth.
fn has_section(text: &str, heading: &str) -> bool {
    let mut lines = prose(text).map(|(_, line)| line.trim());
    let found = lines.any(|line| {
        line.strip_prefix("##").is_some_and(|title| title.trim_start_matches('#').trim() == heading)
    });
    found && lines.find(|line| !line.is_empty()).is_some_and(|line| !line.starts_with('#'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# Leases count durations\n\n## Context\n\nClocks differ.\n\n\
                        ## Decision\n\nDurations.\n\n## What was given up\n\nAbsolute times.\n";
    const GOOD_INDEX: &str = "# Records\n\n- [0001](0001-leases.md)\n";

    /// How many violations a set of files in the folder has.
    fn count(files: &[(&str, &str)]) -> usize {
        let document = |(name, text): &(&str, &str)| TextFile {
            path: format!("{FOLDER}{name}"),
            text: (*text).to_owned(),
        };
        check(&files.iter().map(document).collect::<Vec<_>>()).len()
    }

    #[test]
    fn a_whole_record_in_the_index_passes() {
        assert_eq!(count(&[("0001-leases.md", GOOD), ("README.md", GOOD_INDEX)]), 0);
        assert_eq!(count(&[]), 0);
    }

    #[test]
    fn each_missing_section_is_caught() {
        for heading in HEADINGS {
            let text = GOOD.replace(&format!("## {heading}"), "## Other");
            assert_eq!(count(&[("0001-leases.md", &text), ("README.md", GOOD_INDEX)]), 1);
        }
        let empty = GOOD.replace("Clocks differ.", "");
        assert_eq!(count(&[("0001-leases.md", &empty), ("README.md", GOOD_INDEX)]), 1);
    }

    #[test]
    fn a_record_outside_the_index_is_caught() {
        assert_eq!(count(&[("0001-leases.md", GOOD), ("README.md", "# Records\n")]), 1);
        assert_eq!(count(&[("0001-leases.md", GOOD)]), 1);
        let hidden = "# Records\n\n```\n[0001](0001-leases.md)\n```\n";
        assert_eq!(count(&[("0001-leases.md", GOOD), ("README.md", hidden)]), 1);
    }

    #[test]
    fn names_and_numbers_are_checked() {
        let index = "[a](0001-a.md) [b](0001-b.md)";
        assert_eq!(count(&[("0001-a.md", GOOD), ("0001-b.md", GOOD), ("README.md", index)]), 1);
        assert_eq!(count(&[("leases.md", GOOD), ("README.md", "")]), 1);
        assert_eq!(count(&[("1-leases.md", GOOD), ("README.md", "")]), 1);
    }
}
