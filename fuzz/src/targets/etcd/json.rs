//! The requests of programs without gRPC.

use bytes::Bytes;
use leasehold::etcd::doors;

use super::METHODS;
use crate::targets::draw::Draw;
use crate::targets::meter;
use crate::targets::trace::say;

/// One byte for the method, one for how long the pieces are in which a stream arrives, then the text.
pub fn etcd_json(data: &[u8]) {
    let mut draw = Draw::new(data);
    let method = draw.of(METHODS);
    let piece_bytes = usize::from(draw.byte()) + 1;
    let text = draw.rest();
    is_translated(method, text);
    let whole = doors::objects(text, usize::MAX);
    let (cut, peak) = meter::peak(|| doors::objects(text, piece_bytes));
    assert!(peak <= fair(text), "{peak} bytes of memory");
    assert_eq!(whole, cut, "where a stream is cut changes nothing");
    let (objects, _) = whole;
    assert!(text.starts_with(&objects.concat()), "nothing is left out");
    for object in objects {
        is_translated(method, &object);
    }
}

/// What a text of this length may take: what it means is not longer, and grows by doubling. An object takes
/// what it begins with; so does a list of short ones.
fn fair(text: &[u8]) -> usize {
    16 * text.len() + (64 << 10)
}

/// What is understood is written as a text that means the same.
fn is_translated(method: &str, text: &[u8]) {
    let (encoded, peak) = meter::peak(|| doors::from_json(method, text));
    assert!(
        peak <= fair(text),
        "{peak} bytes of memory for a text of {}",
        text.len()
    );
    let encoded = match encoded {
        // The gateway does not have it.
        None => return,
        Some(Ok(encoded)) => encoded,
        Some(Err(found)) => {
            say(format_args!("refused: {found}"));
            return assert!(!found.is_empty());
        }
    };
    let written = doors::to_json(method, &encoded).expect("what we encoded is well formed");
    say(format_args!("{written}"));
    let value: Result<serde_json::Value, _> = serde_json::from_str(&written);
    assert!(value.is_ok_and(|value| value.is_object()), "{written}");
    let again = doors::from_json(method, written.as_bytes());
    assert_eq!(again, Some(Ok(encoded.clone())), "{written}");
    // What etcd itself refuses is refused before it is decoded.
    if let Err(why) = doors::request(method, Bytes::from(encoded)) {
        assert!(
            why.starts_with("etcdserver: "),
            "what we encode we can decode: {why}"
        );
    }
}
