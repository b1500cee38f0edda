//! A parameter server and its members, in memory.

use std::num::NonZeroUsize;

use hypha_params::{
    Codec, Encoder, Fragment, Layout, Limits, MemberId, MemoryStaging, OuterSettings, OuterState,
    Reducer, Staging,
};

pub(crate) const SETTINGS: OuterSettings =
    OuterSettings { learning_rate: 0.7, momentum: 0.9, codec: Codec::Fp32 };

pub(crate) fn member(number: u8) -> MemberId {
    MemberId([number; 16])
}

/// Values of a magnitude up to `scale` that look random, the same for the same seed.
pub(crate) fn values(seed: u64, count: usize, scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next() * scale).collect()
}

/// The fragments of a delta.
pub(crate) fn fragments(
    encoder: &mut Encoder,
    layout: &Layout,
    round: u64,
    weight: u32,
    delta: &[f32],
) -> Vec<Fragment> {
    (0..layout.fragments())
        .map(|index| {
            encoder.encode(round, weight, index, &delta[layout.range(index).unwrap()]).unwrap()
        })
        .collect()
}

pub(crate) fn reducer(layout: Layout, round: u64, members: u8) -> Reducer<MemoryStaging> {
    let limits = Limits { max_norm: None, threads: NonZeroUsize::new(2).unwrap() };
    let mut reducer = Reducer::new(layout, limits, MemoryStaging::default());
    reducer.begin(round, (1..=members).map(member)).unwrap();
    reducer
}

/// Makes a step and returns the fragments of the update.
pub(crate) fn step<S: Staging>(
    state: &mut OuterState,
    reducer: &Reducer<S>,
    settings: &OuterSettings,
) -> Vec<Fragment> {
    let mut update = Vec::new();
    state
        .step(reducer, settings, |fragment| {
            update.push(fragment);
            Ok(())
        })
        .unwrap();
    update
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
