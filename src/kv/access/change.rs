//! Changes to users, roles, and to whether access control is enabled.
//!
//! Each effective change raises the access-control revision, from which caches of the rules learn
//! that they are out of date. While access control is enabled, the user [`ROOT`] keeps its role:
//! once it were removed, no user could grant it again.

use bytes::Bytes;

use crate::api::{
    AuthRequest, AuthResponse, AuthStatus, Error, ErrorKind, KeyRange, Password, Permission, ROOT,
    Secret,
};
use crate::kv::hash::HashedStore;
use crate::kv::store::Store;

use super::records::{NamedRecord, Role, User, exists, not_found, write_token_key};
use super::{Author, records};

/// The most users, roles, roles of a user and permissions of a role. Constants, because every
/// replica must reach the same decision.
const USERS_MAX: u64 = 10_000;
const ROLES_MAX: u64 = 1_000;
const ROLES_OF_USER_MAX: usize = 100;
const PERMISSIONS_MAX: usize = 1_000;

/// Executes `request` for `author`, whose permission has been checked.
// Long: one match of all changes of access control.
pub(in crate::kv) fn change<S: Store>(
    store: &mut HashedStore<'_, S>,
    access: &mut AuthStatus,
    author: Option<&Author>,
    request: &AuthRequest,
) -> Result<Result<AuthResponse, Error>, S::Error> {
    let next = access.revision + 1;
    let is_enabled = access.enabled;
    let done = match request {
        AuthRequest::Enable { token_key } => {
            let enabled = enable(store, author, is_enabled, token_key)?;
            access.enabled |= enabled.is_ok();
            enabled
        }
        AuthRequest::Disable => {
            access.enabled = false;
            records::forget_tokens(store)?;
            Ok(is_enabled)
        }
        AuthRequest::UserAdd { name, password } => add_user(store, next, name, password)?,
        AuthRequest::UserDelete { name } if is_enabled && name == ROOT => Err(root_stays()),
        AuthRequest::UserDelete { name } => match User::remove(store, name)? {
            true => Ok(true),
            false => Err(not_found::<User>(name)),
        },
        AuthRequest::UserChangePassword { name, password } => match hash_of(password) {
            Ok(hash) => change_user(store, name, |user| {
                user.password = hash;
                user.generation = next;
                Ok(true)
            })?,
            Err(refusal) => Err(refusal),
        },
        AuthRequest::UserGrantRole { name, role } => grant_role(store, name, role)?,
        AuthRequest::UserRevokeRole { name, role }
            if is_enabled && name == ROOT && role == ROOT =>
        {
            Err(root_stays())
        }
        AuthRequest::UserRevokeRole { name, role } => {
            change_user(store, name, |user| match user.roles.remove(role) {
                true => Ok(true),
                false => Err(Error::not_applied(
                    ErrorKind::RoleNotFound,
                    format!("the user {name:?} does not have the role {role:?}"),
                )),
            })?
        }
        AuthRequest::RoleAdd { name } => add_role(store, name)?,
        AuthRequest::RoleDelete { name } if is_enabled && name == ROOT => Err(root_is_given()),
        AuthRequest::RoleDelete { name } => delete_role(store, name)?,
        AuthRequest::RoleGrantPermission { name, permission } => {
            change_role(store, name, |role| grant(role, permission))?
        }
        AuthRequest::RoleRevokePermission { name, key, range } => {
            change_role(store, name, |role| {
                let before = role.permissions.len();
                role.permissions
                    .retain(|granted| !is_about(granted, key, range));
                match role.permissions.len() < before {
                    true => Ok(true),
                    false => Err(Error::not_applied(
                        ErrorKind::InvalidArgument,
                        format!(
                            "the role {name:?} has no permission on exactly these keys: look it up, \
                             and name the range as it stands there"
                        ),
                    )),
                }
            })?
        }
        AuthRequest::Status
        | AuthRequest::Authenticate { .. }
        | AuthRequest::UseToken { .. }
        | AuthRequest::UserGet { .. }
        | AuthRequest::UserList
        | AuthRequest::RoleGet { .. }
        | AuthRequest::RoleList => Err(Error::not_applied(
            ErrorKind::Internal,
            "a question about users or roles was handed to the log",
        )),
    };
    Ok(done.map(|changed| {
        access.revision += u64::from(changed);
        AuthResponse::Done
    }))
}

fn enable<S: Store>(
    store: &mut HashedStore<'_, S>,
    author: Option<&Author>,
    is_enabled: bool,
    token_key: &Secret,
) -> Result<Result<bool, Error>, S::Error> {
    if is_enabled {
        return Ok(Ok(false));
    }
    let refuse = |kind, detail: &str| Ok(Err(Error::not_applied(kind, detail)));
    let Some(root) = User::read(store, ROOT)? else {
        return refuse(
            ErrorKind::UserNotFound,
            "there is no user root, and only root can disable access control again: add it first",
        );
    };
    if !root.roles.contains(ROOT) {
        return refuse(
            ErrorKind::RoleNotFound,
            "the user root does not have the role root: grant it to him first",
        );
    }
    let is_asking = author.is_some_and(|author| author.name() == ROOT);
    if root.password.is_none() && !is_asking {
        return refuse(
            ErrorKind::InvalidArgument,
            "the user root has no password, and this request has no certificate with that name: \
             set a password for root, or use such a certificate",
        );
    }
    write_token_key(store, token_key)?;
    Ok(Ok(true))
}

