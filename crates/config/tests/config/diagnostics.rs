//! One line for each fault, with its position and what was expected.

use hypha_config::{DataConfig, Flags, GatewayConfig, RoleConfig, SchedulerConfig, WorkerConfig};

use crate::{CERTIFICATES, Home};

/// `text` below the three certificate lines, so its first line is line 4.
#[track_caller]
fn check<R: RoleConfig + std::fmt::Debug>(text: &str, expected: &[&str]) {
    let home = Home::new();
    let faults = home.load::<R>(&format!("{CERTIFICATES}{text}"), &[], &Flags::default());
    assert_eq!(faults.unwrap_err().lines().collect::<Vec<_>>(), expected, "{text}");
}

#[test]
fn unknown_keys() {
    check::<GatewayConfig>(
        "gatway_addresses = []",
        &["node.toml:4:1: unknown key `gatway_addresses`; did you mean `gateway_addresses`?"],
    );
    check::<GatewayConfig>(
        "[relay]\n  max_circuit = 5\nlog_level = 'info'\ncolour = 1",
        &[
            "node.toml:5:3: unknown key `max_circuit` in `[relay]`; did you mean `max_circuits`?",
            "node.toml:6:1: unknown key `log_level` in `[relay]`; it belongs at the top, above the \
             first section",
            "node.toml:7:1: unknown key `colour` in `[relay]`",
        ],
    );
    check::<GatewayConfig>(
        "max_circuits = 5\n[[executors]]\nname = 'x'",
        &[
            "node.toml:4:1: unknown key `max_circuits`; it belongs under `[relay]`",
            "node.toml:5:3: unknown key `executors`; it is for a worker node, and this file is for a gateway \
             node",
        ],
    );
    check::<WorkerConfig>(
        "[[executors]]\nname = 'x'\nruntime = 'process'\ncommand = 'y'\nmemory = 5",
        &[
            "node.toml:7:1: unknown key `command` in `[executors]`",
            "node.toml:8:1: unknown key `memory` in `[executors]`; it belongs under \
             `[executors.limits]`",
        ],
    );
    check::<SchedulerConfig>(
        "scheduler.task_timout = 300\ntask_timeout = 300\nmax_attempts = 3\nhardware = 'x'\n\
         [scheduler.retry]\nurl = 'x'\nregion = 'y'\nbind_address = 'z'",
        &[
            "node.toml:4:11: unknown key `task_timout` in `[scheduler]`; did you mean `task_timeout`?",
            "node.toml:5:1: unknown key `task_timeout`; it belongs under `[scheduler]`",
            "node.toml:6:1: unknown key `max_attempts`; it belongs under `[scheduler.retry]`",
            "node.toml:7:1: unknown key `hardware`; it is for a worker node, and this file is for a scheduler \
             node",
            "node.toml:9:1: unknown key `url` in `[scheduler.retry]`; it belongs under \
             `[[scheduler.backends]]`",
            "node.toml:10:1: unknown key `region` in `[scheduler.retry]`; it belongs at the top, above \
             the first section",
            "node.toml:11:1: unknown key `bind_address` in `[scheduler.retry]`; it belongs under \
             `[scheduler.api]`",
        ],
    );
    check::<GatewayConfig>(
        "region = 'x'",
        &[
            "node.toml:4:1: unknown key `region`; it is for a scheduler or worker node, and this file is for a \
           gateway node",
        ],
    );
}

