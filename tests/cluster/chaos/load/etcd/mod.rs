//! Clients of etcd, each at one node's port for them: no session, no retry, and whatever node it is. What they read
//! and write, as messages or in JSON ([`gateway`]), is of the same history as what the others do, what their
//! [`watches`] are told is compared with what others are told, their [`leases`] and [`locks`] are judged as others' are,
//! and in their [`elections`] one leader follows the other.

pub(crate) mod elections;
pub(crate) mod gateway;
pub(crate) mod leases;
pub(crate) mod locks;
pub(crate) mod watches;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use leasehold::api::EventKind;
use leasehold::bench::history::{Fate, Observation};
use prost::Message;
use tokio::task::JoinSet;

use super::keys::{KEYS, name, value_of};
use super::watches::fingerprint;
use super::{AFTER_FAILURE, Book, IMPATIENT, PATIENT, REST, open};
use crate::etcd::grpc::{Channel, Ended, framed};
use crate::etcd::messages::kv::{
    Compare, CompareUnion, PutRequest, RangeRequest, RangeResponse, RequestOp, RequestUnion,
    TxnRequest, TxnResponse,
};

const RANGE: &str = "/etcdserverpb.KV/Range";
const TXN: &str = "/etcdserverpb.KV/Txn";

/// How often one of their calls was answered.
pub(crate) const ANSWERED: &str = "requests of etcd's clients that were answered";

/// The code with which locks and elections refuse.
const REFUSED: i32 = 2;
/// The first number of clients that speak JSON.
const IN_JSON: u64 = 1 << 4;

/// Why a call brought no answer.
struct Failure {
    /// It certainly had no effect.
    is_definite: bool,
    /// That of the answer; 0 without one.
    code: i32,
}

impl Failure {
    fn of_code(code: i32) -> Self {
        Self {
            // What is said to be refused was not applied; all else may have been.
            is_definite: matches!(code, 3 | 5 | 7 | 8 | 9 | 11),
            code,
        }
    }
}

/// Nobody knows what became of it.
const LOST: Failure = Failure {
    is_definite: false,
    code: 0,
};

/// A client of one node.
struct EtcdClient {
    book: Arc<Book>,
    port: SocketAddr,
    /// How long it waits for an answer.
    timeout: Duration,
    channel: Option<Channel>,
    speaks_json: bool,
}

/// Begins with all clients of nodes with these ports: those that act, and those that listen.
pub(super) fn begin(
    book: &Arc<Book>,
    acting: &mut JoinSet<()>,
    listening: &mut JoinSet<()>,
    ports: &[SocketAddr],
    seed: u64,
) {
    for (number, port) in ports.iter().enumerate() {
        for first in [0, IN_JSON] {
            acting.spawn(act(book.clone(), *port, seed, first | number as u64));
        }
        listening.spawn(watches::listen(book.clone(), *port, number));
        acting.spawn(elections::observe(book.clone(), *port));
        // Each begins at another node.
        let mut ports = ports.to_vec();
        ports.rotate_left(number);
        acting.spawn(locks::contend(book.clone(), ports.clone()));
        acting.spawn(elections::run_for_office(book.clone(), ports, number));
    }
    acting.spawn(leases::keep(book.clone(), ports.to_vec()));
    acting.spawn(leases::abandon(book.clone(), ports.to_vec(), seed));
}

