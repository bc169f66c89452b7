//! Paged range reads: how a range larger than a reply is streamed at one revision.
//!
//! No state is kept between pages. Each page is a separate read that continues after the previous
//! page, at the revision of the first one; so a slow reader blocks nothing and pins no resources,
//! the next page may come from another node, and a node needs memory only for the pages in
//! progress. The number of keys examined per page is bounded, too: if the filters admit few keys, a
//! page ends with few or none and names where to continue.

use crate::api::{Error, Limits, RangePage, RangeRequest};

use super::read::weight;
use super::scan::{Scan, ScanBudget};
use super::store::View;

/// The most keys that one page examines.
const PAGE_KEYS_MAX: usize = 16 << 10;
/// The most bytes of keys and records that one page examines, not counting the last step.
const PAGE_LOOK_BYTES_MAX: usize = 8 << 20;
/// Keys between two looks at how full the page is.
const STEP_KEYS: usize = 128;
/// What the frame of a reply and the page's own numbers take, at most.
const FRAME_BYTES: usize = 512;

/// The first page of what `request` asks for. Ignores its sort and `count`.
///
/// # Errors
/// The outer error is the store's and is fatal for the reader. Inside, the revision is compacted or
/// does not exist yet.
pub fn page<V: View>(
    view: &V,
    request: &RangeRequest,
    limits: &Limits,
) -> Result<Result<RangePage, Error>, V::Error> {
    let mut scan = match Scan::begin(view, request)? {
        Ok(scan) => scan,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let mut page = RangePage {
        revision: scan.revision(),
        ..RangePage::default()
    };
    // The key where the next page begins is in the reply, too.
    let beside = limits.key_bytes_max.saturating_add(FRAME_BYTES);
    let room = limits.reply_bytes_max.saturating_sub(beside);
    let (mut bytes, mut keys, mut looked) = (0, 0, 0);
    loop {
        let budget = ScanBudget {
            keys: STEP_KEYS,
            bytes: room.saturating_sub(bytes),
        };
        let chunk = match scan.step(view, &budget)? {
            Ok(chunk) => chunk,
            Err(refusal) => return Ok(Err(refusal)),
        };
        keys += chunk.keys;
        looked += chunk.bytes;
        for kv in chunk.kvs {
            bytes += weight(&kv);
            // A step may go beyond its bytes, and a page always gets on.
            if bytes > room && !page.kvs.is_empty() {
                page.next = Some(kv.key);
                return Ok(Ok(page));
            }
            page.kvs.push(kv);
        }
        let is_enough = request.limit > 0 && page.kvs.len() as u64 >= request.limit;
        if chunk.finished || is_enough {
            return Ok(Ok(page));
        }
        if bytes >= room || keys >= PAGE_KEYS_MAX || looked >= PAGE_LOOK_BYTES_MAX {
            page.next = Some(scan.next_key().clone());
            return Ok(Ok(page));
        }
    }
}
