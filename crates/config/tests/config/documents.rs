//! Template and schema: made from the table of keys, and as good as they say.

use hypha_config::{
    DataConfig, Filled, Flags, GatewayConfig, RoleConfig, SchedulerConfig, WorkerConfig, schema,
    template,
};
use hypha_model::NodeRole;
use serde_json::Value;

use crate::Home;

/// The configuration of a role, as text, but for whether the metrics address was given: a default that is
/// written down is given.
fn shown<R: RoleConfig + std::fmt::Debug>(home: &Home, text: &str) -> Result<String, String> {
    let config = home.load::<R>(text, &[], &Flags::default())?;
    Ok(format!("{config:?}").replace("metrics_address_given: true", "metrics_address_given: false"))
}

fn load(role: NodeRole, home: &Home, text: &str) -> Result<String, String> {
    match role {
        NodeRole::Gateway => shown::<GatewayConfig>(home, text),
        NodeRole::Scheduler => shown::<SchedulerConfig>(home, text),
        NodeRole::Worker => shown::<WorkerConfig>(home, text),
        NodeRole::Data => shown::<DataConfig>(home, text),
    }
}

fn filled() -> Filled {
    let flags = Flags {
        gateway: vec!["/ip4/127.0.0.1/tcp/4001".into()],
        listen: vec!["/ip4/127.0.0.1/tcp/7".into()],
        ..Flags::default()
    };
    Filled { name: "x".to_owned(), ..Filled::default() }.with_flags(&flags).unwrap()
}

fn home_of_x() -> Home {
    let home = Home::new();
    for file in ["x-cert.pem", "x-key.pem", "x-trust.pem", "x-crls.pem"] {
        std::fs::write(home.path(file), "").unwrap();
    }
    std::fs::create_dir_all(home.path("data/imagenet")).unwrap();
    home
}

/// The paths of all keys in a schema: `relay.max_circuits`, `executors.name`.
fn paths(schema: &Value, prefix: &str) -> Vec<String> {
    let below = schema.get("properties").or_else(|| schema.get("items")?.get("properties"));
    let Some(Value::Object(properties)) = below else { return Vec::new() };
    let mut all = Vec::new();
    for (name, property) in properties {
        all.push(format!("{prefix}{name}"));
        all.extend(paths(property, &format!("{prefix}{name}.")));
    }
    all
}

/// `#key = value` as the template has it: the line's number, the key's path, whether it is an example.
fn commented(text: &str) -> Vec<(usize, String, bool)> {
    let mut section = String::new();
    let mut all = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let bare = line.trim_start_matches('#');
        if bare.starts_with('[') {
            section = format!("{}.", bare.trim_matches(['[', ']']));
        } else if !line.starts_with("# ")
            && let Some((key, value)) = bare.split_once(" = ")
        {
            all.push((number, format!("{section}{key}"), value.ends_with(" # example")));
        }
    }
    all
}

#[test]
fn every_key_is_in_template_and_schema() {
    for role in NodeRole::ALL {
        let schema = schema(role);
        let text = template(role, &filled());
        let in_template: Vec<_> = commented(&text).into_iter().map(|(_, path, _)| path).collect();
        let all = paths(&schema, "");
        assert!(all.len() > 20, "{all:?}");
        for path in &all {
            let table = all.iter().any(|other| other.starts_with(&format!("{path}.")));
            let header = text.contains(&format!("[{path}]"));
            assert!(table && header || in_template.contains(path), "{role}: {path} in\n{text}");
        }
        assert!(in_template.iter().all(|path| all.contains(path)), "{role}");
        let described = |path: &str| {
            let pointer = path.split('.').fold(String::new(), |pointer, name| {
                let items = if schema.pointer(&format!("{pointer}/items")).is_some() {
                    "/items"
                } else {
                    ""
                };
                format!("{pointer}{items}/properties/{name}")
            });
            schema.pointer(&pointer).unwrap()["description"].as_str().unwrap().len()
        };
        assert!(all.iter().all(|path| described(path) > 3), "{role}");
        assert_eq!(schema["additionalProperties"], false);
    }
}

#[test]
fn a_template_loads_and_shows_the_defaults() {
    let home = home_of_x();
    for role in NodeRole::ALL {
        let text = template(role, &filled());
        let base = load(role, &home, &text).unwrap();
        let mut tried = 0;
        for (number, path, example) in commented(&text) {
            let own_line = text.lines().nth(number).unwrap();
            // A key of an entry cannot stand alone; those are tried below.
            let entry =
                ["executors.", "datasets.", "resources.gpu."].iter().any(|e| path.starts_with(e));
            if !own_line.starts_with('#') || example || entry {
                continue;
            }
            let changed = uncommented(&text, |line| line == number);
            assert_eq!(load(role, &home, &changed).as_ref(), Ok(&base), "{role}: {own_line}");
            tried += 1;
        }
        assert!(tried >= 10, "{role}: {tried}");
    }
}

/// With every line uncommented the file still loads, examples included, and each example means something.
#[test]
fn every_line_of_a_template_can_be_uncommented() {
    let home = home_of_x();
    for role in NodeRole::ALL {
        let text = template(role, &filled());
        let all = uncommented(&text, |_| true);
        let full = load(role, &home, &all).unwrap_or_else(|fault| panic!("{role}: {fault}\n{all}"));
        for (number, path, _) in commented(&text).into_iter().filter(|(_, _, example)| *example) {
            let without = uncommented(&text, |line| line != number);
            assert_ne!(load(role, &home, &without), Ok(full.clone()), "{role}: {path}");
        }
    }
}

