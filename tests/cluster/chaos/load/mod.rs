//! What clients do meanwhile, and what they may expect of it.
//!
//! Each part judges what it sees by itself; what breaks a rule is noted in the [`Book`]. Nobody waits
//! for a request without a deadline, so all come to an end.

mod counters;
pub(crate) mod etcd;
mod keepers;
mod keys;
mod locks;
pub(crate) mod members;
mod watches;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use leasehold::api::{Consistency, Error, KeyRange, Outcome, RangeRequest, Request, ResponseBody};
use leasehold::client::{Client, ConnectOptions, RetryPolicy};
use tokio::task::JoinSet;

use crate::harness::PATIENCE;

/// What a client waits between two requests, so that the machine has time for the nodes, and for other tests.
const REST: Duration = Duration::from_millis(10);
/// How writers take turns with a quiet time, where members have read leases: a holder asks its leader as long as an
/// entry is under way.
const BUSY: Duration = Duration::from_millis(300);
const QUIET: Duration = Duration::from_millis(300);
/// What it waits after a failure.
const AFTER_FAILURE: Duration = Duration::from_millis(20);
/// How long a patient client waits for an answer.
const PATIENT: Duration = Duration::from_secs(10);
/// How long an impatient one does.
const IMPATIENT: Duration = Duration::from_millis(300);
/// How long a request to a single node may take: longer than a node is paused, for it is what it
/// answers when it wakes that is to be judged.
const PROBE_TIMEOUT: Duration = Duration::from_secs(6);
/// Requests under its own lease that each node is asked at a time.
const PROBES: usize = 4;
/// Reads that each node is asked at a time by clients that ask no other. The impatient ones ask again while it is
/// paused: what was acknowledged meanwhile has to be in what it answers when it wakes.
const PINNED: [Duration; 3] = [IMPATIENT, IMPATIENT, PROBE_TIMEOUT];

/// Everything that was seen.
pub(crate) struct Book {
    over: AtomicBool,
    /// When the load began, if it has quiet times.
    quiet_since: Option<Instant>,
    /// Who leads, by the latest read under a lease.
    leader: AtomicUsize,
    /// Reads that each node has answered by its read lease.
    by_read_lease: Vec<AtomicU64>,
    pub(crate) keys: Mutex<keys::Account>,
    counters: Mutex<counters::Account>,
    keepers: Mutex<keepers::Account>,
    locks: Mutex<locks::Account>,
    elections: Mutex<etcd::elections::Account>,
    watches: Mutex<watches::Account>,
    counts: Mutex<BTreeMap<&'static str, u64>>,
    violations: Mutex<Vec<String>>,
}

impl Book {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// What a client waits that writes, before it goes on.
    async fn rest(&self, rest: Duration) {
        tokio::time::sleep(rest).await;
        if let Some(quiet) = self.quiet_for() {
            tokio::time::sleep(QUIET.saturating_sub(quiet)).await;
        }
    }

    /// How long ago a quiet time has begun, if there is one now.
    fn quiet_for(&self) -> Option<Duration> {
        let elapsed = self.quiet_since?.elapsed().as_nanos();
        let within = elapsed % (BUSY + QUIET).as_nanos();
        let within = Duration::from_nanos(u64::try_from(within).unwrap());
        within.checked_sub(BUSY)
    }

    fn count(&self, what: &'static str) {
        *self.counts.lock().unwrap().entry(what).or_default() += 1;
    }

    fn violation(&self, what: String) {
        eprintln!("VIOLATION {what}");
        self.violations.lock().unwrap().push(what);
    }

    /// Notes a failure by what it says of the outcome.
    fn failed(&self, error: &Error) {
        self.count(match error.outcome {
            Outcome::NotApplied => "failures, certainly without effect",
            Outcome::Applied => "failures, with effect",
            _ => "failures, outcome unknown",
        });
    }
}

