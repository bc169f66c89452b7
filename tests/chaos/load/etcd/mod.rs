//! Clients of etcd, each at one node's port for them: no session, no retry, and whatever node it is. What they read
//! and write is of the same history as what the others do, what their [`watches`] are told is compared with what
//! others are told, and their [`leases`] are judged as others' are.

pub(crate) mod leases;
pub(crate) mod watches;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use leasehold::api::EventKind;
use leasehold::bench::history::{Fate, Observation};
use prost::Message;

use super::keys::{KEYS, name, value_of};
use super::watches::fingerprint;
use super::{AFTER_FAILURE, Book, IMPATIENT, PATIENT, REST, open};
use crate::grpc::{Channel, framed};
use crate::messages::kv::{
    Compare, CompareUnion, PutRequest, RangeRequest, RangeResponse, RequestOp, RequestUnion,
    TxnRequest, TxnResponse,
};

const RANGE: &str = "/etcdserverpb.KV/Range";
const TXN: &str = "/etcdserverpb.KV/Txn";

/// How often one of their calls was answered.
pub(crate) const ANSWERED: &str = "requests of etcd's clients that were answered";

/// Why a call brought no answer.
struct Failure {
    /// It certainly had no effect.
    is_definite: bool,
}

/// Nobody knows what became of it.
const LOST: Failure = Failure { is_definite: false };

/// A client of one node.
struct EtcdClient {
    book: Arc<Book>,
    port: SocketAddr,
    /// How long it waits for an answer.
    timeout: Duration,
    channel: Option<Channel>,
}

/// Reads and writes at `port`.
pub(super) async fn act(book: Arc<Book>, port: SocketAddr, seed: u64, number: u64) {
    let timeout = [PATIENT, IMPATIENT][(number % 2) as usize];
    let mut client = EtcdClient::new(book.clone(), port, timeout);
    // Other values than those of other clients.
    let place = 1 << 8 | number;
    let mut random = fastrand::Rng::with_seed(seed ^ place << 32);
    let mut value = place << 48;
    let mut known = [0; KEYS as usize];
    while !book.is_over() {
        let key = random.u32(..KEYS);
        let known = &mut known[key as usize];
        let result = match random.u8(..100) {
            0..60 => client.read(key, known).await,
            drawn => {
                value += 1;
                let expected = (drawn < 80).then_some(*known);
                client.write(key, value, expected).await
            }
        };
        let rest = match result {
            Ok(()) => {
                book.count(ANSWERED);
                REST
            }
            Err(failure) => {
                book.count(match failure.is_definite {
                    true => "failures of etcd's clients, certainly without effect",
                    false => "failures of etcd's clients, outcome unknown",
                });
                AFTER_FAILURE
            }
        };
        book.rest(rest).await;
    }
}

impl EtcdClient {
    fn new(book: Arc<Book>, port: SocketAddr, timeout: Duration) -> Self {
        Self {
            book,
            port,
            timeout,
            channel: None,
        }
    }

    /// Reads a key, and keeps its revision.
    async fn read(&mut self, key: u32, known: &mut i64) -> Result<(), Failure> {
        let begun = open(&self.book.keys).audit.begin_read(key);
        let request = RangeRequest {
            key: name(key).into(),
            ..RangeRequest::default()
        };
        let answer: Result<RangeResponse, _> = self.ask(RANGE, &request).await;
        let audit = &mut open(&self.book.keys).audit;
        let found = match answer {
            Ok(found) => found,
            Err(failure) => {
                audit.give_up_read(begun);
                return Err(failure);
            }
        };
        let kv = found.kvs.first();
        *known = kv.map_or(0, |kv| kv.mod_revision);
        let seen = Observation {
            revision: found.header.expect("an answer has a header").revision,
            found: kv.map(|kv| (value_of(&kv.value), kv.mod_revision)),
        };
        audit.end_read(begun, seen);
        Ok(())
    }

    /// Writes a key, if it is of `expected` still where that is given.
    async fn write(&mut self, key: u32, value: u64, expected: Option<i64>) -> Result<(), Failure> {
        let begun = open(&self.book.keys).audit.begin_write(key, value);
        let bytes = Bytes::copy_from_slice(&value.to_be_bytes());
        let put = PutRequest {
            key: name(key).into(),
            value: bytes.clone(),
            ..PutRequest::default()
        };
        let compare = expected.map(|revision| Compare {
            target: 2,
            key: name(key).into(),
            target_union: Some(CompareUnion::ModRevision(revision)),
            ..Compare::default()
        });
        let txn = TxnRequest {
            compare: compare.into_iter().collect(),
            success: vec![RequestOp {
                request: Some(RequestUnion::RequestPut(put)),
            }],
            failure: Vec::new(),
        };
        let answer: Result<TxnResponse, _> = self.ask(TXN, &txn).await;
        let account = &mut *open(&self.book.keys);
        let fate = match &answer {
            Ok(answer) if answer.succeeded => {
                let revision = answer.header.expect("an answer has a header").revision;
                let looks = fingerprint(EventKind::Put, name(key).as_bytes(), &bytes);
                account.acknowledged.insert(revision, looks);
                Fate::Written(revision)
            }
            Ok(_) => Fate::NotApplied,
            Err(failure) if failure.is_definite => Fate::NotApplied,
            Err(_) => Fate::Unknown,
        };
        account.audit.end_write(begun, value, fate);
        answer.map(|_| ())
    }

    /// One call. A connection that fails is another one next time.
    async fn ask<A: Message + Default>(
        &mut self,
        path: &str,
        request: &impl Message,
    ) -> Result<A, Failure> {
        let channel = self.connection().await?;
        let deadline = format!("{}m", self.timeout.as_millis());
        let (body, headers) = (
            framed(&request.encode_to_vec()),
            [("grpc-timeout", &*deadline)],
        );
        let call = tokio::time::timeout(self.timeout, channel.call(path, body, &headers));
        let ended = call.await.map_err(|_| LOST)?.map_err(|_| LOST)?;
        let answer = match ended.status().0 {
            0 => Ok(ended.message()),
            // What is said to be refused was not applied; all else may have been.
            code => Err(Failure {
                is_definite: matches!(code, 3 | 5 | 7 | 8 | 9 | 11),
            }),
        };
        self.channel = Some(channel);
        answer
    }

    /// The connection that there is, or another one.
    async fn connection(&mut self) -> Result<Channel, Failure> {
        if let Some(channel) = self.channel.take() {
            return Ok(channel);
        }
        let opening = Channel::connect(self.port, 1 << 20);
        let opened = tokio::time::timeout(self.timeout, opening).await;
        // Nothing was sent.
        let opened = opened.ok().and_then(Result::ok);
        opened.ok_or(Failure { is_definite: true })
    }
}
