//! A member whose state took another way is found, says so, and serves nothing; the others go on.

use std::fs;
use std::time::{Duration, Instant};

use leasehold::api::{Consistency, ErrorKind, Outcome, PutRequest, RangeRequest, Request};
use leasehold::client::{Client, RetryPolicy};

use crate::harness::{Cluster, Node, PATIENCE, copy_folder, eventually, forge_entry};

pub(crate) const ALARM: &str = "leasehold_alarms{type=\"corrupt\"}";
const AGREED: &str = "leasehold_storage_hash_checks_total{result=\"ok\"}";
const DIFFERED: &str = "leasehold_storage_hash_checks_total{result=\"differs\"}";

fn agrees_once_more(nodes: &[Node]) {
    for node in nodes {
        let before = node.metric(AGREED);
        eventually("a comparison that agrees", || {
            (node.metric(AGREED) > before).then_some(())
        });
    }
}

pub(crate) fn read() -> Request {
    Request::Range(RangeRequest {
        key: "k".into(),
        ..RangeRequest::default()
    })
}

async fn read_at(client: &Client, node: &Node, consistency: Consistency) -> Result<(), ErrorKind> {
    let endpoint = node.client.to_string();
    let read = client.call_at(endpoint, read(), consistency).await;
    read.map(|_| ()).map_err(|error| {
        assert_eq!(error.outcome, Outcome::NotApplied);
        error.kind
    })
}

/// That a node refuses a request because its state differs. That it did not answer in time, or could
/// not be reached, says nothing; that it serves it is wrong at any time.
async fn refuses_as_corrupt(
    client: &Client,
    node: &Node,
    request: Request,
    consistency: Consistency,
) {
    let began = Instant::now();
    loop {
        let asked = client.call_at(node.client.to_string(), request.clone(), consistency);
        let error = asked.await.expect_err("its state is not served");
        if error.kind == ErrorKind::Corrupt {
            assert_eq!(error.outcome, Outcome::NotApplied);
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{consistency:?}: {error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// That a node refuses every kind of read, and writes, because its state differs.
pub(crate) async fn serves_nothing(client: &Client, node: &Node) {
    for consistency in [
        Consistency::Serializable,
        Consistency::Linearizable,
        Consistency::LinearizableQuorum,
    ] {
        refuses_as_corrupt(client, node, read(), consistency).await;
    }
    let put = Request::Put(PutRequest {
        key: "k".into(),
        ..PutRequest::default()
    });
    refuses_as_corrupt(client, node, put, Consistency::default()).await;
}

/// Gives a node, of which all agree, a state of some entries ago with another entry on top, and a log that has
/// what came. Returns once it has noticed.
pub(crate) async fn corrupt(cluster: &mut Cluster, client: &Client, victim: usize) {
    let state = cluster.nodes[victim].data_dir.join("state");
    let aside = cluster.folder.path().join("aside");
    assert_eq!(cluster.nodes[victim].stop(), 0);
    copy_folder(&state, &aside);
    cluster.nodes[victim].start();
    cluster.wait_for_lease();
    for number in 0..20 {
        client.put("k", number.to_string(), None).await.unwrap();
    }
    agrees_once_more(&cluster.nodes);
    assert_eq!(cluster.nodes[victim].stop(), 0);
    fs::remove_dir_all(&state).unwrap();
    fs::rename(&aside, &state).unwrap();
    forge_entry(&state, "forged");

    cluster.nodes[victim].start();
    eventually("the alarm", || {
        let (_, metrics) = cluster.nodes[victim].admin("/metrics")?;
        metrics.contains(&format!("{ALARM} 1")).then_some(())
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_the_member_whose_state_differs_stops_serving_until_it_is_built_anew() {
    let mut cluster = Cluster::prepare(3);
    cluster.check_states_every_second();
    let leader = cluster.start_and_settle();
    let client = cluster.client().await;
    client.put("k", "1", None).await.unwrap();
    agrees_once_more(&cluster.nodes);
    for node in &cluster.nodes {
        assert_eq!((node.metric(ALARM), node.metric(DIFFERED)), (0.0, 0.0));
    }

    let victim = (leader + 1) % 3;
    corrupt(&mut cluster, &client, victim).await;
    let alarmed = &cluster.nodes[victim];
    let status = client.status(alarmed.client.to_string()).await.unwrap();
    let warnings = status.status.warnings.join("\n");
    assert!(warnings.contains("ALARM CORRUPT"), "{warnings}");
    let (code, ready) = eventually("an answer", || alarmed.admin("/readyz"));
    assert!(
        code >= 500 && ready.contains("data_corruption"),
        "{code} {ready}"
    );
    assert!(alarmed.log_text().contains("ALARM CORRUPT"));
    assert_eq!(alarmed.metric(DIFFERED), 1.0);
    // One that asks once: otherwise the last of many attempts may be cut off by its deadline.
    let options = cluster.options().with_retry(RetryPolicy::never());
    let once = cluster.client_with(options).await;
    serves_nothing(&once, alarmed).await;

    // The others serve on, and so does the cluster.
    for number in 0..10 {
        client.put("k", number.to_string(), None).await.unwrap();
        let found = client.get("k", None).await.unwrap();
        assert_eq!(found.value().unwrap(), &number.to_string());
    }
    for (number, node) in cluster.nodes.iter().enumerate() {
        if number != victim {
            // While one of them stands still, the other cannot tell which of two is wrong.
            eventually("no alarm at who agrees", || {
                (node.metric(ALARM) == 0.0).then_some(())
            });
            let read = read_at(&client, node, Consistency::Serializable).await;
            assert_eq!(read, Ok(()), "{}", node.name);
        }
    }

    // It is built anew from its log, once it was told that it is the wrong one: while one of the
    // others stands still, it has the same alarm and does not know.
    eventually("the word of a majority", || {
        let said = cluster.nodes[victim].log_text();
        said.contains("differs from that of a majority")
            .then_some(())
    });
    assert_eq!(cluster.nodes[victim].stop(), 0);
    cluster.nodes[victim].start();
    cluster.wait_for_lease();
    agrees_once_more(&cluster.nodes);
    let healed = &cluster.nodes[victim];
    assert_eq!(healed.metric(ALARM), 0.0);
    let read = read_at(&client, healed, Consistency::Serializable).await;
    assert_eq!(read, Ok(()));
}
