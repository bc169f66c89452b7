//! What operators are told to do helps: the doctor's advice, a leader lease that is cleared, and a
//! variable that nobody reads.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::harness::{Cluster, eventually, leasehold_command, run, write_secret};

/// The doctor's findings with `flags`, and its exit code.
fn doctor(flags: &[&str]) -> (i32, Vec<Value>) {
    let (code, out, said) = run(&[flags, &["--timeout=5s", "doctor", "-o", "json"]].concat());
    let found = serde_json::from_str(&out);
    (
        code,
        found.unwrap_or_else(|_| panic!("no findings: {out}{said}")),
    )
}

/// The findings when nothing is wrong. An election is something wrong to the doctor, and may be at any
/// moment: then it is asked again.
fn healthy(doctor: impl Fn() -> (i32, Vec<Value>)) -> Vec<Value> {
    eventually("a doctor who finds nothing wrong", || {
        let (code, found) = doctor();
        if code != 0 {
            eprintln!("the doctor ends with {code}: {found:#?}");
        }
        (code == 0).then_some(found)
    })
}

fn flags_of(cluster: &Cluster, endpoint: &str) -> [String; 4] {
    [
        format!("--endpoints={endpoint}"),
        format!("--cacert={}", cluster.pki.file("client-ca.pem")),
        format!("--cert={}", cluster.pki.file("tester.pem")),
        format!("--key={}", cluster.pki.file("tester.key")),
    ]
}

fn text<'a>(finding: &'a Value, field: &str) -> &'a str {
    finding[field].as_str().unwrap()
}

/// The advice of the only finding of `check` that is as bad as `level`.
fn advice<'a>(found: &'a [Value], check: &str, level: &str) -> &'a str {
    let mut bad = found
        .iter()
        .filter(|it| text(it, "check") == check && text(it, "level") == level);
    let (Some(one), None) = (bad.next(), bad.next()) else {
        panic!("not one {level} of {check}: {found:#?}");
    };
    text(one, "advice")
}

#[test]
fn the_doctor_asks_the_members_that_nobody_named() {
    let mut cluster = Cluster::start(3);
    cluster.wait_for_lease();
    let flags = flags_of(&cluster, &cluster.nodes[0].client.to_string());
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let found = healthy(|| doctor(&flags));
    let quorum = found.iter().find(|it| text(it, "check") == "quorum");
    let quorum = quorum.expect("it looks for a quorum");
    assert_eq!(text(quorum, "level"), "ok", "{found:#?}");
    for node in &cluster.nodes {
        let address = node.client.to_string();
        let connected = |it: &&Value| text(it, "check") == "connect" && it["place"] == address;
        assert_eq!(
            found.iter().filter(connected).count(),
            1,
            "{address}: {found:#?}"
        );
    }
}

