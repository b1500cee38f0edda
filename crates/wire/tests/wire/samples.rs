//! The values of the golden bytes: each message small, full, and in each of its variants.

use std::fmt::Debug;
use std::sync::Arc;

use hypha_engine::{
    DevicePart, Dispatch, FromWorker, LeaseRequest, OfferedRole, Outcome, OwnerReason, Portion,
    Receipt, Signature, ToWorker, WantedRole,
};
use hypha_model::{
    AdvertId, AttemptId, Epoch, ExecutorClass, FailureKind, Fence, GpuIds, InputKind, LeaseId,
    Metadata, MetadataValue, Money, ObjectRef, OfferId, Payload, Priority, Requirement, Rng,
    SchedulerId, Span, TaskError, TaskId, TaskResult, TaskSpec, Time, Usage, WorkerId,
};
use hypha_wire::revocation::*;
use hypha_wire::worker::{Class, Device, Executor};
use hypha_wire::*;

type Reads = Box<dyn Fn(&[u8])>;

/// One value and its expected bytes.
pub(crate) struct Sample {
    /// The decoder that reads it.
    pub(crate) decoder: &'static str,
    /// The name of the sample.
    pub(crate) case: &'static str,
    /// The bytes that this build encodes.
    pub(crate) bytes: Vec<u8>,
    /// Asserts that bytes decode to the value.
    pub(crate) reads: Reads,
}

pub(crate) fn all() -> Vec<Sample> {
    let mut all = records();
    all.extend(messages());
    all.extend(bulk());
    all.extend(dispatches());
    all.push(frames());
    all
}

pub(crate) fn worker() -> Worker {
    Worker {
        executors: vec![
            Executor {
                class: Class::Inference,
                name: "vllm".into(),
                models: vec!["llama-2-7b".into(), "qwen/qwen3-8b@main".into()],
                concurrency: 8,
            },
            Executor {
                class: Class::Train,
                name: "diloco-transformer".into(),
                models: vec![],
                concurrency: 1,
            },
            Executor {
                class: Class::Aggregate,
                name: "parameter-server".into(),
                models: vec![],
                concurrency: 10_000,
            },
        ],
        cpu_milli: 32_500,
        memory_bytes: 128 << 30,
        storage_bytes: 2 << 40,
        devices: vec![
            Device { model: "A100".into(), memory_bytes: 80 << 30, milli_gpu: 1_000 },
            Device { model: "RTX 4090".into(), memory_bytes: 24 << 30, milli_gpu: 500 },
        ],
        price_micros: 1_250_000,
        region: Some("eu-north".into()),
        hardware: Some("dgx".into()),
    }
}

pub(crate) fn worker_record() -> WorkerRecord {
    WorkerRecord {
        peer: peer(),
        organisation: "Universität Ulm".into(),
        sequence: 41,
        issued_unix_ms: 1_800_000_000_123,
        ttl_ms: 60_000,
        worker: worker(),
        addresses: vec![address(1), address(2)],
        bulk_addresses: vec![address(3)],
    }
}

pub(crate) fn dataset_record() -> DatasetRecord {
    DatasetRecord {
        peer: peer(),
        organisation: "acme".into(),
        sequence: u64::MAX,
        issued_unix_ms: 1_800_000_000_123,
        ttl_ms: 3_600_000,
        name: "fineweb-edu".into(),
        slices: Some(1_024),
        bytes: Some(1 << 40),
        addresses: vec![address(1)],
        bulk_addresses: vec![],
    }
}

pub(crate) fn farewell() -> Farewell {
    Farewell { peer: peer(), sequence: 42, issued_unix_ms: 1_800_000_060_000 }
}

pub(crate) fn signed() -> SignedRecord {
    SignedRecord {
        kind: SignedKind::Worker,
        payload: encode(&worker_record()).unwrap(),
        chain: vec![ramp(500), ramp(420)],
        signature: ramp(64),
    }
}

