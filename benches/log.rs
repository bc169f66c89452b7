//! How close a log commit comes to the disk's own limit.
//!
//! `cargo bench --bench log` (set `TMPDIR` to the disk in question)

#![expect(clippy::unwrap_used, reason = "a bench that meets an error is over")]
#![expect(clippy::disallowed_methods, reason = "a bench measures time")]
#![expect(clippy::print_stdout, reason = "a bench prints what it found")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant as Stopwatch};

use leasehold::log::{Log, LogOptions, Record};
use leasehold::server::disk::file::RealDisk;
use leasehold::types::{ClusterId, Incarnation, LogId, LogIndex, NodeId, Term};

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(700);
const PAYLOAD: usize = 256;

/// Syncs a second of one block written to a file that was filled with zeros before.
fn raw(folder: &std::path::Path, block: usize) -> f64 {
    let path = folder.join("raw");
    let file = File::options()
        .create(true)
        .truncate(true)
        .write(true)
        .open(&path)
        .unwrap();
    let size = 32 << 20;
    file.write_all_at(&vec![0; size], 0).unwrap();
    file.sync_all().unwrap();
    let data = vec![7; block];
    let mut at = 0;
    let mut syncs = 0;
    let started = Stopwatch::now();
    while started.elapsed() < ROUND {
        file.write_all_at(&data, at as u64).unwrap();
        file.sync_data().unwrap();
        at = (at + block) % (size - block);
        syncs += 1;
    }
    let rate = f64::from(syncs) / started.elapsed().as_secs_f64();
    std::fs::remove_file(path).unwrap();
    rate
}

struct Writer {
    log: Log<RealDisk>,
    next: u64,
}

impl Writer {
    fn open(folder: &std::path::Path) -> Self {
        let disk = RealDisk::new(folder);
        let options = LogOptions {
            cluster: ClusterId(1),
            node: NodeId(1),
            incarnation: Incarnation(0),
            segment_bytes: 64 << 20,
        };
        let (log, _) = Log::open(disk, options).unwrap();
        Self { log, next: 1 }
    }

    /// Batches a second of `records` records each.
    fn run(&mut self, records: u64) -> f64 {
        let payload = bytes::Bytes::from(vec![7; PAYLOAD]);
        let mut batches = 0;
        let started = Stopwatch::now();
        while started.elapsed() < ROUND {
            let batch: Vec<Record> = (0..records)
                .map(|more| Record {
                    id: LogId::new(LogIndex(self.next + more), Term(1)),
                    kind: 1,
                    payload: payload.clone(),
                })
                .collect();
            self.log.append(&batch).unwrap();
            self.next += records;
            batches += 1;
        }
        f64::from(batches) / started.elapsed().as_secs_f64()
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    println!(
        "log: batches of {PAYLOAD}-byte records, each written, checked and synced, against bare writes \
         of one 4 KiB block\nwith fdatasync to a file of zeros on the same disk, taken in turns; \
         medians of {ROUNDS} rounds. A ratio of 1 means\nthat the log costs nothing beyond the disk."
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    std::fs::create_dir(&path).unwrap();
    let mut writer = Writer::open(&path);
    for records in [1, 16, 256] {
        let mut bare = Vec::new();
        let mut ours = Vec::new();
        for _ in 0..ROUNDS {
            bare.push(raw(folder.path(), 4096));
            ours.push(writer.run(records));
        }
        let ratios = ours
            .iter()
            .zip(&bare)
            .map(|(ours, bare)| ours / bare)
            .collect();
        let (bare, ours) = (median(bare), median(ours));
        println!(
            "{records:>4} records a batch: {ours:>7.0} batches/s, {:>9.0} records/s; bare {bare:>7.0} \
             syncs/s; ratio {:.2}",
            ours * records as f64,
            median(ratios),
        );
    }
}
