//! Reading a log back, and telling a crash from damage (A21).
//!
//! A crash leaves any subset of the sectors that were not yet synced, and nothing else. Batch n+1
//! is written only after the sync of batch n returned, so at most one batch, the last, can be in
//! that state; and any whole sector of batch n+1, the opening of a later segment, and the vote
//! file's slots all witness that batch n was synced. So:
//!
//! - N is the highest batch number that any of these names. Every batch before N, and every batch
//!   named as synced, must be whole.
//! - N whole: it is kept (and written again, because a page cache can show what is not on disk).
//! - N not whole: it was never synced, and is cut; but only if each of its sectors is whole or
//!   blank, at least one is blank, and nothing names it as synced.
//! - Anything else never comes from a crash. It is damage: the replica must not vote.
//!
//! Two details. A segment's opening counts as a sector of the first batch after it, because the
//! two are written together. And a broken sector is damage wherever it lies, even behind the last
//! batch: what it was cannot be known.
//!
//! This module reads and decides; what follows from it is written by `writer.rs`.
//!
//! What remains (A24): a disk that lies about syncs; or one whole sector of the last batch that
//! turned to zeros, together with a crash within about 10 ms of its acknowledgement, before a mark
//! named it.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::log::record::{Base, Record, RecordRead, decode};
use crate::log::sector::{BLOCK, SECTOR, block_align, is_blank};
use crate::log::segment::{
    COUNT_MAX, DATA_AT, FOLDER, Header, HeaderRead, OPENING_AT, Opening, Piece, PieceRead, Seed,
    TERM_MAX, file_name, number_of, segment_bytes_are_sound,
};
use crate::log::tip::Tip;
use crate::log::vote_file::SyncedBatch;
use crate::log::{Damage, Disk, DiskFile, LogError, LogOptions};
use crate::types::LogId;

/// A segment that is in use, or was.
#[derive(Debug)]
pub(super) struct UsedSegment<F> {
    pub(super) file: F,
    pub(super) facts: Facts,
}

/// What the writer remembers of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) number: u64,
    pub(super) bytes: u64,
    /// Where the log stood when it was opened.
    pub(super) opening: Opening,
}

impl Facts {
    pub(super) fn new(header: Header, opening: Opening) -> Self {
        Self {
            number: header.number,
            bytes: header.bytes,
            opening,
        }
    }
}

/// A segment that is prepared and not yet in use.
#[derive(Debug)]
pub(super) struct SpareSegment<F> {
    pub(super) file: F,
    pub(super) header: Header,
}

/// A stretch of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// Number of the segment.
    pub(super) segment: u64,
    pub(super) at: u64,
    pub(super) bytes: u64,
}

/// All that was found.
#[derive(Debug)]
pub(super) struct Recovered<F> {
    /// Segments with an opening, oldest first.
    pub(super) used: Vec<UsedSegment<F>>,
    /// Prepared segments after them.
    pub(super) spares: Vec<SpareSegment<F>>,
    /// Numbers of segment files that are none of these (their preparation was interrupted, or
    /// they lie behind the damage).
    pub(super) others: Vec<u64>,
    /// The last whole batch.
    pub(super) synced: u64,
    pub(super) tip: Tip,
    /// The newest record of where the log begins.
    pub(super) base: Base,
    /// The number of the segment that it stands in; 0 for none.
    pub(super) base_segment: u64,
    /// The log is damaged, and the records read do not reach back to its recorded base: none of them
    /// can be used, and the log continues as an empty one.
    pub(super) is_void: bool,
    /// Where the next batch goes, in the last used segment.
    pub(super) position: u64,
    /// Where the sectors of the last batch end: from there to `position` nothing is ever written.
    pub(super) gap_at: u64,
    /// The last whole batch, and the torn one after it.
    pub(super) tail: Option<Extent>,
    pub(super) torn: Option<Extent>,
    pub(super) records: Vec<Record>,
    pub(super) damage: Option<Damage>,
}

