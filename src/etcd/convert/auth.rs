//! Users, roles and permissions.

use bytes::Bytes;

use super::Keys;
use crate::api;
use crate::api::{AuthRequest, KeyRange, Password, PermissionKind, Secret};
use crate::etcd::errors::{HASHED_PASSWORD, INVALID_AUTH_MANAGEMENT, PERMISSION_NOT_GIVEN};
use crate::etcd::proto;
use crate::etcd::proto::PermissionType;
use crate::etcd::status::Status;

/// The new user of `add`.
///
/// # Errors
/// It brings a hash, which only nodes make.
pub(crate) fn user_add(add: proto::AuthUserAddRequest) -> Result<AuthRequest, Status> {
    let has_none = add.options.is_some_and(|options| options.no_password);
    let given = Secret::new(add.password);
    if !add.hashed_password.is_empty() {
        return Err(HASHED_PASSWORD);
    }
    Ok(AuthRequest::UserAdd {
        name: add.name,
        password: match has_none {
            true => Password::None,
            false => password(given),
        },
    })
}

/// The new password of a user.
///
/// # Errors
/// As of [`user_add`].
pub(crate) fn change_password(
    change: proto::AuthUserChangePasswordRequest,
) -> Result<AuthRequest, Status> {
    let given = Secret::new(change.password);
    if !change.hashed_password.is_empty() {
        return Err(HASHED_PASSWORD);
    }
    Ok(AuthRequest::UserChangePassword {
        name: change.name,
        password: password(given),
    })
}

/// An empty password is none: clients of etcd that have one do not log in.
fn password(given: Secret) -> Password {
    match given.reveal() {
        [] => Password::None,
        _ => Password::Plain(given),
    }
}

/// A permission for a role.
///
/// # Errors
/// As etcd refuses it: there is none, or on no keys.
pub(crate) fn grant_permission(
    grant: proto::AuthRoleGrantPermissionRequest,
) -> Result<AuthRequest, Status> {
    let permission = grant.perm.ok_or(PERMISSION_NOT_GIVEN)?;
    let kind = PermissionType::try_from(permission.perm_type);
    let kind = match kind.map_err(|_| INVALID_AUTH_MANAGEMENT)? {
        PermissionType::Read => PermissionKind::Read,
        PermissionType::Write => PermissionKind::Write,
        PermissionType::ReadWrite => PermissionKind::ReadWrite,
    };
    let range = match Keys::of(&permission.key, &permission.range_end) {
        Keys::Some(range) if !permission.key.is_empty() => range,
        _ => return Err(INVALID_AUTH_MANAGEMENT),
    };
    Ok(AuthRequest::RoleGrantPermission {
        name: grant.name,
        permission: api::Permission {
            kind,
            key: permission.key,
            range,
        },
    })
}

/// The permission that a role is to lose; `None` if it is one that no role can have.
pub(crate) fn revoke_permission(
    revoke: proto::AuthRoleRevokePermissionRequest,
) -> Option<AuthRequest> {
    let Keys::Some(range) = Keys::of(&revoke.key, &revoke.range_end) else {
        return None;
    };
    if revoke.key.is_empty() && range == KeyRange::Single {
        return None;
    }
    Some(AuthRequest::RoleRevokePermission {
        name: revoke.role,
        key: revoke.key,
        range,
    })
}

/// The permissions of a role in etcd's order, that of their keys; each as it was granted.
pub(crate) fn permissions(role: api::RoleInfo) -> Vec<proto::Permission> {
    let mut permissions: Vec<proto::Permission> =
        role.permissions.into_iter().map(permission).collect();
    permissions.sort_by(|a, b| a.key.cmp(&b.key));
    permissions
}

