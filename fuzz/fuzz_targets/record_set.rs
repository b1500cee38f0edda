//! Any bytes into the decoder `record_set`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hypha_wire::decoders::run("record_set", bytes));
