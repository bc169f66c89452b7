//! Events on the disk: many in one record.
//!
//! Every change of a key leaves an event, and they come in the order of their keys. To the database each
//! record costs the same, however small: a place in a memtable, its part of a flush and of merges. So the
//! events of one hand-over share records, *packs*. The key of a pack is that of its first event, and it has
//! all events until the next pack begins. An event alone is stored as it is. Later events leave a pack as it is;
//! only compaction changes it.
//!
//! Only what is on the disk is packed. Above [`Tables`](super::Tables) each event is a record of its own: for
//! readers, the content hash, compaction and a state that is sent. So no member need pack as others do.
//!
//! | Record | Content |
//! |---|---|
//! | one event | as apply wrote it: begins with `0` or `1` |
//! | a pack | `2`, then of each event the length of its key (2 bytes) and of its record (4 bytes), and both |
//!
//! The keys of a pack have their first bytes in common. So the search for the pack that an event is in ends
//! soon also where compaction has left nothing but deleted keys.

use bytes::{Buf, BufMut, Bytes};

use crate::kv;
use crate::kv::{Changes, Fault, Pair, Space, Span};

/// The first byte of a pack. No event begins with it.
const PACK: u8 = 2;
/// A pack that has so many bytes takes no more events.
const PACK_BYTES_ENOUGH: usize = 4 << 10;
/// What an event takes in a pack besides its key and record.
const EVENT_HEADER: usize = 6;
/// So many bytes at their beginning are the same in all keys of a pack: in the order of revisions it has
/// the events of 256 at most.
const SHARED_BYTES: usize = 7;

/// What becomes of an event: its record, or `None` where it is removed.
pub(super) type EventChange<'c> = (&'c Bytes, Option<&'c Bytes>);

/// The pack that has the event `key` begins here or later, and not after `key`.
pub(super) fn earliest(key: &[u8]) -> &[u8] {
    &key[..key.len().min(SHARED_BYTES)]
}

/// What becomes of the packs so that events change as `changes` say, which are in order. `stored` are the packs
/// that these may concern, in order: the last that begins at or before the first change, and all that begin
/// after it, up to the last change.
///
/// # Errors
/// [`Fault::Damaged`]: a pack does not read.
pub(super) fn repacked(stored: Vec<Pair>, changes: &[EventChange<'_>]) -> Result<Changes, Fault> {
    let mut packer = Packer::default();
    let mut rest = changes;
    let first = stored.first().map(|(key, _)| key.clone());
    packer.add_all(take_before(&mut rest, first.as_ref()));
    let mut stored = stored.into_iter().peekable();
    while let Some((key, pack)) = stored.next() {
        let next = stored.peek().map(|(key, _)| key);
        packer.change(key, pack, take_before(&mut rest, next))?;
    }
    Ok(packer.changes)
}

/// Those of `rest` that are before `end`, which leave it.
fn take_before<'a, 'c>(
    rest: &mut &'a [EventChange<'c>],
    end: Option<&Bytes>,
) -> &'a [EventChange<'c>] {
    let count = rest.partition_point(|(key, _)| end.is_none_or(|end| *key < end));
    let (before, after) = rest.split_at(count);
    *rest = after;
    before
}

/// Makes packs.
#[derive(Default)]
struct Packer {
    /// Of packs.
    changes: Changes,
    /// The events of the next one.
    open: Vec<Pair>,
    open_bytes: usize,
}

