//! Whole rounds: any order, the reference in double precision, and the same bits everywhere.

use hypha_params::{
    ApplyError, Codec, DirectoryStaging, Encoder, Fragment, FragmentHeader, Kind, Layout, Limits,
    OuterSettings, OuterState, Pushed, Reducer, apply_update,
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

#[test]
fn a_member_refuses_an_update_that_is_not_one() {
    let layout = Layout::new(500, 200).unwrap();
    let mut reducer = reducer(layout, 0, 1);
    let mut encoder = Encoder::new(layout, Codec::Fp32, member(1), false);
    let delta = fragments(&mut encoder, &layout, 0, 1, &[0.5; 500]);
    for fragment in delta.clone() {
        reducer.push(member(1), fragment.check()).unwrap();
    }
    let mut state = OuterState::new(layout, vec![0.0; 500], false).unwrap();
    let update = step(&mut state, &reducer, &SETTINGS).remove(0);
    let forged = {
        let mut bytes = Vec::new();
        update.write(&mut bytes).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        Fragment::from_bytes(&bytes, &layout).unwrap()
    };
    let header = FragmentHeader { fragment: 7, ..*update.header() };
    let beyond = Fragment::seal(header, update.payload().to_vec());
    let infinite = Fragment::seal(*update.header(), [0, 0, 0x80, 0x7f].repeat(256));
    let mut parameters = vec![0.0; 500];
    for (refused, is_value) in
        [(delta[0].clone(), false), (forged, false), (beyond, false), (infinite, true)]
    {
        let error = apply_update(&layout, 0, &mut parameters, &refused).unwrap_err();
        assert_eq!(matches!(error, ApplyError::Value(_)), is_value, "{error}");
        assert_eq!(parameters, [0.0; 500]);
    }
    assert_eq!(update.header().kind, Kind::Update);
    apply_update(&layout, 0, &mut parameters, &update).unwrap();
    assert_eq!(bits(&parameters[..200]), bits(&state.parameters()[..200]));
}

#[test]
fn the_residual_of_updates_makes_parameters_converge() {
    // The error stays about the same with a residual, and grows with each round without.
    const ROUNDS: u64 = 300;
    let layout = Layout::new(400, 150).unwrap();
    let delta = values(3, 400, 0.01);
    let run = |codec, has_residual| {
        let settings = OuterSettings { learning_rate: 1.0, momentum: 0.0, codec };
        let mut state = OuterState::new(layout, vec![0.0; 400], has_residual).unwrap();
        for round in 0..ROUNDS {
            let mut reducer = reducer(layout, round, 1);
            let mut encoder = Encoder::new(layout, Codec::Fp32, member(1), false);
            for fragment in fragments(&mut encoder, &layout, round, 1, &delta) {
                reducer.push(member(1), fragment.check()).unwrap();
            }
            step(&mut state, &reducer, &settings);
        }
        let pairs = state.parameters().iter().zip(&delta);
        pairs
            .fold(0.0_f32, |worst, (value, delta)| worst.max((value - delta * ROUNDS as f32).abs()))
    };
    for codec in [Codec::Int8, Codec::Int4, Codec::Ternary] {
        let (with, without) = (run(codec, true), run(codec, false));
        assert!(with < without / 10.0, "{codec}: {with} with a residual, {without} without");
    }
}

#[test]
fn sums_are_rounded_to_the_nearest_and_weighted_exactly() {
    let step_size = (-40_f32).exp2();
    let delta: Vec<f32> =
        [0.25, 0.5, 0.75, 1.5, 2.5, -0.75, -1.5, 1e6, 3.3e10].map(|n| n * step_size).to_vec();
    let layout = Layout::new(delta.len() as u64, 4).unwrap();
    let mut reducer = reducer(layout, 0, 2);
    for (index, weight) in [(1, 7), (2, 1_000_003)] {
        let mut encoder = Encoder::new(layout, Codec::Fp32, member(index), false);
        for fragment in fragments(&mut encoder, &layout, 0, weight, &delta) {
            reducer.push(member(index), fragment.check()).unwrap();
        }
    }
    let expected: Vec<i64> = delta
        .iter()
        .map(|value| (f64::from(*value) * 40_f64.exp2()).round_ties_even() as i64 * 1_000_010)
        .collect();
    assert_eq!(reducer.sums().unwrap(), expected);
}

#[test]
fn a_round_keeps_nothing_of_the_one_before() {
    let layout = Layout::new(500, 200).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let staged = || std::fs::read_dir(folder.path()).unwrap().count();
    let staging = DirectoryStaging::open(folder.path()).unwrap();
    let mut reducer = Reducer::new(layout, Limits::default(), staging);
    let delta_of = |index: u8, round| {
        let mut encoder = Encoder::new(layout, Codec::Fp16, member(index), false);
        fragments(&mut encoder, &layout, round, 5, &values(u64::from(index), 500, 0.1))
    };
    reducer.begin(0, [member(1), member(2)]).unwrap();
    for fragment in delta_of(1, 0) {
        reducer.push(member(1), fragment.check()).unwrap();
    }
    reducer.push(member(2), delta_of(2, 0).remove(0).check()).unwrap();
    assert_eq!(staged(), 1);
    reducer.begin(1, [member(2)]).unwrap();
    assert_eq!((staged(), reducer.total_weight()), (0, 0));
    assert_eq!(reducer.sums().unwrap(), [0; 500]);
    for (missing, fragment) in [2, 1, 0].into_iter().zip(delta_of(2, 1)) {
        let expected = if missing == 0 { Pushed::Counted } else { Pushed::Staged { missing } };
        assert_eq!(reducer.push(member(2), fragment.check()).unwrap(), expected);
    }
    assert_eq!(reducer.total_weight(), 5);
}
