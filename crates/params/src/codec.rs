//! The codecs: how the values of a fragment become bytes, in blocks.
//!
//! Every codec works on blocks of [`BLOCK`] values, the last one padded with zeros. So each kernel is a loop of fixed
//! length without branches, which the compiler turns into vector instructions.

mod float;
mod integer;
mod ternary;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use float::{Fp16, Fp32};
use integer::{Int4, Int8};
use ternary::Ternary;

/// Values in a block. Small enough that one outlier spoils few values, large enough that a scale of 4 bytes costs
/// 3 % of an `int8` block.
pub const BLOCK: usize = 128;

/// How values are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Codec {
    /// 4 bytes a value, without loss.
    Fp32,
    /// 2 bytes a value, IEEE 754 half precision.
    Fp16,
    /// 1 byte a value, and a scale for each block.
    Int8,
    /// 4 bits a value, and a scale for each block.
    Int4,
    /// −1, 0 or 1 in 2 bits, and a scale for each block.
    Ternary,
}

/// Why encoded values are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ValueFault {
    /// The payload is shorter or longer than its codec and count require.
    #[error("the payload has {actual} bytes, but its codec and count require {expected}")]
    Length {
        /// As the codec and the count require.
        expected: u64,
        /// As received.
        actual: u64,
    },
    /// A scale is infinite, negative or not a number.
    #[error("the scale of block {block} is not a finite positive number or zero")]
    Scale {
        /// The index of the block in the fragment.
        block: usize,
    },
    /// Bits that stand for no value.
    #[error("block {block} has bits that stand for no value of its codec")]
    Code {
        /// The index of the block in the fragment.
        block: usize,
    },
    /// A value is infinite or not a number.
    #[error("block {block} has a value that is infinite or not a number")]
    NotFinite {
        /// The index of the block in the fragment.
        block: usize,
    },
    /// A value exceeds the limit of its use.
    #[error("block {block} has a value beyond the limit of a delta")]
    TooLarge {
        /// The index of the block in the fragment.
        block: usize,
    },
}

/// A name that is no codec.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is no codec: use fp32, fp16, int8, int4 or ternary")]
pub struct UnknownCodec(String);

impl Codec {
    /// All codecs, from the largest to the smallest encoding.
    pub const ALL: [Codec; 5] =
        [Codec::Fp32, Codec::Fp16, Codec::Int8, Codec::Int4, Codec::Ternary];

    /// The bytes of `count` encoded values.
    pub fn encoded_bytes(self, count: usize) -> usize {
        count.div_ceil(BLOCK).saturating_mul(self.block_bytes())
    }

    /// Whether decoding gives back other values than were encoded.
    pub fn is_lossy(self) -> bool {
        self != Codec::Fp32
    }

    /// Decodes `values.len()` values. After an error, `values` may be partly overwritten.
    pub fn decode(self, payload: &[u8], values: &mut [f32]) -> Result<(), ValueFault> {
        let count = values.len();
        self.for_each_block(payload, count, f32::MAX, |index, block, kept| {
            let start = index * BLOCK;
            values[start..start + kept].copy_from_slice(&block[..kept]);
        })
    }

    /// Appends the encoded values to `payload`. They have to be finite; beyond the range of the codec they saturate.
    pub(crate) fn encode(self, values: &[f32], payload: &mut Vec<u8>) {
        match self {
            Codec::Fp32 => encode_blocks::<Fp32>(values, payload),
            Codec::Fp16 => encode_blocks::<Fp16>(values, payload),
            Codec::Int8 => encode_blocks::<Int8>(values, payload),
            Codec::Int4 => encode_blocks::<Int4>(values, payload),
            Codec::Ternary => encode_blocks::<Ternary>(values, payload),
        }
    }

    /// Decodes block by block, without a buffer for all: `visit` gets the index of each block, its values, padded
    /// with what the sender wrote, and how many of them count. A value above `limit` is a fault.
    pub(crate) fn for_each_block(
        self,
        payload: &[u8],
        count: usize,
        limit: f32,
        visit: impl FnMut(usize, &[f32; BLOCK], usize),
    ) -> Result<(), ValueFault> {
        match self {
            Codec::Fp32 => decode_blocks::<Fp32>(payload, count, limit, visit),
            Codec::Fp16 => decode_blocks::<Fp16>(payload, count, limit, visit),
            Codec::Int8 => decode_blocks::<Int8>(payload, count, limit, visit),
            Codec::Int4 => decode_blocks::<Int4>(payload, count, limit, visit),
            Codec::Ternary => decode_blocks::<Ternary>(payload, count, limit, visit),
        }
    }

