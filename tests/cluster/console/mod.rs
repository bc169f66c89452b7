//! The console in a real browser, against real nodes.
//!
//! It needs Debian's packages `chromium` and `chromium-driver`: without them, it says loudly that it was left
//! out, and with `LEASEHOLD_REQUIRE_BROWSER` set, as the gate sets it, it fails. With
//! `UPDATE_PICTURES` set it takes the pictures of the documentation.

mod access;
mod browser;
mod changes;
mod many;
mod pictures;
mod views;
mod world;
