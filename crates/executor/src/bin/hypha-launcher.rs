//! The launcher as a program of its own: what `hypha` has as a hidden subcommand.

use std::process::ExitCode;

fn main() -> ExitCode {
    hypha_executor::launcher::main(std::env::args_os().skip(1))
}
