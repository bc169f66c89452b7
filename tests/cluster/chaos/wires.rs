//! Wires between the nodes, and between clients and nodes: every datagram passes through here, and is
//! lost, doubled, held back or damaged as the weather of its wire says, one direction at a time.
//!
//! Datagrams that are held back for different times overtake each other. A damaged one has one bit
//! flipped: the nodes have to notice and drop it.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fs, thread};

use tokio::net::UdpSocket;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use crate::harness::Node;

/// The largest datagram there is.
const DATAGRAM_BYTES: usize = 65_536;
/// Callers that a wire remembers at a time: whoever connects anew calls from another address.
const CALLERS_MAX: usize = 64;

/// What happens to datagrams on one direction of a wire.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Weather {
    /// Nothing gets through.
    pub(crate) is_cut: bool,
    /// The share that is lost.
    pub(crate) loss: f64,
    /// The share that arrives twice.
    pub(crate) doubled: f64,
    /// The share that arrives with a bit flipped.
    pub(crate) damaged: f64,
    /// How long each takes.
    pub(crate) delay: Duration,
    /// How much longer than that some take.
    pub(crate) jitter: Duration,
}

/// Datagrams, by what became of them.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) carried: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) doubled: AtomicU64,
    pub(crate) damaged: AtomicU64,
    pub(crate) delayed: AtomicU64,
}

/// The weather of every direction, and the dice.
struct Sky {
    weather: BTreeMap<(usize, usize), Weather>,
    random: fastrand::Rng,
}

struct Air {
    sky: Mutex<Sky>,
    traffic: Traffic,
}

/// All wires. Whoever takes part has a number: nodes from 0 on, and after them all clients together.
pub(crate) struct Wires {
    addresses: BTreeMap<(usize, usize), SocketAddr>,
    air: Arc<Air>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Wires {
    /// Lays a wire for each of `pairs`: who calls whom, and where the called one listens.
    pub(crate) fn lay(pairs: &[(usize, usize, SocketAddr)], seed: u64) -> Self {
        let air = Arc::new(Air {
            sky: Mutex::new(Sky {
                weather: BTreeMap::new(),
                random: fastrand::Rng::with_seed(seed),
            }),
            traffic: Traffic::default(),
        });
        let mut addresses = BTreeMap::new();
        let mut wires = Vec::new();
        for (from, to, target) in pairs {
            let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            socket.set_nonblocking(true).unwrap();
            addresses.insert((*from, *to), socket.local_addr().unwrap());
            wires.push((*from, *to, *target, socket));
        }
        let (end, ended) = oneshot::channel();
        let carrying = air.clone();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                for (from, to, target, socket) in wires {
                    tokio::spawn(carry(carrying.clone(), from, to, target, socket));
                }
                // Told, or nobody is left to tell: over either way.
                let _ = ended.await;
            });
        });
        Self {
            addresses,
            air,
            end: Some(end),
            thread: Some(thread),
        }
    }

    /// Lays a wire from each node to each other, and from all clients together, whose number is that
    /// behind the last node's, to each node.
    pub(crate) fn between(nodes: &[Node], seed: u64) -> Self {
        let mut pairs = Vec::new();
        for from in 0..=nodes.len() {
            for (to, node) in nodes.iter().enumerate().filter(|(to, _)| *to != from) {
                let target = if from == nodes.len() {
                    node.client
                } else {
                    node.peer
                };
                pairs.push((from, to, target));
            }
        }
        Self::lay(&pairs, seed)
    }

    /// Has the nodes, whose configurations are written and who do not run yet, call each other over
    /// these wires.
    pub(crate) fn take_over(&self, nodes: &[Node]) {
        for (from, node) in nodes.iter().enumerate() {
            let mut text = fs::read_to_string(&node.config).unwrap();
            for (to, other) in nodes.iter().enumerate().filter(|(to, _)| *to != from) {
                let entry = |address| format!("\"{}={address}\"", other.name);
                text = text.replace(&entry(other.peer), &entry(self.address(from, to)));
            }
            fs::write(&node.config, text).unwrap();
        }
    }

    /// Where `from` is to call `to`.
    pub(crate) fn address(&self, from: usize, to: usize) -> SocketAddr {
        self.addresses[&(from, to)]
    }

    /// Changes the weather from `from` to `to`, for questions and answers alike.
    pub(crate) fn change(&self, from: usize, to: usize, change: impl FnOnce(&mut Weather)) {
        change(self.air.sky().weather.entry((from, to)).or_default());
    }

    /// Fair weather everywhere.
    pub(crate) fn clear(&self) {
        self.air.sky().weather.clear();
    }

    pub(crate) fn traffic(&self) -> &Traffic {
        &self.air.traffic
    }
}

