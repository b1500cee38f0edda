//! One call to a back end for a task: its pieces as they arrive, and its outcome.

use bytes::Bytes;
use futures::future::BoxFuture;
use hyper::header::CONTENT_LENGTH;
use hypha_engine::back_end::ResponseProtocol;
use hypha_model::{FailureKind, InputKind, Name, Payload, TaskError};

use crate::back_end::{BackEnd, read_error};
use crate::request::build_request;
use crate::transport::{Exchange, HttpError};

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// With a result: the body of the response, all pieces together if it was streamed.
    Completed {
        /// The result.
        payload: Payload,
    },
    /// Without a result.
    Failed(TaskError),
    /// The back end is unreachable, and has not received the request.
    Unreachable {
        /// What went wrong.
        error: String,
    },
}

/// A call to a back end. Dropping it ends the request.
pub struct Call {
    state: State,
    stream: bool,
    protocol: ResponseProtocol,
    limit_bytes: usize,
}

enum State {
    /// Until the head of the response has arrived, or, of an error response, all of it.
    Sending(BoxFuture<'static, Result<Exchange, HttpError>>),
    Reading {
        exchange: Exchange,
        read: ResponseBuffer,
    },
    Ended(CallOutcome),
}

/// What has been read of a response: most come in one part, which is not copied twice.
#[derive(Default)]
struct ResponseBuffer {
    first: Bytes,
    rest: Vec<u8>,
}

impl Call {
    pub(crate) fn new(
        server: &BackEnd,
        model: Option<&Name>,
        form: InputKind,
        input: &Payload,
        stream: bool,
    ) -> Call {
        let limit_bytes = server.max_response_bytes();
        let mut protocol = ResponseProtocol::Unknown;
        let state = match build_request(server.format(), form, model, input, stream) {
            Ok((route, body)) => {
                protocol = server.protocol(route);
                let server = server.clone();
                State::Sending(Box::pin(async move {
                    let mut exchange = server.post(route, body).await?;
                    match exchange.status.is_success() {
                        true => Ok(exchange),
                        false => Err(read_error(&mut exchange).await),
                    }
                }))
            }
            Err(error) => {
                State::Ended(CallOutcome::Failed(TaskError::new(FailureKind::InvalidInput, error)))
            }
        };
        Call { state, stream, protocol, limit_bytes }
    }

    /// The next piece, of a call that was started with `stream`, as the back end sent it; `None` when the call has
    /// ended. Only a response of success has pieces. Cancel safe.
    pub async fn next(&mut self) -> Option<Bytes> {
        loop {
            match &mut self.state {
                State::Sending(response) => match response.await {
                    Ok(exchange) => self.begin(exchange),
                    Err(error) => self.fail(error),
                },
                State::Reading { exchange, read } => match exchange.next().await {
                    Ok(Some(piece)) if read.len() + piece.len() > self.limit_bytes => {
                        self.fail(HttpError::TooLarge { limit_bytes: self.limit_bytes });
                    }
                    Ok(Some(piece)) => {
                        read.add(&piece);
                        if self.stream {
                            return Some(piece);
                        }
                    }
                    Ok(None) => {
                        let is_framed = exchange.is_framed();
                        if self.protocol.is_whole(read.bytes(), self.stream, is_framed) {
                            let payload = std::mem::take(read).into_payload();
                            self.state = State::Ended(CallOutcome::Completed { payload });
                        } else {
                            self.fail(HttpError::Truncated);
                        }
                    }
                    Err(error) => self.fail(error),
                },
                State::Ended(_) => return None,
            }
        }
    }

    /// Waits for the end. Pieces that have not been taken are part of the result all the same.
    pub async fn outcome(mut self) -> CallOutcome {
        loop {
            if let State::Ended(outcome) = self.state {
                return outcome;
            }
            self.next().await;
        }
    }

    fn begin(&mut self, exchange: Exchange) {
        let length = exchange.headers.get(CONTENT_LENGTH);
        let length = length.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
        if length.is_some_and(|length| length > self.limit_bytes) {
            return self.fail(HttpError::TooLarge { limit_bytes: self.limit_bytes });
        }
        self.state = State::Reading { exchange, read: ResponseBuffer::default() };
    }

    fn fail(&mut self, error: HttpError) {
        self.state = State::Ended(match error.is_unreachable() {
            true => CallOutcome::Unreachable { error: error.to_string() },
            false => CallOutcome::Failed(error.into()),
        });
    }
}

impl ResponseBuffer {
    fn len(&self) -> usize {
        self.first.len().max(self.rest.len())
    }

    fn add(&mut self, piece: &Bytes) {
        if self.first.is_empty() {
            self.first = piece.clone();
            return;
        }
        if self.rest.is_empty() {
            self.rest.extend_from_slice(&self.first);
        }
        self.rest.extend_from_slice(piece);
    }

    fn bytes(&self) -> &[u8] {
        if self.rest.is_empty() { &self.first } else { &self.rest }
    }

    fn into_payload(self) -> Payload {
        match self.rest.is_empty() {
            true => Payload::from(&*self.first),
            false => Payload::from(self.rest),
        }
    }
}
