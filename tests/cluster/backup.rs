//! Backups: taken while others write, looked at, damaged, and the data of stopped nodes.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::api::{Consistency, ErrorKind, KeyValue};
use leasehold::client::{Client, GetOptions, PutOptions, SnapshotOptions, WatchOptions};
use leasehold::kv;
use leasehold::kv::Space;
use leasehold::wire::state::{Chunks, StateDecoder, StatePart, StateSummary};
use memchr::memmem;

use crate::harness::{Cluster, Node, PATIENCE, eventually, run};
use crate::warnings::says;

/// So much in so many keys, so that a backup has some chunks.
const FILLERS: usize = 40;
const FILLER_BYTES: usize = 30_000;

/// Writes them; the revision of the last.
async fn fill(client: &Client) -> i64 {
    let mut revision = 0;
    for number in 0..FILLERS {
        let key = format!("filler/{number:03}");
        let put = client.put(key, vec![number as u8; FILLER_BYTES], None);
        revision = put.await.unwrap().header.revision;
    }
    revision
}

/// What a backup holds: its keys as they are at its revision, and what it is.
fn keys_of(file: &Path) -> (Vec<KeyValue>, StateSummary) {
    let mut chunks = Chunks::new(fs::File::open(file).unwrap());
    let mut decoder = StateDecoder::new();
    let mut keys = Vec::new();
    while let Some(chunk) = chunks.next_chunk().unwrap() {
        if let StatePart::Records(records) = decoder.take(chunk).unwrap() {
            let current = records
                .into_iter()
                .filter(|(space, ..)| *space == Space::Current);
            keys.extend(current.map(|(_, key, record)| kv::key_value(key, record).unwrap()));
        }
    }
    (keys, decoder.finish().unwrap())
}

