//! How a round is planned, opened and extended.

use std::collections::{BTreeMap, BTreeSet};

use hypha_model::{Span, Time, WorkerId};

use super::{Action, RunState, TrainingRun};
use crate::budget::{Budget, Pace, plan_round, samples_for};
use crate::message::{OpenAssignment, OpenRound, ToTrainer, Training};
use crate::round::{CloseReason, Quorum, Round};
use crate::schedule::{Codec, Phase, Progress, RateRange, WarmStart};
use crate::slices::{AssignmentId, Preference, SliceId, count_samples};

/// A member that comes while a round is open starts at once if at least this part of the round is left; otherwise with the
/// next round. Fetching the parameters would take most of what is left.
const WORTH_JOINING: f64 = 0.125;
/// The last samples are divided exactly, so that members get this much more time for them than expected.
const LAST_ROUND_FACTOR: f64 = 1.25;

/// The round in progress.
#[derive(Clone, Debug)]
pub(super) struct Current {
    pub(super) round: Round,
    pub(super) quorum: Quorum,
    pub(super) assignments: BTreeMap<AssignmentId, Assignment>,
    pub(super) opened_at: Time,
    /// Of the newest `Open`.
    pub(super) revision: u64,
    /// Whether the server has answered it.
    pub(super) is_opened: bool,
    /// Whether members may come while it is open.
    pub(super) is_joinable: bool,
    pub(super) codec: Codec,
    pub(super) rate: RateRange,
    pub(super) close_reason: CloseReason,
    pub(super) step: Step,
}

/// How far a round is.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Training,
    Freezing,
    Committing {
        accepted: Vec<(AssignmentId, u64)>,
        /// The state of the run after the round.
        next: Box<RunState>,
    },
}

/// What a member does in the round.
#[derive(Clone, Debug)]
pub(super) struct Assignment {
    pub(super) member: WorkerId,
    pub(super) batch: u32,
    pub(super) steps: u32,
    /// Whether it stops at the deadline, even with samples left.
    pub(super) is_timed: bool,
    pub(super) told_at: Time,
    /// Whether its member has said anything about it since it was told.
    pub(super) is_acknowledged: bool,
    pub(super) is_pushed: bool,
    /// Whether its member has to be told of more entries, as soon as the server knows them.
    pub(super) is_extended: bool,
    pub(super) loss: Option<f64>,
}

/// One member's part of a plan.
struct Part {
    member: WorkerId,
    batch: u32,
    steps: u32,
    samples: u64,
    lane: Option<u32>,
}

impl Current {
    /// Whether the server has to answer something.
    pub(super) fn is_unanswered(&self) -> bool {
        !matches!(self.step, Step::Training) || !self.is_opened
    }

    /// Whether a delta of this member is expected that it has not pushed.
    pub(super) fn awaits(&self, member: WorkerId) -> bool {
        let mut of_member = self.assignments.iter().filter(|(_, it)| it.member == member);
        of_member.any(|(id, it)| self.round.is_expected(*id) && !it.is_pushed)
    }
}

