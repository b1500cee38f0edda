//! `hypha-worker` is `hypha worker`.

#[path = "../launcher.rs"]
mod launcher;

fn main() -> std::process::ExitCode {
    launcher::launch("worker")
}
