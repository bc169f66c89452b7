//! The vote file: what must survive besides the log, in two slots (A19).
//!
//! Both slots are written and synced before anything may rest on what they say: first one, then
//! the other, each in its own 4 KiB block. A crash in between leaves one whole slot, and the newer
//! of the two counts. If a bit of one rots later, the other still says the same. Alternating
//! between the slots would not do: one flip would take the node back a term, and it would vote
//! twice.
//!
//! Each slot also names the last synced batch of the log and its hash, so that a log which lost its
//! end since then does not pass for a short one.

use std::time::Duration;

use crate::log::sector::{BLOCK, Fields, SECTOR, Seal, inspect};
use crate::log::segment::{COUNT_MAX, FORMAT_VERSION, TERM_MAX};
use crate::log::{Disk, DiskError, DiskFile, LogError, LogOptions, Vote};
use crate::types::{Incarnation, NodeId, Term};

/// The file.
pub(super) const FILE: &str = "vote";

const MAGIC: [u8; 8] = *b"lh-vote1";
const SLOTS: [u64; 2] = [0, BLOCK as u64];
const LENGTH: u64 = 2 * BLOCK as u64;

/// A batch of the log that was synced, and the hash of the last record in or before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SyncedBatch {
    pub(super) number: u64,
    pub(super) chain: u128,
}

/// What one slot says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    /// Rises with every save; the first is 1.
    pub(super) generation: u64,
    pub(super) vote: Vote,
    pub(super) synced: SyncedBatch,
    /// The log was damaged and has not been rebuilt since (A23).
    pub(super) quarantined: bool,
}

/// What was found of the file.
#[derive(Debug)]
pub(super) enum VoteRead<F> {
    /// Nothing was ever written.
    Missing,
    /// Something was, and none of it can be trusted.
    Lost,
    /// The newest whole slot, and all that whole slots name as synced.
    Whole {
        file: F,
        newest: Slot,
        /// Where the newest slot lies: it stays until the other says the same.
        at: u64,
        synced: Vec<SyncedBatch>,
    },
}

/// Reads the file.
pub(super) fn read<D: Disk>(
    disk: &mut D,
    options: &LogOptions,
) -> Result<VoteRead<D::File>, LogError> {
    let file = match disk.open(FILE) {
        Ok(file) => file,
        Err(DiskError::NotFound { .. }) => return Ok(VoteRead::Missing),
        Err(error) => return Err(error.into()),
    };
    let length = file.length()?;
    let mut whole: Vec<(u64, Slot)> = Vec::new();
    let mut broken = false;
    for at in SLOTS {
        let mut sector = [0; SECTOR];
        if at + SECTOR as u64 <= length {
            file.read_at(&mut sector, at)?;
        }
        match Slot::decode(&sector, options)? {
            SlotRead::Whole(slot) => whole.push((at, slot)),
            SlotRead::Blank => {}
            SlotRead::Broken => broken = true,
        }
    }
    let newest = whole.iter().max_by_key(|(_, slot)| slot.generation);
    match newest.copied() {
        Some((at, newest)) => Ok(VoteRead::Whole {
            file,
            at,
            newest,
            synced: whole.iter().map(|(_, slot)| slot.synced).collect(),
        }),
        None if broken => Ok(VoteRead::Lost),
        None => Ok(VoteRead::Missing),
    }
}

/// Makes the file, with `slot` in both places.
pub(super) fn create<D: Disk>(
    disk: &mut D,
    options: &LogOptions,
    slot: &Slot,
) -> Result<D::File, DiskError> {
    let mut file = match disk.open(FILE) {
        Ok(file) => file,
        Err(DiskError::NotFound { .. }) => disk.create(FILE)?,
        Err(error) => return Err(error),
    };
    file.write_zeros(0, LENGTH)?;
    file.sync_data()?;
    write(&mut file, options, slot)?;
    disk.sync_dir("")?;
    Ok(file)
}

/// Writes both slots, each synced before the next.
pub(super) fn write<F: DiskFile>(
    file: &mut F,
    options: &LogOptions,
    slot: &Slot,
) -> Result<(), DiskError> {
    write_in_order(file, options, slot, SLOTS)
}

