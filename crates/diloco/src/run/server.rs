//! What passes between the run and the parameter server: opening, freezing and committing rounds, and finding out where
//! training is.

use std::collections::BTreeMap;

use hypha_model::{Time, WorkerId};

use super::plan::{Assignment, Current, Step};
use super::{Action, RETRY, RoundSummary, RunMutant, RunState, TrainingRun};
use crate::message::{
    Commit, FromServer, OpenState, ParametersId, ServerState, ToServer, ToTrainer,
};
use crate::round::{CloseReason, Quorum, Round, Verdict};
use crate::slices::{AssignmentId, count_samples};

impl TrainingRun {
    pub(super) fn hear_server(&mut self, now: Time, message: FromServer) {
        if self.has_ended {
            return;
        }
        let number = self.current.as_ref().map(|current| current.round.number);
        match message {
            FromServer::State(state) => self.server_told(now, state),
            FromServer::Opened { round, revision } if number == Some(round) => {
                if let Some(current) = &mut self.current
                    && current.revision == revision
                {
                    current.is_opened = true;
                    self.send_extensions(now);
                }
            }
            FromServer::Accepted { round, assignment, samples } if number == Some(round) => {
                self.accepted(now, assignment, samples);
            }
            FromServer::Rejected { round, assignment, reason } if number == Some(round) => {
                self.fail(now, assignment, reason);
            }
            FromServer::Frozen { round, accepted } if number == Some(round) => {
                self.frozen(now, accepted);
            }
            FromServer::Committed { round, parameters } if number == Some(round) => {
                self.committed(now, parameters);
            }
            // Of a round that is over.
            _ => {}
        }
    }

    pub(super) fn send_open(&mut self, now: Time) {
        let revision = self.fresh_id(now);
        let Some(current) = &mut self.current else { return };
        (current.revision, current.is_opened) = (revision, false);
        let Some(round) = self.current.as_ref().and_then(|it| self.open_message(it)) else {
            return;
        };
        self.retry_at = now + RETRY;
        if self.is_server_known {
            self.tell_server(ToServer::Open { revision, round });
        }
    }

    /// Repeats what the server has not answered.
    pub(super) fn ask_server(&mut self, now: Time) {
        if !self.current.as_ref().is_some_and(Current::is_unanswered) || !self.is_retry_due(now) {
            return;
        }
        match self.current.as_ref().map(|current| &current.step) {
            Some(Step::Training) => self.send_open(now),
            Some(Step::Freezing) => self.send_freeze(),
            Some(Step::Committing { .. }) => self.send_commit(),
            None => {}
        }
    }

    /// Freezes the round if it is time.
    pub(super) fn close_round(&mut self, now: Time) {
        let Some(current) = &self.current else { return };
        if !matches!(current.step, Step::Training) {
            return;
        }
        let Verdict::Close(reason) = self.verdict(current, now) else { return };
        let reported: Vec<(AssignmentId, u64)> = current.round.accepted().collect();
        if let Some(current) = &mut self.current {
            current.step = Step::Freezing;
            current.close_reason = reason;
        }
        self.retry_at = now + RETRY;
        if self.is(RunMutant::CommittedUnfrozen) {
            return self.frozen(now, reported);
        }
        self.send_freeze();
    }

    pub(super) fn verdict(&self, current: &Current, now: Time) -> Verdict {
        let grace = self.grace.limit(self.config.schedule.round);
        current.round.verdict(now, current.quorum, grace)
    }

    fn accepted(&mut self, now: Time, assignment: AssignmentId, samples: u64) {
        let Some(current) = &mut self.current else { return };
        let Some(member) = current.assignments.get(&assignment).map(|it| it.member) else { return };
        if current.round.accept(assignment, samples) {
            self.grace.observe(current.round.deadline, now);
            self.forgive(member);
        }
    }

