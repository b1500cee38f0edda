//! The peak memory of a parameter server, in a process of its own.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::num::NonZeroUsize;

use hypha_params::{
    CheckpointDirectory, Checkpoints, Codec, DirectoryStaging, Encoder, Layout, Limits, MemberId,
    OuterSettings, OuterState, Reducer,
};

const PARAMETERS: usize = 16_000_000;
const FRAGMENT_VALUES: u32 = 1 << 16;
/// 4 for parameters, 4 for momentum, 8 for the sum, and 10 %.
const LIMIT: f64 = 16.0 * 1.1;
const RESIDUAL: f64 = 4.0;

#[test]
fn peak_memory_does_not_grow_with_the_workers() {
    let before = peak_bytes();
    for (workers, has_residual) in [(1, false), (6, false), (2, true)] {
        rounds(workers, has_residual);
        let used = (peak_bytes() - before) as f64 / PARAMETERS as f64;
        let limit = if has_residual { LIMIT + RESIDUAL } else { LIMIT };
        // More than the vectors alone, or nothing was measured.
        assert!((15.0..limit).contains(&used), "{used} bytes a parameter with {workers} workers");
    }
}

/// Two rounds, a checkpoint after each. Workers push in turn, so that all deltas but one are staged at the same time.
fn rounds(workers: u8, has_residual: bool) {
    let layout = Layout::new(PARAMETERS as u64, FRAGMENT_VALUES).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let staging = DirectoryStaging::open(&folder.path().join("staging")).unwrap();
    let store = CheckpointDirectory::open(&folder.path().join("checkpoints")).unwrap();
    let mut checkpoints = Checkpoints::new(store, NonZeroUsize::MIN);
    let limits = Limits { max_norm: None, threads: NonZeroUsize::new(2).unwrap() };
    let mut reducer = Reducer::new(layout, limits, staging);
    let mut state = OuterState::new(layout, vec![0.5; PARAMETERS], has_residual).unwrap();
    let settings = OuterSettings { learning_rate: 0.7, momentum: 0.9, codec: Codec::Int8 };
    let members: Vec<MemberId> = (1..=workers).map(|worker| MemberId([worker; 16])).collect();
    for round in 0..2 {
        reducer.begin(round, members.iter().copied()).unwrap();
        for fragment in 0..layout.fragments() {
            let delta = vec![0.01; layout.range(fragment).unwrap().len()];
            for member in &members {
                let mut encoder = Encoder::new(layout, Codec::Fp16, *member, false);
                let fragment = encoder.encode(round, 3, fragment, &delta).unwrap();
                reducer.push(*member, fragment.check()).unwrap();
            }
        }
        assert_eq!(reducer.counted().count(), members.len());
        let mut sent = 0;
        let count = |_| {
            sent += 1;
            Ok(())
        };
        state.step(&reducer, &settings, count).unwrap();
        assert_eq!(sent, layout.fragments());
        checkpoints.save(&state, b"ledger").unwrap();
    }
}

/// The most memory that this process has had.
fn peak_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kibibytes: usize = line.trim().trim_end_matches(" kB").parse().unwrap();
    kibibytes * 1024
}
