//! The result of a task: printed, abbreviated to a line, or fetched if it is an object.

use std::io::IsTerminal;

use hypha_client::{
    ClientError, Download, Json, MAX_RESPONSE_BYTES, Scheduler, TaskId, TaskStatus,
};

use super::connection::{failure, retry_while_unavailable};
use super::show;
use super::text::{bytes, cut_saying};
use crate::usage::{Failure, print, print_bytes};

/// A JSON string is read completely before it is printed as text. A larger one is printed as written.
const MAX_TEXT_BYTES: usize = MAX_RESPONSE_BYTES;
/// Bytes that are examined for a line that shows some hundred characters; no more than that is fetched.
const MAX_SHOWN_BYTES: usize = 1 << 20;

/// Prints the result of a completed task, however large: a string as text, JSON in lines.
pub(super) async fn print_readable(
    scheduler: &Scheduler,
    task: &TaskStatus,
) -> Result<(), Failure> {
    if task.large_result().is_none() && !task.may_be_bytes() {
        return print(&show::result(&task.result));
    }
    let id = task.id;
    let mut download =
        retry_while_unavailable(async || scheduler.result(id).await).await.map_err(failure)?;
    let kind = Kind::of(&download);
    if kind == Kind::Json {
        return print(&show::result(&task.result));
    }
    let mut out = Out::new(id);
    let first = out.next(&mut download).await?.unwrap_or_default();
    if first.starts_with(b"\"") && download.length().is_none_or(|all| all <= MAX_TEXT_BYTES as u64)
    {
        return print_json_text(first.to_vec(), download, out).await;
    }
    let is_text = kind == Kind::Text || begins_as_text(&first);
    if !is_text && std::io::stdout().is_terminal() {
        return print(&format!("{}\n", no_text(download.length().unwrap_or(0), id)));
    }
    out.write(&first)?;
    out.rest(download, is_text).await
}

/// Prints the bytes of a result, all of them and nothing else.
pub(super) async fn print_raw(scheduler: &Scheduler, id: TaskId) -> Result<(), Failure> {
    let download = scheduler.result(id).await.map_err(|error| match error {
        ClientError::Refused { status: 409, .. } => {
            Failure::work(format!("{id} has not ended; `hypha tasks {id} --watch` waits for it"))
        }
        error => failure(error),
    })?;
    Out::new(id).rest(download, false).await
}

/// The result in a line; nothing if there is none.
pub(super) async fn in_short(scheduler: &Scheduler, task: &TaskStatus) -> Option<String> {
    let id = task.id;
    if let Some(large) = task.large_result() {
        return Some(format!("{}; `hypha tasks {id} --result` prints them", bytes(large)));
    }
    let all = format!("`hypha tasks {id} --result` prints all of it");
    if task.may_be_bytes()
        && let Ok(download) = scheduler.result(id).await
    {
        let (kind, length) = (Kind::of(&download), download.length().unwrap_or(0));
        match (kind, download.bytes(MAX_SHOWN_BYTES).await) {
            (Kind::Text, Ok(text)) => {
                return Some(cut_saying(
                    &String::from_utf8_lossy(&text),
                    show::MAX_SHOWN_CHARS,
                    &all,
                ));
            }
            (Kind::Text, Err(_)) => {
                return Some(format!(
                    "{} of text; `hypha tasks {id} --result` prints it",
                    bytes(length)
                ));
            }
            (Kind::Bytes, _) => return Some(no_text(length, id)),
            (Kind::Json, _) => {}
        }
    }
    show::shown(&task.result, &all)
}

/// The result itself where the task names an object: in the form in which the API shows smaller ones, or
/// unchanged if it does not fit in memory.
pub(super) async fn fetched(scheduler: &Scheduler, task: &TaskStatus) -> Result<Json, ClientError> {
    match task.large_result() {
        Some(large) if large <= MAX_RESPONSE_BYTES as u64 => {}
        _ => return Ok(task.result.clone()),
    }
    let bytes = scheduler.result(task.id).await?.bytes(MAX_RESPONSE_BYTES).await?;
    let json = std::str::from_utf8(&bytes).ok().and_then(|text| text.trim().parse().ok());
    Ok(json.unwrap_or_else(|| Json::of_bytes(&bytes)))
}

async fn print_json_text(
    mut bytes: Vec<u8>,
    mut download: Download,
    mut out: Out,
) -> Result<(), Failure> {
    while bytes.len() <= MAX_TEXT_BYTES {
        let Some(piece) = out.next(&mut download).await? else {
            let json: Option<Json> =
                std::str::from_utf8(&bytes).ok().and_then(|text| text.parse().ok());
            return match json.and_then(|json| json.text()) {
                Some(text) => print(&show::ended(text)),
                None => {
                    out.write(&bytes)?;
                    out.rest(download, begins_as_text(&bytes)).await
                }
            };
        };
        bytes.extend_from_slice(&piece);
    }
    // It is longer than announced.
    out.write(&bytes)?;
    out.rest(download, true).await
}

/// The scheduler's description of a result.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Json,
    Text,
    Bytes,
}

impl Kind {
    fn of(download: &Download) -> Kind {
        match download.content_type().unwrap_or_default().split(';').next().unwrap_or_default() {
            "application/json" => Kind::Json,
            "text/plain" => Kind::Text,
            _ => Kind::Bytes,
        }
    }
}

fn no_text(length: u64, id: TaskId) -> String {
    format!("{} that are not text; `hypha tasks {id} --result > FILE` keeps them", bytes(length))
}

/// Whether bytes are text up to their end, where a character may be cut.
fn begins_as_text(bytes: &[u8]) -> bool {
    match std::str::from_utf8(bytes) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none(),
    }
}

/// Standard output, and a hint in case a result ends too early.
struct Out {
    id: TaskId,
    last: Option<u8>,
}

impl Out {
    fn new(id: TaskId) -> Out {
        Out { id, last: None }
    }

    async fn next(&mut self, download: &mut Download) -> Result<Option<bytes::Bytes>, Failure> {
        download.chunk().await.map_err(|error| {
            let advice = format!("`hypha tasks {} --result` prints all of it", self.id);
            Failure::work(format!("{error}; {advice}"))
        })
    }

    /// Whether the output is still being read.
    fn write(&mut self, piece: &[u8]) -> Result<bool, Failure> {
        self.last = piece.last().copied().or(self.last);
        print_bytes(piece)
    }

    /// The missing bytes; with the end of a `line`, if it is one.
    async fn rest(mut self, mut download: Download, line: bool) -> Result<(), Failure> {
        while let Some(piece) = self.next(&mut download).await? {
            if !self.write(&piece)? {
                return Ok(());
            }
        }
        match self.last {
            Some(last) if line && last != b'\n' => print("\n"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_distinguished_from_bytes_by_its_beginning() {
        assert!(begins_as_text(b"") && begins_as_text("h\u{e9}".as_bytes()));
        assert!(begins_as_text(&"h\u{e9}".as_bytes()[..2]), "a character is cut");
        assert!(!begins_as_text(b"\xff\xd8\xff") && !begins_as_text(b"a\xffb"));
    }
}
