//! The same requests to etcd and to a node of ours: codes, texts and answers are equal, tokens, ids, terms and the
//! revision of the rules aside.

use std::fmt::Debug;

use bytes::Bytes;
use prost::Message;

use super::super::differential::texts::{without_fields, without_values};
use super::super::differential::{Masked, Pair, mask_headers, masked, pair};
use super::super::grpc::Channel;
use super::super::http::masked as masked_text;
use super::super::kv::{
    Compare, CompareUnion, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse,
    RangeRequest, RangeResponse, RequestOp, RequestUnion, TxnRequest, TxnResponse,
};
use super::super::messages::{
    AuthDisableRequest, AuthDoneResponse, AuthEnableRequest, AuthRoleAddRequest,
    AuthRoleDeleteRequest, AuthRoleGetRequest, AuthRoleGetResponse, AuthRoleGrantPermissionRequest,
    AuthRoleListRequest, AuthRoleListResponse, AuthRoleRevokePermissionRequest, AuthStatusRequest,
    AuthStatusResponse, AuthUserAddRequest, AuthUserChangePasswordRequest, AuthUserDeleteRequest,
    AuthUserGetRequest, AuthUserGetResponse, AuthUserGrantRoleRequest, AuthUserListRequest,
    AuthUserListResponse, AuthUserRevokeRoleRequest, AuthenticateRequest, AuthenticateResponse,
    DefragmentRequest, DefragmentResponse, HashKvRequest, HashKvResponse, LeaseGrantRequest,
    LeaseGrantResponse, MemberListRequest, MemberListResponse, Permission, StatusRequest,
    StatusResponse, UserAddOptions,
};

mask_headers!(
    AuthDoneResponse,
    AuthRoleGetResponse,
    AuthRoleListResponse,
    AuthUserGetResponse,
    AuthUserListResponse
);

impl Masked for AuthStatusResponse {
    fn masked(mut self) -> Self {
        masked(&mut self.header);
        self.auth_revision = 0;
        self
    }

    fn masked_text(text: &str) -> String {
        without_fields(&masked_text(text), "authRevision")
    }
}

impl Masked for AuthenticateResponse {
    fn masked(mut self) -> Self {
        masked(&mut self.header);
        assert!(!self.token.is_empty());
        self.token.clear();
        self
    }

    fn masked_text(text: &str) -> String {
        without_values(&masked_text(text), "token")
    }
}

/// A user's tokens at both.
#[derive(Clone, Default)]
struct Tokens {
    etcd: Option<String>,
    ours: Option<String>,
}

/// Both, in the name of a user.
struct User<'a> {
    pair: &'a Pair,
    tokens: Tokens,
}

async fn ask<A: Message + Default>(
    channel: &Channel,
    path: &str,
    question: &impl Message,
    token: Option<&String>,
) -> Result<A, (i32, String)> {
    let headers: Vec<(&str, &str)> = token.iter().map(|it| ("token", it.as_str())).collect();
    channel.ask_with(path, question, &headers).await
}

impl<'a> User<'a> {
    fn of(pair: &'a Pair, token: Option<&str>) -> Self {
        let token = token.map(str::to_owned);
        Self {
            pair,
            tokens: Tokens {
                etcd: token.clone(),
                ours: token,
            },
        }
    }

    /// Who has logged in at both.
    async fn login(pair: &'a Pair, name: &str, password: &str) -> Self {
        let login = login(name, password);
        let path = "/etcdserverpb.Auth/Authenticate";
        let etcd: AuthenticateResponse = pair.etcd.ask(path, &login).await.unwrap();
        let ours: AuthenticateResponse = pair.ours.ask(path, &login).await.unwrap();
        Self {
            pair,
            tokens: Tokens {
                etcd: Some(etcd.token),
                ours: Some(ours.token),
            },
        }
    }

    /// Both give the same answer: the code, 0 if it went well.
    async fn same<Q, A>(&self, path: &str, question: &Q) -> i32
    where
        Q: Message + Debug,
        A: Message + Default + Masked + PartialEq + Debug,
    {
        let (etcd, ours) = (&self.pair.etcd, &self.pair.ours);
        let theirs = ask::<A>(etcd, path, question, self.tokens.etcd.as_ref()).await;
        let ours = ask::<A>(ours, path, question, self.tokens.ours.as_ref()).await;
        let (theirs, ours) = (theirs.map(A::masked), ours.map(A::masked));
        assert_eq!(ours, theirs, "ours is left: {path} {question:?}");
        ours.map_or_else(|(code, _)| code, |_| 0)
    }

