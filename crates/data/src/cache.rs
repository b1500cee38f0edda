//! The worker's cache of slices: bounded in bytes; the least recently used slice is evicted first. Downloads resume.
//!
//! Files are named by digest, so data sets share what is equal. A complete file is `<digest>.slice`; a download is
//! `<digest>.part` until its digest has been verified.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use thiserror::Error;

use crate::{Digest, SliceEntry};

/// A directory of slices.
#[derive(Debug)]
pub struct SliceCache {
    directory: PathBuf,
    max_bytes: u64,
    entries: BTreeMap<Digest, Entry>,
    /// Grows with each use; the order of use.
    clock: u64,
}

/// A complete, verified slice. It is not evicted while this value lives.
#[derive(Clone, Debug)]
pub struct CachedSlice {
    path: PathBuf,
    _pin: Arc<()>,
}

/// A download in progress. Dropped, it can be resumed later; [`SliceCache::finish`] completes it.
#[derive(Debug)]
pub struct Download {
    slice: SliceEntry,
    part: PathBuf,
    file: File,
    hasher: blake3::Hasher,
    _pin: Arc<()>,
}

/// Why the cache cannot do what was asked.
#[derive(Debug, Error)]
pub enum CacheError {
    /// A file cannot be read or written.
    #[error("cache file {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The slice alone is larger than the cache.
    #[error(
        "a slice of {bytes} bytes does not fit a cache of {max_bytes}; give the cache more room"
    )]
    TooLarge {
        /// The slice's size.
        bytes: u64,
        /// The cache's limit.
        max_bytes: u64,
    },
    /// Everything in the cache is in use.
    #[error(
        "{bytes} bytes do not fit, since {in_use} of {max_bytes} bytes are in use; retry when a slice is released"
    )]
    Full {
        /// The slice's size.
        bytes: u64,
        /// Bytes that cannot be evicted now.
        in_use: u64,
        /// The cache's limit.
        max_bytes: u64,
    },
    /// Another download of this slice is in progress.
    #[error("the slice is being downloaded already")]
    InFlight,
    /// The slice is complete, perhaps since a moment ago: [`SliceCache::get`] returns it.
    #[error("the slice is in the cache already; get it instead")]
    Present,
    /// The download ended early: resume it.
    #[error("the download has {bytes} of {expected} bytes; resume it")]
    Incomplete {
        /// Bytes so far.
        bytes: u64,
        /// The slice's size.
        expected: u64,
    },
    /// The provider sent more than the slice, or other bytes: fetch it again from another one.
    #[error("the downloaded bytes are not the slice; fetch it again from another provider")]
    WrongBytes,
}

#[derive(Debug)]
struct Entry {
    /// Of a download: what it will have.
    bytes: u64,
    used: u64,
    is_complete: bool,
    pin: Arc<()>,
}

impl Entry {
    fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.pin) > 1
    }
}

impl SliceCache {
    /// Opens a directory, which is the cache's alone, and evicts what is over the limit. The order of use is that of
    /// the files' times.
    pub fn open(directory: impl Into<PathBuf>, max_bytes: u64) -> Result<SliceCache, CacheError> {
        let directory = directory.into();
        fs::create_dir_all(&directory).map_err(|source| io_error(&directory, source))?;
        let mut found = scan(&directory).map_err(|source| io_error(&directory, source))?;
        found.sort();
        let mut cache = SliceCache { directory, max_bytes, entries: BTreeMap::new(), clock: 0 };
        for (_, digest, is_complete, bytes) in found {
            if let Some(twin) = cache.entries.get(&digest) {
                // The process ended between two downloads of one slice: one of the files is enough.
                let part = cache.path(digest, false);
                fs::remove_file(&part).map_err(|source| io_error(&part, source))?;
                if twin.is_complete {
                    continue;
                }
            }
            cache.insert(digest, bytes, is_complete);
        }
        cache.make_room(0)?;
        Ok(cache)
    }

