//! Watching client leases: which are granted, renewed and ended, and why.
//!
//! Renewals enter no log (S13), and the record of a lease is gone with it, so there is no history of leases that a
//! server could send. A [`LeaseWatcher`] looks instead, at an interval: at one lease, or through the list of all. Each
//! look is linearizable, and a lease is known by its grant (T14), so what is told is true and in its order. Two
//! things follow from looking: an event is told up to an interval late, and what begins and ends between two looks is
//! not told. Why a lease ended is asked of the leader by a renewal of the grant that is gone, which renews nothing;
//! each node remembers the reason for the last few thousand leases that ended since it was started.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use super::deadline::{deadline_after, now};
use super::lease::LeaseClient;
use super::{LeaseListOptions, TimeToLiveOptions, WhichLease};
use crate::api::{
    Consistency, Error, ErrorKind, KEEP_ALIVE_LEASES_MAX, LeaseInfo, LeaseKept, LeaseRef,
};

/// From one look to the next.
const INTERVAL: Duration = Duration::from_secs(1);
const INTERVAL_MIN: Duration = Duration::from_millis(10);

/// How leases are watched.
#[derive(Clone, Debug, Default)]
pub struct LeaseWatchOptions {
    interval: Option<Duration>,
    renewals: bool,
    owner: String,
    name_prefix: String,
    known: Vec<LeaseRef>,
}

impl LeaseWatchOptions {
    /// All leases, looked at once a second.
    pub fn new() -> Self {
        Self::default()
    }
    /// The time from one look to the next, at least 10 ms; default: a second. A look at one lease costs a read, and
    /// a look at several goes through all leases of the cluster, a thousand in a request.
    #[must_use]
    pub fn with_interval(mut self, interval: Duration) -> Self {
        self.interval = Some(interval);
        self
    }
    /// Also tells of renewals; several between two looks are told as one.
    #[must_use]
    pub fn with_renewals(mut self) -> Self {
        self.renewals = true;
        self
    }
    /// Only leases of this owner. Of no meaning where one lease is watched.
    #[must_use]
    pub fn with_owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = owner.into();
        self
    }
    /// Only leases whose name starts with this prefix. Of no meaning where one lease is watched.
    #[must_use]
    pub fn with_name_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.name_prefix = prefix.into();
        self
    }
    /// Goes on from these leases, as [`LeaseWatcher::known`] gave them, perhaps in another process: those that have
    /// ended since are told as ended, those that are there are not told again, and others are told as granted.
    #[must_use]
    pub fn with_known(mut self, known: impl IntoIterator<Item = LeaseRef>) -> Self {
        self.known = known.into_iter().collect();
        self
    }
}

/// What happened to a lease that is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseEvent {
    /// It was there when the watcher began.
    Present(LeaseInfo),
    /// It was granted since.
    Granted(LeaseInfo),
    /// It was renewed. Only with [`LeaseWatchOptions::with_renewals`].
    Renewed(LeaseInfo),
    /// A leader gave it its full time without being asked, as [`LeaseInfo::is_extended`] says: a new leader, or one
    /// that had stood still. Told only if a look comes before its next renewal.
    Extended(LeaseInfo),
    /// It has another time to live.
    TtlChanged(LeaseInfo),
    /// It has ended, and its keys are deleted.
    Ended {
        /// Which grant.
        lease: LeaseRef,
        /// Its name; empty if it has none, or was only given as known.
        name: String,
        /// Why.
        cause: LeaseEndCause,
    },
}

/// Why a lease that is watched ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseEndCause {
    /// It was not renewed in time.
    Expired,
    /// It was revoked.
    Revoked,
    /// The leader no longer knows: it was started, or has seen thousands of leases end, since.
    Unknown,
}

impl fmt::Display for LeaseEndCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "it was not renewed in time",
            Self::Revoked => "it was revoked",
            Self::Unknown => "the leader no longer knows why",
        })
    }
}

