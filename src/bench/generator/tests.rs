//! Clients of an invented store in invented time, so that every latency is known beforehand.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use super::*;
use crate::api::Consistency;
use crate::bench::load::{Choice, Keys};
use crate::bench::store::{Renewal, WatchTarget};
use crate::client::Watcher;
use crate::sync::Mutex;

const MS: Duration = Duration::from_millis(1);

/// Time that stands still until it is moved.
#[derive(Clone, Default)]
struct World {
    now: Arc<Mutex<Duration>>,
    /// What somebody waits for.
    waiting: Arc<Mutex<Vec<Duration>>>,
}

impl Stopwatch for World {
    fn elapsed(&self) -> Duration {
        *self.now.lock()
    }
}

impl World {
    fn until(&self, at: Duration) -> Until {
        self.waiting.lock().push(at);
        Until {
            world: self.clone(),
            at,
        }
    }

    /// The first moment after now at which something happens.
    fn next(&self, due: Option<Duration>) -> Option<Duration> {
        let waiting = self.waiting.lock();
        let now = *self.now.lock();
        let after = |at: &Duration| *at > now;
        waiting.iter().copied().chain(due).filter(after).min()
    }
}

struct Until {
    world: World,
    at: Duration,
}

impl Future for Until {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        match *self.world.now.lock() >= self.at {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

/// Answers after a millisecond; but of what comes in or is under way during the stall, nothing
/// before it is over.
struct StallingStore {
    world: World,
    stall: (Duration, Duration),
}

impl StallingStore {
    async fn answer(&self) -> Result<Answer, Trouble> {
        let (from, until) = self.stall;
        let ready = *self.world.now.lock() + MS;
        let stalled = ready > from && ready <= until;
        self.world.until(if stalled { until } else { ready }).await;
        Ok(Answer {
            revision: 1,
            path: None,
            found: true,
        })
    }
}

impl Connection for StallingStore {
    type Watch = Watcher;

    async fn get(&self, _: &Bytes, _: Consistency) -> Result<Answer, Trouble> {
        self.answer().await
    }

    async fn put(&self, _: &Bytes, _: &Bytes) -> Result<Answer, Trouble> {
        self.answer().await
    }

    async fn grant(&self, _: Duration, _: Option<Bytes>) -> Result<i64, Trouble> {
        unreachable!("this load grants nothing")
    }

    async fn renew(&self, _: &[i64]) -> Result<Renewal, Trouble> {
        unreachable!("this load renews nothing")
    }

    async fn revoke(&self, _: i64) -> Result<(), Trouble> {
        unreachable!("this load revokes nothing")
    }

    async fn watch(&self, _: WatchTarget) -> Result<Watcher, Failure> {
        unreachable!("this load watches nothing")
    }

