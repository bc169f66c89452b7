use std::cell::RefCell;
use std::collections::BTreeMap;

use clap::Parser;

use super::super::arguments::{Cli, Command, EndpointCommand};
use super::*;
use crate::api::DeleteRangeResponse;
use crate::api::KeyValue;
use crate::api::MemberInfo;
use crate::api::PutResponse;
use crate::api::RangeResponse;

/// A cluster of three that keeps pairs in a map and remembers what it was asked.
#[derive(Default)]
struct Cluster {
    pairs: RefCell<BTreeMap<Bytes, Bytes>>,
    asked: RefCell<Vec<(Request, api::Consistency)>>,
    leader: RefCell<u64>,
    unreachable: Option<&'static str>,
    refuses: Option<api::Error>,
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
                ResponseBody::Range(RangeResponse {
                    more: (kvs.len() as u64) < count,
                    kvs,
                    count,
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
            other => panic!("{other:?} is not a call of the command line"),
        };
        Ok(Response { header, body })
    }

    async fn status(&self, endpoint: &str) -> Result<Response, api::Error> {
        if self.unreachable == Some(endpoint) {
            return Err(api::Error::not_applied(
                ErrorKind::ConnectFailed,
                "nobody answers there",
            ));
        }
        let member = |number: u64| MemberInfo {
            id: NodeId(0xa0 + number),
            name: format!("n{number}"),
            peer_address: String::new(),
            client_address: format!("h{number}:7400"),
        };
        let status = StatusResponse {
            name: endpoint[..2].replace('h', "n"),
            members: (1..=3).map(member).collect(),
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
    let verb = match cli.command {
        Command::Put(arguments) => Verb::Put(arguments),
        Command::Get(arguments) => Verb::Get(arguments),
        Command::Del(arguments) => Verb::Del(arguments),
        Command::Endpoint {
            command: EndpointCommand::Status(arguments),
        } => Verb::Status(arguments),
        Command::MoveLeader(arguments) => Verb::MoveLeader(arguments),
        other => panic!("{other:?} talks to no cluster"),
    };
    let target = Target {
        endpoints: vec!["h1:7400".to_owned(), "h2:7400".to_owned()],
        cacert: "ca".into(),
        cert: "cert".into(),
        key: "key".into(),
        timeout: Duration::from_secs(5),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let mut out = Vec::new();
    runtime.block_on(run(verb, cluster, &target, &cli.global, &mut out))?;
    Ok(String::from_utf8(out).unwrap())
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
    let full = api::Error::not_applied(ErrorKind::NoSpace, "the disk is full");
    let cluster = Cluster {
        refuses: Some(full),
        ..Cluster::default()
    };
    let failure = leasehold(&cluster, "put a b").unwrap_err();
    let expected = Failure::refused("the disk is full (LH-NO-SPACE)");
    assert_eq!(failure, expected);
}

#[test]
fn a_range_too_large_for_one_reply_is_not_passed_off_as_whole() {
    struct Short;
    impl Connection for Short {
        async fn call(&self, _: Request, _: api::Consistency) -> Result<Response, api::Error> {
            Ok(Response {
                header: ResponseHeader::default(),
                body: ResponseBody::Range(RangeResponse {
                    kvs: vec![KeyValue::default()],
                    more: true,
                    count: 9,
                }),
            })
        }
        async fn status(&self, _: &str) -> Result<Response, api::Error> {
            unreachable!("only a range is asked for")
        }
        async fn close(self) {}
    }
    let arguments = GetArgs {
        range: RangeArgs {
            key: None,
            end: None,
            prefix: true,
            from_key: false,
        },
        limit: 0,
        keys_only: false,
        count_only: false,
        print_value_only: false,
    };
    let mut out = Vec::new();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let reading = get(
        arguments,
        &Short,
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
    let targets: Vec<_> = asked.iter().map(|(request, _)| request.clone()).collect();
    let to = |target| Request::MoveLeader { target };
    assert_eq!(
        targets,
        [to(Some(NodeId(0xa2))), to(Some(NodeId(0xa3))), to(None)]
    );
}

#[test]
fn leadership_does_not_move_to_a_stranger_or_to_who_has_it() {
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
    assert!(failure.message.starts_with("n1 leads already"), "{failure}");
    assert!(cluster.asked.borrow().is_empty());
}
