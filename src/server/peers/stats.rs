//! What the connections to peers count.

use std::sync::atomic::{AtomicU64, Ordering};

/// What the peer connections count. Everything only rises.
#[derive(Debug, Default)]
pub struct PeerStats {
    pub(super) sent: AtomicU64,
    pub(super) received: AtomicU64,
    pub(super) dropped_control: AtomicU64,
    pub(super) dropped_bulk: AtomicU64,
    pub(super) dropped_unconnected: AtomicU64,
    pub(super) misaddressed: AtomicU64,
}

impl PeerStats {
    /// Messages handed to a connection.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
    /// Messages that arrived and were handed on.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
    /// Control messages dropped because too many waited: the oldest go first.
    pub fn dropped_control(&self) -> u64 {
        self.dropped_control.load(Ordering::Relaxed)
    }
    /// Log entries dropped because too many waited: the newest go first.
    pub fn dropped_bulk(&self) -> u64 {
        self.dropped_bulk.load(Ordering::Relaxed)
    }
    /// Messages dropped because there was no connection to their receiver.
    pub fn dropped_unconnected(&self) -> u64 {
        self.dropped_unconnected.load(Ordering::Relaxed)
    }
    /// Messages that came from another member than their sender, or were not meant for this one.
    /// Each cost its sender the connection.
    pub fn misaddressed(&self) -> u64 {
        self.misaddressed.load(Ordering::Relaxed)
    }
}
