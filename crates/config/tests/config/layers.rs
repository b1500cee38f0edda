//! Precedence: flags over environment over file; `OTEL_*` over `telemetry_*`.

use std::time::Duration;

use hypha_config::{
    Flags, GatewayConfig, LogFormat, Protocol, Sampler, TelemetrySettings, WorkerConfig,
};
use hypha_model::{ExecutorClass, Money};

use crate::{CERTIFICATES, Home, is_in};

#[test]
fn later_layers_win_key_by_key() {
    let home = Home::new();
    let text = format!(
        "{CERTIFICATES}listen_addresses = ['/ip4/127.0.0.1/tcp/1']\n\
         external_addresses = ['/ip4/127.0.0.1/tcp/2']\ngateway_addresses = ['/ip4/127.0.0.1/tcp/3']\n\
         relay_circuit = false\nexclude_cidr = ['10.0.0.0/8']\nlog_format = 'json'\n\
         [relay]\nmax_circuits = 5\nmax_reservations = 6\n"
    );
    let environment = [
        ("HYPHA_LISTEN_ADDRESSES", "/ip4/127.0.0.1/tcp/11, /ip4/127.0.0.1/tcp/12"),
        ("HYPHA_EXTERNAL_ADDRESSES", "[\"/ip4/127.0.0.1/tcp/21\"]"),
        ("HYPHA_RELAY__MAX_CIRCUITS", "50"),
        ("HYPHA_RELAY__MAX_CIRCUIT_BYTES", "1GiB"),
        ("HYPHA_RELAY__RESERVATION_DURATION", "5m"),
        ("HYPHA_LOG_LEVEL", "debug"),
        ("HYPHA_REQUIRE_CRL", "false"),
    ];
    let flags = Flags {
        listen: vec!["/ip4/127.0.0.1/tcp/111".into()],
        relay_circuit: Some(true),
        exclude_cidr: vec!["fc00::/7".into()],
        ..Flags::default()
    };
    let config: GatewayConfig = home.load(&text, &environment, &flags).unwrap();
    let shown = |addresses: &[multiaddr::Multiaddr]| format!("{addresses:?}");
    assert_eq!(shown(&config.network.listen_addresses), "[/ip4/127.0.0.1/tcp/111]");
    assert_eq!(shown(&config.network.external_addresses), "[/ip4/127.0.0.1/tcp/21]");
    assert_eq!(shown(&config.network.gateway_addresses), "[/ip4/127.0.0.1/tcp/3]");
    assert_eq!(shown(&config.network.bulk_listen_addresses), "[/ip4/127.0.0.1/tcp/0]");
    assert!(config.network.relay_circuit);
    assert_eq!(config.network.exclude_cidr, Some(vec!["fc00::/7".parse().unwrap()]));
    assert_eq!(config.observe.log_format, LogFormat::Json);
    assert_eq!(config.observe.log_level, "debug");
    assert_eq!(config.relay.max_circuits, 50);
    assert_eq!(config.relay.max_reservations, 6);
    assert_eq!(config.relay.max_circuits_per_peer, 16);
    assert_eq!(config.relay.max_circuit_bytes, 1 << 30);
    assert_eq!(config.relay.reservation_duration, Duration::from_secs(300));

    let without_flags: GatewayConfig = home.load(&text, &environment, &Flags::default()).unwrap();
    assert_eq!(without_flags.network.listen_addresses.len(), 2);
    assert!(!without_flags.network.relay_circuit);
}

#[test]
fn required_key_may_come_from_the_environment() {
    let home = Home::new();
    let absolute = home.path("c.pem").to_str().unwrap().to_owned();
    let environment = [("HYPHA_CERT_PEM", absolute.as_str()), ("HYPHA_OFFER__PRICE", "1.5")];
    let text = "key_pem = 'k.pem'\ntrust_pem = 't.pem'\n";
    let config: WorkerConfig = home.load(text, &environment, &Flags::default()).unwrap();
    assert!(is_in(&config.network.cert_pem, &home) && is_in(&config.network.key_pem, &home));
    assert_eq!(config.offer.terms.price, Money::from_micros(1_500_000));
    // A relative path in a variable is relative to the working directory.
    let environment = [("HYPHA_CERT_PEM", "c.pem")];
    let fault = home.load::<WorkerConfig>(text, &environment, &Flags::default()).unwrap_err();
    assert!(fault.starts_with("HYPHA_CERT_PEM: there is no file c.pem"), "{fault}");
}

#[test]
fn lists_of_tables_come_from_the_environment_as_toml() {
    let home = Home::new();
    let executors = "[{ name = 'chat', runtime = 'http', url = 'http://h' }, { name = 'gpt', class = 'train', \
                     runtime = 'builtin', models = ['m'], concurrency = 3 }]";
    let environment = [("HYPHA_EXECUTORS", executors)];
    let config: WorkerConfig = home.load(CERTIFICATES, &environment, &Flags::default()).unwrap();
    assert_eq!(config.executors[0].class, ExecutorClass::Inference);
    let executor = config.executors[1].executor();
    assert_eq!((executor.class, executor.concurrency), (ExecutorClass::Train, 3));
    assert_eq!(executor.models.len(), 1);
    let environment = [("HYPHA_EXECUTORS", "chat")];
    let fault = home.load::<WorkerConfig>(CERTIFICATES, &environment, &Flags::default());
    assert!(fault.unwrap_err().starts_with("HYPHA_EXECUTORS: expected a TOML list of tables"));
}

