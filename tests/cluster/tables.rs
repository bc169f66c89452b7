//! Tables of the command line: who asks for one gets one, or is told that there is none.

use crate::harness::{Cluster, eventually, run, write_secret};

/// Columns of a page.
const PAGE: usize = 100;

fn table_of(cluster: &Cluster, words: &str) -> String {
    let words: Vec<&str> = words.split(' ').chain(["-o", "table"]).collect();
    // A leader may have to be elected first.
    eventually("a table", || {
        let (code, table, said) = cluster.cli(&words);
        assert!(code != 2, "{words:?}: {said}");
        (code == 0).then_some(table)
    })
}

/// Whether a program that cuts lines into words would part a number from its unit.
fn is_broken(cell: &str) -> bool {
    let mut words = cell.split(' ').rev().skip(1);
    words.any(|word| word.ends_with(|last: char| last.is_ascii_digit()))
}

#[test]
fn every_verb_that_is_asked_for_a_table_prints_one_that_fits_a_page() {
    let cluster = Cluster::start(3);
    let folder = cluster.folder.path().to_owned();
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    write_secret(file("password"), "correct horse\n");
    for words in [
        "put k v",
        "put k w --prev-kv",
        "get k",
        "get k --count-only",
        "del k --prev-kv",
        "compaction 2",
        "lease grant 600 --id 1f --name job --owner host",
        "put held v --lease 1f",
        "lease timetolive 1f --keys",
        "lease list",
        "lease keep-alive 1f --once",
        "lease update-ttl 1f 700",
        "lease revoke 1f",
        "endpoint status",
        "endpoint health",
        "member list",
        "alarm list",
        "auth status",
        "role add ops",
        "role grant-permission ops readwrite --prefix a/",
        "role get ops",
        "role list",
        "user add anna --new-password-file PASSWORD",
        "user get anna",
        "user list",
        "snapshot save BACKUP",
        "snapshot status BACKUP",
        "snapshot verify BACKUP",
        "bench put --clients 1 --duration 100ms --warm-up 0s",
        "version",
        "move-leader",
    ] {
        let typed = words.replace("PASSWORD", &file("password"));
        let table = table_of(&cluster, &typed.replace("BACKUP", &file("backup")));
        let rule = table.lines().next().unwrap_or_default();
        let is_rule = rule.len() > 2 && rule.bytes().all(|byte| matches!(byte, b'+' | b'-'));
        assert!(is_rule, "{words}:\n{table}");
        // Of what is no longer in itself.
        if words != "version" {
            assert!(rule.len() <= PAGE, "{words}:\n{table}");
            let broken = table.split('|').find(|cell| is_broken(cell.trim()));
            assert_eq!(broken, None, "{words}:\n{table}");
        }
    }
    let status = table_of(&cluster, "endpoint status");
    let below = "\nthe same in all rows: VERSION 0.1.0, ";
    assert!(status.contains(below), "{status}");
}

#[test]
fn a_verb_that_has_no_table_says_so() {
    let mut cluster = Cluster::start(1);
    for words in ["watch k", "bench watch", "bench lease-expiry"] {
        let words: Vec<&str> = words.split(' ').chain(["-o", "table"]).collect();
        let (code, out, said) = cluster.cli(&words);
        assert_eq!((code, out.as_str()), (2, ""), "{words:?}: {said}");
        assert!(said.contains("leave out `-o table`"), "{words:?}: {said}");
    }
    let node = &mut cluster.nodes[0];
    node.stop();
    let data = node.data_dir.to_str().unwrap().to_owned();
    for what in ["dump-kv", "dump-log"] {
        let (code, _, said) = run(&["offline", what, "--data-dir", &data, "-o", "table"]);
        assert_eq!(code, 2, "{what}: {said}");
        assert!(said.contains("leave out `-o table`"), "{what}: {said}");
    }
    for what in ["check", "hashkv"] {
        let (code, table, said) = run(&["offline", what, "--data-dir", &data, "-o", "table"]);
        assert_eq!(code, 0, "{what}: {said}");
        assert!(table.starts_with("+-"), "{what}:\n{table}");
    }
}
