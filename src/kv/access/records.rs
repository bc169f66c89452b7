//! The stored records of users and roles.

use std::collections::BTreeSet;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::api::{
    AuthRequest, AuthResponse, Error, ErrorKind, Permission, ROOT, RoleInfo, Secret, UserInfo,
};
use crate::kv::hash::HashedStore;
use crate::kv::meta;
use crate::kv::store::{Fault, Space, Span, Store, View};

/// The first byte of every record: its format.
const FORMAT: u8 = 1;

const TOKEN_KEY: &[u8] = b"access";
const USERS: &str = "user/";
const ROLES: &str = "role/";

/// A user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct User {
    /// The hash of the password, if one is set.
    pub(super) password: Option<Secret>,
    /// The access-control revision at which the password was set or the user added.
    pub(super) generation: u64,
    pub(super) roles: BTreeSet<String>,
}

/// A role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Role {
    pub(super) permissions: Vec<Permission>,
}

/// Records that exist by name: users or roles.
pub(super) trait NamedRecord: Serialize + DeserializeOwned {
    const PREFIX: &'static str;
    const WHAT: &'static str;

    fn read<V: View>(view: &V, name: &str) -> Result<Option<Self>, V::Error> {
        match view.get(Space::Meta, &key_of::<Self>(name))? {
            Some(record) => Ok(Some(decode(&record)?)),
            None => Ok(None),
        }
    }

    fn write<S: Store>(&self, store: &mut HashedStore<'_, S>, name: &str) -> Result<(), S::Error> {
        store.put(Space::Meta, key_of::<Self>(name), encode(self))
    }

    fn remove<S: Store>(store: &mut HashedStore<'_, S>, name: &str) -> Result<bool, S::Error> {
        let old = store.take(Space::Meta, &key_of::<Self>(name))?;
        Ok(old.is_some())
    }

    /// All of them, in the order of their names.
    fn all<V: View>(view: &V) -> Result<Vec<(String, Self)>, V::Error> {
        let mut all = Vec::new();
        for pair in view.range(Space::Meta, &span_of::<Self>()) {
            let (key, record) = pair?;
            let name = key.strip_prefix(Self::PREFIX.as_bytes());
            let name = name.and_then(|name| std::str::from_utf8(name).ok());
            let name = name.ok_or_else(|| damaged("a name that does not read"))?;
            all.push((name.to_owned(), decode(&record)?));
        }
        Ok(all)
    }

    fn count<V: View>(view: &V) -> Result<u64, V::Error> {
        view.count(Space::Meta, &span_of::<Self>())
    }
}

impl NamedRecord for User {
    const PREFIX: &'static str = USERS;
    const WHAT: &'static str = "user";
}

impl NamedRecord for Role {
    const PREFIX: &'static str = ROLES;
    const WHAT: &'static str = "role";
}

fn key_of<T: NamedRecord>(name: &str) -> Bytes {
    Bytes::from([T::PREFIX, name].concat())
}

fn span_of<T: NamedRecord>() -> Span {
    let from = Bytes::from_static(T::PREFIX.as_bytes());
    // A prefix ends in a slash, and `0` is the byte after that.
    let until = [T::PREFIX.trim_end_matches('/'), "0"].concat();
    Span::between(from, Bytes::from(until))
}

fn encode(record: &impl Serialize) -> Bytes {
    let bytes = postcard::to_extend(record, vec![FORMAT])
        .expect("a vector grows without bound and the types serialize without fail");
    Bytes::from(bytes)
}

fn decode<T: DeserializeOwned>(record: &[u8]) -> Result<T, Fault> {
    match record.split_first() {
        Some((&FORMAT, body)) => {
            postcard::from_bytes(body).map_err(|_| damaged("a record of access that does not read"))
        }
        _ => Err(damaged("a record of access of unknown format")),
    }
}

fn damaged(what: &'static str) -> Fault {
    Fault::Damaged {
        space: Space::Meta,
        what,
    }
}