impl TrainingRun {
    /// Begins the next round, or ends the run.
    pub(super) fn open_round(&mut self, now: Time) {
        let progress = self.progress();
        if self.config.schedule.done(&progress) >= 1.0 || self.open_samples() == 0 {
            self.has_ended = true;
            self.actions.push(Action::Finished);
            return;
        }
        if self.is_paused || self.parameters.is_none() {
            return;
        }
        self.fill_places(now);
        let phase = self.config.schedule.phase(&progress);
        let parts = match (self.config.fixed, phase) {
            (Some(_), _) => self.plan_fixed(phase),
            (None, Phase::WarmStart(WarmStart::Synchronous { steps })) => {
                self.plan_synchronous(steps)
            }
            (None, _) => self.plan_timed(phase),
        };
        let Some((parts, duration)) = parts else { return };
        let planned: u64 =
            parts.iter().map(|it| u64::from(it.steps) * u64::from(it.batch)).sum::<u64>();
        let after = Progress {
            rounds: progress.rounds + 1,
            samples: progress.samples + planned,
            ..progress
        };
        let is_timed = self.config.fixed.is_none()
            && !matches!(phase, Phase::WarmStart(WarmStart::Synchronous { .. }));
        let mut current = Current {
            round: Round::new(self.state.next_round, now + duration, self.config.schedule.round),
            quorum: Quorum::Milli(self.config.quorum_milli),
            assignments: BTreeMap::new(),
            opened_at: now,
            revision: 0,
            is_opened: false,
            is_joinable: is_timed && phase == Phase::Main,
            codec: self.config.schedule.codec(&progress),
            rate: self.config.schedule.rates(&progress, &after),
            close_reason: CloseReason::Complete,
            step: Step::Training,
        };
        for part in parts {
            self.assign(now, &mut current, &part, is_timed);
        }
        if self.config.fixed.is_some() {
            current.quorum = Quorum::All(current.assignments.len() as u32);
        }
        let assignments: Vec<AssignmentId> = current.assignments.keys().copied().collect();
        if assignments.is_empty() {
            return;
        }
        self.state.next_round += 1;
        self.current = Some(current);
        self.send_open(now);
        assignments.into_iter().for_each(|it| self.send_training(now, it));
    }

    /// A member has become ready while a round may be open.
    pub(super) fn start_member(&mut self, now: Time, member: WorkerId) {
        let open = self.open_samples();
        let Some(current) = &mut self.current else { return };
        if !matches!(current.step, Step::Training) {
            return;
        }
        let mut of_member = current.assignments.iter().filter(|(_, it)| it.member == member);
        let own = of_member.next().map(|(id, it)| (*id, it.is_timed));
        let left = current.round.deadline.since(now);
        let is_worth_it = left >= current.round.target.mul_f64(WORTH_JOINING);
        match own {
            Some((id, _)) if current.round.is_accepted(id) => {}
            Some((id, is_timed)) if is_worth_it || !is_timed => {
                current.round.expect(id);
                self.send_training(now, id);
            }
            Some((id, _)) => current.round.give_up(id),
            None if is_worth_it && current.is_joinable && open > 0 => {
                let Some(mut current) = self.current.take() else { return };
                if let Some(part) = self.part_for(member, left, open) {
                    let assignment = self.assign(now, &mut current, &part, true);
                    self.current = Some(current);
                    if let Some(assignment) = assignment {
                        self.send_open(now);
                        self.send_training(now, assignment);
                    }
                } else {
                    self.current = Some(current);
                }
            }
            None => {}
        }
    }

    /// A member is faster than was expected: it gets more samples, so that it does not wait for the end of the round.
    pub(super) fn extend(
        &mut self,
        now: Time,
        member: WorkerId,
        assignment: AssignmentId,
        trained: u64,
    ) {
        let open = self.open_samples();
        let speed = self.members.get(&member).and_then(|it| it.meter.samples_per_s());
        let (Some(speed), Some(current)) = (speed, &self.current) else { return };
        let Some(it) = current.assignments.get(&assignment) else { return };
        if !it.is_timed || it.is_pushed || !matches!(current.step, Step::Training) {
            return;
        }
        let left = current.round.deadline.since(now).as_secs_f64();
        let wanted = trained as f64 + left * speed;
        let steps = (wanted / f64::from(it.batch.max(1))).ceil() as u32;
        let has = count_samples(self.state.ledger.assigned(assignment));
        if u64::from(steps) * u64::from(it.batch) <= has {
            return;
        }
        let more = samples_for(steps, it.batch).saturating_sub(has).min(open);
        let entries = self.choose(member, more, None);
        if entries.is_empty() {
            return;
        }
        self.state.ledger.assign(assignment, &entries);
        if let Some(it) =
            self.current.as_mut().and_then(|current| current.assignments.get_mut(&assignment))
        {
            it.steps = it.steps.max(steps);
            it.is_extended = true;
        }
        self.send_open(now);
    }

