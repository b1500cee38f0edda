//! No channel without a bound: a slow reader would turn into a process without memory.

use super::Violation;
use super::paths::{NamedPath, named_paths};
use super::tokens::{Token, tokens};
use super::workspace::TextFile;

/// Crates and modules whose `unbounded` makes a channel.
const CHANNEL_MODULES: &[&str] =
    &["async_channel", "channel", "crossbeam", "crossbeam_channel", "flume", "kanal", "mpsc"];

pub(super) fn check(file: &TextFile) -> Vec<Violation> {
    let tokens = tokens(&file.text);
    let unbounded = |path: &NamedPath<'_>| makes_unbounded(path, &tokens);
    let paths = named_paths(&tokens, &[]);
    let refused = paths.iter().filter(|path| unbounded(path));
    refused
        .map(|path| {
            let what = format!(
                "`{}` has no bound; use a bounded channel whose size is a named constant that \
                 says why",
                path.segments.join("::")
            );
            Violation::new(&file.path, path.line, what)
        })
        .collect()
}

fn makes_unbounded(path: &NamedPath<'_>, tokens: &[Token<'_>]) -> bool {
    match path.segments.as_slice() {
        [.., "unbounded_channel"] => true,
        [outer @ .., "unbounded"] => outer.iter().any(|module| CHANNEL_MODULES.contains(module)),
        // Without an argument it is the one of std; the bounded ones take their size.
        [.., "mpsc", "channel"] => is_called_with_nothing(tokens, path.end),
        _ => false,
    }
}

/// Whether `()` follows, after a turbofish or not.
fn is_called_with_nothing(tokens: &[Token<'_>], mut at: usize) -> bool {
    let is_mark = |at: usize, text: &str| tokens.get(at).is_some_and(|token| token.is_mark(text));
    if is_mark(at, "::") && is_mark(at + 1, "<") {
        let mut depth = 0_usize;
        at += 1;
        while at < tokens.len() {
            if is_mark(at, "<") {
                depth += 1;
            } else if is_mark(at, ">") && !is_mark(at - 1, "-") {
                depth -= 1;
            }
            at += 1;
            if depth == 0 {
                break;
            }
        }
    }
    is_mark(at, "(") && is_mark(at + 1, ")")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    fn refused(source: &str) -> Vec<usize> {
        let file = TextFile { path: "crates/net/src/lib.rs".into(), text: source.into() };
        let mut lines: Vec<_> = check(&file).iter().map(|violation| violation.line).collect();
        lines.dedup();
        lines
    }

    #[test]
    fn channels_without_a_bound_are_caught() {
        for bad in [
            "tokio::sync::mpsc::unbounded_channel()",
            "mpsc::unbounded_channel::<Event>()",
            "std::sync::mpsc::channel()",
            "mpsc::channel::<Vec<fn() -> u8>>()",
            "crossbeam_channel::unbounded()",
            "crossbeam::channel::unbounded::<u8>()",
            "futures::channel::mpsc::unbounded()",
            "use crossbeam_channel::{bounded, unbounded};",
            "use flume::unbounded as endless;",
        ] {
            assert_eq!(refused(bad), [1], "{bad}");
        }
        assert_eq!(refused("use std::sync::mpsc::channel;\nlet (a, b) = channel();"), [2]);
        assert_eq!(refused("use std::sync::mpsc as m;\nm::channel()"), [2]);
    }

    #[test]
    fn channels_with_a_bound_pass() {
        for good in [
            "tokio::sync::mpsc::channel(EVENTS)",
            "use tokio::sync::mpsc; mpsc::channel::<Event>(EVENTS)",
            "std::sync::mpsc::sync_channel(EVENTS)",
            "crossbeam_channel::bounded(EVENTS)",
            "use tokio::sync::mpsc::channel;",
            "tokio::sync::watch::channel(state)",
            "span.unbounded()",
            "// mpsc::unbounded_channel()",
        ] {
            assert_eq!(refused(good), NONE, "{good}");
        }
    }
}
