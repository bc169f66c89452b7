//! Certificates and authorities are replaced while a cluster runs, and nobody notices.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leasehold::client::Client;

use crate::harness::{
    Cluster, Signal, binary, eventually, left_out, must, setting, without_settings,
};

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
        node.signal(Signal::HUP);
    }
    let wanted = before + 2.0 * cluster.nodes.len() as f64;
    eventually("new certificates everywhere", || {
        (reloads(cluster, "ok") >= wanted).then_some(())
    });
}

/// What came of the requests that were made meanwhile.
#[derive(Default)]
struct Load {
    over: AtomicBool,
    made: AtomicU64,
    failed: AtomicU64,
}

/// Writes and reads until told to stop; every failure is counted.
async fn load(client: Client, key: String, load: Arc<Load>) {
    let mut number = 0_u64;
    while !load.over.load(Ordering::SeqCst) {
        number += 1;
        let put = client.put(&key, number.to_string(), None).await;
        let get = client.get(&key, None).await;
        for failure in [put.err(), get.err()].into_iter().flatten() {
            eprintln!("{failure}");
            load.failed.fetch_add(1, Ordering::SeqCst);
        }
        load.made.fetch_add(2, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// How often nodes have closed a connection because of what it rests on.
fn distrusted(cluster: &Cluster) -> usize {
    let said = cluster.nodes.iter().map(|node| node.log_text());
    said.map(|said| said.matches("certificates are no longer trusted").count())
        .sum()
}

/// Makes a new authority for each port of the same cluster, and certificates of it for everybody; has
/// everybody trust both, then use the new ones, then trust the new one alone.
fn rotate(cluster: &Cluster, id: &str, number: u64, load: &Load) {
    let used = cluster.pki.path.clone();
    let new = cluster.folder.path().join(format!("pki-{number}"));
    let out = new.to_str().unwrap();
    must(&["cert", "init", "--out", out, "--cluster-id", id]);
    let issue = |kind: &str, name: &str, more: &[&str]| {
        let arguments = ["cert", "issue", "--out", out, kind, "--name", name];
        must(&[&arguments, more].concat());
    };
    issue("--client", "tester", &[]);
    for node in &cluster.nodes {
        issue("--node", &node.name, &["--san", "127.0.0.1,localhost"]);
    }
    let authorities = ["client-ca.pem", "peer-ca.pem"];
    let read = |from: &Path, name: &str| fs::read(from.join(name)).unwrap();

    // First everybody trusts both authorities,
    for name in authorities {
        let both = [read(&used, name), read(&new, name)].concat();
        replace(&used.join(name), &both);
    }
    reload(cluster);
    // then everybody shows a certificate of the new one,
    let mut files = vec!["tester.pem".to_owned(), "tester.key".to_owned()];
    for node in &cluster.nodes {
        for port in ["server", "peer"] {
            files.extend(["pem", "key"].map(|end| format!("{}-{port}.{end}", node.name)));
        }
    }
    for file in &files {
        replace(&used.join(file), &read(&new, file));
    }
    reload(cluster);
    let (made, closed) = (load.made.load(Ordering::SeqCst), distrusted(cluster));
    // and at last nobody trusts the old one any more: what rests on it is closed and made anew.
    for name in authorities {
        replace(&used.join(name), &read(&new, name));
    }
    reload(cluster);
    eventually("connections of the old authority are closed", || {
        (distrusted(cluster) > closed).then_some(())
    });
    eventually("work goes on", || {
        (load.made.load(Ordering::SeqCst) > made + 200).then_some(())
    });
}

/// `CERTIFICATE_ROTATIONS=50` replaces them so often.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_and_their_authorities_are_replaced_without_a_failed_request() {
    let rotations = setting("CERTIFICATE_ROTATIONS", 2);
    let mut cluster = Cluster::prepare(3);
    cluster.write_configs("");
    cluster.start_and_settle();
    let client = cluster.client().await;
    let counts = Arc::new(Load::default());
    let callers: Vec<_> = (0..4)
        .map(|caller| {
            let key = format!("k{caller}");
            tokio::spawn(load(client.clone(), key, Arc::clone(&counts)))
        })
        .collect();
    let log = fs::read_to_string(&cluster.nodes[0].log).unwrap();
    let id = log.split("cluster=").nth(1).unwrap();
    let id = id.split(' ').next().unwrap();
    for number in 0..rotations {
        tokio::task::block_in_place(|| rotate(&cluster, id, number, &counts));
    }
    counts.over.store(true, Ordering::SeqCst);
    for caller in callers {
        caller.await.unwrap();
    }
    let (made, failed) = (&counts.made, &counts.failed);
    eprintln!(
        "{rotations} rotations of all certificates and both authorities, {} reloads, {} connections \
         closed and made anew; {} requests, {} failed",
        reloads(&cluster, "ok"),
        distrusted(&cluster),
        made.load(Ordering::SeqCst),
        failed.load(Ordering::SeqCst),
    );
    assert_eq!(failed.load(Ordering::SeqCst), 0, "requests failed");
    cluster.wait_for_lease();
    let old = cluster.pki.path.clone();

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
    for name in ["tester.pem", "tester.key"] {
        replace(&old.join(name), &fs::read(lost.join(name)).unwrap());
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
        said.contains("the previous ones stay in use").then_some(())
    });
    assert_eq!(reloads(&cluster, "failed"), 1.0);
    assert_eq!(
        cluster.cli(&["put", "k", "v", "--exactly-once"]).0,
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
    // The second may have been of a certificate and a key that belong to different nodes: they are
    // looked at again.
    eventually("whose certificate it is", || {
        let said = cluster.nodes[0].log_text();
        said.contains("n2").then_some(())
    });
    assert_eq!(reloads(&cluster, "ok"), 0.0);
    cluster.pki.issue("--node", "n1", &["--force"]);
    assert_ne!(fs::read(&file).unwrap(), good);
    eventually("good ones are taken by themselves", || {
        (reloads(&cluster, "ok") >= 1.0).then_some(())
    });
    assert_eq!(cluster.cli(&["get", "k", "--print-value-only"]).1, "v\n");
}

/// Puts the files of n1 into a new folder of `volume` and leads `..data` there, as Kubernetes does when a
/// secret has changed; the files of the volume are links through `..data`.
fn project(cluster: &Cluster, volume: &Path, version: &str, group: Option<u32>) {
    let folder = volume.join(version);
    fs::create_dir_all(&folder).unwrap();
    let mut names = vec!["peer-ca.pem".to_owned(), "client-ca.pem".to_owned()];
    for port in ["server", "peer"] {
        names.extend(["pem", "key"].map(|end| format!("n1-{port}.{end}")));
    }
    for name in &names {
        let file = folder.join(name);
        fs::copy(cluster.pki.path.join(name), &file).unwrap();
        if let Some(group) = group {
            chown(&file, None, Some(group)).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o440)).unwrap();
        }
        let link = volume.join(name);
        if !link.is_symlink() {
            symlink(format!("..data/{name}"), link).unwrap();
        }
    }
    symlink(version, volume.join("..data_tmp")).unwrap();
    fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
}

