//! A data directory that is put together from copies of two bootstraps of one cluster.

use std::fs;
use std::path::Path;

use crate::harness::{Cluster, copy_folder};

/// Parts of a data directory that belong together.
const PARTS: [&[&str]; 3] = [&["bootstrap.id"], &["state"], &["log", "vote"]];

fn put(cluster: &Cluster, key: &str) {
    let (code, _, error) = cluster.cli(&["put", key, "v", "--exactly-once"]);
    assert_eq!(code, 0, "{error}");
}

/// Puts the `parts` of the directory `from` in the place of those in `to`.
fn replace(parts: &[&str], from: &Path, to: &Path) {
    for part in parts {
        let (from, to) = (from.join(part), to.join(part));
        if from.is_dir() {
            fs::remove_dir_all(&to).unwrap();
            copy_folder(&from, &to);
        } else {
            fs::copy(&from, &to).unwrap();
        }
    }
}

/// It is refused by name, and the refused start spoils nothing: with the right parts back in their place, the
/// member goes on as if nothing had been. Which of the two has the longer log and the newer state decides what
/// a start would like to mend, so each is tried with the parts of the other.
#[test]
fn a_directory_with_parts_of_two_bootstraps_is_refused_and_goes_on_once_they_are_put_right() {
    let mut cluster = Cluster::prepare(1);
    let data = cluster.nodes[0].data_dir.clone();
    let mut copies = Vec::new();
    for writes in [3, 40] {
        cluster.start_and_settle();
        for number in 0..writes {
            put(&cluster, &format!("{writes}/{number}"));
        }
        assert_eq!(cluster.nodes[0].stop(), 0);
        let copy = data.with_extension(writes.to_string());
        fs::rename(&data, &copy).unwrap();
        copies.push((copy, writes));
    }
    for ((copy, writes), (foreign, _)) in [(&copies[0], &copies[1]), (&copies[1], &copies[0])] {
        for parts in PARTS {
            copy_folder(copy, &data);
            replace(parts, foreign, &data);
            cluster.nodes[0].start();
            assert_ne!(cluster.nodes[0].wait_for_exit(), 0, "{writes}, {parts:?}");
            let said = cluster.nodes[0].log_text();
            for needed in [
                data.to_str().unwrap(),
                "holds data of two bootstraps of this cluster",
                "restore the whole directory from one copy",
                "cluster.state = \"existing\"",
            ] {
                assert!(said.contains(needed), "{writes}, {parts:?}: {said}");
            }

            replace(parts, copy, &data);
            cluster.start_and_settle();
            put(&cluster, "after");
            let (code, out, error) = cluster.cli(&["get", "", "--prefix", "--count-only"]);
            assert_eq!(code, 0, "{error}");
            assert_eq!(out.trim(), (writes + 1).to_string(), "{parts:?}");
            assert_eq!(cluster.nodes[0].stop(), 0);
            fs::remove_dir_all(&data).unwrap();
        }
    }
}