/// Reads and writes at `port`.
async fn act(book: Arc<Book>, port: SocketAddr, seed: u64, number: u64) {
    let timeout = [PATIENT, IMPATIENT][(number % 2) as usize];
    let mut client = EtcdClient::new(book.clone(), port, timeout);
    client.speaks_json = number >= IN_JSON;
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
                book.count([ANSWERED, gateway::ANSWERED][usize::from(client.speaks_json)]);
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
            speaks_json: false,
        }
    }

    /// Reads a key, and keeps its revision.
    async fn read(&mut self, key: u32, known: &mut i64) -> Result<(), Failure> {
        let begun = open(&self.book.keys).audit.begin_read(key);
        let answer = match self.speaks_json {
            true => self.find_in_json(key).await,
            false => self.find(key).await,
        };
        let audit = &mut open(&self.book.keys).audit;
        match answer {
            Ok(seen) => {
                *known = seen.found.map_or(0, |(_, revision)| revision);
                audit.end_read(begun, seen);
                Ok(())
            }
            Err(failure) => {
                audit.give_up_read(begun);
                Err(failure)
            }
        }
    }

    /// Writes a key, if it is of `expected` still where that is given.
    async fn write(&mut self, key: u32, value: u64, expected: Option<i64>) -> Result<(), Failure> {
        let begun = open(&self.book.keys).audit.begin_write(key, value);
        let bytes = Bytes::copy_from_slice(&value.to_be_bytes());
        let answer = match self.speaks_json {
            true => self.swap_in_json(key, &bytes, expected).await,
            false => self.swap(key, &bytes, expected).await,
        };
        let account = &mut *open(&self.book.keys);
        let fate = match &answer {
            Ok(Some(revision)) => {
                let looks = fingerprint(EventKind::Put, name(key).as_bytes(), &bytes);
                account.acknowledged.insert(*revision, looks);
                Fate::Written(*revision)
            }
            Ok(None) => Fate::NotApplied,
            Err(failure) if failure.is_definite => Fate::NotApplied,
            Err(_) => Fate::Unknown,
        };
        account.audit.end_write(begun, value, fate);
        answer.map(|_| ())
    }

    /// What a read of a key finds.
    async fn find(&mut self, key: u32) -> Result<Observation, Failure> {
        let request = RangeRequest {
            key: name(key).into(),
            ..RangeRequest::default()
        };
        let found: RangeResponse = self.ask(RANGE, &request).await?;
        let kv = found.kvs.first();
        Ok(Observation {
            revision: found.header.expect("an answer has a header").revision,
            found: kv.map(|kv| (value_of(&kv.value), kv.mod_revision)),
        })
    }

    /// Writes a key; the revision, unless it was not as expected.
    async fn swap(
        &mut self,
        key: u32,
        value: &Bytes,
        expected: Option<i64>,
    ) -> Result<Option<i64>, Failure> {
        let put = PutRequest {
            key: name(key).into(),
            value: value.clone(),
            ..PutRequest::default()
        };
        let compare = expected.map(|revision| Compare {
            target: 2,
            key: name(key).into(),
            target_union: Some(CompareUnion::ModRevision(revision)),
            ..Compare::default()
        });
        self.put_if(compare, put).await
    }

    /// Puts if a comparison holds; the revision, unless it did not.
    async fn put_if(
        &mut self,
        compare: Option<Compare>,
        put: PutRequest,
    ) -> Result<Option<i64>, Failure> {
        let txn = TxnRequest {
            compare: compare.into_iter().collect(),
            success: vec![RequestOp {
                request: Some(RequestUnion::RequestPut(put)),
            }],
            failure: Vec::new(),
        };
        let answer: TxnResponse = self.ask(TXN, &txn).await?;
        let revision = answer.header.expect("an answer has a header").revision;
        Ok(answer.succeeded.then_some(revision))
    }

    /// One call. A connection that fails is another one next time.
    async fn ask<A: Message + Default>(
        &mut self,
        path: &str,
        request: &impl Message,
    ) -> Result<A, Failure> {
        self.ask_within(self.timeout, path, request).await
    }

    /// The same, with another patience.
    async fn ask_within<A: Message + Default>(
        &mut self,
        timeout: Duration,
        path: &str,
        request: &impl Message,
    ) -> Result<A, Failure> {
        let body = framed(&request.encode_to_vec());
        let ended = self.call("application/grpc", path, body, timeout).await?;
        match ended.status().0 {
            0 => Ok(ended.message()),
            code => Err(Failure::of_code(code)),
        }
    }

    /// One call with a body of this type, however it ended.
    async fn call(
        &mut self,
        content_type: &str,
        path: &str,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Ended, Failure> {
        let channel = self.connection().await?;
        let deadline = format!("{}m", timeout.as_millis());
        let headers = [("grpc-timeout", &*deadline)];
        let call = channel.call_as(content_type, path, body, &headers);
        let call = tokio::time::timeout(timeout, call).await;
        let ended = call.map_err(|_| LOST)?.map_err(|_| LOST)?;
        self.channel = Some(channel);
        Ok(ended)
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
        opened.ok_or(Failure {
            is_definite: true,
            code: 0,
        })
    }
}
