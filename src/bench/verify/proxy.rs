//! Wires between the nodes of a cluster of our own, so that a node can be cut off from the others:
//! datagrams pass through here, late if that is wanted, or are dropped, which needs no root.
//!
//! Each node is configured to reach each of the others at an address of ours, and every datagram takes
//! this way in both directions. A wire that is cut is silent, as a broken network is: no error
//! comes back.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{io, thread};

use tokio::net::UdpSocket;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::cli::failure::Failure;

/// The largest datagram there is.
const DATAGRAM_BYTES: usize = 65_536;
/// Callers that a wire remembers. A node calls from one address, and from another one when it was
/// restarted.
const CALLERS_MAX: usize = 64;

/// The wires between all nodes.
#[derive(Debug)]
pub struct Wires {
    /// Where node `from` calls node `to`.
    addresses: BTreeMap<(usize, usize), SocketAddr>,
    cuts: Arc<Cuts>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Wires {
    /// Between nodes whose peers reach them at these addresses.
    ///
    /// # Errors
    /// The system gives us no socket or thread.
    pub fn start(peers: &[SocketAddr]) -> Result<Self, Failure> {
        let cuts = Arc::new(Cuts {
            off: peers.iter().map(|_| AtomicBool::new(false)).collect(),
            dropped: AtomicU64::new(0),
            delay_nanos: AtomicU64::new(0),
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let mut addresses = BTreeMap::new();
        let mut wires = Vec::new();
        for (from, _) in peers.iter().enumerate() {
            for (to, target) in peers.iter().enumerate().filter(|(to, _)| *to != from) {
                let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
                let socket = std::net::UdpSocket::bind(any)?;
                socket.set_nonblocking(true)?;
                addresses.insert((from, to), socket.local_addr()?);
                wires.push(Wire {
                    from,
                    to,
                    target: *target,
                    cuts: cuts.clone(),
                    socket,
                });
            }
        }
        let (end, ended) = oneshot::channel();
        let thread = thread::Builder::new()
            .name("wires".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    let mut carrying = JoinSet::new();
                    for wire in wires {
                        carrying.spawn(wire.carry());
                    }
                    // Stopped, or the sender is gone: over either way.
                    let _ = ended.await;
                });
            })?;
        Ok(Self {
            addresses,
            cuts,
            end: Some(end),
            thread: Some(thread),
        })
    }

    /// Where node `from` is to call node `to`; nothing of a node that would call itself.
    pub fn address(&self, from: usize, to: usize) -> Option<SocketAddr> {
        self.addresses.get(&(from, to)).copied()
    }

    /// Cuts node `number` off from all others, or mends that.
    pub fn cut(&self, number: usize, is_cut: bool) {
        self.cuts.off[number].store(is_cut, Ordering::SeqCst);
    }

    /// Keeps each datagram back for so long from now on. Less than a millisecond is as good as nothing.
    pub fn delay(&self, by: Duration) {
        let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        self.cuts.delay_nanos.store(nanos, Ordering::SeqCst);
    }

    /// Datagrams that were dropped so far.
    pub fn dropped(&self) -> u64 {
        self.cuts.dropped.load(Ordering::SeqCst)
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

/// Who is cut off, and how far all are from each other.
#[derive(Debug)]
struct Cuts {
    off: Vec<AtomicBool>,
    dropped: AtomicU64,
    delay_nanos: AtomicU64,
}

impl Cuts {
    /// Whether a datagram between these two is dropped.
    fn drops(&self, from: usize, to: usize) -> bool {
        let is_off = |number: usize| self.off[number].load(Ordering::SeqCst);
        let drops = is_off(from) || is_off(to);
        self.dropped.fetch_add(u64::from(drops), Ordering::SeqCst);
        drops
    }

    /// Sends a datagram on, now or later. It may get lost; the nodes know.
    async fn pass(&self, datagram: &[u8], socket: &Arc<UdpSocket>, to: Option<SocketAddr>) {
        let delay = Duration::from_nanos(self.delay_nanos.load(Ordering::SeqCst));
        if delay.is_zero() {
            return send(datagram, socket, to).await;
        }
        let (datagram, socket) = (datagram.to_vec(), socket.clone());
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            send(&datagram, &socket, to).await;
        });
    }
}

