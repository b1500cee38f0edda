//! Values out of bounds are neither sent nor accepted.

use std::fmt::Debug;

use hypha_model::{Rng, Time, WorkerId};
use hypha_wire::revocation::*;
use hypha_wire::worker::{Device, Executor, MAX_DEVICES, MAX_EXECUTORS, MAX_MODELS};
use hypha_wire::*;

use crate::samples;

/// `change` makes a valid message invalid in `field`: this build neither sends it nor accepts it from a peer that does.
fn check<M: Message + Clone + PartialEq + Debug>(
    good: &M,
    change: impl FnOnce(&mut M),
    expected: &str,
) {
    assert!(encode(good).is_ok(), "{good:?}");
    let mut bad = good.clone();
    change(&mut bad);
    let sent = encode(&bad).unwrap_err().to_string();
    assert_eq!(sent, format!("{}: {expected}", M::NAME));
    let mut bytes = vec![1];
    bad.serialize(&mut rmp_serde::Serializer::new(&mut bytes).with_struct_map()).unwrap();
    let taken = decode::<M>(&bytes).unwrap_err();
    match taken {
        DecodeError::Invalid { .. } => assert_eq!(taken.to_string(), sent),
        // A list is refused at its count, before its fields have names; a message that is too large before that.
        DecodeError::Malformed { problem, .. } => assert!(problem.contains("at most"), "{problem}"),
        DecodeError::TooLarge { .. } => {}
        DecodeError::Version { .. } => panic!("{taken}"),
    }
}

#[test]
fn records_are_bounded() {
    let good = samples::worker_record();
    let bad = |change: fn(&mut WorkerRecord), expected| check(&good, change, expected);
    bad(|r| r.peer.clear(), "peer: must not be empty");
    bad(|r| r.peer = vec![0; 65], "peer: has 65, at most 64 are taken");
    bad(|r| r.organisation.clear(), "organisation: a name must not be empty");
    bad(|r| r.ttl_ms = 999, "ttl_ms: 999 is not within 1000 to 3600000");
    bad(|r| r.ttl_ms = 3_600_001, "ttl_ms: 3600001 is not within 1000 to 3600000");
    bad(|r| r.addresses = vec![vec![1]; 17], "addresses: has 17, at most 16 are taken");
    bad(|r| r.addresses[0].clear(), "addresses: must not be empty");
    bad(|r| r.bulk_addresses[0] = vec![1; 513], "bulk_addresses: has 513, at most 512 are taken");
    let good = samples::dataset_record();
    let bad = |change: fn(&mut DatasetRecord), expected| check(&good, change, expected);
    bad(
        |r| r.name = "a\nb".into(),
        "name: a name must not contain control characters or begin or end with a space",
    );
    bad(
        |r| r.bytes = Some(u64::MAX),
        "bytes: 18446744073709551615 is not within 0 to 1152921504606846976",
    );
    bad(|r| r.peer = vec![0; 65], "peer: has 65, at most 64 are taken");
    bad(|r| r.ttl_ms = 0, "ttl_ms: 0 is not within 1000 to 3600000");
    check(&samples::farewell(), |f| f.peer.clear(), "peer: must not be empty");
}

#[test]
fn workers_are_bounded() {
    let good = samples::worker_record();
    let bad = |change: fn(&mut Worker), expected| {
        check(&good, |record| change(&mut record.worker), expected);
    };
    bad(
        |w| w.executors = vec![w.executors[1].clone(); MAX_EXECUTORS + 1],
        "executors: has 33, at most 32 are taken",
    );
    bad(
        |w| w.executors[0].models = vec!["m".into(); MAX_MODELS + 1],
        "models: has 257, at most 256 are taken",
    );
    bad(
        |w| w.devices = vec![w.devices[0].clone(); MAX_DEVICES + 1],
        "devices: has 65, at most 64 are taken",
    );
    bad(|w| w.executors[0].concurrency = 0, "concurrency: 0 is not within 1 to 10000");
    bad(|w| w.executors[0].concurrency = 10_001, "concurrency: 10001 is not within 1 to 10000");
    bad(|w| w.executors[0].name.clear(), "executor: a name must not be empty");
    bad(|w| w.executors[0].models[0].clear(), "models: a name must not be empty");
    bad(|w| w.devices[0].model.clear(), "device: a name must not be empty");
    bad(|w| w.devices[0].milli_gpu = 0, "milli_gpu: 0 is not within 1 to 1000");
    bad(|w| w.devices[1].milli_gpu = 1_001, "milli_gpu: 1001 is not within 1 to 1000");
    bad(|w| w.region = Some(String::new()), "region: a name must not be empty");
    bad(|w| w.hardware = Some(String::new()), "hardware: a name must not be empty");
    bad(|w| w.cpu_milli = 1_000_000_001, "cpu_milli: 1000000001 is not within 0 to 1000000000");
}

