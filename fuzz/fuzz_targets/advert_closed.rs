//! Any bytes into the decoder `advert_closed`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hypha_wire::decoders::run("advert_closed", bytes));
