//! Watches that go on whatever happens to connections and leaders.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::api::{
    Error, ErrorKind, Event, KeyRange, KeyValue, Request, WatchCourse, WatchEnd, WatchRequest,
    WatchStep, validate,
};
use crate::client::Client;
use crate::client::link::{Link, WatchStream};
use crate::client::route::in_time;
use crate::sync::{Mutex, MutexGuard};

/// Bytes of events that wait for their reader.
const BUFFER_BYTES: usize = 4 << 20;
/// How long a full buffer may stand still before the stream is given up: until then what it has not
/// read takes room on the connection that others share.
const FULL_PATIENCE: Duration = Duration::from_secs(1);
/// Between attempts to open the watch again.
const BACK_OFF_MIN: Duration = Duration::from_millis(25);
const BACK_OFF_MAX: Duration = Duration::from_secs(1);

/// How keys are watched.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    request: WatchRequest,
    all_keys: bool,
    endpoint: Option<String>,
    buffer_bytes: usize,
    timeout: Option<Duration>,
}

impl Default for WatchOptions {
    fn default() -> Self {
        Self {
            request: WatchRequest::default(),
            all_keys: false,
            endpoint: None,
            buffer_bytes: BUFFER_BYTES,
            timeout: None,
        }
    }
}

impl WatchOptions {
    /// One key, from now on.
    pub fn new() -> Self {
        Self::default()
    }
    /// Every key that starts with the given one; an empty one means every key.
    #[must_use]
    pub fn with_prefix(mut self) -> Self {
        self.request.range = KeyRange::Prefix;
        self
    }
    /// Every key from the given one up to, and without, `end`.
    #[must_use]
    pub fn with_range(mut self, end: impl AsRef<[u8]>) -> Self {
        self.request.range = KeyRange::Until(Bytes::copy_from_slice(end.as_ref()));
        self
    }
    /// The given key and everything after it.
    #[must_use]
    pub fn with_from_key(mut self) -> Self {
        self.request.range = KeyRange::From;
        self
    }
    /// Every key, whichever is given.
    #[must_use]
    pub fn with_all_keys(mut self) -> Self {
        self.all_keys = true;
        self.with_prefix()
    }
    /// Begin with the changes of this revision; 0 begins after the current one. It may be in the
    /// future. One that is compacted is refused ([`ErrorKind::Compacted`] says what is left).
    #[must_use]
    pub fn with_start_revision(mut self, revision: i64) -> Self {
        self.request.start_revision = revision;
        self
    }
    /// Also tell what a key held before each change, where that is not compacted.
    #[must_use]
    pub fn with_prev_kv(mut self) -> Self {
        self.request.prev_kv = true;
        self
    }
    /// Leave out puts.
    #[must_use]
    pub fn with_no_put(mut self) -> Self {
        self.request.no_put = true;
        self
    }
    /// Leave out deletes.
    #[must_use]
    pub fn with_no_delete(mut self) -> Self {
        self.request.no_delete = true;
        self
    }
    /// Say every so often how far the watch is, if there is nothing else to say.
    #[must_use]
    pub fn with_progress_notify(mut self) -> Self {
        self.request.progress_notify = true;
        self
    }
    /// Begin with what the keys hold now, then [`WatchEvent::Synced`], then changes. The state is
    /// that of the node that serves the watch, which may be a little old; nothing is missed between
    /// it and the changes.
    #[must_use]
    pub fn with_initial_state(mut self) -> Self {
        self.request.initial_state = true;
        self
    }
    /// Watch at this node and no other.
    #[must_use]
    pub fn with_endpoint(mut self, endpoint: impl Into<String>) -> Self {
        self.endpoint = Some(endpoint.into());
        self
    }
    /// How many bytes of events may wait for their reader; 4 MiB unless told otherwise. A watch whose
    /// buffer stays full is given up, and goes on from where it was once there is room.
    #[must_use]
    pub fn with_buffer(mut self, bytes: usize) -> Self {
        self.buffer_bytes = bytes;
        self
    }
    /// How long to try to open the watch. Once it is open, it is opened again without end.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// What is asked of a node, for tests of those who choose it.
    #[cfg(test)]
    #[allow(dead_code, reason = "the command line alone is tested by it")]
    pub(crate) fn request(&self) -> &WatchRequest {
        &self.request
    }
}

