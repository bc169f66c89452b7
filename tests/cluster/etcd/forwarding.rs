//! Writes that are taken to a leader which is killed meanwhile.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

use super::grpc::Channel;
use super::kv::{PutRequest, PutResponse, RangeRequest, RangeResponse};
use super::watches::started;
use crate::harness::{PATIENCE, say_left_out, setting};

const PUT: &str = "/etcdserverpb.KV/Put";
const RANGE: &str = "/etcdserverpb.KV/Range";
const WRITERS: usize = 8;

/// What a writer was told of its keys: the revision, or that it is not known.
type Told = BTreeMap<String, Result<i64, String>>;

/// Writes one key after the other, each once, until it is told to stop.
async fn write(channel: &Channel, writer: usize, is_over: &AtomicBool) -> Told {
    let mut told = Told::new();
    while !is_over.load(Ordering::Relaxed) {
        let key = format!("k/{writer}/{:06}", told.len());
        let put = PutRequest {
            key: Bytes::from(key.clone()),
            value: Bytes::from_static(b"v"),
            ..PutRequest::default()
        };
        let answer: Result<PutResponse, _> = channel.ask(PUT, &put).await;
        let answer = answer.map(|answer| answer.header.unwrap().revision);
        told.insert(
            key,
            answer.map_err(|(code, text)| {
                // No other code leaves open what became of it.
                assert_eq!(code, 14, "{text}");
                assert!(text.starts_with("etcdserver: request timed out"), "{text}");
                text
            }),
        );
    }
    told
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_is_killed_and_each_write_was_made_once_or_is_said_to_be_unknown() {
    let mut cluster = started(3).await;
    let mut told = Told::new();
    let mut unknown = 0;
    let kills = usize::try_from(setting("ETCD_KILLS", 3)).unwrap();
    // Whether a write is at the leader when that is killed is chance.
    for round in 0..4 * kills {
        if round >= kills && unknown > 0 {
            break;
        }
        let leader = tokio::task::block_in_place(|| cluster.cluster.wait_for_lease());
        let is_over = AtomicBool::new(false);
        let mut channels = Vec::new();
        for place in (0..3).filter(|place| *place != leader) {
            channels.push(Channel::open(cluster.ports[place]).await);
        }
        let mut writers = Vec::new();
        for writer in 0..WRITERS {
            let channel = &channels[writer % channels.len()];
            writers.push(write(channel, round * WRITERS + writer, &is_over));
        }
        let kill = async {
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
            tokio::task::block_in_place(|| {
                cluster.cluster.nodes[leader].kill();
                cluster.cluster.wait_for_lease();
                cluster.cluster.nodes[leader].start();
            });
            is_over.store(true, Ordering::Relaxed);
        };
        let (all, ()) = tokio::join!(join(writers), kill);
        for one in all {
            unknown += one.values().filter(|answer| answer.is_err()).count();
            told.extend(one);
        }
    }
    if unknown == 0 {
        say_left_out(
            "writes through the etcd port that lose their leader: none was under way there",
        );
    }
    tokio::task::block_in_place(|| cluster.cluster.wait_for_lease());
    let channel = Channel::open(cluster.ports[0]).await;
    let all = RangeRequest {
        key: Bytes::from_static(b"k/"),
        range_end: Bytes::from_static(b"k0"),
        ..RangeRequest::default()
    };
    let found: RangeResponse = channel.ask(RANGE, &all).await.unwrap();
    let mut found: BTreeMap<String, (i64, i64)> = found
        .kvs
        .iter()
        .map(|kv| {
            let key = String::from_utf8(kv.key.to_vec()).unwrap();
            (key, (kv.mod_revision, kv.version))
        })
        .collect();
    for (key, answer) in told {
        let made = found.remove(&key);
        match answer {
            Ok(revision) => assert_eq!(made, Some((revision, 1)), "{key}"),
            Err(text) => assert!(
                made.is_none_or(|(_, version)| version == 1),
                "{key}: {text}"
            ),
        }
    }
    assert!(found.is_empty(), "{found:?}");
}

/// Runs all of them beside each other.
async fn join(writers: Vec<impl Future<Output = Told>>) -> Vec<Told> {
    let mut running: Vec<_> = writers.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<Told>> = running.iter().map(|_| None).collect();
    let all = std::future::poll_fn(|cx| {
        for (one, done) in running.iter_mut().zip(&mut done) {
            if done.is_none()
                && let std::task::Poll::Ready(told) = one.as_mut().poll(cx)
            {
                *done = Some(told);
            }
        }
        match done.iter().all(Option::is_some) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    });
    tokio::time::timeout(PATIENCE, all).await.unwrap();
    done.into_iter().flatten().collect()
}
