//! Where the bytes of a transfer go.

use std::io;
use std::path::{Path, PathBuf};

use tokio::fs::File;
use tokio::io::{AsyncSeekExt, AsyncWriteExt};

use crate::digest::ChunkDigests;

/// Accepts verified bytes in order. While it is slow, the sender waits.
pub trait Sink: Send {
    /// The next bytes.
    fn write(&mut self, bytes: &[u8]) -> impl Future<Output = io::Result<()>> + Send;

    /// All bytes were written, and their digest is correct. After an error the transfer has failed.
    fn finish(&mut self) -> impl Future<Output = io::Result<()>> + Send;

    /// The transfer has failed permanently. The written bytes are `reusable` if only the sender was lost: another
    /// transfer of the same bytes may resume from there. Not called when the transfer's future is dropped: then `Drop`
    /// is.
    fn abandon(&mut self, reusable: bool) -> impl Future<Output = ()> + Send {
        let _ = reusable;
        async {}
    }
}

/// Discards everything, for measuring.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiscardSink;

impl Sink for DiscardSink {
    async fn write(&mut self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    async fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Keeps the bytes in memory: for headers whose length fits.
#[derive(Clone, Debug, Default)]
pub struct MemorySink(pub Vec<u8>);

impl Sink for MemorySink {
    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.try_reserve(bytes.len()).map_err(io::Error::other)?;
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    async fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file that appears under its name when it is complete and on the disk. Until then it is `<name>.part`, which
/// stays when the process ends, so that another process can resume it.
#[derive(Debug)]
pub struct FileSink {
    file: File,
    part: PathBuf,
    path: PathBuf,
}

impl FileSink {
    /// Resumes from what `<path>.part` holds of a transfer of `length` bytes, or begins it. The digests cover the bytes
    /// that are there already: pass them to [`Incoming::accept_from`](crate::Incoming::accept_from).
    pub async fn open(
        path: impl Into<PathBuf>,
        length: u64,
    ) -> io::Result<(FileSink, ChunkDigests)> {
        let path = path.into();
        let part = part_of(&path);
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(&part).await?;
        let digests = ChunkDigests::of_reader(&mut file, length).await?;
        file.set_len(digests.bytes()).await?;
        file.seek(io::SeekFrom::Start(digests.bytes())).await?;
        Ok((FileSink { file, part, path }, digests))
    }
}

fn part_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

impl Sink for FileSink {
    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes).await
    }

    async fn finish(&mut self) -> io::Result<()> {
        self.file.flush().await?;
        self.file.sync_all().await?;
        tokio::fs::rename(&self.part, &self.path).await
    }

    async fn abandon(&mut self, reusable: bool) {
        if reusable {
            return;
        }
        if let Err(error) = tokio::fs::remove_file(&self.part).await {
            tracing::debug!(part = %self.part.display(), %error, "a partial file stays");
        }
    }
}
