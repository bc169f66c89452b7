//! Leases of etcd's clients: some that are kept, on a stream of renewals at one node and then at another one, as
//! etcd's libraries do; and some that are left alone. They are judged as those of the SDK are.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::{ANSWERED, EtcdClient, Failure, LOST, RANGE};
use crate::chaos::load::keepers::{
    ABANDONED_KEYS, Holder, KEPT_KEYS, Kept, LONG, LOOK, SHORT, lasts_until, leave, look,
};
use crate::chaos::load::{AFTER_FAILURE, Book, REST};
use crate::etcd::grpc::{Channel, Stream};
use crate::etcd::messages::kv::{PutRequest, PutResponse, RangeRequest, RangeResponse};
use crate::etcd::messages::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
};

const GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
const PUT: &str = "/etcdserverpb.KV/Put";
/// How many of each are kept.
const KEPT: usize = 10;
/// After so long without an answer another node is asked.
const PATIENCE_WITH_A_NODE: Duration = Duration::from_secs(1);
/// What an abandoned lease lasts, in seconds: below two it would be two.
const ABANDONED_TTL_S: [i64; 2] = [2, 3];

/// How often a key was looked for whose holder was sure.
pub(crate) const LOOKS: &str = "looks at leases of etcd's clients that are counted on";

/// A lease that is renewed.
pub(super) struct Renewed {
    pub(super) id: i64,
    ttl: Duration,
    /// When the latest request was sent that had effect.
    sent: Instant,
}

impl Holder for Renewed {
    fn is_sure(&self) -> bool {
        Instant::now() < lasts_until(self.sent, self.ttl)
    }
}

/// A client that asks the next node once one does not answer.
pub(super) struct Wanderer {
    pub(super) client: EtcdClient,
    ports: Vec<SocketAddr>,
    /// The stream of renewals, and the connection that it is on.
    renewals: Option<(Channel, Stream)>,
}

/// Keeps leases, and looks whether their keys are there.
pub(in crate::chaos::load) async fn keep(book: Arc<Book>, ports: Vec<SocketAddr>) {
    let mut wanderer = Wanderer::new(book.clone(), ports);
    let mut kept: Vec<Option<Kept<Renewed>>> = Vec::new();
    kept.resize_with(2 * KEPT, || None);
    let mut generation = 0_u64;
    while !book.is_over() {
        let vacant = kept.iter().position(Option::is_none);
        if let Some(number) = vacant {
            generation += 1;
            let key = format!("{KEPT_KEYS}e{number:03}-{generation}");
            let ttl = if number < KEPT { LONG } else { SHORT };
            let granted = wanderer.grant(ttl.as_secs().cast_signed()).await;
            let put = match granted {
                Ok(granted) => wanderer.put(&key, granted.id).await.map(|()| granted),
                Err(failure) => Err(failure),
            };
            match put {
                Ok(holder) => kept[number] = Some(Kept { key, holder }),
                Err(_) => wanderer.go_on(),
            }
        }
        if renew_some(&book, &mut wanderer, &mut kept).await.is_err() {
            wanderer.go_on();
        }
        match wanderer.kept_keys().await {
            Ok(found) => look(&book, &found, &mut kept, LOOKS),
            Err(_) => wanderer.go_on(),
        }
        let rest = [LOOK, REST][usize::from(vacant.is_some())];
        book.rest(rest).await;
    }
}

/// Grants leases and leaves them, some after one renewal.
pub(in crate::chaos::load) async fn abandon(book: Arc<Book>, ports: Vec<SocketAddr>, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut wanderer = Wanderer::new(book.clone(), ports);
    let mut number = 0_u64;
    while !book.is_over() {
        number += 1;
        let key = format!("{ABANDONED_KEYS}e{number}");
        let ttl_s = ABANDONED_TTL_S[random.usize(..2)];
        let Ok(holder) = wanderer.grant(ttl_s).await else {
            wanderer.go_on();
            book.rest(AFTER_FAILURE).await;
            continue;
        };
        leave(&book, &key, lasts_until(holder.sent, holder.ttl));
        if wanderer.put(&key, holder.id).await.is_ok() {
            book.count("leases abandoned by etcd's clients");
        }
        if random.bool() {
            let sent = Instant::now();
            if wanderer
                .renew(&[holder.id])
                .await
                .is_ok_and(|ttls| ttls[0] > 0)
            {
                leave(&book, &key, lasts_until(sent, holder.ttl));
            }
        }
        book.rest(AFTER_FAILURE).await;
    }
}

