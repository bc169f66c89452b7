//! `leasehold lock` and `elect`, as processes that are killed, suspended and cut off.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use leasehold::client::recipes::Lock;
use leasehold::client::{GetOptions, PutOptions};
use rustix::process::{Pid, kill_process_group};

use crate::harness::{
    Cluster, PATIENCE, Signal, binary, eventually, leasehold_command, send, without_settings,
};

/// Long beside an election on a machine that is busy elsewhere, which must not cost a holder its lease;
/// short enough to wait for its end.
const TTL: &str = "10s";

/// A process whose lines are read as they come. It goes with its test.
pub(crate) struct Running {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("the process starts");
        let out = BufReader::new(child.stdout.take().unwrap());
        let (read, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if read.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    /// The command line under test, against `cluster`.
    fn leasehold(cluster: &Cluster, arguments: &[&str]) -> Self {
        Self::start(with_cluster(leasehold_command().args(arguments), cluster))
    }

    /// The next line.
    pub(crate) fn line(&self) -> String {
        let line = self.lines.recv_timeout(PATIENCE);
        line.expect("a line within a minute")
    }

    /// Skips lines until one has this in it.
    pub(crate) fn says(&self, text: &str) -> String {
        loop {
            let line = self.line();
            if line.contains(text) {
                return line;
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(&self.child, signal);
    }

    pub(crate) fn end(&mut self) -> ExitStatus {
        eventually("the end of a process", || self.child.try_wait().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Nobody waits for a process that is suspended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Names the cluster to a process as people do, by its environment.
pub(crate) fn with_cluster<'a>(command: &'a mut Command, cluster: &Cluster) -> &'a mut Command {
    command
        .env("LEASEHOLD_ENDPOINTS", cluster.endpoints().join(","))
        .env("LEASEHOLD_CACERT", cluster.pki.file("client-ca.pem"))
        .env("LEASEHOLD_CERT", cluster.pki.file("tester.pem"))
        .env("LEASEHOLD_KEY", cluster.pki.file("tester.key"))
        .env("LEASEHOLD_TIMEOUT", "10s")
}

/// The command line under test, whose standard error is among its lines.
fn start_all_said(cluster: &Cluster, line: &str) -> Running {
    let script = format!("exec {} {line} 2>&1", binary());
    let mut command = Command::new("sh");
    without_settings(&mut command);
    Running::start(with_cluster(command.args(["-c", &script]), cluster))
}

fn send_to_group(pid: &str, signal: Signal) {
    let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
    kill_process_group(pid, signal).expect("it is a group of ours");
}

fn is_there(pid: &str) -> bool {
    // A process that nobody has waited for yet has no memory any more.
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    state.is_ok_and(|state| !state.contains(") Z "))
}

/// X13: a lock that its holder does not let go of is let go of by the cluster.
#[test]
fn x13_a_lock_is_handed_on_when_its_holder_ends_and_when_it_is_killed() {
    let cluster = Cluster::start(3);
    let arguments = ["lock", "l", "--ttl", TTL, "--exactly-once"];
    let lock = || Running::leasehold(&cluster, &arguments);
    let held = |running: &Running| -> i64 {
        assert!(running.line().starts_with("l/"));
        running.line().parse().unwrap()
    };
    let mut first = lock();
    let token = held(&first);
    let mut second = lock();
    first.signal(Signal::TERM);
    assert_eq!(first.end().code(), Some(0));
    let next = held(&second);
    assert!(next > token);
    let third = lock();
    second.signal(Signal::KILL);
    second.end();
    assert!(held(&third) > next);
}

#[test]
fn a_command_runs_while_the_lock_is_held_and_its_code_is_passed_on() {
    let cluster = Cluster::start(1);
    let lock = ["lock", "l", "--exactly-once", "--"];
    let run = |script: &str| cluster.cli(&[&lock[..], &["sh", "-c", script]].concat());
    let script = "echo $LEASEHOLD_LOCK_KEY=$LEASEHOLD_FENCING_TOKEN $LEASEHOLD_LEASE; exit 7";
    let (code, out, err) = run(script);
    assert_eq!(code, 7, "{err}");
    let (fence, lease) = out.trim().split_once(' ').unwrap();
    assert!(fence.starts_with(&format!("l/{lease}=")), "{out}");
    let (code, _, _) = cluster.cli(&["get", "--prefix", "l/"]);
    assert_eq!(code, 0);
    assert_eq!(run("kill -KILL $$").0, 128 + 9, "as shells say it");
    assert_eq!(run("true").0, 0, "nobody holds it any more");

    let (code, _, err) = cluster.refused(&["put", "k", "v", "--fence", fence]);
    assert_eq!(code, 6, "{err}");
    assert!(err.contains("LH-FENCED"), "{err}");
    assert_eq!(cluster.cli(&["get", "k"]).0, 5, "nothing was written");
    assert_eq!(cluster.refused(&["del", "k", "--fence", fence]).0, 6);
    let (code, _, err) = cluster.cli(&[&lock[..], &["/nowhere/at/all"]].concat());
    assert_eq!(code, 1);
    assert!(err.contains("cannot run"), "{err}");
    assert_eq!(cluster.cli(&["lock"]).0, 2);
    let (code, _, err) = cluster.cli(&["lock", "l", "sh", "exit"]);
    assert_eq!(code, 2);
    assert!(err.contains("leasehold lock l -- sh"), "{err}");
    assert_eq!(cluster.cli(&["lock", "l", "--ttl", "0"]).0, 2);
}

#[test]
fn who_will_not_wait_for_a_lock_ends_with_a_code_of_its_own() {
    let cluster = Cluster::start(1);
    let lock = ["lock", "l", "--exactly-once", "--wait"];
    let tries = |wait| cluster.cli(&[&lock[..], &[wait, "--", "true"]].concat());
    assert_eq!(tries("0").0, 0, "nobody holds it");
    assert_eq!(tries("600s").0, 0);
    let holds = ["lock", "l", "--ttl", "600s", "--exactly-once"];
    let mut holder = Running::leasehold(&cluster, &holds);
    holder.line();
    for wait in ["0", "100ms"] {
        let (code, out, err) = tries(wait);
        assert_eq!((code, out.as_str()), (8, ""), "{err}");
        assert!(err.contains("not acquired"), "{err}");
        let is_sure = err.contains("acquired: another client holds it, or waits for it\n");
        assert_eq!(is_sure, wait == "0", "{err}");
    }
    holder.signal(Signal::TERM);
    assert_eq!(holder.end().code(), Some(0));
    assert_eq!(tries("600s").0, 0, "who gave up left nothing behind");
}

/// The wait begins before the session is opened, which a cluster without a majority does not do.
#[test]
fn who_waits_for_a_lock_of_a_cluster_without_a_majority_is_told_why_it_has_none() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_for_lease();
    for other in 1..3 {
        cluster.nodes[(leader + other) % 3].kill();
    }
    // A write that was under way would be answered at once.
    eventually("a node that leads no more", || {
        let (_, status) = cluster.nodes[leader].manage("GET", "/admin/v1/status", "");
        status["leader"].is_null().then_some(())
    });
    let lock = |flags: &[&str]| {
        let mut command = leasehold_command();
        let command = with_cluster(&mut command, &cluster).args(["lock", "l"]);
        let output = command.args(flags).args(["--", "true"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    // A handshake has no longer than a request.
    let (code, said) = eventually("a node that is reached", || {
        let (code, said) = lock(&["--wait=0", "--timeout=1s"]);
        (code != Some(3)).then_some((code, said))
    });
    assert_ne!(code, Some(0), "{said}");
    assert!(!said.contains("another client"), "{said}");
    let (code, said) = lock(&["--wait=1s", "--timeout=60s"]);
    assert_eq!(code, Some(8), "{said}");
    assert!(
        said.contains("not acquired within 1s: the cluster granted no lease"),
        "{said}"
    );
}

/// A lease that has more than was asked for is no secret, whoever asked for it.
#[test]
fn a_time_to_live_below_the_minimum_is_told_by_every_command() {
    let mut cluster = Cluster::prepare(1);
    cluster.write_configs("[lease]\nmin_ttl = \"60s\"\n");
    cluster.start_all();
    cluster.wait_for_lease();
    let told = |arguments: &[&str]| {
        let (code, _, err) = cluster.cli(arguments);
        assert_eq!(code, 0, "{arguments:?}: {err}");
        let notice = "a TTL of 10s is below the minimum of this cluster: the lease has 1m";
        assert!(err.contains(notice), "{arguments:?}: {err}");
    };
    told(&["lease", "grant", "10", "--id", "1f", "--exactly-once"]);
    let grant = ["lease", "grant", "60", "--id", "2f", "--exactly-once"];
    assert_eq!(cluster.cli(&grant).2, "");
    told(&["lease", "update-ttl", "2f", "10s", "--exactly-once"]);
    told(&["lock", "l", "--exactly-once", "--", "true"]);
}

/// T13: a holder that was suspended for longer than its lease lasts wakes, and writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t13_what_a_suspended_holder_writes_when_it_wakes_is_refused() {
    let cluster = Cluster::start(3);
    let client = cluster.client().await;
    // A write that could not be made, or of which nobody knows what became, is not refused yet.
    let script = format!(
        "echo $$; code=0; while [ $code -ne 6 ]; do {} put protected suspended --exactly-once \
         --fence \"$LEASEHOLD_LOCK_KEY=$LEASEHOLD_FENCING_TOKEN\"; code=$?; sleep 0.05; done; \
         echo refused",
        binary()
    );
    let lock = ["lock", "l", "--ttl", TTL, "--exactly-once", "--"];
    let arguments = [&lock[..], &["sh", "-c", &script]].concat();
    let job = Running::leasehold(&cluster, &arguments);
    let pid = job.line();
    assert_eq!(job.line(), "OK");
    // Whoever looks after the command is suspended as well, as if the whole machine were.
    job.signal(Signal::STOP);
    send_to_group(&pid, Signal::STOP);
    let session = client.lease().session(Duration::from_secs(30), None).await;
    let session = session.unwrap();
    let lock = Lock::new(&session, "l");
    let held = tokio::time::timeout(PATIENCE, lock.acquire())
        .await
        .expect("it is let go of")
        .unwrap();
    let mine = PutOptions::new().with_fence(held.key().clone(), held.fencing_token());
    client.put("protected", "next", Some(mine)).await.unwrap();

    send_to_group(&pid, Signal::CONT);
    job.says("refused");
    let found = client.get("protected", None).await.unwrap();
    assert_eq!(
        found.value().unwrap(),
        "next",
        "the late write changed nothing"
    );
    job.signal(Signal::CONT);
}

#[test]
fn a_command_is_stopped_before_the_lock_can_be_lost() {
    let mut cluster = Cluster::start(1);
    // The one ends when it is asked to, the other does not, and has others beside it.
    let polite = "trap 'echo asked; exit 0' TERM; echo $$; while :; do sleep 0.1; done";
    let deaf = "trap '' TERM; sleep 1000 & echo $$; echo $!; while :; do sleep 0.1; done";
    let start = |name, ttl, script| {
        let lock = ["lock", name, "--ttl", ttl, "--exactly-once", "--"];
        Running::leasehold(&cluster, &[&lock[..], &["sh", "-c", script]].concat())
    };
    // Who is asked has a fifth of the lease to end in: enough where a machine stands still.
    let mut polite = start("polite", "30s", polite);
    let mut deaf = start("deaf", TTL, deaf);
    let pids = [polite.line(), deaf.line(), deaf.line()];
    assert!(pids.iter().all(|pid| is_there(pid)));
    cluster.nodes[0].kill();
    assert_eq!(polite.end().code(), Some(6));
    polite.says("asked");
    assert_eq!(deaf.end().code(), Some(6));
    for pid in &pids {
        eventually("what the command had started to be gone", || {
            (!is_there(pid)).then_some(())
        });
    }
}

/// Somebody tidies up, and deletes the keys of locks: the next in the queue holds them, so nobody else
/// may go on.
#[test]
fn who_holds_something_whose_key_was_deleted_ends_as_one_that_has_lost_it() {
    let cluster = Cluster::start(1);
    let start = |arguments: &[&str]| Running::leasehold(&cluster, arguments);
    let mut holds = start(&["lock", "alone", "--ttl", "60s", "--exactly-once"]);
    let alone = holds.line();
    let mut leads = start_all_said(&cluster, "elect e ann --ttl 60s --exactly-once");
    let leader = leads.line();
    // The one ends when it is asked to, the other does not, and is made to.
    let runs = |name, ttl, script| {
        let lock = ["lock", name, "--ttl", ttl, "--exactly-once", "--"];
        start(&[&lock[..], &["sh", "-c", script]].concat())
    };
    let polite = "trap 'echo asked; exit 0' TERM; echo $LEASEHOLD_LOCK_KEY; \
                  while :; do sleep 0.1; done";
    let deaf = "trap '' TERM; echo $LEASEHOLD_LOCK_KEY; while :; do sleep 0.1; done";
    let mut polite = runs("polite", "600s", polite);
    let mut deaf = runs("deaf", "20s", deaf);
    let keys = [alone, leader, polite.line(), deaf.line()];
    for key in &keys {
        let (code, out, err) = cluster.cli(&["del", key, "--exactly-once"]);
        assert_eq!((code, out.as_str()), (0, "1\n"), "{key}: {err}");
    }
    assert_eq!(holds.end().code(), Some(6));
    assert_eq!(leads.end().code(), Some(6));
    leads.says("leadership is lost: its key was deleted");
    assert_eq!(polite.end().code(), Some(6));
    polite.says("asked");
    assert_eq!(deaf.end().code(), Some(6));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_stands_in_elections_and_listens_to_them() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    let listens = Running::leasehold(&cluster, &["elect", "--listen", "e"]);
    let stands = |name| {
        let arguments = ["elect", "e", name, "--ttl", TTL, "--exactly-once"];
        Running::leasehold(&cluster, &arguments)
    };
    let mut ann = stands("ann");
    let key = ann.line();
    assert!(key.starts_with("e/"), "{key}");
    assert_eq!(ann.line(), "ann");
    assert_eq!([listens.line(), listens.line()], [key, "ann".to_owned()]);
    let mut cid = start_all_said(&cluster, "elect e cid --ttl 60s --exactly-once");
    let options = GetOptions::new().with_prefix().with_keys_only();
    let began = Instant::now();
    while client
        .get("e/", Some(options.clone()))
        .await
        .unwrap()
        .kvs
        .len()
        < 2
    {
        assert!(began.elapsed() < PATIENCE, "cid does not stand");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    cid.signal(Signal::INT);
    cid.says("interrupted before leadership was acquired");
    assert_eq!(cid.end().code(), Some(1));
    let mut bob = stands("bob");
    ann.signal(Signal::INT);
    assert_eq!(ann.end().code(), Some(0));
    let key = bob.line();
    assert_eq!(bob.line(), "bob");
    assert_eq!(
        [listens.line(), listens.line()],
        [key.clone(), "bob".to_owned()]
    );
    // Somebody ends its lease: it learns that it does not lead any more.
    let options = GetOptions::new().with_keys_only();
    let kv = client.get(&key, Some(options)).await.unwrap();
    client.lease().revoke(kv.kv().unwrap().lease).await.unwrap();
    assert_eq!(bob.end().code(), Some(6));
    assert_eq!(cluster.cli(&["elect", "e"]).0, 2);
}
