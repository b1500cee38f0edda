//! `ternary`: −1, 0 or 1, times a scale that each block has of its own.

use super::{BLOCK, BlockCodec, BlockFault, read_scale, write_scale};

/// A quarter of a block: byte `n` holds the values `n`, `n + QUARTER` and so on, so that packing needs no interleaving.
const QUARTER: usize = BLOCK / 4;
/// Values below this part of the mean magnitude become zero. For values that are distributed normally or uniformly it is
/// close to the part with the least squared error.
const THRESHOLD: f64 = 0.7;

pub(super) struct Ternary;

impl BlockCodec for Ternary {
    const BYTES: usize = size_of::<f32>() + QUARTER;

    fn encode(values: &[f32; BLOCK], bytes: &mut [u8]) {
        let (threshold, scale) = fit(values);
        let codes = write_scale(scale, bytes);
        for (group, values) in values.chunks_exact(QUARTER).enumerate() {
            for (value, target) in values.iter().zip(codes.iter_mut()) {
                // 1 is zero, 0 and 2 are the signs.
                let code = 1 + u8::from(*value > threshold) - u8::from(*value < -threshold);
                *target |= code << (2 * group);
            }
        }
    }

    fn decode(bytes: &[u8], values: &mut [f32; BLOCK]) -> Result<(), BlockFault> {
        let (scale, codes) = read_scale(bytes)?;
        for (group, values) in values.chunks_exact_mut(QUARTER).enumerate() {
            for (value, code) in values.iter_mut().zip(codes) {
                *value = f32::from(((code >> (2 * group)) & 3) as i8 - 1) * scale;
            }
        }
        // Both bits of a pair are set in no value.
        let invalid = codes.iter().fold(0, |invalid, code| invalid | (code & (code >> 1) & 0x55));
        if invalid == 0 { Ok(()) } else { Err(BlockFault::Code) }
    }
}

/// The magnitude above which a value is not zero, and the mean magnitude of those: the scale with the least squared
/// error for them.
fn fit(values: &[f32; BLOCK]) -> (f32, f32) {
    let sum: f64 = values.iter().map(|value| f64::from(value.abs())).sum();
    let threshold = (THRESHOLD * sum / BLOCK as f64) as f32;
    let (mut kept, mut count) = (0.0, 0.0);
    for value in values {
        let is_kept = f64::from(u8::from(value.abs() > threshold));
        kept += is_kept * f64::from(value.abs());
        count += is_kept;
    }
    let scale = if count > 0.0 { (kept / count) as f32 } else { 0.0 };
    (threshold, scale)
}