fn open<T>(part: &Mutex<T>) -> MutexGuard<'_, T> {
    part.lock().unwrap()
}

/// The clients, while they run.
pub(crate) struct Load {
    book: Arc<Book>,
    endpoints: Vec<String>,
    clients: Vec<Client>,
    /// Who acts until it is over.
    acting: JoinSet<()>,
    /// Who listens, and is told when to stop by a revision.
    listening: JoinSet<()>,
}

/// What the load came to.
pub(crate) struct Judgement {
    pub(crate) counts: BTreeMap<&'static str, u64>,
    pub(crate) violations: Vec<String>,
}

impl Load {
    /// Begins; nodes are called at `endpoints`, and by clients of etcd at `ports`.
    // Long: each kind of client begins here, one after the other.
    pub(crate) async fn begin(
        (endpoints, ports): (Vec<String>, Vec<SocketAddr>),
        options: ConnectOptions,
        seed: u64,
        has_quiet_times: bool,
    ) -> Self {
        let book = Arc::new(Book {
            over: AtomicBool::new(false),
            quiet_since: has_quiet_times.then(Instant::now),
            leader: AtomicUsize::new(0),
            by_read_lease: endpoints.iter().map(|_| AtomicU64::new(0)).collect(),
            keys: Mutex::default(),
            counters: Mutex::default(),
            keepers: Mutex::default(),
            locks: Mutex::default(),
            elections: Mutex::default(),
            watches: Mutex::default(),
            counts: Mutex::default(),
            violations: Mutex::default(),
        });
        // The cluster is well at first, and may be slow.
        let connect_to = async |endpoints: &[String], options: ConnectOptions| {
            insist(|| Client::connect(endpoints, Some(options.clone()))).await
        };
        let connect = async |options| connect_to(&endpoints, options).await;
        let mut acting = JoinSet::new();
        let mut listening = JoinSet::new();
        let mut clients = Vec::new();
        for number in 0..4 {
            // Half of them are patient enough to see their answer through most faults; the others
            // often do not learn what became of a request.
            let timeout = [PATIENT, IMPATIENT][(number % 2) as usize];
            let client = connect(options.clone().with_timeout(timeout)).await;
            acting.spawn(keys::act(book.clone(), client.clone(), seed, number));
            clients.push(client);
        }
        for (number, endpoint) in endpoints.iter().enumerate() {
            let only = std::slice::from_ref(endpoint);
            let options = options.clone().with_retry(RetryPolicy::never());
            let connect = async |timeout| {
                let client = connect_to(only, options.clone().with_timeout(timeout)).await;
                members::Pinned {
                    client,
                    endpoint: endpoint.clone(),
                    number,
                }
            };
            let single = connect(PROBE_TIMEOUT).await;
            for _ in 0..PROBES {
                acting.spawn(members::probe(book.clone(), single.clone()));
            }
            clients.push(single.client);
            for (lane, timeout) in PINNED.into_iter().enumerate() {
                let pinned = connect(timeout).await;
                clients.push(pinned.client.clone());
                acting.spawn(members::read(book.clone(), pinned, seed, lane as u64));
            }
        }
        etcd::begin(&book, &mut acting, &mut listening, &ports, seed);
        let client = connect(options.clone()).await;
        for _ in 0..2 {
            acting.spawn(counters::act(book.clone(), client.clone()));
        }
        acting.spawn(keepers::keep(book.clone(), client.clone()));
        acting.spawn(keepers::abandon(book.clone(), client.clone(), seed));
        for number in 0..3 {
            acting.spawn(locks::contend(book.clone(), client.clone(), number));
        }
        clients.push(client);
        for endpoint in &endpoints {
            let client = connect(options.clone()).await;
            let watch = insist(|| watches::begin(&client, endpoint)).await;
            listening.spawn(watches::listen(book.clone(), watch, endpoint.clone()));
            clients.push(client);
        }
        Self {
            book,
            endpoints,
            clients,
            acting,
            listening,
        }
    }

