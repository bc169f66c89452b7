//! The log as its owner sees it: open, append, save the vote.
//!
//! Every call returns when what it was given is durable, or with an error, after which the log is
//! poisoned: the system may have thrown the unsynced pages away and would report success next
//! time, so no sync is ever tried twice.

use std::collections::{BTreeMap, VecDeque};

use crate::log::record::{Base, Item, Record, View};
use crate::log::recover::{Extent, Facts, Recovered, SpareSegment};
use crate::log::sector::block_align;
use crate::log::segment::{
    DATA_AT, FOLDER, Header, OPENING_AT, Opening, Seed, batch_bytes, file_name, number_of,
    payload_max, seal_batch, segment_bytes_are_sound,
};
use crate::log::tip::Tip;
use crate::log::vote::Vote;
use crate::log::vote_file::{Slot, SyncedBatch, VoteRead};
use crate::log::{
    Damage, Disk, DiskError, DiskFile, LogError, LogOptions, Preparation, Recovery, Verdict,
    record, recover, vote_file,
};
use crate::types::LogId;

/// A batch is closed at this payload, so that one write is never unbounded. A larger record
/// travels alone.
const BATCH_PAYLOAD_MAX: usize = 4 << 20;
/// Zeros are written ahead in slices of this size, each synced: what a waiting batch may have to
/// wait for.
const FILL_SLICE_BYTES: u64 = 512 << 10;
/// How many segments lie ready before one is opened: itself, and the one after it (A22).
const SPARES_WANTED: usize = 2;

/// The log of one member, and its vote file.
#[derive(Debug)]
pub struct Log<D: Disk> {
    disk: D,
    options: LogOptions,
    poisoned: bool,
    vote_file: D::File,
    slot: Slot,
    body: Body<D::File>,
}

#[derive(Debug)]
enum Body<F> {
    /// In use.
    Sound(Box<Tail<F>>),
    /// Damaged: nothing can be appended until [`Log::repair`].
    Damaged { found: Box<Recovered<F>> },
}

/// The end of a sound log.
#[derive(Debug)]
struct Tail<F> {
    /// Segments that hold something, oldest first; the last is the one in use.
    segments: VecDeque<Facts>,
    /// The segment in use.
    file: F,
    seed: Seed,
    position: u64,
    spares: VecDeque<SpareSegment<F>>,
    filling: Option<SegmentFill<F>>,
    /// Where the records given so far lead to.
    tip: Tip,
    /// What is durable of them.
    synced: Opening,
    /// The last batch is recorded as synced.
    marked: bool,
    /// The number of the segment that records where the log begins; 0 if none does.
    base_segment: u64,
    /// The open batch contains a record of where the log begins.
    has_base: bool,
    /// The open batch, and its sectors: kept to be used again.
    payload: Vec<u8>,
    sectors: Vec<u8>,
}

/// A segment whose zeros are being written.
#[derive(Debug)]
struct SegmentFill<F> {
    file: F,
    header: Header,
    filled: u64,
}

impl<D: Disk> Log<D> {
    /// Opens the log of `disk`, or makes it. A torn tail is cut and the kept tail is durable when
    /// this returns; a damaged log is left as it is, can save votes, and refuses
    /// [`Log::append`] until [`Log::repair`].
    pub fn open(mut disk: D, options: LogOptions) -> Result<(Self, Recovery), LogError> {
        options.check()?;
        let look = Look::take(&mut disk, &options)?;
        let recovery = look.recovery;
        let (mut vote_file, newest_at) = match look.vote_file {
            Some(found) => found,
            None => (vote_file::create(&mut disk, &options, &look.slot)?, 0),
        };
        // Names that can be seen may not be on disk either.
        if !planted!(NamesTrusted) {
            disk.sync_dir("")?;
            disk.sync_dir(FOLDER)?;
        }
        let mut slot = look.slot;
        let body = if let Verdict::Damaged(_) = recovery.verdict {
            let found = Box::new(look.found);
            Body::Damaged { found }
        } else if recovery.created {
            Body::Sound(Box::new(Tail::create(&mut disk, &options, &look.found)?))
        } else {
            Body::Sound(Box::new(Tail::take_over(&mut disk, &options, look.found)?))
        };
        if let Body::Sound(tail) = &body {
            // The slots, like the tail, may be in the page cache only. From here on they also
            // name the kept tail, which is durable now.
            slot.generation += u64::from(!recovery.created);
            slot.synced = tail.synced_batch();
            vote_file::rewrite(&mut vote_file, &options, &slot, newest_at)?;
        }
        let log = Self {
            disk,
            options,
            poisoned: false,
            vote_file,
            slot,
            body,
        };
        Ok((log, recovery))
    }

