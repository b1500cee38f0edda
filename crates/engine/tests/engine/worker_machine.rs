//! The worker machine: portions of it are leased, nothing is booked twice, results are kept until recorded.

use std::sync::Arc;

use hypha_engine::{
    Dispatch, FromWorker, LeaseRequest, Leaving, Outcome, OwnerReason, OwnerState, RunCommand,
    RunId, ToWorker, WorkerEffect, WorkerEvent, WorkerImage, WorkerMachine, WorkerRecord,
    WorkerStep,
};
use hypha_machine::{Batch, Machine, MemoryDisk};
use hypha_market::{Advertiser, Terms};
use hypha_model::{
    AttemptId, Epoch, Fence, LeaseId, Money, Refusal, RefusalKind, Requirement, Rng, SchedulerId,
    Span, TaskId, TaskSpec, Time, Usage, Worker,
};

use crate::harness::{Committed, START, commit, completed, name, secs, step, worker};

struct Rig {
    now: Time,
    machine: WorkerMachine,
    disk: MemoryDisk<WorkerImage>,
    step: Committed<WorkerMachine>,
    lease: Option<LeaseId>,
}

fn scheduler(n: u8) -> SchedulerId {
    format!("00000000-0000-7000-8000-0000000001{n:02x}").parse().unwrap()
}

impl Rig {
    fn new() -> Rig {
        let rig = Rig::after(WorkerImage { epoch: Epoch(6), ..WorkerImage::default() });
        assert_eq!(rig.step.persist, [WorkerRecord::Started(Epoch(7))], "the epoch is durable");
        rig
    }

    /// A new incarnation from the durable state.
    fn after(image: WorkerImage) -> Rig {
        Rig::of(worker(1), image)
    }

    fn of(worker: Worker, image: WorkerImage) -> Rig {
        let (mut step, mut disk) = (WorkerStep::default(), MemoryDisk { image: image.clone() });
        let WorkerImage { epoch, left, .. } = image;
        let machine = WorkerMachine::start(Arc::new(worker), epoch, left, 1, &mut step);
        let step = commit(&mut Batch::from(step), &mut disk);
        Rig { now: START, machine, disk, step, lease: None }
    }

    /// With a lease for scheduler 1.
    fn leased() -> Rig {
        let mut rig = Rig::new();
        rig.lease = rig.request(1, 1, 100);
        assert!(rig.lease.is_some());
        rig
    }

    fn event(&mut self, event: WorkerEvent) {
        let durable = (&mut Batch::default(), &mut self.disk);
        self.step = step(&mut self.machine, durable, self.now, event);
        self.machine.check().expect("the incremental state is consistent");
    }

    fn receive(&mut self, n: u8, message: ToWorker) {
        self.event(WorkerEvent::SchedulerMessageReceived { scheduler: scheduler(n), message });
    }

    fn request(&mut self, n: u8, request: u64, ttl: u64) -> Option<LeaseId> {
        self.receive(
            n,
            ToWorker::RequestLease(LeaseRequest {
                request,
                ttl: secs(ttl),
                ..LeaseRequest::default()
            }),
        );
        self.sent().into_iter().find_map(|message| match message {
            FromWorker::LeaseGranted { lease, .. } => Some(lease),
            _ => None,
        })
    }

    fn dispatch(&mut self, fence: u64) -> RunId {
        let dispatch = self.a_dispatch(fence);
        self.receive(1, ToWorker::Dispatch(Arc::new(dispatch)));
        RunId { scheduler: scheduler(1), fence: Fence(fence) }
    }

    fn a_dispatch(&self, fence: u64) -> Dispatch {
        Dispatch {
            lease: self.lease.unwrap(),
            epoch: Epoch(7),
            attempt: attempt(fence),
            fence: Fence(fence),
            spec: Arc::default(),
            timeout: secs(10),
            interactive: false,
            resume: None,
        }
    }

    fn wake(&mut self, span: Span) {
        self.now = self.now + span;
        self.event(WorkerEvent::Woke);
    }

    fn sent(&self) -> Vec<FromWorker> {
        let sent = |effect: &WorkerEffect| match effect {
            WorkerEffect::Send(sent) => Some(sent.message.clone()),
            WorkerEffect::Run(_) => None,
        };
        self.step.at_once.iter().chain(&self.step.send).filter_map(sent).collect()
    }

    fn runs(&self) -> impl Iterator<Item = &RunCommand> {
        self.step.at_once.iter().chain(&self.step.send).filter_map(|effect| match effect {
            WorkerEffect::Run(run) => Some(run),
            WorkerEffect::Send(_) => None,
        })
    }

    fn started(&self) -> Vec<RunId> {
        let started = |run: &RunCommand| match run {
            RunCommand::Start { id, .. } => Some(*id),
            RunCommand::Stop(_) => None,
        };
        self.runs().filter_map(started).collect()
    }

