//! Who gets an advert: the workers that the scheduler knows, and all others by gossip if those may be too few.

use super::super::*;

fn worker(number: u64) -> WorkerId {
    WorkerId::new(Time::ZERO, &mut Rng::new(number))
}

fn spec(count: u32) -> Arc<GangSpec> {
    let role = GangRole {
        name: "worker".parse().unwrap(),
        requirement: Arc::default(),
        count,
        minimum: count,
        wants_all: false,
        bid: Money::ZERO,
        max: Money::ZERO,
    };
    Arc::new(GangSpec {
        roles: vec![role],
        priority: hypha_model::Priority::default(),
        is_preemptible: false,
        maximise: Maximise::default(),
        budget: None,
        window: Span::from_millis(500),
        lease_ttl: Span::from_secs(60),
    })
}

/// Wakes a gang at a time, with this many workers that are known.
fn wake(gang: &mut Gang, at: Time, known: u64) -> Vec<GangAction> {
    let candidates = |_: &Requirement, most: usize| (0..known).map(worker).take(most).collect();
    let mut number = 0;
    let mut context = GangContext {
        now: at,
        rng: &mut Rng::new(1),
        next_number: &mut || {
            number += 1;
            number
        },
        candidates: &candidates,
    };
    let mut actions = Vec::new();
    gang.wake(&mut context, &mut actions);
    actions
}

fn receivers(actions: &[GangAction]) -> Vec<(usize, bool)> {
    let sent = |action: &GangAction| match action {
        GangAction::Advertise { to, .. } | GangAction::CloseAdvert { to, .. } => {
            Some((to.workers.len(), to.is_gossiped))
        }
        _ => None,
    };
    actions.iter().filter_map(sent).collect()
}

#[test]
fn known_workers_are_asked_directly_and_others_too_if_those_may_be_too_few() {
    // For two places: how many workers are known, and whether others are asked as well.
    for (known, is_gossiped) in [(0, true), (1, true), (3, true), (4, false), (9, false)] {
        let mut gang = Gang::new(spec(2), Time::ZERO);
        let sent = receivers(&wake(&mut gang, Time::ZERO, known));
        assert_eq!(sent, [(known as usize, is_gossiped)], "{known} known workers");
    }
}

#[test]
fn others_are_asked_as_well_after_an_advert_that_brought_too_little() {
    let mut gang = Gang::new(spec(2), Time::ZERO);
    assert_eq!(receivers(&wake(&mut gang, Time::ZERO, 4)), [(4, false)]);
    let over = gang.wake_at().unwrap();
    assert_eq!(receivers(&wake(&mut gang, over, 4)), [(4, false)], "it is closed");
    let again = gang.wake_at().unwrap();
    assert_eq!(receivers(&wake(&mut gang, again, 4)), [(4, true)]);
}
