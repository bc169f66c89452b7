//! leasehold under load, through the SDK as any program uses it.
//!
//! Every connection is a client of its own: own socket, own handshake, own session. Retries are the
//! SDK's, and a request's latency contains them.

use std::time::Duration;

use bytes::Bytes;

use super::store::{
    Answer, Change, Connection, Renewal, Store, Trouble, Watch, WatchEvent, WatchTarget,
};
use crate::api::{
    Consistency, Error, ErrorKind, LeaseGrantRequest, LeaseKept, LeaseRef, PutRequest, Request,
    ResponseBody, ResponseHeader,
};
use crate::cli::arguments::bench::LoadTarget;
use crate::cli::connection::Target;
use crate::cli::failure::Failure;
use crate::client::WatchEvent as ClientEvent;
use crate::client::{
    Client, ConnectOptions, GetOptions, RetryPolicy, TlsOptions, WatchOptions, Watcher,
};

/// How long opening a watch may take.
const WATCH_PATIENCE: Duration = Duration::from_secs(120);
/// Bytes that a watch of deletes buffers while this process is busy.
const WATCH_BYTES: usize = 64 << 20;
/// How often a renewal that is undecided is repeated, and the pause before each repetition.
const UNDECIDED_TRIES: u32 = 40;
const UNDECIDED_WAIT: Duration = Duration::from_millis(25);

/// One cluster.
#[derive(Clone, Debug)]
pub struct Leasehold {
    target: Target,
    spread: bool,
    timeout: Duration,
    retry: RetryPolicy,
    watch_at: Option<String>,
}

/// A connection to the cluster: a client of its own.
#[derive(Clone, Debug)]
pub struct LeaseholdConnection {
    client: Client,
    watch_at: Option<String>,
}

impl Leasehold {
    /// The cluster that `target` names. Every connection goes to the first endpoint that answers.
    pub fn at(target: &Target) -> Self {
        Self {
            target: target.clone(),
            spread: false,
            timeout: target.timeout,
            retry: RetryPolicy::default(),
            watch_at: None,
        }
    }

    /// Sets the timeout of requests.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Turns retries off.
    #[must_use]
    pub fn without_retries(mut self) -> Self {
        self.retry = RetryPolicy::never();
        self
    }

    /// Opens watches at this endpoint; with `None`, wherever the client is connected.
    #[must_use]
    pub fn with_watches_at(mut self, endpoint: Option<String>) -> Self {
        self.watch_at = endpoint;
        self
    }

    /// To the cluster that `target` names. Where it matters, requests go to the leader, or are
    /// spread over all endpoints, as `whom` says.
    ///
    /// # Errors
    /// No node can be reached.
    pub async fn find(target: &Target, whom: LoadTarget) -> Result<Self, Failure> {
        let mut found = Self {
            spread: whom == LoadTarget::Any,
            ..Self::at(target)
        };
        if found.spread {
            return Ok(found);
        }
        // The leader first: a client goes to the first endpoint that answers, until it knows more.
        let client = connect(&found.target).await?;
        for endpoint in &target.endpoints {
            let Ok(answer) = client.status(endpoint).await else {
                continue;
            };
            if answer.header.leader_id == Some(answer.header.member_id) {
                let endpoints = &mut found.target.endpoints;
                let at = endpoints
                    .iter()
                    .position(|known| known == endpoint)
                    .unwrap_or(0);
                endpoints.rotate_left(at);
                break;
            }
        }
        client.close().await;
        Ok(found)
    }
}

impl Leasehold {
    /// The cluster.
    pub fn target(&self) -> &Target {
        &self.target
    }
}

/// A client of the cluster that `target` names.
///
/// # Errors
/// No node can be reached.
pub async fn connect(target: &Target) -> Result<Client, Failure> {
    Ok(Client::connect(target.endpoints.iter().cloned(), Some(options(target))).await?)
}

fn options(target: &Target) -> ConnectOptions {
    ConnectOptions::new()
        .with_tls(tls(target))
        .with_timeout(target.timeout)
        .with_connect_timeout(target.connect_timeout)
        .with_client_name("leasehold-bench")
}

/// The cluster that `target` names, with all its members. If no node knows the addresses of all of
/// them yet, the endpoints stay those of `target`.
///
/// # Errors
/// No node can be reached.
pub async fn with_all_members(target: &Target) -> Result<Target, Failure> {
    let client = connect(target).await?;
    let mut found = target.clone();
    for endpoint in &target.endpoints {
        let Ok(answer) = client.status(endpoint).await else {
            continue;
        };
        let members = answer.status.members.into_iter();
        if let Some(all) = addresses(members.map(|member| member.client_address)) {
            found.endpoints = all;
            break;
        }
    }
    client.close().await;
    Ok(found)
}

/// The addresses of all members; `None` if one is not known, because its peer has not heard of it yet: a
/// list without it may lack the leader.
fn addresses(of_members: impl Iterator<Item = String>) -> Option<Vec<String>> {
    let all: Vec<String> = of_members.collect();
    let is_known = !all.is_empty() && all.iter().all(|address| !address.is_empty());
    is_known.then_some(all)
}

/// The certificates that `target` names.
pub fn tls(target: &Target) -> TlsOptions {
    TlsOptions::new()
        .ca_pem_file(&target.cacert)
        .identity_pem_files(&target.cert, &target.key)
}

