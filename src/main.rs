//! The `leasehold` binary: it decides arguments and exit codes, nothing else.
fn main() {}
