//! Any bytes into the decoder `bulk_answer`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hypha_wire::decoders::run("bulk_answer", bytes));
