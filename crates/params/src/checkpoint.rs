//! Checkpoints: the state between rounds, stored so that a crash leaves a whole one.
//!
//! A checkpoint is, with little-endian numbers: magic (4 bytes), version (4), round (8), parameters (8), values of a
//! fragment (4), whether there is a residual (4), length of the attachment (8); then parameters, momentum and residual as
//! `fp32`, the attachment, and the BLAKE3 digest of all of it (32).

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::num::NonZeroUsize;

use thiserror::Error;

use crate::checkpoint_store::CheckpointStore;
use crate::layout::{Layout, LayoutError};
use crate::outer::{OuterState, StateError};

/// The largest attachment: a ledger and schedules, not tensors.
pub const MAX_ATTACHMENT_BYTES: u64 = 1 << 30;

const MAGIC: [u8; 4] = *b"HYCP";
const VERSION: u32 = 1;
const HEADER_BYTES: u64 = 40;
const DIGEST_BYTES: u64 = 32;
/// Values that are converted at once, between a file and memory.
const CHUNK_VALUES: usize = 1 << 14;

/// The checkpoints of one job.
#[derive(Debug)]
pub struct Checkpoints<S> {
    store: S,
    keep: NonZeroUsize,
}

/// A state that was loaded.
#[derive(Debug)]
pub struct Loaded {
    /// The state.
    pub state: OuterState,
    /// What was stored with it, which this crate does not look at.
    pub attachment: Vec<u8>,
    /// Newer checkpoints that are damaged, the newest first.
    pub skipped: Vec<Skipped>,
}

/// A checkpoint that could not be used.
#[derive(Debug, Error)]
#[error("checkpoint of round {round}: {reason}")]
pub struct Skipped {
    /// The round that was to come next.
    pub round: u64,
    /// What is wrong.
    pub reason: Damage,
}

