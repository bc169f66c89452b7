//! Load through the SDK.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant as Stopwatch};

use hdrhistogram::Histogram;
use leasehold::api::ReadPath;
use leasehold::client::Client;

use crate::{KEYS, VALUE};

/// What came of a stretch of load.
pub(crate) struct Round {
    /// Operations a second.
    pub(crate) rate: f64,
    /// Operations.
    pub(crate) count: u64,
    /// How long each took, in nanoseconds.
    pub(crate) taken: Histogram<u64>,
}

impl Round {
    pub(crate) fn new(length: Duration, taken: Histogram<u64>) -> Self {
        Self {
            rate: taken.len() as f64 / length.as_secs_f64(),
            count: taken.len(),
            taken,
        }
    }

    pub(crate) fn micros(&self, quantile: f64) -> f64 {
        self.taken.value_at_quantile(quantile) as f64 / 1e3
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Load {
    Get,
    Put,
}

pub(crate) fn key(number: usize) -> String {
    format!("key{number:05}")
}

/// A closed loop of `callers`, spread over the connections of `clients`.
pub(crate) async fn closed(
    clients: &[Client],
    load: Load,
    callers: usize,
    length: Duration,
) -> Round {
    let began = Stopwatch::now();
    // One for all, as of the echo: together, those of many callers do not fit a core's cache, and to miss that
    // would take longer than much of what is measured.
    let all = Arc::new(Mutex::new(Histogram::<u64>::new(3).unwrap()));
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let client = clients[caller % clients.len()].clone();
            let all = all.clone();
            tokio::spawn(async move {
                let mut unleased = 0;
                let mut number = caller * 7919;
                let mut before = Stopwatch::now();
                while before - began < length {
                    number = number.wrapping_add(104_729) % KEYS;
                    match load {
                        Load::Get => unleased += u64::from(!get(&client, number).await),
                        Load::Put => {
                            client.put(key(number), vec![7; VALUE], None).await.unwrap();
                        }
                    }
                    let now = Stopwatch::now();
                    let nanos = u64::try_from((now - before).as_nanos()).unwrap();
                    all.lock().unwrap().record(nanos).unwrap();
                    before = now;
                }
                unleased
            })
        })
        .collect();
    let mut unleased = 0;
    for task in tasks {
        unleased += task.await.unwrap();
    }
    let all = std::mem::replace(&mut *all.lock().unwrap(), Histogram::new(3).unwrap());
    expect_leased(all.len(), unleased);
    Round::new(began.elapsed(), all)
}

/// Gets that do not wait for one another, `rate` a second in bursts of one a millisecond: that one
/// is late makes none of the others late. Each is measured from the moment it could start, which
/// leaves out how punctual the timer is.
pub(crate) async fn open(client: &Client, rate: u32, length: Duration) -> Round {
    let began = Stopwatch::now();
    let mut ticks = tokio::time::interval(Duration::from_millis(1));
    let mut tasks = tokio::task::JoinSet::new();
    let mut taken = Histogram::<u64>::new(3).unwrap();
    let mut number = 0;
    let mut unleased = 0;
    while began.elapsed() < length {
        ticks.tick().await;
        let started = Stopwatch::now();
        for _ in 0..rate / 1000 {
            number = (number + 7919) % KEYS;
            let (client, number) = (client.clone(), number);
            tasks.spawn(async move {
                let leased = get(&client, number).await;
                (started.elapsed(), leased)
            });
        }
        while let Some(done) = tasks.try_join_next() {
            let (length, leased) = done.unwrap();
            record(&mut taken, length);
            unleased += u64::from(!leased);
        }
    }
    while let Some(done) = tasks.join_next().await {
        let (length, leased) = done.unwrap();
        record(&mut taken, length);
        unleased += u64::from(!leased);
    }
    expect_leased(taken.len(), unleased);
    Round::new(began.elapsed(), taken)
}

fn record(taken: &mut Histogram<u64>, length: Duration) {
    let nanos = u64::try_from(length.as_nanos()).unwrap();
    taken.record(nanos).unwrap();
}

/// Whether the leader served it under its lease.
async fn get(client: &Client, number: usize) -> bool {
    let found = client.get(key(number), None).await.unwrap();
    assert_eq!(found.value().unwrap().len(), VALUE);
    found.header.read.unwrap().path == ReadPath::Lease
}

/// A client that does not know the leader yet asks the node that it is connected to, and a follower
/// answers; a pause of the machine can void a lease for a moment. More than that is no longer what
/// the row says.
fn expect_leased(reads: u64, unleased: u64) {
    assert!(
        unleased * 1000 <= reads,
        "{unleased} of {reads} reads were not served under the lease: measure again on a machine \
         that does less beside this"
    );
}
