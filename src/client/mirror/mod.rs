//! A copy of a prefix in another cluster, which follows its source.
//!
//! How far the copy is stands in one key of the destination, and each transaction that copies something
//! also moves that key on, on condition that it is as this mirror left it. So every revision of the
//! source arrives once, whichever side dies when: a mirror that begins looks at the key, and goes on from
//! there. That is the only way to recover, and every failure takes it. The same condition keeps two
//! mirrors apart: one that begins writes its name into the key, so the one that began later goes on, and the
//! other is told that it is fenced.
//!
//! The first copy, and each after history was compacted under a mirror, walks over both sides in the
//! order of keys, writes what differs and deletes what the source does not have. Until it is complete the
//! destination is a mixture of revisions, and the key says so.
//!
//! What is left out: leases (a copied key has none, and is deleted when its original is), revisions (the
//! destination counts its own), and mirrors in both directions, which would copy each other's copies. For the
//! same reason source and destination may not overlap within one cluster.

mod progress;

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use self::progress::{Origin, Position, Progress, default_key, shown};
use super::recipes::passes;
use super::{Client, GetOptions, RangeStream, TxnOptions, WatchEvent, WatchOptions, Watcher};
use crate::api::{
    Compare, CompareOp, Consistency, Error, ErrorKind, Event, EventKind, KeyValue, TXN_PARTS_MAX,
    TxnOp, TxnOpResponse, TxnRequest,
};

/// What is copied, and whereto.
#[derive(Clone, Debug, Default)]
pub struct MirrorOptions {
    prefix: Bytes,
    destination_prefix: Option<Bytes>,
    progress_key: Option<Bytes>,
}

impl MirrorOptions {
    /// Every key of the source, to the same key of the destination.
    pub fn new() -> Self {
        Self::default()
    }

    /// Only keys with this prefix.
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl AsRef<[u8]>) -> Self {
        self.prefix = Bytes::copy_from_slice(prefix.as_ref());
        self
    }

    /// In the destination, keys have this prefix in place of that of [`Self::with_prefix`]. It may be
    /// empty. Default: the same. All keys of the destination with this prefix belong to the mirror: it
    /// deletes those that the source does not have.
    #[must_use]
    pub fn with_destination_prefix(mut self, prefix: impl AsRef<[u8]>) -> Self {
        self.destination_prefix = Some(Bytes::copy_from_slice(prefix.as_ref()));
        self
    }

    /// The key of the destination that says how far the mirror is. Default:
    /// `leasehold-mirror/`*cluster*`/`*prefix*, with the id of the source's cluster, and the prefix after
    /// the source's namespace.
    #[must_use]
    pub fn with_progress_key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.progress_key = Some(Bytes::copy_from_slice(key.as_ref()));
        self
    }
}

/// What a [`Mirror`] did last.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MirrorEvent {
    /// A copy of everything has begun: the destination is not like any revision of the source until
    /// [`Self::Copied`].
    CopyStarted {
        /// Why.
        reason: CopyReason,
    },
    /// A part of that copy was written.
    Copying {
        /// The revision of the source that is copied.
        revision: i64,
        /// So far.
        counts: MirrorCounts,
    },
    /// The copy is complete: the destination is like the source at this revision.
    Copied {
        /// That revision of the source.
        revision: i64,
        /// What it took.
        counts: MirrorCounts,
    },
    /// Everything up to this revision was there already, and what comes later is followed.
    Following {
        /// That revision of the source.
        revision: i64,
    },
    /// All changes of one revision of the source were written, in one transaction unless they are too
    /// large for one.
    Applied {
        /// That revision of the source.
        revision: i64,
        /// These changes.
        counts: MirrorCounts,
    },
    /// Nothing was missing up to this revision.
    UpToDate {
        /// That revision of the source.
        revision: i64,
    },
    /// Something failed that may pass: the mirror goes on from what the destination has.
    Interrupted {
        /// What.
        cause: Error,
    },
}

