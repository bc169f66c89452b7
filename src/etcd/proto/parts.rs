//! How many parts an encoded transaction has, counted before it is decoded: a message of 2 MiB can
//! hold a million empty operations, and each would take a hundred times its size in memory.

use super::fields::{FieldValue, Fields};

/// The field of a transaction with its comparisons, and the two with its operations.
const COMPARE: u64 = 1;
const SUCCESS: u64 = 2;
const FAILURE: u64 = 3;
/// The field of an operation that is a transaction.
const NESTED: u64 = 4;

/// Counts the comparisons and operations of an encoded transaction and of those nested in it, and stops
/// beyond `parts_max`, or at `depth_max` levels. What is not well formed is left to the decoder to refuse.
pub(crate) fn txn_parts(encoded: &[u8], parts_max: usize, depth_max: usize) -> usize {
    let mut parts = 0;
    // What is still to be looked at: a transaction, and how deep it lies.
    let mut open = vec![(encoded, 1)];
    while let Some((txn, depth)) = open.pop() {
        for (field, body) in bodies(txn) {
            if !matches!(field, COMPARE | SUCCESS | FAILURE) {
                continue;
            }
            parts += 1;
            if parts > parts_max {
                return parts;
            }
            if field == COMPARE || depth == depth_max {
                continue;
            }
            let nested = bodies(body).filter(|(field, _)| *field == NESTED);
            open.extend(nested.map(|(_, txn)| (txn, depth + 1)));
        }
    }
    parts
}

/// The fields of a message that are messages, texts or bytes, with their content.
fn bodies(message: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    Fields(message).filter_map(|(field, value)| match value {
        FieldValue::Bytes(body) => Some((field, body)),
        FieldValue::Number(_) | FieldValue::Fixed => None,
    })
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::etcd::proto::{Compare, RequestOp, RequestUnion, TxnRequest};

    #[test]
    fn parts_are_counted_through_all_levels_and_no_further_than_asked() {
        let op = |txn| RequestOp {
            request: Some(RequestUnion::RequestTxn(txn)),
        };
        let leaf = TxnRequest {
            compare: vec![Compare::default(); 3],
            success: vec![RequestOp::default(); 2],
            failure: vec![RequestOp::default()],
        };
        let txn = TxnRequest {
            success: vec![op(leaf.clone())],
            failure: vec![op(leaf)],
            ..TxnRequest::default()
        };
        let encoded = txn.encode_to_vec();
        assert_eq!(txn_parts(&encoded, 100, 8), 14);
        assert_eq!(txn_parts(&encoded, 100, 1), 2);
        assert_eq!(txn_parts(&encoded, 5, 8), 6);
    }

    #[test]
    fn bytes_that_are_no_message_are_counted_as_far_as_they_go() {
        for encoded in [&[0x0a][..], &[0x0a, 0xff], &[0xff; 20], &[0x0b, 0, 0]] {
            assert_eq!(txn_parts(encoded, 10, 8), 0);
        }
    }
}
