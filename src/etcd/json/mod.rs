//! The JSON form of etcd's messages, as the gateway of etcd reads and writes it.
//!
//! It is a translation and no more: a JSON object becomes the encoding of the message that it means
//! ([`to_protobuf`]), and the encoding of an answer becomes JSON ([`Writer`]). What the messages mean is
//! decided once, for gRPC. Neither builds a tree of values: memory is bounded by the two texts.
//!
//! [`messages`] has the fields of all messages, and [`methods`] which path takes and gives which.
//! Out: names as in the `.proto` files, by field number, without defaults; 64-bit numbers as strings,
//! enums by name, bytes in padded base64. In: these names or lowerCamel ones, numbers or strings,
//! enums by name or number, base64 of either alphabet, padded or not; `null` is absent, and a field that
//! is not known is passed over.

mod messages;
mod methods;
mod read;
mod scan;
mod schema;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use methods::{Messages, Method};
pub(crate) use read::to_protobuf;
pub(crate) use scan::Scanner;
pub(crate) use write::{Writer, quoted};