/// Reads all of the log. `named` is what the vote file says was synced.
pub(super) fn read<D: Disk>(
    disk: &mut D,
    options: &LogOptions,
    named: &[SyncedBatch],
) -> Result<Recovered<D::File>, LogError> {
    let mut numbers: Vec<u64> = disk
        .list(FOLDER)?
        .iter()
        .filter_map(|name| number_of(name))
        .collect();
    numbers.sort_unstable();
    let mut files = Vec::with_capacity(numbers.len());
    for number in numbers {
        let file = disk.open(&file_name(number))?;
        // Refusals come before any verdict: foreign data is not damaged data.
        let header = read_header(&file, number, options)?;
        files.push((number, file, header));
    }
    let named = if planted!(NamedIgnored) { &[] } else { named };
    let mut reader = Reader::new(options, named);
    let mut files = files.into_iter();
    for (number, file, header) in files.by_ref() {
        if let Err(damage) = reader.segment(number, file, header)? {
            reader.found.damage = Some(damage);
            break;
        }
    }
    reader.found.others.extend(files.map(|(number, ..)| number));
    Ok(reader.finish())
}

fn read_header<F: DiskFile>(
    file: &F,
    number: u64,
    options: &LogOptions,
) -> Result<(HeaderRead, u64), LogError> {
    let length = file.length()?;
    let mut sector = [0; SECTOR];
    if length >= SECTOR as u64 {
        file.read_at(&mut sector, 0)?;
    }
    let header = Header::decode(&sector, options);
    match header {
        HeaderRead::Newer { version } => Err(LogError::NewerFormat {
            file: file_name(number),
            version,
        }),
        HeaderRead::Foreign { cluster, node } => {
            LogError::check_identity(&file_name(number), options, cluster, node)?;
            Ok((HeaderRead::Broken, length))
        }
        header => Ok((header, length)),
    }
}

/// Walks over the segments in order.
struct Reader<'a, F> {
    options: &'a LogOptions,
    named: BTreeMap<u64, Vec<u128>>,
    found: Recovered<F>,
    image: Vec<u8>,
    previous: Option<u64>,
    /// A file whose preparation did not finish: it must be the last.
    unfinished: bool,
}

/// What reading can end in: the disk failing, or the bytes being wrong.
type CheckResult<T> = Result<T, Damage>;

impl<'a, F: DiskFile> Reader<'a, F> {
    fn new(options: &'a LogOptions, synced: &[SyncedBatch]) -> Self {
        let mut named: BTreeMap<u64, Vec<u128>> = BTreeMap::new();
        for batch in synced {
            named.entry(batch.number).or_default().push(batch.chain);
        }
        Self {
            options,
            named,
            found: Recovered {
                used: Vec::new(),
                spares: Vec::new(),
                others: Vec::new(),
                synced: 0,
                tip: Tip::new(options.genesis(), LogId::default()),
                base: Base::default(),
                base_segment: 0,
                is_void: false,
                position: DATA_AT,
                gap_at: DATA_AT,
                tail: None,
                torn: None,
                records: Vec::new(),
                damage: None,
            },
            image: Vec::new(),
            previous: None,
            unfinished: false,
        }
    }

    /// Takes in the next segment. The outer error is the disk's.
    fn segment(
        &mut self,
        number: u64,
        file: F,
        (header, length): (HeaderRead, u64),
    ) -> Result<CheckResult<()>, LogError> {
        let place = file_name(number);
        let damaged = |what: &str| Damage {
            what: what.to_owned(),
            place: place.clone(),
        };
        let gap = self
            .previous
            .is_some_and(|previous| previous.checked_add(1) != Some(number));
        self.previous = Some(number);
        if gap || self.unfinished {
            self.found.others.push(number);
            let what = "a segment before this one is missing";
            return Ok(Err(damaged(what)));
        }
        let header = match header {
            HeaderRead::Whole(header)
                if header.number != number
                    || header.bytes != length
                    || !segment_bytes_are_sound(length) =>
            {
                self.found.others.push(number);
                let what = "its header belongs to another file, or the file has another length";
                return Ok(Err(damaged(what)));
            }
            HeaderRead::Whole(header) => header,
            HeaderRead::Blank => {
                self.found.others.push(number);
                self.unfinished = true;
                return match self.is_unwritten(&file, length)? {
                    true => Ok(Ok(())),
                    false => Ok(Err(damaged("its header is missing"))),
                };
            }
            _ => {
                self.found.others.push(number);
                return Ok(Err(damaged("its header is damaged")));
            }
        };
        let length = usize::try_from(length).map_err(|_| LogError::BadOptions {
            reason: "a segment is larger than this machine can address".to_owned(),
        })?;
        self.image.resize(length, 0);
        file.read_at(&mut self.image, 0)?;
        let image = std::mem::take(&mut self.image);
        let checked = self.read_image(file, header, &image);
        self.image = image;
        Ok(checked)
    }