#[test]
fn signatures_are_bounded() {
    let good = samples::signed();
    let bad = |change: fn(&mut SignedRecord), expected| check(&good, change, expected);
    bad(|s| s.payload.clear(), "payload: must not be empty");
    bad(|s| s.payload = vec![0; 16_385], "payload: has 16385, at most 16384 are taken");
    bad(|s| s.chain.clear(), "chain: 0 is not within 1 to 3");
    bad(|s| s.chain = vec![vec![1]; 4], "chain: 4 is not within 1 to 3");
    bad(|s| s.chain[0] = vec![0; 4_097], "chain: has 4097, at most 4096 are taken");
    bad(|s| s.signature = vec![0; 63], "signature: 63 is not within 64 to 64");
}

#[test]
fn adverts_are_bounded() {
    let good = samples::advert_record();
    let bad = |change: fn(&mut Advert), expected| {
        check(&good, |record| change(&mut record.advert), expected);
    };
    bad(|a| a.roles.clear(), "roles: 0 is not within 1 to 8");
    bad(|a| a.roles = vec![a.roles[0].clone(); 9], "roles: 9 is not within 1 to 8");
    bad(|a| a.roles[0].count = 0, "count: 0 is not within 1 to 4096");
    bad(|a| a.roles[0].count = 4_097, "count: 4097 is not within 1 to 4096");
    bad(|a| a.roles[0].minimum = 5, "minimum: 5 is not within 0 to 4");
    bad(
        |a| a.roles[1].bid_micros = u64::MAX,
        "bid_micros: 18446744073709551615 is not within 0 to 1000000000000000000",
    );
    bad(|a| a.window_us = 0, "window_us: 0 is not within 1 to 30000000");
    bad(|a| a.window_us = 30_000_001, "window_us: 30000001 is not within 1 to 30000000");
    bad(
        |a| a.lease_ttl_us = u64::MAX,
        "lease_ttl_us: 18446744073709551615 is not within 0 to 315360000000000",
    );
    let bad = |change: fn(&mut AdvertRecord), expected| check(&good, change, expected);
    bad(|r| r.peer.clear(), "peer: must not be empty");
    bad(|r| r.organisation.clear(), "organisation: a name must not be empty");
    bad(|r| r.addresses = vec![vec![1]; 17], "addresses: has 17, at most 16 are taken");
    let closed = samples::advert_closed_record();
    check(&closed, |record| record.peer.clear(), "peer: must not be empty");
}

