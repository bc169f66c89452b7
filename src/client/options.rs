//! Options: how a client connects, and how each request is made.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;

use crate::api::{
    Consistency, Error, ErrorKind, Fence, KeyRange, LeaseTarget, Limits, RangeCount, RangeRequest,
    Secret, SortOrder, SortTarget,
};
use crate::client::discovery::SrvDiscovery;
use crate::client::kept_lease::KeepAliveOptions;
use crate::client::login::Means;
use crate::client::selector::{Selector, selects_keys};
use crate::client::which_lease::WhichLease;
use crate::transport::{Tls, TlsError, TlsPaths};

/// How a [`Client`](crate::client::Client) connects, and the defaults of its requests.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    pub(super) tls: Option<TlsOptions>,
    pub(super) timeout: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) consistency: Consistency,
    pub(super) retry: RetryPolicy,
    pub(super) client_name: String,
    pub(super) exactly_once: bool,
    pub(super) limits: Limits,
    pub(super) login: Option<Means>,
    pub(super) auto_sync_interval: Duration,
    pub(super) keep_alive: KeepAliveOptions,
    pub(super) monotonic: bool,
    pub(super) spans: bool,
    pub(super) discovery: Option<SrvDiscovery>,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            tls: None,
            timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(5),
            consistency: Consistency::Linearizable,
            retry: RetryPolicy::default(),
            client_name: format!("leasehold-rust/{}", env!("CARGO_PKG_VERSION")),
            exactly_once: true,
            limits: Limits::DEFAULT,
            login: None,
            auto_sync_interval: Duration::from_secs(30),
            keep_alive: KeepAliveOptions::default(),
            monotonic: true,
            spans: false,
            discovery: None,
        }
    }
}

impl ConnectOptions {
    /// The defaults. Certificates must be added: a connection cannot be made without them.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the certificates to connect with.
    #[must_use]
    pub fn with_tls(mut self, tls: TlsOptions) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Finds the endpoints in service records of DNS, for a client that is given none. They are looked up once,
    /// when it connects.
    #[must_use]
    pub fn with_discovery(mut self, discovery: SrvDiscovery) -> Self {
        self.discovery = Some(discovery);
        self
    }

    /// Authenticates as this user, with a password, instead of by the name in the certificate.
    /// Ignored where access control is off.
    #[must_use]
    pub fn with_user(mut self, name: impl Into<String>, password: impl Into<Vec<u8>>) -> Self {
        self.login = Some(Means::Password {
            name: name.into(),
            password: Secret::new(password),
        });
        self
    }

    /// Authenticates by a token that [`AuthClient::authenticate`](super::AuthClient::authenticate)
    /// returned, or by one of an issuer that the cluster trusts. Once the token has expired, requests fail with [`ErrorKind::TokenExpired`].
    #[must_use]
    pub fn with_token(mut self, token: Secret) -> Self {
        self.login = Some(Means::Token(token));
        self
    }

