//! Collections of a message that say how much they may hold.
//!
//! The length that stands in front of a collection is only a claim, and what is short on the wire
//! can be long in memory: an entry without a payload takes three bytes there and a hundred here, a
//! member one and twenty. So a frame of permitted length could still ask for thirty times that.
//! So each collection names the most that a correct peer sends, and decoding stops above it.

use std::fmt;
use std::marker::PhantomData;

use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

use crate::types::NodeId;

/// What counts against the bound of a collection.
pub(crate) trait Weigh {
    /// Its share of memory, in units of about a hundred bytes; payloads count for themselves.
    fn weight(&self) -> usize;
}

impl Weigh for NodeId {
    fn weight(&self) -> usize {
        1
    }
}

impl Weigh for (NodeId, Option<NodeId>) {
    fn weight(&self) -> usize {
        1
    }
}

/// A name of a member.
impl Weigh for String {
    fn weight(&self) -> usize {
        1
    }
}

/// What a shell keeps about a member: a payload.
impl Weigh for (NodeId, Bytes) {
    fn weight(&self) -> usize {
        1
    }
}

/// A collection that weighs at most `MOST`. Grows with what is there, not with what is claimed.
pub(crate) fn bounded<'de, const MOST: usize, D, C>(deserializer: D) -> Result<C, D::Error>
where
    D: Deserializer<'de>,
    C: Default + IntoIterator + Extend<C::Item>,
    C::Item: Deserialize<'de> + Weigh,
{
    deserializer.deserialize_seq(BoundedVisitor::<MOST, C>(PhantomData))
}

struct BoundedVisitor<const MOST: usize, C>(PhantomData<C>);

impl<'de, const MOST: usize, C> Visitor<'de> for BoundedVisitor<MOST, C>
where
    C: Default + IntoIterator + Extend<C::Item>,
    C::Item: Deserialize<'de> + Weigh,
{
    type Value = C;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a collection of weight {MOST} at most")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<C, A::Error> {
        let mut collected = C::default();
        let mut weight = 0;
        while let Some(element) = elements.next_element::<C::Item>()? {
            weight += element.weight();
            if weight > MOST {
                return Err(A::Error::invalid_length(weight, &self));
            }
            collected.extend([element]);
        }
        Ok(collected)
    }
}
