//! `hypha-scheduler` is `hypha scheduler`.

#[path = "../launcher.rs"]
mod launcher;

fn main() -> std::process::ExitCode {
    launcher::launch("scheduler")
}
