//! Decoding transactions from untrusted bytes.
//!
//! A transaction may contain transactions, so a few bytes per level could cause a recursion deeper
//! than any stack, and a few bytes per operation fifty times that in memory. Both are refused while
//! decoding: the depth and the number of parts of one transaction are bounded. Replies are decoded
//! by the same rules, because a reply mirrors its request.
//!
//! The encoding is that of a derived implementation; `Serialize` is derived.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, EnumAccess, Error, SeqAccess, VariantAccess,
    Visitor,
};

use super::txn::{
    Compare, TXN_DEPTH_MAX, TXN_PARTS_MAX, TxnOp, TxnOpResponse, TxnRequest, TxnResponse,
};

// What the bound was chosen for: a request of nothing but parts takes about a megabyte.
const _: () = assert!(size_of::<TxnOp>() <= 256 && size_of::<Compare>() <= 256);

/// The remaining depth and number of parts.
#[derive(Clone, Copy)]
struct Room<'a> {
    depth: usize,
    parts: &'a Cell<usize>,
}

impl Room<'_> {
    fn one_level_down<E: Error>(self) -> Result<Self, E> {
        match self.depth.checked_sub(1) {
            Some(depth) => Ok(Self { depth, ..self }),
            None => Err(E::custom("transactions are nested too deeply")),
        }
    }

    fn take_part<E: Error>(self) -> Result<(), E> {
        match self.parts.get().checked_sub(1) {
            Some(parts) => {
                self.parts.set(parts);
                Ok(())
            }
            None => Err(E::custom("a transaction has too many parts")),
        }
    }
}

/// A type decoded within these bounds.
trait Within: Sized {
    fn read<'de, D: Deserializer<'de>>(deserializer: D, room: Room<'_>) -> Result<Self, D::Error>;
}

/// Reads a `T` within a room.
struct Seed<'a, T> {
    room: Room<'a>,
    what: PhantomData<T>,
}

impl<'a, T> Seed<'a, T> {
    fn new(room: Room<'a>) -> Self {
        Self {
            room,
            what: PhantomData,
        }
    }
}

impl<'de, T: Within> DeserializeSeed<'de> for Seed<'_, T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        T::read(deserializer, self.room)
    }
}

impl Within for bool {
    fn read<'de, D: Deserializer<'de>>(deserializer: D, _: Room<'_>) -> Result<Self, D::Error> {
        Self::deserialize(deserializer)
    }
}

impl Within for Compare {
    fn read<'de, D: Deserializer<'de>>(deserializer: D, _: Room<'_>) -> Result<Self, D::Error> {
        Self::deserialize(deserializer)
    }
}

/// A list grows with its contents, not with the claimed length.
impl<T: Within> Within for Vec<T> {
    fn read<'de, D: Deserializer<'de>>(deserializer: D, room: Room<'_>) -> Result<Self, D::Error> {
        struct List<'a, T>(Seed<'a, T>);

        impl<'de, T: Within> Visitor<'de> for List<'_, T> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the parts of a transaction")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Vec<T>, A::Error> {
                let room = self.0.room;
                let mut list = Vec::new();
                while let Some(part) = parts.next_element_seed(Seed::new(room))? {
                    room.take_part()?;
                    list.push(part);
                }
                Ok(list)
            }
        }
        deserializer.deserialize_seq(List(Seed::new(room)))
    }
}

/// Fields one after the other, each read within the same room.
fn next<'de, T: Within, A: SeqAccess<'de>>(fields: &mut A, room: Room<'_>) -> Result<T, A::Error> {
    fields
        .next_element_seed(Seed::new(room))?
        .ok_or_else(|| A::Error::custom("the transaction is incomplete"))
}

/// Reads a struct by its fields, in their order.
macro_rules! by_fields {
    ($name:ident { $($field:ident),+ }) => {
        impl Within for $name {
            fn read<'de, D: Deserializer<'de>>(
                deserializer: D,
                room: Room<'_>,
            ) -> Result<Self, D::Error> {
                struct Fields<'a>(Room<'a>);

                impl<'de> Visitor<'de> for Fields<'_> {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str(stringify!($name))
                    }

                    fn visit_seq<A: SeqAccess<'de>>(self, mut fields: A) -> Result<$name, A::Error> {
                        // Braces evaluate their fields in the order written.
                        Ok($name { $($field: next(&mut fields, self.0)?),+ })
                    }
                }
                const FIELDS: &[&str] = &[$(stringify!($field)),+];
                deserializer.deserialize_struct(stringify!($name), FIELDS, Fields(room))
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let parts = Cell::new(TXN_PARTS_MAX);
                let room = Room {
                    depth: TXN_DEPTH_MAX - 1,
                    parts: &parts,
                };
                Self::read(deserializer, room)
            }
        }
    };
}

by_fields!(TxnRequest {
    compare,
    success,
    failure
});
by_fields!(TxnResponse {
    succeeded,
    responses
});

/// The variants of [`TxnOp`] and of [`TxnOpResponse`], which are the same.
#[derive(serde::Deserialize)]
#[serde(variant_identifier)]
enum Variant {
    Range,
    Put,
    DeleteRange,
    Txn,
}