#[test]
fn wrong_types() {
    check::<GatewayConfig>(
        "listen_addresses = '/ip4/0.0.0.0/tcp/1'\nrelay_circuit = 'yes'\nrelay = 5",
        &[
            "node.toml:4:20: `listen_addresses`: expected a list of addresses such as \
             [\"/ip4/0.0.0.0/tcp/4001\"], found a string",
            "node.toml:5:17: `relay_circuit`: expected true or false, found a string",
            "node.toml:6:9: `relay`: expected a section such as [name], found a number",
        ],
    );
    check::<WorkerConfig>(
        "record_ttl = [5]\n[resources]\ncpu = '4'\nmemory = true\n[executors]\n\
         [offer]\nprice = 1979-05-27\n",
        &[
            "node.toml:4:14: `record_ttl`: expected a number of seconds such as 60, or a string such as \
             \"5m\", found a list",
            "node.toml:6:7: `resources.cpu`: expected a number of cores such as 4 or 0.5, found a string",
            "node.toml:7:10: `resources.memory`: expected a number of bytes or a string such as \
             \"16GiB\", found a boolean",
            "node.toml:8:1: `executors`: expected a list of tables, each headed [[name]], found a table",
            "node.toml:10:9: `offer.price`: expected a price such as 1.25, found a date",
        ],
    );
    check::<WorkerConfig>(
        "executors = [{ name = 'a', runtime = 'http' }, 5]",
        &["node.toml:4:48: `executors`: expected a table, found a number"],
    );
}

#[test]
fn malformed_addresses() {
    let gateway = "expected a host and a TCP port such as \"/ip4/203.0.113.7/tcp/4001\" or \
                   \"/dns4/gateway.example.org/tcp/4001\", with or without \"/p2p/PEER\"";
    for (address, problem) in [
        ("203.0.113.7:4001", "malformed address"),
        ("", "not an address of a host"),
        ("/ip4/203.0.113.7", "not a TCP address"),
        ("/ip4/203.0.113.7/udp/4001/quic-v1", "not a TCP address"),
        ("/ip4/203.0.113.777/tcp/4001", "malformed address"),
        ("/ip4/0.0.0.0/tcp/4001", "an unspecified IP address cannot be dialled"),
        ("/dns4/g/tcp/0", "port 0 cannot be dialled"),
        ("/dns4/g/tcp/4001/ws", "too much after the port"),
        ("/dns4/g/tcp/4001/p2p/x", "malformed address"),
    ] {
        check::<WorkerConfig>(
            &format!("gateway_addresses = ['/dns4/g/tcp/1',\n  '{address}']"),
            &[&format!("node.toml:5:3: `gateway_addresses`: {problem}: {gateway}")],
        );
    }
    let peer = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo";
    let home = Home::new();
    let good: WorkerConfig =
        home.good(&format!("gateway_addresses = ['/ip6/2001:db8::1/tcp/4001/p2p/{peer}']"));
    assert_eq!(good.network.gateway_addresses.len(), 1);
    check::<WorkerConfig>(
        "listen_addresses = ['/dns4/g/tcp/1']",
        &[
            "node.toml:4:21: `listen_addresses`: cannot listen on a host name: expected an IP address \
           and a TCP port such as \"/ip4/0.0.0.0/tcp/4001\" or \"/ip6/::/tcp/0\"",
        ],
    );
    check::<WorkerConfig>(
        "exclude_cidr = ['10.0.0.0/8', '10.0.0.1/8', '10.0.0.0/33']",
        &[
            "node.toml:4:31: `exclude_cidr`: the address has bits beyond its prefix length: give the \
           first address of the range",
        ],
    );
}

#[test]
fn amount_without_a_unit_is_refused() {
    check::<WorkerConfig>(
        "[resources]\nmemory = 16\nstorage = '100'",
        &[
            "node.toml:5:10: `resources.memory`: 16 bytes are too few; write a unit, such as \"16GiB\"",
            "node.toml:6:11: `resources.storage`: 100 bytes are too few; write a unit, such as \"16GiB\"",
        ],
    );
}