async fn read_at(client: &Client, revision: i64) -> Vec<KeyValue> {
    let options = GetOptions::new().with_all_keys().with_revision(revision);
    let mut stream = client.get_stream("", Some(options)).unwrap();
    let mut keys = Vec::new();
    while let Some(kv) = stream.next().await {
        keys.push(kv.unwrap());
    }
    keys
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_backup_of_any_member_under_writes_is_a_read_at_its_revision() {
    let mut cluster = Cluster::start(3);
    let client = cluster.client().await;
    fill(&client).await;
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (client, stop) = (client.clone(), stop.clone());
        tokio::spawn(async move {
            let mut number = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                number += 1;
                let key = format!("written/{}", number % 50);
                client.put(key, number.to_string(), None).await.unwrap();
            }
        })
    };
    let leader = cluster.wait_for_lease();
    let mut backups = Vec::new();
    for (name, node) in [("leader", leader), ("follower", (leader + 1) % 3)] {
        let file = cluster.folder.path().join(format!("{name}.lhs"));
        let path = file.to_str().unwrap();
        let before = client
            .put("before", name, None)
            .await
            .unwrap()
            .header
            .revision;
        let endpoint = format!("--endpoints={}", cluster.nodes[node].client);
        let mut flags = cluster.flags();
        flags[0] = endpoint;
        let mut arguments: Vec<&str> = flags.iter().map(String::as_str).collect();
        arguments.extend(["snapshot", "save", path]);
        let (code, out, error) = tokio::task::block_in_place(|| run(&arguments));
        assert_eq!(code, 0, "{out}\n{error}");
        let (keys, summary) = keys_of(&file);
        let revision = summary.header.revision;
        assert!(out.contains(&format!("revision {revision} ")), "{out}");
        assert!(revision >= before, "what was acknowledged before is in it");
        assert!(summary.chunks > 4, "{}", summary.chunks);
        assert!(read_at(&client, revision).await == keys, "other keys");
        assert!(!file.with_extension("lhs.part").exists());

        // What is there is not replaced unasked.
        let (code, _, error) = tokio::task::block_in_place(|| run(&arguments));
        assert_eq!(code, 1);
        assert!(error.contains("--force"), "{error}");
        backups.push((file, summary));
    }
    stop.store(true, Ordering::Relaxed);
    writer.await.unwrap();

    let (file, summary) = backups.pop().unwrap();
    let path = file.to_str().unwrap();
    let (code, out, _) = run(&["snapshot", "status", path, "-o", "json"]);
    assert_eq!(code, 0);
    let status: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(status["revision"], summary.header.revision);
    assert_eq!(status["totalKey"], summary.keys());
    assert_eq!(status["hash"], summary.header.hash.to_string());
    let (code, out, _) = run(&["snapshot", "verify", path]);
    assert_eq!(code, 0);
    assert!(out.contains("sound"), "{out}");
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).unwrap();
    for verb in ["status", "verify"] {
        let (code, _, error) = run(&["snapshot", verb, path]);
        assert_eq!(code, 1);
        assert!(
            error.contains("is damaged") && error.contains("another copy"),
            "{error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_outlives_its_connection_and_not_its_node() {
    let mut cluster = Cluster::start(3);
    let client = cluster.client().await;
    let filled = fill(&client).await;
    let leader = cluster.wait_for_lease();
    let follower = (leader + 1) % 3;
    // Its snapshot is of what it has by then, and must be of several chunks.
    eventually("a follower that has it all", || {
        let revision = cluster.nodes[follower].metric("leasehold_mvcc_revision");
        (revision >= filled as f64).then_some(())
    });
    let take = || {
        SnapshotOptions::new()
            .with_endpoint(cluster.nodes[follower].client.to_string())
            .with_consistency(Consistency::Serializable)
            .with_timeout(PATIENCE)
    };
    let mut stream = client.snapshot(Some(take())).await.unwrap();
    stream.next().await.unwrap().unwrap();
    let revision = stream.header().unwrap().revision;
    // Long enough for the client to give the connection up.
    cluster.nodes[follower].pause();
    let (chunk, ()) = tokio::join!(stream.next(), async {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        cluster.nodes[follower].resume();
    });
    chunk.unwrap().unwrap();
    while let Some(chunk) = stream.next().await {
        chunk.unwrap();
    }
    assert_eq!(stream.summary().unwrap().header.revision, revision);

    let mut stream = client.snapshot(Some(take())).await.unwrap();
    stream.next().await.unwrap().unwrap();
    cluster.nodes[follower].kill();
    cluster.nodes[follower].start();
    let gone = stream.next().await.unwrap().unwrap_err();
    assert_eq!(gone.kind, ErrorKind::SnapshotGone, "{gone}");
    assert!(stream.next().await.is_none());
}

#[test]
fn the_data_of_a_stopped_node_is_looked_at() {
    // What is repeated may be in the log twice: if an outcome is unknown, all of it begins anew.
    let mut cluster = eventually("three writes that were made", || {
        let cluster = Cluster::start(1);
        for (key, value) in [("a", "1"), ("b", "2"), ("a", "3")] {
            match cluster.cli(&["put", key, value]) {
                (0, ..) => {}
                (4, ..) => return None,
                (code, _, error) => panic!("{code}: {error}"),
            }
        }
        Some(cluster)
    });
    let data_dir = cluster.nodes[0].data_dir.to_str().unwrap().to_owned();
    let look = |verb: &str, more: &[&str]| {
        let mut arguments = vec!["offline", verb, "--data-dir", &data_dir];
        arguments.extend(more);
        run(&arguments)
    };
    let (code, _, error) = look("check", &[]);
    assert_eq!(code, 1);
    assert!(
        error.contains("in use by another leasehold process"),
        "{error}"
    );
    let backup = cluster.folder.path().join("backup.lhs");
    assert_eq!(
        cluster
            .cli(&["snapshot", "save", backup.to_str().unwrap()])
            .0,
        0
    );
    let saved = keys_of(&backup).1;
    assert_eq!(cluster.nodes[0].stop(), 0);

    for _ in 0..2 {
        let (code, out, error) = look("check", &[]);
        assert_eq!(code, 0, "{out}\n{error}");
        assert!(
            out.contains("log: sound") && out.contains("state: sound"),
            "{out}"
        );
    }
    let (code, out, _) = look("hashkv", &["-o", "json"]);
    assert_eq!(code, 0);
    let hash: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(hash["revision"], 4);
    if hash["applied_index"] == saved.header.base.id.index.0 {
        assert_eq!(hash["hash"], saved.header.hash.to_string());
    }
    let (code, out, _) = look("dump-kv", &[]);
    assert_eq!((code, out.as_str()), (0, "a\n3\nb\n2\n"));
    let (_, out, _) = look("dump-kv", &["-o", "json"]);
    let first: serde_json::Value = serde_json::from_str(out.lines().next().unwrap()).unwrap();
    assert_eq!(
        (&first["key"], &first["version"]),
        (&"YQ==".into(), &2.into())
    );
    let (code, out, _) = look("dump-log", &[]);
    assert_eq!(code, 0);
    assert_eq!(
        out.lines().filter(|line| line.contains(" put ")).count(),
        3,
        "{out}"
    );
    assert!(out.contains(" bootstrap "), "{out}");

    // The node goes on as if nobody had looked.
    cluster.nodes[0].start();
    cluster.wait_for_lease();
    assert_eq!(cluster.cli(&["get", "a"]).1, "a\n3\n");
    cluster.nodes[0].kill();

    let log = cluster.nodes[0].data_dir.join("log");
    let segment = eventually("a segment", || {
        fs::read_dir(&log)
            .ok()?
            .map(|entry| entry.unwrap().path())
            .min()
    });
    let mut bytes = fs::read(&segment).unwrap();
    bytes[8192 + 100] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let (code, out, error) = look("check", &[]);
    assert_eq!(code, 1, "{out}\n{error}");
    assert!(out.contains("DAMAGED  log: the log is damaged"), "{out}");
    let (code, _, error) = run(&[
        "offline",
        "check",
        "--data-dir",
        cluster.pki.path.to_str().unwrap(),
    ]);
    assert_eq!(code, 1);
    assert!(
        error.contains("does not contain the data of a node"),
        "{error}"
    );
}

/// Three members of a new cluster are made of one backup, each by itself, and form it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_cluster_forms_and_holds_everything_and_tells_old_watchers() {
    let old = Cluster::start(1);
    let client = old.client().await;
    fill(&client).await;
    let lease = client.lease();
    let granted = lease.grant(Duration::from_secs(600), None).await.unwrap();
    let attached = PutOptions::new().with_lease(granted.id);
    client.put("held", "1", Some(attached)).await.unwrap();
    let backup = old.folder.path().join("backup.lhs");
    let backup = backup.to_str().unwrap().to_owned();
    let cli = |arguments: &[&str]| tokio::task::block_in_place(|| old.cli(arguments));
    assert_eq!(cli(&["snapshot", "save", &backup]).0, 0);
    let (keys, saved) = keys_of(Path::new(&backup));
    let seen = client.put("later", "gone", None).await.unwrap();
    assert!(seen.header.revision > saved.header.revision);

    let mut new = Cluster::prepare(3);
    let restore = |file: &str, certificate: &str, node| new.restore(node, file, certificate, &[]);
    // Not of a damaged file, and not for the old cluster: and nothing is left that would start.
    let mut bytes = fs::read(&backup).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let damaged = new.folder.path().join("damaged.lhs");
    fs::write(&damaged, bytes).unwrap();
    let first = &new.nodes[0];
    let certificate = new.pki.file("n1-peer.pem");
    let (code, _, error) = restore(damaged.to_str().unwrap(), &certificate, first);
    assert_eq!(code, 1);
    assert!(error.contains("is damaged"), "{error}");
    let (code, _, error) = restore(&backup, &certificate, first);
    assert_eq!(code, 1);
    assert!(error.contains("is not empty"), "{error}");
    let (code, _, error) = run(&["serve", "--config", first.config.to_str().unwrap()]);
    assert_eq!(code, 1);
    assert!(error.contains("no identity"), "{error}");
    fs::remove_dir_all(&first.data_dir).unwrap();
    let (code, _, error) = restore(&backup, &old.pki.file("n1-peer.pem"), first);
    assert_eq!(code, 1);
    assert!(
        error.contains("which this backup was taken from"),
        "{error}"
    );

    let mut hashes = Vec::new();
    for node in &new.nodes {
        let certificate = new.pki.file(&format!("{}-peer.pem", node.name));
        let (code, out, error) = restore(&backup, &certificate, node);
        assert_eq!(code, 0, "{out}\n{error}");
        let restored: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(restored["keys"], keys.len());
        assert_eq!(restored["revision"], saved.header.revision + 1_000_000_000);
        hashes.push(restored["hash"].clone());
        let data_dir = node.data_dir.to_str().unwrap();
        let (code, out, _) = run(&["offline", "check", "--data-dir", data_dir]);
        assert_eq!(code, 0, "{out}");
    }
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");

    new.check_states_every_second();
    new.start_all();
    new.wait_for_lease();
    let client = new.client().await;
    let options = GetOptions::new().with_all_keys();
    let mut stream = client.get_stream("", Some(options)).unwrap();
    let mut found = Vec::new();
    while let Some(kv) = stream.next().await {
        found.push(kv.unwrap());
    }
    assert!(found == keys, "other keys");
    // The lease is there, and so is what hangs on it.
    let kept = client.lease().time_to_live(granted.id, None).await.unwrap();
    assert_eq!(kept.key_count, 1);
    // Writes go on, above everything that the old cluster ever gave out.
    let written = client.put("new", "1", None).await.unwrap();
    assert!(written.header.revision > seen.header.revision);
    // Whoever watched the old cluster is told that what it waits for is not there.
    let options = WatchOptions::new().with_start_revision(seen.header.revision + 1);
    let watch = client.watch("", Some(options.with_prefix()));
    let error = watch.await.expect_err("that revision is not there");
    assert!(matches!(error.kind, ErrorKind::Compacted { .. }), "{error}");
    // And the members agree on what they have.
    eventually("a comparison of states that agreed", || {
        let agreed = "leasehold_storage_hash_checks_total{result=\"ok\"}";
        new.nodes
            .iter()
            .any(|node| node.metric(agreed) > 0.0)
            .then_some(())
    });
}

