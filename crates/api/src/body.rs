//! Reads the bodies of requests, with bounds on the size of each, on all of them together, and on the time that one
//! takes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, EXPECT};
use axum::http::{HeaderMap, StatusCode};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use thiserror::Error;

use crate::error::{self, UNAVAILABLE_RETRY_S};

/// The largest allowed body takes less than this on any usable connection.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// How much of a refused body is read and discarded: most clients send all of it before they read the
/// response, and would only see a broken connection.
const MAX_DISCARDED: usize = 64 << 20;

/// Bodies up to this size are not counted with the others: their connections' own buffers, whose number is bounded,
/// may hold as much. So most requests pay nothing for the count.
const UNCOUNTED_BYTES: usize = 32 << 10;

/// Reads bodies within the bounds of a server.
#[derive(Debug)]
pub(crate) struct BodyReader {
    /// The largest body.
    max_bytes: usize,
    /// How many more bytes may be buffered, of all bodies together.
    free_bytes: AtomicUsize,
}

/// Why a body could not be read.
#[derive(Debug, Error)]
pub(crate) enum BodyError {
    /// More than is allowed.
    #[error("the body is larger than {0} bytes, the limit of this scheduler (max_request_size)")]
    TooLarge(usize),
    /// Other bodies take all the memory that there is for them.
    #[error("too many large requests arrive at present; try again")]
    Busy,
    /// It is compressed, or encoded in another way.
    #[error("the body has a `Content-Encoding`, and none is supported: send it unencoded")]
    Encoded,
    /// It did not arrive in time.
    #[error("the body did not arrive within {} s", READ_TIMEOUT.as_secs())]
    TooSlow,
    /// The connection broke, or the data was not HTTP.
    #[error("the body could not be read to its end")]
    Broken,
}

impl BodyError {
    /// The matching status, and a code for programs.
    const fn status(&self) -> (StatusCode, &'static str) {
        match self {
            BodyError::TooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
            BodyError::Busy => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
            BodyError::Encoded => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type"),
            BodyError::TooSlow => (StatusCode::REQUEST_TIMEOUT, "too_slow"),
            BodyError::Broken => (StatusCode::BAD_REQUEST, "bad_request"),
        }
    }
}

impl From<BodyError> for error::Error {
    fn from(error: BodyError) -> error::Error {
        let (status, code) = error.status();
        let retry_after_s = matches!(error, BodyError::Busy).then_some(UNAVAILABLE_RETRY_S);
        error::Error { retry_after_s, ..error::Error::new(status, code, error.to_string()) }
    }
}

impl BodyReader {
    /// Each body has at most `max_bytes`, and all of them together `max_buffered_bytes`, or one of the largest.
    pub(crate) fn new(max_bytes: usize, max_buffered_bytes: usize) -> BodyReader {
        let free_bytes = AtomicUsize::new(max_buffered_bytes.max(max_bytes));
        BodyReader { max_bytes, free_bytes }
    }

    /// The body of a request with these headers.
    pub(crate) async fn read(&self, headers: &HeaderMap, body: Body) -> Result<Bytes, BodyError> {
        self.read_up_to(self.max_bytes, headers, body).await
    }

    /// The same with a lower limit.
    pub(crate) async fn read_up_to(
        &self,
        limit: usize,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Bytes, BodyError> {
        let limit = limit.min(self.max_bytes);
        let announced =
            headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        if announced.is_some_and(|length: u64| length > limit as u64)
            && headers.contains_key(EXPECT)
        {
            // The client waits for `100 Continue` before it sends anything.
            return Err(BodyError::TooLarge(limit));
        }
        let encoded = headers.get(CONTENT_ENCODING).is_some_and(|coding| {
            let coding = coding.as_bytes().trim_ascii();
            !coding.is_empty() && !coding.eq_ignore_ascii_case(b"identity")
        });
        let read = async {
            match encoded {
                true => {
                    discard(body).await;
                    Err(BodyError::Encoded)
                }
                false => self.collect(body, limit).await,
            }
        };
        tokio::time::timeout(READ_TIMEOUT, read).await.unwrap_or(Err(BodyError::TooSlow))
    }

    async fn collect(&self, mut body: Body, limit: usize) -> Result<Bytes, BodyError> {
        let mut whole = Bytes::new();
        let mut pieces = BytesMut::new();
        let mut counted = CountedBytes { reader: self, bytes: 0 };
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|_| BodyError::Broken)?.into_data() else { continue };
            let bytes = whole.len() + pieces.len() + data.len();
            let refused = match bytes > limit {
                true => Some(BodyError::TooLarge(limit)),
                false => (!counted.grow_to(bytes)).then_some(BodyError::Busy),
            };
            if let Some(refused) = refused {
                drop((whole, pieces, data, counted));
                discard(body).await;
                return Err(refused);
            }
            // Nearly always there is one piece, which is not copied.
            if whole.is_empty() && pieces.is_empty() {
                whole = data;
            } else {
                pieces.extend_from_slice(&std::mem::take(&mut whole));
                pieces.extend_from_slice(&data);
            }
        }
        Ok(if pieces.is_empty() { whole } else { pieces.freeze() })
    }
}

