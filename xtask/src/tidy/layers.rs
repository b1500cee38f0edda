//! Which crate of the workspace may use which.

use super::Violation;
use super::workspace::Crate;

/// The pure crates, and what each may use of the others.
const PURE: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("machine", &["model"]),
    ("driver", &["model", "machine"]),
    ("predict", &["model"]),
    ("placement", &["model", "predict"]),
    ("market", &["model", "machine"]),
    ("diloco", &["model", "machine", "predict"]),
    ("engine", &["model", "machine", "predict", "placement", "market", "diloco"]),
    ("conformance", &["model", "machine", "predict", "placement", "engine"]),
    ("sim", &["model", "machine", "predict", "placement", "market", "diloco", "engine"]),
];

/// Each talks to one external system, so none needs another, but for [`EDGE_PAIRS`].
const EDGES: &[&str] = &[
    "pki",
    "wire",
    "bulk",
    "net",
    "store",
    "executor",
    "backends",
    "params",
    "data",
    "api",
    "client",
    "config",
    "telemetry",
    "trainer",
];

/// The network is one external system in four crates: identity, messages, bulk data, and the rest.
const EDGE_PAIRS: &[(&str, &str)] =
    &[("net", "pki"), ("net", "wire"), ("net", "bulk"), ("bulk", "wire")];

/// Each joins the others for one purpose.
const DRIVERS: &[&str] = &["node", "local", "bench", "chaos", "counts", "cli"];

/// Drivers that are programs of their own, or a part of one: which crates may use each.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("cli", &[]),
    ("chaos", &[]),
    ("counts", &[]),
    ("bench", &["cli"]),
    ("local", &["bench", "cli"]),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layer {
    Pure,
    Edge,
    Driver,
}

pub(super) fn check(crates: &[Crate]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for user in crates {
        if layer(&user.name).is_none() {
            let what = format!(
                "crate `{}` belongs to no layer; enter it in xtask/src/tidy/layers.rs as pure, \
                 edge or driver",
                user.name
            );
            violations.push(Violation::new(&user.manifest, 1, what));
        }
        for used in &user.uses {
            if let Err(why) = may_use(&user.name, &used.name) {
                let what = format!("`{}` depends on `{}`, but {why}", user.name, used.name);
                violations.push(Violation::new(&user.manifest, used.line, what));
            }
        }
    }
    violations
}

pub(super) fn is_pure(name: &str) -> bool {
    PURE.iter().any(|(pure, _)| *pure == name)
}

fn layer(name: &str) -> Option<Layer> {
    if is_pure(name) {
        Some(Layer::Pure)
    } else if EDGES.contains(&name) {
        Some(Layer::Edge)
    } else if DRIVERS.contains(&name) {
        Some(Layer::Driver)
    } else {
        None
    }
}

fn may_use(user: &str, used: &str) -> Result<(), String> {
    if let Some((_, users)) = PROGRAMS.iter().find(|(program, _)| *program == used)
        && !users.contains(&user)
    {
        let users =
            if users.is_empty() { "nothing".into() } else { format!("only {}", users.join(", ")) };
        return Err(format!("{users} depends on it; move what is shared below it"));
    }
    if let Some((_, allowed)) = PURE.iter().find(|(pure, _)| *pure == user) {
        if allowed.contains(&used) {
            return Ok(());
        }
        let allowed = if allowed.is_empty() { "no other crate".into() } else { allowed.join(", ") };
        return Err(format!(
            "pure crate `{user}` may use {allowed}; pass the value in, or move the type down"
        ));
    }
    if layer(user) != Some(Layer::Edge) || EDGE_PAIRS.contains(&(user, used)) {
        return Ok(());
    }
    match layer(used) {
        Some(Layer::Edge) => {
            Err("edges do not depend on each other; let the node join them".into())
        }
        Some(Layer::Driver) => Err("drivers use edges, not the other way round".into()),
        Some(Layer::Pure) if used == "sim" => {
            Err("the simulator is a driver too; drivers use edges, not the other way round".into())
        }
        Some(Layer::Pure) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::workspace::Use;
    use super::*;

    fn refused(user: &str, used: &str) -> bool {
        let uses = vec![Use { name: used.into(), line: 7 }];
        let manifest = format!("crates/{user}/Cargo.toml");
        let found = check(&[Crate { name: user.into(), manifest, uses, ..Crate::default() }]);
        assert!(found.iter().all(|violation| violation.line == 7), "{found:?}");
        !found.is_empty()
    }

    #[test]
    fn forbidden_dependencies_are_caught() {
        for (user, used) in [
            ("model", "predict"),
            ("predict", "placement"),
            ("market", "predict"),
            ("diloco", "market"),
            ("engine", "sim"),
            ("engine", "store"),
            ("sim", "node"),
            ("sim", "wire"),
            ("store", "api"),
            ("wire", "net"),
            ("api", "client"),
            ("api", "node"),
            ("client", "sim"),
            ("node", "cli"),
            ("config", "cli"),
            ("bench", "cli"),
            ("node", "bench"),
            ("node", "local"),
        ] {
            assert!(refused(user, used), "{user} -> {used}");
        }
    }

    #[test]
    fn allowed_dependencies_pass() {
        for (user, used) in [
            ("placement", "predict"),
            ("engine", "diloco"),
            ("sim", "engine"),
            ("net", "wire"),
            ("store", "engine"),
            ("node", "net"),
            ("cli", "node"),
            ("cli", "sim"),
            ("cli", "bench"),
            ("bench", "local"),
        ] {
            assert!(!refused(user, used), "{user} -> {used}");
        }
    }

    #[test]
    fn a_crate_without_a_layer_is_caught() {
        let misc = |name: &str| check(&[Crate { name: name.into(), ..Crate::default() }]).len();
        assert_eq!(misc("utils"), 1);
        assert_eq!(misc("model"), 0);
    }
}