    /// The server accepts no more deltas for the round: these are in it.
    fn frozen(&mut self, now: Time, accepted: Vec<(AssignmentId, u64)>) {
        let Some(current) = &self.current else { return };
        // A message of this run from before a restart of the scheduler can add assignments that it knows nothing of. Their
        // samples may be those of others.
        let is_known = |(id, samples): &(AssignmentId, u64)| {
            *samples <= count_samples(self.state.ledger.assigned(*id))
        };
        if accepted.is_empty() || !accepted.iter().all(is_known) {
            return self.discard_round();
        }
        let mut next = self.state.clone();
        let (mut loss, mut weight) = (0.0, 0.0);
        for (id, samples) in &accepted {
            let whole = count_samples(next.ledger.assigned(*id));
            let it = current.assignments.get(id);
            if let Some(of_delta) = it.and_then(|it| it.loss) {
                loss += of_delta * *samples as f64;
                weight += *samples as f64;
            }
            match () {
                () if self.is(RunMutant::ReleasedAccepted) => next.ledger.release(*id),
                () if self.is(RunMutant::SettledWhole) => {
                    next.ledger.settle(*id, whole);
                }
                () => {
                    next.ledger.settle(*id, *samples);
                }
            }
        }
        current.assignments.keys().for_each(|id| next.ledger.release(*id));
        next.version += 1;
        next.rounds += 1;
        next.loss = (weight > 0.0).then(|| loss / weight);
        next.speeds = self.speeds();
        let stragglers: Vec<(WorkerId, AssignmentId)> = current
            .assignments
            .iter()
            .filter(|(id, _)| !accepted.iter().any(|(accepted, _)| accepted == *id))
            .map(|(id, it)| (it.member, *id))
            .collect();
        for (member, assignment) in stragglers {
            if self.members.contains_key(&member) {
                self.tell_trainer(member, ToTrainer::Abandon { assignment });
            }
        }
        if let Some(current) = &mut self.current {
            current.step = Step::Committing { accepted, next: Box::new(next) };
        }
        self.retry_at = now + RETRY;
        self.send_commit();
    }

    fn committed(&mut self, now: Time, parameters: ParametersId) {
        let Some(current) = self.current.take() else { return };
        let Step::Committing { accepted, next } = current.step else {
            self.current = Some(current);
            return;
        };
        if parameters.version != next.version
            || self.parameters.is_none_or(|before| before.lineage != parameters.lineage)
        {
            self.current = Some(Current { step: Step::Committing { accepted, next }, ..current });
            return;
        }
        // Places may have changed while the server worked.
        let places = std::mem::take(&mut self.state.places);
        let before = self.state.ledger.used_samples();
        self.state = RunState { places, ..*next };
        self.parameters = Some(parameters);
        self.actions.push(Action::RoundClosed(RoundSummary {
            round: current.round.number,
            version: parameters.version,
            reason: current.close_reason,
            deltas: accepted.len() as u32,
            dropped: (current.assignments.len().saturating_sub(accepted.len())) as u32,
            samples: self.state.ledger.used_samples().saturating_sub(before),
            loss: self.state.loss,
            took: now.since(current.opened_at),
        }));
    }

    /// The round has no delta that can be used. Another begins.
    fn discard_round(&mut self) {
        let Some(current) = self.current.take() else { return };
        for (id, it) in current.assignments {
            self.state.ledger.release(id);
            if self.members.contains_key(&it.member) {
                self.tell_trainer(it.member, ToTrainer::Abandon { assignment: id });
            }
        }
    }

    fn server_told(&mut self, now: Time, told: ServerState) {
        self.is_server_known = true;
        if self.parameters != Some(told.parameters) && !self.adopt(&told) {
            return;
        }
        let number = self.current.as_ref().map(|current| current.round.number);
        let open = told.open.filter(|open| open.round.parameters == told.parameters);
        match (open, number) {
            (Some(open), Some(number)) if open.round.round == number => {
                self.compare_accepted(now, &open.accepted);
                if open.is_frozen {
                    self.frozen(now, open.accepted);
                } else if let Some(current) = &mut self.current {
                    current.step = Step::Training;
                    self.send_open(now);
                }
            }
            (Some(open), None) if open.round.round >= self.state.next_round => {
                self.continue_round(now, open);
            }
            (_, Some(_)) => {
                // It has restarted, or has not got the `Open`.
                self.compare_accepted(now, &[]);
                if let Some(current) = &mut self.current {
                    current.step = Step::Training;
                }
                self.send_open(now);
            }
            _ => {}
        }
    }

    /// The server has other parameters than the run thought: training continues from there.
    fn adopt(&mut self, told: &ServerState) -> bool {
        let state = match &told.attachment {
            None if told.parameters.version == 0 => Ok(RunState::new(&self.config)),
            None => Err("the checkpoint has no state of the run".to_owned()),
            Some(attachment) => RunState::decode(attachment)
                .map_err(|error| format!("the state of the run cannot be read: {error}"))
                .and_then(|state| match state.version == told.parameters.version {
                    true => Ok(state),
                    false => Err("the state of the run is of another version".to_owned()),
                }),
        };
        let mut state = match state {
            Ok(state) => state,
            Err(reason) => {
                self.break_off(reason);
                return false;
            }
        };
        self.discard_round();
        if self.parameters.is_some() {
            // Rounds that were opened meanwhile keep their numbers.
            state.next_round = state.next_round.max(self.state.next_round);
            state.places = std::mem::take(&mut self.state.places);
            if self.is(RunMutant::KeptLedger) {
                state.ledger = self.state.ledger.clone();
            }
        }
        self.state = state;
        self.parameters = Some(told.parameters);
        true
    }

