//! What a target does with an input, said on standard error if `FUZZ_TRACE` is set: to understand
//! an input that failed.

use std::fmt;
use std::sync::OnceLock;

/// Says it, if somebody wants to know.
#[allow(clippy::print_stderr, reason = "this is what it is for")]
pub fn say(what: fmt::Arguments<'_>) {
    static WANTED: OnceLock<bool> = OnceLock::new();
    if *WANTED.get_or_init(|| std::env::var_os("FUZZ_TRACE").is_some()) {
        eprintln!("{what}");
    }
}