/// What is wrong with a checkpoint.
#[derive(Debug, Error)]
pub enum Damage {
    /// It cannot be read to its end.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It does not begin like a checkpoint.
    #[error("not a checkpoint")]
    Magic,
    /// A version that this program does not know.
    #[error("version {0}, but only {VERSION} is supported")]
    Version(u32),
    /// It is of another length than its header says: probably it was not written to its end.
    #[error("{actual} bytes instead of {expected}")]
    Length {
        /// As the header says.
        expected: u64,
        /// As stored.
        actual: u64,
    },
    /// Its header is invalid.
    #[error("invalid header: {0}")]
    Layout(#[from] LayoutError),
    /// Its name is of another round.
    #[error("it is of round {0}")]
    Round(u64),
    /// Its bytes have changed.
    #[error("its digest is wrong")]
    Digest,
    /// Its values are invalid.
    #[error("invalid values: {0}")]
    State(#[from] StateError),
}

/// Why no checkpoint was loaded though there are some, or why it is not known whether there are.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The store cannot be listed.
    #[error("cannot list checkpoints: {0}")]
    List(#[from] io::Error),
    /// All are damaged. The job must not silently begin anew.
    #[error("all {} checkpoints are damaged: restore one from a backup", .0.len())]
    AllDamaged(Vec<Skipped>),
}

impl<S: CheckpointStore> Checkpoints<S> {
    /// Keeps the last `keep` checkpoints in `store`.
    pub fn new(store: S, keep: NonZeroUsize) -> Checkpoints<S> {
        Checkpoints { store, keep }
    }

    /// Stores a state, then removes the oldest checkpoints. When it returns, the checkpoint survives a crash.
    pub fn save(&mut self, state: &OuterState, attachment: &[u8]) -> io::Result<()> {
        if attachment.len() as u64 > MAX_ATTACHMENT_BYTES {
            let what = format!("an attachment of more than {MAX_ATTACHMENT_BYTES} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        if state.is_torn {
            let what = "a state whose step failed half-way: load the last checkpoint";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        self.store.write(state.round, &mut |writer| write(writer, state, attachment))?;
        let mut rounds = self.store.rounds()?;
        rounds.sort_unstable();
        let excess = rounds.len().saturating_sub(self.keep.get());
        rounds.iter().take(excess).try_for_each(|round| self.store.remove(*round))
    }

    /// Loads the newest whole checkpoint; `None` if there are none at all.
    pub fn load(&self) -> Result<Option<Loaded>, LoadError> {
        let mut rounds = self.store.rounds()?;
        rounds.sort_unstable();
        let mut skipped = Vec::new();
        for round in rounds.into_iter().rev() {
            match self.load_round(round) {
                Ok((state, attachment)) => return Ok(Some(Loaded { state, attachment, skipped })),
                Err(reason) => skipped.push(Skipped { round, reason }),
            }
        }
        if skipped.is_empty() { Ok(None) } else { Err(LoadError::AllDamaged(skipped)) }
    }

    fn load_round(&self, round: u64) -> Result<(OuterState, Vec<u8>), Damage> {
        let (reader, length) = self.store.open(round)?;
        let (state, attachment) = read(reader, length)?;
        if state.round == round { Ok((state, attachment)) } else { Err(Damage::Round(state.round)) }
    }
}

fn write(writer: &mut dyn Write, state: &OuterState, attachment: &[u8]) -> io::Result<()> {
    let mut writer = Hashed { inner: BufWriter::new(writer), hasher: blake3::Hasher::new() };
    writer.write_all(&MAGIC)?;
    writer.write_all(&VERSION.to_le_bytes())?;
    writer.write_all(&state.round.to_le_bytes())?;
    writer.write_all(&(state.layout.total() as u64).to_le_bytes())?;
    writer.write_all(&state.layout.fragment_values().to_le_bytes())?;
    writer.write_all(&u32::from(state.residual.is_some()).to_le_bytes())?;
    writer.write_all(&(attachment.len() as u64).to_le_bytes())?;
    let tensors = [Some(&state.parameters), Some(&state.momentum), state.residual.as_ref()];
    for values in tensors.into_iter().flatten() {
        let mut bytes = Vec::with_capacity(CHUNK_VALUES * size_of::<f32>());
        for chunk in values.chunks(CHUNK_VALUES) {
            bytes.clear();
            bytes.extend(chunk.iter().flat_map(|value| value.to_le_bytes()));
            writer.write_all(&bytes)?;
        }
    }
    writer.write_all(attachment)?;
    let digest = writer.hasher.finalize();
    writer.inner.write_all(digest.as_bytes())?;
    writer.inner.flush()
}

fn read(reader: Box<dyn Read>, length: u64) -> Result<(OuterState, Vec<u8>), Damage> {
    let mut reader = Hashed { inner: BufReader::new(reader), hasher: blake3::Hasher::new() };
    if length < HEADER_BYTES + DIGEST_BYTES {
        return Err(Damage::Length { expected: HEADER_BYTES + DIGEST_BYTES, actual: length });
    }
    if reader.array()? != MAGIC {
        return Err(Damage::Magic);
    }
    let version = u32::from_le_bytes(reader.array()?);
    if version != VERSION {
        return Err(Damage::Version(version));
    }
    let round = u64::from_le_bytes(reader.array()?);
    let total = u64::from_le_bytes(reader.array()?);
    let layout = Layout::new(total, u32::from_le_bytes(reader.array()?))?;
    let has_residual = u32::from_le_bytes(reader.array()?) != 0;
    let attachment_bytes = u64::from_le_bytes(reader.array()?);
    // Before anything is allocated, the length has to be that of the object. A layout is far below the range of u64.
    let values_bytes = total * size_of::<f32>() as u64 * if has_residual { 3 } else { 2 };
    let expected = (HEADER_BYTES + values_bytes + DIGEST_BYTES).saturating_add(attachment_bytes);
    if expected != length {
        return Err(Damage::Length { expected, actual: length });
    }
    let parameters = reader.values(layout.total())?;
    let momentum = reader.values(layout.total())?;
    let residual = if has_residual { Some(reader.values(layout.total())?) } else { None };
    // It fits: the object is this long.
    let mut attachment = vec![0; attachment_bytes as usize];
    reader.fill(&mut attachment)?;
    let digest = reader.hasher.finalize();
    if reader.array()? != *digest.as_bytes() {
        return Err(Damage::Digest);
    }
    Ok((OuterState::restore(layout, round, parameters, momentum, residual)?, attachment))
}

/// A reader or writer whose bytes are hashed.
struct Hashed<T> {
    inner: T,
    hasher: blake3::Hasher,
}

impl<W: Write> Hashed<W> {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.inner.write_all(bytes)
    }
}

impl<R: Read> Hashed<R> {
    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.inner.read_exact(bytes)?;
        self.hasher.update(bytes);
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn values(&mut self, count: usize) -> io::Result<Vec<f32>> {
        let mut values = vec![0.0; count];
        let mut bytes = [0; CHUNK_VALUES * size_of::<f32>()];
        for chunk in values.chunks_mut(CHUNK_VALUES) {
            let bytes = &mut bytes[..size_of_val(chunk)];
            self.fill(bytes)?;
            for (value, bytes) in chunk.iter_mut().zip(bytes.as_chunks().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
        Ok(values)
    }
}
