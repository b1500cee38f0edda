//! The part of HTTP that is needed here, blocking: a client that keeps one connection open, requests with a body,
//! answers with a length.

use std::io::{self, BufRead, BufReader, Error, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longer than a running scheduler ever takes; one that died resets the connection at once.
const IO_TIMEOUT: Duration = Duration::from_secs(20);
/// A thousand tasks with their results, many times over.
const MAX_BODY: usize = 64 << 20;
/// Our heads are few and short lines; a line that never ends is not read forever.
const MAX_HEAD: u64 = 16 << 10;

pub(crate) struct Request<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    /// The `Idempotency-Key`.
    pub(crate) key: Option<&'a str>,
    pub(crate) body: &'a str,
}

impl<'a> Request<'a> {
    pub(crate) fn get(path: &'a str) -> Request<'a> {
        Request { method: "GET", path, key: None, body: "" }
    }
}

#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// Why there is no response.
#[derive(Debug)]
pub(crate) enum RequestError {
    /// Nothing listens: the request was not sent.
    Unreachable(Error),
    /// It was sent, at least in part. Whether it was received is unknown.
    Unanswered(Error),
}

/// An incarnation of a server, and its address. Another incarnation may serve at the same address.
pub(crate) type Incarnation = (u32, SocketAddr);

#[derive(Default)]
pub(crate) struct Client {
    open: Option<(Incarnation, BufReader<TcpStream>)>,
}

impl Client {
    pub(crate) fn request(
        &mut self,
        at: Incarnation,
        request: &Request,
    ) -> Result<HttpResponse, RequestError> {
        let mut stream = match self.open.take() {
            Some((open_to, stream)) if open_to == at => stream,
            _ => connect(at.1).map_err(RequestError::Unreachable)?,
        };
        send(stream.get_mut(), request).map_err(RequestError::Unanswered)?;
        let (answer, keep) = receive(&mut stream).map_err(RequestError::Unanswered)?;
        if keep {
            self.open = Some((at, stream));
        }
        Ok(answer)
    }
}

fn connect(at: SocketAddr) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect_timeout(&at, IO_TIMEOUT)?;
    stream.set_read_timeout(Some(IO_TIMEOUT))?;
    stream.set_write_timeout(Some(IO_TIMEOUT))?;
    stream.set_nodelay(true)?;
    Ok(BufReader::new(stream))
}

fn send(stream: &mut impl Write, request: &Request) -> io::Result<()> {
    let Request { method, path, key, body } = request;
    let key = key.map(|key| format!("Idempotency-Key: {key}\r\n")).unwrap_or_default();
    let length = body.len();
    // In one write: the head would otherwise cost a packet of its own.
    let whole = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n{key}\r\n{body}"
    );
    stream.write_all(whole.as_bytes())
}

/// A request as a server receives it.
pub(crate) struct ReceivedRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) body: Vec<u8>,
}

/// The next request of a connection.
pub(crate) fn read_request(stream: &mut impl BufRead) -> io::Result<ReceivedRequest> {
    let Head { first, length, .. } = read_head(stream)?;
    let mut words = first.split(' ').map(str::to_owned);
    let (Some(method), Some(path)) = (words.next(), words.next()) else {
        return Err(malformed("a request without a path"));
    };
    let body = read_body(stream, length.unwrap_or_default())?;
    Ok(ReceivedRequest { method, path, body })
}

/// A response, and whether the connection can be reused.
fn receive(stream: &mut impl BufRead) -> io::Result<(HttpResponse, bool)> {
    let Head { first, length, keep } = read_head(stream)?;
    let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| malformed("an answer without a status"))?;
    let length = length.ok_or_else(|| malformed("an answer without a length"))?;
    Ok((HttpResponse { status, body: read_body(stream, length)? }, keep))
}

struct Head {
    first: String,
    length: Option<usize>,
    keep: bool,
}

fn read_head(stream: &mut impl BufRead) -> io::Result<Head> {
    let mut head = stream.take(MAX_HEAD);
    let mut line = || {
        let mut line = String::new();
        match head.read_line(&mut line)? {
            0 => Err(Error::new(ErrorKind::UnexpectedEof, "the connection broke off")),
            _ => Ok(line.trim_end().to_owned()),
        }
    };
    let first = line()?;
    let (mut length, mut keep) = (None, true);
    loop {
        let line = line()?;
        if line.is_empty() {
            return Ok(Head { first, length, keep });
        }
        let Some((name, value)) = line.split_once(':') else { continue };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().ok(),
            "connection" => keep = !value.trim().eq_ignore_ascii_case("close"),
            _ => {}
        }
    }
}

fn read_body(stream: &mut impl BufRead, length: usize) -> io::Result<Vec<u8>> {
    if length > MAX_BODY {
        return Err(malformed("a body that is too long"));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(body)
}

fn malformed(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_written_in_full() {
        let mut written = Vec::new();
        let request = Request { method: "POST", path: "/x", key: Some("k-1"), body: "{}" };
        send(&mut written, &request).expect("memory is writable");
        let text = String::from_utf8(written).expect("text");
        assert!(text.starts_with("POST /x HTTP/1.1\r\n"), "{text}");
        assert!(text.contains("\r\nContent-Length: 2\r\nIdempotency-Key: k-1\r\n\r\n{}"), "{text}");
    }

    #[test]
    fn requests_round_trip() {
        let mut written = Vec::new();
        let request = Request { method: "POST", path: "/x", key: None, body: "{}" };
        send(&mut written, &request).expect("memory is writable");
        send(&mut written, &Request::get("/y")).expect("memory is writable");
        let mut stream = written.as_slice();
        let first = read_request(&mut stream).expect("the first");
        assert_eq!((&*first.method, &*first.path, &*first.body), ("POST", "/x", &b"{}"[..]));
        assert_eq!(read_request(&mut stream).expect("the second").path, "/y");
        assert!(read_request(&mut stream).is_err());
    }

    #[test]
    fn responses_are_read_in_sequence_and_malformed_ones_refused() {
        let two = "HTTP/1.1 202 Accepted\r\ncontent-length: 3\r\n\r\nabc\
                   HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        let mut stream = two.as_bytes();
        let (first, keep) = receive(&mut stream).expect("the first");
        assert_eq!((first.status, first.body.as_slice(), keep), (202, &b"abc"[..], true));
        let (second, keep) = receive(&mut stream).expect("the second");
        assert_eq!((second.status, second.body.len(), keep), (404, 0, false));
        for broken in [
            "",
            "HTTP/1.1",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 200 OK\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        ] {
            assert!(receive(&mut broken.as_bytes()).is_err(), "{broken:?}");
        }
    }
}
