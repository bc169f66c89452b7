//! Client leases: grant, query, renew and revoke.
//!
//! A [`LeaseKeeper`] (`lease_keeper.rs`) keeps a lease alive.

use std::time::Duration;

use bytes::Bytes;

use super::deadline::{deadline_after, now};
use super::kept_lease::SendTime;
use super::lease_keeper::LeaseKeeper;
use super::response::unexpected_response;
use super::route::Errand;
use super::{Client, PutOptions, PutResponse, WhichLease};
use crate::api::{
    Consistency, Error, ErrorKind, LeaseGrantRequest, LeaseGrantResponse, LeaseInfo, LeaseKept,
    LeaseListRequest, LeaseRef, LeaseRevokeResponse, Outcome, PutRequest, Request, ResponseBody,
    validate,
};

/// Wait before a renewal that could not be decided is retried.
const UNDECIDED_WAIT: Duration = Duration::from_millis(25);

/// How a lease is granted.
#[derive(Clone, Debug, Default)]
pub struct LeaseGrantOptions {
    id: i64,
    name: String,
    owner: String,
}

impl LeaseGrantOptions {
    /// A lease whose id the cluster chooses.
    pub fn new() -> Self {
        Self::default()
    }
    /// Requests this id, which must be positive; fails with [`ErrorKind::LeaseExists`] if it is in
    /// use.
    #[must_use]
    pub fn with_id(mut self, id: i64) -> Self {
        self.id = id;
        self
    }
    /// Requests this name; fails with [`ErrorKind::LeaseExists`] if it is in use.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }
    /// The owner: a label for lists and operators.
    #[must_use]
    pub fn with_owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = owner.into();
        self
    }

    fn request(self, ttl: Duration) -> LeaseGrantRequest {
        LeaseGrantRequest {
            id: self.id,
            ttl_ms: i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX),
            name: self.name,
            owner: self.owner,
            granted_at_ms: 0,
        }
    }
}

/// How a lease is queried.
#[derive(Clone, Copy, Debug, Default)]
pub struct TimeToLiveOptions {
    keys: bool,
    consistency: Option<Consistency>,
}

impl TimeToLiveOptions {
    /// Without its keys.
    pub fn new() -> Self {
        Self::default()
    }
    /// With the keys that are attached to it.
    #[must_use]
    pub fn with_keys(mut self) -> Self {
        self.keys = true;
        self
    }
    /// Consistency of the answer. A serializable answer does not contain the remaining time.
    #[must_use]
    pub fn with_consistency(mut self, consistency: Consistency) -> Self {
        self.consistency = Some(consistency);
        self
    }
}

/// Which leases are listed.
#[derive(Clone, Debug, Default)]
pub struct LeaseListOptions {
    owner: String,
    name_prefix: String,
    consistency: Option<Consistency>,
}

impl LeaseListOptions {
    /// All leases.
    pub fn new() -> Self {
        Self::default()
    }
    /// Only leases of this owner.
    #[must_use]
    pub fn with_owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = owner.into();
        self
    }
    /// Only leases whose name starts with this prefix.
    #[must_use]
    pub fn with_name_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.name_prefix = prefix.into();
        self
    }
    /// Consistency of the answer. A serializable answer does not contain the remaining times.
    #[must_use]
    pub fn with_consistency(mut self, consistency: Consistency) -> Self {
        self.consistency = Some(consistency);
        self
    }
}

/// The lease operations of a [`Client`]. Cheap to clone, as the client is.
#[derive(Clone, Debug)]
pub struct LeaseClient {
    pub(super) client: Client,
}

impl Client {
    /// The lease operations.
    pub fn lease(&self) -> LeaseClient {
        LeaseClient {
            client: self.clone(),
        }
    }