fn add_user<S: Store>(
    store: &mut HashedStore<'_, S>,
    generation: u64,
    name: &str,
    password: &Password,
) -> Result<Result<bool, Error>, S::Error> {
    let password = match hash_of(password) {
        Ok(password) => password,
        Err(refusal) => return Ok(Err(refusal)),
    };
    if User::read(store, name)?.is_some() {
        return Ok(Err(exists::<User>(name)));
    }
    if User::count(store)? >= USERS_MAX {
        return Ok(Err(too_many("users", USERS_MAX)));
    }
    let user = User {
        password,
        generation,
        ..User::default()
    };
    user.write(store, name)?;
    Ok(Ok(true))
}

fn add_role<S: Store>(
    store: &mut HashedStore<'_, S>,
    name: &str,
) -> Result<Result<bool, Error>, S::Error> {
    if records::role(store, name)?.is_some() {
        return Ok(Err(exists::<Role>(name)));
    }
    if Role::count(store)? >= ROLES_MAX {
        return Ok(Err(too_many("roles", ROLES_MAX)));
    }
    Role::default().write(store, name)?;
    Ok(Ok(true))
}

fn grant_role<S: Store>(
    store: &mut HashedStore<'_, S>,
    name: &str,
    role: &str,
) -> Result<Result<bool, Error>, S::Error> {
    if User::read(store, name)?.is_none() {
        return Ok(Err(not_found::<User>(name)));
    }
    if records::role(store, role)?.is_none() {
        return Ok(Err(not_found::<Role>(role)));
    }
    change_user(store, name, |user| {
        if user.roles.len() >= ROLES_OF_USER_MAX && !user.roles.contains(role) {
            return Err(too_many("roles", ROLES_OF_USER_MAX as u64));
        }
        Ok(user.roles.insert(role.to_owned()))
    })
}

/// Removes a role. The role root stays, and is taken from the users that have it.
fn delete_role<S: Store>(
    store: &mut HashedStore<'_, S>,
    name: &str,
) -> Result<Result<bool, Error>, S::Error> {
    let mut has_changed = false;
    if name != ROOT {
        if !Role::remove(store, name)? {
            return Ok(Err(not_found::<Role>(name)));
        }
        has_changed = true;
    }
    for (of, mut user) in User::all(store)? {
        if user.roles.remove(name) {
            user.write(store, &of)?;
            has_changed = true;
        }
    }
    Ok(Ok(has_changed))
}

/// Whether `granted` is a permission on exactly these keys. A prefix is the range that it is, as
/// which etcd's clients write it.
fn is_about(granted: &Permission, key: &Bytes, range: &KeyRange) -> bool {
    granted.key == *key && granted.range.without_prefix(&granted.key) == range.without_prefix(key)
}

fn grant(role: &mut Role, permission: &Permission) -> Result<bool, Error> {
    let same = |granted: &&mut Permission| is_about(granted, &permission.key, &permission.range);
    if let Some(granted) = role.permissions.iter_mut().find(same) {
        let changed = granted != permission;
        *granted = permission.clone();
        return Ok(changed);
    }
    if role.permissions.len() >= PERMISSIONS_MAX {
        return Err(too_many("permissions", PERMISSIONS_MAX as u64));
    }
    role.permissions.push(permission.clone());
    Ok(true)
}

/// Stores the user if `change` returns that it has changed it.
fn change_user<S: Store>(
    store: &mut HashedStore<'_, S>,
    name: &str,
    change: impl FnOnce(&mut User) -> Result<bool, Error>,
) -> Result<Result<bool, Error>, S::Error> {
    change_named(store, name, change)
}

fn change_role<S: Store>(
    store: &mut HashedStore<'_, S>,
    name: &str,
    change: impl FnOnce(&mut Role) -> Result<bool, Error>,
) -> Result<Result<bool, Error>, S::Error> {
    match name {
        ROOT => Ok(Err(root_is_given())),
        name => change_named(store, name, change),
    }
}

fn change_named<S: Store, T: NamedRecord>(
    store: &mut HashedStore<'_, S>,
    name: &str,
    change: impl FnOnce(&mut T) -> Result<bool, Error>,
) -> Result<Result<bool, Error>, S::Error> {
    let Some(mut found) = T::read(store, name)? else {
        return Ok(Err(not_found::<T>(name)));
    };
    let changed = change(&mut found);
    if changed == Ok(true) {
        found.write(store, name)?;
    }
    Ok(changed)
}

/// The password hash in a command; the proposer has hashed it.
fn hash_of(password: &Password) -> Result<Option<Secret>, Error> {
    match password {
        Password::None => Ok(None),
        Password::Hashed(hash) => Ok(Some(hash.clone())),
        Password::Plain(_) => Err(Error::not_applied(
            ErrorKind::Internal,
            "an unhashed password reached the state machine",
        )),
    }
}

fn too_many(what: &str, most: u64) -> Error {
    Error::not_applied(
        ErrorKind::InvalidArgument,
        format!("there are {most} {what}, the most that are allowed"),
    )
}

fn root_stays() -> Error {
    Error::not_applied(
        ErrorKind::InvalidArgument,
        "the user root must keep the role root while access control is enabled: disable it first",
    )
}

fn root_is_given() -> Error {
    Error::not_applied(
        ErrorKind::InvalidArgument,
        "the role root has all permissions and cannot be changed",
    )
}
