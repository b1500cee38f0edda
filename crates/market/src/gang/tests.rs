//! Gangs form with all members or none, are renewed, replaced, grown and recovered.

mod receivers;

use std::cell::Cell;

use hypha_model::{Capacity, Executor, ExecutorClass, Worker};

use super::*;
use crate::advert::OfferedRole;

const WINDOW: Span = Span::from_millis(500);
const TTL: Span = Span::from_secs(30);

fn at(millis: u64) -> Time {
    Time::from_micros(1_000_000_000 + millis * 1_000)
}

fn ms(millis: u64) -> Span {
    Span::from_millis(millis)
}

fn worker_id(number: u64) -> WorkerId {
    WorkerId::new(Time::ZERO, &mut Rng::new(number))
}

fn role(name: &str, count: u32, minimum: u32) -> GangRole {
    GangRole {
        name: name.parse().unwrap(),
        requirement: Arc::new(Requirement { cpu_milli: 1_000, ..Requirement::default() }),
        count,
        minimum,
        wants_all: false,
        bid: Money::from_micros(100),
        max: Money::from_micros(200),
    }
}

fn spec(roles: &[GangRole]) -> Arc<GangSpec> {
    Arc::new(GangSpec {
        roles: roles.to_vec(),
        priority: hypha_model::Priority::default(),
        is_preemptible: true,
        maximise: Maximise::Balance,
        budget: None,
        window: WINDOW,
        lease_ttl: TTL,
    })
}

/// A gang with its scheduler's randomness, and what it wanted in its last step.
struct Rig {
    gang: Gang,
    now: Time,
    rng: Rng,
    numbers: Cell<u64>,
    candidates: Vec<WorkerId>,
    actions: Vec<GangAction>,
}

impl Rig {
    fn new(roles: &[GangRole]) -> Rig {
        Rig::of(Gang::new(spec(roles), at(0)))
    }

    fn of(gang: Gang) -> Rig {
        let (now, rng, numbers) = (at(0), Rng::new(1), Cell::new(0));
        Rig { gang, now, rng, numbers, candidates: Vec::new(), actions: Vec::new() }
    }

