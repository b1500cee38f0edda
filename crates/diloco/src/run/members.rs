//! Members: who can train, how fast, and what each says of its assignment.

use std::collections::BTreeSet;

use hypha_model::{Span, Time, WorkerId};

use super::plan::{Assignment, Step};
use super::{Action, RETRY, RunMutant, TrainingRun};
use crate::budget::{MemberRefusal, SpeedMeter};
use crate::message::{FromTrainer, ToTrainer};
use crate::slices::{AssignmentId, SliceId};

/// A member whose assignments fail this many times in a row is unfit: once may be chance, and twice a bad batch.
const MAX_FAILURES: u32 = 3;

/// A worker that runs the trainer.
#[derive(Clone, Debug)]
pub(super) struct Member {
    /// Samples of a step; `None` until it is ready.
    pub(super) batch: Option<u32>,
    pub(super) cached: BTreeSet<SliceId>,
    pub(super) meter: SpeedMeter,
    pub(super) joined_at: Time,
    /// When it was asked whether it is ready.
    asked_at: Time,
    /// When it last sent anything, or got something to do.
    pub(super) heard_at: Time,
    /// The assignment that `steps`, `samples` and `busy` are of.
    reported: AssignmentId,
    steps: u32,
    samples: u64,
    busy: Span,
    /// Over all assignments.
    pub(super) total_busy: Span,
    pub(super) loss: Option<f64>,
    failures: u32,
    pub(super) is_stalled: bool,
    pub(super) is_unfit: bool,
}

impl Member {
    /// Whether it gets assignments.
    pub(super) fn is_ready(&self) -> bool {
        self.batch.is_some() && !self.is_unfit
    }

    fn observe(&mut self, assignment: AssignmentId, steps: u32, samples: u64, busy: Span) {
        if assignment < self.reported {
            return;
        }
        // Fewer than before: its process has restarted and does the assignment again.
        if assignment > self.reported || (steps < self.steps && busy < self.busy) {
            (self.reported, self.steps, self.samples, self.busy) = (assignment, 0, 0, Span::ZERO);
        }
        if steps > self.steps && samples >= self.samples {
            let more_busy = busy - self.busy;
            self.meter.observe(steps - self.steps, samples - self.samples, more_busy);
            self.total_busy += more_busy;
            (self.steps, self.samples, self.busy) = (steps, samples, busy);
        }
    }
}

impl TrainingRun {
    pub(super) fn join(&mut self, now: Time, id: WorkerId) {
        if !self.members.contains_key(&id) && self.members.len() >= self.config.max_members as usize
        {
            let refusal = MemberRefusal::TooManyMembers;
            self.actions.push(Action::MemberRefused { member: id, refusal });
            return;
        }
        let guess = self.members.get(&id).and_then(|member| member.meter.samples_per_s());
        let guess = guess.or_else(|| self.state.speeds.get(&id).copied());
        let member = Member {
            batch: None,
            cached: BTreeSet::new(),
            meter: SpeedMeter::with_guess(guess),
            joined_at: now,
            // Its `Ready` is probably on its way.
            asked_at: now,
            heard_at: now,
            reported: AssignmentId(0),
            steps: 0,
            samples: 0,
            busy: Span::ZERO,
            total_busy: Span::ZERO,
            loss: None,
            failures: 0,
            is_stalled: false,
            is_unfit: false,
        };
        self.members.insert(id, member);
    }

    pub(super) fn lose(&mut self, now: Time, id: WorkerId) {
        if self.members.remove(&id).is_none() {
            return;
        }
        for place in self.state.places.iter_mut().filter(|place| **place == Some(id)) {
            *place = None;
        }
        let releases = self.is(RunMutant::ReleasedAtOnce);
        if let Some(current) = &mut self.current {
            for (assignment, _) in current.assignments.iter().filter(|(_, it)| it.member == id) {
                current.round.give_up(*assignment);
                if releases && !current.round.is_accepted(*assignment) {
                    self.state.ledger.release(*assignment);
                }
            }
        }
        self.fill_places(now);
    }

    pub(super) fn hear_trainer(&mut self, now: Time, id: WorkerId, message: FromTrainer) {
        let Some(member) = self.members.get_mut(&id) else { return };
        (member.heard_at, member.is_stalled) = (now, false);
        match message {
            FromTrainer::Ready { memory_bytes, cached, assignment } => {
                self.member_ready(now, id, memory_bytes, cached, assignment);
            }
            FromTrainer::Progress { assignment, steps, samples, loss, busy } => {
                member.loss = loss.or(member.loss);
                member.observe(assignment, steps, samples, busy);
                let Some(it) = self.assignment_of(id, assignment) else {
                    // It has missed the end of its round.
                    return self.tell_trainer(id, ToTrainer::Abandon { assignment });
                };
                it.is_acknowledged = true;
                it.loss = loss.or(it.loss);
                self.expect(assignment);
                self.extend(now, id, assignment, samples);
            }
            FromTrainer::Pushed { assignment, loss, .. } => {
                if let Some(it) = self.assignment_of(id, assignment) {
                    it.is_acknowledged = true;
                    it.is_pushed = true;
                    it.loss = loss.or(it.loss);
                    self.expect(assignment);
                }
            }
            FromTrainer::Failed { assignment, reason } => {
                if self.assignment_of(id, assignment).is_some() {
                    self.fail(now, assignment, reason);
                }
            }
        }
    }

