//! A log and a vote file whose bytes were changed behind everybody's back.
//!
//! The input makes a log (which records, in which batches, with which marks and cuts at its beginning), then changes files:
//! flips, overwrites, blanks, moves sectors, cuts and loses whole files, and, if it likes, puts the
//! checksum of a sector right again. Without that last liberty the log has to notice, or give
//! exactly what was written; with it, it has to come to some end without a panic. Either way it can
//! be repaired and goes on, and consensus starts on what it gave.

use std::time::Duration;

use bytes::Bytes;
use leasehold::log::{
    Base, Disk, DiskError, DiskFile, Item, Log, LogError, LogOptions, Record, Recovery, Verdict,
    Vote,
};
use leasehold::raft::{Consensus, Entry, HardState, Input, Payload, RestoredState, Timing};
use leasehold::time::Instant;
use leasehold::types::{ClusterId, Incarnation, LogId, LogIndex, NodeId, Term};

use super::draw::Draw;
use super::peer::{NODE, voters};
use super::trace::say;
use sim_disk::SimDisk;

/// The disk in memory that the tests of the log use, too.
#[expect(dead_code, reason = "the tests of the log use all of it")]
#[path = "../../../src/log/sim_disk.rs"]
mod sim_disk;

const SECTOR: usize = 512;
const BLOCK: usize = 4096;
/// Steps that make the log, and changes that damage it.
const STEPS_MAX: usize = 24;
const CHANGES_MAX: usize = 8;
/// The log begins later.
const BEGIN: u8 = 248;
/// What that makes free is deleted.
const DELETE: u8 = 249;

const OPTIONS: LogOptions = LogOptions {
    cluster: ClusterId(0x1234_5678_9abc),
    node: NODE,
    incarnation: Incarnation(1),
    segment_bytes: 16 << 10,
};

/// See the module.
pub fn log_files(data: &[u8]) {
    let mut draw = Draw::new(data);
    let disk = SimDisk::new(1);
    let truth = Truth::write(&mut draw, &disk);
    disk.kill();
    let mut damage = Changes::default();
    for _ in 0..CHANGES_MAX {
        if draw.is_over() {
            break;
        }
        damage.change(&mut draw, &disk);
    }
    let is_empty = !disk
        .file_names()
        .iter()
        .any(|name| name.starts_with("log/"));
    match Log::open(disk.clone(), OPTIONS) {
        Ok((log, recovery)) => {
            if recovery.created {
                // Whose data is gone whole must know that from elsewhere.
                assert!(is_empty || damage.resealed);
            } else if !damage.resealed {
                truth.judge(&recovery, &damage);
            }
            start_consensus(&recovery);
            go_on(log, &recovery, &disk);
        }
        Err(error) => {
            say(format_args!("refused: {error}"));
            assert!(!error.to_string().is_empty());
            assert!(damage.any, "what nobody touched is opened: {error}");
        }
    }
}

/// What was written and acknowledged.
struct Truth {
    base: LogId,
    records: Vec<Record>,
    /// Every record that there ever was.
    written: Vec<Record>,
    vote: Vote,
    /// The first record of the last batch that nothing names as synced; none after a mark.
    unnamed: Option<LogIndex>,
}