    /// Tells members of their additional entries, which the server knows now.
    pub(super) fn send_extensions(&mut self, now: Time) {
        let Some(current) = &mut self.current else { return };
        let deadline = current.round.deadline;
        let mut messages = Vec::new();
        for (id, it) in current.assignments.iter_mut().filter(|(_, it)| it.is_extended) {
            it.is_extended = false;
            let budget = it.budget(now, deadline);
            let entries = self.state.ledger.assigned(*id).to_vec();
            let message = ToTrainer::Extend { assignment: *id, entries, budget };
            messages.push((it.member, message));
        }
        for (member, message) in messages {
            self.tell_trainer(member, message);
        }
    }

    /// Tells a member what to do in the round.
    pub(super) fn send_training(&mut self, now: Time, assignment: AssignmentId) {
        let Some(parameters) = self.parameters else { return };
        let Some(current) = &mut self.current else { return };
        let Some(it) = current.assignments.get_mut(&assignment) else { return };
        it.told_at = now;
        let (member, batch) = (it.member, it.batch);
        let budget = it.budget(now, current.round.deadline);
        let training = Training {
            round: current.round.number,
            assignment,
            entries: self.state.ledger.assigned(assignment).to_vec(),
            budget,
            rate: current.rate,
            codec: current.codec,
            parameters,
            prefetch: Vec::new(),
        };
        let prefetch = self.prefetch(member, u64::from(budget.steps) * u64::from(batch));
        let message = ToTrainer::Train(Training { prefetch, ..training });
        self.tell_trainer(member, message);
    }

    /// The `Open` of the current round.
    pub(super) fn open_message(&self, current: &Current) -> Option<OpenRound> {
        let of = |(id, it): (&AssignmentId, &Assignment)| OpenAssignment {
            member: it.member,
            assignment: *id,
            codec: current.codec,
            entries: self.state.ledger.assigned(*id).to_vec(),
        };
        Some(OpenRound {
            round: current.round.number,
            parameters: self.parameters?,
            deadline: current.round.deadline,
            assignments: current.assignments.iter().map(of).collect(),
        })
    }

    /// In fixed mode: gives vacant places to members without one, and the place's assignment with it.
    pub(super) fn fill_places(&mut self, now: Time) {
        let mut filled = Vec::new();
        for (lane, place) in self.state.places.iter_mut().enumerate() {
            if place.is_some_and(|id| self.members.get(&id).is_some_and(|it| !it.is_unfit)) {
                continue;
            }
            *place = None;
            filled.push(lane);
        }
        for lane in filled {
            let mut free = self.members.iter().filter(|(id, member)| {
                member.is_ready() && !self.state.places.contains(&Some(**id))
            });
            let Some(id) = free.next().map(|(id, _)| *id) else { return };
            if let Some(place) = self.state.places.get_mut(lane) {
                *place = Some(id);
            }
            self.take_over(now, lane as u32, id);
        }
    }

    /// In fixed mode, the assignment of a place goes to its new member.
    fn take_over(&mut self, now: Time, lane: u32, member: WorkerId) {
        let Some(current) = &mut self.current else { return };
        let lanes = self.config.fixed.map_or(1, |fixed| fixed.members);
        let ledger = &self.state.ledger;
        let is_of_lane = |id: &AssignmentId| {
            ledger.assigned(*id).first().is_some_and(|entry| entry.position % lanes == lane)
        };
        let Some((id, it)) = current.assignments.iter_mut().find(|(id, _)| is_of_lane(id)) else {
            return;
        };
        if it.member == member || current.round.is_accepted(*id) {
            return;
        }
        (it.member, it.is_acknowledged, it.is_pushed) = (member, false, false);
        let id = *id;
        current.round.expect(id);
        self.send_open(now);
        self.send_training(now, id);
    }

