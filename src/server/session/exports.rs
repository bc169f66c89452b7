//! Snapshots that clients are fetching: a few at a time, each kept while its chunks are requested.
//!
//! A snapshot keeps the disk from cleaning up what was replaced since, and each of its chunks costs a
//! read. So a node keeps two at most, and drops one when its client has requested nothing for a minute or
//! has finished.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::origins::Origins;
use crate::api::{Error, ErrorKind, SnapshotCall, SnapshotReply};
use crate::server::disk::store::{Export, Snapshot, StoreError};
use crate::server::metrics::stopwatch;
use crate::sync::{Mutex, MutexGuard};

/// Snapshots that a node keeps for clients at the same time.
const SNAPSHOTS_MAX: usize = 2;
/// A snapshot of which no chunk was requested for so long is dropped.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// When to ask again where there are as many as may be.
const RETRY_AFTER_MS: u32 = 5_000;

/// See the module.
#[derive(Default)]
pub(crate) struct Exports {
    held: Mutex<OpenExports>,
}

#[derive(Default)]
struct OpenExports {
    last: u64,
    by_id: BTreeMap<u64, Arc<OpenExport>>,
}

/// One snapshot.
struct OpenExport {
    export: Mutex<ExportCursor>,
    used: Mutex<Instant>,
}

/// An export, and the number of the chunk that it gives next.
struct ExportCursor {
    export: Export,
    next: u64,
}

impl Exports {
    /// Does what `call` asks. `snapshot` is what a new one is taken from. Reads the disk: not for a
    /// thread that others wait for.
    ///
    /// # Errors
    /// Outside, those of the store, which are fatal; inside, those for the client.
    pub(crate) fn answer(
        &self,
        call: SnapshotCall,
        snapshot: Snapshot,
        origins: &Origins,
    ) -> Result<Result<SnapshotReply, Error>, StoreError> {
        match call {
            SnapshotCall::Begin => self.begin(snapshot, origins),
            SnapshotCall::Chunk { id, number } => self.chunk(id, number),
            SnapshotCall::End { id } => {
                self.lock().by_id.remove(&id);
                Ok(Ok(reply(id, Bytes::new())))
            }
        }
    }

    fn begin(
        &self,
        snapshot: Snapshot,
        origins: &Origins,
    ) -> Result<Result<SnapshotReply, Error>, StoreError> {
        self.drop_idle();
        let Some(origin) = origins.at(snapshot.applied().index) else {
            return Ok(Err(Error::not_applied(
                ErrorKind::SlowDown {
                    retry_after_ms: RETRY_AFTER_MS,
                },
                "this node does not know the configuration at the end of its state: its log was \
                 truncated meanwhile, or it has just joined; retry shortly",
            )));
        };
        let export = Export::new(snapshot, origin)?;
        let mut held = self.lock();
        if held.by_id.len() >= SNAPSHOTS_MAX {
            return Ok(Err(Error::not_applied(
                ErrorKind::SlowDown {
                    retry_after_ms: RETRY_AFTER_MS,
                },
                format!(
                    "{SNAPSHOTS_MAX} snapshots are already being taken from this node: use another \
                     node, or retry later"
                ),
            )));
        }
        held.last += 1;
        // Never that of an earlier process: a client that goes on must find the same snapshot or none.
        let id = RandomState::new().hash_one(held.last);
        let fetched = OpenExport {
            export: Mutex::new(ExportCursor { export, next: 0 }),
            used: Mutex::new(stopwatch()),
        };
        held.by_id.insert(id, Arc::new(fetched));
        Ok(Ok(reply(id, Bytes::new())))
    }

    fn chunk(&self, id: u64, number: u64) -> Result<Result<SnapshotReply, Error>, StoreError> {
        let Some(fetched) = self.lock().by_id.get(&id).cloned() else {
            return Ok(Err(Error::not_applied(
                ErrorKind::SnapshotGone,
                "this node no longer has that snapshot: it was restarted, or the snapshot was not \
                 read for a minute; take another one",
            )));
        };
        let chunk = {
            let mut at = fetched.export.lock();
            if at.next != number {
                at.export.seek(number)?;
                at.next = number;
            }
            let chunk = at.export.next_chunk()?;
            at.next += u64::from(chunk.is_some());
            chunk
        };
        *fetched.used.lock() = stopwatch();
        Ok(Ok(reply(id, chunk.unwrap_or_default())))
    }

