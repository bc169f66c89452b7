use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use std::time::Duration;

use bytes::Bytes;
use clap::Parser;

use super::kv::{confirm_all, get, txn as carry_out};
use super::request::get_request;
use super::*;
use crate::api;
use crate::api::{
    CompactionRequest, Compare, CompareOp, DeleteRangeResponse, ErrorKind, HistoryStatus, KeyRange,
    KeyValue, LeaseRef, LeaseTarget, Member, MemberInfo, MembersResponse, Membership, PutRequest,
    PutResponse, RangePage, RangeRequest, RangeResponse, Request, Response, ResponseBody,
    ResponseHeader, SortOrder, SortTarget, StatusResponse, TxnOp, TxnOpResponse, TxnRequest,
    TxnResponse,
};
use crate::cli::arguments::{Cli, GetArgs};
use crate::cli::connection::Login;
use crate::cli::failure::Exit;
use crate::types::NodeId;

/// So many turns others have while one is silent.
const SILENT_TURNS: usize = 100;

/// So many members the cluster has.
const MEMBERS: usize = 3;

fn members() -> impl Iterator<Item = MemberInfo> {
    (1..=MEMBERS as u64).map(|number| MemberInfo {
        id: NodeId(0xa0 + number),
        name: format!("n{number}"),
        peer_address: String::new(),
        client_address: format!("h{number}:7400"),
    })
}

/// A cluster of three that keeps pairs in a map and remembers what it was asked.
#[derive(Default)]
struct Cluster {
    pairs: RefCell<BTreeMap<Bytes, Bytes>>,
    asked: RefCell<Vec<(Request, api::Consistency)>>,
    leader: RefCell<u64>,
    unreachable: Option<&'static str>,
    /// That one is silent until so many questions for a status were asked.
    silent_until: usize,
    statuses: Cell<usize>,
    refuses: Option<api::Error>,
    /// How far compacted history is removed; goes on with every question.
    removed_through: Cell<i64>,
    /// What history is compacted to.
    compacted: i64,
    /// So many keys fit a reply; 0 for any number.
    reply_keys_max: usize,
    /// The leases that have a name.
    named: BTreeMap<String, LeaseRef>,
    /// So many of its members, the last ones, do not vote.
    learners: usize,
}

impl Cluster {
    fn header(&self) -> ResponseHeader {
        let leader = NodeId(0xa1 + *self.leader.borrow());
        ResponseHeader {
            member_id: leader,
            leader_id: Some(leader),
            revision: 7,
            ..ResponseHeader::default()
        }
    }

    fn matching(&self, key: &Bytes, range: &KeyRange) -> Vec<KeyValue> {
        let within = |candidate: &Bytes| match range {
            KeyRange::Single => candidate == key,
            KeyRange::Prefix => candidate.starts_with(key),
            KeyRange::Until(end) => candidate >= key && candidate < end,
            KeyRange::From => candidate >= key,
        };
        let pairs = self.pairs.borrow();
        let found = pairs.iter().filter(|(key, _)| within(key));
        let kv = |(key, value): (&Bytes, &Bytes)| KeyValue {
            key: key.clone(),
            value: value.clone(),
            ..KeyValue::default()
        };
        found.map(kv).collect()
    }
}

