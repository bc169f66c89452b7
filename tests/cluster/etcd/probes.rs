//! What an orchestrator is told of a node whose state is not there yet.

use std::fs;

use super::{EtcdCluster, IN_THE_CLEAR};
use crate::harness::eventually;

/// It would begin to wait, or to verify, once more if it were restarted for that.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_waits_for_its_state_lives_and_is_not_ready() {
    let mut cluster = EtcdCluster::prepare(3, &[IN_THE_CLEAR]);
    let few = "[raft]\nsnapshot_entries = 40\nsnapshot_catchup_entries = 10\n";
    cluster.cluster.write_configs(few);
    cluster.cluster.start_and_settle();
    let client = cluster.cluster.client().await;
    for number in 0..100 {
        client.put("k", number.to_string(), None).await.unwrap();
    }
    let nodes = &mut cluster.cluster.nodes;
    eventually("a log that was cut", || {
        (nodes[0].metric("leasehold_raft_log_first_index") > 1.0).then_some(())
    });
    for node in nodes.iter_mut() {
        assert_eq!(node.stop(), 0);
    }
    // The others, which could send it, stay stopped.
    fs::remove_dir_all(nodes[0].data_dir.join("state")).unwrap();
    nodes[0].start();
    let port = cluster.ports[0];
    eventually("a port", || std::net::TcpStream::connect(port).ok());

    let reason = "the state is being received, or compared with its hash\n";
    let listed = format!("[+]serializable_read ok: {reason}ok\n");
    let failed = format!("[-]serializable_read failed: {reason}");
    for (path, status, text) in [
        ("/livez", "200", "ok\n"),
        ("/livez?verbose", "200", &listed),
        ("/livez/serializable_read", "200", "ok\n"),
        ("/readyz/serializable_read", "503", &failed),
    ] {
        let expected = (status.to_owned(), text.to_owned());
        assert_eq!(cluster.page(0, path), expected, "{path}");
    }
    let (status, text) = cluster.page(0, "/readyz");
    assert!(status == "503" && text.contains(&failed), "{text}");
    let served = cluster.page(0, "/health?serializable=true");
    assert_eq!(served.0, "503", "{served:?}");
}
