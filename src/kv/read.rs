//! Reads of the current state.

use bytes::Bytes;

use crate::api::KeyRange;
use crate::api::KeyValue;
use crate::api::Limits;
use crate::api::RangeRequest;
use crate::api::RangeResponse;

use super::keys;
use super::record;
use super::store::Space;
use super::store::View;

/// The keys that `request` asks for, as `view` has them.
///
/// The reply holds as many keys as `request.limit` and `limits.reply_bytes_max` allow, but always
/// the first one, so that a caller who goes on after the last key gets to the end. `count` is exact
/// in any case: what does not fit is still counted. That takes a walk over all keys of the range
/// (no memory, some tenths of a microsecond each on disk), so ranges are not for threads that others
/// wait for.
///
/// # Errors
/// The store's own; fatal for whoever reads it.
pub fn range<V: View>(
    view: &V,
    request: &RangeRequest,
    limits: &Limits,
) -> Result<RangeResponse, V::Error> {
    let mut response = RangeResponse::default();
    if request.range == KeyRange::Single {
        if let Some(record) = view.get(Space::Current, &request.key)? {
            response.count = 1;
            if !request.count_only {
                let kv = record::key_value(request.key.clone(), record)?;
                response.kvs.push(trim(kv, request));
            }
        }
        return Ok(response);
    }

    let span = keys::span(&request.key, &request.range);
    if request.count_only {
        response.count = view.count(Space::Current, &span)?;
        return Ok(response);
    }

    let mut room = Room::new(request, limits);
    let mut pairs = view.range(Space::Current, &span);
    for pair in &mut pairs {
        let (key, record) = pair?;
        response.count += 1;
        let kv = trim(record::key_value(key, record)?, request);
        if !room.take(&kv) {
            response.more = true;
            break;
        }
        response.kvs.push(kv);
    }
    // The one that did not fit is counted, and the walk goes on behind it.
    for pair in pairs {
        pair?;
        response.count += 1;
    }
    Ok(response)
}

fn trim(mut kv: KeyValue, request: &RangeRequest) -> KeyValue {
    if request.keys_only {
        kv.value = Bytes::new();
    }
    kv
}

/// What may still go into a reply.
struct Room {
    keys: u64,
    bytes: usize,
    is_first: bool,
}

/// The most that a key's numbers and the lengths of its two parts take in an encoded reply.
const OVERHEAD: usize = 4 * 10 + 2 * 5;

impl Room {
    fn new(request: &RangeRequest, limits: &Limits) -> Self {
        let keys = match request.limit {
            0 => u64::MAX,
            limit => limit,
        };
        Self {
            keys,
            // Header, count and the frame around the reply.
            bytes: limits.reply_bytes_max.saturating_sub(512),
            is_first: true,
        }
    }

    /// Whether `kv` still fits; if so, its share is taken.
    fn take(&mut self, kv: &KeyValue) -> bool {
        let bytes = kv.key.len() + kv.value.len() + OVERHEAD;
        let fits = bytes <= self.bytes || self.is_first;
        if self.keys == 0 || !fits {
            return false;
        }
        self.is_first = false;
        self.keys -= 1;
        self.bytes = self.bytes.saturating_sub(bytes);
        true
    }
}
