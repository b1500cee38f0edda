//! Tests of the ledger.

use super::*;
use proptest::prelude::*;

fn ledger(lanes: Option<u32>) -> SliceLedger {
    SliceLedger::new(vec![10, 7, 0, 5, 12], 3, lanes, Some(2))
}

#[test]
fn an_epoch_is_used_up_before_it_is_completed() {
    let mut ledger = ledger(None);
    let first = ledger.choose(30, &Preference::default());
    ledger.assign(AssignmentId(1), &first);
    assert_eq!((ledger.assigned_samples(), ledger.available_samples()), (30, 4 + 34));
    // Ten of thirty samples went into the delta.
    assert_eq!(ledger.settle(AssignmentId(1), 10), 10);
    assert_eq!((ledger.used_samples(), ledger.completed_epochs()), (10, 0));
    let rest = ledger.choose(24, &Preference::default());
    assert!(rest.iter().all(|entry| entry.epoch == 0), "{rest:?}");
    ledger.assign(AssignmentId(2), &rest);
    assert!(ledger.choose(1, &Preference::default()).iter().all(|entry| entry.epoch == 1));
    assert_eq!(ledger.settle(AssignmentId(2), 99), 24);
    assert_eq!((ledger.completed_epochs(), ledger.assigned_samples()), (1, 0));
    assert!(ledger.is_balanced());
}

#[test]
fn cached_slices_come_first_and_those_of_others_last() {
    let ledger = ledger(None);
    let of = |slices: &[u32]| slices.iter().map(|it| SliceId(*it)).collect::<BTreeSet<_>>();
    let (cached, avoided) = (of(&[3]), of(&[0, 4]));
    let preference = Preference { cached: Some(&cached), avoided: Some(&avoided), lane: None };
    let slices: Vec<u32> = ledger.choose(20, &preference).iter().map(|it| it.slice.0).collect();
    assert_eq!(slices[..2], [3, 1]);
    assert_eq!(slices.len(), 3);
}

#[test]
fn in_fixed_mode_samples_depend_on_seed_and_lane_alone() {
    let take = |order: [u32; 2], lose: bool| {
        let mut ledger = ledger(Some(2));
        let mut taken = BTreeMap::new();
        for (lane, id) in order.into_iter().zip(1..) {
            let preference = Preference { lane: Some(lane), ..Preference::default() };
            let mut entries = ledger.choose(8, &preference);
            ledger.assign(AssignmentId(id), &entries);
            if lose {
                ledger.release(AssignmentId(id));
                entries = ledger.choose(8, &preference);
                ledger.assign(AssignmentId(id + 10), &entries);
            }
            taken.insert(lane, entries);
        }
        taken
    };
    assert_eq!(take([0, 1], false), take([1, 0], false));
    assert_eq!(take([0, 1], false), take([1, 0], true));
}

proptest! {
    #[test]
    fn every_sample_is_used_once_an_epoch(
        sizes in prop::collection::vec(0_u32..40, 1..8),
        seed: u64,
        moves in prop::collection::vec((1_u64..60, 0_u64..70, any::<bool>()), 1..200),
    ) {
        let mut ledger = SliceLedger::new(sizes.clone(), seed, None, Some(3));
        let mut used: BTreeMap<(u32, SliceId, u32), u32> = BTreeMap::new();
        for (id, (want, samples, is_lost)) in (0_u64..).zip(moves) {
            let entries = ledger.choose(want, &Preference::default());
            prop_assert!(count_samples(&entries) <= want);
            ledger.assign(AssignmentId(id), &entries);
            // One assignment stays open while the next is made.
            let Some(settled) = id.checked_sub(1).map(AssignmentId) else { continue };
            let entries = ledger.assigned(settled).to_vec();
            let samples = if is_lost { 0 } else { samples };
            ledger.settle(settled, samples);
            let each = entries.iter().flat_map(|it| (it.start..it.end).map(|at| (it.epoch, it.slice, at)));
            for sample in each.take(samples as usize) {
                *used.entry(sample).or_default() += 1;
            }
            prop_assert!(ledger.is_balanced());
            prop_assert!(used.values().all(|times| *times == 1));
            prop_assert_eq!(used.len() as u64, ledger.used_samples());
        }
        let json = serde_json::to_string(&ledger).unwrap();
        prop_assert_eq!(serde_json::from_str::<SliceLedger>(&json).unwrap(), ledger);
    }
}
