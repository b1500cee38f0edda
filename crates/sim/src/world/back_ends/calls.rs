//! The back ends' own side: what comes of a call, what they work on, what they forget, and whom they call back.

use hypha_engine::back_end::{Enqueued, Fetched, Report};
use hypha_engine::{Outcome, RunId};
use hypha_model::{FailureKind, Payload, Span, TaskError, Time};

use super::{BackEndKind, CALL_WITHIN, HttpEvent, Job, TRIP};
use crate::watch::Violation;
use crate::world::World;
use crate::world::faults::Condition;

/// A late callback comes up to this long after the end.
const MOST_LATE: Span = Span::from_secs(6);

/// A request to a back end.
#[derive(Clone, Debug)]
pub(in crate::world) struct Call {
    pub(super) id: RunId,
    pub(super) serial: u64,
    pub(super) turn: u64,
    pub(super) index: usize,
    pub(super) asks: Asks,
}

/// What is asked.
#[derive(Clone, Debug)]
pub(super) enum Asks {
    /// Run this and answer with the result.
    Run,
    /// Take this.
    Enqueue,
    /// What became of this?
    Fetch(u64),
}

/// What came of a call.
#[derive(Clone, Debug)]
pub(in crate::world) enum Answer {
    Ran(Outcome),
    Enqueued {
        enqueued: Enqueued,
        /// It did not answer at all.
        silent: bool,
    },
    Fetched(Fetched),
}

impl World {
    /// A call arrives at a back end; its sender was in this life.
    pub(super) fn call_arrives(
        &mut self,
        worker: usize,
        life: u32,
        call: Call,
    ) -> Result<(), Violation> {
        match self.condition(worker) {
            Some((Condition::Unreachable, _)) => {
                let answer = unreached(&call.asks);
                self.answer(worker, life, self.now + TRIP, &call, answer);
            }
            // It reads its connections when it goes on. A caller may have given up by then, and it cannot know.
            Some((Condition::Hung, until)) => {
                if !matches!(call.asks, Asks::Run) {
                    let (at, answer) = (self.now + CALL_WITHIN, silent(&call.asks));
                    if until > at {
                        self.answer(worker, life, at, &call, answer);
                    }
                }
                self.agenda.add(
                    until,
                    crate::world::agenda::Happening::Http {
                        worker,
                        life,
                        event: HttpEvent::Arrives(call),
                    },
                );
            }
            Some((Condition::Busy, _)) if !matches!(call.asks, Asks::Fetch(_)) => {
                let answer = match call.asks {
                    Asks::Run => Answer::Ran(failed("the server answered 429")),
                    _ => Answer::Enqueued { enqueued: Enqueued::Busy, silent: false },
                };
                self.answer(worker, life, self.now + TRIP, &call, answer);
            }
            Some((Condition::Failing, _)) if !matches!(call.asks, Asks::Fetch(_)) => {
                let outcome = failed("the server answered 500");
                let answer = match call.asks {
                    Asks::Run => Answer::Ran(outcome),
                    _ => Answer::Enqueued { enqueued: Enqueued::Failed(outcome), silent: false },
                };
                self.answer(worker, life, self.now + TRIP, &call, answer);
            }
            _ => return self.call_is_taken(worker, life, call),
        }
        Ok(())
    }

    fn call_is_taken(&mut self, worker: usize, life: u32, call: Call) -> Result<(), Violation> {
        match call.asks {
            Asks::Run => {
                self.begin_job(worker, &call);
            }
            Asks::Enqueue => {
                let Some(back_end) = self.back_ends.get(&worker) else { return Ok(()) };
                let runs_already =
                    back_end.jobs.values().any(|job| job.id == call.id && !job.has_ended);
                self.watch.handed_over(call.id, runs_already)?;
                let job = self.begin_job(worker, &call);
                let enqueued = Enqueued::Taken(Some(job.to_string().into()));
                let answer = Answer::Enqueued { enqueued, silent: false };
                self.answer(worker, life, self.now + TRIP, &call, answer);
            }
            Asks::Fetch(job) => {
                let found = self.back_ends.get(&worker).and_then(|it| it.jobs.get(&job));
                let fetched = match found {
                    Some(job) if job.has_ended => {
                        Fetched::Report(Report::Ended(outcome(job.index, job.fails), None))
                    }
                    // Some instances say something only of what is done.
                    Some(_) if worker.is_multiple_of(2) => Fetched::Unknown,
                    Some(_) => Fetched::Report(Report::NotYet),
                    None => Fetched::Unknown,
                };
                self.answer(worker, life, self.now + TRIP, &call, Answer::Fetched(fetched));
            }
        }
        Ok(())
    }

