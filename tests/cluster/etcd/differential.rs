//! The same requests to etcd and to a node of ours: the answers are equal once ids and terms are masked,
//! in gRPC as messages, and in JSON to the letter.
//!
//! Programs are drawn from a seed, over few keys, so that ranges, revisions, comparisons and
//! compactions meet. `ETCD_PROGRAMS` runs more of them, `ETCD_SEED` others.

mod streams;

use std::fmt::Debug;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use bytes::Bytes;
use prost::Message;

use super::grpc::Channel;
use super::http::{Connection, masked as masked_text};
use super::json::Json;
use super::kv::{
    CompactionRequest, CompactionResponse, Compare, CompareUnion, DeleteRangeRequest,
    DeleteRangeResponse, PutRequest, PutResponse, RangeRequest, RangeResponse, RequestOp,
    RequestUnion, ResponseHeader, ResponseOp, ResponseUnion, TxnRequest, TxnResponse,
};
use super::{EtcdCluster, IN_THE_CLEAR, tool};
use crate::harness::{PATIENCE, eventually, free_port, left_out, setting};

const STEPS: u64 = 50;

/// A node that leads on though its disk is busy for a while: a program cannot go on after an answer that says
/// that nothing is known.
const PATIENT: &[(&str, &str)] = &[
    IN_THE_CLEAR,
    ("LEASEHOLD_LEADER_LEASE_DURATION", "3s"),
    ("LEASEHOLD_LEADER_LEASE_MAX_CLOCK_SKEW", "150ms"),
    ("LEASEHOLD_RAFT_STEP_DOWN_AFTER", "3200ms"),
    ("LEASEHOLD_RAFT_ELECTION_TIMEOUT_MIN", "3500ms"),
    ("LEASEHOLD_RAFT_ELECTION_TIMEOUT_MAX", "4s"),
];

