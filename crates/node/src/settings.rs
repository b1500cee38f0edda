//! Converts a configuration into the settings of the crates that it configures.

use std::fmt::Display;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hypha_backends::{BackEndSettings, HttpSettings, NewBackEnd};
use hypha_config::{
    ApiConfig, BackendConfig, BackendFormat, NetworkConfig, ObserveConfig, SchedulerConfig,
};
use hypha_model::NodeRole;
use hypha_net::{Limits, RelayLimits, Settings};
use hypha_pki::CertificateFiles;
use hypha_predict::LookupTable;
use hypha_telemetry as telemetry;
use tokio::net::{TcpListener, TcpSocket};

use crate::NodeError;

/// Silences libraries whose log lines add nothing to ours; the configured filter can enable them again.
const LIBRARY_LOG_FILTER: &str = "libp2p_swarm=warn,libp2p_kad=error,libp2p_autonat=error";

pub(crate) fn files(network: &NetworkConfig, learned_crls: Option<PathBuf>) -> CertificateFiles {
    CertificateFiles {
        cert_pem: network.cert_pem.clone(),
        key_pem: network.key_pem.clone(),
        trust_pem: network.trust_pem.clone(),
        crls_pem: network.crls_pem.clone(),
        learned_crls,
        require_crl: network.require_crl,
    }
}

/// Reads a secret from a file: one line, without white space around it.
pub(crate) fn secret(path: &Path) -> Result<String, NodeError> {
    let read = std::fs::read_to_string(path);
    let text = read.map_err(|error| {
        NodeError::configuration(format!("cannot read {}: {error}", path.display()))
    })?;
    match text.trim() {
        "" => Err(NodeError::configuration(format!("{} is empty", path.display()))),
        secret => Ok(secret.to_owned()),
    }
}

/// The table for the predictor's mode `lookup_table`: JSON or CSV, by the extension of the file.
///
/// Without one, that mode falls back to measured run times, as it does for models that are not in the table.
pub(crate) fn lookup_table(path: Option<&Path>) -> Result<LookupTable, NodeError> {
    let Some(path) = path else { return Ok(LookupTable::empty()) };
    let invalid = |problem: &dyn Display| {
        NodeError::configuration(format!("lookup_table {}: {problem}", path.display()))
    };
    let text = std::fs::read_to_string(path).map_err(|error| invalid(&error))?;
    let table = match path.extension().is_some_and(|extension| extension == "json") {
        true => LookupTable::from_json(&text),
        false => LookupTable::from_csv(&text),
    };
    table.map_err(|error| invalid(&error))
}

/// Connections that wait to be accepted: a batch client may open hundreds at once; connections beyond it are reset.
const BACKLOG: u32 = 1_024;

/// The listener of a scheduler's API. If another scheduler on this machine has taken the default port, that is an error
/// too: clients would connect to the other one.
pub(crate) fn listen(api: &ApiConfig) -> Result<TcpListener, NodeError> {
    let address = api.bind_address;
    let listen = || {
        let socket = match address.is_ipv4() {
            true => TcpSocket::new_v4()?,
            false => TcpSocket::new_v6()?,
        };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    listen().map_err(|error| {
        NodeError::failed(format!(
            "cannot listen on {address} for the API: {error}; choose another bind_address in [scheduler.api], or port 0 for any"
        ))
    })
}

/// The settings of the HTTP surfaces.
pub(crate) fn api(
    config: &SchedulerConfig,
    version: &'static str,
) -> Result<hypha_api::Settings, NodeError> {
    let given = &config.api;
    let tokens = given.tokens_file.as_ref().map(hypha_api::Tokens::load).transpose();
    let tls = given.tls.as_ref().map(|(certificates, key)| hypha_api::TlsFiles {
        certificates: certificates.clone(),
        key: key.clone(),
    });
    tls.as_ref().map_or(Ok(()), hypha_api::TlsFiles::check).map_err(NodeError::configuration)?;
    Ok(hypha_api::Settings {
        // A larger input could not be sent to any worker.
        max_request_bytes: usize::try_from(given.max_request_bytes)
            .unwrap_or(usize::MAX)
            .min(hypha_wire::dispatch::MAX_PAYLOAD_BYTES),
        max_buffered_bytes: usize::try_from(given.max_buffered_bytes).unwrap_or(usize::MAX),
        tokens: tokens.map_err(NodeError::configuration)?,
        web: web_access(given),
        tls,
        task_timeout: config.settings.task_timeout,
        // An unreachable back end is checked once in this time; one that only restarts passes the second check.
        unschedulable_timeout: config.settings.health_check_timeout.times(2),
        version,
        ..hypha_api::Settings::default()
    })
}

/// Clients reach the API under its public address too.
fn web_access(api: &ApiConfig) -> hypha_api::WebAccess {
    let public_host = api.public_url.as_deref().and_then(|url| {
        let authority = url.split_once("://")?.1.split('/').next()?;
        let port = authority.rfind(':').filter(|colon| authority[*colon..].find(']').is_none());
        Some(authority[..port.unwrap_or(authority.len())].to_owned())
    });
    hypha_api::WebAccess {
        allowed_hosts: api.allowed_hosts.iter().cloned().chain(public_host).collect(),
        any_address: !api.bind_address.ip().to_canonical().is_loopback(),
        allowed_origins: api.allowed_origins.clone(),
    }
}

/// The settings of workers that are reached over HTTP, for a scheduler whose API is at `address`.
pub(crate) fn http_workers(config: &SchedulerConfig, address: SocketAddr) -> HttpSettings {
    let scheme = if config.api.tls.is_some() { "https" } else { "http" };
    // If the API listens on all addresses, instances on this machine use the loopback one; others need `public_url`.
    let reached = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => SocketAddr::from(([127, 0, 0, 1], address.port())),
        IpAddr::V6(ip) if ip.is_unspecified() => {
            SocketAddr::from((Ipv6Addr::LOCALHOST, address.port()))
        }
        _ => address,
    };
    let own = format!("{scheme}://{reached}");
    let of = |span: hypha_model::Span| Duration::from_micros(span.as_micros());
    HttpSettings {
        allowed_networks: config.api.allowed_networks.clone(),
        public_url: Some(config.api.public_url.clone().unwrap_or(own)),
        health_interval: of(config.settings.health_check_interval),
        health_timeout: of(config.settings.health_check_timeout),
        ..HttpSettings::new(&config.data_dir)
    }
}

