//! What holds for every source file, tests included.

use super::Violation;
use super::tokens::{Kind, Token, after_bracket, macro_calls, tokens};
use super::workspace::TextFile;

/// Past this a file has more than one job.
const MAX_LINES: usize = 800;

const UNFINISHED: &[(&str, &str)] = &[
    ("todo", "finish it, or leave the whole capability out"),
    ("unimplemented", "finish it, or leave the whole capability out"),
    ("dbg", "take it out"),
];

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

    let tokens = tokens(&file.text);
    for (name, line) in macro_calls(&tokens) {
        if let Some((_, remedy)) = UNFINISHED.iter().find(|(unfinished, _)| *unfinished == name) {
            refuse(line, format!("`{name}!`; {remedy}"));
        }
    }
    for line in unexplained_ignores(&tokens) {
        refuse(line, "`#[ignore]` without a reason; write `#[ignore = \"why\"]`".into());
    }
    violations
}

/// `#[ignore]`, `#[ignore = ""]`, and the same inside `cfg_attr`.
fn unexplained_ignores(tokens: &[Token<'_>]) -> Vec<usize> {
    let mut lines = Vec::new();
    for (start, pair) in tokens.windows(2).enumerate() {
        if !pair[0].is_mark("#") || !pair[1].is_mark("[") {
            continue;
        }
        let attribute = &tokens[start + 2..after_bracket(tokens, start + 1)];
        let applies_to = match attribute.first().map(|token| token.text) {
            Some("ignore") => 0,
            // The condition of `cfg_attr` ends at its first comma at the latest.
            Some("cfg_attr") => {
                attribute.iter().position(|token| token.is_mark(",")).unwrap_or(attribute.len())
            }
            _ => continue,
        };
        for at in applies_to..attribute.len() {
            if attribute[at].is_word("ignore") && !is_explained(&attribute[at + 1..]) {
                lines.push(attribute[at].line);
            }
        }
    }
    lines
}

fn is_explained(after_ignore: &[Token<'_>]) -> bool {
    match after_ignore {
        [equals, reason, ..] if equals.is_mark("=") && reason.kind == Kind::Literal => {
            !reason.text.trim_matches(['"', ' ']).is_empty()
        }
        _ => false,
    }
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

    #[test]
    fn unfinished_code_is_caught() {
        for bad in ["todo!()", "unimplemented!(\"later\")", "dbg!(x)", "std::todo!()"] {
            assert_eq!(refused(&format!("//! A.\nfn f() {{ {bad} }}")), [2], "{bad}");
        }
        for good in ["f(todo != done)", "// todo!()", "\"dbg!(x)\"", "unreachable!()"] {
            assert_eq!(refused(&format!("//! A.\nfn f() {{ {good} }}")), NONE, "{good}");
        }
    }

    #[test]
    fn an_ignored_test_says_why() {
        for bad in [
            "#[ignore]",
            "#[ignore = \"\"]",
            "#[cfg_attr(not(unix), ignore)]",
            "#[cfg_attr(miri, test, ignore)]",
        ] {
            assert_eq!(refused(&format!("//! A.\n#[test]\n{bad}\nfn f() {{}}")), [3], "{bad}");
        }
        for good in [
            "#[ignore = \"an hour long; run by hand\"]",
            "#[cfg_attr(miri, ignore = \"no sockets\")]",
            "#[serde(ignore)]",
            "// #[ignore]",
        ] {
            assert_eq!(refused(&format!("//! A.\n#[test]\n{good}\nfn f() {{}}")), NONE, "{good}");
        }
    }
}
