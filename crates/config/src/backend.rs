//! HTTP servers that do work.

use std::path::PathBuf;

use hypha_model::Name;

use crate::diagnostic::Diagnostic;
use crate::parse::{self, Choice, UrlUse};
use crate::reader::Reader;
use crate::roles::count;

/// An HTTP server that a scheduler uses directly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendConfig {
    /// Its base address, without a slash at the end.
    pub url: String,
    /// The models it serves; if empty, the back end is queried for them.
    pub models: Vec<Name>,
    /// Its protocol.
    pub format: BackendFormat,
    /// How many requests are sent to it at once.
    pub concurrency: u32,
    /// The file that holds its key.
    pub api_key_file: Option<PathBuf>,
    /// The path of its health check.
    pub health_path: Option<String>,
}

/// The protocol of an HTTP server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendFormat {
    /// The routes of OpenAI's API.
    #[default]
    Openai,
    /// A task's input, unchanged.
    Json,
}

impl Choice for BackendFormat {
    const NAMES: &'static [(&'static str, BackendFormat)] =
        &[("openai", BackendFormat::Openai), ("json", BackendFormat::Json)];
}

pub(crate) fn backends(section: &Reader<'_>) -> Result<Vec<BackendConfig>, Diagnostic> {
    let mut backends: Vec<BackendConfig> = Vec::new();
    for entry in section.entries("backends")?.unwrap_or_default() {
        let url = entry.get("url", |given| parse::url(given, UrlUse::Server))?;
        if backends.iter().any(|one| one.url == url) {
            return Err(entry.fault("url", "another back end has this address"));
        }
        backends.push(BackendConfig {
            url,
            models: entry.get("models", parse::labels)?,
            format: entry.get("format", parse::choice)?,
            concurrency: entry.get("concurrency", count)?,
            api_key_file: entry.path("api_key_file")?,
            health_path: entry.optional("health_path", parse::url_path)?,
        });
    }
    Ok(backends)
}
