//! `hypha config`: checks a file, and prints what it may contain.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use hypha_config::Flags;
use hypha_model::NodeRole;

use crate::usage::{Failure, print};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Check a configuration file as `run` would, with the HYPHA_* and OTEL_* variables that are set now
    Check {
        /// The file
        #[arg(required_unless_present = "config")]
        file: Option<PathBuf>,
        /// The file, as the `run` commands take it
        #[arg(short, long, value_name = "FILE", conflicts_with = "file")]
        config: Option<PathBuf>,
        /// Its role: gateway, scheduler, worker or data. By default, the one role that the file has keys of
        #[arg(long)]
        role: Option<NodeRole>,
    },
    /// Print the JSON schema of a role's configuration file
    Schema {
        /// gateway, scheduler, worker or data
        role: NodeRole,
    },
}

pub(crate) fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Check { file, config, role } => {
            let file = file.or(config).unwrap_or_default();
            check(&file, role, &environment())
        }
        Command::Schema { role } => {
            let schema = serde_json::to_string_pretty(&hypha_config::schema(role));
            print(&format!("{}\n", schema.map_err(Failure::work)?))
        }
    }
}

/// The variables that configure a node. A value that is not UTF-8 is invalid for every key and is refused.
pub(crate) fn environment() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| {
            let name = name.into_string().ok()?;
            let ours = name.starts_with("HYPHA_") || name.starts_with("OTEL_");
            ours.then(|| (name, value.to_string_lossy().into_owned()))
        })
        .collect()
}

fn check(
    file: &Path,
    role: Option<NodeRole>,
    environment: &[(String, String)],
) -> Result<(), Failure> {
    let role = match role {
        Some(role) => role,
        None => hypha_config::guess_role(file).map_err(Failure::usage)?.ok_or_else(|| {
            Failure::usage(format!(
                "{}: cannot determine the role from the keys: give --role",
                file.display()
            ))
        })?,
    };
    hypha_config::check(role, file, environment, &Flags::default()).map_err(Failure::usage)?;
    print(&format!("{}: valid configuration of a {role} node\n", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn role_follows_from_the_keys_or_must_be_given() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("node.toml");
        let error = |text: &str, role| {
            std::fs::write(&file, text).unwrap();
            check(&file, role, &[]).unwrap_err().to_string()
        };
        assert!(error("log_level = 'info'", None).ends_with("give --role"));
        assert!(error("[relay]\n[resources]\n", None).ends_with("give --role"));
        let asked = error("hardware = 5", None);
        assert!(asked.contains("node.toml:1:12: `hardware`: expected a name"), "{asked}");
        let other = error("hardware = 5", Some(NodeRole::Gateway));
        assert!(other.contains("unknown key `hardware`; it is for a worker node"), "{other}");
        let missing = check(&directory.path().join("none"), None, &[]).unwrap_err();
        assert!(missing.to_string().contains("cannot read the configuration"), "{missing}");
        assert_eq!(
            format!("{:?}", missing.exit_code()),
            format!("{:?}", std::process::ExitCode::from(2))
        );
    }
}
