//! Sessions: a lease, kept alive, that recipes share.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::api::{Error, ErrorKind, LeaseRef, Outcome};
use crate::client::route::in_time;
use crate::client::{Client, LeaseClient, LeaseGrantOptions, LeaseKeeper, LostCause};

/// Between attempts at what has to succeed in the end.
pub(super) const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// A lease that is kept alive for as long as anybody holds a clone of this, or a guard that was
/// acquired with it. All clones are one session.
///
/// When the last one is dropped the lease is not renewed any more, and ends by itself; see
/// [`Session::close`] to end it at once.
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
    /// How many entries were made with it: no two have the same key.
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
    /// Opens a session on a new lease of `ttl`. Two seconds and more survive a change of leadership.
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

    /// Its lease, and no later one of the id.
    pub fn lease(&self) -> LeaseRef {
        self.inner.keeper.lease()
    }

    /// How long the lease lasts without a renewal.
    pub fn ttl(&self) -> Duration {
        self.inner.keeper.ttl()
    }

    /// The client that it was opened with.
    pub fn client(&self) -> &Client {
        &self.inner.client
    }

    /// How long it may be counted on from now; zero once it is lost. A fresh look at the clocks: ask
    /// right before what depends on it.
    pub fn remaining(&self) -> Duration {
        self.inner.keeper.remaining()
    }

    /// Whether it may be counted on now.
    pub fn is_alive(&self) -> bool {
        self.inner.keeper.is_alive()
    }

    /// Until when it may be counted on if no renewal gets through from now on: for timers. The clock
    /// of an [`Instant`] may stop while the machine is suspended; [`Session::remaining`] knows.
    pub fn deadline(&self) -> Instant {
        in_time(self.remaining()).into_std()
    }

    /// Waits until it may not be counted on any more, and says why.
    ///
    /// # Cancel safety
    /// Safe.
    pub fn lost(&self) -> impl Future<Output = LostCause> + Send + use<> {
        // Not the session itself: who waits for its end does not put it off.
        self.inner.keeper.lost_later()
    }

    /// Waits until no more than `margin` is left of it, or it is lost: time to stop what depends on
    /// it and takes that long to stop. Renewals that get through put it off.
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

    /// Ends it, for all clones: nothing that was acquired with it is counted on from this moment on,
    /// and the lease is revoked, which lets go of everything at once.
    ///
    /// # Errors
    /// As [`LeaseClient::revoke`]; the lease then ends by itself. That it is over already is none.
    ///
    /// # Cancel safety
    /// The lease is not renewed any more, and ends by itself.
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

    /// What the next entry is called: the lease, so that people see whose it is, and what tells it
    /// from others of the session.
    pub(super) fn next_entry(&self) -> String {
        match self.inner.entries.fetch_add(1, Ordering::Relaxed) {
            0 => format!("{:016x}", self.id()),
            number => format!("{:016x}-{number:x}", self.id()),
        }
    }

    pub(super) fn downgrade(&self) -> Fading {
        Fading(Arc::downgrade(&self.inner))
    }

    /// What to tell somebody who needs it alive.
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

    /// Asks until there is an answer or the session is lost. Only for what may be asked again whatever
    /// became of it before.
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

    /// Waits until `change` happens, or something that may have been it: who waited looks again.
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

    /// A moment's rest.
    pub(super) async fn pause(&self) -> Result<(), Error> {
        tokio::select! {
            _ = self.lost() => self.check(),
            () = tokio::time::sleep(AGAIN_AFTER) => Ok(()),
        }
    }
}

/// A session that may be gone by the time it is looked at.
pub(super) struct Fading(Weak<Inner>);

impl Fading {
    /// Whether anybody still counts on it.
    pub(super) fn is_alive(&self) -> bool {
        let inner = self.0.upgrade();
        inner.is_some_and(|inner| inner.keeper.is_alive())
    }

    /// Waits a moment, and says whether it makes sense to go on.
    pub(super) async fn pause(&self) -> bool {
        tokio::time::sleep(AGAIN_AFTER).await;
        self.is_alive()
    }
}

/// Whether the same may go well a little later.
pub(super) fn passes(error: &Error) -> bool {
    error.is_retryable()
        || error.outcome == Outcome::Unknown
        || matches!(
            error.kind,
            ErrorKind::DeadlineExceeded | ErrorKind::SessionExpired
        )
}
