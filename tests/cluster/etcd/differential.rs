//! The same requests to etcd and to a node of ours: the answers are equal once ids and terms are masked,
//! in gRPC as messages, and in JSON to the letter.
//!
//! Programs are drawn from a seed, over few keys, so that ranges, revisions, comparisons and
//! compactions meet. `ETCD_PROGRAMS` runs more of them, `ETCD_SEED` others. Each begins without keys, and
//! each step is drawn by itself: of a program with a difference, the steps it takes are found and told.
//! There are five kinds: of keys, here; with leases and watches ([`streams`]); over all other services
//! ([`services`]); with members that come and go ([`members`]); and of odd values in any of them ([`odd`]).

mod access;
mod calls;
mod members;
mod odd;
mod services;
mod streams;
pub(crate) mod texts;

use std::fmt::Debug;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use bytes::Bytes;
use prost::Message;

use super::grpc::Channel;
use super::http::{Connection, masked as masked_text};
use super::json::{Json, path_in_json};
use super::kv::{
    CompactionRequest, CompactionResponse, Compare, CompareUnion, DeleteRangeRequest,
    DeleteRangeResponse, PutRequest, PutResponse, RangeRequest, RangeResponse, RequestOp,
    RequestUnion, ResponseHeader, ResponseOp, ResponseUnion, TxnRequest, TxnResponse,
};
use super::{EtcdCluster, IN_THE_CLEAR, tool};
use crate::harness::{PATIENCE, eventually, free_port, left_out, say_left_out, setting};

/// Of a program of keys.
const STEPS: u64 = 50;

/// No more: what etcd sorts keeps the order of keys among its equals up to that.
const KEYS: [&[u8]; 6] = [b"a", b"aa", b"bb", b"c", b"\0", b"d\xff"];

/// One stall of the machine in so many programs is borne.
const STALLS_EACH: usize = 10;
/// And so many in one step of a program: if it happens there again and again, it is no stall.
const STALLS_OF_A_STEP: usize = 2;

/// In both forms the text of both for an outcome that is not known.
const TIMED_OUT: &str = "etcdserver: request timed out";

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
        Self::start_with(program, folder, "http", &[])
    }

    /// The same, with these arguments, for clients that speak `scheme`.
    pub(crate) fn start_with(
        program: &Path,
        folder: tempfile::TempDir,
        scheme: &str,
        arguments: &[String],
    ) -> Self {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let (client, peer) = (address(free_port()), address(free_port()));
        let process = Command::new(program)
            .env_clear()
            .arg("--data-dir")
            .arg(folder.path().join("data"))
            .args(["--listen-client-urls", &format!("{scheme}://{client}")])
            .args(["--advertise-client-urls", &format!("{scheme}://{client}")])
            .args(["--listen-peer-urls", &format!("http://{peer}")])
            .args(["--initial-advertise-peer-urls", &format!("http://{peer}")])
            .args(["--initial-cluster", &format!("default=http://{peer}")])
            // The cheapest hash that there is: nobody guesses these passwords.
            .args(["--bcrypt-cost", "4"])
            .args(arguments)
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
    compare_programs::<Keys>(false, 20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_in_json_get_the_answers_that_etcd_s_gateway_gives() {
    compare_programs::<Keys>(true, 20).await;
}

/// An etcd and a node of ours, new both; none without etcd.
pub(crate) async fn pair() -> Option<(Pair, Etcd, EtcdCluster)> {
    pair_with(alone).await
}

/// A node of ours, new.
fn alone() -> EtcdCluster {
    EtcdCluster::start(1, PATIENT)
}

/// The same, with the node of ours that this starts.
async fn pair_with(start: fn() -> EtcdCluster) -> Option<(Pair, Etcd, EtcdCluster)> {
    let program = etcd()?;
    let ours = tokio::task::spawn_blocking(start);
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
        addresses: [etcd.address, ours.ports[0]],
        in_json: None,
        asked: Mutex::default(),
    };
    pair.wait_until_etcd_leads().await;
    Some((pair, etcd, ours))
}

/// A kind of program.
trait Kind: Sized {
    /// How many steps a program has.
    const STEPS: u64;
    /// Programs in which the two once differed, and the steps it took.
    const FOUND: &'static [(u64, &'static [u64])];

    fn new(pair: Pair) -> Self;

    /// The node that is asked beside etcd.
    fn start() -> EtcdCluster {
        alone()
    }

    fn pair(&self) -> &Pair;

    /// Runs these steps of a program, whatever was before.
    async fn run(&mut self, program: u64, steps: &[u64]) -> Result<(), Ended>;

    /// After the last program: that there was something to compare.
    fn end(self) {}
}