impl Drop for Wires {
    fn drop(&mut self) {
        self.end.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Air {
    fn sky(&self) -> MutexGuard<'_, Sky> {
        self.sky.lock().unwrap()
    }

    /// When the copies of a datagram arrive, which may be damaged here; none if it is lost.
    fn fate(&self, from: usize, to: usize, datagram: &mut [u8]) -> Vec<Duration> {
        let count = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
        let traffic = &self.traffic;
        // Whoever has counted them all may change the weather for what comes after.
        let mut sky = self.sky();
        count(&traffic.carried);
        let Some(weather) = sky.weather.get(&(from, to)).copied() else {
            return vec![Duration::ZERO];
        };
        let random = &mut sky.random;
        if weather.is_cut || random.f64() < weather.loss {
            count(&traffic.lost);
            return Vec::new();
        }
        if random.f64() < weather.damaged && !datagram.is_empty() {
            let at = random.usize(..datagram.len());
            datagram[at] ^= 1 << random.u8(..8);
            count(&traffic.damaged);
        }
        let copies = 1 + usize::from(random.f64() < weather.doubled);
        if copies > 1 {
            count(&traffic.doubled);
        }
        let arrivals: Vec<Duration> = (0..copies)
            .map(|_| weather.delay + weather.jitter.mul_f64(random.f64()))
            .collect();
        if arrivals.iter().any(|after| !after.is_zero()) {
            count(&traffic.delayed);
        }
        arrivals
    }
}

/// Somebody who calls over a wire.
struct Caller {
    far: Arc<UdpSocket>,
    /// When it called last, by the number of datagrams before.
    at: u64,
    answers: AbortHandle,
}

/// One wire, on which `from` calls `to` and `to` answers.
async fn carry(
    air: Arc<Air>,
    from: usize,
    to: usize,
    target: SocketAddr,
    socket: std::net::UdpSocket,
) {
    let near = Arc::new(UdpSocket::from_std(socket).unwrap());
    let mut callers: BTreeMap<SocketAddr, Caller> = BTreeMap::new();
    let mut datagram = vec![0; DATAGRAM_BYTES];
    let mut received = 0;
    loop {
        let Ok((length, caller)) = near.recv_from(&mut datagram).await else {
            // Somebody called and is gone; the next one may be there.
            continue;
        };
        received += 1;
        if !callers.contains_key(&caller) {
            if callers.len() == CALLERS_MAX {
                // Whoever has been silent for longest is most likely gone; if not, it calls again.
                let oldest = callers.iter().min_by_key(|(_, caller)| caller.at);
                let oldest = *oldest.expect("there are as many as there may be").0;
                callers
                    .remove(&oldest)
                    .expect("it was found")
                    .answers
                    .abort();
            }
            let far = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            far.connect(target).await.unwrap();
            let far = Arc::new(far);
            let answers = answer(air.clone(), to, from, far.clone(), near.clone(), caller);
            let answers = tokio::spawn(answers).abort_handle();
            let at = received;
            callers.insert(caller, Caller { far, at, answers });
        }
        let caller = callers.get_mut(&caller).expect("it is there by now");
        caller.at = received;
        for after in air.fate(from, to, &mut datagram[..length]) {
            deliver(after, &datagram[..length], &caller.far, None).await;
        }
    }
}

/// What the called one answers to one caller.
async fn answer(
    air: Arc<Air>,
    from: usize,
    to: usize,
    far: Arc<UdpSocket>,
    near: Arc<UdpSocket>,
    caller: SocketAddr,
) {
    let mut datagram = vec![0; DATAGRAM_BYTES];
    loop {
        let Ok(length) = far.recv(&mut datagram).await else {
            // Nobody listens there at the moment. It is told again for every datagram that is sent.
            tokio::task::yield_now().await;
            continue;
        };
        for after in air.fate(from, to, &mut datagram[..length]) {
            deliver(after, &datagram[..length], &near, Some(caller)).await;
        }
    }
}

/// Sends now or later. A datagram that the system does not take is lost, as any may be.
async fn deliver(
    after: Duration,
    datagram: &[u8],
    socket: &Arc<UdpSocket>,
    to: Option<SocketAddr>,
) {
    if after.is_zero() {
        return send(datagram, socket, to).await;
    }
    let (datagram, socket) = (datagram.to_vec(), socket.clone());
    tokio::spawn(async move {
        tokio::time::sleep(after).await;
        send(&datagram, &socket, to).await;
    });
}

async fn send(datagram: &[u8], socket: &UdpSocket, to: Option<SocketAddr>) {
    let _ = match to {
        Some(to) => socket.send_to(datagram, to).await,
        None => socket.send(datagram).await,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Few enough for the buffer of a receiver who does not read yet, were all of them doubled.
    const SENT: u32 = 100;

    fn end() -> std::net::UdpSocket {
        let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket
            .set_read_timeout(Some(crate::harness::PATIENCE))
            .unwrap();
        socket
    }

    /// Sends numbers from 1 on through `wires`, and returns what arrives, in the order of arrival.
    fn arrivals(wires: &Wires, near: &std::net::UdpSocket, far: &std::net::UdpSocket) -> Vec<u32> {
        let mut bytes = [0; 64];
        for number in 1..=SENT {
            near.send_to(&number.to_be_bytes(), wires.address(0, 1))
                .unwrap();
        }
        let counted = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let traffic = wires.traffic();
        crate::harness::eventually("all that was sent", || {
            (counted(&traffic.carried) == u64::from(SENT)).then_some(())
        });
        // Once the fate of the last one is decided.
        wires.clear();
        let coming = u64::from(SENT) - counted(&traffic.lost) + counted(&traffic.doubled);
        let mut next = || {
            let (length, _) = far.recv_from(&mut bytes).expect("it is on its way");
            bytes[..length].to_vec()
        };
        let arrived = (0..coming).map(|_| u32::from_be_bytes(next().try_into().unwrap()));
        let arrived = arrived.collect();
        near.send_to(b"the end", wires.address(0, 1)).unwrap();
        assert_eq!(next(), b"the end", "and nothing else comes");
        arrived
    }

    fn through(change: impl FnOnce(&mut Weather)) -> Vec<u32> {
        let (near, far) = (end(), end());
        let wires = Wires::lay(&[(0, 1, far.local_addr().unwrap())], 7);
        wires.change(0, 1, change);
        arrivals(&wires, &near, &far)
    }

    #[test]
    fn the_weather_is_what_it_says() {
        let all: Vec<u32> = (1..=SENT).collect();
        assert_eq!(through(|_| {}), all);
        assert_eq!(through(|weather| weather.is_cut = true), [0; 0]);
        let lossy = through(|weather| weather.loss = 0.5);
        assert!(lossy.len() > 25 && lossy.len() < 75, "{}", lossy.len());
        let doubled = through(|weather| weather.doubled = 0.5);
        assert!(
            doubled.len() > 125 && doubled.len() < 175,
            "{}",
            doubled.len()
        );
        let damaged = through(|weather| weather.damaged = 1.0);
        assert!(
            damaged
                .iter()
                .zip(&all)
                .all(|(got, sent)| (got ^ sent).count_ones() == 1)
        );
        let mut late = through(|weather| weather.jitter = Duration::from_millis(20));
        assert!(!late.is_sorted(), "some overtake others: {late:?}");
        late.sort_unstable();
        assert_eq!(late, all);
    }

    #[test]
    fn each_direction_has_its_own_weather() {
        let (near, far) = (end(), end());
        let wires = Wires::lay(&[(0, 1, far.local_addr().unwrap())], 7);
        let mut bytes = [0; 64];
        wires.change(1, 0, |weather| weather.is_cut = true);
        near.send_to(b"ask", wires.address(0, 1)).unwrap();
        let (_, caller) = far.recv_from(&mut bytes).unwrap();
        far.send_to(b"lost", caller).unwrap();
        crate::harness::eventually("a loss", || {
            (wires.traffic().lost.load(Ordering::Relaxed) == 1).then_some(())
        });
        wires.clear();
        far.send_to(b"heard", caller).unwrap();
        let (length, _) = near.recv_from(&mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"heard");
    }
}
