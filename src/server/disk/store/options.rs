//! Limits of a state's memory and journals.

/// The memory that a state may use, and the size of its journals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// For the cache of current records that serves point reads. Zero disables it.
    pub record_cache_bytes: usize,
    /// For blocks of the tables on disk.
    pub block_cache_bytes: u64,
    /// For the memtable of one keyspace.
    pub memtable_bytes: u64,
    /// The size of the journals above which memtables are flushed: 64 MiB at least.
    pub journal_bytes: u64,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            record_cache_bytes: 64 << 20,
            block_cache_bytes: 32 << 20,
            memtable_bytes: 16 << 20,
            journal_bytes: 256 << 20,
        }
    }
}