    /// Its number in a header.
    pub(crate) fn number(self) -> u8 {
        match self {
            Codec::Fp32 => 0,
            Codec::Fp16 => 1,
            Codec::Int8 => 2,
            Codec::Int4 => 3,
            Codec::Ternary => 4,
        }
    }

    pub(crate) fn from_number(number: u8) -> Option<Codec> {
        Codec::ALL.into_iter().find(|codec| codec.number() == number)
    }

    fn block_bytes(self) -> usize {
        match self {
            Codec::Fp32 => Fp32::BYTES,
            Codec::Fp16 => Fp16::BYTES,
            Codec::Int8 => Int8::BYTES,
            Codec::Int4 => Int4::BYTES,
            Codec::Ternary => Ternary::BYTES,
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Codec::Fp32 => "fp32",
            Codec::Fp16 => "fp16",
            Codec::Int8 => "int8",
            Codec::Int4 => "int4",
            Codec::Ternary => "ternary",
        })
    }
}

impl FromStr for Codec {
    type Err = UnknownCodec;

    fn from_str(name: &str) -> Result<Codec, UnknownCodec> {
        let found = Codec::ALL.into_iter().find(|codec| codec.to_string() == name);
        found.ok_or_else(|| UnknownCodec(name.to_owned()))
    }
}

/// What is wrong with a block; the caller adds which block it is.
enum BlockFault {
    Scale,
    Code,
}

/// One codec's loops over a whole block.
trait BlockCodec {
    /// The bytes of a block, with its scale.
    const BYTES: usize;

    /// Encodes finite values into [`Self::BYTES`] zeroed bytes.
    fn encode(values: &[f32; BLOCK], bytes: &mut [u8]);

    /// Decodes [`Self::BYTES`] bytes. The values may be infinite or not a number.
    fn decode(bytes: &[u8], values: &mut [f32; BLOCK]) -> Result<(), BlockFault>;
}

fn encode_blocks<C: BlockCodec>(values: &[f32], payload: &mut Vec<u8>) {
    let start = payload.len();
    payload.resize(start + values.len().div_ceil(BLOCK) * C::BYTES, 0);
    let (whole, rest) = values.as_chunks::<BLOCK>();
    let mut targets = payload[start..].chunks_exact_mut(C::BYTES);
    for (block, bytes) in whole.iter().zip(&mut targets) {
        C::encode(block, bytes);
    }
    if let Some(bytes) = targets.next() {
        let mut padded = [0.0; BLOCK];
        padded[..rest.len()].copy_from_slice(rest);
        C::encode(&padded, bytes);
    }
}

fn decode_blocks<C: BlockCodec>(
    payload: &[u8],
    count: usize,
    limit: f32,
    mut visit: impl FnMut(usize, &[f32; BLOCK], usize),
) -> Result<(), ValueFault> {
    let expected = count.div_ceil(BLOCK).saturating_mul(C::BYTES);
    if payload.len() != expected {
        return Err(ValueFault::Length { expected: expected as u64, actual: payload.len() as u64 });
    }
    let mut values = [0.0; BLOCK];
    for (block, bytes) in payload.chunks_exact(C::BYTES).enumerate() {
        C::decode(bytes, &mut values).map_err(|fault| match fault {
            BlockFault::Scale => ValueFault::Scale { block },
            BlockFault::Code => ValueFault::Code { block },
        })?;
        if !all_within(&values, limit) {
            let is_finite = all_within(&values, f32::MAX);
            let too_large = ValueFault::TooLarge { block };
            return Err(if is_finite { too_large } else { ValueFault::NotFinite { block } });
        }
        visit(block, &values, (count - block * BLOCK).min(BLOCK));
    }
    Ok(())
}

/// Whether no magnitude exceeds `limit`. Infinities and what is not a number exceed every limit: without their sign, the
/// bits of floats are ordered like integers, with those two kinds at the end.
fn all_within(values: &[f32; BLOCK], limit: f32) -> bool {
    let limit = limit.to_bits() as i32;
    let mut exceeded = 0;
    for value in values {
        exceeded |= i32::from((value.to_bits() & 0x7fff_ffff) as i32 > limit);
    }
    exceeded == 0
}

fn read_scale(bytes: &[u8]) -> Result<(f32, &[u8]), BlockFault> {
    let (scale, codes) = bytes.split_first_chunk::<4>().ok_or(BlockFault::Scale)?;
    let scale = f32::from_le_bytes(*scale);
    if scale.is_finite() && scale.is_sign_positive() {
        Ok((scale, codes))
    } else {
        Err(BlockFault::Scale)
    }
}

fn write_scale(scale: f32, bytes: &mut [u8]) -> &mut [u8] {
    let (target, codes) = bytes.split_at_mut(size_of::<f32>());
    target.copy_from_slice(&scale.to_le_bytes());
    codes
}