    /// Reads what [`Log::open`] would find, and writes nothing.
    pub fn inspect(mut disk: D, options: LogOptions) -> Result<Recovery, LogError> {
        options.check()?;
        Look::take(&mut disk, &options).map(|look| look.recovery)
    }

    /// Appends records and returns when they are durable. Each index is the one after the record
    /// before it, or lower: then everything from there on is cut first. An entry that was deleted
    /// with its segment can not be cut.
    pub fn append(&mut self, records: &[Record]) -> Result<(), LogError> {
        self.write_all(records.iter().map(View::Entry))
    }

    /// As [`Log::append`], with word of where the log begins among the records: an entry at or below
    /// that can not be cut any more. The newest such word is what the next start goes by; so it is
    /// written again, with what is to be known by then, whenever the log is to begin later.
    pub fn write(&mut self, items: &[Item]) -> Result<(), LogError> {
        self.write_all(items.iter().map(Item::view))
    }

    /// As [`Log::write`], but ends where another segment is needed and the disk has no space for it.
    /// Returns how many of `items` are durable; of the others nothing is written, and they may be
    /// given again.
    pub fn write_some(&mut self, items: &[Item]) -> Result<usize, LogError> {
        self.write_views(items.iter().map(Item::view))
    }

    fn write_all<'a>(
        &mut self,
        items: impl Iterator<Item = View<'a>> + Clone,
    ) -> Result<(), LogError> {
        let given = items.clone().count();
        if self.write_views(items)? == given {
            return Ok(());
        }
        self.poison_on_error(Err(DiskError::NoSpace {
            operation: "prepare the next segment in",
            name: FOLDER.to_owned(),
        }))
    }

    fn write_views<'a>(
        &mut self,
        items: impl Iterator<Item = View<'a>> + Clone,
    ) -> Result<usize, LogError> {
        self.check_usable()?;
        let options = self.options;
        let Body::Sound(tail) = &mut self.body else {
            return Err(self.refusal());
        };
        tail.check(items.clone(), &options)?;
        let done = tail.append(&mut self.disk, &options, items.clone());
        if let Ok(written) = done {
            tail.check_written();
            if let Some(View::Entry(record)) = items.take(written).last() {
                debug_assert_eq!(tail.tip.last, record.id, "the log ends with what was given");
            }
        }
        self.poison_on_error(done)
    }

    /// Makes the vote durable. A vote equal to the saved one costs nothing.
    pub fn save_vote(&mut self, vote: Vote) -> Result<(), LogError> {
        self.check_usable()?;
        if vote == self.slot.vote {
            return Ok(());
        }
        if !self.slot.vote.allows(&vote) {
            return Err(LogError::VoteTakenBack {
                saved: self.slot.vote,
                given: vote,
            });
        }
        self.slot.vote = vote;
        self.save_slot()
    }

    /// Names the last batch as synced with an empty batch, if nothing does yet. To be called when
    /// there was no batch for 10 ms, off the path of acknowledgements.
    pub fn mark(&mut self) -> Result<(), LogError> {
        self.check_usable()?;
        let options = self.options;
        let Body::Sound(tail) = &mut self.body else {
            return Ok(());
        };
        if tail.marked {
            return Ok(());
        }
        // Where there is no room for it, the next batch is the mark.
        let done = match tail.make_room(&mut self.disk, &options, 0) {
            Ok(true) => tail.write_batch(&mut self.disk, &options),
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        };
        self.poison_on_error(done)
    }

    /// Writes one slice of the next segment's zeros, if that is due: at leisure (`idle`) once half
    /// of the segment in use is full, and otherwise in step with how it fills up.
    pub fn prepare_next(&mut self, idle: bool) -> Result<Preparation, LogError> {
        self.check_usable()?;
        let options = self.options;
        let Body::Sound(tail) = &mut self.body else {
            return Ok(Preparation::Done);
        };
        if !tail.fill_due(idle, &options) {
            return Ok(Preparation::Done);
        }
        match tail.fill(&mut self.disk, &options) {
            Ok(()) if tail.fill_due(idle, &options) => Ok(Preparation::More),
            Ok(()) => Ok(Preparation::Done),
            // Nothing is lost yet: give back what was taken, and try again later.
            Err(DiskError::NoSpace { .. }) => {
                let done = tail.give_up_filling(&mut self.disk);
                self.poison_on_error(done)?;
                Ok(Preparation::NoSpace)
            }
            Err(error) => self.poison_on_error(Err(error)).map(|()| Preparation::Done),
        }
    }

    /// Deletes the oldest segment, if nothing in it lies behind the base. Whether it did: then there
    /// may be more.
    pub fn delete_old(&mut self) -> Result<bool, LogError> {
        self.check_usable()?;
        let Body::Sound(tail) = &mut self.body else {
            return Ok(false);
        };
        if tail.old_segments() == 0 {
            return Ok(false);
        }
        let done = tail.delete_oldest(&mut self.disk);
        self.poison_on_error(done).map(|()| true)
    }

    /// How many segments [`Log::delete_old`] would delete.
    pub fn old_segments(&self) -> usize {
        match &self.body {
            Body::Sound(tail) => tail.old_segments(),
            Body::Damaged { .. } => 0,
        }
    }

    /// How many segments there are, and their size in bytes: those in use, and those prepared.
    pub fn size(&self) -> (usize, u64) {
        let Body::Sound(tail) = &self.body else {
            return (0, 0);
        };
        let used = tail.segments.iter().map(|facts| facts.bytes);
        let spares = tail.spares.iter().map(|spare| spare.header.bytes);
        let filling = tail.filling.iter().map(|filling| filling.header.bytes);
        let all = used.chain(spares).chain(filling);
        (all.clone().count(), all.sum())
    }

    /// Writes the last mark. Dropping the log without it loses nothing that was acknowledged.
    pub fn close(mut self) -> Result<(), LogError> {
        self.mark()
    }

    /// The last entry that the log no longer holds.
    pub fn base(&self) -> LogId {
        self.tip().base
    }

    /// The last entry.
    pub fn last(&self) -> LogId {
        self.tip().last
    }

    /// Makes a damaged log writable again: remembers the quarantine in the vote file, keeps what
    /// could be trusted (the records that `open` gave), and wipes the rest. The replica must stay
    /// in quarantine until [`Log::end_quarantine`].
    pub fn repair(&mut self) -> Result<(), LogError> {
        self.check_usable()?;
        let Body::Damaged { found } = &mut self.body else {
            return Ok(());
        };
        self.slot.quarantined = !planted!(QuarantineUnwritten);
        self.slot.synced = SyncedBatch {
            number: found.synced,
            chain: found.tip.chain,
        };
        let done = self.save_slot().and_then(|()| {
            let Body::Damaged { found } = &mut self.body else {
                return Ok(());
            };
            let mut tail = Tail::repair(&mut self.disk, &self.options, found)?;
            if found.is_void && !tail.is_new() {
                // Else the next start would miss again what is missing now.
                tail.reset(&mut self.disk, &self.options)?;
            }
            self.body = Body::Sound(Box::new(tail));
            Ok(())
        });
        if done.is_err() {
            self.poisoned = true;
        }
        done
    }

    /// Remembers across restarts that this replica may lack something that it acknowledged, though
    /// its log looks whole: the state is ahead of it, say.
    pub fn begin_quarantine(&mut self) -> Result<(), LogError> {
        self.check_usable()?;
        if self.slot.quarantined {
            return Ok(());
        }
        self.slot.quarantined = !planted!(QuarantineUnwritten);
        self.save_slot()
    }

    /// The replica holds again everything that it may ever have acknowledged (A23).
    pub fn end_quarantine(&mut self) -> Result<(), LogError> {
        self.check_usable()?;
        if let Body::Damaged { .. } = &self.body {
            return Err(self.refusal());
        }
        if !self.slot.quarantined {
            return Ok(());
        }
        self.slot.quarantined = false;
        self.save_slot()
    }

    fn save_slot(&mut self) -> Result<(), LogError> {
        self.slot.generation += 1;
        self.name_synced();
        let done = vote_file::write(&mut self.vote_file, &self.options, &self.slot);
        self.poison_on_error(done)?;
        if let Body::Sound(tail) = &mut self.body {
            tail.marked = true;
        }
        Ok(())
    }

    fn name_synced(&mut self) {
        if let Body::Sound(tail) = &self.body {
            self.slot.synced = tail.synced_batch();
        }
    }

    fn tip(&self) -> &Tip {
        match &self.body {
            Body::Sound(tail) => &tail.tip,
            Body::Damaged { found } => &found.tip,
        }
    }

    fn check_usable(&self) -> Result<(), LogError> {
        if self.poisoned {
            Err(LogError::Poisoned)
        } else {
            Ok(())
        }
    }

    fn refusal(&self) -> LogError {
        let damage = match &self.body {
            Body::Damaged { found } => found.damage.clone(),
            Body::Sound(_) => None,
        };
        damage.map_or(LogError::Poisoned, LogError::Damaged)
    }

    fn poison_on_error<T>(&mut self, done: Result<T, DiskError>) -> Result<T, LogError> {
        done.map_err(|error| {
            self.poisoned = !planted!(SyncErrorForgiven);
            LogError::Disk(error)
        })
    }
}