pub(crate) fn record_set() -> RecordSet {
    let farewell = SignedRecord {
        kind: SignedKind::Farewell,
        payload: encode(&farewell()).unwrap(),
        chain: vec![ramp(300)],
        ..signed()
    };
    RecordSet {
        entries: vec![
            RecordSetEntry { remaining_ms: 59_000, signed: signed() },
            RecordSetEntry { remaining_ms: 0, signed: farewell },
        ],
    }
}

pub(crate) fn health() -> Health {
    Health {
        role: "gateway".into(),
        version: "0.1.0".into(),
        uptime_ms: 86_400_000,
        peers: 102,
        ready: false,
        problems: vec!["no external address: give one with --external".into()],
        notes: Vec::new(),
    }
}

pub(crate) fn revocation_index() -> RevocationIndex {
    let entry = |number| RevocationEntry {
        issuer: vec![4; 32],
        number,
        digest: vec![5; 32],
        bytes: 1 << 20,
    };
    RevocationIndex { digest: vec![3; 32], lists: vec![entry(1), entry(u64::MAX)] }
}

pub(crate) fn request(body: RequestBody) -> Request {
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    Request { id: 7, deadline_ms: 5_000, traceparent: Some(traceparent.into()), body }
}

pub(crate) fn attempt() -> (AttemptId, Fence) {
    let task = TaskId::new(Time::from_micros(1_800_000_000_123_000), &mut Rng::new(1));
    (AttemptId { task, number: 3 }, Fence(1 << 40))
}

pub(crate) fn lease() -> LeaseId {
    LeaseId::new(Time::from_micros(1_800_000_000_000_000), &mut Rng::new(2))
}

/// A dispatch with every field set.
pub(crate) fn dispatch() -> Dispatch {
    let (attempt, fence) = attempt();
    let text = |text: &str| MetadataValue::Text(Arc::from(text));
    let metadata =
        [("tokens".into(), MetadataValue::Number(100.5)), ("hardware".into(), text("A100"))];
    let timeout = Span::from_secs(300);
    let requirement = Requirement {
        model: Some("qwen/qwen3-8b@main".parse().unwrap()),
        class: ExecutorClass::Train,
        executor: Some("vllm".parse().unwrap()),
        cpu_milli: 1_500,
        memory_bytes: 16 << 30,
        storage_bytes: 1 << 30,
        min_gpus: 2,
        gpu_memory_bytes: 24 << 30,
        milli_gpu: 500,
        estimated_time: Some(Span::from_millis(1_500)),
        gpu_ids: GpuIds::default(),
        priority: Priority::from_milli(-900),
        deadline: Some(Span::from_secs(60)),
        ..Requirement::default()
    };
    let spec = TaskSpec {
        requirement,
        input: Payload::from(ramp(200)),
        metadata: Metadata::new(metadata).unwrap(),
        tenant: Some("acme".parse().unwrap()),
        timeout: Some(timeout),
        form: InputKind::Chat,
        stream: true,
    };
    Dispatch {
        lease: lease(),
        epoch: Epoch(7),
        attempt,
        fence,
        spec: Arc::new(spec),
        timeout,
        interactive: false,
        resume: None,
    }
}

/// A dispatch with as few fields as possible.
pub(crate) fn bare_dispatch() -> Dispatch {
    let spec = TaskSpec { timeout: Some(Span::ZERO), ..TaskSpec::default() };
    Dispatch { spec: Arc::new(spec), timeout: Span::ZERO, ..dispatch() }
}