/// An etcd of our own, gone with the test.
pub(crate) struct Etcd {
    process: Child,
    pub(crate) address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Etcd {
    pub(crate) fn start(program: &Path) -> Self {
        Self::start_in(program, tempfile::tempdir().unwrap())
    }

    /// With what the folder `data` in `folder` holds.
    pub(crate) fn start_in(program: &Path, folder: tempfile::TempDir) -> Self {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let (client, peer) = (address(free_port()), address(free_port()));
        let process = Command::new(program)
            .env_clear()
            .arg("--data-dir")
            .arg(folder.path().join("data"))
            .args(["--listen-client-urls", &format!("http://{client}")])
            .args(["--advertise-client-urls", &format!("http://{client}")])
            .args(["--listen-peer-urls", &format!("http://{peer}")])
            .args(["--initial-advertise-peer-urls", &format!("http://{peer}")])
            .args(["--initial-cluster", &format!("default=http://{peer}")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            process,
            address: client,
            _folder: folder,
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// etcd itself; none, and a loud remark, if it is not there and need not be.
pub(crate) fn etcd() -> Option<PathBuf> {
    let found = tool("etcd");
    if found.is_none() {
        assert!(
            std::env::var_os("LEASEHOLD_REQUIRE_ETCD").is_none(),
            "etcd is not on the path"
        );
        left_out("what etcd answers, beside what we do: needs `etcd`");
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_get_the_answers_that_etcd_gives() {
    compare_programs(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_in_json_get_the_answers_that_etcd_s_gateway_gives() {
    compare_programs(true).await;
}

/// An etcd and a node of ours, new both; none without etcd.
pub(crate) async fn pair() -> Option<(Pair, Etcd, EtcdCluster)> {
    let program = etcd()?;
    let ours = tokio::task::spawn_blocking(|| EtcdCluster::start(1, PATIENT));
    let ours = ours.await.unwrap();
    let etcd = Etcd::start(&program);
    let address = etcd.address;
    let waited = tokio::task::spawn_blocking(move || {
        eventually("etcd that listens", || {
            std::net::TcpStream::connect(address).ok().map(drop)
        });
    });
    waited.await.unwrap();
    let pair = Pair {
        etcd: Channel::open(etcd.address).await,
        ours: Channel::open(ours.ports[0]).await,
        in_json: None,
    };
    pair.wait_until_etcd_leads().await;
    Some((pair, etcd, ours))
}

async fn compare_programs(is_json: bool) {
    let Some((mut pair, etcd, ours)) = pair().await else {
        return;
    };
    pair.in_json = is_json.then(|| {
        let open = |address| Mutex::new(Connection::open(address));
        (open(etcd.address), open(ours.ports[0]))
    });
    let seed = setting("ETCD_SEED", 1);
    for number in 0..setting("ETCD_PROGRAMS", 20) {
        let mut draw = Draw::new(seed.wrapping_add(number));
        for step in 0..STEPS {
            let at = format!("program {} step {step}", seed.wrapping_add(number));
            pair.step(&mut draw, &at).await;
        }
    }
}

/// A connection to each.
pub(crate) struct Pair {
    pub(crate) etcd: Channel,
    pub(crate) ours: Channel,
    /// Connections for requests in JSON, if they are made so.
    in_json: Option<(Mutex<Connection>, Mutex<Connection>)>,
}

impl Pair {
    async fn wait_until_etcd_leads(&self) {
        let began = std::time::Instant::now();
        let read = RangeRequest {
            key: Bytes::from_static(b"k"),
            ..RangeRequest::default()
        };
        loop {
            let asked: Result<RangeResponse, _> = self.etcd.ask(RANGE, &read).await;
            match asked {
                Ok(_) => return,
                Err(error) => assert!(began.elapsed() < PATIENCE, "{error:?}"),
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    async fn step(&self, draw: &mut Draw, at: &str) {
        match draw.below(20) {
            0..6 => self.compare::<_, PutResponse>(PUT, &draw.put(), at).await,
            6..12 => {
                let range = draw.range();
                self.compare::<_, RangeResponse>(RANGE, &range, at).await;
            }
            12..14 => {
                let delete = draw.delete();
                self.compare::<_, DeleteRangeResponse>(DELETE, &delete, at)
                    .await;
            }
            14..19 => {
                let txn = draw.txn(0);
                self.compare::<_, TxnResponse>(TXN, &txn, at).await;
            }
            _ => self.compact(draw, at).await,
        }
    }

    /// Compacts to a revision near the current one, which both name.
    async fn compact(&self, draw: &mut Draw, at: &str) {
        let read = RangeRequest {
            key: Bytes::from_static(b"k"),
            ..RangeRequest::default()
        };
        let found: RangeResponse = self.ours.ask(RANGE, &read).await.unwrap();
        let current = found.header.unwrap().revision;
        let revision = current - 20 + draw.below(22);
        let compaction = CompactionRequest {
            revision: revision.max(1),
            physical: draw.one_in(2),
        };
        self.compare::<_, CompactionResponse>(COMPACT, &compaction, at)
            .await;
    }

    async fn compare<Q, A>(&self, path: &str, question: &Q, at: &str)
    where
        Q: Message + Json + Debug,
        A: Message + Default + Masked + PartialEq + Debug,
    {
        if let Some((etcd, ours)) = &self.in_json {
            let text = question.json(at.len() + question.encoded_len());
            let ask = |connection: &Mutex<Connection>| {
                let answer = connection.lock().unwrap().post(in_json(path), &text);
                (answer.status, masked_text(&answer.body))
            };
            assert_eq!(ask(ours), ask(etcd), "{at}: ours is left: {path} {text}");
            return;
        }
        self.compare_messages::<Q, A>(path, question, at).await;
    }

    /// The same, as messages in any case.
    async fn compare_messages<Q, A>(&self, path: &str, question: &Q, at: &str)
    where
        Q: Message + Debug,
        A: Message + Default + Masked + PartialEq + Debug,
    {
        let theirs = self.etcd.ask::<A>(path, question).await.map(A::masked);
        let ours = self.ours.ask::<A>(path, question).await.map(A::masked);
        assert_eq!(ours, theirs, "{at}: ours is left: {path} {question:?}");
    }
}

const RANGE: &str = "/etcdserverpb.KV/Range";
const PUT: &str = "/etcdserverpb.KV/Put";
const DELETE: &str = "/etcdserverpb.KV/DeleteRange";
const TXN: &str = "/etcdserverpb.KV/Txn";
const COMPACT: &str = "/etcdserverpb.KV/Compact";

/// The path of the gateway for one of gRPC.
fn in_json(path: &str) -> &'static str {
    match path {
        RANGE => "/v3/kv/range",
        PUT => "/v3/kv/put",
        DELETE => "/v3/kv/deleterange",
        TXN => "/v3/kv/txn",
        _ => "/v3/kv/compaction",
    }
}

/// Without what differs between any two clusters.
pub(crate) trait Masked {
    fn masked(self) -> Self;
}

pub(crate) fn masked(header: &mut Option<ResponseHeader>) {
    if let Some(header) = header {
        *header = ResponseHeader {
            revision: header.revision,
            ..ResponseHeader::default()
        };
    }
}

/// Answers of which only the header differs.
macro_rules! mask_headers {
    ($($Answer:ty),*) => {
        $(impl $crate::etcd::differential::Masked for $Answer {
            fn masked(mut self) -> Self {
                $crate::etcd::differential::masked(&mut self.header);
                self
            }
        })*
    };
}
pub(crate) use mask_headers;

mask_headers!(
    RangeResponse,
    PutResponse,
    DeleteRangeResponse,
    CompactionResponse
);

impl Masked for TxnResponse {
    fn masked(mut self) -> Self {
        masked(&mut self.header);
        self.responses = self.responses.into_iter().map(masked_op).collect();
        self
    }
}

fn masked_op(op: ResponseOp) -> ResponseOp {
    let response = op.response.map(|response| match response {
        ResponseUnion::ResponseRange(range) => ResponseUnion::ResponseRange(range.masked()),
        ResponseUnion::ResponsePut(put) => ResponseUnion::ResponsePut(put.masked()),
        ResponseUnion::ResponseDeleteRange(delete) => {
            ResponseUnion::ResponseDeleteRange(delete.masked())
        }
        ResponseUnion::ResponseTxn(txn) => ResponseUnion::ResponseTxn(txn.masked()),
    });
    ResponseOp { response }
}

/// Draws requests.
struct Draw {
    random: fastrand::Rng,
    /// Ranges in this transaction may name a revision. Its puts are without fault then: etcd names theirs
    /// first, wherever they are.
    has_revisions: bool,
}

impl Draw {
    fn new(seed: u64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            has_revisions: false,
        }
    }

    fn below(&mut self, end: i64) -> i64 {
        self.random.i64(0..end)
    }

    fn one_in(&mut self, count: i64) -> bool {
        self.below(count) == 0
    }

    fn key(&mut self) -> Bytes {
        if self.one_in(40) {
            return Bytes::new();
        }
        let keys: [&'static [u8]; 8] = [b"a", b"aa", b"b", b"bb", b"c", b"\0", b"d\xff", b"e"];
        Bytes::from_static(keys[self.random.usize(..keys.len())])
    }

    fn range_end(&mut self) -> Bytes {
        match self.below(4) {
            0 => Bytes::new(),
            1 => Bytes::from_static(b"\0"),
            _ => self.key(),
        }
    }

    fn value(&mut self) -> Bytes {
        let values: [&'static [u8]; 4] = [b"", b"x", b"y", b"zz"];
        Bytes::from_static(values[self.random.usize(..values.len())])
    }

    /// Mostly nothing, sometimes a small number, of either sign.
    fn bound(&mut self) -> i64 {
        match self.below(6) {
            0 => self.below(60) - 5,
            _ => 0,
        }
    }

    fn put(&mut self) -> PutRequest {
        let ignore_value = self.one_in(8);
        PutRequest {
            key: self.key(),
            value: match ignore_value && !self.one_in(4) {
                true => Bytes::new(),
                false => self.value(),
            },
            lease: match self.below(20) {
                0 => 77,
                1 => -1,
                _ => 0,
            },
            prev_kv: self.one_in(2),
            ignore_value,
            ignore_lease: self.one_in(8),
        }
    }

    fn range(&mut self) -> RangeRequest {
        RangeRequest {
            key: self.key(),
            range_end: self.range_end(),
            limit: self.bound().min(4),
            revision: self.bound(),
            sort_order: i32::try_from(self.below(3)).unwrap(),
            sort_target: i32::try_from(self.below(5)).unwrap(),
            serializable: self.one_in(3),
            keys_only: self.one_in(5),
            count_only: self.one_in(6),
            min_mod_revision: self.bound(),
            max_mod_revision: self.bound(),
            min_create_revision: self.bound(),
            max_create_revision: self.bound(),
        }
    }

    fn delete(&mut self) -> DeleteRangeRequest {
        DeleteRangeRequest {
            key: self.key(),
            range_end: self.range_end(),
            prev_kv: self.one_in(2),
        }
    }

    /// One that etcd compares with the puts beside it, as we always do: see docs/etcd.md.
    fn delete_beside_puts(&mut self) -> DeleteRangeRequest {
        let mut delete = self.delete();
        if delete.range_end.as_ref() == b"\0" {
            delete.range_end = Bytes::new();
        }
        delete
    }

    fn comparison(&mut self) -> Compare {
        let number = self.below(4);
        let target = i32::try_from(self.below(5)).unwrap();
        let given = match target {
            0 => CompareUnion::Version(number),
            1 => CompareUnion::CreateRevision(number * 10),
            2 => CompareUnion::ModRevision(number * 10),
            3 => CompareUnion::Value(self.value()),
            _ => CompareUnion::Lease(number / 3),
        };
        Compare {
            result: i32::try_from(self.below(4)).unwrap(),
            target,
            key: self.key(),
            target_union: (!self.one_in(8)).then_some(given),
            range_end: self.range_end(),
        }
    }

    fn txn(&mut self, depth: usize) -> TxnRequest {
        if depth == 0 {
            self.has_revisions = self.one_in(2);
        }
        let compare = (0..self.below(3)).map(|_| self.comparison()).collect();
        let success = (0..self.below(3)).map(|_| self.op(depth)).collect();
        let failure = (0..self.below(3)).map(|_| self.op(depth)).collect();
        TxnRequest {
            compare,
            success,
            failure,
        }
    }

    fn op(&mut self, depth: usize) -> RequestOp {
        let request = match self.below(11) {
            0..4 => {
                let range = self.range();
                // A negative revision is none here, and there only outside of transactions.
                let revision = match self.has_revisions {
                    true => range.revision.max(0),
                    false => 0,
                };
                RequestUnion::RequestRange(RangeRequest { revision, ..range })
            }
            4..8 => {
                let mut put = self.put();
                // Of two faults, etcd names another one in a transaction than outside of it.
                if put.ignore_value || self.has_revisions {
                    put.lease = 0;
                }
                if self.has_revisions {
                    (put.ignore_value, put.ignore_lease) = (false, false);
                }
                RequestUnion::RequestPut(put)
            }
            8 | 9 if depth == 0 => RequestUnion::RequestDeleteRange(self.delete_beside_puts()),
            _ if depth < 2 => RequestUnion::RequestTxn(self.txn(depth + 1)),
            _ => return RequestOp { request: None },
        };
        RequestOp {
            request: Some(request),
        }
    }
}
