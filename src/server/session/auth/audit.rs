//! The audit log: an append-only file with a line of JSON for each request that changes something, that
//! needs the role root, or that was refused for lack of permission.
//!
//! A line holds no key and no value. It holds the hash of the key's prefix, up to the last slash, so that
//! an auditor who knows the prefix can find the lines about it. The number of lines is bounded, for
//! writes of keys apart from all others, so that many writes can neither hide another operation nor fill
//! the disk; the next line counts those left out.
//!
//! A thread of its own writes the file, and no request waits for it.

use std::fs::File;
use std::io;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use serde_json::json;
use xxhash_rust::xxh3::xxh3_64;

use super::Principal;
use super::token::millis_since_1970;
use crate::api::{Error, ErrorKind, Needs, Request, RequestKind, Response, TxnOp, TxnRequest};
use crate::server::metrics::stopwatch;
use crate::server::threads::spawn;
use crate::sync::Mutex;

/// Lines a second of each kind.
const LINES_MAX: u32 = 1_000;
/// Lines that wait for the disk.
const WAITING_MAX: usize = 4_096;

/// The audit file, and its limit of lines.
pub(crate) struct Audit {
    lines: SyncSender<Vec<u8>>,
    pace: Mutex<Pace>,
}

/// The part of a request that its line will need, kept until the request is answered.
#[derive(Debug)]
pub(crate) struct Note {
    kind: Kind,
    prefix: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Recorded only if it is refused.
    Read,
    /// A write of keys or leases.
    Write,
    /// An operation that needs the role root, or a login.
    Guarded,
}

impl Note {
    /// Of `request`.
    pub(crate) fn of(request: &Request) -> Self {
        let spec = request.spec();
        let kind = match (spec.needs, spec.kind) {
            _ if matches!(request, Request::Auth(_)) => Kind::Guarded,
            (Needs::Root, _) => Kind::Guarded,
            (_, RequestKind::Write) => Kind::Write,
            _ => Kind::Read,
        };
        let key = match request {
            Request::Range(range) | Request::RangePage(range) => Some(&range.key),
            Request::Watch { watch, .. } => Some(&watch.key),
            Request::Put(put) | Request::PutWithNewLease(_, put) => Some(&put.key),
            Request::DeleteRange(delete) => Some(&delete.key),
            Request::Txn(txn) => first_key(txn),
            _ => None,
        };
        Self {
            kind,
            prefix: key.map(|key| prefix_hash(key)),
        }
    }

    /// Of a read of `key`.
    pub(crate) fn of_read(key: &[u8]) -> Self {
        Self {
            kind: Kind::Read,
            prefix: Some(prefix_hash(key)),
        }
    }
}

/// The key that a transaction names first.
fn first_key(txn: &TxnRequest) -> Option<&bytes::Bytes> {
    let compared = txn.compare.first().map(|compare| &compare.key);
    compared.or_else(|| {
        txn.success
            .iter()
            .chain(&txn.failure)
            .find_map(|op| match op {
                TxnOp::Range(range) => Some(&range.key),
                TxnOp::Put(put) => Some(&put.key),
                TxnOp::DeleteRange(delete) => Some(&delete.key),
                TxnOp::Txn(txn) => first_key(txn),
            })
    })
}

/// A hash of `key` up to its last slash; of all of it, if it has none.
fn prefix_hash(key: &[u8]) -> u64 {
    let slash = key.iter().rposition(|byte| *byte == b'/');
    xxh3_64(slash.map_or(key, |at| &key[..=at]))
}

