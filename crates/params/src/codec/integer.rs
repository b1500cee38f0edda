//! `int8` and `int4`: multiples of a scale that each block has of its own.

use super::{BLOCK, BlockCodec, BlockFault, read_scale, write_scale};

const SCALE_BYTES: usize = size_of::<f32>();
/// Half a block: in `int4`, byte `n` holds the values `n` and `n + HALF`, so that packing needs no interleaving.
const HALF: usize = BLOCK / 2;

pub(super) struct Int8;

impl BlockCodec for Int8 {
    const BYTES: usize = SCALE_BYTES + BLOCK;

    fn encode(values: &[f32; BLOCK], bytes: &mut [u8]) {
        let (scale, codes) = quantise(values, 127.0);
        for (code, target) in codes.iter().zip(write_scale(scale, bytes)) {
            *target = *code as u8;
        }
    }

    fn decode(bytes: &[u8], values: &mut [f32; BLOCK]) -> Result<(), BlockFault> {
        let (scale, codes) = read_scale(bytes)?;
        for (value, code) in values.iter_mut().zip(codes) {
            *value = f32::from(*code as i8) * scale;
        }
        Ok(())
    }
}

pub(super) struct Int4;

impl BlockCodec for Int4 {
    const BYTES: usize = SCALE_BYTES + HALF;

    fn encode(values: &[f32; BLOCK], bytes: &mut [u8]) {
        let (scale, codes) = quantise(values, 7.0);
        let (low, high) = codes.split_at(HALF);
        for ((low, high), target) in low.iter().zip(high).zip(write_scale(scale, bytes)) {
            *target = (low & 0xf) as u8 | (high << 4) as u8;
        }
    }

    fn decode(bytes: &[u8], values: &mut [f32; BLOCK]) -> Result<(), BlockFault> {
        let (scale, codes) = read_scale(bytes)?;
        let (low, high) = values.split_at_mut(HALF);
        for ((low, high), code) in low.iter_mut().zip(high).zip(codes) {
            // The arithmetic shift of a signed byte extends the sign of its upper half.
            *low = f32::from(((*code << 4) as i8) >> 4) * scale;
            *high = f32::from((*code as i8) >> 4) * scale;
        }
        Ok(())
    }
}

/// The scale of a block, and its values as the nearest multiples of it, at most `largest` in magnitude.
fn quantise(values: &[f32; BLOCK], largest: f32) -> (f32, [i32; BLOCK]) {
    // 1.5 · 2^23: added to a float of a smaller magnitude, it leaves the nearest integer in the low bits.
    const ROUND: f32 = 12_582_912.0;

    let peak = values.iter().fold(0.0, |peak: f32, value| peak.max(value.abs()));
    let scale = scale_of(peak, largest);
    let inverse = if scale > 0.0 { scale.recip() } else { 0.0 };
    let codes = values.map(|value| {
        let code = (value * inverse).clamp(-largest, largest);
        (code + ROUND).to_bits().wrapping_sub(ROUND.to_bits()) as i32
    });
    (scale, codes)
}

/// The scale with which `largest` stands for the peak or a little less: a value that rounding lifts above the peak could
/// exceed the limit of a delta that the peak obeys.
fn scale_of(peak: f32, largest: f32) -> f32 {
    let scale = peak / largest;
    // Below, the inverse is infinite or imprecise; such values are encoded as zero.
    if scale < f32::MIN_POSITIVE {
        0.0
    } else if scale * largest > peak {
        scale.next_down()
    } else {
        scale
    }
}