    /// Bytes in the cache, with those that downloads will have.
    pub fn bytes(&self) -> u64 {
        self.entries.values().map(|entry| entry.bytes).sum()
    }

    /// The slice, if it is there. Reads the whole file: a damaged one is removed and not returned.
    pub fn get(&mut self, slice: &SliceEntry) -> Result<Option<CachedSlice>, CacheError> {
        if !self.entries.get(&slice.blake3).is_some_and(|entry| entry.is_complete) {
            return Ok(None);
        }
        let path = self.path(slice.blake3, true);
        let read = File::open(&path).and_then(|file| {
            // For the order of use after a restart; a file system that cannot do it costs only that.
            let _ = file.set_modified(SystemTime::now());
            Digest::of_reader(file)
        });
        match read {
            Ok((digest, _)) if digest == slice.blake3 => {}
            Ok(_) => return self.remove(slice.blake3).map(|()| None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.entries.remove(&slice.blake3);
                return Ok(None);
            }
            Err(source) => return Err(io_error(&path, source)),
        }
        self.clock += 1;
        let used = self.clock;
        Ok(self.entries.get_mut(&slice.blake3).map(|entry| {
            entry.used = used;
            CachedSlice { path, _pin: Arc::clone(&entry.pin) }
        }))
    }

    /// Begins a download, or resumes one: continue at [`Download::offset`]. Makes room for the whole slice.
    pub fn download(&mut self, slice: &SliceEntry) -> Result<Download, CacheError> {
        let digest = slice.blake3;
        match self.entries.get(&digest) {
            Some(entry) if entry.is_in_use() && !entry.is_complete => {
                return Err(CacheError::InFlight);
            }
            // `get` would have removed a damaged one, and this one may be in use.
            Some(entry) if entry.is_complete => return Err(CacheError::Present),
            _ => {}
        }
        // Not in the map during `make_room`, so that the part to resume is not evicted for itself.
        let earlier = self.entries.remove(&digest);
        if let Err(error) = self.make_room(slice.bytes) {
            self.entries.extend(earlier.map(|entry| (digest, entry)));
            return Err(error);
        }
        let pin = Arc::clone(&self.insert(digest, slice.bytes, false).pin);
        let part = self.path(digest, false);
        match open_part(&part, slice.bytes) {
            Ok((file, hasher)) => {
                Ok(Download { slice: slice.clone(), part, file, hasher, _pin: pin })
            }
            Err(source) => Err(io_error(&part, source)),
        }
    }

    /// Verifies a download and makes it a slice of the cache. If bytes are missing, what there is stays and can be
    /// resumed; if they are wrong, they are removed.
    pub fn finish(&mut self, download: Download) -> Result<CachedSlice, CacheError> {
        let Download { slice, part, file, hasher, _pin: pin } = download;
        let (bytes, expected) = (hasher.count(), slice.bytes);
        if bytes < expected {
            return Err(CacheError::Incomplete { bytes, expected });
        }
        if Digest::of_hasher(&hasher) != slice.blake3 {
            self.remove(slice.blake3)?;
            return Err(CacheError::WrongBytes);
        }
        let path = self.path(slice.blake3, true);
        // On the disk before it has its name: a file with a name is complete.
        let stored = file.sync_all().and_then(|()| fs::rename(&part, &path));
        stored.map_err(|source| io_error(&part, source))?;
        let entry = self.insert(slice.blake3, slice.bytes, true);
        entry.pin = Arc::clone(&pin);
        Ok(CachedSlice { path, _pin: pin })
    }

    fn insert(&mut self, digest: Digest, bytes: u64, is_complete: bool) -> &mut Entry {
        self.clock += 1;
        let entry = Entry { bytes, used: self.clock, is_complete, pin: Arc::default() };
        self.entries.entry(digest).insert_entry(entry).into_mut()
    }