/// What a disk holds, before anything on it is changed.
#[derive(Debug)]
pub(super) struct Look<F> {
    pub(super) recovery: Recovery,
    slot: Slot,
    /// The vote file, if there is one, and where its newest slot lies.
    vote_file: Option<(F, u64)>,
    found: Recovered<F>,
}

impl<F: DiskFile> Look<F> {
    /// Reads everything and decides; writes nothing.
    pub(super) fn take<D: Disk<File = F>>(
        disk: &mut D,
        options: &LogOptions,
    ) -> Result<Self, LogError> {
        let (vote_file, slot, named) = match vote_file::read(disk, options)? {
            VoteRead::Whole {
                file,
                newest,
                at,
                synced,
            } => (Some((file, at)), newest, synced),
            // The vote file is made before the first segment.
            VoteRead::Missing if disk.list(FOLDER)?.is_empty() => {
                let first = Slot::first(options);
                (None, first, vec![first.synced])
            }
            VoteRead::Missing | VoteRead::Lost => return Err(LogError::VoteLost),
        };
        let mut found = recover::read(disk, options, &named)?;
        let nothing = found.used.is_empty() && found.damage.is_none();
        // The vote file is not saved again before the log is whole.
        let created = nothing && slot.generation == 1;
        if nothing && !created {
            found.damage = Some(Damage {
                what: "the vote file shows that this log was in use, and its segments are gone"
                    .to_owned(),
                place: FOLDER.to_owned(),
            });
        }
        let verdict = match (&found.damage, found.torn) {
            (Some(damage), _) => Verdict::Damaged(damage.clone()),
            (None, Some(torn)) => Verdict::TornTailCut {
                batches: 1,
                bytes: torn.bytes,
            },
            (None, None) => Verdict::Clean,
        };
        let recovery = Recovery {
            verdict,
            vote: slot.vote,
            base: match found.is_void {
                true => LogId::default(),
                false => found.tip.base,
            },
            base_note: found.base.note.clone(),
            records: std::mem::take(&mut found.records),
            created,
            quarantined: slot.quarantined || found.damage.is_some(),
        };
        Ok(Self {
            recovery,
            slot,
            vote_file,
            found,
        })
    }
}

