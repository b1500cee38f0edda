//! Whole rounds: any order, the reference in double precision, and the same bits everywhere.

use hypha_params::{
    Codec, DirectoryStaging, Encoder, Layout, Limits, OuterSettings, OuterState, Pushed, Reducer,
    apply_update,
};
use proptest::prelude::*;

use crate::world::{SETTINGS, bits, fragments, member, reducer, step, values};

const CODECS: [Codec; 5] = Codec::ALL;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_order_of_arrival_gives_the_same_bits(
        total in 1_usize..700,
        length in 1_u32..300,
        weights in proptest::collection::vec(1_u32..1_000_000, 1..6),
        order in proptest::collection::vec(any::<u16>(), 4000),
    ) {
        let layout = Layout::new(total as u64, length).unwrap();
        let mut sent = Vec::new();
        for (index, weight) in (1..).zip(&weights) {
            let codec = CODECS[usize::from(index) % CODECS.len()];
            let mut encoder = Encoder::new(layout, codec, member(index), false);
            let delta = values(u64::from(index), total, 1.0);
            sent.extend(fragments(&mut encoder, &layout, 0, *weight, &delta));
        }
        let run = |sent: &[hypha_params::Fragment]| {
            let mut reducer = reducer(layout, 0, weights.len() as u8);
            for fragment in sent {
                let sender = fragment.header().member;
                reducer.push(sender, fragment.clone().check()).unwrap();
            }
            let mut state = OuterState::new(layout, values(99, total, 2.0), false).unwrap();
            step(&mut state, &reducer, &SETTINGS);
            (reducer.sums().unwrap().to_vec(), bits(state.parameters()))
        };
        let first = run(&sent);
        let mut keyed: Vec<_> = order.iter().cycle().zip(&sent).collect();
        keyed.sort_by_key(|(key, _)| **key);
        let shuffled: Vec<_> = keyed.into_iter().map(|(_, fragment)| fragment.clone()).collect();
        prop_assert_eq!(run(&shuffled), first);
    }
}

#[test]
fn parameters_are_those_of_the_reference_up_to_rounding() {
    const TOTAL: usize = 5_000;
    let layout = Layout::new(TOTAL as u64, 1_000).unwrap();
    let start = values(1, TOTAL, 0.5);
    let mut state = OuterState::new(layout, start.clone(), false).unwrap();
    let mut reference: Vec<f64> = start.iter().map(|value| f64::from(*value)).collect();
    let mut momentum = vec![0.0_f64; TOTAL];
    for round in 0..5_u64 {
        let mut reducer = reducer(layout, round, 7);
        let mut sum = vec![0.0_f64; TOTAL];
        let mut total_weight = 0.0;
        for index in 1..=7_u8 {
            let weight = 1 + u32::from(index) * 37;
            let delta = values(round * 100 + u64::from(index), TOTAL, 0.01);
            let mut encoder = Encoder::new(layout, Codec::Fp32, member(index), false);
            for fragment in fragments(&mut encoder, &layout, round, weight, &delta) {
                reducer.push(member(index), fragment.check()).unwrap();
            }
            for (sum, value) in sum.iter_mut().zip(&delta) {
                *sum += f64::from(weight) * f64::from(*value);
            }
            total_weight += f64::from(weight);
        }
        step(&mut state, &reducer, &SETTINGS);
        for ((reference, momentum), sum) in reference.iter_mut().zip(&mut momentum).zip(&sum) {
            let mean = sum / total_weight;
            *momentum = SETTINGS.momentum * *momentum + mean;
            *reference += SETTINGS.learning_rate * (mean + SETTINGS.momentum * *momentum);
        }
        for (index, (value, reference)) in state.parameters().iter().zip(&reference).enumerate() {
            // Each round rounds the parameter once, and its update and momentum, which are smaller.
            let rounding = f64::from(f32::EPSILON) * (reference.abs() + 0.1) * (round + 1) as f64;
            let error = (f64::from(*value) - reference).abs();
            assert!(
                error <= rounding,
                "round {round}, parameter {index}: {value}, not {reference}"
            );
        }
    }
}

#[test]
fn members_and_joiners_hold_the_bits_of_the_server() {
    let layout = Layout::new(1_000, 300).unwrap();
    for codec in Codec::ALL {
        for has_residual in [false, true] {
            let settings = OuterSettings { codec, ..SETTINGS };
            let start = values(5, 1_000, 1.0);
            let mut state = OuterState::new(layout, start.clone(), has_residual).unwrap();
            let mut copies = vec![start];
            for round in 0..4 {
                let mut reducer = reducer(layout, round, 2);
                for index in 1..=2 {
                    let delta = values(round * 10 + u64::from(index), 1_000, 0.02);
                    let mut encoder = Encoder::new(layout, Codec::Int8, member(index), false);
                    for fragment in fragments(&mut encoder, &layout, round, 3, &delta) {
                        reducer.push(member(index), fragment.check()).unwrap();
                    }
                }
                for fragment in step(&mut state, &reducer, &settings) {
                    for copy in &mut copies {
                        apply_update(&layout, round, copy, &fragment).unwrap();
                        assert!(apply_update(&layout, round + 1, copy, &fragment).is_err());
                    }
                }
                // One joins after each round.
                copies.push(state.parameters().to_vec());
            }
            for copy in copies {
                assert_eq!(bits(&copy), bits(state.parameters()), "{codec} {has_residual}");
            }
        }
    }
}

#[test]
fn staging_in_files_gives_the_same_sums_and_leaves_nothing() {
    let layout = Layout::new(1_000, 300).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("left-over.staged"), "x").unwrap();
    let staging = DirectoryStaging::open(folder.path()).unwrap();
    let mut in_files = Reducer::new(layout, Limits::default(), staging);
    in_files.begin(0, [member(1)]).unwrap();
    let mut in_memory = reducer(layout, 0, 1);
    let mut encoder = Encoder::new(layout, Codec::Int4, member(1), true);
    let all = fragments(&mut encoder, &layout, 0, 9, &values(1, 1_000, 0.1));
    for (index, fragment) in (1..).zip(&all) {
        let expected = match layout.fragments() - index {
            0 => Pushed::Counted,
            missing => Pushed::Staged { missing },
        };
        assert_eq!(in_files.push(member(1), fragment.clone().check()).unwrap(), expected);
        assert_eq!(in_memory.push(member(1), fragment.clone().check()).unwrap(), expected);
    }
    assert_eq!(in_files.sums(), in_memory.sums());
    assert_ne!(in_files.sums().unwrap(), [0; 1_000]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
