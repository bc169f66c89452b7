//! The service of users, roles and permissions: those of this store, in etcd's words.

use hyper::Response as HttpResponse;

use super::body::RequestBody;
use super::caller::{Caller, shown_token};
use super::grpc::{Reply, failure};
use super::pages::unexpected;
use super::unary::unary;
use super::unknown::unknown;
use crate::api::{
    AuthRequest, AuthResponse, Consistency, ROOT, Request, Response, ResponseBody, ResponseHeader,
    Secret,
};
use crate::etcd::convert;
use crate::etcd::errors::{
    AUTH_NOT_ENABLED, INVALID_AUTH_MANAGEMENT, Method, PERMISSION_NOT_GRANTED, ROLE_EMPTY,
    ROLE_EXISTS, USER_EMPTY,
};
use crate::etcd::proto;
use crate::etcd::proto::AuthDoneResponse;
use crate::etcd::status::Status;

/// Where its methods are.
pub(super) const SERVICE: &str = "/etcdserverpb.Auth/";

/// Answers a call of one of its methods.
pub(super) async fn call(caller: Caller, body: RequestBody, path: &str) -> HttpResponse<Reply> {
    let any = |_: &[u8]| Ok(());
    match path.strip_prefix(SERVICE).unwrap_or_default() {
        "AuthEnable" => unary(caller, body, any, enable).await,
        "AuthDisable" => unary(caller, body, any, disable).await,
        "AuthStatus" => unary(caller, body, any, status).await,
        "Authenticate" => unary(caller, body, any, authenticate).await,
        "UserAdd" => unary(caller, body, any, user_add).await,
        "UserGet" => unary(caller, body, any, user_get).await,
        "UserList" => unary(caller, body, any, user_list).await,
        "UserDelete" => unary(caller, body, any, user_delete).await,
        "UserChangePassword" => unary(caller, body, any, user_change_password).await,
        "UserGrantRole" => unary(caller, body, any, user_grant_role).await,
        "UserRevokeRole" => unary(caller, body, any, user_revoke_role).await,
        "RoleAdd" => unary(caller, body, any, role_add).await,
        "RoleGet" => unary(caller, body, any, role_get).await,
        "RoleList" => unary(caller, body, any, role_list).await,
        "RoleDelete" => unary(caller, body, any, role_delete).await,
        "RoleGrantPermission" => unary(caller, body, any, role_grant_permission).await,
        "RoleRevokePermission" => unary(caller, body, any, role_revoke_permission).await,
        _ => failure(&unknown(path)),
    }
}

/// AuthEnable.
async fn enable(caller: Caller, _: proto::AuthEnableRequest) -> Result<AuthDoneResponse, Status> {
    // The key is made by the node.
    let token_key = Secret::default();
    change(
        &caller,
        AuthRequest::Enable { token_key },
        Method::AuthEnable,
    )
    .await
}

/// AuthDisable.
async fn disable(caller: Caller, _: proto::AuthDisableRequest) -> Result<AuthDoneResponse, Status> {
    change(&caller, AuthRequest::Disable, Method::Auth).await
}

/// AuthStatus.
async fn status(
    caller: Caller,
    _: proto::AuthStatusRequest,
) -> Result<proto::AuthStatusResponse, Status> {
    // Any user may know it here, and only root in etcd.
    caller.wants_root().await?;
    let (header, answer) = ask(&caller, AuthRequest::Status, Method::Auth).await?;
    let AuthResponse::Status(status) = answer else {
        return Err(unexpected());
    };
    Ok(proto::AuthStatusResponse {
        header: Some(caller.header(&header)),
        enabled: status.enabled,
        auth_revision: status.revision,
    })
}

