//! `hypha-gateway` is `hypha gateway`.

#[path = "../launcher.rs"]
mod launcher;

fn main() -> std::process::ExitCode {
    launcher::launch("gateway")
}
