//! Data directories as releases left them, opened by the program as it is now; and those of releases
//! to come, which it must refuse by number and name, and leave as they are.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::api::{Compare, CompareOp, ErrorKind, TxnOp, TxnRequest};
use leasehold::client::{Client, GetOptions, LeaseGrantOptions, PutOptions};
use leasehold::kv;
use leasehold::server::disk::store::{StateStore, StoreOptions};
use leasehold::types::LogId;

use crate::harness::{Cluster, Pki, must};

/// Whose every recording is: data is opened by a node of its own cluster alone.
const CLUSTER: &str = "6c656173-6568-4f6c-8400-000000000001";
const LEASE: i64 = 77;
const HOUR: Duration = Duration::from_secs(3600);

/// A cluster of one, of the recordings, that has not been started.
fn alone() -> Cluster {
    let mut cluster = Cluster::prepare(1);
    let path = cluster.pki.path.clone();
    fs::remove_dir_all(&path).unwrap();
    let out = path.to_str().unwrap();
    must(&["cert", "init", "--out", out, "--cluster-id", CLUSTER]);
    cluster.pki = Pki { path };
    cluster.pki.issue("--client", "tester", &[]);
    cluster.pki.issue("--node", "n1", &[]);
    cluster
}

/// Writes what a recording holds. Every revision follows from the order.
async fn write_all(client: &Client) {
    for value in ["1", "2", "3"] {
        client.put("counter", value, None).await.unwrap();
    }
    client.put("gone", "x", None).await.unwrap();
    client.delete("gone", None).await.unwrap();
    let granted = LeaseGrantOptions::new()
        .with_id(LEASE)
        .with_name("job")
        .with_owner("host-7");
    client.lease().grant(HOUR, Some(granted)).await.unwrap();
    let held = PutOptions::new().with_lease(LEASE);
    client.put("held", "by a lease", Some(held)).await.unwrap();
    client.put(b"\x00\xff", large(), None).await.unwrap();
    let txn = TxnRequest::new()
        .when([Compare::version("counter", CompareOp::Equal, 3)])
        .and_then([TxnOp::put("a", "1"), TxnOp::put("b", "2")]);
    assert!(client.txn(txn, None).await.unwrap().succeeded);
    client.compact(3, None).await.unwrap();
    client.put("last", "", None).await.unwrap();
}

/// A value that no compression makes much smaller.
fn large() -> Vec<u8> {
    let mut state = 1_u32;
    let draw = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    std::iter::repeat_with(draw).take(3_000).collect()
}

/// Demands everything that [`write_all`] wrote.
async fn read_all(client: &Client) {
    let all = client.get("", Some(GetOptions::new().with_all_keys()));
    let all = all.await.unwrap();
    assert_eq!(all.header.revision, 10);
    let found: Vec<_> = all
        .kvs
        .iter()
        .map(|kv| {
            let revisions = (kv.create_revision, kv.mod_revision, kv.version);
            (kv.key.to_vec(), revisions, kv.lease)
        })
        .collect();
    let key = |text: &str| text.as_bytes().to_vec();
    assert_eq!(
        found,
        [
            (b"\x00\xff".to_vec(), (8, 8, 1), 0),
            (key("a"), (9, 9, 1), 0),
            (key("b"), (9, 9, 1), 0),
            (key("counter"), (2, 4, 3), 0),
            (key("held"), (7, 7, 1), LEASE),
            (key("last"), (10, 10, 1), 0),
        ]
    );
    let values: Vec<_> = all.kvs.iter().map(|kv| kv.value.to_vec()).collect();
    let expected = [
        large(),
        key("1"),
        key("2"),
        key("3"),
        key("by a lease"),
        Vec::new(),
    ];
    assert_eq!(values, expected);
    // History, from where it was compacted on.
    let at = |revision| Some(GetOptions::new().with_revision(revision));
    let past = client.get("counter", at(3)).await.unwrap();
    assert_eq!(past.kvs[0].value, "2");
    let past = client.get("gone", at(5)).await.unwrap();
    assert_eq!(past.kvs[0].value, "x");
    let compacted = client.get("counter", at(2)).await.unwrap_err();
    assert!(
        matches!(compacted.kind, ErrorKind::Compacted { .. }),
        "{compacted}"
    );
    let leases = client.lease().leases(None).await.unwrap();
    assert_eq!(leases.len(), 1);
    let lease = client.lease().time_to_live(LEASE, None).await.unwrap();
    assert_eq!(
        (lease.name.as_str(), lease.owner.as_str()),
        ("job", "host-7")
    );
    assert_eq!((lease.granted_ttl_ms, lease.key_count), (3_600_000, 1));
}

