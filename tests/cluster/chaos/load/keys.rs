//! Reads and writes of few keys, by clients that follow the leader. With the reads of [`super::members`] they are
//! one history, which has to be linearizable.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use leasehold::api::{Consistency, EventKind, Outcome};
use leasehold::bench::history::{Audit, Fate, Observation};
use leasehold::client::{Client, GetOptions};

use super::watches::fingerprint;
use super::{AFTER_FAILURE, Book, REST, insist, open};

/// Few, so that reads and writes meet.
pub(super) const KEYS: u32 = 16;

/// The history.
#[derive(Default)]
pub(crate) struct Account {
    pub(crate) audit: Audit,
    /// What each acknowledged write has to look like to watches, by revision.
    pub(crate) acknowledged: BTreeMap<i64, u64>,
}

pub(super) fn name(key: u32) -> String {
    format!("key/{key:02}")
}

/// The number in a value; one that nobody writes, if it is none.
pub(super) fn value_of(bytes: &[u8]) -> u64 {
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
        book.rest(rest).await;
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
        Err(error) if error.outcome == Outcome::NotApplied => Fate::NotApplied,
        Err(_) => Fate::Unknown,
    };
    account.audit.end_write(begun, value, fate);
    put.map(|_| ())
}

/// The last word of every key.
pub(super) async fn read_all(book: &Book, client: &Client) {
    for key in 0..KEYS {
        insist(|| read(book, client, key)).await;
    }
}