/// One of each.
pub(crate) fn to_worker() -> Vec<ToWorker> {
    let ((attempt, fence), lease, epoch) = (attempt(), lease(), Epoch(7));
    vec![
        ToWorker::RequestLease(LeaseRequest {
            request: 1,
            ttl: Span::from_secs(15),
            ..LeaseRequest::default()
        }),
        ToWorker::Heartbeat { lease, epoch, nonce: u64::MAX, demand: None },
        ToWorker::Dispatch(Arc::new(dispatch())),
        ToWorker::Dispatch(Arc::new(bare_dispatch())),
        ToWorker::Cancel { attempt, fence },
        ToWorker::Recorded { attempt, fence },
        ToWorker::ReleaseLease { lease, epoch },
    ]
}

/// One of each, and of each outcome and reason.
pub(crate) fn from_worker() -> Vec<FromWorker> {
    let ((attempt, fence), lease, epoch) = (attempt(), lease(), Epoch(7));
    let (ttl, run) = (Span::from_secs(15), Span::from_micros(1_234));
    let payload = Payload::from(ramp(300));
    let completed = Outcome::Completed { result: payload.into() };
    let failed = Outcome::Failed(TaskError::new(FailureKind::Unknown, "out of memory €"));
    let other = AttemptId { number: 4, ..attempt };
    let mut all = vec![
        FromWorker::LeaseGranted { request: 1, lease, epoch, ttl, portion: None, holding: vec![] },
        FromWorker::Alive {
            lease,
            epoch,
            nonce: 0,
            portion: None,
            usage: None,
            holding: vec![(attempt, fence), (other, Fence(1))],
        },
        FromWorker::LeaseUnknown { lease, epoch },
        FromWorker::Accepted { attempt, fence },
        FromWorker::Started { attempt, fence },
        FromWorker::Progress { attempt, fence, permille: 999 },
        FromWorker::Output { attempt, fence, piece: Payload::from(ramp(3)) },
        FromWorker::Finished { attempt, fence, run, outcome: completed },
        FromWorker::Finished { attempt, fence, run, outcome: failed },
        FromWorker::Finished { attempt, fence, run, outcome: Outcome::TimedOut },
    ];
    // Later releases have more reasons; see `of_delegation` and `of_owners`.
    let reserved = hypha_model::RefusalKind::Reserved;
    for kind in hypha_model::RefusalKind::ALL.into_iter().filter(|kind| *kind < reserved) {
        let refusal = hypha_model::Refusal { kind, needed: 2, present: 1 };
        all.push(FromWorker::LeaseRefused { request: 1, refusal });
        all.push(FromWorker::Refused { attempt, fence, refusal });
    }
    all.push(FromWorker::Running { attempt, fence, elapsed: run });
    all.push(FromWorker::Left { epoch, lease: Some(lease) });
    all.push(FromWorker::Left { epoch, lease: None });
    all
}

/// What later releases add: unreachable back ends of executors.
pub(crate) fn of_unreachable() -> Vec<FromWorker> {
    let ((attempt, fence), run) = (attempt(), Span::from_micros(1_234));
    let outcome = Outcome::Unreachable { error: "connection refused".into() };
    let executors = vec!["vllm".parse().unwrap(), "whisper".parse().unwrap()];
    vec![
        FromWorker::Finished { attempt, fence, run, outcome },
        FromWorker::Unreachable { executors, owner: None },
        FromWorker::Unreachable { executors: Vec::new(), owner: None },
    ]
}

/// What later releases add: an owner who lets nothing new begin, and one who refuses a lease by the terms.
pub(crate) fn of_owners() -> Vec<FromWorker> {
    let reasons = [OwnerReason::Paused, OwnerReason::OffHours, OwnerReason::InUse];
    let message = |reason| FromWorker::Unreachable {
        executors: vec!["vllm".parse().unwrap()],
        owner: Some(reason),
    };
    let refused = |kind| {
        let refusal = hypha_model::Refusal::without_amount(kind);
        FromWorker::LeaseRefused { request: 1, refusal }
    };
    let kinds = [hypha_model::RefusalKind::NotServed, hypha_model::RefusalKind::Price];
    reasons.map(message).into_iter().chain(kinds.map(refused)).collect()
}