    /// Authenticates by the token in this file, as an issuer that the cluster trusts gives it
    /// (OpenID Connect). The file is read for each connection, and again when its token has expired:
    /// replace it in time, as a token that Kubernetes projects is. Blanks around the token do not
    /// count.
    #[must_use]
    pub fn with_token_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.login = Some(Means::TokenFile(path.into()));
        self
    }

    /// Default timeout of a request, retries included. The server receives it with the request.
    /// Default: 2 s.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Timeout of one attempt to connect to one endpoint. Default: 5 s, which is also the maximum.
    #[must_use]
    pub fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Default consistency of reads. Default: linearizable.
    #[must_use]
    pub fn with_consistency(mut self, consistency: Consistency) -> Self {
        self.consistency = consistency;
        self
    }

    /// Sets how failed attempts are retried.
    #[must_use]
    pub fn with_retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    /// Interval between updates of the member list, which let the client find the cluster even when
    /// none of its original endpoints is left. The list is also updated when the leader changes,
    /// and at once by [`Client::sync_endpoints`](super::Client::sync_endpoints). Default: 30 s; the
    /// minimum is 100 ms; [`Duration::ZERO`] turns periodic updates off.
    #[must_use]
    pub fn with_auto_sync_interval(mut self, interval: Duration) -> Self {
        self.auto_sync_interval = interval;
        self
    }

    /// Whether no read of this client shows an older state of keys than it has seen before, in a reply or an
    /// event, whichever node answers. Only [`Consistency::Serializable`] and
    /// [`Consistency::MaxStaleness`] could, and initial states of watches: they are then read at another
    /// node, and fail with [`ErrorKind::FutureRevision`] if none that can be reached is new enough by
    /// the deadline, or at once with [`RetryPolicy::never`]. Reads at a given revision and at a given node ([`GetOptions::with_endpoint`]) are
    /// left alone. Default: true.
    #[must_use]
    pub fn with_monotonic(mut self, monotonic: bool) -> Self {
        self.monotonic = monotonic;
        self
    }

    /// How leases are kept alive: all those of this client's keepers and sessions.
    #[must_use]
    pub fn with_keep_alive(mut self, options: KeepAliveOptions) -> Self {
        self.keep_alive = options;
        self
    }

    /// The name of this client in the servers' logs. It is not an identity: that is in the
    /// certificate.
    #[must_use]
    pub fn with_client_name(mut self, name: impl Into<String>) -> Self {
        self.client_name = name.into();
        self
    }

    /// Whether writes carry a sequence number by which the cluster recognises a retry, so that each
    /// write is applied at most once however often it is sent. Default: true. Without it, a write
    /// whose reply was lost is not retried but fails with outcome *unknown*.
    #[must_use]
    pub fn with_exactly_once(mut self, exactly_once: bool) -> Self {
        self.exactly_once = exactly_once;
        self
    }

    /// Whether each request has a span of the crate `tracing`, `leasehold.request` at level INFO, within the span that
    /// the caller is in. Its fields are `method`, and at the end `outcome`, `code` and `attempts` of one that failed, and the
    /// `member` that answered; never a key, a value or a user. Default: false.
    #[must_use]
    pub fn with_spans(mut self, spans: bool) -> Self {
        self.spans = spans;
        self
    }

    /// Size limits that are checked before a request is sent; for servers whose limits were raised.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }
}

/// The certificates of a client: its certificate authority and its own identity.
#[derive(Clone, Default)]
pub struct TlsOptions {
    ca: Option<Source>,
    identity: Option<(Source, Source)>,
}

#[derive(Clone)]
enum Source {
    File(PathBuf),
    Pem(Bytes),
}

impl std::fmt::Debug for TlsOptions {
    /// Prints where the certificates come from, never their contents.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let of = |source: &Source| match source {
            Source::File(path) => path.display().to_string(),
            Source::Pem(_) => "***".to_string(),
        };
        f.debug_struct("TlsOptions")
            .field("ca", &self.ca.as_ref().map(of))
            .field("identity", &self.identity.as_ref().map(|pair| of(&pair.0)))
            .finish()
    }
}

impl TlsOptions {
    /// No certificates yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The file with the certificate of the authority that signs the servers' certificates.
    #[must_use]
    pub fn ca_pem_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca = Some(Source::File(path.into()));
        self
    }

    /// The certificate of that authority, from memory.
    #[must_use]
    pub fn ca_pem(mut self, pem: impl Into<Bytes>) -> Self {
        self.ca = Some(Source::Pem(pem.into()));
        self
    }

    /// The files with this client's certificate and its private key. The key file may be readable
    /// only by its owner.
    #[must_use]
    pub fn identity_pem_files(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.identity = Some((Source::File(certificate.into()), Source::File(key.into())));
        self
    }

    /// This client's certificate and private key, from memory.
    #[must_use]
    pub fn identity_pem(mut self, certificate: impl Into<Bytes>, key: impl Into<Bytes>) -> Self {
        self.identity = Some((Source::Pem(certificate.into()), Source::Pem(key.into())));
        self
    }

    /// The files, if everything comes from files. Files may change while the client runs.
    pub(super) fn paths(&self) -> Option<TlsPaths> {
        match (&self.ca, &self.identity) {
            (Some(Source::File(ca)), Some((Source::File(certificate), Source::File(key)))) => {
                Some(TlsPaths {
                    ca: ca.clone(),
                    certificate: certificate.clone(),
                    key: key.clone(),
                    crl: None,
                })
            }
            _ => None,
        }
    }

    pub(super) fn load(&self) -> Result<Tls, Error> {
        let (Some(ca), Some((certificate, key))) = (&self.ca, &self.identity) else {
            return Err(Error::not_applied(
                ErrorKind::InvalidArgument,
                "a connection needs the authority's certificate, and a client certificate with its \
                 key: set both in TlsOptions",
            ));
        };
        let loaded = match self.paths() {
            Some(paths) => Tls::load(&paths),
            // A mixture of files and bytes: the contents are the same, but messages cannot name the
            // files.
            None => ca
                .bytes()
                .and_then(|ca| Tls::from_pem(&ca, &certificate.bytes()?, &key.bytes()?)),
        };
        loaded.map_err(|error| Error::not_applied(ErrorKind::InvalidArgument, error.to_string()))
    }
}