impl Store for Leasehold {
    type Connection = LeaseholdConnection;

    fn name(&self) -> &'static str {
        "leasehold"
    }

    async fn connect(&self, number: usize) -> Result<LeaseholdConnection, Failure> {
        let mut target = self.target.clone();
        if self.spread && !target.endpoints.is_empty() {
            let first = number % target.endpoints.len();
            target.endpoints.rotate_left(first);
        }
        let options = options(&target)
            .with_timeout(self.timeout)
            .with_retry(self.retry);
        let endpoints = target.endpoints.iter().cloned();
        Ok(LeaseholdConnection {
            client: Client::connect(endpoints, Some(options)).await?,
            watch_at: self.watch_at.clone(),
        })
    }
}

impl Connection for LeaseholdConnection {
    type Watch = Watcher;

    async fn get(&self, key: &Bytes, consistency: Consistency) -> Result<Answer, Trouble> {
        let options = GetOptions::new().with_consistency(consistency);
        let got = self.client.get(key, Some(options)).await?;
        Ok(Answer {
            found: !got.kvs.is_empty(),
            ..answer(&got.header)
        })
    }

    async fn put(&self, key: &Bytes, value: &Bytes) -> Result<Answer, Trouble> {
        let put = self.client.put(key, value.clone(), None).await?;
        Ok(answer(&put.header))
    }

    async fn grant(&self, ttl: Duration, key: Option<Bytes>) -> Result<i64, Trouble> {
        let grant = LeaseGrantRequest {
            ttl_ms: i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX),
            ..LeaseGrantRequest::default()
        };
        let request = match key {
            None => Request::LeaseGrant(grant),
            Some(key) => {
                let put = PutRequest {
                    key,
                    ..PutRequest::default()
                };
                Request::PutWithNewLease(grant, put)
            }
        };
        let response = self.client.call(request, Consistency::Linearizable).await?;
        match response.body {
            ResponseBody::LeaseGrant(granted) => Ok(granted.id),
            ResponseBody::PutWithNewLease(both) => Ok(both.grant.id),
            _ => Err(unexpected()),
        }
    }

    async fn renew(&self, leases: &[i64]) -> Result<Renewal, Trouble> {
        let all: Vec<LeaseRef> = leases.iter().map(|id| LeaseRef::id(*id)).collect();
        for _ in 0..UNDECIDED_TRIES {
            let request = Request::LeaseKeepAlive(all.clone());
            let response = self.client.call(request, Consistency::Linearizable).await?;
            let ResponseBody::LeaseKeepAlive(kept) = response.body else {
                return Err(unexpected());
            };
            if !kept.contains(&LeaseKept::Undecided) {
                let renewed = |kept: &LeaseKept| matches!(kept, LeaseKept::Renewed { .. });
                return Ok(Renewal {
                    revision: response.header.revision,
                    kept: kept.iter().map(renewed).collect(),
                });
            }
            tokio::time::sleep(UNDECIDED_WAIT).await;
        }
        let detail = "the leader did not decide in time whether some leases have expired";
        Err(Error::not_applied(ErrorKind::DeadlineExceeded, detail).into())
    }

    async fn revoke(&self, lease: i64) -> Result<(), Trouble> {
        self.client.lease().revoke(LeaseRef::id(lease)).await?;
        Ok(())
    }

    async fn watch(&self, what: WatchTarget) -> Result<Watcher, Failure> {
        let options = WatchOptions::new().with_timeout(WATCH_PATIENCE);
        let (key, mut options) = match what {
            WatchTarget::Key { key, start } => (key, options.with_start_revision(start)),
            WatchTarget::Deletes { prefix } => {
                let deletes = options.with_prefix().with_no_put();
                (prefix.into(), deletes.with_buffer(WATCH_BYTES))
            }
        };
        if let Some(endpoint) = &self.watch_at {
            options = options.with_endpoint(endpoint);
        }
        Ok(self.client.watch(key, Some(options)).await?)
    }

    async fn close(&self) {
        self.client.close().await;
    }
}

impl Watch for Watcher {
    async fn next(&mut self) -> Result<WatchEvent, Failure> {
        let Some(event) = self.next().await else {
            return Err(Failure::refused("a watch ended"));
        };
        Ok(match event? {
            ClientEvent::Events { revision, events } => WatchEvent::Changes {
                revision,
                changes: events
                    .into_iter()
                    .map(|event| Change {
                        key: event.kv.key,
                        version: event.kv.version,
                        value: event.kv.value,
                    })
                    .collect(),
            },
            ClientEvent::Resumed { .. } => WatchEvent::Resumed,
            _ => WatchEvent::Other,
        })
    }
}

fn unexpected() -> Trouble {
    Error::not_applied(
        ErrorKind::Internal,
        "the response is of another kind than the request",
    )
    .into()
}

fn answer(header: &ResponseHeader) -> Answer {
    Answer {
        revision: header.revision,
        path: header.read.map(|read| read.path),
        found: true,
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self {
            code: error.code(),
            detail: error.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_members_that_lacks_an_address_is_not_all_of_them() {
        let of = |all: &[&str]| addresses(all.iter().map(|address| (*address).to_owned()));
        assert_eq!(of(&["a:1", "b:1"]), Some(vec!["a:1".into(), "b:1".into()]));
        assert_eq!(of(&["a:1", ""]), None);
        assert_eq!(of(&[]), None);
    }
}
