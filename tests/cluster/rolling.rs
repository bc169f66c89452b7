//! A rolling restart, as an operator does it: one node after the other, while clients go on.

use crate::harness::{Cluster, eventually, setting};
use crate::members::Writers;

/// How often the whole cluster is gone through.
fn rounds() -> u64 {
    setting("ROLLING_RESTARTS", 1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_of_a_client_that_retries_fails_while_one_node_after_the_other_is_restarted() {
    let mut cluster = Cluster::start(3);
    let client = cluster.client().await;
    let writers = Writers::start(&cluster, 4).await;
    writers.go_on().await;
    for round in 1..=rounds() {
        for place in 0..cluster.nodes.len() {
            assert_eq!(cluster.nodes[place].stop(), 0);
            cluster.nodes[place].start();
            // The next one's turn comes when this one counts again.
            eventually("the node is ready", || {
                let (status, _) = cluster.nodes[place].admin("/readyz")?;
                (status == 200).then_some(())
            });
            cluster.wait_until_settled();
            writers.go_on().await;
        }
        eprintln!("rolling restart {round}: done");
    }
    let written = writers.end(&client).await;
    eprintln!(
        "{} rolling restarts: {written} writes and as many reads, 0 failed",
        rounds()
    );
}