/// Authenticate.
async fn authenticate(
    caller: Caller,
    login: proto::AuthenticateRequest,
) -> Result<proto::AuthenticateResponse, Status> {
    let request = AuthRequest::Authenticate {
        name: login.name,
        password: Secret::new(login.password),
    };
    let (header, answer) = ask(&caller, request, Method::Authenticate).await?;
    match answer {
        AuthResponse::Token { token, .. } => Ok(proto::AuthenticateResponse {
            header: Some(caller.header(&header)),
            token: shown_token(&token),
        }),
        AuthResponse::NotEnabled => Err(AUTH_NOT_ENABLED),
        _ => Err(unexpected()),
    }
}

/// UserAdd.
async fn user_add(
    caller: Caller,
    add: proto::AuthUserAddRequest,
) -> Result<AuthDoneResponse, Status> {
    let request = match add.name.is_empty() {
        true => Err(USER_EMPTY),
        false => convert::user_add(add),
    };
    let request = of_root(&caller, request).await?;
    change(&caller, request, Method::Auth).await
}

/// UserGet.
async fn user_get(
    caller: Caller,
    get: proto::AuthUserGetRequest,
) -> Result<proto::AuthUserGetResponse, Status> {
    let request = AuthRequest::UserGet { name: get.name };
    let (header, answer) = ask(&caller, request, Method::Auth).await?;
    let AuthResponse::User(user) = answer else {
        return Err(unexpected());
    };
    Ok(proto::AuthUserGetResponse {
        header: Some(caller.header(&header)),
        roles: user.roles,
    })
}

/// UserList.
async fn user_list(
    caller: Caller,
    _: proto::AuthUserListRequest,
) -> Result<proto::AuthUserListResponse, Status> {
    let (header, answer) = ask(&caller, AuthRequest::UserList, Method::Auth).await?;
    let AuthResponse::Users(users) = answer else {
        return Err(unexpected());
    };
    Ok(proto::AuthUserListResponse {
        header: Some(caller.header(&header)),
        users,
    })
}

/// UserDelete.
async fn user_delete(
    caller: Caller,
    delete: proto::AuthUserDeleteRequest,
) -> Result<AuthDoneResponse, Status> {
    let method = method_for(&delete.name, Method::Auth);
    let request = AuthRequest::UserDelete { name: delete.name };
    change(&caller, request, method).await
}

/// UserChangePassword.
async fn user_change_password(
    caller: Caller,
    password: proto::AuthUserChangePasswordRequest,
) -> Result<AuthDoneResponse, Status> {
    let request = of_root(&caller, convert::change_password(password)).await?;
    change(&caller, request, Method::Auth).await
}

/// UserGrantRole.
async fn user_grant_role(
    caller: Caller,
    grant: proto::AuthUserGrantRoleRequest,
) -> Result<AuthDoneResponse, Status> {
    let request = AuthRequest::UserGrantRole {
        name: grant.user,
        role: grant.role,
    };
    change(&caller, request, Method::Auth).await
}

/// UserRevokeRole.
async fn user_revoke_role(
    caller: Caller,
    revoke: proto::AuthUserRevokeRoleRequest,
) -> Result<AuthDoneResponse, Status> {
    let method = match revoke.role == ROOT {
        // Of the user root it cannot be taken while access is controlled.
        true => method_for(&revoke.name, Method::UserRevokeRole),
        false => Method::UserRevokeRole,
    };
    let request = AuthRequest::UserRevokeRole {
        name: revoke.name,
        role: revoke.role,
    };
    change(&caller, request, method).await
}

/// RoleAdd. The role root is always there, and clients of etcd add it all the same.
async fn role_add(
    caller: Caller,
    add: proto::AuthRoleAddRequest,
) -> Result<AuthDoneResponse, Status> {
    let is_root = add.name == ROOT;
    let request = match add.name.is_empty() {
        true => Err(ROLE_EMPTY),
        false => Ok(AuthRequest::RoleAdd { name: add.name }),
    };
    let request = of_root(&caller, request).await?;
    match change(&caller, request, Method::Auth).await {
        Err(status) if is_root && status == ROLE_EXISTS => Ok(done_here(&caller)),
        answered => answered,
    }
}

