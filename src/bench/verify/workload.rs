//! The load under which a lease is verified: few keys, many readers, every value unique, and every
//! answer judged.
//!
//! Clients of the SDK read and write as any program does. Beside them every node is asked for reads
//! under its own lease, once, without following redirects: a node that wrongly believes to be leader
//! would otherwise never be asked, because clients follow the leader.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;

use crate::api::{
    Consistency, Error, ErrorKind, Outcome, RangeRequest, ReadPath, Request, ResponseBody,
};
use crate::bench::history::{Audit, Fate, Findings, Observation, Operation};
use crate::bench::leasehold::{connect, tls};
use crate::bench::pacemaker::Pacemaker;
use crate::bench::tally::Latencies;
use crate::bench::{Stopwatch, Wall};
use crate::cli::connection::Target;
use crate::cli::failure::Failure;
use crate::client::{Client, ConnectOptions, GetOptions, RetryPolicy};
use crate::clock::SystemClock;
use crate::time::Clock;

/// Keys: few, so that reads and writes meet.
const KEYS: u32 = 16;
/// Of a hundred operations, so many are reads.
const READS_PERCENT: u8 = 90;
/// Between two questions to a leader about its own lease.
const PROBE_INTERVAL: Duration = Duration::from_millis(1);
/// Between two questions to a node that says that it does not lead.
const FOLLOWER_INTERVAL: Duration = Duration::from_millis(10);
/// What a client waits after a failure.
const AFTER_FAILURE: Duration = Duration::from_millis(10);
/// How long such a question may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// A load that runs until it is ended.
#[derive(Debug)]
pub struct Workload {
    shared: Rc<Shared>,
    clients: Vec<Client>,
    /// Clients and probes.
    asking: JoinSet<()>,
}

/// A load that has ended, and is not judged yet.
#[derive(Debug)]
pub struct Aftermath {
    shared: Rc<Shared>,
    /// The first is that of the clients.
    clients: Vec<Client>,
}

#[derive(Debug)]
struct Shared {
    watch: Wall,
    prefix: String,
    next_value: Cell<u64>,
    over: Cell<bool>,
    book: RefCell<Book>,
}

#[derive(Debug)]
struct Book {
    audit: Audit,
    record: Option<BufWriter<File>>,
    record_failed: Option<io::Error>,
    counts: Counts,
}

/// What was counted of the clients' operations, and of the questions to single nodes.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Reads that were answered, by authority.
    pub paths: BTreeMap<&'static str, u64>,
    /// Failures of the clients, by code.
    pub failures: BTreeMap<&'static str, u64>,
    /// How long reads took.
    pub reads: Latencies,
    /// How long writes took.
    pub writes: Latencies,
    /// Reads that a leader answered under its lease, of those asked of single nodes.
    pub probes_answered: u64,
    /// Of those, how many a leader refused because its lease was void.
    pub probes_refused: u64,
    /// When a read under the lease was answered last.
    pub leased_at: Option<Duration>,
    /// The longest time between two of them.
    pub longest_gap: Duration,
    /// When a read of a client was answered last, whichever way.
    pub read_at: Option<Duration>,
    /// The longest time between two of them since it was last looked at.
    pub longest_silence: Duration,
}

impl Workload {
    /// Begins: so many clients, on connections of their own. What they do is recorded in the file
    /// `record`, if one is named. The store has had the revision `after`, so no answer may be older. Runs on a
    /// [`tokio::task::LocalSet`].
    ///
    /// # Errors
    /// No node can be reached, or the file cannot be written.
    pub async fn start(
        target: &Target,
        clients: u32,
        record: Option<&Path>,
        after: i64,
    ) -> Result<Self, Failure> {
        let record = match record {
            None => None,
            Some(path) => Some(BufWriter::new(File::create(path).map_err(|error| {
                Failure::refused(format!("cannot write {}: {error}", path.display()))
            })?)),
        };
        // No other client uses these keys, nor did one in an earlier run.
        let started = SystemClock.now();
        let shared = Rc::new(Shared {
            watch: Wall::start(),
            prefix: format!("verify/{}-{}/", std::process::id(), started.boot),
            next_value: Cell::new(0),
            over: Cell::new(false),
            book: RefCell::new(Book {
                audit: Audit::after(after),
                record,
                record_failed: None,
                counts: Counts::default(),
            }),
        });
        let client = connect(target).await?;
        let options = ConnectOptions::new()
            .with_tls(tls(target))
            .with_timeout(PROBE_TIMEOUT)
            .with_retry(RetryPolicy::never())
            .with_client_name("leasehold-verify");
        let single = Client::connect(target.endpoints.iter().cloned(), Some(options)).await?;
        let mut asking = JoinSet::new();
        for number in 0..clients {
            asking.spawn_local(ask(shared.clone(), client.clone(), u64::from(number)));
        }
        for endpoint in &target.endpoints {
            let pacemaker = Pacemaker::new()?;
            asking.spawn_local(probe(
                shared.clone(),
                single.clone(),
                endpoint.clone(),
                pacemaker,
            ));
        }
        Ok(Self {
            shared,
            clients: vec![client, single],
            asking,
        })
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        self.shared.book.borrow().counts.clone()
    }

