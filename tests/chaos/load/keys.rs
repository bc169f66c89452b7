//! Reads and writes of few keys, and reads that single nodes are asked to answer under their own lease.
//!
//! A node that wrongly believes to lead would never be asked by clients, who follow the leader: so it
//! is asked by name. All of it is one history, which has to be linearizable.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use leasehold::api::{
    Consistency, ErrorKind, EventKind, Outcome, RangeRequest, Request, ResponseBody,
};
use leasehold::bench::history::{Audit, Fate, Observation};
use leasehold::client::{Client, GetOptions};

use super::watches::fingerprint;
use super::{AFTER_FAILURE, Book, REST, insist, open};

/// Few, so that reads and writes meet.
const KEYS: u32 = 16;

/// The history.
#[derive(Default)]
pub(crate) struct Account {
    pub(crate) audit: Audit,
    /// What each acknowledged write has to look like to watches, by revision.
    pub(crate) acknowledged: BTreeMap<i64, u64>,
}

fn name(key: u32) -> String {
    format!("key/{key:02}")
}

/// The number in a value; one that nobody writes, if it is none.
fn value_of(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(u64::MAX, u64::from_be_bytes)
}

/// One client.
pub(super) async fn act(book: Arc<Book>, client: Client, seed: u64, number: u64) {
    let mut random = fastrand::Rng::with_seed(seed ^ number << 32);
    let mut value = number << 48;
    while !book.is_over() {
        let key = random.u32(..KEYS);
        let result = match random.u8(..100) < 60 {
            true => read(&book, &client, key).await,
            false => {
                value += 1;
                write(&book, &client, key, value).await
            }
        };
        let rest = match result {
            Ok(()) => REST,
            Err(error) => {
                book.failed(&error);
                AFTER_FAILURE
            }
        };
        tokio::time::sleep(rest).await;
    }
}

async fn read(book: &Book, client: &Client, key: u32) -> Result<(), leasehold::api::Error> {
    let begun = open(&book.keys).audit.begin_read(key);
    let options = GetOptions::new().with_consistency(Consistency::Linearizable);
    let got = client.get(name(key), Some(options)).await;
    let audit = &mut open(&book.keys).audit;
    match got {
        Ok(got) => {
            let found = got.kv().map(|kv| (value_of(&kv.value), kv.mod_revision));
            let revision = got.header.revision;
            audit.end_read(begun, Observation { revision, found });
            Ok(())
        }
        Err(error) => {
            audit.give_up_read(begun);
            Err(error)
        }
    }
}

async fn write(
    book: &Book,
    client: &Client,
    key: u32,
    value: u64,
) -> Result<(), leasehold::api::Error> {
    let begun = open(&book.keys).audit.begin_write(key, value);
    let bytes = Bytes::copy_from_slice(&value.to_be_bytes());
    let put = client.put(name(key), bytes.clone(), None).await;
    let account = &mut *open(&book.keys);
    let fate = match &put {
        Ok(put) => {
            let looks = fingerprint(EventKind::Put, name(key).as_bytes(), &bytes);
            account.acknowledged.insert(put.header.revision, looks);
            Fate::Written(put.header.revision)
        }
        Err(error) if error.outcome() == Outcome::NotApplied => Fate::NotApplied,
        Err(_) => Fate::Unknown,
    };
    account.audit.end_write(begun, value, fate);
    put.map(|_| ())
}

/// Asks one node for reads under its own lease, one at a time.
pub(super) async fn probe(book: Arc<Book>, client: Client, endpoint: String, number: usize) {
    let mut key = 0;
    while !book.is_over() {
        key = (key + 1) % KEYS;
        let begun = open(&book.keys).audit.begin_read(key);
        let request = Request::Range(RangeRequest {
            key: name(key).into(),
            ..RangeRequest::default()
        });
        let answer = client.call_at(&endpoint, request, Consistency::LeaseOnly);
        let answer = answer.await;
        let leads = match &answer {
            Ok(_) => true,
            Err(error) => *error.kind() == ErrorKind::LeaseInvalid,
        };
        match answer.map(|answer| (answer.header.revision, answer.body)) {
            Ok((revision, ResponseBody::Range(range))) => {
                let kv = range.kvs.first();
                let found = kv.map(|kv| (value_of(&kv.value), kv.mod_revision));
                let seen = Observation { revision, found };
                open(&book.keys).audit.end_read(begun, seen);
                book.leader.store(number, Ordering::SeqCst);
                book.count("reads that a node was asked for by name");
            }
            Ok((_, other)) => panic!("a range is answered by {other:?}"),
            Err(_) => open(&book.keys).audit.give_up_read(begun),
        }
        let rest = if leads { REST / 2 } else { REST * 5 };
        tokio::time::sleep(rest).await;
    }
}

/// The last word of every key.
pub(super) async fn read_all(book: &Book, client: &Client) {
    for key in 0..KEYS {
        insist(|| read(book, client, key)).await;
    }
}