/// Looks at leases, and tells what has happened to them. Made by [`LeaseClient::watch`] and
/// [`LeaseClient::watch_all`].
#[derive(Debug)]
pub struct LeaseWatcher {
    leases: LeaseClient,
    watched: Selection,
    options: LeaseWatchOptions,
    /// Those that were found at the last look, or that were given as known.
    seen: BTreeMap<LeaseRef, Option<LastLook>>,
    /// Those that the program was told of, or has given.
    told: BTreeSet<LeaseRef>,
    /// What is yet to be told.
    events: VecDeque<LeaseEvent>,
    /// When the next look is due; `None` before the first.
    due: Option<Instant>,
    /// A look has succeeded.
    has_looked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Selection {
    One(LeaseRef),
    /// The one that is over.
    Nothing,
    All,
}

/// What the last look found of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LastLook {
    name: String,
    ttl_ms: u64,
    renewals: Option<u64>,
    is_extended: bool,
}

impl LastLook {
    fn of(info: &LeaseInfo) -> Self {
        Self {
            name: info.name.clone(),
            ttl_ms: info.granted_ttl_ms,
            renewals: info.renewals,
            is_extended: info.is_extended,
        }
    }
}

impl LeaseClient {
    /// Watches one lease until it ends. A name, or an id alone, is that of the lease that has it now; one that gets it
    /// later is not watched.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// use leasehold::client::{LeaseEndCause, LeaseEvent};
    /// use std::time::Duration;
    ///
    /// let lease = client.lease().grant(Duration::from_secs(10), None).await?.lease();
    /// let mut watcher = client.lease().watch(lease, None).await?;
    /// assert!(matches!(watcher.next().await, Some(Ok(LeaseEvent::Present(_)))));
    /// client.lease().revoke(lease).await?;
    /// while let Some(event) = watcher.next().await {
    ///     if let LeaseEvent::Ended { cause, .. } = event? {
    ///         assert_eq!(cause, LeaseEndCause::Revoked);
    ///     }
    /// }
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`Client::get`](crate::client::Client::get). [`ErrorKind::LeaseNotFound`] if no lease has the name or the id;
    /// a [`LeaseRef`] with the index of its grant is told as ended instead.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn watch(
        &self,
        lease: impl Into<WhichLease>,
        options: Option<LeaseWatchOptions>,
    ) -> Result<LeaseWatcher, Error> {
        let mut lease = match lease.into() {
            WhichLease::Lease(lease) => lease,
            WhichLease::Named(name) => self.named(name).await?,
        };
        if lease.grant_index == 0 {
            lease.grant_index = self.look_at(lease).await?.grant_index;
        }
        Ok(LeaseWatcher::new(self, Selection::One(lease), options))
    }

    /// Watches all leases, or those of an owner or with a prefix of their names.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// use leasehold::client::{LeaseEvent, LeaseGrantOptions, LeaseWatchOptions};
    /// use std::time::Duration;
    ///
    /// # client.lease().grant(Duration::from_secs(10), Some(LeaseGrantOptions::new().with_name("watched/1"))).await?;
    /// let options = LeaseWatchOptions::new().with_name_prefix("watched/");
    /// let mut watcher = client.lease().watch_all(Some(options));
    /// if let Some(event) = watcher.next().await {
    ///     match event? {
    ///         LeaseEvent::Present(info) | LeaseEvent::Granted(info) => println!("{} is there", info.name),
    ///         LeaseEvent::Ended { name, cause, .. } => println!("{name} is over: {cause}"),
    ///         _ => {}
    ///     }
    /// }
    /// # Ok(())
    /// # });
    /// ```
    pub fn watch_all(&self, options: Option<LeaseWatchOptions>) -> LeaseWatcher {
        LeaseWatcher::new(self, Selection::All, options)
    }

    /// How a lease is, as the leader knows it.
    async fn look_at(&self, lease: LeaseRef) -> Result<LeaseInfo, Error> {
        let options = TimeToLiveOptions::new().with_consistency(Consistency::Linearizable);
        self.time_to_live(lease, Some(options)).await
    }
}

