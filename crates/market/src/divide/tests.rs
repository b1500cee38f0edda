//! How a worker is divided: minimums first, then demands, then max-min fair.

use hypha_model::{Capacity, Device, Executor, ExecutorClass, Money, Rng, Time, WorkerId};
use proptest::prelude::*;

use super::*;

fn worker(gpus: usize, slots: u32) -> Worker {
    let name = |text: &str| text.parse().unwrap();
    let device = Device {
        model: name("A100"),
        memory_bytes: 80,
        milli_gpu: hypha_model::resource::WHOLE_GPU,
    };
    Worker {
        id: WorkerId::new(Time::ZERO, &mut Rng::new(1)),
        capacity: Capacity {
            cpu_milli: 8_000,
            memory_bytes: 100,
            storage_bytes: 10,
            devices: vec![device; gpus],
        },
        executors: vec![Executor {
            class: ExecutorClass::Inference,
            name: name("echo"),
            models: Vec::new(),
            concurrency: slots,
        }],
        hardware: None,
        region: None,
        price: Money::default(),
    }
}

fn needs(cpu_milli: u64, memory_bytes: u64, gpus: u32) -> Requirement {
    Requirement { cpu_milli, memory_bytes, min_gpus: gpus, ..Requirement::default() }
}

/// Checks what each claim gets, as cores, memory, whole GPUs and slots.
fn check(worker: &Worker, claims: &[Claim<'_>], expected: &[(u64, u64, usize, u32)]) {
    let parts = divide(worker, &Portion::whole(worker), claims);
    let short = |part: &Portion| {
        let gpus = part.devices.iter().filter(|device| device.milli_gpu == 1_000).count();
        (part.cpu_milli, part.memory_bytes, gpus, part.slots[0])
    };
    assert_eq!(parts.iter().map(short).collect::<Vec<_>>(), expected);
}

#[test]
fn a_single_claim_gets_everything() {
    let worker = worker(2, 4);
    let nothing = Portion::empty(&worker);
    let claim = Claim {
        holds: &nothing,
        fixed: None,
        instead: &[],
        minimum: None,
        maximum: None,
        demand: None,
    };
    assert_eq!(divide(&worker, &Portion::whole(&worker), &[claim]), [Portion::whole(&worker)]);
}

#[test]
fn without_demand_everything_is_divided_evenly() {
    let worker = worker(2, 4);
    let nothing = Portion::empty(&worker);
    let claim = Claim {
        holds: &nothing,
        fixed: None,
        instead: &[],
        minimum: None,
        maximum: None,
        demand: None,
    };
    check(&worker, &[claim, claim], &[(4_000, 50, 1, 2), (4_000, 50, 1, 2)]);
    check(&worker, &[claim; 3], &[(2_667, 34, 1, 2), (2_667, 33, 1, 1), (2_666, 33, 0, 1)]);
}

#[test]
fn claims_with_queued_tasks_get_what_the_others_do_not_need() {
    let worker = worker(2, 4);
    let nothing = Portion::empty(&worker);
    let idle = Claim {
        holds: &nothing,
        fixed: None,
        instead: &[],
        minimum: None,
        maximum: None,
        demand: None,
    };
    let small = needs(1_000, 1, 0);
    let pressed = Claim { demand: Some(&small), ..idle };
    check(&worker, &[pressed, idle], &[(8_000, 100, 2, 4), (0, 0, 0, 0)]);
    check(&worker, &[pressed, pressed], &[(4_000, 50, 1, 2), (4_000, 50, 1, 2)]);
}

#[test]
fn a_task_that_needs_more_than_half_is_not_starved_by_halves() {
    let worker = worker(1, 4);
    let nothing = Portion::empty(&worker);
    let large = needs(6_000, 70, 1);
    let claim = Claim {
        holds: &nothing,
        fixed: None,
        instead: &[],
        minimum: None,
        maximum: None,
        demand: Some(&large),
    };
    // The second has its turn later.
    check(&worker, &[claim, claim], &[(6_000, 70, 1, 2), (2_000, 30, 0, 2)]);
}

#[test]
fn a_minimum_is_kept_and_a_maximum_is_not_exceeded() {
    let worker = worker(2, 4);
    let (nothing, whole) = (Portion::empty(&worker), Portion::whole(&worker));
    let (role, large) = (needs(3_000, 30, 1), needs(6_000, 80, 2));
    let job = Claim {
        holds: &whole,
        fixed: None,
        instead: &[],
        minimum: Some(&role),
        maximum: Some(&role),
        demand: None,
    };
    let pressed = Claim {
        holds: &nothing,
        fixed: None,
        instead: &[],
        minimum: None,
        maximum: None,
        demand: Some(&large),
    };
    // It would need all GPUs, but one is promised to the job, whichever claim goes first.
    check(&worker, &[pressed, job], &[(5_000, 70, 1, 3), (3_000, 30, 1, 1)]);
    check(&worker, &[job, pressed], &[(3_000, 30, 1, 1), (5_000, 70, 1, 3)]);
}

#[test]
fn gpus_stay_with_their_holders_if_that_is_as_fair() {
    let worker = worker(4, 4);
    let holds = |devices: &[usize]| {
        let mut portion = Portion::empty(&worker);
        for at in devices {
            portion.devices[*at] = Portion::whole(&worker).devices[*at];
        }
        portion
    };
    let (a, b) = (holds(&[1, 3]), holds(&[0, 2]));
    let claim = |holds| Claim {
        holds,
        fixed: None,
        instead: &[],
        minimum: None,
        maximum: None,
        demand: None,
    };
    let parts = divide(&worker, &Portion::whole(&worker), &[claim(&a), claim(&b)]);
    assert_eq!((&parts[0].devices, &parts[1].devices), (&a.devices, &b.devices));
}

#[test]
fn a_share_of_a_gpu_goes_to_each_claim_that_needs_one() {
    let worker = worker(1, 4);
    let nothing = Portion::empty(&worker);
    let half = Requirement { milli_gpu: 500, gpu_memory_bytes: 30, ..needs(0, 0, 1) };
    let claim = Claim {
        holds: &nothing,
        fixed: None,
        instead: &[],
        minimum: None,
        maximum: None,
        demand: Some(&half),
    };
    let parts = divide(&worker, &Portion::whole(&worker), &[claim, claim]);
    assert!(parts.iter().all(|part| part.refusal_for(&worker, &half).is_none()), "{parts:?}");
}

prop_compose! {
    fn requirement()(
        cpu_milli in 0..9_000_u64,
        memory_bytes in 0..110_u64,
        gpus in 0..4_u32,
        milli_gpu in prop::sample::select(vec![250, 500, 1_000]),
    ) -> Requirement {
        Requirement { milli_gpu, gpu_memory_bytes: 20, ..needs(cpu_milli, memory_bytes, gpus) }
    }
}

proptest! {
    /// Nothing is assigned twice, nothing is left over if a claim would take it, and the first demand is met if it can
    /// be.
    #[test]
    fn everything_is_assigned_once(
        gpus in 0..4_usize,
        slots in 1..5_u32,
        wanted in prop::collection::vec((prop::option::of(requirement()), prop::option::of(requirement())), 1..5),
    ) {
        let worker = worker(gpus, slots);
        let nothing = Portion::empty(&worker);
        let claims: Vec<Claim<'_>> = wanted
            .iter()
            .map(|(maximum, need)| Claim { holds: &nothing, fixed: None, instead: &[], minimum: None, maximum: maximum.as_ref(), demand: need.as_ref() })
            .collect();
        let parts = divide(&worker, &Portion::whole(&worker), &claims);
        let sum = parts.iter().fold(nothing.clone(), |sum, part| sum.plus(part));
        let whole = Portion::whole(&worker);
        prop_assert!(whole.covers(&sum), "{parts:?}");
        if claims.iter().any(|claim| claim.maximum.is_none()) {
            prop_assert_eq!(&sum, &whole);
        }
        let first = claims.iter().position(|claim| claim.demand.is_some());
        if let Some((at, need)) = first.and_then(|at| Some((at, claims[at].demand?))) {
            let possible = whole.refusal_for(&worker, need).is_none();
            prop_assert_eq!(parts[at].refusal_for(&worker, need).is_none(), possible);
        }
    }
}
