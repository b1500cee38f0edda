//! Any bytes into the decoder `farewell`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hypha_wire::decoders::run("farewell", bytes));
