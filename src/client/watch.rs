//! Watches that survive lost connections and changes of leader.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::deadline::deadline_after;
use super::measure;
use super::measure::Presence;
use super::selector::{Selector, selects_keys};
use crate::api::{
    Error, ErrorKind, KeyValue, Request, WatchCursor, WatchEnd, WatchEvent, WatchRequest,
};
use crate::client::Client;
use crate::client::link::{Link, WatchStream};
use crate::client::retry_rule::RetryRule;
use crate::sync::{Mutex, MutexGuard};
use crate::types::BootstrapId;

/// Capacity of the event buffer, in bytes.
const BUFFER_BYTES: usize = 4 << 20;
/// How long a buffer may stay full before its stream is closed: until then its unread data takes up
/// flow-control window on the connection that others share.
const FULL_PATIENCE: Duration = Duration::from_secs(1);
/// Shortest wait between attempts to reopen the watch.
const BACK_OFF_MIN: Duration = Duration::from_millis(25);
const BACK_OFF_MAX: Duration = Duration::from_secs(1);

/// How keys are watched.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    selector: Selector,
    request: WatchRequest,
    endpoint: Option<String>,
    buffer_bytes: usize,
    timeout: Option<Duration>,
}

impl Default for WatchOptions {
    fn default() -> Self {
        Self {
            selector: Selector::default(),
            request: WatchRequest::default(),
            endpoint: None,
            buffer_bytes: BUFFER_BYTES,
            timeout: None,
        }
    }
}