impl Source {
    fn bytes(&self) -> Result<Bytes, TlsError> {
        match self {
            Self::Pem(pem) => Ok(pem.clone()),
            Self::File(path) => {
                std::fs::read(path)
                    .map(Bytes::from)
                    .map_err(|error| TlsError::Unreadable {
                        path: path.display().to_string(),
                        reason: error.to_string(),
                    })
            }
        }
    }
}

/// The wait between attempts. Without a limit on their number, attempts end at the request's
/// deadline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryPolicy {
    pub(super) back_off_min: Duration,
    pub(super) back_off_max: Duration,
    pub(super) attempts_max: u32,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            back_off_min: Duration::from_millis(25),
            back_off_max: Duration::from_secs(1),
            attempts_max: u32::MAX,
        }
    }
}

impl RetryPolicy {
    /// The default: 25 ms, doubled after each attempt up to 1 s, with a jitter of a fifth.
    pub fn new() -> Self {
        Self::default()
    }

    /// No retry, not even at another node.
    pub fn never() -> Self {
        Self {
            attempts_max: 1,
            ..Self::default()
        }
    }

    /// The shortest and the longest wait between two attempts.
    #[must_use]
    pub fn with_back_off(mut self, min: Duration, max: Duration) -> Self {
        self.back_off_min = min;
        self.back_off_max = max.max(min);
        self
    }

    /// The maximum number of attempts; at least one is made.
    #[must_use]
    pub fn with_attempts_max(mut self, attempts_max: u32) -> Self {
        self.attempts_max = attempts_max.max(1);
        self
    }

    /// The wait before attempt number `attempt` (the second is 1), without jitter.
    pub(super) fn back_off(&self, attempt: u32) -> Duration {
        let doublings = attempt.saturating_sub(1).min(16);
        self.back_off_min
            .saturating_mul(1 << doublings)
            .min(self.back_off_max)
    }
}

/// How a read is made.
#[derive(Clone, Debug, Default)]
pub struct GetOptions {
    pub(super) selector: Selector,
    /// The filters of the range, without the keys.
    pub(super) request: RangeRequest,
    pub(super) is_counted: bool,
    pub(super) consistency: Option<Consistency>,
    pub(super) min_revision: i64,
    pub(super) endpoint: Option<String>,
    pub(super) timeout: Option<Duration>,
}

impl GetOptions {
    /// One key, with its value.
    pub fn new() -> Self {
        Self::default()
    }