#[test]
fn offers_and_receipts_are_bounded() {
    let good = samples::offer_request();
    let bad = |change: fn(&mut OfferRequest), expected| {
        let request = samples::request(RequestBody::Offer(Box::new(good.clone())));
        let change = |request: &mut Request| match &mut request.body {
            RequestBody::Offer(offer) => change(offer),
            _ => unreachable!("it is an offer"),
        };
        check(&request, change, expected);
    };
    bad(|o| o.offer.roles.clear(), "roles: 0 is not within 1 to 8");
    bad(|o| o.offer.roles = vec![o.offer.roles[0].clone(); 9], "roles: 9 is not within 1 to 8");
    bad(|o| o.offer.roles[0].role = 8, "role: 8 is not within 0 to 7");
    bad(
        |o| o.offer.roles[0].portion.devices = vec![(1, 1); 65],
        "devices: has 65, at most 64 are taken",
    );
    bad(|o| o.offer.roles[0].portion.slots = vec![1; 33], "slots: has 33, at most 32 are taken");
    bad(
        |o| o.offer.roles[0].portion.devices[0].1 = 1_001,
        "milli_gpu: 1001 is not within 0 to 1000",
    );
    bad(|o| o.offer.worker.executors[0].name.clear(), "executor: a name must not be empty");
    bad(|o| o.addresses = vec![vec![1]; 17], "addresses: has 17, at most 16 are taken");

    let report = |change: fn(&mut SignedReceipt)| {
        let mut signed = SignedReceipt::from(&samples::receipt(true));
        change(&mut signed);
        encode(&Reports { reports: vec![Report::ReceiptIssued(Box::new(signed))], skipped: 0 })
    };
    assert!(report(|_| ()).is_ok());
    for (change, expected) in [
        (
            (|r| r.worker.bytes = vec![0; 129]) as fn(&mut SignedReceipt),
            "signature: has 129, at most 128 are taken",
        ),
        (|r| r.worker.key.clear(), "key: must not be empty"),
        (
            |r| r.scheduler.as_mut().unwrap().key = vec![0; 129],
            "key: has 129, at most 128 are taken",
        ),
        (|r| r.portion.slots = vec![1; 33], "slots: has 33, at most 32 are taken"),
    ] {
        let error = report(change).unwrap_err().to_string();
        assert_eq!(error, format!("message to a scheduler: {expected}"));
    }
}

/// What a scheduler would pay at most concerns nobody else: a worker that knew it would ask for it.
#[test]
fn the_highest_price_is_in_no_message() {
    use hypha_market::{Gang, GangAction, GangContext, GangRole, GangSpec};
    const MAX: u64 = 0x12_3456_789a_bcde;
    let (from, now) = (samples::advert(), Time::from_micros(1));
    let role = |role: &hypha_engine::WantedRole| GangRole {
        name: role.name.clone(),
        requirement: role.requirement.clone(),
        count: role.count,
        minimum: role.minimum,
        wants_all: false,
        bid: role.bid,
        max: hypha_model::Money::from_micros(MAX),
    };
    let spec = GangSpec {
        roles: from.roles.iter().map(role).collect(),
        priority: from.priority,
        is_preemptible: true,
        maximise: Default::default(),
        budget: Some(hypha_model::Money::from_micros(MAX)),
        window: from.window,
        lease_ttl: from.lease_ttl,
    };
    let mut gang = Gang::new(std::sync::Arc::new(spec), now);
    let mut actions = Vec::new();
    let context = &mut GangContext {
        now,
        rng: &mut Rng::new(1),
        next_number: &mut || 1,
        candidates: &|_, _| Vec::new(),
    };
    gang.wake(context, &mut actions);
    let advert = actions.into_iter().find_map(|action| match action {
        GangAction::Advertise { advert, .. } => Some(advert),
        _ => None,
    });
    let advert = advert.expect("the gang advertises");
    let record = AdvertRecord { advert: Advert::from(&*advert), ..samples::advert_record() };
    let order = Order::from(hypha_engine::ToWorker::Advertise(advert));
    let messages =
        [encode(&record).unwrap(), encode(&Orders { orders: vec![order], skipped: 0 }).unwrap()];
    let contains = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).any(|at| at == part);
    for bytes in messages {
        assert!(contains(&bytes, &110_000_000_u32.to_be_bytes()), "the bid is in it");
        assert!(!contains(&bytes, &MAX.to_be_bytes()[1..]), "the highest price is in it");
        assert!(!contains(&bytes, MAX.to_string().as_bytes()), "the highest price is in it");
    }
}

