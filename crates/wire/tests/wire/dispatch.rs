//! Between a scheduler and a worker: the engine's messages round trip, whatever a newer peer adds.

use std::collections::BTreeMap;
use std::sync::Arc;

use hypha_engine::{DevicePart, Dispatch, FromWorker, LeaseRequest, Outcome, Portion, ToWorker};
use hypha_model::{
    AttemptId, DeadlinePolicy, Digest, Epoch, ExecutorClass, FailureKind, Fence, GpuIds, InputKind,
    LeaseId, Maximise, Metadata, MetadataValue, Name, ObjectRef, Payload, Priority, RefusalKind,
    Requirement, Rng, Span, TaskError, TaskId, TaskResult, TaskSpec, Time,
};
use hypha_wire::dispatch::{
    AttemptKey, MAX_ERROR_BYTES, MAX_HOLDING, MAX_MESSAGES, MAX_PAYLOAD_BYTES, Report,
};
use hypha_wire::frame::LENGTH_BYTES;
use hypha_wire::*;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde::Serialize;

use crate::samples;

fn to_a_worker_and_back(messages: Vec<ToWorker>) -> Vec<ToWorker> {
    let read: Orders = decode(&encode(&samples::orders(messages)).unwrap()).unwrap();
    assert_eq!(read.skipped, 0);
    read.orders.into_iter().map(ToWorker::from).collect()
}

fn to_a_scheduler_and_back(messages: Vec<FromWorker>) -> Vec<FromWorker> {
    let read: Reports = decode(&encode(&samples::reports(messages)).unwrap()).unwrap();
    assert_eq!(read.skipped, 0);
    read.reports.into_iter().map(FromWorker::from).collect()
}

#[test]
fn every_message_of_the_engine_round_trips() {
    assert_eq!(to_a_worker_and_back(samples::to_worker()), samples::to_worker());
    assert_eq!(to_a_scheduler_and_back(samples::from_worker()), samples::from_worker());
    assert_eq!(to_a_scheduler_and_back(samples::of_unreachable()), samples::of_unreachable());
    assert_eq!(to_a_scheduler_and_back(samples::of_owners()), samples::of_owners());
    assert_eq!(to_a_scheduler_and_back(samples::of_delegation()), samples::of_delegation());
    assert_eq!(to_a_scheduler_and_back(samples::of_parts()), samples::of_parts());
    assert_eq!(to_a_worker_and_back(samples::for_parts()), samples::for_parts());
    assert_eq!(to_a_scheduler_and_back(samples::of_machines()), samples::of_machines());
    assert_eq!(to_a_worker_and_back(samples::with_named_gpus()), samples::with_named_gpus());
    assert_eq!(to_a_worker_and_back(samples::for_market()), samples::for_market());
    assert_eq!(to_a_scheduler_and_back(samples::of_market()), samples::of_market());
}

/// A scheduler of an earlier release treats it as a failure, and retries on another worker.
#[test]
fn an_unreachable_back_end_is_a_failure_to_older_schedulers() {
    let [unreachable, ..] = &samples::of_unreachable()[..] else { panic!("no sample") };
    let Report::Failed { error, retry, unreachable, .. } = Report::from(unreachable.clone()) else {
        panic!("not a failure")
    };
    assert_eq!((error.as_str(), retry, unreachable), ("connection refused", true, true));
}

#[test]
fn no_more_executors_are_unreachable_than_a_worker_has() {
    let many = |count| vec!["vllm".parse().unwrap(); count];
    let back =
        to_a_scheduler_and_back(vec![FromWorker::Unreachable { executors: many(33), owner: None }]);
    assert_eq!(back, [FromWorker::Unreachable { executors: many(32), owner: None }]);
    let report = Report::Unreachable { executors: many(33), owner: None };
    assert!(encode(&Reports { reports: vec![report], skipped: 0 }).is_err());
}

/// A worker is sent how long the attempt may take, not what the client or the scheduler's settings specify.
#[test]
fn the_timeout_of_the_dispatch_is_that_of_the_task() {
    for said in [None, Some(Span::from_secs(1))] {
        let mut dispatch = samples::dispatch();
        dispatch.timeout = Span::from_secs(9);
        Arc::make_mut(&mut dispatch.spec).timeout = said;
        let back = to_a_worker_and_back(vec![ToWorker::Dispatch(Arc::new(dispatch))]);
        let [ToWorker::Dispatch(back)] = &back[..] else { panic!("{back:?}") };
        assert_eq!((back.timeout, back.spec.timeout), (Span::from_secs(9), Some(back.timeout)));
    }
}

