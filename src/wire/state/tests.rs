//! The format of a whole state: it reads as it was written, and nothing else reads at all.

use bytes::Bytes;

use super::chunk::{ChunkKind, seal};
use super::*;
use crate::kv;
use crate::kv::tests::everything;
use crate::kv::{MemStore, Span, Store, View};
use crate::raft::{Configuration, LogBase};
use crate::types::{ClusterId, NodeId};

fn header(store: &MemStore) -> StateHeader {
    let progress = kv::progress(store).unwrap();
    StateHeader {
        cluster: ClusterId(7),
        member: NodeId(3),
        base: LogBase {
            id: progress.applied,
            configuration: Configuration {
                voters: [NodeId(1), NodeId(3)].into(),
                ..Configuration::default()
            },
        },
        revision: progress.revision,
        compact_revision: progress.compact_revision,
        sessions: progress.sessions,
        leases: progress.leases,
        hash: kv::content_hash(store).unwrap(),
    }
}

fn records(store: &MemStore) -> Vec<(Space, Bytes, Bytes)> {
    let of = |space| {
        store.range(space, &Span::all()).map(move |pair| {
            let (key, record) = pair.unwrap();
            (space, key, record)
        })
    };
    Space::ALL.into_iter().flat_map(of).collect()
}

fn written(header: &StateHeader, records: &[(Space, Bytes, Bytes)]) -> Vec<Bytes> {
    let (mut encoder, first) = StateEncoder::begin(header);
    let mut chunks = vec![first];
    for (space, key, record) in records {
        encoder.push(*space, key, record);
        while let Some(chunk) = encoder.full() {
            chunks.push(chunk);
        }
    }
    chunks.extend(encoder.finish());
    chunks
}

type Read = Result<(Vec<(Space, Bytes, Bytes)>, StateSummary), StateFault>;

fn read(chunks: impl IntoIterator<Item = Bytes>) -> Read {
    let mut decoder = StateDecoder::new();
    let mut records = Vec::new();
    for chunk in chunks {
        match decoder.take(chunk)? {
            StatePart::Records(more) => records.extend(more),
            StatePart::Header(_) | StatePart::End(_) => {}
        }
    }
    Ok((records, decoder.finish()?))
}

fn read_bytes(bytes: &[u8]) -> Read {
    let mut chunks = Chunks::new(bytes);
    let mut decoder = StateDecoder::new();
    let mut records = Vec::new();
    let next = |chunks: &mut Chunks<_>| match chunks.next_chunk() {
        Ok(chunk) => Ok(chunk),
        Err(ReadFault::State(fault)) => Err(fault),
        Err(ReadFault::Io(error)) => panic!("memory does not fail: {error}"),
    };
    while let Some(chunk) = next(&mut chunks)? {
        if let StatePart::Records(more) = decoder.take(chunk)? {
            records.extend(more);
        }
    }
    Ok((records, decoder.finish()?))
}

/// A state of some chunks: many records, and some that are longer than a chunk.
fn large() -> MemStore {
    let mut store = everything();
    let mut put = |space, key: &str, record: Vec<u8>| {
        store.put(space, Bytes::copy_from_slice(key.as_bytes()), record.into());
    };
    for n in 0..6_000_u32 {
        put(Space::History, &format!("{n:05}"), vec![n as u8; 60]);
    }
    put(Space::Current, "zz1", vec![1; 700_000]);
    put(Space::Current, "zz2", Vec::new());
    put(Space::Current, "zz3", vec![3; CHUNK_BYTES_MAX]);
    let hash = kv::scan(&store).unwrap();
    let record = Bytes::copy_from_slice(&hash.0.to_be_bytes());
    store.put(Space::Meta, Bytes::from_static(b"hash"), record);
    store
}