/// Writes both slots after a start: the newest last, so that it stands until the other is durable.
pub(super) fn rewrite<F: DiskFile>(
    file: &mut F,
    options: &LogOptions,
    slot: &Slot,
    newest_at: u64,
) -> Result<(), DiskError> {
    let [first, second] = SLOTS;
    let order = if newest_at == first {
        [second, first]
    } else {
        SLOTS
    };
    write_in_order(file, options, slot, order)
}

fn write_in_order<F: DiskFile>(
    file: &mut F,
    options: &LogOptions,
    slot: &Slot,
    order: [u64; 2],
) -> Result<(), DiskError> {
    let sector = slot.encode(options);
    #[cfg(leasehold_bugs)]
    let order = planted_order(order, slot.generation);
    for at in order {
        file.write_at(&sector, at)?;
        if !planted!(VoteSyncSkipped) {
            file.sync_data()?;
        }
    }
    Ok(())
}

/// `SlotsAlternate`: one slot at a time is enough.
#[cfg(leasehold_bugs)]
fn planted_order(order: [u64; 2], generation: u64) -> Vec<u64> {
    if planted!(SlotsAlternate) && generation > 1 {
        return vec![SLOTS[(generation % 2) as usize]];
    }
    order.to_vec()
}

/// What a slot turned out to be.
#[derive(Debug)]
enum SlotRead {
    Blank,
    Broken,
    Whole(Slot),
}

impl Slot {
    /// What a new member starts with.
    pub(super) fn first(options: &LogOptions) -> Self {
        Self {
            generation: 1,
            vote: Vote::default(),
            synced: SyncedBatch {
                number: 0,
                chain: options.genesis(),
            },
            quarantined: false,
        }
    }

    fn encode(&self, options: &LogOptions) -> [u8; SECTOR] {
        let floor = u64::try_from(self.vote.promise_floor.as_nanos()).unwrap_or(u64::MAX);
        let voted_for = self.vote.voted_for.map_or(0, |node| node.0);
        Fields::new()
            .put(&MAGIC)
            .put(&FORMAT_VERSION.to_le_bytes())
            .put(&options.cluster.0.to_le_bytes())
            .put(&options.node.0.to_le_bytes())
            .put(&options.incarnation.0.to_le_bytes())
            .put(&self.generation.to_le_bytes())
            .put(&self.vote.term.0.to_le_bytes())
            .put(&[u8::from(self.vote.voted_for.is_some())])
            .put(&voted_for.to_le_bytes())
            .put(&floor.to_le_bytes())
            .put(&self.synced.number.to_le_bytes())
            .put(&self.synced.chain.to_le_bytes())
            .put(&[u8::from(self.quarantined)])
            .put(&self.vote.bootstrap.0.to_le_bytes())
            .sealed(0)
    }

    fn decode(sector: &[u8], options: &LogOptions) -> Result<SlotRead, LogError> {
        match inspect(sector, 0) {
            Seal::Blank => return Ok(SlotRead::Blank),
            Seal::Broken => return Ok(SlotRead::Broken),
            Seal::Whole => {}
        }
        let mut fields = Fields::of(sector);
        if fields.take() != MAGIC {
            return Ok(SlotRead::Broken);
        }
        let version = fields.u32();
        if version > FORMAT_VERSION {
            return Err(LogError::NewerFormat {
                file: FILE.to_owned(),
                version,
            });
        }
        let cluster = fields.u128();
        let node = fields.u64();
        let incarnation = fields.u64();
        LogError::check_identity(FILE, options, cluster, node)?;
        if incarnation != options.incarnation.0 {
            return Err(LogError::OtherIncarnation {
                found: Incarnation(incarnation),
                expected: options.incarnation,
            });
        }
        let generation = fields.u64();
        let term = Term(fields.u64());
        let voted = fields.u8() != 0;
        let voted_for = NodeId(fields.u64());
        let promise_floor = Duration::from_nanos(fields.u64());
        let synced = SyncedBatch {
            number: fields.u64(),
            chain: fields.u128(),
        };
        let quarantined = fields.u8() != 0;
        let slot = Self {
            generation,
            vote: Vote {
                term,
                voted_for: voted.then_some(voted_for),
                promise_floor,
                bootstrap: Term(fields.u64()),
            },
            synced,
            quarantined,
        };
        let possible = slot.generation < COUNT_MAX
            && slot.synced.number < COUNT_MAX
            && slot.vote.term < TERM_MAX;
        Ok(if possible {
            SlotRead::Whole(slot)
        } else {
            SlotRead::Broken
        })
    }
}
