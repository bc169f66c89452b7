//! The gateway: etcd's methods as JSON over HTTP, as programs without gRPC use them.

use std::net::SocketAddr;
use std::process::Command;

use super::EtcdCluster;
use super::http::{Connection, masked};
use crate::harness::{eventually, left_out};

/// The header of an answer with this revision, masked.
fn header(revision: u32) -> String {
    format!(r#""header":{{"cluster_id":"","member_id":"","revision":"{revision}","raft_term":""}}"#)
}

/// What `path` answers to `body`, with ids masked. It goes well.
fn post(connection: &mut Connection, path: &str, body: &str) -> String {
    let answer = connection.post(path, body);
    assert_eq!(answer.status, 200, "{path} {body}: {answer:?}");
    assert!(
        answer.head.contains("content-type: application/json"),
        "{answer:?}"
    );
    masked(&answer.body)
}

/// The value of a field that is a string.
fn field(answer: &str, name: &str) -> String {
    let begin = format!("\"{name}\":\"");
    let (_, rest) = answer
        .split_once(&begin)
        .unwrap_or_else(|| panic!("{name} in {answer}"));
    rest.split('"').next().unwrap().to_owned()
}

#[test]
fn keys_and_leases_are_served_as_in_grpc() {
    let cluster = EtcdCluster::in_the_clear(1);
    // One connection for all: it stays open.
    let connection = &mut Connection::open(cluster.ports[0]);
    let steps: &[(&str, &str, String)] = &[
        (
            "/v3/kv/put",
            r#"{"key":"Zm9v","value":"YmFy"}"#,
            format!("{{{}}}", header(2)),
        ),
        (
            "/v3beta/kv/put",
            r#"{"key":"Zm9v","value":"","prevKv":true}"#,
            format!(
                r#"{{{},"prev_kv":{{"key":"Zm9v","create_revision":"2","mod_revision":"2","version":"1","value":"YmFy"}}}}"#,
                header(3)
            ),
        ),
        (
            "/v3/kv/range",
            r#"{"key":"Zm9v"}"#,
            format!(
                r#"{{{},"kvs":[{{"key":"Zm9v","create_revision":"2","mod_revision":"3","version":"2"}}],"count":"1"}}"#,
                header(3)
            ),
        ),
        (
            "/v3/kv/range",
            r#"{"key":"bm9uZQ"}"#,
            format!("{{{}}}", header(3)),
        ),
        (
            "/v3/kv/txn",
            r#"{"compare":[{"target":"VERSION","key":"Zm9v","version":"2"}],
                "success":[{"requestPut":{"key":"Zm9v","value":"Mg=="}},{"request_range":{"key":"Zm9v"}}]}"#,
            format!(
                r#"{{{},"succeeded":true,"responses":[{{"response_put":{{"header":{{"revision":"4"}}}}}},{{"response_range":{{"header":{{"revision":"4"}},"kvs":[{{"key":"Zm9v","create_revision":"2","mod_revision":"4","version":"3","value":"Mg=="}}],"count":"1"}}}}]}}"#,
                header(4)
            ),
        ),
        (
            "/v3/kv/deleterange",
            r#"{"key":"Zm9v","prev_kv":true}"#,
            format!(
                r#"{{{},"deleted":"1","prev_kvs":[{{"key":"Zm9v","create_revision":"2","mod_revision":"4","version":"3","value":"Mg=="}}]}}"#,
                header(5)
            ),
        ),
        (
            "/v3/kv/compaction",
            r#"{"revision":"4","physical":true}"#,
            format!("{{{}}}", header(5)),
        ),
        (
            "/v3/lease/grant",
            r#"{"TTL":"3600","ID":7}"#,
            format!(r#"{{{},"ID":"7","TTL":"3600"}}"#, header(5)),
        ),
        (
            "/v3/kv/put",
            r#"{"key":"bA==","lease":"7"}"#,
            format!("{{{}}}", header(6)),
        ),
        (
            "/v3/lease/leases",
            "",
            format!(r#"{{{},"leases":[{{"ID":"7"}}]}}"#, header(6)),
        ),
        (
            "/v3/kv/lease/leases",
            "{}",
            format!(r#"{{{},"leases":[{{"ID":"7"}}]}}"#, header(6)),
        ),
        (
            "/v3/lease/keepalive",
            r#"{"ID":"7"}{"ID":8}"#,
            format!(
                "{{\"result\":{{{0},\"ID\":\"7\",\"TTL\":\"3600\"}}}}\n{{\"result\":{{{0},\"ID\":\"8\"}}}}\n",
                header(6)
            ),
        ),
        (
            "/v3/kv/lease/revoke",
            r#"{"ID":7}"#,
            format!("{{{}}}", header(7)),
        ),
        (
            "/v3/kv/lease/timetolive",
            r#"{"ID":7}"#,
            format!(r#"{{{},"ID":"7","TTL":"-1"}}"#, header(7)),
        ),
    ];
    for (path, body, expected) in steps {
        assert_eq!(post(connection, path, body), *expected, "{path} {body}");
    }
    post(connection, "/v3/lease/grant", r#"{"TTL":3600,"ID":9}"#);
    post(connection, "/v3/kv/put", r#"{"key":"bA==","lease":"9"}"#);
    let left = post(
        connection,
        "/v3/lease/timetolive",
        r#"{"ID":9,"keys":true}"#,
    );
    assert!(
        left.ends_with(r#""grantedTTL":"3600","keys":["bA=="]}"#),
        "{left}"
    );
    assert!(field(&left, "TTL").starts_with('3'), "{left}");
    post(connection, "/v3/lease/revoke", r#"{"ID":"9"}"#);
}

#[test]
fn members_maintenance_locks_and_elections_are_served_as_in_grpc() {
    let cluster = EtcdCluster::in_the_clear(1);
    let connection = &mut Connection::open(cluster.ports[0]);
    let members = post(connection, "/v3/cluster/member/list", "{}");
    let url = format!(r#""clientURLs":["http://{}"]"#, cluster.ports[0]);
    assert!(
        members.contains(r#""name":"n1","peerURLs":["https://"#),
        "{members}"
    );
    assert!(members.contains(&url), "{members}");
    let status = connection.post("/v3/maintenance/status", "").body;
    assert!(
        status.contains(r#""version":"3.6.14","dbSize":""#),
        "{status}"
    );
    assert_eq!(field(&status, "leader"), field(&status, "member_id"));
    let hash = post(connection, "/v3/maintenance/hashkv", "{}");
    assert!(
        hash.contains(r#""compact_revision":"-1","hash_revision":"1"}"#),
        "{hash}"
    );
    let current = post(connection, "/v3/maintenance/hash", "{}");
    assert!(
        hash.starts_with(current.trim_end_matches('}')),
        "{hash} {current}"
    );
    assert_eq!(
        post(connection, "/v3/maintenance/alarm", "{}"),
        format!("{{{}}}", header(1))
    );
    assert_eq!(post(connection, "/v3/maintenance/defragment", ""), "{}");
    let target = format!(r#"{{"targetID":"{}"}}"#, field(&status, "leader"));
    assert_eq!(
        post(connection, "/v3/maintenance/transfer-leadership", &target),
        "{}"
    );

    let lease = post(connection, "/v3/lease/grant", r#"{"TTL":3600,"ID":17}"#);
    assert_eq!(field(&lease, "ID"), "17");
    // `l/11`: the lease in hexadecimal digits.
    let locked = post(connection, "/v3/lock/lock", r#"{"name":"bA==","lease":17}"#);
    assert_eq!(field(&locked, "key"), "bC8xMQ==");
    post(connection, "/v3/lock/unlock", r#"{"key":"bC8xMQ=="}"#);
    let campaign = r#"{"name":"ZQ==","lease":"17","value":"MQ=="}"#;
    let won = post(connection, "/v3/election/campaign", campaign);
    let leader = won.split_once(r#""leader":"#).unwrap().1;
    let leader = leader.strip_suffix('}').unwrap();
    assert!(
        leader.starts_with(r#"{"name":"ZQ==","key":"ZS8xMQ==","rev":"#),
        "{leader}"
    );
    let mut observer = Connection::open(cluster.ports[0]);
    observer.begin("/v3/election/observe");
    observer.send(r#"{"name":"ZQ=="}"#);
    observer.finish();
    assert_eq!(observer.head().0, 200);
    assert_eq!(field(&observer.line().unwrap(), "value"), "MQ==");
    let proclaim = format!(r#"{{"leader":{leader},"value":"Mg=="}}"#);
    post(connection, "/v3/election/proclaim", &proclaim);
    assert_eq!(field(&observer.line().unwrap(), "value"), "Mg==");
    let found = post(connection, "/v3/election/leader", r#"{"name":"ZQ=="}"#);
    assert_eq!(field(&found, "value"), "Mg==");
    post(
        connection,
        "/v3/election/resign",
        &format!(r#"{{"leader":{leader}}}"#),
    );
    let none = connection.post("/v3/election/leader", r#"{"name":"ZQ=="}"#);
    assert_eq!(
        (none.status, none.body.as_str()),
        (
            500,
            r#"{"error":"election: no leader","code":2,"message":"election: no leader"}"#
        )
    );
}

#[test]
fn failures_have_etcd_s_code_and_text_and_a_status_of_http() {
    let cluster = EtcdCluster::in_the_clear(1);
    let connection = &mut Connection::open(cluster.ports[0]);
    let parts = format!(r#"{{"success":[{}]}}"#, ["{}"; 10_000].join(","));
    let bomb = r#"{"success":[{"request_txn":"#.repeat(10_000);
    let table: &[(&str, &str, u16, i32, &str)] = &[
        ("kv/range", "{}", 400, 3, "etcdserver: key is not provided"),
        ("kv/range", "", 400, 3, "etcdserver: key is not provided"),
        (
            "kv/range",
            r#"{"key":"YQ==","revision":100}"#,
            400,
            11,
            "etcdserver: mvcc: required revision is a future revision",
        ),
        (
            "kv/put",
            r#"{"key":"YQ==","ignore_value":true}"#,
            400,
            3,
            "etcdserver: key not found",
        ),
        (
            "kv/put",
            r#"{"key":"YQ==","lease":"5"}"#,
            404,
            5,
            "etcdserver: requested lease not found",
        ),
        (
            "lease/revoke",
            r#"{"ID":"5"}"#,
            404,
            5,
            "etcdserver: requested lease not found",
        ),
        (
            "kv/txn",
            &parts,
            400,
            3,
            "etcdserver: too many operations in txn request",
        ),
        (
            "maintenance/transfer-leadership",
            r#"{"targetID":"5"}"#,
            400,
            9,
            "etcdserver: bad leader transferee",
        ),
        (
            "kv/range",
            r#"{"key":5}"#,
            400,
            3,
            "malformed JSON: found 5, expected bytes, as a base64 string at line 1 column 8",
        ),
        (
            "kv/range",
            r#"{"key":"YQ=="}x"#,
            400,
            3,
            "malformed JSON: trailing characters at line 1 column 15",
        ),
        (
            "kv/txn",
            &bomb,
            400,
            3,
            "malformed JSON: recursion limit exceeded at line 1 column 1146",
        ),
        (
            "lock/lock",
            r#"{"name":"bA==","lease":5}"#,
            500,
            2,
            "etcdserver: requested lease not found",
        ),
    ];
    for (path, body, status, code, text) in table {
        let answer = connection.post(&format!("/v3/{path}"), body);
        let text = serde_json::json!(text);
        let expected = format!(r#"{{"error":{text},"code":{code},"message":{text}}}"#);
        assert_eq!((answer.status, answer.body), (*status, expected), "{path}");
        assert!(
            answer.head.contains("content-type: application/json"),
            "{}",
            answer.head
        );
    }
    let got = connection.request("GET", "/v3/kv/range", "", "");
    assert_eq!(got.status, 405, "{got:?}");
    assert!(got.head.contains("allow: post"), "{got:?}");
    for path in ["/health", "/livez", "/readyz", "/version", "/metrics"] {
        let posted = connection.post(path, "{}");
        assert_eq!(posted.status, 405, "{path}: {posted:?}");
        assert!(posted.head.contains("allow: get"), "{path}: {posted:?}");
    }
    assert_eq!(connection.post("/v3/kv/nothing", "{}").status, 404);
    // Metadata of gRPC, as etcd's gateway takes it.
    let late = "Grpc-Timeout: 0n\r\n";
    let late = connection.request("POST", "/v3/kv/range", late, r#"{"key":"YQ=="}"#);
    assert_eq!(late.status, 504, "{late:?}");
    let odd = "Grpc-Metadata-Leasehold-Consistency: x\r\n";
    let odd = connection.request("POST", "/v3/kv/range", odd, r#"{"key":"YQ=="}"#);
    assert_eq!(odd.status, 400, "{odd:?}");
}

#[test]
fn large_values_and_answers_pass_and_larger_ones_are_refused_as_in_grpc() {
    let cluster = EtcdCluster::in_the_clear(1);
    let connection = &mut Connection::open(cluster.ports[0]);
    // 1 MiB each, in base64.
    let value = "QUJD".repeat((1 << 20) / 3);
    for key in ["YQ==", "Yg==", "Yw=="] {
        post(
            connection,
            "/v3/kv/put",
            &format!(r#"{{"key":"{key}","value":"{value}"}}"#),
        );
    }
    let all = connection.post("/v3/kv/range", r#"{"key":"YQ==","range_end":"AA=="}"#);
    assert_eq!(all.status, 200);
    assert!(
        all.head.contains("transfer-encoding: chunked"),
        "{}",
        all.head
    );
    let parsed: serde_json::Value = serde_json::from_str(&all.body).unwrap();
    let kvs = parsed["kvs"].as_array().unwrap();
    assert_eq!(kvs.len(), 3);
    assert!(kvs.iter().all(|kv| kv["value"] == value));
    assert_eq!(parsed["count"], "3");
    // Above the limit of a request, of a message, and of what is looked at.
    let put = |value: &str| format!(r#"{{"key":"YQ==","value":"{value}"}}"#);
    let refused = connection.post("/v3/kv/put", &put(&"QUJD".repeat(600_000)));
    assert_eq!(refused.status, 400, "{}", refused.body);
    assert!(
        refused.body.contains("etcdserver: request is too large"),
        "{}",
        refused.body
    );
    let refused = connection.post("/v3/kv/put", &put(&"QUJD".repeat(700_000)));
    assert_eq!(refused.status, 429, "{}", refused.body);
    let text = "grpc: received message larger than max (2100008 vs. 2097152)";
    assert!(refused.body.contains(text), "{}", refused.body);
    connection.begin("/v3/kv/put");
    connection.send(&put(&"QUJD".repeat(1_100_000)));
    assert_eq!(connection.head().0, 429);
}

#[test]
fn a_watch_is_a_line_for_each_message_while_it_goes_on() {
    let cluster = EtcdCluster::in_the_clear(3);
    let writer = &mut Connection::open(cluster.ports[cluster.leader]);
    let watch = &mut Connection::open(cluster.ports[cluster.follower()]);
    watch.begin("/v3/watch");
    // Objects may be cut anywhere.
    watch.send(r#"{"create_req"#);
    watch.send(r#"uest":{"key":"YQ==","prev_kv":true}}"#);
    let (status, head) = watch.head();
    assert_eq!(status, 200, "{head}");
    assert!(head.contains("transfer-encoding: chunked"), "{head}");
    let created = masked(&watch.line().unwrap());
    assert!(created.starts_with(r#"{"result":{"header":{"#), "{created}");
    assert!(created.ends_with(r#","created":true}}"#), "{created}");
    let put = post(writer, "/v3/kv/put", r#"{"key":"YQ==","value":"MQ=="}"#);
    let event = masked(&watch.line().unwrap());
    let revision = field(&put, "revision");
    let kv = format!(
        r#"{{"key":"YQ==","create_revision":"{revision}","mod_revision":"{revision}","version":"1","value":"MQ=="}}"#
    );
    let number = revision.parse().unwrap();
    assert_eq!(
        event,
        format!(
            r#"{{"result":{{{},"events":[{{"kv":{kv}}}]}}}}"#,
            header(number)
        )
    );
    // One more on the same stream, and the end of the body, which ends neither.
    watch.send(r#"{"create_request":{"key":"Yg==","watch_id":"5"}} {"create_request":{"key":""#);
    let created = watch.line().unwrap();
    assert!(
        created.ends_with(r#""watch_id":"5","created":true}}"#),
        "{created}"
    );
    watch.send(r#"Yg==","range_end":"YQ=="}}"#);
    let refused = watch.line().unwrap();
    assert!(
        refused.ends_with(
            r#""watch_id":"-1","created":true,"canceled":true,"cancel_reason":"mvcc: watcher range is empty"}}"#
        ),
        "{refused}"
    );
    watch.send(r#"{"cancel_request":{"watch_id":5}}"#);
    let cancelled = watch.line().unwrap();
    assert!(
        cancelled.ends_with(r#""watch_id":"5","canceled":true}}"#),
        "{cancelled}"
    );
    watch.finish();
    post(writer, "/v3/kv/deleterange", r#"{"key":"YQ=="}"#);
    let deleted = watch.line().unwrap();
    assert!(deleted.contains(r#""events":[{"type":"DELETE","kv":{"key":"YQ==","mod_revision":""#));
    assert!(
        deleted.ends_with(&format!(r#"}},"prev_kv":{kv}}}]}}}}"#)),
        "{deleted}"
    );
}

#[test]
fn a_stream_ends_with_an_object_that_says_why() {
    let mut cluster = EtcdCluster::in_the_clear(1);
    let port = cluster.ports[0];
    // Before anything was answered, it is a status of HTTP as well.
    for (body, text) in [
        (
            r#"{"create_request":5}"#,
            "malformed JSON: found 5, expected WatchCreateRequest",
        ),
        ("[]", "malformed JSON: found `[`, expected an object"),
        (
            r#"{"create_request":{"#,
            "malformed JSON: the body ends within an object",
        ),
    ] {
        let answer = Connection::open(port).post("/v3/watch", body);
        let begin = r#"{"error":{"grpc_code":3,"code":3,"http_code":400,"http_status":"Bad Request","message":""#;
        assert_eq!(answer.status, 400, "{body}");
        assert!(
            answer.body.starts_with(&format!("{begin}{text}")),
            "{}",
            answer.body
        );
        assert!(answer.body.ends_with("\"}}\n"), "{}", answer.body);
    }
    let watching = |path: &str, body: &str| {
        let mut stream = Connection::open(port);
        stream.begin(path);
        stream.send(body);
        assert_eq!(stream.head().0, 200);
        assert!(stream.line().unwrap().starts_with(r#"{"result":"#));
        stream
    };
    let create = r#"{"create_request":{"key":"YQ=="}}"#;
    let mut odd = watching("/v3/watch", create);
    odd.send(r#"{"create_request":{"key":"?"}}"#);
    let end = odd.line().unwrap();
    assert!(end.starts_with(r#"{"error":{"grpc_code":3,"#), "{end}");
    assert_eq!(odd.line(), None);
    // A node that stops says so on every stream.
    let mut streams = [
        watching("/v3/watch", create),
        watching("/v3/lease/keepalive", r#"{"ID":"5"}"#),
    ];
    assert_eq!(cluster.cluster.nodes[0].stop(), 0);
    for stream in &mut streams {
        assert_eq!(
            stream.line().unwrap(),
            r#"{"error":{"grpc_code":14,"code":14,"http_code":503,"http_status":"Service Unavailable","message":"etcdserver: server stopped"}}"#
        );
        assert_eq!(stream.line(), None);
    }
}

#[test]
fn a_lease_is_renewed_line_by_line_at_a_node_that_does_not_lead() {
    let cluster = EtcdCluster::in_the_clear(3);
    let follower = cluster.ports[cluster.follower()];
    post(
        &mut Connection::open(follower),
        "/v3/lease/grant",
        r#"{"TTL":3600,"ID":7}"#,
    );
    let mut stream = Connection::open(follower);
    stream.begin("/v3/lease/keepalive");
    for number in 0..3 {
        stream.send("{\"ID\":7}\n");
        if number == 0 {
            assert_eq!(stream.head().0, 200);
        }
        let kept = stream.line().unwrap();
        assert!(kept.ends_with(r#""ID":"7","TTL":"3600"}}"#), "{kept}");
    }
    // It ends with its requests, for clients that wait for that.
    stream.finish();
    assert_eq!(stream.line(), None);
}

#[test]
fn who_waits_for_a_lock_and_leaves_gives_up_its_place() {
    let cluster = EtcdCluster::in_the_clear(1);
    let connection = &mut Connection::open(cluster.ports[0]);
    for lease in [1, 2, 3] {
        post(
            connection,
            "/v3/lease/grant",
            &format!(r#"{{"TTL":3600,"ID":{lease}}}"#),
        );
    }
    post(connection, "/v3/lock/lock", r#"{"name":"bA==","lease":1}"#);
    let count = |connection: &mut Connection, expected: &str| {
        eventually("places in the line", || {
            let range = r#"{"key":"bC8=","range_end":"bDA=","count_only":true}"#;
            let found = post(connection, "/v3/kv/range", range);
            (field(&found, "count") == expected).then_some(())
        });
    };
    let mut waiting = Connection::open(cluster.ports[0]);
    let body = r#"{"name":"bA==","lease":2}"#;
    waiting.say(&format!(
        "POST /v3/lock/lock HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    count(connection, "2");
    drop(waiting);
    count(connection, "1");
    post(connection, "/v3/lock/unlock", r#"{"key":"bC8x"}"#);
    let locked = post(connection, "/v3/lock/lock", r#"{"name":"bA==","lease":3}"#);
    assert_eq!(field(&locked, "key"), "bC8z");
}

#[test]
fn without_the_gateway_its_paths_are_not_there() {
    let settings = [
        ("LEASEHOLD_ETCD_COMPAT_INSECURE", "true"),
        ("LEASEHOLD_ETCD_COMPAT_HTTP_GATEWAY", "false"),
    ];
    let cluster = EtcdCluster::start(1, &settings);
    let connection = &mut Connection::open(cluster.ports[0]);
    for method in ["POST", "GET"] {
        let answer = connection.request(method, "/v3/kv/range", "", r#"{"key":"YQ=="}"#);
        assert_eq!(answer.status, 404, "{answer:?}");
    }
    assert_eq!(connection.request("GET", "/version", "", "").status, 200);
}

/// Runs `curl`; none, and a loud remark, if it is not there.
fn curl(arguments: &[&str]) -> Option<String> {
    let output = Command::new("curl")
        .args([
            "-q",
            "--silent",
            "--show-error",
            "--noproxy",
            "*",
            "--max-time",
            "120",
        ])
        .args(arguments)
        .output();
    let Ok(output) = output else {
        left_out("the gateway through curl: needs `curl`");
        return None;
    };
    let said = [&output.stdout[..], &output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "curl {arguments:?}: {said}");
    Some(said)
}

#[test]
fn curl_is_served_over_either_version_of_http_in_the_clear_and_under_tls() {
    let put = r#"{"key":"Zm9v","value":"YmFy"}"#;
    let clear = EtcdCluster::in_the_clear(1);
    let url = |scheme: &str, port: SocketAddr| format!("{scheme}://{port}/v3/kv/put");
    let plain = url("http", clear.ports[0]);
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        // curl sends it as a form, and it is JSON all the same.
        let Some(said) = curl(&[version, "-d", put, &plain]) else {
            return;
        };
        assert!(
            masked(&said).starts_with(r#"{"header":{"cluster_id":"","#),
            "{said}"
        );
    }
    let secure = EtcdCluster::start(1, &[]);
    let ca = secure.cluster.pki.file("client-ca.pem");
    let secured = url("https", secure.ports[0]);
    for version in ["--http1.1", "--http2"] {
        let written = "\n%{http_version} %{http_code}";
        let said = curl(&[version, "--cacert", &ca, "-w", written, "-d", put, &secured]).unwrap();
        let expected = if version == "--http2" {
            "\n2 200"
        } else {
            "\n1.1 200"
        };
        assert!(said.ends_with(expected), "{said}");
    }
}
