//! The loopback interface of a new network namespace, which is down at first.

use std::io;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, sendto, socket};

/// `RTM_NEWLINK` of `linux/rtnetlink.h`: changes an interface that exists.
const CHANGE_LINK: u16 = 16;
/// `NLM_F_REQUEST | NLM_F_ACK` of `linux/netlink.h`.
const REQUEST_WITH_ANSWER: u16 = 0x1 | 0x4;
/// `NLMSG_ERROR` of `linux/netlink.h`, which is also the answer after a success.
const ANSWER: u16 = 2;
/// The number of the loopback interface in every network namespace.
const LOOPBACK: i32 = 1;
/// `IFF_UP` of `linux/if.h`.
const UP: u32 = 0x1;
/// A header of 16 bytes and a `struct ifinfomsg` of 16.
const MESSAGE_BYTES: usize = 32;

pub(super) fn bring_up() -> io::Result<()> {
    // Protocol 0 is `NETLINK_ROUTE`.
    let kernel = socket(AddressFamily::NETLINK, SocketType::RAW, None)?;
    sendto(&kernel, &message(), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = [0; 256];
    let (length, _) = recv(&kernel, &mut answer, RecvFlags::empty())?;
    match error_number(answer.get(..length).unwrap_or(&answer)) {
        Some(0) => Ok(()),
        Some(number) => Err(io::Error::from_raw_os_error(-number)),
        None => Err(io::Error::other("the kernel's answer cannot be read")),
    }
}

fn message() -> [u8; MESSAGE_BYTES] {
    let mut message = [0; MESSAGE_BYTES];
    let mut put = |at: usize, bytes: &[u8]| {
        message.iter_mut().skip(at).zip(bytes).for_each(|(to, from)| *to = *from);
    };
    put(0, &(MESSAGE_BYTES as u32).to_ne_bytes());
    put(4, &CHANGE_LINK.to_ne_bytes());
    put(6, &REQUEST_WITH_ANSWER.to_ne_bytes());
    put(20, &LOOPBACK.to_ne_bytes());
    // The flags, and which of them to change.
    put(24, &UP.to_ne_bytes());
    put(28, &UP.to_ne_bytes());
    message
}

/// Zero after a success, a negative number after a failure.
fn error_number(answer: &[u8]) -> Option<i32> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let number = i32::from_ne_bytes(answer.get(16..20)?.try_into().ok()?);
    (kind == ANSWER).then_some(number)
}
