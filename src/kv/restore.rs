//! Restore: turns the state of a backup into the first state of a new cluster.
//!
//! Keys, values, history and leases are kept. What belonged to the old cluster is removed:
//!
//! - its identity, bootstrap and members: the first leader of the new one sets others;
//! - its sessions: a client of the old cluster has no certificate of the new one, so none of them can
//!   ever be asked for again, and each would lie there until it is forgotten for its age;
//! - what was left of leases at their last checkpoint. It is unknown how much time has passed since, and
//!   a lease that ends early is worse than one that ends late, so each has its full time again.
//!
//! The revision leaps ahead, and what was before it counts as compacted: a watcher of the old cluster
//! is refused and reads again, instead of taking revisions of the two for one history (the old cluster may
//! have gone on after the backup). A fencing token that is given out from now on is larger than any of the
//! old cluster, for the same reason.
//!
//! The last applied entry stays what it was, and the new cluster's log begins after it: no index comes
//! again by which a lease of the backup is named.
//!
//! What the old cluster did after the backup is not known here, and the index does not leap as the
//! revision does. A session that it opened then may have the number of one of the new cluster; its client
//! is refused by its certificate, before it can name any. A lease that it granted then may have the id and the
//! grant index of another one of the new cluster: programs that keep ids must look them up again.

use bytes::Bytes;

use super::hash::HashedStore;
use super::lease::Lease;
use super::meta::Progress;
use super::store::{Space, Span, Store};
use super::{etcd_urls, lease, meta};

/// Turns `store` into the initial state of a new cluster, with its revision raised by `leap`. With
/// a `leap` of 0 history is kept, and watchers do not learn of the restore. The result is the same
/// on every member that has the same state.
///
/// # Errors
/// Those of the store. After an error `store` may hold half of it: discard it.
pub fn reset_identity<S: Store>(store: &mut S, leap: i64) -> Result<Progress, S::Error> {
    let mut progress = meta::progress(store)?;
    let mut store = HashedStore::begin(store)?;
    store.take(Space::Meta, &meta::cluster_key())?;
    store.take(Space::Meta, &meta::bootstrap_key())?;
    store.take(Space::Meta, &etcd_urls::key())?;
    for key in keys(&store, Space::Clients)? {
        store.take(Space::Clients, &key)?;
    }
    progress.sessions = 0;
    for key in keys(&store, Space::Leases)? {
        let id = lease::lease_id(&key)?;
        if let Some(mut found) = Lease::read(&store, id)?
            && found.checkpoint_ms.take().is_some()
        {
            found.write(&mut store, id)?;
        }
    }
    if leap > 0 {
        progress.revision = progress.revision.saturating_add(leap);
        progress.compact_revision = progress.revision;
    }
    let (key, record) = progress.record();
    store.put(Space::Meta, key, record)?;
    store.finish();
    Ok(progress)
}