#[test]
fn a_state_reads_as_it_was_written() {
    for (store, chunks_min) in [(MemStore::new(), 2), (everything(), 3), (large(), 8)] {
        let (header, records) = (header(&store), records(&store));
        let chunks = written(&header, &records);
        assert!(chunks.len() >= chunks_min, "{}", chunks.len());
        let (found, summary) = read(chunks.clone()).unwrap();
        assert!(found == records, "other records");
        assert_eq!(summary.header, header);
        assert_eq!(summary.chunks, chunks.len() as u64);
        assert_eq!(summary.records.iter().sum::<u64>(), records.len() as u64);
        let keys = store.count(Space::Current, &Span::all()).unwrap();
        assert_eq!(summary.keys(), keys);
        assert_eq!(summary.report.progress, kv::progress(&store).unwrap());
        assert_eq!(summary.report.cluster, kv::cluster_info(&store).unwrap());

        let file = chunks.concat();
        let (again, same) = read_bytes(&file).unwrap();
        assert!(again == records && same == summary);
        // All chunks between the first and the last two are full.
        let full = &chunks[1..chunks.len().saturating_sub(2).max(1)];
        assert!(full.iter().all(|chunk| chunk.len() == CHUNK_BYTES_MAX));
        assert!(chunks.iter().all(|chunk| chunk.len() <= CHUNK_BYTES_MAX));
    }
}

/// If this fails, files that were written before do not read any more: raise [`STREAM_FORMAT`], and
/// see what is to become of them.
#[test]
fn the_format_is_pinned() {
    let store = everything();
    let file = written(&header(&store), &records(&store)).concat();
    assert_eq!(&file[21..37], b"leasehold state\n");
    let hash = xxhash_rust::xxh3::xxh3_64(&file);
    assert_eq!(
        (STREAM_FORMAT, file.len(), hash),
        (1, 6158, 0x82b4_f506_f5f0_e361)
    );
}

#[test]
fn a_bit_that_turned_anywhere_is_found() {
    let store = everything();
    let file = written(&header(&store), &records(&store)).concat();
    for at in 0..file.len() {
        for bit in [0x01, 0x80] {
            let mut damaged = file.clone();
            damaged[at] ^= bit;
            assert!(read_bytes(&damaged).is_err(), "byte {at}, bit {bit:#x}");
        }
    }
}

#[test]
fn a_state_cut_short_or_gone_on_with_is_found() {
    let store = everything();
    let file = written(&header(&store), &records(&store)).concat();
    for length in 0..file.len() {
        let fault = read_bytes(&file[..length]).unwrap_err();
        assert!(matches!(fault, StateFault::Cut { .. }), "{length}: {fault}");
    }
    let twice = [&file[..], &file[..]].concat();
    assert_eq!(read_bytes(&twice).unwrap_err(), StateFault::Trailing);
    let tail = [&file[..], b"x"].concat();
    assert!(read_bytes(&tail).is_err());
    assert_eq!(read_bytes(b"hello").unwrap_err(), StateFault::Foreign);
    let other = [b'x'; 100];
    assert_eq!(read_bytes(&other).unwrap_err(), StateFault::Foreign);
}

#[test]
fn a_chunk_out_of_order_is_told_and_the_right_one_still_taken() {
    let store = large();
    let records = records(&store);
    let chunks = written(&header(&store), &records);
    let mut decoder = StateDecoder::new();
    for (number, chunk) in chunks.iter().enumerate() {
        let number = number as u64;
        assert_eq!(decoder.next_chunk(), number);
        for wrong in [number.wrapping_sub(1), number + 1] {
            let Some(other) = chunks.get(wrong as usize) else {
                continue;
            };
            let fault = StateFault::OutOfOrder {
                expected: number,
                found: wrong,
            };
            assert_eq!(decoder.take(other.clone()), Err(fault));
        }
        decoder.take(chunk.clone()).unwrap();
    }
    let repeated = decoder.take(chunks[1].clone());
    assert_eq!(repeated, Err(StateFault::Trailing));
    assert_eq!(decoder.finish(), Err(StateFault::Trailing));
}

