//! One question over HTTP, as a collector of figures asks it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A node answers within milliseconds; a machine that is busy with other tests takes longer.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// The status and the body of what `path` answers.
pub fn get(address: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_TIME)?;
    stream.set_read_timeout(Some(ANSWER_TIME))?;
    // 1.0, so that the answer ends with the connection and has no parts to be put together.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let strange = || io::Error::other(format!("not HTTP: {answer}"));
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(strange)?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(strange)?;
    Ok((status, body.to_owned()))
}
