//! Whether the response of a back end is whole.
//!
//! HTTP alone does not show it: without a length and without chunks, a response ends where the connection ends, also if
//! the back end was killed in the middle of it. The protocols of known routes have an end of their own.

use serde::Deserialize;
use serde::de::IgnoredAny;

/// The protocol of a back end's response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseProtocol {
    /// A JSON document.
    Json,
    /// OpenAI's chats and completions: a JSON object, or events up to `[DONE]`.
    Completions,
    /// OpenAI's responses: a JSON object, or events up to one that says how the response ended.
    Responses,
    /// Anthropic's messages: a JSON object, or events up to `message_stop`.
    Messages,
    /// Unknown: the end of the HTTP response is the end.
    Unknown,
}

/// The last event of a stream of OpenAI's chats and completions.
const DONE: &[u8] = b"[DONE]";

impl ResponseProtocol {
    /// The protocol at this path, if it is the usual path of one.
    pub fn of_path(path: &str) -> ResponseProtocol {
        let path = path.split('?').next().unwrap_or_default().trim_end_matches('/');
        match path.rsplit_once("/v1/").map(|(_, route)| route) {
            Some("chat/completions" | "completions") => ResponseProtocol::Completions,
            Some("responses") => ResponseProtocol::Responses,
            Some("messages") => ResponseProtocol::Messages,
            Some("embeddings") => ResponseProtocol::Json,
            _ => ResponseProtocol::Unknown,
        }
    }

    /// Whether a response is whole. `is_framed` is whether HTTP shows where it ends, and `is_stream` whether events were
    /// requested; a back end that does not stream responds with an object all the same.
    pub fn is_whole(self, body: &[u8], is_stream: bool, is_framed: bool) -> bool {
        if self == ResponseProtocol::Unknown {
            return true;
        }
        if !is_stream || body.trim_ascii_start().starts_with(b"{") {
            return is_framed || serde_json::from_slice::<IgnoredAny>(body).is_ok();
        }
        let ends_with =
            |words: &[&str]| last_event_type(body).is_some_and(|it| words.contains(&&*it));
        match self {
            ResponseProtocol::Json | ResponseProtocol::Unknown => true,
            ResponseProtocol::Completions => {
                last_fields(body).next().and_then(data_of).is_some_and(|data| data == DONE)
            }
            ResponseProtocol::Responses => {
                ends_with(&["response.completed", "response.incomplete", "response.failed"])
            }
            ResponseProtocol::Messages => ends_with(&["message_stop"]),
        }
    }
}

/// The type of the last event. `[DONE]`, which some back ends add to every stream, is not one.
fn last_event_type(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Event {
        r#type: String,
    }
    let data = last_fields(body).filter_map(data_of).find(|data| *data != DONE)?;
    Some(serde_json::from_slice::<Event>(data).ok()?.r#type)
}

/// The fields of a stream of events from its end, without comments and empty lines.
fn last_fields(body: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = body.rsplit(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    lines.filter(|line| !line.is_empty() && !line.starts_with(b":"))
}

fn data_of(field: &[u8]) -> Option<&[u8]> {
    Some(field.strip_prefix(b"data:")?.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    use ResponseProtocol::{Completions, Json, Messages, Responses, Unknown};

    #[test]
    fn usual_paths_have_a_protocol() {
        for (path, protocol) in [
            ("/v1/chat/completions", Completions),
            ("/a/v1/completions/?x=1", Completions),
            ("/v1/responses", Responses),
            ("/v1/messages", Messages),
            ("/v1/embeddings", Json),
            ("/v1/messages/batches", Unknown),
            ("/run", Unknown),
            ("/", Unknown),
        ] {
            assert_eq!(ResponseProtocol::of_path(path), protocol, "{path}");
        }
    }

    #[test]
    fn a_stream_is_whole_with_the_last_event_of_its_protocol() {
        let check = |protocol: ResponseProtocol, body: &str, expected: bool| {
            // The framing does not matter: a proxy closes a stream properly whose origin broke off.
            for is_framed in [false, true] {
                let is_whole = protocol.is_whole(body.as_bytes(), true, is_framed);
                assert_eq!(is_whole, expected, "{protocol:?} {body:?}");
            }
        };
        for end in
            ["data: [DONE]\n\n", "data:[DONE]", "data: [DONE]\r\n\r\n", "data: [DONE]\n\n: bye\n"]
        {
            check(Completions, &format!("data: {{}}\n\n{end}"), true);
        }
        for cut in
            ["", "data: {}\n\n", "data: {}\n\ndata: [DON", "data: [DONE]\n\ndata: {}\n\n", "text"]
        {
            check(Completions, cut, false);
            check(Unknown, cut, true);
        }
        for word in ["completed", "incomplete", "failed"] {
            let event = format!(
                "event: response.{word}\ndata: {{\"response\": {{\"type\": \"x\"}}, \"type\":\"response.{word}\"}}\n\n"
            );
            check(Responses, &event, true);
            check(Responses, &format!("{event}data: [DONE]\n\n"), true);
            check(Responses, &event[..event.len() - 4], false);
            check(Messages, &event, false);
        }
        check(Responses, "data: {\"type\":\"response.output_text.delta\"}\n\n", false);
        check(Messages, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n", true);
        check(Messages, "event: message_stop\n", false);
        check(Messages, "data: {\"type\":\"message_delta\"}\n\n", false);
    }

    #[test]
    fn a_document_without_framing_must_be_whole_json() {
        for (body, is_json) in [("{\"a\": [1]}", true), ("{\"a\": [1", false)] {
            for is_stream in [false, true] {
                assert_eq!(Completions.is_whole(body.as_bytes(), is_stream, false), is_json);
                assert!(Completions.is_whole(body.as_bytes(), is_stream, true));
                assert!(Unknown.is_whole(body.as_bytes(), is_stream, false));
            }
        }
        assert!(!Json.is_whole(b"[0.1, 0.", false, false));
    }
}
