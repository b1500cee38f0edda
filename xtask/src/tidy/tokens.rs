//! Rust source as tokens: enough of a lexer that comments and strings cannot break a rule.

/// A piece of source that is neither white space nor comment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind,
    /// The text; of a raw identifier without `r#`, of a literal the whole of it.
    pub(super) text: &'a str,
    /// Counted from 1.
    pub(super) line: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A name or a keyword.
    Word,
    /// A string, character or number.
    Literal,
    Lifetime,
    /// `::`, or any other single character.
    Mark,
}

impl Token<'_> {
    pub(super) fn is_word(&self, text: &str) -> bool {
        self.kind == Kind::Word && self.text == text
    }

    pub(super) fn is_mark(&self, text: &str) -> bool {
        self.kind == Kind::Mark && self.text == text
    }
}

/// The tokens of a file. Source that does not compile gives some tokens too, never a panic.
pub(super) fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut lexer = Lexer { source, at: 0, line: 1 };
    std::iter::from_fn(|| lexer.next()).collect()
}

/// The index after the mark that closes the bracket opened at `open`; the end if none does.
pub(super) fn after_bracket(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate().skip(open) {
        if token.kind != Kind::Mark {
            continue;
        }
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return index + 1;
                }
            }
            _ => {}
        }
    }
    tokens.len()
}

/// The macros called in a file: name and line.
pub(super) fn macro_calls<'a>(tokens: &[Token<'a>]) -> impl Iterator<Item = (&'a str, usize)> {
    tokens.windows(3).filter_map(|window| match window {
        // The bracket tells a call from `value != other`.
        [name, bang, open] if name.kind == Kind::Word && bang.is_mark("!") => {
            ["(", "[", "{"].contains(&open.text).then_some((name.text, name.line))
        }
        _ => None,
    })
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: usize,
}

impl<'a> Lexer<'a> {
    fn next(&mut self) -> Option<Token<'a>> {
        self.skip_blanks();
        let rest = self.rest();
        let first = rest.chars().next()?;
        let (kind, length) = if let Some(length) = string_length(rest) {
            (Kind::Literal, length)
        } else if let Some(name) = rest.strip_prefix("r#").filter(|name| starts_word(name)) {
            self.take(2);
            (Kind::Word, word_length(name))
        } else if starts_word(rest) {
            (Kind::Word, word_length(rest))
        } else if first.is_ascii_digit() {
            (Kind::Literal, word_length(rest))
        } else if first == '\'' {
            quote(rest)
        } else if rest.starts_with("::") {
            (Kind::Mark, 2)
        } else {
            (Kind::Mark, first.len_utf8())
        };
        let line = self.line;
        Some(Token { kind, text: self.take(length), line })
    }

    fn skip_blanks(&mut self) {
        loop {
            let rest = self.rest();
            let length = if rest.starts_with("//") {
                rest.find('\n').unwrap_or(rest.len())
            } else if rest.starts_with("/*") {
                block_comment_length(rest)
            } else {
                rest.len() - rest.trim_start().len()
            };
            if length == 0 {
                return;
            }
            self.take(length);
        }
    }

    fn take(&mut self, length: usize) -> &'a str {
        let text = &self.rest()[..length];
        self.at += length;
        self.line += text.matches('\n').count();
        text
    }

    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }
}

fn starts_word(text: &str) -> bool {
    text.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

fn word_length(text: &str) -> usize {
    text.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(text.len())
}

/// Block comments nest.
fn block_comment_length(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// The length of the string literal that `text` starts with, whatever its prefix.
fn string_length(text: &str) -> Option<usize> {
    let prefix = ["br", "cr", "b", "c", "r", ""].into_iter().find(|prefix| {
        text.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(['"', '#']))
    })?;
    let rest = &text[prefix.len()..];
    let body = if prefix.ends_with('r') {
        let hashes = rest.len() - rest.trim_start_matches('#').len();
        let inside = rest[hashes..].strip_prefix('"')?;
        let end = format!("\"{}", "#".repeat(hashes));
        inside.find(&end).map_or(rest.len(), |found| hashes + 1 + found + end.len())
    } else {
        escaped_length(rest.strip_prefix('"')?, '"') + 1
    };
    Some(prefix.len() + body)
}

/// How long an escaped literal is from after its opening quote to after its closing one.
fn escaped_length(inside: &str, quote: char) -> usize {
    let mut letters = inside.char_indices();
    while let Some((index, letter)) = letters.next() {
        if letter == '\\' {
            letters.next();
        } else if letter == quote {
            return index + 1;
        }
    }
    inside.len()
}

/// A quote opens a character (`'x'`, `'\n'`) or a lifetime (`'x`).
fn quote(text: &str) -> (Kind, usize) {
    let inside = &text[1..];
    let mut letters = inside.chars();
    let (first, second) = (letters.next(), letters.next());
    if first == Some('\\') || second == Some('\'') {
        return (Kind::Literal, 1 + escaped_length(inside, '\''));
    }
    (Kind::Lifetime, 1 + word_length(inside))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &str, expected: &[(usize, &str)]) {
        let found: Vec<_> = tokens(source).iter().map(|token| (token.line, token.text)).collect();
        assert_eq!(found, expected, "{source}");
    }

    #[test]
    fn comments_are_gone_and_lines_still_count() {
        check("a // b\nc", &[(1, "a"), (2, "c")]);
        check("a /* b /* \n */ c */ d", &[(1, "a"), (2, "d")]);
        check("//! text\n/// text\nx", &[(3, "x")]);
        check("/* never closed", &[]);
    }

    #[test]
    fn a_string_is_one_token_whatever_is_in_it() {
        check(r#"f("a // \" b")"#, &[(1, "f"), (1, "("), (1, r#""a // \" b""#), (1, ")")]);
        check("r#\"a\"b\"# c", &[(1, "r#\"a\"b\"#"), (1, "c")]);
        check(
            "b\"x\" c\"y\" br\"\\\" z",
            &[(1, "b\"x\""), (1, "c\"y\""), (1, "br\"\\\""), (1, "z")],
        );
        check("\"one\ntwo\" c", &[(1, "\"one\ntwo\""), (2, "c")]);
        check("\"never closed", &[(1, "\"never closed")]);
    }

    #[test]
    fn characters_are_not_lifetimes() {
        check(
            "'a' 'b: '\\'' '\"' x",
            &[(1, "'a'"), (1, "'b"), (1, ":"), (1, "'\\''"), (1, "'\"'"), (1, "x")],
        );
    }

    #[test]
    fn words_marks_and_numbers() {
        check(
            "std::fs r#type 1_000u64 é",
            &[(1, "std"), (1, "::"), (1, "fs"), (1, "type"), (1, "1_000u64"), (1, "é")],
        );
    }

    #[test]
    fn brackets_are_matched() {
        let found = tokens("f(a[1], {b}) c");
        assert_eq!(found[after_bracket(&found, 1)].text, "c");
        assert_eq!(after_bracket(&tokens("f(a"), 1), 3);
    }

    #[test]
    fn macro_calls_are_told_from_comparisons() {
        let found = tokens("todo!() vec![1] todo != done; !todo");
        assert_eq!(macro_calls(&found).collect::<Vec<_>>(), [("todo", 1), ("vec", 1)]);
    }
}