    async fn close(&self) {}
}

/// Runs `clients` of a store that stalls, to `end`, and gives what was measured.
fn run(rate: Option<f64>, clients: usize, stall: (Duration, Duration), end: Duration) -> Tally {
    let world = World::default();
    let load = Load {
        reads: 1.0,
        consistency: Consistency::Linearizable,
        keys: Arc::new(Keys::new(10, 8)),
        choice: Choice::Uniform,
    };
    let desk = Rc::new(Desk {
        watch: world.clone(),
        from: Duration::ZERO,
        end,
        counted: RefCell::default(),
    });
    let store = Rc::new(StallingStore {
        world: world.clone(),
        stall,
    });
    let pace = rate.map(|rate| Rc::new(Pace::new(rate, end)));
    let mut running: Vec<Pin<Box<dyn Future<Output = ()>>>> = Vec::new();
    for seed in 0..clients as u64 {
        let client = Client {
            store: store.clone(),
            load: load.clone(),
            choices: Choices::new(&load, seed),
            desk: desk.clone(),
        };
        running.push(match &pace {
            Some(pace) => Box::pin(client.open_loop(pace.clone())),
            None => Box::pin(client.closed_loop()),
        });
    }
    let mut context = Context::from_waker(Waker::noop());
    let mut over = false;
    while !running.is_empty() {
        let due = match &pace {
            Some(pace) if *world.now.lock() < end => {
                Some(pace.release(*world.now.lock()).unwrap_or(end))
            }
            Some(pace) if !over => {
                over = true;
                pace.close().for_each(|due| desk.give_up(true, due));
                None
            }
            _ => None,
        };
        // A client that goes on may free what another one waits for: until nothing moves.
        let mut before = usize::MAX;
        while before != world.waiting.lock().len() {
            before = world.waiting.lock().len();
            running.retain_mut(|client| client.as_mut().poll(&mut context).is_pending());
        }
        match world.next(due) {
            Some(next) => *world.now.lock() = next,
            None => assert!(running.is_empty(), "somebody waits for nothing"),
        }
    }
    let counted = desk.counted.take();
    counted.measured
}

fn at_least(tally: &Tally, bound: Duration) -> u64 {
    let histogram = tally.reads.taken.histogram();
    let bound = u64::try_from(bound.as_nanos()).unwrap();
    histogram
        .iter_recorded()
        .filter(|v| v.value_iterated_to() >= bound)
        .map(|v| v.count_at_value())
        .sum()
}

#[test]
fn a_stall_delays_every_request_that_was_due_and_an_open_loop_says_so() {
    let (stall, end) = ((100 * MS, 600 * MS), 1_000 * MS);
    // A request each millisecond, and clients enough for four: half a second's requests wait.
    let open = run(Some(1_000.0), 4, stall, end);
    assert_eq!(open.answered() + open.reads.unsent, 1_000);
    assert_eq!(open.reads.unsent, 0, "it has caught up before the end");
    let late = at_least(&open, 250 * MS);
    assert!(
        (250..=350).contains(&late),
        "{late} waited for more than half of the stall"
    );
    assert!(open.reads.taken.at(0.99) > 480 * MS);
    assert!(
        open.reads.delay.max() > 490 * MS,
        "they were sent late as well"
    );

    // The same store asked by the same clients, each waiting for its answer: four notice.
    let closed = run(None, 4, stall, end);
    assert!(closed.answered() > 1_900, "{}", closed.answered());
    assert_eq!(at_least(&closed, 250 * MS), 4);
    assert!(
        closed.reads.taken.at(0.99) < 2 * MS,
        "which is how the stall is hidden"
    );
}

#[test]
fn requests_that_nobody_was_free_to_send_are_told_and_count_as_late_as_they_are() {
    // It never wakes up again while it is measured.
    let (stall, end) = ((100 * MS, 1_500 * MS), 1_000 * MS);
    let tally = run(Some(1_000.0), 4, stall, end);
    assert_eq!(tally.answered() + tally.reads.unsent, 1_000);
    assert!(
        (890..=900).contains(&tally.reads.unsent),
        "{}",
        tally.reads.unsent
    );
    assert!(
        at_least(&tally, 500 * MS) >= 400,
        "they are no better than the answered ones"
    );
}

#[test]
fn clients_and_rate_are_shared_out_whole() {
    let plan = |clients, connections, threads| Plan {
        load: Load {
            reads: 1.0,
            consistency: Consistency::Linearizable,
            keys: Arc::new(Keys::new(1, 1)),
            choice: Choice::Uniform,
        },
        clients,
        connections,
        threads,
        rate: Some(1_000.0),
        warm_up: MS,
        duration: MS,
        seed: 1,
        server_pids: Vec::new(),
    };
    for (clients, connections, threads) in [(64, 1, 1), (64, 1, 8), (65, 16, 3), (3, 7, 7)] {
        let plan = plan(clients, connections, threads);
        let threads = threads.min(connections);
        let shares: Vec<Share> = (0..threads)
            .map(|number| Share::of(&plan, number))
            .collect();
        let all = || shares.iter().flat_map(|share| &share.connections);
        assert_eq!(all().map(|(_, clients)| clients).sum::<u32>(), clients);
        let mut numbers: Vec<usize> = all().map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..connections as usize).collect::<Vec<_>>());
        let rate: f64 = shares.iter().filter_map(|share| share.rate).sum();
        assert!((rate - 1_000.0).abs() < 1e-6);
    }
}