impl Connection for Cluster {
    async fn call(
        &self,
        request: Request,
        consistency: api::Consistency,
    ) -> Result<Response, api::Error> {
        self.asked.borrow_mut().push((request.clone(), consistency));
        if let Some(error) = &self.refuses {
            return Err(error.clone());
        }
        let header = self.header();
        let body = match request {
            Request::Put(put) => {
                let old = self.matching(&put.key, &KeyRange::Single).pop();
                self.pairs.borrow_mut().insert(put.key, put.value);
                ResponseBody::Put(PutResponse {
                    prev_kv: old.filter(|_| put.prev_kv),
                })
            }
            Request::Range(range) => {
                let mut kvs = self.matching(&range.key, &range.range);
                let count = kvs.len() as u64;
                if range.limit > 0 {
                    kvs.truncate(range.limit as usize);
                }
                if self.reply_keys_max > 0 {
                    kvs.truncate(self.reply_keys_max);
                }
                ResponseBody::Range(RangeResponse {
                    more: (kvs.len() as u64) < count,
                    kvs,
                    count,
                })
            }
            Request::RangePage(range) => {
                let mut kvs = self.matching(&range.key, &range.range);
                let rest = kvs.split_off(kvs.len().min(self.reply_keys_max));
                ResponseBody::RangePage(RangePage {
                    kvs,
                    next: rest.first().map(|kv| kv.key.clone()),
                    revision: range.revision,
                })
            }
            Request::DeleteRange(delete) => {
                let gone = self.matching(&delete.key, &delete.range);
                for kv in &gone {
                    self.pairs.borrow_mut().remove(&kv.key);
                }
                ResponseBody::DeleteRange(DeleteRangeResponse {
                    deleted: gone.len() as u64,
                    prev_kvs: if delete.prev_kv { gone } else { Vec::new() },
                })
            }
            Request::MoveLeader { .. } => {
                *self.leader.borrow_mut() += 1;
                ResponseBody::MoveLeader
            }
            Request::Compact(request) if request.revision == self.compacted => {
                let kind = ErrorKind::Compacted {
                    compact_revision: self.compacted,
                };
                return Err(api::Error::not_applied(kind, "compacted already"));
            }
            Request::Compact(_) => ResponseBody::Compact,
            Request::MemberList => {
                let member = |(number, info)| Member {
                    info,
                    membership: match number + self.learners < MEMBERS {
                        true => Membership::Voter,
                        false => Membership::Learner,
                    },
                    ..Member::default()
                };
                ResponseBody::Members(Box::new(MembersResponse {
                    members: members().enumerate().map(member).collect(),
                    ..MembersResponse::default()
                }))
            }
            Request::LeaseNamed { name } => match self.named.get(&name) {
                Some(lease) => ResponseBody::LeaseNamed(*lease),
                None => {
                    return Err(api::Error::not_applied(
                        ErrorKind::LeaseNotFound,
                        format!("no lease has the name {name:?}"),
                    ));
                }
            },
            Request::LeaseRevoke(_) => ResponseBody::LeaseRevoke(Default::default()),
            Request::Txn(_) => ResponseBody::Txn(TxnResponse::default()),
            other => panic!("{other:?} is not a call of the command line"),
        };
        Ok(Response { header, body })
    }

    async fn status(&self, endpoint: &str) -> Result<Response, api::Error> {
        self.statuses.set(self.statuses.get() + 1);
        if self.unreachable == Some(endpoint) {
            for _ in 0..SILENT_TURNS {
                tokio::task::yield_now().await;
            }
            assert!(
                self.statuses.get() >= self.silent_until,
                "others wait for one that is silent"
            );
            return Err(api::Error::not_applied(
                ErrorKind::ConnectFailed,
                "nobody answers there",
            ));
        }
        let status = StatusResponse {
            name: endpoint[..2].replace('h', "n"),
            members: members().collect(),
            history: HistoryStatus {
                removed_through: self
                    .removed_through
                    .replace(self.removed_through.get() + 500),
                ..HistoryStatus::default()
            },
            ..StatusResponse::default()
        };
        Ok(Response {
            header: self.header(),
            body: ResponseBody::Status(Box::new(status)),
        })
    }

    async fn close(self) {}
}

/// Runs a command line against the cluster: its output, or how it failed.
fn leasehold(cluster: &Cluster, line: &str) -> Result<String, Failure> {
    let words = ["leasehold"].into_iter().chain(line.split(' '));
    let cli = Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{error}"));
    let target = target();
    let mut out = Vec::new();
    let command = cli.command;
    runtime().block_on(on_cluster(command, cluster, &target, &cli.global, &mut out))?;
    Ok(String::from_utf8(out).unwrap())
}

