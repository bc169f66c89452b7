//! A copy of the keys below a prefix inside the program, which knows how old it can be.
//!
//! It is filled by a range at one revision, and kept by a watch from the next. How old it is cannot be
//! learned from the watch alone: any node serves watches, and one that is behind is behind silently.
//! So a task asks, again and again, for the newest revision by a linearizable read. What was
//! acknowledged to anybody before that question was sent has at most the revision of its answer;
//! once the watch has delivered everything up to that one, the copy is no older than the question.
//! Time is counted from when a question was sent, by this machine's own clocks.
//!
//! What is left out: the copy holds every key below its prefix, and has no bound of its own.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use super::entry::current;
use crate::api::{Error, ErrorKind, Event, EventKind, KeyValue};
use crate::client::measure;
use crate::client::{Client, GetOptions, WatchEvent, WatchOptions, Watcher};
use crate::clock::SystemClock;
use crate::sync::RwLock;
use crate::time::{Clock, Instant};

/// How a [`CachedKv`] is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    check_interval: Duration,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self {
            check_interval: Duration::from_secs(1),
        }
    }
}

impl CacheOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Interval between the reads that tell how old the copy can be: its age is at most this, and
    /// what a read and an event take, while everything works. Each is one read of one key. Default:
    /// 1 s; the minimum is 10 ms.
    #[must_use]
    pub fn with_check_interval(mut self, interval: Duration) -> Self {
        self.check_interval = interval.max(CHECK_INTERVAL_MIN);
        self
    }
}

/// A copy of all keys below a prefix, read at memory speed, for what is read often and changed
/// seldom. Every answer says how old it can be at most.
///
/// The copy survives lost connections, changes of leader and compaction. While it cannot be kept up
/// to date, it goes on answering with what it has, and its age grows. All clones are one copy; when
/// the last is dropped, it is given up.
///
/// ```
/// # leasehold::client::examples::run(async |client| {
/// use leasehold::client::recipes::CachedKv;
/// use std::time::Duration;
///
/// client.put("limits/upload", "10", None).await?;
/// let limits = CachedKv::open(&client, "limits/", None).await?;
///
/// // From memory, at once, however old that may be:
/// let found = limits.get("limits/upload");
/// println!("{:?}, at most {:?} old", found.value(), found.age);
/// // From memory if that is new enough, otherwise from the cluster:
/// let found = limits.get_or_read("limits/upload", Duration::from_secs(3)).await?;
/// println!("{:?}", found.value());
/// // From the cluster, linearizable:
/// let found = limits.read("limits/upload").await?;
/// println!("{:?}", found.value());
/// // All of it, at one revision:
/// let view = limits.view();
/// println!("{} limits at revision {}", view.len(), view.revision());
/// # Ok(())
/// # });
/// ```
#[derive(Clone)]
pub struct CachedKv {
    client: Client,
    inner: Arc<Inner>,
}

struct Inner {
    prefix: Bytes,
    copy: Arc<RwLock<State>>,
    changes: watch::Receiver<u64>,
    task: tokio::task::AbortHandle,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl fmt::Debug for CachedKv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let view = self.view();
        f.debug_struct("CachedKv")
            .field("prefix", &self.inner.prefix)
            .field("keys", &view.len())
            .field("revision", &view.revision())
            .field("age", &view.age())
            .finish_non_exhaustive()
    }
}

/// What a [`CachedKv`] knows of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheAnswer {
    /// The key and its value; `None` if there is no such key.
    pub kv: Option<KeyValue>,
    /// The answer holds everything up to this revision.
    pub revision: i64,
    /// The answer holds everything that was acknowledged to any client longer ago than this.
    pub age: Duration,
}

impl CacheAnswer {
    /// The value of the key, if it exists.
    pub fn value(&self) -> Option<&Bytes> {
        self.kv.as_ref().map(|kv| &kv.value)
    }
}

/// All keys of a [`CachedKv`] as they were at one revision. It does not change.
#[derive(Clone)]
pub struct CacheView {
    keys: Arc<BTreeMap<Bytes, KeyValue>>,
    revision: i64,
    fresh_at: Instant,
    change: u64,
}

impl fmt::Debug for CacheView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheView")
            .field("keys", &self.keys)
            .field("revision", &self.revision)
            .field("age", &self.age())
            .finish_non_exhaustive()
    }
}

