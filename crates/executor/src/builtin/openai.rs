//! `echo` in the format of OpenAI's responses: repeats the last message, one word a token.

use axum::body::Bytes;
use hypha_model::{AttemptId, InputKind, Name, Payload};
use serde_json::{Value, json};

use crate::outcome::RunError;

/// How many numbers an embedding has: enough to look like one.
const DIMENSIONS: usize = 8;

/// The response to a body of one of OpenAI's routes, and its events if a stream was requested.
pub(super) fn echo(
    form: InputKind,
    id: AttemptId,
    model: &Name,
    input: &Payload,
) -> Result<(Payload, Vec<Bytes>), RunError> {
    let body: Value = serde_json::from_slice(input.bytes())
        .map_err(|error| RunError::Input(error.to_string()))?;
    let text = last_text(form, &body)?;
    let created = id.task.uuid().get_timestamp().map_or(0, |time| time.to_unix().0);
    let tokens = text.split_whitespace().count();
    let usage =
        json!({ "prompt_tokens": tokens, "completion_tokens": tokens, "total_tokens": 2 * tokens });
    let head = |object: &str| json!({ "id": id.to_string(), "object": object, "created": created, "model": model.as_str() });
    let (answer, events) = match form {
        InputKind::Chat => {
            let message = json!({ "role": "assistant", "content": text });
            let choice = json!({ "index": 0, "message": message, "finish_reason": "stop" });
            let piece = |word: &str| json!({ "index": 0, "delta": { "role": "assistant", "content": word }, "finish_reason": null });
            let last = json!({ "index": 0, "delta": {}, "finish_reason": "stop" });
            let events = events(&text, head("chat.completion.chunk"), piece, last);
            (completion(head("chat.completion"), choice, usage), events)
        }
        InputKind::Completion => {
            let choice = |word: &str, finish: Value| json!({ "index": 0, "text": word, "logprobs": null, "finish_reason": finish });
            let piece = |word: &str| choice(word, Value::Null);
            let last = choice("", json!("stop"));
            let events = events(&text, head("text_completion"), piece, last);
            (completion(head("text_completion"), choice(&text, json!("stop")), usage), events)
        }
        InputKind::Embedding | InputKind::Task => {
            let texts = match body["input"].as_array() {
                Some(several) => several.iter().filter_map(Value::as_str).collect(),
                None => vec![text.as_str()],
            };
            let row = |(index, text): (usize, &&str)| json!({ "object": "embedding", "index": index, "embedding": numbers(text) });
            let rows: Vec<Value> = texts.iter().enumerate().map(row).collect();
            let usage = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
            let model = model.as_str();
            let answer = json!({ "object": "list", "model": model, "data": rows, "usage": usage });
            (answer, Vec::new())
        }
    };
    Ok((Payload::from(answer.to_string().into_bytes()), events))
}

/// The last text: the content of the last message, the prompt, or the input.
fn last_text(form: InputKind, body: &Value) -> Result<String, RunError> {
    let (place, found) = match form {
        InputKind::Chat => {
            let last = body["messages"].as_array().and_then(|messages| messages.last());
            ("messages", last.map(|message| &message["content"]))
        }
        InputKind::Completion => ("prompt", body.get("prompt")),
        InputKind::Embedding | InputKind::Task => ("input", body.get("input")),
    };
    let text = match found {
        Some(Value::String(text)) => Some(text.clone()),
        // Several prompts, or a content in parts: their texts, concatenated.
        Some(Value::Array(parts)) => {
            let texts = parts.iter().filter_map(|part| part.as_str().or(part["text"].as_str()));
            Some(texts.collect::<Vec<_>>().join(" "))
        }
        _ => None,
    };
    text.ok_or_else(|| RunError::Input(format!("there is no text in `{place}`")))
}

fn completion(mut head: Value, choice: Value, usage: Value) -> Value {
    head["choices"] = json!([choice]);
    head["usage"] = usage;
    head
}

/// Server-sent events: one for each word, one for the end, and the final marker.
fn events(text: &str, head: Value, piece: impl Fn(&str) -> Value, last: Value) -> Vec<Bytes> {
    let event = |choice: Value| {
        let mut body = head.clone();
        body["choices"] = json!([choice]);
        Bytes::from(format!("data: {body}\n\n"))
    };
    let words = text.split_inclusive(char::is_whitespace).map(|word| event(piece(word)));
    words.chain([event(last), Bytes::from_static(b"data: [DONE]\n\n")]).collect()
}

/// Numbers that depend on the text alone.
fn numbers(text: &str) -> Vec<f64> {
    let digest = blake3::hash(text.as_bytes());
    let bytes = digest.as_bytes().iter().take(DIMENSIONS);
    bytes.map(|byte| f64::from(*byte) / 127.5 - 1.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(form: InputKind, body: Value) -> Result<(Value, String), RunError> {
        let task = hypha_model::TaskId::from_uuid(uuid::Uuid::nil());
        let input = Payload::from(body.to_string().into_bytes());
        let (answer, events) =
            echo(form, AttemptId { task, number: 1 }, &"echo".parse().unwrap(), &input)?;
        let events: String = events.iter().map(|event| String::from_utf8_lossy(event)).collect();
        Ok((serde_json::from_slice(answer.bytes()).unwrap(), events))
    }

    #[test]
    fn the_last_message_is_repeated() {
        let body = json!({ "messages": [{ "role": "system", "content": "x" }, { "role": "user", "content": "a b" }] });
        let (answer, events) = ask(InputKind::Chat, body).unwrap();
        assert_eq!(answer["choices"][0]["message"]["content"], "a b");
        assert_eq!(answer["usage"]["total_tokens"], 4);
        assert_eq!(events.matches("data: ").count(), 4, "{events}");
        assert!(events.ends_with("data: [DONE]\n\n"), "{events}");
    }

    #[test]
    fn prompts_and_embeddings_too() {
        let (answer, _) = ask(InputKind::Completion, json!({ "prompt": ["a", "b"] })).unwrap();
        assert_eq!(answer["choices"][0]["text"], "a b");
        let (answer, events) = ask(InputKind::Embedding, json!({ "input": "a" })).unwrap();
        assert_eq!(answer["data"][0]["embedding"].as_array().unwrap().len(), DIMENSIONS);
        assert!(events.is_empty());
        let (answer, _) = ask(InputKind::Embedding, json!({ "input": ["a", "b"] })).unwrap();
        assert_eq!(answer["data"].as_array().unwrap().len(), 2);
        assert_ne!(answer["data"][0]["embedding"], answer["data"][1]["embedding"]);
    }

    #[test]
    fn a_body_without_text_is_refused() {
        for (form, body) in [
            (InputKind::Chat, json!({})),
            (InputKind::Chat, json!({ "messages": [] })),
            (InputKind::Completion, json!({ "prompt": 7 })),
            (InputKind::Embedding, json!([])),
        ] {
            assert!(matches!(ask(form, body), Err(RunError::Input(_))));
        }
    }
}
