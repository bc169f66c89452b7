//! What this binary was made from.

/// The package's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The first twelve digits of the commit, or `unknown` outside a checkout.
pub const COMMIT: &str = env!("LEASEHOLD_COMMIT");
/// The compiler's version.
pub const RUSTC: &str = env!("LEASEHOLD_RUSTC");
