//! The files of bbolt in which etcd's snapshots come.

use leasehold::etcd::doors::{Pairs, read_bolt, write_bolt};
use leasehold::kv;
use leasehold::kv::MemStore;
use leasehold::server::run::offline::etcd_parts;

use crate::targets::draw::Draw;
use crate::targets::meter;
use crate::targets::trace::say;

const PAGE_BYTES: usize = 4096;
const META_PAGES: usize = 2;
/// Of a meta page: where its content begins, and where its checksum stands.
const META: std::ops::Range<usize> = 16..72;
const CHANGES_MAX: usize = 24;

/// With an even first byte the bytes of a file, with an odd one what is written to a file, and then changes
/// to that. Checksums are put right if the upper bit of the first byte says so, because nobody guesses one.
pub fn bbolt_files(data: &[u8]) {
    let mut draw = Draw::new(data);
    let how = draw.byte();
    let is_put_right = how & 0x80 != 0;
    if how & 1 == 0 {
        let mut file = draw.rest().to_vec();
        if is_put_right {
            put_right(&mut file);
        }
        is_read(&file);
        return;
    }
    let buckets = drawn(&mut draw);
    let mut file = write_bolt(&buckets);
    let expected: Vec<_> = buckets
        .into_iter()
        .map(|(name, pairs)| (name.into_bytes(), pairs))
        .collect();
    assert_eq!(is_read(&file), Some(expected), "what we write we can read");
    for _ in 0..CHANGES_MAX {
        if draw.is_over() {
            break;
        }
        change(&mut draw, &mut file);
    }
    if is_put_right {
        put_right(&mut file);
    }
    is_read(&file);
}

/// Whatever the file says, reading it takes no more memory than it is long, and ends.
fn is_read(file: &[u8]) -> Option<Vec<(Vec<u8>, Pairs)>> {
    let fair = 16 * file.len() + (1 << 20);
    let (read, peak) = meter::peak(|| read_bolt(file));
    assert!(
        peak <= fair,
        "{peak} bytes of memory for a file of {}",
        file.len()
    );
    let (parts, peak) = meter::peak(|| etcd_parts(file));
    assert!(
        peak <= fair,
        "{peak} bytes of memory for a snapshot of {}",
        file.len()
    );
    match parts {
        Ok(parts) => is_loaded(parts),
        Err(fault) => {
            say(format_args!("no snapshot: {fault}"));
            assert!(!fault.to_string().is_empty());
        }
    }
    match read {
        Ok(buckets) => {
            let mut bytes = 0;
            for (_, pairs) in &buckets {
                assert!(pairs.is_sorted_by(|a, b| a.0 < b.0));
                bytes += pairs
                    .iter()
                    .map(|pair| pair.0.len() + pair.1.len())
                    .sum::<usize>();
            }
            assert!(bytes <= file.len(), "{bytes} bytes are in {}", file.len());
            Some(buckets)
        }
        Err(error) => {
            say(format_args!("refused: {error}"));
            assert!(!error.to_string().is_empty());
            None
        }
    }
}

/// What is taken from a snapshot makes a state that is sound, or is refused.
fn is_loaded(parts: Vec<kv::LoadedPart>) {
    let mut store = MemStore::default();
    for part in parts {
        match kv::load(&mut store, part).expect("memory does not fail") {
            Ok(progress) => {
                let is_sound = kv::leases_are_sound(&store, &progress);
                assert!(is_sound.expect("memory does not fail"));
            }
            Err(refusal) => {
                say(format_args!("not taken: {refusal}"));
                return assert!(!refusal.to_string().is_empty());
            }
        }
    }
    assert_eq!(kv::content_hash(&store), kv::scan(&store));
}

/// Buckets with what etcd writes to them: one byte says which, then for each one how many keys, and then the
/// keys.
fn drawn(draw: &mut Draw<'_>) -> Vec<(String, Pairs)> {
    let chosen = draw.byte();
    let names = ["auth", "authUsers", "key", "lease", "meta", "other"];
    let mut buckets = Vec::new();
    for (place, name) in names.into_iter().enumerate() {
        if chosen & 1 << place == 0 {
            continue;
        }
        let mut pairs = Pairs::new();
        let mut revision = 1;
        for _ in 0..draw.byte() {
            if draw.is_over() {
                break;
            }
            revision += u64::from(draw.byte() % 4);
            pairs.push(pair(draw, name, revision));
        }
        pairs.sort();
        pairs.dedup_by(|later, earlier| later.0 == earlier.0);
        buckets.push((name.to_owned(), pairs));
    }
    buckets
}