/// A26: a member that was restored with another revision than the others elects nobody with them, and all say so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_were_restored_with_different_revisions_do_not_bootstrap_together() {
    let old = Cluster::start(1);
    old.client().await.put("kept", "1", None).await.unwrap();
    let backup = old.folder.path().join("backup.lhs");
    let backup = backup.to_str().unwrap().to_owned();
    let saved = tokio::task::block_in_place(|| old.cli(&["snapshot", "save", &backup]));
    assert_eq!(saved.0, 0);

    let mut new = Cluster::prepare(3);
    let restored = |new: &Cluster, place: usize, bump: &str| {
        let node = &new.nodes[place];
        let certificate = new.pki.file(&format!("{}-peer.pem", node.name));
        let bump = ["--bump-revision", bump];
        let (code, out, error) = new.restore(node, &backup, &certificate, &bump);
        assert_eq!(code, 0, "{out}\n{error}");
    };
    for (place, bump) in ["1000", "1000", "2000"].into_iter().enumerate() {
        restored(&new, place, bump);
    }
    new.start_all();
    for (place, node) in new.nodes.iter().enumerate() {
        let others = if place == 2 { "n" } else { "n3 is missing" };
        let said = says(&new, node, &[&format!("the vote of {others}")]);
        assert!(
            said.doctor.contains("another --bump-revision"),
            "{}",
            said.doctor
        );
        let status = node.status().expect("it is up");
        assert_ne!(status["role"], "leader", "{status}");
    }

    // The way out that the warning names.
    new.nodes[2].stop();
    fs::remove_dir_all(&new.nodes[2].data_dir).unwrap();
    restored(&new, 2, "1000");
    new.nodes[2].start();
    new.wait_for_lease();
    let found = new.client().await.get("kept", None).await.unwrap();
    assert_eq!(found.kvs[0].value, "1");
}