impl MirrorEvent {
    /// Whether the destination is further than before, or is known to be where the source is. To begin is not.
    fn is_headway(&self) -> bool {
        match self {
            Self::Copying { .. }
            | Self::Copied { .. }
            | Self::Applied { .. }
            | Self::UpToDate { .. } => true,
            Self::CopyStarted { .. } | Self::Following { .. } | Self::Interrupted { .. } => false,
        }
    }
}

/// Why everything is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CopyReason {
    /// Nothing was mirrored before.
    New,
    /// An earlier copy was not completed.
    Unfinished,
    /// The source has compacted changes that had not been copied yet.
    Compacted,
    /// The source was bootstrapped again: its revisions count other changes now.
    OtherHistory,
}

impl fmt::Display for CopyReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::New => "nothing was mirrored before",
            Self::Unfinished => "an earlier copy was not completed",
            Self::Compacted => "the source has compacted what was to come next",
            Self::OtherHistory => "the source was bootstrapped again",
        })
    }
}

/// Numbers of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MirrorCounts {
    /// Written.
    pub puts: u64,
    /// Deleted.
    pub deletes: u64,
    /// Left alone: both sides had the same. Of a copy of everything alone.
    pub unchanged: u64,
}

/// A copy of the keys below a prefix in another cluster, kept up to date for as long as
/// [`Mirror::next`] is called. It can be given up at any time, and begun again by any program: it goes on
/// where the destination is.
///
/// ```no_run
/// use leasehold::client::{Client, Mirror, MirrorEvent, MirrorOptions};
///
/// # async fn example(source: Client, destination: Client) -> Result<(), leasehold::api::Error> {
/// let options = MirrorOptions::new().with_prefix("config/").with_destination_prefix("eu/config/");
/// let mut mirror = Mirror::new(&source, &destination, options);
/// loop {
///     match mirror.next().await? {
///         MirrorEvent::Applied { revision, counts } => println!("{revision}: {counts:?}"),
///         MirrorEvent::Interrupted { cause } => eprintln!("{cause}"),
///         other => println!("{other:?}"),
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Mirror {
    source: Client,
    destination: Client,
    options: MirrorOptions,
    /// Tells this mirror from others.
    writer: u64,
    /// The progress key has been its own: if another writes it now, that began later.
    has_begun: bool,
    state: State,
    /// Before the next step.
    wait: Duration,
    back_off: Duration,
}

#[derive(Debug)]
enum State {
    /// It is not known how far the destination is.
    Beginning,
    Copying(Box<CopyInProgress>),
    Following(Box<Pursuit>),
}

/// The progress key, and what this mirror knows of it.
#[derive(Clone, Debug)]
struct Place {
    key: Bytes,
    /// The revision of the destination that wrote the key; 0 if it does not exist.
    written_at: i64,
    origin: Origin,
    /// The prefixes as the two clients know them.
    prefix: Bytes,
    destination_prefix: Bytes,
}

/// A walk over both sides.
#[derive(Debug)]
struct CopyInProgress {
    place: Place,
    theirs: Side,
    ours: Side,
    batch: Vec<TxnOp>,
    bytes: usize,
    counts: MirrorCounts,
}

/// One side of the walk.
#[derive(Debug)]
struct Side {
    stream: RangeStream,
    first: Option<KeyValue>,
    is_over: bool,
}

/// What came of a look at the next key of both sides.
enum Step {
    Compared,
    /// The batch has no room for it.
    Full,
    Over,
}

/// A watch of the source.
#[derive(Debug)]
struct Pursuit {
    place: Place,
    watcher: Watcher,
    /// All of this revision is there.
    revision: i64,
    /// So many changes of the next one are there.
    part: usize,
    /// Changes that were taken from the watch, and are not known to be there.
    pending: Option<(i64, VecDeque<Event>)>,
    counts: MirrorCounts,
}