    fn stopped(&self) -> Vec<RunId> {
        let stopped = |run: &RunCommand| match run {
            RunCommand::Stop(id) => Some(*id),
            RunCommand::Start { .. } => None,
        };
        self.runs().filter_map(stopped).collect()
    }
}

fn attempt(fence: u64) -> AttemptId {
    AttemptId { task: TaskId::new(START, &mut Rng::new(fence)), number: 1 }
}

#[test]
fn a_scheduler_has_one_lease_and_its_last_request_counts() {
    let mut rig = Rig::leased();
    assert_eq!(rig.request(1, 1, 100), rig.lease, "the same request twice is one lease");
    let anew = rig.request(1, 3, 100);
    assert!(anew.is_some() && anew != rig.lease, "the holder may request another");
    assert_eq!(rig.request(1, 2, 100), None, "a superseded request changes nothing");
    assert_eq!(rig.machine.lease_of(scheduler(1)).map(|(lease, _)| lease), anew);
}

#[test]
fn heartbeats_report_the_measured_use_of_the_machine() {
    let mut rig = Rig::leased();
    let (lease, epoch) = (rig.lease.unwrap(), Epoch(7));
    let usage = Usage { cpu_permille: 420, memory_permille: 700 };
    rig.event(WorkerEvent::UsageMeasured(usage));
    rig.receive(1, ToWorker::Heartbeat { lease, epoch, nonce: 5, demand: None });
    let [FromWorker::Alive { usage: reported, .. }] = rig.sent()[..] else { panic!() };
    assert_eq!(reported, Some(usage));
}

#[test]
fn a_lease_is_bounded_renewed_and_released() {
    let mut rig = Rig::new();
    rig.lease = rig.request(1, 1, 1_000_000);
    assert_eq!(
        rig.machine.lease_of(scheduler(1)).unwrap().1,
        START + secs(600),
        "the longest that is granted"
    );
    let (lease, epoch) = (rig.lease.unwrap(), Epoch(7));
    rig.now = rig.now + secs(599);
    rig.receive(1, ToWorker::Heartbeat { lease, epoch, nonce: 5, demand: None });
    assert_eq!(
        rig.sent(),
        [FromWorker::Alive { lease, epoch, nonce: 5, portion: None, usage: None, holding: vec![] }]
    );
    assert_eq!(rig.machine.lease_of(scheduler(1)).unwrap().1, rig.now + secs(600));
    for (n, epoch) in [(2, Epoch(7)), (1, Epoch(6))] {
        rig.receive(n, ToWorker::Heartbeat { lease, epoch, nonce: 6, demand: None });
        assert_eq!(rig.sent(), [FromWorker::LeaseUnknown { lease, epoch }]);
        rig.receive(n, ToWorker::ReleaseLease { lease, epoch });
        assert!(rig.machine.lease_of(scheduler(1)).is_some(), "only the holder can release it");
    }
    rig.receive(1, ToWorker::ReleaseLease { lease, epoch });
    assert!(rig.machine.lease_of(scheduler(1)).is_none());
}

#[test]
fn a_lease_that_ends_stops_its_runs() {
    for released in [false, true] {
        let mut rig = Rig::leased();
        let run = rig.dispatch(1);
        let waiting = rig.dispatch(2);
        assert_eq!(rig.sent(), [FromWorker::Accepted { attempt: attempt(2), fence: Fence(2) }]);
        if released {
            let (lease, epoch) = (rig.lease.unwrap(), Epoch(7));
            rig.receive(1, ToWorker::ReleaseLease { lease, epoch });
        } else {
            rig.wake(secs(100));
        }
        assert_eq!((rig.stopped(), rig.started()), (vec![run], vec![]));
        assert_eq!(rig.machine.running().count(), 0);
        // Its room is not free before it is gone; the next holder's task waits for that.
        rig.lease = rig.request(1, 2, 100);
        let next = rig.dispatch(3);
        assert!(rig.started().is_empty());
        rig.event(WorkerEvent::Ended { id: run, outcome: completed(), run: None });
        assert_eq!((rig.started(), rig.sent().len()), (vec![next], 1), "no result is sent");
        rig.event(WorkerEvent::Ended { id: waiting, outcome: completed(), run: None });
        assert!(rig.sent().is_empty());
    }
}

