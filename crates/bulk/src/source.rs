//! Where the bytes of a transfer come from.

use std::io;
use std::path::PathBuf;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncSeekExt};

/// Bytes that can be read again from any chunk on, because a stream may break. They must not change meanwhile.
pub trait Source: Send + Sync + 'static {
    /// Reads them in order.
    type Reader: SourceReader;

    /// How many there are.
    fn length(&self) -> u64;

    /// Starts reading at an offset that is not above the length.
    fn open(&self, offset: u64) -> impl Future<Output = io::Result<Self::Reader>> + Send;
}

/// Reads a source in order.
pub trait SourceReader: Send + 'static {
    /// The next `length` bytes, exactly. Fewer are an error.
    fn next(&mut self, length: usize) -> impl Future<Output = io::Result<Bytes>> + Send;
}

/// Bytes in memory are returned without copying.
impl Source for Bytes {
    type Reader = Bytes;

    fn length(&self) -> u64 {
        self.len() as u64
    }

    async fn open(&self, offset: u64) -> io::Result<Bytes> {
        let offset = usize::try_from(offset).ok().filter(|offset| *offset <= self.len());
        offset.map(|offset| self.slice(offset..)).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

impl SourceReader for Bytes {
    async fn next(&mut self, length: usize) -> io::Result<Bytes> {
        match length <= self.len() {
            true => Ok(self.split_to(length)),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// A file, with its current length.
#[derive(Debug)]
pub struct FileSource {
    path: PathBuf,
    length: u64,
}

impl FileSource {
    /// A source of this file.
    pub async fn new(path: impl Into<PathBuf>) -> io::Result<FileSource> {
        let path = path.into();
        let length = tokio::fs::metadata(&path).await?.len();
        Ok(FileSource { path, length })
    }
}

impl Source for FileSource {
    type Reader = tokio::fs::File;

    fn length(&self) -> u64 {
        self.length
    }

    async fn open(&self, offset: u64) -> io::Result<tokio::fs::File> {
        let mut file = tokio::fs::File::open(&self.path).await?;
        file.set_max_buf_size(hypha_wire::bulk::CHUNK_BYTES);
        file.seek(io::SeekFrom::Start(offset)).await?;
        Ok(file)
    }
}

impl SourceReader for tokio::fs::File {
    async fn next(&mut self, length: usize) -> io::Result<Bytes> {
        let mut bytes = BytesMut::zeroed(length);
        self.read_exact(&mut bytes).await?;
        Ok(bytes.freeze())
    }
}
