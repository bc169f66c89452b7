//! What the port says in the log of its node.

use std::net::TcpStream;

use super::{EtcdCluster, IN_THE_CLEAR};
use crate::harness::eventually;

const CLEAR: &str = "the etcd port is served without TLS";
const OPEN: &str = "the etcd port needs no certificate of its clients";

#[test]
fn a_port_that_serves_anyone_is_named_at_the_start() {
    for (settings, in_the_clear, open) in [
        (&[IN_THE_CLEAR][..], true, false),
        (&[], false, true),
        (
            &[("LEASEHOLD_TLS_ETCD_CLIENT_CERT_AUTH", "true")],
            false,
            false,
        ),
        (
            &[("LEASEHOLD_TLS_ETCD_ALLOWED_SANS", "tester")],
            false,
            false,
        ),
    ] {
        let cluster = EtcdCluster::start(1, settings);
        let said = cluster.cluster.nodes[0].log_text();
        for (line, is_said) in [(CLEAR, in_the_clear), (OPEN, open)] {
            assert_eq!(said.contains(line), is_said, "{settings:?}: {said}");
        }
    }
}

#[test]
fn a_connection_that_is_one_too_many_is_named_with_the_limit() {
    const SETTING: &str = "limits.max_connections_per_address";
    let limit = ("LEASEHOLD_LIMITS_MAX_CONNECTIONS_PER_ADDRESS", "2");
    let cluster = EtcdCluster::start(1, &[IN_THE_CLEAR, limit]);
    let connect = || TcpStream::connect(cluster.ports[0]).unwrap();
    let said = || {
        let log = cluster.cluster.nodes[0].log_text();
        let lines = log
            .lines()
            .filter(|line| line.contains("closed a connection at once"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let mut held = vec![connect(), connect()];
    assert_eq!(said(), Vec::<String>::new());
    let line = eventually("the line", || {
        // Those that say nothing are closed by and by.
        held.push(connect());
        said().pop()
    });
    for part in [SETTING, "127.0.0.1", "limit"] {
        assert!(line.contains(part), "no {part} in {line}");
    }
}
