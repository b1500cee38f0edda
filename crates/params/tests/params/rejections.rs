//! What a reducer refuses, with which reason, and that nothing of it counts.

use std::io;

use hypha_params::{
    Codec, DeltaRejection, DirectoryStaging, Encoder, Fragment, FragmentHeader, Kind, Layout,
    Limits, MAX_TOTAL_WEIGHT, MemberId, MemoryStaging, OuterState, PushError, Pushed, Reducer,
    Rejection, Staging, StepError, ValueFault,
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
    let full = || Err(io::ErrorKind::StorageFull.into());
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

#[test]
fn nothing_of_a_rejected_delta_stays_staged() {
    let folder = tempfile::tempdir().unwrap();
    let staging = DirectoryStaging::open(folder.path()).unwrap();
    let mut reducer = Reducer::new(layout(), Limits::default(), staging);
    reducer.begin(ROUND, [member(1)]).unwrap();
    let sent = delta_of(1, 10);
    reducer.push(member(1), sent[0].clone().check()).unwrap();
    reducer.push(member(1), sent[1].clone().check()).unwrap();
    rejection(reducer.push(member(1), with_value(&sent[2], f32::NAN).check()));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Staging whose disk is full for one fragment, or loses one.
struct BadDisk {
    staging: MemoryStaging,
    full_for: Option<u32>,
    lost: Option<(MemberId, u32)>,
}

impl Staging for BadDisk {
    fn put(&mut self, member: MemberId, fragment: u32, payload: &[u8]) -> io::Result<()> {
        // Only once.
        if self.full_for.take_if(|full| *full == fragment).is_some() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.staging.put(member, fragment, payload)
    }

    fn get(&self, member: MemberId, fragment: u32, payload: &mut Vec<u8>) -> io::Result<()> {
        if self.lost == Some((member, fragment)) {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.staging.get(member, fragment, payload)
    }

    fn remove(&mut self, member: MemberId, fragment: u32) -> io::Result<()> {
        self.staging.remove(member, fragment)
    }

    fn clear(&mut self) -> io::Result<()> {
        self.staging.clear()
    }
}

#[test]
fn a_fragment_that_could_not_be_staged_may_be_pushed_again() {
    for full_for in 0..3 {
        let staging =
            BadDisk { staging: MemoryStaging::default(), full_for: Some(full_for), lost: None };
        let mut reducer = Reducer::new(layout(), Limits::default(), staging);
        reducer.begin(ROUND, [member(1)]).unwrap();
        for fragment in delta_of(1, 10) {
            if fragment.header().fragment == full_for {
                let refused = reducer.push(member(1), fragment.clone().check());
                assert!(matches!(refused, Err(PushError::Staging(_))));
            }
            reducer.push(member(1), fragment.check()).unwrap();
        }
        assert_eq!((reducer.counted().count(), reducer.total_weight()), (1, 10));
        assert!(reducer.rejections().is_empty());
    }
}

#[test]
fn a_sum_that_lost_a_part_is_never_used() {
    let lost = Some((member(2), 1));
    let staging = BadDisk { staging: MemoryStaging::default(), full_for: None, lost };
    let mut reducer = Reducer::new(layout(), Limits::default(), staging);
    reducer.begin(ROUND, [member(1), member(2)]).unwrap();
    for fragment in delta_of(1, 10) {
        reducer.push(member(1), fragment.check()).unwrap();
    }
    let mut sent = delta_of(2, 10);
    let last = sent.pop().unwrap();
    for fragment in sent {
        reducer.push(member(2), fragment.check()).unwrap();
    }
    assert!(matches!(reducer.push(member(2), last.clone().check()), Err(PushError::Damaged)));
    assert!(matches!(reducer.push(member(2), last.check()), Err(PushError::Damaged)));
    assert!(reducer.sums().is_none());
    reducer.begin(ROUND, [member(1)]).unwrap();
    for fragment in delta_of(1, 10) {
        reducer.push(member(1), fragment.check()).unwrap();
    }
    assert_eq!(reducer.total_weight(), 10);
    assert!(reducer.sums().is_some());
}