fn keys<S: Store>(store: &HashedStore<'_, S>, space: Space) -> Result<Vec<Bytes>, S::Error> {
    use super::store::View;
    let pairs = store.range(space, &Span::all());
    // Copied, because a key read from disk may keep its whole block in memory.
    pairs
        .map(|pair| pair.map(|(key, _)| Bytes::copy_from_slice(&key)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{ClusterInfo, ErrorKind, KeyRange, Limits, RangeRequest};
    use crate::kv;
    use crate::kv::tests::everything;
    use crate::kv::{MemStore, View};
    use crate::types::{BootstrapId, ClusterId, LogId, LogIndex, Term};

    const LEAP: i64 = 1_000;

    fn current(store: &MemStore) -> Vec<kv::Pair> {
        let pairs = store.range(Space::Current, &Span::all());
        pairs.map(Result::unwrap).collect()
    }

    #[test]
    fn keys_stay_and_what_belonged_to_the_old_cluster_goes() {
        let before = everything();
        let was = kv::progress(&before).unwrap();
        let mut store = before.clone();
        let progress = reset_identity(&mut store, LEAP).unwrap();
        assert_eq!(kv::progress(&store), Ok(progress));
        assert_eq!(kv::content_hash(&store), kv::scan(&store));
        assert_eq!(current(&store), current(&before));
        assert_eq!(kv::cluster_info(&store), Ok(None));
        assert_eq!(store.count(Space::Clients, &Span::all()), Ok(0));
        assert_eq!(progress.applied, was.applied);
        assert_eq!((progress.sessions, progress.leases), (0, was.leases));
        assert_eq!(progress.revision, was.revision + LEAP);
        assert_eq!(progress.compact_revision, progress.revision);
    }

    #[test]
    fn the_new_cluster_has_another_bootstrap_than_the_old_one() {
        let mut store = MemStore::new();
        let bootstrap = kv::Command::BootstrapAs {
            bootstrap: BootstrapId(9 << 100),
            info: ClusterInfo {
                cluster_id: ClusterId(7),
                members: Vec::new(),
            },
        };
        let first = LogId::new(LogIndex(1), Term(1));
        kv::apply(&mut store, first, Some(&bootstrap.encode())).unwrap();
        assert_eq!(kv::bootstrap(&store), Ok(Some(BootstrapId(9 << 100))));
        reset_identity(&mut store, LEAP).unwrap();
        assert_eq!(kv::bootstrap(&store), Ok(None));
        assert_eq!(kv::content_hash(&store), kv::scan(&store));
    }

    #[test]
    fn old_revisions_are_refused_and_history_is_removed_as_after_any_compaction() {
        let mut store = everything();
        let was = kv::progress(&store).unwrap().revision;
        let progress = reset_identity(&mut store, LEAP).unwrap();
        let read = |store: &MemStore, revision| {
            let request = RangeRequest {
                range: KeyRange::From,
                revision,
                ..RangeRequest::default()
            };
            kv::range(store, &request, &Limits::DEFAULT).unwrap()
        };
        let now = read(&store, 0).unwrap();
        assert_eq!(read(&store, progress.revision).unwrap(), now);
        let compact_revision = progress.revision;
        let refused = read(&store, was).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Compacted { compact_revision });
        let budget = kv::CompactionBudget {
            events: 1000,
            bytes: usize::MAX,
        };
        assert!(kv::compact_step(&mut store, &budget).unwrap().finished);
        assert_eq!(kv::content_hash(&store), kv::scan(&store));
        assert_eq!(read(&store, 0).unwrap(), now);
        // One record per key is kept, and no events.
        let keys = store.count(Space::Current, &Span::all());
        assert_eq!(store.count(Space::History, &Span::all()), keys);
        assert_eq!(store.count(Space::Events, &Span::all()), Ok(0));
    }

    #[test]
    fn without_a_leap_history_stays() {
        let before = everything();
        let was = kv::progress(&before).unwrap();
        let mut store = before.clone();
        let progress = reset_identity(&mut store, 0).unwrap();
        assert_eq!(progress.revision, was.revision);
        assert_eq!(progress.compact_revision, was.compact_revision);
        assert_eq!(kv::content_hash(&store), kv::scan(&store));
    }

    #[test]
    fn leases_have_their_full_time_again() {
        let mut store = everything();
        let leases = kv::held_leases(&store).unwrap();
        let id = 70;
        let mut hashed = HashedStore::begin(&mut store).unwrap();
        let mut lease = Lease::read(&hashed, id).unwrap().unwrap();
        lease.checkpoint_ms = Some(3);
        lease.write(&mut hashed, id).unwrap();
        hashed.finish();
        assert_ne!(kv::held_leases(&store).unwrap(), leases);
        reset_identity(&mut store, LEAP).unwrap();
        assert_eq!(kv::held_leases(&store).unwrap(), leases);
        assert_eq!(kv::content_hash(&store), kv::scan(&store));
    }
}
