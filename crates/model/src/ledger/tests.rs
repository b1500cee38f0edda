//! The ledger against a model that keeps a list of bookings and recounts everything at each step.

use super::*;
use crate::resource::{Device, WHOLE_GPU};
use crate::rng::Rng;

const GB: u64 = 1_000_000_000;

/// The list of bookings; the expected state is recomputed from it each time.
struct Naive {
    capacity: Capacity,
    live: Vec<(u8, Requirement, Vec<u32>)>,
}

impl Naive {
    fn used(&self, amount: impl Fn(&Requirement) -> u64) -> u64 {
        self.live.iter().map(|(_, requirement, _)| amount(requirement)).sum()
    }

    /// Free memory and share of each GPU.
    fn devices(&self) -> Vec<(u64, u32)> {
        let left = |(at, device): (u32, &Device)| {
            let on = self.live.iter().filter(|(_, _, devices)| devices.contains(&at));
            on.fold((device.memory_bytes, device.milli_gpu), |(memory, share), (_, taken, _)| {
                (memory - taken.gpu_memory_bytes, share - taken.milli_gpu)
            })
        };
        (0..).zip(&self.capacity.devices).map(left).collect()
    }

    fn free(&self) -> Capacity {
        let whole = &self.capacity;
        let device = |(device, (memory_bytes, milli_gpu)): (&Device, _)| Device {
            model: device.model.clone(),
            memory_bytes,
            milli_gpu,
        };
        Capacity {
            cpu_milli: whole.cpu_milli - self.used(|r| r.cpu_milli),
            memory_bytes: whole.memory_bytes - self.used(|r| r.memory_bytes),
            storage_bytes: whole.storage_bytes - self.used(|r| r.storage_bytes),
            devices: whole.devices.iter().zip(self.devices()).map(device).collect(),
        }
    }

    fn allocate(&mut self, key: u8, needs: &Requirement, fit: Fit) -> Result<(), LedgerError> {
        if self.live.iter().any(|(other, ..)| *other == key) {
            return Err(LedgerError::AlreadyBooked);
        }
        if let Some(refusal) = needs.refused_by(&self.free()) {
            return Err(LedgerError::Refused(refusal));
        }
        self.live.push((key, needs.clone(), self.choose(needs, fit)));
        Ok(())
    }

    /// Takes the best remaining device, as often as needed, by comparing each with each.
    fn choose(&self, needs: &Requirement, fit: Fit) -> Vec<u32> {
        let largest_memory = self.capacity.devices.iter().map(|d| d.memory_bytes).max();
        let largest_share = self.capacity.devices.iter().map(|d| d.milli_gpu).max();
        let score = |(memory, share): (u64, u32)| {
            let memory = (memory - needs.gpu_memory_bytes) as f64;
            let share = f64::from(share - needs.milli_gpu);
            // The amounts below are small multiples of a power of two, so that this is exact.
            let score =
                memory / largest_memory.unwrap() as f64 + share / f64::from(largest_share.unwrap());
            match fit {
                Fit::First => 0.0,
                Fit::Best => -score,
                Fit::Worst => score,
            }
        };
        let devices = self.devices();
        let mut chosen = Vec::new();
        for _ in 0..needs.min_gpus {
            let mut best: Option<(u32, f64)> = None;
            for (at, device) in (0..).zip(&devices) {
                let fits = device.0 >= needs.gpu_memory_bytes && device.1 >= needs.milli_gpu;
                if fits && !chosen.contains(&at) && best.is_none_or(|(_, s)| score(*device) > s) {
                    best = Some((at, score(*device)));
                }
            }
            chosen.push(best.unwrap().0);
        }
        chosen.sort();
        chosen
    }

    fn release(&mut self, key: u8) -> Result<(), LedgerError> {
        let at = self.live.iter().position(|(other, ..)| *other == key);
        self.live.remove(at.ok_or(LedgerError::NotBooked)?);
        Ok(())
    }
}

/// Small amounts, so that they run out and tie often.
fn random_capacity(rng: &mut Rng) -> Capacity {
    let devices = rng.below(5);
    let device = |rng: &mut Rng| Device {
        model: "A100".parse().unwrap(),
        memory_bytes: [4, 8, 16][rng.below(3) as usize],
        milli_gpu: [512, 1_024][rng.below(2) as usize],
    };
    Capacity {
        cpu_milli: rng.below(9),
        memory_bytes: rng.below(9),
        storage_bytes: rng.below(9),
        devices: (0..devices).map(|_| device(rng)).collect(),
    }
}