    /// How many further samples may be assigned.
    fn open_samples(&self) -> u64 {
        let available = self.state.ledger.available_samples();
        let progress = self.progress();
        let taken = progress.samples + self.state.ledger.assigned_samples();
        let total = self.config.schedule.samples(&progress).unwrap_or(u64::MAX);
        available.min(total.saturating_sub(taken))
    }

    fn ready_members(&self) -> Vec<(WorkerId, Pace)> {
        let ready = self.members.iter().filter(|(_, member)| member.is_ready());
        let pace = |(id, member): (&WorkerId, &super::members::Member)| {
            let samples_per_s = member.meter.samples_per_s();
            Some((*id, Pace { batch: member.batch?, samples_per_s }))
        };
        ready.filter_map(pace).collect()
    }

    /// All members train until the deadline; the fastest alone in a warm start of one member.
    fn plan_timed(&self, phase: Phase) -> Option<(Vec<Part>, Span)> {
        let mut ready = self.ready_members();
        if ready.len() < self.config.min_members.max(1) as usize {
            return None;
        }
        if phase != Phase::Main {
            let speed = |(_, pace): &(WorkerId, Pace)| pace.samples_per_s.unwrap_or(0.0);
            ready.sort_by(|a, b| speed(b).total_cmp(&speed(a)));
            ready.truncate(1);
        }
        let paces: Vec<Pace> = ready.iter().map(|(_, pace)| *pace).collect();
        let open = self.open_samples();
        let target = self.config.schedule.round;
        let plan = plan_round(&paces, target, open);
        let headroom: u64 = paces
            .iter()
            .zip(&plan.steps)
            .map(|(pace, steps)| samples_for(*steps, pace.batch))
            .sum();
        let is_last = headroom > open;
        let part = |((member, pace), steps): (&(WorkerId, Pace), &u32)| {
            let exact = u64::from(*steps) * u64::from(pace.batch);
            let samples = if is_last { exact } else { samples_for(*steps, pace.batch) };
            Part { member: *member, batch: pace.batch, steps: *steps, samples, lane: None }
        };
        let parts: Vec<Part> = ready.iter().zip(&plan.steps).map(part).collect();
        let longest = parts.iter().zip(&paces).map(|(part, pace)| part.expected(pace)).max();
        let factor = if is_last { LAST_ROUND_FACTOR } else { 1.0 };
        let longest = longest.unwrap_or_default().max(plan.duration);
        // Only steps that are longer than the round may make it longer.
        let duration = if is_last || longest > target.times(2) { longest } else { plan.duration };
        Some((parts, duration.mul_f64(factor)))
    }

    /// All members make the same few steps.
    fn plan_synchronous(&self, steps: u32) -> Option<(Vec<Part>, Span)> {
        let ready = self.ready_members();
        if ready.len() < self.config.min_members.max(1) as usize {
            return None;
        }
        let part = |(member, pace): &(WorkerId, Pace)| {
            let samples = u64::from(steps) * u64::from(pace.batch);
            Part { member: *member, batch: pace.batch, steps, samples, lane: None }
        };
        let parts: Vec<Part> = ready.iter().map(part).collect();
        let longest = parts.iter().zip(&ready).map(|(part, (_, pace))| part.expected(pace)).max();
        let is_known = ready.iter().all(|(_, pace)| pace.samples_per_s.is_some());
        let duration = longest.filter(|_| is_known).unwrap_or(self.config.schedule.round);
        Some((parts, duration))
    }

    /// All places make the same steps.
    fn plan_fixed(&self, phase: Phase) -> Option<(Vec<Part>, Span)> {
        let fixed = self.config.fixed?;
        let steps = match phase {
            Phase::WarmStart(WarmStart::Synchronous { steps }) => steps,
            _ => fixed.steps,
        };
        let places = match phase {
            Phase::WarmStart(WarmStart::OneMember) => 1,
            _ => self.state.places.len(),
        };
        let part = |(place, lane): (&Option<WorkerId>, u32)| {
            let member = (*place).filter(|id| self.members.get(id).is_some_and(|it| it.is_ready()));
            let samples = u64::from(steps) * u64::from(fixed.batch);
            let batch = fixed.batch;
            member.map(|member| Part { member, batch, steps, samples, lane: Some(lane) })
        };
        // Who has the other places does not matter to a round of one, but it waits for them, so that joining late changes
        // nothing.
        let parts: Option<Vec<Part>> = self.state.places.iter().zip(0..).map(part).collect();
        let mut parts = parts?;
        parts.truncate(places);
        Some((parts, self.config.schedule.round))
    }

