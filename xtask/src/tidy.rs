//! `cargo xtask tidy`: the rules of this repository that neither rustc nor clippy checks. Clippy's rules are
//! in `clippy.toml` and `pure-clippy.toml`.
//!
//! Each rule is a function from text to [`Violation`]s in a file of its own; only
//! [`workspace`](self::workspace) touches the disk and cargo. Every rule has a test that shows it
//! failing.

mod clippy;
mod closure;
mod documents;
mod layers;
mod records;
mod source;
mod workspace;

use std::fmt;
use std::path::Path;

use crate::Outcome;
use workspace::Workspace;

/// A violation of a rule, with the file and the line.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    path: String,
    line: usize,
    /// What is wrong, and what to do about it.
    what: String,
}

impl Violation {
    fn new(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, what: what.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}: {}", self.path, self.line, self.what)
    }
}

pub(crate) fn run(root: &Path, _: &[String]) -> anyhow::Result<Outcome> {
    let workspace = Workspace::read(root)?;
    let mut violations = layers::check(&workspace.crates);
    violations.extend(closure::check(&workspace.crates, &workspace.allow_list));
    violations.extend(clippy::check(&workspace.crates, &workspace.pure_clippy));
    violations.extend(workspace.sources.iter().flat_map(source::check));
    violations.extend(documents::check(&workspace.documents, &|path| root.join(path).exists()));
    violations.extend(records::check(&workspace.documents));
    violations.sort();
    violations.dedup();

    for violation in &violations {
        println!("{violation}");
    }
    if violations.is_empty() {
        let (sources, documents) = (workspace.sources.len(), workspace.documents.len());
        println!("tidy: {sources} source files and {documents} documents keep the rules");
        return Ok(Outcome::Passed);
    }
    let count = violations.len();
    eprintln!("tidy: {count} {}", if count == 1 { "violation" } else { "violations" });
    Ok(Outcome::Failed)
}
