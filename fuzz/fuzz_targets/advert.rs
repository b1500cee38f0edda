//! Any bytes into the decoder `advert`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hypha_wire::decoders::run("advert", bytes));
