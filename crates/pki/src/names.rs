//! Names of organisations and nodes: they become parts of certificates and of files.

use thiserror::Error;

/// The longest organisation: the limit of X.520.
const MAX_ORGANISATION_CHARACTERS: usize = 64;

/// The longest node name: one DNS label.
const MAX_NODE_CHARACTERS: usize = 63;

/// A name that cannot be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum NameError {
    /// Not valid for an organisation.
    #[error(
        "`{}` cannot name an organisation: use 1 to {MAX_ORGANISATION_CHARACTERS} letters, digits, \
         `.`, `_`, `-` or single spaces, with a letter or digit at either end",
        .0.escape_debug()
    )]
    Organisation(String),
    /// Not valid for a node.
    #[error(
        "`{}` cannot name a node: use 1 to {MAX_NODE_CHARACTERS} of a-z, A-Z, 0-9, `.`, `_` or \
         `-` that make a host name, e.g. `worker-1`",
        .0.escape_debug()
    )]
    Node(String),
}

/// Checks the name of an organisation.
pub fn check_organisation(text: &str) -> Result<(), NameError> {
    let allowed = |c: char| c.is_alphanumeric() || " ._-".contains(c);
    let ends = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    let good = text.chars().count() <= MAX_ORGANISATION_CHARACTERS
        && text.chars().all(allowed)
        && !text.contains("  ")
        && ends(text.chars().next())
        && ends(text.chars().next_back());
    if good { Ok(()) } else { Err(NameError::Organisation(shortened(text))) }
}

/// Checks the name of a node: part of a file name, and a host name in its certificate.
pub fn check_node_name(text: &str) -> Result<(), NameError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let good = text.len() <= MAX_NODE_CHARACTERS
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(allowed)
        && rustls::pki_types::DnsName::try_from(text).is_ok();
    if good { Ok(()) } else { Err(NameError::Node(shortened(text))) }
}

/// The beginning of the file names of an organisation: its name, with `-` for spaces.
pub fn file_stem(organisation: &str) -> String {
    organisation.replace(' ', "-")
}

/// The input may be anything, but a message stays one short line.
fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn organisations_are_safe_as_file_names() {
        let long = "x".repeat(65);
        for good in ["acme", "Acme Corp.1", "Société-Générale", "a_b", "9"] {
            assert_eq!(check_organisation(good), Ok(()), "{good}");
        }
        for bad in
            ["", " acme", "acme ", "../acme", "a/b", "a\\b", ".acme", "-o", "a  b", "a\nb", &long]
        {
            assert!(check_organisation(bad).is_err(), "{bad:?}");
        }
        assert_eq!(file_stem("Acme Corp"), "Acme-Corp");
    }

    #[test]
    fn node_names_are_host_names() {
        let long = "x".repeat(64);
        for good in ["worker-1", "gw.example.org", "W_1"] {
            assert_eq!(check_node_name(good), Ok(()), "{good}");
        }
        for bad in ["", "-w", ".w", "a b", "a/b", "a..b", "wörker", "*", "a\n", "w-", &long] {
            assert!(check_node_name(bad).is_err(), "{bad:?}");
        }
    }
}
