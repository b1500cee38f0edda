//! The HTTP API of a scheduler.

use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::IpNet;

use crate::diagnostic::Diagnostic;
use crate::parse::{self, UrlUse};
use crate::reader::Reader;
use crate::roles::size;

/// The HTTP API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiConfig {
    /// The address at which requests are served.
    pub bind_address: SocketAddr,
    /// Whether that was given. A scheduler starts even if the default port is taken.
    pub bind_address_given: bool,
    /// The largest body of a request.
    pub max_request_bytes: u64,
    /// The largest sum of bodies that are arriving.
    pub max_buffered_bytes: u64,
    /// The accepted bearer tokens.
    pub tokens_file: Option<PathBuf>,
    /// Whether requests without a token are served at an address other than loopback.
    pub allow_unauthenticated: bool,
    /// The names under which clients without a token may reach it, besides those that are known; `*` for any.
    pub allowed_hosts: Vec<String>,
    /// The origins of web pages that may use it; `*` for any.
    pub allowed_origins: Vec<String>,
    /// The certificate and its key for HTTPS.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// The address at which others reach the API, without a slash at the end.
    pub public_url: Option<String>,
    /// The ranges in which task instances may be registered.
    pub allowed_networks: Vec<IpNet>,
}

impl ApiConfig {
    pub(super) fn read(section: &Reader<'_>) -> Result<ApiConfig, Diagnostic> {
        let bind_address = section.get("bind_address", parse::socket)?;
        let tokens_file = section.path("tokens_file")?;
        let allow_unauthenticated = section.get("allow_unauthenticated", parse::switch)?;
        if !is_loopback(bind_address) && tokens_file.is_none() && !allow_unauthenticated {
            return Err(section.fault(
                "bind_address",
                "anyone who can reach this address could use the scheduler: give `tokens_file`, or \
                 `allow_unauthenticated = true` if that is meant",
            ));
        }
        let allowed_origins = section.get("allowed_origins", parse::origins)?;
        if tokens_file.is_none() && allowed_origins.iter().any(|origin| origin == "*") {
            return Err(section.fault(
                "allowed_origins",
                "any web page could use the scheduler, because no token is required: list origins, or give \
                 `tokens_file`",
            ));
        }
        Ok(ApiConfig {
            bind_address,
            bind_address_given: section.given("bind_address").is_some(),
            max_request_bytes: section.get("max_request_size", size)?,
            max_buffered_bytes: section.get("max_buffered_size", size)?,
            tokens_file,
            allowed_hosts: section.get("allowed_hosts", parse::hosts)?,
            allowed_origins,
            allow_unauthenticated,
            tls: tls(section)?,
            public_url: section
                .optional("public_url", |given| parse::url(given, UrlUse::Public))?,
            allowed_networks: section.get("allowed_networks", parse::networks)?,
        })
    }
}

/// Also true for an IPv4 address that is written as IPv6.
pub(crate) fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

fn tls(section: &Reader<'_>) -> Result<Option<(PathBuf, PathBuf)>, Diagnostic> {
    match (section.path("tls_cert_pem")?, section.path("tls_key_pem")?) {
        (Some(cert), Some(key)) => Ok(Some((cert, key))),
        (None, None) => Ok(None),
        (Some(_), None) => Err(section.fault("tls_cert_pem", "give `tls_key_pem` too")),
        (None, Some(_)) => Err(section.fault("tls_key_pem", "give `tls_cert_pem` too")),
    }
}