impl Truth {
    /// Makes a log: until the input says that it is enough.
    fn write(draw: &mut Draw<'_>, disk: &SimDisk) -> Self {
        let (mut log, recovery) = Log::open(disk.clone(), OPTIONS).expect("the disk is sound");
        assert!(recovery.created);
        // Consensus saves its promise before it appends anything; without that, a log that is lost
        // whole cannot be told from one that was never made.
        let vote = Vote {
            promise_floor: Duration::from_millis(500),
            ..Vote::default()
        };
        log.save_vote(vote).expect("the disk is sound");
        let mut truth = Self {
            base: LogId::default(),
            records: Vec::new(),
            written: Vec::new(),
            vote,
            unnamed: None,
        };
        let mut term = 1;
        for _ in 0..STEPS_MAX {
            let step = draw.byte();
            match step % 8 {
                _ if step == BEGIN => truth.begin(draw, &mut log, term),
                _ if step == DELETE => while log.delete_old().expect("the disk is sound") {},
                0 => break,
                1 => {
                    log.mark().expect("the disk is sound");
                    truth.unnamed = None;
                }
                2 => {
                    term += 1;
                    truth.vote = Vote {
                        term: Term(term),
                        voted_for: draw.bool().then_some(NodeId(2)),
                        promise_floor: Duration::from_millis(500),
                        bootstrap: Term(term / 2),
                    };
                    log.save_vote(truth.vote).expect("the disk is sound");
                    truth.unnamed = None;
                }
                3 => drop(log.prepare_next(true)),
                4 => {
                    drop(log);
                    log = Log::open(disk.clone(), OPTIONS)
                        .expect("the disk is sound")
                        .0;
                    truth.unnamed = None;
                }
                _ => truth.append(draw, &mut log, term),
            }
        }
        truth
    }

    fn append(&mut self, draw: &mut Draw<'_>, log: &mut Log<SimDisk>, term: u64) {
        let length = self.records.len() as u64;
        // Some of what is there may be replaced.
        let cut = u64::from(draw.byte() % 8).saturating_sub(5).min(length);
        let first = self.base.index.0 + length - cut + 1;
        let bytes = [0, 3, 40, 500, 2_000, 6_000][draw.below(6)];
        let count = 1 + u64::from(draw.byte() % 3);
        let records = (first..first + count).map(|index| record(index, term, bytes));
        let records: Vec<Record> = records.collect();
        log.append(&records).expect("the disk is sound");
        self.records.truncate((length - cut) as usize);
        // An append larger than a batch is several, and only the last of them is unnamed.
        self.unnamed = Some(LogIndex(first));
        self.written.extend(records.iter().cloned());
        self.records.extend(records);
    }

    /// The log begins after one of its entries, or after one that it has not.
    fn begin(&mut self, draw: &mut Draw<'_>, log: &mut Log<SimDisk>, term: u64) {
        let place = usize::from(draw.byte() % 16);
        let (id, kept) = match self.records.get(place) {
            Some(record) => (record.id, place + 1),
            None => {
                let index = self.base.index.0 + self.records.len() as u64 + 1;
                (LogId::new(LogIndex(index), Term(term)), self.records.len())
            }
        };
        let note = note(id);
        let base = Base { id, note };
        log.write(&[Item::Base(base)]).expect("the disk is sound");
        self.records.drain(..kept);
        self.base = id;
        self.unnamed = Some(id.index.next());
    }

    /// What was found is what was written, or the log says that something is wrong.
    fn judge(&self, found: &Recovery, damage: &Changes) {
        let damaged = matches!(found.verdict, Verdict::Damaged(_));
        if found.base != self.base {
            // It began earlier once, or nothing of it is left.
            assert!(damaged || self.lost_a_cut(found, damage));
            for record in &found.records {
                assert!(
                    self.written.contains(record),
                    "never written: {:?}",
                    record.id
                );
            }
            return;
        }
        if self.base != LogId::default() {
            assert_eq!(
                found.base_note,
                note(self.base),
                "what was noted of the base"
            );
        }
        let expected = &self.records[..];
        for (one, other) in found.records.iter().zip(expected) {
            if one == other {
                continue;
            }
            // What a lost cut had replaced may show again, but never as the whole truth.
            assert!(
                damaged || self.lost_a_cut(found, damage),
                "a wrong record: {:?}",
                one.id
            );
        }
        if !damaged {
            assert_eq!(found.vote, self.vote, "a vote is never taken back");
            let all = found.records == expected;
            // A24: sectors of zeros in a last batch that nothing names look like a torn write.
            assert!(
                all || (damage.blanked && self.unnamed.is_some()),
                "{} records of {} and nothing said: {:?}",
                found.records.len(),
                expected.len(),
                found.verdict
            );
            if !all {
                let first = self.unnamed.map_or(0, |first| first.0);
                let kept = first.saturating_sub(self.base.index.0 + 1) as usize;
                assert!(
                    found.records.len() >= kept.min(self.records.len()),
                    "more than the last batch is gone"
                );
            }
        } else {
            assert!(damage.any, "a sound log is damaged: {:?}", found.verdict);
            assert!(found.quarantined);
        }
    }

