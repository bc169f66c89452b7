//! Leaders that stand still, hear nobody or are gone: what is done meanwhile, and what is not waited
//! for.

use super::*;

async fn until(what: impl Fn() -> bool) {
    while !what() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits between attempts that are far longer than any machine is slow: what is done before they are
/// over is done because something happened.
fn with_long_waits(options: ConnectOptions) -> ConnectOptions {
    let wait = Duration::from_secs(3600);
    options
        .with_retry(RetryPolicy::new().with_back_off(wait, wait))
        .with_timeout(8 * wait)
        .with_auto_sync_interval(Duration::ZERO)
}

/// A leader that stands still for a moment keeps its term. It must be connected again when it goes on,
/// and not a second after it fell silent.
#[test]
fn a_leader_that_fell_silent_is_called_at_the_first_hint_and_asked_when_it_is_back() {
    run_watching_for_silence(async {
        let authority = Authority::new();
        let front = Relay::start().await;
        let leader = fake(&authority, "n1", healthy("n1"));
        front.leads_to(&leader.address);
        let hint = (leader.id, front.address.clone());
        // How often the silent leader had been called when the follower was asked.
        let calls_at_asks = Arc::<Mutex<Vec<usize>>>::default();
        let (calls, asks) = (
            Arc::clone(&front.calls_while_cut),
            Arc::clone(&calls_at_asks),
        );
        let follower = fake(&authority, "n2", move |_, _| {
            asks.lock().unwrap().push(calls.load(Ordering::SeqCst));
            not_leader(Some((hint.0, &hint.1)))
        });
        let wait = Duration::from_secs(20);
        let options = with_long_waits(options(&authority))
            .with_retry(RetryPolicy::new().with_back_off(wait, wait))
            .with_timeout(5 * wait);
        let endpoints = [front.address.clone(), follower.address.clone()];
        let client = Client::connect(endpoints, Some(options)).await.unwrap();
        let pool = client.inner.router.pool();
        for address in [&front.address, &follower.address] {
            pool.link(address, deadline_after(PATIENCE)).await.unwrap();
        }
        client.put("k", "v", None).await.unwrap();
        calls_at_asks.lock().unwrap().clear();

        front.cut();
        let write = {
            let client = client.clone();
            tokio::spawn(async move { client.put("k", "w", None).await })
        };
        until(|| front.calls_while_cut() > 0).await;
        front.leads_to(&leader.address);
        let written = write.await.unwrap().unwrap();
        assert_eq!(written.header.member_id, leader.id);
        let calls_at_asks = calls_at_asks.lock().unwrap();
        assert!(
            calls_at_asks.iter().skip(1).all(|calls| *calls > 0),
            "the follower's word was enough to call the leader: {calls_at_asks:?}"
        );
    });
}

#[test]
fn a_new_connection_ends_the_wait_of_a_request_that_has_nowhere_to_go() {
    run(async {
        let authority = Authority::new();
        let first = fake(&authority, "n1", |_, _| refuse(ErrorKind::NoLeader));
        let front = Relay::start().await;
        let second = fake(&authority, "n2", healthy("n2"));
        let options = with_long_waits(options(&authority));
        let endpoints = [first.address.clone(), front.address.clone()];
        let client = Client::connect(endpoints, Some(options)).await.unwrap();
        client.inner.router.pool().dial_ahead(&front.address);
        let read = {
            let client = client.clone();
            tokio::spawn(async move { client.get("k", None).await })
        };
        until(|| !first.calls().is_empty()).await;
        front.leads_to(&second.address);
        let read = read.await.unwrap().unwrap();
        assert_eq!(read.header.member_id, second.id);
        assert_eq!(first.calls().len(), 1);
    });
}

/// It was deposed and cannot tell, or its questions are lost: that is one request's misfortune.
#[test]
fn a_leader_that_lets_a_deadline_pass_is_not_believed_any_more() {
    run(async {
        let authority = Authority::new();
        let deposed = fake(&authority, "n1", |number, frame| match number {
            0 => reply(answer("n1", frame)),
            _ => Reaction::Ignore,
        });
        let client = connect(&authority, &[&deposed]).await;
        let asked = client.get("k", None).await.unwrap();
        assert_eq!(asked.header.member_id, deposed.id);
        let soon = GetOptions::new().with_timeout(Duration::from_millis(100));
        let error = client.get("k", Some(soon)).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::DeadlineExceeded);
        assert_eq!(client.leader(), None, "it is not believed any more");
    });
}

/// A read that one node could not confirm in its part of the time is asked for elsewhere, also where no
/// other node is connected yet.
#[test]
fn a_read_that_nobody_confirmed_is_asked_of_a_node_that_is_not_connected_yet() {
    run(async {
        let authority = Authority::new();
        let deposed = fake(&authority, "n1", |_, _| refuse(ErrorKind::QuorumTimeout));
        let successor = fake(&authority, "n2", healthy("n2"));
        let options = options(&authority).with_timeout(PATIENCE);
        let client = connect_with(&[&deposed, &successor], options).await;
        let read = client.get("k", None).await.unwrap();
        assert_eq!(read.header.member_id, successor.id);
        assert_eq!(client.leader(), Some(successor.id));
    });
}

#[test]
fn a_write_that_may_not_be_repeated_does_not_use_up_its_time_at_a_node_that_is_gone() {
    run_watching_for_silence(async {
        let authority = Authority::new();
        let front = Relay::start().await;
        let leader = fake(&authority, "n1", |_, _| Reaction::Ignore);
        front.leads_to(&leader.address);
        let options = with_long_waits(options(&authority)).with_exactly_once(false);
        let endpoints = [front.address.clone()];
        let client = Client::connect(endpoints, Some(options)).await.unwrap();
        let write = {
            let client = client.clone();
            tokio::spawn(async move { client.put("k", "v", None).await })
        };
        until(|| !leader.calls().is_empty()).await;
        front.cut();
        let error = write.await.unwrap().unwrap_err();
        assert_eq!(error.kind, ErrorKind::ConnectionLost);
        assert_eq!(error.outcome, Outcome::Unknown);
    });
}

#[test]
fn who_is_still_being_called_is_not_waited_for_at_the_end() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", healthy("n1"));
        let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let dead = silent.local_addr().unwrap().to_string();
        let endpoints = [dead, node.address.clone()];
        let client = Client::connect(endpoints, Some(options(&authority)))
            .await
            .unwrap();
        client.get("k", None).await.unwrap();
        let farewells = client.inner.router.pool().close();
        assert_eq!(farewells.count(), 1);
        farewells.sent().await;
    });
}

#[test]
fn an_error_says_how_often_it_was_tried_and_for_how_long() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", |_, _| refuse(ErrorKind::NoLeader));
        for attempts in [1, 3] {
            let wait = Duration::from_millis(1);
            let retry = RetryPolicy::new().with_back_off(wait, wait);
            let options = options(&authority).with_retry(retry.with_attempts_max(attempts));
            let client = connect_with(&[&node], options).await;
            let error = client.get("k", None).await.unwrap_err();
            let said = error.to_string();
            match error.tries {
                Some(tries) => {
                    assert_eq!(tries.attempts, attempts);
                    let end = format!("(LH-NO-LEADER; gave up after {tries})");
                    assert!(said.ends_with(&end), "{said}");
                }
                None => {
                    assert_eq!(attempts, 1, "which is no repetition");
                    assert!(said.ends_with("(LH-NO-LEADER)"), "{said}");
                }
            }
        }
    });
}
