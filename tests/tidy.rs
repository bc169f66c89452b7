//! Boundaries that the compiler does not hold: who may know whom, and a few absences.
//!
//! Features keep tokio, quinn, rustls and fjall out of the lower layers (`cargo check
//! --no-default-features`), and `clippy.toml` keeps clocks and randomness out. What is left is the
//! picture of ARCHITECTURE.md: a file may name `crate::x` only for an `x` that its module is
//! allowed below.

#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

mod tidy {
    mod circles;
    mod code;
    mod names;
    mod reads;
    mod sizes;
    mod threads;
    mod words;
}

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Every module of the library and the modules it may know, lowest first.
const LAYERS: &[(&str, &[&str])] = &[
    // Deliberate bugs, in builds for tests of the tests alone.
    ("planted", &[]),
    ("types", &[]),
    ("time", &[]),
    ("version", &[]),
    ("sync", &[]),
    ("api", &["types"]),
    ("raft", &["types", "time", "sync"]),
    ("log", &["types", "time"]),
    ("kv", &["types", "time", "api"]),
    ("watch", &["types", "time", "api", "kv"]),
    ("etcd", &["api"]),
    ("wire", &["types", "time", "api", "raft", "kv"]),
    ("front", &["types", "sync", "api", "kv", "wire"]),
    (
        "node",
        &["types", "time", "api", "raft", "log", "kv", "front"],
    ),
    ("leader_lease", &["types", "time", "sync", "raft"]),
    ("clock", &["time", "raft", "leader_lease"]),
    (
        "transport",
        &[
            "types", "time", "sync", "api", "raft", "wire", "node", "clock",
        ],
    ),
    (
        "client",
        &["types", "time", "sync", "api", "wire", "transport", "clock"],
    ),
    (
        "server",
        &[
            "types",
            "time",
            "version",
            "sync",
            "api",
            "raft",
            "log",
            "kv",
            "watch",
            "etcd",
            "wire",
            "front",
            "node",
            "clock",
            "transport",
        ],
    ),
    ("json", &["api", "client"]),
    ("client_metrics", &["client"]),
    ("blocking", &["api", "client"]),
    ("pki", &["types", "transport", "server"]),
    ("embed", &["api", "client", "pki", "server"]),
    (
        "cli",
        &[
            "types",
            "time",
            "version",
            "api",
            "wire",
            "clock",
            "transport",
            "client",
            "server",
            "pki",
        ],
    ),
    (
        "bench",
        &[
            "types", "time", "version", "sync", "api", "raft", "clock", "client", "pki", "cli",
        ],
    ),
];

fn source_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Every Rust file below `folder`, in name order.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut entries: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// The library module that a file belongs to: `raft` for `src/raft/log.rs`, `types` for
/// `src/types.rs`.
fn module_of(file: &Path) -> String {
    let relative = file.strip_prefix(source_root()).unwrap();
    let first = relative
        .components()
        .next()
        .unwrap()
        .as_os_str()
        .to_str()
        .unwrap();
    first.trim_end_matches(".rs").to_owned()
}

/// The modules that `code` names as `crate::x` or in `crate::{x, y::z}`, each with the number of its line.
fn named_modules(code: &str) -> Vec<(usize, String)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut named = Vec::new();
    for (at, found) in code.match_indices("crate::") {
        if code[..at].ends_with(is_word) {
            continue;
        }
        let rest = &code[at + found.len()..];
        let first: String = rest.chars().take_while(|c| is_word(*c)).collect();
        let line_of = |offset: usize| code[..offset].matches('\n').count() + 1;
        if !first.is_empty() {
            named.push((line_of(at), first));
            continue;
        }
        // A group: what stands at its own level, up to the brace that closes it.
        let (mut depth, mut wants_name) = (0, false);
        for (offset, c) in rest.char_indices() {
            match c {
                '{' => {
                    depth += 1;
                    wants_name = depth == 1;
                }
                '}' if depth <= 1 => break,
                '}' => depth -= 1,
                ',' => wants_name = depth == 1,
                c if wants_name && is_word(c) => {
                    let name = rest[offset..].chars().take_while(|c| is_word(*c));
                    named.push((line_of(at + found.len() + offset), name.collect()));
                    wants_name = false;
                }
                _ => {}
            }
        }
    }
    named
}

