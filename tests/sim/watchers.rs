//! Whoever watches: from now on, from the past, from a revision to come, or beginning with what there
//! is; at any node, and after an interruption at another one, as the SDK does it: by the same
//! [`WatchCursor`].
//!
//! Streams break when a process ends, when a client cannot reach it, and for no reason. Some read
//! slowly, and are ended by their node for it. What a watch gives out goes to the judge
//! (`checkers/watches.rs`); once all has healed, every watch must be told everything.

use leasehold::api::{
    Error, ErrorKind, KeyRange, WatchCursor, WatchEnd, WatchMessage, WatchRequest,
};

use crate::clock::{MS, Nanos, SECOND, US};
use crate::dice::Dice;
use crate::marks::Mark;
use crate::options::Options;
use crate::watches::{Order, Parcel};
use crate::world::{Event, Work, World};
use crate::{history, holders};

/// One who watches.
pub(crate) struct Watcher {
    dice: Dice,
    /// Only the event scheduled last counts.
    turn: u64,
    /// What it watches; nothing between two watches.
    cursor: Option<WatchCursor>,
    phase: Phase,
    node: usize,
    /// The process that it has asked.
    life: u64,
    /// The stream that it reads, or waits for.
    stream: u64,
    /// How long it takes to read what arrives together.
    pace: Nanos,
    /// When it has seen enough.
    leaves: Nanos,
    /// The newest revision that it knows of.
    seen: i64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Asked,
    Open,
}

impl Watcher {
    pub(crate) fn all(options: &Options) -> Vec<Self> {
        let of = |number: usize| Self {
            dice: Dice::new(options.seed, "watcher", number as u64),
            turn: 0,
            cursor: None,
            phase: Phase::Idle,
            node: 0,
            life: 0,
            stream: 0,
            pace: 0,
            leaves: 0,
            seen: 1,
        };
        (0..options.watchers).map(of).collect()
    }

    /// What it would like to watch next.
    fn wish(&mut self, keys: u64) -> WatchRequest {
        let dice = &mut self.dice;
        let (key, range) = match dice.between(0, 9) {
            0..=2 => (history::name(dice.between(0, keys - 1)), KeyRange::Single),
            3..=5 => (bytes::Bytes::from_static(b"k"), KeyRange::Prefix),
            6 => {
                let until = history::name(dice.between(0, keys));
                (history::name(0), KeyRange::Until(until))
            }
            7 => (holders::key(0), KeyRange::From),
            _ => (bytes::Bytes::new(), KeyRange::Prefix),
        };
        let (start_revision, initial_state) = match dice.between(0, 9) {
            0..=2 => (0, false),
            3 | 4 => (0, true),
            // Some of it is compacted.
            5..=7 => (self.seen - dice.spread(1, 400) as i64, false),
            8 => (self.seen, false),
            _ => (self.seen + dice.spread(1, 30) as i64, false),
        };
        let (no_put, no_delete) = *dice.pick(&[
            (false, false),
            (false, false),
            (false, false),
            (true, false),
            (false, true),
        ]);
        WatchRequest {
            key,
            range,
            start_revision: match initial_state {
                true => 0,
                false => start_revision.max(i64::from(start_revision != 0)),
            },
            initial_state,
            prev_kv: dice.chance(0.6),
            no_put,
            no_delete,
            progress_notify: dice.chance(0.5),
        }
    }
}

impl World {
    /// Every watcher will act.
    pub(crate) fn watchers_start(&mut self) {
        for watcher in 0..self.watchers.len() {
            self.watcher_later(watcher, MS, 500 * MS);
        }
    }

    fn watcher_later(&mut self, watcher: usize, least: Nanos, most: Nanos) {
        let this = &mut self.watchers[watcher];
        this.turn += 1;
        let (turn, delay) = (this.turn, this.dice.spread(least, most));
        self.schedule(delay, Event::Watcher(watcher, turn));
    }

