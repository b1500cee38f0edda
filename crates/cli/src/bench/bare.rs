//! The reference for submits: a server that reads a JSON body and answers with a small one, and does nothing else.

use serde_json::Value;

use super::fake;
use super::wire::answer;
use crate::usage::Failure;

/// As the submit answers, without the rest.
const ANSWER: &[u8] = br#"{"id":"00000000-0000-7000-8000-000000000000","status":"queued"}"#;

const REFUSAL: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";

/// Serves until its standard input ends. As many threads as cores, as the scheduler has.
pub(super) fn serve() -> Result<(), Failure> {
    let answer = answer(ANSWER);
    let reply = move |body: &[u8]| match serde_json::from_slice::<Value>(body) {
        Ok(Value::Object(_) | Value::Array(_)) => answer.clone(),
        _ => REFUSAL.to_vec(),
    };
    fake::run(
        tokio::runtime::Builder::new_multi_thread(),
        fake::serve(1, move |message: &fake::Request<'_>| reply(message.body)),
    )
}
