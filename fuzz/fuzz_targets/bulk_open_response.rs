//! Any bytes into the decoder `bulk_open_response`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hypha_wire::decoders::run("bulk_open_response", bytes));