/// A majority is gone for good: what one member has becomes a cluster of its own.
#[test]
fn a_survivor_becomes_a_cluster_of_its_own() {
    let mut old = Cluster::start(3);
    for number in 0..20 {
        let key = format!("k{number:02}");
        let put = ["put", &key, "value", "--exactly-once"];
        assert_eq!(old.cli(&put).0, 0);
    }
    let leader = old.wait_for_lease();
    for node in &mut old.nodes {
        node.kill();
    }
    let survivor = old.nodes[leader].data_dir.to_str().unwrap().to_owned();
    let before = listing(&old.nodes[leader].data_dir.join("log"));

    let mut new = Cluster::prepare(1);
    let new_dir = new.nodes[0].data_dir.to_str().unwrap().to_owned();
    let force = |certificate: &str, more: &[&str]| {
        let mut arguments = vec!["offline", "force-new-cluster", "--data-dir", &survivor];
        arguments.extend(["--new-data-dir", &new_dir, "--name", "n1"]);
        arguments.extend(["--node-cert", certificate]);
        arguments.extend(more);
        run(&arguments)
    };
    let certificate = new.pki.file("n1-peer.pem");
    let (code, _, error) = force(&certificate, &[]);
    assert_eq!(code, 1);
    assert!(
        error.contains("Type force to continue") && error.contains("nothing was changed"),
        "{error}"
    );
    let yes = "--yes-lose-what-others-had";
    let (code, _, error) = force(&old.pki.file("n1-peer.pem"), &[yes]);
    assert_eq!(code, 1);
    assert!(error.contains("an identity of its own"), "{error}");
    let (code, out, error) = force(&certificate, &[yes, "-o", "json"]);
    assert_eq!(code, 0, "{out}\n{error}");
    let made: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        made["keys"], 20,
        "what the state had not yet came from the log: {out}"
    );
    assert_eq!(listing(&old.nodes[leader].data_dir.join("log")), before);

    new.start_all();
    new.wait_for_lease();
    let (code, out, _) = new.cli(&["get", "--prefix", "k", "--count-only"]);
    assert_eq!((code, out.as_str()), (0, "20\n"));
    assert_eq!(new.cli(&["put", "k00", "new", "--exactly-once"]).0, 0);
}

