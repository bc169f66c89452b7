//! Hostile peers.
