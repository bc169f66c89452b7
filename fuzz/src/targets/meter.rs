//! How much memory a piece of code takes.
//!
//! The fuzzer's binaries count every allocation of the thread (`allocator.rs`); the plain replay of
//! the corpora cannot, because the main package forbids `unsafe`, and there [`peak`] is zero.

use std::sync::OnceLock;

/// How whoever counts is asked: begin again from zero, and how much was held at most since.
pub struct Meter {
    pub begin: fn(),
    pub peak: fn() -> usize,
}

/// Whoever counts, if anybody does.
pub static METER: OnceLock<Meter> = OnceLock::new();

/// What `work` gives, and the most memory that it held at one time beyond what was held before.
pub fn peak<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let meter = METER.get();
    if let Some(meter) = meter {
        (meter.begin)();
    }
    let done = work();
    (done, meter.map_or(0, |meter| (meter.peak)()))
}
