//! Bearer tokens: a file lists their tenants and roles. Only their hashes are stored.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use data_encoding::BASE64URL_NOPAD;
use hypha_model::amount::{FieldError, parse_priority};
use hypha_model::input_value::InputValue;
use hypha_model::{Name, Priority};
use serde::Deserialize;
use thiserror::Error;

use crate::caller::{Caller, Role};

/// The prefix of every token, so that a leaked one is recognised.
pub const TOKEN_PREFIX: &str = "hypha_";
/// The file is checked no more often than this.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);
/// Larger than ten thousand entries; a larger file is not a token file.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Randomness in a token: 256 bits cannot be guessed.
const TOKEN_BYTES: usize = 32;

/// The range of weights: a tenant with the least may have a millionth of what one with the greatest has.
const MIN_WEIGHT: f64 = 0.001;
const MAX_WEIGHT: f64 = 1_000.0;

/// The tokens of a file, read again when it changes.
#[derive(Debug)]
pub struct Tokens {
    path: PathBuf,
    state: Mutex<TokenCache>,
}

#[derive(Debug)]
struct TokenCache {
    known: Arc<CallersByHash>,
    version: Option<FileVersion>,
    checked_at: Instant,
}

type CallersByHash = HashMap<[u8; 32], Caller>;
/// Changes when the file is written again.
type FileVersion = (SystemTime, u64);

/// The settings of a new token.
#[derive(Clone, Debug, Default)]
pub struct NewToken {
    /// A note for people.
    pub name: Option<String>,
    /// The tenant on whose behalf it acts.
    pub tenant: Option<Name>,
    /// Its role.
    pub role: Role,
    /// The highest priority that it may request.
    pub max_priority: Option<Priority>,
    /// How many tasks of the tenant may be open.
    pub quota: Option<u32>,
    /// How much the tenant may have, relative to the others; 1 if `None`.
    pub weight: Option<f64>,
}

/// Why a file of tokens is not used.
#[derive(Debug, Error)]
pub enum TokensError {
    /// It cannot be read.
    #[error("the token file {path} cannot be read: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is too large to be one.
    #[error("the token file {0} is larger than {MAX_FILE_BYTES} bytes")]
    TooLarge(PathBuf),
    /// Its contents are invalid.
    #[error("the token file {path} is refused: {problem}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileForm {
    #[serde(default)]
    tokens: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    hash: String,
    #[serde(default, rename = "name")]
    _name: Option<String>,
    tenant: Option<Name>,
    #[serde(default)]
    role: Role,
    max_priority: Option<InputValue>,
    quota: Option<u32>,
    weight: Option<f64>,
}

impl Tokens {
    /// The tokens of the file at `path`.
    pub fn load(path: impl Into<PathBuf>) -> Result<Tokens, TokensError> {
        let path = path.into();
        let version = file_version(&path);
        let known = Arc::new(read(&path)?);
        Ok(Tokens {
            path,
            state: Mutex::new(TokenCache { known, version, checked_at: Instant::now() }),
        })
    }

    /// Issues a token: the secret for its owner, and the entry for the file.
    pub fn issue(new: &NewToken) -> (String, String) {
        let random: [u8; TOKEN_BYTES] = rand::random();
        let token = format!("{TOKEN_PREFIX}{}", BASE64URL_NOPAD.encode(&random));
        let mut entry = format!("[[tokens]]\nhash = \"{}\"\n", blake3::hash(token.as_bytes()));
        let mut line =
            |key: &str, value: toml::Value| entry.push_str(&format!("{key} = {value}\n"));
        if let Some(name) = &new.name {
            line("name", toml::Value::String(name.clone()));
        }
        if let Some(tenant) = &new.tenant {
            line("tenant", toml::Value::String(tenant.to_string()));
        }
        line("role", toml::Value::String(new.role.as_str().to_owned()));
        if let Some(priority) = new.max_priority {
            line("max_priority", toml::Value::Float(priority.as_f64()));
        }
        if let Some(quota) = new.quota {
            line("quota", toml::Value::Integer(quota.into()));
        }
        if let Some(weight) = new.weight {
            line("weight", toml::Value::Float(weight));
        }
        (token, entry)
    }

    /// The caller of a token. The file is read again first if it has changed; if it has become unreadable or
    /// invalid, the tokens read before stay valid.
    pub(crate) fn caller(&self, token: &str) -> Option<Caller> {
        self.current().get(blake3::hash(token.as_bytes()).as_bytes()).cloned()
    }

    fn current(&self) -> Arc<CallersByHash> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.checked_at.elapsed() >= RELOAD_INTERVAL {
            state.checked_at = Instant::now();
            self.reload_if_changed(&mut state);
        }
        Arc::clone(&state.known)
    }

    fn reload_if_changed(&self, state: &mut TokenCache) {
        let version = file_version(&self.path);
        if version == state.version {
            return;
        }
        // The version was taken before reading: a write in between is noticed the next time.
        state.version = version;
        match read(&self.path) {
            Ok(known) => {
                tracing::info!(path = %self.path.display(), tokens = known.len(), "token file was read again");
                state.known = Arc::new(known);
            }
            Err(error) => {
                tracing::warn!(%error, "the tokens that were read before stay valid");
            }
        }
    }
}

fn file_version(path: &Path) -> Option<FileVersion> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

