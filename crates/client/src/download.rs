//! Responses whose bodies arrive in pieces.

use std::time::Duration;

use bytes::Bytes;
use reqwest::Response;
use reqwest::header::CONTENT_TYPE;

use crate::error::ClientError;
use crate::http::root_cause;

/// Streams send something every few seconds, if only a comment.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// The body of a response, in pieces.
pub(crate) struct StreamedBody {
    response: Response,
    address: String,
}

impl StreamedBody {
    pub(crate) fn new(response: Response, address: String) -> StreamedBody {
        StreamedBody { response, address }
    }

    /// The next piece; `None` at the end.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, ClientError> {
        match tokio::time::timeout(IDLE_TIMEOUT, self.response.chunk()).await {
            Ok(Ok(chunk)) => Ok(chunk),
            Ok(Err(error)) => Err(self.lost(root_cause(&error))),
            Err(_) => {
                Err(ClientError::TimedOut { address: self.address.clone(), after: IDLE_TIMEOUT })
            }
        }
    }

    pub(crate) fn lost(&self, reason: String) -> ClientError {
        ClientError::Lost { address: self.address.clone(), reason, safe_to_retry: true }
    }
}

/// A result in transit.
pub struct Download {
    body: StreamedBody,
}

impl Download {
    pub(crate) fn new(body: StreamedBody) -> Download {
        Download { body }
    }

    /// Its content type.
    pub fn content_type(&self) -> Option<&str> {
        self.body.response.headers().get(CONTENT_TYPE)?.to_str().ok()
    }

    /// Its size, if that is known.
    pub fn length(&self) -> Option<u64> {
        self.body.response.content_length()
    }

    /// The next piece; `None` at the end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, ClientError> {
        self.body.chunk().await
    }

    /// All of it, if that is at most `limit` bytes.
    pub async fn bytes(mut self, limit: usize) -> Result<Vec<u8>, ClientError> {
        let mut bytes = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            if bytes.len() + chunk.len() > limit {
                return Err(ClientError::TooLarge { limit });
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }
}