#[test]
fn only_the_holder_dispatches_and_each_attempt_once() {
    let mut rig = Rig::leased();
    let dispatch = rig.a_dispatch(1);
    type Lie = fn(&mut Dispatch);
    let lies: [(&str, u8, Lie); 3] = [
        ("another scheduler", 2, |_| {}),
        ("another incarnation", 1, |dispatch| dispatch.epoch = Epoch(6)),
        ("another lease", 1, |dispatch| dispatch.lease = LeaseId::new(START, &mut Rng::new(99))),
    ];
    for (what, n, lie) in lies {
        let mut dispatch = dispatch.clone();
        lie(&mut dispatch);
        let (lease, epoch) = (dispatch.lease, dispatch.epoch);
        rig.receive(n, ToWorker::Dispatch(Arc::new(dispatch)));
        assert_eq!(rig.sent(), [FromWorker::LeaseUnknown { lease, epoch }], "{what}");
        assert_eq!(rig.runs().count(), 0, "{what}");
    }
    let run = rig.dispatch(1);
    assert_eq!(rig.started(), [run]);
    let (attempt, fence) = (attempt(1), Fence(1));
    assert_eq!(rig.sent(), [FromWorker::Started { attempt, fence }]);
    rig.dispatch(1);
    assert_eq!((rig.sent(), rig.started()), (vec![FromWorker::Started { attempt, fence }], vec![]));
    rig.event(WorkerEvent::Ended { id: run, outcome: completed(), run: None });
    let result = rig.sent();
    rig.dispatch(1);
    assert_eq!((rig.sent(), rig.started()), (result, vec![]), "the result is sent again");
}

#[test]
fn an_attempt_that_cannot_run_or_queue_is_refused() {
    let mut rig = Rig::leased();
    let mut dispatch = rig.a_dispatch(1);
    let spec = Arc::make_mut(&mut dispatch.spec);
    spec.requirement.memory_bytes = u64::MAX;
    rig.receive(1, ToWorker::Dispatch(Arc::new(dispatch)));
    assert!(matches!(
        rig.sent()[..],
        [FromWorker::Refused { refusal: Refusal { kind: RefusalKind::Memory, .. }, .. }]
    ));
    // One runs, 64 wait.
    for fence in 1..=65 {
        rig.dispatch(fence);
        assert!(!matches!(rig.sent()[..], [FromWorker::Refused { .. }]), "{fence}");
    }
    rig.dispatch(66);
    assert!(matches!(
        rig.sent()[..],
        [FromWorker::Refused { refusal: Refusal { kind: RefusalKind::Busy, .. }, .. }]
    ));
    assert_eq!(rig.machine.running().count(), 1);
    rig.receive(1, ToWorker::Cancel { attempt: attempt(65), fence: Fence(65) });
    rig.dispatch(67);
    assert!(matches!(rig.sent()[..], [FromWorker::Accepted { .. }]), "the queue has room again");
}

#[test]
fn unrecorded_results_are_bounded() {
    let mut rig = Rig::leased();
    let refused_at = (1..10_000).find(|fence| {
        let run = rig.dispatch(*fence);
        let refused = matches!(rig.sent()[..], [FromWorker::Refused { .. }]);
        rig.event(WorkerEvent::Ended { id: run, outcome: completed(), run: None });
        refused
    });
    assert_eq!(refused_at, Some(64 + 1 + 1_024 + 1));
    rig.receive(1, ToWorker::Recorded { attempt: attempt(1), fence: Fence(1) });
    rig.dispatch(20_000);
    assert_eq!(rig.started().len(), 1);
}

#[test]
fn a_cancelled_run_frees_its_room_when_it_is_gone() {
    let mut rig = Rig::leased();
    let first = rig.dispatch(1);
    let second = rig.dispatch(2);
    rig.receive(1, ToWorker::Cancel { attempt: attempt(1), fence: Fence(1) });
    assert_eq!((rig.stopped(), rig.started()), (vec![first], vec![]));
    rig.dispatch(1);
    assert!(rig.sent().is_empty() && rig.started().is_empty(), "it is stopping");
    rig.event(WorkerEvent::Ended { id: first, outcome: completed(), run: None });
    assert_eq!(rig.started(), [second]);
    assert!(matches!(rig.sent()[..], [FromWorker::Started { .. }]), "no result of the cancelled");
    // A waiting run is removed at once.
    let third = rig.dispatch(3);
    rig.receive(1, ToWorker::Cancel { attempt: attempt(3), fence: Fence(3) });
    rig.event(WorkerEvent::Ended { id: second, outcome: completed(), run: None });
    assert!(rig.started().is_empty() && rig.stopped().is_empty(), "{third:?}");
}

#[test]
fn a_run_that_times_out_is_stopped_and_reported() {
    let mut rig = Rig::leased();
    let run = rig.dispatch(1);
    assert_eq!(rig.machine.wake_at(rig.now), Some(START + secs(10)));
    rig.wake(secs(9));
    assert!(rig.stopped().is_empty());
    rig.wake(secs(1));
    assert_eq!(rig.stopped(), [run]);
    rig.event(WorkerEvent::Ended { id: run, outcome: completed(), run: None });
    assert!(matches!(rig.sent()[..], [FromWorker::Finished { outcome: Outcome::TimedOut, .. }]));
}

