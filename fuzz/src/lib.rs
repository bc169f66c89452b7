//! The fuzz targets of leasehold, for libFuzzer. See README.md.
//!
//! What a target does is in `targets/`, which the main package's `tests/corpus` compiles as well,
//! to replay the seeds as plain tests.

pub mod allocator;
pub mod targets;

/// Feeds `data` to the target of that name.
pub fn run(name: &str, data: &[u8]) {
    allocator::install();
    let target = targets::TARGETS.iter().find(|target| target.name == name);
    (target.expect("each binary names its target").run)(data);
}