fn random_requirement(rng: &mut Rng) -> Requirement {
    let small = |rng: &mut Rng| rng.below(12).saturating_sub(7);
    Requirement {
        cpu_milli: small(rng),
        memory_bytes: small(rng),
        storage_bytes: small(rng),
        min_gpus: rng.below(4).saturating_sub(1) as u32,
        gpu_memory_bytes: rng.below(5),
        milli_gpu: 128 * rng.below(6) as u32,
        ..Requirement::default()
    }
}

#[test]
fn agrees_with_the_naive_model() {
    let (mut booked, mut refused, mut twice, mut unknown) = (0, 0, 0, 0);
    for seed in 0..10_000 {
        let mut rng = Rng::new(seed);
        let capacity = random_capacity(&mut rng);
        let mut naive = Naive { capacity: capacity.clone(), live: Vec::new() };
        let mut ledger = Ledger::new(&capacity);
        for step in 0..24 {
            let key = rng.below(12) as u8;
            let (real, expected) = if rng.chance(0.6) {
                let needs = random_requirement(&mut rng);
                let fit = [Fit::First, Fit::Best, Fit::Worst][rng.below(3) as usize];
                assert_eq!(ledger.fits(&needs).err(), needs.refused_by(&naive.free()));
                (ledger.allocate(key, &needs, fit), naive.allocate(key, &needs, fit))
            } else {
                (ledger.release(key), naive.release(key))
            };
            assert_eq!(real, expected, "seed {seed}, step {step}");
            match real {
                Ok(()) => booked += 1,
                Err(LedgerError::Refused(_)) => refused += 1,
                Err(LedgerError::AlreadyBooked) => twice += 1,
                Err(LedgerError::NotBooked) => unknown += 1,
            }
            compare(&ledger, &naive, seed);
        }
        // Once every booking is released, the ledger is as at the start.
        for key in ledger.keys().collect::<Vec<_>>() {
            ledger.release(key).unwrap();
            assert_eq!(ledger.release(key), Err(LedgerError::NotBooked));
        }
        naive.live.clear();
        compare(&ledger, &naive, seed);
        assert_eq!(ledger.booked, Sums::default());
    }
    assert!([booked, refused, twice, unknown].iter().all(|count| *count > 10_000));
}

fn compare(ledger: &Ledger<u8>, naive: &Naive, seed: u64) {
    assert_eq!(ledger.check(), Ok(()), "seed {seed}");
    let (free, expected) = (ledger.free(), naive.free());
    let devices = &expected.devices;
    assert_eq!(
        free,
        Free {
            cpu_milli: expected.cpu_milli,
            memory_bytes: expected.memory_bytes,
            storage_bytes: expected.storage_bytes,
            whole_gpus: devices.iter().filter(|d| d.milli_gpu >= WHOLE_GPU).count() as u32,
            greatest_gpu_memory_bytes: devices.iter().map(|d| d.memory_bytes).max().unwrap_or(0),
            greatest_milli_gpu: devices.iter().map(|d| d.milli_gpu).max().unwrap_or(0),
            milli_gpu: devices.iter().map(|d| u64::from(d.milli_gpu)).sum(),
            gpu_memory_bytes: devices.iter().map(|d| u128::from(d.memory_bytes)).sum(),
        },
        "seed {seed}"
    );
    assert_eq!(ledger.booking_count(), naive.live.len(), "seed {seed}");
    for (key, _, devices) in &naive.live {
        assert_eq!(ledger.devices_of(*key), Some(devices.as_slice()), "seed {seed}");
    }
}

fn lab() -> Capacity {
    let device = |memory_bytes| Device {
        model: "A100".parse().unwrap(),
        memory_bytes,
        milli_gpu: WHOLE_GPU,
    };
    Capacity {
        cpu_milli: 8_000,
        memory_bytes: 64 * GB,
        storage_bytes: 0,
        devices: vec![device(40 * GB), device(80 * GB), device(40 * GB), device(24 * GB)],
    }
}

