//! Certificates and authorities are replaced while a cluster runs, and nobody notices.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold::client::Client;

use crate::harness::Cluster;
use crate::harness::eventually;
use crate::harness::must;

/// Puts one file in the place of another, whole or not at all, as certificate managers do.
fn replace(file: &Path, bytes: &[u8]) {
    let new = file.with_extension("new");
    // Keys are nobody else's business.
    let mut options = fs::File::options();
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut written = options
        .write(true)
        .create(true)
        .truncate(true)
        .open(&new)
        .unwrap();
    std::io::Write::write_all(&mut written, bytes).unwrap();
    fs::rename(&new, file).unwrap();
}

/// How often new certificates were taken into use, by all nodes on both ports.
fn reloads(cluster: &Cluster, result: &str) -> f64 {
    let mut sum = 0.0;
    for node in &cluster.nodes {
        for role in ["client", "peer"] {
            let series =
                format!("leasehold_tls_reloads_total{{role=\"{role}\",result=\"{result}\"}}");
            sum += node.metric(&series);
        }
    }
    sum
}

/// Asks every node to load its files, and waits until all have.
fn reload(cluster: &Cluster) {
    let before = reloads(cluster, "ok");
    for node in &cluster.nodes {
        let id = node.process.as_ref().expect("it runs").id().to_string();
        assert!(
            Command::new("kill")
                .args(["-HUP", &id])
                .status()
                .unwrap()
                .success()
        );
    }
    let wanted = before + 2.0 * cluster.nodes.len() as f64;
    eventually("new certificates everywhere", || {
        (reloads(cluster, "ok") >= wanted).then_some(())
    });
}

/// Writes and reads until told to stop; every failure is counted.
async fn load(client: Client, over: Arc<AtomicBool>, failed: Arc<AtomicU64>, done: Arc<AtomicU64>) {
    let mut number = 0_u64;
    while !over.load(Ordering::SeqCst) {
        number += 1;
        let put = client.put("k", number.to_string(), None).await;
        let get = client.get("k", None).await;
        for failure in [put.err(), get.err()].into_iter().flatten() {
            eprintln!("{failure}");
            failed.fetch_add(1, Ordering::SeqCst);
        }
        done.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_and_their_authorities_are_replaced_without_a_failed_request() {
    let mut cluster = Cluster::prepare(3);
    cluster.write_configs("");
    cluster.start_and_settle();
    let client = cluster.client().await;
    let over = Arc::new(AtomicBool::new(false));
    let (failed, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let loading = tokio::spawn(load(client, over.clone(), failed.clone(), done.clone()));

    // A second authority of the same cluster, and certificates of its own for everybody.
    let old = cluster.pki.path.clone();
    let new = cluster.folder.path().join("new-pki");
    let id = fs::read_to_string(&cluster.nodes[0].log).unwrap();
    let id = id
        .split("cluster=")
        .nth(1)
        .unwrap()
        .split(' ')
        .next()
        .unwrap();
    must(&[
        "cert",
        "init",
        "--out",
        new.to_str().unwrap(),
        "--cluster-id",
        id,
    ]);
    let issue = |kind: &str, name: &str, more: &[&str]| {
        let out = new.to_str().unwrap();
        let arguments = ["cert", "issue", "--out", out, kind, "--name", name];
        must(&[&arguments, more].concat());
    };
    issue("--client", "tester", &[]);
    for node in &cluster.nodes {
        issue("--node", &node.name, &["--san", "127.0.0.1,localhost"]);
    }
    let authorities = ["client-ca.pem", "peer-ca.pem"];
    let read = |from: &Path, name: &str| fs::read(from.join(name)).unwrap();
    let olds: Vec<Vec<u8>> = authorities.iter().map(|name| read(&old, name)).collect();

    // First everybody trusts both authorities,
    for (name, before) in authorities.iter().zip(&olds) {
        let both = [before.clone(), read(&new, name)].concat();
        replace(&old.join(name), &both);
    }
    reload(&cluster);
    // then everybody shows a certificate of the new one,
    let mut files = vec!["tester.pem".to_owned(), "tester.key".to_owned()];
    for node in &cluster.nodes {
        for port in ["server", "peer"] {
            files.extend(["pem", "key"].map(|end| format!("{}-{port}.{end}", node.name)));
        }
    }
    for file in &files {
        replace(&old.join(file), &read(&new, file));
    }
    reload(&cluster);
    let before = done.load(Ordering::SeqCst);
    // and at last nobody trusts the old one any more: what rests on it is closed and made anew.
    for name in authorities {
        replace(&old.join(name), &read(&new, name));
    }
    reload(&cluster);
    let leader = cluster.wait_for_lease();
    eventually("connections of the old authority are closed", || {
        let said = cluster.nodes[leader].log_text();
        said.contains("certificates are not trusted any more")
            .then_some(())
    });
    eventually("work goes on", || {
        (done.load(Ordering::SeqCst) > before + 100).then_some(())
    });
    over.store(true, Ordering::SeqCst);
    loading.await.unwrap();
    assert_eq!(failed.load(Ordering::SeqCst), 0, "requests failed");
    cluster.wait_for_lease();

    // Who still has nothing but the old authority's is not let in.
    let lost = cluster.folder.path().join("lost");
    must(&[
        "cert",
        "init",
        "--out",
        lost.to_str().unwrap(),
        "--cluster-id",
        id,
    ]);
    let out = lost.to_str().unwrap();
    must(&[
        "cert", "issue", "--out", out, "--client", "--name", "tester",
    ]);
    for (name, bytes) in ["tester.pem", "tester.key"]
        .iter()
        .zip(["tester.pem", "tester.key"])
    {
        replace(&old.join(name), &read(&lost, bytes));
    }
    let (code, _, said) = cluster.cli(&["get", "k"]);
    assert_ne!(code, 0, "{said}");
}

#[test]
fn files_that_cannot_be_used_change_nothing_and_are_told_of() {
    let mut cluster = Cluster::prepare(1);
    cluster.write_configs("[tls]\nreload_interval = \"1s\"\n");
    cluster.start_and_settle();
    let file = cluster.pki.path.join("n1-server.pem");
    let good = fs::read(&file).unwrap();
    replace(&file, b"-----BEGIN CERTIFICATE-----\nnothing\n");
    eventually("the complaint", || {
        let said = cluster.nodes[0].log_text();
        said.contains("those before stay in use").then_some(())
    });
    assert_eq!(reloads(&cluster, "failed"), 1.0);
    assert_eq!(
        cluster.cli(&["put", "k", "v"]).0,
        0,
        "the one before is in use"
    );
    // Another node's certificate is none of ours.
    cluster.pki.issue("--node", "n2", &[]);
    for end in ["pem", "key"] {
        let other = fs::read(cluster.pki.path.join(format!("n2-server.{end}"))).unwrap();
        replace(&file.with_extension(end), &other);
    }
    eventually("the second complaint", || {
        (reloads(&cluster, "failed") >= 2.0).then_some(())
    });
    assert!(cluster.nodes[0].log_text().contains("n2"));
    assert_eq!(reloads(&cluster, "ok"), 0.0);
    cluster.pki.issue("--node", "n1", &["--force"]);
    assert_ne!(fs::read(&file).unwrap(), good);
    eventually("good ones are taken by themselves", || {
        (reloads(&cluster, "ok") >= 1.0).then_some(())
    });
    assert_eq!(cluster.cli(&["get", "k", "--print-value-only"]).1, "v\n");
}
