//! Reads that one member is asked for, and no other: under its own lease or not at all, and as a client beside it
//! would read, by its read lease if it holds one.
//!
//! A node that wrongly believes to lead would never be asked by clients, who follow the leader; and a holder of a
//! read lease that was forgotten would not, either. So each is asked by name.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use leasehold::api::{
    Consistency, Error, ErrorKind, RangeRequest, ReadPath, Request, Response, ResponseBody,
};
use leasehold::bench::history::Observation;
use leasehold::client::Client;

use super::keys::{KEYS, name, value_of};
use super::{AFTER_FAILURE, Book, REST, open};

/// A client of one member.
#[derive(Clone)]
pub(super) struct Pinned {
    pub(super) client: Client,
    pub(super) endpoint: String,
    pub(super) number: usize,
}

/// How reads at one member are counted that its read lease served.
pub(crate) const BY_ITS_READ_LEASE: &str = "reads at one member, by its read lease";
/// And those that it asked its leader for.
pub(crate) const BY_ITS_LEADERS_WORD: &str = "reads at one member, by its leader's word";

/// The name of reads that a member served so.
fn served(path: ReadPath) -> &'static str {
    match path {
        ReadPath::Lease => "reads at one member, by its leader lease",
        ReadPath::ReadIndex => "reads at one member, by a quorum round",
        ReadPath::Follower => BY_ITS_LEADERS_WORD,
        ReadPath::ReadLease => BY_ITS_READ_LEASE,
        ReadPath::Serializable => "reads at one member, by nothing",
    }
}

impl Pinned {
    /// Reads a key there and has it judged. Returns how it was served.
    async fn read(
        &self,
        book: &Book,
        key: u32,
        consistency: Consistency,
    ) -> Result<ReadPath, Error> {
        let (begun, newest) = {
            let account = &mut *open(&book.keys);
            let newest = account.acknowledged.last_key_value();
            (
                account.audit.begin_read(key),
                newest.map(|(newest, _)| *newest),
            )
        };
        let request = Request::Range(RangeRequest {
            key: name(key).into(),
            ..RangeRequest::default()
        });
        let answer = self.client.call_at(&self.endpoint, request, consistency);
        let Response { header, body, .. } = match answer.await {
            Ok(answer) => answer,
            Err(error) => {
                open(&book.keys).audit.give_up_read(begun);
                return Err(error);
            }
        };
        let ResponseBody::Range(range) = body else {
            panic!("a range is answered by {body:?}");
        };
        let kv = range.kvs.first();
        let seen = Observation {
            revision: header.revision,
            found: kv.map(|kv| (value_of(&kv.value), kv.mod_revision)),
        };
        open(&book.keys).audit.end_read(begun, seen);
        let read = header.read.expect("a read says how it was served");
        // The audit says what is wrong with it; this says whose it was.
        if newest.is_some_and(|newest| header.revision < newest) {
            book.violation(format!(
                "n{} answered a read as of revision {}, which began after {newest:?} had been acknowledged: {read:?}",
                self.number + 1,
                header.revision
            ));
        }
        book.count(served(read.path));
        match read.path {
            ReadPath::ReadLease => {
                book.by_read_lease[self.number].fetch_add(1, Ordering::SeqCst);
            }
            ReadPath::Serializable => book.violation(format!("{consistency:?}: {read:?}")),
            _ => {}
        }
        Ok(read.path)
    }
}

/// Asks a member for reads under its own lease, one at a time.
pub(super) async fn probe(book: Arc<Book>, pinned: Pinned) {
    let mut key = 0;
    while !book.is_over() {
        key = (key + 1) % KEYS;
        let path = pinned.read(&book, key, Consistency::LeaseOnly).await;
        let leads = match &path {
            Ok(path) => *path == ReadPath::Lease,
            Err(error) => error.kind == ErrorKind::LeaseInvalid,
        };
        if leads && path.is_ok() {
            book.leader.store(pinned.number, Ordering::SeqCst);
        }
        if path.is_ok() {
            book.count("reads that a node was asked for by name");
        }
        let rest = if leads { REST / 2 } else { REST * 5 };
        tokio::time::sleep(rest).await;
    }
}

/// Asks a member for linearizable reads, one at a time.
pub(super) async fn read(book: Arc<Book>, pinned: Pinned, seed: u64, lane: u64) {
    let place = (pinned.number as u64) << 8 | lane;
    let mut random = fastrand::Rng::with_seed(seed ^ place << 48);
    while !book.is_over() {
        let key = random.u32(..KEYS);
        let read = pinned.read(&book, key, Consistency::Linearizable).await;
        let rest = match read {
            Ok(_) => REST,
            Err(error) => {
                book.failed(&error);
                AFTER_FAILURE
            }
        };
        tokio::time::sleep(rest).await;
    }
}