fn target() -> Target {
    Target {
        endpoints: vec!["h1:7400".to_owned(), "h2:7400".to_owned()],
        cacert: "ca".into(),
        cert: "cert".into(),
        key: "key".into(),
        login: None,
        timeout: Duration::from_secs(5),
        connect_timeout: Duration::from_secs(5),
        exactly_once: false,
        traceparent: None,
        priority: api::Priority::Normal,
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap()
}

#[test]
fn the_session_of_the_manual_goes_as_the_manual_says() {
    let cluster = Cluster::default();
    let run = |line| leasehold(&cluster, line).unwrap();
    assert_eq!(run("put foo bar"), "OK\n");
    assert_eq!(run("put foo bar2 --prev-kv"), "OK\nfoo\nbar\n");
    assert_eq!(run("get foo"), "foo\nbar2\n");
    assert_eq!(run("get foo --print-value-only"), "bar2\n");
    run("put /svc/a 1");
    run("put /svc/b 2");
    run("put /svc/c 3");
    assert_eq!(
        run("get --prefix /svc/ --keys-only --limit 2"),
        "/svc/a\n/svc/b\n"
    );
    assert_eq!(run("get --prefix /svc/ --count-only"), "3\n");
    assert_eq!(run("get /svc/b /svc/c"), "/svc/b\n2\n");
    assert_eq!(run("get /svc/c --from-key --keys-only"), "/svc/c\nfoo\n");
    assert_eq!(run("get --prefix --keys-only").lines().count(), 4);
    assert_eq!(run("del /svc/a"), "1\n");
    assert_eq!(
        run("del --prefix /svc/ --prev-kv"),
        "2\n/svc/b\n2\n/svc/c\n3\n"
    );
    assert_eq!(run("del nothing"), "0\n");
}

/// `del --prefix "$UNSET"` once deleted the whole store.
#[test]
fn every_key_is_deleted_only_by_all() {
    let cluster = Cluster::default();
    leasehold(&cluster, "put a 1").unwrap();
    // A space at the end: the last argument is empty.
    for line in [
        "del ",
        "del --prefix ",
        "del --from-key ",
        "del  z",
        "del --all a",
    ] {
        let failure = leasehold(&cluster, line).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage, "{line:?}: {failure}");
    }
    for line in ["del", "del --prefix", "del --from-key", "del --all a z"] {
        let words = ["leasehold"].into_iter().chain(line.split(' '));
        assert!(Cli::try_parse_from(words).is_err(), "{line:?}");
    }
    assert_eq!(leasehold(&cluster, "get a").unwrap(), "a\n1\n");
    for line in ["del --all", "del --prefix --all "] {
        leasehold(&cluster, "put a 1").unwrap();
        assert_eq!(leasehold(&cluster, line).unwrap(), "1\n", "{line:?}");
    }
}

#[test]
fn who_deletes_every_key_on_a_terminal_is_asked_first() {
    for (typed, is_agreed) in [("yes\n", true), (" yes", true), ("y\n", false), ("", false)] {
        let mut asked = Vec::new();
        let answer = confirm_all(&mut typed.as_bytes(), &mut asked);
        assert_eq!(answer.is_ok(), is_agreed, "{typed:?}");
        assert!(String::from_utf8(asked).unwrap().contains("every key"));
    }
}

#[test]
fn scripts_learn_from_the_exit_code_whether_every_endpoint_serves() {
    let cluster = Cluster::default();
    let out = leasehold(&cluster, "endpoint health").unwrap();
    assert_eq!(out.matches(" is healthy: took ").count(), 2, "{out}");
    let cluster = Cluster {
        unreachable: Some("h2:7400"),
        ..Cluster::default()
    };
    let failure = leasehold(&cluster, "endpoint health").unwrap_err();
    assert_eq!(failure, Failure::refused("1 of 2 endpoints are unhealthy"));
    let failure = leasehold(&cluster, "endpoint health --cluster").unwrap_err();
    assert_eq!(failure, Failure::refused("1 of 3 endpoints are unhealthy"));
}

#[test]
fn no_endpoint_waits_for_another_that_is_silent() {
    for line in ["endpoint health", "endpoint status"] {
        let cluster = Cluster {
            unreachable: Some("h1:7400"),
            silent_until: 2,
            ..Cluster::default()
        };
        leasehold(&cluster, line).unwrap_err();
    }
}