fn gpus(count: u32, memory_bytes: u64, milli_gpu: u32) -> Requirement {
    Requirement {
        min_gpus: count,
        gpu_memory_bytes: memory_bytes,
        milli_gpu,
        ..Requirement::default()
    }
}

#[test]
fn each_fit_chooses_its_devices() {
    let check = |needs: Requirement, fit, expected: &[u32]| {
        let mut ledger = Ledger::new(&lab());
        ledger.allocate(1, &needs, fit).unwrap();
        assert_eq!(ledger.devices_of(1), Some(expected), "{needs:?} {fit:?}");
    };
    check(gpus(1, 8 * GB, 500), Fit::First, &[0]);
    check(gpus(1, 8 * GB, 500), Fit::Best, &[3]);
    check(gpus(1, 8 * GB, 500), Fit::Worst, &[1]);
    check(gpus(1, 30 * GB, 500), Fit::Best, &[0]);
    check(gpus(2, 30 * GB, 500), Fit::Best, &[0, 2]);
    check(gpus(2, 30 * GB, 500), Fit::Worst, &[0, 1]);
    check(gpus(2, 8 * GB, 500), Fit::Best, &[0, 3]);
    check(gpus(0, 999 * GB, 500), Fit::Best, &[]);
}

#[test]
fn shares_are_filled_up_before_a_new_device_is_opened() {
    let mut ledger = Ledger::new(&lab());
    for key in 0..4 {
        ledger.allocate(key, &gpus(1, 10 * GB, 500), Fit::Best).unwrap();
    }
    let pinned: Vec<_> = (0..4).map(|key| ledger.devices_of(key).unwrap()[0]).collect();
    assert_eq!(pinned, [3, 3, 0, 0]);
    let refusal = Refusal { kind: RefusalKind::GpuShare, needed: 3, present: 2 };
    assert_eq!(ledger.fits(&gpus(3, GB, 100)), Err(refusal));
}

#[test]
fn named_gpus_are_booked_and_no_others() {
    let named = |ids: &[u32]| {
        let gpu_ids = ids.iter().fold(crate::GpuIds::default(), |all, id| all.with(*id).unwrap());
        Requirement { gpu_ids, ..gpus(gpu_ids.count(), GB, WHOLE_GPU) }
    };
    let mut ledger = Ledger::new(&lab());
    ledger.allocate(1, &named(&[1, 3]), Fit::First).unwrap();
    assert_eq!(ledger.devices_of(1), Some(&[1, 3][..]));
    let refused = |kind, needed, present| Err(Refusal { kind, needed, present });
    assert_eq!(ledger.fits(&named(&[2, 3])), refused(RefusalKind::GpuShare, 2, 1));
    assert_eq!(ledger.fits(&named(&[4])), refused(RefusalKind::Gpus, 5, 4));
    assert_eq!(named(&[4]).refused_by(&lab()), refused(RefusalKind::Gpus, 5, 4).err());
    // Others get what is left.
    ledger.allocate(2, &gpus(2, GB, WHOLE_GPU), Fit::First).unwrap();
    assert_eq!(ledger.devices_of(2), Some(&[0, 2][..]));
    ledger.release(1).unwrap();
    assert_eq!(ledger.fits(&named(&[3])), Ok(()));
    let amounts = ledger.amounts();
    assert_eq!((amounts.total.milli_gpu, amounts.booked.milli_gpu), (4_000, 2_000));
}

#[test]
fn utilisation_is_a_part_of_the_worker() {
    let mut ledger = Ledger::new(&lab());
    let needs = Requirement { cpu_milli: 4_000, memory_bytes: 16 * GB, ..gpus(1, 46 * GB, 1_000) };
    ledger.allocate(1, &needs, Fit::First).unwrap();
    let statistics = ledger.statistics();
    let used = Utilisation { cpu: 0.5, memory: 0.25, storage: 0.0, gpu: 0.25, gpu_memory: 0.25 };
    assert_eq!(statistics.utilisation, used);
    assert_eq!((statistics.total_gpus, statistics.available_gpus), (4, 3));
    assert_eq!(statistics.gpu_memory_available_bytes, u128::from(138 * GB));
}