impl CacheView {
    /// One key.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Option<&KeyValue> {
        self.keys.get(key.as_ref())
    }

    /// All keys, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &KeyValue> {
        self.keys.values()
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Everything up to this revision is in it.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// How old it can be now: it holds everything that was acknowledged to any client longer ago.
    /// Every call reads the clocks.
    pub fn age(&self) -> Duration {
        SystemClock.now().at_most_since(self.fresh_at)
    }
}

/// The copy, and why it is not kept up to date at the moment.
#[derive(Clone)]
struct State {
    view: CacheView,
    /// What was read from the cluster and is newer than the view, until that has it.
    ahead: BTreeMap<Bytes, AheadAnswer>,
    /// How many fills have begun.
    fills: u64,
    trouble: Option<Error>,
}

/// What the cluster said of a key.
#[derive(Clone)]
struct AheadAnswer {
    kv: Option<KeyValue>,
    revision: i64,
    asked_at: Instant,
    /// How many fills had begun when it was answered.
    fills: u64,
}

impl State {
    fn new(view: CacheView) -> Self {
        Self {
            view,
            ahead: BTreeMap::new(),
            fills: 0,
            trouble: None,
        }
    }

    /// No later answer about the key is older than this one.
    fn show(&mut self, key: &[u8], answer: &CacheAnswer, asked_at: Instant) {
        let known = self.ahead.get(key).map(|known| known.revision);
        if answer.revision <= known.unwrap_or(self.view.revision) {
            return;
        }
        let answer = AheadAnswer {
            kv: answer.kv.clone(),
            revision: answer.revision,
            asked_at,
            fills: self.fills,
        };
        self.ahead.insert(Bytes::copy_from_slice(key), answer);
    }

    fn forget_reached(&mut self) {
        let reached = self.view.revision;
        self.ahead.retain(|_, answer| answer.revision > reached);
    }
}

