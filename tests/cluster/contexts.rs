//! Clusters that have names: `--context`, and `leasehold context`, as a user types them.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::harness::{Cluster, eventually, leasehold_command, write_secret};

/// A user with a home, and nothing else.
struct User {
    home: tempfile::TempDir,
}

impl User {
    fn types(&self, words: &[&str], variables: &[(&str, &str)]) -> (i32, String, String) {
        let mut command = leasehold_command();
        command.env("XDG_CONFIG_HOME", self.home.path()).args(words);
        command.envs(variables.iter().copied());
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code().unwrap();
        (code, text(&output.stdout), text(&output.stderr))
    }

    fn gets(&self, words: &[&str], variables: &[(&str, &str)]) -> String {
        // A leader may have to be elected first.
        eventually("an answer", || {
            let (code, out, said) = self.types(words, variables);
            assert!(code != 2, "{words:?}: {said}");
            (code == 0).then_some(out)
        })
    }
}

#[test]
fn a_command_finds_its_cluster_by_the_name_of_a_context() {
    let (blue, green) = (Cluster::start(1), Cluster::start(1));
    let user = User {
        home: tempfile::tempdir().unwrap(),
    };
    for (name, cluster) in [("blue", &blue), ("green", &green)] {
        let flags = cluster.flags();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        user.gets(&[&["context", "set", name], &flags[..]].concat(), &[]);
        user.gets(&["--context", name, "put", "color", name], &[]);
    }
    let get = ["get", "color", "--print-value-only"];
    let with = |more: &[&'static str]| [&get[..], more].concat();

    // No context is used before one is chosen.
    let (code, _, said) = user.types(&get, &[]);
    assert!(code == 2 && said.contains("--context"), "{said}");
    user.gets(&["context", "use", "blue"], &[]);
    assert_eq!(user.gets(&get, &[]), "blue\n");
    assert_eq!(user.gets(&with(&["--context", "green"]), &[]), "green\n");
    let variable = [("LEASEHOLD_CONTEXT", "green")];
    assert_eq!(user.gets(&get, &variable), "green\n");
    assert_eq!(
        user.gets(&with(&["--context", "blue"]), &variable),
        "blue\n"
    );

    // What is given stands above the context: its endpoints are not asked.
    let nobody = [
        "--context",
        "blue",
        "--endpoints",
        "127.0.0.1:1",
        "--timeout",
        "200ms",
    ];
    let (code, _, said) = user.types(&with(&nobody), &[]);
    assert!(code == 3 && said.contains("127.0.0.1:1"), "{code}: {said}");
    // And those of another cluster are not asked with certificates of the context in use.
    let (code, _, said) = user.types(&with(&["--endpoints", "127.0.0.1:1"]), &[]);
    assert!(code == 2 && said.contains("--cacert"), "{code}: {said}");

    let list = user.gets(&["context", "list"], &[]);
    assert!(
        list.starts_with("* blue  127.0.0.1:") && list.contains("\n  green  "),
        "{list}"
    );
    let shown = user.gets(&["context", "show", "green", "-o", "json"], &[]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["endpoints"][0], green.endpoints()[0].as_str());
    assert_eq!(shown["user"], serde_json::Value::Null);

    user.gets(&["context", "remove", "blue"], &[]);
    assert_eq!(user.types(&get, &[]).0, 2, "and none is used");
    for words in [
        vec!["get", "k", "--context", "blue"],
        vec!["context", "use", "blue"],
        vec!["context", "show", "blue"],
        vec!["context", "remove", "blue"],
    ] {
        let (code, _, said) = user.types(&words, &[]);
        assert!(
            code == 2 && said.contains("choose one of green"),
            "{words:?}: {said}"
        );
    }
}

#[test]
fn a_file_of_contexts_that_cannot_be_trusted_or_read_is_refused_by_who_needs_it() {
    let user = User {
        home: tempfile::tempdir().unwrap(),
    };
    let set = ["context", "set", "a", "--endpoints", "127.0.0.1:1"];
    user.gets(&set, &[]);
    let file = user.home.path().join("leasehold/contexts.toml");
    let mode = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    assert_eq!(
        fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o600
    );
    mode(0o666);
    for words in [vec!["get", "k"], vec!["context", "list"], set.to_vec()] {
        let (code, _, said) = user.types(&words, &[]);
        assert!(
            code == 2 && said.contains("chmod go-w"),
            "{words:?}: {said}"
        );
    }
    mode(0o600);
    fs::write(&file, "[contexts.a]\nendpoint = []\n").unwrap();
    let (code, _, said) = user.types(&["get", "k", "--context", "a"], &[]);
    assert!(
        code == 2 && said.contains("contexts.toml line 2: `endpoint`"),
        "{said}"
    );
    assert_eq!(user.types(&["version"], &[]).0, 0, "which asks no cluster");
    // The password in a context is its user's, and is not tried for another.
    let secret = user.home.path().join("anna.pw");
    write_secret(&secret, "annas\n");
    fs::remove_file(&file).unwrap();
    let [secret, file] = [&secret, &file].map(|it| it.to_str().unwrap());
    let login = ["--user", "anna", "--password-file", secret];
    let pki = ["--cacert", file, "--cert", file, "--key", file];
    user.gets(&[&set[..], &login, &pki].concat(), &[]);
    let (code, _, said) = user.types(&["get", "k", "--context", "a", "--user", "bob"], &[]);
    assert!(
        code == 2 && said.contains("the password of bob is missing"),
        "{said}"
    );
    // What the environment gives stands above it, and spares reading it.
    fs::remove_file(secret).unwrap();
    let get = ["get", "k", "--context", "a"];
    let (_, _, said) = user.types(&get, &[]);
    assert!(said.contains("anna.pw"), "{said}");
    let (_, _, said) = user.types(&get, &[("LEASEHOLD_PASSWORD", "annas")]);
    assert!(!said.contains("anna.pw"), "{said}");
    let other = user.home.path().join("other.toml");
    let other = other.to_str().unwrap();
    user.gets(&[&set[..], &["--contexts", other]].concat(), &[]);
    let list = user.gets(&["context", "list"], &[("LEASEHOLD_CONTEXTS", other)]);
    assert_eq!(list, "  a  127.0.0.1:1\n");
}
