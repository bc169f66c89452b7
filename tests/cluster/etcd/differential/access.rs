//! Users, roles and permissions in programs, and who makes requests.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::super::grpc::Channel;
use super::super::kv::{RangeRequest, RangeResponse};
use super::super::messages::{
    AuthDisableRequest, AuthDoneResponse, AuthEnableRequest, AuthRoleAddRequest,
    AuthRoleDeleteRequest, AuthRoleGetRequest, AuthRoleGetResponse, AuthRoleGrantPermissionRequest,
    AuthRoleListRequest, AuthRoleListResponse, AuthRoleRevokePermissionRequest, AuthStatusRequest,
    AuthStatusResponse, AuthUserAddRequest, AuthUserChangePasswordRequest, AuthUserDeleteRequest,
    AuthUserGetRequest, AuthUserGetResponse, AuthUserGrantRoleRequest, AuthUserListRequest,
    AuthUserListResponse, AuthUserRevokeRoleRequest, AuthenticateRequest, AuthenticateResponse,
    Permission, UserAddOptions,
};
use super::services::Services;
use super::{Draw, Ended, RANGE, TIMED_OUT, done};

const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
const DISABLE: &str = "/etcdserverpb.Auth/AuthDisable";
const ENABLE: &str = "/etcdserverpb.Auth/AuthEnable";
const ROLE_ADD: &str = "/etcdserverpb.Auth/RoleAdd";
const ROLE_DELETE: &str = "/etcdserverpb.Auth/RoleDelete";
const ROLE_LIST: &str = "/etcdserverpb.Auth/RoleList";
const USER_ADD: &str = "/etcdserverpb.Auth/UserAdd";
const USER_DELETE: &str = "/etcdserverpb.Auth/UserDelete";
const USER_GET: &str = "/etcdserverpb.Auth/UserGet";
const USER_GRANT: &str = "/etcdserverpb.Auth/UserGrantRole";
const USER_LIST: &str = "/etcdserverpb.Auth/UserList";

const ROOT: &str = "root";
const ANNA: &str = "anna";
/// Has no password, and never logs in.
const BERT: &str = "bert";
const OWN: &str = "own";
/// Of all who have one: wrong ones are slowed down here.
const PASSWORD: &str = "pw";

/// The code of a token that is not good.
pub(super) const UNAUTHENTICATED: i32 = 16;