    /// Whether the last batch, and with it a cut, may have been taken for torn, or for never written
    /// if it was a single sector (A24).
    fn lost_a_cut(&self, found: &Recovery, damage: &Changes) -> bool {
        let may_lack = matches!(found.verdict, Verdict::TornTailCut { .. } | Verdict::Clean);
        may_lack && damage.blanked && self.unnamed.is_some()
    }
}

/// What is noted of where the log begins.
fn note(id: LogId) -> Bytes {
    Bytes::from(format!("before {id}"))
}

/// A record whose payload says which one it is, all the way through.
fn record(index: u64, term: u64, bytes: usize) -> Record {
    let stamp = format!("{index}@{term};");
    Record {
        id: LogId::new(LogIndex(index), Term(term)),
        kind: (index % 3) as u8,
        payload: stamp.bytes().cycle().take(bytes).collect(),
    }
}

/// What was done to the files.
#[derive(Default)]
struct Changes {
    any: bool,
    /// A file is gone.
    lost: bool,
    /// Whole sectors were made zero.
    blanked: bool,
    /// A checksum was put right.
    resealed: bool,
}

impl Changes {
    fn change(&mut self, draw: &mut Draw<'_>, disk: &SimDisk) {
        let names = disk.file_names();
        if names.is_empty() {
            return;
        }
        let name = &names[draw.below(names.len())];
        let contents = disk.contents(name);
        if contents.is_empty() {
            return;
        }
        let sector = place(draw, contents.len() / SECTOR) * SECTOR;
        let within = usize::from(draw.byte()) * 2;
        let before = contents.clone();
        let how = draw.byte() % 8;
        match how {
            0 => disk.flip(name, (sector + within) * 8 + draw.below(8)),
            1 => disk.rot(name, sector, &[0; SECTOR]),
            2 => {
                let from = place(draw, contents.len() / SECTOR) * SECTOR;
                disk.rot(name, sector, &contents[from..from + SECTOR]);
            }
            3 => {
                let other = disk.contents(&names[draw.below(names.len())]);
                let from = place(draw, other.len() / SECTOR) * SECTOR;
                if let Some(other) = other.get(from..from + SECTOR) {
                    disk.rot(name, sector, other);
                }
            }
            4 => {
                disk.lose_file(name);
                self.lost = true;
            }
            5 => {
                // Longer than it was, or ten files with this one's content.
                let bytes = draw.bytes(64);
                disk.rot(name, contents.len(), bytes);
            }
            6 | 7 => {
                let mut bytes = contents[sector..sector + SECTOR].to_vec();
                let patch = patch(draw);
                let end = (within + patch.len()).min(SECTOR);
                bytes[within..end].copy_from_slice(&patch[..end - within]);
                if how == 7 {
                    seal(name, sector, &mut bytes);
                    self.resealed = true;
                }
                disk.rot(name, sector, &bytes);
            }
            _ => unreachable!("below eight"),
        }
        let after = disk.contents(name);
        say(format_args!("{name} at {sector}+{within}: {how}"));
        self.any |= after != before;
        let blank = |bytes: &[u8], at: usize| {
            bytes
                .get(at..at + SECTOR)
                .is_some_and(|sector| sector.iter().all(|byte| *byte == 0))
        };
        self.blanked |= after != before && blank(&after, sector);
    }
}

/// A place among `count`: the first ones are where headers, openings and slots lie.
fn place(draw: &mut Draw<'_>, count: usize) -> usize {
    draw.number(&[0, (BLOCK / SECTOR) as u64, 2 * (BLOCK / SECTOR) as u64]) as usize % count.max(1)
}

