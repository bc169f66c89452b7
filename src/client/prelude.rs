//! What most programs name: `use leasehold::client::prelude::*;`.

pub use super::recipes::{
    Barrier, CachedKv, Election, Guard, Leadership, Lock, Queue, Registry, RwLock, Semaphore, Stm,
};
pub use super::{
    Client, ConnectOptions, DeleteOptions, GetOptions, LeaseGrantOptions, PutOptions, TlsOptions,
    WatchEvent, WatchOptions, Watcher,
};
pub use crate::api::{
    Compare, CompareOp, Consistency, Error, ErrorKind, KeyValue, Outcome, TxnOp, TxnRequest,
};
