//! Template and schema: derived from the table of keys, and valid.

use hypha_config::{
    DataConfig, Flags, GatewayConfig, RoleConfig, SchedulerConfig, TemplateValues, WorkerConfig,
    schema, template,
};
use hypha_model::NodeRole;
use serde_json::Value;

use crate::Home;

/// The configuration of a role, as text, but for whether an address was given: a default that is written down
/// counts as given.
fn shown<R: RoleConfig + std::fmt::Debug>(home: &Home, text: &str) -> Result<String, String> {
    let config = home.load::<R>(text, &[], &Flags::default())?;
    Ok(format!("{config:?}").replace("_address_given: true", "_address_given: false"))
}

fn load(role: NodeRole, home: &Home, text: &str) -> Result<String, String> {
    match role {
        NodeRole::Gateway => shown::<GatewayConfig>(home, text),
        NodeRole::Scheduler => shown::<SchedulerConfig>(home, text),
        NodeRole::Worker => shown::<WorkerConfig>(home, text),
        NodeRole::Data => shown::<DataConfig>(home, text),
    }
}

fn filled() -> TemplateValues {
    let flags = Flags {
        gateway: vec!["/ip4/127.0.0.1/tcp/4001".into()],
        listen: vec!["/ip4/127.0.0.1/tcp/7".into()],
        ..Flags::default()
    };
    TemplateValues { name: "x".to_owned(), ..TemplateValues::default() }.with_flags(&flags).unwrap()
}