impl Mirror {
    /// A mirror of the keys of `source` in `destination`. Sends no request.
    pub fn new(source: &Client, destination: &Client, options: MirrorOptions) -> Self {
        Self {
            writer: destination.inner.router.random(),
            source: source.clone(),
            destination: destination.clone(),
            options,
            has_begun: false,
            state: State::Beginning,
            wait: Duration::ZERO,
            back_off: BACK_OFF_MIN,
        }
    }

    /// Does the next step, and says what it was. Waits while there is nothing to do. Failures that may
    /// pass are told as [`MirrorEvent::Interrupted`], and are retried without a time limit.
    ///
    /// # Errors
    /// Nothing goes on then. [`ErrorKind::Fenced`]: another mirror with the same progress key has begun.
    /// [`ErrorKind::InvalidArgument`]: the progress key holds something else, a key of the source has no
    /// possible name in the destination, or the mirror would copy what it writes. [`ErrorKind::PermissionDenied`] and the like; a client was
    /// closed.
    ///
    /// # Cancel safety
    /// Safe: nothing is lost or copied twice. What was sent may still take effect.
    pub async fn next(&mut self) -> Result<MirrorEvent, Error> {
        if !self.wait.is_zero() {
            tokio::time::sleep(self.wait).await;
            self.wait = Duration::ZERO;
        }
        let step = match &mut self.state {
            State::Beginning => self.begin().await,
            State::Copying(_) => self.copy_on().await,
            State::Following(_) => self.follow_on().await,
        };
        match step {
            Ok(event) => {
                if event.is_headway() {
                    self.back_off = BACK_OFF_MIN;
                }
                Ok(event)
            }
            Err(cause) if self.may_pass(&cause) => {
                self.state = State::Beginning;
                self.wait = self.source.inner.router.jittered(self.back_off);
                self.back_off = (self.back_off * 2).min(BACK_OFF_MAX);
                Ok(MirrorEvent::Interrupted { cause })
            }
            Err(error) => Err(error),
        }
    }

    fn may_pass(&self, error: &Error) -> bool {
        let is_closed = |client: &Client| client.inner.router.pool().is_closed();
        if is_closed(&self.source) || is_closed(&self.destination) {
            return false;
        }
        let is_watched = matches!(self.state, State::Following(_));
        passes_for_a_mirror(error, is_watched)
    }

    /// Goes on from what the destination has.
    async fn begin(&mut self) -> Result<MirrorEvent, Error> {
        let (mut place, progress, now) = self.look().await?;
        let reason = match progress {
            None => CopyReason::New,
            Some(progress) => match progress.reached {
                Position::Copying => CopyReason::Unfinished,
                Position::At { revision, .. }
                    if revision > now || progress.origin.bootstrap != place.origin.bootstrap =>
                {
                    CopyReason::OtherHistory
                }
                Position::At { revision, part } => {
                    if progress.writer != self.writer {
                        let reached = Some(progress.reached);
                        self.write(&mut place, Vec::new(), reached).await?;
                    }
                    match self.watch(&place.origin, revision + 1).await {
                        Err(error) if matches!(error.kind, ErrorKind::Compacted { .. }) => {
                            CopyReason::Compacted
                        }
                        watcher => {
                            self.state = State::Following(Box::new(Pursuit {
                                place,
                                watcher: watcher?,
                                revision,
                                part,
                                pending: None,
                                counts: MirrorCounts::default(),
                            }));
                            return Ok(MirrorEvent::Following { revision });
                        }
                    }
                }
            },
        };
        self.start_copy(place, reason).await
    }

