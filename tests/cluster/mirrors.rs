//! Mirrors between two clusters: each revision of the source arrives once and whole, whatever becomes of who copies.

use std::process::{Child, Stdio};
use std::time::Duration;

use leasehold::api::{Error, ErrorKind, EventKind, Outcome, TxnOp, TxnRequest};
use leasehold::client::{
    Client, CopyReason, DeleteOptions, GetOptions, Mirror, MirrorEvent, MirrorOptions, WatchEvent,
    WatchOptions,
};
use rustix::process::Signal;

use crate::harness::{Cluster, PATIENCE, leasehold_command, send};

fn options() -> MirrorOptions {
    MirrorOptions::new()
        .with_prefix("a/")
        .with_destination_prefix("b/")
        .with_progress_key("progress")
}

/// The keys below a prefix, without it, and their values.
async fn below(client: &Client, prefix: &str) -> Vec<(String, String)> {
    let options = GetOptions::new().with_prefix();
    let found = client.get(prefix, Some(options)).await.unwrap().kvs;
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let pair = |kv: leasehold::api::KeyValue| (text(&kv.key[prefix.len()..]), text(&kv.value));
    found.into_iter().map(pair).collect()
}

async fn step(mirror: &mut Mirror) -> Result<MirrorEvent, Error> {
    tokio::time::timeout(PATIENCE, mirror.next()).await.unwrap()
}

/// Until everything up to this revision of the source is there.
async fn until(mirror: &mut Mirror, revision: i64) -> Vec<MirrorEvent> {
    let mut seen = Vec::new();
    loop {
        let event = step(mirror).await.unwrap();
        seen.push(event.clone());
        match event {
            MirrorEvent::Copied { revision: at, .. }
            | MirrorEvent::Following { revision: at }
            | MirrorEvent::Applied { revision: at, .. }
            | MirrorEvent::UpToDate { revision: at }
                if at >= revision =>
            {
                return seen;
            }
            _ => {}
        }
    }
}