    /// The scheduler has restarted while a round was open.
    fn continue_round(&mut self, now: Time, open: OpenState) {
        let OpenState { round: open, accepted, is_frozen } = open;
        let before = self.state.ledger.clone();
        let progress = self.progress();
        let mut round = Round::new(open.round, open.deadline, self.config.schedule.round);
        let mut assignments = BTreeMap::new();
        for it in &open.assignments {
            self.state.ledger.assign(it.assignment, &it.entries);
            self.last_id = self.last_id.max(it.assignment.0);
            round.expect(it.assignment);
            let batch = self.members.get(&it.member).and_then(|member| member.batch);
            let batch = batch.unwrap_or_else(|| self.fallback_batch());
            let samples = count_samples(&it.entries);
            let assignment = Assignment {
                member: it.member,
                batch,
                steps: samples.div_ceil(u64::from(batch.max(1))) as u32,
                is_timed: self.config.fixed.is_none(),
                told_at: now,
                // Its member says what it works on as soon as it is ready.
                is_acknowledged: true,
                is_pushed: false,
                is_extended: true,
                loss: None,
            };
            assignments.insert(it.assignment, assignment);
        }
        self.state.next_round = open.round + 1;
        if !self.state.ledger.is_balanced() {
            // Assignments with the same samples: see `frozen`.
            self.state.ledger = before;
            return;
        }
        let codec = open.assignments.first().map(|it| it.codec);
        let planned = self.state.ledger.assigned_samples();
        let after = crate::schedule::Progress {
            rounds: progress.rounds + 1,
            samples: progress.samples + planned,
            ..progress
        };
        let quorum = match self.config.fixed {
            Some(_) => Quorum::All(assignments.len() as u32),
            None => Quorum::Milli(self.config.quorum_milli),
        };
        self.current = Some(Current {
            round,
            quorum,
            assignments,
            opened_at: now,
            revision: 0,
            is_opened: true,
            is_joinable: false,
            codec: codec.unwrap_or_else(|| self.config.schedule.codec(&progress)),
            rate: self.config.schedule.rates(&progress, &after),
            close_reason: CloseReason::Complete,
            step: Step::Training,
        });
        for (assignment, samples) in &accepted {
            self.accepted(now, *assignment, *samples);
        }
        if is_frozen {
            self.frozen(now, accepted);
        }
    }

    fn fallback_batch(&self) -> u32 {
        self.config.fixed.map_or(self.config.memory.max_batch, |fixed| fixed.batch)
    }

    /// What the server has accepted is exactly this.
    fn compare_accepted(&mut self, now: Time, accepted: &[(AssignmentId, u64)]) {
        let Some(current) = &mut self.current else { return };
        let had: Vec<AssignmentId> = current.round.accepted().map(|(id, _)| id).collect();
        current.round.forget_accepted();
        for (id, samples) in accepted {
            current.round.accept(*id, *samples);
        }
        let lost: Vec<AssignmentId> =
            had.into_iter().filter(|id| current.round.is_expected(*id)).collect();
        for id in lost {
            let Some(it) = self.current.as_mut().and_then(|it| it.assignments.get_mut(&id)) else {
                continue;
            };
            let member = it.member;
            it.is_acknowledged = false;
            if self.members.contains_key(&member) {
                // It pushes again.
                self.send_training(now, id);
            } else if let Some(current) = &mut self.current {
                current.round.give_up(id);
            }
        }
    }

    fn send_freeze(&mut self) {
        if let Some(round) = self.current.as_ref().map(|current| current.round.number) {
            self.tell_server(ToServer::Freeze { round });
        }
    }

    fn send_commit(&mut self) {
        let (Some(current), Some(parameters)) = (&self.current, self.parameters) else { return };
        let Step::Committing { accepted, next } = &current.step else { return };
        let is_done = self.config.schedule.done(&next.progress()) >= 1.0;
        let commit = next.encode().map(|attachment| Commit {
            round: current.round.number,
            parameters,
            accepted: accepted.clone(),
            attachment,
            is_stored_outside: is_done || self.config.schedule.is_checkpoint(next.rounds),
        });
        match commit {
            Ok(commit) => self.tell_server(ToServer::Commit(commit)),
            Err(error) => {
                self.break_off(format!("the state of the run cannot be written: {error}"))
            }
        }
    }

    fn speeds(&self) -> BTreeMap<WorkerId, f64> {
        let speed = |(id, member): (&WorkerId, &super::members::Member)| {
            Some((*id, member.meter.samples_per_s()?))
        };
        self.members.iter().filter_map(speed).collect()
    }
}
