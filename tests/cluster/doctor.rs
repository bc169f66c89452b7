//! `leasehold doctor` finds what is wrong, and says what to do.

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::harness::{Cluster, binary, eventually, left_out, run, without_settings};

fn findings(text: &str) -> Vec<(String, String, String, String)> {
    let found: Vec<Value> = serde_json::from_str(text).unwrap();
    let word = |it: &Value, name: &str| it[name].as_str().unwrap().to_owned();
    found
        .iter()
        .map(|it| {
            (
                word(it, "level"),
                word(it, "check"),
                word(it, "place"),
                word(it, "advice"),
            )
        })
        .collect()
}

/// What the doctor says when nothing is wrong. An election is something wrong to it, and may be at any
/// moment: then it is asked again.
fn healthy(arguments: &[&str]) -> String {
    eventually("a doctor who finds nothing wrong", || {
        let (code, out, said) = run(arguments);
        if code != 0 {
            eprintln!("the doctor ends with {code}: {out}{said}");
        }
        (code == 0).then_some(out)
    })
}

#[test]
fn the_doctor_finds_a_sound_cluster_sound_and_says_what_is_wrong_with_another() {
    let mut cluster = Cluster::start(3);
    let folder = cluster.folder.path().to_str().unwrap().to_owned();
    let flags = cluster.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let words = ["doctor", "-o", "json", "--data-dir", folder.as_str()];
    let out = healthy(&[&flags[..], &words].concat());
    let all = findings(&out);
    assert!(all.iter().all(|it| it.0 != "fail"), "{out}");
    for check in [
        "certificate",
        "connect",
        "udp path",
        "answers",
        "role",
        "clock",
        "pauses",
        "quorum",
        "leader",
        "quorum read",
        "leased read",
        "disk",
    ] {
        assert!(
            all.iter().any(|it| it.1 == check),
            "nothing of {check}:\n{out}"
        );
    }
    let left: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|it| it.unwrap().file_name())
        .collect();
    assert!(
        !left
            .iter()
            .any(|name| name.to_string_lossy().contains("doctor")),
        "{left:?}"
    );

    // Two of three are gone: nobody leads, and it says whom it does not reach.
    let leader = cluster.wait_for_lease();
    let gone = [(leader + 1) % 3, (leader + 2) % 3];
    for node in gone {
        cluster.nodes[node].kill();
    }
    let hurried = |flag: String| match flag.starts_with("--timeout") {
        true => "--timeout=5s".to_owned(),
        false => flag,
    };
    let flags: Vec<String> = cluster.flags().into_iter().map(hurried).collect();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let asked = [&flags[..], &["doctor", "-o", "json"]].concat();
    let alive = cluster.nodes[leader].client.to_string();
    // The one that lives may stand still when it is asked, and then nobody tells of the others.
    let (code, out, said) = eventually("a doctor whom the living node answers", || {
        let report = run(&asked);
        let all = findings(&report.1);
        let answers = |it: &(String, String, String, String)| {
            (it.0.as_str(), it.1.as_str(), &it.2) == ("ok", "answers", &alive)
        };
        let is_asked_to_read = all.iter().any(|it| it.1 == "quorum read");
        (is_asked_to_read && all.iter().any(answers)).then_some(report)
    });
    assert_eq!(code, 1, "{out}{said}");
    let all = findings(&out);
    for node in gone {
        let endpoint = cluster.nodes[node].client.to_string();
        let failed = all
            .iter()
            .find(|it| it.0 == "fail" && it.1 == "connect" && it.2 == endpoint);
        assert!(failed.is_some_and(|it| it.3.contains("UDP")), "{out}");
    }
    for check in ["quorum", "quorum read"] {
        assert!(
            all.iter().any(|it| it.0 == "fail" && it.1 == check),
            "{check}: {out}"
        );
    }
    assert!(!out.contains("reads work"), "{out}");

    // Certificates of nobody that this cluster knows.
    let other = Cluster::prepare(1);
    let flags = [
        format!("--endpoints={}", cluster.nodes[leader].client),
        format!("--cacert={}", cluster.pki.file("client-ca.pem")),
        format!("--cert={}", other.pki.file("tester.pem")),
        format!("--key={}", other.pki.file("tester.key")),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let (code, out, _) = run(&[&flags[..], &["--timeout=1s", "doctor"]].concat());
    assert_eq!(code, 1);
    assert!(out.contains("FAIL certificate  all files"), "{out}");
    assert!(out.contains("of the same cluster"), "what to do: {out}");
}

/// A way to `node` that lets no datagram through which is larger than QUIC needs at least, as a tunnel
/// does. Goes on for as long as the test.
fn narrow_path(node: SocketAddr) -> SocketAddr {
    let near = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
    let far = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
    let address = near.local_addr().unwrap();
    let caller = Arc::new(Mutex::new(None));
    let ways = [(near.clone(), far.clone(), true), (far, near, false)];
    for (from, to, is_outward) in ways {
        let caller = Arc::clone(&caller);
        std::thread::spawn(move || {
            let mut bytes = [0; 65_536];
            while let Ok((count, sender)) = from.recv_from(&mut bytes) {
                let target = match is_outward {
                    true => {
                        *caller.lock().unwrap() = Some(sender);
                        Some(node)
                    }
                    false => *caller.lock().unwrap(),
                };
                if let Some(target) = target
                    && count <= 1_200
                {
                    let _ = to.send_to(&bytes[..count], target);
                }
            }
        });
    }
    address
}

