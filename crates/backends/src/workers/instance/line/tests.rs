//! The line step by step, with a clock that the test sets.

use super::*;
use crate::workers::secrets::{self, Secrets};
use hypha_model::{Epoch, LeaseId, Payload, TaskId, TaskSpec, WorkerId};
use uuid::Uuid;

const SECOND: Duration = Duration::from_secs(1);

struct Lab {
    line: Line,
    secrets: Arc<Secrets>,
    start: Instant,
    now: Instant,
    said: Vec<FromWorker>,
}

impl Lab {
    fn new(replicas: usize) -> Lab {
        let now = Instant::now();
        let line = Line::new(replicas, SECOND);
        Lab { line, secrets: Arc::default(), start: now, now, said: Vec::new() }
    }

    fn push(&mut self, fence: u64) {
        let task = TaskId::from_uuid(Uuid::from_u128(u128::from(fence)));
        let dispatch = Dispatch {
            lease: LeaseId::from_uuid(Uuid::nil()),
            epoch: Epoch(1),
            attempt: AttemptId { task, number: 1 },
            fence: Fence(fence),
            spec: Arc::new(TaskSpec::default()),
            timeout: Span::from_secs(60),
        };
        let place =
            secrets::Place { worker: WorkerId::from_uuid(Uuid::nil()), fence: Fence(fence) };
        let secret = self.secrets.register(place, &task.to_string());
        self.line.push(Arc::new(dispatch), secret);
    }

    /// Hands over everything that waits.
    fn hand_over(&mut self) {
        while let Some((dispatch, _)) = self.line.next_to_enqueue(self.now) {
            self.line.enqueued(dispatch.fence, None, self.now, &mut self.said);
        }
    }

    fn complete(&mut self, fence: u64, execution: Option<Span>) {
        let result = Payload::from(&b"1"[..]);
        let outcome = Outcome::Completed { digest: result.digest(), result };
        self.line.ended(Fence(fence), outcome, execution, self.now, &mut self.said);
        self.line.promote(self.now, &mut self.said);
    }

    fn pass(&mut self, seconds: u64) {
        self.now += SECOND * seconds as u32;
        self.line.time_out(self.now, &mut self.said);
        self.line.promote(self.now, &mut self.said);
    }

    fn polls(&mut self) -> Vec<u64> {
        let polls = std::iter::from_fn(|| self.line.next_to_poll(self.now));
        polls.map(|place| place.fence.0).collect()
    }

    /// What was said since the last time, in short.
    fn said(&mut self) -> Vec<String> {
        let short = |message| match message {
            FromWorker::Accepted { fence, .. } => format!("accepted {}", fence.0),
            FromWorker::Started { fence, .. } => format!("started {}", fence.0),
            FromWorker::Refused { fence, .. } => format!("refused {}", fence.0),
            FromWorker::Finished { fence, run, outcome, .. } => {
                let word = match outcome {
                    Outcome::Completed { .. } => "completed",
                    Outcome::Failed { .. } => "failed",
                    Outcome::TimedOut => "timed out",
                    Outcome::Unreached { .. } => "unreached",
                };
                format!("{word} {} after {} s", fence.0, run.as_secs_f64())
            }
            other => format!("{other:?}"),
        };
        self.said.drain(..).map(short).collect()
    }
}

#[test]
fn the_head_of_the_line_has_begun_and_the_rest_waits() {
    let mut lab = Lab::new(2);
    (1..=4).for_each(|fence| lab.push(fence));
    lab.hand_over();
    assert_eq!(lab.said(), ["started 1", "started 2", "accepted 3", "accepted 4"]);
    lab.pass(3);
    lab.complete(2, None);
    assert_eq!(lab.said(), ["completed 2 after 3 s", "started 3"]);
    lab.pass(2);
    lab.complete(3, None);
    assert_eq!(lab.said(), ["completed 3 after 2 s", "started 4"], "counted from its beginning");
    lab.line.recorded(Fence(2));
    lab.line.recorded(Fence(2));
    assert_eq!((lab.line.open(), lab.line.unrecorded()), (2, 1));
}

#[test]
fn a_run_time_is_believed_if_it_can_be_true() {
    let mut lab = Lab::new(2);
    (1..=2).for_each(|fence| lab.push(fence));
    lab.hand_over();
    lab.said();
    lab.pass(10);
    lab.complete(1, Some(Span::from_secs(4)));
    lab.complete(2, Some(Span::from_secs(11)));
    assert_eq!(lab.said(), ["completed 1 after 4 s", "completed 2 after 10 s"]);
}

#[test]
fn a_task_that_is_done_before_its_turn_is_done() {
    let mut lab = Lab::new(1);
    (1..=3).for_each(|fence| lab.push(fence));
    lab.hand_over();
    lab.said();
    lab.pass(1);
    lab.complete(3, None);
    assert_eq!(lab.said(), ["started 3", "completed 3 after 1 s"]);
    assert_eq!(lab.line.handed_over(), [Fence(1), Fence(2)]);
}

