//! The few bytes that name a table tree's shape, which no checksum covers.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Outcome, Subject};

/// So many bytes of a manifest stand before its list of tables.
const SHAPE_BYTES: usize = 10;

fn manifests(data_dir: &Path) -> Vec<PathBuf> {
    let spaces = data_dir.join("state/db/keyspaces");
    let mut found = Vec::new();
    for space in fs::read_dir(spaces).unwrap() {
        for file in fs::read_dir(space.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let number = name.strip_prefix('v');
            if number.is_some_and(|number| number.parse::<u64>().is_ok()) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The engine asserts what it reads there, and panicked twice: once for the byte, and once more while it
/// took itself apart. That ended the process, at each start anew, before it could set the state aside.
#[test]
fn whatever_a_manifest_says_of_its_shape_the_node_lives_to_build_its_state_anew() {
    let mut subject = Subject::prepare();
    let mut gave_up = 0;
    for at in 0..SHAPE_BYTES {
        let (_, outcome) = subject.start_on(0, |data_dir| {
            for path in manifests(data_dir) {
                let mut bytes = fs::read(&path).unwrap();
                bytes[at] ^= 2;
                fs::write(&path, bytes).unwrap();
            }
        });
        let text = subject.cluster.nodes[0].log_text();
        gave_up += u32::from(text.contains("the storage engine gave up"));
        let lives = matches!(outcome, Outcome::Mended | Outcome::Harmless);
        assert!(lives, "byte {at}: {outcome:?}: {text}");
    }
    assert!(gave_up >= 2, "the engine found nothing to give up for");
}
