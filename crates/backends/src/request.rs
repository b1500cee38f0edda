//! Builds the request for a task: the route of the back end, and the body.

use bytes::Bytes;
use hypha_model::{InputKind, Name, Payload};
use serde_json::{Map, Value, json};

use crate::back_end::Format;

/// A route of a back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// The address itself, of a back end that takes any JSON.
    Plain,
    Chat,
    Completion,
    Embedding,
}

/// The route and the body for a task, or why its input is invalid.
///
/// The input of a task of a named kind is passed on unchanged. The input of a plain task for an OpenAI back end is
/// parsed: a text is a chat message, and the fields of an object decide its route.
pub(crate) fn build_request(
    format: Format,
    form: InputKind,
    model: Option<&Name>,
    input: &Payload,
    stream: bool,
) -> Result<(Route, Bytes), String> {
    let unchanged = || Bytes::from_owner(PayloadBytes(input.clone()));
    match (format, form) {
        (Format::Json, _) => Ok((Route::Plain, unchanged())),
        (Format::Openai, InputKind::Chat) => Ok((Route::Chat, unchanged())),
        (Format::Openai, InputKind::Completion) => Ok((Route::Completion, unchanged())),
        (Format::Openai, InputKind::Embedding) => Ok((Route::Embedding, unchanged())),
        (Format::Openai, InputKind::Task) => {
            let (route, mut body) = read(input)?;
            if let Some(model) = model {
                body.entry("model").or_insert_with(|| model.as_str().into());
            }
            if stream && route != Route::Embedding {
                body.insert("stream".to_owned(), true.into());
            }
            Ok((route, Bytes::from(Value::Object(body).to_string())))
        }
    }
}

fn read(input: &Payload) -> Result<(Route, Map<String, Value>), String> {
    let value = serde_json::from_slice(input.bytes())
        .map_err(|error| format!("the input is not JSON ({error})"))?;
    match value {
        Value::String(text) => {
            let messages = json!([{ "role": "user", "content": text }]);
            Ok((Route::Chat, Map::from_iter([("messages".to_owned(), messages)])))
        }
        Value::Object(body) if body.contains_key("messages") => Ok((Route::Chat, body)),
        Value::Object(body) if body.contains_key("prompt") => Ok((Route::Completion, body)),
        Value::Object(body) if body.contains_key("input") => Ok((Route::Embedding, body)),
        _ => Err("the input does not suit the back end: give a text, or an object with \
                  `messages`, `prompt` or `input`"
            .to_owned()),
    }
}

/// Lends the bytes of a payload without a copy.
struct PayloadBytes(Payload);

impl AsRef<[u8]> for PayloadBytes {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_become_requests() {
        let check = |format, form, input: &str, stream, expected: &str| {
            let model: Name = "m".parse().unwrap();
            let request =
                build_request(format, form, Some(&model), &Payload::from(input.as_bytes()), stream);
            let shown = match request {
                Ok((route, body)) => format!("{route:?} {}", String::from_utf8_lossy(&body)),
                Err(error) => error,
            };
            assert!(shown.starts_with(expected), "{shown}");
        };
        let (openai, json) = (Format::Openai, Format::Json);
        check(openai, InputKind::Chat, "{ odd", false, "Chat { odd");
        check(openai, InputKind::Completion, "1", true, "Completion 1");
        check(openai, InputKind::Embedding, "1", false, "Embedding 1");
        check(json, InputKind::Chat, "{ odd", false, "Plain { odd");
        check(json, InputKind::Task, "7", true, "Plain 7");
        check(
            openai,
            InputKind::Task,
            "\"hi\"",
            false,
            r#"Chat {"messages":[{"content":"hi","role":"user"}],"model":"m"}"#,
        );
        check(
            openai,
            InputKind::Task,
            r#"{"messages": []}"#,
            true,
            r#"Chat {"messages":[],"model":"m","stream":true}"#,
        );
        check(
            openai,
            InputKind::Task,
            r#"{"prompt":"p","model":"x"}"#,
            false,
            r#"Completion {"model":"x","prompt":"p"}"#,
        );
        check(
            openai,
            InputKind::Task,
            r#"{"input":"p"}"#,
            true,
            r#"Embedding {"input":"p","model":"m"}"#,
        );
        check(openai, InputKind::Task, "{}", false, "the input does not suit the back end");
        check(openai, InputKind::Task, "[1", false, "the input is not JSON");
    }
}