    /// What is counted of `range`.
    pub(super) fn count(&self, range: &KeyRange) -> RangeCount {
        let is_counted = self.is_counted || *range == KeyRange::Single;
        match self.request.count {
            RangeCount::All if !is_counted => RangeCount::ToLimit,
            count => count,
        }
    }
    selects_keys!();
    /// At most this many keys, the first ones in sort order; 0 means no limit.
    #[must_use]
    pub fn with_limit(mut self, limit: u64) -> Self {
        self.request.limit = limit;
        self
    }
    /// Returns keys without values.
    #[must_use]
    pub fn with_keys_only(mut self) -> Self {
        self.request.keys_only = true;
        self
    }
    /// Counts all keys of the range, whatever the limit: [`GetResponse::count`](super::GetResponse::count). What is
    /// beyond the limit is walked over for that, so it is not done unless it is asked for.
    #[must_use]
    pub fn with_count(mut self) -> Self {
        self.is_counted = true;
        self
    }
    /// Returns only the number of keys.
    #[must_use]
    pub fn with_count_only(mut self) -> Self {
        self.request.count = RangeCount::Only;
        self
    }
    /// Reads the store as it was at this revision; 0 means the current one. Fails with
    /// [`ErrorKind::Compacted`] if that revision was compacted, and with
    /// [`ErrorKind::FutureRevision`] if it does not exist yet; [`Self::with_min_revision`] waits
    /// for one.
    #[must_use]
    pub fn with_revision(mut self, revision: i64) -> Self {
        self.request.revision = revision;
        self
    }
    /// Sort key and direction. Default: by key, ascending. Name a direction where there is a limit: see
    /// [`SortOrder::None`].
    #[must_use]
    pub fn with_sort(mut self, target: SortTarget, order: SortOrder) -> Self {
        self.request.sort_target = target;
        self.request.sort_order = order;
        self
    }
    /// Only keys last written at this revision or later; 0 for all.
    #[must_use]
    pub fn with_min_mod_revision(mut self, revision: i64) -> Self {
        self.request.min_mod_revision = revision;
        self
    }
    /// Only keys last written at this revision or earlier; 0 for all.
    #[must_use]
    pub fn with_max_mod_revision(mut self, revision: i64) -> Self {
        self.request.max_mod_revision = revision;
        self
    }
    /// Only keys created at this revision or later; 0 for all.
    #[must_use]
    pub fn with_min_create_revision(mut self, revision: i64) -> Self {
        self.request.min_create_revision = revision;
        self
    }
    /// Only keys created at this revision or earlier; 0 for all.
    #[must_use]
    pub fn with_max_create_revision(mut self, revision: i64) -> Self {
        self.request.max_create_revision = revision;
        self
    }
    /// Waits until the node that serves the read has applied this revision. A caller that passes
    /// the newest revision it has seen (in the header of a reply) never reads older state,
    /// whichever node answers and regardless of clocks. If the node does not reach the revision in
    /// time, the read fails with [`ErrorKind::FutureRevision`]. One client does that by itself
    /// ([`ConnectOptions::with_monotonic`]); this is for what another one has seen. Default: 0, no
    /// minimum.
    #[must_use]
    pub fn with_min_revision(mut self, revision: i64) -> Self {
        self.min_revision = revision;
        self
    }
    /// Consistency of this read. [`Consistency::Serializable`] and [`Consistency::MaxStaleness`]
    /// are served by any connected node, all others go to the leader where it is known.
    #[must_use]
    pub fn with_consistency(mut self, consistency: Consistency) -> Self {
        self.consistency = Some(consistency);
        self
    }
    /// Reads at this node and no other, leader or not. At a follower a linearizable read costs one question to
    /// the leader; its answer is no older than the leader's own.
    #[must_use]
    pub fn with_endpoint(mut self, endpoint: impl Into<String>) -> Self {
        self.endpoint = Some(endpoint.into());
        self
    }
    /// Timeout of this read, retries included.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

/// How a write is made.
#[derive(Clone, Debug, Default)]
pub struct PutOptions {
    pub(super) prev_kv: bool,
    pub(super) ignore_value: bool,
    pub(super) ignore_lease: bool,
    pub(super) lease: LeaseTarget,
    pub(super) fences: Vec<Fence>,
    pub(super) timeout: Option<Duration>,
}

impl PutOptions {
    /// A plain write.
    pub fn new() -> Self {
        Self::default()
    }
    /// Returns the previous key-value pair.
    #[must_use]
    pub fn with_prev_kv(mut self) -> Self {
        self.prev_kv = true;
        self
    }
    /// Keeps the key's current value and writes it again. The given value must be empty; fails with
    /// [`ErrorKind::KeyNotFound`] if the key does not exist.
    #[must_use]
    pub fn with_ignore_value(mut self) -> Self {
        self.ignore_value = true;
        self
    }
    /// Keeps the client lease that the key is attached to; without this, a put detaches it. Fails
    /// with [`ErrorKind::KeyNotFound`] if the key does not exist.
    #[must_use]
    pub fn with_ignore_lease(mut self) -> Self {
        self.ignore_lease = true;
        self
    }
    /// Attaches the key to this client lease: the key is deleted when the lease ends. Fails with
    /// [`ErrorKind::LeaseNotFound`] if there is no such lease. A name is that of the lease that has it when
    /// the write takes effect.
    #[must_use]
    pub fn with_lease(mut self, lease: impl Into<WhichLease>) -> Self {
        self.lease = lease.into().into();
        self
    }
    /// Attaches the key to the client lease with this name, as [`PutOptions::with_lease`] does.
    #[must_use]
    pub fn with_lease_name(mut self, name: impl Into<String>) -> Self {
        self.lease = LeaseTarget::Name(name.into());
        self
    }
    /// Writes only while `key` is the one that the holder of `token` created: the store rejects the
    /// write with [`ErrorKind::Fenced`] once the lock has another holder. See
    /// [`Guard::fencing_token`](crate::client::recipes::Guard::fencing_token). If given more than
    /// once, all fences must hold.
    #[must_use]
    pub fn with_fence(mut self, key: impl Into<Bytes>, token: i64) -> Self {
        self.fences.push(Fence::new(key, token));
        self
    }
    /// Timeout of this write, retries included.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

/// How keys are deleted.
#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    pub(super) selector: Selector,
    pub(super) prev_kv: bool,
    pub(super) fences: Vec<Fence>,
    pub(super) timeout: Option<Duration>,
}

impl DeleteOptions {
    /// One key.
    pub fn new() -> Self {
        Self::default()
    }
    selects_keys!();
    /// Returns the deleted key-value pairs.
    #[must_use]
    pub fn with_prev_kv(mut self) -> Self {
        self.prev_kv = true;
        self
    }
    /// Deletes only while a lock is held; see [`PutOptions::with_fence`].
    #[must_use]
    pub fn with_fence(mut self, key: impl Into<Bytes>, token: i64) -> Self {
        self.fences.push(Fence::new(key, token));
        self
    }
    /// Timeout of this deletion, retries included.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

/// How a transaction is made.
#[derive(Clone, Debug, Default)]
pub struct TxnOptions {
    pub(super) consistency: Option<Consistency>,
    pub(super) min_revision: i64,
    pub(super) fences: Vec<Fence>,
    pub(super) timeout: Option<Duration>,
}

impl TxnOptions {
    /// The client's defaults.
    pub fn new() -> Self {
        Self::default()
    }
    /// Consistency of a read-only transaction. Ignored by others: a transaction that writes always
    /// sees all earlier writes.
    #[must_use]
    pub fn with_consistency(mut self, consistency: Consistency) -> Self {
        self.consistency = Some(consistency);
        self
    }
    /// For a read-only transaction: waits until the node has applied this revision; see
    /// [`GetOptions::with_min_revision`].
    #[must_use]
    pub fn with_min_revision(mut self, revision: i64) -> Self {
        self.min_revision = revision;
        self
    }
    /// Runs only while a lock is held; see [`PutOptions::with_fence`]. The fence uses one of the
    /// nesting levels that a transaction may have.
    #[must_use]
    pub fn with_fence(mut self, key: impl Into<Bytes>, token: i64) -> Self {
        self.fences.push(Fence::new(key, token));
        self
    }
    /// Timeout of this transaction, retries included.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

/// How history is compacted.
#[derive(Clone, Copy, Debug, Default)]
pub struct CompactionOptions {
    pub(super) timeout: Option<Duration>,
    pub(super) physical: bool,
}

impl CompactionOptions {
    /// The client's defaults.
    pub fn new() -> Self {
        Self::default()
    }
    /// Makes every node free the disk space at once, and waits until those of this client's
    /// endpoints that answer have done so. The time it takes depends on the history that is kept;
    /// choose a timeout that allows for it.
    #[must_use]
    pub fn with_physical(mut self) -> Self {
        self.physical = true;
        self
    }

    /// Timeout of this compaction, retries included.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_back_off_doubles_up_to_its_bound() {
        let policy = RetryPolicy::default();
        let waits: Vec<u128> = (1..=8).map(|n| policy.back_off(n).as_millis()).collect();
        assert_eq!(waits, [25, 50, 100, 200, 400, 800, 1000, 1000]);
        assert_eq!(policy.back_off(u32::MAX), Duration::from_secs(1));
    }

    #[test]
    fn without_certificates_the_error_says_what_is_missing() {
        let error = TlsOptions::new().ca_pem("x").load().unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidArgument);
        let missing = TlsOptions::new()
            .ca_pem_file("/nowhere/ca.pem")
            .identity_pem_files("/nowhere/c.pem", "/nowhere/c.key")
            .load()
            .unwrap_err();
        assert!(missing.detail.contains("/nowhere/ca.pem"), "{missing}");
    }

    #[test]
    fn debug_output_shows_no_key() {
        let options = TlsOptions::new()
            .ca_pem("CA")
            .identity_pem("CERT", "SECRET");
        assert!(!format!("{options:?}").contains("SECRET"));
    }
}