#[test]
fn a_run_declined_at_its_timeout_is_refused_and_not_lost() {
    let mut rig = Rig::leased();
    let run = rig.dispatch(1);
    rig.wake(secs(10));
    assert_eq!(rig.stopped(), [run]);
    let (lease, epoch) = (rig.lease.unwrap(), Epoch(7));
    rig.receive(1, ToWorker::Heartbeat { lease, epoch, nonce: 1, demand: None });
    let [FromWorker::Alive { holding, .. }] = &rig.sent()[..] else { panic!("{:?}", rig.sent()) };
    assert_eq!(holding[..], [(attempt(1), Fence(1))], "its end will be reported");
    rig.event(WorkerEvent::Declined { id: run });
    assert!(matches!(rig.sent()[..], [FromWorker::Refused { .. }]), "{:?}", rig.sent());
}

#[test]
fn a_run_that_outlived_its_lease_at_a_back_end_is_resumed() {
    let mut rig = Rig::leased();
    let run = rig.dispatch(1);
    let (lease, epoch) = (rig.lease.unwrap(), Epoch(7));
    rig.receive(1, ToWorker::ReleaseLease { lease, epoch });
    assert_eq!(rig.stopped(), [run]);
    rig.lease = rig.request(1, 2, 100);
    let again = Dispatch { resume: Some(Arc::from("own/7")), ..rig.a_dispatch(1) };
    rig.receive(1, ToWorker::Dispatch(Arc::new(again)));
    assert!(matches!(rig.sent()[..], [FromWorker::Started { .. }]), "{:?}", rig.sent());
    rig.event(WorkerEvent::Ended { id: run, outcome: completed(), run: None });
    let outcome = completed();
    let [FromWorker::Finished { outcome: reported, .. }] = &rig.sent()[..] else { panic!() };
    assert_eq!(*reported, outcome);
}

#[test]
fn a_result_is_sent_again_until_it_is_recorded() {
    let mut rig = Rig::leased();
    let run = rig.dispatch(1);
    rig.now = rig.now + secs(3);
    rig.event(WorkerEvent::Ended { id: run, outcome: completed(), run: None });
    let (attempt, fence) = (attempt(1), Fence(1));
    let result = FromWorker::Finished { attempt, fence, run: secs(3), outcome: completed() };
    assert_eq!(rig.sent(), std::slice::from_ref(&result));
    for _ in 0..3 {
        rig.wake(secs(1));
        assert!(rig.sent().is_empty());
        rig.wake(secs(1));
        assert_eq!(rig.sent(), std::slice::from_ref(&result));
    }
    rig.receive(1, ToWorker::Recorded { attempt, fence });
    rig.wake(secs(2));
    assert!(rig.sent().is_empty());
}

#[test]
fn a_new_incarnation_has_no_leases() {
    let last = Rig::leased();
    let mut rig = Rig { lease: last.lease, ..Rig::after(last.disk.image) };
    assert_eq!(rig.step.persist, [WorkerRecord::Started(Epoch(8))]);
    assert!(rig.machine.lease_of(scheduler(1)).is_none());
    rig.dispatch(1);
    let (lease, epoch) = (rig.lease.unwrap(), Epoch(7));
    assert_eq!(rig.sent(), [FromWorker::LeaseUnknown { lease, epoch }]);
    assert_ne!(rig.request(1, 1, 100), Some(lease), "ids differ, even with the same seed");
}

#[test]
fn a_new_lease_reports_the_running_attempts() {
    let mut rig = Rig::leased();
    rig.dispatch(1);
    rig.dispatch(2);
    rig.now = rig.now + secs(3);
    rig.request(1, 2, 100);
    let running = |fence| FromWorker::Running {
        attempt: attempt(fence),
        fence: Fence(fence),
        elapsed: secs(3),
    };
    assert!(matches!(rig.sent()[..], [FromWorker::LeaseGranted { .. }, _]), "{:?}", rig.sent());
    assert_eq!(rig.sent()[1..], [running(1)], "a waiting run is not reported");
}

