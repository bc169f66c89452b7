//! How much memory a state may use.

/// How much memory the state may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// For current records kept ready for point reads. Zero turns that off.
    pub record_cache_bytes: usize,
    /// For blocks of the tables on disk.
    pub block_cache_bytes: u64,
    /// For writes of one keyspace before they go into a table.
    pub memtable_bytes: u64,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            record_cache_bytes: 64 << 20,
            block_cache_bytes: 32 << 20,
            memtable_bytes: 16 << 20,
        }
    }
}
