//! The address of one back end, resolved and checked for each connection, with its idle connections.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Uri};
use ipnet::IpNet;
use tokio::time::timeout;

use super::connection::{Exchange, HttpConnection, Reactor, SendError};
use super::{CONNECT_TIMEOUT, HttpError, lock};

/// Idle connections that are kept for one back end: as many as busy proxies keep, few enough that a thousand back ends
/// do not use up the descriptors of a process.
const MAX_IDLE: usize = 256;
/// A connection that was not used for this long is closed; most back ends close it sooner.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Uses of a connection from other reactors until it is closed: a new one costs as much as some dozens of hand-overs
/// between threads.
const MAX_FOREIGN_USES: u32 = 64;
/// A request into a connection that the back end has closed fails within a round trip, and a little more on a busy
/// machine. If the connection ends later, the back end may have worked on the request.
const CLOSED_WITHIN: Duration = Duration::from_secs(2);
/// Further addresses of one name are not tried.
const MAX_ADDRESSES: usize = 16;
/// The longest host name in DNS.
const MAX_HOST_BYTES: usize = 253;

/// The host, port and path of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// In lower case, without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// With the query; at least `/`.
    pub(crate) path: String,
}

/// A back end's host and port, with its idle connections.
pub(crate) struct Origin {
    host: String,
    port: u16,
    header: HeaderValue,
    /// Every address of the host must be in one of these; `None` allows all.
    allowed: Option<Arc<[IpNet]>>,
    idle: Mutex<Vec<(Box<HttpConnection>, Instant)>>,
}

