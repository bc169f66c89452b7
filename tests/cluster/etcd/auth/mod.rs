//! Users, roles and permissions by the port for etcd's clients: etcd's command line at a node that does
//! not lead, tokens on the wire, and the same requests to etcd.

mod answers;
mod tokens;

use std::fs;
use std::path::{Path, PathBuf};

use memchr::memmem;

use super::{EtcdCluster, etcdctl, run};
use crate::harness::{eventually, files_below};

/// Nobody would write these by accident.
const ROOT: &str = "root:canary-of-root-2c19";
const ANNA: &str = "anna:canary-of-anna-90d4";
const ANNA_LATER: &str = "canary-of-anna-later-5f";
const WRONG: &str = "canary-of-nobody-71aa";

/// etcd's command line, in the name of `user` if there is one.
struct Ctl {
    program: PathBuf,
    endpoint: String,
}

impl Ctl {
    fn refused(&self, user: Option<&str>, arguments: &[&str], with: &str) {
        let (is_done, said) = self.run(user, arguments);
        assert!(!is_done, "{user:?} {arguments:?}: {said}");
        assert!(said.contains(with), "{user:?} {arguments:?}: {said}");
    }

    fn must(&self, user: Option<&str>, arguments: &[&str]) -> String {
        let (is_done, said) = self.run(user, arguments);
        assert!(is_done, "{user:?} {arguments:?}: {said}");
        said
    }

    fn run(&self, user: Option<&str>, arguments: &[&str]) -> (bool, String) {
        let named = user.map(|user| format!("--user={user}"));
        let mut all: Vec<&str> = named.iter().map(String::as_str).collect();
        all.extend(arguments);
        run(&self.program, &self.endpoint, &all)
    }
}

#[test]
fn etcdctl_sets_up_users_and_each_does_what_its_roles_grant_at_any_node() {
    let Some(program) = etcdctl("users and roles of etcdctl") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let audit = folder.path().join("audit.log");
    let settings = [
        ("LEASEHOLD_ETCD_COMPAT_INSECURE", "true"),
        ("LEASEHOLD_AUTH_AUDIT_FILE", audit.to_str().unwrap()),
        ("LEASEHOLD_LOG_FILTER", "leasehold=trace,debug"),
    ];
    let mut cluster = EtcdCluster::start(3, &settings);
    let ctl = Ctl {
        program: program.clone(),
        endpoint: cluster.ports[cluster.follower()].to_string(),
    };
    for key in ["pub/1", "secret"] {
        ctl.must(None, &["put", key, "v"]);
    }
    for steps in [
        &["user", "add", ROOT][..],
        &["user", "add", ANNA],
        &["user", "add", "bert", "--no-password"],
        &["role", "add", "readers"],
        &[
            "role",
            "grant-permission",
            "readers",
            "--prefix=true",
            "read",
            "pub/",
        ],
        &["role", "grant-permission", "readers", "readwrite", "own"],
        &["user", "grant-role", "anna", "readers"],
    ] {
        ctl.must(None, steps);
    }
    ctl.refused(None, &["user", "add", ANNA], "user name already exists");
    ctl.refused(
        None,
        &["role", "add", "readers"],
        "role name already exists",
    );
    ctl.refused(None, &["user", "get", "carl"], "user name not found");
    ctl.refused(
        None,
        &["user", "revoke-role", "bert", "readers"],
        "role is not granted to the user",
    );
    ctl.refused(
        None,
        &["role", "revoke-permission", "readers", "other"],
        "permission is not granted to the role",
    );
    // It grants root the role root, and then does it.
    let said = ctl.must(None, &["auth", "enable"]);
    assert!(
        said.contains(
            "Authentication Enabled
"
        ),
        "{said}"
    );

    anna_does_what_she_may(&cluster, &program);
    let (root, anna) = (Some(ROOT), Some(ANNA));
    ctl.refused(None, &["get", "pub/1"], "user name is empty");
    let wrong = format!("anna:{WRONG}");
    ctl.refused(
        Some(&wrong),
        &["get", "pub/1"],
        "authentication failed, invalid user ID or password",
    );
    let list = ctl.must(root, &["user", "list"]);
    assert_eq!(list, "anna\nbert\nroot\n");
    assert_eq!(ctl.must(root, &["role", "list"]), "readers\nroot\n");
    let role = ctl.must(anna, &["role", "get", "readers"]);
    assert_eq!(
        role,
        "Role readers\nKV Read:\n\town\n\t[pub/, pub0) (prefix pub/)\nKV Write:\n\town\n"
    );
    let user = ctl.must(anna, &["user", "get", "anna"]);
    assert_eq!(user, "User: anna\nRoles: readers\n");
    ctl.refused(root, &["user", "delete", "root"], "invalid auth management");

    // Another password, and another permission.
    let password = ["user", "passwd", "anna", "--interactive=false"];
    assert!(with_input(&ctl, root, &password, ANNA_LATER));
    ctl.refused(anna, &["get", "pub/1"], "authentication failed");
    let later = format!("anna:{ANNA_LATER}");
    ctl.must(Some(&later), &["get", "pub/1"]);
    let revoke = [
        "role",
        "revoke-permission",
        "readers",
        "pub/",
        "--prefix=true",
    ];
    ctl.must(root, &revoke);
    ctl.refused(Some(&later), &["get", "pub/1"], "permission denied");
    ctl.must(Some(&later), &["put", "own", "v"]);
    ctl.must(root, &["role", "delete", "readers"]);
    ctl.refused(Some(&later), &["put", "own", "v"], "permission denied");
    ctl.must(root, &["user", "delete", "anna"]);
    ctl.refused(Some(&later), &["get", "own"], "authentication failed");
    assert_eq!(
        ctl.must(root, &["auth", "disable"]),
        "Authentication Disabled\n"
    );
    assert_eq!(ctl.must(None, &["get", "own"]), "own\nv\n");
    nothing_tells_a_secret(&mut cluster, &audit);
}