/// Whether access is controlled, and who asks.
#[derive(Default)]
pub(super) struct Access {
    is_controlled: bool,
    asker: Asker,
    /// The tokens of users, at both.
    tokens: BTreeMap<&'static str, [Option<String>; 2]>,
    /// The members with an alarm. While there is one, etcd looks at no permissions when it applies a request.
    pub(super) alarms: BTreeSet<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Asker {
    #[default]
    Nobody,
    /// With a token that was never given out.
    Unknown,
    User(&'static str),
}

impl Access {
    /// Who asks, as differences tell it.
    pub(super) fn asker(&self) -> String {
        match self.is_controlled {
            true => format!("asked by {:?}", self.asker),
            false => "asked while access is open".to_owned(),
        }
    }

    /// Who asks may do less than root.
    pub(super) fn is_limited(&self) -> bool {
        self.is_controlled && !matches!(self.asker, Asker::User(ROOT))
    }

    /// Looks at the code of an answer.
    pub(super) fn heard(&mut self, code: i32) {
        if let (Asker::User(name), UNAUTHENTICATED) = (self.asker, code) {
            self.tokens.remove(name);
        }
    }
}

impl Services {
    /// One of the steps with which a program with access control begins; whether it was one.
    pub(super) async fn set_up(&mut self, step: u64) -> Result<bool, Ended> {
        if self.access.is_controlled {
            self.as_root();
        }
        match step {
            0 => self.change(USER_ADD, &user(ROOT)).await?,
            1 => self.change(USER_GRANT, &granted(ROOT, ROOT)).await?,
            2 => self.change(USER_ADD, &user(ANNA)).await?,
            3 => self.change(ROLE_ADD, &role(OWN)).await?,
            4 => self.change(USER_GRANT, &granted(ANNA, OWN)).await?,
            5 => {
                let permission = Permission {
                    perm_type: 2,
                    key: Bytes::from_static(b"a"),
                    range_end: Bytes::from_static(b"c"),
                };
                let grant = AuthRoleGrantPermissionRequest {
                    name: OWN.to_owned(),
                    perm: Some(permission),
                };
                self.change("/etcdserverpb.Auth/RoleGrantPermission", &grant)
                    .await?
            }
            6 => self.enable().await?,
            _ => return Ok(false),
        };
        Ok(true)
    }

    /// Opens access, and removes all users and roles but root, which we always have.
    pub(super) async fn clear_access(&mut self) -> Result<(), Ended> {
        self.access = Access::default();
        for channel in [&self.pair.etcd, &self.pair.ours] {
            let status = channel
                .ask_with("/etcdserverpb.Auth/AuthStatus", &AuthStatusRequest {}, &[])
                .await;
            // Nobody is told while access is controlled.
            let is_open = match status {
                Ok(AuthStatusResponse { enabled, .. }) => !enabled,
                Err((_, text)) if text.contains(TIMED_OUT) => return Err(Ended::Unknown(text)),
                Err(_) => false,
            };
            if !is_open {
                let token = log_in(channel, ROOT).await?;
                let header = [("token", token.as_str())];
                let disabled = channel.ask_with(DISABLE, &AuthDisableRequest {}, &header);
                let _: AuthDoneResponse = done(disabled.await)?;
            }
            let users: AuthUserListResponse =
                done(channel.ask(USER_LIST, &AuthUserListRequest {}).await)?;
            for name in users.users {
                let delete = AuthUserDeleteRequest { name };
                done(channel.ask::<AuthDoneResponse>(USER_DELETE, &delete).await)?;
            }
            let roles: AuthRoleListResponse =
                done(channel.ask(ROLE_LIST, &AuthRoleListRequest {}).await)?;
            for role in roles.roles {
                let delete = AuthRoleDeleteRequest { role };
                done(channel.ask::<AuthDoneResponse>(ROLE_DELETE, &delete).await)?;
            }
            done(channel.ask::<AuthDoneResponse>(ROLE_ADD, &role(ROOT)).await)?;
        }
        Ok(())
    }

    /// The request that follows is made by root, if access is controlled.
    pub(super) fn as_root(&mut self) {
        self.access.asker = Asker::User(ROOT);
    }

    /// Who has no lease here leaves the request that follows to root.
    pub(super) fn without_leases_as_root(&mut self) {
        if let Asker::User(_) = self.access.asker {
            self.as_root();
        }
    }

    /// Draws who makes the request that follows.
    pub(super) async fn choose(&mut self, draw: &mut Draw) -> Result<(), Ended> {
        self.access.asker = match draw.below(8) {
            0 => Asker::Nobody,
            1 => Asker::Unknown,
            2..5 => Asker::User(ANNA),
            _ => Asker::User(ROOT),
        };
        if !self.access.alarms.is_empty() {
            self.as_root();
        }
        // Who is not there, and tries to log in, is slowed down.
        if self.access.is_controlled
            && matches!(self.access.asker, Asker::User(ANNA))
            && !self.access.tokens.contains_key(ANNA)
        {
            let token = self.tokens_of_root().await?[1].clone().unwrap_or_default();
            let header = [("token", token.as_str())];
            let get = AuthUserGetRequest {
                name: ANNA.to_owned(),
            };
            let found = self.pair.ours.ask_with(USER_GET, &get, &header).await;
            if let Err((_, _)) = found.map(|_: AuthUserGetResponse| ()) {
                self.as_root();
            }
        }
        Ok(())
    }

    /// The tokens of who asks, at both.
    pub(super) async fn tokens(&mut self) -> Result<[Option<String>; 2], Ended> {
        match self.access.asker {
            _ if !self.access.is_controlled => Ok([None, None]),
            Asker::Nobody => Ok([None, None]),
            Asker::Unknown => Ok(["unknown"; 2].map(|token| Some(token.to_owned()))),
            Asker::User(name) => self.tokens_of(name).await,
        }
    }

    pub(super) async fn tokens_of_root(&mut self) -> Result<[Option<String>; 2], Ended> {
        match self.access.is_controlled {
            true => self.tokens_of(ROOT).await,
            false => Ok([None, None]),
        }
    }

    /// What became of users has ended root's token: at both, or they differ.
    pub(super) async fn forget_root(&mut self) -> Result<(), Ended> {
        let asker = std::mem::replace(&mut self.access.asker, Asker::User(ROOT));
        let range = RangeRequest {
            key: Bytes::from_static(b"a"),
            ..RangeRequest::default()
        };
        let asked = self.ask::<_, RangeResponse>(RANGE, &range).await;
        self.access.asker = asker;
        asked.map(drop)
    }

    async fn tokens_of(&mut self, name: &'static str) -> Result<[Option<String>; 2], Ended> {
        if let Some(tokens) = self.access.tokens.get(name) {
            return Ok(tokens.clone());
        }
        let theirs = Some(log_in(&self.pair.etcd, name).await?);
        let tokens = [theirs, Some(log_in(&self.pair.ours, name).await?)];
        self.access.tokens.insert(name, tokens.clone());
        Ok(tokens)
    }

    async fn change<Q>(&mut self, path: &str, question: &Q) -> Result<i32, Ended>
    where
        Q: prost::Message + super::super::json::Json + std::fmt::Debug,
    {
        self.ask::<Q, AuthDoneResponse>(path, question).await
    }

    async fn enable(&mut self) -> Result<i32, Ended> {
        let code = self.change(ENABLE, &AuthEnableRequest {}).await?;
        if code == 0 {
            self.access.is_controlled = true;
        }
        Ok(code)
    }

    /// A request about users, roles or permissions.
    pub(super) async fn users(&mut self, draw: &mut Draw) -> Result<(), Ended> {
        self.choose(draw).await?;
        match draw.below(20) {
            0..8 => self.user(draw).await,
            8..15 => self.role(draw).await,
            15 => self.enable().await,
            16 if draw.one_in(2) => {
                let code = self.change(DISABLE, &AuthDisableRequest {}).await?;
                if code == 0 {
                    self.access.is_controlled = false;
                    self.access.tokens.clear();
                }
                Ok(code)
            }
            17 => {
                // Before access is controlled anybody is refused; then only those who could log in are asked for.
                let name = match (self.access.is_controlled, draw.one_in(2)) {
                    (true, _) => ROOT,
                    (false, true) => ANNA,
                    (false, false) => "missing",
                };
                let login = login(name);
                self.ask::<_, AuthenticateResponse>(AUTHENTICATE, &login)
                    .await
            }
            _ => {
                let path = "/etcdserverpb.Auth/AuthStatus";
                let asked = AuthStatusRequest {};
                self.ask::<_, AuthStatusResponse>(path, &asked).await
            }
        }
        .map(drop)
    }

    async fn user(&mut self, draw: &mut Draw) -> Result<i32, Ended> {
        let names = [ANNA, ANNA, ANNA, BERT, BERT, BERT, ROOT, "missing", ""];
        let mut name = names[usize::try_from(draw.below(9)).unwrap()];
        match draw.below(12) {
            0..3 => self.change(USER_ADD, &user(name)).await,
            3 => {
                let name = name.to_owned();
                self.change(USER_DELETE, &AuthUserDeleteRequest { name })
                    .await
            }
            4..6 => {
                // Who has no user may ask etcd for the one whose name is empty.
                if name.is_empty() && self.access.is_limited() {
                    name = BERT;
                }
                let name = name.to_owned();
                let asked = AuthUserGetRequest { name };
                self.ask::<_, AuthUserGetResponse>(USER_GET, &asked).await
            }
            6 => {
                let asked = AuthUserListRequest {};
                self.ask::<_, AuthUserListResponse>(USER_LIST, &asked).await
            }
            7 => {
                let change = AuthUserChangePasswordRequest {
                    name: name.to_owned(),
                    password: PASSWORD.to_owned(),
                    ..AuthUserChangePasswordRequest::default()
                };
                self.change("/etcdserverpb.Auth/UserChangePassword", &change)
                    .await
            }
            8..11 => {
                let grant = granted(name, role_name(draw));
                self.change(USER_GRANT, &grant).await
            }
            _ => {
                let revoke = AuthUserRevokeRoleRequest {
                    name: name.to_owned(),
                    role: role_name(draw).to_owned(),
                };
                self.change("/etcdserverpb.Auth/UserRevokeRole", &revoke)
                    .await
            }
        }
    }

    async fn role(&mut self, draw: &mut Draw) -> Result<i32, Ended> {
        let name = role_name(draw);
        // Ours is always there.
        let name_but_root = match name {
            ROOT => OWN,
            name => name,
        };
        let (key, range_end) = permitted(draw);
        match draw.below(12) {
            0..3 => self.change(ROLE_ADD, &role(name_but_root)).await,
            3 => {
                let role = name_but_root.to_owned();
                self.change(ROLE_DELETE, &AuthRoleDeleteRequest { role })
                    .await
            }
            4..6 => {
                let path = "/etcdserverpb.Auth/RoleGet";
                let role = name.to_owned();
                let asked = AuthRoleGetRequest { role };
                self.ask::<_, AuthRoleGetResponse>(path, &asked).await
            }
            6 => {
                let asked = AuthRoleListRequest {};
                self.ask::<_, AuthRoleListResponse>(ROLE_LIST, &asked).await
            }
            7..10 => {
                // Those of root have no effect here.
                let permission = Permission {
                    perm_type: i32::try_from(draw.below(3)).unwrap(),
                    key,
                    range_end,
                };
                let grant = AuthRoleGrantPermissionRequest {
                    name: name_but_root.to_owned(),
                    perm: (!draw.one_in(12)).then_some(permission),
                };
                self.change("/etcdserverpb.Auth/RoleGrantPermission", &grant)
                    .await
            }
            _ => {
                let revoke = AuthRoleRevokePermissionRequest {
                    role: name.to_owned(),
                    key,
                    range_end,
                };
                self.change("/etcdserverpb.Auth/RoleRevokePermission", &revoke)
                    .await
            }
        }
    }
}

async fn log_in(channel: &Channel, name: &str) -> Result<String, Ended> {
    let answer = channel.ask(AUTHENTICATE, &login(name)).await;
    let answer: AuthenticateResponse = done(answer)?;
    Ok(answer.token)
}

fn login(name: &str) -> AuthenticateRequest {
    AuthenticateRequest {
        name: name.to_owned(),
        password: PASSWORD.to_owned(),
    }
}

fn user(name: &str) -> AuthUserAddRequest {
    let has_none = name == BERT;
    AuthUserAddRequest {
        name: name.to_owned(),
        password: match has_none {
            true => String::new(),
            false => PASSWORD.to_owned(),
        },
        options: has_none.then_some(UserAddOptions { no_password: true }),
        ..AuthUserAddRequest::default()
    }
}

fn role(name: &str) -> AuthRoleAddRequest {
    AuthRoleAddRequest {
        name: name.to_owned(),
    }
}

fn granted(user: &str, role: &str) -> AuthUserGrantRoleRequest {
    AuthUserGrantRoleRequest {
        user: user.to_owned(),
        role: role.to_owned(),
    }
}

fn role_name(draw: &mut Draw) -> &'static str {
    let names = [OWN, OWN, OWN, "other", "other", ROOT, "missing", ""];
    names[usize::try_from(draw.below(8)).unwrap()]
}

/// Keys of a permission: none, or an end before the key, is refused by etcd from 3.6 on.
fn permitted(draw: &mut Draw) -> (Bytes, Bytes) {
    let keys: [(&'static [u8], &'static [u8]); 7] = [
        (b"a", b""),
        (b"a", b"b"),
        (b"aa", b"c"),
        (b"c", b"\0"),
        (b"\0", b"\0"),
        (b"bb", b""),
        (b"d\xff", b"e"),
    ];
    let (key, range_end) = keys[usize::try_from(draw.below(7)).unwrap()];
    (Bytes::from_static(key), Bytes::from_static(range_end))
}
