//! Any message round trips; any bytes at all are safe to decode.

use std::fmt::Debug;

use hypha_wire::decoders::DECODERS;
use hypha_wire::revocation::*;
use hypha_wire::worker::{Class, Device, Executor};
use hypha_wire::*;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn check<M: Message + PartialEq + Debug>(message: &M) -> Result<(), TestCaseError> {
    match encode(message) {
        Ok(bytes) => {
            prop_assert!(bytes.len() <= M::MAX_BYTES);
            let read = decode::<M>(&bytes);
            prop_assert_eq!(read.as_ref(), Ok(message));
        }
        Err(EncodeError::TooLarge { bytes, max, .. }) => prop_assert!(bytes > max),
        Err(error) => prop_assert!(false, "{}", error),
    }
    Ok(())
}

fn name() -> impl Strategy<Value = String> {
    "[a-zA-Zä€🦀/@.-][a-z0-9 ]{0,20}[a-z]"
}

fn text(max: usize) -> impl Strategy<Value = String> {
    vec("[ -~ä€🦀]", 0..max / 4).prop_map(|letters| letters.concat())
}

fn blob(max: usize) -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 1..=max)
}

fn addresses() -> impl Strategy<Value = Vec<Vec<u8>>> {
    vec(blob(80), 0..=16)
}

fn executor() -> impl Strategy<Value = Executor> {
    let class = prop::sample::select(vec![Class::Inference, Class::Train, Class::Aggregate]);
    (class, name(), vec(name(), 0..20), 1..=10_000_u32).prop_map(
        |(class, name, models, concurrency)| Executor { class, name, models, concurrency },
    )
}

fn device() -> impl Strategy<Value = Device> {
    (name(), 0..=1_u64 << 60, 1..=1_000_u32).prop_map(|(model, memory_bytes, milli_gpu)| Device {
        model,
        memory_bytes,
        milli_gpu,
    })
}

fn worker() -> impl Strategy<Value = Worker> {
    let amounts = (0..=1_000_000_000_u64, 0..=1_u64 << 60, 0..=1_u64 << 60, 0..=1_u64 << 59);
    let labels = (option::of(name()), option::of(name()));
    (vec(executor(), 0..8), amounts, vec(device(), 0..=64), labels).prop_map(
        |(executors, (cpu_milli, memory_bytes, storage_bytes, price_micros), devices, labels)| {
            let (region, hardware) = labels;
            Worker {
                executors,
                cpu_milli,
                memory_bytes,
                storage_bytes,
                devices,
                price_micros,
                region,
                hardware,
            }
        },
    )
}

prop_compose! {
    fn worker_record()(
        peer in blob(64),
        organisation in name(),
        (sequence, issued_unix_ms) in any::<(u64, u64)>(),
        ttl_ms in 1_000..=3_600_000_u32,
        worker in worker(),
        addresses in addresses(),
        bulk_addresses in addresses(),
    ) -> WorkerRecord {
        WorkerRecord {
            peer, organisation, sequence, issued_unix_ms, ttl_ms, worker, addresses, bulk_addresses,
        }
    }
}

prop_compose! {
    fn dataset_record()(
        peer in blob(64),
        (organisation, name) in (name(), name()),
        (sequence, issued_unix_ms, slices) in any::<(u64, u64, Option<u64>)>(),
        ttl_ms in 1_000..=3_600_000_u32,
        bytes in option::of(0..=1_u64 << 60),
        addresses in addresses(),
        bulk_addresses in addresses(),
    ) -> DatasetRecord {
        DatasetRecord {
            peer, organisation, sequence, issued_unix_ms, ttl_ms, name, slices, bytes, addresses,
            bulk_addresses,
        }
    }
}

fn signed() -> impl Strategy<Value = SignedRecord> {
    let kinds = vec![SignedKind::Worker, SignedKind::Dataset, SignedKind::Farewell];
    (prop::sample::select(kinds), blob(2_000), vec(blob(700), 1..=3), vec(any::<u8>(), 64))
        .prop_map(|(kind, payload, chain, signature)| SignedRecord {
            kind,
            payload,
            chain,
            signature,
        })
}

