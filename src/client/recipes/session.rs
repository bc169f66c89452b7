//! Sessions: a lease, kept alive, that recipes share.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::api::{Error, ErrorKind, LeaseRef, Outcome};
use crate::client::deadline::deadline_after;
use crate::client::{Client, LeaseClient, LeaseGrantOptions, LeaseKeeper, LostCause};

/// Wait between attempts of a request that is retried until it succeeds.
pub(super) const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// A lease that is kept alive for as long as a clone of this, or a guard that was acquired with it,
/// exists. All clones are one session.
///
/// When the last one is dropped the lease is no longer renewed, and expires by itself;
/// [`Session::close`] ends it at once.
///
/// ```
/// # leasehold::client::examples::run(async |client| {
/// use std::time::Duration;
///
/// let session = client.lease().session(Duration::from_secs(3), None).await?;
/// tokio::select! {
///     cause = session.lost() => println!("stop: {cause}"),
///     () = session.nears_end(Duration::from_millis(500)) => println!("half a second is left: stop"),
///     () = tokio::time::sleep(Duration::from_millis(10)) => println!("alive for {:?}", session.remaining()),
/// }
/// session.close().await?; // Lets go of all that was acquired with it.
/// # Ok(())
/// # });
/// ```
#[derive(Clone)]
pub struct Session {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    keeper: LeaseKeeper,
    /// Number of entries created with it: no two have the same key.
    entries: AtomicU64,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("lease", &self.lease())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

impl LeaseClient {
    /// Opens a session on a new lease of `ttl`. A `ttl` of two seconds or more survives a change of
    /// leader.
    ///
    /// # Errors
    /// As [`LeaseClient::grant`].
    ///
    /// # Cancel safety
    /// As [`LeaseClient::grant`].
    pub async fn session(
        &self,
        ttl: Duration,
        options: Option<LeaseGrantOptions>,
    ) -> Result<Session, Error> {
        let (_, keeper) = self.grant_and_keep(ttl, options).await?;
        Ok(Session {
            inner: Arc::new(Inner {
                client: self.client.clone(),
                keeper,
                entries: AtomicU64::new(0),
            }),
        })
    }
}

impl Session {
    /// The id of its lease.
    pub fn id(&self) -> i64 {
        self.inner.keeper.id()
    }

    /// Its very lease, and no later one with the same id.
    pub fn lease(&self) -> LeaseRef {
        self.inner.keeper.lease()
    }

    /// The lease's time to live without a renewal.
    pub fn ttl(&self) -> Duration {
        self.inner.keeper.ttl()
    }

    /// The client that it was opened with.
    pub fn client(&self) -> &Client {
        &self.inner.client
    }

    /// Remaining validity from now on; zero once the session is lost. Every call reads the clocks:
    /// call it right before an action that depends on the session.
    pub fn remaining(&self) -> Duration {
        self.inner.keeper.remaining()
    }

    /// Whether the session is valid now.
    pub fn is_alive(&self) -> bool {
        self.inner.keeper.is_alive()
    }

    /// The end of its validity if no renewal succeeds from now on: for timers. The clock of an
    /// [`Instant`] may stop while the machine is suspended; [`Session::remaining`] takes that into
    /// account.
    pub fn deadline(&self) -> Instant {
        deadline_after(self.remaining()).into_std()
    }

    /// Waits until the session is no longer valid, and returns the cause.
    ///
    /// # Cancel safety
    /// Safe.
    pub fn lost(&self) -> impl Future<Output = LostCause> + Send + use<> {
        // Only the keeper's channel, not the session itself: waiting for its end must not keep it
        // alive.
        self.inner.keeper.lost_later()
    }

    /// Waits until at most `margin` of its validity remains, or it is lost: choose a margin in
    /// which the work that depends on it can stop. Successful renewals extend the wait.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn nears_end(&self, margin: Duration) {
        loop {
            let remaining = self.remaining();
            if remaining <= margin {
                return;
            }
            tokio::select! {
                _ = self.lost() => return,
                () = tokio::time::sleep(remaining - margin) => {}
            }
        }
    }

    /// Closes the session, for all clones: everything acquired with it counts as lost from this
    /// moment on, and the lease is revoked, which releases everything at once.
    ///
    /// # Errors
    /// As [`LeaseClient::revoke`]; the lease then expires by itself. A session that is already over
    /// is not an error.
    ///
    /// # Cancel safety
    /// The lease is no longer renewed, and expires by itself.
    pub async fn close(&self) -> Result<(), Error> {
        self.inner.keeper.give_up();
        let revoked = self.client().lease().revoke(self.lease()).await;
        let is_over = |error: &Error| {
            matches!(
                error.kind,
                ErrorKind::LeaseNotFound | ErrorKind::LeaseExpired
            )
        };
        match revoked {
            Err(error) if !is_over(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// The name of the next entry: the lease, so that operators see its owner, and a number that
    /// distinguishes entries of one session.
    pub(super) fn next_entry(&self) -> String {
        match self.inner.entries.fetch_add(1, Ordering::Relaxed) {
            0 => format!("{:016x}", self.id()),
            number => format!("{:016x}-{number:x}", self.id()),
        }
    }

    pub(super) fn downgrade(&self) -> WeakSession {
        WeakSession(Arc::downgrade(&self.inner))
    }

    /// The error for a caller that needs the session to be valid.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.inner.keeper.loss() {
            None => Ok(()),
            Some(cause) => Err(Error::not_applied(
                ErrorKind::LeaseExpired,
                format!(
                    "the session {:016x} is lost: {cause}; open another",
                    self.id()
                ),
            )),
        }
    }

    /// Retries a request until it succeeds or the session is lost. Only for requests that may be
    /// repeated whatever their outcome was.
    pub(super) async fn insist<T, F>(&self, mut ask: impl FnMut() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        loop {
            self.check()?;
            match ask().await {
                Err(error) if passes(&error) => self.pause().await?,
                decided => return decided,
            }
        }
    }

    /// Waits until `change` happens, or may have happened: the waiter then reads the state again.
    pub(super) async fn until(
        &self,
        change: impl Future<Output = Result<(), Error>>,
    ) -> Result<(), Error> {
        tokio::select! {
            changed = change => match changed {
                Err(error) if passes(&error) => self.pause().await,
                changed => changed,
            },
            _ = self.lost() => self.check(),
        }
    }

    /// Waits before a retry.
    pub(super) async fn pause(&self) -> Result<(), Error> {
        tokio::select! {
            _ = self.lost() => self.check(),
            () = tokio::time::sleep(AGAIN_AFTER) => Ok(()),
        }
    }
}

/// A session that may have been dropped in the meantime.
pub(super) struct WeakSession(Weak<Inner>);

impl WeakSession {
    /// Whether the session is still in use and valid.
    pub(super) fn is_alive(&self) -> bool {
        let inner = self.0.upgrade();
        inner.is_some_and(|inner| inner.keeper.is_alive())
    }

    /// Waits before a retry; returns whether a retry makes sense.
    pub(super) async fn pause(&self) -> bool {
        tokio::time::sleep(AGAIN_AFTER).await;
        self.is_alive()
    }
}

/// Whether a retry may succeed.
pub(in crate::client) fn passes(error: &Error) -> bool {
    error.is_retryable()
        || error.outcome == Outcome::Unknown
        || matches!(
            error.kind,
            ErrorKind::DeadlineExceeded | ErrorKind::SessionExpired
        )
}