#[test]
fn values_out_of_range() {
    check::<GatewayConfig>(
        "relay.max_circuits = 0\nrelay.max_reservations = 99999999\nrelay.max_circuit_bytes = 0\n\
         relay.reservation_duration = 1\nrelay.max_circuit_duration = '400d'",
        &[
            "node.toml:4:22: `relay.max_circuits`: the value is too small: the least is 1",
            "node.toml:5:26: `relay.max_reservations`: the value is too large: the most is 65536",
            "node.toml:6:27: `relay.max_circuit_bytes`: the value must be above zero",
            "node.toml:7:30: `relay.reservation_duration`: the value is too small: the least is 60 \
             seconds",
            "node.toml:8:30: `relay.max_circuit_duration`: the value is too large: the most is 604800 \
             seconds",
        ],
    );
    check::<WorkerConfig>(
        "record_ttl = 4\nprice = 5\ntelemetry_sample_ratio = 1.01\nmetrics_address = 'localhost'\n\
         log_format = 'xml'\nlog_level = 'inof'\nregion = ' x'",
        &[
            "node.toml:4:14: `record_ttl`: the value is too small: the least is 5 seconds",
            "node.toml:5:1: unknown key `price`; it belongs under `[offer]`",
            "node.toml:6:26: `telemetry_sample_ratio`: expected a number from 0 to 1 such as 0.1",
            "node.toml:7:19: `metrics_address`: expected an address and a port such as \
             \"127.0.0.1:9101\"",
            "node.toml:8:14: `log_format`: expected one of \"human\", \"json\"",
            "node.toml:9:13: `log_level`: expected a level (off, error, warn, info, debug or trace), or \
             levels by target such as \"info,hypha_net=debug\"",
            "node.toml:10:10: `region`: not a name: a name must not contain control characters or begin \
             or end with a space",
        ],
    );
}

#[test]
fn missing_keys_and_files() {
    let home = Home::new();
    let load = |text: &str| {
        let faults = home.load::<DataConfig>(text, &[], &Flags::default()).unwrap_err();
        faults.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        load("cert_pem = 'none.pem'\ntrust_pem = '.'\n[[datasets]]\nname = 'd'\n"),
        [
            "node.toml: `key_pem` is missing: the certificate's private key, PKCS#8 in PEM",
            "node.toml:1:12: `cert_pem`: there is no file none.pem: put it there or change the path",
            "node.toml:2:13: `trust_pem`: expected a file, found the directory .",
            "node.toml:3:1: `datasets.path` is missing: the file or directory that holds it",
        ]
    );
    check::<DataConfig>(
        "[[datasets]]\nname = 'a'\npath = '.'\n[[datasets]]\nname = 'a'\npath = '.'",
        &["node.toml:8:8: `name`: another data set has this name"],
    );
    check::<WorkerConfig>(
        "[[executors]]\nname = 'a'\nruntime = 'builtin'\n[[executors]]\nname = 'a'\nruntime = 'builtin'",
        &["node.toml:8:8: `name`: another executor of this class has this name"],
    );
    check::<DataConfig>(
        "require_crl = true",
        &["node.toml:4:15: `require_crl`: without `crls_pem` every node would be refused: give \
           `crls_pem` too"],
    );
    let missing = hypha_config::load::<DataConfig>(&home.path("no.toml"), &[], &Flags::default());
    let missing = home.shortened(&missing.unwrap_err().to_string());
    assert!(missing.starts_with("no.toml: cannot read the configuration: "), "{missing}");
    assert!(missing.ends_with("`hypha ROLE init` writes one"), "{missing}");
    std::fs::write(home.path("big.toml"), vec![b'\n'; hypha_config::MAX_FILE_BYTES + 1]).unwrap();
    let big = hypha_config::load::<DataConfig>(&home.path("big.toml"), &[], &Flags::default());
    assert!(big.unwrap_err().to_string().contains("larger than 1048576 bytes"));
}

