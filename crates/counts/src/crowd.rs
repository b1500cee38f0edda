//! A cycle of the scheduler machine with two workers that run 256 tasks each at once, like inference servers that
//! batch, with every slot in use and tasks waiting: a task is submitted, another ends, and the next takes its slot.
//! Under the default strategy and under `fifo`: the difference is the cost of prediction.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use anyhow::ensure;
use hypha_engine::{FromWorker, LeaseRequest, SchedulerEvent, ToWorker};
use hypha_model::{AttemptId, Fence, Span, TaskSpec, Time, WorkerId};
use hypha_placement::Strategy;

use crate::cycle::SchedulerHarness;
use crate::tasks::{spec, worker};

const WORKERS: usize = 2;
const CONCURRENCY: u32 = 256;
/// For each four tasks that can run, another waits.
const OPEN: u64 = (WORKERS as u64 * CONCURRENCY as u64) * 5 / 4;
/// Cycles until the predictor knows the workers and ends are spread over the time of a run.
const WARM_UP: u64 = 3_000;
/// The one-way latency of the workers.
const ONE_WAY_LATENCY: Span = Span::from_micros(250);
/// The shortest run, and by how much the longest is longer.
const LEAST_RUN_US: u64 = 100_000;
const MORE_RUN_US: u64 = 100_000;

pub(crate) fn predictive(rounds: u64) -> anyhow::Result<()> {
    run(Strategy::default(), rounds)
}

pub(crate) fn fifo(rounds: u64) -> anyhow::Result<()> {
    run(Strategy::Fifo, rounds)
}

fn run(strategy: Strategy, rounds: u64) -> anyhow::Result<()> {
    let mut crowd = Crowd { harness: SchedulerHarness::new(strategy), next: BinaryHeap::new() };
    for _ in 0..WORKERS {
        let found = worker(CONCURRENCY, &mut crowd.harness.rng)?;
        crowd.harness.step(SchedulerEvent::WorkerFound(found));
        crowd.take_orders();
    }
    let specs: Vec<_> = (0..64).map(|_| Arc::new(spec(&mut crowd.harness.rng))).collect();
    let mut submitted = 0;
    while crowd.harness.finished < WARM_UP + rounds {
        while submitted < crowd.harness.finished + OPEN {
            crowd.submit(&specs[submitted as usize % specs.len()]);
            submitted += 1;
        }
        ensure!(crowd.advance(), "no event is left");
    }
    Ok(())
}

/// The next report of a worker on an attempt.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    Started,
    Finished(Span),
}

/// A report: when, which, from which worker, on which attempt.
type Message = (Time, Next, WorkerId, AttemptId, Fence);

struct Crowd {
    harness: SchedulerHarness,
    next: BinaryHeap<Reverse<Message>>,
}

impl Crowd {
    fn submit(&mut self, spec: &Arc<TaskSpec>) {
        self.harness.submit(Arc::clone(spec));
        self.take_orders();
    }

    /// Processes the next event.
    fn advance(&mut self) -> bool {
        let Some(Reverse((at, next, worker, attempt, fence))) = self.next.pop() else {
            return false;
        };
        self.harness.advance_time(at.since(self.harness.now));
        match next {
            Next::Started => {
                self.harness.send_from_worker(worker, FromWorker::Started { attempt, fence })
            }
            Next::Finished(run) => self.harness.finish(worker, (attempt, fence), run),
        }
        self.take_orders();
        true
    }

    /// Every worker has room for its attempts, and begins each when it arrives.
    fn take_orders(&mut self) {
        while let Some((worker, order)) = self.harness.orders.pop_front() {
            match order {
                ToWorker::Dispatch(dispatch) => {
                    let run_us = LEAST_RUN_US + self.harness.rng.below(MORE_RUN_US);
                    let (run, back) = (
                        Span::from_micros(run_us),
                        self.harness.now + ONE_WAY_LATENCY + ONE_WAY_LATENCY,
                    );
                    let (attempt, fence) = (dispatch.attempt, dispatch.fence);
                    for (at, next) in [(back, Next::Started), (back + run, Next::Finished(run))] {
                        self.next.push(Reverse((at, next, worker, attempt, fence)));
                    }
                }
                ToWorker::RequestLease(LeaseRequest { request, .. }) => {
                    self.harness.advance_time(ONE_WAY_LATENCY + ONE_WAY_LATENCY);
                    self.harness.grant(worker, request);
                }
                // The measured time is shorter than a heartbeat interval, so no other order needs a response.
                _ => {}
            }
        }
    }
}