#[test]
fn the_doctor_sees_a_path_that_large_datagrams_do_not_get_through() {
    let cluster = Cluster::start(1);
    let narrow = narrow_path(cluster.nodes[0].client);
    let flags = [
        format!("--endpoints={narrow}"),
        format!("--cacert={}", cluster.pki.file("client-ca.pem")),
        format!("--cert={}", cluster.pki.file("tester.pem")),
        format!("--key={}", cluster.pki.file("tester.key")),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let out = healthy(&[&flags[..], &["doctor", "-o", "json"]].concat());
    let all = findings(&out);
    let path = all.iter().find(|it| it.1 == "udp path");
    let path = path.unwrap_or_else(|| panic!("nothing of the path: {out}"));
    assert_eq!(path.0, "warn", "{out}");
    assert!(path.3.contains("tunnel"), "{out}");

    // The folder that is tried cannot be written to.
    let (code, out, _) = cluster.cli(&["doctor", "-o", "json", "--data-dir", "/proc/no-such"]);
    let disk = findings(&out).into_iter().find(|it| it.1 == "disk");
    assert!(code == 1 && disk.is_some_and(|it| it.0 == "fail"), "{out}");

    a_terminal_gets_colours_and_tables_that_fit(&cluster);
}

/// What programs read has neither. `script` of util-linux makes a terminal, of 80 columns here.
fn a_terminal_gets_colours_and_tables_that_fit(cluster: &Cluster) {
    let flags = cluster.flags();
    let on_terminal = |verb: &str, variables: &str| {
        let line = format!(
            "stty cols 80 2>/dev/null; {variables} {} {} {verb}",
            binary(),
            flags.join(" ")
        );
        let mut script = Command::new("script");
        script.args(["-qec", &line, "/dev/null"]);
        without_settings(&mut script);
        script.env("TERM", "xterm").env_remove("NO_COLOR");
        script.output().map(|output| {
            // Whether the verb succeeds is not what is asked here.
            String::from_utf8_lossy(&output.stdout).replace('\r', "")
        })
    };
    let Ok(table) = on_terminal("doctor -o table", "") else {
        return left_out("what the doctor prints on a terminal: needs `script`");
    };
    assert!(table.contains("WHAT TO DO"), "{table}");
    let node = &cluster.nodes[0];
    let address = node.client.to_string();
    for (verb, titles) in [
        ("doctor -o table", &["CHECK", "WHERE"][..]),
        ("endpoint status -o table", &["ENDPOINT", "LEASE LEFT"]),
        ("member list -o table", &["CLIENT ADDRS", "IS LEARNER"]),
        ("top --once", &["NODE", "LEASE LEFT", "LEASED/S"]),
    ] {
        let table = on_terminal(verb, "").unwrap();
        // Paths may be longer, and are lines of their own then.
        for line in table.lines().filter(|line| line.contains([' ', '+'])) {
            assert!(line.chars().count() <= 80, "{verb}: {line}\n{table}");
        }
        let shown = match verb {
            "top --once" => &["n1"][..],
            _ => &[address.as_str()],
        };
        for whole in titles.iter().chain(shown) {
            let found = table.lines().any(|line| line.contains(whole));
            assert!(found, "`{whole}` is broken in {verb}:\n{table}");
        }
    }
    // What is drawn anew leaves the terminal as it was, and the last look on it.
    for top in [
        "top --count 2 --interval 10ms",
        "lease top --count 2 --interval 10ms",
    ] {
        let shown = on_terminal(top, "").unwrap();
        let (before, rest) = shown.split_once("\x1b[?1049h").expect("another screen");
        let (drawn, after) = rest.split_once("\x1b[?1049l").expect("and back");
        assert_eq!(before, "", "{top}");
        assert_eq!(drawn.matches("\x1b[H").count(), 2, "{top}: {drawn:?}");
        assert!(!drawn.contains("\x1b[2J"), "{top} flickers: {drawn:?}");
        let has_last_look = after.contains("at risk") && !after.contains('\x1b');
        assert!(has_last_look, "{top}: {after:?}");
    }
    let once = on_terminal("top --once", "").unwrap();
    assert!(!once.contains('\x1b'), "one look needs no screen: {once:?}");
    // Whenever it is interrupted: a terminal that was taken is given back.
    let top = format!("{} {} top", binary(), flags.join(" "));
    let line = format!("timeout --foreground -s INT 4 {top}");
    let mut script = Command::new("script");
    without_settings(&mut script);
    let output = script.args(["-qec", &line, "/dev/null"]).output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    let count = |what: &str| shown.matches(what).count();
    assert_eq!(count("\x1b[?1049h"), count("\x1b[?1049l"), "{shown:?}");
    assert_eq!(count("\x1b[?25l"), count("\x1b[?25h"), "{shown:?}");

    let (_, piped, _) = cluster.cli(&["doctor", "-o", "table"]);
    assert!(
        piped.lines().any(|line| line.chars().count() > 80),
        "{piped}"
    );

    let wrong = "get k --consistency frobnicate";
    assert!(on_terminal(wrong, "").unwrap().contains("\x1b["));
    let plain = on_terminal(wrong, "NO_COLOR=1").unwrap();
    assert!(
        plain.contains("error:") && !plain.contains('\x1b'),
        "{plain}"
    );
    let (_, out, said) = cluster.cli(&["get", "k", "--consistency", "frobnicate"]);
    assert!(
        said.contains("error:") && !(out + &said).contains('\x1b'),
        "{said}"
    );
    for verb in [
        &["top", "--once"][..],
        &["endpoint", "status", "-o", "table"],
    ] {
        let (_, out, said) = cluster.cli(verb);
        assert!(!(out + &said).contains('\x1b'), "{verb:?}");
    }
}