/// The key that signs tokens; none until access control is enabled.
pub(super) fn token_key<V: View>(view: &V) -> Result<Option<Secret>, V::Error> {
    match view.get(Space::Meta, TOKEN_KEY)? {
        Some(record) => Ok(Some(decode(&record)?)),
        None => Ok(None),
    }
}

pub(super) fn write_token_key<S: Store>(
    store: &mut HashedStore<'_, S>,
    key: &Secret,
) -> Result<(), S::Error> {
    store.put(Space::Meta, Bytes::from_static(TOKEN_KEY), encode(key))
}

/// Invalidates every token issued so far.
pub(super) fn forget_tokens<S: Store>(store: &mut HashedStore<'_, S>) -> Result<(), S::Error> {
    store.take(Space::Meta, &Bytes::from_static(TOKEN_KEY))?;
    Ok(())
}

/// The hash and the revision of a user's password; `None` if the user does not exist or has no
/// password.
///
/// # Errors
/// The store's error, which is fatal for the reader.
pub fn password_hash<V: View>(view: &V, name: &str) -> Result<Option<(Secret, u64)>, V::Error> {
    let user = User::read(view, name)?;
    Ok(user.and_then(|user| user.password.map(|hash| (hash, user.generation))))
}

/// Answers a query about users and roles; the caller has checked the permission.
///
/// # Errors
/// The outer error is the store's and is fatal for the reader. Inside, that there is no such user
/// or role; or [`ErrorKind::Internal`] for what is no such question.
pub fn read<V: View>(
    view: &V,
    request: &AuthRequest,
) -> Result<Result<AuthResponse, Error>, V::Error> {
    Ok(match request {
        AuthRequest::Status => Ok(AuthResponse::Status(meta::progress(view)?.access)),
        AuthRequest::UserGet { name } => match User::read(view, name)? {
            Some(user) => Ok(AuthResponse::User(UserInfo {
                name: name.clone(),
                roles: user.roles.into_iter().collect(),
                has_password: user.password.is_some(),
            })),
            None => Err(not_found::<User>(name)),
        },
        AuthRequest::UserList => Ok(AuthResponse::Users(names::<User, V>(view)?)),
        AuthRequest::RoleGet { name } => match role(view, name)? {
            Some(role) => Ok(AuthResponse::Role(RoleInfo {
                name: name.clone(),
                permissions: role.permissions,
            })),
            None => Err(not_found::<Role>(name)),
        },
        AuthRequest::RoleList => {
            let mut roles = names::<Role, V>(view)?;
            roles.push(ROOT.to_owned());
            roles.sort();
            Ok(AuthResponse::Roles(roles))
        }
        _ => Err(Error::not_applied(
            ErrorKind::Internal,
            "a change of users or roles was handed to the readers",
        )),
    })
}

fn names<T: NamedRecord, V: View>(view: &V) -> Result<Vec<String>, V::Error> {
    let all = T::all(view)?;
    Ok(all.into_iter().map(|(name, _)| name).collect())
}

/// The role with this name. The role root always exists, has all permissions, and lists none.
pub(super) fn role<V: View>(view: &V, name: &str) -> Result<Option<Role>, V::Error> {
    match name {
        ROOT => Ok(Some(Role::default())),
        name => Role::read(view, name),
    }
}

pub(super) fn not_found<T: NamedRecord>(name: &str) -> Error {
    let kind = match T::PREFIX {
        USERS => ErrorKind::UserNotFound,
        _ => ErrorKind::RoleNotFound,
    };
    Error::not_applied(kind, format!("there is no {} {name:?}", T::WHAT))
}

pub(super) fn exists<T: NamedRecord>(name: &str) -> Error {
    let kind = match T::PREFIX {
        USERS => ErrorKind::UserExists,
        _ => ErrorKind::RoleExists,
    };
    Error::not_applied(kind, format!("there is a {} {name:?} already", T::WHAT))
}
