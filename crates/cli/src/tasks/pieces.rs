//! Prints pieces of a result as they arrive.
//!
//! A program's pieces are printed unchanged. A server that speaks OpenAI's protocol sends events with some
//! characters in each: only those characters are printed.

use serde::Deserialize;

/// The prefix of the events of such a server.
const EVENT: &[u8] = b"data:";
/// Longer than any event with a few characters: anything longer is something else, and printed unchanged.
const MAX_LINE_BYTES: usize = 1 << 20;

/// The state of one result.
#[derive(Default)]
pub(super) struct Pieces {
    form: Form,
    /// Bytes that cannot be classified yet: the beginning, or an incomplete line.
    held: Vec<u8>,
    /// The last byte that was printed.
    last: Option<u8>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Form {
    #[default]
    Unknown,
    Plain,
    Events,
}

impl Pieces {
    /// Returns what to print now that `piece` has arrived.
    pub(super) fn take(&mut self, piece: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(piece);
        if self.form == Form::Unknown {
            self.form = match () {
                () if self.held.starts_with(EVENT) => Form::Events,
                () if EVENT.starts_with(&self.held) => return Vec::new(),
                () => Form::Plain,
            };
        }
        let text = match self.form {
            Form::Events => self.lines(piece),
            Form::Unknown | Form::Plain => std::mem::take(&mut self.held),
        };
        self.printing(text)
    }

    /// Returns what to print at the end: the held bytes, and the end of the line.
    pub(super) fn finish(&mut self) -> Vec<u8> {
        let mut text = match (self.form, std::mem::take(&mut self.held)) {
            (Form::Events, line) => characters(&line),
            (_, held) => held,
        };
        let ends = text.last().copied().or(self.last);
        text.extend(ends.filter(|last| *last != b'\n').map(|_| b'\n'));
        self.printing(text)
    }

    /// Whether anything was printed.
    pub(super) fn any(&self) -> bool {
        self.last.is_some()
    }

    /// The lines that `piece` completes; it is the end of the held bytes.
    fn lines(&mut self, piece: &[u8]) -> Vec<u8> {
        let mut text = Vec::new();
        if let Some(end) = piece.iter().rposition(|byte| *byte == b'\n') {
            let rest = self.held.split_off(self.held.len() - piece.len() + end + 1);
            let whole = std::mem::replace(&mut self.held, rest);
            whole
                .split_inclusive(|byte| *byte == b'\n')
                .for_each(|line| text.extend(characters(line)));
        }
        if self.held.len() > MAX_LINE_BYTES {
            self.form = Form::Plain;
            text.append(&mut self.held);
        }
        text
    }

    fn printing(&mut self, text: Vec<u8>) -> Vec<u8> {
        self.last = text.last().copied().or(self.last);
        text
    }
}

/// The characters in an event; the line itself if it is not an event.
fn characters(line: &[u8]) -> Vec<u8> {
    let bare = line.trim_ascii();
    let data = bare.strip_prefix(EVENT).map(<[u8]>::trim_ascii);
    match data {
        None if bare.is_empty() || bare.starts_with(b":") || bare.starts_with(b"event:") => {
            Vec::new()
        }
        Some(b"[DONE]" | b"") => Vec::new(),
        Some(data) => match serde_json::from_slice::<Chunk>(data) {
            Ok(chunk) => chunk.text().into_bytes(),
            Err(_) => line.to_vec(),
        },
        None => line.to_vec(),
    }
}

#[derive(Deserialize)]
struct Chunk {
    choices: Vec<Choice>,
}

#[derive(Deserialize)]
struct Choice {
    /// Of a chat.
    delta: Option<Delta>,
    /// Of a completion.
    text: Option<String>,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
}

impl Chunk {
    fn text(self) -> String {
        let of = |choice: Choice| choice.text.or_else(|| choice.delta?.content);
        self.choices.into_iter().filter_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The complete output when `result` arrives in pieces of this size.
    fn printed(result: &[u8], size: usize) -> (Vec<u8>, bool) {
        let mut pieces = Pieces::default();
        let mut text: Vec<u8> = result.chunks(size).flat_map(|piece| pieces.take(piece)).collect();
        text.extend(pieces.finish());
        (text, pieces.any())
    }

    #[test]
    fn output_of_a_program_is_printed_unchanged() {
        for (result, expected) in [
            (&b"hello you"[..], &b"hello you\n"[..]),
            (b"two\nlines\n", b"two\nlines\n"),
            (b"dat", b"dat\n"),
            (b"data without a colon", b"data without a colon\n"),
            (b"\xff\xfe", b"\xff\xfe\n"),
            (b"", b""),
        ] {
            for size in 1..12 {
                assert_eq!(printed(result, size), (expected.to_vec(), !expected.is_empty()));
            }
        }
    }

    #[test]
    fn of_a_server_s_events_the_characters_are_printed() {
        let chat = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n: still here\n\
                    data: {\"choices\":[{\"delta\":{\"content\":\"h\u{e9}\"}}]}\r\n\r\n\
                    data:{\"choices\":[{\"delta\":{\"content\":\"llo\"}}],\"x\":1}\n\n\
                    data: {\"choices\":[],\"usage\":{}}\n\ndata: [DONE]\n\n";
        let completion =
            "data: {\"choices\":[{\"text\":\"a\\n\"}]}\n\ndata: {\"choices\":[{\"text\":\"b\"}]}";
        for size in 1..200 {
            assert_eq!(printed(chat.as_bytes(), size), ("h\u{e9}llo\n".into(), true), "{size}");
            assert_eq!(printed(completion.as_bytes(), size), (b"a\nb\n".to_vec(), true), "{size}");
        }
        let other = b"data: {\"error\": 1}\nplain\n";
        assert_eq!(printed(other, 7), (other.to_vec(), true), "nothing is hidden");
        assert_eq!(printed(b"data: [DONE]\n\n", 3), (Vec::new(), false));
        let endless = [b"data: ".to_vec(), vec![b'x'; MAX_LINE_BYTES]].concat();
        assert_eq!(printed(&endless, 1 << 16).0.len(), endless.len() + 1);
    }
}
