//! `fp32` and `fp16`: floats as they are, and in half precision.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::{BLOCK, BlockCodec, BlockFault};

pub(super) struct Fp32;

impl BlockCodec for Fp32 {
    const BYTES: usize = BLOCK * size_of::<f32>();

    fn encode(values: &[f32; BLOCK], bytes: &mut [u8]) {
        let (targets, _) = bytes.as_chunks_mut::<4>();
        for (value, target) in values.iter().zip(targets) {
            *target = value.to_le_bytes();
        }
    }

    fn decode(bytes: &[u8], values: &mut [f32; BLOCK]) -> Result<(), BlockFault> {
        let (sources, _) = bytes.as_chunks::<4>();
        for (value, source) in values.iter_mut().zip(sources) {
            *value = f32::from_le_bytes(*source);
        }
        Ok(())
    }
}

pub(super) struct Fp16;

impl BlockCodec for Fp16 {
    const BYTES: usize = BLOCK * size_of::<f16>();

    fn encode(values: &[f32; BLOCK], bytes: &mut [u8]) {
        let largest = f16::MAX.to_f32();
        let mut halves = [f16::ZERO; BLOCK];
        halves.convert_from_f32_slice(&values.map(|value| value.clamp(-largest, largest)));
        let (targets, _) = bytes.as_chunks_mut::<2>();
        for (half, target) in halves.iter().zip(targets) {
            *target = half.to_le_bytes();
        }
    }

    fn decode(bytes: &[u8], values: &mut [f32; BLOCK]) -> Result<(), BlockFault> {
        let mut halves = [f16::ZERO; BLOCK];
        let (sources, _) = bytes.as_chunks::<2>();
        for (half, source) in halves.iter_mut().zip(sources) {
            *half = f16::from_le_bytes(*source);
        }
        halves.convert_to_f32_slice(values);
        Ok(())
    }
}
