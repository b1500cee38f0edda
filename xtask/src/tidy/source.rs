//! Rules for every source file, tests included.

use super::Violation;
use super::workspace::TextFile;

/// A longer file has more than one job.
const MAX_LINES: usize = 800;

pub(super) fn check(file: &TextFile) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut refuse = |line, what: String| violations.push(Violation::new(&file.path, line, what));

    let first = file.text.lines().next().unwrap_or_default();
    if first.strip_prefix("//!").is_none_or(|text| text.trim().is_empty()) {
        refuse(1, "the first line is no `//!` line; say there what this file's one job is".into());
    }
    let lines = file.text.lines().count();
    if lines > MAX_LINES {
        let what = format!("{lines} lines, more than {MAX_LINES}; split the file by its jobs");
        refuse(MAX_LINES + 1, what);
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    fn refused(source: &str) -> Vec<usize> {
        let file = TextFile { path: "crates/api/src/lib.rs".into(), text: source.into() };
        check(&file).iter().map(|violation| violation.line).collect()
    }

    #[test]
    fn a_file_opens_with_its_job() {
        assert_eq!(refused("use std::fmt;\n"), [1]);
        assert_eq!(refused("//!\n"), [1]);
        assert_eq!(refused("\n//! Late.\n"), [1]);
        assert_eq!(refused(""), [1]);
        assert_eq!(refused("//! Money, in whole units.\n"), NONE);
    }

    #[test]
    fn a_file_has_an_end() {
        let lines = |count: usize| "//! Long.\n".repeat(count);
        assert_eq!(refused(&lines(MAX_LINES)), NONE);
        assert_eq!(refused(&lines(MAX_LINES + 1)), [MAX_LINES + 1]);
    }
}