fn pair(draw: &mut Draw<'_>, bucket: &str, revision: u64) -> (Vec<u8>, Vec<u8>) {
    match bucket {
        "key" => version(draw, revision),
        "lease" => {
            let id = u64::from(draw.byte());
            let value = [number(1, id), number(2, u64::from(draw.byte()))].concat();
            (id.to_be_bytes().to_vec(), value)
        }
        "meta" => {
            let key = draw.of(&["scheduledCompactRev", "finishedCompactRev", "term"]);
            (key.as_bytes().to_vec(), place(u64::from(draw.byte()), 0))
        }
        // A value of several pages every now and then.
        _ => {
            let times = if draw.one_in(16) { 256 } else { 1 };
            let value = draw.bytes(40).repeat(times);
            (draw.bytes(20).to_vec(), value)
        }
    }
}

/// One change of one key, as etcd keeps it.
fn version(draw: &mut Draw<'_>, revision: u64) -> (Vec<u8>, Vec<u8>) {
    let mut key = place(revision, u64::from(draw.byte() % 3));
    let of = long(1, &[b'a' + draw.byte() % 4]);
    if draw.one_in(4) {
        key.push(b't');
        return (key, of);
    }
    let numbers = [
        number(2, u64::from(draw.byte())),
        number(3, revision),
        number(4, u64::from(draw.byte() % 8)),
    ];
    let value = [
        of,
        numbers.concat(),
        long(5, draw.bytes(30)),
        number(6, u64::from(draw.byte() % 3)),
    ];
    (key, value.concat())
}

/// A revision, and the number of a change within it.
fn place(revision: u64, number: u64) -> Vec<u8> {
    [&revision.to_be_bytes()[..], b"_", &number.to_be_bytes()].concat()
}

/// A field with a number below 2^14.
fn number(field: u8, value: u64) -> Vec<u8> {
    vec![field << 3, value as u8 | 0x80, (value >> 7) as u8 & 0x7f]
}

/// A field of less than 128 bytes.
fn long(field: u8, body: &[u8]) -> Vec<u8> {
    [&[field << 3 | 2, body.len() as u8], body].concat()
}

/// One change to a file: a byte, a number where the format has one, a page in the place of another, or its end.
fn change(draw: &mut Draw<'_>, file: &mut Vec<u8>) {
    let pages = file.len() / PAGE_BYTES;
    if pages == 0 {
        return;
    }
    let page = draw.below(pages) * PAGE_BYTES;
    match draw.byte() % 8 {
        // Within the header and the first elements, where numbers stand.
        0 | 1 => file[page + draw.below(128)] = draw.byte(),
        2 => {
            let at = page + 4 * draw.below(32);
            let value = draw.number(&[pages as u64, PAGE_BYTES as u64, 16, 2]);
            file[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes());
        }
        // The page that an element of a branch leads to, or that of a bucket.
        3 => {
            let at = page + 16 + 16 * draw.below(16) + 8;
            let to = draw.below(pages + 1) as u64;
            file[at..at + 8].copy_from_slice(&to.to_le_bytes());
        }
        4 => {
            let at = page + usize::from(draw.byte()) * 16 + draw.below(16);
            file[at] ^= draw.byte();
        }
        5 => {
            let from = draw.below(pages) * PAGE_BYTES;
            file.copy_within(from..from + PAGE_BYTES, page);
        }
        // The page says that it is another one, whose place it may take.
        6 => {
            let number = draw.below(pages) as u64;
            file[page..page + 8].copy_from_slice(&number.to_le_bytes());
        }
        _ => {
            let end = page + usize::from(draw.byte()) * 16;
            file.truncate(end);
        }
    }
}

/// Makes the checksums of both meta pages right, as far as there are two.
fn put_right(file: &mut [u8]) {
    for page in file.chunks_exact_mut(PAGE_BYTES).take(META_PAGES) {
        let sum = page[META]
            .iter()
            .fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| {
                (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
            });
        page[META.end..META.end + 8].copy_from_slice(&sum.to_le_bytes());
    }
}