impl Packer {
    /// Changes the events of one pack, or adds some after it.
    fn change(
        &mut self,
        key: Bytes,
        pack: Bytes,
        changes: &[EventChange<'_>],
    ) -> Result<(), Fault> {
        let Some((first, _)) = changes.first() else {
            return Ok(());
        };
        let events: Vec<Pair> = Events::of(key.clone(), pack)?.collect::<Result<_, _>>()?;
        if events.last().is_none_or(|(last, _)| last < *first) {
            self.add_all(changes);
            return Ok(());
        }
        self.changes.insert(key, None);
        let changes = changes.iter().map(|(key, record)| (*key, record.cloned()));
        let changes: Vec<(&Bytes, Option<Bytes>)> = changes.collect();
        let above = changes.iter().map(|(key, record)| (*key, record));
        for pair in kv::overlaid(events.into_iter().map(Ok), above) {
            self.add(pair?);
        }
        self.close();
        Ok(())
    }

    /// Packs events that no pack has. Removing one of these changes nothing.
    fn add_all(&mut self, changes: &[EventChange<'_>]) {
        for (key, record) in changes {
            if let Some(record) = record {
                self.add(((*key).clone(), (*record).clone()));
            }
        }
        self.close();
    }

    fn add(&mut self, (key, record): Pair) {
        let is_kin = |(first, _): &Pair| earliest(first) == earliest(&key);
        let has_room = self.open_bytes < PACK_BYTES_ENOUGH;
        if !self.open.first().is_some_and(is_kin) || !has_room {
            self.close();
        }
        self.open_bytes += EVENT_HEADER + key.len() + record.len();
        self.open.push((key, record));
    }

    fn close(&mut self) {
        let bytes = std::mem::take(&mut self.open_bytes);
        if self.open.len() <= 1 {
            let only = self.open.pop();
            self.changes
                .extend(only.map(|(key, record)| (key, Some(record))));
            return;
        }
        let first = self.open[0].0.clone();
        let mut pack = Vec::with_capacity(1 + bytes);
        pack.put_u8(PACK);
        for (key, record) in self.open.drain(..) {
            let lengths = (u16::try_from(key.len()), u32::try_from(record.len()));
            pack.put_u16(lengths.0.expect("no key of the disk is longer"));
            pack.put_u32(lengths.1.expect("no record of the disk is longer"));
            pack.put_slice(&key);
            pack.put_slice(&record);
        }
        self.changes.insert(first, Some(pack.into()));
    }
}

/// The events of one pack, in order. They share its memory.
enum Events {
    One(Option<Pair>),
    Many(Bytes),
}

impl Events {
    fn of(key: Bytes, mut pack: Bytes) -> Result<Self, Fault> {
        match pack.first() {
            None => Err(damaged()),
            Some(&PACK) => {
                pack.advance(1);
                Ok(Self::Many(pack))
            }
            Some(_) => Ok(Self::One(Some((key, pack)))),
        }
    }

    fn of_many(rest: &mut Bytes) -> Result<Pair, Fault> {
        let mut lengths = rest.get(..EVENT_HEADER).ok_or_else(damaged)?;
        let (key, record) = (lengths.get_u16().into(), lengths.get_u32() as usize);
        if rest.len() - EVENT_HEADER < key || rest.len() - EVENT_HEADER - key < record {
            return Err(damaged());
        }
        rest.advance(EVENT_HEADER);
        Ok((rest.split_to(key), rest.split_to(record)))
    }
}

impl Iterator for Events {
    type Item = Result<Pair, Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::One(event) => event.take().map(Ok),
            Self::Many(rest) if rest.is_empty() => None,
            Self::Many(rest) => {
                let event = Self::of_many(rest);
                if event.is_err() {
                    rest.clear();
                }
                Some(event)
            }
        }
    }
}

fn damaged() -> Fault {
    Fault::Damaged {
        space: Space::Events,
        what: "a pack of events that does not read",
    }
}