    fn begin_job(&mut self, worker: usize, call: &Call) -> u64 {
        let speed = self.workers[worker].setup.speed / self.executors[worker].slowness;
        let takes = Span::from_secs_f64(self.arrivals.run_s(call.index) / speed);
        let odds = self.timetable.odds.executor_error;
        let fails = odds > 0.0 && self.rng.chance(odds);
        let Some(back_end) = self.back_ends.get_mut(&worker) else { return 0 };
        let (job, back_end_life) = (back_end.next_job, back_end.life);
        back_end.next_job += 1;
        let begun =
            Job { id: call.id, index: call.index, serial: call.serial, has_ended: false, fails };
        back_end.jobs.insert(job, begun);
        self.http(self.now + takes, worker, HttpEvent::JobEnds { job, back_end_life });
        job
    }

    /// The work on a task is done: a server answers its call, and an instance calls back, once or twice, late or never.
    pub(super) fn job_ends(&mut self, worker: usize, job: u64, back_end_life: u32) {
        let condition = self.condition(worker);
        let life = self.workers[worker].life;
        let Some(back_end) = self.back_ends.get_mut(&worker) else { return };
        if back_end.life != back_end_life || !back_end.jobs.contains_key(&job) {
            return;
        }
        if let Some((Condition::Hung, until)) = condition {
            return self.http(until, worker, HttpEvent::JobEnds { job, back_end_life });
        }
        let Some(done) = back_end.jobs.get_mut(&job) else { return };
        done.has_ended = true;
        let (id, index, serial, fails) = (done.id, done.index, done.serial, done.fails);
        match back_end.kind {
            BackEndKind::Server => {
                back_end.jobs.remove(&job);
                let call = Call { id, serial, turn: 0, index, asks: Asks::Run };
                let answer = Answer::Ran(outcome(index, fails));
                self.answer(worker, life, self.now + TRIP, &call, answer);
            }
            BackEndKind::Instance => {
                for at in self.callbacks() {
                    let event = HttpEvent::CallsBack { job, id, serial, fails, index };
                    self.http(at, worker, event);
                }
            }
        }
    }

    /// When an instance calls back: once and soon, but for what goes wrong.
    fn callbacks(&mut self) -> Vec<Time> {
        let soon = self.now + TRIP;
        let odds = self.timetable.odds.callbacks;
        if odds == 0.0 || !self.rng.chance(odds) {
            return vec![soon];
        }
        let late = self.now + Span::from_micros(self.rng.below(MOST_LATE.as_micros()));
        match self.rng.below(4) {
            0 => Vec::new(),
            1 => vec![late],
            2 => vec![soon, late],
            _ => vec![soon, soon],
        }
    }

    /// The back end's process dies and is started again: what it worked on is lost, and calls break.
    pub(in crate::world) fn back_end_dies(&mut self, worker: usize) {
        let life = self.workers[worker].life;
        let Some(back_end) = self.back_ends.get_mut(&worker) else { return };
        back_end.life += 1;
        let lost = std::mem::take(&mut back_end.jobs);
        if back_end.kind == BackEndKind::Server {
            for job in lost.into_values() {
                let (id, serial, index) = (job.id, job.serial, job.index);
                let call = Call { id, serial, turn: 0, index, asks: Asks::Run };
                let answer = Answer::Ran(failed("the connection to the server failed"));
                self.answer(worker, life, self.now + TRIP, &call, answer);
            }
        }
    }

    /// An instance forgets what it was given, and does not know it.
    pub(in crate::world) fn back_end_forgets(&mut self, worker: usize) {
        if let Some(back_end) = self.back_ends.get_mut(&worker)
            && back_end.kind == BackEndKind::Instance
        {
            back_end.jobs.clear();
        }
    }

    fn answer(&mut self, worker: usize, life: u32, at: Time, call: &Call, answer: Answer) {
        let (id, serial, turn) = (call.id, call.serial, call.turn);
        let event = HttpEvent::Answered { id, serial, turn, answer };
        self.agenda.add(at, crate::world::agenda::Happening::Http { worker, life, event });
    }
}

pub(super) fn outcome(index: usize, fails: bool) -> Outcome {
    if fails {
        return failed("the back end failed");
    }
    let result = Payload::from((index as u32).to_le_bytes().as_slice());
    Outcome::Completed { result: result.into() }
}

fn failed(error: &str) -> Outcome {
    Outcome::Failed(TaskError::new(FailureKind::BackendFailed, error))
}

fn unreached(asks: &Asks) -> Answer {
    let outcome = Outcome::Unreached { error: "no connection".to_owned() };
    match asks {
        Asks::Run => Answer::Ran(outcome),
        Asks::Enqueue => Answer::Enqueued { enqueued: Enqueued::Failed(outcome), silent: true },
        Asks::Fetch(_) => Answer::Fetched(Fetched::Silent),
    }
}

fn silent(asks: &Asks) -> Answer {
    match asks {
        Asks::Fetch(_) => Answer::Fetched(Fetched::Silent),
        _ => Answer::Enqueued {
            enqueued: Enqueued::Failed(failed("the task instance did not take it")),
            silent: true,
        },
    }
}