async fn put(client: &Client, key: &str, value: &str) -> i64 {
    client
        .put(key, value.to_owned(), None)
        .await
        .unwrap()
        .header
        .revision
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefix_is_copied_with_what_is_gone_and_each_transaction_arrives_whole() {
    let (from, to) = (Cluster::start(1), Cluster::start(1));
    let (source, destination) = (from.client().await, to.client().await);
    put(&source, "a/same", "1").await;
    put(&source, "a/differs", "1").await;
    put(&source, "other", "1").await;
    let first = put(&source, "a/", "the prefix itself").await;
    let same = put(&destination, "b/same", "1").await;
    for key in ["b/differs", "b/gone", "bystander"] {
        put(&destination, key, "0").await;
    }
    let mut mirror = Mirror::new(&source, &destination, options());
    let seen = until(&mut mirror, first).await;
    let reason = CopyReason::New;
    assert_eq!(seen[0], MirrorEvent::CopyStarted { reason });
    let Some(MirrorEvent::Copied { counts, .. }) = seen.last() else {
        panic!("{seen:?}");
    };
    assert_eq!((counts.puts, counts.deletes, counts.unchanged), (2, 1, 1));
    assert_eq!(below(&destination, "b/").await, below(&source, "a/").await);
    let found = destination.get("b/same", None).await.unwrap();
    assert_eq!(found.kvs[0].mod_revision, same, "it was left alone");
    assert_eq!(
        destination.get("bystander", None).await.unwrap().count,
        Some(1)
    );
    assert_eq!(
        destination.get("b/other", None).await.unwrap().count,
        Some(0)
    );

    // As many changes as a transaction may have, then more than that in one revision.
    let puts = (0..128).map(|n| TxnOp::put(format!("a/many/{n:03}"), "x"));
    let whole = source
        .txn(TxnRequest::new().and_then(puts), None)
        .await
        .unwrap();
    until(&mut mirror, whole.header.revision).await;
    let many = GetOptions::new().with_prefix();
    let found = destination
        .get("b/many/", Some(many.clone()))
        .await
        .unwrap();
    let at = found.kvs[0].mod_revision;
    assert_eq!(
        (
            found.count,
            found.kvs.iter().all(|kv| kv.mod_revision == at)
        ),
        (Some(128), true)
    );
    for half in ["a/many/1", "a/many/2", "a/many/3"] {
        let puts = (0..100).map(|n| TxnOp::put(format!("{half}/{n}"), "y"));
        source
            .txn(TxnRequest::new().and_then(puts), None)
            .await
            .unwrap();
    }
    let all = DeleteOptions::new().with_prefix();
    let gone = source.delete("a/many/", Some(all)).await.unwrap();
    assert_eq!(gone.deleted, 428);
    let before = destination
        .get("bystander", None)
        .await
        .unwrap()
        .header
        .revision;
    until(&mut mirror, gone.header.revision).await;
    let after = destination.get("b/many/", Some(many)).await.unwrap();
    assert_eq!(
        (after.count, after.header.revision),
        (Some(0), before + 4),
        "one for each"
    );
    assert_eq!(below(&destination, "b/").await, below(&source, "a/").await);
}

/// Mirrors are given up at any time, and two run at once: every change is seen once, in its order.
/// Whether time ran out, with or without a word of what became of it.
fn is_over(error: &Error) -> bool {
    error.kind == ErrorKind::DeadlineExceeded || error.outcome == Outcome::Unknown
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_revision_arrives_once_whoever_is_given_up() {
    const ROUNDS: u64 = 300;
    let (mut from, mut to) = (Cluster::start(3), Cluster::start(3));
    let (source, destination) = (from.client().await, to.client().await);
    put(&source, "a/n", "0").await;
    let (source_of, destination_of) = (from.client().await, to.client().await);
    let writing = tokio::spawn(async move {
        for number in 1..=ROUNDS {
            while source_of
                .put("a/n", number.to_string(), None)
                .await
                .is_err()
            {}
        }
    });
    let mut random = fastrand::Rng::with_seed(7);
    let (mut fenced, mut given_up) = (0, 0);
    let mut mirrors = Vec::new();
    let last = ROUNDS.to_string();
    while below(&destination, "b/")
        .await
        .first()
        .is_none_or(|(_, value)| *value != last)
    {
        if mirrors.len() < 2 {
            mirrors.push(Mirror::new(&source, &destination_of, options()));
        }
        for mirror in &mut mirrors {
            for _ in 0..random.u32(0..6) {
                let patience = Duration::from_micros(random.u64(0..20_000));
                match tokio::time::timeout(patience, mirror.next()).await {
                    Ok(Ok(_)) => {}
                    Ok(Err(error)) => {
                        // Where one of the two has no leader, it goes on later; who is fenced does not.
                        let is_fenced = matches!(error.kind, ErrorKind::Fenced { .. });
                        assert!(
                            is_fenced || error.is_retryable() || is_over(&error),
                            "{error}"
                        );
                        fenced += u32::from(is_fenced);
                        break;
                    }
                    Err(_) => given_up += 1,
                }
            }
        }
        if random.u32(0..4) == 0 {
            mirrors.remove(0);
        }
        match random.u32(0..200) {
            0 | 1 => from.replace_leader(),
            2 | 3 => to.replace_leader(),
            _ => {}
        }
    }
    writing.await.unwrap();
    assert!(fenced > 0 && given_up > 0, "{fenced} {given_up}");
    let options = WatchOptions::new().with_start_revision(1);
    let mut watcher = destination.watch("b/n", Some(options)).await.unwrap();
    let mut told = Vec::new();
    while told.last() != Some(&ROUNDS) {
        let event = tokio::time::timeout(PATIENCE, watcher.next())
            .await
            .unwrap();
        if let WatchEvent::Events { events, .. } = event.unwrap().unwrap() {
            for event in events {
                assert_eq!(event.kind, EventKind::Put);
                let text = String::from_utf8(event.kv.value.to_vec()).unwrap();
                told.push(text.parse().unwrap());
            }
        }
    }
    // It begins with the copy, which is of one moment.
    assert!(
        told.windows(2).all(|pair| pair[1] == pair[0] + 1),
        "{told:?}"
    );
    eprintln!(
        "{} of {ROUNDS} told; {fenced} fenced, {given_up} given up",
        told.len()
    );
}

/// A source that lost everything, and has come further since than the copy is: its revisions are other changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_was_bootstrapped_again_is_copied_as_a_whole() {
    let (mut from, to) = (Cluster::prepare(3), Cluster::start(1));
    from.write_configs("[read_lease]\nenabled = true\n");
    from.start_and_settle();
    let (source, destination) = (from.client().await, to.client().await);
    put(&source, "a/x", "1").await;
    let last = put(&source, "a/gone", "1").await;
    let mut mirror = Mirror::new(&source, &destination, options());
    until(&mut mirror, last).await;
    drop((mirror, source));
    for node in &mut from.nodes {
        node.kill();
        std::fs::remove_dir_all(&node.data_dir).unwrap();
    }
    let leader = from.start_and_settle();
    let writer = from.client().await;
    while put(&writer, "a/x", "2").await <= last + 1 {}
    // Beside a node with a read lease a client may never meet the leader.
    for place in 1..=3 {
        let source = from.client_at(&[(leader + place) % 3]).await;
        let mut mirror = Mirror::new(&source, &destination, options());
        let begun = loop {
            match step(&mut mirror).await.unwrap() {
                MirrorEvent::Interrupted { .. } => {}
                event => break event,
            }
        };
        let reason = CopyReason::OtherHistory;
        match place {
            1 => assert_eq!(begun, MirrorEvent::CopyStarted { reason }),
            _ => assert!(matches!(begun, MirrorEvent::Following { .. }), "{begun:?}"),
        }
        let now = put(&writer, "a/x", &format!("of {place}")).await;
        until(&mut mirror, now).await;
        assert_eq!(below(&destination, "b/").await, below(&writer, "a/").await);
    }
}

/// Both are asked to go on, in whichever order: the one that began later does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_mirrors_that_run_the_one_that_began_later_goes_on() {
    let (from, to) = (Cluster::start(1), Cluster::start(1));
    let (source, destination) = (from.client().await, to.client().await);
    let first = put(&source, "a/x", "0").await;
    let mut older = Mirror::new(&source, &destination, options());
    until(&mut older, first).await;
    until(&mut older, first).await;
    for round in 0..5 {
        let mut newer = Mirror::new(&source, &destination, options());
        let event = step(&mut newer).await.unwrap();
        assert!(matches!(event, MirrorEvent::Following { .. }), "{event:?}");
        let last = put(&source, "a/x", &format!("{round}")).await;
        let fenced = async {
            loop {
                if let Err(error) = step(&mut older).await {
                    break error;
                }
            }
        };
        // The older one is first, and has the change to write.
        let (error, _) = tokio::join!(biased; fenced, until(&mut newer, last));
        assert!(matches!(error.kind, ErrorKind::Fenced { .. }), "{error}");
        // It does not begin again behind the back of the other.
        let error = step(&mut older).await.unwrap_err();
        assert!(matches!(error.kind, ErrorKind::Fenced { .. }), "{error}");
        assert_eq!(below(&destination, "b/").await, below(&source, "a/").await);
        older = newer;
    }
    // Nor does one that looks how far the destination is, as after every failure.
    let options = || options().with_progress_key("another");
    let mut older = Mirror::new(&source, &destination, options());
    until(&mut older, first).await;
    step(&mut Mirror::new(&source, &destination, options()))
        .await
        .unwrap();
    let error = step(&mut older).await.unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Fenced { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_compaction_everything_is_compared_and_what_is_gone_is_deleted() {
    let (from, to) = (Cluster::start(1), Cluster::start(1));
    let (source, destination) = (from.client().await, to.client().await);
    for key in ["a/kept", "a/changed", "a/gone"] {
        put(&source, key, "1").await;
    }
    let first = put(&source, "a/x", "1").await;
    let mut mirror = Mirror::new(&source, &destination, options());
    until(&mut mirror, first).await;
    drop(mirror);
    // Begun again, it goes on from there.
    let second = put(&source, "a/x", "2").await;
    let mut mirror = Mirror::new(&source, &destination, options());
    let event = step(&mut mirror).await.unwrap();
    assert!(matches!(event, MirrorEvent::Following { .. }), "{event:?}");
    until(&mut mirror, second).await;
    drop(mirror);
    let kept = destination.get("b/kept", None).await.unwrap().kvs;

    put(&source, "a/changed", "2").await;
    source.delete("a/gone", None).await.unwrap();
    let last = put(&source, "a/new", "1").await;
    source.compact(last, None).await.unwrap();
    let mut mirror = Mirror::new(&source, &destination, options());
    let reason = CopyReason::Compacted;
    assert_eq!(
        step(&mut mirror).await.unwrap(),
        MirrorEvent::CopyStarted { reason }
    );
    // Given up in the middle, it is begun again.
    let mut mirror = Mirror::new(&source, &destination, options());
    let reason = CopyReason::Unfinished;
    assert_eq!(
        step(&mut mirror).await.unwrap(),
        MirrorEvent::CopyStarted { reason }
    );
    let seen = until(&mut mirror, last).await;
    let Some(MirrorEvent::Copied { counts, .. }) = seen.last() else {
        panic!("{seen:?}");
    };
    assert_eq!((counts.puts, counts.deletes, counts.unchanged), (2, 1, 2));
    assert_eq!(below(&destination, "b/").await, below(&source, "a/").await);
    assert_eq!(destination.get("b/kept", None).await.unwrap().kvs, kept);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mirror_that_is_not_alone_or_not_welcome_says_so() {
    let (from, to) = (Cluster::start(1), Cluster::start(1));
    let (source, destination) = (from.client().await, to.client().await);
    let first = put(&source, "a/x", "1").await;
    let mut mirror = Mirror::new(&source, &destination, options());
    until(&mut mirror, first).await;
    step(&mut mirror).await.unwrap();
    let second = put(&source, "a/x", "2").await;
    let mut other = Mirror::new(&source, &destination, options());
    until(&mut other, second).await;
    let error = loop {
        match step(&mut mirror).await {
            Ok(_) => put(&source, "a/x", "3").await,
            Err(error) => break error,
        };
    };
    assert!(matches!(error.kind, ErrorKind::Fenced { .. }), "{error}");

    for other in [
        options().with_prefix("a/x"),
        options().with_destination_prefix("c/"),
        MirrorOptions::new()
            .with_prefix("a/")
            .with_progress_key("b/x"),
    ] {
        let mut mirror = Mirror::new(&source, &destination, other);
        let error = step(&mut mirror).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidArgument, "{error}");
    }
    // A key that has no name there, and one that is the progress.
    for (own, progress, prefix) in [("a/", "p", ""), ("a/q", "q", "")] {
        put(&source, own, "1").await;
        let options = options()
            .with_destination_prefix(prefix)
            .with_progress_key(progress);
        let mut mirror = Mirror::new(&source, &destination, options);
        let error = loop {
            if let Err(error) = step(&mut mirror).await {
                break error;
            }
        };
        assert_eq!(error.kind, ErrorKind::InvalidArgument, "{error}");
        source.delete(own, None).await.unwrap();
    }
    destination.close().await;
    let error = loop {
        if let Err(error) = step(&mut other).await {
            break error;
        }
        put(&source, "a/x", "4").await;
    };
    assert_eq!(error.kind, ErrorKind::ConnectionLost, "{error}");
}

/// Namespaces are a part of what is copied whereto.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mirrors_of_two_namespaces_are_two_and_none_copies_its_own_copies() {
    let (from, to) = (Cluster::start(1), Cluster::start(1));
    let (source, destination) = (from.client().await, to.client().await);
    let tenants = ["t1/", "t2/"].map(|tenant| source.with_namespace(tenant));
    for (tenant, value) in tenants.iter().zip(["1", "2"]) {
        put(tenant, "a/x", value).await;
    }
    let all = || MirrorOptions::new().with_prefix("a/");
    // Each goes on from a place of its own.
    for (tenant, own) in tenants.iter().zip(["b1/", "b2/"]) {
        let mut mirror = Mirror::new(tenant, &destination, all().with_destination_prefix(own));
        let reason = CopyReason::New;
        let begun = step(&mut mirror).await.unwrap();
        assert_eq!(begun, MirrorEvent::CopyStarted { reason });
        until(&mut mirror, 1).await;
        assert_eq!(below(&destination, own).await, below(tenant, "a/").await);
    }
    let first = destination.with_namespace("d1/");
    let mut mirror = Mirror::new(&tenants[0], &first, options());
    until(&mut mirror, 1).await;
    // One key for two sources, or for two destinations.
    let whole = destination.with_namespace("");
    for (tenant, client, key) in [(1, &first, "progress"), (0, &whole, "d1/progress")] {
        let options = options().with_progress_key(key);
        let mut mirror = Mirror::new(&tenants[tenant], client, options);
        let error = step(&mut mirror).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidArgument, "{error}");
    }

    // In one cluster.
    let tenant = &tenants[0];
    for (client, options, why) in [
        (&source, MirrorOptions::new(), "overlap"),
        (&source, all().with_destination_prefix("a/copy/"), "overlap"),
        (tenant, all().with_destination_prefix(""), "overlap"),
        (tenant, options().with_progress_key("a/p"), "lies below"),
    ] {
        let mut mirror = Mirror::new(client, client, options);
        let error = step(&mut mirror).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidArgument, "{error}");
        assert!(error.detail.contains(why), "{error}");
    }
    // The same prefix of two namespaces, and another prefix, are no overlap.
    for (client, options) in [(&tenants[1], all()), (tenant, options())] {
        let mut mirror = Mirror::new(tenant, client, options);
        until(&mut mirror, 1).await;
    }
    assert_eq!(below(&tenants[1], "a/").await, [("x".into(), "1".into())]);
    assert_eq!(below(tenant, "b/").await, [("x".into(), "1".into())]);
}

