//! Relative links in documents point to files that exist.

use std::path::{Component, Path};

use super::Violation;
use super::workspace::TextFile;

pub(super) fn check(documents: &[TextFile], exists: &dyn Fn(&str) -> bool) -> Vec<Violation> {
    let mut violations = Vec::new();
    for document in documents {
        for (line, target) in links(&document.text) {
            let what = match resolve(&document.path, &target) {
                Resolved::Elsewhere => continue,
                Resolved::Inside(path) if exists(&path) => continue,
                Resolved::Inside(path) => {
                    format!("the link `{target}` leads to {path}, which does not exist; correct it")
                }
                Resolved::Outside => {
                    format!(
                        "the link `{target}` leaves the repository; link inside it, or to a URL"
                    )
                }
            };
            violations.push(Violation::new(&document.path, line, what));
        }
    }
    violations
}

enum Resolved {
    /// A URL, or a position in the same document.
    Elsewhere,
    Inside(String),
    Outside,
}

/// Where a link in `document` leads, as a path from the root. A leading `/` means the root.
pub(super) fn target_path(document: &str, target: &str) -> Option<String> {
    match resolve(document, target) {
        Resolved::Inside(path) => Some(path),
        Resolved::Elsewhere | Resolved::Outside => None,
    }
}

/// The links of a document outside code: line and target, as written.
pub(super) fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (index, line) in prose(text) {
        let line = without_code(line);
        let mut rest = line.as_str();
        while let Some(at) = rest.find("](") {
            rest = &rest[at + 2..];
            found.push((index + 1, inline_target(rest).to_owned()));
        }
        if let Some(target) = definition(&line) {
            found.push((index + 1, target.to_owned()));
        }
        for attribute in ["href=\"", "src=\""] {
            for part in line.split(attribute).skip(1) {
                found.push((index + 1, part.split('"').next().unwrap_or_default().to_owned()));
            }
        }
    }
    found
}

/// The lines that are not in a fenced block of code.
pub(super) fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fence: Option<&str> = None;
    text.lines().enumerate().filter(move |(_, line)| {
        let line = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| line.starts_with(mark));
        match (fence, mark) {
            (None, Some(opened)) => fence = Some(opened),
            (Some(opened), Some(mark)) if opened == mark => fence = None,
            (None, None) => return true,
            (Some(_), _) => {}
        }
        false
    })
}

/// A line without inline code.
fn without_code(line: &str) -> String {
    let parts: Vec<_> = line.split('`').collect();
    // An unmatched backtick opens nothing.
    let closed = parts.len() - (1 - parts.len() % 2);
    let kept = |(index, part): (usize, &&str)| {
        if index % 2 == 1 && index < closed { String::new() } else { (*part).to_owned() }
    };
    parts.iter().enumerate().map(kept).collect()
}

/// The target in `target "title")…`, with brackets in it matched.
fn inline_target(text: &str) -> &str {
    if let Some(pointed) = text.strip_prefix('<') {
        return pointed.split('>').next().unwrap_or_default();
    }
    let mut depth = 0_usize;
    let end = text.find(|letter: char| match letter {
        '(' => {
            depth += 1;
            false
        }
        ')' if depth > 0 => {
            depth -= 1;
            false
        }
        ')' => true,
        _ => letter.is_whitespace(),
    });
    &text[..end.unwrap_or(text.len())]
}

/// The target of `[name]: target`.
fn definition(line: &str) -> Option<&str> {
    let (name, target) = line.trim_start().strip_prefix('[')?.split_once("]:")?;
    if name.starts_with('^') || name.contains(']') {
        return None;
    }
    target.split_whitespace().next().map(|target| target.trim_matches(['<', '>']))
}

fn resolve(document: &str, target: &str) -> Resolved {
    let path = target.split(['#', '?']).next().unwrap_or_default().replace("%20", " ");
    let has_scheme = path.split('/').next().is_some_and(|start| start.contains(':'));
    if path.is_empty() || has_scheme || path.starts_with("//") {
        return Resolved::Elsewhere;
    }
    let folder = Path::new(document).parent().unwrap_or(Path::new(""));
    let joined = match path.strip_prefix('/') {
        Some(from_root) => Path::new(from_root).to_owned(),
        None => folder.join(&path),
    };
    let mut parts = Vec::new();
    for component in joined.components() {
        match component {
            Component::Normal(part) => parts.push(part.to_string_lossy().into_owned()),
            Component::ParentDir => {
                if parts.pop().is_none() {
                    return Resolved::Outside;
                }
            }
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    Resolved::Inside(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    const FILES: &[&str] = &["README.md", "docs/adr", "docs/adr/README.md", "docs/a (b).svg"];

    /// The lines refused in a document at `docs/guide.md`.
    fn refused(text: &str) -> Vec<usize> {
        let document = TextFile { path: "docs/guide.md".into(), text: text.into() };
        let found = check(&[document], &|path| FILES.contains(&path));
        found.iter().map(|violation| violation.line).collect()
    }

    #[test]
    fn dead_links_are_caught() {
        for bad in [
            "see [this](gone.md)",
            "see [a](../README.md) and [b](gone.md#part)",
            "![picture](img/gone.png \"title\")",
            "[name]: gone.md",
            "[pointed](<gone.md>)",
            "<img src=\"gone.png\">",
            "[root](/gone.md)",
            "[outside](../../README.md)",
            "a lone ` tick [this](gone.md)",
        ] {
            assert_eq!(refused(&format!("# Title\n\n{bad}\n")), [3], "{bad}");
        }
        assert_eq!(refused("```\n[x](gone.md)\n```\n[x](gone.md)\n"), [4]);
    }

    #[test]
    fn live_links_and_code_pass() {
        for good in [
            "[a](../README.md), [b](adr/), [c](./adr/README.md#index), [d](/README.md)",
            "[web](https://example.org/gone.md) [mail](mailto:a@example.org) [here](#part)",
            "[name]: ../README.md \"title\"",
            "[^1]: a footnote",
            "`[x](gone.md)` and ``",
            "~~~md\n[x](gone.md)\n~~~",
            "![brackets](a%20(b).svg)",
        ] {
            assert_eq!(refused(good), NONE, "{good}");
        }
    }
}