/// Converts a configured back end.
pub(crate) fn back_end(config: &BackendConfig) -> Result<NewBackEnd, NodeError> {
    Ok(NewBackEnd {
        config: BackEndSettings {
            api_key: config.api_key_file.as_deref().map(secret).transpose()?,
            health_path: config.health_path.clone(),
            ..BackEndSettings::new(config.url.clone(), format_of(config.format))
        },
        models: config.models.clone(),
        concurrency: config.concurrency,
        trusted: true,
    })
}

pub(crate) fn format_of(format: BackendFormat) -> hypha_backends::Format {
    match format {
        BackendFormat::Openai => hypha_backends::Format::Openai,
        BackendFormat::Json => hypha_backends::Format::Json,
    }
}

pub(crate) fn network(
    role: NodeRole,
    network: &NetworkConfig,
    relay: Option<&hypha_config::RelayLimits>,
    version: &str,
) -> Settings {
    Settings {
        role,
        agent: format!("hypha/{version}"),
        incarnation: Some(rand::random()),
        listen: network.listen_addresses.clone(),
        external: network.external_addresses.clone(),
        gateways: network.gateway_addresses.clone(),
        excluded: hypha_config::excluded(network),
        excluded_is_configured: network.exclude_cidr.is_some(),
        relay_circuit: network.relay_circuit,
        relay: relay.map(relay_limits),
        bulk_listen: network.bulk_listen_addresses.clone(),
        bulk_external: network.bulk_external_addresses.clone(),
        limits: match role {
            NodeRole::Gateway => Limits::for_gateway(),
            _ => Limits::for_node(),
        },
    }
}

fn relay_limits(limits: &hypha_config::RelayLimits) -> RelayLimits {
    RelayLimits {
        max_reservations: limits.max_reservations,
        max_reservations_per_peer: limits.max_reservations_per_peer,
        max_circuits: limits.max_circuits,
        max_circuits_per_peer: limits.max_circuits_per_peer,
        reservation_duration: limits.reservation_duration,
        max_circuit_duration: limits.max_circuit_duration,
        max_circuit_bytes: limits.max_circuit_bytes,
    }
}

pub(crate) fn telemetry(observe: &ObserveConfig) -> telemetry::Settings {
    use hypha_config::{LogFormat, Protocol, Sampler};
    let given = &observe.telemetry;
    telemetry::Settings {
        service_name: given.service_name.clone(),
        attributes: given.attributes.clone(),
        endpoint: given.endpoint.clone(),
        headers: given.headers.0.clone(),
        protocol: match given.protocol {
            Protocol::HttpProtobuf => telemetry::Protocol::HttpProtobuf,
            Protocol::Grpc => telemetry::Protocol::Grpc,
        },
        sampler: match given.sampler {
            Sampler::AlwaysOn => telemetry::Sampler::AlwaysOn,
            Sampler::AlwaysOff => telemetry::Sampler::AlwaysOff,
            Sampler::TraceIdRatio => telemetry::Sampler::TraceIdRatio,
            Sampler::ParentBasedAlwaysOn => telemetry::Sampler::ParentBasedAlwaysOn,
            Sampler::ParentBasedAlwaysOff => telemetry::Sampler::ParentBasedAlwaysOff,
            Sampler::ParentBasedTraceIdRatio => telemetry::Sampler::ParentBasedTraceIdRatio,
        },
        sample_ratio: given.sample_ratio,
        log_format: match observe.log_format {
            LogFormat::Human => telemetry::LogFormat::Human,
            LogFormat::Json => telemetry::LogFormat::Json,
        },
        log_filter: format!("{LIBRARY_LOG_FILTER},{}", observe.log_level),
    }
}