    /// Keeps the snapshot `id`, which somebody begun, to be read whole and not by chunks; `None` if it is
    /// there no more.
    pub(crate) fn hold(self: &Arc<Self>, id: u64) -> Option<HeldExport> {
        let open = self.lock().by_id.get(&id).cloned()?;
        let snapshot = open.export.lock().export.snapshot();
        Some(HeldExport {
            exports: Arc::clone(self),
            id,
            snapshot,
            _open: open,
        })
    }

    /// Drops the snapshots that are idle.
    pub(crate) fn drop_idle(&self) {
        self.lock().by_id.retain(|_, fetched| {
            let used = *fetched.used.lock();
            // One that is held has a second owner.
            used.elapsed() < IDLE_MAX || Arc::strong_count(fetched) > 1
        });
    }

    fn lock(&self) -> MutexGuard<'_, OpenExports> {
        // Each change of it is one step.
        self.held.lock()
    }
}

/// A snapshot that is read whole. It counts as one of those that are being taken until this is dropped.
pub(crate) struct HeldExport {
    exports: Arc<Exports>,
    id: u64,
    snapshot: Arc<Snapshot>,
    _open: Arc<OpenExport>,
}

impl HeldExport {
    /// The number by which it was begun.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The state, as it was when the snapshot was begun.
    pub(crate) fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }
}

impl Drop for HeldExport {
    fn drop(&mut self) {
        self.exports.lock().by_id.remove(&self.id);
    }
}

/// Drops idle snapshots, for as long as `exports` is used elsewhere.
pub(crate) async fn tend(exports: Arc<Exports>) {
    let exports = {
        let weak = Arc::downgrade(&exports);
        drop(exports);
        weak
    };
    loop {
        tokio::time::sleep(IDLE_MAX / 4).await;
        match exports.upgrade() {
            Some(exports) => exports.drop_idle(),
            None => return,
        }
    }
}

fn reply(id: u64, chunk: Bytes) -> SnapshotReply {
    SnapshotReply { id, chunk }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::Configuration;
    use crate::server::disk::store::{StateStore, StoreOptions};
    use crate::types::{ClusterId, NodeId};
    use crate::wire::state::StateDecoder;

    #[test]
    fn snapshots_are_few_and_each_is_there_until_it_is_let_go() {
        let directory = tempfile::tempdir().unwrap();
        let store = StateStore::open(directory.path(), &StoreOptions::default()).unwrap();
        let origins = Origins::fixed(ClusterId(7), NodeId(3), Configuration::default());
        let exports = Arc::new(Exports::default());
        let ask = |call| {
            let snapshot = store.reader().snapshot().unwrap();
            exports.answer(call, snapshot, &origins).unwrap()
        };
        let first = ask(SnapshotCall::Begin).unwrap().id;
        let second = ask(SnapshotCall::Begin).unwrap().id;
        assert_ne!(first, second);
        let refused = ask(SnapshotCall::Begin).unwrap_err();
        assert!(
            matches!(refused.kind, ErrorKind::SlowDown { .. }),
            "{refused}"
        );

        let mut decoder = StateDecoder::new();
        for number in [0, 1] {
            let once = ask(SnapshotCall::Chunk { id: first, number }).unwrap();
            let again = ask(SnapshotCall::Chunk { id: first, number }).unwrap();
            assert_eq!(once, again, "what did not come is asked for again");
            decoder.take(once.chunk).unwrap();
        }
        decoder.finish().unwrap();
        let beyond = ask(SnapshotCall::Chunk {
            id: first,
            number: 2,
        });
        assert!(beyond.unwrap().chunk.is_empty());

        ask(SnapshotCall::End { id: first }).unwrap();
        let gone = ask(SnapshotCall::Chunk {
            id: first,
            number: 0,
        });
        assert_eq!(gone.unwrap_err().kind, ErrorKind::SnapshotGone);
        let third = ask(SnapshotCall::Begin).unwrap().id;
        assert_ne!(third, first);
        let held = exports.hold(third).unwrap();
        assert_eq!(
            held.snapshot().applied(),
            store.reader().snapshot().unwrap().applied()
        );

        let long_ago = stopwatch()
            .checked_sub(IDLE_MAX)
            .expect("the machine runs for longer");
        for fetched in exports.lock().by_id.values() {
            *fetched.used.lock() = long_ago;
        }
        exports.drop_idle();
        let left: Vec<u64> = exports.lock().by_id.keys().copied().collect();
        assert_eq!(left, [third], "one that is read whole is not idle");
        drop(held);
        assert!(exports.lock().by_id.is_empty());
        assert!(exports.hold(third).is_none());
    }
}