/// Takes these steps of a program, each with what is drawn for it where the program has begun at this revision.
async fn run_steps(
    program: u64,
    steps: &[u64],
    begun: i64,
    mut take: impl AsyncFnMut(u64, &mut Draw) -> Result<(), Ended>,
) -> Result<(), Ended> {
    for step in steps {
        let mut draw = Draw::of_step(program, *step, begun);
        let compared = take(*step, &mut draw).await;
        compared.map_err(|ended| ended.at(&format!("program {program} step {step}")))?;
    }
    Ok(())
}

/// Runs as many programs of a kind as `ETCD_PROGRAMS` says, else `count`.
async fn compare_programs<K: Kind>(is_json: bool, count: u64) {
    let seed = setting("ETCD_SEED", 1);
    let all: Vec<u64> = (0..K::STEPS).collect();
    let drawn =
        (0..setting("ETCD_PROGRAMS", count)).map(|number| (seed.wrapping_add(number), &*all));
    let programs: Vec<(u64, &[u64])> = K::FOUND.iter().copied().chain(drawn).collect();
    let mut rest = programs.as_slice();
    let mut stalls = Stalls::default();
    loop {
        let Some((mut pair, _etcd, _ours)) = pair_with(K::start).await else {
            return;
        };
        if is_json {
            let open = |address| Mutex::new(Connection::open(address));
            pair.in_json = Some(pair.addresses.map(open));
        }
        let mut kind = K::new(pair);
        match run_all(&mut kind, &mut rest).await {
            Ok(()) => return kind.end(),
            // With new stores, because one of them may be a write ahead.
            Err(Ended::Unknown(why)) => {
                if let Err(why) = stalls.bear(why, programs.len() / STALLS_EACH + 1) {
                    panic!("{} programs are left, and {why}", rest.len());
                }
            }
            Err(Ended::Differs(difference)) => panic!("{difference}"),
        }
    }
}

/// Requests of which one of the two did not know whether it had carried them out.
#[derive(Default)]
struct Stalls(Vec<String>);

impl Stalls {
    /// Bears one more, and says so; else why not: there were too many, or always the same step, which is no stall
    /// of the machine.
    fn bear(&mut self, why: String, most: usize) -> Result<(), String> {
        let place = |why: &str| why.split(": ").next().unwrap_or_default().to_owned();
        let same = self.0.iter().filter(|it| place(it) == place(&why)).count();
        if self.0.len() >= most || same >= STALLS_OF_A_STEP {
            return Err(format!("requests time out again and again: {why}"));
        }
        say_left_out(&format!(
            "what etcd answers, beside what we do: both begin anew, since a request timed out: {why}"
        ));
        self.0.push(why);
        Ok(())
    }
}

/// Why a program ended before its last step.
enum Ended {
    /// How the two answers differ.
    Differs(String),
    /// One of the two does not know whether it has carried out a request, because the machine stood still:
    /// what follows cannot be compared.
    Unknown(String),
}

impl Ended {
    fn at(self, place: &str) -> Self {
        match self {
            Self::Differs(difference) => Self::Differs(format!("{place}: {difference}")),
            Self::Unknown(why) => Self::Unknown(format!("{place}: {why}")),
        }
    }
}