    /// Grants a lease of `ttl` and writes `key` attached to it, in one step, and keeps the lease
    /// alive until the keeper is dropped.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// use std::time::Duration;
    ///
    /// let (_, keeper) = client.put_with_new_lease("here/7", "10.0.0.7:80", Duration::from_secs(10), None).await?;
    /// println!("there for {:?} at least", keeper.remaining());
    /// keeper.revoke().await?; // And gone, with the key.
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`Client::put`] and [`LeaseClient::grant`].
    ///
    /// # Cancel safety
    /// As [`Client::put`]; a lease that was granted nevertheless expires by itself.
    pub async fn put_with_new_lease(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
        ttl: Duration,
        options: Option<PutOptions>,
    ) -> Result<(PutResponse, LeaseKeeper), Error> {
        let options = options.unwrap_or_default();
        if !options.fences.is_empty() {
            return Err(Error::not_applied(
                ErrorKind::InvalidArgument,
                "a put with a lease of its own cannot be fenced: grant the lease first, then put \
                 with both",
            ));
        }
        let put = PutRequest {
            key: Bytes::copy_from_slice(key.as_ref()),
            value: value.into(),
            prev_kv: options.prev_kv,
            ..PutRequest::default()
        };
        let grant = LeaseGrantOptions::new().request(ttl);
        let sent = SendTime::now();
        let request = Request::PutWithNewLease(grant, put);
        let (header, body) = self.write(request, options.timeout).await?;
        match body {
            ResponseBody::PutWithNewLease(both) => {
                let keeper = LeaseKeeper::begin(self, both.grant.lease(), both.grant.ttl(), sent);
                let put = PutResponse {
                    header,
                    prev_kv: both.put.prev_kv,
                };
                Ok((put, keeper))
            }
            other => Err(unexpected_response(&other, Outcome::Unknown)),
        }
    }
}

impl LeaseGrantResponse {
    /// This very grant, and no later lease with the same id.
    pub fn lease(&self) -> LeaseRef {
        LeaseRef {
            id: self.id,
            grant_index: self.grant_index,
        }
    }

    /// Time to live without a renewal.
    pub fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }
}