#[test]
fn what_is_done_elsewhere_says_where() {
    for (line, expected) in [
        ("defrag --cluster", "compaction --physical"),
        ("check perf --load s", "leasehold bench"),
        (
            "snapshot restore b.db --data-dir d",
            "offline snapshot restore",
        ),
        ("alarm disarm", "leasehold alarm list"),
        ("endpoint hashkv --cluster", "leasehold doctor"),
    ] {
        let words = ["leasehold"].into_iter().chain(line.split(' '));
        let cli = Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{error}"));
        let place = elsewhere::place(&cli.command).expect(line);
        assert!(place.contains(expected), "{line}: {place}");
    }
}

#[test]
fn a_key_that_is_not_there_ends_with_its_own_code() {
    let cluster = Cluster::default();
    let failure = leasehold(&cluster, "get foo").unwrap_err();
    assert_eq!(
        failure,
        Failure::new(Exit::NotFound, "there is no key \"foo\"")
    );
    assert_eq!(leasehold(&cluster, "get --prefix foo").unwrap(), "");
    assert_eq!(leasehold(&cluster, "get foo --count-only").unwrap(), "0\n");
}

#[test]
fn a_read_asks_for_the_consistency_that_was_typed() {
    let cluster = Cluster::default();
    for (typed, expected) in [
        ("l", api::Consistency::Linearizable),
        ("q", api::Consistency::LinearizableQuorum),
        ("lease", api::Consistency::LeaseOnly),
        ("s", api::Consistency::Serializable),
        (
            "250ms",
            api::Consistency::MaxStaleness(Duration::from_millis(250)),
        ),
    ] {
        leasehold(&cluster, &format!("get --prefix x --consistency {typed}")).unwrap();
        assert_eq!(cluster.asked.borrow().last().unwrap().1, expected);
    }
}

#[test]
fn what_the_cluster_refuses_ends_with_the_code_of_the_reason() {
    let full =
        api::Error::not_applied(ErrorKind::NoSpace { used: 2, quota: 1 }, "the disk is full");
    let cluster = Cluster {
        refuses: Some(full),
        ..Cluster::default()
    };
    let failure = leasehold(&cluster, "put a b").unwrap_err();
    let expected = Failure::refused("the disk is full (LH-NO-SPACE)");
    assert_eq!(failure, expected);
}

/// A cluster that always answers the same.
struct Answers(ResponseBody);

impl Connection for Answers {
    async fn call(&self, _: Request, _: api::Consistency) -> Result<Response, api::Error> {
        Ok(Response {
            header: ResponseHeader {
                revision: 7,
                ..ResponseHeader::default()
            },
            body: self.0.clone(),
        })
    }

    async fn status(&self, _: &str) -> Result<Response, api::Error> {
        panic!("nobody asks")
    }

    async fn close(self) {}
}

fn get_arguments(line: &str) -> GetArgs {
    match Cli::parse_from(["leasehold"].into_iter().chain(line.split(' '))).command {
        Command::Get(arguments) => arguments,
        other => panic!("{other:?} is no get"),
    }
}

#[test]
fn a_get_asks_for_what_was_typed() {
    let asked = |line| get_request(get_arguments(line)).0;
    let key = |key: &'static str| RangeRequest {
        key: key.into(),
        ..RangeRequest::default()
    };
    assert_eq!(asked("get k"), key("k"));
    assert!(asked("get k").is_point(), "one lookup answers it");
    assert_eq!(
        asked("get k --rev 12"),
        RangeRequest {
            revision: 12,
            ..key("k")
        }
    );
    assert_eq!(
        asked("get --prefix k --sort-by MODIFY --order Descend --limit 2"),
        RangeRequest {
            range: KeyRange::Prefix,
            sort_target: SortTarget::ModRevision,
            sort_order: SortOrder::Descend,
            limit: 2,
            ..key("k")
        }
    );
    assert_eq!(
        asked(
            "get --from-key k --min-mod-rev 1 --max-mod-rev 2 --min-create-rev 3 --max-create-rev 4"
        ),
        RangeRequest {
            range: KeyRange::From,
            min_mod_revision: 1,
            max_mod_revision: 2,
            min_create_revision: 3,
            max_create_revision: 4,
            ..key("k")
        }
    );
    for bad in ["--rev -1", "--rev x", "--order up", "--min-mod-rev -2"] {
        let words = ["leasehold", "get", "k"].into_iter().chain(bad.split(' '));
        assert!(Cli::try_parse_from(words).is_err(), "{bad}");
    }
}