    /// Forgets the longest silence, and the longest gap between reads under the lease.
    pub fn forget_gaps(&self) {
        let now = self.shared.watch.elapsed();
        let counts = &mut self.shared.book.borrow_mut().counts;
        counts.longest_gap = Duration::ZERO;
        counts.longest_silence = Duration::ZERO;
        counts.leased_at = Some(now);
        counts.read_at = Some(now);
    }

    /// Ends it, and judges what was seen.
    ///
    /// # Errors
    /// The record could not be written.
    pub async fn end(self) -> Result<(Counts, Findings), Failure> {
        Ok(self.stop().await?.judge().await)
    }

    /// Ends the clients. What was written can still be read, and the record is complete.
    ///
    /// # Errors
    /// The record could not be written.
    pub async fn stop(mut self) -> Result<Aftermath, Failure> {
        self.shared.over.set(true);
        // Every request has a deadline, so everybody comes to an end.
        while self.asking.join_next().await.is_some() {}
        let mut book = self.shared.book.borrow_mut();
        let flushed = match book.record.take() {
            Some(mut record) => record.flush(),
            None => Ok(()),
        };
        let failed = book.record_failed.take().map_or(flushed, Err);
        failed.map_err(|error| Failure::refused(format!("cannot write the history: {error}")))?;
        drop(book);
        Ok(Aftermath {
            shared: self.shared,
            clients: self.clients,
        })
    }
}

impl Aftermath {
    /// The highest revision of any reply.
    pub fn acknowledged(&self) -> i64 {
        self.shared.book.borrow().audit.acknowledged()
    }

    /// Reads every key once more, as long as the cluster answers: what was acknowledged must still be there,
    /// whatever happened since.
    pub async fn read_again(&self) {
        let Some(client) = self.clients.first() else {
            return;
        };
        // That these clients were silent meanwhile says nothing of the cluster.
        self.shared.book.borrow_mut().counts.read_at = None;
        for key in 0..KEYS {
            if let Err(error) = self.shared.read(client, key).await {
                return self.shared.failed(error.code());
            }
        }
    }

    /// Judges what was seen.
    pub async fn judge(self) -> (Counts, Findings) {
        for client in &self.clients {
            client.close().await;
        }
        let mut book = self.shared.book.borrow_mut();
        let findings = std::mem::take(&mut book.audit).finish();
        (book.counts.clone(), findings)
    }
}

impl Shared {
    fn name(&self, key: u32) -> Bytes {
        Bytes::from(format!("{}{key}", self.prefix))
    }