    /// Looks how far the destination is, if this mirror may go on. The number is the revision of the source.
    async fn look(&mut self) -> Result<(Place, Option<Progress>, i64), Error> {
        let (origin, now) = self.origin().await?;
        let key = match &self.options.progress_key {
            Some(key) => key.clone(),
            None => default_key(&origin),
        };
        let options = GetOptions::new().with_consistency(Consistency::Linearizable);
        let found = self.destination.get(&key, Some(options)).await?;
        let answered = found.header.member_id;
        let bootstrap = self.destination.inner.router.bootstrap_of(answered);
        if origin.is_in(found.header.cluster_id, bootstrap) {
            origin.check_that_it_ends(&self.destination.full_key(&key))?;
        }
        let (prefix, destination_prefix) = self.prefixes();
        let mut place = Place {
            key,
            written_at: 0,
            origin,
            prefix,
            destination_prefix,
        };
        let Some(kv) = found.kv() else {
            return Ok((place, None, now));
        };
        place.written_at = kv.mod_revision;
        let progress = Progress::read(&kv.value).filter(|known| known.is_of(&place.origin));
        let Some(progress) = progress else {
            return Err(not_its_progress(&place));
        };
        if progress.writer == self.writer {
            self.has_begun = true;
        } else if self.has_begun {
            return Err(fenced(&place.key, Some(kv)));
        }
        Ok((place, Some(progress), now))
    }

    /// What the source is, and its revision.
    async fn origin(&self) -> Result<(Origin, i64), Error> {
        let options = GetOptions::new()
            .with_count_only()
            .with_consistency(Consistency::Linearizable);
        let (prefix, destination_prefix) = self.prefixes();
        // A key that who may read the prefix may read.
        let key = match prefix.is_empty() {
            true => &b"\0"[..],
            false => &prefix[..],
        };
        let header = self.source.get(key, Some(options)).await?.header;
        let bootstrap = self.source.inner.router.bootstrap_of(header.member_id);
        if bootstrap.is_none() {
            let detail = "it is not known yet which bootstrap of the source answered";
            return Err(Error::not_applied(ErrorKind::Unavailable, detail));
        }
        let full =
            |client: &Client, prefix: &Bytes| Bytes::from(client.full_key(prefix).into_owned());
        let origin = Origin {
            cluster: header.cluster_id,
            bootstrap,
            prefix: full(&self.source, &prefix),
            destination_prefix: full(&self.destination, &destination_prefix),
        };
        Ok((origin, header.revision))
    }

    /// Those of the source and of the destination, as the two clients know them.
    fn prefixes(&self) -> (Bytes, Bytes) {
        let prefix = &self.options.prefix;
        let destination_prefix = self.options.destination_prefix.as_ref();
        (prefix.clone(), destination_prefix.unwrap_or(prefix).clone())
    }

    async fn watch(&self, origin: &Origin, start: i64) -> Result<Watcher, Error> {
        let options = WatchOptions::new()
            .with_prefix()
            .with_start_revision(start)
            .with_progress_notify();
        let watcher = self
            .source
            .watch(&self.options.prefix, Some(options))
            .await?;
        if watcher.bootstrap() != origin.bootstrap {
            let detail = "the watch may be of another bootstrap of the source";
            return Err(Error::not_applied(ErrorKind::Unavailable, detail));
        }
        Ok(watcher)
    }

    async fn start_copy(
        &mut self,
        mut place: Place,
        reason: CopyReason,
    ) -> Result<MirrorEvent, Error> {
        let all = |client: &Client, prefix: &Bytes| {
            let options = GetOptions::new()
                .with_prefix()
                .with_consistency(Consistency::Linearizable);
            client.get_stream(prefix, Some(options)).map(Side::of)
        };
        let theirs = all(&self.source, &place.prefix)?;
        self.write(&mut place, Vec::new(), Some(Position::Copying))
            .await?;
        let ours = all(&self.destination, &place.destination_prefix)?;
        self.state = State::Copying(Box::new(CopyInProgress {
            place,
            theirs,
            ours,
            batch: Vec::new(),
            bytes: 0,
            counts: MirrorCounts::default(),
        }));
        Ok(MirrorEvent::CopyStarted { reason })
    }