#[test]
fn a_long_text_of_a_failure_is_cut_between_characters() {
    let (attempt, fence) = samples::attempt();
    for (text, kept) in [
        ("x".repeat(MAX_ERROR_BYTES), MAX_ERROR_BYTES),
        ("x".repeat(MAX_ERROR_BYTES + 1), MAX_ERROR_BYTES),
        ("€".repeat(MAX_ERROR_BYTES), MAX_ERROR_BYTES / 3 * 3),
        // All 2,000 characters that the engine keeps, of the longest kind.
        ("🦀".repeat(5_000), 2_000 * 4),
    ] {
        let outcome = Outcome::Failed(TaskError::new(FailureKind::InvalidInput, text.clone()));
        let finished = FromWorker::Finished { attempt, fence, run: Span::ZERO, outcome };
        let back = to_a_scheduler_and_back(vec![finished]);
        let [
            FromWorker::Finished {
                outcome: Outcome::Failed(TaskError { message: error, .. }), ..
            },
        ] = &back[..]
        else {
            panic!("{back:?}")
        };
        assert_eq!(error.len(), kept);
        assert!(text.starts_with(error));
    }
}

#[test]
fn a_frame_holds_as_many_of_the_longest_failures_as_messages() {
    let (attempt, fence) = samples::attempt();
    let outcome = Outcome::Unreachable { error: "x".repeat(MAX_ERROR_BYTES) };
    let run = Span::from_micros(u64::MAX);
    let attempt = AttemptId { number: u32::MAX, ..attempt };
    let fence = Fence(fence.0 | 1 << 63);
    let finished = FromWorker::Finished { attempt, fence, run, outcome };
    encode(&samples::reports(vec![finished; MAX_MESSAGES])).unwrap();
}

#[test]
fn the_largest_payload_passes_and_a_larger_one_does_not() {
    let largest = Payload::from(vec![7; MAX_PAYLOAD_BYTES]);
    let larger = Payload::from(vec![7; MAX_PAYLOAD_BYTES + 1]);
    let (attempt, fence) = samples::attempt();
    let dispatched = |input: &Payload| {
        let spec = TaskSpec { input: input.clone(), ..TaskSpec::default() };
        let dispatch = Dispatch { spec: Arc::new(spec), ..samples::dispatch() };
        samples::orders(vec![ToWorker::Dispatch(Arc::new(dispatch))])
    };
    let completed = |result: &Payload| {
        let digest = Digest::from_bytes([0; 32]);
        let result = TaskResult::Inline { payload: result.clone(), digest };
        let outcome = Outcome::Completed { result };
        let run = Span::ZERO;
        samples::reports(vec![FromWorker::Finished { attempt, fence, run, outcome }])
    };
    let output = |piece: &Payload| {
        samples::reports(vec![FromWorker::Output { attempt, fence, piece: piece.clone() }])
    };
    let good = encode(&dispatched(&largest)).unwrap();
    assert_eq!(decode(&good), Ok(dispatched(&largest)));
    encode(&completed(&largest)).unwrap();
    encode(&output(&largest)).unwrap();
    refused(&dispatched(&larger), "input: has 16777217, at most 16777216 are taken");
    refused(&completed(&larger), "result: has 16777217, at most 16777216 are taken");
    refused(&output(&larger), "result: has 16777217, at most 16777216 are taken");
}

#[test]
fn messages_are_counted() {
    let (attempt, fence) = samples::attempt();
    let orders = |count| samples::orders(vec![ToWorker::Cancel { attempt, fence }; count]);
    let reports = |count| samples::reports(vec![FromWorker::Started { attempt, fence }; count]);
    encode(&orders(MAX_MESSAGES)).unwrap();
    encode(&reports(MAX_MESSAGES)).unwrap();
    refused(&orders(MAX_MESSAGES + 1), "orders: has 4097, at most 4096 are taken");
    refused(&reports(MAX_MESSAGES + 1), "reports: has 4097, at most 4096 are taken");
}

