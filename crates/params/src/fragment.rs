//! A fragment on the wire: a header of fixed size, and the encoded values.
//!
//! All numbers are little-endian: magic (4 bytes), version (2), codec (1), kind (1), round (8), member (16), fragment (4),
//! count (4), weight (4), reserved (4, zero), digest (32). The digest covers all other bytes of header and payload. The
//! reserved bytes are for fragments that are sent at different steps of a round.

use std::fmt;
use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::accumulator::check_fragment;
use crate::codec::{Codec, ValueFault};
use crate::layout::Layout;

/// The size of a header.
pub const HEADER_BYTES: usize = DIGEST_AT + 32;

const MAGIC: [u8; 4] = *b"HYFR";
const VERSION: u16 = 1;
const DIGEST_AT: usize = 48;

/// A member of a round: the bytes of a worker's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MemberId(pub [u8; 16]);

impl MemberId {
    /// In the header of an update, which no member has made.
    pub const NONE: MemberId = MemberId([0; 16]);
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What a fragment is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A member's parameters minus the ones that the round began with.
    Delta,
    /// What the parameter server adds to the parameters at the end of the round.
    Update,
}

/// What is known of a fragment before its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentHeader {
    /// What it is a part of.
    pub kind: Kind,
    /// The round.
    pub round: u64,
    /// The member that made the delta.
    pub member: MemberId,
    /// The index of the fragment in its [`Layout`].
    pub fragment: u32,
    /// How its values are encoded.
    pub codec: Codec,
    /// The number of its values.
    pub count: u32,
    /// The number of sequences that the delta was trained on; of an update, of all deltas in it.
    pub weight: u32,
    /// The BLAKE3 digest of the header without this field, and the payload.
    pub digest: [u8; 32],
}

/// A header and its payload, not yet checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    header: FragmentHeader,
    payload: Vec<u8>,
}

/// A fragment with the verdict on its digest and its values, which is made without the reducer, on any thread.
#[derive(Clone, Debug)]
pub struct CheckedFragment {
    pub(crate) fragment: Fragment,
    pub(crate) is_intact: bool,
    /// The sum of the squares.
    pub(crate) values: Result<f64, ValueFault>,
}

/// Why bytes are not a header.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HeaderError {
    /// The first bytes are not those of a fragment.
    #[error("these bytes are not a fragment")]
    Magic,
    /// A version that this program does not know.
    #[error("fragment of version {0}, but only {VERSION} is supported: update this node")]
    Version(u16),
    /// A codec that this program does not know.
    #[error("unknown codec number {0}")]
    Codec(u8),
    /// A kind that this program does not know.
    #[error("unknown kind number {0}")]
    Kind(u8),
    /// Reserved bytes are used.
    #[error("reserved bytes of the header are not zero")]
    Reserved,
}

/// Why a fragment could not be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The reader failed or ended early.
    #[error("cannot read a fragment: {0}")]
    Io(#[from] io::Error),
    /// The header is invalid.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The layout has no such fragment.
    #[error("no fragment {fragment} of {count} values in this layout")]
    Shape {
        /// Its index.
        fragment: u32,
        /// The number of its values.
        count: u32,
    },
    /// There are bytes after the payload.
    #[error("{0} bytes after the end of the fragment")]
    Trailing(usize),
}

impl FragmentHeader {
    /// Its bytes.
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6] = self.codec.number();
        bytes[7] = match self.kind {
            Kind::Delta => 0,
            Kind::Update => 1,
        };
        bytes[8..16].copy_from_slice(&self.round.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.member.0);
        bytes[32..36].copy_from_slice(&self.fragment.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.count.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.weight.to_le_bytes());
        bytes[DIGEST_AT..].copy_from_slice(&self.digest);
        bytes
    }

    /// The header of these bytes.
    pub fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Result<FragmentHeader, HeaderError> {
        if array::<4>(bytes, 0) != MAGIC {
            return Err(HeaderError::Magic);
        }
        let version = u16::from_le_bytes(array(bytes, 4));
        if version != VERSION {
            return Err(HeaderError::Version(version));
        }
        if array::<4>(bytes, 44) != [0; 4] {
            return Err(HeaderError::Reserved);
        }
        Ok(FragmentHeader {
            codec: Codec::from_number(bytes[6]).ok_or(HeaderError::Codec(bytes[6]))?,
            kind: match bytes[7] {
                0 => Kind::Delta,
                1 => Kind::Update,
                other => return Err(HeaderError::Kind(other)),
            },
            round: u64::from_le_bytes(array(bytes, 8)),
            member: MemberId(array(bytes, 16)),
            fragment: u32::from_le_bytes(array(bytes, 32)),
            count: u32::from_le_bytes(array(bytes, 36)),
            weight: u32::from_le_bytes(array(bytes, 40)),
            digest: array(bytes, DIGEST_AT),
        })
    }

    /// Whether the layout has a fragment with this index and count.
    pub fn fits(&self, layout: &Layout) -> bool {
        layout.range(self.fragment).is_some_and(|range| range.len() == self.count as usize)
    }
}

impl Fragment {
    /// A fragment of an encoded payload. The digest in `header` is replaced.
    pub fn seal(mut header: FragmentHeader, payload: Vec<u8>) -> Fragment {
        header.digest = digest(&header, &payload);
        Fragment { header, payload }
    }

    /// Reads a fragment, and nothing after it. What a layout does not have is refused before its payload is read.
    pub fn read(reader: &mut impl Read, layout: &Layout) -> Result<Fragment, ReadError> {
        let mut bytes = [0; HEADER_BYTES];
        reader.read_exact(&mut bytes)?;
        let header = FragmentHeader::from_bytes(&bytes)?;
        if !header.fits(layout) {
            return Err(ReadError::Shape { fragment: header.fragment, count: header.count });
        }
        let length = header.codec.encoded_bytes(header.count as usize);
        let mut payload = Vec::new();
        // The memory grows with what arrives, not with what the header promises.
        reader.take(length as u64).read_to_end(&mut payload)?;
        if payload.len() < length {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        Ok(Fragment { header, payload })
    }

    /// The fragment of exactly these bytes.
    pub fn from_bytes(mut bytes: &[u8], layout: &Layout) -> Result<Fragment, ReadError> {
        let fragment = Fragment::read(&mut bytes, layout)?;
        if bytes.is_empty() { Ok(fragment) } else { Err(ReadError::Trailing(bytes.len())) }
    }

    /// Writes header and payload.
    pub fn write(&self, writer: &mut impl Write) -> io::Result<()> {
        writer.write_all(&self.header.to_bytes())?;
        writer.write_all(&self.payload)
    }

    /// The header.
    pub fn header(&self) -> &FragmentHeader {
        &self.header
    }

    /// The encoded values.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Whether header and payload have the digest that the header names.
    pub fn is_intact(&self) -> bool {
        digest(&self.header, &self.payload) == self.header.digest
    }

    /// Checks the digest, and the values as those of a delta.
    pub fn check(self) -> CheckedFragment {
        let header = &self.header;
        CheckedFragment {
            is_intact: self.is_intact(),
            values: check_fragment(header.codec, &self.payload, header.count as usize),
            fragment: self,
        }
    }
}

fn digest(header: &FragmentHeader, payload: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&header.to_bytes()[..DIGEST_AT]).update(payload);
    *hasher.finalize().as_bytes()
}

/// `N` bytes from `at`, which lie within the header.
fn array<const N: usize>(bytes: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|offset| bytes[at + offset])
}