impl Audit {
    /// Goes on with the file at `path`, which only its owner may read.
    ///
    /// # Errors
    /// It cannot be opened or made, or there is no thread to be had.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = File::options()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(path)?;
        let (lines, waiting) = sync_channel(WAITING_MAX);
        // Detached: it ends with the last line once the sender is gone, and locks nothing.
        spawn("audit", (), move || write_all(file, &waiting))?;
        Ok(Self {
            lines,
            pace: Mutex::default(),
        })
    }

    /// Writes down how a request ended, if it is one of those that are. Never waits.
    pub(crate) fn record(
        &self,
        principal: &Principal,
        address: SocketAddr,
        operation: &str,
        note: &Note,
        result: &Result<Response, Error>,
    ) {
        let (code, revision) = match result {
            Ok(response) => ("OK", Some(response.header.revision)),
            Err(error) => (error.code(), None),
        };
        if note.kind == Kind::Read && !is_access_refusal(result) {
            return;
        }
        let is_write = note.kind == Kind::Write && !is_access_refusal(result);
        let left_out = {
            let mut pace = self.pace.lock();
            match pace.take(stopwatch(), is_write) {
                Some(left_out) => left_out,
                None => return,
            }
        };
        let line = json!({
            "time_ms": millis_since_1970(),
            "user": principal.name(),
            "address": address.to_string(),
            "operation": operation,
            "prefix": note.prefix.map(|prefix| format!("{prefix:016x}")),
            "revision": revision,
            "result": code,
            "left_out": left_out,
        });
        if self
            .lines
            .try_send(format!("{line}\n").into_bytes())
            .is_err()
        {
            let mut pace = self.pace.lock();
            pace.left_out += left_out + 1;
        }
    }
}

/// Whether the request was refused because of the client that made it.
fn is_access_refusal(result: &Result<Response, Error>) -> bool {
    result.as_ref().is_err_and(|error| {
        matches!(
            error.kind,
            ErrorKind::PermissionDenied | ErrorKind::Unauthenticated | ErrorKind::TokenExpired
        )
    })
}

/// Lines of the current second.
#[derive(Debug, Default)]
struct Pace {
    since: Option<Instant>,
    writes: u32,
    others: u32,
    left_out: u64,
}

impl Pace {
    /// Room for a line, and how many were left out before it; `None` if there is none.
    fn take(&mut self, now: Instant, is_write: bool) -> Option<u64> {
        let is_over =
            |since: Instant| now.saturating_duration_since(since) >= Duration::from_secs(1);
        if self.since.is_none_or(is_over) {
            self.since = Some(now);
            (self.writes, self.others) = (0, 0);
        }
        let lines = match is_write {
            true => &mut self.writes,
            false => &mut self.others,
        };
        if *lines >= LINES_MAX {
            self.left_out += 1;
            return None;
        }
        *lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

fn write_all(mut file: File, waiting: &Receiver<Vec<u8>>) {
    while let Ok(mut lines) = waiting.recv() {
        while let Ok(more) = waiting.try_recv() {
            lines.extend_from_slice(&more);
        }
        if let Err(error) = file.write_all(&lines) {
            tracing::error!(%error, "cannot write the audit file: operations are missing from it");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::fixtures::every_request;

    #[test]
    fn many_writes_leave_room_for_the_rest_and_are_counted() {
        let mut pace = Pace::default();
        let now = stopwatch();
        for _ in 0..LINES_MAX {
            assert_eq!(pace.take(now, true), Some(0));
        }
        for _ in 0..5 {
            assert_eq!(pace.take(now, true), None);
        }
        assert_eq!(pace.take(now, false), Some(5));
        assert_eq!(pace.take(now, false), Some(0));
        assert_eq!(pace.take(now + Duration::from_secs(1), true), Some(0));
    }

    #[test]
    fn keys_of_one_prefix_have_one_hash_and_other_prefixes_another() {
        assert_eq!(prefix_hash(b"/a/1"), prefix_hash(b"/a/2"));
        assert_ne!(prefix_hash(b"/a/1"), prefix_hash(b"/b/1"));
        assert_ne!(prefix_hash(b"a"), prefix_hash(b"b"));
    }

    #[test]
    fn what_changes_anything_is_written_down() {
        for request in every_request() {
            let kind = Note::of(&request).kind;
            let is_told = kind != Kind::Read;
            let changes = request.is_write() || matches!(request, Request::MoveLeader { .. });
            assert!(is_told || !changes, "{}", request.method());
        }
    }
}