/// Each key of the table is read: a value other than the default makes another configuration.
#[test]
fn each_key_with_a_default_does_something() {
    let home = home_of_x();
    for (role, others) in [
        (
            NodeRole::Gateway,
            &[
                ("require_crl", "true"),
                ("gateway_addresses", "[]"),
                ("listen_addresses", "[]"),
                ("external_addresses", "['/ip4/127.0.0.1/tcp/1']"),
                ("bulk_listen_addresses", "[]"),
                ("bulk_external_addresses", "['/ip4/127.0.0.1/tcp/1']"),
                ("relay_circuit", "false"),
                ("metrics_address", "'127.0.0.1:1'"),
                ("log_format", "'json'"),
                ("log_level", "'warn'"),
                ("telemetry_protocol", "'grpc'"),
                ("telemetry_sampler", "'always_off'"),
                ("telemetry_sample_ratio", "0"),
                ("relay.max_reservations", "7"),
                ("relay.max_reservations_per_peer", "7"),
                ("relay.max_circuits", "7"),
                ("relay.max_circuits_per_peer", "7"),
                ("relay.reservation_duration", "77"),
                ("relay.max_circuit_duration", "77"),
                ("relay.max_circuit_bytes", "7000000"),
            ][..],
        ),
        (NodeRole::Scheduler, &[("scheduler.discovery_interval", "7")]),
        (
            NodeRole::Worker,
            &[
                ("price", "7"),
                ("record_ttl", "7"),
                ("executors.class", "'train'"),
                ("executors.models", "['m']"),
                ("executors.concurrency", "7"),
            ],
        ),
        (NodeRole::Data, &[("record_ttl", "7")]),
    ] {
        let text = uncommented(&template(role, &filled()), |_| true);
        let base = load(role, &home, &text).unwrap();
        let lines = commented(&text);
        for (path, value) in others {
            let (number, _, _) = lines.iter().find(|(_, known, _)| known == path).unwrap();
            let key = path.rsplit('.').next().unwrap();
            let change = |(line, text): (usize, &str)| {
                if line == *number { format!("{key} = {value}\n") } else { format!("{text}\n") }
            };
            let changed: String = text.lines().enumerate().map(change).collect();
            assert_ne!(load(role, &home, &changed).unwrap(), base, "{role}: {path}");
        }
        let own = |path: &str| role == NodeRole::Gateway || is_own(role, path);
        for (_, path, example) in lines.iter().filter(|(_, path, _)| own(path)) {
            let certificate = ["cert_pem", "key_pem", "trust_pem"].contains(&path.as_str());
            let tried = others.iter().any(|(tried, _)| tried == path);
            assert!(tried || *example || certificate, "{role}: {path} is not tried");
        }
    }
}

fn is_own(role: NodeRole, path: &str) -> bool {
    let top = path.split('.').next().unwrap();
    let has = |role| schema(role)["properties"].get(top).is_some();
    has(role) && !has(NodeRole::Gateway)
}

fn uncommented(text: &str, which: impl Fn(usize) -> bool) -> String {
    let line = |(number, line): (usize, &str)| match line.strip_prefix('#') {
        Some(rest) if which(number) && !rest.starts_with([' ', '#']) && !rest.is_empty() => {
            format!("{rest}\n")
        }
        _ => format!("{line}\n"),
    };
    text.lines().enumerate().map(line).collect()
}

#[test]
fn names_and_paths_are_quoted() {
    let home = Home::new();
    let name = "a\"b\\c\u{7}\n\u{7f}ä";
    let filled = Filled {
        name: name.to_owned(),
        cert_pem: Some("c.pem".into()),
        key_pem: Some(home.path("k.pem")),
        trust_pem: Some("t.pem".into()),
        crls_pem: Some("r.pem".into()),
        ..Filled::default()
    };
    let text = template(NodeRole::Data, &filled);
    let config: DataConfig = home.load(&text, &[], &Flags::default()).unwrap();
    assert_eq!(config.network.crls_pem, Some(home.path("r.pem")));
    let unnamed = Filled { name: name.to_owned(), ..Filled::default() };
    let fault = load(NodeRole::Data, &home, &template(NodeRole::Data, &unnamed)).unwrap_err();
    assert!(fault.contains("`cert_pem`: there is no file "), "{fault}");
}

#[test]
fn a_schema_says_what_the_loader_demands() {
    let worker = schema(NodeRole::Worker);
    assert_eq!(worker["$schema"], "https://json-schema.org/draft/2020-12/schema");
    assert_eq!(worker["required"], serde_json::json!(["cert_pem", "key_pem", "trust_pem"]));
    let executor = &worker["properties"]["executors"]["items"];
    assert_eq!(executor["required"], serde_json::json!(["name", "runtime"]));
    assert_eq!(
        executor["properties"]["class"]["enum"],
        serde_json::json!(["inference", "train", "aggregate"])
    );
    let gateway = schema(NodeRole::Gateway);
    assert_eq!(
        gateway["properties"]["listen_addresses"]["default"],
        serde_json::json!(["/ip4/0.0.0.0/tcp/4001"])
    );
    assert_eq!(gateway["properties"]["metrics_address"]["default"], "127.0.0.1:9101");
    assert_eq!(worker["properties"]["metrics_address"]["default"], "127.0.0.1:9103");
}
