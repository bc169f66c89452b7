//! The commands of users and roles.

use std::io;
use std::io::Write;

use serde_json::{Value, json};

use super::request::{key_range, note, unexpected};
use crate::api::{
    AuthRequest, AuthResponse, Consistency, ErrorKind, KeyRange, Password, Permission, ROOT,
    Request, ResponseBody, RoleInfo, Secret, UserInfo,
};
use crate::cli::arguments::Format;
use crate::cli::arguments::access::{AuthCommand, PasswordArgs, RoleCommand, UserCommand};
use crate::cli::connection::{Connection, Login, Target};
use crate::cli::failure::Failure;
use crate::cli::password;
use crate::cli::print::{Align, View, escaped, fields, line, row, table, with_header};
use crate::pki;

/// A command about who may do what.
#[derive(Debug)]
pub(super) enum AccessCommand {
    /// Whether access is controlled.
    Auth(AuthCommand),
    /// Users.
    User(UserCommand),
    /// Roles.
    Role(RoleCommand),
}

/// Carries a command out and prints what came of it.
///
/// # Errors
/// What went wrong, with the code to end with.
pub(super) async fn run(
    command: AccessCommand,
    connection: &impl Connection,
    target: &Target,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    if matches!(command, AccessCommand::Auth(AuthCommand::Enable))
        && let Some(warning) = lockout_warning(connection, target).await
    {
        note(&warning);
    }
    let (request, done) = request(command)?;
    let response = connection.call(Request::Auth(request), Consistency::default());
    let response = response.await?;
    let ResponseBody::Auth(answer) = response.body else {
        return Err(Failure::refused(
            "the server's reply does not match the request",
        ));
    };
    let (sentence, document) = match answer {
        AuthResponse::Done => (done.clone(), json!({ "done": done })),
        AuthResponse::Status(status) => (
            format!(
                "Authentication Status: {}\nAuthRevision: {}",
                status.enabled, status.revision
            ),
            json!({ "enabled": status.enabled, "revision": status.revision }),
        ),
        AuthResponse::User(user) => shown_user(&user),
        AuthResponse::Role(role) => shown_role(&role, view),
        AuthResponse::Users(names) => (names.join("\n"), json!({ "users": names })),
        AuthResponse::Roles(names) => (names.join("\n"), json!({ "roles": names })),
        other @ (AuthResponse::Token { .. } | AuthResponse::NotEnabled) => {
            return Err(unexpected(&ResponseBody::Auth(other)));
        }
    };
    match view.format {
        Format::Json => line(out, &with_header(&response.header, document))?,
        Format::Fields => fields(out, &with_header(&response.header, document))?,
        Format::Table => tabled(out, &document)?,
        Format::Simple if sentence.is_empty() => {}
        Format::Simple => writeln!(out, "{sentence}")?,
    }
    Ok(())
}

/// A row for each name or permission of a list, and one row for anything else.
fn tabled(out: &mut impl Write, document: &Value) -> io::Result<()> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let rows = |list: &[Value]| -> Vec<Vec<String>> {
        let row = |it: &Value| match it.as_str() {
            Some(name) => vec![escaped(View::default(), name.as_bytes())],
            None => vec![text(&it["kind"]), text(&it["keys"])],
        };
        list.iter().map(row).collect()
    };
    const PERMISSION: [(&str, Align); 2] = [("PERMISSION", Align::Left), ("KEYS", Align::Left)];
    for (list, columns) in [
        ("users", &[("USER", Align::Left)][..]),
        ("roles", &[("ROLE", Align::Left)]),
        ("permissions", &PERMISSION),
    ] {
        let is_user = document.get("user").is_some();
        if let Some(list) = document[list].as_array().filter(|_| !is_user) {
            return table(out, columns, rows(list).into_iter());
        }
    }
    row(out, document)
}

/// What is to be said before access control is enabled: that this client will be refused, if it will be or
/// may be.
pub(super) async fn lockout_warning(
    connection: &impl Connection,
    target: &Target,
) -> Option<String> {
    let of_certificate = || pki::client_name(&target.cert);
    let user = match &target.login {
        Some(Login::Password(user, _)) => user.clone(),
        // Only the nodes know whom it names.
        Some(Login::TokenFile(_)) => return Some(TOKEN_ENDS.to_owned()),
        None => of_certificate()?,
    };
    let name = user.clone();
    let request = Request::Auth(AuthRequest::UserGet { name });
    let answer = connection.call(request, Consistency::default()).await;
    let lacks = match answer.map(|response| response.body) {
        Ok(ResponseBody::Auth(AuthResponse::User(found))) => {
            match found.roles.iter().any(|role| role == ROOT) {
                true => return None,
                false => "does not have the role root",
            }
        }
        Err(error) if error.kind == ErrorKind::UserNotFound => "does not exist",
        _ => return None,
    };
    Some(format!(
        "note: this client is the user {user}, which {lacks}. Once access control is enabled it may \
         not administer the cluster, nor disable access control: for that use --user root, or give \
         {user} the role (`leasehold user add {user}`, `leasehold user grant-role {user} root`)"
    ))
}