fn home_of_x() -> Home {
    let home = Home::new();
    for file in [
        "x-cert.pem",
        "x-key.pem",
        "x-trust.pem",
        "x-crls.pem",
        "run-times.csv",
        "tokens.toml",
        "api-cert.pem",
        "api-key.pem",
        "backend.key",
    ] {
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
fn template_loads_and_shows_the_defaults() {
    let home = home_of_x();
    for role in NodeRole::ALL {
        // A scheduler without a region warns that `prefer_local_workers` has no effect.
        let text = template(role, &filled()).replace("#region = ", "region = ");
        let base = load(role, &home, &text).unwrap();
        let mut tried = 0;
        for (number, path, example) in commented(&text) {
            let own_line = text.lines().nth(number).unwrap();
            // A key of an entry cannot stand alone; those are covered below.
            let entries = ["executors.", "datasets.", "resources.gpu.", "scheduler.backends."];
            let entry = entries.iter().any(|entries| path.starts_with(entries));
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

/// The templates; a worker's for each runtime, without the keys that it does not have. Lines keep their
/// numbers.
fn templates() -> Vec<(NodeRole, String)> {
    let mut all = Vec::new();
    for role in NodeRole::ALL {
        let text = template(role, &filled());
        if role != NodeRole::Worker {
            all.push((role, text));
            continue;
        }
        let runtimes = ["process", "http", "builtin"];
        all.extend(runtimes.map(|runtime| (role, of_runtime(&text, runtime))));
    }
    all
}

fn of_runtime(text: &str, runtime: &str) -> String {
    let mut section = String::new();
    // The documentation of such a key begins with its runtime.
    let mut owner = String::new();
    let mut out = String::new();
    for line in text.lines() {
        let bare = line.trim_start_matches('#');
        if bare.starts_with('[') {
            section = bare.trim_matches(['[', ']']).to_owned();
        } else if let Some(prose) = line.strip_prefix("# ") {
            let word = prose.split_once(": ").map(|(word, _)| word);
            if let Some(word @ ("process" | "http")) = word {
                owner = word.to_owned();
            }
        }
        let foreign = section.starts_with("executors") && !owner.is_empty() && owner != runtime;
        if bare.starts_with("runtime = ") {
            out.push_str(&format!("#runtime = \"{runtime}\" # example\n"));
        } else if foreign && !line.starts_with("# ") {
            out.push_str("# of another runtime\n");
        } else {
            out.push_str(&format!("{line}\n"));
        }
        // Within limits, only the section determines the runtime.
        if line.is_empty() && section != "executors.limits" {
            owner.clear();
        }
    }
    out
}

/// With every line uncommented the file still loads, examples included, and each example means something.
#[test]
fn every_line_of_a_template_can_be_uncommented() {
    let home = home_of_x();
    for (role, text) in templates() {
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
    for (role, runtime, others) in [
        (
            NodeRole::Gateway,
            "",
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
        (
            NodeRole::Scheduler,
            "",
            &[
                ("data_dir", "'d'"),
                ("scheduler.selection_algorithm", "'fifo'"),
                ("scheduler.maximise", "'cost'"),
                ("scheduler.pool.min_workers", "7"),
                ("scheduler.pool.max_workers", "7"),
                ("scheduler.pool.target_wait", "7"),
                ("scheduler.pool.idle_after", "7"),
                ("scheduler.task_timeout", "7"),
                ("scheduler.discovery_interval", "7"),
                ("scheduler.max_queue", "7"),
                ("scheduler.lease_ttl", "7"),
                ("scheduler.result_ttl", "7"),
                ("scheduler.max_result_size", "'7KiB'"),
                ("scheduler.object_store", "'o'"),
                ("scheduler.api.bind_address", "'127.0.0.1:1'"),
                ("scheduler.api.max_request_size", "'7KiB'"),
                ("scheduler.api.max_buffered_size", "'7KiB'"),
                ("scheduler.api.allow_unauthenticated", "true"),
                ("scheduler.api.allowed_hosts", "['h']"),
                ("scheduler.api.allowed_origins", "['https://o']"),
                ("scheduler.api.allowed_networks", "[]"),
                ("scheduler.load_balancing.strategy", "'random'"),
                ("scheduler.load_balancing.load_metric", "'cpu-usage'"),
                ("scheduler.load_balancing.prefer_local_workers", "false"),
                ("scheduler.load_balancing.max_local_wait", "7"),
                ("scheduler.fault_tolerance.health_check_interval", "7"),
                ("scheduler.fault_tolerance.health_check_timeout", "7"),
                ("scheduler.fault_tolerance.max_consecutive_failures", "7"),
                ("scheduler.fault_tolerance.quarantine", "7"),
                ("scheduler.fault_tolerance.enable_retries", "false"),
                ("scheduler.fault_tolerance.max_retries", "7"),
                ("scheduler.fault_tolerance.retry_backoff", "'none'"),
                ("scheduler.retry.max_attempts", "7"),
                ("scheduler.retry.backoff_base", "7"),
                ("scheduler.retry.backoff_max", "7"),
                ("scheduler.retry.retry_on_timeout", "false"),
                ("scheduler.retry.retry_on_worker_failure", "false"),
                ("scheduler.parameters.ageing", "0.7"),
                ("scheduler.parameters.wait_surcharge", "0.7"),
                ("scheduler.parameters.lookahead", "17"),
                ("scheduler.parameters.exploration", "0.7"),
                ("scheduler.parameters.weight", "0.7"),
                ("scheduler.parameters.learning_rate", "0.7"),
                ("scheduler.parameters.steal_threshold", "7"),
                ("scheduler.parameters.penalty_half_life_s", "0.7"),
                ("scheduler.backends.models", "['m']"),
                ("scheduler.backends.format", "'json'"),
                ("scheduler.backends.concurrency", "7"),
            ],
        ),
        (
            NodeRole::Worker,
            "process",
            &[
                ("offer.floor", "7"),
                ("offer.strategy", "'whole'"),
                ("offer.yield.for", "7"),
                ("offer.yield.except", "['ollama']"),
                ("record_ttl", "7"),
                ("data_dir", "'d'"),
                ("max_result_size", "'7KiB'"),
                ("executors.class", "'train'"),
                ("executors.models", "['m', 'llama-2-7b']"),
                ("executors.concurrency", "7"),
                ("executors.args", "['']"),
                ("executors.warm", "true"),
                ("executors.read", "['data']"),
                ("executors.write", "['data']"),
                ("executors.network", "false"),
                ("executors.confinement", "'best-effort'"),
            ],
        ),
        (
            NodeRole::Worker,
            "http",
            &[
                ("offer.floor", "7"),
                ("offer.strategy", "'whole'"),
                ("offer.yield.for", "7"),
                ("offer.yield.except", "['ollama']"),
                ("record_ttl", "7"),
                ("data_dir", "'d'"),
                ("max_result_size", "'7KiB'"),
                ("executors.class", "'train'"),
                ("executors.models", "['m', 'llama-2-7b']"),
                ("executors.concurrency", "7"),
                ("executors.format", "'json'"),
            ],
        ),
        (NodeRole::Data, "", &[("record_ttl", "7")]),
    ] {
        let text = template(role, &filled());
        let text = if runtime.is_empty() { text } else { of_runtime(&text, runtime) };
        let text = uncommented(&text, |_| true);
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
            assert!(tried || *example || certificate, "{role}: {path} is not covered");
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
    let filled = TemplateValues {
        name: name.to_owned(),
        cert_pem: Some("c.pem".into()),
        key_pem: Some(home.path("k.pem")),
        trust_pem: Some("t.pem".into()),
        crls_pem: Some("r.pem".into()),
        ..TemplateValues::default()
    };
    let text = template(NodeRole::Data, &filled);
    let config: DataConfig = home.load(&text, &[], &Flags::default()).unwrap();
    assert_eq!(config.network.crls_pem, Some(home.path("r.pem")));
    let unnamed = TemplateValues { name: name.to_owned(), ..TemplateValues::default() };
    let fault = load(NodeRole::Data, &home, &template(NodeRole::Data, &unnamed)).unwrap_err();
    assert!(fault.contains("`cert_pem`: there is no file "), "{fault}");
}

#[test]
fn schema_matches_the_loader() {
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

#[test]
fn scheduler_schema_has_both_spellings_and_bounds() {
    let scheduler = &schema(NodeRole::Scheduler)["properties"]["scheduler"]["properties"];
    let names = scheduler["selection_algorithm"]["enum"].as_array().unwrap();
    for name in ["predictive", "round_robin", "round-robin"] {
        assert_eq!(names.iter().filter(|known| *known == name).count(), 1, "{name}");
    }
    let size = &scheduler["max_result_size"];
    assert_eq!((&size["minimum"], &size["maximum"]), (&1_024.into(), &(8 << 20).into()));
    assert_eq!(scheduler["task_timeout"]["minimum"], 0.01);
    let latency = &scheduler["load_balancing"]["properties"]["max_network_latency"];
    assert_eq!(latency["maximum"], 60_000.0);
    assert_eq!(scheduler["backends"]["items"]["required"], serde_json::json!(["url"]));
    let worker = schema(NodeRole::Worker);
    let executor = &worker["properties"]["executors"]["items"]["properties"];
    assert_eq!(executor["environment"]["additionalProperties"]["type"], "string");
    assert_eq!(executor["limits"]["properties"]["grace"]["maximum"], 3_600.0);
}

/// `docs/configuration.md` has every key of every role, below the header of its section.
#[test]
fn every_key_is_documented() {
    let document = include_str!("../../../../docs/configuration.md");
    for role in NodeRole::ALL {
        for path in paths(&schema(role), "") {
            let Some((section, name)) = path.rsplit_once('.') else {
                assert!(document.contains(&format!("`{path}`")) || has_table(document, &path));
                continue;
            };
            if has_table(document, &path) {
                continue;
            }
            let table = table_of(document, section).unwrap_or_else(|| panic!("{role}: {section}"));
            assert!(table.contains(&format!("| `{name}` |")), "{role}: {path}\n{table}");
        }
    }
}

fn has_table(document: &str, section: &str) -> bool {
    table_of(document, section).is_some()
}

fn table_of<'a>(document: &'a str, section: &str) -> Option<&'a str> {
    let headers =
        [format!("| Key under `[{section}]` |"), format!("| Key under `[[{section}]]` |")];
    let start = headers.iter().find_map(|header| document.find(header))?;
    document.get(start..)?.split("\n\n").next()
}