    async fn change(&self, method: &str, question: &(impl Message + Debug)) -> i32 {
        let path = format!("/etcdserverpb.Auth/{method}");
        self.same::<_, AuthDoneResponse>(&path, question).await
    }

    async fn done(&self, method: &str, question: &(impl Message + Debug)) {
        assert_eq!(
            self.change(method, question).await,
            0,
            "{method} {question:?}"
        );
    }

    async fn authenticate(&self, name: &str, password: &str) -> i32 {
        let path = "/etcdserverpb.Auth/Authenticate";
        let login = login(name, password);
        self.same::<_, AuthenticateResponse>(path, &login).await
    }

    /// Maintenance takes root. To others etcd 3.5 says so by another code.
    async fn maintains(&self, code: i32) {
        let (etcd, ours) = (&self.pair.etcd, &self.pair.ours);
        let (theirs, own) = (self.tokens.etcd.as_ref(), self.tokens.ours.as_ref());
        let path = "/etcdserverpb.Maintenance/Defragment";
        let defragment = DefragmentRequest {};
        let their = ask::<DefragmentResponse>(etcd, path, &defragment, theirs).await;
        let answer = ask::<DefragmentResponse>(ours, path, &defragment, own).await;
        assert_eq!(their.is_ok(), code == 0, "{their:?}");
        assert_eq!(answer.map_or_else(|(code, _)| code, |_| 0), code);
        let path = "/etcdserverpb.Maintenance/HashKV";
        let hash = HashKvRequest { revision: 0 };
        let their = ask::<HashKvResponse>(etcd, path, &hash, theirs).await;
        let answer = ask::<HashKvResponse>(ours, path, &hash, own).await;
        assert_eq!(their.is_ok(), code == 0, "{their:?}");
        assert_eq!(answer.map_or_else(|(code, _)| code, |_| 0), code);
    }

    /// Every question about users and roles.
    async fn questions(&self) {
        const AUTH: &str = "/etcdserverpb.Auth/";
        let path = |method: &str| format!("{AUTH}{method}");
        let status = AuthStatusRequest {};
        self.same::<_, AuthStatusResponse>(&path("AuthStatus"), &status)
            .await;
        let users = AuthUserListRequest {};
        self.same::<_, AuthUserListResponse>(&path("UserList"), &users)
            .await;
        let roles = AuthRoleListRequest {};
        self.same::<_, AuthRoleListResponse>(&path("RoleList"), &roles)
            .await;
        // Who has no user may ask etcd for the one whose name is empty.
        let empty = self.tokens.etcd.as_ref().map(|_| "");
        for name in ["anna", "bert", "root", "missing"].into_iter().chain(empty) {
            let get = AuthUserGetRequest {
                name: name.to_owned(),
            };
            self.same::<_, AuthUserGetResponse>(&path("UserGet"), &get)
                .await;
        }
        for role in ["own", "empty", "root", "missing", ""] {
            let get = AuthRoleGetRequest {
                role: role.to_owned(),
            };
            self.same::<_, AuthRoleGetResponse>(&path("RoleGet"), &get)
                .await;
        }
    }

    /// Requests for keys, those that only root may make, and changes of what is not there.
    async fn requests(&self) {
        for (key, end) in [
            ("a", ""),
            ("a/1", ""),
            ("a/", "a0"),
            ("a/", "b"),
            ("z", ""),
            ("", "\0"),
            ("w", "\0"),
        ] {
            self.range(key, end).await;
            let delete = DeleteRangeRequest {
                key: bytes(key),
                range_end: bytes(end),
                prev_kv: end.is_empty(),
            };
            self.same::<_, DeleteRangeResponse>("/etcdserverpb.KV/DeleteRange", &delete)
                .await;
        }
        for key in ["a", "a/1", "z", "w"] {
            self.put(key).await;
            let txn = TxnRequest {
                success: vec![RequestOp {
                    request: Some(RequestUnion::RequestRange(RangeRequest {
                        key: bytes(key),
                        ..RangeRequest::default()
                    })),
                }],
                ..TxnRequest::default()
            };
            self.same::<_, TxnResponse>("/etcdserverpb.KV/Txn", &txn)
                .await;
        }
        self.of_no_keys().await;
        self.change("UserDelete", &user_delete("missing")).await;
        self.change("RoleDelete", &role_delete("missing")).await;
        self.change("UserAdd", &user_add("anna", "x")).await;
        self.change("RoleAdd", &role_add("own")).await;
        // Who may not change anything is told so, whatever else is wrong.
        self.change("UserAdd", &user_add("", "x")).await;
        self.change("RoleAdd", &role_add("")).await;
        let none = AuthRoleGrantPermissionRequest {
            name: "own".to_owned(),
            perm: None,
        };
        self.change("RoleGrantPermission", &none).await;
        self.change("UserGrantRole", &grant_role("anna", "missing"))
            .await;
        self.change("UserRevokeRole", &revoke_role("anna", "empty"))
            .await;
        self.change("UserChangePassword", &password("missing", "x"))
            .await;
        self.change("RoleGrantPermission", &permit("missing", "k", "", 0))
            .await;
        self.change("RoleRevokePermission", &revoke("own", "k", ""))
            .await;
    }

