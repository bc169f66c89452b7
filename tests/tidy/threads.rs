//! What a thread must not wait for. The driver's waits for no disk: while it stood still, no heartbeat would
//! leave, and its lease would end. (Calls that lead there by way of another module are caught where they
//! end: `durable.rs` asks which thread it is on.)

use super::code::{product, product_tokens};

/// Where everything runs on the driver's thread.
const DRIVER: &str = "server/driver/";
/// What opens, writes or syncs files.
const FILES: &[&str] = &[
    "DataDir",
    "File",
    "Marker",
    "OpenOptions",
    "StateDirs",
    "durable",
    "fs",
    "record_in",
    "sync_all",
    "sync_data",
    "sync_folder",
];

/// Words of a file that stand for files of the disk.
fn files_named_in(name: &str, text: &str) -> Vec<String> {
    let tokens = product_tokens(text);
    let named = tokens.iter().filter(|it| FILES.contains(&&*it.text));
    named
        .map(|it| format!("{name}:{}: {}", it.line, it.text))
        .collect()
}

#[test]
fn the_driver_names_nothing_that_waits_for_a_disk() {
    let (mut files, mut wrong) = (0, Vec::new());
    for source in product() {
        if source.name.starts_with(DRIVER) {
            files += 1;
            wrong.extend(files_named_in(&source.name, &source.text));
        }
    }
    assert_eq!(wrong, [""; 0], "have the log thread do it");
    assert!(files > 5, "{files}");

    let planted = "use std::fs;\n// File\nMarker::Removed.write(folder, why);\nfiles.len();\n";
    assert_eq!(
        files_named_in("f.rs", planted),
        ["f.rs:1: fs", "f.rs:3: Marker"]
    );
}
