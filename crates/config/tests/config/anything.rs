//! Any file, environment and flags give a configuration or diagnostics, never a panic.

use std::path::Path;

use hypha_config::{
    DataConfig, Diagnostics, Flags, GatewayConfig, RoleConfig, SchedulerConfig, TemplateValues,
    WorkerConfig, template,
};
use hypha_model::NodeRole;
use proptest::prelude::*;

fn parse<R: RoleConfig>(bytes: &[u8], environment: &[(String, String)], flags: &Flags) {
    let result: Result<R, Diagnostics> =
        hypha_config::parse(Path::new("node.toml"), bytes, environment, flags);
    if let Err(faults) = result {
        assert!(faults.iter().count() > 0);
        assert!(faults.iter().all(|fault| fault.to_string().lines().count() == 1), "{faults}");
    }
}

fn parse_all(bytes: &[u8], environment: &[(String, String)], flags: &Flags) {
    parse::<GatewayConfig>(bytes, environment, flags);
    parse::<SchedulerConfig>(bytes, environment, flags);
    parse::<WorkerConfig>(bytes, environment, flags);
    parse::<DataConfig>(bytes, environment, flags);
}

/// Values that are valid for some keys and invalid for others.
fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("[]".to_owned()),
        Just("['/ip4/127.0.0.1/tcp/1']".to_owned()),
        Just("[[{ name = 'x' }], 1979-05-27, -0x1]".to_owned()),
        Just("[{ name = 'x', path = '/', runtime = 'http' }]".to_owned()),
        Just("{ max_circuits = 1 }".to_owned()),
        Just("'0.0.0.0:1'".to_owned()),
        Just("'http://127.0.0.1:1/'".to_owned()),
        Just("'round-robin'".to_owned()),
        Just("'constant'".to_owned()),
        Just("'builtin'".to_owned()),
        Just("1e-400".to_owned()),
        Just("-99999999999999999999999999999999999999999999".to_owned()),
        Just("1e999".to_owned()),
        Just("nan".to_owned()),
        Just("true".to_owned()),
        "'[ -~äé]{0,20}'",
        "[0-9]{1,4}",
    ]
}

/// The template with every line uncommented and some values replaced.
fn mutated() -> impl Strategy<Value = String> {
    let roles = prop::sample::select(NodeRole::ALL.to_vec());
    let edits = prop::collection::vec((any::<prop::sample::Index>(), value()), 0..8);
    (roles, edits).prop_map(|(role, edits)| {
        let text =
            template(role, &TemplateValues { name: "x".to_owned(), ..TemplateValues::default() });
        let mut lines: Vec<String> =
            text.lines().map(|line| line.strip_prefix('#').unwrap_or(line).to_owned()).collect();
        lines.retain(|line| !line.starts_with(' '));
        for (index, value) in edits {
            let at = index.index(lines.len());
            let line = &mut lines[at];
            if let Some((key, _)) = line.split_once(" = ") {
                *line = format!("{key} = {value}");
            }
        }
        lines.join("\n")
    })
}

proptest! {
    #[test]
    fn bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        parse_all(&bytes, &[], &Flags::default());
    }

    #[test]
    fn text_like_toml(text in "([a-z_]{1,8}|[\\[\\]{}=.,'\"#\n äé0-9-]){0,60}") {
        parse_all(text.as_bytes(), &[], &Flags::default());
    }

    #[test]
    fn edited_templates(text in mutated()) {
        parse_all(text.as_bytes(), &[], &Flags::default());
    }

    #[test]
    fn variables_and_flags(
        name in prop::sample::select(vec![
            "HYPHA_", "HYPHA_LISTEN_ADDRESSES", "HYPHA_RELAY__MAX_CIRCUITS", "HYPHA_EXECUTORS",
            "HYPHA_TELEMETRY_HEADERS", "HYPHA_PRICE", "OTEL_RESOURCE_ATTRIBUTES",
            "OTEL_TRACES_SAMPLER_ARG", "HYPHA_LOG_LEVEL", "HYPHA_SCHEDULER__TASK_TIMEOUT",
            "HYPHA_SCHEDULER__SELECTION_ALGORITHM", "HYPHA_SCHEDULER__API__ALLOWED_NETWORKS",
            "HYPHA_SCHEDULER__LOAD_BALANCING__MAX_NETWORK_LATENCY", "HYPHA_SCHEDULER__BACKENDS",
            "HYPHA_SCHEDULER__PARAMETERS__AGEING", "HYPHA_MAX_RESULT_SIZE", "HYPHA_DATA_DIR",
            "HYPHA_TASK_INSTANCE__BIND",
        ]),
        value in "\\PC{0,40}",
    ) {
        let given = vec![value.clone()];
        let flags = Flags { listen: given.clone(), exclude_cidr: given, ..Flags::default() };
        parse_all(b"", &[(name.to_owned(), value)], &flags);
    }
}
