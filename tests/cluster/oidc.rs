//! Tokens of an issuer outside of the cluster, as clients of both ports show them.

use std::fs;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use leasehold::api::{
    AuthRequest, AuthResponse, Error, ErrorKind, KeyRange, Permission, PermissionKind,
    RangeRequest, Request, ResponseBody, Secret, WatchRequest,
};
use leasehold::client::{Client, ConnectOptions, WatchEvent, WatchOptions};
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};

use crate::etcd::grpc::Channel;
use crate::etcd::messages::kv;
use crate::etcd::{EtcdCluster, IN_THE_CLEAR};
use crate::harness::{Cluster, PATIENCE, eventually};
use crate::watches::Raw;

/// Who signs tokens.
struct Issuer {
    key: Ed25519KeyPair,
    kid: &'static str,
}

impl Issuer {
    fn new(kid: &'static str) -> Self {
        let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let key = Ed25519KeyPair::from_pkcs8(key.as_ref()).unwrap();
        Self { key, kid }
    }

    fn jwks(&self) -> String {
        let x = URL_SAFE_NO_PAD.encode(self.key.public_key());
        let key = json!({ "kty": "OKP", "crv": "Ed25519", "kid": self.kid, "x": x });
        json!({ "keys": [key] }).to_string()
    }