#[test]
fn the_doctor_names_what_helps() {
    let mut cluster = Cluster::start(1);
    cluster.wait_for_lease();
    let own = cluster.nodes[0].client.to_string();
    let with = |place: usize, flag: String| {
        let mut flags = flags_of(&cluster, &own);
        flags[place] = flag;
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        doctor(&flags)
    };

    // A key that others may read: the key is good.
    let exposed = cluster.pki.file("exposed.key");
    fs::copy(cluster.pki.file("tester.key"), &exposed).unwrap();
    fs::set_permissions(&exposed, fs::Permissions::from_mode(0o644)).unwrap();
    let (code, found) = with(3, format!("--key={exposed}"));
    assert_eq!(code, 1, "{found:#?}");
    let told = advice(&found, "certificate", "fail");
    assert!(told.contains("chmod") && !told.contains("issue"), "{told}");

    // Nobody of that name.
    let (code, found) = with(0, "--endpoints=no-such-host.invalid:7400".to_owned());
    assert_eq!(code, 1, "{found:#?}");
    let told = advice(&found, "connect", "fail");
    assert!(told.contains("name") && !told.contains("UDP"), "{told}");

    // The port of the other nodes.
    let (code, found) = with(0, format!("--endpoints={}", cluster.nodes[0].peer));
    assert_eq!(code, 1, "{found:#?}");
    let told = advice(&found, "connect", "fail");
    assert!(told.contains("listen.client"), "{told}");
    assert!(!told.contains("certificate"), "{told}");

    // A certificate of another cluster: both are named, and nobody is asked.
    let other = Cluster::prepare(1);
    let (code, found) = with(2, format!("--cert={}", other.pki.file("tester.pem")));
    assert_eq!(code, 1, "{found:#?}");
    let both = found.iter().find(|it| it["place"] == "all files");
    let both = both.unwrap_or_else(|| panic!("nothing of two clusters: {found:#?}"));
    for pki in [&cluster.pki, &other.pki] {
        let (_, out, _) = run(&["cert", "check", &pki.file("client-ca.pem")]);
        let id = out
            .split("cluster ")
            .nth(1)
            .unwrap()
            .split([',', ' '])
            .next();
        assert!(text(both, "found").contains(id.unwrap()), "{out}: {both}");
    }
    assert!(
        found.iter().all(|it| text(it, "check") != "connect"),
        "{found:#?}"
    );

    // Access control is on, and nobody knows the user `tester`.
    let password = cluster.folder.path().join("password");
    write_secret(&password, "correct horse\n");
    let file = format!("--new-password-file={}", password.display());
    let does = |login: &[&str], verb: &[&str]| {
        let (code, out, said) = cluster.cli(&[&["--exactly-once"][..], login, verb].concat());
        assert_eq!(code, 0, "{verb:?}: {out}{said}");
    };
    does(&[], &["user", "add", "root", &file]);
    does(&[], &["user", "grant-role", "root", "root"]);
    let password = password.to_str().unwrap();
    let login = ["--user", "root", "--password-file", password];
    let mut may_be_on = false;
    eventually("access control that is on", || {
        let (code, out, said) = cluster.cli(&["auth", "enable"]);
        if code == 0 && !may_be_on {
            assert!(said.contains("user tester, which does not exist"), "{said}");
        }
        may_be_on |= code == 4;
        assert!(code == 0 || may_be_on, "{code}: {out}{said}");
        // Once it is on, nobody knows who asks: root can say whether it is.
        let (known, out, _) = cluster.cli(&[&login[..], &["auth", "status"]].concat());
        let is_on = known == 0 && out.contains("Authentication Status: true");
        (code == 0 || is_on).then_some(())
    });
    let asked = || with(0, format!("--endpoints={own}"));
    let (code, found) = asked();
    assert_eq!(code, 1, "{found:#?}");
    let told = advice(&found, "answers", "fail");
    assert!(told.contains("leasehold user add"), "{told}");
    let of_the_members = |it: &&Value| text(it, "check").starts_with("quorum");
    assert_eq!(found.iter().find(of_the_members), None, "{found:#?}");

    // Now it knows him, and he may do nothing.
    let as_root = |verb: &[&str]| does(&login, verb);
    as_root(&["user", "add", "tester", "--no-password"]);
    let (code, found) = asked();
    assert_eq!(code, 1, "{found:#?}");
    let told = advice(&found, "answers", "fail");
    assert!(told.contains("grant-role"), "{told}");

    // He may do something, and not read what the doctor reads: the cluster is sound.
    as_root(&["role", "add", "some"]);
    as_root(&["role", "grant-permission", "some", "read", "elsewhere"]);
    as_root(&["user", "grant-role", "tester", "some"]);
    let found = healthy(asked);
    for check in ["quorum read", "leased read"] {
        let told = advice(&found, check, "warn");
        assert!(told.contains("--user"), "{told}");
    }
}