    /// Writes the next part of a copy of everything.
    async fn copy_on(&mut self) -> Result<MirrorEvent, Error> {
        let (ops_max, bytes_max) = self.room();
        let State::Copying(copy) = &mut self.state else {
            return Err(astray());
        };
        let is_complete = loop {
            if copy.batch.len() + 1 >= ops_max {
                break false;
            }
            match copy.compare_next(bytes_max).await? {
                Step::Compared => {}
                Step::Full => break false,
                Step::Over => break true,
            }
        };
        let (mut place, batch) = (copy.place.clone(), copy.batch.clone());
        let counts = copy.counts;
        let revision = copy.theirs.stream.revision().unwrap_or_default();
        let reached = is_complete.then_some(Position::At { revision, part: 0 });
        self.write(&mut place, batch, reached).await?;
        if is_complete {
            self.state = State::Beginning;
            return Ok(MirrorEvent::Copied { revision, counts });
        }
        if let State::Copying(copy) = &mut self.state {
            copy.batch.clear();
            copy.bytes = 0;
        }
        Ok(MirrorEvent::Copying { revision, counts })
    }

    /// Writes the next change of the source.
    async fn follow_on(&mut self) -> Result<MirrorEvent, Error> {
        let (ops_max, bytes_max) = self.room();
        loop {
            let State::Following(pursuit) = &mut self.state else {
                return Err(astray());
            };
            pursuit.wait_for_change().await?;
            let (mut place, ops, reached) = pursuit.next_part(ops_max, bytes_max)?;
            let is_idle = ops.is_empty();
            self.write(&mut place, ops, Some(reached)).await?;
            let State::Following(pursuit) = &mut self.state else {
                return Err(astray());
            };
            pursuit.place = place;
            let Position::At { revision, part } = reached else {
                return Err(astray());
            };
            pursuit.wrote(revision, part);
            if part > 0 {
                continue;
            }
            let counts = std::mem::take(&mut pursuit.counts);
            return Ok(match is_idle && counts == MirrorCounts::default() {
                true => MirrorEvent::UpToDate { revision },
                false => MirrorEvent::Applied { revision, counts },
            });
        }
    }

    /// How many operations and bytes a transaction of the destination holds beside the progress.
    fn room(&self) -> (usize, usize) {
        let limits = &self.destination.inner.options.limits;
        let bytes_max = limits.request_bytes_max.saturating_sub(REQUEST_OVERHEAD);
        (limits.txn_ops_max.max(4), bytes_max)
    }

    /// Writes to the destination, unless another mirror did.
    async fn write(
        &mut self,
        place: &mut Place,
        ops: Vec<TxnOp>,
        reached: Option<Position>,
    ) -> Result<(), Error> {
        let is_ours = Compare::mod_revision(place.key.clone(), CompareOp::Equal, place.written_at);
        let progress = reached.map(|reached| {
            let progress = Progress {
                origin: place.origin.clone(),
                writer: self.writer,
                reached,
            };
            TxnOp::put(place.key.clone(), progress.to_text())
        });
        let moves_on = progress.is_some();
        let nested = nested(ops, self.room().0);
        let txn = TxnRequest::new()
            .when([is_ours])
            .and_then(progress.into_iter().chain(nested))
            .or_else([TxnOp::get(place.key.clone())]);
        let options = TxnOptions::new().with_timeout(WRITE_PATIENCE);
        let done = self.destination.txn(txn, Some(options)).await?;
        if done.succeeded {
            if moves_on {
                place.written_at = done.header.revision;
                self.has_begun = true;
            }
            return Ok(());
        }
        let found = match done.responses.first() {
            Some(TxnOpResponse::Range(range)) => range.kvs.first(),
            _ => None,
        };
        let writer = found.and_then(|kv| Progress::read(&kv.value));
        Err(match writer {
            // An answer was lost, and with it that this was written.
            Some(known) if known.writer == self.writer => Error::not_applied(
                ErrorKind::Conflict { attempts: 1 },
                "an earlier write of this mirror has taken effect late",
            ),
            // The one to be fenced was faster this time.
            _ if !self.has_begun => Error::not_applied(
                ErrorKind::Conflict { attempts: 1 },
                "an earlier mirror has gone on while this one began",
            ),
            _ => fenced(&place.key, found),
        })
    }
}

impl Side {
    fn of(stream: RangeStream) -> Self {
        Self {
            stream,
            first: None,
            is_over: false,
        }
    }