#[test]
fn overstated_capacity_does_not_overflow_the_ledger() {
    let boast =
        Device { model: "A100".parse().unwrap(), memory_bytes: u64::MAX, milli_gpu: u32::MAX };
    let capacity = Capacity {
        cpu_milli: u64::MAX,
        memory_bytes: u64::MAX,
        storage_bytes: u64::MAX,
        devices: vec![boast; 3],
    };
    let mut ledger = Ledger::new(&capacity);
    for key in 0..3 {
        ledger.allocate(key, &gpus(1, u64::MAX, u32::MAX), Fit::Best).unwrap();
    }
    ledger.check().unwrap();
    assert_eq!(ledger.utilisation().gpu_memory, 1.0);
}

#[test]
fn check_detects_sums_that_do_not_add_up() {
    let broken = |hurt: fn(&mut Ledger<u8>)| {
        let mut ledger = Ledger::new(&lab());
        let needs = Requirement { cpu_milli: 1_000, ..gpus(2, GB, 500) };
        ledger.allocate(1, &needs, Fit::First).unwrap();
        ledger.check().unwrap();
        hurt(&mut ledger);
        ledger.check().unwrap_err()
    };
    let booking = |ledger: &mut Ledger<u8>| ledger.bookings.remove(&1).unwrap();
    assert!(broken(|l| l.booked.cpu_milli += 1).starts_with("sums do not add up"));
    assert!(
        broken(|l| l.device_entries[0].booked_memory_bytes += 1).starts_with("GPUs do not add up")
    );
    assert!(broken(|l| l.booked.gpu_memory_bytes += 1).starts_with("sums do not add up"));
    assert!(broken(|l| l.bookings.clear()).starts_with("sums do not add up"));
    for (hurt, expected) in [
        ((|b| b.cpu_milli = 9_000) as fn(&mut Booking), "sums do not add up"),
        (|b| b.devices = vec![2], "GPUs do not add up"),
        (|b| b.devices = vec![9], "booking 0 has a GPU that does not exist: 9"),
        (|b| b.devices = vec![1, 1], "booking 0 has a GPU twice: [1, 1]"),
    ] {
        let mut ledger = Ledger::new(&lab());
        ledger.allocate(1, &gpus(1, GB, 500), Fit::First).unwrap();
        let mut hurt_booking = booking(&mut ledger);
        hurt(&mut hurt_booking);
        ledger.bookings.insert(1, hurt_booking);
        assert!(ledger.check().unwrap_err().starts_with(expected));
    }
}

#[test]
fn shrunk_ledger_has_nothing_free_until_enough_is_released() {
    let mut ledger = Ledger::new(&lab());
    let needs = Requirement { cpu_milli: 3_000, ..gpus(1, GB, 600) };
    ledger.allocate(1, &needs, Fit::First).unwrap();
    ledger.allocate(2, &needs, Fit::First).unwrap();
    let mut small = lab();
    (small.cpu_milli, small.devices[0].milli_gpu) = (4_000, 500);
    small.devices.truncate(1);
    ledger.resize(&small);
    ledger.check().unwrap();
    assert!(ledger.is_overbooked());
    assert_eq!((ledger.free().cpu_milli, ledger.free().milli_gpu), (0, 0));
    assert_eq!(ledger.utilisation().cpu, 1.0);
    let one_core = Requirement { cpu_milli: 1_000, ..Requirement::default() };
    assert!(ledger.fits(&one_core).is_err());

    ledger.release(1).unwrap();
    assert_eq!(ledger.fits(&one_core), Ok(()));
    assert!(ledger.is_overbooked(), "the second is on a GPU that is not offered any more");
    ledger.release(2).unwrap();
    assert!(!ledger.is_overbooked());
    ledger.resize(&lab());
    assert_eq!(ledger.free(), Ledger::<u8>::new(&lab()).free());
}

#[test]
fn only_permitted_gpus_are_used() {
    let mut ledger = Ledger::new(&lab());
    let needs = gpus(2, GB, 1_000);
    ledger.allocate_where(1, &needs, Fit::First, |at| at != 1).unwrap();
    assert_eq!(ledger.devices_of(1), Some(&[0, 2][..]));
    let refusal = Refusal { kind: RefusalKind::GpuShare, needed: 2, present: 1 };
    assert_eq!(ledger.fits_where(&needs, |at| at < 3), Err(refusal));
    assert!(ledger.has_room_on(3, &needs) && !ledger.has_room_on(2, &needs));
    assert!(!ledger.has_room_on(4, &needs), "there is no such GPU");
}