impl LeaseWatcher {
    fn new(leases: &LeaseClient, watched: Selection, options: Option<LeaseWatchOptions>) -> Self {
        let options = options.unwrap_or_default();
        let is_watched = |lease: &LeaseRef| match watched {
            Selection::One(one) => one == *lease,
            Selection::All => true,
            Selection::Nothing => false,
        };
        let known: BTreeSet<LeaseRef> = options.known.iter().copied().filter(is_watched).collect();
        let mut seen: BTreeMap<_, _> = known.iter().map(|lease| (*lease, None)).collect();
        if let Selection::One(lease) = watched {
            seen.entry(lease).or_default();
        }
        Self {
            leases: leases.clone(),
            watched,
            options,
            seen,
            told: known,
            events: VecDeque::new(),
            due: None,
            has_looked: false,
        }
    }

    /// The next event; looks, and waits between looks, until there is one. `None` once the one lease that is watched
    /// has ended. An error does not end the watcher: the next call looks again, an interval later.
    ///
    /// # Errors
    /// Those of a look: as [`Client::get`](crate::client::Client::get).
    ///
    /// # Cancel safety
    /// Safe: no event is lost.
    pub async fn next(&mut self) -> Option<Result<LeaseEvent, Error>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                self.tell(&event);
                return Some(Ok(event));
            }
            if self.watched == Selection::Nothing {
                return None;
            }
            if let Some(due) = self.due {
                tokio::time::sleep_until(due).await;
            }
            let interval = self.options.interval.unwrap_or(INTERVAL).max(INTERVAL_MIN);
            let began = now();
            let looked = self.look().await;
            let due = began.checked_add(interval);
            self.due = Some(due.unwrap_or_else(|| deadline_after(interval)));
            if let Err(error) = looked {
                return Some(Err(error));
            }
        }
    }

    /// The leases that [`LeaseWatcher::next`] has told of and not of their ends: to go on from later, by
    /// [`LeaseWatchOptions::with_known`].
    pub fn known(&self) -> impl Iterator<Item = LeaseRef> {
        self.told.iter().copied()
    }

    fn tell(&mut self, event: &LeaseEvent) {
        match event {
            LeaseEvent::Present(info) | LeaseEvent::Granted(info) => {
                self.told.insert(grant_of(info));
            }
            LeaseEvent::Ended { lease, .. } => {
                self.told.remove(lease);
            }
            LeaseEvent::Renewed(_) | LeaseEvent::Extended(_) | LeaseEvent::TtlChanged(_) => {}
        }
    }

    /// Looks once. Changes nothing before all is known.
    async fn look(&mut self) -> Result<(), Error> {
        let found = self.find().await?;
        let there: BTreeSet<LeaseRef> = found.iter().map(grant_of).collect();
        let gone = self.seen.keys().filter(|lease| !there.contains(lease));
        let ended = self.causes(gone.copied().collect()).await?;
        let is_first = !self.has_looked && self.options.known.is_empty();
        self.has_looked = true;
        for info in found {
            let lease = grant_of(&info);
            let now = LastLook::of(&info);
            let before = self.seen.insert(lease, Some(now.clone()));
            let event = match before {
                Some(Some(before)) => change(&before, &now, self.options.renewals),
                _ if self.told.contains(&lease) => None,
                _ if is_first || self.watched != Selection::All => Some(Change::Present),
                _ => Some(Change::Granted),
            };
            self.events.extend(event.map(|event| event.of(info)));
        }
        for (lease, cause) in ended {
            let seen = self.seen.remove(&lease).flatten();
            let name = seen.map(|seen| seen.name).unwrap_or_default();
            self.events
                .push_back(LeaseEvent::Ended { lease, name, cause });
            if self.watched == Selection::One(lease) {
                self.watched = Selection::Nothing;
            }
        }
        Ok(())
    }

    /// The watched leases that are there.
    async fn find(&self) -> Result<Vec<LeaseInfo>, Error> {
        match self.watched {
            Selection::Nothing => Ok(Vec::new()),
            Selection::One(lease) => match self.leases.look_at(lease).await {
                Ok(info) => Ok(vec![info]),
                Err(error) if error.kind == ErrorKind::LeaseNotFound => Ok(Vec::new()),
                Err(error) => Err(error),
            },
            Selection::All => {
                let options = LeaseListOptions::new()
                    .with_owner(self.options.owner.clone())
                    .with_name_prefix(self.options.name_prefix.clone())
                    .with_consistency(Consistency::Linearizable);
                self.leases.leases(Some(options)).await
            }
        }
    }

    /// Why these leases ended, which are not there. Those of which the leader cannot tell yet are left out.
    async fn causes(&self, gone: Vec<LeaseRef>) -> Result<Vec<(LeaseRef, LeaseEndCause)>, Error> {
        let mut causes = Vec::new();
        for gone in gone.chunks(KEEP_ALIVE_LEASES_MAX) {
            let client = &self.leases.client;
            let kept = client.renew(gone.to_vec(), client.inner.options.timeout);
            for (lease, kept) in gone.iter().zip(kept.await?) {
                let cause = match kept {
                    LeaseKept::Expired => LeaseEndCause::Expired,
                    LeaseKept::Revoked => LeaseEndCause::Revoked,
                    LeaseKept::NotFound => LeaseEndCause::Unknown,
                    LeaseKept::Renewed { .. } | LeaseKept::Undecided => continue,
                };
                causes.push((*lease, cause));
            }
        }
        Ok(causes)
    }
}