/// RoleGet.
async fn role_get(
    caller: Caller,
    get: proto::AuthRoleGetRequest,
) -> Result<proto::AuthRoleGetResponse, Status> {
    let request = AuthRequest::RoleGet { name: get.role };
    let (header, answer) = ask(&caller, request, Method::Auth).await?;
    let AuthResponse::Role(role) = answer else {
        return Err(unexpected());
    };
    Ok(proto::AuthRoleGetResponse {
        header: Some(caller.header(&header)),
        perm: convert::permissions(role),
    })
}

/// RoleList.
async fn role_list(
    caller: Caller,
    _: proto::AuthRoleListRequest,
) -> Result<proto::AuthRoleListResponse, Status> {
    let (header, answer) = ask(&caller, AuthRequest::RoleList, Method::Auth).await?;
    let AuthResponse::Roles(roles) = answer else {
        return Err(unexpected());
    };
    Ok(proto::AuthRoleListResponse {
        header: Some(caller.header(&header)),
        roles,
    })
}

/// RoleDelete. That of the role root takes it from all users, while access is open.
async fn role_delete(
    caller: Caller,
    delete: proto::AuthRoleDeleteRequest,
) -> Result<AuthDoneResponse, Status> {
    let method = method_for(&delete.role, Method::Auth);
    let request = AuthRequest::RoleDelete { name: delete.role };
    change(&caller, request, method).await
}

/// RoleGrantPermission. The role root has all permissions, and gets no others.
async fn role_grant_permission(
    caller: Caller,
    grant: proto::AuthRoleGrantPermissionRequest,
) -> Result<AuthDoneResponse, Status> {
    let method = method_for(&grant.name, Method::Auth);
    let request = of_root(&caller, convert::grant_permission(grant)).await?;
    match change(&caller, request, method).await {
        Err(status) if method == Method::Root && status == INVALID_AUTH_MANAGEMENT => {
            Ok(done_here(&caller))
        }
        answered => answered,
    }
}

/// RoleRevokePermission.
async fn role_revoke_permission(
    caller: Caller,
    revoke: proto::AuthRoleRevokePermissionRequest,
) -> Result<AuthDoneResponse, Status> {
    let name = revoke.role.clone();
    if let Some(request) = convert::revoke_permission(revoke) {
        return change(&caller, request, Method::RoleRevokePermission).await;
    }
    // On keys on which no role has a permission.
    caller.wants_root().await?;
    ask(&caller, AuthRequest::RoleGet { name }, Method::Auth).await?;
    Err(PERMISSION_NOT_GRANTED)
}

/// `request`; what is wrong with it is told to who may change users and roles, and the others that they may not.
async fn of_root(
    caller: &Caller,
    request: Result<AuthRequest, Status>,
) -> Result<AuthRequest, Status> {
    if request.is_err() {
        caller.wants_root().await?;
    }
    request
}

/// What a change about `name` is, in the choice of texts.
fn method_for(name: &str, other: Method) -> Method {
    match name == ROOT {
        true => Method::Root,
        false => other,
    }
}

async fn change(
    caller: &Caller,
    request: AuthRequest,
    method: Method,
) -> Result<AuthDoneResponse, Status> {
    let (header, _) = ask(caller, request, method).await?;
    Ok(AuthDoneResponse {
        header: Some(caller.header(&header)),
    })
}

/// What has no effect is done at once.
fn done_here(caller: &Caller) -> AuthDoneResponse {
    let revision = caller.sessions.serving.store.revision();
    let header = caller.sessions.node.header(revision);
    AuthDoneResponse {
        header: Some(caller.header(&header)),
    }
}

async fn ask(
    caller: &Caller,
    request: AuthRequest,
    method: Method,
) -> Result<(ResponseHeader, AuthResponse), Status> {
    let request = Request::Auth(request);
    let asked = caller.ask(request, Consistency::Linearizable, method);
    let Response { header, body } = asked.await?;
    match body {
        ResponseBody::Auth(answer) => Ok((header, answer)),
        _ => Err(unexpected()),
    }
}
