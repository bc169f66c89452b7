//! `leasehold doctor` finds what is wrong, and says what to do.

use serde_json::Value;

use crate::harness::Cluster;
use crate::harness::run;

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

#[test]
fn the_doctor_finds_a_sound_cluster_sound_and_says_what_is_wrong_with_another() {
    let mut cluster = Cluster::start(3);
    let folder = cluster.folder.path().to_str().unwrap().to_owned();
    let (code, out, said) = cluster.cli(&["doctor", "-o", "json", "--data-dir", &folder]);
    let all = findings(&out);
    let failed: Vec<_> = all.iter().filter(|it| it.0 == "fail").collect();
    assert!(code == 0 && failed.is_empty(), "{out}{said}");
    for check in [
        "certificate",
        "connect",
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
        true => "--timeout=1s".to_owned(),
        false => flag,
    };
    let flags: Vec<String> = cluster.flags().into_iter().map(hurried).collect();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let (code, out, said) = run(&[&flags[..], &["doctor", "-o", "json"]].concat());
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
    assert!(out.contains("FAIL connect"), "{out}");
    assert!(out.contains("client-ca.pem"), "what to do: {out}");
}