/// What later releases add: attempts that a back end has, and reserved room.
pub(crate) fn of_delegation() -> Vec<FromWorker> {
    let (attempt, fence) = attempt();
    let kind = hypha_model::RefusalKind::Reserved;
    let refusal = hypha_model::Refusal { kind, needed: 2, present: 1 };
    vec![
        FromWorker::Delegated { attempt, fence, handle: Arc::from("own/7") },
        FromWorker::Refused { attempt, fence, refusal },
    ]
}

/// What later releases add: the measured use of a machine, and the GPUs of an attempt.
pub(crate) fn of_machines() -> Vec<FromWorker> {
    let ((attempt, fence), usage) =
        (attempt(), Usage { cpu_permille: 420, memory_permille: 1_000 });
    let (lease, epoch, portion, usage) = (lease(), Epoch(7), None, Some(usage));
    vec![
        FromWorker::Alive { lease, epoch, nonce: 9, portion, usage, holding: vec![] },
        FromWorker::DevicesAssigned { attempt, fence, devices: vec![0, 3] },
    ]
}

/// What later releases add: GPUs that a client names, and priorities that are no thousandths.
pub(crate) fn with_named_gpus() -> Vec<ToWorker> {
    let dispatch = dispatch();
    let mut spec = (*dispatch.spec).clone();
    spec.requirement.gpu_ids = GpuIds::default().with(0).and_then(|ids| ids.with(3)).unwrap();
    spec.requirement.priority = Priority::new(0.912_345).unwrap();
    vec![ToWorker::Dispatch(Arc::new(Dispatch { spec: Arc::new(spec), ..dispatch }))]
}

/// Leases of parts of a worker.
pub(crate) fn of_parts() -> Vec<FromWorker> {
    let (lease, epoch, ttl) = (lease(), Epoch(7), Span::from_secs(15));
    let portion = Portion {
        cpu_milli: 1_500,
        memory_bytes: 1 << 34,
        storage_bytes: 0,
        devices: vec![DevicePart { memory_bytes: 1 << 33, milli_gpu: 500 }, DevicePart::default()],
        slots: vec![1, 0],
    };
    let (all, holding) = (Some(portion.clone()), Vec::new());
    vec![
        FromWorker::LeaseGranted { request: 1, lease, epoch, ttl, portion: all, holding },
        FromWorker::Alive {
            lease,
            epoch,
            nonce: 0,
            portion: Some(portion),
            usage: None,
            holding: vec![],
        },
        FromWorker::RenewEarly { lease, epoch },
    ]
}

/// Requests for parts of a worker.
pub(crate) fn for_parts() -> Vec<ToWorker> {
    let gpu = Some(Arc::new(Requirement { min_gpus: 1, ..Requirement::default() }));
    let (least, wish, short_of) = (gpu.clone(), gpu.clone(), gpu.clone());
    let ttl = Span::from_secs(15);
    vec![
        ToWorker::RequestLease(LeaseRequest {
            request: 1,
            ttl,
            minimum: least,
            maximum: wish,
            demand: short_of,
        }),
        ToWorker::Heartbeat { lease: lease(), epoch: Epoch(7), nonce: 1, demand: gpu },
    ]
}

/// What later releases add: the kind of a failure, and the status that a back end answered with.
pub(crate) fn of_kinds() -> Vec<FromWorker> {
    let ((attempt, fence), run) = (attempt(), Span::from_micros(1_234));
    let answered = TaskError { status: Some(422), ..TaskError::default() };
    let is_of_then =
        |kind: &FailureKind| !matches!(kind, FailureKind::BackendError | FailureKind::BackendBusy);
    let kinds = FailureKind::ALL.into_iter().filter(is_of_then);
    let errors = kinds.map(|kind| TaskError::new(kind, "out of memory €"));
    let finished =
        |error| FromWorker::Finished { attempt, fence, run, outcome: Outcome::Failed(error) };
    errors.chain([answered]).map(finished).collect()
}

