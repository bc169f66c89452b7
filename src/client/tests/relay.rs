//! A way to a node that takes time, and can be cut.

use super::*;

/// Passes UDP packets on, until it is cut.
pub(super) struct Relay {
    pub(super) address: String,
    /// How long a packet takes that goes home, in milliseconds.
    delay_ms: Arc<AtomicU64>,
    target: Arc<Mutex<Option<SocketAddr>>>,
    /// Packets of connection attempts that have come to it while it was cut.
    pub(super) calls_while_cut: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Relay {
    pub(super) async fn start() -> Self {
        let front = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let back = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let front = Arc::new(front);
        let delay_ms = Arc::<AtomicU64>::default();
        let delay = Arc::clone(&delay_ms);
        let address = front.local_addr().unwrap().to_string();
        let target: Arc<Mutex<Option<SocketAddr>>> = Arc::default();
        let leads_to = Arc::clone(&target);
        let calls_while_cut = Arc::<AtomicUsize>::default();
        let calls = Arc::clone(&calls_while_cut);
        let task = tokio::spawn(async move {
            let mut caller = None;
            let (mut out, mut home) = (vec![0; 65536], vec![0; 65536]);
            loop {
                tokio::select! {
                    Ok((count, from)) = front.recv_from(&mut out) => {
                        caller = Some(from);
                        let target = *leads_to.lock().unwrap();
                        if let Some(target) = target {
                            let _ = back.send_to(&out[..count], target).await;
                        } else if out[0] & 0xf0 == 0xc0 {
                            // The first packet of a handshake, by RFC 9000, 17.2.2.
                            calls.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                    Ok((count, _)) = back.recv_from(&mut home) => {
                        let connected = leads_to.lock().unwrap().is_some();
                        if let (true, Some(caller)) = (connected, caller) {
                            let (front, packet) = (Arc::clone(&front), home[..count].to_vec());
                            let delay = Duration::from_millis(delay.load(Ordering::SeqCst));
                            let sent = async move {
                                tokio::time::sleep(delay).await;
                                let _ = front.send_to(&packet, caller).await;
                            };
                            match delay.is_zero() {
                                true => sent.await,
                                false => drop(tokio::spawn(sent)),
                            }
                        }
                    }
                }
            }
        });
        Self {
            address,
            delay_ms,
            target,
            calls_while_cut,
            task,
        }
    }

    pub(super) fn calls_while_cut(&self) -> usize {
        self.calls_while_cut.load(Ordering::SeqCst)
    }

    pub(super) fn leads_to(&self, address: &str) {
        *self.target.lock().unwrap() = Some(address.parse().unwrap());
    }

    pub(super) fn delays(&self, by: Duration) {
        self.delay_ms.store(by.as_millis() as u64, Ordering::SeqCst);
    }

    pub(super) fn cut(&self) {
        *self.target.lock().unwrap() = None;
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}