/// What is wrong with the lines of one file of `module`.
fn violations(module: &str, name: &str, text: &str) -> Vec<String> {
    let allowed = LAYERS
        .iter()
        .find(|(layer, _)| *layer == module)
        .map(|(_, allowed)| *allowed);
    let Some(allowed) = allowed else {
        return vec![format!(
            "{name}: module `{module}` is not in the layer table of tests/tidy.rs"
        )];
    };
    let code: Vec<&str> = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect();
    named_modules(&code.join("\n"))
        .into_iter()
        .filter(|(_, used)| used != module && !allowed.contains(&used.as_str()))
        .map(|(line, used)| format!("{name}:{line}: `{module}` may not know `{used}`"))
        .collect()
}

#[test]
fn every_file_knows_only_the_layers_below_it() {
    let mut found = Vec::new();
    for file in rust_files(&source_root()) {
        let module = module_of(&file);
        if module == "lib" || module == "main" {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        found.extend(violations(&module, &file.display().to_string(), &text));
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn the_layer_table_itself_has_no_cycle() {
    for (position, (module, allowed)) in LAYERS.iter().enumerate() {
        for used in *allowed {
            let below = LAYERS[..position].iter().any(|(layer, _)| layer == used);
            assert!(below, "`{module}` lists `{used}`, which is not below it");
        }
    }
}

#[test]
fn the_scan_sees_planted_edges() {
    let planted = "use crate::kv::Command;\n";
    assert_eq!(
        violations("raft", "f.rs", planted),
        ["f.rs:1: `raft` may not know `kv`"]
    );
    let inline = "    let x = crate::server::run::start();\n";
    assert_eq!(
        violations("client", "f.rs", inline),
        ["f.rs:1: `client` may not know `server`"]
    );
    let grouped = "use crate::{\n    raft,\n    server::{self, Server},\n    cli,\n};\n";
    assert_eq!(
        violations("node", "f.rs", grouped),
        [
            "f.rs:3: `node` may not know `server`",
            "f.rs:4: `node` may not know `cli`"
        ]
    );
    assert!(violations("node", "f.rs", "use crate::kv::Command; // crate::server\n").is_empty());
    assert!(violations("nonsense", "f.rs", "")[0].contains("not in the layer table"));
}

#[test]
fn nothing_is_unsafe_and_no_grab_bag_exists() {
    for root in ["lib.rs", "main.rs"] {
        let text = fs::read_to_string(source_root().join(root)).unwrap();
        assert!(
            text.contains("#![forbid(unsafe_code)]"),
            "{root} must forbid unsafe code"
        );
    }
    for file in rust_files(&source_root()) {
        let name = file.file_name().unwrap().to_str().unwrap().to_owned();
        assert!(
            ![
                "util.rs",
                "utils.rs",
                "helper.rs",
                "helpers.rs",
                "common.rs"
            ]
            .contains(&name.as_str()),
            "{}: a helper lives with the noun it helps",
            file.display()
        );
    }
}

/// What the lease or the age of the state allows is asked in one place, which has read the store
/// before (P20).
#[test]
fn the_lease_is_asked_for_a_read_in_one_file_only() {
    let mut found = Vec::new();
    for file in rust_files(&source_root()) {
        let name = file.strip_prefix(source_root()).unwrap();
        let is_test = name
            .iter()
            .any(|part| part == "tests" || part == "tests.rs");
        let asks = name.starts_with("raft") || name.ends_with("node/leased_read.rs");
        if !is_test && !asks {
            let text = fs::read_to_string(&file).unwrap();
            found.extend(questions_to_the_lease(&name.display().to_string(), &text));
        }
    }
    assert_eq!(found, [""; 0]);

    let planted = "lease.and_then(|lease| lease.permit(now, commit));\n\
                   let bound = fresh.bound(clock.now()); // .permit(now, commit)\n\
                   let drift = measured.bound();\nlease.remaining(now);\n";
    assert_eq!(
        questions_to_the_lease("f.rs", planted),
        [
            "f.rs:1: `.permit(` is for node/leased_read.rs",
            "f.rs:2: `.bound(` is for node/leased_read.rs"
        ]
    );
}

/// The lines that ask a lease for a permit, or an age for its bound.
fn questions_to_the_lease(name: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        for question in [".permit(", ".bound("] {
            let mut calls = code.split(question).skip(1);
            // Other bounds are asked of without an argument.
            if calls.any(|rest| !rest.starts_with(')')) {
                let line = number + 1;
                found.push(format!(
                    "{name}:{line}: `{question}` is for node/leased_read.rs"
                ));
            }
        }
    }
    found
}

/// Tests start the binary by one function, which lets it see nothing but what they give it: not the
/// user's settings, nor a development cluster that happens to run.
#[test]
fn tests_start_the_binary_by_the_harness_only() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let by_hand = |text: &str| {
        let mut lines = text.lines();
        lines.any(|line| line.contains("Command::new(") && line.contains("binary()"))
    };
    assert!(by_hand(
        "let mut command = Command::new(crate::harness::binary());"
    ));
    let mut found = Vec::new();
    for file in rust_files(&root.join("tests")) {
        let is_exempt = ["tests/cluster/harness.rs", "tests/tidy.rs"];
        let name = file.strip_prefix(root).unwrap().display().to_string();
        if !is_exempt.contains(&name.as_str()) && by_hand(&fs::read_to_string(&file).unwrap()) {
            found.push(name);
        }
    }
    assert_eq!(found, [""; 0]);
}

#[test]
fn features_are_chosen_on_mod_lines_only() {
    for file in rust_files(&source_root()) {
        let module = module_of(&file);
        if module == "lib" || module == "main" {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        let mut before = "";
        for (number, line) in text.lines().enumerate() {
            // Tests may need what only another feature brings.
            let tests = line.contains("test") || before.contains("cfg(test)");
            before = line;
            assert!(
                tests || !(line.contains("cfg(") && line.contains("feature")),
                "{}:{}: a feature adds modules in lib.rs and changes nothing else",
                file.display(),
                number + 1
            );
        }
    }
}

/// The tables of what must hold name tests that exist.
#[test]
fn the_tests_that_hold_client_leases_and_the_data_model_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = sources(root);
    for (table, rows_min) in [("tests/leases.md", 60), ("tests/data_model.md", 80)] {
        let text = fs::read_to_string(root.join(table)).unwrap();
        let mut named = 0;
        for line in text.lines().filter(|line| line.starts_with("| ")) {
            let tests = line.rsplit('|').nth(1).unwrap_or_default();
            for test in tests.split('`').skip(1).step_by(2) {
                named += 1;
                assert!(
                    sources.contains(&format!("fn {test}(")),
                    "{table}: there is no test {test}: {line}"
                );
            }
        }
        assert!(named > rows_min, "{table}: {named}");
    }
    let table = fs::read_to_string(root.join("tests/leases.md")).unwrap();
    let rows = (1..=20).map(|row| format!("S{row}"));
    let rows = rows.chain((1..=21).map(|row| format!("T{row}")));
    for row in rows.chain((12..=18).map(|row| format!("A{row}"))) {
        let named = table
            .lines()
            .any(|line| line.starts_with(&format!("| {row} |")));
        assert!(named, "row {row} is missing");
    }
}

/// The protocol, as it is explained, names the functions that keep its rules, and tests or
/// conversations that show each.
#[test]
fn the_rules_of_the_protocol_name_code_and_tests_that_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = sources(root);
    let text = fs::read_to_string(root.join("docs/lease.md")).unwrap();
    let (rules, missing) = rules_without_code_or_tests(&text, |name| {
        let conversation = root.join(format!("src/raft/testdata/{name}.txt"));
        let is_ours = |end| sources.contains(&format!("fn {name}{end}"));
        is_ours('(') || is_ours('<') || conversation.exists()
    });
    assert_eq!(missing, [""; 0]);
    assert!(rules > 35, "{rules}");

    let planted = "| Rule | Without it | Kept by | Shown by |\n|---|---|---|---|\n\
                   | a | b | `X::here` | `gone` |\n| c | d | `here` | |\n\n| e | `gone` |\n";
    let (rules, missing) = rules_without_code_or_tests(planted, |name| name == "here");
    assert_eq!(rules, 2);
    assert_eq!(missing, ["`gone` is not there: a", "no Shown by: c"]);
}

