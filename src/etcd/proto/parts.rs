//! How many parts an encoded transaction has, counted before it is decoded: a message of 2 MiB can
//! hold a million empty operations, and each would take a hundred times its size in memory.

use super::fields::{FieldValue, Fields};

/// The field of a transaction with its comparisons, and the two with its operations.
const COMPARE: u64 = 1;
const SUCCESS: u64 = 2;
const FAILURE: u64 = 3;
/// The field of an operation that is a transaction.
const NESTED: u64 = 4;

/// Counts the comparisons and operations of an encoded transaction and of those nested in it, however deep,
/// and stops beyond `parts_max`. What is not well formed is left to the decoder to refuse, which reads no
/// further either.
pub(crate) fn txn_parts(encoded: &[u8], parts_max: usize) -> usize {
    let mut parts = 0;
    // Transactions that are still to be looked at.
    let mut open = vec![encoded];
    while let Some(txn) = open.pop() {
        for (field, body) in bodies(txn) {
            if !matches!(field, COMPARE | SUCCESS | FAILURE) {
                continue;
            }
            parts += 1;
            if parts > parts_max {
                return parts;
            }
            if field == COMPARE {
                continue;
            }
            let nested = bodies(body).filter(|(field, _)| *field == NESTED);
            open.extend(nested.map(|(_, txn)| txn));
        }
    }
    parts
}

/// The fields of a message that are messages, texts or bytes, with their content.
fn bodies(message: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    Fields(message).filter_map(|(field, value)| match value {
        FieldValue::Bytes(body) => Some((field, body)),
        FieldValue::Number(_) | FieldValue::Other => None,
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
        assert_eq!(txn_parts(&encoded, 100), 14);
        assert_eq!(txn_parts(&encoded, 5), 6);
    }

    /// What the decoder passes over hides nothing behind it.
    #[test]
    fn parts_behind_a_group_are_counted() {
        let group = [0x7b, 0x0d, 1, 2, 3, 4, 0x83, 1, 0x84, 1, 0x08, 1, 0x7c];
        let encoded = [&group[..], &[0x12, 0].repeat(7)].concat();
        assert_eq!(TxnRequest::decode(&encoded[..]).unwrap().success.len(), 7);
        assert_eq!(txn_parts(&encoded, 100), 7);
    }

    #[test]
    fn parts_are_counted_however_deep_they_lie() {
        let wide = vec![RequestOp::default(); 30];
        let mut txn = TxnRequest {
            success: wide,
            ..TxnRequest::default()
        };
        for _ in 0..20 {
            let nested = RequestUnion::RequestTxn(txn);
            txn = TxnRequest {
                failure: vec![RequestOp {
                    request: Some(nested),
                }],
                ..TxnRequest::default()
            };
        }
        assert_eq!(txn_parts(&txn.encode_to_vec(), 100), 50);
    }

    #[test]
    fn bytes_that_are_no_message_are_counted_as_far_as_they_go() {
        for encoded in [&[0x0a][..], &[0x0a, 0xff], &[0xff; 20], &[0x0b, 0, 0]] {
            assert_eq!(txn_parts(encoded, 10), 0);
        }
    }
}