impl LeaseClient {
    /// Grants a lease that lasts `ttl` without a renewal, or longer if `ttl` is below the cluster's
    /// minimum: the reply holds the granted time. The lease is not renewed automatically: see
    /// [`LeaseClient::keep_alive`].
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// use leasehold::client::{LeaseGrantOptions, PutOptions};
    /// use std::time::Duration;
    ///
    /// let options = LeaseGrantOptions::new().with_owner("billing");
    /// let lease = client.lease().grant(Duration::from_secs(30), Some(options)).await?;
    /// client.put("job", "mine", Some(PutOptions::new().with_lease(lease.lease()))).await?;
    /// println!("for {:?}, unless it is renewed", lease.ttl());
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`Client::put`]. [`ErrorKind::LeaseExists`] if the requested id or name is in use;
    /// [`ErrorKind::TtlOutOfRange`]; [`ErrorKind::LeaseLimit`] if there are too many leases.
    ///
    /// # Cancel safety
    /// As [`Client::put`]; a lease that was granted nevertheless expires by itself.
    pub async fn grant(
        &self,
        ttl: Duration,
        options: Option<LeaseGrantOptions>,
    ) -> Result<LeaseGrantResponse, Error> {
        self.grant_sent(ttl, options)
            .await
            .map(|(granted, _)| granted)
    }

    /// Grants a lease and keeps it alive until the keeper is dropped.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// use std::time::Duration;
    ///
    /// let (lease, keeper) = client.lease().grant_and_keep(Duration::from_secs(10), None).await?;
    /// assert!(keeper.is_alive() && keeper.lease() == lease.lease());
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`LeaseClient::grant`].
    ///
    /// # Cancel safety
    /// As [`LeaseClient::grant`].
    pub async fn grant_and_keep(
        &self,
        ttl: Duration,
        options: Option<LeaseGrantOptions>,
    ) -> Result<(LeaseGrantResponse, LeaseKeeper), Error> {
        let (granted, sent) = self.grant_sent(ttl, options).await?;
        let keeper = LeaseKeeper::begin(&self.client, granted.lease(), granted.ttl(), sent);
        Ok((granted, keeper))
    }

    async fn grant_sent(
        &self,
        ttl: Duration,
        options: Option<LeaseGrantOptions>,
    ) -> Result<(LeaseGrantResponse, SendTime), Error> {
        let request = Request::LeaseGrant(options.unwrap_or_default().request(ttl));
        // Read before the request is sent: the granted time counts from here at the latest (T12).
        let sent = SendTime::now();
        match self.client.write(request, None).await?.1 {
            ResponseBody::LeaseGrant(granted) => Ok((granted, sent)),
            other => Err(unexpected_response(&other, Outcome::Unknown)),
        }
    }

    /// Revokes a lease and deletes the keys attached to it. `lease` is an id, a name, or
    /// [`LeaseGrantResponse::lease`] for a lease that was granted here.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// use std::time::Duration;
    ///
    /// let lease = client.lease().grant(Duration::from_secs(10), None).await?;
    /// client.lease().revoke(lease.lease()).await?;
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`Client::put`]. [`ErrorKind::LeaseNotFound`] if there is no such lease, perhaps because
    /// an earlier attempt revoked it.
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn revoke(&self, lease: impl Into<WhichLease>) -> Result<LeaseRevokeResponse, Error> {
        let request = Request::LeaseRevoke(self.find_to_change(lease.into()).await?);
        match self.client.write(request, None).await?.1 {
            ResponseBody::LeaseRevoke(revoked) => Ok(revoked),
            other => Err(unexpected_response(&other, Outcome::Unknown)),
        }
    }

    /// Changes the time to live of a lease, from its next renewal on, and returns the new one. Time
    /// that was already promised is not taken back.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// use std::time::Duration;
    ///
    /// let lease = client.lease().grant(Duration::from_secs(10), None).await?;
    /// let ttl = client.lease().update_ttl(lease.lease(), Duration::from_secs(60)).await?;
    /// assert_eq!(ttl, Duration::from_secs(60));
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`LeaseClient::grant`] and [`LeaseClient::revoke`].
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn update_ttl(
        &self,
        lease: impl Into<WhichLease>,
        ttl: Duration,
    ) -> Result<Duration, Error> {
        let request = Request::LeaseUpdateTtl {
            lease: self.find_to_change(lease.into()).await?,
            ttl_ms: i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX),
        };
        match self.client.write(request, None).await?.1 {
            ResponseBody::LeaseUpdateTtl { ttl_ms } => Ok(Duration::from_millis(ttl_ms)),
            other => Err(unexpected_response(&other, Outcome::Unknown)),
        }
    }

    /// Renews a lease once. Returns its time to live, which counts from before this call.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// use std::time::Duration;
    ///
    /// let lease = client.lease().grant(Duration::from_secs(10), None).await?;
    /// let ttl = client.lease().keep_alive_once(lease.lease()).await?;
    /// println!("another {ttl:?}");
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// Outcome *not applied* if nothing was renewed. [`ErrorKind::LeaseNotFound`],
    /// [`ErrorKind::LeaseExpired`]; those of [`Client::get`].
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn keep_alive_once(&self, lease: impl Into<WhichLease>) -> Result<Duration, Error> {
        let lease = self.find_to_change(lease.into()).await?;
        Ok(self.renewed_once(lease).await?.1)
    }

    /// Renews a lease once. Also says which grant it is: another lease may have its id later (T14).
    async fn renewed_once(&self, lease: LeaseRef) -> Result<(LeaseRef, Duration), Error> {
        let timeout = self.client.inner.options.timeout;
        let deadline = deadline_after(timeout);
        loop {
            let left = deadline.saturating_duration_since(now());
            let kept = self.client.renew(vec![lease], left).await?;
            let kept = kept.first().copied().unwrap_or(LeaseKept::Undecided);
            let (kind, why) = match kept {
                LeaseKept::Renewed {
                    ttl_ms,
                    grant_index,
                    is_extended: _,
                } => {
                    let id = lease.id;
                    let renewed = match planted!(KeepsBareId) {
                        true => lease,
                        false => LeaseRef { id, grant_index },
                    };
                    return Ok((renewed, Duration::from_millis(ttl_ms)));
                }
                LeaseKept::NotFound => (ErrorKind::LeaseNotFound, "there is no such lease"),
                LeaseKept::Expired => (ErrorKind::LeaseExpired, "it was not renewed in time"),
                LeaseKept::Revoked => (ErrorKind::LeaseNotFound, "it was revoked"),
                LeaseKept::Undecided if left > UNDECIDED_WAIT => {
                    tokio::time::sleep(UNDECIDED_WAIT).await;
                    continue;
                }
                LeaseKept::Undecided => (
                    ErrorKind::DeadlineExceeded,
                    "it was not decided in time whether the lease has ended",
                ),
            };
            let detail = format!("lease {:016x} was not renewed: {why}", lease.id);
            return Err(Error::not_applied(kind, detail));
        }
    }

    /// Keeps a lease alive until the keeper is dropped. Renews it once, to learn its time to live, and
    /// which grant it is: if it ends and its id or its name is granted again, it is lost, and the next lease of
    /// that id or name is not renewed.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// use std::time::Duration;
    ///
    /// // A lease that another program granted, by its id, or by its name:
    /// let id = client.lease().grant(Duration::from_secs(10), None).await?.id;
    /// let keeper = client.lease().keep_alive(id).await?;
    /// assert!(keeper.is_alive());
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`LeaseClient::keep_alive_once`].
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn keep_alive(&self, lease: impl Into<WhichLease>) -> Result<LeaseKeeper, Error> {
        let lease = self.find_to_change(lease.into()).await?;
        let sent = SendTime::now();
        let (lease, ttl) = self.renewed_once(lease).await?;
        Ok(LeaseKeeper::begin(&self.client, lease, ttl, sent))
    }

    /// The state of a lease and its remaining time. `lease` is an id, a name, or
    /// [`LeaseGrantResponse::lease`].
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// use leasehold::client::TimeToLiveOptions;
    /// use std::time::Duration;
    ///
    /// let lease = client.lease().grant(Duration::from_secs(10), None).await?;
    /// let info = client.lease().time_to_live(lease.id, Some(TimeToLiveOptions::new().with_keys())).await?;
    /// println!("{:?} ms left, on {:?}", info.remaining_ms, info.keys);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`Client::get`]. [`ErrorKind::LeaseNotFound`].
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn time_to_live(
        &self,
        lease: impl Into<WhichLease>,
        options: Option<TimeToLiveOptions>,
    ) -> Result<LeaseInfo, Error> {
        let options = options.unwrap_or_default();
        let keys = options.keys;
        let consistency = options
            .consistency
            .unwrap_or(self.client.inner.options.consistency);
        let lease = self.find(lease.into(), consistency).await?;
        let request = Request::LeaseTimeToLive { id: lease.id, keys };
        match self.client.read(request, consistency, 0, None).await?.1 {
            ResponseBody::LeaseTimeToLive(info) if lease.means(info.grant_index) => Ok(*info),
            ResponseBody::LeaseTimeToLive(_) => Err(Error::not_applied(
                ErrorKind::LeaseNotFound,
                format!(
                    "lease {:016x} has ended; another lease has its id now",
                    lease.id
                ),
            )),
            other => Err(unexpected_response(&other, Outcome::NotApplied)),
        }
    }

    /// All leases, in the order of their ids. They are read one page at a time, so the list is not
    /// a snapshot of one moment.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// use leasehold::client::LeaseListOptions;
    ///
    /// let options = LeaseListOptions::new().with_owner("billing");
    /// for lease in client.lease().leases(Some(options)).await? {
    ///     println!("{:016x} {} has {} keys", lease.id, lease.name, lease.key_count);
    /// }
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`Client::get`].
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn leases(&self, options: Option<LeaseListOptions>) -> Result<Vec<LeaseInfo>, Error> {
        let options = options.unwrap_or_default();
        let consistency = options
            .consistency
            .unwrap_or(self.client.inner.options.consistency);
        let mut leases = Vec::new();
        let mut after = 0;
        loop {
            let request = Request::LeaseList(LeaseListRequest {
                after,
                limit: 0,
                owner: options.owner.clone(),
                name_prefix: options.name_prefix.clone(),
            });
            let page = match self.client.read(request, consistency, 0, None).await?.1 {
                ResponseBody::LeaseList(page) => page,
                other => return Err(unexpected_response(&other, Outcome::NotApplied)),
            };
            leases.extend(page.leases);
            match page.next {
                Some(next) => after = next,
                None => return Ok(leases),
            }
        }
    }

    /// The lease that has this name now: its id, and the index of its grant. Whatever is done with the result is
    /// about this lease, also when it has ended and another one has got the name.
    ///
    /// The calls that take a lease take a name, too, and ask this first; to do several things with one lease,
    /// ask once.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// use leasehold::client::LeaseGrantOptions;
    /// use std::time::Duration;
    ///
    /// # let name = "examples/server1Lease";
    /// let options = LeaseGrantOptions::new().with_name(name);
    /// let granted = client.lease().grant(Duration::from_secs(30), Some(options)).await?;
    ///
    /// // Elsewhere, by a program that knows the name:
    /// let lease = client.lease().named(name).await?;
    /// assert_eq!(lease, granted.lease());
    /// client.lease().keep_alive_once(lease).await?;
    /// client.lease().revoke(lease).await?;
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`Client::get`]. [`ErrorKind::LeaseNotFound`] if no lease has the name.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn named(&self, name: impl Into<String>) -> Result<LeaseRef, Error> {
        self.look_up(name.into(), self.client.inner.options.consistency)
            .await
    }

    async fn look_up(&self, name: String, consistency: Consistency) -> Result<LeaseRef, Error> {
        let request = Request::LeaseNamed { name };
        match self.client.read(request, consistency, 0, None).await?.1 {
            ResponseBody::LeaseNamed(lease) => Ok(lease),
            other => Err(unexpected_response(&other, Outcome::NotApplied)),
        }
    }

    /// The lease that is meant, by a read with this consistency if it is known by its name.
    async fn find(&self, which: WhichLease, consistency: Consistency) -> Result<LeaseRef, Error> {
        match which {
            WhichLease::Lease(lease) => Ok(lease),
            WhichLease::Named(name) => self.look_up(name, consistency).await,
        }
    }

    /// The lease that a change or a renewal is about, as it is now.
    async fn find_to_change(&self, which: WhichLease) -> Result<LeaseRef, Error> {
        self.find(which, Consistency::Linearizable).await
    }
}

impl Client {
    /// Renews leases in one request; returns the result for each.
    pub(super) async fn renew(
        &self,
        leases: Vec<LeaseRef>,
        timeout: Duration,
    ) -> Result<Vec<LeaseKept>, Error> {
        let request = Request::LeaseKeepAlive(leases);
        validate(&request, &self.inner.options.limits)?;
        let errand = Errand {
            request,
            consistency: Consistency::Linearizable,
            min_revision: 0,
            ticket: None,
            timeout,
            only: None,
            context: self.context,
        };
        let response = self.inner.router.run(errand).await;
        match response.map_err(|failed| failed.error)?.body {
            ResponseBody::LeaseKeepAlive(kept) => Ok(kept),
            other => Err(unexpected_response(&other, Outcome::NotApplied)),
        }
    }
}

impl From<i64> for LeaseRef {
    /// The lease that has this id now.
    fn from(id: i64) -> Self {
        Self::id(id)
    }
}