// ---- on the command line ----------------------------------------------------------------------

fn make_mirror(from: &Cluster, to: &Cluster, more: &[&str]) -> Child {
    let flags = to.flags();
    let value = |flag: &str| {
        let found = flags.iter().find_map(|word| word.strip_prefix(flag));
        found.unwrap().trim_start_matches('=').to_owned()
    };
    leasehold_command()
        .args(from.flags())
        .arg("make-mirror")
        .arg(value("--endpoints"))
        .args(["--dest-cacert", &value("--cacert")])
        .args(["--dest-cert", &value("--cert")])
        .args(["--dest-key", &value("--key")])
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn make_mirror_is_killed_and_goes_on_and_stops_when_it_is_told() {
    let (from, to) = (Cluster::start(1), Cluster::start(1));
    let (source, destination) = (from.client().await, to.client().await);
    let same = async |prefix: &'static str| {
        let began = std::time::Instant::now();
        while below(&destination, prefix).await != below(&source, "a/").await {
            assert!(began.elapsed() < PATIENCE, "they differ");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    put(&source, "a/x", "1").await;
    let mut mirror = make_mirror(&from, &to, &["--prefix", "a/"]);
    same("a/").await;
    put(&source, "a/x", "2").await;
    same("a/").await;
    mirror.kill().unwrap();
    mirror.wait().unwrap();
    put(&source, "a/y", "1").await;
    source.delete("a/x", None).await.unwrap();
    let mirror = make_mirror(&from, &to, &["--prefix", "a/"]);
    same("a/").await;
    send(&mirror, Signal::TERM);
    let ended = mirror.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(
        (ended.status.code(), ended.stdout.len()),
        (Some(0), 0),
        "{said}"
    );
    assert!(
        said.contains("following the source from revision"),
        "{said}"
    );
    assert!(said.contains("1 keys written, 1 deleted"), "{said}");

    let more = [
        "--prefix",
        "a/",
        "--dest-prefix",
        "c/",
        "--progress-key",
        "p",
    ];
    let mirror = make_mirror(&from, &to, &more);
    same("c/").await;
    send(&mirror, Signal::INT);
    let said = String::from_utf8(mirror.wait_with_output().unwrap().stderr).unwrap();
    assert!(
        said.contains("copying everything: nothing was mirrored before"),
        "{said}"
    );
    let mirror = make_mirror(&from, &to, &["--prefix", "a/", "--progress-key", "p"]);
    let ended = mirror.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(
        said.contains("is not the progress of this mirror"),
        "{said}"
    );

    let (code, _, said) = from.cli(&["make-mirror", "10.1.0.1:7400"]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("--dest-cacert"), "{said}");
}

/// A cluster that is not there yet may be waited for, but not after the wish to stop.
#[test]
fn make_mirror_stops_when_it_is_told_while_a_cluster_cannot_be_reached() {
    let cluster = Cluster::prepare(1);
    let silent = std::net::UdpSocket::bind(("127.0.0.1", 0)).unwrap();
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    let endpoint = silent.local_addr().unwrap().to_string();
    let flags = cluster.flags();
    let value = |flag: &str| {
        let found = flags.iter().find_map(|word| word.strip_prefix(flag));
        found.unwrap().to_owned()
    };
    let mirror = leasehold_command()
        .args(&flags[1..])
        .args(["--endpoints", &endpoint])
        .args(["make-mirror", &endpoint])
        .args(["--dest-cacert", &value("--cacert=")])
        .args(["--dest-cert", &value("--cert=")])
        .args(["--dest-key", &value("--key=")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    silent.recv_from(&mut [0; 2048]).unwrap();
    send(&mirror, Signal::TERM);
    let ended = mirror.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(0), "{said}");
}

/// The name of the source's context is no name of the destination.
#[test]
fn make_mirror_takes_its_source_from_a_context_and_its_destination_from_elsewhere() {
    let cluster = Cluster::prepare(1);
    let home = tempfile::tempdir().unwrap();
    let types = |words: &[&str]| {
        let mut command = leasehold_command();
        command.env("XDG_CONFIG_HOME", home.path()).args(words);
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), said)
    };
    let flags = cluster.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let set = types(&[&["context", "set", "blue"], &flags[..]].concat());
    assert_eq!(set.0, Some(0), "{}", set.1);
    let (code, said) = types(&["--context", "blue", "make-mirror", "--dest-dev", "nowhere"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("no development cluster called nowhere is running"),
        "{said}"
    );
}