/// What is damaged there, nobody else has: so it is left as it is, for whoever wants to look, and what can be
/// read of it becomes a cluster only if that is said.
#[test]
fn a_damaged_log_without_peers_is_left_as_it_is_and_taken_only_by_consent() {
    let mut old = Cluster::start(1);
    for number in 0..20 {
        let key = format!("k{number:02}");
        let put = ["put", &key, "value", "--exactly-once"];
        assert_eq!(old.cli(&put).0, 0);
    }
    assert_eq!(old.nodes[0].stop(), 0);
    let log = old.nodes[0].data_dir.join("log");
    crate::bad_input::flip_in_the_middle_of_the_log(&old.nodes[0].data_dir);
    let before = listing(&log);
    for _ in 0..2 {
        old.nodes[0].start();
        assert_ne!(old.nodes[0].wait_for_exit(), 0);
    }
    let said = old.nodes[0].log_text();
    assert!(
        said.contains("names no other member") && said.contains("nothing has been changed"),
        "{said}"
    );
    assert_eq!(listing(&log), before);

    let survivor = old.nodes[0].data_dir.to_str().unwrap().to_owned();
    let mut new = Cluster::prepare(1);
    let new_dir = new.nodes[0].data_dir.to_str().unwrap().to_owned();
    let certificate = new.pki.file("n1-peer.pem");
    let force = |more: &[&str]| {
        let mut arguments = vec!["offline", "force-new-cluster", "--data-dir", &survivor];
        arguments.extend(["--new-data-dir", &new_dir, "--name", "n1"]);
        arguments.extend(["--node-cert", &certificate, "--yes-lose-what-others-had"]);
        arguments.extend(more);
        run(&arguments)
    };
    let (code, _, error) = force(&[]);
    assert_eq!(code, 1);
    assert!(
        error.contains("the log is damaged") && error.contains("--yes-lose-what-is-damaged"),
        "{error}"
    );
    let (code, out, error) = force(&["--yes-lose-what-is-damaged"]);
    assert_eq!(code, 0, "{out}\n{error}");
    assert!(error.contains("warning: the log is damaged"), "{error}");
    assert_eq!(listing(&log), before);
    // The state had it all when the node was stopped.
    new.start_all();
    new.wait_for_lease();
    let (code, out, _) = new.cli(&["get", "--prefix", "k", "--count-only"]);
    assert_eq!((code, out.as_str()), (0, "20\n"));
}

/// Names and contents of a folder's files.
fn listing(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let mut files: Vec<_> = entries
        .map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    files
}