fn record_set() -> impl Strategy<Value = RecordSet> {
    let entry = (0..=3_600_000_u32, signed())
        .prop_map(|(remaining_ms, signed)| RecordSetEntry { remaining_ms, signed });
    vec(entry, 0..8).prop_map(|entries| RecordSet { entries })
}

fn request() -> impl Strategy<Value = Request> {
    let plain = prop::sample::select(vec![RequestBody::Health, RequestBody::BulkAddresses]);
    let lists = vec(any::<u8>(), 0..=32)
        .prop_map(|seen| RequestBody::RevocationLists(RevocationQuery { seen }));
    let part = (any::<[u8; 32]>(), any::<u64>()).prop_map(|(digest, offset)| {
        RequestBody::RevocationPart(RevocationPartQuery { digest: digest.to_vec(), offset })
    });
    let body = prop_oneof![plain, lists, part];
    (any::<u64>(), 0..=600_000_u32, option::of(text(64)), body).prop_map(
        |(id, deadline_ms, traceparent, body)| Request { id, deadline_ms, traceparent, body },
    )
}

fn response() -> impl Strategy<Value = Response> {
    use RefusalKind::*;
    let kinds =
        vec![UnknownRequest, UnknownVersion, Malformed, NotAllowed, Busy, DeadlinePassed, Internal];
    let texts = || vec(text(512), 0..=32);
    let health = (text(64), text(64), any::<(u64, u32, bool)>(), texts(), texts()).prop_map(
        |(role, version, (uptime_ms, peers, ready), problems, notes)| {
            ResponseBody::Health(Health { role, version, uptime_ms, peers, ready, problems, notes })
        },
    );
    let refused = (prop::sample::select(kinds), any::<String>())
        .prop_map(|(kind, message)| ResponseBody::Refused(Refusal::new(kind, message)));
    let entry =
        any::<([u8; 32], u64, [u8; 32], u64)>().prop_map(|(issuer, number, digest, bytes)| {
            RevocationEntry { issuer: issuer.to_vec(), number, digest: digest.to_vec(), bytes }
        });
    let index = (any::<[u8; 32]>(), vec(entry, 0..8)).prop_map(|(digest, lists)| {
        ResponseBody::RevocationLists(RevocationIndex { digest: digest.to_vec(), lists })
    });
    let part = vec(any::<u8>(), 1..64).prop_map(ResponseBody::RevocationPart);
    let body = prop_oneof![
        health,
        index,
        part,
        addresses().prop_map(ResponseBody::BulkAddresses),
        refused
    ];
    (any::<u64>(), body).prop_map(|(id, body)| Response { id, body })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn worker_records_round_trip(record in worker_record()) {
        check(&record)?;
    }

    #[test]
    fn dataset_records_round_trip(record in dataset_record()) {
        check(&record)?;
    }

    #[test]
    fn farewells_round_trip(peer in blob(64), (sequence, issued_unix_ms) in any::<(u64, u64)>()) {
        check(&Farewell { peer, sequence, issued_unix_ms })?;
    }

    #[test]
    fn signed_records_round_trip(signed in signed()) {
        check(&signed)?;
    }

    #[test]
    fn record_sets_round_trip(record_set in record_set()) {
        check(&record_set)?;
    }

    #[test]
    fn requests_round_trip(request in request()) {
        check(&request)?;
    }

    #[test]
    fn responses_round_trip(response in response()) {
        check(&response)?;
    }

    #[test]
    fn verdicts_round_trip(reason in any::<String>()) {
        check(&Verdict::admitted())?;
        check(&Verdict::refused(reason))?;
    }

    #[test]
    fn any_bytes_are_safe_to_decode(bytes in vec(any::<u8>(), 0..300)) {
        let versioned = [&[1], &bytes[..]].concat();
        for (_, decoder) in DECODERS {
            decoder(&bytes);
            decoder(&versioned);
        }
    }
}
