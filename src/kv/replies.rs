//! The replies that sessions keep; [`RUN`] consecutive numbers share one record.
//!
//! The reply to a write is a few bytes, and is kept only until its client acknowledges it. A record
//! for each would cost a look-up, a write and a removal per write. So they share records: a batch
//! of writes changes few of them, each once. Replies are removed once the whole run is
//! acknowledged, so a session keeps up to `RUN` - 1 acknowledged replies longer than necessary.
//!
//! A record is a row of replies in the order in which they were decided: number within the run
//! (u8), length (u32), bytes.

use bytes::{Buf, BufMut, Bytes};

use crate::types::SessionId;

use super::hash::HashedStore;
use super::store::{Fault, Space, Span, Store, View};

/// How far a number may be above the session's mark: the most replies that a session keeps.
pub const OUTSTANDING_MAX: u64 = 4096;
/// How many numbers share a record.
pub(super) const RUN: u64 = 16;

/// Replies sort before sessions.
const REPLIES: u8 = b'R';

/// Number within the run, and length.
const ITEM_HEADER: usize = 5;

/// Up to this many runs are looked up one by one, which on an LSM tree is cheaper than a scan.
const FEW: u64 = 16;

/// The replies of one run, as they were read.
pub(super) struct Replies {
    key: Bytes,
    record: Option<Bytes>,
}

impl Replies {
    /// Those of the run that `sequence` belongs to.
    pub(super) fn read<V: View>(view: &V, id: SessionId, sequence: u64) -> Result<Self, V::Error> {
        let key = run_key(id, sequence / RUN);
        let record = view.get(Space::Clients, &key)?;
        Ok(Self { key, record })
    }

    /// The reply that is kept to `sequence`, which belongs to this run.
    pub(super) fn find(&self, sequence: u64) -> Result<Option<Bytes>, Fault> {
        for item in items(self.record.clone().unwrap_or_default()) {
            let (number, reply) = item?;
            if u64::from(number) == sequence % RUN {
                return Ok(Some(reply));
            }
        }
        Ok(None)
    }

    /// Adds the reply to `sequence`, which has none yet; says how many bytes that takes.
    pub(super) fn keep<S: Store>(
        self,
        store: &mut HashedStore<'_, S>,
        sequence: u64,
        reply: &[u8],
    ) -> u64 {
        let old = self.record.as_deref().unwrap_or_default();
        let mut record = Vec::with_capacity(old.len() + ITEM_HEADER + reply.len());
        record.put_slice(old);
        record.put_u8((sequence % RUN) as u8);
        record.put_u32(u32::try_from(reply.len()).expect("replies are bounded far below that"));
        record.put_slice(reply);
        let added = (record.len() - old.len()) as u64;
        match &self.record {
            Some(old) => store.replace(Space::Clients, self.key, old, record.into()),
            None => store.insert(Space::Clients, self.key, record.into()),
        }
        added
    }
}

/// Drops the replies to numbers above `after` of which all of the run are at or below `through`;
/// says how many bytes that freed. What was acknowledged up to `after` has been dropped before.
pub(super) fn drop_acknowledged<S: Store>(
    store: &mut HashedStore<'_, S>,
    id: SessionId,
    after: u64,
    through: u64,
) -> Result<u64, S::Error> {
    drop_runs(store, id, runs_before(after), runs_before(through), after)
}

/// Drops all replies of a session that has acknowledged those up to `after`.
pub(super) fn drop_all<S: Store>(
    store: &mut HashedStore<'_, S>,
    id: SessionId,
    after: u64,
) -> Result<u64, S::Error> {
    drop_runs(store, id, runs_before(after), u64::MAX, after)
}

/// How many runs are over once everything up to `mark` is acknowledged.
fn runs_before(mark: u64) -> u64 {
    mark.saturating_add(1) / RUN
}

fn drop_runs<S: Store>(
    store: &mut HashedStore<'_, S>,
    id: SessionId,
    first: u64,
    end: u64,
    mark: u64,
) -> Result<u64, S::Error> {
    // Replies lie within the window, whatever the client claims to have seen.
    let end = end.min(mark.saturating_add(OUTSTANDING_MAX) / RUN + 1);
    let mut freed = 0;
    let mut keys = Vec::new();
    if end.saturating_sub(first) <= FEW {
        keys.extend((first..end).map(|run| run_key(id, run)));
    } else {
        let span = Span::between(run_key(id, first), run_key(id, end));
        for pair in store.range(Space::Clients, &span) {
            keys.push(pair?.0);
        }
    }
    for key in keys {
        if let Some(record) = store.take(Space::Clients, &key)? {
            freed += record.len() as u64;
        }
    }
    Ok(freed)
}

/// The last reply kept to `sequence` or a number above it.
#[cfg(leasehold_bugs)]
pub(super) fn last_from<V: View>(
    view: &V,
    id: SessionId,
    sequence: u64,
) -> Result<Option<Bytes>, V::Error> {
    let span = Span::between(run_key(id, sequence / RUN), run_key(id, u64::MAX));
    let mut last = None;
    for pair in view.range(Space::Clients, &span) {
        let (key, record) = pair?;
        let run = key[key.len() - 8..]
            .iter()
            .fold(0, |run, byte| run << 8 | u64::from(*byte));
        for item in items(record) {
            let (number, reply) = item?;
            let kept = run * RUN + u64::from(number);
            if kept >= sequence && last.as_ref().is_none_or(|(other, _)| *other < kept) {
                last = Some((kept, reply));
            }
        }
    }
    Ok(last.map(|(_, reply)| reply))
}

