//! The fuzz targets on a stable compiler: each through its corpus and through thousands of mutations of it.
//!
//! The files are shared with `cargo fuzz`. Inputs that a fuzzer found are added after the fix, and stay.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use hypha_model::Rng;
use hypha_wire::decoders::{DECODERS, run};
use hypha_wire::{RecordSet, decode};

use crate::samples;

/// Enough to reach each field of each seed many times, in seconds.
const MUTATIONS: usize = 2_000;
/// Fewer for seeds that take long to decode.
const BYTES_MUTATED: usize = 2_000_000;

#[test]
fn corpora_and_their_mutations_break_no_promise() {
    for (name, decoder) in DECODERS {
        for (path, seed) in seeds(name) {
            decoder(&seed);
            let mutations = (BYTES_MUTATED / seed.len().max(1)).min(MUTATIONS);
            for number in 0..mutations as u64 {
                let mutant = mutate(&seed, number);
                let outcome = std::panic::catch_unwind(|| decoder(&mutant));
                let bytes = mutant.escape_ascii();
                assert!(outcome.is_ok(), "{}, mutation {number}: {bytes}", path.display());
            }
        }
    }
}

/// One place lists the decoders; this test names what is missing for a new one.
#[test]
fn every_decoder_has_a_fuzz_target_and_a_corpus() {
    let manifest = fs::read_to_string(fuzz().join("Cargo.toml")).unwrap();
    for (name, _) in DECODERS {
        let target = fs::read_to_string(fuzz().join(format!("fuzz_targets/{name}.rs")));
        let target = target.unwrap_or_else(|_| panic!("fuzz/fuzz_targets/{name}.rs is missing"));
        assert!(target.contains(&format!("run(\"{name}\", bytes)")), "{name} runs another one");
        assert!(
            manifest.contains(&format!("name = \"{name}\"")),
            "{name} is not in fuzz/Cargo.toml"
        );
    }
    let expected: BTreeSet<_> = DECODERS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let folders = fs::read_dir(fuzz().join("corpus")).unwrap();
    let found: BTreeSet<_> =
        folders.map(|folder| folder.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(found, expected);
}

#[test]
fn corpora_start_from_the_golden_bytes() {
    for (path, bytes) in made_seeds() {
        let found = fs::read(&path).unwrap_or_else(|_| panic!("{} is missing", path.display()));
        assert_eq!(found, bytes, "{}: regenerate it as golden.rs describes", path.display());
    }
}

/// Peak memory while decoding is proportional to the bytes received, whatever lengths they claim.
#[test]
fn memory_follows_received_bytes_not_claimed_lengths() {
    /// A text of one byte takes a `String` and its bytes; lists double as they grow. The promises that decoders
    /// check (encode and decode again) multiply that once more.
    const PER_BYTE: u64 = 100;
    /// Error texts, and the first block of each list.
    const BASE: u64 = 16 << 10;
    for (name, decoder) in DECODERS {
        for (path, seed) in seeds(name) {
            for number in 0..50 {
                let mutant = mutate(&seed, number);
                let info = allocation_counter::measure(|| decoder(&mutant));
                let most = BASE + PER_BYTE * mutant.len() as u64;
                assert!(
                    info.bytes_max <= most,
                    "{}, mutation {number}: {} bytes for {}",
                    path.display(),
                    info.bytes_max,
                    mutant.len()
                );
            }
        }
    }
}

#[test]
fn a_count_allocates_nothing() {
    for (count, problem) in [(u32::MAX, "at most 512"), (512, "IO error")] {
        let bytes = [&b"\x01\x81\xa7entries\xdd"[..], &count.to_be_bytes()].concat();
        let info = allocation_counter::measure(|| {
            let error = decode::<RecordSet>(&bytes).unwrap_err();
            assert!(error.to_string().contains(problem), "{error}");
        });
        assert!(info.bytes_max < 4_096, "{count} claimed: {} bytes", info.bytes_max);
    }
}

#[test]
#[should_panic(expected = "no decoder is called nothing")]
fn a_target_without_a_decoder_says_so() {
    run("nothing", b"");
}

pub(crate) fn write_seeds() {
    for (path, bytes) in made_seeds() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

/// Valid bytes for each decoder, and what an attacker would try first.
fn made_seeds() -> Vec<(PathBuf, Vec<u8>)> {
    let mut seeds = Vec::new();
    let samples = samples::all();
    for sample in &samples {
        let file = format!("golden_{}", sample.case);
        seeds.push((fuzz().join("corpus").join(sample.decoder).join(file), sample.bytes.clone()));
    }
    for (name, _) in DECODERS {
        let good = samples.iter().find(|sample| sample.decoder == *name).unwrap();
        for (file, bytes) in bad(&good.bytes) {
            // A frame's message comes after its portion and length.
            let bytes = if *name == "frame" { framed(&bytes) } else { bytes };
            seeds.push((fuzz().join("corpus").join(name).join(format!("bad_{file}")), bytes));
        }
    }
    seeds
}

fn bad(good: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let behind = |head: &[u8], tail: &[u8]| [head, tail].concat();
    vec![
        ("empty", vec![]),
        ("version_only", vec![1]),
        ("version_two", behind(&[2], &good[1..])),
        ("half", good[..good.len() / 2].to_vec()),
        ("trailing", behind(good, &[0xc0])),
        ("never_used_marker", vec![1, 0xc1]),
        // Lengths of four thousand million, and nothing after.
        ("huge_list", vec![1, 0xdd, 0xff, 0xff, 0xff, 0xff]),
        ("huge_map", vec![1, 0xdf, 0xff, 0xff, 0xff, 0xff]),
        ("huge_text", vec![1, 0xdb, 0xff, 0xff, 0xff, 0xff]),
        ("huge_bytes", vec![1, 0xc6, 0xff, 0xff, 0xff, 0xff]),
        ("huge_extension", vec![1, 0xc9, 0xff, 0xff, 0xff, 0xff, 1]),
        // Lists in lists, as an unknown field.
        ("deep", behind(b"\x01\x81\xa3new", &[0x91; 2_000])),
        ("extension", b"\x01\x81\xa3new\xd4\x01\x02".to_vec()),
        ("number_as_name", vec![1, 0x81, 0x00, 0xc0]),
    ]
}

fn framed(bytes: &[u8]) -> Vec<u8> {
    [&[5], &(bytes.len() as u32).to_be_bytes()[..], bytes].concat()
}

/// A change to `seed` that only `number` decides.
fn mutate(seed: &[u8], number: u64) -> Vec<u8> {
    let mut rng = Rng::new(number);
    let mut bytes = seed.to_vec();
    for _ in 0..1 + rng.below(4) {
        let at = rng.below(bytes.len() as u64 + 1) as usize;
        let end = (at + rng.below(9) as usize).min(bytes.len());
        match rng.below(5) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..end)),
            2 => {
                let copy = bytes[at..end].to_vec();
                let to = rng.below(bytes.len() as u64 + 1) as usize;
                bytes.splice(to..to, copy);
            }
            // The MessagePack markers that announce a length.
            3 => bytes.insert(at, 0xc0 + rng.below(32) as u8),
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << rng.below(8);
                }
            }
        }
    }
    bytes
}

/// The corpus of one decoder, sorted by name.
pub(crate) fn seeds(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let mut paths: Vec<_> = fs::read_dir(fuzz().join("corpus").join(name))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "the corpus of {name} is empty");
    paths.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}