fn with_named_leases() -> Cluster {
    let lease = |id, grant_index| LeaseRef { id, grant_index };
    let named = [("server1Lease", lease(31, 40)), ("db", lease(7, 8))];
    Cluster {
        named: named
            .map(|(name, lease)| (name.to_owned(), lease))
            .into_iter()
            .collect(),
        ..Cluster::default()
    }
}

fn asked(cluster: &Cluster) -> Vec<Request> {
    let asked = cluster.asked.take();
    asked.into_iter().map(|(request, _)| request).collect()
}

/// T14: what is typed as a name is one grant from then on.
#[test]
fn t14_a_lease_is_typed_as_its_id_or_its_name() {
    let cluster = with_named_leases();
    let look_up = |name: &str| Request::LeaseNamed { name: name.into() };
    let lease = |id, grant_index| LeaseRef { id, grant_index };
    for (typed, questions, revoked) in [
        ("server1Lease", vec!["server1Lease"], lease(31, 40)),
        ("name:db", vec!["db"], lease(7, 8)),
        ("id:db", vec![], lease(0xdb, 0)),
        ("00000000000000db", vec![], lease(0xdb, 0)),
        ("1f", vec!["1f"], lease(31, 0)),
    ] {
        let out = leasehold(&cluster, &format!("lease revoke {typed}")).unwrap();
        assert_eq!(out, format!("lease {:016x} revoked\n", revoked.id));
        let mut expected: Vec<Request> = questions.into_iter().map(look_up).collect();
        expected.push(Request::LeaseRevoke(revoked));
        assert_eq!(asked(&cluster), expected, "{typed}");
    }
    for line in [
        "lease revoke db",
        "lease timetolive db",
        "lease keep-alive db",
        "lease update-ttl db 60",
        "put k v --lease db",
    ] {
        let failure = leasehold(&cluster, line).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage, "{line}");
        for form in ["name:db", "id:db", "0000000000000007"] {
            assert!(failure.message.contains(form), "{line}: {failure}");
        }
        assert_eq!(asked(&cluster), [look_up("db")], "{line}");
    }
    let failure = leasehold(&cluster, "lease revoke db3x").unwrap_err();
    assert_eq!(failure.exit, Exit::NotFound);
    assert!(failure.message.contains("no lease has the name \"db3x\""));
}

#[test]
fn a_put_finds_the_lease_of_a_name_when_it_takes_effect() {
    let cluster = with_named_leases();
    for (typed, lease) in [
        ("--lease free", LeaseTarget::Name("free".into())),
        ("--lease-name db", LeaseTarget::Name("db".into())),
        ("--lease name:db", LeaseTarget::Name("db".into())),
        ("--lease id:db", LeaseTarget::Lease(LeaseRef::id(0xdb))),
        ("--lease 1f", LeaseTarget::Lease(LeaseRef::id(31))),
    ] {
        leasehold(&cluster, &format!("put k v {typed}")).unwrap();
        let put = PutRequest {
            key: "k".into(),
            value: "v".into(),
            lease,
            ..PutRequest::default()
        };
        assert_eq!(asked(&cluster).pop(), Some(Request::Put(put)), "{typed}");
    }
}