/// What is told of a lease that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Present,
    Granted,
    Renewed,
    Extended,
    TtlChanged,
}

impl Change {
    fn of(self, info: LeaseInfo) -> LeaseEvent {
        match self {
            Self::Present => LeaseEvent::Present(info),
            Self::Granted => LeaseEvent::Granted(info),
            Self::Renewed => LeaseEvent::Renewed(info),
            Self::Extended => LeaseEvent::Extended(info),
            Self::TtlChanged => LeaseEvent::TtlChanged(info),
        }
    }
}

/// What has become of a lease since the look before; the rarest of what has. A leader that has given all leases their
/// time again counts renewals from zero.
fn change(before: &LastLook, now: &LastLook, renewals: bool) -> Option<Change> {
    if before.ttl_ms != now.ttl_ms {
        return Some(Change::TtlChanged);
    }
    match (before.is_extended, now.is_extended) {
        (false, true) => Some(Change::Extended),
        (_, false) if renewals && before.renewals != now.renewals => Some(Change::Renewed),
        _ => None,
    }
}

fn grant_of(info: &LeaseInfo) -> LeaseRef {
    LeaseRef {
        id: info.id,
        grant_index: info.grant_index,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_is_compared_with_the_one_before() {
        let seen = |ttl_ms, renewals, is_extended| LastLook {
            name: String::new(),
            ttl_ms,
            renewals: Some(renewals),
            is_extended,
        };
        let before = seen(5, 7, false);
        for (now, told, with_renewals) in [
            (seen(5, 7, false), None, None),
            (seen(5, 9, false), None, Some(Change::Renewed)),
            (
                seen(5, 0, true),
                Some(Change::Extended),
                Some(Change::Extended),
            ),
            (seen(5, 1, false), None, Some(Change::Renewed)),
            (
                seen(6, 9, false),
                Some(Change::TtlChanged),
                Some(Change::TtlChanged),
            ),
        ] {
            assert_eq!(change(&before, &now, false), told, "{now:?}");
            assert_eq!(change(&before, &now, true), with_renewals, "{now:?}");
        }
        let extended = seen(5, 0, true);
        assert_eq!(change(&extended, &extended, true), None, "told once");
        let renewed = Some(Change::Renewed);
        assert_eq!(change(&extended, &seen(5, 1, false), true), renewed);
    }
}
