//! Events of a watch as frames of its stream. Large ones are shared with the other watches that want the
//! same, and only what begins a message is its own.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;

use crate::etcd::convert::encoded_events;
use crate::etcd::proto::WatchResponse;
use crate::server::etcd::grpc::{StreamFrame, message_head};
use crate::watch::{Batch, CountedBytes, WireFormat};

/// Events up to this size are copied behind their message's beginning: one frame, instead of two.
const COPIED_BYTES_MAX: usize = 8 << 10;

/// Events of one revision, encoded.
type EncodedEvents = (Bytes, Arc<CountedBytes>);

/// `batches` as one message that begins with `head`; as several, if it would have `part_bytes`.
pub(super) fn frames(
    head: &WatchResponse,
    batches: &[Arc<Batch>],
    part_bytes: Option<usize>,
) -> Vec<StreamFrame> {
    let encode = |batch: &Batch| encoded_events(batch.events());
    let encoded = batches
        .iter()
        .map(|batch| batch.encoded(WireFormat::Etcd, encode));
    let encoded: Vec<EncodedEvents> = encoded.collect();
    let events_max = part_bytes.map(|bytes| bytes.saturating_sub(head.encoded_len()));
    let bytes: usize = encoded.iter().map(|(events, _)| events.len()).sum();
    let mut frames = Vec::new();
    match events_max {
        Some(events_max) if bytes >= events_max => {
            let mut parts = parts(&encoded, events_max).into_iter().peekable();
            while let Some(part) = parts.next() {
                let fragment = parts.peek().is_some();
                let head = WatchResponse {
                    fragment,
                    ..head.clone()
                };
                append(&head, &part, &mut frames);
            }
        }
        _ => append(head, &encoded, &mut frames),
    }
    frames
}

/// Appends one message.
fn append(head: &WatchResponse, events: &[EncodedEvents], frames: &mut Vec<StreamFrame>) {
    let bytes = events.iter().map(|(events, _)| events.len()).sum();
    let mut begin = message_head(head, bytes);
    if bytes <= COPIED_BYTES_MAX {
        for (events, _) in events {
            begin.extend_from_slice(events);
        }
    }
    frames.push(StreamFrame::from(begin.freeze()));
    if bytes > COPIED_BYTES_MAX {
        let shared = events.iter().cloned();
        frames.extend(shared.map(|(events, counted)| StreamFrame::counted(events, counted)));
    }
}

/// Cuts events into parts of less than `bytes_max`, unless an event alone is larger.
fn parts<C: Clone>(encoded: &[(Bytes, C)], bytes_max: usize) -> Vec<Vec<(Bytes, C)>> {
    let mut parts = vec![Vec::new()];
    let mut bytes = 0;
    for (events, counted) in encoded {
        let slice = |range: Range<usize>| (events.slice(range), counted.clone());
        // What is of this part and not in it yet.
        let (mut begin, mut end) = (0, 0);
        for next in event_ends(events) {
            if bytes > 0 && bytes + (next - end) >= bytes_max {
                let part = parts.last_mut().expect("it begins with one");
                if begin < end {
                    part.push(slice(begin..end));
                }
                parts.push(Vec::new());
                (begin, bytes) = (end, 0);
            }
            bytes += next - end;
            end = next;
        }
        let part = parts.last_mut().expect("it begins with one");
        part.push(slice(begin..end));
    }
    parts
}

/// Where each of these events ends.
fn event_ends(events: &[u8]) -> impl Iterator<Item = usize> {
    let mut at = 0;
    std::iter::from_fn(move || {
        // One byte names the field.
        let rest = events.get(at + 1..)?;
        let length = prost::decode_length_delimiter(rest).expect("it was encoded here");
        at += 1 + prost::length_delimiter_len(length) + length;
        Some(at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Event, EventKind, KeyValue};

    /// As many events of equal size.
    fn events(count: usize) -> Bytes {
        let event = Event {
            kind: EventKind::Put,
            kv: KeyValue {
                key: Bytes::from_static(b"key"),
                value: vec![b'v'; 300].into(),
                ..KeyValue::default()
            },
            prev_kv: None,
        };
        encoded_events(&vec![event; count])
    }

    #[test]
    fn each_event_is_found_by_its_end() {
        let one = events(1).len();
        let ends: Vec<usize> = event_ends(&events(3)).collect();
        assert_eq!(ends, [one, 2 * one, 3 * one]);
        assert_eq!(event_ends(&[]).count(), 0);
    }

    #[test]
    fn parts_hold_every_event_once_and_are_smaller_than_asked() {
        let one = events(1).len();
        let encoded = [(events(3), 'a'), (events(4), 'b')];
        let whole: Vec<u8> = encoded
            .iter()
            .flat_map(|(bytes, _)| bytes.to_vec())
            .collect();
        for bytes_max in [1, one, one + 1, 2 * one, 2 * one + 1, 6 * one, 9 * one] {
            let parts = parts(&encoded, bytes_max);
            let glued: Vec<u8> = parts
                .iter()
                .flatten()
                .flat_map(|(bytes, _)| bytes.to_vec())
                .collect();
            assert_eq!(glued, whole, "{bytes_max}");
            for part in &parts {
                let bytes: usize = part.iter().map(|(bytes, _)| bytes.len()).sum();
                assert!(bytes < bytes_max || bytes == one, "{bytes} of {bytes_max}");
                assert!(bytes > 0);
            }
        }
        let of_both = parts(&encoded, 4 * one + 1);
        let pieces: Vec<Vec<(usize, char)>> = of_both
            .iter()
            .map(|part| {
                part.iter()
                    .map(|(bytes, of)| (bytes.len() / one, *of))
                    .collect()
            })
            .collect();
        assert_eq!(pieces, [vec![(3, 'a'), (1, 'b')], vec![(3, 'b')]]);
    }
}