/// How many rules the tables of a page have, and what each lacks.
fn rules_without_code_or_tests(
    text: &str,
    is_there: impl Fn(&str) -> bool,
) -> (usize, Vec<String>) {
    let (mut rules, mut missing, mut in_table) = (0, Vec::new(), false);
    for line in text.lines() {
        let columns: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, rule, _, code, tests, _] = columns[..] else {
            in_table = false;
            continue;
        };
        if (code, tests) == ("Kept by", "Shown by") {
            in_table = true;
            continue;
        }
        if !in_table || rule.starts_with("---") {
            continue;
        }
        rules += 1;
        for (column, cell) in [("Kept by", code), ("Shown by", tests)] {
            let mut names = cell.split('`').skip(1).step_by(2).peekable();
            if names.peek().is_none() {
                missing.push(format!("no {column}: {rule}"));
            }
            for name in names {
                let last = name.rsplit("::").next().unwrap_or(name);
                if !is_there(last) {
                    missing.push(format!("`{name}` is not there: {rule}"));
                }
            }
        }
    }
    (rules, missing)
}

/// Rules and documents that comments cite can be looked up: each rule has its anchor in
/// docs/protocol.md, and each file that is named is in the repository.
#[test]
fn what_comments_cite_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let protocol = fs::read_to_string(root.join("docs/protocol.md")).unwrap();
    let anchors = anchors(&protocol);
    assert!(anchors.len() > 150, "{}", anchors.len());
    let files = files_of_repository(root);

    let (mut cited, mut missing) = (BTreeSet::new(), Vec::new());
    for folder in ["src", "tests", "benches", "examples"] {
        for file in rust_files(&root.join(folder)) {
            let text = fs::read_to_string(&file).unwrap();
            let name = file.strip_prefix(root).unwrap().display().to_string();
            for (number, comment) in comments(&text) {
                for rule in rules_in(comment) {
                    if !anchors.contains(&rule.to_lowercase()) {
                        missing.push(format!("{name}:{number}: {rule} has no anchor"));
                    }
                    cited.insert(rule.to_owned());
                }
                for cited in documents_in(comment) {
                    if !is_file_of(&files, cited) {
                        missing.push(format!("{name}:{number}: there is no {cited}"));
                    }
                }
            }
        }
    }
    // The one file that is named because there must be none.
    let absent = "util.rs";
    for page in files.iter().filter(|file| file.ends_with(".md")) {
        let text = fs::read_to_string(root.join(page)).unwrap();
        for cited in text.split('`').skip(1).step_by(2) {
            let is_source = cited.ends_with(".rs") && !cited.contains([' ', '{', '*', '<']);
            if is_source && cited != absent && !is_file_of(&files, cited) {
                missing.push(format!("{page}: there is no {cited}"));
            }
        }
    }
    for page in [
        "leases.md",
        "data_model.md",
        "sim/README.md",
        "models/README.md",
    ] {
        let text = fs::read_to_string(root.join("tests").join(page)).unwrap();
        for rule in rules_in(&text) {
            if !anchors.contains(&rule.to_lowercase()) {
                missing.push(format!("tests/{page}: {rule} has no anchor"));
            }
        }
    }
    for rule in rules_of_planted_bugs(root) {
        let anchor = rule.to_lowercase().replace([' ', '.'], "-");
        if !anchors.contains(&anchor) {
            missing.push(format!("src/planted/mod.rs: {rule} has no anchor"));
        }
    }
    assert_eq!(missing, [""; 0]);
    assert!(cited.len() > 80, "{}", cited.len());

    // The scan sees what is planted, and nothing else.
    let planted = "let p = \"P77\"; ?? A18, and (P78) or p99: see gone.md 5 and `raft/mod.rs`.\n\
                   ??/ lease-protocol 5.5, docs/protocol.md, the P99.\n";
    let planted = planted.replace("??", "//");
    let seen: Vec<&str> = comments(&planted).map(|(_, comment)| comment).collect();
    let rules: Vec<&str> = seen.iter().flat_map(|it| rules_in(it)).collect();
    let documents: Vec<&str> = seen.iter().flat_map(|it| documents_in(it)).collect();
    assert_eq!(rules, ["A18", "P78"]);
    let there = ["lease-protocol", "docs/protocol.md"];
    assert_eq!(
        documents,
        [&["gone.md", "raft/mod.rs"], &there[..]].concat()
    );
    documents
        .iter()
        .zip([false, true, false, true])
        .for_each(|(cited, is_there)| assert_eq!(is_file_of(&files, cited), is_there, "{cited}"));
}