impl CachedKv {
    /// Reads all keys below `prefix`, which may be empty, and keeps them from then on.
    ///
    /// # Errors
    /// As [`Client::get_stream`] and [`Client::watch`]: it could not be filled, or not be watched.
    /// Later on that is repeated until it succeeds, and [`CachedKv::trouble`] has the errors.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn open(
        client: &Client,
        prefix: impl AsRef<[u8]>,
        options: Option<CacheOptions>,
    ) -> Result<Self, Error> {
        let prefix = Bytes::copy_from_slice(prefix.as_ref());
        let view = fill(client, &prefix).await?;
        let watcher = watch_from(client, &prefix, view.revision + 1).await?;
        let copy = Arc::new(RwLock::new(State::new(view)));
        let (tell, changes) = watch::channel(0);
        let keeper = Keeper {
            client: client.clone(),
            prefix: prefix.clone(),
            interval: options.unwrap_or_default().check_interval,
            copy: Arc::clone(&copy),
            tell,
            unreached: VecDeque::new(),
        };
        let task = tokio::spawn(keeper.run(watcher)).abort_handle();
        Ok(Self {
            client: client.clone(),
            inner: Arc::new(Inner {
                prefix,
                copy,
                changes,
                task,
            }),
        })
    }

    /// A key, from memory, however old that is: see [`CacheAnswer::age`]. It is never older than what this
    /// cache has told of the key before, [`CachedKv::read`] included. A key outside of the prefix is not there.
    pub fn get(&self, key: impl AsRef<[u8]>) -> CacheAnswer {
        let key = key.as_ref();
        let copy = self.inner.copy.read();
        let view = &copy.view;
        let (kv, revision, fresh_at) = match copy.ahead.get(key) {
            None => (view.get(key).cloned(), view.revision, view.fresh_at),
            Some(ahead) => {
                let fresh_at = view.fresh_at.max(ahead.asked_at);
                (ahead.kv.clone(), ahead.revision, fresh_at)
            }
        };
        drop(copy);
        CacheAnswer {
            kv,
            revision,
            age: SystemClock.now().at_most_since(fresh_at),
        }
    }

    /// A key, from memory, if that is no older than `age_max`.
    ///
    /// # Errors
    /// [`ErrorKind::TooOld`] if it may be, with its age and, if that is known, the cause.
    pub fn get_within(
        &self,
        key: impl AsRef<[u8]>,
        age_max: Duration,
    ) -> Result<CacheAnswer, Error> {
        let answer = self.get(key);
        match answer.age <= age_max {
            true => Ok(answer),
            false => Err(self.too_old(answer.age, age_max)),
        }
    }

    /// A key, from memory if that is no older than `age_max`, and otherwise from the cluster, by
    /// [`CachedKv::read`].
    ///
    /// # Errors
    /// As [`CachedKv::read`], where memory is too old.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn get_or_read(
        &self,
        key: impl AsRef<[u8]>,
        age_max: Duration,
    ) -> Result<CacheAnswer, Error> {
        let answer = self.get(key.as_ref());
        match answer.age <= age_max {
            true => Ok(answer),
            false => self.read(key).await,
        }
    }

    /// A key, from the cluster: linearizable, whatever the client's default is. Its revision may be
    /// newer than what memory has by then.
    ///
    /// # Errors
    /// As [`Client::get`]; [`ErrorKind::InvalidArgument`] for a key outside of the prefix.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn read(&self, key: impl AsRef<[u8]>) -> Result<CacheAnswer, Error> {
        let key = key.as_ref();
        if !key.starts_with(&self.inner.prefix) {
            return Err(Error::not_applied(
                ErrorKind::InvalidArgument,
                format!(
                    "{} is not below {}, which is all that this cache has: read it by the client",
                    String::from_utf8_lossy(key),
                    String::from_utf8_lossy(&self.inner.prefix)
                ),
            ));
        }
        let asked_at = SystemClock.now();
        let options = GetOptions::new().with_consistency(current());
        let found = self.client.get(key, Some(options)).await?;
        let answer = CacheAnswer {
            revision: found.header.revision,
            kv: found.kvs.into_iter().next(),
            age: SystemClock.now().at_most_since(asked_at),
        };
        self.inner.copy.write().show(key, &answer, asked_at);
        Ok(answer)
    }

    /// All keys at one revision, from memory: that which the watch has reached, which may be before what
    /// [`CachedKv::read`] has told of one of them. It costs nothing until the next change, and then a
    /// copy of the list of keys if it still exists.
    pub fn view(&self) -> CacheView {
        self.inner.copy.read().view.clone()
    }

    /// Waits until a key below the prefix differs from `view`, and returns all as they are then.
    /// Changes that follow one another quickly may be seen as one.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// use leasehold::client::recipes::CachedKv;
    ///
    /// let colors = CachedKv::open(&client, "colors/", None).await?;
    /// let before = colors.view();
    /// client.put("colors/sky", format!("not that of {}", before.revision()), None).await?;
    /// for kv in colors.changed(&before).await?.iter() {
    ///     println!("{:?} is {:?}", kv.key, kv.value);
    /// }
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the copy is not kept any more, because the client was closed.
    ///
    /// # Cancel safety
    /// Safe: no change is lost.
    pub async fn changed(&self, view: &CacheView) -> Result<CacheView, Error> {
        let mut changes = self.inner.changes.clone();
        // An error says that the task has ended.
        let _ = changes.wait_for(|change| *change != view.change).await;
        let copy = self.inner.copy.read().clone();
        if copy.view.change != view.change {
            return Ok(copy.view);
        }
        let cause = copy.trouble.unwrap_or_else(|| {
            let detail = "the runtime is being shut down";
            Error::not_applied(ErrorKind::Unavailable, detail)
        });
        Err(Error::not_applied(
            ErrorKind::Unavailable,
            format!(
                "the cache is not kept up to date any more: {}",
                cause.detail
            ),
        ))
    }

    /// Why the copy is not kept up to date at the moment: the last attempt to do so failed. It is
    /// repeated until it succeeds or the client is closed.
    pub fn trouble(&self) -> Option<Error> {
        self.inner.copy.read().trouble.clone()
    }

    /// The prefix of its keys.
    pub fn prefix(&self) -> &Bytes {
        &self.inner.prefix
    }

    fn too_old(&self, age: Duration, age_max: Duration) -> Error {
        let cause = match self.trouble() {
            Some(error) => format!("it cannot be kept up to date: {}", error.detail),
            None => "ask for less, or have it checked more often".to_owned(),
        };
        Error::not_applied(
            ErrorKind::TooOld {
                age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            },
            format!("what the cache has may be {age:?} old, and {age_max:?} is allowed: {cause}",),
        )
    }
}

