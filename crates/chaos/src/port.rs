//! Ports that can be listened on again later.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::bail;

/// Below the ephemeral range: there, any outgoing connection may take a port while its owner is down.
const PORTS: Range<u16> = 20_000..32_000;

/// A listener on a port that no other process gets by chance.
pub(crate) fn listen() -> anyhow::Result<TcpListener> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Other runs on this machine begin at another port.
    let first = now.subsec_nanos() as usize % PORTS.len();
    for port in PORTS.cycle().skip(first).take(PORTS.len()) {
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            return Ok(listener);
        }
    }
    bail!("no port from {} to {} is free", PORTS.start, PORTS.end)
}