    /// Requests for ranges that have no keys, which need the permissions of any others.
    async fn of_no_keys(&self) {
        for (key, end) in [("a/5", "a/3"), ("r/5", "r/3"), ("v/5", "v/3")] {
            self.range(key, end).await;
            for prev_kv in [false, true] {
                let delete = DeleteRangeRequest {
                    key: bytes(key),
                    range_end: bytes(end),
                    prev_kv,
                };
                self.same::<_, DeleteRangeResponse>("/etcdserverpb.KV/DeleteRange", &delete)
                    .await;
                let delete = RequestUnion::RequestDeleteRange(delete);
                self.txn(Vec::new(), delete).await;
            }
            let read = RequestUnion::RequestRange(RangeRequest {
                key: bytes(key),
                range_end: bytes(end),
                ..RangeRequest::default()
            });
            self.txn(Vec::new(), read).await;
            // One that holds for a key that is not there, and one that does not.
            for version in [0, 1] {
                let compare = Compare {
                    key: bytes(key),
                    range_end: bytes(end),
                    target_union: Some(CompareUnion::Version(version)),
                    ..Compare::default()
                };
                let nothing = RequestUnion::RequestTxn(TxnRequest::default());
                self.txn(vec![compare], nothing).await;
            }
        }
    }

    async fn txn(&self, compare: Vec<Compare>, request: RequestUnion) {
        let txn = TxnRequest {
            compare,
            success: vec![RequestOp {
                request: Some(request),
            }],
            ..TxnRequest::default()
        };
        self.same::<_, TxnResponse>("/etcdserverpb.KV/Txn", &txn)
            .await;
    }

    async fn range(&self, key: &str, range_end: &str) -> i32 {
        let range = RangeRequest {
            key: bytes(key),
            range_end: bytes(range_end),
            ..RangeRequest::default()
        };
        self.same::<_, RangeResponse>("/etcdserverpb.KV/Range", &range)
            .await
    }