    fn act<T>(
        &mut self,
        now: Time,
        act: impl FnOnce(&mut Gang, &mut GangContext<'_>, &mut Vec<GangAction>) -> T,
    ) -> T {
        self.now = now;
        self.actions.clear();
        let (numbers, known) = (&self.numbers, &self.candidates);
        let mut next_number = || {
            numbers.set(numbers.get() + 1);
            numbers.get()
        };
        let candidates =
            |_: &Requirement, most: usize| known.iter().take(most).copied().collect::<Vec<_>>();
        let mut context = GangContext {
            now,
            rng: &mut self.rng,
            next_number: &mut next_number,
            candidates: &candidates,
        };
        act(&mut self.gang, &mut context, &mut self.actions)
    }

    fn wake(&mut self, now: Time) -> &[GangAction] {
        self.act(now, |gang, context, actions| gang.wake(context, actions));
        &self.actions
    }

    /// Wakes the gang whenever it is due, until `now`.
    fn wake_until(&mut self, now: Time) -> Vec<GangAction> {
        let mut all = Vec::new();
        while let Some(due) = self.gang.wake_at().filter(|due| *due <= now) {
            all.extend_from_slice(self.wake(due.max(self.now)));
        }
        all
    }

    fn advert(&self) -> Arc<Advert> {
        let advert = |action: &GangAction| match action {
            GangAction::Advertise { advert, .. } => Some(Arc::clone(advert)),
            _ => None,
        };
        self.actions.iter().find_map(advert).unwrap()
    }

    fn offer(&mut self, now: Time, advert: &Advert, worker: u64) -> OfferId {
        let offer = offer(advert, worker);
        let standing = WorkerStanding::default();
        let counts = self
            .act(now, |gang, context, actions| gang.offered(context, &offer, standing, actions));
        assert_eq!(counts, Some(Ok(())));
        offer.id
    }

    fn accepts(&self) -> Vec<(WorkerId, OfferId, u64)> {
        let accept = |action: &GangAction| match action {
            GangAction::Accept { worker, offer, request, .. } => Some((*worker, *offer, *request)),
            _ => None,
        };
        self.actions.iter().filter_map(accept).collect()
    }

    fn grant(&mut self, now: Time, (worker, _, request): (WorkerId, OfferId, u64)) -> LeaseId {
        let lease = LeaseId::new(now, &mut Rng::new(7_000 + request));
        let granted = (lease, Epoch(1), TTL, None);
        assert!(self.act(now, |gang, context, actions| {
            gang.granted(context, (worker, request), granted, actions)
        }));
        lease
    }

    /// Advertises, gets an offer of each of these workers, and accepts at the end of the window.
    fn accept_from(&mut self, now: Time, workers: &[u64]) -> Vec<(WorkerId, OfferId, u64)> {
        self.wake(now);
        let advert = self.advert();
        for worker in workers {
            self.offer(now, &advert, *worker);
        }
        self.wake(now + WINDOW);
        self.accepts()
    }

    fn form(&mut self, now: Time, workers: &[u64]) -> Vec<LeaseId> {
        let accepts = self.accept_from(now, workers);
        let granted = now + WINDOW + ms(20);
        accepts.into_iter().map(|accept| self.grant(granted, accept)).collect()
    }

    fn is_formed(&self) -> bool {
        self.actions.iter().any(|action| matches!(action, GangAction::Formed(_)))
    }
}

fn offer(advert: &Advert, number: u64) -> Arc<Offer> {
    let executor = Executor {
        class: ExecutorClass::default(),
        name: "echo".parse().unwrap(),
        models: Vec::new(),
        concurrency: 1,
    };
    let worker = Worker {
        id: worker_id(number),
        capacity: Capacity { cpu_milli: 1_000, ..Capacity::default() },
        executors: vec![executor],
        hardware: None,
        region: None,
        price: Money::default(),
    };
    let portion = Portion::whole(&worker);
    let roles = (0..advert.roles.len() as u16).map(|role| OfferedRole {
        role,
        price: Money::from_micros(100),
        portion: portion.clone(),
    });
    Arc::new(Offer {
        id: OfferId::new(Time::ZERO, &mut Rng::new(advert.id.uuid().as_u128() as u64 ^ number)),
        advert: advert.id,
        roles: roles.collect(),
        worker: Arc::new(worker),
        epoch: Epoch(1),
        reserved_for: WINDOW + Span::from_secs(2),
        speed_milli: None,
        backlog: Span::ZERO,
        is_relayed: false,
    })
}

fn releases(actions: &[GangAction]) -> Vec<LeaseId> {
    let release = |action: &GangAction| match action {
        GangAction::Release { lease, .. } => Some(*lease),
        _ => None,
    };
    actions.iter().filter_map(release).collect()
}

fn declines(actions: &[GangAction]) -> usize {
    actions.iter().filter(|action| matches!(action, GangAction::Decline { .. })).count()
}

#[test]
fn gang_forms_with_all_members_and_declines_the_others() {
    let mut rig = Rig::new(&[role("trainer", 2, 2), role("server", 1, 1)]);
    let accepts = rig.accept_from(at(0), &[1, 2, 3, 4]);
    assert_eq!(accepts.len(), 3);
    assert_eq!(declines(&rig.actions), 1);
    let closed = |action: &GangAction| matches!(action, GangAction::CloseAdvert { .. });
    assert!(rig.actions.iter().any(closed));
    rig.grant(at(520), accepts[0]);
    rig.grant(at(521), accepts[1]);
    assert!(!rig.gang.is_formed());
    rig.grant(at(522), accepts[2]);
    assert!(rig.is_formed() && rig.gang.is_formed());
    assert_eq!(rig.gang.members().count(), 3);
    assert_eq!(rig.gang.advertises_at(), None, "it lacks nobody");
}

#[test]
fn gang_releases_all_if_one_is_not_granted() {
    let mut rig = Rig::new(&[role("trainer", 2, 2)]);
    let accepts = rig.accept_from(at(0), &[1, 2]);
    let lease = rig.grant(at(520), accepts[0]);
    let (worker, offer, _) = accepts[1];
    rig.act(at(530), |gang, context, actions| {
        gang.offer_unknown(context, worker, offer, actions);
    });
    assert_eq!(releases(&rig.actions), [lease]);
    assert!(matches!(rig.actions.last(), Some(GangAction::Short(_))));
    assert!(!rig.gang.is_formed());
    assert_eq!(rig.gang.members().count(), 0);
    assert!(rig.gang.shortfall().unwrap().is_not_granted);
}

#[test]
fn backoff_and_waiting_time_grow_until_the_gang_is_formed() {
    let mut rig = Rig::new(&[role("trainer", 2, 2)]);
    let (mut delays, mut waited, mut windows) = (Vec::new(), Vec::new(), Vec::new());
    let mut now = at(0);
    for _ in 0..12 {
        rig.wake(now);
        let advert = rig.advert();
        waited.push(advert.waited);
        windows.push(advert.window);
        rig.wake(now + advert.window);
        let next = rig.gang.advertises_at().unwrap();
        delays.push(next.since(now + advert.window));
        now = next;
    }
    assert!(waited.is_sorted() && waited[0] == Span::ZERO, "{waited:?}");
    assert!(windows.is_sorted() && (windows[0], windows[11]) == (WINDOW, WINDOW.times(8)));
    assert!(delays[0] <= ms(100) && delays[11] >= Span::from_secs(15), "{delays:?}");
    assert!(delays.iter().all(|delay| *delay <= Span::from_secs(30)));
}

#[test]
fn lost_accept_is_repeated_and_one_that_is_never_answered_is_declined() {
    let mut rig = Rig::new(&[role("trainer", 2, 2)]);
    let accepts = rig.accept_from(at(0), &[1, 2]);
    rig.grant(at(520), accepts[0]);
    let due = rig.gang.wake_at().unwrap();
    assert_eq!(due, at(500) + REPEAT_ACCEPT_AFTER);
    rig.wake(due);
    assert_eq!(rig.accepts(), [accepts[1]], "only the one without an answer, with its request");
    assert_eq!(rig.wake_until(at(500) + GRANT_TIMEOUT - ms(1)), [], "once");
    rig.wake(at(500) + GRANT_TIMEOUT);
    assert_eq!(declines(&rig.actions), 1, "it may have been granted, and the answer lost");
    assert_eq!(releases(&rig.actions).len(), 1);
}

#[test]
fn late_grant_is_not_expected() {
    let mut rig = Rig::new(&[role("trainer", 1, 1)]);
    let accepts = rig.accept_from(at(0), &[1]);
    rig.wake_until(at(500) + GRANT_TIMEOUT);
    let (worker, offer, request) = accepts[0];
    assert!(!rig.gang.expects(request) && !rig.gang.accepts(worker, offer));
    let granted = (LeaseId::new(at(0), &mut Rng::new(1)), Epoch(1), TTL, None);
    assert!(!rig.act(at(3_000), |gang, context, actions| {
        gang.granted(context, (worker, request), granted, actions)
    }));
    assert_eq!(rig.gang.members().count(), 0);
}

#[test]
fn offer_that_is_repeated_after_its_member_joined_is_known() {
    let mut rig = Rig::new(&[role("trainer", 1, 1)]);
    rig.form(at(0), &[1]);
    let member = rig.gang.members().next().unwrap();
    let (worker, offer) = (member.worker, member.offer);
    assert!(rig.gang.has_offer(worker, offer));
    assert!(!rig.gang.has_offer(worker_id(2), offer));
}

#[test]
fn lost_member_is_replaced_at_once_and_before_newcomers() {
    let mut rig = Rig::new(&[role("trainer", 3, 2)]);
    let leases = rig.form(at(0), &[1, 2, 3]);
    rig.act(at(5_000), |gang, context, actions| {
        for lease in &leases[..2] {
            assert!(gang.lease_ended(context, *lease, LossReason::Unknown, actions));
        }
    });
    assert_eq!(releases(&rig.actions), [], "the others go on");
    assert_eq!(rig.gang.advertises_at(), Some(at(5_000)));
    rig.wake(at(5_000));
    let advert = rig.advert();
    assert!(advert.is_replacement);
    assert_eq!((advert.roles[0].count, advert.roles[0].minimum), (2, 1), "only those it lacks");
    // If that brings nothing, the members that are there stay.
    let all = rig.wake_until(at(5_500));
    assert_eq!(releases(&all), []);
    assert_eq!(rig.gang.members().count(), 1);
    rig.wake_until(rig.gang.advertises_at().unwrap());
    let advert = rig.advert();
    rig.offer(rig.now, &advert, 8);
    rig.offer(rig.now, &advert, 9);
    rig.wake_until(rig.now + advert.window);
    let accepts = rig.accepts();
    assert_eq!(accepts.len(), 2);
    for accept in accepts {
        rig.grant(rig.now + ms(20), accept);
    }
    assert_eq!(rig.gang.members().count(), 3);
    assert!(!rig.is_formed(), "it was formed before");
}

#[test]
fn member_whose_part_is_refused_is_released_and_replaced() {
    let mut rig = Rig::new(&[role("trainer", 1, 1)]);
    let leases = rig.form(at(0), &[1]);
    rig.act(at(1_000), |gang, context, actions| {
        gang.lease_ended(context, leases[0], LossReason::Refused, actions)
    });
    assert_eq!(releases(&rig.actions), leases);
    assert_eq!(rig.gang.advertises_at(), Some(at(1_000)));
}

#[test]
fn gang_with_its_minimum_grows_later() {
    let mut rig = Rig::new(&[role("trainer", 4, 2)]);
    rig.form(at(0), &[1, 2]);
    assert!(rig.is_formed());
    let next = rig.gang.advertises_at().unwrap();
    assert!((at(15_500)..=at(45_600)).contains(&next), "{next}");
    // Its leases expire meanwhile if nobody answers, so the renewals are answered.
    while rig.gang.wake_at().unwrap() < next {
        let due = rig.gang.wake_at().unwrap();
        let renewals: Vec<_> = rig
            .wake(due)
            .iter()
            .filter_map(|action| match action {
                GangAction::Renew { lease, epoch, nonce, .. } => Some((*lease, *epoch, *nonce)),
                _ => None,
            })
            .collect();
        for (lease, epoch, nonce) in renewals {
            assert!(rig.gang.renewed(due, (lease, epoch), nonce));
        }
    }
    rig.wake(next);
    let advert = rig.advert();
    assert!(!advert.is_replacement);
    assert_eq!((advert.roles[0].count, advert.roles[0].minimum), (2, 0));
}

#[test]
fn leases_are_renewed_and_given_up_before_their_workers_do() {
    let mut rig = Rig::new(&[role("trainer", 1, 1)]);
    let leases = rig.form(at(0), &[1]);
    let all = rig.wake_until(at(60_000));
    let is_renewal = |action: &&GangAction| matches!(action, GangAction::Renew { .. });
    assert!(all.iter().filter(is_renewal).count() >= 4, "repeated until the time is over");
    assert_eq!(releases(&all), leases);
    let lost = all.iter().any(|action| {
        matches!(action, GangAction::Lost { reason: LossReason::Expired, member } if member.until() <= at(500) + TTL.mul_f64(0.8))
    });
    assert!(lost);
}

#[test]
fn recovered_gang_renews_before_it_relies_on_its_members() {
    let mut rig = Rig::new(&[role("trainer", 2, 2)]);
    rig.form(at(0), &[1, 2]);
    let stored: Vec<StoredMember> = rig.gang.members().map(|it| it.stored().clone()).collect();
    let leases: Vec<LeaseId> = stored.iter().map(|member| member.lease).collect();
    let roles = [role("trainer", 2, 2)];
    let recovered = Gang::recover(spec(&roles), stored.clone(), (&[0], true), at(2_000));
    let mut rig = Rig::of(recovered);
    assert!(rig.gang.is_formed());
    assert!(rig.gang.members().all(|member| !member.is_usable(at(2_000))));
    rig.wake(at(2_000));
    let nonce = rig.actions.iter().find_map(|action| match action {
        GangAction::Renew { lease, nonce, .. } if *lease == leases[0] => Some(*nonce),
        _ => None,
    });
    assert!(rig.gang.renewed(at(2_040), (leases[0], Epoch(1)), nonce.unwrap()));
    assert!(rig.gang.member(leases[0]).unwrap().is_usable(at(2_040)));
    assert!(!rig.gang.member(leases[1]).unwrap().is_usable(at(2_040)));

    // One that was formed and has lost a member replaces it; one that was not gives up what it has.
    let formed = Gang::recover(spec(&roles), stored[..1].to_vec(), (&[0], true), at(2_000));
    let mut rig = Rig::of(formed);
    rig.wake(at(2_000));
    assert!(rig.advert().is_replacement);
    assert_eq!(releases(&rig.wake_until(at(2_500))), []);
    let unformed = Gang::recover(spec(&roles), stored[..1].to_vec(), (&[0], false), at(2_000));
    let mut rig = Rig::of(unformed);
    rig.wake(at(2_000));
    assert!(!rig.advert().is_replacement);
    assert_eq!(rig.advert().roles[0].minimum, 2);
    assert_eq!(releases(&rig.actions), leases[..1]);
}

#[test]
fn preempted_member_ends_within_the_grace_whatever_is_renewed() {
    let mut rig = Rig::new(&[role("trainer", 1, 1)]);
    let leases = rig.form(at(0), &[1]);
    let grace = Span::from_secs(20);
    assert!(rig.gang.preempted(at(1_000), leases[0], grace));
    let end = at(1_000) + grace.mul_f64(0.8);
    let mut lost_at = None;
    while let Some(due) = rig.gang.wake_at().filter(|due| *due <= at(30_000)) {
        for action in rig.wake(due).to_vec() {
            match action {
                GangAction::Renew { lease, epoch, nonce, .. } => {
                    rig.gang.renewed(due, (lease, epoch), nonce);
                }
                GangAction::Lost { reason, .. } => {
                    assert_eq!(reason, LossReason::Preempted);
                    lost_at = Some(due);
                }
                _ => {}
            }
        }
    }
    assert_eq!(lost_at, Some(end));
}

#[test]
fn adverts_go_out_directly_if_enough_workers_are_connected() {
    let mut rig = Rig::new(&[role("trainer", 2, 2)]);
    rig.candidates = (0..4).map(worker_id).collect();
    rig.wake(at(0));
    let to = |rig: &Rig| match &rig.actions[0] {
        GangAction::Advertise { to, .. } => to.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!((to(&rig).workers.len(), to(&rig).is_gossiped), (4, false));
    let advert = rig.advert().id;
    // All have answered: it does not wait for the end of the window.
    for worker in rig.candidates.clone() {
        rig.act(at(60), |gang, context, actions| {
            gang.not_offered(context, worker, advert, actions);
        });
    }
    assert!(matches!(rig.actions.last(), Some(GangAction::Short(_))));
    let next = rig.gang.advertises_at().unwrap();
    rig.wake(next);
    assert!(to(&rig).is_gossiped, "they had no room: others may have");
    let mut rig = Rig::new(&[role("trainer", 3, 2)]);
    rig.candidates = (0..4).map(worker_id).collect();
    rig.wake(at(0));
    assert!(to(&rig).is_gossiped, "too few to choose from");
}

#[test]
fn member_that_has_done_its_work_is_released_and_not_replaced() {
    let mut rig = Rig::new(&[role("trainer", 2, 2)]);
    let leases = rig.form(at(0), &[1, 2]);
    rig.act(at(1_000), |gang, _, actions| gang.release_member(leases[0], actions));
    assert_eq!(releases(&rig.actions), leases[..1]);
    assert_eq!(rig.gang.advertises_at(), None);
    rig.act(at(2_000), |gang, _, actions| gang.release(actions));
    assert_eq!(releases(&rig.actions), leases[1..]);
}