/// What a watch tells.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchEvent {
    /// It is open. Always the first.
    Created {
        /// The revision that the node had; a watch from now on is told everything above it.
        revision: i64,
    },
    /// A part of the initial state.
    State {
        /// Keys and what they hold, in key order.
        kvs: Vec<KeyValue>,
    },
    /// The initial state is complete.
    Synced {
        /// The revision that it is of.
        revision: i64,
    },
    /// All changes of one revision, in the order they were made: never a part of them.
    Events {
        /// The revision.
        revision: i64,
        /// The changes.
        events: Vec<Event>,
    },
    /// Everything up to this revision has been told.
    Progress {
        /// The revision.
        revision: i64,
    },
    /// The watch was interrupted and goes on: nothing is left out, nothing comes twice.
    Resumed {
        /// The first revision whose changes may follow.
        from: i64,
        /// What had interrupted it.
        cause: Error,
    },
    /// The watch was interrupted before the initial state was complete, which begins anew: forget
    /// what was told of it.
    Restarted {
        /// What had interrupted it.
        cause: Error,
    },
}

impl From<WatchStep> for WatchEvent {
    fn from(step: WatchStep) -> Self {
        match step {
            WatchStep::State { kvs } => Self::State { kvs },
            WatchStep::Synced { revision } => Self::Synced { revision },
            WatchStep::Events { revision, events } => Self::Events { revision, events },
            WatchStep::Progress { revision } => Self::Progress { revision },
        }
    }
}

impl WatchEvent {
    fn bytes(&self) -> usize {
        let kv_bytes = |kv: &KeyValue| size_of::<KeyValue>() + kv.key.len() + kv.value.len();
        let content: usize = match self {
            Self::State { kvs } => kvs.iter().map(kv_bytes).sum(),
            Self::Events { events, .. } => events
                .iter()
                .map(|event| kv_bytes(&event.kv) + event.prev_kv.as_ref().map_or(0, kv_bytes))
                .sum(),
            _ => 0,
        };
        size_of::<Self>() + content
    }
}

/// A watch. It survives lost connections, nodes that stop and new leaders: it opens itself again where
/// it was, and says so ([`WatchEvent::Resumed`]). Dropping it ends it.
pub struct Watcher {
    events: mpsc::UnboundedReceiver<Waiting>,
    place: Arc<Place>,
    is_over: bool,
}

type Item = Result<WatchEvent, Error>;

/// An event that waits for its reader, and the room it takes.
struct Waiting {
    item: Item,
    _room: Option<OwnedSemaphorePermit>,
}

/// Where the watch is open at the moment.
#[derive(Default)]
struct Place {
    state: Mutex<PlaceState>,
}

#[derive(Default)]
struct PlaceState {
    open: Option<(Arc<Link>, u64)>,
    told: i64,
}

impl Place {
    fn lock(&self) -> MutexGuard<'_, PlaceState> {
        self.state.lock()
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher")
            .field("revision", &self.revision())
            .field("is_over", &self.is_over)
            .finish_non_exhaustive()
    }
}

impl Watcher {
    /// What comes next. After an error, which is the last word, there is nothing more (`None`).
    ///
    /// # Errors
    /// [`ErrorKind::Compacted`] if history that was not told yet is gone; or the client was closed.
    /// Everything else the watch survives.
    ///
    /// # Cancel safety
    /// Safe: nothing is lost.
    pub async fn next(&mut self) -> Option<Item> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// As [`Watcher::next`], for a task that waits for other things as well.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let polled = self.events.poll_recv(cx);
        polled.map(|waiting| {
            let item = waiting.map(|waiting| waiting.item);
            match &item {
                Some(Ok(
                    WatchEvent::Synced { revision }
                    | WatchEvent::Events { revision, .. }
                    | WatchEvent::Progress { revision },
                )) => self.place.lock().told = *revision,
                Some(Ok(_)) => {}
                Some(Err(_)) | None => self.is_over = true,
            }
            item
        })
    }

    /// The revision up to which everything has been given out; 0 at first.
    pub fn revision(&self) -> i64 {
        self.place.lock().told
    }

    /// Asks how far the watch is: [`WatchEvent::Progress`] follows, once everything up to there has
    /// been told.
    ///
    /// # Errors
    /// The watch is not open at the moment, or its node did not answer; ask again.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn request_progress(&self) -> Result<(), Error> {
        let open = self.place.lock().open.clone();
        let Some((link, watch_id)) = open else {
            return Err(Error::not_applied(
                ErrorKind::ConnectionLost,
                "the watch is being opened again: ask again shortly",
            ));
        };
        let request = Request::WatchProgress { watch_id };
        let answered = link.control(request, in_time(BACK_OFF_MAX)).await;
        answered.map(|_| ())
    }

    /// Ends the watch. What was told before and not given out is dropped.
    pub fn cancel(self) {}

    /// One that tells this and then ends, for tests of those who listen.
    #[cfg(test)]
    #[allow(dead_code, reason = "the command line alone is tested by it")]
    pub(crate) fn telling(items: impl IntoIterator<Item = Item>) -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        for item in items {
            let _ = sender.send(Waiting { item, _room: None });
        }
        Self {
            events,
            place: Arc::default(),
            is_over: false,
        }
    }
}

