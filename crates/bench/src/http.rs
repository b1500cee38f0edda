//! The part of HTTP/1.1 that a load generator and a fake server need, at minimal cost.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The initial buffer of a connection: most messages fit, and it grows for those that do not.
const FIRST_BUFFER: usize = 16 << 10;

/// More than the response to the largest batch.
const MAX_MESSAGE: usize = 64 << 20;

const HEAD_END: &[u8] = b"\r\n\r\n";

/// One end of a connection that is kept open.
pub(crate) struct HttpConnection {
    stream: TcpStream,
    buffer: Vec<u8>,
    filled: usize,
    /// The length of the last returned message, at the start of the buffer.
    taken: usize,
}

/// A request or a response, in the buffer of its connection.
pub(crate) struct Message {
    body: Body,
    total: usize,
}

enum Body {
    Plain(Range<usize>),
    /// Joined from chunks.
    Joined(Vec<u8>),
}

/// A request, ready to be sent as often as needed.
pub(crate) fn request(method: &str, path: &str, body: &[u8]) -> Vec<u8> {
    let mut request = format!(
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    request
}

/// A response with status 200, ready to be sent as often as needed.
pub(crate) fn ok_response(body: &[u8]) -> Vec<u8> {
    let mut response = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    response.extend_from_slice(body);
    response
}

impl HttpConnection {
    pub(crate) async fn connect(address: SocketAddr) -> io::Result<HttpConnection> {
        HttpConnection::new(TcpStream::connect(address).await?)
    }

    pub(crate) fn new(stream: TcpStream) -> io::Result<HttpConnection> {
        stream.set_nodelay(true)?;
        Ok(HttpConnection { stream, buffer: vec![0; FIRST_BUFFER], filled: 0, taken: 0 })
    }

    /// Sends a request and waits for its response.
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> io::Result<Message> {
        self.send(request).await?;
        self.next().await?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    pub(crate) async fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.stream.write_all(message).await
    }

    /// The next message; `None` if the peer has closed the connection between two messages.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Message>> {
        self.buffer.copy_within(self.taken..self.filled, 0);
        self.filled -= self.taken;
        self.taken = 0;
        loop {
            if let Some(message) = parse(&self.buffer[..self.filled])? {
                self.taken = message.total;
                return Ok(Some(message));
            }
            if self.filled == self.buffer.len() {
                if self.filled >= MAX_MESSAGE {
                    return Err(malformed("a message is too large"));
                }
                self.buffer.resize(2 * self.filled, 0);
            }
            match self.stream.read(&mut self.buffer[self.filled..]).await? {
                0 if self.filled == 0 => return Ok(None),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => self.filled += count,
            }
        }
    }

    /// The status of the last response.
    pub(crate) fn status(&self) -> u16 {
        let digits = self.buffer.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok());
        digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
    }

    /// The bytes of a message, unchanged.
    pub(crate) fn raw(&self, message: &Message) -> &[u8] {
        &self.buffer[..message.total]
    }

    pub(crate) fn body<'a>(&'a self, message: &'a Message) -> &'a [u8] {
        match &message.body {
            Body::Plain(range) => &self.buffer[range.clone()],
            Body::Joined(bytes) => bytes,
        }
    }
}

/// The first message of `bytes`; `None` if it is incomplete.
fn parse(bytes: &[u8]) -> io::Result<Option<Message>> {
    let Some(head) = bytes.windows(HEAD_END.len()).position(|four| four == HEAD_END) else {
        return Ok(None);
    };
    let begin = head + HEAD_END.len();
    let mut length = 0;
    for line in bytes[..head].split(|byte| *byte == b'\n').skip(1) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        if name.eq_ignore_ascii_case(b"content-length") {
            let value = std::str::from_utf8(value).ok().and_then(|text| text.trim().parse().ok());
            length = value.ok_or_else(|| malformed("content-length is not a number"))?;
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            return join(bytes, begin);
        }
    }
    if length > MAX_MESSAGE {
        return Err(malformed("a message is too large"));
    }
    let total = begin + length;
    let whole = bytes.len() >= total;
    Ok(whole.then_some(Message { body: Body::Plain(begin..total), total }))
}

/// A body in chunks, without trailers.
fn join(bytes: &[u8], mut at: usize) -> io::Result<Option<Message>> {
    let mut joined = Vec::new();
    loop {
        let Some(line) = bytes[at..].windows(2).position(|two| two == b"\r\n") else {
            return Ok(None);
        };
        let digits = bytes[at..at + line].split(|byte| *byte == b';').next().unwrap_or_default();
        let size = std::str::from_utf8(digits).ok();
        let size = size.and_then(|text| usize::from_str_radix(text.trim(), 16).ok());
        let size = size.filter(|size| *size <= MAX_MESSAGE);
        let size = size.ok_or_else(|| malformed("a chunk has no size"))?;
        let begin = at + line + 2;
        let end = begin + size + 2;
        if bytes.len() < end {
            return Ok(None);
        }
        if size == 0 {
            return Ok(Some(Message { body: Body::Joined(joined), total: end }));
        }
        joined.extend_from_slice(&bytes[begin..begin + size]);
        at = end;
    }
}

fn malformed(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, body: &str, rest: usize) {
        let message = parse(text.as_bytes()).unwrap().unwrap();
        assert_eq!(message.total, text.len() - rest, "{text}");
        let got = match &message.body {
            Body::Plain(range) => &text.as_bytes()[range.clone()],
            Body::Joined(bytes) => bytes,
        };
        assert_eq!(got, body.as_bytes(), "{text}");
        // An incomplete message is not returned.
        for end in 0..message.total {
            assert!(parse(&text.as_bytes()[..end]).unwrap().is_none(), "{}", &text[..end]);
        }
    }

    #[test]
    fn messages_are_parsed() {
        check("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhiHTTP", "hi", 4);
        check("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "", 0);
        check(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n",
            "hi0123456789",
            0,
        );
    }

    #[test]
    fn malformed_messages_are_refused() {
        for text in [
            "HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