/// Syntax errors of each sort, each on a line with a secret.
#[test]
fn diagnostics_never_repeat_a_secret() {
    for (text, position) in [
        ("telemetry_headers = \"Authorization=hunter2", "4:"),
        ("telemetry_headers = Authorization=hunter2", "4:"),
        ("telemetry_headers = hunter2", "4:"),
        ("telemetry_headers = 'a=hunter2' 'hunter2'", "4:"),
        ("telemetry_headers = '''a=hunter2", "5:"),
        ("telemetry_headers = 'a=hunter2'\ntelemetry_headers = 'a=hunter2'", "5:1:"),
        ("telemetry_headers.hunter2.x = 1\ntelemetry_headers = 'a=hunter2'", "5:1:"),
        ("telemetry_headers = \"\\q hunter2\"", "4:"),
        ("telemetry_headers = 2024-13-01Thunter2", "4:"),
        ("telemetry_headers = 'hunter2'", "4:21:"),
        ("telemetry_headers = ['hunter2=x']", "4:21:"),
        ("telemetry_headers = { a = 'hunter2' }", "4:21:"),
        ("telemetry_endpoint = 'https://u:hunter2@example.org'", "4:22:"),
        ("log_level = 'hunter2'", "4:13:"),
    ] {
        let home = Home::new();
        let text = format!("{CERTIFICATES}{text}\n");
        let fault = home.load::<GatewayConfig>(&text, &[], &Flags::default()).unwrap_err();
        assert!(!fault.contains("hunter2"), "{text}: {fault}");
        assert!(fault.starts_with(&format!("node.toml:{position}")), "{text}: {fault}");
        assert_eq!(fault.lines().count(), 1, "{text}: {fault}");
    }
    let home = Home::new();
    let bytes = [CERTIFICATES.as_bytes(), b"# \xffhunter2"].concat();
    let path = home.path("node.toml");
    let fault = hypha_config::parse::<GatewayConfig>(&path, &bytes, &[], &Flags::default());
    assert_eq!(home.shortened(&fault.unwrap_err().to_string()), "node.toml:4:3: not UTF-8 text");
}

#[test]
fn faults_name_their_variable_or_flag() {
    let home = Home::new();
    let environment = [
        ("HYPHA_RELAY__MAX_CIRCUITS", "many"),
        ("HYPHA_RELAY_MAX_CIRCUITS", "5"),
        ("HYPHA_GATWAY_ADDRESSES", "/dns4/hunter2/tcp/1"),
        ("HYPHA_LISTEN_ADDRESSES", "/ip4/127.0.0.1/tcp/0, hunter2"),
        ("HYPHA_EXTERNAL_ADDRESSES", "['hunter2"),
        ("HYPHA_TELEMETRY_HEADERS", "hunter2"),
        // Kubernetes makes these, and this is another role's.
        ("HYPHA_GATEWAY_PORT", "tcp://10.0.0.1:4001"),
        ("HYPHA_GATEWAY_SERVICE_HOST", "10.0.0.1"),
        ("HYPHA_PRICE", "free"),
        // An empty variable counts as not set.
        ("HYPHA_LOG_LEVEL", ""),
    ];
    let flags = Flags {
        external: vec!["/ip4/203.0.113.7/tcp/1".into(), "hunter2".into()],
        exclude_cidr: vec!["hunter2".into()],
        ..Flags::default()
    };
    let faults = home.load::<GatewayConfig>(CERTIFICATES, &environment, &flags).unwrap_err();
    assert_eq!(
        faults.lines().collect::<Vec<_>>(),
        [
            "HYPHA_EXTERNAL_ADDRESSES: not valid TOML: unclosed array, expected `]`",
            "HYPHA_GATWAY_ADDRESSES: matches no key; did you mean HYPHA_GATEWAY_ADDRESSES?",
            "HYPHA_LISTEN_ADDRESSES: item 2: malformed address: expected an IP address and a TCP port \
             such as \"/ip4/0.0.0.0/tcp/4001\" or \"/ip6/::/tcp/0\"",
            "HYPHA_RELAY_MAX_CIRCUITS: matches no key; did you mean HYPHA_RELAY__MAX_CIRCUITS?",
            "HYPHA_RELAY__MAX_CIRCUITS: the value is not a number: give a whole number such as 2",
            "HYPHA_TELEMETRY_HEADERS: expected headers such as \"Authorization=Basic KEY\", with commas \
             between several",
            "--exclude-cidr: expected an address range such as \"10.0.0.0/8\"",
            "--external: item 2: malformed address: expected a host and a TCP port such as \
             \"/ip4/203.0.113.7/tcp/4001\" or \"/dns4/node.example.org/tcp/4001\"",
        ]
    );
    let otel = [("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")];
    let fault = home.load::<GatewayConfig>(CERTIFICATES, &otel, &Flags::default()).unwrap_err();
    assert_eq!(fault, "OTEL_EXPORTER_OTLP_PROTOCOL: expected one of \"http/protobuf\", \"grpc\"");
}
