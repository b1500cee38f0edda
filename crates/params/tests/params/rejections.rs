//! What a reducer refuses, with which reason, and that nothing of it counts.

use hypha_params::{
    Codec, DeltaRejection, Encoder, Fragment, FragmentHeader, Kind, Layout, Limits,
    MAX_TOTAL_WEIGHT, MemberId, MemoryStaging, OuterState, PushError, Pushed, Reducer, Rejection,
    StepError, ValueFault,
};

use crate::world::{SETTINGS, fragments, member, reducer, values};

const ROUND: u64 = 3;

fn layout() -> Layout {
    Layout::new(500, 200).unwrap()
}

fn delta_of(number: u8, weight: u32) -> Vec<Fragment> {
    let mut encoder = Encoder::new(layout(), Codec::Fp32, member(number), false);
    fragments(&mut encoder, &layout(), ROUND, weight, &values(u64::from(number), 500, 0.1))
}

fn rejection(result: Result<Pushed, PushError>) -> Rejection {
    match result {
        Err(PushError::Rejected(rejection)) => rejection,
        other => panic!("not rejected: {other:?}"),
    }
}

/// A fragment with another header, sealed again.
fn altered(fragment: &Fragment, alter: impl FnOnce(&mut FragmentHeader)) -> Fragment {
    let mut header = *fragment.header();
    alter(&mut header);
    Fragment::seal(header, fragment.payload().to_vec())
}

/// The first value replaced.
fn with_value(fragment: &Fragment, value: f32) -> Fragment {
    let mut payload = fragment.payload().to_vec();
    payload[..4].copy_from_slice(&value.to_le_bytes());
    Fragment::seal(*fragment.header(), payload)
}

#[test]
fn a_fragment_is_rejected_with_its_reason_and_may_be_pushed_right() {
    let sent = delta_of(1, 10);
    let good = &sent[0];
    let forged = {
        let mut bytes = Vec::new();
        good.write(&mut bytes).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        Fragment::from_bytes(&bytes, &layout()).unwrap()
    };
    let stranger = altered(good, |header| header.member = member(9));
    for (fragment, sender, expected) in [
        (altered(good, |h| h.kind = Kind::Update), member(1), Rejection::Kind),
        (altered(good, |h| h.round = 4), member(1), Rejection::Round { given: 4, current: ROUND }),
        (stranger, member(9), Rejection::Member(member(9))),
        (good.clone(), member(2), Rejection::Sender { sender: member(2), named: member(1) }),
        (
            altered(good, |h| h.fragment = 3),
            member(1),
            Rejection::Shape { fragment: 3, count: 200 },
        ),
        (altered(good, |h| h.count = 199), member(1), Rejection::Shape { fragment: 0, count: 199 }),
        (forged, member(1), Rejection::Digest(0)),
    ] {
        let mut reducer = reducer(layout(), ROUND, 2);
        assert_eq!(rejection(reducer.push(sender, fragment.check())), expected);
        for fragment in sent.clone() {
            reducer.push(member(1), fragment.check()).unwrap();
        }
        assert_eq!(reducer.counted().collect::<Vec<MemberId>>(), [member(1)]);
    }
}

#[test]
fn a_bad_value_rejects_the_whole_delta() {
    let sent = delta_of(1, 10);
    let last = &sent[2];
    let value = |fault| DeltaRejection::Value { fragment: 2, fault };
    let cut = Fragment::seal(*last.header(), vec![0; 512 - 1]);
    let weight = |weight| DeltaRejection::Weight { weight, total: 0 };
    for (bad, expected) in [
        (with_value(last, f32::NAN), value(ValueFault::NotFinite { block: 0 })),
        (with_value(last, f32::NEG_INFINITY), value(ValueFault::NotFinite { block: 0 })),
        (with_value(last, 1.000_001), value(ValueFault::TooLarge { block: 0 })),
        (cut, value(ValueFault::Length { expected: 512, actual: 511 })),
    ] {
        let mut reducer = reducer(layout(), ROUND, 2);
        reducer.push(member(1), sent[0].clone().check()).unwrap();
        reducer.push(member(1), sent[1].clone().check()).unwrap();
        let expected = Rejection::Delta(expected);
        assert_eq!(rejection(reducer.push(member(1), bad.check())), expected);
        // For the rest of the round, and without a trace.
        assert_eq!(rejection(reducer.push(member(1), last.clone().check())), expected);
        assert_eq!(reducer.sums().unwrap(), [0; 500]);
        assert_eq!(reducer.total_weight(), 0);
    }
    for bad in [0, MAX_TOTAL_WEIGHT] {
        let mut reducer = reducer(layout(), ROUND, 2);
        let result = reducer.push(member(1), delta_of(1, bad)[0].clone().check());
        assert_eq!(rejection(result), Rejection::Delta(weight(bad)));
    }
}

#[test]
fn the_sum_of_weights_stays_below_its_limit() {
    let mut reducer = reducer(layout(), ROUND, 2);
    let (first, second) = (delta_of(1, MAX_TOTAL_WEIGHT - 2), delta_of(2, 2));
    // Both begin while nothing counts; the second to be complete is the one that is too much.
    for index in 0..2 {
        reducer.push(member(1), first[index].clone().check()).unwrap();
        reducer.push(member(2), second[index].clone().check()).unwrap();
    }
    assert_eq!(reducer.push(member(1), first[2].clone().check()).unwrap(), Pushed::Counted);
    let before = reducer.sums().unwrap().to_vec();
    let expected = DeltaRejection::Weight { weight: 2, total: MAX_TOTAL_WEIGHT - 2 };
    let result = reducer.push(member(2), second[2].clone().check());
    assert_eq!(rejection(result), Rejection::Delta(expected));
    assert_eq!(reducer.sums().unwrap(), before);
}

