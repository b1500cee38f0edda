//! `hypha-certutil` is `hypha certutil`.

#[path = "../launcher.rs"]
mod launcher;

fn main() -> std::process::ExitCode {
    launcher::launch("certutil")
}