impl WatchOptions {
    /// One key, from the current revision on.
    pub fn new() -> Self {
        Self::default()
    }
    selects_keys!();
    /// Starts with the changes of this revision; 0 starts after the current one. It may be in the
    /// future. A compacted revision fails with [`ErrorKind::Compacted`], which holds the oldest one
    /// available.
    #[must_use]
    pub fn with_start_revision(mut self, revision: i64) -> Self {
        self.request.start_revision = revision;
        self
    }
    /// Also returns the key-value pair before each change, where that is not compacted.
    #[must_use]
    pub fn with_prev_kv(mut self) -> Self {
        self.request.prev_kv = true;
        self
    }
    /// Omits puts.
    #[must_use]
    pub fn with_no_put(mut self) -> Self {
        self.request.no_put = true;
        self
    }
    /// Omits deletes.
    #[must_use]
    pub fn with_no_delete(mut self) -> Self {
        self.request.no_delete = true;
        self
    }
    /// Sends progress notifications periodically while there are no changes.
    #[must_use]
    pub fn with_progress_notify(mut self) -> Self {
        self.request.progress_notify = true;
        self
    }
    /// Starts with the current contents of the keys, followed by [`WatchEvent::Synced`], followed
    /// by changes. The state is that of the node that serves the watch, which may lag behind the
    /// leader; no change between the state and the first event is missed.
    #[must_use]
    pub fn with_initial_state(mut self) -> Self {
        self.request.initial_state = true;
        self
    }
    /// Watches at this node and no other.
    #[must_use]
    pub fn with_endpoint(mut self, endpoint: impl Into<String>) -> Self {
        self.endpoint = Some(endpoint.into());
        self
    }
    /// Capacity of the event buffer, in bytes. Default: 4 MiB. If the buffer stays full, the stream
    /// is closed, and the watch resumes where it was once there is space.
    #[must_use]
    pub fn with_buffer(mut self, bytes: usize) -> Self {
        self.buffer_bytes = bytes;
        self
    }
    /// Timeout for opening the watch. Once it has been opened, it is reopened without a time limit.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The request for a watch of `key` with these options.
    ///
    /// # Errors
    /// They choose two ranges.
    pub(crate) fn request(&self, key: &[u8]) -> Result<WatchRequest, Error> {
        Ok(WatchRequest {
            key: Bytes::copy_from_slice(self.selector.start(key)?),
            range: self.selector.range.clone(),
            ..self.request.clone()
        })
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

/// A watch. It survives lost connections, stopped nodes and changes of leader: it reopens itself
/// where it was, and reports that ([`WatchEvent::Resumed`]). Dropping it ends it.
pub struct Watcher {
    events: mpsc::UnboundedReceiver<BufferedItem>,
    place: Arc<OpenAt>,
    is_over: bool,
}

type Item = Result<WatchEvent, Error>;

/// An event in the buffer, and the space it takes.
struct BufferedItem {
    item: Item,
    _room: Option<OwnedSemaphorePermit>,
}

/// The node and stream where the watch is open at the moment.
#[derive(Default)]
struct OpenAt {
    state: Mutex<OpenAtState>,
}

#[derive(Default)]
struct OpenAtState {
    open: Option<(Arc<Link>, u64)>,
    told: i64,
}

impl OpenAt {
    fn lock(&self) -> MutexGuard<'_, OpenAtState> {
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
    /// The next event. An error is the last item; after it, the watch returns `None`.
    ///
    /// # Errors
    /// [`ErrorKind::Compacted`] if history that was not yet delivered was compacted;
    /// [`ErrorKind::ClusterMismatch`] if the cluster was bootstrapped again or restored meanwhile, which makes
    /// its revisions another history; or the client was closed. The watch survives every other failure.
    ///
    /// # Cancel safety
    /// Safe: no event is lost.
    pub async fn next(&mut self) -> Option<Item> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Which bootstrap of its cluster the node comes from that is watched now, if it is known and there is one.
    pub(super) fn bootstrap(&self) -> Option<BootstrapId> {
        let place = self.place.lock();
        place.open.as_ref().and_then(|(link, _)| link.bootstrap())
    }

    /// Like [`Watcher::next`], for a task that also polls other futures.
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

    /// The revision up to which everything has been returned; 0 at first.
    pub fn revision(&self) -> i64 {
        self.place.lock().told
    }

    /// Requests a progress notification: [`WatchEvent::Progress`] follows, once everything up to
    /// that revision has been delivered.
    ///
    /// # Errors
    /// The watch is not open at the moment, or its node did not answer; try again.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn request_progress(&self) -> Result<(), Error> {
        let open = self.place.lock().open.clone();
        let Some((link, watch_id)) = open else {
            return Err(Error::not_applied(
                ErrorKind::ConnectionLost,
                "the watch is being reopened: retry shortly",
            ));
        };
        let request = Request::WatchProgress { watch_id };
        let answered = link.control(request, deadline_after(BACK_OFF_MAX)).await;
        answered.map(|_| ())
    }

    /// Ends the watch. Buffered events are dropped.
    pub fn cancel(self) {}

    /// A watch that returns these items and then ends, for tests of its callers.
    #[cfg(test)]
    #[allow(dead_code, reason = "the command line alone is tested by it")]
    pub(crate) fn telling(items: impl IntoIterator<Item = Item>) -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        for item in items {
            let _ = sender.send(BufferedItem { item, _room: None });
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
    cursor: WatchCursor,
    /// Whose revisions are told: the bootstrap of the cluster that its node came from, once one knew it.
    bootstrap: Option<BootstrapId>,
    endpoint: Option<String>,
    events: mpsc::UnboundedSender<BufferedItem>,
    room: Arc<Semaphore>,
    buffer_bytes: usize,
    place: Arc<OpenAt>,
    _presence: Presence,
}

/// An open watch.
struct OpenWatch {
    address: String,
    link: Arc<Link>,
    watch_id: u64,
    stream: WatchStream,
    revision: i64,
}

/// Why reading of a stream ended.
enum End {
    /// Continue with another stream.
    Broken(Error),
    /// The reader is too slow: deliver this event once there is space, then continue with another
    /// stream.
    Full(WatchEvent),
    /// The watch is over.
    Over(Error),
    /// The watcher was dropped.
    Dropped,
}

impl Client {
    /// Watches a key, or a range of keys. Every change is delivered once, in order, and all changes
    /// of a revision together. Any node serves watches; a follower delivers a change when it has
    /// applied it. A node that knows no leader for longer than elections take (three seconds,
    /// unless elections are configured to take longer) ends its watches, and they continue at
    /// another node; so do those of a node that stops responding.
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
    ///         // Interrupted and resumed without a gap: there is nothing to do.
    ///         WatchEvent::Created { .. } | WatchEvent::Resumed { .. } => {}
    ///         WatchEvent::Restarted { .. } => println!("discard the state: it is sent again"),
    ///     }
    /// }
    /// watcher.cancel();
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`]; [`ErrorKind::Compacted`] if the start revision was
    /// compacted, with the oldest one available; [`ErrorKind::SlowDown`] if there are too many
    /// watches; and connection errors if no node can be reached.
    ///
    /// # Cancel safety
    /// Safe: the watch is cancelled.
    pub async fn watch(
        &self,
        key: impl AsRef<[u8]>,
        options: Option<WatchOptions>,
    ) -> Result<Watcher, Error> {
        let options = options.unwrap_or_default();
        let request = self.prepared_watch(options.request(key.as_ref())?)?;
        let endpoint = match &options.endpoint {
            Some(endpoint) => Some(super::with_port(endpoint)?),
            None => None,
        };
        let (events, receiver) = mpsc::unbounded_channel();
        let place = Arc::new(OpenAt::default());
        let buffer_bytes = options
            .buffer_bytes
            .clamp(size_of::<WatchEvent>(), Semaphore::MAX_PERMITS.min(1 << 30));
        let mut task = Task {
            client: self.clone(),
            cursor: WatchCursor::new(request),
            bootstrap: None,
            endpoint,
            events,
            room: Arc::new(Semaphore::new(buffer_bytes)),
            buffer_bytes,
            _presence: Presence::watch(),
            place: Arc::clone(&place),
        };
        let timeout = options.timeout.unwrap_or(self.inner.options.timeout);
        let deadline = deadline_after(timeout);
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

/// Ends a watch at its node. If its stream has already ended, the error is of no interest.
fn give_up(link: Arc<Link>, watch_id: u64) {
    tokio::spawn(async move {
        let request = Request::WatchCancel { watch_id };
        let _ = link.control(request, deadline_after(BACK_OFF_MAX)).await;
    });
}

/// The step at which an attempt to open a watch failed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Connect,
    Open,
}

impl Task {
    async fn run(mut self, first: OpenWatch) {
        let mut open = first;
        loop {
            let end = self.read(&mut open).await;
            self.place.lock().open = None;
            let OpenWatch {
                address,
                link,
                watch_id,
                stream,
                ..
            } = open;
            drop(stream);
            give_up(link, watch_id);
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
            if let Err(error) = self.same_history(&open) {
                return self.tell(Err(error));
            }
            let resumed = match self.cursor.resumes_from() {
                Some(from) => WatchEvent::Resumed { from, cause },
                None => WatchEvent::Restarted { cause },
            };
            self.begin(&open);
            measure::resumed();
            self.tell(Ok(resumed));
        }
    }

    /// Opens the watch where it was, at any node that serves it, until a failure is final.
    async fn open(&self, timeout: Option<Duration>) -> Result<OpenWatch, Error> {
        let router = &self.client.inner.router;
        let mut back_off = BACK_OFF_MIN;
        let mut last: Option<Error> = None;
        let deadline = timeout.map(deadline_after);
        loop {
            let (error, step) = match self.try_open().await {
                Ok(open) => return Ok(open),
                Err(error) => error,
            };
            let mut wait = router.jittered(back_off);
            // A node that speaks another protocol version cannot be connected to; others may not.
            let is_of_node = error.kind == ErrorKind::Unsupported
                && step == Step::Connect
                && self.endpoint.is_none();
            match RetryRule::of_watching(&error.kind) {
                RetryRule::Never if !is_of_node => return Err(error),
                RetryRule::AfterWait(asked) => wait = wait.max(asked),
                _ => {}
            }
            if router.pool().is_closed() {
                return Err(super::pool::closed());
            }
            // A node's error takes precedence over one of the connection.
            let error = match last.take() {
                Some(before) if error.kind == ErrorKind::ConnectFailed => before,
                _ => error,
            };
            if deadline.is_some_and(|deadline| deadline_after(wait) >= deadline) {
                return Err(error);
            }
            last = Some(error);
            tokio::time::sleep(wait).await;
            back_off = (back_off * 2).min(BACK_OFF_MAX);
        }
    }

    async fn try_open(&self) -> Result<OpenWatch, (Error, Step)> {
        let client = &self.client.inner;
        let deadline = deadline_after(client.options.timeout);
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
                opened.map_err(|error| (error, Step::Open))
            }
            Err(error) => Err((error, Step::Connect)),
        };
        if let Err((error, _)) = &opened
            && self.endpoint.is_none()
        {
            match error.kind {
                // Another node may have capacity, or more of the log; the leader is the same.
                ErrorKind::SlowDown { .. } | ErrorKind::FutureRevision => {
                    client.router.pass_over(&address)
                }
                _ => client.router.avoid(&address),
            }
        }
        opened
    }

    async fn open_on(&self, link: Arc<Link>, address: &str) -> Result<OpenWatch, Error> {
        let client = &self.client.inner;
        let timeout = client.options.timeout;
        let watch = self.cursor.request();
        let may_fall_back =
            client.router.is_monotonic() && watch.initial_state && self.endpoint.is_none();
        let least = link.newest().least(may_fall_back);
        let opened = match link
            .open_watch(watch.clone(), deadline_after(timeout))
            .await
        {
            Err(error) => match client.router.pool().remedy(&link, &error) {
                Some(login) => {
                    login.log_in(&link, deadline_after(timeout)).await?;
                    link.open_watch(watch, deadline_after(timeout)).await
                }
                None => Err(error),
            },
            opened => opened,
        };
        let (watch_id, revision, stream) = opened?;
        if revision < least {
            give_up(link, watch_id);
            return Err(Error::not_applied(
                ErrorKind::FutureRevision,
                format!(
                    "{address} is at revision {revision}, and this client has seen {least} already: its state is not that \
                     which a watch begins with"
                ),
            ));
        }
        Ok(OpenWatch {
            address: address.to_owned(),
            link,
            watch_id,
            stream,
            revision,
        })
    }

    /// Refuses to go on in another history of the same cluster: its revisions count other changes (A25).
    fn same_history(&self, open: &OpenWatch) -> Result<(), Error> {
        match (self.bootstrap, open.link.bootstrap()) {
            (Some(before), Some(now)) if before != now => Err(Error::not_applied(
                ErrorKind::ClusterMismatch,
                format!(
                    "the cluster was bootstrapped again or restored since this watch was opened: at {} its \
                     revisions are another history. Read the keys again, and watch from there",
                    open.address
                ),
            )),
            _ => Ok(()),
        }
    }

    fn begin(&mut self, open: &OpenWatch) {
        self.bootstrap = self.bootstrap.or_else(|| open.link.bootstrap());
        self.cursor.opened(open.revision);
        self.place.lock().open = Some((Arc::clone(&open.link), open.watch_id));
    }

    /// Delivers the events of a stream until it ends.
    async fn read(&mut self, open: &mut OpenWatch) -> End {
        loop {
            let message = tokio::select! {
                message = open.stream.next() => message,
                () = self.events.closed() => return End::Dropped,
            };
            let mut event = match message {
                Ok(message) => match self.cursor.take(message) {
                    Ok(Some(event)) => event,
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
            if let WatchEvent::Synced { revision }
            | WatchEvent::Events { revision, .. }
            | WatchEvent::Progress { revision } = &event
            {
                open.link.newest().saw(*revision);
            }
            if let Err(error) = self.client.received_event(&mut event) {
                return End::Over(error);
            }
            if let Err(end) = self.offer(event).await {
                return end;
            }
        }
    }

    /// Delivers an event to the reader, if there is space within a moment.
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
        let waiting = BufferedItem {
            item: Ok(event),
            _room: room,
        };
        self.events.send(waiting).map_err(|_| End::Dropped)
    }

    /// Delivers an event to the reader, once there is space. False if the watcher was dropped.
    async fn offer_patiently(&self, event: WatchEvent) -> bool {
        let permits = self.permits(&event);
        let acquiring = Arc::clone(&self.room).acquire_many_owned(permits);
        let room = tokio::select! {
            room = acquiring => room.ok(),
            () = self.events.closed() => return false,
        };
        let waiting = BufferedItem {
            item: Ok(event),
            _room: room,
        };
        self.events.send(waiting).is_ok()
    }

    /// An event larger than the buffer takes all of it.
    fn permits(&self, event: &WatchEvent) -> u32 {
        u32::try_from(event.bytes().min(self.buffer_bytes)).unwrap_or(u32::MAX)
    }

    /// Delivers an item that takes no buffer space.
    fn tell(&self, item: Item) {
        // The watcher may have been dropped.
        let _ = self.events.send(BufferedItem { item, _room: None });
    }
}