fn run_key(id: SessionId, run: u64) -> Bytes {
    let mut bytes = Vec::with_capacity(17);
    bytes.put_u8(REPLIES);
    bytes.put_u64(id.0);
    bytes.put_u64(run);
    bytes.into()
}

/// The replies of a record, each with its number within the run. They share the record's memory.
fn items(mut record: Bytes) -> impl Iterator<Item = Result<(u8, Bytes), Fault>> {
    let damaged = Fault::Damaged {
        space: Space::Clients,
        what: "kept replies that do not read",
    };
    std::iter::from_fn(move || {
        if record.is_empty() {
            return None;
        }
        if record.len() < ITEM_HEADER {
            record.clear();
            return Some(Err(damaged.clone()));
        }
        let number = record.get_u8();
        let length = record.get_u32() as usize;
        if u64::from(number) >= RUN || length > record.len() {
            record.clear();
            return Some(Err(damaged.clone()));
        }
        Some(Ok((number, record.split_to(length))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::store::MemStore;

    const ID: SessionId = SessionId(7);

    fn keep(store: &mut MemStore, sequence: u64, reply: &[u8]) -> u64 {
        let mut hashed = HashedStore::begin(store).unwrap();
        let replies = Replies::read(&hashed, ID, sequence).unwrap();
        let added = replies.keep(&mut hashed, sequence, reply);
        hashed.finish();
        added
    }

    fn found(store: &MemStore, sequence: u64) -> Option<Bytes> {
        let replies = Replies::read(store, ID, sequence).unwrap();
        replies.find(sequence).unwrap()
    }

    fn kept(store: &MemStore) -> Vec<u64> {
        (0..200)
            .filter(|number| found(store, *number).is_some())
            .collect()
    }

    #[test]
    fn replies_are_found_by_their_numbers_in_whatever_order_they_were_kept() {
        let mut store = MemStore::new();
        let numbers = [17, 3, 16, 0, 31, 15, 32];
        for number in numbers {
            let reply = vec![number as u8; number as usize];
            let added = keep(&mut store, number, &reply);
            assert_eq!(added, number + ITEM_HEADER as u64);
        }
        for number in numbers {
            assert_eq!(
                found(&store, number).unwrap(),
                vec![number as u8; number as usize]
            );
        }
        assert_eq!(found(&store, 1), None);
        let records = store.count(Space::Clients, &Span::all()).unwrap();
        assert_eq!(records, 3, "one record for each run");
        let other = Replies::read(&store, SessionId(8), 3).unwrap();
        assert_eq!(other.find(3).unwrap(), None, "sessions share nothing");
    }

    #[test]
    fn a_run_goes_when_all_of_it_is_acknowledged_and_every_byte_is_given_back() {
        let mut store = MemStore::new();
        let mut held = 0;
        for number in 1..=100 {
            held += keep(&mut store, number, b"reply");
        }
        let mut mark = 0;
        for (through, left) in [(14, 1), (15, 16), (16, 16), (46, 32), (47, 48), (95, 96)] {
            let mut hashed = HashedStore::begin(&mut store).unwrap();
            held -= drop_acknowledged(&mut hashed, ID, mark, through).unwrap();
            hashed.finish();
            mark = through;
            assert_eq!(
                kept(&store),
                (left..=100).collect::<Vec<_>>(),
                "up to {through}"
            );
        }
        let mut hashed = HashedStore::begin(&mut store).unwrap();
        held -= drop_all(&mut hashed, ID, mark).unwrap();
        hashed.finish();
        assert_eq!((kept(&store), held), (vec![], 0));
        assert_eq!(crate::kv::content_hash(&store), crate::kv::scan(&store));
    }

    #[test]
    fn the_whole_window_goes_wherever_it_lies_and_however_far_the_mark_jumps() {
        for mark in [0, 1, 14, 15, 16, 999, 1_000_000] {
            for through in [
                mark + OUTSTANDING_MAX + 15,
                mark + 100_000,
                u64::MAX - 1,
                u64::MAX,
            ] {
                let mut store = MemStore::new();
                for number in [mark + 1, mark + 300, mark + OUTSTANDING_MAX] {
                    keep(&mut store, number, b"reply");
                }
                let mut hashed = HashedStore::begin(&mut store).unwrap();
                drop_acknowledged(&mut hashed, ID, mark, through).unwrap();
                hashed.finish();
                let left = store.count(Space::Clients, &Span::all()).unwrap();
                assert_eq!(left, 0, "{mark} to {through}");
            }
        }
    }

    #[test]
    fn what_is_no_row_of_replies_is_damage() {
        let mut whole = bytes::BytesMut::new();
        whole.put_slice(&[3, 0, 0, 0, 2, b'o', b'k']);
        assert!(items(whole.clone().freeze()).all(|item| item.is_ok()));
        for end in 1..whole.len() {
            let cut = whole.clone().freeze().slice(..end);
            assert!(items(cut).any(|item| item.is_err()), "{end} bytes");
        }
        whole[0] = RUN as u8;
        assert!(items(whole.freeze()).any(|item| item.is_err()));
    }
}
