//! etcd behind the benches' store.

use std::time::Duration;

use bytes::Bytes;

use super::leases::Renewer;
use super::messages::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseRevokeRequest, LeaseRevokeResponse,
    MoveLeaderRequest, MoveLeaderResponse, PutRequest, PutResponse, RangeRequest, RangeResponse,
    ResponseHeader, StatusRequest, StatusResponse,
};
use super::rpc::{Channel, Rpc};
use super::watches::{EtcdWatch, Watches};
use leasehold::api::Consistency;
use leasehold::bench::store::{Answer, Connection, Renewal, Store, Trouble, WatchTarget};
use leasehold::cli::arguments::bench::LoadTarget;
use leasehold::cli::failure::{Exit, Failure};

/// Connects to one etcd cluster.
#[derive(Clone, Debug)]
pub(crate) struct EtcdConnector {
    /// Where connections go, in turns.
    endpoints: Vec<String>,
    timeout: Duration,
}

/// A connection to one member of an etcd cluster.
#[derive(Debug)]
pub(crate) struct EtcdConnection {
    channel: Channel,
    renewer: Renewer,
    watches: Watches,
}

/// What a member says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EtcdStatus {
    /// The member.
    pub(crate) member: u64,
    /// The leader that it reports; 0 for none.
    pub(crate) leader: u64,
    /// In which term.
    pub(crate) term: u64,
    /// Its version.
    pub(crate) version: String,
}

impl EtcdConnector {
    /// To the cluster behind `endpoints`: to its leader, or to all of them in turns.
    ///
    /// # Errors
    /// No node can be reached, or the leader is not among them.
    pub(crate) async fn find(
        endpoints: &[String],
        whom: LoadTarget,
        timeout: Duration,
    ) -> Result<Self, Failure> {
        let endpoints: Vec<String> = endpoints
            .iter()
            .map(|endpoint| endpoint.trim_start_matches("http://").to_owned())
            .collect();
        let connector = Self { endpoints, timeout };
        if whom == LoadTarget::Any {
            return Ok(connector);
        }
        let mut troubles = Vec::new();
        for endpoint in &connector.endpoints {
            match status_of(endpoint, timeout).await {
                Ok(status) if status.leader == status.member => {
                    return Ok(Self {
                        endpoints: vec![endpoint.clone()],
                        timeout,
                    });
                }
                Ok(_) => troubles.push(format!("{endpoint} does not lead")),
                Err(trouble) => troubles.push(trouble.detail),
            }
        }
        Err(Failure::new(
            Exit::NotConnected,
            format!(
                "etcd's leader is not found: {}; name all its members with --peer-endpoints",
                troubles.join(", ")
            ),
        ))
    }
}

async fn status_of(endpoint: &str, timeout: Duration) -> Result<EtcdStatus, Trouble> {
    EtcdConnection::new(endpoint, timeout)?.status().await
}

impl Store for EtcdConnector {
    type Connection = EtcdConnection;

    fn name(&self) -> &'static str {
        "etcd"
    }

    async fn connect(&self, number: usize) -> Result<EtcdConnection, Failure> {
        let endpoint = &self.endpoints[number % self.endpoints.len().max(1)];
        let refused = |trouble: Trouble| Failure::new(Exit::NotConnected, trouble.detail);
        let connection = EtcdConnection::new(endpoint, self.timeout).map_err(refused)?;
        connection.channel.connect().await.map_err(refused)?;
        Ok(connection)
    }
}

impl EtcdConnection {
    /// To the member at `endpoint` (`host:port`), made when it is needed, and again when it broke.
    /// A request may take as long as `timeout`.
    ///
    /// # Errors
    /// That is no endpoint.
    pub(crate) fn new(endpoint: &str, timeout: Duration) -> Result<Self, Trouble> {
        Ok(Self {
            channel: Channel::new(endpoint, timeout)?,
            renewer: Renewer::default(),
            watches: Watches::default(),
        })
    }

    /// How this member is.
    ///
    /// # Errors
    /// It does not answer.
    pub(crate) async fn status(&self) -> Result<EtcdStatus, Trouble> {
        let status: StatusResponse = self.channel.call(Rpc::Status, &StatusRequest {}).await?;
        Ok(EtcdStatus {
            member: status.header.unwrap_or_default().member_id,
            leader: status.leader,
            term: status.raft_term,
            version: status.version,
        })
    }

    /// Has this member, which must lead, hand leadership to `target`.
    ///
    /// # Errors
    /// It does not lead, or does not answer.
    pub(crate) async fn move_leader(&self, target: u64) -> Result<(), Trouble> {
        let request = MoveLeaderRequest { target };
        let _: MoveLeaderResponse = self.channel.call(Rpc::MoveLeader, &request).await?;
        Ok(())
    }
}

impl Connection for EtcdConnection {
    type Watch = EtcdWatch;

    async fn get(&self, key: &Bytes, consistency: Consistency) -> Result<Answer, Trouble> {
        let request = RangeRequest {
            key: key.clone(),
            serializable: consistency == Consistency::Serializable,
        };
        let range: RangeResponse = self.channel.call(Rpc::Range, &request).await?;
        Ok(Answer {
            found: !range.kvs.is_empty(),
            ..answer(range.header)
        })
    }

    async fn put(&self, key: &Bytes, value: &Bytes) -> Result<Answer, Trouble> {
        let request = PutRequest {
            key: key.clone(),
            value: value.clone(),
            lease: 0,
        };
        let put: PutResponse = self.channel.call(Rpc::Put, &request).await?;
        Ok(answer(put.header))
    }

    /// Two requests if there is a key: etcd has none that does both.
    async fn grant(&self, ttl: Duration, key: Option<Bytes>) -> Result<i64, Trouble> {
        let asked = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
        let request = LeaseGrantRequest { ttl: asked, id: 0 };
        let granted: LeaseGrantResponse = self.channel.call(Rpc::LeaseGrant, &request).await?;
        // A lease that etcd made longer would seem to expire late.
        if granted.ttl != asked {
            return Err(Trouble {
                code: "other-ttl",
                detail: format!(
                    "etcd makes a lease of {asked}s one of {}s: ask for a longer one",
                    granted.ttl
                ),
            });
        }
        if let Some(key) = key {
            let request = PutRequest {
                key,
                value: Bytes::new(),
                lease: granted.id,
            };
            let _: PutResponse = self.channel.call(Rpc::Put, &request).await?;
        }
        Ok(granted.id)
    }

    async fn renew(&self, leases: &[i64]) -> Result<Renewal, Trouble> {
        self.renewer.renew(&self.channel, leases).await
    }

    async fn revoke(&self, lease: i64) -> Result<(), Trouble> {
        let request = LeaseRevokeRequest { id: lease };
        let _: LeaseRevokeResponse = self.channel.call(Rpc::LeaseRevoke, &request).await?;
        Ok(())
    }

    async fn watch(&self, what: WatchTarget) -> Result<EtcdWatch, Failure> {
        self.watches.open(&self.channel, what).await
    }

    async fn close(&self) {
        self.channel.close();
    }
}

fn answer(header: Option<ResponseHeader>) -> Answer {
    Answer {
        revision: header.unwrap_or_default().revision,
        path: None,
        found: true,
    }
}
