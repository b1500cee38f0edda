//! `hypha bench`: what this machine can do.

mod net;
mod stream;

use clap::Subcommand;

use crate::usage::Failure;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Measure bulk transfer between two processes on this machine, next to a plain copy over TCP and TLS
    Net(net::Arguments),
    /// The other process of `net`
    #[command(hide = true)]
    NetPeer,
}

pub(crate) fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Net(arguments) => net::run(&arguments),
        Command::NetPeer => net::peer(),
    }
}