impl<F: DiskFile> Tail<F> {
    fn synced_batch(&self) -> SyncedBatch {
        SyncedBatch {
            number: self.synced.batch,
            chain: self.synced.chain,
        }
    }

    /// A log with nothing in it. What an interrupted attempt left is removed.
    fn create<D: Disk<File = F>>(
        disk: &mut D,
        options: &LogOptions,
        found: &Recovered<F>,
    ) -> Result<Self, DiskError> {
        let spares = found.spares.iter().map(|spare| spare.header.number);
        remove_all(disk, spares.chain(found.others.iter().copied()))?;
        let first = make_segment(disk, options, 1)?;
        let second = make_segment(disk, options, 2)?;
        let opening = Opening {
            batch: 0,
            chain: options.genesis(),
            last: LogId::default(),
        };
        let mut tail = Self::on(options, first, opening);
        tail.spares.push_back(second);
        tail.write_opening()?;
        tail.file.sync_data()?;
        Ok(tail)
    }

    /// An empty segment, opened in memory; its opening is still to be written.
    fn on(options: &LogOptions, spare: SpareSegment<F>, opening: Opening) -> Self {
        let facts = Facts::new(spare.header, opening);
        Self {
            segments: VecDeque::from([facts]),
            file: spare.file,
            seed: Seed::new(options, spare.header.number),
            position: DATA_AT,
            spares: VecDeque::new(),
            filling: None,
            tip: Tip::new(opening.chain, opening.last),
            synced: opening,
            marked: true,
            base_segment: 0,
            has_base: false,
            payload: Vec::new(),
            sectors: Vec::new(),
        }
    }