/// At each node: what her role grants, and nothing else.
fn anna_does_what_she_may(cluster: &EtcdCluster, program: &Path) {
    let (root, anna) = (Some(ROOT), Some(ANNA));
    for (place, port) in cluster.ports.iter().enumerate() {
        let ctl = Ctl {
            program: program.to_owned(),
            endpoint: port.to_string(),
        };
        assert_eq!(ctl.must(anna, &["get", "pub/", "--prefix"]), "pub/1\nv\n");
        assert_eq!(ctl.must(anna, &["put", "own", "v"]), "OK\n");
        ctl.refused(anna, &["get", "secret"], "permission denied");
        ctl.refused(anna, &["put", "pub/1", "x"], "permission denied");
        if place == cluster.follower() {
            anna_is_refused(&ctl);
        }
    }
    let ctl = Ctl {
        program: program.to_owned(),
        endpoint: cluster.ports[cluster.follower()].to_string(),
    };
    let lease = ctl.must(anna, &["lease", "grant", "600"]);
    let lease = format!("--lease={}", lease.split(' ').nth(1).unwrap());
    ctl.must(anna, &["put", "own", "v", &lease]);
    ctl.refused(anna, &["put", "pub/1", "v", &lease], "permission denied");
    ctl.must(root, &["put", "secret", "v"]);
    ctl.must(root, &["defrag"]);
    assert_eq!(ctl.must(root, &["get", "secret"]), "secret\nv\n");
}

fn anna_is_refused(ctl: &Ctl) {
    for arguments in [
        &["get", "", "--prefix"][..],
        &["del", "secret"],
        &["watch", "secret"],
        &["compact", "2"],
        &["defrag"],
        &["user", "list"],
        &["user", "get", "root"],
        &["role", "get", "root"],
        &["user", "add", "carl:x"],
        &["role", "grant-permission", "readers", "read", "secret"],
        &["auth", "disable"],
        &["member", "add", "n9", "--peer-urls=https://n9@127.0.0.1:9"],
    ] {
        ctl.refused(Some(ANNA), arguments, "permission denied");
    }
}

/// Runs a command that reads a password.
fn with_input(ctl: &Ctl, user: Option<&str>, arguments: &[&str], input: &str) -> bool {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let mut child = Command::new(&ctl.program)
        .env_clear()
        .env("ETCDCTL_API", "3")
        .args([
            "--endpoints",
            &ctl.endpoint,
            "--command-timeout",
            "60s",
            "--dial-timeout",
            "60s",
        ])
        .args(user.map(|user| format!("--user={user}")))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin, "{input}").unwrap();
    drop(stdin);
    child.wait().unwrap().success()
}

/// No password is in a log, in the audit file, or on a disk; and no token in the first two.
fn nothing_tells_a_secret(cluster: &mut EtcdCluster, audit: &Path) {
    let told = || fs::read_to_string(audit).unwrap();
    eventually("the last line of the audit", || {
        told().contains("auth_disable").then_some(())
    });
    let told = told();
    for operation in [
        "auth_enable",
        "authenticate",
        "user_add",
        "user_change_password",
    ] {
        assert!(told.contains(operation), "{operation}: {told}");
    }
    let by_anna = told
        .lines()
        .any(|line| line.contains("\"anna\"") && line.contains("LH-PERMISSION-DENIED"));
    assert!(by_anna, "{told}");
    let password = |named: &'static str| named.split_once(':').map_or(named, |(_, it)| it);
    let secrets = [ROOT, ANNA, ANNA_LATER, WRONG].map(password);
    for node in &mut cluster.cluster.nodes {
        assert_eq!(node.stop(), 0);
        let log = node.log_text();
        for secret in secrets {
            assert!(!log.contains(secret), "{secret} is in a log");
            assert!(!told.contains(secret), "{secret} is in the audit file");
            for file in files_below(&node.data_dir) {
                let bytes = fs::read(&file).unwrap();
                let is_there = memmem::find(&bytes, secret.as_bytes()).is_some();
                assert!(!is_there, "{secret} is in {}", file.display());
            }
        }
    }
}
