//! The state of a trainer, to stop a run and continue it as if it had not stopped.
//!
//! ```text
//! magic, version, the five sizes of the model, steps | parameters | first moment | second moment | digest of all before
//! ```
//!
//! Integers are u64 and values f32, both little-endian; the digest is BLAKE3.

use std::io::{self, ErrorKind, Read, Write};

use thiserror::Error;

use crate::adamw::AdamW;
use crate::config::Config;
use crate::trainer::Trainer;

const MAGIC: u64 = u64::from_le_bytes(*b"hyphatrn");
const VERSION: u64 = 1;

/// Values that become bytes at once: few calls of the writer, little memory beside the model's.
const CHUNK: usize = 16 * 1024;

/// Why a state is not restored. The trainer is as it was before.
#[derive(Debug, Error)]
pub enum StateError {
    /// The bytes cannot be read.
    #[error("cannot read the state: {0}")]
    Io(io::Error),
    /// The bytes end too early.
    #[error("the state is truncated: use an earlier one")]
    Truncated,
    /// The bytes are something else.
    #[error("these bytes are not the state of a trainer: check which file was passed")]
    NotAState,
    /// The state is of another version of this crate.
    #[error(
        "the state has version {0}, this program reads {VERSION}: use the program that saved it"
    )]
    Version(u64),
    /// The state is of a model of another size.
    #[error(
        "the state is of another model, {saved:?} instead of {expected:?}: make a trainer of its size"
    )]
    OtherModel {
        /// Layers, width, heads, context and vocabulary of the saved model.
        saved: [u64; 5],
        /// The same of this trainer's.
        expected: [u64; 5],
    },
    /// The digest is of other bytes.
    #[error("the state is damaged, its digest differs: use an earlier one")]
    Damaged,
}

impl Trainer {
    /// Writes parameters, moments and the count of steps: all that training changes. Settings and threads are the
    /// caller's to repeat.
    pub fn save_state(&self, writer: &mut impl Write) -> io::Result<()> {
        let mut writer = Digesting { inner: writer, digest: blake3::Hasher::new() };
        let mut header = vec![MAGIC, VERSION];
        header.extend(sizes(&self.model.config));
        header.push(self.optimizer.steps);
        for value in header {
            writer.write(&value.to_le_bytes())?;
        }
        for values in
            [&self.parameters, &self.optimizer.first_moment, &self.optimizer.second_moment]
        {
            for chunk in values.chunks(CHUNK) {
                let bytes: Vec<u8> = chunk.iter().flat_map(|value| value.to_le_bytes()).collect();
                writer.write(&bytes)?;
            }
        }
        let digest = writer.digest.finalize();
        writer.inner.write_all(digest.as_bytes())
    }

    /// Continues from a saved state of a model of the same size. Reads no further than the state's end.
    pub fn restore_state(&mut self, reader: &mut impl Read) -> Result<(), StateError> {
        let mut reader = Digesting { inner: reader, digest: blake3::Hasher::new() };
        if reader.read_integer()? != MAGIC {
            return Err(StateError::NotAState);
        }
        let version = reader.read_integer()?;
        if version != VERSION {
            return Err(StateError::Version(version));
        }
        let (mut saved, expected) = ([0; 5], sizes(&self.model.config));
        for size in &mut saved {
            *size = reader.read_integer()?;
        }
        if saved != expected {
            return Err(StateError::OtherModel { saved, expected });
        }
        let steps = reader.read_integer()?;
        // The buffers have the size of this trainer's, whatever the bytes say.
        let count = self.parameters.len();
        let parameters = reader.read_values(count)?;
        let first_moment = reader.read_values(count)?;
        let second_moment = reader.read_values(count)?;
        let mut digest = [0; blake3::OUT_LEN];
        reader.inner.read_exact(&mut digest)?;
        if reader.digest.finalize() != digest {
            return Err(StateError::Damaged);
        }
        self.parameters = parameters;
        self.optimizer = AdamW { first_moment, second_moment, steps };
        Ok(())
    }
}

impl From<io::Error> for StateError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::UnexpectedEof => Self::Truncated,
            _ => Self::Io(error),
        }
    }
}

fn sizes(config: &Config) -> [u64; 5] {
    [config.layers, config.width, config.heads, config.context, config.vocabulary]
        .map(|size| size as u64)
}

/// A reader or writer with the digest of what has passed.
struct Digesting<'a, T> {
    inner: &'a mut T,
    digest: blake3::Hasher,
}