    /// A watcher does something, or looks whether its stream is still there.
    pub(crate) fn watcher_acts(&mut self, watcher: usize, turn: u64) {
        let (now, healed) = (self.now, self.healed);
        let keys = self.options.keys;
        let this = &mut self.watchers[watcher];
        if this.turn != turn {
            return;
        }
        match this.phase {
            Phase::Idle if this.cursor.is_none() && healed => return,
            Phase::Idle if this.cursor.is_none() => {
                let request = this.wish(keys);
                this.leaves = now + this.dice.spread(200 * MS, 10 * SECOND);
                this.cursor = Some(WatchCursor::new(request.clone()));
                self.trace
                    .line(now, None, || format!("w{watcher} wants {request:?}"));
                self.judge.watches(watcher, Some(request));
                return self.watcher_asks(watcher);
            }
            Phase::Idle => return self.watcher_asks(watcher),
            Phase::Asked => {
                self.watcher_lets_go(watcher);
                return self.watcher_asks(watcher);
            }
            Phase::Open => {}
        }
        let machine = &self.machines[this.node];
        let is_there = machine.life == this.life && machine.process.is_some();
        if !is_there || machine.client_cuts > 0 {
            return self.watcher_goes_on(watcher, "nothing is heard");
        }
        if this.leaves < now && !healed {
            self.watcher_lets_go(watcher);
            return self.watch_is_over(watcher);
        }
        match this.dice.between(0, 9) {
            0 | 1 => {
                let (node, stream) = (this.node, this.stream);
                self.watcher_says(watcher, node, Order::Progress(stream));
            }
            2 if !healed => return self.watcher_goes_on(watcher, "it moves on"),
            _ => {}
        }
        self.watcher_later(watcher, 20 * MS, 800 * MS);
    }

    /// Asks a node for what is to be watched next.
    fn watcher_asks(&mut self, watcher: usize) {
        let nodes = self.machines.len() as u64;
        let stream = self.next_stream;
        self.next_stream += 1;
        let this = &mut self.watchers[watcher];
        let Some(cursor) = &this.cursor else { return };
        let request = cursor.request();
        this.node = this.dice.between(0, nodes - 1) as usize;
        this.stream = stream;
        this.phase = Phase::Asked;
        let node = this.node;
        this.life = self.machines[node].life;
        self.trace.line(self.now, Some(node), || {
            format!(
                "<~ w{watcher} s{stream} watches from {}",
                request.start_revision
            )
        });
        let order = Order::Watch {
            watcher,
            stream,
            request,
        };
        self.watcher_says(watcher, node, order);
        self.watcher_later(watcher, 30 * MS, 800 * MS);
    }

    fn watcher_says(&mut self, watcher: usize, node: usize, order: Order) {
        let this = &mut self.watchers[watcher];
        let (life, delay) = (this.life, this.dice.between(20 * US, 3 * MS));
        if self.machines[node].client_cuts == 0 {
            let work = Work::Watch(Box::new(order));
            self.schedule(delay, Event::Work(node, life, work));
        }
    }

    /// Reads its stream no more.
    fn watcher_lets_go(&mut self, watcher: usize) {
        let this = &self.watchers[watcher];
        let (node, stream) = (this.node, this.stream);
        self.watcher_says(watcher, node, Order::Gone(stream));
        self.watchers[watcher].stream = 0;
    }

    /// The watch was interrupted, and goes on elsewhere.
    fn watcher_goes_on(&mut self, watcher: usize, why: &str) {
        self.trace.line(self.now, None, || {
            format!("w{watcher} is interrupted: {why}")
        });
        self.watcher_lets_go(watcher);
        self.watchers[watcher].phase = Phase::Idle;
        self.watcher_later(watcher, MS, 60 * MS);
    }

    fn watch_is_over(&mut self, watcher: usize) {
        self.judge.watches(watcher, None);
        let this = &mut self.watchers[watcher];
        this.cursor = None;
        this.phase = Phase::Idle;
        self.watcher_later(watcher, MS, 300 * MS);
    }