fn permission(permission: api::Permission) -> proto::Permission {
    let kind = match permission.kind {
        PermissionKind::Read => PermissionType::Read,
        PermissionKind::Write => PermissionType::Write,
        PermissionKind::ReadWrite => PermissionType::ReadWrite,
    };
    let range_end = match permission.range.without_prefix(&permission.key) {
        KeyRange::Until(end) => end,
        KeyRange::From => Bytes::from_static(b"\0"),
        KeyRange::Single | KeyRange::Prefix => Bytes::new(),
    };
    proto::Permission {
        perm_type: kind as i32,
        key: permission.key,
        range_end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(key: &'static [u8], range_end: &'static [u8]) -> proto::Permission {
        proto::Permission {
            perm_type: PermissionType::ReadWrite as i32,
            key: Bytes::from_static(key),
            range_end: Bytes::from_static(range_end),
        }
    }

    fn granted(permission: proto::Permission) -> Result<api::Permission, Status> {
        let grant = proto::AuthRoleGrantPermissionRequest {
            name: "r".to_owned(),
            perm: Some(permission),
        };
        match grant_permission(grant)? {
            AuthRequest::RoleGrantPermission { permission, .. } => Ok(permission),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn ranges_come_back_byte_for_byte_and_in_order() {
        let ranges: [(&[u8], &[u8]); 5] = [
            (b"z", b""),
            (b"b", b"\0"),
            (b"a/", b"a0"),
            (b"c", b"c\0"),
            (b"\0", b"\0"),
        ];
        let role = api::RoleInfo {
            name: "r".to_owned(),
            permissions: ranges
                .map(|(key, end)| granted(given(key, end)).unwrap())
                .into(),
        };
        let shown = permissions(role);
        let mut sorted = ranges.map(|(key, end)| given(key, end)).to_vec();
        sorted.sort_by(|a, b| a.key.cmp(&b.key));
        assert_eq!(shown, sorted);
    }

    #[test]
    fn a_prefix_is_shown_as_the_range_that_it_is() {
        let prefix = |key: &'static [u8]| {
            permission(api::Permission {
                kind: PermissionKind::ReadWrite,
                key: Bytes::from_static(key),
                range: KeyRange::Prefix,
            })
        };
        assert_eq!(prefix(b"a/"), given(b"a/", b"a0"));
        assert_eq!(prefix(b""), given(b"", b"\0"));
        assert_eq!(prefix(b"\xff"), given(b"\xff", b"\0"));
    }

    #[test]
    fn permissions_on_no_keys_are_refused() {
        for (key, end) in [
            (&b""[..], &b""[..]),
            (b"", b"\0"),
            (b"b", b"b"),
            (b"b", b"a"),
        ] {
            assert_eq!(
                granted(proto::Permission {
                    key: Bytes::copy_from_slice(key),
                    range_end: Bytes::copy_from_slice(end),
                    ..proto::Permission::default()
                }),
                Err(INVALID_AUTH_MANAGEMENT)
            );
        }
        let unknown = proto::Permission {
            perm_type: 7,
            ..given(b"a", b"")
        };
        assert_eq!(granted(unknown), Err(INVALID_AUTH_MANAGEMENT));
        let none = proto::AuthRoleGrantPermissionRequest::default();
        assert_eq!(grant_permission(none), Err(PERMISSION_NOT_GIVEN));
        let revoked = |key: &'static [u8], range_end: &'static [u8]| {
            revoke_permission(proto::AuthRoleRevokePermissionRequest {
                role: "r".to_owned(),
                key: Bytes::from_static(key),
                range_end: Bytes::from_static(range_end),
            })
        };
        assert_eq!(revoked(b"", b""), None);
        assert_eq!(revoked(b"b", b"a"), None);
        // The native protocol has such a permission.
        assert!(revoked(b"", b"\0").is_some());
    }

    #[test]
    fn passwords_are_taken_and_hashes_are_not() {
        let add = proto::AuthUserAddRequest {
            name: "anna".to_owned(),
            password: "pw".to_owned(),
            ..proto::AuthUserAddRequest::default()
        };
        let password = |add| match user_add(add).unwrap() {
            AuthRequest::UserAdd { password, .. } => password,
            other => panic!("{other:?}"),
        };
        let plain = Password::Plain(Secret::new("pw"));
        assert_eq!(password(add.clone()), plain);
        let without = proto::AuthUserAddRequest {
            options: Some(proto::UserAddOptions { no_password: true }),
            ..add.clone()
        };
        assert_eq!(password(without), Password::None);
        let empty = proto::AuthUserAddRequest {
            password: String::new(),
            ..add.clone()
        };
        assert_eq!(password(empty), Password::None);
        let hashed = proto::AuthUserAddRequest {
            hashed_password: "x".to_owned(),
            ..add.clone()
        };
        assert_eq!(user_add(hashed), Err(HASHED_PASSWORD));
        assert!(!format!("{add:?}").contains("pw"), "it is not shown");
    }
}