    fn nanos(&self, at: Duration) -> u64 {
        u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)
    }

    async fn read(&self, client: &Client, key: u32) -> Result<(), Error> {
        let begun = self.book.borrow_mut().audit.begin_read(key);
        let invoked = self.watch.elapsed();
        let options = GetOptions::new().with_consistency(Consistency::Linearizable);
        let got = client.get(self.name(key), Some(options)).await;
        let returned = self.watch.elapsed();
        let mut book = self.book.borrow_mut();
        let got = match got {
            Ok(got) => got,
            Err(error) => {
                book.audit.give_up_read(begun);
                return Err(error);
            }
        };
        let seen = Observation {
            revision: got.header.revision,
            found: got.kv().map(|kv| (value_of(&kv.value), kv.mod_revision)),
        };
        book.audit.end_read(begun, seen);
        self.record(&mut book, || {
            read_operation(key, self.nanos(invoked), self.nanos(returned), seen)
        });
        let counts = &mut book.counts;
        counts.reads.record(returned.saturating_sub(invoked));
        let path = got.header.read.map(|read| read.path);
        *counts
            .paths
            .entry(path.map_or("unknown", ReadPath::name))
            .or_default() += 1;
        let silence = returned.saturating_sub(counts.read_at.unwrap_or(returned));
        counts.longest_silence = counts.longest_silence.max(silence);
        counts.read_at = Some(returned);
        Ok(())
    }

    async fn write(&self, client: &Client, key: u32) -> Result<(), Error> {
        let value = self.next_value.get();
        self.next_value.set(value + 1);
        let begun = self.book.borrow_mut().audit.begin_write(key, value);
        let invoked = self.watch.elapsed();
        let put = client.put(
            self.name(key),
            Bytes::copy_from_slice(&value.to_be_bytes()),
            None,
        );
        let put = put.await;
        let returned = self.watch.elapsed();
        let mut book = self.book.borrow_mut();
        let fate = match &put {
            Ok(put) => Fate::Written(put.header.revision),
            Err(error) if error.outcome == Outcome::NotApplied => Fate::NotApplied,
            // If it took effect, its revision is not known either.
            Err(_) => Fate::Unknown,
        };
        book.audit.end_write(begun, value, fate);
        self.record(&mut book, || Operation::Put {
            key,
            value,
            invoked: self.nanos(invoked),
            returned: self.nanos(returned),
            revision: match fate {
                Fate::Written(revision) => Some(revision),
                _ => None,
            },
            refused: fate == Fate::NotApplied,
        });
        put?;
        book.counts.writes.record(returned.saturating_sub(invoked));
        Ok(())
    }

    /// One read of one node under its own lease. Whether that node leads, by its own account.
    async fn probe(&self, client: &Client, endpoint: &str, key: u32) -> bool {
        let begun = self.book.borrow_mut().audit.begin_read(key);
        let invoked = self.watch.elapsed();
        let request = Request::Range(RangeRequest {
            key: self.name(key),
            ..RangeRequest::default()
        });
        let answer = client
            .call_at(endpoint, request, Consistency::LeaseOnly)
            .await;
        let returned = self.watch.elapsed();
        let mut book = self.book.borrow_mut();
        let (header, range) = match answer {
            Ok(answer) => match answer.body {
                ResponseBody::Range(range) => (answer.header, range),
                _ => {
                    book.audit.give_up_read(begun);
                    return false;
                }
            },
            Err(error) => {
                book.audit.give_up_read(begun);
                let is_leader = error.kind == ErrorKind::LeaseInvalid;
                book.counts.probes_refused += u64::from(is_leader);
                return is_leader;
            }
        };
        let seen = Observation {
            revision: header.revision,
            found: range
                .kvs
                .first()
                .map(|kv| (value_of(&kv.value), kv.mod_revision)),
        };
        book.audit.end_read(begun, seen);
        self.record(&mut book, || {
            read_operation(key, self.nanos(invoked), self.nanos(returned), seen)
        });
        let counts = &mut book.counts;
        counts.probes_answered += 1;
        let gap = returned.saturating_sub(counts.leased_at.unwrap_or(returned));
        counts.longest_gap = counts.longest_gap.max(gap);
        counts.leased_at = Some(returned);
        true
    }

    /// Counts a client's failure. A function of its own, so that the book is not borrowed across a sleep.
    fn failed(&self, code: &'static str) {
        let counts = &mut self.book.borrow_mut().counts;
        *counts.failures.entry(code).or_default() += 1;
    }

    fn record(&self, book: &mut Book, operation: impl FnOnce() -> Operation) {
        let Some(record) = &mut book.record else {
            return;
        };
        let write = |record: &mut BufWriter<File>| -> io::Result<()> {
            serde_json::to_writer(&mut *record, &operation())?;
            record.write_all(b"\n")
        };
        if let Err(error) = write(record) {
            book.record = None;
            book.record_failed = Some(error);
        }
    }
}

/// One client.
async fn ask(shared: Rc<Shared>, client: Client, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    while !shared.over.get() {
        let key = random.u32(..KEYS);
        let asked = match random.u8(..100) < READS_PERCENT {
            true => shared.read(&client, key).await,
            false => shared.write(&client, key).await,
        };
        if let Err(error) = asked {
            shared.failed(error.code());
            tokio::time::sleep(AFTER_FAILURE).await;
        }
    }
}

/// Asks one node, one question at a time.
async fn probe(shared: Rc<Shared>, client: Client, endpoint: String, pacemaker: Pacemaker) {
    let mut key = 0;
    while !shared.over.get() {
        key = (key + 1) % KEYS;
        let leads = shared.probe(&client, &endpoint, key).await;
        let rest = if leads {
            PROBE_INTERVAL
        } else {
            FOLLOWER_INTERVAL
        };
        if pacemaker.sleep(rest).await.is_err() {
            tokio::time::sleep(rest).await;
        }
    }
}

fn read_operation(key: u32, invoked: u64, returned: u64, seen: Observation) -> Operation {
    Operation::Get {
        key,
        invoked,
        returned,
        revision: seen.revision,
        value: seen.found.map(|(value, _)| value),
        mod_revision: seen.found.map(|(_, revision)| revision),
    }
}

/// The number in a value; one that is never written, if it is none.
fn value_of(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(u64::MAX, u64::from_be_bytes)
}