#[test]
fn a_leaving_worker_returns_its_attempts_and_takes_no_more() {
    let mut rig = Rig::leased();
    let ended = rig.dispatch(1);
    rig.event(WorkerEvent::Ended { id: ended, outcome: completed(), run: None });
    let result = rig.sent();
    let runs = rig.dispatch(2);
    rig.dispatch(3);
    rig.event(WorkerEvent::LeaveRequested);
    let (lease, epoch) = (rig.lease.unwrap(), Epoch(7));
    let left = FromWorker::Left { epoch, lease: Some(lease) };
    assert_eq!(
        rig.step.persist,
        [WorkerRecord::Left(Leaving { epoch, holders: vec![scheduler(1)] })]
    );
    assert_eq!(rig.sent(), [&result[..], std::slice::from_ref(&left)].concat(), "results go first");
    assert_eq!(rig.stopped(), [runs]);
    assert!(rig.machine.unreleased_holders().eq([scheduler(1)]));

    rig.event(WorkerEvent::LeaveRequested);
    assert!(rig.sent().is_empty() && rig.step.persist.is_empty(), "once is enough");
    rig.dispatch(4);
    assert_eq!((rig.sent(), rig.started()), (vec![left.clone()], vec![]), "it is sent again");
    rig.receive(1, ToWorker::Heartbeat { lease, epoch, nonce: 1, demand: None });
    assert_eq!(rig.sent(), [left]);
    rig.event(WorkerEvent::Ended { id: runs, outcome: completed(), run: None });
    assert!(rig.sent().is_empty() && rig.started().is_empty(), "it was returned");

    rig.receive(1, ToWorker::ReleaseLease { lease, epoch });
    assert_eq!(rig.machine.unreleased_holders().next(), None, "the holder knows");
    assert_eq!(rig.request(1, 2, 100), None);
    let refusal = Refusal::without_amount(RefusalKind::Unavailable);
    assert_eq!(rig.sent(), [FromWorker::LeaseRefused { request: 2, refusal }]);
}

#[test]
fn a_new_incarnation_reports_the_graceful_stop_until_the_holder_knows() {
    let start = |left| Rig::after(WorkerImage { epoch: Epoch(6), left, ..WorkerImage::default() });
    let left = Leaving { epoch: Epoch(6), holders: vec![scheduler(1)] };
    let reports_stop =
        |rig: &Rig| rig.sent().first() == Some(&FromWorker::Left { epoch: Epoch(6), lease: None });
    let mut rig = start(Some(left.clone()));
    for request in 1..3 {
        rig.lease = rig.request(1, request, 100);
        assert!(reports_stop(&rig), "the answer before may have been lost");
    }
    rig.dispatch(1);
    assert!(
        rig.request(1, 3, 100).is_some() && !reports_stop(&rig),
        "it relies on this incarnation"
    );
    let others = [None, Some(Leaving { epoch: Epoch(5), ..left.clone() })];
    for mut rig in others.map(start) {
        assert!(rig.request(1, 1, 100).is_some() && !reports_stop(&rig));
    }
    let mut rig = start(Some(left));
    assert!(rig.request(2, 1, 100).is_some() && !reports_stop(&rig), "it held no lease");
}

/// While the back end of an executor is unreachable, the holder of the lease is told with each answer.
#[test]
fn the_holder_is_told_which_executors_are_unreachable() {
    let mut rig = Rig::leased();
    let (lease, epoch) = (rig.lease.unwrap(), Epoch(7));
    let unreachable = FromWorker::Unreachable {
        executors: vec![worker(1).executors[0].name.clone()],
        owner: None,
    };
    let alive = |nonce| FromWorker::Alive {
        lease,
        epoch,
        nonce,
        portion: None,
        usage: None,
        holding: vec![],
    };
    rig.event(WorkerEvent::BackEndChecked { executor: 0, is_healthy: false });
    assert_eq!(rig.sent(), std::slice::from_ref(&unreachable));
    rig.event(WorkerEvent::BackEndChecked { executor: 0, is_healthy: false });
    assert_eq!(rig.sent(), [], "no news");
    rig.event(WorkerEvent::BackEndChecked { executor: 9, is_healthy: false });
    assert_eq!(rig.sent(), [], "there is none");
    rig.receive(1, ToWorker::Heartbeat { lease, epoch, nonce: 1, demand: None });
    assert_eq!(rig.sent(), [unreachable.clone(), alive(1)], "in this order");
    rig.receive(2, ToWorker::Heartbeat { lease, epoch, nonce: 1, demand: None });
    assert_eq!(rig.sent(), [FromWorker::LeaseUnknown { lease, epoch }], "not the holder");
    rig.request(1, 2, 100);
    assert_eq!(rig.sent()[0], unreachable);
    assert!(matches!(rig.sent()[1], FromWorker::LeaseGranted { .. }));
    rig.event(WorkerEvent::BackEndChecked { executor: 0, is_healthy: true });
    assert_eq!(rig.sent(), [FromWorker::Unreachable { executors: vec![], owner: None }], "at once");
    rig.event(WorkerEvent::BackEndChecked { executor: 0, is_healthy: true });
    assert_eq!(rig.sent(), [], "no news");
    rig.request(1, 3, 100);
    assert!(matches!(rig.sent()[..], [FromWorker::LeaseGranted { .. }]));
}

