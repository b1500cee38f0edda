//! Any bytes into the decoder `dataset_record`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hypha_wire::decoders::run("dataset_record", bytes));