    /// Whether a file without a header holds nothing at all, as one does whose preparation was
    /// interrupted.
    fn is_unwritten(&self, file: &F, length: u64) -> Result<bool, LogError> {
        let mut block = [0; BLOCK];
        let mut at = 0;
        while at < length {
            let step = (length - at).min(BLOCK as u64);
            let part = &mut block[..step as usize];
            file.read_at(part, at)?;
            if !is_blank(part) {
                return Ok(false);
            }
            at += step;
        }
        Ok(true)
    }

    fn read_image(&mut self, file: F, header: Header, image: &[u8]) -> CheckResult<()> {
        let seed = Seed::new(self.options, header.number);
        let opening_at = OPENING_AT as usize;
        let opening = Opening::decode(&image[opening_at..opening_at + SECTOR], seed);
        let Ok(opening) = opening else {
            self.found.others.push(header.number);
            return Err(damage_at(header.number, OPENING_AT, "it is damaged"));
        };
        let Some(opening) = opening else {
            let first = first_written(image);
            let expected = self.found.spares.is_empty()
                && self.found.torn.is_none()
                && !self.found.used.is_empty();
            self.found.spares.push(SpareSegment { file, header });
            return match first {
                None => Ok(()),
                // The opening and the first batch after it are written together, so this is
                // batch N of the module's story, with one sector known to be blank.
                Some(_) if expected => self.read_batches(header, seed, image, false),
                Some(at) => Err(damage_at(
                    header.number,
                    at,
                    "it was written before its segment",
                )),
            };
        };
        self.check_opening(header, opening)?;
        let facts = Facts::new(header, opening);
        self.found.used.push(UsedSegment { file, facts });
        self.found.position = DATA_AT;
        self.found.gap_at = DATA_AT;
        self.read_batches(header, seed, image, true)
    }

    fn check_opening(&mut self, header: Header, opening: Opening) -> CheckResult<()> {
        let damaged = |what| Err(damage_at(header.number, OPENING_AT, what));
        let found = &self.found;
        if found.torn.is_some() {
            return damaged("the last batch of the segment before it is missing in part");
        }
        if !found.spares.is_empty() {
            return damaged("the segment before it was never opened");
        }
        if found.used.is_empty() {
            if opening.batch == 0 && opening.last != LogId::default() {
                return damaged("it names entries before the first batch");
            }
            // Asked before anything of it is taken over: what is not the log that the vote file
            // names is no place to go on from.
            self.check_named(opening.batch, opening.chain, header.number, OPENING_AT)?;
            self.found.synced = opening.batch;
            self.found.tip = Tip::new(opening.chain, opening.last);
            // A vote file may name batches whose segments were deleted since.
            self.named = self.named.split_off(&opening.batch);
            return Ok(());
        }
        let stood = Opening {
            batch: found.synced,
            chain: found.tip.chain,
            last: found.tip.last,
        };
        if stood != opening {
            return damaged("it does not follow the segment before it: batches are missing");
        }
        Ok(())
    }

    /// The batch just read, and the hash that it ends with, must be what was named as synced.
    fn check_named(&self, batch: u64, chain: u128, segment: u64, at: u64) -> CheckResult<()> {
        let chains = self.named.get(&batch);
        let agrees = |named: &u128| *named == chain;
        if chains.is_none_or(|chains| chains.iter().all(agrees)) {
            Ok(())
        } else {
            let what = "it is not the batch that the vote file names as synced";
            Err(damage_at(segment, at, what))
        }
    }

