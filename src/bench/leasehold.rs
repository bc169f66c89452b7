//! leasehold under load, through the SDK as any program uses it.
//!
//! Every connection is a client of its own: own socket, own handshake, own session. Retries are the
//! SDK's, and a request's latency contains them.

use bytes::Bytes;

use super::store::{Answer, Connector, Store, Trouble};
use crate::api::{Consistency, Error, ResponseHeader};
use crate::cli::arguments::bench::LoadTarget;
use crate::cli::connection::Target;
use crate::cli::failure::Failure;
use crate::client::{Client, ConnectOptions, GetOptions, TlsOptions};

/// Connects to one cluster.
#[derive(Clone, Debug)]
pub struct Leasehold {
    target: Target,
    spread: bool,
}

impl Leasehold {
    /// To the cluster that `target` names. Where it matters, requests go to the leader, or are
    /// spread over all endpoints, as `whom` says.
    ///
    /// # Errors
    /// Nobody can be reached.
    pub async fn find(target: &Target, whom: LoadTarget) -> Result<Self, Failure> {
        let mut found = Self {
            target: target.clone(),
            spread: whom == LoadTarget::Any,
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
/// Nobody can be reached.
pub async fn connect(target: &Target) -> Result<Client, Failure> {
    let options = ConnectOptions::new()
        .with_tls(tls(target))
        .with_timeout(target.timeout)
        .with_connect_timeout(target.timeout)
        .with_client_name("leasehold-bench");
    Ok(Client::connect(target.endpoints.iter().cloned(), Some(options)).await?)
}

/// The cluster that `target` names, with all its members.
///
/// # Errors
/// Nobody can be reached.
pub async fn with_all_members(target: &Target) -> Result<Target, Failure> {
    let client = connect(target).await?;
    let mut found = target.clone();
    for endpoint in &target.endpoints {
        let Ok(answer) = client.status(endpoint).await else {
            continue;
        };
        let members = answer.status.members.into_iter();
        let known: Vec<String> = members
            .map(|member| member.client_address)
            .filter(|address| !address.is_empty())
            .collect();
        if !known.is_empty() {
            found.endpoints = known;
        }
        break;
    }
    client.close().await;
    Ok(found)
}

/// The certificates that `target` names.
pub fn tls(target: &Target) -> TlsOptions {
    TlsOptions::new()
        .ca_pem_file(&target.cacert)
        .identity_pem_files(&target.cert, &target.key)
}

impl Connector for Leasehold {
    type Store = Client;

    fn name(&self) -> &'static str {
        "leasehold"
    }

    async fn connect(&self, number: usize) -> Result<Client, Failure> {
        let mut target = self.target.clone();
        if self.spread && !target.endpoints.is_empty() {
            let first = number % target.endpoints.len();
            target.endpoints.rotate_left(first);
        }
        connect(&target).await
    }
}

impl Store for Client {
    async fn get(&self, key: &Bytes, consistency: Consistency) -> Result<Answer, Trouble> {
        let options = GetOptions::new().with_consistency(consistency);
        let got = Self::get(self, key, Some(options)).await?;
        Ok(Answer {
            found: !got.kvs.is_empty(),
            ..answer(&got.header)
        })
    }

    async fn put(&self, key: &Bytes, value: &Bytes) -> Result<Answer, Trouble> {
        let put = Self::put(self, key, value.clone(), None).await?;
        Ok(answer(&put.header))
    }

    async fn close(&self) {
        Self::close(self).await;
    }
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
