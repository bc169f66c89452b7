//! From etcd to leasehold, as docs/guide/from-etcd.md says: with etcd's own means.

use std::process::{Command, Stdio};

use super::differential::{Etcd, etcd};
use super::{EtcdCluster, etcdctl, must};
use crate::harness::eventually;

#[test]
fn a_prefix_of_etcd_is_mirrored_with_every_later_change() {
    let (Some(etcdctl), Some(etcd)) = (etcdctl("a mirror of etcd"), etcd()) else {
        return;
    };
    let old = Etcd::start(&etcd);
    let new = EtcdCluster::in_the_clear(3);
    let follower = new.ports[new.follower()];
    eventually("etcd that serves", || {
        let health = super::run(&etcdctl, &old.address.to_string(), &["endpoint", "health"]);
        health.0.then_some(())
    });
    for number in 0..20 {
        let key = format!("config/{number:02}");
        must(&etcdctl, old.address, &["put", &key, "before"]);
    }
    must(&etcdctl, old.address, &["put", "other", "stays"]);
    let mut mirror = Command::new(&etcdctl)
        .env_clear()
        .env("ETCDCTL_API", "3")
        .args(["--endpoints", &old.address.to_string()])
        .args(["make-mirror", "--prefix", "config/"])
        .args(["--dest-insecure-transport", &format!("http://{follower}")])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let all = |at| must(&etcdctl, at, &["get", "config/", "--prefix"]);
    let same = || (all(old.address) == all(follower)).then_some(());
    eventually("what was there", same);
    must(&etcdctl, old.address, &["put", "config/20", "late"]);
    must(&etcdctl, old.address, &["put", "config/07", "changed"]);
    must(&etcdctl, old.address, &["del", "config/03"]);
    eventually("what changed meanwhile", same);
    mirror.kill().unwrap();
    mirror.wait().unwrap();
    let moved = all(new.ports[new.leader]);
    assert!(moved.contains("config/20\nlate\n") && moved.contains("config/07\nchanged\n"));
    assert!(!moved.contains("config/03"), "{moved}");
    assert_eq!(must(&etcdctl, follower, &["get", "other"]), "");
}