#[test]
fn a_transaction_has_leases_by_their_names() {
    let cluster = with_named_leases();
    let run = |text: &str| {
        let script = Script::read(text.as_bytes(), false).unwrap();
        let view = View::default();
        let consistency = api::Consistency::default();
        let mut out = Vec::new();
        let carried_out = carry_out(script, &cluster, consistency, view, &mut out);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime
            .block_on(carried_out)
            .map(|()| asked(&cluster).pop())
    };
    let put = |lease| {
        TxnOp::Put(PutRequest {
            key: "k".into(),
            value: "v".into(),
            lease,
            ..PutRequest::default()
        })
    };
    let sent =
        run("lease(k) = server1Lease\nlease(k) != 1f\n\nput k v --lease dbx\n\nput k v --lease 1f");
    let expected = TxnRequest::new()
        .when([
            Compare::lease("k", CompareOp::Equal, 31),
            Compare::lease("k", CompareOp::NotEqual, 31),
        ])
        .and_then([put(LeaseTarget::Name("dbx".into()))])
        .or_else([put(LeaseTarget::Lease(LeaseRef::id(31)))]);
    assert_eq!(sent, Ok(Some(Request::Txn(expected))));
    for (text, exit) in [
        ("lease(k) = db\n\nput k v", Exit::Usage),
        ("\nput k v --lease db", Exit::Usage),
        ("lease(k) = free\n\nput k v", Exit::NotFound),
    ] {
        let failure = run(text).unwrap_err();
        assert_eq!(failure.exit, exit, "{text:?}: {failure}");
        let sent = asked(&cluster);
        let is_sent = sent
            .iter()
            .any(|request| matches!(request, Request::Txn(_)));
        assert!(!is_sent, "{text:?}");
    }
}

#[test]
fn a_put_that_keeps_the_value_has_none() {
    let cluster = Cluster::default();
    leasehold(&cluster, "put k --ignore-value --ignore-lease").unwrap();
    let expected = Request::Put(PutRequest {
        key: "k".into(),
        ignore_value: true,
        ignore_lease: true,
        ..PutRequest::default()
    });
    assert_eq!(cluster.asked.borrow().last().unwrap().0, expected);
    let words = "leasehold put k v --ignore-value".split(' ');
    assert!(Cli::try_parse_from(words).is_err());
}

#[test]
fn a_transaction_prints_what_each_operation_answered() {
    let found = RangeResponse {
        kvs: vec![KeyValue {
            key: "a".into(),
            value: "1".into(),
            ..KeyValue::default()
        }],
        more: false,
        count: 1,
    };
    let cluster = Answers(ResponseBody::Txn(TxnResponse {
        succeeded: false,
        responses: vec![
            TxnOpResponse::Range(found.clone()),
            TxnOpResponse::Range(found),
            TxnOpResponse::Put(PutResponse::default()),
            TxnOpResponse::DeleteRange(DeleteRangeResponse {
                deleted: 2,
                prev_kvs: Vec::new(),
            }),
            TxnOpResponse::Txn(TxnResponse {
                succeeded: true,
                responses: vec![TxnOpResponse::Put(PutResponse::default())],
            }),
        ],
    }));
    let with = |format| {
        let text = "\nput a 1\n\nget a\nget a --keys-only\nput b 2\ndel c d";
        let script = Script::read(text.as_bytes(), false).unwrap();
        let view = View { format, hex: false };
        let mut out = Vec::new();
        let consistency = api::Consistency::default();
        let carried_out = carry_out(script, &cluster, consistency, view, &mut out);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(carried_out).unwrap();
        String::from_utf8(out).unwrap()
    };
    assert_eq!(
        with(Format::Simple),
        "FAILURE\n\na\n1\n\na\n\nOK\n\n2\n\nSUCCESS\n\nOK\n"
    );
    let fields = with(Format::Fields);
    let start = "\"ClusterID\" : 0\n\"Revision\" : 7\n\"Succeeded\" : false\n\n\"Key\" : \"a\"\n";
    assert!(fields.starts_with(start), "{fields}");
    assert!(
        fields.contains("\n\n\"Deleted\" : 2\n\n\"Succeeded\" : true\n"),
        "{fields}"
    );
    let json: serde_json::Value = serde_json::from_str(&with(Format::Json)).unwrap();
    assert_eq!(json["header"]["revision"], 7);
    assert_eq!(json["succeeded"], false);
    let response = |place: usize| &json["responses"][place]["Response"];
    assert_eq!(response(0)["ResponseRange"]["kvs"][0]["key"], "YQ==");
    assert_eq!(response(3)["ResponseDeleteRange"]["deleted"], 2);
    let inner = &response(4)["ResponseTxn"];
    assert_eq!(inner["succeeded"], true);
    assert!(inner["responses"][0]["Response"]["ResponsePut"].is_object());
}

