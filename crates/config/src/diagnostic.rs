//! What is wrong with a configuration, and where: one line for each fault.
//!
//! A diagnostic names keys, positions and expectations. It repeats no source line and no value but the path
//! of a missing file, because configurations hold credentials and diagnostics end up in logs.

use std::fmt;
use std::path::{Path, PathBuf};

/// A position in a text, both parts counted from 1; columns count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The character in the line.
    pub column: usize,
}

impl Position {
    /// The position of byte `offset` of `text`.
    pub(crate) fn of(text: &str, offset: usize) -> Position {
        let before = text.get(..offset).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.matches('\n').count() + 1;
        let column = before.get(line_start..).unwrap_or("").chars().count() + 1;
        Position { line, column }
    }
}

/// The origin of a faulty value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourceLocation {
    /// The file, and the position in it unless the whole file is meant.
    File(PathBuf, Option<Position>),
    /// An environment variable.
    Variable(String),
    /// A flag of the command line.
    Flag(&'static str),
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Diagnostic {
    /// Where it is.
    pub location: SourceLocation,
    /// What it is, and what was expected.
    pub message: String,
}

/// Every fault that was found, at least one, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostics(Vec<Diagnostic>);

impl Diagnostics {
    /// `found`, sorted; `None` if it is empty.
    pub(crate) fn from_found(mut found: Vec<Diagnostic>) -> Result<(), Diagnostics> {
        found.sort();
        found.dedup();
        if found.is_empty() { Ok(()) } else { Err(Diagnostics(found)) }
    }

    /// A fault that concerns the whole file.
    pub(crate) fn of_file(path: &Path, message: impl Into<String>) -> Diagnostics {
        Diagnostic {
            location: SourceLocation::File(path.to_owned(), None),
            message: message.into(),
        }
        .into()
    }

    /// The faults, one by one.
    pub fn iter(&self) -> impl Iterator<Item = &Diagnostic> {
        self.0.iter()
    }
}

impl From<Diagnostic> for Diagnostics {
    fn from(one: Diagnostic) -> Diagnostics {
        Diagnostics(vec![one])
    }
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SourceLocation::File(path, None) => write!(f, "{}", path.display()),
            SourceLocation::File(path, Some(Position { line, column })) => {
                write!(f, "{}:{line}:{column}", path.display())
            }
            SourceLocation::Variable(name) => f.write_str(name),
            SourceLocation::Flag(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.location, self.message)
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, diagnostic) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{diagnostic}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_lines_and_characters() {
        let text = "äb\ncd\n";
        let at = |offset| {
            let position = Position::of(text, offset);
            (position.line, position.column)
        };
        assert_eq!(at(0), (1, 1));
        assert_eq!(at(2), (1, 2));
        assert_eq!(at(4), (2, 1));
        assert_eq!(at(7), (3, 1));
        assert_eq!(at(1), (3, 1), "not the start of a character: the end");
        assert_eq!(at(99), (3, 1));
    }
}