fn read(path: &Path) -> Result<CallersByHash, TokensError> {
    let unreadable = |source| TokensError::Unreadable { path: path.to_owned(), source };
    if std::fs::metadata(path).map_err(unreadable)?.len() > MAX_FILE_BYTES {
        return Err(TokensError::TooLarge(path.to_owned()));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    parse(&text).map_err(|problem| TokensError::Invalid { path: path.to_owned(), problem })
}

fn parse(text: &str) -> Result<CallersByHash, String> {
    let file: FileForm = toml::from_str(text).map_err(|error| error.to_string())?;
    let mut known = CallersByHash::with_capacity(file.tokens.len());
    for (at, entry) in file.tokens.into_iter().enumerate() {
        let number = at + 1;
        let hash = blake3::Hash::from_hex(entry.hash.as_bytes()).map_err(|_| {
            format!("`hash` of token {number} is not the BLAKE3 hash of a token, 64 digits of hex")
        })?;
        let ceiling = |given: &InputValue| parse_priority("max_priority", given.as_str());
        let caller = Caller {
            tenant: entry.tenant,
            role: entry.role,
            priority_ceiling: entry
                .max_priority
                .as_ref()
                .map(ceiling)
                .transpose()
                .map_err(|error: FieldError| format!("token {number}: {error}"))?,
            quota: entry.quota,
            weight: entry.weight,
        };
        if caller.weight.is_some() && caller.tenant.is_none() {
            return Err(format!("token {number} has a weight but no tenant"));
        }
        if caller.weight.is_some_and(|weight| !(MIN_WEIGHT..=MAX_WEIGHT).contains(&weight)) {
            return Err(format!(
                "`weight` of token {number} is not between {MIN_WEIGHT} and {MAX_WEIGHT}"
            ));
        }
        if caller.quota.is_some() && caller.tenant.is_none() {
            return Err(format!("token {number} has a quota but no tenant"));
        }
        if known.insert(*hash.as_bytes(), caller).is_some() {
            return Err(format!("token {number} has the hash of one before it"));
        }
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    /// As if the file had last been checked long ago.
    fn let_time_pass(tokens: &Tokens) {
        tokens.state.lock().unwrap().checked_at = Instant::now() - 2 * RELOAD_INTERVAL;
    }

    #[test]
    fn an_issued_token_is_known_once_its_entry_is_in_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens.toml");
        let new = NewToken {
            name: Some("ci \"x\"\nrole = \"admin\"".to_owned()),
            tenant: Some(name("acme")),
            role: Role::User,
            max_priority: Some(Priority::from_milli(500)),
            quota: Some(1_000),
            weight: Some(2.5),
        };
        let (token, entry) = Tokens::issue(&new);
        let (admin, admin_entry) =
            Tokens::issue(&NewToken { role: Role::Admin, ..Default::default() });
        assert!(token.starts_with(TOKEN_PREFIX) && token.len() > 40, "{token}");
        assert!(!entry.contains(&token[TOKEN_PREFIX.len()..]), "only the hash is stored");
        std::fs::write(&path, entry.clone() + &admin_entry).unwrap();
        let tokens = Tokens::load(&path).unwrap();
        let caller = Caller {
            tenant: Some(name("acme")),
            role: Role::User,
            priority_ceiling: Some(Priority::from_milli(500)),
            quota: Some(1_000),
            weight: Some(2.5),
        };
        assert_eq!(tokens.caller(&token), Some(caller));
        assert_eq!(tokens.caller(&admin).unwrap().role, Role::Admin);
        assert_eq!(tokens.caller(""), None);
        assert_eq!(tokens.caller(&token[..token.len() - 1]), None);

        std::fs::write(&path, &entry).unwrap();
        let_time_pass(&tokens);
        assert_eq!(tokens.caller(&admin), None, "a removed token is unknown");
        std::fs::write(&path, "hash = ").unwrap();
        let_time_pass(&tokens);
        assert!(tokens.caller(&token).is_some(), "a broken file changes nothing");
        std::fs::remove_file(&path).unwrap();
        let_time_pass(&tokens);
        assert!(tokens.caller(&token).is_some(), "nor does a file that is gone");
    }

    #[test]
    fn invalid_token_files_are_refused() {
        let hash = "a".repeat(64);
        let cases = [
            ("[[tokens]]\ntenant = \"a\"".to_owned(), "missing field `hash`"),
            ("[[tokens]]\nhash = \"abc\"".to_owned(), "`hash` of token 1 is not the BLAKE3 hash"),
            (format!("[[tokens]]\nhash = \"{hash}\"\nrole = \"root\""), "unknown variant `root`"),
            (format!("[[tokens]]\nhash = \"{hash}\"\ntoken = \"x\""), "unknown field `token`"),
            (format!("[[tokens]]\nhash = \"{hash}\"\nquota = -1"), "quota"),
            (format!("[[tokens]]\nhash = \"{hash}\"\nquota = 1"), "no tenant"),
            (format!("[[tokens]]\nhash = \"{hash}\"\nweight = 1.0"), "a weight but no tenant"),
            (
                format!("[[tokens]]\nhash = \"{hash}\"\ntenant = \"a\"\nweight = 0.0"),
                "`weight` of token 1",
            ),
            (format!("[[tokens]]\nhash = \"{hash}\"\nmax_priority = \"x\""), "max_priority"),
            (format!("[[tokens]]\nhash = \"{hash}\"\n").repeat(2), "token 2 has the hash of one"),
        ];
        for (text, expected) in cases {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(parse("").unwrap().is_empty());
        assert!(matches!(Tokens::load("/nowhere/at/all"), Err(TokensError::Unreadable { .. })));
    }
}