/// The task of a watch.
struct Task {
    client: Client,
    course: WatchCourse,
    endpoint: Option<String>,
    events: mpsc::UnboundedSender<Waiting>,
    room: Arc<Semaphore>,
    buffer_bytes: usize,
    place: Arc<Place>,
}

/// An open watch.
struct Open {
    address: String,
    link: Arc<Link>,
    watch_id: u64,
    stream: WatchStream,
    revision: i64,
}

/// Why a stream is read no further.
enum End {
    /// Go on with another one.
    Broken(Error),
    /// The reader is too slow: this is for it, once it has room, and then go on with another one.
    Full(WatchEvent),
    /// For good.
    Over(Error),
    /// Nobody listens.
    Dropped,
}

impl Client {
    /// Watches a key, or a range of keys: every change, once, in order, all changes of a revision
    /// together. Any node serves watches; a follower tells a change when it has applied it. One that
    /// knows no leader for longer than elections take (three seconds unless they are set to take
    /// longer) ends its watches, and they go on at another node; so do those of a node that falls
    /// silent.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// use leasehold::client::{WatchEvent, WatchOptions};
    ///
    /// let options = WatchOptions::new().with_prefix().with_initial_state().with_progress_notify();
    /// let mut watcher = client.watch("config/", Some(options)).await?;
    /// client.put("config/limit", "10", None).await?;
    /// while let Some(event) = watcher.next().await {
    ///     match event? {
    ///         WatchEvent::State { kvs } => println!("{} keys were there", kvs.len()),
    ///         WatchEvent::Synced { .. } => watcher.request_progress().await?,
    ///         WatchEvent::Events { revision, events } => println!("{revision}: {events:?}"),
    ///         WatchEvent::Progress { revision } => {
    ///             println!("nothing is missing up to {revision}");
    ///             break;
    ///         }
    ///         // Interrupted, and gone on without a gap: nothing need be done.
    ///         WatchEvent::Created { .. } | WatchEvent::Resumed { .. } => {}
    ///         WatchEvent::Restarted { .. } => println!("forget what was there: it is told anew"),
    ///     }
    /// }
    /// watcher.cancel();
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`]; [`ErrorKind::Compacted`] if the start is not left, with the
    /// revision that is; [`ErrorKind::SlowDown`] if there are too many watches; and what keeps the
    /// nodes from being reached.
    ///
    /// # Cancel safety
    /// Safe: the watch is ended.
    pub async fn watch(
        &self,
        key: impl AsRef<[u8]>,
        options: Option<WatchOptions>,
    ) -> Result<Watcher, Error> {
        let options = options.unwrap_or_default();
        let key = match options.all_keys {
            true => &[],
            false => key.as_ref(),
        };
        let request = WatchRequest {
            key: Bytes::copy_from_slice(key),
            ..options.request
        };
        let asked = Request::Watch {
            watch_id: 0,
            watch: request.clone(),
        };
        validate(&asked, &self.inner.options.limits)?;
        let endpoint = match &options.endpoint {
            Some(endpoint) => Some(super::with_port(endpoint)?),
            None => None,
        };
        let (events, receiver) = mpsc::unbounded_channel();
        let place = Arc::new(Place::default());
        let buffer_bytes = options
            .buffer_bytes
            .clamp(size_of::<WatchEvent>(), Semaphore::MAX_PERMITS.min(1 << 30));
        let mut task = Task {
            client: self.clone(),
            course: WatchCourse::new(request),
            endpoint,
            events,
            room: Arc::new(Semaphore::new(buffer_bytes)),
            buffer_bytes,
            place: Arc::clone(&place),
        };
        let timeout = options.timeout.unwrap_or(self.inner.options.timeout);
        let deadline = in_time(timeout);
        let opened = tokio::time::timeout_at(deadline, task.open(Some(timeout))).await;
        let open = match opened {
            Ok(opened) => opened?,
            Err(_) => {
                return Err(Error::not_applied(
                    ErrorKind::DeadlineExceeded,
                    format!("no node opened the watch within {timeout:?}"),
                ));
            }
        };
        task.begin(&open);
        task.tell(Ok(WatchEvent::Created {
            revision: open.revision,
        }));
        tokio::spawn(task.run(open));
        Ok(Watcher {
            events: receiver,
            place,
            is_over: false,
        })
    }
}

/// Whom an attempt to open a watch came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Met {
    Node,
    Nobody,
}

impl Task {
    async fn run(mut self, first: Open) {
        let mut open = first;
        loop {
            let end = self.read(&mut open).await;
            self.place.lock().open = None;
            let Open {
                address,
                link,
                watch_id,
                stream,
                ..
            } = open;
            drop(stream);
            // Where it has ended already, that is an error of no interest.
            tokio::spawn(async move {
                let request = Request::WatchCancel { watch_id };
                let _ = link.control(request, in_time(BACK_OFF_MAX)).await;
            });
            let cause = match end {
                End::Dropped => return,
                End::Over(error) => return self.tell(Err(error)),
                End::Full(event) => {
                    if !self.offer_patiently(event).await {
                        return;
                    }
                    Error::not_applied(
                        ErrorKind::SlowWatcher,
                        "the buffer of the watch was full for too long",
                    )
                }
                End::Broken(error) => {
                    if self.endpoint.is_none() && error.kind != ErrorKind::SlowWatcher {
                        self.client.inner.router.avoid(&address);
                    }
                    error
                }
            };
            let opened = tokio::select! {
                opened = self.open(None) => opened,
                () = self.events.closed() => return,
            };
            open = match opened {
                Ok(open) => open,
                Err(error) => return self.tell(Err(error)),
            };
            let resumed = match self.course.resumes_from() {
                Some(from) => WatchEvent::Resumed { from, cause },
                None => WatchEvent::Restarted { cause },
            };
            self.begin(&open);
            self.tell(Ok(resumed));
        }
    }

    /// Opens the watch where it was, at whatever node serves it, for as long as there is hope.
    async fn open(&self, timeout: Option<Duration>) -> Result<Open, Error> {
        let router = &self.client.inner.router;
        let mut back_off = BACK_OFF_MIN;
        let mut last: Option<Error> = None;
        let deadline = timeout.map(in_time);
        loop {
            let (error, met) = match self.try_open().await {
                Ok(open) => return Ok(open),
                Err(error) => error,
            };
            let mut wait = router.jittered(back_off);
            match &error.kind {
                // One that speaks another version, while others may not.
                ErrorKind::Unsupported if met == Met::Nobody && self.endpoint.is_none() => {}
                ErrorKind::Compacted { .. }
                | ErrorKind::InvalidArgument
                | ErrorKind::RequestTooLarge { .. }
                | ErrorKind::PermissionDenied
                | ErrorKind::Unauthenticated
                | ErrorKind::TokenExpired
                | ErrorKind::Unsupported => return Err(error),
                ErrorKind::SlowDown { retry_after_ms } => {
                    wait = wait.max(Duration::from_millis(u64::from(*retry_after_ms)));
                }
                _ => {}
            }
            if router.pool().is_closed() {
                return Err(super::pool::closed());
            }
            // The last word is that of a node, where one said something.
            let error = match last.take() {
                Some(before) if error.kind == ErrorKind::ConnectFailed => before,
                _ => error,
            };
            if deadline.is_some_and(|deadline| in_time(wait) >= deadline) {
                return Err(error);
            }
            last = Some(error);
            tokio::time::sleep(wait).await;
            back_off = (back_off * 2).min(BACK_OFF_MAX);
        }
    }

    async fn try_open(&self) -> Result<Open, (Error, Met)> {
        let client = &self.client.inner;
        let deadline = in_time(client.options.timeout);
        let (address, linked) = match &self.endpoint {
            Some(endpoint) => {
                let linked = client.router.pool().link(endpoint, deadline).await;
                (endpoint.clone(), linked)
            }
            None => {
                let next = client.router.next();
                let linked = client.router.connect_soon(&next, deadline).await;
                (next, linked)
            }
        };
        let opened = match linked {
            Ok(link) => {
                let opened = self.open_on(link, &address).await;
                opened.map_err(|error| (error, Met::Node))
            }
            Err(error) => Err((error, Met::Nobody)),
        };
        if let Err((error, _)) = &opened
            && self.endpoint.is_none()
        {
            match error.kind {
                // Another may have room; who leads, leads all the same.
                ErrorKind::SlowDown { .. } => client.router.pass_over(&address),
                _ => client.router.avoid(&address),
            }
        }
        opened
    }

    async fn open_on(&self, link: Arc<Link>, address: &str) -> Result<Open, Error> {
        let client = &self.client.inner;
        let timeout = client.options.timeout;
        let watch = self.course.request();
        let opened = match link.open_watch(watch.clone(), in_time(timeout)).await {
            Err(error) => match client.router.pool().remedy(&link, &error) {
                Some(login) => {
                    login.log_in(&link, in_time(timeout)).await?;
                    link.open_watch(watch, in_time(timeout)).await
                }
                None => Err(error),
            },
            opened => opened,
        };
        let (watch_id, revision, stream) = opened?;
        Ok(Open {
            address: address.to_owned(),
            link,
            watch_id,
            stream,
            revision,
        })
    }

    fn begin(&mut self, open: &Open) {
        self.course.opened(open.revision);
        self.place.lock().open = Some((Arc::clone(&open.link), open.watch_id));
    }

    /// Gives out what a stream tells, until it ends.
    async fn read(&mut self, open: &mut Open) -> End {
        loop {
            let message = tokio::select! {
                message = open.stream.next() => message,
                () = self.events.closed() => return End::Dropped,
            };
            let event = match message {
                Ok(message) => match self.course.take(message) {
                    Ok(Some(step)) => WatchEvent::from(step),
                    Ok(None) => continue,
                    Err(WatchEnd::Interrupted(error)) => return End::Broken(error),
                    Err(WatchEnd::Over(error)) => return End::Over(error),
                },
                Err(error) => {
                    if self.client.inner.router.pool().is_closed() {
                        return End::Over(super::pool::closed());
                    }
                    return End::Broken(Error::not_applied(
                        ErrorKind::ConnectionLost,
                        format!("the watch at {} was interrupted: {error}", open.address),
                    ));
                }
            };
            if let Err(end) = self.offer(event).await {
                return end;
            }
        }
    }

    /// Hands an event to the reader, if there is room within a moment.
    async fn offer(&mut self, event: WatchEvent) -> Result<(), End> {
        let permits = self.permits(&event);
        let room = match Arc::clone(&self.room).try_acquire_many_owned(permits) {
            Ok(room) => Some(room),
            Err(_) => {
                let acquiring = Arc::clone(&self.room).acquire_many_owned(permits);
                let waiting = tokio::time::timeout(FULL_PATIENCE, acquiring);
                tokio::select! {
                    acquired = waiting => match acquired {
                        Ok(room) => room.ok(),
                        Err(_) => return Err(End::Full(event)),
                    },
                    () = self.events.closed() => return Err(End::Dropped),
                }
            }
        };
        let waiting = Waiting {
            item: Ok(event),
            _room: room,
        };
        self.events.send(waiting).map_err(|_| End::Dropped)
    }

    /// Hands an event to the reader, whenever there is room. False if nobody reads.
    async fn offer_patiently(&self, event: WatchEvent) -> bool {
        let permits = self.permits(&event);
        let acquiring = Arc::clone(&self.room).acquire_many_owned(permits);
        let room = tokio::select! {
            room = acquiring => room.ok(),
            () = self.events.closed() => return false,
        };
        let waiting = Waiting {
            item: Ok(event),
            _room: room,
        };
        self.events.send(waiting).is_ok()
    }

    /// One larger than the buffer takes all of it.
    fn permits(&self, event: &WatchEvent) -> u32 {
        u32::try_from(event.bytes().min(self.buffer_bytes)).unwrap_or(u32::MAX)
    }

    /// Says what takes no room to speak of.
    fn tell(&self, item: Item) {
        // Nobody may be reading any more.
        let _ = self.events.send(Waiting { item, _room: None });
    }
}