/// A pod's `fsGroup`: keys of root with mode 0440, of a group of the process, which is not root.
#[test]
fn a_secret_of_kubernetes_is_mounted_as_it_is_and_followed_when_it_changes() {
    const POD: u32 = 65_532;
    let mut cluster = Cluster::prepare(1);
    let (folder, volume) = (cluster.folder.path(), cluster.folder.path().join("secret"));
    // Only root can become somebody else.
    let owner = fs::metadata(folder).unwrap().uid();
    let pod = (owner == 0).then_some(POD);
    if pod.is_none() {
        left_out("keys of another owner, as in a pod: needs root");
    }
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    project(&cluster, &volume, "..1", pod);
    let node = &cluster.nodes[0];
    cluster.write_configs("[tls]\nreload_interval = \"1s\"\n");
    let config = fs::read_to_string(&node.config).unwrap();
    let from = cluster.pki.path.to_str().unwrap();
    fs::write(&node.config, config.replace(from, volume.to_str().unwrap())).unwrap();
    fs::create_dir(&node.data_dir).unwrap();
    fs::set_permissions(&node.data_dir, fs::Permissions::from_mode(0o700)).unwrap();
    chown(&node.data_dir, pod, pod).unwrap();
    // Where the binary was built may be nobody else's to enter.
    let binary_of_all = folder.join("leasehold");
    // By another process: what other threads start here inherits for a moment what this one has
    // open, and a file that is open for writing is not run.
    let mut copy = Command::new("cp");
    copy.arg("-p").arg(binary()).arg(&binary_of_all);
    assert!(copy.status().unwrap().success());
    let log = fs::File::create(&node.log).unwrap();
    let mut command = Command::new(binary_of_all);
    without_settings(&mut command);
    command
        .args(["serve", "--config", node.config.to_str().unwrap()])
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    if let Some(pod) = pod {
        command.uid(pod).gid(pod);
    }
    cluster.nodes[0].process = Some(command.spawn().unwrap());
    cluster.wait_until_settled();
    assert_eq!(cluster.cli(&["put", "k", "v", "--exactly-once"]).0, 0);
    let expiry = "leasehold_tls_certificate_expiry_timestamp_seconds{role=\"peer\"}";
    let before = cluster.nodes[0].metric(expiry);

    let renewed = ["--force", "--days", "30"];
    cluster.pki.issue("--node", "n1", &renewed);
    project(&cluster, &volume, "..2", pod);
    eventually("the renewed certificates of both ports", || {
        (reloads(&cluster, "ok") >= 2.0).then_some(())
    });
    assert!(cluster.nodes[0].metric(expiry) < before);
    assert_eq!(cluster.cli(&["get", "k", "--print-value-only"]).1, "v\n");
}

/// As the timer does every day, on a machine that has the authorities.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_that_end_soon_are_renewed_for_the_nodes_that_run() {
    let mut cluster = Cluster::prepare(3);
    let out = cluster.pki.path.to_str().unwrap().to_owned();
    for node in &cluster.nodes {
        let ten_days = ["--days", "10", "--force"];
        cluster.pki.issue("--node", &node.name, &ten_days);
    }
    cluster.start_and_settle();
    let client = cluster.client().await;
    let ends = |cluster: &Cluster| {
        cluster.nodes.iter().fold(Vec::new(), |mut ends, node| {
            let (status, told) = node.manage("POST", "/admin/v1/tls/reload", "");
            assert_eq!(status, 200, "{told}");
            for port in ["client", "peer"] {
                let end = &told[format!("{port}_certificate_ends")];
                ends.push(end.as_i64().unwrap());
            }
            ends
        })
    };
    let before = ends(&cluster);
    let renewed = must(&["cert", "renew", "--out", &out, "--before", "9"]);
    assert_eq!(renewed, "", "none ends so soon");
    let renewed = must(&["cert", "renew", "--out", &out]);
    assert_eq!(renewed.matches("wrote ").count(), 6, "{renewed}");
    let after = ends(&cluster);
    let day = 86_400;
    for (before, after) in before.iter().zip(&after) {
        assert!((79 * day..=81 * day).contains(&(after - before)));
    }
    // Nodes call each other with them, and clients are answered.
    for node in &mut cluster.nodes {
        assert_eq!(node.stop(), 0);
        node.start();
    }
    cluster.wait_until_settled();
    client.put("k", "v", None).await.unwrap();
}