    /// Goes on where a whole log ends: cuts what is torn, and makes sure of the rest.
    fn take_over<D: Disk<File = F>>(
        disk: &mut D,
        options: &LogOptions,
        found: Recovered<F>,
    ) -> Result<Self, DiskError> {
        let mut files: BTreeMap<u64, F> = BTreeMap::new();
        let mut segments = VecDeque::new();
        for used in found.used {
            segments.push_back(used.facts);
            files.insert(used.facts.number, used.file);
        }
        let mut spares = VecDeque::new();
        for mut spare in found.spares {
            if let Some(torn) = found
                .torn
                .filter(|torn| torn.segment == spare.header.number)
            {
                wipe(&mut spare.file, torn)?;
            }
            // Like the tail: it can be seen, but its sync may have failed.
            spare.file.write_at(&spare.header.encode(options), 0)?;
            spare.file.sync_data()?;
            spares.push_back(spare);
        }
        if let Some(torn) = found.torn
            && let Some(file) = files.get_mut(&torn.segment)
        {
            wipe(file, torn)?;
        }
        remove_all(disk, found.others.iter().copied())?;
        let in_use = *segments.back().expect("a sound log has a segment in use");
        if let Some(tail) = found.tail
            && let Some(file) = files.get_mut(&tail.segment)
        {
            let mut bytes = vec![0; tail.bytes as usize];
            file.read_at(&mut bytes, tail.at)?;
            if !planted!(TailTrusted) {
                file.write_at(&bytes, tail.at)?;
            }
            if tail.segment != in_use.number {
                file.sync_data()?;
            }
        }
        let file = files
            .remove(&in_use.number)
            .expect("each used segment was read from its file");
        let mut tail = Self {
            segments,
            file,
            seed: Seed::new(options, in_use.number),
            position: found.position,
            spares,
            filling: None,
            synced: Opening {
                batch: found.synced,
                chain: found.tip.chain,
                last: found.tip.last,
            },
            tip: found.tip,
            // The vote file is about to name it.
            marked: true,
            base_segment: found.base_segment,
            has_base: false,
            payload: Vec::new(),
            sectors: Vec::new(),
        };
        tail.write_opening()?;
        tail.file.sync_data()?;
        Ok(tail)
    }

    /// Keeps what was read before the damage and wipes the rest. Newest first, so that no step
    /// makes an older part look complete.
    fn repair<D: Disk<File = F>>(
        disk: &mut D,
        options: &LogOptions,
        found: &mut Recovered<F>,
    ) -> Result<Self, DiskError> {
        let kept = found.used.last().map(|used| used.facts.number);
        let names = disk.list(FOLDER)?;
        let mut rest: Vec<u64> = names.iter().filter_map(|name| number_of(name)).collect();
        rest.retain(|number| kept.is_none_or(|kept| *number > kept));
        rest.sort_unstable();
        remove_all(disk, rest.into_iter().rev())?;
        found.spares.clear();
        found.others.clear();
        let Some(in_use) = found.used.last_mut() else {
            return Self::create(disk, options, found);
        };
        let rest = Extent {
            segment: in_use.facts.number,
            at: found.position,
            bytes: in_use.facts.bytes - found.position,
        };
        // The damage may lie between the last batch and the next block, where nothing belongs.
        let gap = found.position - found.gap_at;
        in_use.file.write_zeros(found.gap_at, gap)?;
        wipe(&mut in_use.file, rest)?;
        let spare = make_segment(disk, options, in_use.facts.number + 1)?;
        let whole = Recovered {
            used: std::mem::take(&mut found.used),
            spares: vec![spare],
            others: Vec::new(),
            synced: found.synced,
            tip: found.tip.clone(),
            base: found.base.clone(),
            base_segment: found.base_segment,
            is_void: found.is_void,
            position: found.position,
            gap_at: found.gap_at,
            tail: found.tail,
            torn: None,
            records: Vec::new(),
            damage: None,
        };
        Self::take_over(disk, options, whole)
    }