#[test]
fn an_encoder_goes_on_where_it_was() {
    let store = large();
    let (header, records) = (header(&store), records(&store));
    let chunks = written(&header, &records);
    let (mut encoder, _) = StateEncoder::begin(&header);
    let mut resumed = vec![(encoder.mark(), 0)];
    for (number, (space, key, record)) in records.iter().enumerate() {
        encoder.push(*space, key, record);
        while encoder.full().is_some() {
            resumed.push((encoder.mark(), number + 1));
        }
    }
    assert_eq!(resumed.len(), chunks.len() - 2);
    for (mark, pushed) in resumed {
        let last = pushed.checked_sub(1).map(|last| &records[last]);
        let last = last.map(|(space, key, record)| (*space, &key[..], &record[..]));
        let mut encoder = StateEncoder::resume(&mark, last);
        let mut rest = Vec::new();
        rest.extend(std::iter::from_fn(|| encoder.full()));
        for (space, key, record) in &records[pushed..] {
            encoder.push(*space, key, record);
            rest.extend(std::iter::from_fn(|| encoder.full()));
        }
        rest.extend(encoder.finish());
        let from = mark.next_chunk() as usize;
        assert!(rest == chunks[from..], "from chunk {from} on");
    }
}

#[test]
fn sound_chunks_of_different_states_are_no_state() {
    let (one, mut two) = (large(), large());
    two.put(
        Space::History,
        Bytes::from_static(b"00001"),
        vec![0xff; 60].into(),
    );
    let first = written(&header(&one), &records(&one));
    let second = written(&header(&one), &records(&two));
    let differs = (0..first.len()).find(|n| first[*n] != second[*n]).unwrap();
    let mut mixed = first.clone();
    mixed[differs] = second[differs].clone();
    assert!(matches!(read(mixed), Err(StateFault::Mixed { .. })));
    // Of one state, and wrong before it was read.
    assert!(matches!(read(second), Err(StateFault::WrongContent { .. })));
}

#[test]
fn a_header_of_another_state_is_noticed() {
    let store = everything();
    let told = header(&store);
    let records = records(&store);
    let wrong: [fn(&mut StateHeader); 7] = [
        |header| header.cluster = ClusterId(8),
        |header| header.base.id.index.0 += 1,
        |header| header.revision += 1,
        |header| header.compact_revision -= 1,
        |header| header.sessions += 1,
        |header| header.leases += 1,
        |header| header.hash.0 ^= 1,
    ];
    for (number, change) in wrong.into_iter().enumerate() {
        let mut other = told.clone();
        change(&mut other);
        let fault = read(written(&other, &records)).unwrap_err();
        assert!(
            matches!(fault, StateFault::Mixed { .. }),
            "{number}: {fault}"
        );
    }
}

#[test]
fn records_out_of_order_or_of_no_keyspace_are_refused() {
    let store = everything();
    let told = header(&store);
    let mut turned = records(&store);
    turned.swap(3, 4);
    assert!(matches!(
        read(written(&told, &turned)),
        Err(StateFault::Damaged { chunk: 1, .. })
    ));
    let mut doubled = records(&store);
    doubled.insert(3, doubled[3].clone());
    assert!(read(written(&told, &doubled)).is_err());

    let first = written(&told, &[])[0].clone();
    let unknown = seal(1, ChunkKind::Records, &[99, 0, 0, 0, 0, 0, 0]);
    let absurd = seal(1, ChunkKind::Records, &[1, 0, 0, 0xff, 0xff, 0xff, 0xff, 0]);
    let again = seal(1, ChunkKind::Header, &told.encode());
    for chunk in [unknown, absurd, again] {
        let fault = read([first.clone(), chunk]).unwrap_err();
        assert!(
            matches!(fault, StateFault::Damaged { chunk: 1, .. }),
            "{fault}"
        );
    }
    let headless = seal(0, ChunkKind::Records, b"");
    assert!(read([headless]).is_err());
}

#[test]
fn other_formats_are_named() {
    let mut body = header(&MemStore::new()).encode();
    body[16] = 9;
    let fault = read([seal(0, ChunkKind::Header, &body)]).unwrap_err();
    assert_eq!(
        fault,
        StateFault::NewerFormat {
            found: 9,
            known: STREAM_FORMAT
        }
    );
    body[16] = STREAM_FORMAT as u8;
    body[18] = 99;
    let fault = read([seal(0, ChunkKind::Header, &body)]).unwrap_err();
    assert!(
        matches!(fault, StateFault::OtherState { found: 99, .. }),
        "{fault}"
    );
    assert!(fault.to_string().contains("format 99"), "{fault}");
}