const TOKEN_ENDS: &str = "\
note: this client is the user whom its token names, until the token expires or is refused. To keep a \
way in without one, give root a password (`leasehold user passwd root`, then --user root), or issue a \
certificate of that name (`leasehold cert issue --client --name root`)";

/// What is asked for, and the sentence to say when it is done.
fn request(command: AccessCommand) -> Result<(AuthRequest, String), Failure> {
    Ok(match command {
        AccessCommand::Auth(command) => match command {
            AuthCommand::Enable => {
                let token_key = Secret::default();
                let request = AuthRequest::Enable { token_key };
                (request, "Authentication Enabled".to_owned())
            }
            AuthCommand::Disable => (AuthRequest::Disable, "Authentication Disabled".to_owned()),
            AuthCommand::Status => (AuthRequest::Status, String::new()),
        },
        AccessCommand::User(command) => of_user(command)?,
        AccessCommand::Role(command) => of_role(command),
    })
}

fn of_user(command: UserCommand) -> Result<(AuthRequest, String), Failure> {
    Ok(match command {
        UserCommand::Add(arguments) => {
            let password = new_password(&arguments)?;
            let name = arguments.user;
            let done = format!("User {name} created");
            (AuthRequest::UserAdd { name, password }, done)
        }
        UserCommand::Get(arguments) => {
            let name = arguments.user;
            (AuthRequest::UserGet { name }, String::new())
        }
        UserCommand::List => (AuthRequest::UserList, String::new()),
        UserCommand::Delete(arguments) => {
            let name = arguments.user;
            let done = format!("User {name} deleted");
            (AuthRequest::UserDelete { name }, done)
        }
        UserCommand::Passwd(arguments) => {
            let password = new_password(&arguments)?;
            let name = arguments.user;
            let done = "Password updated".to_owned();
            (AuthRequest::UserChangePassword { name, password }, done)
        }
        UserCommand::GrantRole(arguments) => {
            let (name, role) = (arguments.user, arguments.role);
            let done = format!("Role {role} is granted to user {name}");
            (AuthRequest::UserGrantRole { name, role }, done)
        }
        UserCommand::RevokeRole(arguments) => {
            let (name, role) = (arguments.user, arguments.role);
            let done = format!("Role {role} is revoked from user {name}");
            (AuthRequest::UserRevokeRole { name, role }, done)
        }
    })
}

fn of_role(command: RoleCommand) -> (AuthRequest, String) {
    match command {
        RoleCommand::Add(arguments) => {
            let name = arguments.role;
            let done = format!("Role {name} created");
            (AuthRequest::RoleAdd { name }, done)
        }
        RoleCommand::Get(arguments) => {
            let name = arguments.role;
            (AuthRequest::RoleGet { name }, String::new())
        }
        RoleCommand::List => (AuthRequest::RoleList, String::new()),
        RoleCommand::Delete(arguments) => {
            let name = arguments.role;
            let done = format!("Role {name} deleted");
            (AuthRequest::RoleDelete { name }, done)
        }
        RoleCommand::GrantPermission(arguments) => {
            let name = arguments.role;
            let (key, range) = key_range(arguments.range);
            let kind = arguments.kind.into();
            let permission = Permission { kind, key, range };
            let done = format!("Role {name} updated");
            (AuthRequest::RoleGrantPermission { name, permission }, done)
        }
        RoleCommand::RevokePermission(arguments) => {
            let name = arguments.role;
            let (key, range) = key_range(arguments.range);
            let done = format!("Permission is revoked from role {name}");
            (AuthRequest::RoleRevokePermission { name, key, range }, done)
        }
    }
}

fn new_password(arguments: &PasswordArgs) -> Result<Password, Failure> {
    if arguments.no_password {
        return Ok(Password::None);
    }
    let file = arguments.new_password_file.as_deref();
    Ok(Password::Plain(password::new(&arguments.user, file)?))
}

fn shown_user(user: &UserInfo) -> (String, Value) {
    let sentence = format!("User: {}\nRoles: {}", user.name, user.roles.join(" "));
    let document = json!({
        "user": user.name,
        "roles": user.roles,
        "has_password": user.has_password,
    });
    (sentence, document)
}

fn shown_role(role: &RoleInfo, view: View) -> (String, Value) {
    let mut sentence = format!("Role {}", role.name);
    let mut permissions = Vec::new();
    for permission in &role.permissions {
        let key = escaped(view, &permission.key);
        let extent = match &permission.range {
            KeyRange::Single => key.clone(),
            KeyRange::Prefix => format!("{key} (prefix)"),
            KeyRange::Until(end) => format!("[{key}, {})", escaped(view, end)),
            KeyRange::From => format!("[{key}, ...)"),
        };
        let kind = permission.kind.name();
        sentence.push_str(&format!("\n{kind} {extent}"));
        permissions.push(json!({ "kind": kind, "keys": extent }));
    }
    let document = json!({ "role": role.name, "permissions": permissions });
    (sentence, document)
}
