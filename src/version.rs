//! What this binary was made from.

/// The package's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The first twelve digits of the commit, or `unknown` outside a checkout.
pub const COMMIT: &str = env!("BUILT_FROM_COMMIT");
/// The compiler's version.
pub const RUSTC: &str = env!("BUILT_WITH_RUSTC");