#[test]
fn what_is_cancelled_keeps_its_place_and_says_nothing() {
    let mut lab = Lab::new(1);
    (1..=3).for_each(|fence| lab.push(fence));
    lab.hand_over();
    lab.said();
    lab.line.cancel(Fence(1));
    lab.line.cancel(Fence(2));
    assert_eq!(lab.line.holding().len(), 1);
    lab.pass(1);
    assert_eq!(lab.said(), [""; 0], "the instance still works at it");
    lab.complete(1, None);
    assert_eq!(lab.said(), [""; 0], "and now at the second");
    lab.pass(1);
    lab.complete(2, None);
    assert_eq!(lab.said(), ["started 3"]);
    assert_eq!(lab.line.open(), 1);
}

#[test]
fn what_was_cancelled_ends_with_its_time_or_with_what_stood_behind_it() {
    let mut lab = Lab::new(1);
    (1..=3).for_each(|fence| lab.push(fence));
    lab.hand_over();
    lab.said();
    lab.line.cancel(Fence(1));
    lab.complete(2, None);
    assert_eq!(lab.said(), ["started 2", "completed 2 after 0 s", "started 3"]);
    lab.line.cancel(Fence(3));
    lab.pass(60);
    assert_eq!(lab.said(), [""; 0]);
    assert_eq!(lab.line.open(), 0);
}

#[test]
fn a_cancelled_task_that_was_not_handed_over_is_gone() {
    let mut lab = Lab::new(1);
    lab.push(1);
    lab.line.cancel(Fence(1));
    assert!(lab.line.next_to_enqueue(lab.now).is_none());
    assert!(!lab.line.has(Fence(1)));
    let task = TaskId::from_uuid(Uuid::from_u128(1)).to_string();
    assert_eq!(lab.secrets.of_task(&task), None, "its secret too");
}

#[test]
fn polls_are_for_what_runs_and_grow_rarer() {
    let mut lab = Lab::new(1);
    (1..=2).for_each(|fence| lab.push(fence));
    lab.hand_over();
    let mut times = Vec::new();
    while times.len() < 8 {
        let due = lab.line.due().unwrap();
        assert!(due > lab.now, "time goes on");
        lab.now = due;
        assert_eq!(lab.polls(), [1]);
        times.push((due - lab.start).as_secs());
        lab.line.polled(Fence(1), lab.now);
    }
    assert_eq!(times, [1, 2, 3, 4, 5, 6, 7, 9]);
}

#[test]
fn a_hint_polls_at_once_but_not_again_and_again() {
    let mut lab = Lab::new(1);
    (1..=2).for_each(|fence| lab.push(fence));
    lab.hand_over();
    assert_eq!(lab.polls(), [0; 0]);
    lab.line.poll_now(Fence(1), lab.now, false);
    lab.line.poll_now(Fence(2), lab.now, false);
    assert_eq!(lab.polls(), [1, 2], "also for what has not begun as far as we know");
    lab.line.poll_now(Fence(1), lab.now, false);
    assert_eq!(lab.polls(), [0; 0], "one at a time");
    lab.line.polled(Fence(1), lab.now);
    lab.line.polled(Fence(2), lab.now);
    for _ in 0..100 {
        lab.line.poll_now(Fence(2), lab.now, false);
        assert_eq!(lab.polls(), [0; 0]);
    }
    lab.now += HINT_PAUSE;
    assert_eq!(lab.polls(), [1, 2]);
    lab.line.polled(Fence(2), lab.now);
    lab.line.poll_now(Fence(2), lab.now, true);
    assert_eq!(lab.polls(), [2], "what is proven does not wait");
    lab.line.poll_now(Fence(77), lab.now, true);
}

#[test]
fn it_can_be_done_before_the_hand_over_is_answered() {
    let mut lab = Lab::new(1);
    (1..=2).for_each(|fence| lab.push(fence));
    lab.line.next_to_enqueue(lab.now).unwrap();
    assert!(lab.line.next_to_enqueue(lab.now).is_none(), "one after the other");
    lab.complete(1, None);
    lab.complete(1, None);
    assert_eq!(lab.said(), ["started 1", "completed 1 after 0 s"]);
    lab.line.enqueued(Fence(1), Some("own".to_owned()), lab.now, &mut lab.said);
    lab.line.next_to_enqueue(lab.now).unwrap();
    lab.line.refused(Fence(2), &mut lab.said);
    assert_eq!(lab.said(), ["refused 2"]);
    assert_eq!((lab.line.open(), lab.line.unrecorded()), (0, 1));
}

#[test]
fn a_dispatch_that_comes_twice_is_answered_with_what_was_said() {
    let mut lab = Lab::new(1);
    (1..=4).for_each(|fence| lab.push(fence));
    lab.hand_over();
    lab.push(5);
    lab.line.next_to_enqueue(lab.now).unwrap();
    lab.complete(1, None);
    lab.line.cancel(Fence(4));
    lab.said();
    let again: Vec<_> = (1..=6).filter_map(|fence| lab.line.again(Fence(fence))).collect();
    lab.said = again;
    assert_eq!(lab.said(), ["completed 1 after 0 s", "started 2", "accepted 3"]);
}

#[test]
fn what_takes_too_long_is_given_up() {
    let mut lab = Lab::new(1);
    (1..=2).for_each(|fence| lab.push(fence));
    lab.hand_over();
    lab.said();
    lab.pass(59);
    assert_eq!(lab.said(), [""; 0]);
    lab.pass(1);
    assert_eq!(lab.said(), ["timed out 1 after 60 s", "started 2"]);
}