impl<W: Write> Digesting<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.digest.update(bytes);
        self.inner.write_all(bytes)
    }
}

impl<R: Read> Digesting<'_, R> {
    fn read(&mut self, bytes: &mut [u8]) -> Result<(), StateError> {
        self.inner.read_exact(bytes)?;
        self.digest.update(bytes);
        Ok(())
    }

    fn read_integer(&mut self) -> Result<u64, StateError> {
        let mut bytes = [0; 8];
        self.read(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn read_values(&mut self, count: usize) -> Result<Vec<f32>, StateError> {
        let mut values = Vec::new();
        let mut bytes = vec![0; 4 * CHUNK];
        // A chunk at a time, so that a short file does not take memory for a long one.
        while values.len() < count {
            let len = CHUNK.min(count - values.len());
            self.read(&mut bytes[..4 * len])?;
            let (chunk, _) = bytes[..4 * len].as_chunks();
            values.extend(chunk.iter().map(|bytes| f32::from_le_bytes(*bytes)));
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // More parameters than a chunk has.
    const CONFIG: Config = Config { layers: 2, width: 32, heads: 2, context: 6, vocabulary: 11 };

    fn batch(i: u32) -> Vec<u32> {
        (0..14).map(|k| (k * k + i) % 11).collect()
    }

    fn trained() -> Trainer {
        let mut trainer = Trainer::new(CONFIG, 3, 2).unwrap();
        for i in 0..4 {
            trainer.step(&batch(i), 2, 1e-2).unwrap();
        }
        trainer
    }

    fn state(trainer: &Trainer) -> Vec<u8> {
        let mut bytes = Vec::new();
        trainer.save_state(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn restored_training_continues_as_if_it_had_not_stopped() {
        let mut original = trained();
        assert!(original.parameters().len() > CHUNK);
        let bytes = [&state(&original)[..], b"more"].concat();
        let mut rest = &bytes[..];
        let mut restored = Trainer::new(CONFIG, 99, 2).unwrap();
        restored.restore_state(&mut rest).unwrap();
        assert_eq!(rest, b"more");
        assert_eq!(restored.steps(), 4);
        for i in 4..8 {
            let expected = original.step(&batch(i), 2, 1e-2).unwrap();
            assert_eq!(restored.step(&batch(i), 2, 1e-2).unwrap(), expected);
        }
        assert_eq!(restored.parameters, original.parameters);
        assert_eq!(restored.optimizer, original.optimizer);
    }

    #[test]
    fn damaged_states_are_refused_and_change_nothing() {
        let good = state(&trained());
        type Damage = fn(&mut Vec<u8>);
        let cases: [(Damage, &str); 12] = [
            (|bytes| bytes.clear(), "truncated"),
            (|bytes| bytes.truncate(63), "truncated"),
            (|bytes| bytes.truncate(100_000), "truncated"),
            (|bytes| bytes.truncate(bytes.len() - 1), "truncated"),
            (|bytes| bytes[0] ^= 1, "not the state of a trainer"),
            (|bytes| bytes[8] = 9, "version 9"),
            (|bytes| bytes[16..24].fill(255), "another model"),
            (|bytes| bytes[32] = 4, "another model"),
            (|bytes| bytes[56] ^= 1, "damaged"),
            (|bytes| bytes[64] ^= 1, "damaged"),
            (|bytes| bytes[200_000] ^= 1, "damaged"),
            (|bytes| *bytes.last_mut().unwrap() ^= 1, "damaged"),
        ];
        let mut trainer = Trainer::new(CONFIG, 7, 1).unwrap();
        trainer.step(&batch(0), 2, 1e-2).unwrap();
        let before = state(&trainer);
        for (damage, expected) in cases {
            let mut bytes = good.clone();
            damage(&mut bytes);
            let error = trainer.restore_state(&mut &bytes[..]).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains('\n'), "{error}");
            assert!(state(&trainer) == before, "{error}");
        }
    }

    #[test]
    fn failing_readers_and_writers_are_reported() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("no disk"))
            }
        }
        let mut trainer = trained();
        let error = trainer.restore_state(&mut Broken).unwrap_err().to_string();
        assert_eq!(error, "cannot read the state: no disk");
        let mut room = [0; 1000];
        assert!(trainer.save_state(&mut &mut room[..]).is_err());
    }
}