/// This build does not send it, and does not accept it from a peer that does.
fn refused<M: Message>(bad: &M, expected: &str) {
    let sent = encode(bad).unwrap_err();
    assert_eq!(sent.to_string(), format!("{}: {expected}", M::NAME));
    let bytes = [vec![1], rmp_serde::to_vec_named(bad).unwrap()].concat();
    match decode::<M>(&bytes) {
        Err(DecodeError::Invalid { .. }) => {}
        Err(DecodeError::Malformed { problem, .. }) => {
            assert!(problem.contains("at most"), "{problem}");
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("taken: {expected}"),
    }
}

/// A count comes from a peer: nothing is allocated for it.
#[test]
fn counts_and_lengths_allocate_nothing() {
    let cases: [(&[u8], &str); 4] = [
        (b"\x01\x81\xa6orders\xdd\xff\xff\xff\xff", "at most 4096"),
        (b"\x01\x81\xa6orders\xdc\x10\x00", "IO error"),
        (b"\x01\x81\xa6orders\x91\xc6\xff\xff\xff\xff", "IO error"),
        (b"\x01\x81\xa6orders\x91\xdd\xff\xff\xff\xff", "byte string"),
    ];
    for (bytes, expected) in cases {
        let info = allocation_counter::measure(|| {
            let error = decode::<Orders>(bytes).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        });
        assert!(info.bytes_max < 4_096, "{}: {} bytes", bytes.escape_ascii(), info.bytes_max);
    }
    let largest = (Orders::MAX_BYTES as u32).to_be_bytes();
    let info = allocation_counter::measure(|| {
        let mut reader = FrameReader::<Orders>::new();
        assert_eq!(reader.push(&largest), LENGTH_BYTES);
        assert_eq!((reader.pop(), reader.missing_bytes()), (Ok(None), Orders::MAX_BYTES));
    });
    assert!(info.bytes_max < 4_096, "{}", info.bytes_max);
}

#[test]
fn a_huge_count_of_attempts_is_refused_before_allocation() {
    let (attempt, fence) = samples::attempt();
    let (lease, epoch) = (samples::lease(), Epoch(1));
    let alive =
        |holding| FromWorker::Alive { lease, epoch, nonce: 1, portion: None, usage: None, holding };
    let mut bytes = Vec::new();
    let piece = rmp_serde::to_vec_named(&Report::from(alive(vec![(attempt, fence)]))).unwrap();
    // The list of one item is the last field; its count is replaced.
    let list = piece.windows(8).position(|at| at == b"holding\x91").unwrap() + 7;
    for count in [u32::MAX, MAX_HOLDING as u32 + 1, MAX_HOLDING as u32] {
        let absurd = [&piece[..list], &[0xdd], &count.to_be_bytes(), &piece[list + 1..]].concat();
        bytes.push(News(absurd));
    }
    bytes.push(News(piece));
    let frame = frame("reports", bytes);
    let info = allocation_counter::measure(|| {
        let read: Reports = decode(&frame).unwrap();
        assert_eq!((read.reports.len(), read.skipped), (1, 3));
    });
    assert!(info.bytes_max < 8_192, "{} bytes", info.bytes_max);

    let most = samples::reports(vec![alive(vec![(attempt, fence); MAX_HOLDING])]);
    assert_eq!(decode(&encode(&most).unwrap()), Ok(most));
    let more = samples::reports(vec![alive(vec![(attempt, fence); MAX_HOLDING + 1])]);
    let error = encode(&more).unwrap_err().to_string();
    assert_eq!(error, "message to a scheduler: holding: has 65537, at most 65536 are taken");
}

/// The memory that a reader used for a large frame is freed.
#[test]
fn the_memory_of_a_large_frame_is_freed() {
    let spec = TaskSpec { input: Payload::from(vec![7; 4 << 20]), ..TaskSpec::default() };
    let dispatch = Dispatch { spec: Arc::new(spec), ..samples::dispatch() };
    let mut bytes = Vec::new();
    put_frame(&mut bytes, &samples::orders(vec![ToWorker::Dispatch(Arc::new(dispatch))])).unwrap();
    let mut reader = FrameReader::<Orders>::new();
    let info = allocation_counter::measure(|| {
        assert_eq!(reader.push(&bytes), bytes.len());
        assert!(reader.pop().unwrap().is_some());
    });
    assert!(info.bytes_current < 256 << 10, "{} bytes are kept", info.bytes_current);
}

/// A message in bytes.
struct News(Vec<u8>);

impl Serialize for News {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

/// A frame's message as a newer peer may encode it.
fn frame(field: &str, pieces: Vec<News>) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(untagged)]
    enum Any {
        Pieces(Vec<News>),
        Text(&'static str),
    }
    let fields = BTreeMap::from([("a_new_field", Any::Text("?")), (field, Any::Pieces(pieces))]);
    [vec![1], rmp_serde::to_vec_named(&fields).unwrap()].concat()
}

fn news(value: &impl Serialize) -> News {
    News(rmp_serde::to_vec_named(value).unwrap())
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum NewerOrder {
    Reboot,
    Suspend { attempt: AttemptKey, why: Vec<Option<bool>> },
    Both(u8, String),
    Cancel { task: TaskId, number: u32, fence: u64, why: &'static str },
    Dispatch(NewerWork),
}

#[derive(Serialize)]
struct NewerWork {
    urgency: BTreeMap<u8, f64>,
    lease: LeaseId,
    epoch: u64,
    attempt: AttemptKey,
    timeout_us: u64,
    requirement: Requirement,
    input: Payload,
    #[serde(skip_serializing_if = "Option::is_none")]
    form: Option<&'static str>,
}

fn newer_work(form: Option<&'static str>) -> NewerOrder {
    let (attempt, fence) = samples::attempt();
    NewerOrder::Dispatch(NewerWork {
        urgency: [(1, 0.5)].into(),
        lease: samples::lease(),
        epoch: 7,
        attempt: AttemptKey { task: attempt.task, number: attempt.number, fence: fence.0 },
        timeout_us: 5,
        requirement: Requirement::default(),
        input: Payload::default(),
        form,
    })
}

#[test]
fn unknown_orders_do_not_hide_others() {
    let (attempt, fence) = samples::attempt();
    let (task, number) = (attempt.task, attempt.number);
    let held = AttemptKey { task, number, fence: fence.0 };
    let known = samples::to_worker();
    let trailing = {
        let News(bytes) = news(&Order::from(known[0].clone()));
        News([&bytes[..], &[0xc0]].concat())
    };
    let pieces = vec![
        news(&NewerOrder::Reboot),
        news(&Order::from(known[0].clone())),
        news(&NewerOrder::Suspend { attempt: held, why: vec![None, Some(true)] }),
        news(&NewerOrder::Both(1, "x".into())),
        // A known order with an unknown field, and one with only its required fields.
        news(&NewerOrder::Cancel { task, number, fence: fence.0, why: "boredom" }),
        news(&newer_work(None)),
        // A known order with unknown content.
        news(&newer_work(Some("image"))),
        News(vec![]),
        News(vec![0xc1]),
        News([&b"\x81\xa3new"[..], &[0x91; 5_000]].concat()),
        trailing,
        news(&Order::from(known[1].clone())),
    ];
    let read: Orders = decode(&frame("orders", pieces)).unwrap();
    assert_eq!((read.skipped, read.skipped()), (8, 8));
    let read: Vec<_> = read.orders.into_iter().map(ToWorker::from).collect();
    let least = Dispatch {
        timeout: Span::from_micros(5),
        spec: Arc::new(TaskSpec { timeout: Some(Span::from_micros(5)), ..TaskSpec::default() }),
        ..samples::dispatch()
    };
    let expected = [
        known[0].clone(),
        ToWorker::Cancel { attempt, fence },
        ToWorker::Dispatch(Arc::new(least)),
        known[1].clone(),
    ];
    assert_eq!(read, expected);
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum NewerReport {
    Paused { request: u64 },
    LeaseRefused { request: u64, refusal: NewerRefusal },
}

#[derive(Serialize)]
struct NewerRefusal {
    kind: NewerKind,
    needed: u64,
    unit: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum NewerKind {
    Moody,
    Haunted { by: &'static str },
    TooFar,
}

#[test]
fn a_newer_reason_is_still_a_refusal() {
    let refused = |kind| {
        let refusal = NewerRefusal { kind, needed: 3, unit: "µs" };
        news(&NewerReport::LeaseRefused { request: 8, refusal })
    };
    let pieces = vec![
        news(&NewerReport::Paused { request: 8 }),
        refused(NewerKind::Moody),
        refused(NewerKind::Haunted { by: "itself" }),
        refused(NewerKind::TooFar),
    ];
    let read: Reports = decode(&frame("reports", pieces)).unwrap();
    assert_eq!(read.skipped, 1);
    let unavailable = hypha_model::Refusal::without_amount(RefusalKind::Unavailable);
    let too_far = hypha_model::Refusal { kind: RefusalKind::TooFar, needed: 3, present: 0 };
    let expected = [unavailable, unavailable, too_far]
        .map(|refusal| Report::LeaseRefused { request: 8, refusal });
    assert_eq!(read.reports, expected);
}

/// A count of skipped messages from a peer is not trusted.
#[test]
fn skipped_messages_are_not_sent_on() {
    let orders = Orders { skipped: 3, ..samples::orders(samples::to_worker()) };
    let read: Orders = decode(&encode(&orders).unwrap()).unwrap();
    assert_eq!(read, samples::orders(samples::to_worker()));
    let reports = Reports { skipped: MAX_MESSAGES, ..Reports::default() };
    assert_eq!(decode(&encode(&reports).unwrap()), Ok(Reports::default()));
}

fn name() -> impl Strategy<Value = Name> {
    "[a-zä€🦀/@.-][a-z0-9 ]{0,20}[a-z]".prop_map(|name| name.parse().unwrap())
}

fn payload() -> impl Strategy<Value = Payload> {
    vec(any::<u8>(), 0..400).prop_map(Payload::from)
}

fn span() -> impl Strategy<Value = Span> {
    any::<u64>().prop_map(Span::from_micros)
}

fn attempt() -> impl Strategy<Value = (AttemptId, Fence)> {
    any::<(u64, u32, u64)>().prop_map(|(seed, number, fence)| {
        let task = TaskId::new(Time::from_micros(seed), &mut Rng::new(seed));
        (AttemptId { task, number }, Fence(fence))
    })
}

fn lease() -> impl Strategy<Value = (LeaseId, Epoch)> {
    any::<(u64, u64)>().prop_map(|(seed, epoch)| {
        let lease = LeaseId::new(Time::from_micros(seed), &mut Rng::new(seed));
        (lease, Epoch(epoch))
    })
}

fn refusal() -> impl Strategy<Value = hypha_model::Refusal> {
    let kind = prop::sample::select(RefusalKind::ALL.to_vec());
    (kind, any::<(u64, u64)>()).prop_map(|(kind, (needed, present))| hypha_model::Refusal {
        kind,
        needed,
        present,
    })
}

fn metadata() -> impl Strategy<Value = Metadata> {
    let number = prop::num::f64::NORMAL | prop::num::f64::ZERO | prop::num::f64::SUBNORMAL;
    let value = prop_oneof![
        number.prop_map(MetadataValue::Number),
        ".{0,60}".prop_map(|text| MetadataValue::Text(text.into())),
    ];
    vec((".{0,30}", value), 0..12).prop_map(|entries| {
        Metadata::new(entries.into_iter().map(|(key, value)| (key.into(), value))).unwrap()
    })
}

prop_compose! {
    fn requirement()(
        (model, executor) in (option::of(name()), option::of(name())),
        class in prop::sample::select(
            vec![ExecutorClass::Inference, ExecutorClass::Train, ExecutorClass::Aggregate]
        ),
        (cpu_milli, memory_bytes, storage_bytes, gpu_memory_bytes) in any::<(u64, u64, u64, u64)>(),
        (min_gpus, milli_gpu, priority) in any::<(u32, u32, i32)>(),
        (estimated_time, deadline) in (option::of(span()), option::of(span())),
        deadline_policy in prop::sample::select(DeadlinePolicy::ALL.to_vec()),
        maximise in option::of(prop::sample::select(Maximise::ALL.to_vec())),
    ) -> Requirement {
        let priority = Priority::from_milli(priority);
        Requirement {
            model, class, executor, cpu_milli, memory_bytes, storage_bytes, min_gpus,
            gpu_memory_bytes, milli_gpu, gpu_ids: GpuIds::default(), estimated_time, priority, deadline,
            deadline_policy, maximise,
        }
    }
}

prop_compose! {
    fn dispatch()(
        (lease, epoch) in lease(),
        (attempt, fence) in attempt(),
        (requirement, input, metadata) in (requirement(), payload(), metadata()),
        (tenant, timeout, said) in (option::of(name()), span(), option::of(span())),
        form in prop::sample::select(
            vec![InputKind::Task, InputKind::Chat, InputKind::Completion, InputKind::Embedding]
        ),
        stream in any::<bool>(),
        interactive in any::<bool>(),
        resume in option::of("[a-z0-9/]{1,40}"),
    ) -> Dispatch {
        let spec = TaskSpec { requirement, input, metadata, tenant, timeout: said, form, stream };
        Dispatch { lease, epoch, attempt, fence, timeout, spec: Arc::new(spec), interactive, resume: resume.map(Arc::from) }
    }
}

fn some() -> impl Strategy<Value = Option<Arc<Requirement>>> {
    option::of(requirement().prop_map(Arc::new))
}

fn portion() -> impl Strategy<Value = Option<Portion>> {
    let device = (any::<u64>(), any::<u32>())
        .prop_map(|(memory_bytes, milli_gpu)| DevicePart { memory_bytes, milli_gpu });
    let amounts = (any::<u64>(), any::<u64>(), any::<u64>());
    let parts = (amounts, vec(device, 0..9), vec(any::<u32>(), 0..9));
    option::of(parts.prop_map(|((cpu_milli, memory_bytes, storage_bytes), devices, slots)| {
        Portion { cpu_milli, memory_bytes, storage_bytes, devices, slots }
    }))
}

fn to_worker() -> impl Strategy<Value = ToWorker> {
    prop_oneof![
        (any::<u64>(), span(), some(), some(), some()).prop_map(
            |(request, ttl, least, wish, short_of)| {
                ToWorker::RequestLease(LeaseRequest {
                    request,
                    ttl,
                    minimum: least,
                    maximum: wish,
                    demand: short_of,
                })
            }
        ),
        (lease(), any::<u64>(), some()).prop_map(|((lease, epoch), nonce, short_of)| {
            ToWorker::Heartbeat { lease, epoch, nonce, demand: short_of }
        }),
        dispatch().prop_map(|dispatch| ToWorker::Dispatch(Arc::new(dispatch))),
        attempt().prop_map(|(attempt, fence)| ToWorker::Cancel { attempt, fence }),
        attempt().prop_map(|(attempt, fence)| ToWorker::Recorded { attempt, fence }),
        lease().prop_map(|(lease, epoch)| ToWorker::ReleaseLease { lease, epoch }),
    ]
}

/// How earlier releases reported failures: whether to retry, and no kind.
#[test]
fn a_failure_without_a_kind_keeps_whether_to_retry() {
    #[derive(serde::Serialize)]
    #[serde(rename_all = "snake_case")]
    enum Said<'a> {
        Failed {
            attempt: AttemptKey,
            run_us: u64,
            error: &'a str,
            retry: bool,
            kind: Option<&'a str>,
        },
    }
    let ((id, fence), error) = (samples::attempt(), "the server answered 422: no");
    let attempt = AttemptKey { task: id.task, number: id.number, fence: fence.0 };
    for (kind, retry, read) in [
        (None, true, FailureKind::Unknown),
        (None, false, FailureKind::UnknownPermanent),
        (Some("of_2030"), true, FailureKind::Unknown),
        (Some("of_2030"), false, FailureKind::UnknownPermanent),
        (Some("program_failed"), true, FailureKind::ProgramFailed),
    ] {
        let said = Said::Failed { attempt, run_us: 1, error, retry, kind };
        let mut bytes = rmp_serde::to_vec_named(&said).unwrap();
        if kind.is_none() {
            // As encoded by a release that does not know the field.
            #[derive(serde::Serialize)]
            #[serde(rename_all = "snake_case")]
            enum Before<'a> {
                Failed { attempt: AttemptKey, run_us: u64, error: &'a str, retry: bool },
            }
            let before = Before::Failed { attempt, run_us: 1, error, retry };
            bytes = rmp_serde::to_vec_named(&before).unwrap();
        }
        let report: Report = rmp_serde::from_slice(&bytes).unwrap();
        let FromWorker::Finished { outcome: Outcome::Failed(decoded), .. } = report.into() else {
            panic!("it has not failed")
        };
        assert_eq!(decoded, TaskError::new(read, error));
    }
}

fn from_worker() -> impl Strategy<Value = FromWorker> {
    let outcome = prop_oneof![
        (payload(), any::<[u8; 32]>(), any::<Option<u64>>()).prop_map(
            |(payload, digest, object)| {
                let digest = Digest::from_bytes(digest);
                let result = match object {
                    Some(bytes) => {
                        TaskResult::Object(ObjectRef { digest, bytes, by_digest: false })
                    }
                    None => TaskResult::Inline { payload, digest },
                };
                Outcome::Completed { result }
            }
        ),
        (0..FailureKind::ALL.len(), any::<String>(), any::<Option<u16>>(), any::<Option<u32>>())
            .prop_map(|(kind, message, status, retry_after_s)| {
                let kind = FailureKind::ALL[kind];
                Outcome::Failed(TaskError { kind, message, status, retry_after_s })
            }),
        Just(Outcome::TimedOut),
        any::<String>().prop_map(|error| Outcome::Unreachable { error }),
    ];
    prop_oneof![
        (any::<u64>(), lease(), span(), portion(), vec(attempt(), 0..9)).prop_map(
            |(request, (lease, epoch), ttl, portion, holding)| FromWorker::LeaseGranted {
                request,
                lease,
                epoch,
                ttl,
                portion,
                holding,
            }
        ),
        lease().prop_map(|(lease, epoch)| FromWorker::RenewEarly { lease, epoch }),
        (any::<u64>(), refusal())
            .prop_map(|(request, refusal)| FromWorker::LeaseRefused { request, refusal }),
        (lease(), any::<u64>(), portion(), vec(attempt(), 0..9)).prop_map(
            |((lease, epoch), nonce, portion, holding)| FromWorker::Alive {
                lease,
                epoch,
                nonce,
                portion,
                usage: None,
                holding,
            }
        ),
        lease().prop_map(|(lease, epoch)| FromWorker::LeaseUnknown { lease, epoch }),
        attempt().prop_map(|(attempt, fence)| FromWorker::Accepted { attempt, fence }),
        (attempt(), "[a-z0-9/]{1,40}").prop_map(|((attempt, fence), handle)| {
            FromWorker::Delegated { attempt, fence, handle: Arc::from(handle) }
        }),
        (attempt(), refusal()).prop_map(|((attempt, fence), refusal)| FromWorker::Refused {
            attempt,
            fence,
            refusal,
        }),
        attempt().prop_map(|(attempt, fence)| FromWorker::Started { attempt, fence }),
        (attempt(), any::<u16>()).prop_map(|((attempt, fence), permille)| FromWorker::Progress {
            attempt,
            fence,
            permille,
        }),
        (attempt(), payload()).prop_map(|((attempt, fence), piece)| FromWorker::Output {
            attempt,
            fence,
            piece,
        }),
        (attempt(), span(), outcome).prop_map(|((attempt, fence), run, outcome)| {
            FromWorker::Finished { attempt, fence, run, outcome }
        }),
        (attempt(), span()).prop_map(|((attempt, fence), elapsed)| FromWorker::Running {
            attempt,
            fence,
            elapsed,
        }),
        (lease(), any::<bool>()).prop_map(|((lease, epoch), waits)| FromWorker::Left {
            epoch,
            lease: waits.then_some(lease),
        }),
    ]
}

/// As the worker receives it: see [`the_timeout_of_the_dispatch_is_that_of_the_task`].
fn as_heard(message: ToWorker) -> ToWorker {
    match message {
        ToWorker::Dispatch(mut dispatch) => {
            let received = Arc::make_mut(&mut dispatch);
            Arc::make_mut(&mut received.spec).timeout = Some(received.timeout);
            ToWorker::Dispatch(dispatch)
        }
        other => other,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn orders_round_trip(messages in vec(to_worker(), 0..12)) {
        let expected: Vec<_> = messages.iter().cloned().map(as_heard).collect();
        prop_assert_eq!(to_a_worker_and_back(messages), expected);
    }

    #[test]
    fn reports_round_trip(messages in vec(from_worker(), 0..12)) {
        prop_assert_eq!(to_a_scheduler_and_back(messages.clone()), messages);
    }
}