    /// The first key that was not taken yet.
    async fn peek(&mut self) -> Result<Option<&KeyValue>, Error> {
        if self.first.is_none() && !self.is_over {
            match self.stream.next().await {
                Some(next) => self.first = Some(next?),
                None => self.is_over = true,
            }
        }
        Ok(self.first.as_ref())
    }
}

impl CopyInProgress {
    /// Compares the next key of both sides.
    async fn compare_next(&mut self, bytes_max: usize) -> Result<Step, Error> {
        if self
            .ours
            .peek()
            .await?
            .is_some_and(|kv| kv.key == self.place.key)
        {
            self.ours.first = None;
            return Ok(Step::Compared);
        }
        self.theirs.peek().await?;
        let (theirs, ours) = (&self.theirs.first, &self.ours.first);
        let key = match theirs {
            Some(kv) => Some(self.place.key_of(&kv.key)?),
            None => None,
        };
        let (op, takes) = match (key, theirs, ours) {
            (Some(key), Some(theirs), ours) if ours.as_ref().is_none_or(|kv| key <= kv.key) => {
                let is_there = ours.as_ref().filter(|kv| kv.key == key);
                let is_same = is_there.is_some_and(|kv| kv.value == theirs.value && kv.lease == 0);
                let takes = (true, is_there.is_some());
                (
                    (!is_same).then(|| TxnOp::put(key, theirs.value.clone())),
                    takes,
                )
            }
            (_, _, Some(ours)) => (Some(TxnOp::delete(ours.key.clone())), (false, true)),
            _ => return Ok(Step::Over),
        };
        let bytes = op.as_ref().map_or(0, bytes_of);
        if self.bytes + bytes > bytes_max && !self.batch.is_empty() {
            return Ok(Step::Full);
        }
        match &op {
            None => self.counts.unchanged += 1,
            Some(TxnOp::Put(_)) => self.counts.puts += 1,
            Some(_) => self.counts.deletes += 1,
        }
        self.bytes += bytes;
        self.batch.extend(op);
        if takes.0 {
            self.theirs.first = None;
        }
        if takes.1 {
            self.ours.first = None;
        }
        Ok(Step::Compared)
    }
}

impl Pursuit {
    /// Waits until the source has something that the destination does not.
    ///
    /// # Cancel safety
    /// Safe.
    async fn wait_for_change(&mut self) -> Result<(), Error> {
        while self.pending.is_none() {
            match self.watcher.next().await {
                Some(Ok(WatchEvent::Events { revision, events })) => {
                    let rest = events.into_iter().skip(self.part);
                    self.pending = Some((revision, rest.collect()));
                }
                Some(Ok(WatchEvent::Progress { revision })) if revision > self.revision => {
                    self.pending = Some((revision, VecDeque::new()));
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
                None => {
                    let detail = "the watch of the source has ended";
                    return Err(Error::not_applied(ErrorKind::Unavailable, detail));
                }
            }
        }
        Ok(())
    }

    /// What one transaction can hold of the pending changes, which is all of them if possible, and where
    /// the destination is then.
    fn next_part(
        &self,
        ops_max: usize,
        bytes_max: usize,
    ) -> Result<(Place, Vec<TxnOp>, Position), Error> {
        let (revision, events) = match &self.pending {
            Some((revision, events)) => (*revision, events),
            None => return Err(astray()),
        };
        let most = nested_max(ops_max);
        let (mut ops, mut bytes) = (Vec::new(), 0);
        for event in events {
            let op = self.place.op_of(event)?;
            bytes += bytes_of(&op);
            if ops.len() == most || (bytes > bytes_max && !ops.is_empty()) {
                break;
            }
            ops.push(op);
        }
        let reached = match ops.len() == events.len() {
            true => Position::At { revision, part: 0 },
            false => Position::At {
                revision: revision - 1,
                part: self.part + ops.len(),
            },
        };
        Ok((self.place.clone(), ops, reached))
    }

    /// The destination is there.
    fn wrote(&mut self, revision: i64, part: usize) {
        let Some((_, events)) = &mut self.pending else {
            return;
        };
        let count = match part {
            0 => events.len(),
            part => part - self.part,
        };
        for event in events.drain(..count) {
            match event.kind {
                EventKind::Put => self.counts.puts += 1,
                EventKind::Delete => self.counts.deletes += 1,
            }
        }
        (self.revision, self.part) = (revision, part);
        if part == 0 {
            self.pending = None;
        }
    }
}

impl Place {
    /// The name of a key of the source in the destination.
    fn key_of(&self, key: &[u8]) -> Result<Bytes, Error> {
        let Self {
            prefix,
            destination_prefix,
            ..
        } = self;
        let rest = key.strip_prefix(&prefix[..]).unwrap_or(key);
        let mut full = BytesMut::with_capacity(destination_prefix.len() + rest.len());
        full.extend_from_slice(destination_prefix);
        full.extend_from_slice(rest);
        let why = if full.is_empty() {
            "would have no name in the destination: mirror it with a prefix"
        } else if full == self.key {
            "would take the place of the mirror's own progress key: choose another one"
        } else {
            return Ok(full.freeze());
        };
        Err(Error::not_applied(
            ErrorKind::InvalidArgument,
            format!("the key {} of the source {why}", shown(key)),
        ))
    }

