//! Newer peers: fields and variants that this build does not know, at every level.

use std::collections::BTreeMap;

use hypha_model::{Rng, Time, WorkerId};
use hypha_wire::worker::Class;
use hypha_wire::*;
use serde::Serialize;

use crate::samples;

/// Decodes `newer` as a message: it is encoded as version 1 with names, as a newer peer would.
fn read<M: Message>(newer: &impl Serialize) -> Result<M, DecodeError> {
    let mut bytes = vec![1];
    newer.serialize(&mut rmp_serde::Serializer::new(&mut bytes).with_struct_map()).unwrap();
    decode(&bytes)
}

/// Everything that a field may hold, and some nesting.
#[derive(Serialize, Default)]
struct News {
    number: i64,
    ratio: f64,
    text: String,
    list: Vec<Option<bool>>,
    map: BTreeMap<u32, BTreeMap<String, Vec<()>>>,
    choice: Option<Choice>,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Choice {
    Dance,
    Sing { song: String, loudly: bool },
}

fn news() -> News {
    News {
        number: i64::MIN,
        ratio: 0.5,
        text: "new".into(),
        list: vec![None, Some(true)],
        map: [(7, [("deep".into(), vec![(), ()])].into())].into(),
        choice: Some(Choice::Sing { song: "la".into(), loudly: false }),
    }
}

#[derive(Serialize)]
struct NewerWorkerRecord {
    news: News,
    peer: Bin,
    organisation: &'static str,
    sequence: u64,
    issued_unix_ms: u64,
    ttl_ms: u32,
    worker: NewerWorker,
}

#[derive(Serialize)]
struct NewerWorker {
    cpu_milli: u64,
    news: News,
    memory_bytes: u64,
    executors: Vec<NewerExecutor>,
    devices: Vec<NewerDevice>,
}

#[derive(Serialize)]
struct NewerExecutor {
    class: Choice,
    news: News,
    name: &'static str,
    concurrency: u32,
}

#[derive(Serialize)]
struct NewerDevice {
    model: &'static str,
    memory_bytes: u64,
    milli_gpu: u32,
    news: News,
}

/// Bytes as a byte string.
struct Bin(Vec<u8>);

impl Serialize for Bin {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

#[test]
fn a_newer_worker_is_still_usable() {
    let executor = |class, name| NewerExecutor { class, news: news(), name, concurrency: 2 };
    let newer = NewerWorkerRecord {
        news: news(),
        peer: Bin(samples::worker_record().peer),
        organisation: "acme",
        sequence: 1,
        issued_unix_ms: 2,
        ttl_ms: 3_000,
        worker: NewerWorker {
            cpu_milli: 4,
            news: news(),
            memory_bytes: 5,
            executors: vec![
                executor(Choice::Dance, "dancer"),
                executor(Choice::Sing { song: "la".into(), loudly: true }, "singer"),
            ],
            devices: vec![NewerDevice { model: "Z1", memory_bytes: 6, milli_gpu: 7, news: news() }],
        },
    };
    let record: WorkerRecord = read(&newer).unwrap();
    let worker = &record.worker;
    assert_eq!((record.sequence, record.ttl_ms, worker.cpu_milli), (1, 3_000, 4));
    assert_eq!(worker.devices[0].memory_bytes, 6);
    assert!(worker.executors.iter().all(|executor| executor.class == Class::Unknown));
    // Missing fields take their default.
    assert_eq!((worker.price_micros, &worker.region, record.addresses.len()), (0, &None, 0));
    // The model leaves out what it cannot use; on the wire, it is never offered.
    let model = record.worker(WorkerId::new(Time::ZERO, &mut Rng::new(1))).unwrap();
    assert_eq!((model.executors.len(), model.capacity.devices.len()), (0, 1));
    assert!(matches!(encode(&record), Err(EncodeError::Unwritable { .. })));
}

#[derive(Serialize)]
struct NewerRequest<B> {
    id: u64,
    news: News,
    deadline_ms: u32,
    body: B,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum NewerBody {
    Health { news: News },
    Reboot,
    Advertise { news: News },
    Both(u8, String),
}

#[test]
fn a_newer_request_can_be_refused() {
    let asked = |body| read::<Request>(&NewerRequest { id: 9, news: news(), deadline_ms: 1, body });
    for body in [NewerBody::Reboot, NewerBody::Advertise { news: news() }] {
        let request = asked(body).unwrap();
        assert_eq!((request.id, request.body), (9, RequestBody::Unknown));
    }
    assert_eq!(asked(NewerBody::Both(1, "x".into())).unwrap().body, RequestBody::Unknown);
    // A known one with unknown content.
    assert_eq!(asked(NewerBody::Health { news: news() }).unwrap().body, RequestBody::Health);
    let unknown = samples::request(RequestBody::Unknown);
    assert!(matches!(encode(&unknown), Err(EncodeError::Unwritable { .. })));
}

#[derive(Serialize)]
struct NewerResponse {
    body: NewerAnswer,
    id: u64,
    news: News,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum NewerAnswer {
    Refused { kind: Choice, news: News, message: &'static str },
    Health { role: &'static str, version: &'static str, uptime_ms: u64, peers: u8, ready: bool },
    Offers { news: News },
    Nothing,
}

#[test]
fn the_known_part_of_a_newer_response_is_decoded() {
    let answered = |body| read::<Response>(&NewerResponse { body, id: 3, news: news() });
    let body = |body| answered(body).unwrap().body;
    for kind in [Choice::Dance, Choice::Sing { song: "la".into(), loudly: true }] {
        let refused = body(NewerAnswer::Refused { kind, news: news(), message: "no" });
        let expected = Refusal { kind: RefusalKind::Unknown, message: "no".into() };
        assert_eq!(refused, ResponseBody::Refused(expected));
    }
    assert_eq!(body(NewerAnswer::Offers { news: news() }), ResponseBody::Unknown);
    assert_eq!(body(NewerAnswer::Nothing), ResponseBody::Unknown);
    let health =
        NewerAnswer::Health { role: "data", version: "9", uptime_ms: 1, peers: 2, ready: true };
    let ResponseBody::Health(health) = body(health) else { panic!("not health") };
    assert_eq!((health.ready, health.problems.len()), (true, 0));
}

#[test]
fn a_response_without_its_content_is_malformed() {
    let error = decode::<Response>(b"\x01\x82\xa2id\x01\xa4body\xa6health").unwrap_err();
    assert_eq!(error.to_string(), "not a response: a response: content is missing");
    let error = decode::<Response>(b"\x01\x82\xa2id\x01\xa4body\x80").unwrap_err();
    assert!(matches!(error, DecodeError::Malformed { .. }), "{error}");
}

#[derive(Serialize)]
struct NewerSigned {
    kind: &'static str,
    payload: Bin,
    chain: Vec<Bin>,
    signature: Bin,
}

#[derive(Serialize)]
struct NewerRecordSet {
    entries: Vec<NewerEntry>,
    news: News,
}

#[derive(Serialize)]
struct NewerEntry {
    signed: Bin,
    news: News,
    remaining_ms: u32,
}

#[test]
fn one_entry_that_cannot_be_decoded_does_not_hide_the_others() {
    let newer = NewerSigned {
        kind: "scheduler",
        payload: Bin(vec![1]),
        chain: vec![Bin(vec![1])],
        signature: Bin(vec![0; 64]),
    };
    let newer_kind = [vec![1], rmp_serde::to_vec_named(&newer).unwrap()].concat();
    let good = encode(&samples::signed()).unwrap();
    let newer_version = [&[2], &good[1..]].concat();
    let signatures = [newer_kind.clone(), good, newer_version, vec![]];
    let entry = |bytes| NewerEntry { signed: Bin(bytes), news: news(), remaining_ms: 5 };
    let entries = signatures.into_iter().map(entry).collect();
    let record_set: RecordSet = read(&NewerRecordSet { entries, news: news() }).unwrap();
    let expected = RecordSetEntry { remaining_ms: 5, signed: samples::signed() };
    assert_eq!(record_set.entries, [expected]);
    // By itself it is refused: this build cannot check it.
    let error = decode::<SignedRecord>(&newer_kind).unwrap_err();
    assert!(error.to_string().starts_with("not a signed record: "), "{error}");
}

#[derive(Serialize)]
struct NewerVerdict {
    news: News,
    admitted: bool,
}

#[test]
fn a_newer_verdict_is_decoded() {
    assert_eq!(read(&NewerVerdict { news: news(), admitted: true }), Ok(Verdict::admitted()));
}

/// No peer omits it: a verdict without `admitted` is invalid.
#[test]
fn original_fields_are_required() {
    let error = decode::<Verdict>(b"\x01\x80").unwrap_err();
    assert_eq!(error.to_string(), "not a verdict: missing field `admitted`");
}
