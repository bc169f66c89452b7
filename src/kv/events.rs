//! Changes by revision, the source of watches.
//!
//! Changes are known twice: from the batch that has just been written ([`changes_of`]), and from
//! the store, from any revision that is not compacted ([`changes_from`]). Both yield [`Change`]s,
//! which name what was changed and where; the previous and the new value are looked up only for
//! changes that a watch needs ([`Change::event`]).

use bytes::Bytes;

use crate::api::{Event, EventKind, KeyValue};

use super::keys::Revision;
use super::record::{EventRecord, Record};
use super::store::{Changes, Fault, Space, Span, View};
use super::{keys, meta, record};

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    place: Revision,
    kind: EventKind,
    previous: i64,
    key: Bytes,
    /// The record that the change gave the key, if it is known already.
    record: Option<Bytes>,
}

impl Change {
    /// The revision that made it.
    pub fn revision(&self) -> i64 {
        self.place.main
    }

    /// What was done.
    pub fn kind(&self) -> EventKind {
        self.kind
    }

    /// The key that was changed.
    pub fn key(&self) -> &Bytes {
        &self.key
    }

    /// Its approximate size in memory.
    pub fn bytes(&self) -> usize {
        let record = self.record.as_ref().map_or(0, Bytes::len);
        size_of::<Self>() + self.key.len() + record
    }

    /// The change as an event for a watcher. `view` must contain it; with `prev_kv`, it includes
    /// the previous value unless that is compacted in `view`.
    ///
    /// The event keeps no more memory alive than it needs.
    ///
    /// # Errors
    /// The store's error, which is fatal for the reader.
    pub fn event<V: View>(&self, view: &V, prev_kv: bool) -> Result<Event, V::Error> {
        let prev_kv = match prev_kv {
            true => self.previous_kv(view)?,
            false => None,
        };
        let kv = match self.kind {
            EventKind::Delete => KeyValue {
                key: self.key.clone(),
                mod_revision: self.place.main,
                ..KeyValue::default()
            },
            EventKind::Put => {
                let record = match &self.record {
                    Some(record) => record.clone(),
                    None => self.stored_record(view)?,
                };
                record::key_value(self.key.clone(), record)?
            }
        };
        Ok(Event {
            kind: self.kind,
            kv,
            prev_kv,
        })
    }

    fn stored_record<V: View>(&self, view: &V) -> Result<Bytes, V::Error> {
        planted!(NewestTold => if let Some(record) = view.get(Space::Current, &self.key)? {
            return Ok(record);
        });
        let key = keys::history_key(&self.key, self.place);
        match view.get(Space::History, &key)? {
            Some(record) => Ok(Bytes::copy_from_slice(&record)),
            None => Err(Fault::Damaged {
                space: Space::History,
                what: "no record for an event",
            }
            .into()),
        }
    }

    /// The previous value of the key. It is hidden once the change itself is compacted, which the
    /// logged revision alone decides: the progress of the removal differs between replicas.
    fn previous_kv<V: View>(&self, view: &V) -> Result<Option<KeyValue>, V::Error> {
        let is_compacted = self.place.main <= meta::progress(view)?.compact_revision;
        if self.previous == 0 || is_compacted {
            return Ok(None);
        }
        let previous = match planted!(PrevKvNewer) {
            true => self.place.main,
            false => self.previous,
        };
        let span = keys::history_of(&self.key, previous);
        let Some((_, record)) = view.range(Space::History, &span).next().transpose()? else {
            return Err(Fault::Damaged {
                space: Space::History,
                what: "no record for what an event replaced",
            }
            .into());
        };
        let record = Record::decode_past(Bytes::copy_from_slice(&record))?;
        Ok(record.map(|record| record.with_key(self.key.clone())))
    }
}

/// The changes that a batch of applied entries has made, in order.
///
/// # Errors
/// [`Fault::Damaged`] if the batch is none that apply could have written.
pub fn changes_of(events: &Changes, history: &Changes) -> Result<Vec<Change>, Fault> {
    let mut changes = Vec::with_capacity(events.len());
    for (key, record) in events {
        // Compaction removes events; that is not a change of a key.
        let Some(record) = record else {
            continue;
        };
        let place = keys::event_revision(key)?;
        let mut change = read_event(place, record.clone())?;
        if change.kind == EventKind::Put {
            let key = keys::history_key(&change.key, place);
            let record = history.get(&key).cloned().flatten();
            change.record = Some(record.ok_or(Fault::Damaged {
                space: Space::History,
                what: "no record for an event",
            })?);
        }
        changes.push(change);
    }
    Ok(changes)
}

/// Counts of the key changes of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyChanges {
    /// Keys written; one that several writes of the batch wrote counts several times.
    pub puts: u64,
    /// Keys deleted.
    pub deletes: u64,
    /// How many more keys there are after it; negative if fewer.
    pub more: i64,
}

/// What the batch of applied entries that left these events did to keys.
///
/// # Errors
/// [`Fault::Damaged`] if the batch is none that apply could have written.
pub fn key_changes(events: &Changes) -> Result<KeyChanges, Fault> {
    let mut changes = KeyChanges::default();
    // Compaction removes events; that is not a change of a key.
    for record in events.values().flatten() {
        let event = EventRecord::decode(record.clone())?;
        match event.kind {
            EventKind::Put => {
                changes.puts += 1;
                changes.more += i64::from(event.previous == 0);
            }
            // Deleting a missing key changes nothing.
            EventKind::Delete => {
                changes.deletes += 1;
                changes.more -= 1;
            }
        }
    }
    Ok(changes)
}

/// The changes of the revisions `from` to `through`, or of the first of these that have more than
/// `changes_max` changes together; revisions come whole, and at least one does. Also returns
/// the last revision covered: `through`, or that of the last change.
///
/// The caller knows that `from` is not compacted in `view`, and that `view` is at `through` or later.
///
/// # Errors
/// The store's error, which is fatal for the reader.
pub fn changes_from<V: View>(
    view: &V,
    from: i64,
    through: i64,
    changes_max: usize,
) -> Result<(Vec<Change>, i64), V::Error> {
    let span = Span::between(
        keys::event_key(Revision::first(from)),
        keys::event_key(Revision::first(through + 1)),
    );
    let mut changes: Vec<Change> = Vec::new();
    for pair in view.range(Space::Events, &span) {
        let (key, record) = pair?;
        let place = keys::event_revision(&key)?;
        if let Some(last) = changes.last()
            && changes.len() >= changes_max
            && (last.place.main != place.main || planted!(RevisionSplit))
        {
            let last = last.place.main;
            return Ok((changes, last));
        }
        // Copied, because a record read from disk may keep its whole block in memory.
        changes.push(read_event(place, Bytes::copy_from_slice(&record))?);
    }
    Ok((changes, through))
}

fn read_event(place: Revision, record: Bytes) -> Result<Change, Fault> {
    let event = EventRecord::decode(record)?;
    Ok(Change {
        place,
        kind: event.kind,
        previous: event.previous,
        key: event.key,
        record: None,
    })
}
