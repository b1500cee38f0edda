//! `hypha-data` is `hypha data`.

#[path = "../launcher.rs"]
mod launcher;

fn main() -> std::process::ExitCode {
    launcher::launch("data")
}
