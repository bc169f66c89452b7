//! Who a client is, on the wire: by the token that it shows with each call.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;

use super::super::EtcdCluster;
use super::super::grpc::{Channel, Stream};
use super::super::kv::{PutRequest, PutResponse, RangeRequest, RangeResponse};
use super::super::messages::{
    AuthDisableRequest, AuthDoneResponse, AuthEnableRequest, AuthRoleAddRequest,
    AuthRoleDeleteRequest, AuthRoleGetRequest, AuthRoleGetResponse, AuthRoleGrantPermissionRequest,
    AuthRoleRevokePermissionRequest, AuthUserAddRequest, AuthUserChangePasswordRequest,
    AuthUserGrantRoleRequest, AuthUserRevokeRoleRequest, AuthenticateRequest, AuthenticateResponse,
    LeaderRequest, LeaderResponse, LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest,
    LeaseKeepAliveResponse, Permission, PermissionType, WatchCreateRequest, WatchRequest,
    WatchRequestUnion, WatchResponse,
};
use super::super::watches::started;

const AUTH: &str = "/etcdserverpb.Auth/";
const PUT: &str = "/etcdserverpb.KV/Put";
const RANGE: &str = "/etcdserverpb.KV/Range";
const WATCH: &str = "/etcdserverpb.Watch/Watch";

type Refusal = (i32, String);

fn refusal(code: i32, text: &str) -> Refusal {
    (code, format!("etcdserver: {text}"))
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// A connection, in the name of the user of a token if there is one.
struct User<'a> {
    channel: &'a Channel,
    token: Option<&'a str>,
}

impl User<'_> {
    async fn ask<A: Message + Default>(
        &self,
        path: &str,
        question: &impl Message,
    ) -> Result<A, Refusal> {
        let headers: Vec<(&str, &str)> = self.token.iter().map(|it| ("token", *it)).collect();
        self.channel.ask_with(path, question, &headers).await
    }

    /// A change of users or roles.
    async fn change(&self, method: &str, question: &impl Message) -> Result<(), Refusal> {
        let path = format!("{AUTH}{method}");
        let done = self.ask::<AuthDoneResponse>(&path, question).await?;
        assert!(done.header.is_some());
        Ok(())
    }

    async fn put(&self, key: &str) -> Result<PutResponse, Refusal> {
        let put = PutRequest {
            key: bytes(key),
            value: bytes("v"),
            ..PutRequest::default()
        };
        self.ask(PUT, &put).await
    }

    async fn get(&self, key: &str) -> Result<usize, Refusal> {
        let range = RangeRequest {
            key: bytes(key),
            ..RangeRequest::default()
        };
        let found: RangeResponse = self.ask(RANGE, &range).await?;
        Ok(found.kvs.len())
    }
}

async fn login(channel: &Channel, name: &str, password: &str) -> Result<String, Refusal> {
    let login = AuthenticateRequest {
        name: name.to_owned(),
        password: password.to_owned(),
    };
    // A token that is no good does not keep anyone from logging in.
    let headers = [("token", "expired")];
    let path = format!("{AUTH}Authenticate");
    let answer: AuthenticateResponse = channel.ask_with(&path, &login, &headers).await?;
    Ok(answer.token)
}

fn add(name: &str) -> AuthUserAddRequest {
    AuthUserAddRequest {
        name: name.to_owned(),
        password: format!("of {name}"),
        ..AuthUserAddRequest::default()
    }
}

fn grant(
    name: &str,
    key: &str,
    range_end: &str,
    kind: PermissionType,
) -> AuthRoleGrantPermissionRequest {
    AuthRoleGrantPermissionRequest {
        name: name.to_owned(),
        perm: Some(Permission {
            perm_type: kind as i32,
            key: bytes(key),
            range_end: bytes(range_end),
        }),
    }
}