    /// Evicts until `bytes` more fit.
    fn make_room(&mut self, bytes: u64) -> Result<(), CacheError> {
        let max_bytes = self.max_bytes;
        if bytes > max_bytes {
            return Err(CacheError::TooLarge { bytes, max_bytes });
        }
        let in_use: u64 =
            self.entries.values().filter(|entry| entry.is_in_use()).map(|entry| entry.bytes).sum();
        if in_use > max_bytes - bytes {
            // Before anything is evicted, which would not help.
            return Err(CacheError::Full { bytes, in_use, max_bytes });
        }
        while self.bytes() > max_bytes - bytes {
            let unused = self.entries.iter().filter(|(_, entry)| !entry.is_in_use());
            let Some((&digest, _)) = unused.min_by_key(|(_, entry)| entry.used) else {
                return Err(CacheError::Full { bytes, in_use, max_bytes });
            };
            self.remove(digest)?;
        }
        Ok(())
    }

    fn remove(&mut self, digest: Digest) -> Result<(), CacheError> {
        let Some(entry) = self.entries.remove(&digest) else { return Ok(()) };
        let path = self.path(digest, entry.is_complete);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                // Its bytes still count.
                self.entries.insert(digest, entry);
                Err(io_error(&path, error))
            }
            _ => Ok(()),
        }
    }

    fn path(&self, digest: Digest, is_complete: bool) -> PathBuf {
        let ending = if is_complete { COMPLETE } else { PART };
        self.directory.join(format!("{digest}.{ending}"))
    }
}

impl CachedSlice {
    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Download {
    /// How many bytes are there already: ask the provider for those from here to the slice's end.
    pub fn offset(&self) -> u64 {
        self.hasher.count()
    }

    /// Appends what the reader gives, until it ends or fails; what came before a failure stays.
    pub fn append(&mut self, mut reader: impl Read) -> Result<u64, CacheError> {
        let part = &self.part;
        let mut buffer = vec![0; COPY_BYTES];
        let mut appended = 0;
        loop {
            let bytes = match reader.read(&mut buffer) {
                Ok(0) => return Ok(appended),
                Ok(read) => buffer.get(..read).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(source) => return Err(io_error(part, source)),
            };
            if self.hasher.count() + bytes.len() as u64 > self.slice.bytes {
                return Err(CacheError::WrongBytes);
            }
            self.file.write_all(bytes).map_err(|source| io_error(part, source))?;
            self.hasher.update(bytes);
            appended += bytes.len() as u64;
        }
    }
}

const COMPLETE: &str = "slice";
const PART: &str = "part";

/// Large enough for BLAKE3 to work on many blocks at once.
const COPY_BYTES: usize = 128 << 10;

/// Opens what there is of a download, positioned at its end. What is longer than the slice is not a part of it.
fn open_part(part: &Path, bytes: u64) -> io::Result<(File, blake3::Hasher)> {
    let mut file =
        File::options().read(true).write(true).create(true).truncate(false).open(part)?;
    let mut hasher = blake3::Hasher::new();
    if file.metadata()?.len() > bytes {
        file.set_len(0)?;
    }
    hasher.update_reader(&file)?;
    file.seek(SeekFrom::Start(hasher.count()))?;
    Ok((file, hasher))
}

/// Slices and parts by time; other files are not the cache's and are left as they are.
fn scan(directory: &Path) -> io::Result<Vec<(SystemTime, Digest, bool, u64)>> {
    let mut found = Vec::new();
    for file in fs::read_dir(directory)? {
        let file = file?;
        let name = file.file_name();
        let Some((digest, ending)) = name.to_str().and_then(|name| name.split_once('.')) else {
            continue;
        };
        let Some(digest) = Digest::from_hex(digest).filter(|_| [COMPLETE, PART].contains(&ending))
        else {
            continue;
        };
        let metadata = file.metadata()?;
        if metadata.is_file() {
            found.push((metadata.modified()?, digest, ending == COMPLETE, metadata.len()));
        }
    }
    Ok(found)
}

fn io_error(path: &Path, source: io::Error) -> CacheError {
    CacheError::Io { path: path.into(), source }
}

#[cfg(test)]
mod tests;
