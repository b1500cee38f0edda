//! A network of nodes on this machine, each a process of this program: their files, and how they are started.

mod command;
mod files;

pub use command::NodeCommand;
pub use files::{GATEWAY_CONFIG, NodeFiles, prepare};

use std::io;
use std::net::{Ipv4Addr, TcpListener};

/// A port of the loopback interface that is free now. Another program may take it before the node does; then
/// the node reports that.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