/// The protocol names tests, conversations and planted bugs that exist.
#[test]
fn the_protocol_names_tests_and_bugs_that_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = sources(root);
    let text = fs::read_to_string(root.join("docs/protocol.md")).unwrap();
    let (mut named, mut missing) = (0, Vec::new());
    for name in text.split('`').skip(1).step_by(2) {
        let is_test =
            name.matches('_').count() > 2 && !name.contains('.') && !name.starts_with("leasehold_");
        let is_type = name.starts_with(|c: char| c.is_ascii_uppercase())
            && name.contains(|c: char| c.is_ascii_lowercase())
            && name.chars().all(char::is_alphanumeric);
        let is_there = match (is_test, is_type) {
            (true, _) => {
                let conversation = root.join(format!("src/raft/testdata/{name}.txt"));
                sources.contains(&format!("fn {name}(")) || conversation.exists()
            }
            (_, true) => {
                let bug = format!("\n    {name} \"");
                sources.contains(&bug) || sources.contains(&format!("struct {name} "))
            }
            _ => continue,
        };
        named += 1;
        if !is_there {
            missing.push(name);
        }
    }
    assert_eq!(missing, [""; 0]);
    assert!(named > 150, "{named}");
}

/// The tests that notice planted bugs by themselves exist, by their whole names: a build with bugs would
/// say so, too, but only after minutes.
#[test]
fn the_witnesses_of_planted_bugs_are_there() {
    let planted = fs::read_to_string(source_root().join("planted/mod.rs")).unwrap();
    let witnesses = planted.split("[\"").skip(1);
    let witnesses = witnesses.map(|rest| rest.split('"').next().unwrap_or_default());
    let (mut named, mut missing) = (0, Vec::new());
    for witness in witnesses {
        named += 1;
        if !is_test_or_conversation(witness) {
            missing.push(witness);
        }
    }
    assert_eq!(missing, [""; 0]);
    assert!(named > 100, "{named}");
    assert!(!is_test_or_conversation(
        "planted::tests::which_is_not_there"
    ));
    assert!(!is_test_or_conversation("a_conversation_that_is_not_there"));
}