    /// Refuses what could not be read back, before anything of it is written.
    fn check<'a>(
        &self,
        items: impl Iterator<Item = View<'a>> + Clone,
        options: &LogOptions,
    ) -> Result<(), LogError> {
        let bytes_max = self.payload_max(options) - 2 * record::HEADER;
        let fits = |bytes: usize| match bytes <= bytes_max {
            true => Ok(()),
            false => Err(LogError::RecordTooLarge { bytes, bytes_max }),
        };
        let (mut base, mut last) = (self.tip.base, self.tip.last);
        // Which entries there will be is needed only to tell a base that is among them.
        let is_base = |view: View<'_>| matches!(view, View::Base(_));
        let mut tip = items.clone().any(is_base).then(|| self.tip.clone());
        for item in items {
            match item {
                View::Entry(record) => {
                    let id = record.id;
                    let follows = id.index == last.index.next() && id.term >= last.term;
                    let cuts = id.index > base.index && id.index <= last.index;
                    if !follows && !cuts {
                        return Err(LogError::OutOfOrder { last, given: id });
                    }
                    if record.kind >= record::KINDS_MAX {
                        return Err(LogError::BadKind { kind: record.kind });
                    }
                    fits(record.payload.len())?;
                    if let Some(tip) = &mut tip {
                        tip.take_in(id);
                    }
                    last = id;
                }
                View::Base(begins) => {
                    let given = begins.id;
                    if given.index < base.index {
                        return Err(LogError::BaseGoesBack { base, given });
                    }
                    fits(begins.note.len())?;
                    base = given;
                    if let Some(tip) = &mut tip {
                        tip.begin_after(given);
                        last = tip.last;
                    }
                }
            }
        }
        Ok(())
    }

    /// What a batch can hold in any segment that is ready.
    fn payload_max(&self, options: &LogOptions) -> usize {
        let spares = self.spares.iter().map(|spare| spare.header.bytes);
        let smallest = spares.chain([options.segment_bytes]).min();
        payload_max(smallest.unwrap_or(options.segment_bytes))
    }

    /// Writes batch after batch, and ends before one that has no room. Returns how many items are durable.
    fn append<'a, D: Disk<File = F>>(
        &mut self,
        disk: &mut D,
        options: &LogOptions,
        mut items: impl Iterator<Item = View<'a>> + Clone,
    ) -> Result<usize, DiskError> {
        let full = self.payload_max(options).min(BATCH_PAYLOAD_MAX);
        self.payload.clear();
        let mut given = 0;
        loop {
            let rest = items.clone();
            let Some(item) = items.next() else { break };
            let bytes = payload_bytes(item);
            if !self.payload.is_empty() && self.payload.len() + bytes > full {
                self.write_batch(disk, options)?;
            }
            if self.payload.is_empty()
                && !self.make_room(disk, options, batch_payload(rest, full))?
            {
                return Ok(given);
            }
            given += 1;
            match item {
                View::Entry(record) => self.encode(record),
                View::Base(base) => self.encode_base(base),
            }
        }
        if !self.payload.is_empty() {
            self.write_batch(disk, options)?;
        }
        Ok(given)
    }

    /// Sees that a batch of so much payload can be written: in the segment in use, or in the next one,
    /// behind which another one is ready. Whether the disk has space for that; else nothing is changed.
    fn make_room<D: Disk<File = F>>(
        &mut self,
        disk: &mut D,
        options: &LogOptions,
        payload: usize,
    ) -> Result<bool, DiskError> {
        if self.position + batch_bytes(payload) <= self.in_use().bytes || planted!(NoSpare) {
            return Ok(true);
        }
        while self.spares.len() < SPARES_WANTED {
            match self.fill(disk, options) {
                Ok(()) => {}
                Err(DiskError::NoSpace { .. }) => {
                    self.give_up_filling(disk)?;
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// What must hold once everything given was written.
    fn check_written(&self) {
        assert!(self.payload.is_empty(), "nothing given is left unwritten");
        assert_eq!(
            (self.synced.last, self.synced.chain),
            (self.tip.last, self.tip.chain),
            "the last synced batch holds the end of the log"
        );
        assert!(
            self.tip.base.index <= self.tip.last.index,
            "a log does not end before it begins"
        );
        assert!(
            self.position <= self.in_use().bytes,
            "a batch lies within its segment"
        );
    }

    fn encode(&mut self, record: &Record) {
        let tip = &mut self.tip;
        if record.id.index <= tip.last.index {
            let keep = tip
                .id_at(record.id.index.previous())
                .expect("a cut behind the base was refused");
            tip.chain = record::encode_cut(keep, tip.chain, &mut self.payload);
        }
        tip.chain = record::encode(record, tip.chain, &mut self.payload);
        tip.take_in(record.id);
    }

    fn encode_base(&mut self, base: &Base) {
        let tip = &mut self.tip;
        let is_reset = !tip.holds(base.id);
        tip.chain = record::encode_base(base, is_reset, tip.chain, &mut self.payload);
        tip.begin_after(base.id);
        self.has_base = true;
    }

    /// Whether nothing was ever written to it.
    fn is_new(&self) -> bool {
        self.synced.batch == 0
    }

    /// Begins as if nothing had ever been written, but behind it.
    fn reset<D: Disk<File = F>>(
        &mut self,
        disk: &mut D,
        options: &LogOptions,
    ) -> Result<(), DiskError> {
        self.payload.clear();
        let nothing = Base::default();
        let tip = &mut self.tip;
        tip.chain = record::encode_base(&nothing, true, tip.chain, &mut self.payload);
        tip.reset(nothing.id);
        self.has_base = true;
        self.write_batch(disk, options)
    }

    /// Seals what was encoded, writes it and syncs it; with nothing encoded, a mark.
    fn write_batch<D: Disk<File = F>>(
        &mut self,
        disk: &mut D,
        options: &LogOptions,
    ) -> Result<(), DiskError> {
        let bytes = batch_bytes(self.payload.len());
        if self.position + bytes > self.in_use().bytes {
            self.open_next(disk, options)?;
        }
        let batch = self.synced.batch + 1;
        seal_batch(
            self.seed,
            batch,
            self.position,
            &self.payload,
            &mut self.sectors,
        );
        assert_eq!(
            self.sectors.len() as u64,
            bytes,
            "a batch takes the room that was reserved for it"
        );
        assert!(
            self.position + bytes <= self.in_use().bytes,
            "a batch fits the segment in use"
        );
        self.file.write_at(&self.sectors, self.position)?;
        if !planted!(SyncSkipped) {
            self.file.sync_data()?;
        }
        self.position += bytes;
        self.marked = self.payload.is_empty();
        if std::mem::take(&mut self.has_base) {
            self.base_segment = self.in_use().number;
        }
        self.synced = Opening {
            batch,
            chain: self.tip.chain,
            last: self.tip.last,
        };
        self.payload.clear();
        Ok(())
    }

    fn in_use(&self) -> &Facts {
        self.segments.back().expect("a segment is always in use")
    }

    /// Goes on in the next segment. Its opening is written here and synced with its first batch.
    fn open_next<D: Disk<File = F>>(
        &mut self,
        disk: &mut D,
        options: &LogOptions,
    ) -> Result<(), DiskError> {
        while self.spares.len() < SPARES_WANTED - usize::from(planted!(NoSpare)) {
            self.fill(disk, options)?;
        }
        let spare = self.spares.pop_front().expect("two are ready");
        self.segments
            .push_back(Facts::new(spare.header, self.synced));
        self.seed = Seed::new(options, spare.header.number);
        self.file = spare.file;
        self.position = DATA_AT;
        self.write_opening()
    }

    fn write_opening(&mut self) -> Result<(), DiskError> {
        let sector = self.in_use().opening.encode(self.seed);
        self.file.write_at(&sector, OPENING_AT)
    }

    /// Whether a slice of zeros should be written now.
    fn fill_due(&self, idle: bool, options: &LogOptions) -> bool {
        if self.spares.len() >= SPARES_WANTED {
            return false;
        }
        // Over the second half of the segment in use, the next but one is filled.
        let bytes = self.in_use().bytes;
        let half = bytes / 2;
        if self.position < half {
            return false;
        }
        let filled = self.filling.as_ref().map_or(0, |filling| filling.filled);
        let filled = u128::from(filled) * u128::from(bytes - half);
        let wanted = u128::from(self.position - half) * u128::from(options.segment_bytes);
        idle || filled <= wanted
    }

    /// Writes one slice of the segment after the spares; with the last one it becomes a spare.
    fn fill<D: Disk<File = F>>(
        &mut self,
        disk: &mut D,
        options: &LogOptions,
    ) -> Result<(), DiskError> {
        let mut filling = match self.filling.take() {
            Some(filling) => filling,
            None => {
                let newest = self.spares.back().map(|spare| spare.header.number);
                SegmentFill::start(
                    disk,
                    options,
                    newest.unwrap_or_else(|| self.in_use().number) + 1,
                )?
            }
        };
        let done = filling.step(FILL_SLICE_BYTES);
        let filling = self.filling.insert(filling);
        done?;
        if filling.filled == filling.header.bytes {
            filling.finish(disk, options)?;
            let SegmentFill { file, header, .. } =
                self.filling.take().expect("it was put there a moment ago");
            self.spares.push_back(SpareSegment { file, header });
        }
        Ok(())
    }

    fn give_up_filling<D: Disk<File = F>>(&mut self, disk: &mut D) -> Result<(), DiskError> {
        match self.filling.take() {
            Some(filling) => remove_all(disk, [filling.header.number]),
            None => Ok(()),
        }
    }

    /// How many of the oldest segments hold nothing that counts. What a segment holds ends where the
    /// next one was opened; and one says where the log begins.
    fn old_segments(&self) -> usize {
        let base = self.tip.base.index;
        let following = self.segments.iter().skip(1);
        let pairs = self.segments.iter().zip(following);
        pairs
            .take_while(|(segment, next)| {
                next.opening.last.index <= base && segment.number < self.base_segment
            })
            .count()
    }

    /// The oldest goes first, made sure of before the next: a gap would be damage.
    fn delete_oldest<D: Disk<File = F>>(&mut self, disk: &mut D) -> Result<(), DiskError> {
        remove_all(disk, [self.segments[0].number])?;
        self.segments.pop_front();
        Ok(())
    }
}

/// What one item may take of a batch.
fn payload_bytes(item: View<'_>) -> usize {
    match item {
        View::Entry(record) => 2 * record::HEADER + record.payload.len(),
        View::Base(base) => record::HEADER + base.note.len(),
    }
}

/// What the batch that begins with these items may take.
fn batch_payload<'a>(items: impl Iterator<Item = View<'a>>, full: usize) -> usize {
    let mut payload = 0;
    for bytes in items.map(payload_bytes) {
        if payload > 0 && payload + bytes > full {
            break;
        }
        payload += bytes;
    }
    payload
}

impl<F: DiskFile> SegmentFill<F> {
    fn start<D: Disk<File = F>>(
        disk: &mut D,
        options: &LogOptions,
        number: u64,
    ) -> Result<Self, DiskError> {
        Ok(Self {
            file: disk.create(&file_name(number))?,
            header: Header {
                number,
                bytes: options.segment_bytes,
            },
            filled: 0,
        })
    }

    fn step(&mut self, bytes_max: u64) -> Result<(), DiskError> {
        let slice = bytes_max.min(self.header.bytes - self.filled);
        self.file.write_zeros(self.filled, slice)?;
        self.file.sync_data()?;
        self.filled += slice;
        Ok(())
    }

    /// The header comes after the zeros: a file with a header is ready.
    fn finish<D: Disk<File = F>>(
        &mut self,
        disk: &mut D,
        options: &LogOptions,
    ) -> Result<(), DiskError> {
        self.file.write_at(&self.header.encode(options), 0)?;
        self.file.sync_data()?;
        planted!(SegmentNameUnsynced => return Ok(()));
        disk.sync_dir(FOLDER)
    }
}

fn make_segment<D: Disk>(
    disk: &mut D,
    options: &LogOptions,
    number: u64,
) -> Result<SpareSegment<D::File>, DiskError> {
    let mut filling = SegmentFill::start(disk, options, number)?;
    // No batch waits for it yet, so it is done at once.
    filling.step(options.segment_bytes)?;
    filling.finish(disk, options)?;
    Ok(SpareSegment {
        file: filling.file,
        header: filling.header,
    })
}

/// Removes segments, each durably before the next.
fn remove_all<D: Disk>(
    disk: &mut D,
    numbers: impl IntoIterator<Item = u64>,
) -> Result<(), DiskError> {
    for number in numbers {
        disk.remove(&file_name(number))?;
        disk.sync_dir(FOLDER)?;
    }
    Ok(())
}

fn wipe<F: DiskFile>(file: &mut F, extent: Extent) -> Result<(), DiskError> {
    file.write_zeros(extent.at, block_align(extent.bytes))?;
    file.sync_data()
}

impl LogOptions {
    fn check(&self) -> Result<(), LogError> {
        if segment_bytes_are_sound(self.segment_bytes) {
            return Ok(());
        }
        Err(LogError::BadOptions {
            reason: format!(
                "a segment of {} bytes: it must be a multiple of 4096, and at least 16384",
                self.segment_bytes
            ),
        })
    }
}