    /// Who leads, by the latest read that a node answered under its lease.
    pub(crate) fn leader(&self) -> usize {
        self.book.leader.load(Ordering::SeqCst)
    }

    /// Whether what was begun before a quiet time is done most likely, and the next writes are yet to come: what goes
    /// wrong now finds holders with no entry under way, who serve all reads by their leases.
    pub(crate) fn is_quiet(&self) -> bool {
        let quiet = self.book.quiet_for();
        quiet.is_some_and(|quiet| quiet > QUIET / 3 && quiet < QUIET * 2 / 3)
    }

    /// What broke a rule so far.
    pub(crate) fn violations(&self) -> Vec<String> {
        open(&self.book.violations).clone()
    }

    /// How many reads a node has answered by its read lease so far.
    pub(crate) fn by_read_lease(&self, node: usize) -> u64 {
        self.book.by_read_lease[node].load(Ordering::SeqCst)
    }

    /// Ends it on a cluster that is well again, and judges all that was seen.
    pub(crate) async fn end(mut self) -> Judgement {
        let book = &self.book;
        book.over.store(true, Ordering::SeqCst);
        while let Some(ended) = self.acting.join_next().await {
            ended.expect("a client does not panic");
        }
        let client = &self.clients[0];
        keys::read_all(book, client).await;
        counters::settle(book, client).await;
        keepers::settle(book, client).await;
        locks::settle(book);
        etcd::elections::settle(book);
        let last = insist(|| client.put("end", "of all", None)).await;
        watches::stop_at(book, last.header.revision);
        let listened = async {
            while let Some(ended) = self.listening.join_next().await {
                ended.expect("a watcher does not panic");
            }
        };
        if tokio::time::timeout(PATIENCE, listened).await.is_err() {
            book.violation(format!(
                "a watch has not told revision {}",
                last.header.revision
            ));
        }
        watches::settle(book);
        self.compare_nodes(last.header.revision).await;
        let findings = std::mem::take(&mut open(&book.keys).audit).finish();
        for violation in findings.described {
            book.violation(violation.to_string());
        }
        for client in &self.clients {
            client.close().await;
        }
        let mut counts = std::mem::take(&mut *open(&book.counts));
        counts.insert("reads judged", findings.reads);
        counts.insert("writes acknowledged", findings.writes);
        Judgement {
            counts,
            violations: std::mem::take(&mut *open(&book.violations)),
        }
    }

    /// Reads everything as of one revision from every node's own state. The same has to come back.
    async fn compare_nodes(&self, revision: i64) {
        let mut answers = Vec::new();
        for endpoint in &self.endpoints {
            let request = || {
                Request::Range(RangeRequest {
                    range: KeyRange::Prefix,
                    revision,
                    ..RangeRequest::default()
                })
            };
            let client = &self.clients[0];
            let read = || client.call_at(endpoint, request(), Consistency::Serializable);
            match insist(read).await.body {
                ResponseBody::Range(range) => {
                    assert!(!range.more && range.count > 0, "all keys fit one answer");
                    answers.push(range.kvs);
                }
                other => panic!("a range is answered by {other:?}"),
            }
        }
        for (answer, endpoint) in answers.iter().zip(&self.endpoints) {
            if *answer != answers[0] {
                self.book.violation(format!(
                    "as of revision {revision} the nodes at {} and {endpoint} hold {:?} and {answer:?}",
                    self.endpoints[0], answers[0]
                ));
            }
        }
    }
}

/// Asks until it succeeds, on a cluster that is well.
pub(crate) async fn insist<T, F: Future<Output = Result<T, Error>>>(
    mut ask: impl FnMut() -> F,
) -> T {
    let started = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => assert!(
                started.elapsed() < PATIENCE,
                "the cluster is healed and does not answer: {error}"
            ),
        }
        tokio::time::sleep(AFTER_FAILURE).await;
    }
}