/// Runs programs one after the other, and leaves in `rest` those that were not run to their ends.
async fn run_all(kind: &mut impl Kind, rest: &mut &[(u64, &[u64])]) -> Result<(), Ended> {
    while let Some(((program, steps), after)) = rest.split_first() {
        match kind.run(*program, steps).await {
            Ok(()) => *rest = after,
            Err(Ended::Unknown(why)) => return Err(Ended::Unknown(why)),
            Err(Ended::Differs(difference)) => {
                let fewest = shrink(kind, *program, steps.to_vec(), difference).await;
                return Err(Ended::Differs(fewest));
            }
        }
    }
    Ok(())
}

/// The fewest steps of a program that still differ, as far as leaving out one after the other finds them.
async fn shrink(
    kind: &mut impl Kind,
    program: u64,
    mut steps: Vec<u64>,
    mut difference: String,
) -> String {
    let mut place = steps.len();
    let mut asked = kind.pair().asked();
    while place > 0 {
        place -= 1;
        let mut fewer = steps.clone();
        fewer.remove(place);
        match kind.run(program, &fewer).await {
            Ok(()) => {}
            Err(Ended::Differs(found)) => {
                (steps, difference) = (fewer, found);
                asked = kind.pair().asked();
            }
            Err(Ended::Unknown(_)) => break,
        }
    }
    format!("{difference}\nIt takes these steps: ({program}, &{steps:?}), which ask:\n{asked}")
}

/// A connection to each.
pub(crate) struct Pair {
    pub(crate) etcd: Channel,
    pub(crate) ours: Channel,
    /// Of etcd and of ours, as in all that there are two of.
    addresses: [SocketAddr; 2],
    /// Connections for requests in JSON, if they are made so.
    in_json: Option<[Mutex<Connection>; 2]>,
    /// What was asked since both were emptied.
    asked: Mutex<Vec<String>>,
}

