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
