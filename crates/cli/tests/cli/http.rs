//! HTTP requests, as a metrics collector or a program sends them.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::process::WAIT_TIMEOUT;

/// A node answers within milliseconds; a machine that is busy with other tests takes longer.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// The status and the body of the response to `path`.
pub fn get(address: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    exchange(address, ANSWER_TIME, &format!("GET {path}"), "", "")
}

/// The same for any method, with further header lines and a body of JSON. For responses that may come late:
/// the end of a task, or events to their end.
pub fn send(address: SocketAddr, line: &str, head: &str, body: &str) -> io::Result<(u16, String)> {
    exchange(address, WAIT_TIMEOUT, line, head, body)
}

/// `line` has the method and the path.
fn exchange(
    address: SocketAddr,
    timeout: Duration,
    line: &str,
    head: &str,
    body: &str,
) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_TIME)?;
    stream.set_read_timeout(Some(timeout))?;
    let length = body.len();
    // HTTP/1.0, so that the response ends with the connection and is not chunked.
    write!(stream, "{line} HTTP/1.0\r\nHost: {address}\r\n{head}")?;
    if length > 0 {
        write!(stream, "Content-Type: application/json\r\nContent-Length: {length}\r\n")?;
    }
    write!(stream, "\r\n{body}")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let strange = || io::Error::other(format!("not HTTP: {answer}"));
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(strange)?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(strange)?;
    Ok((status, body.to_owned()))
}
