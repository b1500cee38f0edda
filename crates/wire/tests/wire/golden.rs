//! Golden bytes: a change to them is a change to the format that released peers decode.
//!
//! Regenerated, on purpose, together with the fuzz corpus that starts from them:
//! `HYPHA_WIRE_BLESS=1 cargo nextest run -p hypha-wire bytes_are_pinned`. Keep the old file beside the new one under
//! another case's name: every file here must decode for as long as the version byte stays.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use hypha_wire::decoders::DECODERS;
use hypha_wire::*;

use crate::{corpus, samples};

const HOW_TO: &str = "if the format was meant to change, regenerate them as golden.rs describes";

#[test]
fn bytes_are_pinned() {
    let bless = std::env::var_os("HYPHA_WIRE_BLESS").is_some();
    for sample in samples::all() {
        let path = folder().join(format!("{}.{}.hex", sample.decoder, sample.case));
        if bless {
            fs::write(&path, to_hex(&sample.bytes)).unwrap();
        }
        let golden = fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(golden, to_hex(&sample.bytes), "{}: {HOW_TO}", path.display());
        (sample.reads)(&from_hex(&golden));
    }
    if bless {
        corpus::write_seeds();
    }
}

#[test]
fn every_message_has_golden_bytes() {
    let pinned: BTreeSet<_> = samples::all().iter().map(|sample| sample.decoder).collect();
    let decoders: BTreeSet<_> = DECODERS.iter().map(|(name, _)| *name).collect();
    assert_eq!(pinned, decoders);
}

/// Also files without a sample: bytes of earlier releases.
#[test]
fn every_file_still_decodes() {
    let mut read = 0;
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_str().unwrap().to_owned();
        let bytes = from_hex(&fs::read_to_string(&path).unwrap());
        let problem = match file.split('.').next().unwrap() {
            "advert" => problem::<AdvertRecord>(&bytes),
            "advert_closed" => problem::<AdvertClosedRecord>(&bytes),
            "bulk_open_response" => problem::<bulk::OpenResponse>(&bytes),
            "bulk_control" => problem::<bulk::ControlMessage>(&bytes),
            "bulk_open" => problem::<bulk::Open>(&bytes),
            "bulk_receipt" => problem::<bulk::Receipt>(&bytes),
            "dataset_record" => problem::<DatasetRecord>(&bytes),
            "farewell" => problem::<Farewell>(&bytes),
            "frame" => None,
            "orders" => problem::<Orders>(&bytes),
            "reports" => problem::<Reports>(&bytes),
            "request" => problem::<Request>(&bytes),
            "response" => problem::<Response>(&bytes),
            "record_set" => problem::<RecordSet>(&bytes),
            "signed" => problem::<SignedRecord>(&bytes),
            "verdict" => problem::<Verdict>(&bytes),
            "worker_record" => problem::<WorkerRecord>(&bytes),
            other => panic!("{file}: no message is called {other}"),
        };
        assert_eq!(problem, None, "{file}");
        read += 1;
    }
    assert!(read >= samples::all().len());
}

#[test]
fn an_unknown_version_is_refused_by_name() {
    for version in [0, 2, 255] {
        let mut bytes = encode(&samples::worker_record()).unwrap();
        bytes[0] = version;
        let error = decode::<WorkerRecord>(&bytes).unwrap_err();
        assert_eq!(error, DecodeError::Version { name: "worker record", got: version });
        assert!(error.to_string().contains("use the same release on both sides"), "{error}");
    }
}

fn problem<M: Message>(bytes: &[u8]) -> Option<String> {
    match decode::<M>(bytes) {
        // Skipped parts were not decoded.
        Ok(message) => (message.skipped() > 0).then(|| format!("{} skipped", message.skipped())),
        Err(error) => Some(error.to_string()),
    }
}

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden"))
}

/// 32 bytes per line, so that a difference is visible.
fn to_hex(bytes: &[u8]) -> String {
    let line = |part: &[u8]| part.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    bytes.chunks(32).map(|part| line(part) + "\n").collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}
