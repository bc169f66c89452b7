//! Watches.

use bytes::Bytes;
use prost::Message;

use super::{Keys, key_value};
use crate::api;
use crate::api::EventKind;
use crate::etcd::errors::{COMPACTED_REASON, EMPTY_WATCH};
use crate::etcd::proto;
use crate::etcd::proto::{EventType, WatchFilter};

/// A watch.
///
/// # Errors
/// The reason for which etcd cancels it as soon as it is created.
pub(crate) fn watch_request(
    create: &proto::WatchCreateRequest,
) -> Result<api::WatchRequest, &'static str> {
    let key = match create.key.is_empty() {
        // The first key that there can be.
        true => Bytes::from_static(b"\0"),
        false => create.key.clone(),
    };
    let Keys::Some(range) = Keys::of(&key, &create.range_end) else {
        return Err(EMPTY_WATCH);
    };
    if create.start_revision < 0 {
        return Err(COMPACTED_REASON);
    }
    let leaves_out = |filter: WatchFilter| create.filters.contains(&(filter as i32));
    Ok(api::WatchRequest {
        key,
        range,
        start_revision: create.start_revision,
        initial_state: false,
        prev_kv: create.prev_kv,
        no_put: leaves_out(WatchFilter::NoPut),
        no_delete: leaves_out(WatchFilter::NoDelete),
        progress_notify: create.progress_notify,
    })
}

/// Events as the last field of a message that begins with something else.
pub(crate) fn encoded_events(events: &[api::Event]) -> Bytes {
    let events = events.iter().cloned().map(event).collect();
    let message = proto::WatchResponse {
        events,
        ..proto::WatchResponse::default()
    };
    message.encode_to_vec().into()
}

fn event(event: api::Event) -> proto::Event {
    proto::Event {
        r#type: match event.kind {
            EventKind::Put => EventType::Put as i32,
            EventKind::Delete => EventType::Delete as i32,
        },
        kv: Some(key_value(event.kv)),
        prev_kv: event.prev_kv.map(key_value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::KeyRange;

    fn create(key: &'static str, range_end: &'static str) -> proto::WatchCreateRequest {
        proto::WatchCreateRequest {
            key: Bytes::from_static(key.as_bytes()),
            range_end: Bytes::from_static(range_end.as_bytes()),
            ..proto::WatchCreateRequest::default()
        }
    }

    #[test]
    fn no_key_is_the_first_one_and_ranges_end_as_in_etcd() {
        let all = watch_request(&create("", "\0")).unwrap();
        assert_eq!((&all.key[..], all.range), (&b"\0"[..], KeyRange::From));
        let one = watch_request(&create("", "")).unwrap();
        assert_eq!((&one.key[..], one.range), (&b"\0"[..], KeyRange::Single));
        for end in ["a", "b"] {
            assert_eq!(watch_request(&create("b", end)), Err(EMPTY_WATCH));
        }
        let negative = proto::WatchCreateRequest {
            start_revision: -1,
            ..create("a", "")
        };
        assert_eq!(watch_request(&negative), Err(COMPACTED_REASON));
    }

    #[test]
    fn filters_leave_out_what_they_name() {
        for (filters, no_put, no_delete) in [
            (vec![], false, false),
            (vec![0], true, false),
            (vec![1], false, true),
            (vec![0, 1, 7], true, true),
        ] {
            let asked = proto::WatchCreateRequest {
                filters,
                ..create("a", "")
            };
            let request = watch_request(&asked).unwrap();
            assert_eq!((request.no_put, request.no_delete), (no_put, no_delete));
        }
    }

    #[test]
    fn encoded_events_end_a_message_that_is_encoded_before_them() {
        let deleted = api::Event {
            kind: EventKind::Delete,
            kv: api::KeyValue {
                key: Bytes::from_static(b"k"),
                mod_revision: 9,
                ..api::KeyValue::default()
            },
            prev_kv: Some(api::KeyValue {
                value: Bytes::from_static(b"old"),
                ..api::KeyValue::default()
            }),
        };
        let head = proto::WatchResponse {
            watch_id: 5,
            ..proto::WatchResponse::default()
        };
        let mut bytes = head.encode_to_vec();
        bytes.extend_from_slice(&encoded_events(&[deleted.clone(), deleted]));
        let message = proto::WatchResponse::decode(&bytes[..]).unwrap();
        assert_eq!((message.watch_id, message.events.len()), (5, 2));
        let event = &message.events[1];
        assert_eq!(event.r#type, EventType::Delete as i32);
        assert_eq!(event.kv.as_ref().unwrap().mod_revision, 9);
        assert_eq!(&event.prev_kv.as_ref().unwrap().value[..], b"old");
    }
}
