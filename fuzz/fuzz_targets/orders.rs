//! Any bytes into the decoder `orders`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hypha_wire::decoders::run("orders", bytes));
