//! The preference for workers of the scheduler's own region.

use hypha_model::{Span, Worker};
use hypha_placement::{Predictive, Preferences, Strategy, TaskRef, WorkerSlot};

use crate::fixture::{Fixture, name, plain, spec_of};

fn predictive() -> Strategy {
    Strategy::Predictive(Predictive { exploration: 0.0, ..Predictive::default() })
}

fn places_of(fixture: &mut Fixture, seconds: f64, count: usize) -> Vec<Option<u32>> {
    (0..count).map(|_| fixture.place(spec_of(seconds)).map(|slot| slot.0)).collect()
}

fn with_regions(strategy: Strategy, max_local_wait: Span) -> Fixture {
    let prefer_region = Some(name("eu"));
    let preferences = Preferences { prefer_region, max_local_wait, ..Preferences::default() };
    let mut fixture = Fixture::with(strategy, preferences);
    for region in ["us", "eu"] {
        fixture.join(Worker { region: Some(name(region)), ..plain() });
    }
    fixture
}

#[test]
fn a_local_worker_is_preferred_up_to_a_waiting_time() {
    let most = Span::from_secs(5);
    for strategy in crate::random::strategies() {
        // Each task that is ahead takes ten seconds: longer than the preference is worth.
        let mut fixture = with_regions(strategy, most);
        assert_eq!(fixture.place(spec_of(10.0)), Some(WorkerSlot(1)), "{strategy}");
        // A random draw may still choose the local worker.
        let slots = places_of(&mut fixture, 10.0, 8);
        assert!(slots.contains(&Some(0)), "{strategy}: {slots:?}");
        let second = fixture.placement.explanation(TaskRef(1)).unwrap();
        assert!(!second.preferred_local, "{strategy}: the other worker is idle");

        // With one second for each task, four may be ahead.
        let mut fixture = with_regions(strategy, most);
        let slots = places_of(&mut fixture, 1.0, 4);
        match slots[1] {
            Some(1) => {
                assert_eq!(slots, [Some(1); 4], "{strategy} binds at submission");
            }
            // With room at once, or held back for the local worker.
            other => {
                let held = fixture.placement.explanation(TaskRef(1)).unwrap();
                assert!(other == Some(0) || held.preferred_local, "{strategy}: {slots:?}");
            }
        }
    }
}

#[test]
fn a_preference_for_local_workers_looks_at_few_of_many() {
    for strategy in [Strategy::ShortestQueue, Strategy::RoundRobin, predictive()] {
        let mut fixture = with_regions(strategy, Span::from_secs(1));
        for at in 0..2_000 {
            let region = Some(name(if at % 2 == 0 { "us" } else { "eu" }));
            fixture.join(Worker { region, ..plain() });
        }
        let looked = (0..1_100).map(|_| {
            let task = fixture.arrive(spec_of(10.0));
            fixture.plan();
            let all = fixture.placement.workers() as u64;
            all - fixture.placement.explanation(task).unwrap().not_looked_at
        });
        let most = looked.max();
        assert!(most.is_some_and(|most| most <= 100), "{strategy}: {most:?}");
    }
}