    /// A node has taken the watch on, or refuses it.
    pub(crate) fn watch_opened(&mut self, watcher: usize, stream: u64, answer: Result<i64, Error>) {
        let healed = self.healed;
        let this = &mut self.watchers[watcher];
        if this.stream != stream || this.phase != Phase::Asked {
            return;
        }
        self.trace.line(self.now, None, || {
            format!("w{watcher} s{stream} is answered {answer:?}")
        });
        let revision = match answer {
            Ok(revision) => revision,
            Err(error) if matches!(error.kind, ErrorKind::Compacted { .. }) => {
                return self.watch_is_over(watcher);
            }
            Err(_) => return self.watcher_goes_on(watcher, "it is refused"),
        };
        let Some(cursor) = &mut this.cursor else {
            return;
        };
        cursor.opened(revision);
        let from = cursor.resumes_from();
        this.phase = Phase::Open;
        this.seen = this.seen.max(revision);
        this.pace = match this.dice.between(0, 9) {
            0 | 1 if !healed => this.dice.spread(20 * MS, 3 * SECOND),
            _ => this.dice.spread(US, 3 * MS),
        };
        self.judge.watch_opened(watcher, revision, from);
        self.watcher_later(watcher, 20 * MS, 800 * MS);
    }

    /// Something arrives on the stream `stream`.
    pub(crate) fn watch_hears(&mut self, watcher: usize, stream: u64, parcel: Parcel) {
        let Parcel { id, mut messages } = parcel;
        let healed = self.healed;
        let this = &mut self.watchers[watcher];
        if this.stream != stream || this.phase != Phase::Open {
            return;
        }
        // A stream may break anywhere, in the middle of a revision too.
        let breaks = !healed && this.dice.chance(0.03);
        if breaks {
            let some = this.dice.between(0, messages.len() as u64) as usize;
            messages.truncate(some);
        }
        for message in messages {
            if !self.watch_message(watcher, message) {
                return;
            }
        }
        if breaks {
            self.judge.marks.hit(Mark::WatchBroken);
            return self.watcher_goes_on(watcher, "the stream breaks");
        }
        let this = &mut self.watchers[watcher];
        let pace = if healed { 0 } else { this.pace };
        let (node, life) = (this.node, this.life);
        let delay = pace + this.dice.between(20 * US, 3 * MS);
        let work = Work::Watch(Box::new(Order::Sent(id)));
        self.schedule(delay, Event::Work(node, life, work));
    }

    /// One message; false if the stream is not read any further.
    fn watch_message(&mut self, watcher: usize, message: WatchMessage) -> bool {
        if let WatchMessage::Canceled {
            error,
            resume_revision,
        } = &message
        {
            self.judge.watch_ended(watcher, error, *resume_revision);
        }
        self.trace
            .line(self.now, None, || format!("w{watcher} hears {message:?}"));
        let this = &mut self.watchers[watcher];
        let Some(cursor) = &mut this.cursor else {
            return false;
        };
        match cursor.take(message) {
            Ok(None) => true,
            Ok(Some(step)) => {
                self.judge.watch_told(watcher, &step);
                true
            }
            Err(WatchEnd::Interrupted(error)) => {
                if error.kind == ErrorKind::Internal {
                    let what = format!("w{watcher}: {error}");
                    self.judge
                        .fail("W2 every change is told once, in order", what);
                }
                self.watcher_goes_on(watcher, "its node ends it");
                false
            }
            Err(WatchEnd::Over(_)) => {
                self.watch_is_over(watcher);
                false
            }
        }
    }

    /// The stream is found to be gone.
    pub(crate) fn watch_breaks(&mut self, watcher: usize, stream: u64) {
        let this = &self.watchers[watcher];
        if this.stream == stream && this.phase != Phase::Idle {
            self.watcher_goes_on(watcher, "the connection is gone");
        }
    }

    /// The process on `node` ended: most of those who watch there learn it soon.
    pub(crate) fn watchers_lose(&mut self, node: usize) {
        for watcher in 0..self.watchers.len() {
            let this = &mut self.watchers[watcher];
            let concerned = this.node == node && this.phase != Phase::Idle;
            if concerned && this.dice.chance(0.7) {
                let (stream, delay) = (this.stream, this.dice.between(MS, 20 * MS));
                self.schedule(delay, Event::WatchBreaks(watcher, stream));
            }
        }
    }
}