/// Whether `name` is the path of a test of the library, or the name of a conversation.
fn is_test_or_conversation(name: &str) -> bool {
    let Some((module, test)) = name.rsplit_once("::") else {
        return source_root()
            .join(format!("raft/testdata/{name}.txt"))
            .exists();
    };
    // Tests at the end of a file are a module of their own in it.
    let inside = module.strip_suffix("::tests").unwrap_or(module);
    let files = [module, inside].map(|module| module.replace("::", "/"));
    let files = files
        .iter()
        .flat_map(|file| [format!("{file}.rs"), format!("{file}/mod.rs")]);
    let mut texts = files.filter_map(|file| fs::read_to_string(source_root().join(file)).ok());
    texts.any(|text| text.contains(&format!("fn {test}(")))
}

/// What is named by `<a id="..."></a>` in a page.
fn anchors(page: &str) -> BTreeSet<String> {
    let ids = page.split("<a id=\"").skip(1);
    ids.map(|rest| rest.split('"').next().unwrap_or_default().to_owned())
        .collect()
}

/// The comments of `code`, with the numbers of their lines.
fn comments(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = code.lines().enumerate();
    lines.filter_map(|(index, line)| {
        let at = match line.trim_start().starts_with("//") {
            true => line.find("//")?,
            false => line.find(" // ")?,
        };
        Some((index + 1, &line[at..]))
    })
}

/// Rules of the protocol by name: a letter of one of its families, and a number.
fn rules_in(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.filter(|word| {
        let first = word.chars().next().map_or(0, char::len_utf8);
        let (family, number) = word
            .strip_prefix("RL")
            .map_or_else(|| word.split_at(first), |number| ("R", number));
        // Percentiles are no rules.
        let is_percentile = matches!(*word, "P50" | "P90" | "P95" | "P99");
        "NPAQFHMTSXDRLCEKWO".contains(family)
            && (1..=2).contains(&number.len())
            && number.chars().all(|c| c.is_ascii_digit())
            && !is_percentile
    })
}

/// Documents and source files that a comment names.
fn documents_in(comment: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_alphanumeric() || "_-./*".contains(c);
    let words = comment.split(move |c: char| !is_part(c));
    words
        .map(|word| word.trim_matches(['.', '/']))
        .filter(|word| {
            let is_pattern = word.contains('*') || word.starts_with('-');
            let is_document = word.ends_with(".md") || word.ends_with(".rs");
            !is_pattern && (*word == "lease-protocol" || is_document && word.len() > 3)
        })
}