macro_rules! by_variants {
    ($name:ident) => {
        impl Within for $name {
            fn read<'de, D: Deserializer<'de>>(
                deserializer: D,
                room: Room<'_>,
            ) -> Result<Self, D::Error> {
                struct Variants<'a>(Room<'a>);

                impl<'de> Visitor<'de> for Variants<'_> {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str(stringify!($name))
                    }

                    fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<$name, A::Error> {
                        let (variant, content) = access.variant()?;
                        Ok(match variant {
                            Variant::Range => $name::Range(content.newtype_variant()?),
                            Variant::Put => $name::Put(content.newtype_variant()?),
                            Variant::DeleteRange => $name::DeleteRange(content.newtype_variant()?),
                            Variant::Txn => {
                                let room = self.0.one_level_down()?;
                                $name::Txn(content.newtype_variant_seed(Seed::new(room))?)
                            }
                        })
                    }
                }
                const VARIANTS: &[&str] = &["Range", "Put", "DeleteRange", "Txn"];
                deserializer.deserialize_enum(stringify!($name), VARIANTS, Variants(room))
            }
        }
    };
}

by_variants!(TxnOp);
by_variants!(TxnOpResponse);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Request, ResponseBody};

    fn nested(depth: usize) -> TxnRequest {
        let mut txn = TxnRequest::new();
        for _ in 1..depth {
            txn = TxnRequest::new().or_else([TxnOp::Txn(txn)]);
        }
        txn
    }

    fn nested_response(depth: usize) -> TxnResponse {
        let mut txn = TxnResponse::default();
        for _ in 1..depth {
            txn = TxnResponse {
                succeeded: true,
                responses: vec![TxnOpResponse::Txn(txn)],
            };
        }
        txn
    }

    #[test]
    fn transactions_read_as_they_were_written_down_to_the_last_depth() {
        for depth in 1..=TXN_DEPTH_MAX + 2 {
            let request = Request::Txn(nested(depth));
            let bytes = postcard::to_stdvec(&request).unwrap();
            let read = postcard::from_bytes::<Request>(&bytes).ok();
            assert_eq!(read, (depth <= TXN_DEPTH_MAX).then_some(request), "{depth}");
            let reply = ResponseBody::Txn(nested_response(depth));
            let bytes = postcard::to_stdvec(&reply).unwrap();
            let read = postcard::from_bytes::<ResponseBody>(&bytes).ok();
            assert_eq!(read, (depth <= TXN_DEPTH_MAX).then_some(reply), "{depth}");
        }
    }

    /// The byte that says which kind of message follows.
    fn opening(message: &impl serde::Serialize) -> Vec<u8> {
        postcard::to_stdvec(message).unwrap()[..1].to_vec()
    }

    #[test]
    fn the_deepest_nesting_that_a_frame_can_hold_is_refused() {
        // A transaction; then no comparison, one operation, and that is a transaction; and so on.
        let mut request = opening(&Request::Txn(nested(1)));
        let mut reply = opening(&ResponseBody::Txn(nested_response(1)));
        for _ in 0..400_000 {
            request.extend_from_slice(&[0, 1, 3]);
            reply.extend_from_slice(&[1, 1, 3]);
        }
        assert!(postcard::from_bytes::<Request>(&request).is_err());
        assert!(postcard::from_bytes::<ResponseBody>(&reply).is_err());
    }

    #[test]
    fn the_parts_of_all_levels_count_together() {
        let flat = |count| TxnRequest::new().and_then(vec![TxnOp::delete("k"); count]);
        let split = |count| {
            let half = vec![TxnOp::delete("k"); count / 2 - 1];
            let inner = TxnRequest::new()
                .when(vec![
                    Compare::version("k", crate::api::CompareOp::Equal, 1);
                    count - count / 2
                ])
                .or_else(half);
            TxnRequest::new().and_then([TxnOp::Txn(inner)])
        };
        for (count, allowed) in [(TXN_PARTS_MAX, true), (TXN_PARTS_MAX + 1, false)] {
            for txn in [flat(count), split(count)] {
                let bytes = postcard::to_stdvec(&txn).unwrap();
                assert_eq!(postcard::from_bytes::<TxnRequest>(&bytes).is_ok(), allowed);
            }
            let response = TxnResponse {
                succeeded: false,
                responses: vec![TxnOpResponse::Put(crate::api::PutResponse::default()); count],
            };
            let bytes = postcard::to_stdvec(&response).unwrap();
            assert_eq!(postcard::from_bytes::<TxnResponse>(&bytes).is_ok(), allowed);
        }
    }

    #[test]
    fn a_length_that_is_only_claimed_costs_nothing() {
        // Four thousand million operations, and none of them there.
        let mut bytes = opening(&Request::Txn(nested(1)));
        bytes.extend_from_slice(&[0, 0xff, 0xff, 0xff, 0xff, 0x0f]);
        assert!(postcard::from_bytes::<Request>(&bytes).is_err());
    }

    #[test]
    fn what_is_no_transaction_does_not_read() {
        let whole = postcard::to_stdvec(&nested(3)).unwrap();
        for end in 0..whole.len() {
            assert!(postcard::from_bytes::<TxnRequest>(&whole[..end]).is_err());
        }
        assert!(
            postcard::from_bytes::<TxnRequest>(&[0, 1, 4]).is_err(),
            "no such operation"
        );
    }
}
