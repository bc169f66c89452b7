//! Replays the seeds of the fuzz targets (`fuzz/seeds`) as plain tests, and whatever a fuzzer has
//! found on this machine besides.
//!
//! The targets are the files of the fuzz package itself, compiled here without a fuzzing engine.
//! Only what counts memory is missing (see `fuzz/src/targets/meter.rs`). `UPDATE_SEEDS=1` writes
//! those seeds anew that `seeds.rs` makes: after a change of a format, so that they go on meaning
//! something.

#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

mod seeds;
#[path = "../../fuzz/src/targets/mod.rs"]
#[allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "the library of another package, whose lints are its own"
)]
mod targets;

use std::fs;
use std::path::{Path, PathBuf};

use targets::TARGETS;

fn folder(kind: &str, target: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("fuzz").join(kind).join(target)
}

/// The files of a folder, in name order; none if there is no folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn replay(target: &str) {
    let run = TARGETS
        .iter()
        .find(|known| known.name == target)
        .expect("a target of that name")
        .run;
    let seeds = files(&folder("seeds", target));
    assert!(!seeds.is_empty(), "{target} has seeds");
    for file in seeds.iter().chain(&files(&folder("corpus", target))) {
        let data = fs::read(file).unwrap();
        let done = std::panic::catch_unwind(|| run(&data));
        assert!(done.is_ok(), "{target} fails on {}", file.display());
    }
}

macro_rules! replays {
    ($($(#[$when:meta])* $target:ident)*) => {
        $(
            #[test]
            $(#[$when])*
            fn $target() {
                replay(stringify!($target));
            }
        )*

        #[test]
        fn every_target_is_replayed_and_has_a_binary() {
            let replayed = [$($(#[$when])* stringify!($target)),*];
            let manifest = include_str!("../../fuzz/Cargo.toml");
            for target in TARGETS {
                assert!(replayed.contains(&target.name), "{}", target.name);
                let name = format!("name = \"{}\"", target.name);
                assert!(manifest.contains(&name), "{name}");
            }
        }
    };
}

replays! {
    frames
    client_messages
    server_messages
    peer_messages
    commands
    kv_model
    raft_inputs
    node_inputs
    log_files
    state_stream
    #[cfg(feature = "cli")]
    config_file
    #[cfg(feature = "cli")]
    certificates
    #[cfg(feature = "cli")]
    command_line
    #[cfg(feature = "cli")]
    etcd_requests
    #[cfg(feature = "cli")]
    etcd_json
    #[cfg(feature = "cli")]
    bbolt_files
}

/// What a fuzzer begins with: bytes that nobody chose.
#[test]
fn programs_of_random_bytes_do_what_the_model_does() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..300 {
        let mut data = Vec::with_capacity(600);
        while data.len() < 600 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            data.extend_from_slice(&state.to_le_bytes());
        }
        targets::kv::kv_model(&data);
    }
}

#[test]
fn seeds_are_what_the_formats_of_today_make_them() {
    let update = std::env::var_os("UPDATE_SEEDS").is_some();
    for seed in seeds::all() {
        let file = folder("seeds", seed.target).join(seed.name);
        if update {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, &seed.bytes).unwrap();
        }
        let found = fs::read(&file).unwrap_or_default();
        assert!(
            found == seed.bytes,
            "{} is of another time: look at what has changed, then UPDATE_SEEDS=1",
            file.display()
        );
    }
}

#[test]
fn seeds_are_small() {
    let sizes = TARGETS
        .iter()
        .flat_map(|target| files(&folder("seeds", target.name)));
    let bytes: u64 = sizes.map(|file| fs::metadata(file).unwrap().len()).sum();
    assert!(bytes < 256 << 10, "{bytes} bytes of seeds");
}
