//! Any bytes into the decoder `reports`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hypha_wire::decoders::run("reports", bytes));
