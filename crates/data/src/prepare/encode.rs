//! Text to tokens, and tokens to sequences.

use super::writer::Writer;
use super::{Encoding, PrepareError};
use crate::slice_file::TOKENS;
use crate::{Dtype, TensorSpec};

/// A tokenizer sees at most this much at once; it needs a hundred times as much memory for it.
pub(super) const MAX_PIECE_BYTES: usize = 256 << 10;

/// Turns documents into tokens.
pub(super) enum Encoder {
    Bytes,
    #[cfg(feature = "tokenizers")]
    Tokenizer(Box<HubTokenizer>),
}

impl Encoder {
    pub(super) fn new(encoding: &Encoding) -> Result<Encoder, PrepareError> {
        match encoding {
            Encoding::Bytes => Ok(Encoder::Bytes),
            #[cfg(feature = "tokenizers")]
            Encoding::Tokenizer { file, end_of_text } => {
                let tokenizer = HubTokenizer::open(file, end_of_text.as_deref())?;
                Ok(Encoder::Tokenizer(Box::new(tokenizer)))
            }
        }
    }

    pub(super) fn vocabulary(&self) -> u32 {
        match self {
            Encoder::Bytes => 256,
            #[cfg(feature = "tokenizers")]
            Encoder::Tokenizer(tokenizer) => tokenizer.vocabulary,
        }
    }

    /// Whether text has to be UTF-8.
    pub(super) fn needs_text(&self) -> bool {
        !matches!(self, Encoder::Bytes)
    }

    /// Appends the tokens of a piece of a document.
    pub(super) fn encode(&self, piece: &[u8], tokens: &mut Vec<u32>) -> Result<(), String> {
        match self {
            Encoder::Bytes => tokens.extend(piece.iter().copied().map(u32::from)),
            #[cfg(feature = "tokenizers")]
            Encoder::Tokenizer(tokenizer) => tokenizer.encode(piece, tokens)?,
        }
        Ok(())
    }

    /// Appends what separates a document from the next; `last` is its last byte.
    pub(super) fn end_document(&self, last: Option<u8>, tokens: &mut Vec<u32>) {
        match self {
            Encoder::Bytes => {
                let is_ended = matches!(last, None | Some(b'\n'));
                tokens.extend((!is_ended).then_some(u32::from(b'\n')));
            }
            #[cfg(feature = "tokenizers")]
            Encoder::Tokenizer(tokenizer) => tokens.extend(last.and(tokenizer.end_of_text)),
        }
    }
}

/// A tokenizer in the format of the Hugging Face Hub.
#[cfg(feature = "tokenizers")]
pub(super) struct HubTokenizer {
    tokenizer: tokenizers::Tokenizer,
    end_of_text: Option<u32>,
    vocabulary: u32,
}

#[cfg(feature = "tokenizers")]
impl HubTokenizer {
    fn open(
        file: &std::path::Path,
        end_of_text: Option<&str>,
    ) -> Result<HubTokenizer, PrepareError> {
        let mut tokenizer = tokenizers::Tokenizer::from_file(file)
            .map_err(|error| super::file_error(file, format!("invalid tokenizer: {error}")))?;
        // Settings for batches of short texts: here one would lose text, the other add to it.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|error| super::file_error(file, error))?;
        let unknown = |text: &str| super::file_error(file, format!("there is no token `{text}`"));
        let end_of_text = match end_of_text {
            None => None,
            Some(text) => Some(tokenizer.token_to_id(text).ok_or_else(|| unknown(text))?),
        };
        // Ids may have gaps, so that their number is not their limit.
        let largest = tokenizer.get_vocab(true).into_values().max();
        let vocabulary = largest.and_then(|id| id.checked_add(1));
        let vocabulary =
            vocabulary.ok_or_else(|| super::file_error(file, "the tokenizer has no vocabulary"))?;
        Ok(HubTokenizer { tokenizer, end_of_text, vocabulary })
    }

    fn encode(&self, piece: &[u8], tokens: &mut Vec<u32>) -> Result<(), String> {
        let text = str::from_utf8(piece).map_err(|error| error.to_string())?;
        let encoding =
            self.tokenizer.encode_fast(text, false).map_err(|error| error.to_string())?;
        tokens.extend_from_slice(encoding.get_ids());
        Ok(())
    }
}

/// Cuts tokens into sequences that overlap by one.
pub(super) struct Sequences {
    length: usize,
    dtype: Dtype,
    pub(super) pending: Vec<u32>,
    sample: Vec<u8>,
}

impl Sequences {
    pub(super) fn new(context: u32, vocabulary: u32) -> Sequences {
        let length = usize::try_from(context).unwrap_or(usize::MAX).saturating_add(1);
        let dtype = match vocabulary {
            ..=0x100 => Dtype::U8,
            0x101..=0x1_0000 => Dtype::U16,
            _ => Dtype::U32,
        };
        Sequences { length, dtype, pending: Vec::new(), sample: Vec::new() }
    }

    pub(super) fn tensor(&self) -> TensorSpec {
        TensorSpec { name: TOKENS.into(), dtype: self.dtype, shape: vec![self.length as u64] }
    }

    /// Writes the complete sequences among the pending tokens.
    pub(super) fn write(&mut self, writer: &mut Writer<'_>) -> Result<(), PrepareError> {
        let stride = self.length - 1;
        let mut start = 0;
        while let Some(sequence) = self.pending.get(start..start + self.length) {
            self.sample.clear();
            for token in sequence {
                let bytes = token.to_le_bytes();
                let width = self.dtype.bitsize() / 8;
                self.sample.extend_from_slice(bytes.get(..width).unwrap_or(&bytes));
            }
            writer.push(&[&self.sample])?;
            start += stride;
        }
        self.pending.drain(..start);
        Ok(())
    }
}