/// While the owner has paused the worker, what runs goes on and nothing else begins.
#[test]
fn a_paused_worker_keeps_what_runs_and_returns_what_waits() {
    let mut rig = Rig::leased();
    let (running, waiting) = (rig.dispatch(1), rig.dispatch(2));
    let executors = vec![worker(1).executors[0].name.clone()];
    let paused = FromWorker::Unreachable { executors, owner: Some(OwnerReason::Paused) };
    let refused = |fence| FromWorker::Refused {
        attempt: attempt(fence),
        fence: Fence(fence),
        refusal: Refusal::without_amount(RefusalKind::Unavailable),
    };
    let state = OwnerState { is_paused: true, ..OwnerState::default() };
    rig.event(WorkerEvent::OwnerChanged(state));
    assert_eq!(rig.sent(), [paused.clone(), refused(2)], "in this order");
    assert!(rig.stopped().is_empty());
    assert!(rig.machine.has_run(running) && !rig.machine.has_run(waiting));
    rig.event(WorkerEvent::OwnerChanged(state));
    assert_eq!(rig.sent(), [], "no news");
    rig.dispatch(3);
    assert_eq!(rig.sent(), [refused(3)]);

    let (lease, epoch) = (rig.lease.unwrap(), Epoch(7));
    rig.receive(1, ToWorker::Heartbeat { lease, epoch, nonce: 1, demand: None });
    assert_eq!(rig.sent()[0], paused);
    assert!(matches!(rig.sent()[1], FromWorker::Alive { .. }), "the lease is renewed");
    assert_eq!(rig.request(2, 1, 100), None, "no new lease");
    assert_eq!(rig.sent()[0], paused, "the reason comes first");
    assert!(matches!(rig.sent()[1], FromWorker::LeaseRefused { .. }));
    rig.lease = rig.request(1, 2, 100);
    assert!(rig.lease.is_some(), "a restarted holder finds what runs");
    rig.event(WorkerEvent::Ended { id: running, outcome: completed(), run: None });
    assert!(matches!(rig.sent()[..], [FromWorker::Finished { .. }]));

    rig.event(WorkerEvent::OwnerChanged(OwnerState::default()));
    assert_eq!(rig.sent(), [FromWorker::Unreachable { executors: vec![], owner: None }]);
    let begun = rig.dispatch(4);
    assert_eq!(rig.started(), [begun]);
    assert!(rig.request(2, 2, 100).is_some());
}

fn connected(n: u8, organisation: &str) -> WorkerEvent {
    let organisation = name(organisation);
    WorkerEvent::SchedulerConnected(Advertiser { scheduler: scheduler(n), organisation })
}

#[test]
fn only_organisations_that_are_served_get_a_lease() {
    let mut rig = Rig::new();
    let organisations = Some([(name("lab"), None)].into());
    rig.machine = rig.machine.with_terms(Terms { organisations, ..Terms::default() });
    rig.event(connected(1, "lab"));
    rig.event(connected(2, "acme"));
    assert!(rig.request(1, 1, 100).is_some());
    for (n, whose) in [(2, "another organisation"), (3, "unknown")] {
        rig.request(n, 1, 100);
        let refusal = Refusal::without_amount(RefusalKind::NotServed);
        assert_eq!(rig.sent(), [FromWorker::LeaseRefused { request: 1, refusal }], "{whose}");
    }
    // A scheduler that is served learns of a pause, and the others do not.
    let state = OwnerState { is_paused: true, ..OwnerState::default() };
    rig.event(WorkerEvent::OwnerChanged(state));
    rig.event(connected(3, "lab"));
    rig.request(3, 2, 100);
    assert!(matches!(rig.sent()[0], FromWorker::Unreachable { owner: Some(_), .. }));
    rig.request(2, 2, 100);
    assert!(matches!(rig.sent()[..], [FromWorker::LeaseRefused { .. }]));
}

#[test]
fn worker_that_asks_for_a_price_grants_no_shared_lease() {
    let mut rig = Rig::new();
    let floor = Money::from_micros(1);
    rig.machine = rig.machine.with_terms(Terms { price: floor, floor, ..Terms::default() });
    assert_eq!(rig.machine.terms().floor, floor);
    rig.event(connected(1, "lab"));
    assert_eq!(rig.request(1, 1, 100), None);
    let refusal = Refusal::without_amount(RefusalKind::Price);
    assert_eq!(rig.sent(), [FromWorker::LeaseRefused { request: 1, refusal }]);
}

#[test]
fn organisation_of_a_lease_holder_is_not_forgotten() {
    let mut rig = Rig::new();
    let organisations = Some([(name("lab"), None)].into());
    rig.machine = rig.machine.with_terms(Terms { organisations, ..Terms::default() });
    rig.event(connected(1, "lab"));
    rig.event(connected(2, "lab"));
    assert!(rig.request(1, 1, 100).is_some());
    for number in 0..2_000 {
        let scheduler = SchedulerId::new(START, &mut Rng::new(number));
        let organisation = name("acme");
        rig.event(WorkerEvent::SchedulerConnected(Advertiser { scheduler, organisation }));
    }
    rig.wake(secs(101));
    assert!(rig.request(1, 2, 100).is_some(), "it held a lease while others connected");
    assert_eq!(rig.request(2, 1, 100), None, "there is room for a limited number");
    rig.event(connected(2, "lab"));
    assert!(rig.request(2, 2, 100).is_some());
}