/// What later releases add: back ends that answer errors or are busy, and until when.
pub(crate) fn of_answers() -> Vec<FromWorker> {
    let ((attempt, fence), run) = (attempt(), Span::from_micros(1_234));
    let answered = |kind, status| TaskError { status: Some(status), ..TaskError::new(kind, "no") };
    let busy = answered(FailureKind::BackendBusy, 429);
    let errors = [
        answered(FailureKind::BackendError, 500),
        TaskError { retry_after_s: Some(7), ..busy.clone() },
        busy,
    ];
    let finished =
        |error| FromWorker::Finished { attempt, fence, run, outcome: Outcome::Failed(error) };
    errors.into_iter().map(finished).collect()
}

/// What later releases add: a result that was sent as a bulk transfer.
pub(crate) fn of_object() -> Vec<FromWorker> {
    let ((attempt, fence), run) = (attempt(), Span::from_micros(1_234));
    let digest = Payload::from(ramp(300)).digest();
    let object = ObjectRef { digest, bytes: 1 << 33, by_digest: false };
    let outcome = Outcome::Completed { result: TaskResult::Object(object) };
    vec![FromWorker::Finished { attempt, fence, run, outcome }]
}

/// As earlier releases encode it: the name of the object is the result.
pub(crate) fn of_object_before() -> Vec<FromWorker> {
    let ((attempt, fence), run) = (attempt(), Span::from_micros(1_234));
    let digest = Payload::from(ramp(300)).digest();
    let object = ObjectRef { digest, bytes: 1 << 33, by_digest: false };
    let outcome =
        Outcome::Completed { result: Payload::from(object.to_json().into_bytes()).into() };
    vec![FromWorker::Finished { attempt, fence, run, outcome }]
}

/// A dispatch of an interactive task.
pub(crate) fn interactive() -> Vec<ToWorker> {
    let dispatch = Dispatch { interactive: true, ..bare_dispatch() };
    vec![ToWorker::Dispatch(Arc::new(dispatch))]
}

/// A dispatch of an attempt that a back end has already.
pub(crate) fn resumed() -> Vec<ToWorker> {
    let dispatch = Dispatch { resume: Some(Arc::from("own/7")), ..bare_dispatch() };
    vec![ToWorker::Dispatch(Arc::new(dispatch))]
}

fn advert_id() -> AdvertId {
    AdvertId::new(Time::from_micros(1_800_000_000_000_000), &mut Rng::new(3))
}

fn offer_id() -> OfferId {
    OfferId::new(Time::from_micros(1_800_000_000_000_000), &mut Rng::new(4))
}

fn worker_id() -> WorkerId {
    WorkerId::new(Time::from_micros(1_800_000_000_000_000), &mut Rng::new(5))
}

fn portion() -> Portion {
    Portion {
        cpu_milli: 1_500,
        memory_bytes: 1 << 34,
        storage_bytes: 0,
        devices: vec![DevicePart { memory_bytes: 1 << 33, milli_gpu: 500 }, DevicePart::default()],
        slots: vec![1, 0, 7],
    }
}

/// An advert with every field set.
pub(crate) fn advert() -> hypha_engine::Advert {
    let requirement = Arc::new(dispatch().spec.requirement.clone());
    let role = |name: &str, count, minimum, bid| WantedRole {
        name: name.parse().unwrap(),
        requirement: Arc::clone(&requirement),
        count,
        minimum,
        wants_all: false,
        bid: Money::from_micros(bid),
    };
    hypha_engine::Advert {
        id: advert_id(),
        roles: vec![role("worker", 4, 2, 110_000_000), role("parameter_server", 1, 1, 130_000_000)],
        priority: Priority::from_milli(500),
        is_preemptible: true,
        is_replacement: true,
        waited: Span::from_secs(7),
        window: Span::from_millis(500),
        offers_wanted: 30,
        lease_ttl: Span::from_secs(10),
    }
}

