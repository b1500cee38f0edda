//! `cargo xtask`: the chores of this repository, one file per subcommand.

mod cargo;
mod chaos;
mod check;
mod counts;
mod dist;
mod test;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

/// Exit status for an invalid command line, as opposed to a failed chore.
const EXIT_USAGE: u8 = 2;

/// One chore. A new one is a file beside this one and a line in [`SUBCOMMANDS`].
struct Subcommand {
    name: &'static str,
    /// Its arguments, for the help; empty when it takes none.
    arguments: &'static str,
    summary: &'static str,
    run: fn(root: &Path, arguments: &[String]) -> anyhow::Result<Outcome>,
}

const SUBCOMMANDS: &[Subcommand] = &[
    Subcommand {
        name: "tidy",
        arguments: "",
        summary: "enforce the rules of this repository that no compiler checks",
        run: tidy::run,
    },
    Subcommand {
        name: "check",
        arguments: "",
        summary: "formatting, clippy, tidy, and cargo-deny where it is installed",
        run: check::run,
    },
    Subcommand {
        name: "test",
        arguments: "[-- <nextest arguments>]",
        summary: "install what the tests need, run them all, and account for every skip",
        run: test::run,
    },
    Subcommand {
        name: "chaos",
        arguments: "[--rounds N] [--seed N]",
        summary: "kill, stop and freeze schedulers, workers and back ends under load; nothing acknowledged may be lost",
        run: chaos::run,
    },
    Subcommand {
        name: "counts",
        arguments: "[--renew]",
        summary: "count the instructions of the hot paths, and compare with xtask/counts.toml",
        run: counts::run,
    },
    Subcommand {
        name: "dist",
        arguments: "",
        summary: "build the release binary, with its debug information in a file of its own",
        run: dist::run,
    },
];

/// How a chore ended. `Failed` and `InvalidUsage` have already printed why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed,
    InvalidUsage,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match choose(&arguments) {
        Choice::Help => {
            print!("{}", help());
            Outcome::Passed
        }
        Choice::InvalidUsage(line) => {
            eprintln!("{line}");
            Outcome::InvalidUsage
        }
        Choice::Run(subcommand, rest) => cargo::workspace_root()
            .and_then(|root| (subcommand.run)(&root, rest))
            .unwrap_or_else(|error| {
                eprintln!("xtask {}: {error:#}", subcommand.name);
                Outcome::Failed
            }),
    };
    match outcome {
        Outcome::Passed => ExitCode::SUCCESS,
        Outcome::Failed => ExitCode::FAILURE,
        Outcome::InvalidUsage => ExitCode::from(EXIT_USAGE),
    }
}

enum Choice<'a> {
    Help,
    InvalidUsage(String),
    Run(&'static Subcommand, &'a [String]),
}

fn choose(arguments: &[String]) -> Choice<'_> {
    let Some((name, rest)) = arguments.split_first() else {
        return Choice::InvalidUsage(
            "xtask: no subcommand given; `cargo xtask help` lists them".to_owned(),
        );
    };
    if matches!(name.as_str(), "help" | "--help" | "-h") {
        return Choice::Help;
    }
    let Some(subcommand) = SUBCOMMANDS.iter().find(|known| known.name == name) else {
        return Choice::InvalidUsage(format!(
            "xtask: there is no subcommand `{name}`; `cargo xtask help` lists them"
        ));
    };
    if subcommand.arguments.is_empty() && !rest.is_empty() {
        return Choice::InvalidUsage(format!(
            "xtask {name}: takes no arguments; leave out `{}`",
            rest.join(" ")
        ));
    }
    Choice::Run(subcommand, rest)
}

fn help() -> String {
    let mut text = String::from("usage: cargo xtask <subcommand>\n\n");
    for Subcommand { name, arguments, summary, .. } in SUBCOMMANDS {
        let usage = format!("{name} {arguments}");
        text.push_str(&format!("  {usage:<32}{summary}\n"));
    }
    text.push_str(&format!("  {:<32}{}\n", "help", "print this"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn misuse(arguments: &[&str]) -> Option<String> {
        let arguments: Vec<String> = arguments.iter().map(|&text| text.to_owned()).collect();
        match choose(&arguments) {
            Choice::InvalidUsage(line) => Some(line),
            Choice::Help | Choice::Run(..) => None,
        }
    }

    #[test]
    fn an_invalid_command_line_gets_one_line() {
        for arguments in [&[][..], &["tydi"], &["tidy", "now"]] {
            let line = misuse(arguments).expect("refused");
            assert_eq!(line.lines().count(), 1, "{line}");
        }
        for arguments in [&["help"][..], &["tidy"], &["test", "--", "queue"]] {
            assert_eq!(misuse(arguments), None);
        }
    }

    #[test]
    fn help_names_every_subcommand() {
        let text = help();
        assert!(SUBCOMMANDS.iter().all(|subcommand| text.contains(subcommand.summary)));
    }
}
