//! The events of watchers, encoded as frames.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::api::{Event, KeyValue, WatchMessage};
use crate::watch::{Batch, CountedBytes, State, WatcherEvent, WireFormat};
use crate::wire;
use crate::wire::FrameLimits;

/// A revision or an initial state that is larger continues in a further frame.
const PART_BYTES: usize = 256 << 10;
/// What an event takes beside its keys and values, about.
const EVENT_BYTES: usize = 64;

/// Encodes an event as frames, shared where its content is shared; with what counts their bytes, to be
/// kept until they are sent, unless they are too few to count.
pub(super) fn of(event: &WatcherEvent) -> (Bytes, Option<Arc<CountedBytes>>) {
    let small = match event {
        WatcherEvent::Events(batch) => {
            let (bytes, counted) = batch.encoded(WireFormat::Native, events);
            return (bytes, Some(counted));
        }
        WatcherEvent::State(state) => {
            let (bytes, counted) = state.encoded(keys);
            return (bytes, Some(counted));
        }
        WatcherEvent::Synced(revision) => one(&WatchMessage::Synced {
            revision: *revision,
        }),
        WatcherEvent::Progress(revision) => one(&WatchMessage::Progress {
            revision: *revision,
        }),
        WatcherEvent::Canceled(cancel) => one(&WatchMessage::Canceled {
            error: cancel.error.clone(),
            resume_revision: cancel.resume_revision,
        }),
    };
    (small, None)
}

/// A message as a frame.
pub(super) fn one(message: &WatchMessage) -> Bytes {
    let mut out = BytesMut::new();
    append(message, &mut out);
    out.freeze()
}

fn keys(state: &State) -> Bytes {
    let mut out = BytesMut::new();
    let mut rest = state.kvs();
    while !rest.is_empty() {
        let (part, later) = rest.split_at(part_length(rest, key_value_bytes));
        let kvs = part.to_vec();
        append(&WatchMessage::State { kvs }, &mut out);
        rest = later;
    }
    out.freeze()
}

fn events(batch: &Batch) -> Bytes {
    let mut out = BytesMut::new();
    let mut rest = batch.events();
    while !rest.is_empty() {
        let (part, later) = rest.split_at(part_length(rest, event_bytes));
        let message = WatchMessage::Events {
            revision: batch.revision(),
            is_partial: !later.is_empty(),
            events: part.to_vec(),
        };
        append(&message, &mut out);
        rest = later;
    }
    out.freeze()
}

/// How many from the front make the next frame: at least one.
fn part_length<T>(items: &[T], bytes_of: impl Fn(&T) -> usize) -> usize {
    let mut bytes = 0;
    let fitting = items
        .iter()
        .take_while(|item| {
            bytes += bytes_of(item);
            bytes <= PART_BYTES
        })
        .count();
    fitting.max(1)
}

fn event_bytes(event: &Event) -> usize {
    let previous = event.prev_kv.as_ref().map_or(0, key_value_bytes);
    key_value_bytes(&event.kv) + previous
}

fn key_value_bytes(kv: &KeyValue) -> usize {
    EVENT_BYTES + kv.key.len() + kv.value.len()
}

/// What the store holds has passed the limits of its time, which may have been others than today's:
/// whether a frame is too long is for the client to say.
fn append(message: &WatchMessage, out: &mut BytesMut) {
    let limits = FrameLimits {
        watch_bytes_max: u32::MAX as usize,
        ..FrameLimits::DEFAULT
    };
    // Four gigabytes in one event: such a value never was taken in.
    let _ = wire::encode(message, &limits, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Door, FrameReader};

    fn kv(key: &str, bytes: usize) -> KeyValue {
        KeyValue {
            key: Bytes::copy_from_slice(key.as_bytes()),
            value: vec![b'v'; bytes].into(),
            ..KeyValue::default()
        }
    }

    #[test]
    fn parts_are_bounded_and_never_empty() {
        let kvs: Vec<KeyValue> = (0..10).map(|_| kv("k", PART_BYTES / 4)).collect();
        assert_eq!(part_length(&kvs, key_value_bytes), 3);
        assert_eq!(part_length(&[kv("k", 2 * PART_BYTES)], key_value_bytes), 1);
    }

    #[test]
    fn the_largest_event_is_a_frame_that_a_client_takes() {
        let limits = crate::api::Limits::DEFAULT;
        let key = "k".repeat(limits.key_bytes_max);
        let largest = KeyValue {
            create_revision: i64::MAX,
            mod_revision: i64::MAX,
            version: i64::MAX,
            lease: i64::MAX,
            ..kv(&key, limits.value_bytes_max)
        };
        let bytes = one(&WatchMessage::Events {
            revision: i64::MAX,
            is_partial: false,
            events: vec![Event {
                kind: crate::api::EventKind::Put,
                kv: largest.clone(),
                prev_kv: Some(largest),
            }],
        });
        let mut reader = FrameReader::new(Door::Client, FrameLimits::DEFAULT);
        reader.push(bytes);
        assert!(reader.next_frame().unwrap().is_some());
    }
}