#[test]
fn interactive_runs_go_first_up_to_their_share() {
    let mut rig = Rig::leased();
    let mut running = rig.dispatch(1);
    let batch = [rig.dispatch(2), rig.dispatch(3)];
    let mut begun = Vec::new();
    for fence in 10..30 {
        let dispatch = Dispatch { interactive: true, ..rig.a_dispatch(fence) };
        rig.receive(1, ToWorker::Dispatch(Arc::new(dispatch)));
        rig.event(WorkerEvent::Ended { id: running, outcome: completed(), run: None });
        running = rig.started()[0];
        begun.push(running);
    }
    assert_eq!(begun.iter().take(4).map(|id| id.fence.0).collect::<Vec<_>>(), [10, 11, 12, 13]);
    assert_eq!((begun[4], begun[9]), (batch[0], batch[1]), "every fifth start");
}

/// However many runs wait for an executor that is in use, one behind them for another executor begins.
#[test]
fn a_run_does_not_wait_for_a_slot_of_another_executor() {
    let mut rig = Rig::of(
        {
            let mut worker = worker(1);
            let mut other = worker.executors[0].clone();
            (worker.executors[0].concurrency, worker.executors[0].models) = (2, vec![name("a")]);
            (other.name, other.models) = (name("other"), vec![name("b")]);
            worker.executors.push(other);
            worker
        },
        WorkerImage { epoch: Epoch(6), ..WorkerImage::default() },
    );
    rig.lease = rig.request(1, 1, 100);
    let mut run = |fence: u64, model: &str| {
        let mut dispatch = rig.a_dispatch(fence);
        Arc::make_mut(&mut dispatch.spec).requirement.model = Some(name(model));
        rig.receive(1, ToWorker::Dispatch(Arc::new(dispatch)));
        rig.started().len()
    };
    let begun: usize = (1..=150).map(|fence| run(fence, "a")).sum();
    assert_eq!((begun, run(151, "b"), run(152, "b")), (2, 1, 0));
    rig.receive(1, ToWorker::Cancel { attempt: attempt(150), fence: Fence(150) });
    let id = |fence| RunId { scheduler: scheduler(1), fence: Fence(fence) };
    rig.event(WorkerEvent::Ended { id: id(151), outcome: completed(), run: None });
    assert_eq!(rig.started(), [id(152)]);
    rig.event(WorkerEvent::Ended { id: id(1), outcome: completed(), run: None });
    assert_eq!(rig.started(), [id(3)]);
}

/// A run of 20 GB waits while others of 8 GB come and go: it is overtaken by as many as run at once, and no more.
#[test]
fn a_large_run_is_not_overtaken_forever() {
    let mut large = worker(1);
    large.capacity.memory_bytes = 24_000_000_000;
    large.executors[0].concurrency = 3;
    let mut rig = Rig::of(large, WorkerImage { epoch: Epoch(6), ..WorkerImage::default() });
    rig.lease = rig.request(1, 1, 10_000);
    let mut fence = 0;
    let mut dispatch = |rig: &mut Rig, memory_bytes: u64| {
        fence += 1;
        let requirement = Requirement { memory_bytes, ..Requirement::default() };
        let spec = Arc::new(TaskSpec { requirement, ..TaskSpec::default() });
        let dispatch = Dispatch { spec, ..rig.a_dispatch(fence) };
        rig.receive(1, ToWorker::Dispatch(Arc::new(dispatch)));
        RunId { scheduler: scheduler(1), fence: Fence(fence) }
    };
    let mut runs: Vec<RunId> = (0..2).map(|_| dispatch(&mut rig, 8_000_000_000)).collect();
    let waits = dispatch(&mut rig, 20_000_000_000);
    let small = dispatch(&mut rig, 1_000_000_000);
    assert_eq!(rig.started(), [small], "it fits beside the large one");
    rig.event(WorkerEvent::Ended { id: small, outcome: completed(), run: None });
    let mut overtaking = 0;
    for _ in 0..20 {
        runs.push(dispatch(&mut rig, 8_000_000_000));
        overtaking += rig.started().len();
        rig.event(WorkerEvent::Ended { id: runs.remove(0), outcome: completed(), run: None });
        if rig.started().contains(&waits) {
            assert_eq!(overtaking, 3, "as many as run at once");
            return;
        }
        overtaking += rig.started().len();
    }
    panic!("it waits forever");
}