/// Bytes of one body that are counted with those of the others, until it has arrived.
struct CountedBytes<'a> {
    reader: &'a BodyReader,
    bytes: usize,
}

impl CountedBytes<'_> {
    /// Counts a body that has `bytes` now; `false` if there is no room for it.
    fn grow_to(&mut self, bytes: usize) -> bool {
        if bytes <= UNCOUNTED_BYTES {
            return true;
        }
        let more = bytes - self.bytes;
        let take = |free: usize| free.checked_sub(more);
        let free = &self.reader.free_bytes;
        let taken = free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
        if taken {
            self.bytes = bytes;
        }
        taken
    }
}

impl Drop for CountedBytes<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.reader.free_bytes.fetch_add(self.bytes, Ordering::Relaxed);
        }
    }
}

async fn discard(mut body: Body) {
    let mut discarded = 0;
    while discarded < MAX_DISCARDED
        && let Some(Ok(frame)) = body.frame().await
    {
        discarded += frame.data_ref().map_or(0, Bytes::len);
    }
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt, stream};
    use tokio::sync::oneshot;

    use super::*;

    async fn read_pieces(pieces: &[&'static str], limit: usize) -> Result<Bytes, BodyError> {
        let pieces: Vec<Result<&str, std::io::Error>> = pieces.iter().map(|p| Ok(*p)).collect();
        let body = Body::from_stream(stream::iter(pieces));
        BodyReader::new(limit, 0).read(&HeaderMap::new(), body).await
    }

    #[tokio::test]
    async fn pieces_are_joined_up_to_the_limit() {
        assert_eq!(read_pieces(&[], 0).await.unwrap(), "");
        assert_eq!(read_pieces(&["abc"], 3).await.unwrap(), "abc");
        assert_eq!(read_pieces(&["a", "", "b", "c"], 3).await.unwrap(), "abc");
        assert!(matches!(read_pieces(&["abcd"], 3).await, Err(BodyError::TooLarge(3))));
        assert!(matches!(read_pieces(&["ab", "cd"], 3).await, Err(BodyError::TooLarge(3))));
    }

    #[tokio::test]
    async fn a_body_that_is_compressed_is_refused() {
        for (coding, taken) in [("identity", true), ("", true), ("gzip", false), ("a, b", false)] {
            let headers = HeaderMap::from_iter([(CONTENT_ENCODING, coding.parse().unwrap())]);
            let read = BodyReader::new(9, 0).read(&headers, Body::from("{}")).await;
            assert!(matches!(read, Ok(_) | Err(BodyError::Encoded)), "{coding}");
            assert_eq!(read.is_ok(), taken, "{coding}");
        }
    }

    #[tokio::test]
    async fn a_broken_body_is_an_error() {
        let pieces = [Ok("a"), Err(std::io::Error::other("gone"))];
        let body = Body::from_stream(stream::iter(pieces));
        let read = BodyReader::new(9, 0).read(&HeaderMap::new(), body).await;
        assert!(matches!(read, Err(BodyError::Broken)));
    }

    #[tokio::test(start_paused = true)]
    async fn body_that_never_ends_times_out() {
        let body = Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
        let read = BodyReader::new(9, 0).read(&HeaderMap::new(), body).await;
        assert!(matches!(read, Err(BodyError::TooSlow)));
    }

    /// A body of this many bytes that ends when the sender is dropped.
    fn unfinished_body(bytes: usize) -> (oneshot::Sender<()>, Body) {
        let (end, ended) = oneshot::channel::<()>();
        let first = stream::iter([Ok::<_, std::io::Error>(Bytes::from(vec![b' '; bytes]))]);
        let rest = stream::once(async {
            drop(ended.await);
            Ok(Bytes::new())
        });
        (end, Body::from_stream(first.chain(rest)))
    }

    #[tokio::test]
    async fn bodies_that_arrive_together_are_bounded() {
        const LARGE: usize = 100_000;
        let (reader, headers) = (BodyReader::new(LARGE, 2 * LARGE), HeaderMap::new());
        let ((end_first, first), (end_second, second)) =
            (unfinished_body(LARGE), unfinished_body(LARGE));
        let mut first = Box::pin(reader.read(&headers, first));
        let mut second = Box::pin(reader.read(&headers, second));
        assert!(
            futures::poll!(&mut first).is_pending() && futures::poll!(&mut second).is_pending()
        );
        let large = || Body::from(vec![b' '; LARGE]);
        assert!(matches!(reader.read(&headers, large()).await, Err(BodyError::Busy)));
        let small = Body::from(vec![b' '; UNCOUNTED_BYTES]);
        assert!(reader.read(&headers, small).await.is_ok(), "small ones are read as before");
        drop(end_first);
        assert_eq!(first.await.unwrap().len(), LARGE);
        assert!(reader.read(&headers, large()).await.is_ok(), "one has arrived");
        drop(second);
        drop(end_second);
        assert_eq!(reader.free_bytes.into_inner(), 2 * LARGE, "abandoned ones do not count");
    }
}
