//! Requests in JSON, as the gateway takes them.

use crate::etcd::json::{Method, Scanner, Writer};

/// The encoding of the request of the method of gRPC at `path` that `text` means; `None` if there is no such
/// method.
///
/// # Errors
/// What was found in it instead, and where.
pub fn from_json(path: &str, text: &[u8]) -> Option<Result<Vec<u8>, String>> {
    let method = Method::of_grpc(path)?;
    Some(crate::etcd::json::to_protobuf(text, method.request))
}

/// A request of the method at `path` in JSON, of which `encoded` is the encoding; `None` if there is no such
/// method, or that is none.
pub fn to_json(path: &str, encoded: &[u8]) -> Option<String> {
    let mut text = String::new();
    let mut writer = Writer::begin(Method::of_grpc(path)?.request, &mut text);
    let read = writer.add(encoded, &mut text);
    writer.end(&mut text);
    (read == encoded.len()).then_some(text)
}

/// The objects of a stream that arrives in pieces of `piece_bytes`, and why no more are taken, if that is not
/// that the stream ends.
pub fn objects(stream: &[u8], piece_bytes: usize) -> (Vec<Vec<u8>>, Option<String>) {
    let mut scanner = Scanner::default();
    let mut objects = Vec::new();
    let mut read = Vec::new();
    for piece in stream.chunks(piece_bytes.max(1)) {
        read.extend_from_slice(piece);
        loop {
            match scanner.end(&read) {
                Err(found) => return (objects, Some(found)),
                Ok(None) => break,
                Ok(Some(end)) => objects.push(read.drain(..end).collect()),
            }
        }
    }
    (objects, None)
}
