//! Any bytes into the decoder `worker_record`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hypha_wire::decoders::run("worker_record", bytes));