    /// A token with these claims beside those that each has, good for this time from now on.
    fn token(&self, life: i64, more: &Value) -> String {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let end = i64::try_from(now.unwrap().as_secs()).unwrap() + life;
        let mut claims =
            json!({ "iss": "https://login.test", "aud": ["leasehold"], "sub": "web", "exp": end });
        for (name, value) in more.as_object().unwrap() {
            claims[name] = value.clone();
        }
        let header = json!({ "alg": "EdDSA", "kid": self.kid });
        let encoded = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", encoded(&header), encoded(&claims));
        let signature = self.key.sign(signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// A node that trusts an issuer, with access control: `oidc:web` may do all below `web/`.
async fn started(issuer: &Issuer) -> EtcdCluster {
    started_with(issuer, "oidc:").await
}

/// The same, with this prefix of the issuer's users.
async fn started_with(issuer: &Issuer, prefix: &str) -> EtcdCluster {
    let mut etcd_cluster = EtcdCluster::prepare(1, &[IN_THE_CLEAR]);
    let jwks = etcd_cluster.cluster.folder.path().join("jwks.json");
    fs::write(&jwks, issuer.jwks()).unwrap();
    etcd_cluster.cluster.write_configs(&format!(
        "[tls]\nreload_interval = \"1s\"\n[auth.oidc]\nissuer = \"https://login.test\"\naudience = \
         \"leasehold\"\njwks_file = \"{}\"\nleeway = \"0s\"\nuser_prefix = \"{prefix}\"\n",
        jwks.display()
    ));
    etcd_cluster.cluster.start_and_settle();
    let client = etcd_cluster.cluster.client().await;
    let auth = client.auth();
    for root in ["root", "tester"] {
        auth.user_add(root, Some("canary-of-root")).await.unwrap();
        auth.user_grant_role(root, "root").await.unwrap();
    }
    let user = format!("{prefix}web");
    auth.user_add(&user, None).await.unwrap();
    auth.role_add("web").await.unwrap();
    let permission = Permission {
        kind: PermissionKind::ReadWrite,
        key: "web/".into(),
        range: KeyRange::Prefix,
    };
    auth.role_grant_permission("web", permission).await.unwrap();
    auth.user_grant_role(&user, "web").await.unwrap();
    auth.auth_enable().await.unwrap();
    client.close().await;
    etcd_cluster
}

/// What a client is told that asks for a key with these options.
async fn asked(cluster: &Cluster, options: ConnectOptions) -> Result<(), Error> {
    let began = std::time::Instant::now();
    loop {
        let options = options.clone();
        let answer = async {
            let client = Client::connect(cluster.endpoints(), Some(options)).await?;
            client.get("web/1", None).await
        };
        match answer.await {
            Err(error)
                if matches!(
                    error.kind,
                    ErrorKind::DeadlineExceeded
                        | ErrorKind::ConnectFailed
                        | ErrorKind::ConnectionLost
                ) && began.elapsed() < PATIENCE => {}
            answer => return answer.map(drop),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_of_the_issuer_names_a_user_and_no_other_token_does() {
    let issuer = Issuer::new("one");
    let etcd_cluster = started(&issuer).await;
    let cluster = &etcd_cluster.cluster;
    let by = |token: &str| cluster.options().with_token(Secret::new(token));
    let good = issuer.token(3_600, &json!({}));
    let client = cluster.client_with(by(&good)).await;
    client.put("web/1", "hers", None).await.unwrap();
    let error = client.put("other", "x", None).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::PermissionDenied, "{error}");

    let (head, _) = good.rsplit_once('.').unwrap();
    let unsigned = json!({ "alg": "none", "kid": "one" }).to_string();
    let payload = good.split('.').nth(1).unwrap();
    for (token, wanted) in [
        (issuer.token(-60, &json!({})), "it has expired"),
        (
            issuer.token(60, &json!({ "aud": "elsewhere" })),
            "another audience",
        ),
        (
            issuer.token(60, &json!({ "iss": "https://evil.test" })),
            "another issuer",
        ),
        (
            issuer.token(60, &json!({ "nbf": u32::MAX })),
            "not valid yet",
        ),
        (
            issuer.token(60, &json!({ "sub": "root" })),
            "there is no user \"oidc:root\"",
        ),
        (
            Issuer::new("one").token(60, &json!({})),
            "its signature is wrong",
        ),
        (
            Issuer::new("two").token(60, &json!({})),
            "its key \"two\" is none",
        ),
        (
            format!("{}.{payload}.", URL_SAFE_NO_PAD.encode(unsigned)),
            "signed with \"none\"",
        ),
        (head.to_owned(), "not a signed JWT"),
        (format!("{good}{}", "A".repeat(8 << 10)), "8192"),
    ] {
        let error = asked(cluster, by(&token)).await.expect_err(wanted);
        assert!(error.to_string().contains(wanted), "{wanted}: {error}");
        let is_over = error.kind == ErrorKind::TokenExpired;
        assert_eq!(is_over, wanted == "it has expired", "{error}");
    }

    // At the port for etcd's clients, in either header.
    let channel = Channel::open(etcd_cluster.ports[0]).await;
    let path = "/etcdserverpb.KV/Range";
    let get = kv::RangeRequest {
        key: b"web/1".to_vec().into(),
        ..Default::default()
    };
    let bearer = format!("Bearer {good}");
    for header in [("authorization", bearer.as_str()), ("token", good.as_str())] {
        let found: kv::RangeResponse = channel.ask_with(path, &get, &[header]).await.unwrap();
        assert_eq!(found.count, 1);
    }
    let late = issuer.token(-60, &json!({}));
    for token in [late.as_str(), head, "eyJ.."] {
        let refused: Result<kv::RangeResponse, _> = channel
            .ask_with(path, &get, &[("authorization", token)])
            .await;
        let (code, said) = refused.unwrap_err();
        assert_eq!(
            (code, said.as_str()),
            (16, "etcdserver: invalid auth token")
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_file_is_read_again_and_who_has_no_other_token_sees_no_more() {
    let issuer = Issuer::new("one");
    let etcd_cluster = started(&issuer).await;
    let cluster = &etcd_cluster.cluster;
    let file = cluster.folder.path().join("token");
    fs::write(&file, issuer.token(5, &json!({})) + "\n").unwrap();
    let client = cluster
        .client_with(cluster.options().with_token_file(&file))
        .await;
    let short = issuer.token(5, &json!({}));
    let other = cluster
        .client_with(cluster.options().with_token(Secret::new(short)))
        .await;
    client.put("web/1", "a", None).await.unwrap();
    let watch = || Some(WatchOptions::new().with_prefix());
    let mut kept = client.watch("web/", watch()).await.unwrap();
    let mut lost = other.watch("web/", watch()).await.unwrap();
    fs::write(&file, issuer.token(3_600, &json!({}))).unwrap();
    // Once its token is over, the one goes on with that of the file, and the other is told.
    let told = loop {
        match tokio::time::timeout(PATIENCE, lost.next()).await.unwrap() {
            Some(Ok(_)) => {}
            Some(Err(error)) => break error,
            None => panic!("it ends without a word"),
        }
    };
    assert_eq!(told.kind, ErrorKind::TokenExpired, "{told}");
    client.put("web/2", "b", None).await.unwrap();
    loop {
        match tokio::time::timeout(PATIENCE, kept.next()).await.unwrap() {
            Some(Ok(WatchEvent::Events { events, .. })) => {
                if events.iter().any(|event| event.kv.key == "web/2") {
                    break;
                }
            }
            Some(Ok(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    // The command line takes the file, too.
    let path = file.display().to_string();
    let (code, out, error) =
        cluster.cli(&["get", "web/2", "--print-value-only", "--token-file", &path]);
    assert_eq!((code, out.trim()), (0, "b"), "{error}");
    let (code, _, error) = cluster.cli(&["get", "other", "--token-file", &path]);
    assert_ne!(code, 0, "{error}");
    let (code, _, error) = cluster.cli(&["get", "k", "--token-file", "/nowhere/token"]);
    assert!(code != 0 && error.contains("/nowhere/token"), "{error}");
    let (code, _, error) = cluster.cli(&["get", "k", "--user", "root", "--token-file", &path]);
    assert!(
        code == 2 && error.contains("leave one out"),
        "{code} {error}"
    );

    // A file of keys that cannot be used changes nothing.
    let jwks = cluster.folder.path().join("jwks.json");
    fs::write(&jwks, "{}").unwrap();
    eventually("the complaint", || {
        let said = cluster.nodes[0].log_text();
        said.contains("is not a JWKS").then_some(())
    });
    client.put("web/3", "c", None).await.unwrap();
    // The key of a token that is still good is taken out: so is who came with it.
    let next = Issuer::new("next");
    fs::write(&jwks, next.jwks()).unwrap();
    let began = std::time::Instant::now();
    let refused = loop {
        match client.put("web/4", "d", None).await {
            Ok(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            Err(error) if error.kind == ErrorKind::Unauthenticated => break error,
            Err(error) => panic!("{error}"),
        }
        assert!(began.elapsed() < PATIENCE, "it goes on");
    };
    assert!(
        refused.to_string().contains("its key \"one\" is none"),
        "{refused}"
    );
    fs::write(&file, next.token(3_600, &json!({}))).unwrap();
    client.put("web/4", "d", None).await.unwrap();
    // The issuer takes back all that it had.
    fs::write(&jwks, r#"{"keys":[]}"#).unwrap();
    let began = std::time::Instant::now();
    let refused = loop {
        match client.put("web/4", "d", None).await {
            Ok(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            Err(error) => break error,
        }
        assert!(began.elapsed() < PATIENCE, "it goes on");
    };
    assert!(
        refused.to_string().contains("its key \"next\" is none"),
        "{refused}"
    );
}

/// Shows a token on a connection.
async fn show(raw: &mut Raw, token: impl AsRef<[u8]>) -> Result<ResponseBody, ErrorKind> {
    let token = Secret::new(token.as_ref());
    raw.ask(Request::Auth(AuthRequest::UseToken { token }))
        .await
}

async fn get(raw: &mut Raw) -> Result<ResponseBody, ErrorKind> {
    let key = "web/1".into();
    let range = RangeRequest {
        key,
        ..RangeRequest::default()
    };
    raw.ask(Request::Range(range)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_ends_with_the_token_whatever_the_client_shows_and_opens_meanwhile() {
    let issuer = Issuer::new("one");
    // Without a prefix the issuer names every user.
    let etcd_cluster = started_with(&issuer, "").await;
    let cluster = &etcd_cluster.cluster;
    let shown = Ok(ResponseBody::Auth(AuthResponse::Done));
    let mut raw = Raw::connect(cluster).await;
    let hers = issuer.token(3_600, &json!({}));
    assert_eq!(show(&mut raw, &hers).await, shown);
    let watch = WatchRequest {
        key: "web/".into(),
        range: KeyRange::Prefix,
        ..WatchRequest::default()
    };
    let opened = raw.ask(Request::Watch { watch_id: 1, watch }).await;
    assert_eq!(opened, Ok(ResponseBody::Watch));
    // Neither another user of the issuer takes over, nor one of the cluster.
    let root = issuer.token(3_600, &json!({ "sub": "root" }));
    let mut other = Raw::connect(cluster).await;
    let login = AuthRequest::Authenticate {
        name: "root".to_owned(),
        password: Secret::new("canary-of-root"),
    };
    let answer = other.ask(Request::Auth(login)).await.unwrap();
    let ResponseBody::Auth(AuthResponse::Token { token, .. }) = answer else {
        panic!("{answer:?}");
    };
    for token in [root.as_bytes(), token.reveal()] {
        let refused = show(&mut raw, token).await;
        assert_eq!(refused, Err(ErrorKind::Unauthenticated));
    }
    // Another token of the same user may.
    assert_eq!(show(&mut raw, &hers).await, shown);
    for token in [token.reveal(), root.as_bytes(), root.as_bytes()] {
        assert_eq!(show(&mut other, token).await, shown);
    }
    assert!(get(&mut other).await.is_ok());
    // Once the token is over the connection ends, though its client opens streams that say nothing.
    let jwks = cluster.folder.path().join("jwks.json");
    fs::write(&jwks, Issuer::new("next").jwks()).unwrap();
    let connection = raw.connection().clone();
    let opening = async {
        while let Ok(stream) = connection.open_stream().await {
            drop(stream);
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    };
    let closed = tokio::time::timeout(PATIENCE, opening).await;
    closed.expect("the connection is closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_deleted_and_added_again_has_to_come_again() {
    let issuer = Issuer::new("one");
    let etcd_cluster = started(&issuer).await;
    let cluster = &etcd_cluster.cluster;
    let token = issuer.token(3_600, &json!({}));
    let mut raw = Raw::connect(cluster).await;
    let shown = Ok(ResponseBody::Auth(AuthResponse::Done));
    assert_eq!(show(&mut raw, &token).await, shown);
    assert!(get(&mut raw).await.is_ok());
    // One of them asks meanwhile, too, and the other keeps what it knows of the token.
    let asking = Channel::open(etcd_cluster.ports[0]).await;
    let silent = Channel::open(etcd_cluster.ports[0]).await;
    let by_etcd = async |channel: &Channel| {
        let get = kv::RangeRequest {
            key: b"web/1".to_vec().into(),
            ..Default::default()
        };
        let header = [("token", token.as_str())];
        channel
            .ask_with::<kv::RangeResponse>("/etcdserverpb.KV/Range", &get, &header)
            .await
    };
    for channel in [&asking, &silent] {
        by_etcd(channel).await.unwrap();
    }

    let client = cluster.client().await;
    let auth = client.auth();
    auth.user_delete("oidc:web").await.unwrap();
    assert_eq!(get(&mut raw).await, Err(ErrorKind::Unauthenticated));
    assert_eq!(by_etcd(&asking).await.unwrap_err().0, 16);
    auth.user_add("oidc:web", None).await.unwrap();
    auth.user_grant_role("oidc:web", "web").await.unwrap();
    // What was opened by the one who is gone stays refused, and the token names the one who came.
    assert_eq!(get(&mut raw).await, Err(ErrorKind::Unauthenticated));
    assert_eq!(show(&mut raw, &token).await, shown);
    assert!(get(&mut raw).await.is_ok());
    for channel in [&asking, &silent] {
        by_etcd(channel).await.unwrap();
    }
}