    async fn put(&self, key: &str) -> i32 {
        let put = PutRequest {
            key: bytes(key),
            value: bytes("v"),
            ..PutRequest::default()
        };
        self.same::<_, PutResponse>("/etcdserverpb.KV/Put", &put)
            .await
    }
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn login(name: &str, password: &str) -> AuthenticateRequest {
    AuthenticateRequest {
        name: name.to_owned(),
        password: password.to_owned(),
    }
}

fn user_add(name: &str, password: &str) -> AuthUserAddRequest {
    AuthUserAddRequest {
        name: name.to_owned(),
        password: password.to_owned(),
        ..AuthUserAddRequest::default()
    }
}

fn user_delete(name: &str) -> AuthUserDeleteRequest {
    AuthUserDeleteRequest {
        name: name.to_owned(),
    }
}

fn password(name: &str, password: &str) -> AuthUserChangePasswordRequest {
    AuthUserChangePasswordRequest {
        name: name.to_owned(),
        password: password.to_owned(),
        ..AuthUserChangePasswordRequest::default()
    }
}

fn grant_role(user: &str, role: &str) -> AuthUserGrantRoleRequest {
    AuthUserGrantRoleRequest {
        user: user.to_owned(),
        role: role.to_owned(),
    }
}

fn revoke_role(name: &str, role: &str) -> AuthUserRevokeRoleRequest {
    AuthUserRevokeRoleRequest {
        name: name.to_owned(),
        role: role.to_owned(),
    }
}

fn role_add(name: &str) -> AuthRoleAddRequest {
    AuthRoleAddRequest {
        name: name.to_owned(),
    }
}

fn role_delete(role: &str) -> AuthRoleDeleteRequest {
    AuthRoleDeleteRequest {
        role: role.to_owned(),
    }
}

fn permit(
    name: &str,
    key: &str,
    range_end: &str,
    perm_type: i32,
) -> AuthRoleGrantPermissionRequest {
    AuthRoleGrantPermissionRequest {
        name: name.to_owned(),
        perm: Some(Permission {
            perm_type,
            key: bytes(key),
            range_end: bytes(range_end),
        }),
    }
}

fn revoke(role: &str, key: &str, range_end: &str) -> AuthRoleRevokePermissionRequest {
    AuthRoleRevokePermissionRequest {
        role: role.to_owned(),
        key: bytes(key),
        range_end: bytes(range_end),
    }
}

/// What is refused while access is open, and what is done.
async fn set_up(nobody: &User<'_>) {
    assert_eq!(nobody.authenticate("root", "pw").await, 9);
    assert_eq!(nobody.change("AuthEnable", &AuthEnableRequest {}).await, 9);
    assert_eq!(nobody.change("UserAdd", &user_add("", "x")).await, 3);
    assert_eq!(nobody.change("RoleAdd", &role_add("")).await, 3);
    nobody.done("UserAdd", &user_add("anna", "pw")).await;
    let without = AuthUserAddRequest {
        options: Some(UserAddOptions { no_password: true }),
        ..user_add("bert", "")
    };
    nobody.done("UserAdd", &without).await;
    // Our role root is always there.
    nobody.done("RoleAdd", &role_add("root")).await;
    for role in ["own", "empty"] {
        nobody.done("RoleAdd", &role_add(role)).await;
    }
    assert_eq!(nobody.change("RoleAdd", &role_add("own")).await, 9);
    for (user, role) in [
        ("missing", "own"),
        ("anna", "missing"),
        ("missing", "missing"),
    ] {
        assert_eq!(
            nobody
                .change("UserGrantRole", &grant_role(user, role))
                .await,
            9
        );
        assert_eq!(
            nobody
                .change("UserRevokeRole", &revoke_role(user, role))
                .await,
            9
        );
    }
    for _ in 0..2 {
        nobody
            .done("UserGrantRole", &grant_role("anna", "own"))
            .await;
    }
    let none = AuthRoleGrantPermissionRequest {
        name: "own".to_owned(),
        perm: None,
    };
    assert_eq!(nobody.change("RoleGrantPermission", &none).await, 3);
    assert_eq!(
        nobody
            .change("RoleGrantPermission", &permit("missing", "k", "", 0))
            .await,
        9
    );
    for (key, end, kind) in [
        ("w", "", 1),
        ("a/", "a0", 0),
        ("t", "\0", 2),
        ("r/", "r0", 0),
        ("v/", "v0", 1),
        ("a", "", 2),
        ("a/", "a0", 2),
    ] {
        nobody
            .done("RoleGrantPermission", &permit("own", key, end, kind))
            .await;
    }
    assert_eq!(
        nobody
            .change("RoleRevokePermission", &revoke("own", "t", ""))
            .await,
        9
    );
    assert_eq!(
        nobody
            .change("RoleRevokePermission", &revoke("own", "", ""))
            .await,
        9
    );
    assert_eq!(
        nobody
            .change("RoleRevokePermission", &revoke("missing", "t", ""))
            .await,
        9
    );
    nobody
        .done("RoleRevokePermission", &revoke("own", "t", "\0"))
        .await;
    nobody.questions().await;
    nobody.requests().await;
    // First there is no user root, and then it has not the role.
    assert_eq!(nobody.change("AuthEnable", &AuthEnableRequest {}).await, 9);
    nobody.done("UserAdd", &user_add("root", "pw")).await;
    assert_eq!(nobody.change("AuthEnable", &AuthEnableRequest {}).await, 9);
    nobody
        .done("UserGrantRole", &grant_role("root", "root"))
        .await;
    for _ in 0..2 {
        assert_eq!(nobody.authenticate("root", "pw").await, 9);
    }
}

/// What differs on purpose: etcd does these for clients without a user.
async fn only_users_are_told_of_the_cluster(pair: &Pair) {
    let grant = LeaseGrantRequest { ttl: 60, id: 0 };
    let list = MemberListRequest::default();
    let path = "/etcdserverpb.Lease/LeaseGrant";
    assert!(
        pair.etcd
            .ask::<LeaseGrantResponse>(path, &grant)
            .await
            .is_ok()
    );
    let refused = pair.ours.ask::<LeaseGrantResponse>(path, &grant).await;
    let no_user = (3, "etcdserver: user name is empty".to_owned());
    assert_eq!(refused.unwrap_err(), no_user);
    let path = "/etcdserverpb.Cluster/MemberList";
    assert!(
        pair.etcd
            .ask::<MemberListResponse>(path, &list)
            .await
            .is_ok()
    );
    let refused = pair.ours.ask::<MemberListResponse>(path, &list).await;
    assert_eq!(refused.unwrap_err(), no_user);
    let path = "/etcdserverpb.Maintenance/Status";
    let status = StatusRequest {};
    assert!(pair.etcd.ask::<StatusResponse>(path, &status).await.is_ok());
    let refused = pair.ours.ask::<StatusResponse>(path, &status).await;
    assert_eq!(refused.unwrap_err(), no_user);
}

#[tokio::test(flavor = "multi_thread")]
async fn users_and_roles_get_the_answers_that_etcd_gives() {
    let Some((pair, _etcd, _ours)) = pair().await else {
        return;
    };
    let nobody = User::of(&pair, None);
    set_up(&nobody).await;
    // A token counts for nothing while access is open, as in etcd from 3.6 on.
    let unknown = User::of(&pair, Some("unknown"));
    let token = "unknown".to_owned();
    let put = PutRequest {
        key: bytes("z"),
        ..PutRequest::default()
    };
    let path = "/etcdserverpb.KV/Put";
    let theirs = ask::<PutResponse>(&pair.etcd, path, &put, Some(&token)).await;
    match theirs {
        Ok(_) => {}
        Err((code, text)) => {
            assert_eq!(code, 16, "{text}");
            pair.etcd.ask::<PutResponse>(path, &put).await.unwrap();
        }
    }
    let ours = ask::<PutResponse>(&pair.ours, path, &put, Some(&token)).await;
    assert!(ours.is_ok(), "{ours:?}");
    nobody.done("AuthEnable", &AuthEnableRequest {}).await;
    let wrong = [
        ("root", "wrong"),
        ("missing", "pw"),
        ("", "pw"),
        ("anna", ""),
    ];
    for (name, password) in wrong {
        assert_eq!(nobody.authenticate(name, password).await, 3);
    }
    assert_eq!(unknown.authenticate("anna", "pw").await, 0);
    let root = User::login(&pair, "root", "pw").await;
    let anna = User::login(&pair, "anna", "pw").await;
    for (user, code) in [(&nobody, 3), (&unknown, 16), (&anna, 7), (&root, 0)] {
        user.maintains(code).await;
        user.requests().await;
        user.questions().await;
    }
    only_users_are_told_of_the_cluster(&pair).await;
    assert_eq!(nobody.range("a", "").await, 3);
    assert_eq!(unknown.range("a", "").await, 16);
    assert_eq!(anna.range("a", "").await, 0);
    assert_eq!(anna.range("w", "").await, 7);
    assert_eq!(anna.put("w").await, 0);
    assert_eq!(anna.put("z").await, 7);
    assert_eq!(anna.change("AuthDisable", &AuthDisableRequest {}).await, 7);
    // Who needs root, and what root needs.
    assert_eq!(root.change("UserDelete", &user_delete("root")).await, 3);
    assert_eq!(root.change("RoleDelete", &role_delete("root")).await, 3);
    assert_eq!(
        root.change("UserRevokeRole", &revoke_role("root", "root"))
            .await,
        3
    );
    root.done("AuthEnable", &AuthEnableRequest {}).await;
    // What is taken away counts at once.
    root.done("RoleRevokePermission", &revoke("own", "a/", "a0"))
        .await;
    assert_eq!(anna.range("a/1", "").await, 7);
    root.done("RoleGrantPermission", &permit("own", "a", "", 1))
        .await;
    assert_eq!(anna.range("a", "").await, 7);
    anna.requests().await;
    root.done("UserRevokeRole", &revoke_role("anna", "own"))
        .await;
    anna.requests().await;
    root.done("UserChangePassword", &password("anna", "other"))
        .await;
    assert_eq!(anna.range("a", "").await, 16);
    assert_eq!(nobody.authenticate("anna", "pw").await, 3);
    let anna = User::login(&pair, "anna", "other").await;
    anna.questions().await;
    root.done("UserDelete", &user_delete("anna")).await;
    assert_eq!(anna.range("a", "").await, 16);
    assert_eq!(root.change("UserDelete", &user_delete("anna")).await, 9);
    root.done("RoleDelete", &role_delete("own")).await;
    root.questions().await;
    root.done("AuthDisable", &AuthDisableRequest {}).await;
    nobody.requests().await;
    nobody.questions().await;
    // Without its role root, which is gone while access is open.
    nobody.done("RoleDelete", &role_delete("root")).await;
    assert_eq!(nobody.change("AuthEnable", &AuthEnableRequest {}).await, 9);
}
