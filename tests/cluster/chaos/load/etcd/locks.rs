//! etcd's Lock, and writes that only its holder may do, by comparing the revision at which the holder's key was
//! created. They are judged as those of the SDK's lock are.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::leases::Wanderer;
use super::{Failure, RANGE};
use crate::chaos::load::{AFTER_FAILURE, Book, REST};
use crate::etcd::messages::kv::{Compare, CompareUnion, PutRequest, RangeRequest, RangeResponse};
use crate::etcd::messages::{LockRequest, LockResponse, UnlockRequest, UnlockResponse};

const LOCK: &str = "/v3lockpb.Lock/Lock";
const UNLOCK: &str = "/v3lockpb.Lock/Unlock";
/// The name of the lock.
const NAME: &str = "lock of etcd's clients";
/// What is written by holders.
const LOCKED: &str = "locked by etcd's clients";
/// What a lease lasts, in seconds. It is not renewed: who waits and writes for longer has lost the place.
pub(super) const TTL_S: i64 = 3;
/// How long to wait for one's turn.
pub(super) const TURN: Duration = Duration::from_secs(10);
/// Writes of one holder.
pub(super) const WRITES: usize = 3;

/// How often the store took a write of a holder.
pub(crate) const TAKEN: &str = "writes taken of holders of etcd's Lock";

/// Takes the lock over and over, each time with a lease of its own, at one node and then at another one.
pub(in crate::chaos::load) async fn contend(book: Arc<Book>, ports: Vec<SocketAddr>) {
    let mut wanderer = Wanderer::new(book.clone(), ports);
    while !book.is_over() {
        let rest = match hold(&book, &mut wanderer).await {
            Ok(()) => REST,
            Err(_) => {
                wanderer.go_on();
                AFTER_FAILURE
            }
        };
        book.rest(rest).await;
    }
}

async fn hold(book: &Book, wanderer: &mut Wanderer) -> Result<(), Failure> {
    let lease = wanderer.grant(TTL_S).await?.id;
    let client = &mut wanderer.client;
    let name = NAME.into();
    let asked = LockRequest { name, lease };
    let held: LockResponse = client.ask_within(TURN, LOCK, &asked).await?;
    book.count("locks held by etcd's clients");
    let own = RangeRequest {
        key: held.key.clone(),
        ..RangeRequest::default()
    };
    let own: RangeResponse = client.ask(RANGE, &own).await?;
    let Some(own) = own.kvs.first() else {
        // The lease has ended.
        return Ok(());
    };
    let token = own.create_revision;
    let fence = Compare {
        target: 1,
        key: held.key.clone(),
        target_union: Some(CompareUnion::CreateRevision(token)),
        ..Compare::default()
    };
    let put = PutRequest {
        key: LOCKED.into(),
        value: token.to_string().into(),
        ..PutRequest::default()
    };
    for _ in 0..WRITES {
        match client.put_if(Some(fence.clone()), put.clone()).await? {
            Some(revision) => {
                crate::chaos::load::locks::taken(book, NAME, revision, token);
                book.count(TAKEN);
            }
            None => return Ok(()),
        }
        book.rest(REST).await;
    }
    let unlock = UnlockRequest { key: held.key };
    let _: UnlockResponse = client.ask(UNLOCK, &unlock).await?;
    match client.put_if(Some(fence), put).await? {
        Some(revision) => book.violation(format!(
            "at revision {revision} the store took a write of a holder that had unlocked"
        )),
        None => book.count("late writes refused of holders of etcd's Lock"),
    }
    Ok(())
}
