//! The throughput of the reduce, next to a plain copy of the same bytes.

fn main() {}
