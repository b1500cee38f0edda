//! Text files and text columns as sequences of tokens.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use super::encode::{Encoder, MAX_PIECE_BYTES, Sequences};
use super::records::{Field, for_each_record};
use super::writer::Writer;
use super::{Encoding, PrepareError, line_error, read_error, total_bytes};
use crate::Kind;

pub(super) fn prepare_files(
    files: &[PathBuf],
    encoding: &Encoding,
    context: NonZeroU32,
    writer: &mut Writer<'_>,
) -> Result<(), PrepareError> {
    let mut stream = TokenStream::new(files, encoding, context, writer)?;
    for path in files {
        let file = File::open(path).map_err(|source| read_error(path, source))?;
        stream.document(path, 1, BufReader::new(file), true)?;
    }
    Ok(())
}

pub(super) fn prepare_column(
    files: &[PathBuf],
    column: &str,
    encoding: &Encoding,
    context: NonZeroU32,
    writer: &mut Writer<'_>,
) -> Result<(), PrepareError> {
    let mut stream = TokenStream::new(files, encoding, context, writer)?;
    let columns = [column.to_owned()];
    for path in files {
        for_each_record(path, &columns, |line, fields, bytes| {
            stream.writer.advance(bytes);
            match fields {
                [Field::Text(text)] => stream.document(path, line, text.as_bytes(), false),
                _ => Err(line_error(path, line, format!("column `{column}` is not a text"))),
            }
        })?;
    }
    Ok(())
}

/// Documents on their way to sequences.
struct TokenStream<'a, 'w> {
    encoder: Encoder,
    sequences: Sequences,
    writer: &'a mut Writer<'w>,
}

impl<'a, 'w> TokenStream<'a, 'w> {
    fn new(
        files: &[PathBuf],
        encoding: &Encoding,
        context: NonZeroU32,
        writer: &'a mut Writer<'w>,
    ) -> Result<TokenStream<'a, 'w>, PrepareError> {
        let encoder = Encoder::new(encoding)?;
        let (vocabulary, context) = (encoder.vocabulary(), context.get());
        let sequences = Sequences::new(context, vocabulary);
        let kind = Kind::Tokens { vocabulary, context };
        writer.describe(kind, vec![sequences.tensor()], total_bytes(files)?)?;
        Ok(TokenStream { encoder, sequences, writer })
    }

    /// Adds a document that begins in this line.
    fn document(
        &mut self,
        path: &Path,
        mut line: u64,
        mut reader: impl BufRead,
        counts: bool,
    ) -> Result<(), PrepareError> {
        let mut piece = Vec::new();
        let mut last = None;
        loop {
            read_piece(&mut reader, &mut piece).map_err(|source| read_error(path, source))?;
            if piece.is_empty() {
                break;
            }
            let cut = match self.encoder.needs_text() {
                true => text_end(&piece).map_err(|at| {
                    let line = line + newlines(piece.get(..at).unwrap_or_default());
                    line_error(path, line, "not valid UTF-8")
                })?,
                false => piece.len(),
            };
            // A character that the end of the piece has cut in two goes to the next piece.
            let rest = piece.split_off(cut);
            last = piece.last().copied();
            self.encoder
                .encode(&piece, &mut self.sequences.pending)
                .map_err(|reason| line_error(path, line, reason))?;
            self.sequences.write(self.writer)?;
            line += newlines(&piece);
            if counts {
                self.writer.advance(piece.len() as u64);
            }
            piece = rest;
        }
        self.encoder.end_document(last, &mut self.sequences.pending);
        self.sequences.write(self.writer)
    }
}

/// Fills the piece with whole lines until it is half full, or with a part of a line that is too long. Where a piece
/// ends depends on the text alone, not on how the reader returns it.
fn read_piece(reader: &mut impl BufRead, piece: &mut Vec<u8>) -> io::Result<()> {
    while piece.len() < MAX_PIECE_BYTES / 2 {
        let room = MAX_PIECE_BYTES - piece.len();
        if reader.take(room as u64).read_until(b'\n', piece)? == 0 {
            break;
        }
    }
    Ok(())
}

/// Where the whole characters end, or where the text is invalid. The end of the piece may cut a character in two; an
/// incomplete character in a short piece is the end of the file.
fn text_end(piece: &[u8]) -> Result<usize, usize> {
    match str::from_utf8(piece) {
        Ok(_) => Ok(piece.len()),
        Err(error) if error.error_len().is_none() && piece.len() == MAX_PIECE_BYTES => {
            Ok(error.valid_up_to())
        }
        Err(error) => Err(error.valid_up_to()),
    }
}

fn newlines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}