#[test]
fn requests_and_responses_are_bounded() {
    let good = samples::request(RequestBody::Health);
    check(
        &good,
        |request| request.deadline_ms = 600_001,
        "deadline_ms: 600001 is not within 0 to 600000",
    );
    check(
        &good,
        |request| request.traceparent = Some("0".repeat(65)),
        "traceparent: has 65, at most 64 are taken",
    );
    let health = |change: fn(&mut Health)| {
        let mut health = samples::health();
        change(&mut health);
        ResponseBody::Health(health)
    };
    let refused =
        |message: String| ResponseBody::Refused(Refusal { kind: RefusalKind::Busy, message });
    let bodies = [
        (health(|h| h.role = "r".repeat(65)), "role: has 65, at most 64 are taken"),
        (health(|h| h.version = "\u{7}".into()), "version: must not contain control characters"),
        (
            health(|h| h.problems = vec![String::new(); 33]),
            "problems: has 33, at most 32 are taken",
        ),
        (refused("x".repeat(513)), "message: has 513, at most 512 are taken"),
        (refused("\u{1b}[2J".into()), "message: must not contain control characters"),
        (
            ResponseBody::BulkAddresses(vec![vec![1]; 17]),
            "bulk_addresses: has 17, at most 16 are taken",
        ),
    ];
    let index = |change: fn(&mut RevocationIndex)| {
        let mut index = samples::revocation_index();
        change(&mut index);
        ResponseBody::RevocationLists(index)
    };
    let bodies = bodies.into_iter().chain([
        (index(|index| index.digest.clear()), "digest: has 0 bytes, not 32"),
        (index(|index| index.lists[1].issuer.push(0)), "issuer: has 33 bytes, not 32"),
        (
            index(|index| index.lists = vec![index.lists[0].clone(); 65]),
            "lists: has 65, at most 64 are taken",
        ),
        (
            ResponseBody::RevocationPart(vec![0; (48 << 10) + 1]),
            "revocation_part: has 49153, at most 49152 are taken",
        ),
        (ResponseBody::RevocationPart(Vec::new()), "revocation_part: must not be empty"),
        (health(|h| h.notes = vec![String::new(); 33]), "notes: has 33, at most 32 are taken"),
    ]);
    let good = Response { id: 1, body: ResponseBody::Health(samples::health()) };
    for (body, expected) in bodies {
        check(&good, |response| response.body = body, expected);
    }
    let verdict = Verdict::refused("no");
    let long = Some("x".repeat(257));
    check(&verdict, |verdict| verdict.reason = long, "reason: has 257, at most 256 are taken");
}

/// A refusal must arrive, whatever it quotes.
#[test]
fn texts_are_made_to_fit() {
    let refusal = Refusal::new(RefusalKind::Malformed, "é\n".repeat(1_000));
    assert_eq!(refusal.message.len(), 512);
    encode(&Response { id: 0, body: ResponseBody::Refused(refusal) }).unwrap();
    let verdict = Verdict::refused("€".repeat(100));
    assert_eq!(verdict.reason.as_ref().unwrap().len(), 255);
    encode(&verdict).unwrap();
}

#[test]
fn decode_errors_are_short() {
    let loud = "\u{7}".repeat(10_000);
    let bytes = [vec![1], rmp_serde::to_vec_named(&[("kind", &loud)]).unwrap()].concat();
    let error = decode::<SignedRecord>(&bytes).unwrap_err().to_string();
    let newer = [&b"\x01\x81\xa4kind\xda\x27\x10"[..], loud.as_bytes()].concat();
    let quoted = decode::<SignedRecord>(&newer).unwrap_err().to_string();
    assert!(quoted.contains("unknown variant"), "{quoted}");
    for error in [error, quoted] {
        assert!(error.len() < 300 && !error.contains('\u{7}'), "{error}");
    }
}

#[test]
fn too_many_bytes_are_not_decoded() {
    let bytes = vec![1; Verdict::MAX_BYTES + 1];
    let error = decode::<Verdict>(&bytes).unwrap_err();
    assert_eq!(error.to_string(), "513 bytes are too many for a verdict: at most 512 are read");
}

