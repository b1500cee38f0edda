//! Configurations as an operator writes them, and the values that they give.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod anything;
mod diagnostics;
mod documents;
mod layers;
mod network;
mod offer;
mod retry;
mod scheduler;
mod worker;

use std::path::{Path, PathBuf};

use hypha_config::{Flags, RoleConfig};
use tempfile::TempDir;

/// The three lines that every configuration needs, for the files that a [`Home`] has.
const CERTIFICATES: &str = "cert_pem = 'c.pem'\nkey_pem = 'k.pem'\ntrust_pem = 't.pem'\n";

/// A directory with certificate files in it (empty: these tests never read them).
struct Home(TempDir);

impl Home {
    fn new() -> Home {
        let home = Home(tempfile::tempdir().unwrap());
        for file in ["c.pem", "k.pem", "t.pem", "r.pem"] {
            std::fs::write(home.path(file), "").unwrap();
        }
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Loads `text`; faults come back as text, with the directory cut off.
    fn load<R: RoleConfig>(
        &self,
        text: &str,
        environment: &[(&str, &str)],
        flags: &Flags,
    ) -> Result<R, String> {
        let file = self.path("node.toml");
        std::fs::write(&file, text).unwrap();
        hypha_config::load(&file, &pairs(environment), flags)
            .map_err(|faults| self.shortened(&faults.to_string()))
    }

    fn good<R: RoleConfig>(&self, text: &str) -> R {
        self.load(&format!("{CERTIFICATES}{text}"), &[], &Flags::default()).unwrap()
    }

    fn shortened(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.0.path().display()), "")
    }
}

fn pairs(environment: &[(&str, &str)]) -> Vec<(String, String)> {
    environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn is_in(path: &Path, home: &Home) -> bool {
    path.parent() == Some(home.0.path())
}