async fn send(datagram: &[u8], socket: &UdpSocket, to: Option<SocketAddr>) {
    let _ = match to {
        Some(to) => socket.send_to(datagram, to).await,
        None => socket.send(datagram).await,
    };
}

/// One wire, on which `from` calls `to` and `to` answers.
struct Wire {
    from: usize,
    to: usize,
    target: SocketAddr,
    cuts: Arc<Cuts>,
    socket: std::net::UdpSocket,
}

impl Wire {
    async fn carry(self) -> io::Result<()> {
        let near = Arc::new(UdpSocket::from_std(self.socket)?);
        let (cuts, from, to) = (self.cuts, self.from, self.to);
        let mut callers: BTreeMap<SocketAddr, Arc<UdpSocket>> = BTreeMap::new();
        let mut answering = JoinSet::new();
        let mut datagram = vec![0; DATAGRAM_BYTES];
        loop {
            let Ok((length, caller)) = near.recv_from(&mut datagram).await else {
                // A sender is gone; the next one may be there.
                continue;
            };
            if cuts.drops(from, to) {
                continue;
            }
            let far = match callers.get(&caller) {
                Some(far) => far.clone(),
                None if callers.len() == CALLERS_MAX => continue,
                None => {
                    let far = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
                    far.connect(self.target).await?;
                    let far = Arc::new(far);
                    callers.insert(caller, far.clone());
                    let (near, cuts, answers) = (near.clone(), cuts.clone(), far.clone());
                    answering.spawn(async move {
                        let mut datagram = vec![0; DATAGRAM_BYTES];
                        loop {
                            match answers.recv(&mut datagram).await {
                                Ok(length) if !cuts.drops(to, from) => {
                                    let back = Some(caller);
                                    cuts.pass(&datagram[..length], &near, back).await;
                                }
                                _ => {}
                            }
                        }
                    });
                    far
                }
            };
            cuts.pass(&datagram[..length], &far, None).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> std::net::UdpSocket {
        let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        socket
    }

    #[test]
    fn datagrams_pass_both_ways_until_the_node_is_cut_off_and_again_after() {
        let nodes = [node(), node(), node()];
        let peers: Vec<SocketAddr> = nodes
            .iter()
            .map(|node| node.local_addr().unwrap())
            .collect();
        let wires = Wires::start(&peers).unwrap();
        assert_eq!(wires.address(1, 1), None);
        let mut datagram = [0; 64];
        let mut exchange = |from: usize, to: usize, word: &[u8]| {
            nodes[from]
                .send_to(word, wires.address(from, to).unwrap())
                .unwrap();
            let (length, caller) = nodes[to].recv_from(&mut datagram).unwrap();
            assert_eq!(&datagram[..length], word, "{from} to {to}");
            nodes[to].send_to(b"yes", caller).unwrap();
            let (length, answerer) = nodes[from].recv_from(&mut datagram).unwrap();
            assert_eq!(&datagram[..length], b"yes");
            assert_eq!(Some(answerer), wires.address(from, to));
        };
        for from in 0..3 {
            for to in (0..3).filter(|to| *to != from) {
                exchange(from, to, b"hello");
            }
        }
        wires.cut(0, true);
        // What is said on a cut wire never arrives: what arrives next was said after it was mended.
        nodes[0]
            .send_to(b"lost", wires.address(0, 1).unwrap())
            .unwrap();
        nodes[2]
            .send_to(b"lost", wires.address(2, 0).unwrap())
            .unwrap();
        exchange(1, 2, b"others go on");
        while wires.dropped() < 2 {
            thread::sleep(Duration::from_millis(1));
        }
        wires.cut(0, false);
        exchange(0, 1, b"back");
        exchange(2, 0, b"back");
    }
}