    fn part_for(&self, member: WorkerId, left: Span, open: u64) -> Option<Part> {
        let ready = self.ready_members();
        let paces: Vec<Pace> = ready.iter().map(|(_, pace)| *pace).collect();
        let plan = plan_round(&paces, left, u64::MAX);
        let ((_, pace), steps) =
            ready.iter().zip(&plan.steps).find(|((id, _), _)| *id == member)?;
        let samples = samples_for(*steps, pace.batch).min(open);
        Some(Part { member, batch: pace.batch, steps: *steps, samples, lane: None })
    }

    fn assign(
        &mut self,
        now: Time,
        current: &mut Current,
        part: &Part,
        is_timed: bool,
    ) -> Option<AssignmentId> {
        let entries = self.choose(part.member, part.samples.min(self.open_samples()), part.lane);
        let samples = count_samples(&entries);
        if samples == 0 {
            return None;
        }
        let id = AssignmentId(self.fresh_id(now));
        self.state.ledger.assign(id, &entries);
        let most = samples.div_ceil(u64::from(part.batch.max(1)));
        let assignment = Assignment {
            member: part.member,
            batch: part.batch,
            steps: part.steps.min(most as u32),
            is_timed,
            told_at: now,
            is_acknowledged: false,
            is_pushed: false,
            is_extended: false,
            loss: None,
        };
        current.assignments.insert(id, assignment);
        current.round.expect(id);
        if let Some(member) = self.members.get_mut(&part.member) {
            member.heard_at = now;
            member.cached.extend(entries.iter().map(|entry| entry.slice));
        }
        Some(id)
    }

    fn choose(
        &self,
        member: WorkerId,
        samples: u64,
        lane: Option<u32>,
    ) -> Vec<crate::slices::Entry> {
        let avoided = self.cached_by_others(member);
        let cached = self.members.get(&member).map(|it| &it.cached);
        let preference = Preference { cached, avoided: Some(&avoided), lane };
        self.state.ledger.choose(samples, &preference)
    }

    /// The slices that a member will probably need next, of which it has none.
    fn prefetch(&mut self, member: WorkerId, samples: u64) -> Vec<SliceId> {
        let place = self.state.places.iter().position(|place| *place == Some(member));
        let next = self.choose(member, samples, place.map(|lane| lane as u32));
        let Some(member) = self.members.get_mut(&member) else { return Vec::new() };
        let slices: BTreeSet<SliceId> = next.iter().map(|entry| entry.slice).collect();
        let missing: Vec<SliceId> = slices.difference(&member.cached).copied().collect();
        member.cached.extend(&missing);
        missing
    }

    fn cached_by_others(&self, member: WorkerId) -> BTreeSet<SliceId> {
        let others = self.members.iter().filter(|(id, _)| **id != member);
        others.flat_map(|(_, it)| it.cached.iter().copied()).collect()
    }
}

impl Part {
    /// How long it takes, if the speed is known.
    fn expected(&self, pace: &Pace) -> Span {
        let samples = f64::from(self.steps) * f64::from(self.batch);
        pace.samples_per_s.map_or(Span::ZERO, |speed| Span::from_secs_f64(samples / speed))
    }
}

impl Assignment {
    fn budget(&self, now: Time, deadline: Time) -> Budget {
        let stop_after = self.is_timed.then_some(deadline.since(now));
        Budget { batch: self.batch, steps: self.steps, stop_after }
    }
}