/// Renews those of which a quarter of the time is over.
async fn renew_some(
    book: &Book,
    wanderer: &mut Wanderer,
    kept: &mut [Option<Kept<Renewed>>],
) -> Result<(), Failure> {
    let is_due = |kept: &&mut Kept<Renewed>| kept.holder.sent.elapsed() > kept.holder.ttl / 4;
    let mut due: Vec<_> = kept.iter_mut().flatten().filter(is_due).collect();
    if due.is_empty() {
        return Ok(());
    }
    let ids: Vec<i64> = due.iter().map(|kept| kept.holder.id).collect();
    let sent = Instant::now();
    let ttls = wanderer.renew(&ids).await?;
    for (Kept { key, holder }, ttl) in due.iter_mut().zip(ttls) {
        if ttl > 0 {
            book.count("leases renewed by etcd's clients");
            holder.sent = sent;
        } else if holder.is_sure() {
            book.violation(format!(
                "{key} is said to have no lease, and its holder counts on it"
            ));
        }
    }
    Ok(())
}

impl Wanderer {
    pub(super) fn new(book: Arc<Book>, ports: Vec<SocketAddr>) -> Self {
        Self {
            client: EtcdClient::new(book, ports[0], PATIENCE_WITH_A_NODE),
            ports,
            renewals: None,
        }
    }

    /// Asks the next node from now on.
    pub(super) fn go_on(&mut self) {
        self.ports.rotate_left(1);
        self.client = EtcdClient::new(
            self.client.book.clone(),
            self.ports[0],
            PATIENCE_WITH_A_NODE,
        );
        self.renewals = None;
    }

    pub(super) async fn grant(&mut self, ttl_s: i64) -> Result<Renewed, Failure> {
        let sent = Instant::now();
        let request = LeaseGrantRequest { ttl: ttl_s, id: 0 };
        let granted: LeaseGrantResponse = self.client.ask(GRANT, &request).await?;
        Ok(Renewed {
            id: granted.id,
            ttl: Duration::from_secs(granted.ttl.try_into().unwrap()),
            sent,
        })
    }

    async fn put(&mut self, key: &str, lease: i64) -> Result<(), Failure> {
        let request = PutRequest {
            key: key.to_owned().into(),
            lease,
            ..PutRequest::default()
        };
        let _: PutResponse = self.client.ask(PUT, &request).await?;
        self.client.book.count(ANSWERED);
        Ok(())
    }

    /// The keys of leases that are kept.
    async fn kept_keys(&mut self) -> Result<BTreeSet<Bytes>, Failure> {
        let mut end = KEPT_KEYS.as_bytes().to_vec();
        *end.last_mut().unwrap() += 1;
        let request = RangeRequest {
            key: KEPT_KEYS.into(),
            range_end: end.into(),
            keys_only: true,
            ..RangeRequest::default()
        };
        let found: RangeResponse = self.client.ask(RANGE, &request).await?;
        self.client.book.count(ANSWERED);
        Ok(found.kvs.into_iter().map(|kv| kv.key).collect())
    }

    /// Renews these, which are answered in their order. How long each lasts now, in seconds.
    async fn renew(&mut self, ids: &[i64]) -> Result<Vec<i64>, Failure> {
        let (channel, mut stream) = match self.renewals.take() {
            Some(open) => open,
            None => {
                let channel = self.client.connection().await?;
                let begun = channel.try_begin(KEEP_ALIVE, &[]);
                let begun = tokio::time::timeout(PATIENCE_WITH_A_NODE, begun).await;
                let stream = begun.ok().and_then(Result::ok).ok_or(LOST)?;
                (channel, stream)
            }
        };
        let requests: Vec<_> = ids
            .iter()
            .map(|id| LeaseKeepAliveRequest { id: *id })
            .collect();
        stream.try_send(&requests).map_err(|_| LOST)?;
        let mut ttls = Vec::new();
        for id in ids {
            let answer = tokio::time::timeout(PATIENCE_WITH_A_NODE, stream.try_next()).await;
            // No leader, the node stops, or nothing comes.
            let answer: LeaseKeepAliveResponse = answer.ok().and_then(Result::ok).ok_or(LOST)?;
            if answer.id != *id {
                let wrong = format!("asked to renew {id:x}, it was answered for {:x}", answer.id);
                self.client.book.violation(wrong);
            }
            ttls.push(answer.ttl);
        }
        self.renewals = Some((channel, stream));
        Ok(ttls)
    }
}