    fn member_ready(
        &mut self,
        now: Time,
        id: WorkerId,
        memory_bytes: u64,
        cached: Vec<SliceId>,
        works_on: Option<AssignmentId>,
    ) {
        let batch = match self.config.fixed {
            Some(fixed) => self.config.memory.batch(memory_bytes).map(|_| fixed.batch),
            None => self.config.memory.batch(memory_bytes),
        };
        let Some(member) = self.members.get_mut(&id) else { return };
        member.cached = cached.into_iter().collect();
        match batch {
            Ok(batch) => member.batch = Some(batch),
            Err(refusal) => {
                self.members.remove(&id);
                self.actions.push(Action::MemberRefused { member: id, refusal });
                return;
            }
        }
        match works_on {
            Some(works_on) if self.assignment_of(id, works_on).is_some() => {
                self.expect(works_on);
                return;
            }
            Some(assignment) => self.tell_trainer(id, ToTrainer::Abandon { assignment }),
            None => {
                if let Some(member) = self.members.get_mut(&id) {
                    member.meter.restart();
                }
            }
        }
        self.fill_places(now);
        self.start_member(now, id);
    }

    /// An assignment failed: its delta was rejected, or its member said so.
    pub(super) fn fail(&mut self, now: Time, assignment: AssignmentId, reason: String) {
        let is_fixed = self.config.fixed.is_some();
        let Some(current) = &mut self.current else { return };
        let Some(it) = current.assignments.get_mut(&assignment) else { return };
        if !current.round.is_expected(assignment) {
            return;
        }
        let id = it.member;
        (it.is_pushed, it.told_at) = (false, now);
        if is_fixed {
            // The round needs it: it is told again after a while, or its successor is.
            it.is_acknowledged = false;
        } else {
            current.round.give_up(assignment);
        }
        let Some(member) = self.members.get_mut(&id) else { return };
        member.failures += 1;
        if member.failures >= MAX_FAILURES && !member.is_unfit {
            member.is_unfit = true;
            self.actions.push(Action::MemberUnfit { member: id, reason });
        }
    }

    pub(super) fn forgive(&mut self, id: WorkerId) {
        if let Some(member) = self.members.get_mut(&id) {
            member.failures = 0;
        }
    }

    /// Repeats what members have not answered, and reports those that say nothing.
    pub(super) fn ask_members(&mut self, now: Time) {
        let stall_after = self.config.stall_after;
        let mut stalled = Vec::new();
        let mut asked = Vec::new();
        for (id, member) in &mut self.members {
            let has_work = match &self.current {
                _ if member.batch.is_none() => true,
                Some(current) => current.awaits(*id),
                None => false,
            };
            let silent = now.since(member.heard_at);
            if has_work && !member.is_stalled && silent >= stall_after {
                member.is_stalled = true;
                stalled.push((*id, silent));
            }
            if member.batch.is_none() && now >= member.asked_at + RETRY {
                member.asked_at = now;
                asked.push(*id);
            }
        }
        for (member, silent) in stalled {
            self.give_up_of(member);
            self.actions.push(Action::MemberStalled { member, silent });
        }
        for member in asked {
            self.tell_trainer(member, ToTrainer::Tell);
        }
        let untold = self.untold();
        let due = untold.filter(|(_, it)| now >= it.told_at + RETRY).map(|(id, _)| id);
        for assignment in due.collect::<Vec<_>>() {
            self.send_training(now, assignment);
        }
    }

    pub(super) fn members_wake_at(&self) -> Time {
        let of_member = |(id, member): (&WorkerId, &Member)| {
            let stall = match &self.current {
                _ if member.is_stalled => Time::MAX,
                Some(current) if current.awaits(*id) => member.heard_at + self.config.stall_after,
                _ => Time::MAX,
            };
            if member.batch.is_none() { stall.min(member.asked_at + RETRY) } else { stall }
        };
        let members = self.members.iter().map(of_member);
        let untold = self.untold().map(|(_, it)| it.told_at + RETRY);
        members.chain(untold).min().unwrap_or(Time::MAX)
    }

    /// Assignments that a member was told and has not answered, or has pushed and the server has not accepted.
    fn untold(&self) -> impl Iterator<Item = (AssignmentId, &Assignment)> {
        let current = self.current.iter().filter(|it| matches!(it.step, Step::Training));
        current.flat_map(|current| {
            current.assignments.iter().filter_map(|(id, it)| {
                let is_open = current.round.is_expected(*id)
                    && self.members.get(&it.member).is_some_and(Member::is_ready);
                (is_open && (!it.is_acknowledged || it.is_pushed)).then_some((*id, it))
            })
        })
    }

    fn give_up_of(&mut self, member: WorkerId) {
        if let Some(current) = &mut self.current {
            let of = current.assignments.iter().filter(|(_, it)| it.member == member);
            of.for_each(|(id, _)| current.round.give_up(*id));
        }
    }

    /// The assignment, if it is of the current round and of this member.
    fn assignment_of(&mut self, member: WorkerId, id: AssignmentId) -> Option<&mut Assignment> {
        let it = self.current.as_mut()?.assignments.get_mut(&id)?;
        (it.member == member).then_some(it)
    }

    pub(super) fn expect(&mut self, assignment: AssignmentId) {
        if let Some(current) = &mut self.current {
            current.round.expect(assignment);
        }
    }
}