/// Bytes for a field: a number of any size, or just bytes.
fn patch(draw: &mut Draw<'_>) -> Vec<u8> {
    match draw.below(4) {
        0 => vec![draw.byte()],
        1 => (draw.number(&[]) as u32).to_le_bytes().to_vec(),
        2 => draw.number(&[]).to_le_bytes().to_vec(),
        _ => draw.bytes(64).to_vec(),
    }
}

/// Puts the checksum of a sector right, as only somebody can who knows the format.
fn seal(name: &str, offset: usize, sector: &mut [u8]) {
    let number = name
        .strip_prefix("log/")
        .and_then(|digits| digits.parse::<u64>().ok());
    let seed = match number {
        // The slots of the vote file, and a segment's header, can be read without knowing more.
        None => 0,
        Some(_) if offset == 0 => 0,
        Some(number) => {
            let cluster = OPTIONS.cluster.0;
            let owner = mix(mix(0, cluster as u64), (cluster >> 64) as u64);
            mix(mix(mix(owner, OPTIONS.node.0), number), offset as u64)
        }
    };
    let mut sum = crc32fast::Hasher::new_with_initial(seed);
    sum.update(&sector[4..]);
    let sum = sum.finalize().to_le_bytes();
    sector[..4].copy_from_slice(&sum);
}

fn mix(seed: u32, place: u64) -> u32 {
    let mut sum = crc32fast::Hasher::new_with_initial(seed);
    sum.update(&place.to_le_bytes());
    sum.finalize()
}

/// Consensus starts on whatever the log gave.
fn start_consensus(found: &Recovery) {
    let entries = found.records.iter().map(|record| Entry {
        id: record.id,
        payload: Payload::Command(record.payload.clone()),
    });
    let restored = RestoredState {
        hard_state: HardState {
            term: found.vote.term,
            vote: found.vote.voted_for,
            promise_floor: found.vote.promise_floor,
            bootstrap: found.vote.bootstrap,
        },
        base: found.base,
        base_configuration: voters(1..=1),
        entries: entries.collect(),
        applied: found.base.index,
        quarantined: found.quarantined,
        ..RestoredState::default()
    };
    let mut now = Instant::from_nanos(1);
    let mut node = Consensus::new(NODE, Timing::default(), restored, 1, now);
    // Alone, so that it stands for election and leads, unless it is in quarantine.
    for _ in 0..4 {
        while let Some(output) = node.poll_output() {
            if let leasehold::raft::Output::Persist(ticket, _) = output {
                node.handle(now, Input::Persisted(ticket));
            }
        }
        now = now + Duration::from_secs(120);
        node.handle(now, Input::Tick);
    }
}

/// The log goes on, after a repair if it needs one, and finds itself as it was left.
fn go_on(mut log: Log<SimDisk>, found: &Recovery, disk: &SimDisk) {
    if matches!(found.verdict, Verdict::Damaged(_)) {
        let refused = log.append(&[record(1, 1, 1)]);
        assert!(matches!(refused, Err(LogError::Damaged(_))), "{refused:?}");
        log.repair().expect("the disk works");
    }
    let last = log.last();
    let more = record(last.index.0 + 1, last.term.0, 300);
    log.append(std::slice::from_ref(&more))
        .expect("the disk works");
    drop(log);
    let (mut log, again) = Log::open(disk.clone(), OPTIONS).expect("what was repaired is sound");
    assert!(
        !matches!(again.verdict, Verdict::Damaged(_)),
        "{:?}",
        again.verdict
    );
    assert_eq!(again.vote, found.vote);
    assert_eq!(
        again.quarantined, found.quarantined,
        "a quarantine is not forgotten"
    );
    let (newest, before) = again.records.split_last().expect("one was appended");
    assert_eq!(newest, &more);
    assert_eq!(before, found.records);
    log.end_quarantine().expect("the disk works");
    assert!(disk.clone().list("log").is_ok_and(|names| names.len() >= 2));
}