    /// Reads the batches of one segment. `opened` is false when its opening is blank.
    fn read_batches(
        &mut self,
        header: Header,
        seed: Seed,
        image: &[u8],
        opened: bool,
    ) -> CheckResult<()> {
        let mut expected = DATA_AT;
        let mut at = DATA_AT;
        let end = image.len() as u64;
        while at < end {
            let rest = &image[at as usize..];
            if at.is_multiple_of(BLOCK as u64) && rest.len() >= BLOCK && is_blank(&rest[..BLOCK]) {
                at += BLOCK as u64;
                continue;
            }
            match Piece::decode(&rest[..SECTOR], seed, at) {
                PieceRead::Blank => at += SECTOR as u64,
                PieceRead::Broken => {
                    return Err(damage_at(header.number, at, "a sector is damaged"));
                }
                PieceRead::Whole(piece) => {
                    let length = u64::from(piece.count) * SECTOR as u64;
                    let before = u64::from(piece.index) * SECTOR as u64;
                    let next = self.found.synced + 1;
                    if self.found.torn.is_some() || piece.batch != next {
                        let what = format!(
                            "batch {} is here, but batch {next} before it is missing or incomplete",
                            piece.batch
                        );
                        return Err(damage_at(header.number, at, &what));
                    }
                    if expected + before != at || expected + length > end {
                        let what = "a batch is not where it was written";
                        return Err(damage_at(header.number, at, what));
                    }
                    let extent = Extent {
                        segment: header.number,
                        at: expected,
                        bytes: block_align(length),
                    };
                    self.read_batch(extent, piece.batch, piece.count, seed, image, opened)?;
                    at = expected + length;
                    expected += extent.bytes;
                }
            }
        }
        Ok(())
    }

    fn read_batch(
        &mut self,
        extent: Extent,
        batch: u64,
        count: u32,
        seed: Seed,
        image: &[u8],
        opened: bool,
    ) -> CheckResult<()> {
        let mut payload = Vec::new();
        let mut blank = !opened;
        for index in 0..count {
            let at = extent.at + u64::from(index) * SECTOR as u64;
            let sector = &image[at as usize..at as usize + SECTOR];
            match Piece::decode(sector, seed, at) {
                PieceRead::Blank => blank = true,
                PieceRead::Whole(piece)
                    if (piece.batch, piece.index, piece.count) == (batch, index, count) =>
                {
                    payload.extend_from_slice(piece.payload);
                }
                PieceRead::Broken if planted!(DamageIsTorn) => blank = true,
                _ => {
                    let what = format!("a sector of batch {batch} is damaged");
                    return Err(damage_at(extent.segment, at, &what));
                }
            }
        }
        if blank {
            // Whether anything names it as synced is asked when all is read.
            self.found.torn = Some(extent);
            return Ok(());
        }
        self.absorb(extent, &Bytes::from(payload))?;
        self.found.synced = batch;
        self.found.position = extent.at + extent.bytes;
        self.found.gap_at = extent.at + u64::from(count) * SECTOR as u64;
        self.found.tail = Some(extent);
        self.check_named(batch, self.found.tip.chain, extent.segment, extent.at)
    }