/// A worker with two slots, and its leases: scheduler 1 has the first, scheduler 2 the second.
fn shared() -> (Rig, LeaseId) {
    let mut worker = worker(1);
    worker.executors[0].concurrency = 2;
    let mut rig = Rig::of(worker, WorkerImage { epoch: Epoch(6), ..WorkerImage::default() });
    rig.lease = rig.request(1, 1, 100);
    let second = rig.request(2, 1, 100).expect("it has an empty lease");
    let (lease, epoch) = (rig.lease.unwrap(), Epoch(7));
    assert_eq!(rig.machine.limit_of(scheduler(2)).unwrap().slots, [0]);
    assert!(rig.sent().contains(&FromWorker::RenewEarly { lease, epoch }), "room is made for it");
    rig.receive(1, ToWorker::Heartbeat { lease, epoch, nonce: 1, demand: None });
    assert!(rig.sent().contains(&FromWorker::RenewEarly { lease: second, epoch }));
    rig.receive(2, ToWorker::Heartbeat { lease: second, epoch, nonce: 1, demand: None });
    (rig, second)
}

#[test]
fn two_schedulers_share_a_worker_and_neither_exceeds_its_portion() {
    let (mut rig, second) = shared();
    let long = |rig: &Rig| Dispatch { timeout: secs(1_000), ..rig.a_dispatch(1) };
    let first = RunId { scheduler: scheduler(1), fence: Fence(1) };
    rig.receive(1, ToWorker::Dispatch(Arc::new(long(&rig))));
    assert_eq!(rig.started(), [first]);
    rig.dispatch(2);
    assert_eq!(rig.started(), [], "its portion is in use, although a slot is free");
    let dispatch = Dispatch { lease: second, ..long(&rig) };
    rig.receive(2, ToWorker::Dispatch(Arc::new(dispatch)));
    assert_eq!(rig.started(), [RunId { scheduler: scheduler(2), fence: Fence(1) }]);

    // When the first has vanished, the second gets all of the worker after the TTL.
    let epoch = Epoch(7);
    rig.now = rig.now + secs(99);
    rig.receive(2, ToWorker::Heartbeat { lease: second, epoch, nonce: 2, demand: None });
    assert_eq!(rig.machine.limit_of(scheduler(2)).unwrap().slots, [1]);
    rig.wake(secs(1));
    assert_eq!(rig.stopped(), [first], "its lease has ended");
    rig.event(WorkerEvent::Ended { id: first, outcome: completed(), run: None });
    rig.receive(2, ToWorker::Heartbeat { lease: second, epoch, nonce: 3, demand: None });
    assert_eq!(rig.machine.limit_of(scheduler(2)).unwrap().slots, [2]);
}

#[test]
fn a_waiting_run_outside_the_portion_does_not_begin() {
    let (mut rig, second) = shared();
    let (lease, epoch) = (rig.lease.unwrap(), Epoch(7));
    let memory_bytes = 3 << 30;
    let small = Requirement { memory_bytes, ..Requirement::default() };
    let spec = Arc::new(TaskSpec { requirement: small, ..TaskSpec::default() });
    rig.dispatch(1);
    let waits = Dispatch { spec, ..rig.a_dispatch(2) };
    rig.receive(1, ToWorker::Dispatch(Arc::new(waits)));
    // The other one needs most of the memory, and has waited longer than a turn.
    let large = Requirement { memory_bytes: 6 << 30, ..Requirement::default() };
    let demand = Some(Arc::new(large));
    rig.receive(2, ToWorker::Heartbeat { lease: second, epoch, nonce: 2, demand });
    rig.receive(1, ToWorker::Heartbeat { lease, epoch, nonce: 2, demand: None });
    assert_eq!(rig.stopped(), [], "the run continues");
    let id = |fence| RunId { scheduler: scheduler(1), fence: Fence(fence) };
    rig.event(WorkerEvent::Ended { id: id(1), outcome: completed(), run: None });
    assert_eq!(rig.started(), []);
    // It begins when the lease has grown again.
    rig.receive(2, ToWorker::ReleaseLease { lease: second, epoch });
    rig.receive(1, ToWorker::Heartbeat { lease, epoch, nonce: 3, demand: None });
    assert_eq!(rig.started(), [id(2)]);
}

#[test]
fn a_leaving_worker_tells_all_holders() {
    let (mut rig, second) = shared();
    let (lease, epoch) = (rig.lease.unwrap(), Epoch(7));
    rig.event(WorkerEvent::LeaveRequested);
    let holders = vec![scheduler(1), scheduler(2)];
    assert_eq!(rig.step.persist, [WorkerRecord::Left(Leaving { epoch, holders })]);
    let left = |lease| FromWorker::Left { epoch, lease: Some(lease) };
    assert_eq!(rig.sent(), [left(lease), left(second)]);
    rig.receive(1, ToWorker::ReleaseLease { lease, epoch });
    assert!(rig.machine.unreleased_holders().eq([scheduler(2)]));
}