#[test]
fn a_compaction_says_how_far_it_went() {
    let cluster = Cluster::default();
    let line = |format| format!("compaction 1234 -o {format}");
    assert_eq!(
        leasehold(&cluster, &line("simple")).unwrap(),
        "compacted revision 1234\n"
    );
    let expected = Request::Compact(CompactionRequest::at(1234));
    assert_eq!(cluster.asked.borrow().last().unwrap().0, expected);
    let json = leasehold(&cluster, &line("json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["header"]["revision"], 7);
    for bad in ["0", "-1", "x"] {
        let words = ["leasehold", "compaction", bad];
        assert!(Cli::try_parse_from(words).is_err(), "{bad}");
    }
}

#[test]
fn a_physical_compaction_waits_for_every_endpoint_that_answers() {
    let cluster = Cluster {
        unreachable: Some("h2:7400"),
        ..Cluster::default()
    };
    assert_eq!(
        leasehold(&cluster, "compaction 1234 --physical").unwrap(),
        "compacted revision 1234\n"
    );
    let expected = Request::Compact(CompactionRequest {
        revision: 1234,
        physical: true,
    });
    assert_eq!(cluster.asked.borrow().last().unwrap().0, expected);
    assert!(cluster.removed_through.get() > 1234, "it was waited for");
}

#[test]
fn a_physical_compaction_without_a_revision_means_now() {
    for compacted in [0, 7] {
        let cluster = Cluster {
            compacted,
            ..Cluster::default()
        };
        assert_eq!(
            leasehold(&cluster, "compaction --physical").unwrap(),
            "compacted revision 7\n",
            "compacted to {compacted} before"
        );
        assert!(cluster.removed_through.get() > 7, "it was waited for");
        let typed = leasehold(&cluster, "compaction 7 --physical");
        assert_eq!(
            typed.is_err(),
            compacted == 7,
            "a revision is meant as typed"
        );
    }
    let words = ["leasehold", "compaction"];
    assert!(Cli::try_parse_from(words).is_err(), "which one?");
}

#[test]
fn a_range_larger_than_a_reply_is_printed_whole_and_at_one_revision() {
    let cluster = Cluster {
        reply_keys_max: 2,
        ..Cluster::default()
    };
    let mut expected = String::new();
    for number in 0..7 {
        leasehold(&cluster, &format!("put /a/{number} v{number}")).unwrap();
        expected.push_str(&format!("/a/{number}\nv{number}\n"));
    }
    leasehold(&cluster, "put /b other").unwrap();
    assert_eq!(leasehold(&cluster, "get /a/ --prefix").unwrap(), expected);
    let asked = cluster.asked.borrow().clone();
    let pages: Vec<_> = asked
        .iter()
        .filter_map(|(request, _)| match request {
            Request::RangePage(page) => Some((page.revision, page.key.clone())),
            _ => None,
        })
        .collect();
    assert_eq!(pages.len(), 3);
    assert!(pages.iter().all(|(revision, _)| *revision == 7));
    assert_eq!(pages[0].1, "/a/1\0");
    let json = leasehold(&cluster, "get /a/ --prefix -o json").unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["kvs"].as_array().unwrap().len(), 7);
    assert_eq!(json["count"], 7);
    let limited = leasehold(&cluster, "get /a/ --prefix --limit 1").unwrap();
    assert_eq!(limited, "/a/0\nv0\n");
}

#[test]
fn a_range_too_large_for_one_reply_is_not_passed_off_as_whole() {
    let short = Answers(ResponseBody::Range(RangeResponse {
        kvs: vec![KeyValue::default()],
        more: true,
        count: 9,
    }));
    let mut out = Vec::new();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let reading = get(
        get_arguments("get --prefix --sort-by value"),
        &short,
        api::Consistency::default(),
        View::default(),
        &mut out,
    );
    let failure = runtime.block_on(reading).unwrap_err();
    assert_eq!(failure.exit, Exit::Refused);
    assert!(
        failure
            .message
            .contains("has 9 keys, and one reply holds only the first 1")
    );
}

#[test]
fn status_asks_the_endpoints_given_or_the_whole_cluster() {
    let cluster = Cluster::default();
    let given = leasehold(&cluster, "endpoint status").unwrap();
    assert_eq!(given.lines().count(), 2, "{given}");
    let all = leasehold(&cluster, "endpoint status --cluster").unwrap();
    let endpoints: Vec<_> = all
        .lines()
        .map(|line| line.split(',').next().unwrap())
        .collect();
    assert_eq!(endpoints, ["h1:7400", "h2:7400", "h3:7400"]);
}

#[test]
fn an_endpoint_that_does_not_answer_is_named_and_the_others_are_shown() {
    let cluster = Cluster {
        unreachable: Some("h1:7400"),
        ..Cluster::default()
    };
    let failure = leasehold(&cluster, "endpoint status").unwrap_err();
    assert_eq!(
        failure,
        Failure::new(
            Exit::NotConnected,
            "h1:7400: nobody answers there (LH-CONNECT-FAILED)"
        )
    );
    let all = leasehold(&cluster, "endpoint status --cluster").unwrap_err();
    assert_eq!(all.exit, Exit::NotConnected, "and h2 told of the cluster");
}

#[test]
fn leadership_moves_to_a_name_an_id_or_whom_the_leader_chooses() {
    let cluster = Cluster::default();
    let from_to =
        |from: u64, to: u64| format!("Leadership transferred from {from:016x} to {to:016x}\n");
    assert_eq!(
        leasehold(&cluster, "move-leader n2").unwrap(),
        from_to(0xa1, 0xa2)
    );
    assert_eq!(
        leasehold(&cluster, "move-leader 00a3").unwrap(),
        from_to(0xa2, 0xa3)
    );
    *cluster.leader.borrow_mut() = 0;
    assert_eq!(
        leasehold(&cluster, "move-leader").unwrap(),
        from_to(0xa1, 0xa2)
    );
    let asked = cluster.asked.borrow();
    let asked = asked.iter().map(|(request, _)| request.clone());
    let targets: Vec<_> = asked
        .filter(|request| matches!(request, Request::MoveLeader { .. }))
        .collect();
    let to = |target| Request::MoveLeader { target };
    assert_eq!(
        targets,
        [to(Some(NodeId(0xa2))), to(Some(NodeId(0xa3))), to(None)]
    );
}

#[test]
fn leadership_does_not_move_to_an_unknown_node_or_to_the_leader() {
    let cluster = Cluster::default();
    let failure = leasehold(&cluster, "move-leader n9").unwrap_err();
    assert_eq!(
        failure,
        Failure::usage(
            "there is no member n9: choose one of n1 (00000000000000a1), n2 (00000000000000a2), n3 \
             (00000000000000a3)"
        )
    );
    let failure = leasehold(&cluster, "move-leader n1").unwrap_err();
    assert!(
        failure.message.starts_with("n1 is the leader already"),
        "{failure}"
    );
    assert!(cluster.asked.borrow().is_empty());
}

#[test]
fn leadership_does_not_move_where_no_other_member_votes() {
    let cluster = Cluster {
        learners: 2,
        ..Cluster::default()
    };
    for line in ["move-leader", "move-leader n2"] {
        let failure = leasehold(&cluster, line).unwrap_err();
        assert_eq!(failure.exit, Exit::Refused);
        assert!(failure.message.contains("one voter"), "{failure}");
    }
    let asked = cluster.asked.borrow();
    let moves = |(request, _): &(Request, _)| matches!(request, Request::MoveLeader { .. });
    assert!(!asked.iter().any(moves), "{asked:?}");
}

/// Nobody but the nodes knows whom a token names, but it ends for every user.
#[test]
fn who_enables_access_control_with_a_token_is_told_that_it_ends() {
    let target = Target {
        login: Some(Login::TokenFile("token".into())),
        ..target()
    };
    let cluster = Cluster::default();
    let warning = runtime().block_on(access::lockout_warning(&cluster, &target));
    let warning = warning.expect("a note");
    assert!(warning.contains("until the token expires"), "{warning}");
    assert!(warning.contains("--user root"), "{warning}");
    assert!(cluster.asked.borrow().is_empty());
}