#[test]
fn the_doctor_looks_at_this_machine_without_a_cluster() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let mut command = leasehold_command();
    command.args(["doctor", "-o", "json", "--data-dir"]);
    command.arg(folder.path());
    // No cluster of `leasehold dev` either.
    command.env("XDG_RUNTIME_DIR", folder.path());
    let output = command.output().unwrap();
    let found: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success(), "{found:#?}");
    for check in ["clock", "disk", "open files"] {
        let looked_at = found.iter().any(|it| text(it, "check") == check);
        assert!(looked_at, "nothing of {check}: {found:#?}");
    }
    let told = advice(&found, "cluster", "warn");
    assert!(told.contains("--endpoints"), "{told}");
}

/// `leasehold leader-lease clear`, to which `typed` is typed.
fn clear(data_dir: &Path, typed: &str) -> (bool, String) {
    let mut command = leasehold_command();
    command.args(["leader-lease", "clear", "--data-dir"]);
    command.arg(data_dir).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // It may have ended without reading.
    let _ = child.stdin.take().unwrap().write_all(typed.as_bytes());
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

#[test]
fn p37_a_tripped_leader_lease_is_cleared_by_an_operator_who_says_so() {
    let mut cluster = Cluster::start(1);
    cluster.wait_for_lease();
    let data_dir = cluster.nodes[0].data_dir.clone();
    let mark = cluster.nodes[0].tripped_mark();
    let (done, said) = clear(&data_dir, "clear\n");
    assert!(!done && said.contains("in use by another"), "{said}");

    assert_eq!(cluster.nodes[0].stop(), 0);
    let (done, said) = clear(&data_dir, "clear\n");
    assert!(done && said.contains("nothing to clear"), "{said}");
    fs::write(&mark, "").unwrap();
    cluster.nodes[0].start();
    eventually("a warning that says what to do", || {
        let (_, out, _) = cluster.cli(&["endpoint", "status", "-o", "json"]);
        out.contains("leasehold leader-lease clear").then_some(())
    });
    let (code, _, said) = cluster.cli(&["get", "k", "--consistency", "lease"]);
    assert!(code != 0, "no read is served under a lease: {code} {said}");
    assert_eq!(cluster.nodes[0].stop(), 0);

    for typed in ["", "yes\n"] {
        let (done, said) = clear(&data_dir, typed);
        assert!(!done && said.contains("nothing was changed"), "{said}");
        assert!(said.contains("may be stale"), "it warns: {said}");
        assert!(mark.exists(), "without consent");
    }
    let (done, said) = clear(&data_dir, "clear\n");
    assert!(done && !mark.exists(), "{said}");
    fs::write(&mark, "").unwrap();
    cluster.nodes[0].clear_leader_lease();
    assert!(!mark.exists(), "without being asked");
    cluster.nodes[0].start();
    cluster.wait_for_lease();
}

#[test]
fn a_variable_that_nobody_reads_is_named_and_stops_no_node() {
    let serve = |config: Option<&Path>| {
        let mut command = leasehold_command();
        command.arg("serve");
        if let Some(config) = config {
            command.arg("--config").arg(config);
        }
        command.env("LEASEHOLD_NODENAME", "canary");
        // As Kubernetes does for a service of our name.
        command.env("LEASEHOLD_SERVICE_HOST", "10.96.0.7");
        command.env("LEASEHOLD_PORT_7400_UDP", "udp://10.96.0.7:7400");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    };
    let meant = "did you mean LEASEHOLD_NODE_NAME?";
    let output = serve(None).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(meant), "{said}");
    assert!(!said.contains("SERVICE_HOST"), "{said}");

    let mut cluster = Cluster::prepare(1);
    cluster.write_configs("");
    let log = fs::File::create(&cluster.nodes[0].log).unwrap();
    let child = serve(Some(&cluster.nodes[0].config)).stderr(log).spawn();
    cluster.nodes[0].process = Some(child.unwrap());
    cluster.wait_for_lease();
    let said = cluster.nodes[0].log_text();
    assert_eq!(said.matches(meant).count(), 1, "{said}");
    assert!(
        !said.contains("SERVICE_HOST") && !said.contains("PORT_7400"),
        "{said}"
    );
}