impl Pair {
    async fn wait_until_etcd_leads(&self) {
        let began = std::time::Instant::now();
        loop {
            match revision(&self.etcd).await {
                Ok(_) => return,
                Err(error) => assert!(began.elapsed() < PATIENCE, "{error:?}"),
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    /// Deletes all keys of both, and brings both to one revision, which is returned: they are apart after a write
    /// that only one of them has carried out.
    async fn empty(&self) -> Result<i64, Ended> {
        self.asked.lock().unwrap().clear();
        let everything = DeleteRangeRequest {
            key: Bytes::from_static(b"\0"),
            range_end: Bytes::from_static(b"\0"),
            prev_kv: false,
        };
        for channel in [&self.etcd, &self.ours] {
            let emptied = channel.ask::<DeleteRangeResponse>(DELETE, &everything);
            done(emptied.await)?;
        }
        let (theirs, ours) = (self.their_current().await?, self.current().await?);
        if theirs == ours {
            return Ok(ours);
        }
        let (behind, most) = match theirs < ours {
            true => (&self.etcd, ours - theirs),
            false => (&self.ours, theirs - ours),
        };
        let put = PutRequest {
            key: Bytes::from_static(b"a"),
            ..PutRequest::default()
        };
        for channel in [&self.etcd, &self.ours] {
            done(channel.ask::<PutResponse>(PUT, &put).await)?;
        }
        for _ in 0..most {
            done(behind.ask::<PutResponse>(PUT, &put).await)?;
        }
        // And what was before is gone from both.
        let compaction = CompactionRequest {
            revision: ours.max(theirs) + 2,
            physical: false,
        };
        for channel in [&self.etcd, &self.ours] {
            done(
                channel
                    .ask::<DeleteRangeResponse>(DELETE, &everything)
                    .await,
            )?;
            done(
                channel
                    .ask::<CompactionResponse>(COMPACT, &compaction)
                    .await,
            )?;
        }
        self.current().await
    }

    /// The same, and takes away what was before.
    async fn empty_and_compact(&self) -> Result<i64, Ended> {
        let revision = self.empty().await?;
        let compaction = CompactionRequest {
            revision,
            physical: true,
        };
        for channel in [&self.etcd, &self.ours] {
            let compacted = channel.ask::<CompactionResponse>(COMPACT, &compaction);
            match compacted.await {
                // It may be so already.
                Err((_, text)) if text.contains("has been compacted") => {}
                compacted => {
                    done(compacted)?;
                }
            }
        }
        Ok(revision)
    }

    fn asked(&self) -> String {
        self.asked.lock().unwrap().join("\n")
    }

    /// The current revision, at which both are.
    async fn current(&self) -> Result<i64, Ended> {
        done(revision(&self.ours).await)
    }

    async fn their_current(&self) -> Result<i64, Ended> {
        done(revision(&self.etcd).await)
    }

    async fn differ<Q, A>(&self, path: &str, question: &Q) -> Result<(), Ended>
    where
        Q: Message + Json + Debug,
        A: Message + Default + Masked + PartialEq + Debug,
    {
        let nobody = [None, None];
        let asked = self.differ_in_names::<Q, A>(path, [question, question], nobody);
        asked.await.map(drop)
    }

    /// Whether the two answers differ, to questions that name what each has, by whoever has these tokens. Else, the
    /// code of both.
    async fn differ_in_names<Q, A>(
        &self,
        path: &str,
        [theirs, ours]: [&Q; 2],
        tokens: [Option<&str>; 2],
    ) -> Result<i32, Ended>
    where
        Q: Message + Json + Debug,
        A: Message + Default + Masked + PartialEq + Debug,
    {
        let asked = format!("{path} {ours:?}");
        self.asked.lock().unwrap().push(asked);
        if let Some([etcd, own]) = &self.in_json {
            let path_in_json = path_in_json(path);
            for (connection, question, token) in [(etcd, theirs, tokens[0]), (own, ours, tokens[1])]
            {
                let text = question.json(question.encoded_len());
                let header = token.map(|token| format!("Authorization: {token}\r\n"));
                let header = header.as_deref().unwrap_or_default();
                let mut connection = connection.lock().unwrap();
                connection.ask("POST", &path_in_json, header, text.as_bytes());
            }
            let [theirs, answer] = [etcd, own].map(|connection| {
                let answer = connection.lock().unwrap().answer();
                (answer.status, A::masked_text(&answer.body))
            });
            same(&answer, &theirs, path, ours)?;
            return Ok(code(&answer.1));
        }
        let headers = tokens.map(|token| token.map(|token| [("token", token)]));
        let [etcd, own] = headers.each_ref().map(|token| match token {
            Some(token) => &token[..],
            None => &[],
        });
        // Neither waits for the other.
        let (theirs, answer) = tokio::join!(
            self.etcd.ask_with::<A>(path, theirs, etcd),
            self.ours.ask_with::<A>(path, ours, own),
        );
        let (theirs, answer) = (theirs.map(A::masked), answer.map(A::masked));
        same(&answer, &theirs, path, ours)?;
        Ok(answer.map_or_else(|(code, _)| code, |_| 0))
    }
}

/// The current revision of one of the two.
async fn revision(channel: &Channel) -> Result<i64, (i32, String)> {
    let read = RangeRequest {
        key: Bytes::from_static(b"k"),
        ..RangeRequest::default()
    };
    let found: RangeResponse = channel.ask(RANGE, &read).await?;
    Ok(found.header.unwrap().revision)
}

/// What goes well unless the machine stands still.
fn done<A>(answer: Result<A, (i32, String)>) -> Result<A, Ended> {
    answer.map_err(|(code, text)| match text.contains(TIMED_OUT) {
        true => Ended::Unknown(text),
        false => panic!("{code} {text}"),
    })
}

/// The code in an answer of the gateway, 0 if it went well.
fn code(text: &str) -> i32 {
    let rest = text.split_once("\"code\":").map_or("", |(_, rest)| rest);
    let digits = rest.split(|letter: char| !letter.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

fn same<A: PartialEq + Debug>(
    ours: &A,
    theirs: &A,
    path: &str,
    question: &impl Debug,
) -> Result<(), Ended> {
    let (own, their) = (format!("{ours:?}"), format!("{theirs:?}"));
    let told = || format!("{path} {question:?}\nours: {own}\netcd: {their}");
    if own.contains(TIMED_OUT) || their.contains(TIMED_OUT) {
        return Err(Ended::Unknown(told()));
    }
    match ours == theirs {
        true => Ok(()),
        false => Err(Ended::Differs(told())),
    }
}

/// Programs of ranges, writes, transactions and compactions.
struct Keys {
    pair: Pair,
}

impl Kind for Keys {
    const STEPS: u64 = STEPS;
    const FOUND: &'static [(u64, &'static [u64])] = &[
        // A limit without an order was applied after the sort.
        (80, &[9, 11, 31, 35, 43, 48]),
    ];

    fn new(pair: Pair) -> Self {
        Self { pair }
    }

    fn pair(&self) -> &Pair {
        &self.pair
    }

    async fn run(&mut self, program: u64, steps: &[u64]) -> Result<(), Ended> {
        let begun = self.pair.empty().await?;
        let step = async |_, draw: &mut Draw| self.step(draw).await;
        run_steps(program, steps, begun, step).await
    }
}

impl Keys {
    async fn step(&self, draw: &mut Draw) -> Result<(), Ended> {
        match draw.below(20) {
            0..6 => self.pair.differ::<_, PutResponse>(PUT, &draw.put()).await,
            6..12 => {
                self.pair
                    .differ::<_, RangeResponse>(RANGE, &draw.range())
                    .await
            }
            12 => {
                let delete = draw.delete();
                self.pair
                    .differ::<_, DeleteRangeResponse>(DELETE, &delete)
                    .await
            }
            13..19 => self.pair.differ::<_, TxnResponse>(TXN, &draw.txn(0)).await,
            _ => {
                let revision = self.pair.current().await? - 20 + draw.below(22);
                let compaction = CompactionRequest {
                    revision: revision.max(1),
                    physical: draw.one_in(2),
                };
                self.pair
                    .differ::<_, CompactionResponse>(COMPACT, &compaction)
                    .await
            }
        }
    }
}

const RANGE: &str = "/etcdserverpb.KV/Range";
const PUT: &str = "/etcdserverpb.KV/Put";
const DELETE: &str = "/etcdserverpb.KV/DeleteRange";
const TXN: &str = "/etcdserverpb.KV/Txn";
const COMPACT: &str = "/etcdserverpb.KV/Compact";

/// Without what differs between any two clusters.
pub(crate) trait Masked {
    fn masked(self) -> Self;

    /// The same of its text in JSON.
    fn masked_text(text: &str) -> String {
        masked_text(text)
    }
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
    /// The revision at which the program began: most that are named are near it.
    begun: i64,
}

impl Draw {
    fn new(seed: u64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            has_revisions: false,
            begun: 0,
        }
    }

    /// Of one step alone, whatever the others of its program are.
    fn of_step(program: u64, step: u64, begun: i64) -> Self {
        Self {
            begun,
            ..Self::new(program.wrapping_mul(STEPS).wrapping_add(step))
        }
    }

    fn below(&mut self, end: i64) -> i64 {
        self.random.i64(0..end)
    }

    fn one_in(&mut self, count: i64) -> bool {
        self.below(count) == 0
    }

    /// One of those, seldom none.
    fn key(&mut self) -> Bytes {
        if self.one_in(40) {
            return Bytes::new();
        }
        Bytes::from_static(KEYS[self.random.usize(..KEYS.len())])
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

    /// Mostly none, sometimes one near those of this program, sometimes a small number of either sign.
    fn revision(&mut self) -> i64 {
        match self.below(12) {
            0 => self.below(60) - 5,
            1 => self.begun - 5 + self.below(60),
            _ => 0,
        }
    }

    fn limit(&mut self) -> i64 {
        match self.below(2) {
            0 => self.below(7) - 2,
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
            limit: self.limit(),
            revision: self.revision(),
            sort_order: i32::try_from(self.below(3)).unwrap(),
            sort_target: i32::try_from(self.below(5)).unwrap(),
            serializable: self.one_in(3),
            keys_only: self.one_in(5),
            count_only: self.one_in(6),
            min_mod_revision: self.revision(),
            max_mod_revision: self.revision(),
            min_create_revision: self.revision(),
            max_create_revision: self.revision(),
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
            1 => CompareUnion::CreateRevision(self.revision()),
            2 => CompareUnion::ModRevision(self.revision()),
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