impl Target {
    /// Parses an `http://` address.
    pub(crate) fn parse(url: &str) -> Result<Target, HttpError> {
        let shown: String = url.chars().take(200).collect();
        let refuse = |why: &str| Err(HttpError::Address(format!("`{shown}` {why}")));
        let Ok(uri) = url.parse::<Uri>() else {
            return refuse("is not a URL: give one such as http://127.0.0.1:8000");
        };
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return refuse(
                    "is an https address, which is not supported: put the back end where it can be \
                     reached over plain http, such as behind a local proxy",
                );
            }
            _ => return refuse("does not begin with http://"),
        }
        let Some(authority) = uri.authority().filter(|it| !it.as_str().contains('@')) else {
            return refuse("must not contain a user or a password: use an API key");
        };
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Target::new(authority.host(), authority.port_u16().unwrap_or(80), path)
    }

    /// From a host as people write it: a name or an address, in brackets or not.
    pub(crate) fn new(host: &str, port: u16, path: String) -> Result<Target, HttpError> {
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        let is_name = |text: &str| {
            let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            !text.is_empty() && text.len() <= MAX_HOST_BYTES && text.bytes().all(known)
        };
        if bare.parse::<IpAddr>().is_err() && !is_name(bare) {
            let shown: String = host.chars().take(64).collect();
            return Err(HttpError::Address(format!("`{shown}` is not a host name or an address")));
        }
        if port == 0 {
            return Err(HttpError::Address("0 is not a port that can be called".to_owned()));
        }
        Ok(Target { host: bare.to_ascii_lowercase(), port, path })
    }

    /// The host and the port of its location: `localhost` is `127.0.0.1`.
    pub(crate) fn canonical_authority(&self) -> String {
        match self.host.trim_end_matches('.') {
            "localhost" => format!("127.0.0.1:{}", self.port),
            _ => self.authority(),
        }
    }

    /// The host and the port as in a URL.
    pub(crate) fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl Origin {
    pub(crate) fn new(
        target: &Target,
        allowed: Option<Arc<[IpNet]>>,
    ) -> Result<Arc<Origin>, HttpError> {
        let authority = target.authority();
        let header = HeaderValue::from_str(&authority)
            .map_err(|_| HttpError::Address(format!("`{authority}` is not a host and port")))?;
        let (host, port) = (target.host.clone(), target.port);
        Ok(Arc::new(Origin { host, port, header, allowed, idle: Mutex::default() }))
    }

    /// Sends a request over an idle connection, or a new one, and waits for the head of the response.
    ///
    /// Many back ends announce that they keep a connection and close it after a response all the same. A request that was
    /// sent into such a connection is sent again over a new one if it ends soon and without a byte of a response.
    pub(crate) async fn send(
        self: &Arc<Origin>,
        method: Method,
        path: Uri,
        authorization: Option<&HeaderValue>,
        body: Bytes,
    ) -> Result<Exchange, HttpError> {
        let build = || {
            let mut request = Request::new(Full::new(body.clone()));
            *request.method_mut() = method.clone();
            *request.uri_mut() = path.clone();
            let headers = request.headers_mut();
            headers.insert(HOST, self.header.clone());
            if method == Method::POST {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            }
            if let Some(authorization) = authorization {
                headers.insert(hyper::header::AUTHORIZATION, authorization.clone());
            }
            request
        };
        let mut request = build();
        while let Some(conn) = self.take_idle() {
            let sent_at = Instant::now();
            match conn.send(request, Arc::clone(self)).await {
                Ok(exchange) => return Ok(exchange),
                // The connection was closed before anything was sent: use the next one.
                Err(SendError { request: Some(unsent), .. }) => request = unsent,
                Err(SendError { is_unanswered: true, .. }) if sent_at.elapsed() < CLOSED_WITHIN => {
                    request = build();
                    break;
                }
                Err(SendError { error, .. }) => return Err(error),
            }
        }
        let conn = self.connect().await?;
        conn.send(request, Arc::clone(self)).await.map_err(|error| error.error)
    }

    /// Checks that the back end accepts connections. A new one is made: an idle one is no proof.
    pub(crate) async fn probe(&self) -> Result<(), HttpError> {
        self.close_expired();
        let conn = self.connect().await?;
        if lock(&self.idle).is_empty() {
            self.put_idle(conn);
        }
        Ok(())
    }

    /// Closes all idle connections.
    pub(crate) fn close_idle(&self) {
        let kept = std::mem::take(&mut *lock(&self.idle));
        // Closed outside of the lock.
        drop(kept);
    }

    /// Keeps a connection for the next request, unless it was used too often from other reactors.
    pub(super) fn put_idle(&self, mut conn: Box<HttpConnection>) {
        conn.foreign_uses += u32::from(conn.reactor != Reactor::current());
        if conn.foreign_uses > MAX_FOREIGN_USES {
            return;
        }
        let mut idle = lock(&self.idle);
        if idle.len() < MAX_IDLE {
            idle.push((conn, Instant::now()));
        }
    }

    /// The usable connection that was used last, preferably one of the current reactor.
    fn take_idle(&self) -> Option<Box<HttpConnection>> {
        self.close_expired();
        let here = Reactor::current();
        loop {
            let (mut conn, _) = {
                let mut idle = lock(&self.idle);
                let local = idle.iter().rposition(|(conn, _)| conn.reactor == here);
                match local {
                    Some(local) => idle.remove(local),
                    None => idle.pop()?,
                }
            };
            if conn.is_usable() {
                return Some(conn);
            }
        }
    }

    /// Closes connections that have expired. They are at the front, because connections are taken from the back.
    fn close_expired(&self) {
        let mut idle = lock(&self.idle);
        let old = idle.iter().take_while(|(_, since)| since.elapsed() > IDLE_TIMEOUT).count();
        let old: Vec<_> = idle.drain(..old).collect();
        // Closed outside of the lock.
        drop(idle);
        drop(old);
    }

    async fn connect(&self) -> Result<Box<HttpConnection>, HttpError> {
        let failed =
            |reason: String| HttpError::Connect { server: self.authority().to_owned(), reason };
        let connecting = async {
            let mut reason = "it has no address".to_owned();
            for address in self.addresses().await? {
                match HttpConnection::open(address).await {
                    Ok(conn) => return Ok(conn),
                    Err(error) => reason = error.to_string(),
                }
            }
            Err(failed(reason))
        };
        let late = |_| HttpError::NotAccepted {
            server: self.authority().to_owned(),
            within: CONNECT_TIMEOUT,
        };
        timeout(CONNECT_TIMEOUT, connecting).await.map_err(late)?
    }

    fn authority(&self) -> &str {
        self.header.to_str().unwrap_or("the back end")
    }

    /// The addresses to try. They are checked here and must be used as they are: a second lookup might return others.
    async fn addresses(&self) -> Result<Vec<SocketAddr>, HttpError> {
        let addresses = match self.host.parse::<IpAddr>() {
            Ok(address) => vec![SocketAddr::new(address, self.port)],
            Err(_) => match tokio::net::lookup_host((self.host.as_str(), self.port)).await {
                Ok(found) => found.take(MAX_ADDRESSES).collect(),
                Err(error) => {
                    let (host, reason) = (self.host.clone(), error.to_string());
                    return Err(HttpError::Lookup { host, reason });
                }
            },
        };
        for address in &addresses {
            // An IPv4 address in the form of an IPv6 one is checked as IPv4.
            let ip = address.ip().to_canonical();
            let allowed = self.allowed.as_ref();
            if !allowed.is_none_or(|networks| networks.iter().any(|net| net.contains(&ip))) {
                return Err(HttpError::NotAllowed(ip));
            }
        }
        Ok(addresses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed_and_invalid_ones_are_reported() {
        let check = |url: &str, expected: &str| {
            let read = match Target::parse(url) {
                Ok(target) => format!("{} {}", target.authority(), target.path),
                Err(error) => error.to_string(),
            };
            assert!(read.contains(expected), "{url}: {read}");
        };
        check("http://Host.example:8000", "host.example:8000 /");
        check("http://host/a/b?c=d", "host:80 /a/b?c=d");
        check("http://[::1]:9/x", "[::1]:9 /x");
        check("https://host", "is an https address, which is not supported");
        check("ftp://host", "does not begin with http://");
        check("host:80", "does not begin with http://");
        check("/path", "does not begin with http://");
        check("http://user:secret@host", "must not contain a user");
        check("http://host:0", "0 is not a port");
        check("http://", "is not a URL");
        check(&format!("http://{}", "x".repeat(300)), "is not a host name");
    }

    #[tokio::test]
    async fn every_address_must_be_allowed_however_it_is_written() {
        let networks: Arc<[IpNet]> = Arc::from(["127.0.0.0/8".parse::<IpNet>().unwrap()]);
        let addresses = async |host: &str| {
            let target = Target::new(host, 80, "/".to_owned()).unwrap();
            Origin::new(&target, Some(Arc::clone(&networks))).unwrap().addresses().await
        };
        assert!(addresses("127.1.2.3").await.is_ok());
        assert!(addresses("::ffff:127.0.0.1").await.is_ok());
        for refused in ["10.0.0.1", "::ffff:10.0.0.1", "::1", "0.0.0.0"] {
            let error = addresses(refused).await.unwrap_err();
            assert!(matches!(error, HttpError::NotAllowed(_)), "{refused}: {error}");
        }
    }
}
