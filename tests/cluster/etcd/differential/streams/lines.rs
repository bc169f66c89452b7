//! Lines of the gateway about watches.

use bytes::Bytes;
use serde_json::Value;

use super::super::super::kv::{KeyValue, ResponseHeader};
use super::super::super::messages::{Event, EventType, WatchResponse};

/// The text of a line before its events, and that of each of them.
pub(super) fn events_of(line: &str) -> (String, Vec<String>) {
    let Some((head, list)) = line.split_once("\"events\":[") else {
        return (line.to_owned(), Vec::new());
    };
    let mut events = Vec::new();
    let (mut depth, mut begin) = (0, 0);
    for (at, letter) in list.char_indices() {
        match letter {
            '{' => {
                begin = if depth == 0 { at } else { begin };
                depth += 1;
            }
            '}' if depth > 0 => {
                depth -= 1;
                if depth == 0 {
                    events.push(list[begin..=at].to_owned());
                }
            }
            ']' if depth == 0 => break,
            _ => {}
        }
    }
    (head.to_owned(), events)
}

/// What a line says; `None` if it is how the watch ended.
pub(super) fn read(line: &str) -> Option<WatchResponse> {
    let parsed: Value = serde_json::from_str(line).unwrap();
    let result = parsed.get("result")?;
    let flag = |name: &str| result[name].as_bool().unwrap_or_default();
    let events = result["events"].as_array();
    let text = |name: &str| result[name].as_str().unwrap_or_default().to_owned();
    Some(WatchResponse {
        header: Some(ResponseHeader {
            revision: number(&result["header"], "revision"),
            ..ResponseHeader::default()
        }),
        watch_id: number(result, "watch_id"),
        created: flag("created"),
        canceled: flag("canceled"),
        compact_revision: number(result, "compact_revision"),
        cancel_reason: text("cancel_reason"),
        fragment: flag("fragment"),
        events: events.into_iter().flatten().map(event).collect(),
    })
}

fn event(of: &Value) -> Event {
    let kind = match of["type"].as_str() {
        Some("DELETE") => EventType::Delete,
        _ => EventType::Put,
    };
    Event {
        r#type: kind as i32,
        kv: of.get("kv").map(key_value),
        prev_kv: of.get("prev_kv").map(key_value),
    }
}

fn key_value(of: &Value) -> KeyValue {
    KeyValue {
        key: bytes(of, "key"),
        create_revision: number(of, "create_revision"),
        mod_revision: number(of, "mod_revision"),
        version: number(of, "version"),
        value: bytes(of, "value"),
        lease: number(of, "lease"),
    }
}

fn number(of: &Value, name: &str) -> i64 {
    let text = of[name].as_str();
    text.map_or(0, |text| text.parse().unwrap())
}

fn bytes(of: &Value, name: &str) -> Bytes {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let text = of[name].as_str().unwrap_or_default();
    let (mut bytes, mut held, mut bits) = (Vec::new(), 0_u32, 0);
    for letter in text.bytes().filter(|letter| *letter != b'=') {
        let value = ALPHABET.iter().position(|it| *it == letter).unwrap();
        held = held << 6 | u32::try_from(value).unwrap();
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(held >> bits & 255).unwrap());
        }
    }
    bytes.into()
}