/// The events of `span` in `packs`, which are in order: from the last that begins at or before its start on.
pub(super) fn unpacked<E: From<Fault>>(
    packs: impl Iterator<Item = Result<Pair, E>>,
    span: Span,
) -> impl Iterator<Item = Result<Pair, E>> {
    let events = packs.flat_map(|pack| {
        let (events, failure) = match pack.and_then(|(key, pack)| Ok(Events::of(key, pack)?)) {
            Ok(events) => (Some(events), None),
            Err(error) => (None, Some(Err(error))),
        };
        let events = events.into_iter().flatten();
        events.map(|event| event.map_err(E::from)).chain(failure)
    });
    events.filter(move |event| match event {
        Ok((key, _)) => span.contains(key),
        Err(_) => true,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use proptest::prelude::*;

    /// What is on the disk.
    #[derive(Default)]
    struct Packs(BTreeMap<Bytes, Bytes>);

    impl Packs {
        fn pack_of(&self, event: &Bytes) -> Bytes {
            let earlier = Bytes::copy_from_slice(earliest(event))..=event.clone();
            let pack = self.0.range(earlier).next_back();
            pack.map_or(event, |(key, _)| key).clone()
        }

        fn change(&mut self, changes: &Changes) -> Result<(), Fault> {
            let changes: Vec<_> = changes.iter().map(|(key, it)| (key, it.as_ref())).collect();
            let Some((last, _)) = changes.last() else {
                return Ok(());
            };
            let concerned = self.pack_of(changes[0].0)..=(*last).clone();
            let stored = self.0.range(concerned);
            let stored = stored
                .map(|(key, pack)| (key.clone(), pack.clone()))
                .collect();
            for (key, pack) in repacked(stored, &changes)? {
                match pack {
                    Some(pack) => self.0.insert(key, pack),
                    None => self.0.remove(&key),
                };
            }
            Ok(())
        }

        fn read(&self, span: &Span) -> Result<Vec<Pair>, Fault> {
            let packs = self.0.range(self.pack_of(span.from())..);
            let packs = packs.take_while(|(key, _)| span.until().is_none_or(|until| *key < until));
            let packs = packs.map(|(key, pack)| Ok((key.clone(), pack.clone())));
            unpacked(packs, span.clone()).collect()
        }
    }

    /// As keys of events are, but with few numbers.
    fn key(number: u16) -> Bytes {
        let mut key = vec![0; 6];
        key.put_u16(number);
        key.put_u32(0);
        key.into()
    }

    fn event(number: u16, bytes: usize) -> (Bytes, Option<Bytes>) {
        (key(number), Some(vec![1; bytes].into()))
    }

    fn changes() -> impl Strategy<Value = Changes> {
        let bytes = prop_oneof![1..40usize, Just(3 * PACK_BYTES_ENOUGH)];
        let change = (0..600u16, prop::option::weighted(0.7, bytes));
        let change = change.prop_map(|(number, bytes)| match bytes {
            Some(bytes) => event(number, bytes),
            None => (key(number), None),
        });
        prop::collection::btree_map(0..60usize, change, 0..60)
            .prop_map(|changes| changes.into_values().collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn packs_have_the_events_that_were_written_and_not_removed(
            batches in prop::collection::vec(changes(), 1..8),
            from in 0..600u16,
            until in prop::option::of(0..600u16),
        ) {
            let (mut packs, mut plain) = (Packs::default(), BTreeMap::new());
            for changes in &batches {
                packs.change(changes).unwrap();
                for (key, record) in changes {
                    match record {
                        Some(record) => plain.insert(key.clone(), record.clone()),
                        None => plain.remove(key),
                    };
                }
                let found = packs.read(&Span::all()).unwrap();
                prop_assert_eq!(found, plain.clone().into_iter().collect::<Vec<_>>());
            }
            let span = Span::new(key(from), until.map(key));
            let inside = plain.into_iter().filter(|(key, _)| span.contains(key));
            prop_assert_eq!(packs.read(&span).unwrap(), inside.collect::<Vec<_>>());
        }

        #[test]
        fn no_pack_makes_a_reader_panic(
            mut pack in prop::collection::vec(any::<u8>(), 0..40),
            cut in any::<prop::sample::Index>(),
        ) {
            let stored = |pack: &[u8]| Packs([(key(0), Bytes::copy_from_slice(pack))].into());
            let _ = stored(&pack).read(&Span::all());
            // Of a sound one, an end that is missing is seen.
            let mut packs = Packs::default();
            packs.change(&(0..20).map(|number| event(number, 9)).collect()).unwrap();
            pack = packs.0.values().next().unwrap().to_vec();
            let cut = cut.index(pack.len());
            let read = stored(&pack[..cut]).read(&Span::all());
            let is_whole = cut > 0 && (cut - 1).is_multiple_of(EVENT_HEADER + key(0).len() + 9);
            prop_assert_eq!(read.is_ok(), is_whole);
            let more = Changes::from([event(5, 1)]);
            prop_assert_eq!(stored(&pack[..cut]).change(&more).is_ok(), is_whole);
        }
    }

    #[test]
    fn the_events_of_one_hand_over_share_records_and_later_ones_leave_these_as_they_are() {
        let mut packs = Packs::default();
        let events =
            |numbers: std::ops::Range<u16>| numbers.map(|number| event(number, 20)).collect();
        packs.change(&events(0..250)).unwrap();
        let first = packs.0.clone();
        assert_eq!(first.len(), 3, "about four KiB each");
        packs.change(&events(250..260)).unwrap();
        assert_eq!(
            packs.0.len(),
            5,
            "one to the end of what may be shared, and one after it"
        );
        assert!(
            first
                .iter()
                .all(|(key, pack)| packs.0.get(key) == Some(pack))
        );
        // An event alone is stored as it is.
        packs.change(&events(260..261)).unwrap();
        assert_eq!(packs.0[&key(260)], event(260, 20).1.unwrap());
        // What is removed from the beginning, as compaction does, leaves the rest under its first event.
        let gone = (0..100).map(|number| (key(number), None)).collect();
        packs.change(&gone).unwrap();
        assert_eq!(packs.0.keys().next(), Some(&key(100)));
        assert_eq!(packs.read(&Span::all()).unwrap().len(), 161);
    }
}