fn recording(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded");
    folder.join(format!("format-1-{name}.dir"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_first_format_left_is_read_whole_and_written_on() {
    for (name, is_clean) in [("clean", true), ("killed", false)] {
        if std::env::var_os("UPDATE_RECORDED").is_some() {
            let mut cluster = alone();
            cluster.start_and_settle();
            let client = cluster.client().await;
            write_all(&client).await;
            read_all(&client).await;
            client.close().await;
            match is_clean {
                true => assert_eq!(cluster.nodes[0].stop(), 0),
                false => cluster.nodes[0].kill(),
            }
            fs::write(recording(name), pack(&cluster.nodes[0].data_dir)).unwrap();
        }
        let bytes = fs::read(recording(name)).unwrap();
        assert!(
            bytes.len() < 200 << 10,
            "{} bytes are too many",
            bytes.len()
        );
        let mut cluster = alone();
        unpack(&bytes, &cluster.nodes[0].data_dir);
        cluster.start_and_settle();
        let client = cluster.client().await;
        read_all(&client).await;
        // A disk that is slow is told of, too, and says nothing of what was recorded.
        let log = cluster.nodes[0].log_text();
        let (of_the_start, _) = log.split_once(" started; ").expect("it started");
        let is_told = |line: &&str| line.contains("WARN") || line.contains("ERROR");
        let told = of_the_start.lines().filter(is_told);
        let told: Vec<&str> = told.filter(|line| !line.contains("log disk")).collect();
        assert!(told.is_empty(), "{told:#?}");
        // It goes on from there, and so does the next start.
        let put = client.put("counter", "4", None).await.unwrap();
        assert_eq!(put.header.revision, 11);
        client.close().await;
        assert_eq!(cluster.nodes[0].stop(), 0);
        cluster.start_and_settle();
        let client = cluster.client().await;
        assert_eq!(client.get("counter", None).await.unwrap().kvs[0].version, 4);
        client.close().await;
    }
}

#[test]
fn what_a_later_release_left_is_refused_by_number_and_stays_as_it_is() {
    type Change = fn(&Path);
    // What the cluster has agreed on stands in the state, which is looked at after the log is opened.
    let cases: [(&str, bool, Change, &str); 3] = [
        (
            "the data directory",
            true,
            |folder| replace(&folder.join("identity"), "format: 1\n", "format: 2\n"),
            "has format 2, which this release cannot read; run the newer release of leasehold that wrote it",
        ),
        (
            "the state",
            true,
            |folder| {
                let format = folder.join("state/format");
                let newer = "leasehold state 3\nchecksum: 4818654a\n";
                replace(&format, "leasehold state 2\n", newer);
            },
            "has state format 3, but this release reads format 2: start the newer release that wrote it",
        ),
        (
            "the cluster",
            false,
            |folder| {
                let mut store =
                    StateStore::open(&folder.join("state"), &StoreOptions::default()).unwrap();
                let applied = store.reader().snapshot().unwrap().applied();
                let raised = kv::Command::RaiseVersion { version: 2 };
                let next = LogId::new(applied.index.next(), applied.term);
                store.apply_batch(&[(next, Some(raised.encode()))]).unwrap();
                store.close().unwrap();
            },
            "belongs to a cluster of version 2, but this release supports 1: start the newer release \
             that wrote it; downgrading is not supported",
        ),
    ];
    let bytes = fs::read(recording("clean")).unwrap();
    for (what, stays, change, sentence) in cases {
        let mut cluster = alone();
        let node = &mut cluster.nodes[0];
        unpack(&bytes, &node.data_dir);
        change(&node.data_dir);
        let mut before = contents(&node.data_dir);
        node.start();
        assert_eq!(node.wait_for_exit(), 1, "{what}");
        let log = node.log_text();
        assert!(log.contains(sentence), "{what}: {log}");
        let mut after = contents(&node.data_dir);
        // It is held while it is looked at.
        before.remove(Path::new("lock"));
        after.remove(Path::new("lock"));
        assert!(!stays || before == after, "{what}: a file was changed");
    }
}

fn replace(file: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains(from), "{} says {text:?}", file.display());
    fs::write(file, text.replace(from, to)).unwrap();
}

/// Every file below `folder`, by its path from there.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false => {
                    let path = entry.path().strip_prefix(folder).unwrap().to_owned();
                    found.insert(path, fs::read(entry.path()).unwrap());
                }
            }
        }
    }
    found
}

const BLOCK: usize = 512;

/// A directory as bytes, without its zeros.
fn pack(folder: &Path) -> Vec<u8> {
    let mut out = Vec::new();
    for (path, bytes) in contents(folder) {
        let mut extents: Vec<(usize, usize)> = Vec::new();
        for (number, block) in bytes.chunks(BLOCK).enumerate() {
            if block.iter().all(|byte| *byte == 0) {
                continue;
            }
            let at = number * BLOCK;
            match extents.last_mut() {
                Some((begin, length)) if *begin + *length == at => *length += block.len(),
                _ => extents.push((at, block.len())),
            }
        }
        let path = path.to_str().unwrap();
        writeln!(out, "file {} {} {path}", bytes.len(), extents.len()).unwrap();
        for (at, length) in extents {
            writeln!(out, "at {at} {length}").unwrap();
            out.extend(&bytes[at..at + length]);
            out.push(b'\n');
        }
    }
    out.extend(b"end\n");
    out
}

/// Makes the directory again that [`pack`] was given.
fn unpack(bytes: &[u8], folder: &Path) {
    let mut rest = bytes;
    let take_line = |rest: &mut &[u8]| -> String {
        let end = rest.iter().position(|byte| *byte == b'\n').unwrap();
        let text = String::from_utf8(rest[..end].to_vec()).unwrap();
        *rest = &rest[end + 1..];
        text
    };
    loop {
        let head = take_line(&mut rest);
        if head == "end" {
            assert!(rest.is_empty());
            return;
        }
        let words: Vec<&str> = head.splitn(4, ' ').collect();
        let [_, length, extents, path] = words[..] else {
            panic!("no file: {head}");
        };
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let file = fs::File::create(&path).unwrap();
        file.set_len(length.parse().unwrap()).unwrap();
        for _ in 0..extents.parse::<usize>().unwrap() {
            let head = take_line(&mut rest);
            let words: Vec<&str> = head.split(' ').collect();
            let [_, at, length] = words[..] else {
                panic!("no extent: {head}");
            };
            let length: usize = length.parse().unwrap();
            file.write_all_at(&rest[..length], at.parse().unwrap())
                .unwrap();
            rest = &rest[length + 1..];
        }
    }
}