/// An offer with every field set.
pub(crate) fn offer() -> hypha_engine::Offer {
    let offered =
        |role| OfferedRole { role, price: Money::from_micros(120_000_000), portion: portion() };
    hypha_engine::Offer {
        id: offer_id(),
        advert: advert_id(),
        worker: Arc::new(worker().to_model(worker_id()).unwrap()),
        epoch: Epoch(7),
        roles: vec![offered(0), offered(1)],
        reserved_for: Span::from_millis(2_500),
        speed_milli: Some(1_200),
        backlog: Span::from_secs(3),
        is_relayed: true,
    }
}

pub(crate) fn receipt(is_countersigned: bool) -> hypha_engine::SignedReceipt {
    let signature = |first: u8| Signature {
        key: [&[0x08, 0x01, 0x12, 0x20], &ramp(32)[..]].concat(),
        bytes: ramp(64).into_iter().map(|byte| byte ^ first).collect(),
    };
    let receipt = Receipt {
        lease: lease(),
        worker: worker_id(),
        scheduler: SchedulerId::new(Time::from_micros(1_800_000_000_000_000), &mut Rng::new(6)),
        organisation: "Universität Ulm".parse().unwrap(),
        portion: portion(),
        price: Money::from_micros(120_000_000),
        held: Span::from_secs(3_600),
        number: 9,
        is_final: is_countersigned,
    };
    let scheduler = is_countersigned.then(|| signature(0xff));
    hypha_engine::SignedReceipt { receipt, worker: signature(0), scheduler }
}

/// What later releases add: the market.
pub(crate) fn of_market() -> Vec<FromWorker> {
    let (lease, epoch) = (lease(), Epoch(7));
    let bare = hypha_engine::Offer {
        worker: Arc::new(Worker::default().to_model(worker_id()).unwrap()),
        speed_milli: None,
        is_relayed: false,
        ..offer()
    };
    vec![
        FromWorker::Offered(Arc::new(offer())),
        FromWorker::Offered(Arc::new(bare)),
        FromWorker::NotOffered(advert_id()),
        FromWorker::OfferUnknown(offer_id()),
        FromWorker::ReceiptIssued(Arc::new(receipt(false))),
        FromWorker::Preempted { lease, epoch, grace: Span::from_secs(30) },
    ]
}

/// What later releases add: the market.
pub(crate) fn for_market() -> Vec<ToWorker> {
    let plain = hypha_engine::Advert { is_preemptible: false, is_replacement: false, ..advert() };
    let ttl = Span::from_secs(10);
    vec![
        ToWorker::Advertise(Arc::new(advert())),
        ToWorker::Advertise(Arc::new(plain)),
        ToWorker::CloseAdvert(advert_id()),
        ToWorker::AcceptOffer { offer: offer_id(), role: 1, request: 3, ttl },
        ToWorker::DeclineOffer(offer_id()),
        ToWorker::ReceiptCountersigned(Arc::new(receipt(true))),
    ]
}

pub(crate) fn advert_record() -> AdvertRecord {
    AdvertRecord {
        peer: peer(),
        organisation: "Universität Ulm".into(),
        issued_unix_ms: 1_800_000_000_123,
        advert: Advert::from(&advert()),
        addresses: vec![address(1), address(2)],
    }
}

pub(crate) fn advert_closed_record() -> AdvertClosedRecord {
    AdvertClosedRecord { peer: peer(), issued_unix_ms: 1_800_000_000_123, advert: advert_id() }
}

pub(crate) fn offer_request() -> OfferRequest {
    OfferRequest { offer: Offer::from(&offer()), addresses: vec![address(1)] }
}

pub(crate) fn orders(messages: Vec<ToWorker>) -> Orders {
    Orders { orders: messages.into_iter().map(Order::from).collect(), skipped: 0 }
}