#[test]
fn trailing_bytes_are_refused() {
    for extra in [&[0xc0][..], &[0x00], &[0xc1], &[0x91], &[0xdd, 0xff]] {
        let bytes = [&encode(&samples::farewell()).unwrap(), extra].concat();
        let error = decode::<Farewell>(&bytes).unwrap_err().to_string();
        assert_eq!(error, "not a farewell: bytes follow its end");
    }
}

#[test]
fn a_worker_with_everything_is_too_large_to_send() {
    let mut record = samples::worker_record();
    let executor = |models| Executor { models, ..record.worker.executors[0].clone() };
    let full = executor(vec!["m".repeat(256); MAX_MODELS]);
    record.worker.executors = vec![full; MAX_EXECUTORS];
    let error = encode(&record).unwrap_err().to_string();
    assert!(error.ends_with("is too large: at most 16384 are sent"), "{error}");
}

#[test]
fn a_record_set_is_cut_to_fit() {
    let entry = |payload| RecordSetEntry {
        remaining_ms: u32::MAX,
        signed: SignedRecord { payload: vec![7; payload], ..samples::signed() },
    };
    let cases = [(1, 1, 1), (600, 1, 512), (600, 10_000, 94), (3, 0, 0)];
    for (given, payload, expected) in cases {
        let record_set = RecordSet::from_entries(vec![entry(payload); given]);
        assert_eq!(record_set.entries.len(), expected, "{given} of {payload} bytes");
        assert_eq!(decode(&encode(&record_set).unwrap()), Ok(record_set));
    }
}

/// Down to the last byte: the room that is left differs with each size.
#[test]
fn a_cut_record_set_can_always_be_sent() {
    for payload in [1, 300, 1_000].into_iter().chain(15_000..15_100) {
        let signed = SignedRecord { payload: vec![7; payload], ..samples::signed() };
        let entry = RecordSetEntry { remaining_ms: 70_000, signed };
        encode(&RecordSet::from_entries(vec![entry; 512])).unwrap();
    }
}

#[test]
fn a_worker_is_the_same_in_wire_and_model() {
    let id = WorkerId::new(Time::ZERO, &mut Rng::new(5));
    let wire = samples::worker();
    let model = samples::worker_record().worker(id).unwrap();
    assert_eq!(Worker::from_model(&model), wire);
    assert_eq!(model.id, id);
    assert_eq!(model.executors[0].models[1].as_str(), "qwen/qwen3-8b@main");
    assert_eq!((model.capacity.cpu_milli, model.price.to_string().as_str()), (32_500, "1.25"));
    let labels = (model.region.as_deref_name(), model.hardware.as_deref_name());
    assert_eq!(labels, (Some("eu-north"), Some("dgx")));
    // Values are validated even if they were not decoded.
    let device = Device { model: "x".into(), memory_bytes: 0, milli_gpu: 0 };
    let bad = Worker { devices: vec![device], ..wire };
    assert_eq!(bad.to_model(id).unwrap_err().field, "milli_gpu");
}

trait NameText {
    fn as_deref_name(&self) -> Option<&str>;
}

impl NameText for Option<hypha_model::Name> {
    fn as_deref_name(&self) -> Option<&str> {
        self.as_ref().map(hypha_model::Name::as_str)
    }
}

#[test]
fn no_signature_is_valid_for_another_kind() {
    let kinds = [
        SignedKind::Worker,
        SignedKind::Dataset,
        SignedKind::Farewell,
        SignedKind::Advert,
        SignedKind::AdvertClosed,
    ];
    let contexts: std::collections::BTreeSet<_> = kinds.map(SignedKind::context).into();
    assert_eq!(contexts.len(), kinds.len());
    // Part of the signed bytes: a change voids every signature in the network.
    assert_eq!(SignedKind::Worker.context(), "hypha/1/worker-record");
    assert_eq!(SignedKind::Dataset.context(), "hypha/1/dataset-record");
    assert_eq!(SignedKind::Farewell.context(), "hypha/1/farewell");
    assert_eq!(SignedKind::Advert.context(), "hypha/1/advert");
    assert_eq!(SignedKind::AdvertClosed.context(), "hypha/1/advert-closed");
}
