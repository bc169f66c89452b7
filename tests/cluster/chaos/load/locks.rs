//! A lock, and writes that only its holder may do: the store lets nobody write once a later holder
//! has, by the numbers of their tokens and whatever the clocks say.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold::api::ErrorKind;
use leasehold::client::recipes::{Lock, Session};
use leasehold::client::{Client, PutOptions};

use super::{AFTER_FAILURE, Book, REST, open};

/// What a holder's lease lasts.
const TTL: Duration = Duration::from_secs(3);
/// How long to wait for one's turn before asking anew.
const TURN: Duration = Duration::from_secs(10);
/// Writes of one holder.
const WRITES: usize = 3;

/// The lock of this module.
const LOCK: &str = "lock";

/// Every fenced write that the store took, by lock or election: its revision and the token.
#[derive(Default)]
pub(super) struct Account {
    taken: BTreeMap<&'static str, BTreeMap<i64, i64>>,
}

/// One of those who want the lock.
pub(super) async fn contend(book: Arc<Book>, client: Client, number: usize) {
    while !book.is_over() {
        let Ok(session) = client.lease().session(TTL, None).await else {
            book.rest(AFTER_FAILURE).await;
            continue;
        };
        while session.is_alive() && !book.is_over() {
            hold(&book, &client, &session, number).await;
            book.rest(REST).await;
        }
        let _ = session.close().await;
    }
}

async fn hold(book: &Book, client: &Client, session: &Session, number: usize) {
    let lock = Lock::new(session, LOCK);
    let Ok(Ok(guard)) = tokio::time::timeout(TURN, lock.acquire()).await else {
        return;
    };
    book.count("locks held");
    for _ in 0..WRITES {
        let token = guard.fencing_token();
        let options = PutOptions::new().with_fence(guard.key().clone(), token);
        let put = client
            .put("locked", number.to_string(), Some(options))
            .await;
        match put {
            Ok(put) => {
                taken(book, LOCK, put.header.revision, token);
                book.count("fenced writes taken");
            }
            Err(error) => book.failed(&error),
        }
        book.rest(REST).await;
    }
    let (key, token) = (guard.key().clone(), guard.fencing_token());
    if guard.release().await.is_err() {
        return;
    }
    // A write that was on its way for too long: whoever let go does not write any more.
    book.rest(REST).await;
    let options = PutOptions::new().with_fence(key, token);
    match client.put("locked", "too late", Some(options)).await {
        Ok(put) => book.violation(format!(
            "at revision {} the store took a write of a holder that had let go",
            put.header.revision
        )),
        Err(error) if matches!(error.kind, ErrorKind::Fenced { .. }) => {
            book.count("late writes refused");
        }
        Err(error) => book.failed(&error),
    }
}

/// The store took a write at this revision whose fence is the token of a place in this line.
pub(super) fn taken(book: &Book, line: &'static str, revision: i64, token: i64) {
    let account = &mut open(&book.locks).taken;
    account.entry(line).or_default().insert(revision, token);
}

/// In the order of the store no token comes after a larger one of its line.
pub(super) fn settle(book: &Book) {
    for (line, taken) in &open(&book.locks).taken {
        let mut largest = 0;
        for (revision, token) in taken {
            if *token < largest {
                book.violation(format!(
                    "at revision {revision} the store took a write of {line} with token {token}, after \
                     one with {largest}"
                ));
            }
            largest = largest.max(*token);
        }
    }
}