#[test]
fn a_node_writes_backups_by_itself_where_it_is_told_to() {
    let mut cluster = Cluster::prepare(1);
    let dir = cluster.folder.path().join("backups");
    cluster.write_configs(&format!(
        "[backup]\nschedule = \"1s\"\ndir = \"{}\"\nkeep = 2\n",
        dir.display()
    ));
    cluster.start_all();
    cluster.wait_for_lease();
    let newest = || {
        let files = fs::read_dir(&dir).ok()?.map(|entry| entry.unwrap().path());
        files
            .filter(|file| file.extension().is_some_and(|ending| ending == "lhs"))
            .max()
    };
    // The first write raises the revision of an empty store to 2. One that takes long may be in a
    // backup before it is acknowledged.
    for (key, revision) in [("a", 2), ("b", 3), ("c", 4)] {
        assert_eq!(cluster.cli(&["put", key, "1", "--exactly-once"]).0, 0);
        let ending = format!("-{revision:020}.lhs");
        eventually("a backup of the new revision", || {
            newest().filter(|file| file.to_string_lossy().ends_with(&ending))
        });
    }
    let file = newest().unwrap();
    let (keys, summary) = keys_of(&file);
    assert_eq!((keys.len(), summary.header.revision), (3, 4));
    eventually("the oldest to go", || {
        (fs::read_dir(&dir).unwrap().count() == 2).then_some(())
    });
    let node = &cluster.nodes[0];
    assert!(node.metric("leasehold_backup_last_success_timestamp_seconds") > 1e9);
    assert_eq!(node.metric("leasehold_backup_interval_seconds"), 1.0);
    assert_eq!(node.metric("leasehold_backup_failures_total"), 0.0);
    // A backup under way holds nobody up.
    assert_eq!(cluster.nodes[0].stop(), 0);
}

/// The answer to a request for a snapshot, after `HTTP/1.0 200`: HTTP/1.0, so that it comes in one
/// piece. While somebody is being elected, or others are given one, a node asks to come again.
fn begun(node: &Node) -> TcpStream {
    eventually("a snapshot that is given out", || {
        let mut stream = TcpStream::connect(node.admin).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = "POST /admin/v1/snapshot HTTP/1.0\r\nHost: localhost\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        match &status {
            b"HTTP/1.0 200" => Some(stream),
            b"HTTP/1.0 429" | b"HTTP/1.0 503" | b"HTTP/1.0 504" => None,
            other => panic!("{}: {}", node.name, String::from_utf8_lossy(other)),
        }
    })
}

/// A snapshot, to its end.
fn downloaded(node: &Node) -> Vec<u8> {
    let mut stream = begun(node);
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let ends = memmem::find(&answer, b"\r\n\r\n");
    let body = answer.split_off(ends.expect("a whole head") + 4);
    let head = String::from_utf8(answer).unwrap();
    assert!(head.contains("application/octet-stream"), "{head}");
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_streamed_over_http_to_who_is_on_the_machine() {
    let cluster = Cluster::start(3);
    let client = cluster.client().await;
    let mut revision = 0;
    // Many chunks.
    for number in 0..8_u8 {
        let mut value = vec![0; 500_000];
        fastrand::Rng::with_seed(number.into()).fill(&mut value);
        let put = client.put(format!("key/{number}"), value, None).await;
        revision = put.unwrap().header.revision;
    }
    for node in &cluster.nodes {
        // Twice what may be given out at a time: each is let go at its end.
        for _ in 0..4 {
            let file = cluster.folder.path().join("over-http.lhs");
            fs::write(&file, downloaded(node)).unwrap();
            let (keys, summary) = keys_of(&file);
            assert!(summary.header.revision >= revision, "{}", node.name);
            let ours = keys.iter().filter(|kv| kv.key.starts_with(b"key/")).count();
            assert_eq!(ours, 8, "{}", node.name);
        }
        // One that nobody wants to the end is let go, too.
        for _ in 0..3 {
            let mut stream = begun(node);
            stream.read_exact(&mut [0; 1000]).unwrap();
            drop(stream);
            // There is room for another one.
            drop(begun(node));
        }
    }
}
