//! Any bytes into the decoder `verdict`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hypha_wire::decoders::run("verdict", bytes));