/// Every file of the repository that may be named, with `/` between folders.
fn files_of_repository(root: &Path) -> Vec<String> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                folders.push(path);
            } else if name.ends_with(".md") || name.ends_with(".rs") {
                let path = path.strip_prefix(root).unwrap();
                files.push(path.display().to_string());
            }
        }
    }
    files
}

/// Whether `cited` is one of `files`, or the end of its path.
fn is_file_of(files: &[String], cited: &str) -> bool {
    files.iter().any(|file| {
        let rest = file.strip_suffix(cited);
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
    })
}

/// The rules that planted bugs take away.
fn rules_of_planted_bugs(root: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(root.join("src/planted/mod.rs")).unwrap();
    let (_, list) = text.rsplit_once("\nbugs! {\n").expect("the list is there");
    let rules = list.lines().filter_map(|line| {
        let (bug, rest) = line.strip_prefix("    ")?.split_once(" \"")?;
        let is_bug = bug.chars().all(char::is_alphanumeric);
        is_bug.then(|| rest.split('"').next().unwrap_or_default())
    });
    let rules: BTreeSet<String> = rules
        .flat_map(|rules| rules.split(", ").map(str::to_owned))
        .collect();
    assert!(rules.len() > 60, "{}", rules.len());
    rules
}

/// Links in documents lead to files and headings that are there, and the two pages that everybody
/// opens first stay short. ARCHITECTURE names source files that exist.
#[test]
fn documents_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut links, mut missing) = (0, Vec::new());
    for page in files_of_repository(root) {
        let is_document = page.ends_with(".md") && !page.contains("/seeds/");
        if !is_document {
            continue;
        }
        let text = fs::read_to_string(root.join(&page)).unwrap();
        for target in links_in(&text) {
            links += 1;
            if let Err(what) = follow(&root.join(&page), &text, target) {
                missing.push(format!("{page}: {target}: {what}"));
            }
        }
    }
    assert_eq!(missing, [""; 0]);
    assert!(links > 200, "{links}");

    for page in ["README.md", "ARCHITECTURE.md"] {
        let text = fs::read_to_string(root.join(page)).unwrap();
        let lines = text.lines().count();
        assert!(lines <= 150, "{page} has {lines} lines");
    }
    let files = files_of_repository(root);
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let gone: Vec<&str> = text
        .lines()
        .flat_map(documents_in)
        .filter(|cited| !is_file_of(&files, cited))
        .collect();
    assert_eq!(gone, [""; 0], "ARCHITECTURE.md");

    let page = "# A b, c\n[x](#a-b-c) [y](#gone) [z](gone.md) [w](https://example.org)\n";
    let here = root.join("README.md");
    let seen: Vec<bool> = links_in(page)
        .map(|target| follow(&here, page, target).is_ok())
        .collect();
    assert_eq!(seen, [true, false, false]);
}

/// The page on versions has the numbers of the code, so that raising one is written down.
#[test]
fn the_page_on_versions_says_the_numbers_of_the_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    let number = |file: &str, before: &str| {
        let text = read(file);
        let rest = text.split(before).nth(1).expect("the constant is there");
        let digits = |c: &char| c.is_ascii_digit() || *c == '.';
        rest.chars().take_while(digits).collect::<String>()
    };
    let rust = number("Cargo.toml", "rust-version = \"");
    let cluster = ["oldest: ", "newest: "].map(|end| number("src/kv/command.rs", end));
    let identity = number("src/server/disk/data_dir.rs", "FORMAT_VERSION: u32 = ");
    let log = number("src/log/segment.rs", "FORMAT_VERSION: u32 = ");
    let state = number("src/kv/mod.rs", "STATE_FORMAT: u32 = ");
    let stream = number("src/wire/state/header.rs", "STREAM_FORMAT: u16 = ");
    let page = read("docs/guide/versions.md");
    for said in [
        format!("| Rust that it needs: {rust} "),
        format!("of the log) | {} to {} |", cluster[0], cluster[1]),
        format!("identity | {identity} |"),
        format!("vote file | {log} |"),
        format!("| the state | {state} |"),
        format!("that is sent | {stream} |"),
    ] {
        assert!(page.contains(&said), "docs/guide/versions.md: {said}");
    }
    let needs = format!("Rust ({rust} or newer)");
    assert!(read("README.md").contains(&needs), "README.md: {needs}");
    let image = format!("FROM rust:{rust}-");
    let dockerfile = read("deploy/docker/Dockerfile");
    assert!(dockerfile.contains(&image), "Dockerfile: {image}");
}

