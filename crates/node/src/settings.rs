//! A configuration in the words of the crates that it steers.

use hypha_config::{NetworkConfig, ObserveConfig};
use hypha_model::NodeRole;
use hypha_net::{Limits, RelayLimits, Settings};
use hypha_pki::Files;
use hypha_telemetry as telemetry;

/// Libraries whose own lines say nothing that ours do not; the configured filter may bring them back.
const QUIET: &str = "libp2p_swarm=warn,libp2p_kad=error,libp2p_autonat=error";

pub(crate) fn files(network: &NetworkConfig) -> Files {
    Files {
        cert_pem: network.cert_pem.clone(),
        key_pem: network.key_pem.clone(),
        trust_pem: network.trust_pem.clone(),
        crls_pem: network.crls_pem.clone(),
        require_crl: network.require_crl,
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
        listen: network.listen_addresses.clone(),
        external: network.external_addresses.clone(),
        gateways: network.gateway_addresses.clone(),
        excluded: hypha_config::excluded(network),
        excluded_as_given: network.exclude_cidr.is_some(),
        relay_circuit: network.relay_circuit,
        relay: relay.map(relay_limits),
        bulk_listen: network.bulk_listen_addresses.clone(),
        bulk_external: network.bulk_external_addresses.clone(),
        limits: match role {
            NodeRole::Gateway => Limits::of_gateway(),
            _ => Limits::of_node(),
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
        log_filter: format!("{QUIET},{}", observe.log_level),
    }
}
