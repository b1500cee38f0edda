//! Addresses of peers. Nodes use TCP only, so an address is a host and a port.

use multiaddr::{Multiaddr, Protocol};

use super::{Problem, list};
use crate::sourced_value::SourcedValue;

/// The use of an address, which decides what it may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressUse {
    /// To bind: an IP address of this machine, or all of them; port 0 lets the system choose.
    Listen,
    /// To publish.
    External,
    /// To dial a gateway; may name the peer that is expected there.
    Gateway,
}

impl AddressUse {
    const fn list_example(self) -> &'static str {
        match self {
            AddressUse::Listen => "a list of addresses such as [\"/ip4/0.0.0.0/tcp/4001\"]",
            AddressUse::External => "a list of addresses such as [\"/ip4/203.0.113.7/tcp/4001\"]",
            AddressUse::Gateway => {
                "a list of addresses such as [\"/dns4/gateway.example.org/tcp/4001\"]"
            }
        }
    }

    const fn example(self) -> &'static str {
        match self {
            AddressUse::Listen => {
                "an IP address and a TCP port such as \"/ip4/0.0.0.0/tcp/4001\" or \"/ip6/::/tcp/0\""
            }
            AddressUse::External => {
                "a host and a TCP port such as \"/ip4/203.0.113.7/tcp/4001\" or \
                 \"/dns4/node.example.org/tcp/4001\""
            }
            AddressUse::Gateway => {
                "a host and a TCP port such as \"/ip4/203.0.113.7/tcp/4001\" or \
                 \"/dns4/gateway.example.org/tcp/4001\", with or without \"/p2p/PEER\""
            }
        }
    }
}

pub(crate) fn addresses(
    given: &SourcedValue,
    purpose: AddressUse,
) -> Result<Vec<Multiaddr>, Problem> {
    list(given, purpose.list_example(), |item| address(item, purpose))
}

fn address(given: &SourcedValue, purpose: AddressUse) -> Result<Multiaddr, Problem> {
    let text = given.text().ok_or_else(|| Problem::expected(purpose.example(), given))?;
    let malformed = |_| Problem::new(format!("malformed address: expected {}", purpose.example()));
    let address: Multiaddr = text.parse().map_err(malformed)?;
    shape(&address, purpose)
        .map_err(|what| Problem::new(format!("{what}: expected {}", purpose.example())))?;
    Ok(address)
}

fn shape(address: &Multiaddr, purpose: AddressUse) -> Result<(), &'static str> {
    let binds = purpose == AddressUse::Listen;
    let mut parts = address.iter();
    let unspecified = match parts.next() {
        Some(Protocol::Ip4(ip)) => ip.is_unspecified(),
        Some(Protocol::Ip6(ip)) => ip.is_unspecified(),
        Some(Protocol::Dns(_) | Protocol::Dns4(_) | Protocol::Dns6(_)) if !binds => false,
        Some(Protocol::Dns(_) | Protocol::Dns4(_) | Protocol::Dns6(_)) => {
            return Err("cannot listen on a host name");
        }
        _ => return Err("not an address of a host"),
    };
    if unspecified && !binds {
        return Err("an unspecified IP address cannot be dialled");
    }
    match parts.next() {
        Some(Protocol::Tcp(0)) if !binds => return Err("port 0 cannot be dialled"),
        Some(Protocol::Tcp(_)) => {}
        _ => return Err("not a TCP address"),
    }
    match (parts.next(), purpose) {
        (None, _) => {}
        (Some(Protocol::P2p(_)), AddressUse::Gateway) => {}
        (Some(_), _) => return Err("too much after the port"),
    }
    if parts.next().is_some() { Err("too much after the peer") } else { Ok(()) }
}
