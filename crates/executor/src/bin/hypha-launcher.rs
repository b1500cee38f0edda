//! The launcher as a program of its own; `hypha` has it as a hidden subcommand.

use std::process::ExitCode;

fn main() -> ExitCode {
    hypha_executor::launcher::main(std::env::args_os().skip(1))
}
