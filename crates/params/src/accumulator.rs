//! Exact weighted sums in fixed point.
//!
//! A value is rounded once, to a multiple of 2^-40, and everything after that is integer arithmetic without overflow. So
//! sums do not depend on the order of their terms, bit for bit.

use crate::codec::{BLOCK, Codec, ValueFault};
use crate::layout::Layout;

/// The bits behind the point of a sum.
pub const FRACTION_BITS: u32 = 40;
/// The largest magnitude of a value of a delta.
pub const MAX_DELTA: f32 = 1.0;
/// The sum of weights stays below this, so that no sum exceeds 63 bits: 2^23 · 2^40 · [`MAX_DELTA`].
pub const MAX_TOTAL_WEIGHT: u32 = 1 << (63 - FRACTION_BITS);

const ONE: f64 = (1_u64 << FRACTION_BITS) as f64;

/// The weighted sum of deltas, 8 bytes a parameter.
#[derive(Debug)]
pub struct Accumulator {
    layout: Layout,
    sums: Vec<i64>,
}

impl Accumulator {
    /// Zeros.
    pub fn new(layout: Layout) -> Accumulator {
        Accumulator { layout, sums: vec![0; layout.total()] }
    }

    /// The cut of its parameters.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Sets all sums to zero.
    pub fn clear(&mut self) {
        self.sums.fill(0);
    }

    /// The sums, as multiples of 2^-[`FRACTION_BITS`].
    pub fn sums(&self) -> &[i64] {
        &self.sums
    }

    /// The sums of each fragment, in order, to be added to by [`add_fragment`], also from several threads.
    pub fn fragments_mut(&mut self) -> std::slice::ChunksMut<'_, i64> {
        self.sums.chunks_mut(self.layout.fragment_values() as usize)
    }
}

/// Adds `weight` times the values of an encoded fragment. The caller keeps the sum of weights below
/// [`MAX_TOTAL_WEIGHT`]. After an error, `sums` may hold a part of the fragment.
pub fn add_fragment(
    sums: &mut [i64],
    codec: Codec,
    payload: &[u8],
    weight: u32,
) -> Result<(), ValueFault> {
    let count = sums.len();
    codec.for_each_block(payload, count, MAX_DELTA, |index, values, kept| {
        let start = index * BLOCK;
        let sums = &mut sums[start..start + kept];
        match sums.first_chunk_mut::<BLOCK>() {
            Some(sums) => add_block(sums, values, weight),
            None => add_block(sums, &values[..kept], weight),
        }
    })
}

/// The sum of the squares of an encoded fragment's values, if it is a valid part of a delta.
pub fn check_fragment(codec: Codec, payload: &[u8], count: usize) -> Result<f64, ValueFault> {
    /// Sums that are added at the end, in a fixed order: a single one would be a chain of dependent additions.
    const LANES: usize = 8;
    let mut squares = [0.0_f64; LANES];
    codec.for_each_block(payload, count, MAX_DELTA, |_, values, _| {
        for values in values.as_chunks::<LANES>().0 {
            for (square, value) in squares.iter_mut().zip(values) {
                *square += f64::from(*value) * f64::from(*value);
            }
        }
    })?;
    Ok(squares.iter().sum())
}

/// What a sum stands for, divided by the sum of weights.
pub(crate) fn mean(sum: i64, total_weight: u32) -> f64 {
    sum as f64 / (ONE * f64::from(total_weight))
}

#[inline(always)]
fn add_block<'a>(
    sums: impl IntoIterator<Item = &'a mut i64>,
    values: impl IntoIterator<Item = &'a f32>,
    weight: u32,
) {
    // 1.5 · 2^52: added to a float of a smaller magnitude, it leaves the nearest integer in the low bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;

    for (sum, value) in sums.into_iter().zip(values) {
        let rounded = (f64::from(*value) * ONE + ROUND).to_bits();
        let fixed = rounded.wrapping_sub(ROUND.to_bits()) as i64;
        *sum = sum.wrapping_add(fixed.wrapping_mul(i64::from(weight)));
    }
}
