//! One pass of hashing for two digests: of each chunk, and of all bytes.
//!
//! A chunk is a whole subtree of the BLAKE3 tree, its digest the chaining value of that subtree. Joined by the tree's
//! own rule, the chaining values give the ordinary BLAKE3 hash of all bytes.

use blake3::Hasher;
use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use hypha_wire::bulk::{CHUNK_BYTES, Digest};
use tokio::io::{AsyncRead, AsyncReadExt};

/// The digests of the chunks of a prefix of some bytes: the state that is needed to resume from there, and to know the
/// digest of all bytes at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChunkDigests {
    chunks: Vec<Digest>,
    bytes: u64,
    /// The digest of all bytes while they are a single chunk: the root of a tree is not made from one child.
    single_root: Option<Digest>,
}

/// A chunk that was hashed at its offset.
pub(crate) struct HashedChunk {
    pub(crate) digest: Digest,
    single_root: Option<Digest>,
    length: usize,
}

/// Hashes a chunk that begins at `offset`, which is a multiple of [`CHUNK_BYTES`]. It is not empty.
pub(crate) fn hash_chunk(offset: u64, chunk: &[u8]) -> HashedChunk {
    let mut hasher = Hasher::new();
    hasher.set_input_offset(offset).update(chunk);
    HashedChunk {
        digest: Digest(hasher.finalize_non_root()),
        single_root: (offset == 0).then(|| {
            // The hasher of a first chunk gives the root as well, at the price of one more block.
            Digest(*hasher.finalize().as_bytes())
        }),
        length: chunk.len(),
    }
}

impl ChunkDigests {
    /// The digests of no bytes.
    pub fn new() -> ChunkDigests {
        ChunkDigests::default()
    }

    /// The digests of a reader's bytes, up to `length`: whole chunks only, unless it reaches `length`.
    pub async fn of_reader<R: AsyncRead + Unpin>(
        mut reader: R,
        length: u64,
    ) -> std::io::Result<ChunkDigests> {
        let mut digests = ChunkDigests::new();
        let mut buffer = vec![0; CHUNK_BYTES];
        while digests.bytes < length {
            let want = chunk_len(digests.bytes, length);
            match reader.read_exact(&mut buffer[..want]).await {
                Ok(_) => digests.push(hash_chunk(digests.bytes, &buffer[..want])),
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(error),
            };
        }
        Ok(digests)
    }

    /// How many bytes it covers: whole chunks, or all bytes of the transfer.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Their digest: that of [`blake3::hash`].
    pub fn root(&self) -> Digest {
        match (self.chunks.as_slice(), self.single_root) {
            ([], _) => Digest(*blake3::hash(&[]).as_bytes()),
            ([_], Some(single_root)) => single_root,
            (chunks, _) => merge_tree(chunks),
        }
    }

    /// Appends the next chunk.
    pub(crate) fn push(&mut self, chunk: HashedChunk) {
        if self.chunks.is_empty() {
            self.single_root = chunk.single_root;
        }
        self.chunks.push(chunk.digest);
        self.bytes += chunk.length as u64;
    }

    /// The digest of the chunk that begins at `offset`, if it is covered.
    pub(crate) fn chunk_at(&self, offset: u64) -> Option<Digest> {
        let index = usize::try_from(offset / CHUNK_BYTES as u64).ok()?;
        self.chunks.get(index).copied()
    }
}

/// How long the chunk at `offset` of `length` bytes is.
pub(crate) fn chunk_len(offset: u64, length: u64) -> usize {
    // Below CHUNK_BYTES, so it fits.
    length.saturating_sub(offset).min(CHUNK_BYTES as u64) as usize
}

/// Whether a transfer of `length` bytes can resume from `offset`: between chunks, or at the end.
pub(crate) fn is_boundary(offset: u64, length: u64) -> bool {
    offset == length || (offset < length && offset.is_multiple_of(CHUNK_BYTES as u64))
}

/// The root over two or more subtrees of the same size, of which the last may be smaller. A left subtree is always
/// the largest power of two that leaves something for the right.
fn merge_tree(chunks: &[Digest]) -> Digest {
    let mut stack: Vec<[u8; 32]> = Vec::with_capacity(usize::BITS as usize);
    for (index, chunk) in chunks.iter().enumerate() {
        // Before the chunk with this index the stack holds one entry for each one-bit of the index. Merging is
        // deferred until something follows, because the very last merge is the root's.
        while stack.len() > index.count_ones() as usize {
            merge_top(&mut stack);
        }
        stack.push(chunk.0);
    }
    while stack.len() > 2 {
        merge_top(&mut stack);
    }
    match stack.as_slice() {
        [left, right] => Digest(*merge_subtrees_root(left, right, Mode::Hash).as_bytes()),
        // Unreachable: two or more chunks leave two or more entries.
        _ => Digest(*blake3::hash(&[]).as_bytes()),
    }
}

fn merge_top(stack: &mut Vec<[u8; 32]>) {
    if let (Some(right), Some(left)) = (stack.pop(), stack.pop()) {
        stack.push(merge_subtrees_non_root(&left, &right, Mode::Hash));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 31 + at / 251) as u8).collect()
    }

    fn digests_of(bytes: &[u8]) -> ChunkDigests {
        let mut digests = ChunkDigests::new();
        for chunk in bytes.chunks(CHUNK_BYTES) {
            digests.push(hash_chunk(digests.bytes(), chunk));
        }
        digests
    }

    #[test]
    fn the_root_is_the_ordinary_hash() {
        let chunk = CHUNK_BYTES;
        let mut lengths = vec![0, 1, 2, 63, 64, 65, 1023, 1024, 1025, chunk / 2];
        for chunks in 1..=9 {
            lengths.extend([chunks * chunk - 1, chunks * chunk, chunks * chunk + 1]);
        }
        let bytes = pattern(10 * chunk);
        for length in lengths {
            let digests = digests_of(&bytes[..length]);
            assert_eq!(digests.bytes(), length as u64);
            assert_eq!(digests.root().0, *blake3::hash(&bytes[..length]).as_bytes(), "{length}");
        }
    }

    #[tokio::test]
    async fn a_reader_is_covered_by_whole_chunks() {
        let bytes = pattern(3 * CHUNK_BYTES + 5);
        for (held, length, covered) in [
            (3 * CHUNK_BYTES + 4, 3 * CHUNK_BYTES + 5, 3 * CHUNK_BYTES),
            (3 * CHUNK_BYTES + 5, 3 * CHUNK_BYTES + 5, 3 * CHUNK_BYTES + 5),
            (3 * CHUNK_BYTES + 5, 2 * CHUNK_BYTES, 2 * CHUNK_BYTES),
            (CHUNK_BYTES - 1, 3 * CHUNK_BYTES, 0),
        ] {
            let digests = ChunkDigests::of_reader(&bytes[..held], length as u64).await.unwrap();
            assert_eq!(digests, digests_of(&bytes[..covered]));
        }
    }

    #[test]
    fn a_chunk_at_another_offset_has_another_digest() {
        let bytes = pattern(CHUNK_BYTES);
        let at = |offset| hash_chunk(offset, &bytes).digest;
        assert_ne!(at(0), at(CHUNK_BYTES as u64));
    }
}