#[test]
fn the_largest_sum_is_exact() {
    let layout = Layout::new(130, 200).unwrap();
    let mut reducer = reducer(layout, ROUND, 1);
    let weight = MAX_TOTAL_WEIGHT - 1;
    let mut encoder = Encoder::new(layout, Codec::Fp32, member(1), false);
    let mut delta = [1.0; 130];
    delta[129] = -1.0;
    let fragment = encoder.encode(ROUND, weight, 0, &delta).unwrap();
    assert_eq!(reducer.push(member(1), fragment.check()).unwrap(), Pushed::Counted);
    let sums = reducer.sums().unwrap();
    assert_eq!((sums[0], sums[129]), (i64::from(weight) << 40, -(i64::from(weight) << 40)));
}

#[test]
fn a_norm_above_the_limit_rejects_the_delta() {
    let limits = Limits { max_norm: Some(1.0), ..Limits::default() };
    let sent = delta_of(1, 10);
    let mut reducer = Reducer::new(layout(), limits, MemoryStaging::default());
    reducer.begin(ROUND, [member(1)]).unwrap();
    reducer.push(member(1), sent[2].clone().check()).unwrap();
    reducer.push(member(1), sent[0].clone().check()).unwrap();
    match rejection(reducer.push(member(1), sent[1].clone().check())) {
        Rejection::Delta(DeltaRejection::Norm { norm, max }) => {
            let values = values(1, 500, 0.1);
            let expected = values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
            assert!((norm - expected).abs() < 1e-12 && max == 1.0, "{norm}, not {expected}");
        }
        other => panic!("{other}"),
    }
    assert_eq!(reducer.sums().unwrap(), [0; 500]);
}

#[test]
fn duplicates_are_acknowledged_and_conflicts_rejected() {
    let mut reducer = reducer(layout(), ROUND, 1);
    let sent = delta_of(1, 10);
    let conflicting = with_value(&sent[1], 0.5);
    let heavier = altered(&sent[2], |header| header.weight = 11);
    reducer.push(member(1), sent[1].clone().check()).unwrap();
    for (fragment, index) in [(&conflicting, 1), (&heavier, 2)] {
        let result = reducer.push(member(1), fragment.clone().check());
        assert_eq!(rejection(result), Rejection::Conflict(index));
    }
    let again = |reducer: &mut Reducer<MemoryStaging>| {
        assert_eq!(reducer.push(member(1), sent[1].clone().check()).unwrap(), Pushed::Duplicate);
    };
    again(&mut reducer);
    reducer.push(member(1), sent[0].clone().check()).unwrap();
    assert_eq!(reducer.push(member(1), sent[2].clone().check()).unwrap(), Pushed::Counted);
    let sums = reducer.sums().unwrap().to_vec();
    again(&mut reducer);
    let result = reducer.push(member(1), conflicting.check());
    assert_eq!(rejection(result), Rejection::Conflict(1));
    assert_eq!((reducer.sums().unwrap(), reducer.total_weight()), (sums.as_slice(), 10));
}

#[test]
fn a_step_without_its_conditions_is_refused_and_a_torn_state_too() {
    let mut state = OuterState::new(layout(), vec![0.0; 500], false).unwrap();
    let mut other = reducer(layout(), ROUND, 1);
    let refused = state.step(&other, &SETTINGS, |_| Ok(())).unwrap_err();
    assert!(matches!(refused, StepError::Round { reducer: ROUND, state: 0 }));
    other.begin(0, [member(1)]).unwrap();
    assert!(matches!(state.step(&other, &SETTINGS, |_| Ok(())), Err(StepError::Empty)));
    for fragment in delta_of(1, 1) {
        let fragment = altered(&fragment, |header| header.round = 0);
        other.push(member(1), fragment.check()).unwrap();
    }
    let full = || Err(std::io::ErrorKind::StorageFull.into());
    assert!(matches!(state.step(&other, &SETTINGS, |_| full()), Err(StepError::Write(_))));
    assert!(matches!(state.step(&other, &SETTINGS, |_| Ok(())), Err(StepError::Torn)));
}

#[test]
fn rejections_count_against_their_sender() {
    let mut reducer = reducer(layout(), ROUND, 2);
    let (first, second) = (delta_of(1, 10), delta_of(2, 10));
    for fragment in &second {
        reducer.push(member(2), fragment.clone().check()).unwrap();
    }
    reducer.push(member(2), second[0].clone().check()).unwrap();
    let late = altered(&first[0], |header| header.round = ROUND - 1);
    for bad in [&second[0], &late, &with_value(&first[0], 2.0), &first[1]] {
        rejection(reducer.push(member(1), bad.clone().check()));
    }
    let stranger = altered(&first[0], |header| header.member = member(9));
    rejection(reducer.push(member(9), stranger.check()));
    assert_eq!(reducer.rejections().iter().collect::<Vec<_>>(), [(&member(1), &4)]);
    reducer.begin(ROUND + 1, [member(1)]).unwrap();
    assert!(reducer.rejections().is_empty());
}