/// The task that keeps the copy up to date.
struct Keeper {
    client: Client,
    prefix: Bytes,
    interval: Duration,
    copy: Arc<RwLock<State>>,
    tell: watch::Sender<u64>,
    /// Answers that the copy has not reached yet, in their order.
    unreached: VecDeque<Check>,
}

/// The newest revision, as somebody who asked at this moment was told.
#[derive(Clone, Copy, Debug)]
struct Check {
    asked_at: Instant,
    revision: i64,
}

impl Keeper {
    async fn run(mut self, first: Watcher) {
        let mut watcher = first;
        loop {
            let error = self.follow(watcher).await;
            self.trouble(error);
            // A watch survives whatever it can: what it could not survive may have changed anything.
            let mut back_off = BACK_OFF_MIN;
            watcher = loop {
                if self.client.inner.router.pool().is_closed() {
                    return;
                }
                tokio::time::sleep(self.client.inner.router.jittered(back_off)).await;
                back_off = (back_off * 2).min(BACK_OFF_MAX);
                match self.begin_anew().await {
                    Ok(watcher) => break watcher,
                    Err(error) => self.trouble(error),
                }
            };
        }
    }

    /// Reads everything again, and watches from there.
    async fn begin_anew(&mut self) -> Result<Watcher, Error> {
        self.copy.write().fills += 1;
        let view = fill(&self.client, &self.prefix).await?;
        let next = view.revision + 1;
        self.replace(view);
        watch_from(&self.client, &self.prefix, next).await
    }

    /// Follows a watch until it ends, and checks how old the copy is meanwhile.
    async fn follow(&mut self, mut watcher: Watcher) -> Error {
        let mut check = Box::pin(check(
            self.client.clone(),
            self.prefix.clone(),
            Duration::ZERO,
        ));
        loop {
            let is_waiting = !self.unreached.is_empty();
            tokio::select! {
                event = watcher.next() => match event {
                    Some(Ok(event)) => self.take(event),
                    Some(Err(error)) => return error,
                    None => return Error::not_applied(
                        ErrorKind::ConnectionLost,
                        "the watch of the cache has ended",
                    ),
                },
                checked = &mut check => {
                    let wait = self.interval;
                    check.set(self::check(self.client.clone(), self.prefix.clone(), wait));
                    match checked {
                        Ok(checked) => {
                            if let Err(error) = self.checked(checked) {
                                return error;
                            }
                            if !self.unreached.is_empty() {
                                self.ask_progress(&watcher).await;
                            }
                        }
                        Err(error) => self.trouble(error),
                    }
                }
                () = tokio::time::sleep(self.interval / ASKS_PER_CHECK), if is_waiting => {
                    self.ask_progress(&watcher).await;
                }
            }
        }
    }

    /// Has the node say how far the watch is. One that is behind is asked again.
    async fn ask_progress(&self, watcher: &Watcher) {
        if let Err(error) = watcher.request_progress().await {
            self.trouble(error);
        }
    }

    /// A question was answered.
    fn checked(&mut self, check: Check) -> Result<(), Error> {
        let revision = self.copy.read().view.revision;
        if check.revision < revision {
            return Err(Error::not_applied(
                ErrorKind::ClusterMismatch,
                format!(
                    "the cluster is at revision {} and the cache was told of {revision}: it was \
                     restored meanwhile",
                    check.revision
                ),
            ));
        }
        // The oldest are the next to be reached; of the others the last is the one to wait for.
        if self.unreached.len() >= UNREACHED_MAX {
            self.unreached.pop_back();
        }
        self.unreached.push_back(check);
        self.reach(revision);
        let fresh_at = self.copy.read().view.fresh_at;
        measure::cache_age(SystemClock.now().at_most_since(fresh_at));
        Ok(())
    }

    /// Everything up to this revision is in the copy.
    fn reach(&mut self, revision: i64) {
        let mut copy = self.copy.write();
        let view = &mut copy.view;
        view.revision = view.revision.max(revision);
        let mut is_fresh = false;
        while let Some(check) = self.unreached.front().copied() {
            if check.revision > view.revision {
                break;
            }
            self.unreached.pop_front();
            view.fresh_at = view.fresh_at.max(check.asked_at);
            is_fresh = true;
        }
        if is_fresh {
            copy.trouble = None;
        }
        copy.forget_reached();
    }