pub(crate) fn reports(messages: Vec<FromWorker>) -> Reports {
    Reports { reports: messages.into_iter().map(Report::from).collect(), skipped: 0 }
}

/// An Ed25519 peer id has this shape.
fn peer() -> Vec<u8> {
    [&[0x00, 0x24, 0x08, 0x01, 0x12, 0x20], &ramp(32)[..]].concat()
}

/// `/ip4/127.0.0.1/tcp/…`.
fn address(port: u8) -> Vec<u8> {
    vec![0x04, 127, 0, 0, 1, 0x06, 0x1f, port]
}

/// Bytes that count up: with equal bytes, a misplaced length would not show.
fn ramp(len: usize) -> Vec<u8> {
    (0..len).map(|at| at as u8).collect()
}

fn records() -> Vec<Sample> {
    let bare = WorkerRecord {
        worker: Worker::default(),
        addresses: vec![],
        bulk_addresses: vec![],
        ..worker_record()
    };
    let unsized_set = DatasetRecord { slices: None, bytes: None, ..dataset_record() };
    let kind = |kind, payload| SignedRecord { kind, payload, ..signed() };
    let dataset = kind(SignedKind::Dataset, encode(&dataset_record()).unwrap());
    let advert = kind(SignedKind::Advert, encode(&advert_record()).unwrap());
    let closed = kind(SignedKind::AdvertClosed, encode(&advert_closed_record()).unwrap());
    let leaving = kind(SignedKind::Farewell, encode(&farewell()).unwrap());
    vec![
        sample("worker_record", "full", worker_record()),
        sample("worker_record", "bare", bare),
        sample("dataset_record", "full", dataset_record()),
        sample("dataset_record", "unsized", unsized_set),
        sample("farewell", "full", farewell()),
        sample("advert", "full", advert_record()),
        sample("advert", "unaddressed", AdvertRecord { addresses: vec![], ..advert_record() }),
        sample("advert_closed", "full", advert_closed_record()),
        sample("signed", "worker", signed()),
        sample("signed", "dataset", dataset),
        sample("signed", "farewell", leaving),
        sample("signed", "advert", advert),
        sample("signed", "advert_closed", closed),
        sample("record_set", "full", record_set()),
        sample("record_set", "empty", RecordSet::default()),
    ]
}

fn messages() -> Vec<Sample> {
    let plain = Request { traceparent: None, ..request(RequestBody::Health) };
    let response = |body| Response { id: 7, body };
    let addresses = ResponseBody::BulkAddresses(vec![address(1), address(2)]);
    let noted = Health { notes: vec!["programs can use the network".into()], ..health() };
    let query = RevocationQuery { seen: vec![1; 32] };
    let part_query = RevocationPartQuery { digest: vec![2; 32], offset: 49_152 };
    let index = revocation_index();
    let part = ResponseBody::RevocationPart(vec![0x30, 0x82]);
    let refused = |kind, text: &str| response(ResponseBody::Refused(Refusal::new(kind, text)));
    vec![
        sample("request", "health", plain),
        sample("request", "bulk_addresses", request(RequestBody::BulkAddresses)),
        sample("response", "health", response(ResponseBody::Health(health()))),
        sample("response", "bulk_addresses", response(addresses)),
        sample("request", "revocation_lists", request(RequestBody::RevocationLists(query))),
        sample("request", "offer", request(RequestBody::Offer(Box::new(offer_request())))),
        sample("response", "offer_received", response(ResponseBody::OfferReceived)),
        sample("request", "revocation_part", request(RequestBody::RevocationPart(part_query))),
        sample("response", "revocation_lists", response(ResponseBody::RevocationLists(index))),
        sample("response", "revocation_part", response(part)),
        sample("response", "health_notes", response(ResponseBody::Health(noted))),
        sample("response", "unknown_request", refused(RefusalKind::UnknownRequest, "no such")),
        sample("response", "unknown_version", refused(RefusalKind::UnknownVersion, "version 2")),
        sample("response", "malformed", refused(RefusalKind::Malformed, "no bytes")),
        sample("response", "not_allowed", refused(RefusalKind::NotAllowed, "ask a scheduler")),
        sample("response", "busy", refused(RefusalKind::Busy, "ask later")),
        sample("response", "deadline_passed", refused(RefusalKind::DeadlinePassed, "too late")),
        sample("response", "internal", refused(RefusalKind::Internal, "a fault here")),
        sample("verdict", "admitted", Verdict::admitted()),
        sample("verdict", "refused", Verdict::refused("the certificate was revoked")),
    ]
}