#[test]
fn worker_detects_resources_that_are_not_given() {
    let home = Home::new();
    let config: WorkerConfig = home.good("");
    assert_eq!(config.resources, hypha_config::Resources::default());
    let config: WorkerConfig = home.good(
        "[resources]\ncpu = 3.5\nmemory = 17179869184\nstorage = '100GB'\n\
         [[resources.gpu]]\nmodel = 'A100'\nmemory = '80GiB'\n",
    );
    assert_eq!(config.resources.cpu_milli, Some(3_500));
    assert_eq!(config.resources.memory_bytes, Some(16 << 30));
    assert_eq!(config.resources.storage_bytes, Some(100_000_000_000));
    assert_eq!(config.resources.gpus.unwrap()[0].memory_bytes, 80 << 30);
    let config: WorkerConfig = home.good("[resources]\ngpu = []\n");
    assert_eq!(config.resources.gpus, Some(Vec::new()));
}

const TELEMETRY: &str = "telemetry_attributes = 'service.name=file,a=1,b=2'\n\
                         telemetry_endpoint = 'https://file.example.org'\n\
                         telemetry_headers = 'Authorization=Basic hunter2'\n\
                         telemetry_protocol = 'grpc'\n\
                         telemetry_sampler = 'parentbased_traceidratio'\n\
                         telemetry_sample_ratio = 0.1\n";

fn telemetry(text: &str, environment: &[(&str, &str)]) -> TelemetrySettings {
    let text = format!("{CERTIFICATES}{text}");
    let config: WorkerConfig = Home::new().load(&text, environment, &Flags::default()).unwrap();
    config.observe.telemetry
}

#[test]
fn telemetry_settings_come_from_the_file() {
    let settings = telemetry(TELEMETRY, &[]);
    assert_eq!(settings.service_name, "file");
    assert_eq!(settings.attributes, crate::pairs(&[("a", "1"), ("b", "2")]));
    assert_eq!(settings.endpoint.as_deref(), Some("https://file.example.org"));
    assert_eq!(settings.headers.0, crate::pairs(&[("Authorization", "Basic hunter2")]));
    assert_eq!(settings.protocol, Protocol::Grpc);
    assert_eq!(settings.sampler, Sampler::ParentBasedTraceIdRatio);
    assert_eq!(settings.sample_ratio, 0.1);
    let shown = format!("{settings:?}");
    assert!(shown.contains("Authorization") && !shown.contains("hunter2"), "{shown}");

    let nothing = telemetry("", &[]);
    assert_eq!((nothing.service_name.as_str(), nothing.endpoint), ("hypha-worker", None));
    assert_eq!(nothing.sampler, Sampler::ParentBasedAlwaysOn);
}

#[test]
fn otel_variables_win_over_telemetry_keys() {
    let hypha =
        [("HYPHA_TELEMETRY_PROTOCOL", "http/protobuf"), ("HYPHA_TELEMETRY_SAMPLE_RATIO", "0.2")];
    let settings = telemetry(TELEMETRY, &hypha);
    assert_eq!((settings.protocol, settings.sample_ratio), (Protocol::HttpProtobuf, 0.2));

    let otel = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-a=b%20c,x-d=e"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_RESOURCE_ATTRIBUTES", "service.name=attribute,b=3,c=4"),
        ("OTEL_TRACES_SAMPLER", "traceidratio"),
        ("OTEL_TRACES_SAMPLER_ARG", "0.5"),
    ];
    let settings = telemetry(TELEMETRY, &[&hypha[..], &otel[..]].concat());
    assert_eq!(settings.service_name, "attribute");
    assert_eq!(settings.attributes, crate::pairs(&[("a", "1"), ("b", "3"), ("c", "4")]));
    assert_eq!(settings.endpoint.as_deref(), Some("http://127.0.0.1:4317"));
    assert_eq!(settings.headers.0, crate::pairs(&[("x-a", "b c"), ("x-d", "e")]));
    assert_eq!(settings.protocol, Protocol::Grpc);
    assert_eq!((settings.sampler, settings.sample_ratio), (Sampler::TraceIdRatio, 0.5));

    let name = ("OTEL_SERVICE_NAME", "mine");
    assert_eq!(telemetry(TELEMETRY, &[otel[3], name]).service_name, "mine");
    let empty = [("OTEL_EXPORTER_OTLP_ENDPOINT", ""), ("OTEL_SERVICE_NAME", " ")];
    assert_eq!(telemetry(TELEMETRY, &empty), telemetry(TELEMETRY, &[]));
}
