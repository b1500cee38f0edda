//! Any bytes into the decoder `bulk_control`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hypha_wire::decoders::run("bulk_control", bytes));