fn bulk() -> Vec<Sample> {
    use hypha_wire::bulk::*;
    let header = Header {
        job: Some(JobBytes([7; 16])),
        round: Some(3),
        kind: "delta".into(),
        name: "w".into(),
        length: 1 << 20,
        digest: Some(Digest([9; 32])),
    };
    let refusal =
        Refusal { kind: RefusalKind::Busy, message: "later".into(), retry_after_ms: Some(100) };
    let digest = Digest([9; 32]);
    vec![
        sample("bulk_open", "full", Open { transfer: TransferId([1; 16]), header }),
        sample("bulk_open_response", "accept", OpenResponse::Accept { offset: 1 << 18 }),
        sample("bulk_open_response", "refuse", OpenResponse::Refuse(refusal.clone())),
        sample("bulk_control", "end", ControlMessage::End { digest }),
        sample("bulk_receipt", "done", Receipt::Done { digest }),
        sample("bulk_receipt", "failed", Receipt::Failed(refusal)),
    ]
}

fn dispatches() -> Vec<Sample> {
    vec![
        sample("orders", "all", orders(to_worker())),
        sample("orders", "empty", Orders::default()),
        sample("reports", "all", reports(from_worker())),
        sample("reports", "unreachable", reports(of_unreachable())),
        sample("reports", "delegated", reports(of_delegation())),
        sample("reports", "machines", reports(of_machines())),
        sample("orders", "named_gpus", orders(with_named_gpus())),
        sample("reports", "parts", reports(of_parts())),
        sample("orders", "parts", orders(for_parts())),
        sample("reports", "kinds", reports(of_kinds())),
        sample("reports", "answers", reports(of_answers())),
        sample("reports", "object", reports(of_object())),
        sample("reports", "object_before", reports(of_object_before())),
        sample("orders", "market", orders(for_market())),
        sample("reports", "market", reports(of_market())),
        sample("orders", "resumed", orders(resumed())),
        sample("orders", "interactive", orders(interactive())),
        sample("reports", "greeting", Reports::default()),
    ]
}

/// Two frames that arrive in portions of three bytes.
fn frames() -> Sample {
    let mut bytes = vec![3];
    put_frame(&mut bytes, &Verdict::admitted()).unwrap();
    put_frame(&mut bytes, &Verdict::refused("no role")).unwrap();
    let reads = |bytes: &[u8]| {
        let mut reader = FrameReader::new();
        let (first, rest) = (reader.push(&bytes[1..]), 1);
        assert_eq!(reader.pop(), Ok(Some(Verdict::admitted())));
        assert_eq!(rest + first + reader.push(&bytes[rest + first..]), bytes.len());
        assert_eq!(reader.pop(), Ok(Some(Verdict::refused("no role"))));
    };
    Sample { decoder: "frame", case: "two", bytes, reads: Box::new(reads) }
}

fn sample<M: Message + PartialEq + Debug + 'static>(
    decoder: &'static str,
    case: &'static str,
    value: M,
) -> Sample {
    let bytes = encode(&value).unwrap();
    let reads = move |bytes: &[u8]| assert_eq!(decode::<M>(bytes).as_ref(), Ok(&value));
    Sample { decoder, case, bytes, reads: Box::new(reads) }
}
