//! Bytes to measure with: in memory, without equal chunks near each other, larger than a processor's cache.

use std::io;

use bytes::Bytes;

use crate::source::{Source, SourceReader};

/// How much is held in memory; it repeats after that.
const HELD_BYTES: usize = 64 << 20;

/// A source of any length that costs no work to read.
#[derive(Clone, Debug)]
pub struct Pattern {
    held: Bytes,
}

impl Default for Pattern {
    fn default() -> Pattern {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let words = (0..HELD_BYTES / 8).flat_map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        });
        Pattern { held: words.collect() }
    }
}

impl Pattern {
    /// A prefix of it.
    pub fn prefix(&self, length: u64) -> PatternReader {
        PatternReader { held: self.held.clone(), at: 0, length }
    }
}

/// So many bytes of the pattern, and a reader of them.
#[derive(Clone, Debug)]
pub struct PatternReader {
    held: Bytes,
    at: u64,
    length: u64,
}

impl PatternReader {
    /// The next bytes: at most `most`, and fewer where the pattern begins again; none at the end.
    pub fn take(&mut self, most: usize) -> Bytes {
        let from = (self.at % self.held.len() as u64) as usize;
        let left = (self.length - self.at).min(most as u64) as usize;
        let taken = self.held.slice(from..self.held.len().min(from + left));
        self.at += taken.len() as u64;
        taken
    }
}

impl Source for PatternReader {
    type Reader = PatternReader;

    fn length(&self) -> u64 {
        self.length
    }

    async fn open(&self, offset: u64) -> io::Result<PatternReader> {
        Ok(PatternReader { at: offset, ..self.clone() })
    }
}

impl SourceReader for PatternReader {
    async fn next(&mut self, length: usize) -> io::Result<Bytes> {
        // The chunk size divides the length in memory, so that no chunk wraps around.
        let bytes = self.take(length);
        if bytes.len() == length { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}
