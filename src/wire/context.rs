//! What a request says of itself beside what it asks.
//!
//! On the wire it is a list of entries, each a tag, a length and a value: so a newer client may say more,
//! and a reader passes over what it does not know.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

use crate::api::{Priority, TraceParent};
use crate::wire::codec::{CONTEXT_BYTES_MAX, Frame, Kind};

/// Tags of entries. The numbers are for ever.
const TRACE_PARENT: u8 = 1;
const PRIORITY: u8 = 2;

/// Numbers of priorities, for ever. A reader takes one that it does not know for the usual one, which has none.
const LOW: u8 = 1;

/// The bytes of a [`TraceParent`]: trace, span, flags.
const TRACE_PARENT_BYTES: usize = 16 + 8 + 1;
/// Room for all entries that are written.
const WRITTEN_BYTES_MAX: usize = 2 + TRACE_PARENT_BYTES + 2 + 1;

/// What goes with a request. A request that says nothing of itself is sent without one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestContext {
    /// The trace that it is a part of.
    pub trace_parent: Option<TraceParent>,
    /// How much it matters.
    pub priority: Priority,
}

impl RequestContext {
    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What the request in `frame` says of itself, and where the request begins in the frame's body. `None` if the
    /// frame has none, or one that does not read.
    pub(super) fn before(frame: &Frame) -> Option<(Self, usize)> {
        if frame.kind != Kind::ContextCall {
            return None;
        }
        let (context, request) = postcard::take_from_bytes(&frame.body).ok()?;
        Some((context, frame.body.len() - request.len()))
    }

    /// What the request in `frame` says of itself; nothing, if that does not read.
    pub fn of(frame: &Frame) -> Self {
        Self::before(frame).map_or_else(Self::default, |(context, _)| context)
    }

    /// Takes in one entry. One with an unknown tag says nothing.
    ///
    /// # Errors
    /// Its value is none of its tag.
    fn read(&mut self, tag: u8, value: &[u8]) -> Result<(), &'static str> {
        match tag {
            TRACE_PARENT => self.trace_parent = Some(trace_parent(value).ok_or("no traceparent")?),
            PRIORITY => {
                let [number] = value else {
                    return Err("no priority");
                };
                self.priority = match *number {
                    LOW => Priority::Low,
                    _ => Priority::Normal,
                };
            }
            _ => {}
        }
        Ok(())
    }
}

impl Serialize for RequestContext {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut entries = Entries::default();
        if let Some(parent) = &self.trace_parent {
            let (trace_id, span_id) = (parent.trace_id(), parent.span_id());
            entries.push(TRACE_PARENT, &[&trace_id, &span_id, &[parent.flags()]]);
        }
        match self.priority {
            Priority::Normal => {}
            Priority::Low => entries.push(PRIORITY, &[&[LOW]]),
        }
        serializer.serialize_bytes(&entries.bytes[..entries.length])
    }
}

/// Entries that are written.
#[derive(Debug, Default)]
struct Entries {
    bytes: [u8; WRITTEN_BYTES_MAX],
    length: usize,
}

impl Entries {
    fn push(&mut self, tag: u8, value: &[&[u8]]) {
        let length: usize = value.iter().map(|part| part.len()).sum();
        let length = u8::try_from(length).expect("values are short");
        for part in [&[&[tag, length][..]], value].concat() {
            let end = self.length + part.len();
            self.bytes[self.length..end].copy_from_slice(part);
            self.length = end;
        }
    }
}

impl<'de> Deserialize<'de> for RequestContext {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_bytes(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl Visitor<'_> for EntriesVisitor {
    type Value = RequestContext;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "entries of {CONTEXT_BYTES_MAX} bytes at most")
    }

    fn visit_bytes<E: serde::de::Error>(self, mut rest: &[u8]) -> Result<RequestContext, E> {
        if rest.len() > CONTEXT_BYTES_MAX {
            return Err(E::invalid_length(rest.len(), &self));
        }
        let mut context = RequestContext::default();
        while let [tag, length, values @ ..] = rest {
            let split = values.split_at_checked(usize::from(*length));
            let (value, behind) = split.ok_or_else(|| E::custom("an entry is cut off"))?;
            context.read(*tag, value).map_err(E::custom)?;
            rest = behind;
        }
        match rest {
            [] => Ok(context),
            _ => Err(E::custom("an entry is cut off")),
        }
    }
}

fn trace_parent(value: &[u8]) -> Option<TraceParent> {
    let (trace_id, rest) = value.split_first_chunk()?;
    let (span_id, flags) = rest.split_first_chunk()?;
    let [flags] = flags else {
        return None;
    };
    TraceParent::new(*trace_id, *span_id, *flags).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(entries: &[u8]) -> Result<RequestContext, postcard::Error> {
        let encoded = postcard::to_stdvec(&bytes::Bytes::copy_from_slice(entries)).unwrap();
        postcard::from_bytes(&encoded)
    }

    fn parent() -> TraceParent {
        TraceParent::new([7; 16], [8; 8], 1).unwrap()
    }

    fn entry(tag: u8, value: &[u8]) -> Vec<u8> {
        [&[tag, u8::try_from(value.len()).unwrap()], value].concat()
    }

    fn parent_entry() -> Vec<u8> {
        entry(1, &[[7; 16].as_slice(), &[8; 8], &[1]].concat())
    }

    #[test]
    fn what_a_newer_client_says_beside_is_passed_over() {
        let context = RequestContext {
            trace_parent: Some(parent()),
            priority: Priority::Low,
        };
        let low = entry(2, &[1]);
        let newer = [entry(200, b"news"), parent_entry(), entry(0, b""), low].concat();
        assert_eq!(read(&newer).unwrap(), context);
        assert!(read(&entry(200, b"news")).unwrap().is_empty());
        let newer = read(&entry(2, &[77])).unwrap();
        assert_eq!(newer.priority, Priority::Normal, "a priority to come");
        assert!(read(b"").unwrap().is_empty());
    }

    #[test]
    fn entries_that_are_cut_off_or_too_many_or_say_nothing_sensible_are_refused() {
        let whole = parent_entry();
        for end in 1..whole.len() {
            assert!(read(&whole[..end]).is_err(), "{end}");
        }
        let zero = entry(1, &[0; TRACE_PARENT_BYTES]);
        assert!(read(&zero).is_err(), "ids are not zero");
        let long = entry(1, &[7; TRACE_PARENT_BYTES + 1]);
        assert!(read(&long).is_err(), "a value has one length");
        assert!(read(&entry(2, b"")).is_err() && read(&entry(2, &[1, 1])).is_err());
        let most = entry(200, &[0; CONTEXT_BYTES_MAX - 2]);
        assert!(read(&most).is_ok());
        assert!(read(&[most, entry(201, b"")].concat()).is_err());
    }

    proptest! {
        #[test]
        fn random_entries_never_panic_and_what_they_say_is_said_again(
            entries in prop::collection::vec(any::<u8>(), 0..300)
        ) {
            if let Ok(context) = read(&entries) {
                let again = postcard::to_stdvec(&context).unwrap();
                prop_assert_eq!(postcard::from_bytes::<RequestContext>(&again), Ok(context));
            }
        }
    }
}