    fn op_of(&self, event: &Event) -> Result<TxnOp, Error> {
        let key = self.key_of(&event.kv.key)?;
        Ok(match event.kind {
            EventKind::Put => TxnOp::put(key, event.kv.value.clone()),
            EventKind::Delete => TxnOp::delete(key),
        })
    }
}

/// Operations that may be more than a list of a transaction may have, in as few lists as possible: the
/// longest list of each level counts, however many there are beside it.
fn nested(mut ops: Vec<TxnOp>, ops_max: usize) -> Vec<TxnOp> {
    // One is the progress.
    if ops.len() < ops_max {
        return ops;
    }
    let fits = |lists: usize| lists.saturating_mul(ops_max - lists - 1) >= ops.len();
    let lists = (2..ops_max / 2).find(|lists| fits(*lists));
    let lists = lists.unwrap_or(ops_max / 2 - 1).max(1);
    let mut all = Vec::with_capacity(lists);
    while !ops.is_empty() {
        let rest = ops.split_off(ops.len().min((ops_max - lists - 1).max(1)));
        all.push(TxnOp::txn(TxnRequest::new().and_then(ops)));
        ops = rest;
    }
    all
}

/// How many operations [`nested`] makes fit.
fn nested_max(ops_max: usize) -> usize {
    let lists = (ops_max / 2).saturating_sub(1).max(1);
    // What is beside them: the lists, of which there are 63 if they are short, a comparison, a look, the progress.
    let parts = TXN_PARTS_MAX - 68;
    (lists.saturating_mul(ops_max - lists - 1))
        .max(ops_max - 1)
        .min(parts)
}

fn bytes_of(op: &TxnOp) -> usize {
    OP_OVERHEAD
        + match op {
            TxnOp::Put(put) => put.key.len() + put.value.len(),
            TxnOp::DeleteRange(delete) => delete.key.len(),
            TxnOp::Range(_) | TxnOp::Txn(_) => 0,
        }
}

fn not_its_progress(place: &Place) -> Error {
    Error::not_applied(
        ErrorKind::InvalidArgument,
        format!(
            "the key {} of the destination is not the progress of this mirror: it may be of another source, prefix \
             or destination prefix. Choose another progress key, or delete it if nothing needs it",
            shown(&place.key)
        ),
    )
}

/// Whether it may be over when the mirror begins again. A watch says of a source that was bootstrapped again
/// that it is another cluster; a connection says so of one that is.
fn passes_for_a_mirror(error: &Error, is_watched: bool) -> bool {
    match error.kind {
        ErrorKind::ClusterMismatch => is_watched,
        // The node that is asked now may lack what another one told before, or its own data.
        ErrorKind::Compacted { .. } | ErrorKind::FutureRevision | ErrorKind::Corrupt => true,
        _ => passes(error),
    }
}

fn fenced(key: &[u8], found: Option<&KeyValue>) -> Error {
    Error::not_applied(
        ErrorKind::Fenced {
            current: found.map_or(0, |kv| kv.create_revision),
        },
        format!(
            "another mirror has begun with the same progress key, {}, or the key was changed: let only one of \
             them run",
            shown(key)
        ),
    )
}

fn astray() -> Error {
    Error::not_applied(ErrorKind::Internal, "the mirror has lost its state")
}

const BACK_OFF_MIN: Duration = Duration::from_millis(25);
const BACK_OFF_MAX: Duration = Duration::from_secs(1);
/// Of one transaction at the destination.
const WRITE_PATIENCE: Duration = Duration::from_secs(10);
/// What an operation takes beside its key and value, at most, and a request beside its operations, with the
/// progress.
const OP_OVERHEAD: usize = 32;
const REQUEST_OVERHEAD: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_change_of_the_leader_may_bring_passes() {
        let passes = |kind, is_watched| {
            passes_for_a_mirror(&Error::not_applied(kind, "of a test"), is_watched)
        };
        let compact_revision = 7;
        for kind in [
            ErrorKind::FutureRevision,
            ErrorKind::Corrupt,
            ErrorKind::Compacted { compact_revision },
            ErrorKind::Unavailable,
            ErrorKind::LeaderChanged,
        ] {
            assert!(passes(kind.clone(), false), "{kind:?}");
        }
        assert!(passes(ErrorKind::ClusterMismatch, true));
        for kind in [
            ErrorKind::ClusterMismatch,
            ErrorKind::PermissionDenied,
            ErrorKind::InvalidArgument,
            ErrorKind::Fenced { current: 1 },
        ] {
            assert!(!passes(kind.clone(), false), "{kind:?}");
        }
    }