    /// Takes the records of a whole batch in, all or none.
    fn absorb(&mut self, extent: Extent, batch: &Bytes) -> CheckResult<()> {
        let damaged = |what: &str| damage_at(extent.segment, extent.at, what);
        let found = &mut self.found;
        let mut chain = found.tip.chain;
        let mut last = found.tip.last.index;
        let mut begins = found.base.id;
        let mut all = Vec::new();
        let mut at = 0;
        while at < batch.len() {
            let (said, after, next) = decode(batch, at, chain).map_err(damaged)?;
            match &said {
                RecordRead::Entry(record) if record.id.index == last.next() => {
                    last = record.id.index
                }
                RecordRead::KeepUpTo(keep) if keep.index < last && keep.index >= begins.index => {
                    last = keep.index;
                }
                RecordRead::BeginsAfter { base, is_reset } if is_possible(base.id) => {
                    begins = base.id;
                    if *is_reset {
                        last = begins.index;
                    } else if begins.index > last {
                        return Err(damaged("it begins after an entry that is not there"));
                    }
                }
                _ => return Err(damaged("a record does not fit the entries before it")),
            }
            all.push(said);
            (chain, at) = (after, next);
        }
        for said in all {
            match said {
                RecordRead::Entry(record) => {
                    found.tip.push(record.id);
                    found.records.push(record);
                }
                RecordRead::KeepUpTo(keep) => {
                    found.tip.cut(keep);
                    let kept = keep.index.0 - found.tip.base.index.0;
                    found.records.truncate(kept as usize);
                }
                RecordRead::BeginsAfter { base, is_reset } => {
                    found.begin_after(base, is_reset);
                    found.base_segment = extent.segment;
                }
            }
        }
        found.tip.chain = chain;
        Ok(())
    }

    /// The last look: what had to be there and is not.
    fn finish(mut self) -> Recovered<F> {
        if self.found.damage.is_none() {
            self.found.damage = self.missing().err();
        }
        let found = &mut self.found;
        if found.damage.is_some() && found.tip.base != found.base.id {
            // Where it begins, and what its owner had noted of that, stood in what is lost.
            found.is_void = true;
            found.base = Base::default();
            found.records.clear();
        }
        self.found
    }

    fn missing(&self) -> CheckResult<()> {
        let found = &self.found;
        if let Some((named, _)) = self.named.range(found.synced + 1..).next() {
            return Err(Damage {
                what: format!(
                    "batch {named} was synced, as the vote file says, and is not there, or not \
                     whole: the log ends with batch {}",
                    found.synced
                ),
                place: FOLDER.to_owned(),
            });
        }
        let Some(last) = found.used.last() else {
            return Ok(());
        };
        // Segments are deleted only once it is written, behind them, that the log begins later.
        if found.tip.base != found.base.id {
            return Err(Damage {
                what: format!(
                    "the log begins after entry {}, and what is there only after entry {}: \
                     segments are missing",
                    found.base.id, found.tip.base
                ),
                place: FOLDER.to_owned(),
            });
        }
        // A segment is opened only when the one after it is ready (A22). A torn batch in a spare
        // was written when that one, too, had a successor.
        let torn_in_spare = found
            .torn
            .is_some_and(|torn| torn.segment != last.facts.number);
        let spares_due = 1 + usize::from(torn_in_spare);
        if found.spares.len() < spares_due {
            let missing = last.facts.number + spares_due as u64;
            return Err(Damage {
                what: "it was made before the segment in front of it was used, and is missing"
                    .to_owned(),
                place: file_name(missing),
            });
        }
        Ok(())
    }
}

impl<F> Recovered<F> {
    /// Records where the log begins. A base whose entries were since deleted with their segment
    /// matters only for its note, until a later base replaces it.
    fn begin_after(&mut self, base: Base, is_reset: bool) {
        if is_reset {
            self.tip.reset(base.id);
            self.records.clear();
        } else if base.id.index >= self.tip.base.index {
            let gone = base.id.index.0 - self.tip.base.index.0;
            self.records.drain(..gone as usize);
            self.tip.rebase(base.id);
        }
        self.base = base;
    }
}

/// Whether an entry may have this name at all.
fn is_possible(id: LogId) -> bool {
    id.index.0 < COUNT_MAX && id.term < TERM_MAX
}

/// The first byte after the header's block that was ever written.
fn first_written(image: &[u8]) -> Option<u64> {
    let blocks = image.chunks(BLOCK).enumerate().skip(1);
    for (i, block) in blocks {
        if !is_blank(block) {
            return Some((i * BLOCK) as u64);
        }
    }
    None
}

fn damage_at(segment: u64, at: u64, what: &str) -> Damage {
    Damage {
        what: what.to_owned(),
        place: format!("{} at byte {at}", file_name(segment)),
    }
}