/// Adds root, and anna who reads and writes `a` to `b`; access is controlled then.
async fn guard(channel: &Channel) {
    let nobody = User {
        channel,
        token: None,
    };
    for name in ["root", "anna"] {
        nobody.change("UserAdd", &add(name)).await.unwrap();
    }
    for name in ["root", "own"] {
        let role = AuthRoleAddRequest {
            name: name.to_owned(),
        };
        nobody.change("RoleAdd", &role).await.unwrap();
    }
    let permission = grant("own", "a", "b", PermissionType::ReadWrite);
    nobody
        .change("RoleGrantPermission", &permission)
        .await
        .unwrap();
    for (user, role) in [("root", "root"), ("anna", "own")] {
        let granted = AuthUserGrantRoleRequest {
            user: user.to_owned(),
            role: role.to_owned(),
        };
        nobody.change("UserGrantRole", &granted).await.unwrap();
    }
    nobody
        .change("AuthEnable", &AuthEnableRequest {})
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_its_user_on_every_connection_and_ends_with_what_it_was_given_for() {
    let cluster = started(3).await;
    let mut channels = Vec::new();
    for port in &cluster.ports {
        channels.push(Channel::open(*port).await);
    }
    let follower = &channels[cluster.follower()];
    guard(follower).await;
    let anna = login(follower, "anna", "of anna").await.unwrap();
    // At every node at once, and beside others on one connection.
    for channel in &channels {
        let root = login(channel, "root", "of root").await.unwrap();
        let as_anna = User {
            channel,
            token: Some(&anna),
        };
        let as_root = User {
            channel,
            token: Some(&root),
        };
        let nobody = User {
            channel,
            token: None,
        };
        for _ in 0..2 {
            as_anna.put("a1").await.unwrap();
            as_root.put("z").await.unwrap();
            assert_eq!(as_anna.get("a1").await, Ok(1));
            let denied = refusal(7, "permission denied");
            assert_eq!(as_anna.get("z").await, Err(denied.clone()));
            assert_eq!(as_anna.put("z").await.unwrap_err(), denied);
            assert_eq!(
                nobody.get("a1").await,
                Err(refusal(3, "user name is empty"))
            );
        }
        let bearer = format!("Bearer {anna}");
        let range = RangeRequest {
            key: bytes("a1"),
            ..RangeRequest::default()
        };
        for headers in [
            [("authorization", bearer.as_str())],
            [("authorization", anna.as_str())],
        ] {
            let found = channel.ask_with::<RangeResponse>(RANGE, &range, &headers);
            assert_eq!(found.await.unwrap().kvs.len(), 1);
        }
        let mut changed = anna.clone().into_bytes();
        changed[30] = if changed[30] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(changed).unwrap();
        for token in ["", "nonsense", changed.as_str()] {
            let other = User {
                channel,
                token: Some(token),
            };
            let refused = refusal(16, "invalid auth token");
            assert_eq!(other.get("a1").await, Err(refused.clone()), "{token}");
            assert_eq!(other.put("a1").await.unwrap_err(), refused, "{token}");
        }
    }
    let leader = &channels[cluster.leader];
    let root = login(follower, "root", "of root").await.unwrap();
    let as_root = User {
        channel: follower,
        token: Some(&root),
    };
    let password = AuthUserChangePasswordRequest {
        name: "anna".to_owned(),
        password: "other".to_owned(),
        ..AuthUserChangePasswordRequest::default()
    };
    as_root
        .change("UserChangePassword", &password)
        .await
        .unwrap();
    for channel in [follower, leader] {
        let as_anna = User {
            channel,
            token: Some(&anna),
        };
        // The others hear of it with what is committed, which a linearizable read waits for.
        assert_eq!(
            as_anna.get("a1").await,
            Err(refusal(16, "invalid auth token"))
        );
    }
    let failed = refusal(3, "authentication failed, invalid user ID or password");
    assert_eq!(login(leader, "anna", "of anna").await, Err(failed.clone()));
    assert_eq!(login(leader, "anna", "").await, Err(failed.clone()));
    assert_eq!(login(leader, "nobody", "x").await, Err(failed));
    let later = login(leader, "anna", "other").await.unwrap();
    as_root
        .change("AuthDisable", &AuthDisableRequest {})
        .await
        .unwrap();
    // No token counts any more, and none is given.
    let by_any_token = User {
        channel: follower,
        token: Some("nonsense"),
    };
    by_any_token.put("z").await.unwrap();
    let off = refusal(9, "authentication is not enabled");
    assert_eq!(login(follower, "anna", "other").await, Err(off));
    by_any_token
        .change("AuthEnable", &AuthEnableRequest {})
        .await
        .unwrap();
    for token in [&later, &root] {
        let by_old = User {
            channel: follower,
            token: Some(token),
        };
        assert_eq!(
            by_old.get("a1").await,
            Err(refusal(16, "invalid auth token"))
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_not_used_expires() {
    let settings = [
        ("LEASEHOLD_ETCD_COMPAT_INSECURE", "true"),
        ("LEASEHOLD_AUTH_TOKEN_TTL", "1s"),
    ];
    let started = tokio::task::spawn_blocking(move || EtcdCluster::start(1, &settings));
    let cluster = started.await.unwrap();
    let channel = Channel::open(cluster.ports[0]).await;
    guard(&channel).await;
    let token = login(&channel, "anna", "of anna").await.unwrap();
    let anna = User {
        channel: &channel,
        token: Some(&token),
    };
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    assert_eq!(anna.get("a1").await, Err(refusal(16, "invalid auth token")));
    // Also of a stream.
    let path = "/etcdserverpb.Lease/LeaseKeepAlive";
    let mut stream = channel.stream(path, &[("token", token.as_str())]).await;
    stream.send(&LeaseKeepAliveRequest { id: 7 });
    let renewed = stream.next::<LeaseKeepAliveResponse>().await;
    assert_eq!(renewed.unwrap_err(), refusal(16, "invalid auth token"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_is_refused_ends_its_stream_after_those_before_it() {
    let cluster = started(1).await;
    let channel = Channel::open(cluster.ports[0]).await;
    guard(&channel).await;
    let anna = login(&channel, "anna", "of anna").await.unwrap();
    let root = login(&channel, "root", "of root").await.unwrap();
    for (id, token) in [(1, &anna), (2, &root)] {
        let grant = LeaseGrantRequest { id, ttl: 100 };
        let path = "/etcdserverpb.Lease/LeaseGrant";
        let headers = [("token", token.as_str())];
        let granted = channel.ask_with::<LeaseGrantResponse>(path, &grant, &headers);
        granted.await.unwrap();
    }
    let path = "/etcdserverpb.Lease/LeaseKeepAlive";
    let mut stream = channel.stream(path, &[("token", anna.as_str())]).await;
    stream.send_together(&[1, 1, 2, 1].map(|id| LeaseKeepAliveRequest { id }));
    for _ in 0..2 {
        let renewed: LeaseKeepAliveResponse = stream.next().await.unwrap();
        assert_eq!((renewed.id, renewed.ttl), (1, 100));
    }
    let refused = stream.next::<LeaseKeepAliveResponse>().await;
    assert_eq!(refused.unwrap_err(), refusal(7, "permission denied"));
}

fn watch(stream: &mut Stream, key: &str) {
    let create = WatchCreateRequest {
        key: bytes(key),
        ..WatchCreateRequest::default()
    };
    stream.send(&WatchRequest {
        request: Some(WatchRequestUnion::CreateRequest(create)),
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_needs_permission_and_ends_when_that_is_lost() {
    let cluster = started(3).await;
    let follower = Channel::open(cluster.ports[cluster.follower()]).await;
    guard(&follower).await;
    let anna = login(&follower, "anna", "of anna").await.unwrap();
    let root = login(&follower, "root", "of root").await.unwrap();
    let as_root = User {
        channel: &follower,
        token: Some(&root),
    };
    let reason =
        |code: &str, text: &str| format!("rpc error: code = {code} desc = etcdserver: {text}");
    let mut stream = follower.stream(WATCH, &[("token", anna.as_str())]).await;
    watch(&mut stream, "a1");
    let created: WatchResponse = stream.next().await.unwrap();
    assert!(created.created && !created.canceled, "{created:?}");
    watch(&mut stream, "z");
    let refused: WatchResponse = stream.next().await.unwrap();
    assert!(refused.created && refused.canceled, "{refused:?}");
    assert_eq!(
        refused.cancel_reason,
        reason("PermissionDenied", "permission denied")
    );
    let mut unnamed = follower.stream(WATCH, &[]).await;
    watch(&mut unnamed, "a1");
    let refused: WatchResponse = unnamed.next().await.unwrap();
    assert_eq!(
        refused.cancel_reason,
        reason("InvalidArgument", "user name is empty")
    );
    let mut unknown = follower.stream(WATCH, &[("token", "x")]).await;
    watch(&mut unknown, "a1");
    let refused: WatchResponse = unknown.next().await.unwrap();
    assert_eq!(
        refused.cancel_reason,
        reason("Unauthenticated", "invalid auth token")
    );

    as_root.put("a1").await.unwrap();
    let event: WatchResponse = stream.next().await.unwrap();
    assert_eq!(event.events.len(), 1);
    let revoke = AuthUserRevokeRoleRequest {
        name: "anna".to_owned(),
        role: "own".to_owned(),
    };
    as_root.change("UserRevokeRole", &revoke).await.unwrap();
    as_root.put("a1").await.unwrap();
    let ended: WatchResponse = stream.next().await.unwrap();
    assert!(ended.canceled && ended.events.is_empty(), "{ended:?}");
    assert_eq!(ended.watch_id, created.watch_id);
    assert_eq!(
        ended.cancel_reason,
        reason("PermissionDenied", "permission denied")
    );
}

/// As in etcd, whose Observe ends for any reason as if all was told.
#[tokio::test(flavor = "multi_thread")]
async fn an_observer_who_may_not_read_is_told_no_leader_and_no_reason() {
    let cluster = started(1).await;
    let channel = Channel::open(cluster.ports[0]).await;
    let place = PutRequest {
        key: bytes("z/1"),
        ..PutRequest::default()
    };
    let _: PutResponse = channel.ask(PUT, &place).await.unwrap();
    guard(&channel).await;
    let anna = login(&channel, "anna", "of anna").await.unwrap();
    let root = login(&channel, "root", "of root").await.unwrap();
    let observe = async |token: Option<&str>| {
        let header: Vec<_> = token.iter().map(|it| ("token", *it)).collect();
        let path = "/v3electionpb.Election/Observe";
        let mut stream = channel.begin(path, &header).await;
        stream.send_last(&LeaderRequest { name: bytes("z") });
        let told = stream.next::<LeaderResponse>().await;
        told.map(|told| told.kv.unwrap().key)
    };
    assert_eq!(observe(Some(&root)).await, Ok(bytes("z/1")));
    for token in [Some(&*anna), Some("x"), None] {
        assert_eq!(observe(token).await, Err((0, String::new())), "{token:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_role_root_names_and_ranges_are_taken_as_etcd_takes_them() {
    let cluster = started(1).await;
    let channel = Channel::open(cluster.ports[0]).await;
    let client = User {
        channel: &channel,
        token: None,
    };
    let role = |name: &str| AuthRoleAddRequest {
        name: name.to_owned(),
    };
    // As often as that is said.
    for _ in 0..2 {
        client.change("RoleAdd", &role("root")).await.unwrap();
        let permission = grant("root", "a", "", PermissionType::Read);
        client
            .change("RoleGrantPermission", &permission)
            .await
            .unwrap();
        let delete = AuthRoleDeleteRequest {
            role: "root".to_owned(),
        };
        client.change("RoleDelete", &delete).await.unwrap();
    }
    let get = |role: &str| AuthRoleGetRequest {
        role: role.to_owned(),
    };
    let role_get = format!("{AUTH}RoleGet");
    let root: AuthRoleGetResponse = client.ask(&role_get, &get("root")).await.unwrap();
    assert_eq!(root.perm, []);
    let long = "ä/ b".repeat(51);
    assert_eq!(long.len(), 255);
    client.change("UserAdd", &add(&long)).await.unwrap();
    client.change("RoleAdd", &role(&long)).await.unwrap();
    for name in [format!("{long}x"), "a\nb".to_owned()] {
        let refused = client.change("UserAdd", &add(&name)).await.unwrap_err();
        assert_eq!(refused.0, 3, "{refused:?}");
        let refused = client.change("RoleAdd", &role(&name)).await.unwrap_err();
        assert_eq!(refused.0, 3, "{refused:?}");
    }
    let hashed = AuthUserAddRequest {
        hashed_password: "c2VjcmV0".to_owned(),
        ..add("hashed")
    };
    let refused = client.change("UserAdd", &hashed).await.unwrap_err();
    assert!(
        refused.0 == 3 && refused.1.contains("hashedPassword"),
        "{refused:?}"
    );

    let ranges = [
        ("a", ""),
        ("a", "a\0"),
        ("b/", "b0"),
        ("c", "\0"),
        ("\0", "\0"),
    ];
    for (key, range_end) in ranges {
        let permission = grant(&long, key, range_end, PermissionType::Write);
        client
            .change("RoleGrantPermission", &permission)
            .await
            .unwrap();
    }
    let shown = async || -> Vec<(Bytes, Bytes)> {
        let found: AuthRoleGetResponse = client.ask(&role_get, &get(&long)).await.unwrap();
        let ranges = found.perm.into_iter();
        ranges.map(|it| (it.key, it.range_end)).collect()
    };
    let sorted = [
        ("\0", "\0"),
        ("a", ""),
        ("a", "a\0"),
        ("b/", "b0"),
        ("c", "\0"),
    ];
    let sorted = sorted.map(|(key, end)| (bytes(key), bytes(end)));
    assert_eq!(shown().await, sorted);
    for (key, range_end) in &sorted {
        let revoke = AuthRoleRevokePermissionRequest {
            role: long.clone(),
            key: key.clone(),
            range_end: range_end.clone(),
        };
        client
            .change("RoleRevokePermission", &revoke)
            .await
            .unwrap();
        let again = client.change("RoleRevokePermission", &revoke).await;
        let refused = refusal(9, "permission is not granted to the role");
        assert_eq!(again, Err(refused));
    }
    assert_eq!(shown().await, []);
}
