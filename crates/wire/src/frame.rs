//! Messages on a stream: four bytes of length, most significant first, then the message. No I/O.

use std::marker::PhantomData;

use crate::codec::{DecodeError, EncodeError, Message, decode, encode_onto};

/// Bytes of a length.
pub const LENGTH_BYTES: usize = 4;

/// Room that a reader keeps from one frame to the next. Ordinary frames fit; the room for a large one is freed, since
/// thousands of readers may each have received one.
const RETAINED_BYTES: usize = 128 << 10;

/// Appends `message` to `buffer` as a frame. After an error the buffer is unchanged.
pub fn put_frame<M: Message>(buffer: &mut Vec<u8>, message: &M) -> Result<(), EncodeError> {
    let start = buffer.len();
    buffer.extend_from_slice(&[0; LENGTH_BYTES]);
    let written = encode_onto(buffer, message).and_then(|()| {
        let bytes = buffer.len() - start - LENGTH_BYTES;
        let max = M::MAX_BYTES.min(u32::MAX as usize);
        u32::try_from(bytes).map_err(|_| EncodeError::TooLarge { name: M::NAME, bytes, max })
    });
    match written {
        Ok(length) => {
            buffer[start..start + LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
            Ok(())
        }
        Err(error) => {
            buffer.truncate(start);
            Err(error)
        }
    }
}

/// Accepts bytes as they arrive and returns the messages in them. It holds at most one frame:
///
/// ```
/// # use hypha_wire::{DecodeError, FrameReader, Verdict};
/// fn take(reader: &mut FrameReader<Verdict>, mut bytes: &[u8]) -> Result<(), DecodeError> {
///     while !bytes.is_empty() {
///         bytes = &bytes[reader.push(bytes)..];
///         if let Some(verdict) = reader.pop()? {
///             println!("{verdict:?}");
///         }
///     }
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct FrameReader<M> {
    /// The length and the part of the message that has arrived.
    buffer: Vec<u8>,
    message: PhantomData<fn() -> M>,
}

impl<M: Message> FrameReader<M> {
    /// An empty reader.
    pub fn new() -> FrameReader<M> {
        FrameReader { buffer: Vec::new(), message: PhantomData }
    }

    /// How many bytes are missing from the next item: the length, or the rest of the message. Zero if a
    /// message can be popped, or if the stream is beyond repair.
    pub fn missing_bytes(&self) -> usize {
        match self.length() {
            None => LENGTH_BYTES - self.buffer.len(),
            Some(length) if length > M::MAX_BYTES => 0,
            Some(length) => LENGTH_BYTES + length - self.buffer.len(),
        }
    }

    /// Takes bytes from the front of `bytes` up to the end of a frame, and returns how many it took. It takes none
    /// while a whole message waits to be popped, or after a length that is too large.
    pub fn push(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        // Twice at most: the length, then the message.
        while taken < bytes.len() && self.missing_bytes() > 0 {
            let end = bytes.len().min(taken + self.missing_bytes());
            self.buffer.extend_from_slice(&bytes[taken..end]);
            taken = end;
        }
        taken
    }

    /// The message, once all of it has arrived. After [`DecodeError::TooLarge`] nothing more can be read; after
    /// another error the next frame can.
    pub fn pop(&mut self) -> Result<Option<M>, DecodeError> {
        let Some(length) = self.length() else { return Ok(None) };
        if length > M::MAX_BYTES {
            return Err(DecodeError::TooLarge { name: M::NAME, bytes: length, max: M::MAX_BYTES });
        }
        if self.missing_bytes() > 0 {
            return Ok(None);
        }
        let message = decode(&self.buffer[LENGTH_BYTES..]);
        self.buffer.clear();
        self.buffer.shrink_to(RETAINED_BYTES);
        message.map(Some)
    }

    /// How many bytes of a frame have arrived; a stream may end only at zero.
    pub fn buffered_bytes(&self) -> usize {
        self.buffer.len()
    }

    fn length(&self) -> Option<usize> {
        let length = self.buffer.first_chunk::<LENGTH_BYTES>()?;
        usize::try_from(u32::from_be_bytes(*length)).ok()
    }
}

impl<M: Message> Default for FrameReader<M> {
    fn default() -> FrameReader<M> {
        FrameReader::new()
    }
}