/// Where a page's links lead within the repository.
fn links_in(page: &str) -> impl Iterator<Item = &str> {
    let targets = page.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://") && !target.contains([' ', '`']))
}

/// Whether `target` of a link in `page`, whose text is `text`, is there.
fn follow(page: &Path, text: &str, target: &str) -> Result<(), &'static str> {
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = match file {
        "" => page.to_path_buf(),
        _ => page.parent().unwrap().join(file),
    };
    if !path.exists() {
        return Err("there is no such file");
    }
    if anchor.is_empty() || path.extension().is_none_or(|end| end != "md") {
        return Ok(());
    }
    let text = match file {
        "" => text.to_owned(),
        _ => fs::read_to_string(&path).unwrap(),
    };
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let is_heading = headings.map(slug).any(|slug| slug == anchor);
    match is_heading || anchors(&text).contains(anchor) {
        true => Ok(()),
        false => Err("there is no such heading"),
    }
}

/// The anchor of a heading, as forges make it.
fn slug(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Whoever reads of an operation of the SDK finds it used, on the operation itself or on the type
/// that it belongs to. The examples are compiled with the tests, and run by `tests/cluster`.
#[test]
fn every_operation_of_the_sdk_is_shown_by_example() {
    let (mut operations, mut without) = (0, Vec::new());
    for file in rust_files(&source_root().join("client")) {
        let text = fs::read_to_string(&file).unwrap();
        let (seen, missing) = operations_without_example(&text);
        operations += seen;
        without.extend(missing.iter().map(|it| format!("{}: {it}", file.display())));
    }
    assert_eq!(without, [""; 0]);
    assert!(operations > 60, "{operations}");

    let planted = "/// ```\n/// client.shown().await?;\n/// ```\n/// `client.hidden()`\n\
                   \x20   pub async fn shown(\n    pub async fn hidden(\n";
    let (seen, missing) = operations_without_example(planted);
    assert_eq!((seen, missing), (2, vec!["hidden".to_owned()]));
}

/// How many operations a file has, and which of them no example in it calls.
fn operations_without_example(text: &str) -> (usize, Vec<String>) {
    let (mut examples, mut operations, mut in_example) = (String::new(), Vec::new(), false);
    for line in text.lines() {
        let line = line.trim_start();
        if let Some(said) = line
            .strip_prefix("///")
            .or_else(|| line.strip_prefix("//!"))
        {
            match said.trim_start().starts_with("```") {
                true => in_example = !in_example,
                false if in_example => examples += said,
                false => {}
            }
        } else if let Some(rest) = line.strip_prefix("pub async fn ") {
            let name = rest.split(['(', '<']).next().unwrap_or_default();
            operations.push(name.to_owned());
        }
    }
    let seen = operations.len();
    operations.retain(|name| {
        let calls = [format!(".{name}("), format!("::{name}(")];
        !calls.iter().any(|call| examples.contains(call))
    });
    (seen, operations)
}

/// All of our code and tests.
fn sources(root: &Path) -> String {
    let mut sources = String::new();
    for folder in ["src", "tests"] {
        for file in rust_files(&root.join(folder)) {
            sources.push_str(&fs::read_to_string(file).unwrap());
        }
    }
    sources
}

/// Releases work together in one cluster by a promise (docs/guide/versions.md) that takes two of them to be tried.
#[test]
fn two_releases_meet_in_a_test_as_soon_as_there_are_two() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let changelog = fs::read_to_string(root.join("CHANGELOG.md")).unwrap();
    let headings = changelog.lines().filter(|line| line.starts_with("## "));
    let releases = headings
        .filter(|line| !line.contains("not yet released"))
        .count();
    assert!(
        releases < 2 || root.join("tests/cluster/releases.rs").exists(),
        "write tests/cluster/releases.rs: one cluster of a binary of the release before and of this one, upgraded \
         node by node under load, and back"
    );
}