    fn take(&mut self, event: WatchEvent) {
        match event {
            WatchEvent::Events { revision, events } => {
                let mut copy = self.copy.write();
                let keys = Arc::make_mut(&mut copy.view.keys);
                for event in events {
                    apply(keys, event);
                }
                copy.view.revision = revision;
                copy.view.change += 1;
                let change = copy.view.change;
                drop(copy);
                self.reach(revision);
                self.tell.send_replace(change);
            }
            WatchEvent::Progress { revision } | WatchEvent::Synced { revision } => {
                self.reach(revision);
            }
            WatchEvent::Resumed { cause, .. } | WatchEvent::Restarted { cause } => {
                self.trouble(cause);
            }
            WatchEvent::Created { .. } | WatchEvent::State { .. } => {}
        }
    }

    /// Another copy, in place of the one that was not kept.
    fn replace(&mut self, view: CacheView) {
        self.unreached.clear();
        let mut copy = self.copy.write();
        let (change, is_same) = (copy.view.change, copy.view.keys == view.keys);
        let change = if is_same { change } else { change + 1 };
        copy.view = CacheView { change, ..view };
        copy.trouble = None;
        // What was told before this fill began is in it, unless the cluster was restored: then it is no more.
        let fills = copy.fills;
        copy.ahead.retain(|_, answer| answer.fills == fills);
        copy.forget_reached();
        drop(copy);
        self.tell.send_replace(change);
    }

    fn trouble(&self, error: Error) {
        self.copy.write().trouble = Some(error);
    }
}

fn apply(keys: &mut BTreeMap<Bytes, KeyValue>, event: Event) {
    match event.kind {
        EventKind::Put => keys.insert(event.kv.key.clone(), event.kv),
        EventKind::Delete => keys.remove(&event.kv.key),
    };
}

async fn watch_from(client: &Client, prefix: &Bytes, revision: i64) -> Result<Watcher, Error> {
    let options = WatchOptions::new()
        .with_prefix()
        .with_progress_notify()
        .with_start_revision(revision);
    client.watch(prefix, Some(options)).await
}

/// All keys below a prefix, at one revision that is not older than the call.
async fn fill(client: &Client, prefix: &Bytes) -> Result<CacheView, Error> {
    let mut fills_left = FILLS_MAX;
    loop {
        fills_left -= 1;
        match fill_once(client, prefix).await {
            Err(error) if matches!(error.kind, ErrorKind::Compacted { .. }) && fills_left > 0 => {}
            filled => return filled,
        }
    }
}

async fn fill_once(client: &Client, prefix: &Bytes) -> Result<CacheView, Error> {
    let fresh_at = SystemClock.now();
    let options = GetOptions::new().with_prefix().with_consistency(current());
    let mut stream = client.get_stream(prefix, Some(options))?;
    let mut keys = BTreeMap::new();
    while let Some(kv) = stream.next().await {
        let kv = kv?;
        keys.insert(kv.key.clone(), kv);
    }
    Ok(CacheView {
        keys: Arc::new(keys),
        revision: stream.revision().unwrap_or_default(),
        fresh_at,
        change: 0,
    })
}

/// Asks for the newest revision after a `wait`, by a key that every user who may read the prefix
/// may read.
async fn check(client: Client, prefix: Bytes, wait: Duration) -> Result<Check, Error> {
    tokio::time::sleep(wait).await;
    let asked_at = SystemClock.now();
    let options = GetOptions::new()
        .with_count_only()
        .with_consistency(current());
    let key = if prefix.is_empty() {
        &b"0"[..]
    } else {
        &prefix
    };
    let found = client.get(key, Some(options)).await?;
    Ok(Check {
        asked_at,
        revision: found.header.revision,
    })
}

const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(10);
/// How often a node that is behind is asked for its progress between two checks.
const ASKS_PER_CHECK: u32 = 4;
/// How many answers wait to be reached.
const UNREACHED_MAX: usize = 8;
/// How often the range is read once more because its revision was compacted meanwhile.
const FILLS_MAX: u32 = 5;
const BACK_OFF_MIN: Duration = Duration::from_millis(25);
const BACK_OFF_MAX: Duration = Duration::from_secs(1);