    #[test]
    fn who_only_begins_again_and_again_waits_longer_each_time() {
        let (revision, counts) = (7, MirrorCounts::default());
        let reason = CopyReason::Unfinished;
        for event in [
            MirrorEvent::CopyStarted { reason },
            MirrorEvent::Following { revision },
        ] {
            assert!(!event.is_headway(), "{event:?}");
        }
        for event in [
            MirrorEvent::Copying { revision, counts },
            MirrorEvent::Copied { revision, counts },
            MirrorEvent::Applied { revision, counts },
            MirrorEvent::UpToDate { revision },
        ] {
            assert!(event.is_headway(), "{event:?}");
        }
    }

    #[test]
    fn as_many_operations_as_a_transaction_can_hold_are_put_into_one() {
        use crate::api::{Limits, Request, validate};
        for ops_max in [4, 5, 16, 128, 1024, usize::MAX] {
            let limits = Limits {
                txn_ops_max: ops_max,
                ..Limits::DEFAULT
            };
            let most = nested_max(ops_max);
            for count in [0, 1, ops_max - 1, ops_max, ops_max.saturating_mul(2), most] {
                let count = count.min(most);
                let ops = (0..count).map(|n| TxnOp::put(n.to_string(), "v")).collect();
                let txn = TxnRequest::new()
                    .when([Compare::mod_revision("p", CompareOp::Equal, 1)])
                    .and_then(
                        [TxnOp::put("p", "")]
                            .into_iter()
                            .chain(nested(ops, ops_max)),
                    )
                    .or_else([TxnOp::get("p")]);
                let ops: usize = txn
                    .success
                    .iter()
                    .map(|op| match op {
                        TxnOp::Txn(txn) => txn.success.len(),
                        _ => 1,
                    })
                    .sum();
                assert_eq!(ops, count + 1);
                let is_valid = validate(&Request::Txn(txn), &limits);
                assert_eq!(is_valid, Ok(()), "{count} with {ops_max}");
            }
        }
        assert!(nested_max(128) > 3_900);
    }
}
