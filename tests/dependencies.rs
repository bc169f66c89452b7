//! What the lock files may name: one source, nothing that is banned, nothing older than what mended it.
//!
//! Licences and advisories are `cargo deny`'s to judge (`deny.toml`), where it is installed. These rules
//! need nothing but the files, and hold on every machine.

use std::fs;
use std::path::Path;

/// The first version of a crate that may be used, in the series that it belongs to and in older ones.
/// Each is the one in which something that endangers a node was mended.
const FLOORS: &[(&str, [u64; 3])] = &[
    ("anyhow", [1, 0, 103]),
    ("bytes", [1, 11, 1]),
    ("crossbeam-epoch", [0, 9, 20]),
    ("h2", [0, 4, 16]),
    ("lz4_flex", [0, 12, 1]),
    ("quinn-proto", [0, 11, 15]),
    ("rustls", [0, 23, 18]),
    ("rustls-webpki", [0, 103, 13]),
    ("tracing-subscriber", [0, 3, 20]),
];

/// A second provider of cryptography makes the first one panic; C libraries for TLS are not built here; and
/// what nobody keeps any more is not used.
const BANNED: &[&str] = &[
    "aws-lc-rs",
    "aws-lc-sys",
    "native-tls",
    "openssl",
    "openssl-sys",
    "rustls-pemfile",
];

#[derive(Default)]
struct Package<'a> {
    name: &'a str,
    version: &'a str,
    source: Option<&'a str>,
    has_checksum: bool,
}

fn packages(lock: &str) -> Vec<Package<'_>> {
    let blocks = lock.split("[[package]]").skip(1);
    blocks
        .map(|block| {
            let mut package = Package::default();
            for line in block.lines() {
                let Some((key, value)) = line.split_once(" = ") else {
                    continue;
                };
                let value = value.trim_matches('"');
                match key {
                    "name" => package.name = value,
                    "version" => package.version = value,
                    "source" => package.source = Some(value),
                    "checksum" => package.has_checksum = true,
                    _ => {}
                }
            }
            package
        })
        .collect()
}

/// The numbers of a version, without what follows `-` or `+`.
fn numbers(version: &str) -> Vec<u64> {
    let plain = version.split(['-', '+']).next().unwrap_or_default();
    plain.split('.').filter_map(|it| it.parse().ok()).collect()
}

fn violations(lock: &str) -> Vec<String> {
    let packages = packages(lock);
    let sources = packages.iter().filter_map(|package| package.source);
    let one = sources
        .filter(|source| source.starts_with("registry+"))
        .min();
    let mut found = Vec::new();
    for package in &packages {
        let Package { name, version, .. } = package;
        match package.source {
            None if name.starts_with("leasehold") => {}
            None => found.push(format!("{name} {version} comes from a folder")),
            Some(source) if !source.starts_with("registry+") || Some(source) != one => {
                found.push(format!("{name} {version} has a source of its own"));
            }
            Some(_) if !package.has_checksum => {
                found.push(format!("{name} {version} has no checksum"));
            }
            Some(_) => {}
        }
        if BANNED.contains(name) {
            found.push(format!("{name} is banned"));
        }
        let floor = FLOORS.iter().find(|(of, _)| of == name);
        if let Some((_, floor)) = floor.filter(|(_, floor)| numbers(version) < floor.to_vec()) {
            found.push(format!("{name} {version} is older than {floor:?}"));
        }
    }
    found
}

#[test]
fn lock_files_name_one_source_nothing_banned_and_nothing_too_old() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for file in ["Cargo.lock", "fuzz/Cargo.lock"] {
        let lock = fs::read_to_string(root.join(file)).unwrap();
        assert!(packages(&lock).len() > 50, "{file} was not understood");
        assert_eq!(violations(&lock), Vec::<String>::new(), "{file}");
    }
    let lock = fs::read_to_string(root.join("Cargo.lock")).unwrap();
    for (name, _) in FLOORS {
        let is_there = packages(&lock).iter().any(|package| package.name == *name);
        assert!(is_there, "{name} is not used any more: take its floor away");
    }
}

#[test]
fn the_scan_sees_what_is_planted() {
    let package = |name: &str, version: &str, rest: &str| {
        format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\n{rest}\n")
    };
    let known = "source = \"registry+a\"\nchecksum = \"00\"";
    let lock = [
        package("leasehold", "0.1.0", ""),
        package("good", "1.0.0", known),
        package("beside", "1.0.0", ""),
        package("forked", "1.0.0", "source = \"git+a\""),
        package(
            "elsewhere",
            "1.0.0",
            "source = \"registry+b\"\nchecksum = \"00\"",
        ),
        package("unsummed", "1.0.0", "source = \"registry+a\""),
        package("openssl", "1.0.0", known),
        package("quinn-proto", "0.11.14", known),
        package("bytes", "1.11.1+x", known),
    ];
    let expected = [
        "beside 1.0.0 comes from a folder",
        "forked 1.0.0 has a source of its own",
        "elsewhere 1.0.0 has a source of its own",
        "unsummed 1.0.0 has no checksum",
        "openssl is banned",
        "quinn-proto 0.11.14 is older than [0, 11, 15]",
    ];
    assert_eq!(violations(&lock.concat()), expected);
}
