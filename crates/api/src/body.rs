//! Reads the body of a request, with bounds on its size and on the time that it takes.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, EXPECT};
use axum::http::{HeaderMap, StatusCode};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use thiserror::Error;

/// The largest allowed body takes less than this on any usable connection.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// How much of a refused body is read and discarded: most clients send all of it before they read the
/// response, and would only see a broken connection.
const MAX_DISCARDED: usize = 64 << 20;

/// Why a body could not be read.
#[derive(Debug, Error)]
pub(crate) enum BodyError {
    /// More than is allowed.
    #[error("the body is larger than {0} bytes, the limit of this scheduler (max_request_size)")]
    TooLarge(usize),
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
    /// The matching status.
    pub(crate) const fn status(&self) -> StatusCode {
        match self {
            BodyError::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            BodyError::Encoded => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            BodyError::TooSlow => StatusCode::REQUEST_TIMEOUT,
            BodyError::Broken => StatusCode::BAD_REQUEST,
        }
    }

    /// A code for programs.
    pub(crate) const fn code(&self) -> &'static str {
        match self {
            BodyError::TooLarge(_) => "too_large",
            BodyError::Encoded => "unsupported_media_type",
            BodyError::TooSlow => "too_slow",
            BodyError::Broken => "bad_request",
        }
    }
}

/// The body of `request`, at most `limit` bytes.
pub(crate) async fn read(request: Request, limit: usize) -> Result<Bytes, BodyError> {
    let (parts, body) = request.into_parts();
    read_body(&parts.headers, body, limit).await
}

/// The body of a request with these headers, at most `limit` bytes.
pub(crate) async fn read_body(
    headers: &HeaderMap,
    body: Body,
    limit: usize,
) -> Result<Bytes, BodyError> {
    let announced =
        headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if announced.is_some_and(|length: u64| length > limit as u64) && headers.contains_key(EXPECT) {
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
            false => collect(body, limit).await,
        }
    };
    tokio::time::timeout(READ_TIMEOUT, read).await.unwrap_or(Err(BodyError::TooSlow))
}

async fn collect(mut body: Body, limit: usize) -> Result<Bytes, BodyError> {
    let mut whole = Bytes::new();
    let mut pieces = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| BodyError::Broken)?.into_data() else { continue };
        if whole.len() + pieces.len() + data.len() > limit {
            drop((whole, pieces));
            discard(body).await;
            return Err(BodyError::TooLarge(limit));
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
    use futures::stream;

    use super::*;

    async fn read_pieces(pieces: &[&'static str], limit: usize) -> Result<Bytes, BodyError> {
        let pieces: Vec<Result<&str, std::io::Error>> = pieces.iter().map(|p| Ok(*p)).collect();
        let body = Body::from_stream(stream::iter(pieces));
        read_body(&HeaderMap::new(), body, limit).await
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
            let read = read_body(&headers, Body::from("{}"), 9).await;
            assert!(matches!(read, Ok(_) | Err(BodyError::Encoded)), "{coding}");
            assert_eq!(read.is_ok(), taken, "{coding}");
        }
    }

    #[tokio::test]
    async fn a_broken_body_is_an_error() {
        let pieces = [Ok("a"), Err(std::io::Error::other("gone"))];
        let body = Body::from_stream(stream::iter(pieces));
        assert!(matches!(read_body(&HeaderMap::new(), body, 9).await, Err(BodyError::Broken)));
    }

    #[tokio::test(start_paused = true)]
    async fn body_that_never_ends_times_out() {
        let body = Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
        assert!(matches!(read_body(&HeaderMap::new(), body, 9).await, Err(BodyError::TooSlow)));
    }
}
