//! What can happen to files while nobody looks, one stroke at a time.

use std::path::{Path, PathBuf};
use std::{fmt, fs};

/// Disks go bad by the sector.
const SECTOR: usize = 512;
/// How often a place is looked for that holds anything; logs are mostly zeros that wait to be written.
const TRIES: usize = 64;

/// One stroke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stroke {
    /// One bit is another.
    FlipBit,
    /// Some bytes are others.
    Garble,
    /// A sector is zeros.
    ZeroSector,
    /// A sector is where another should be.
    MisplaceSector,
    /// The end is gone.
    CutShort,
    /// There is more than was written.
    Lengthen,
    /// Everything is gone.
    Empty,
    /// The file is gone.
    Remove,
    /// The file is as it was some time ago.
    Older,
}

impl Stroke {
    pub(crate) const ALL: [Self; 9] = [
        Self::FlipBit,
        Self::Garble,
        Self::ZeroSector,
        Self::MisplaceSector,
        Self::CutShort,
        Self::Lengthen,
        Self::Empty,
        Self::Remove,
        Self::Older,
    ];

    /// Deals it to `file`. `older` is the same file some time ago. False if nothing came of it: the
    /// file is too small for it, or was no different.
    pub(crate) fn deal(
        self,
        file: &Path,
        older: Option<&Path>,
        random: &mut fastrand::Rng,
    ) -> bool {
        let before = fs::read(file).unwrap();
        let mut after = before.clone();
        match self {
            Self::FlipBit if !after.is_empty() => {
                let at = place(&after, random);
                after[at] ^= 1 << random.u8(..8);
            }
            Self::Garble if !after.is_empty() => {
                let at = place(&after, random);
                let end = after.len().min(at + random.usize(1..=64));
                after[at..end]
                    .iter_mut()
                    .for_each(|byte| *byte = random.u8(..));
            }
            Self::ZeroSector if !after.is_empty() => {
                let sector = sector(&after, random);
                after[sector].fill(0);
            }
            Self::MisplaceSector if after.len() >= 2 * SECTOR => {
                let source = before[sector(&after, random)].to_vec();
                let target = sector(&after, random);
                let length = target.len().min(source.len());
                after[target.start..target.start + length].copy_from_slice(&source[..length]);
            }
            Self::CutShort if !after.is_empty() => {
                let at = place(&after, random);
                after.truncate(at);
            }
            Self::Lengthen => {
                let more = random.usize(1..=4_096);
                after.extend(std::iter::repeat_with(|| random.u8(..)).take(more));
            }
            Self::Empty => after.clear(),
            Self::Remove => {
                fs::remove_file(file).unwrap();
                return true;
            }
            Self::Older => match older {
                Some(older) if older.exists() => after = fs::read(older).unwrap(),
                _ => return false,
            },
            _ => return false,
        }
        if after == before {
            return false;
        }
        fs::write(file, after).unwrap();
        true
    }
}

/// Somewhere in the file, rather where it holds something than in zeros.
fn place(bytes: &[u8], random: &mut fastrand::Rng) -> usize {
    let mut at = random.usize(..bytes.len());
    for _ in 0..TRIES {
        if bytes[at] != 0 {
            break;
        }
        at = random.usize(..bytes.len());
    }
    if bytes[at] == 0 {
        // What is written stands at the front.
        let used = bytes
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(0, |last| last + 1);
        at = random.usize(..used.max(1));
    }
    at
}

fn sector(bytes: &[u8], random: &mut fastrand::Rng) -> std::ops::Range<usize> {
    let start = place(bytes, random) / SECTOR * SECTOR;
    start..bytes.len().min(start + SECTOR)
}

/// All files below a folder, by their paths from there.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false => found.push(entry.path().strip_prefix(folder).unwrap().to_owned()),
            }
        }
    }
    found.sort();
    found
}

/// A file by the part it plays: its name without numbers.
pub(crate) fn part(file: &Path) -> String {
    let text = file.to_string_lossy();
    let mut parts: Vec<String> = text
        .split('/')
        .map(|part| part.chars().filter(|c| !c.is_ascii_digit()).collect())
        .collect();
    for part in &mut parts {
        if part.is_empty() {
            "N".clone_into(part);
        }
    }
    parts.join("/")
}

/// What was done, and to what.
#[derive(Clone, Debug)]
pub(crate) struct Harm {
    pub(crate) stroke: Stroke,
    pub(crate) file: PathBuf,
}

impl fmt::Display for Harm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {}", self.stroke, self.file.display())
    }
}
