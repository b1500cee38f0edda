//! Parses server-sent events from bytes that arrive in any pieces.

use std::collections::VecDeque;

/// One event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) event: String,
    pub(crate) data: String,
}

/// Incomplete events.
#[derive(Default)]
pub(crate) struct Parser {
    line: Vec<u8>,
    /// The last byte was a carriage return, which a line feed may follow.
    after_return: bool,
    event: String,
    data: Option<String>,
}

/// An event larger than the bound.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooLarge;

impl Parser {
    /// Consumes `bytes`; events that they complete go to `ready`.
    pub(crate) fn push(
        &mut self,
        bytes: &[u8],
        limit: usize,
        ready: &mut VecDeque<Frame>,
    ) -> Result<(), TooLarge> {
        for byte in bytes {
            let ends_a_return = std::mem::take(&mut self.after_return) && *byte == b'\n';
            match byte {
                b'\n' if ends_a_return => {}
                b'\n' | b'\r' => {
                    self.after_return = *byte == b'\r';
                    ready.extend(self.end_line());
                }
                _ => self.line.push(*byte),
            }
            if self.line.len() + self.data.as_ref().map_or(0, String::len) > limit {
                return Err(TooLarge);
            }
        }
        Ok(())
    }

    fn end_line(&mut self) -> Option<Frame> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            return self.data.take().map(|data| Frame { event, data });
        }
        let line = String::from_utf8_lossy(&line);
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => self.event = value.to_owned(),
            "data" => match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            },
            // Comments, which keep a connection alive, ids, and future fields.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, piece: usize) -> Vec<(String, String)> {
        let (mut parser, mut ready) = (Parser::default(), VecDeque::new());
        for piece in text.as_bytes().chunks(piece) {
            parser.push(piece, 1_000, &mut ready).unwrap();
        }
        ready.into_iter().map(|frame| (frame.event, frame.data)).collect()
    }

    #[test]
    fn events_are_the_same_in_any_pieces_and_with_any_line_ends() {
        let text = ": keep-alive\n\nevent: queued\ndata: {\"a\":\ndata:1}\nid: 7\n\n\
                    event: running\n\nevent: é\ndata:\n\ndata: cut off";
        let expected = [("queued", "{\"a\":\n1}"), ("é", "")];
        let expected = expected.map(|(event, data)| (event.to_owned(), data.to_owned()));
        for ends in ["\n", "\r\n", "\r"] {
            let text = text.replace('\n', ends);
            for piece in 1..text.len() {
                assert_eq!(parse(&text, piece), expected, "{ends:?} in pieces of {piece}");
            }
        }
    }

    #[test]
    fn event_without_end_is_an_error() {
        let (mut parser, mut ready) = (Parser::default(), VecDeque::new());
        assert_eq!(parser.push(&[b'x'; 11], 10, &mut ready), Err(TooLarge));
        let mut parser = Parser::default();
        let lines = b"data: xxxx\n".repeat(4);
        assert_eq!(parser.push(&lines, 15, &mut ready), Err(TooLarge));
    }
}
