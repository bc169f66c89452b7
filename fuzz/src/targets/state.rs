//! A whole state, as a member sends it or a backup holds it.

use bytes::Bytes;
use leasehold::kv::Space;
use leasehold::wire::state::{
    Chunks, HEADING_BYTES, ReadFault, StateDecoder, StateEncoder, StateFault, StatePart,
    StateSummary, chunk_bytes,
};

use super::draw::Draw;
use super::meter;

/// The chunks of a backup, one after the other, behind one byte: whether checksums are put right.
pub fn state_stream(data: &[u8]) {
    let mut draw = Draw::new(data);
    let is_put_right = draw.byte() & 1 != 0;
    let mut file = draw.rest().to_vec();
    if is_put_right {
        put_right(&mut file);
    }
    let (read, peak) = meter::peak(|| read(&file));
    // A chunk is taken at its word, up to its bound.
    assert!(
        peak <= 16 * file.len() + (1 << 20),
        "{peak} bytes of memory for {} read",
        file.len()
    );
    let Ok((records, summary)) = read else {
        return;
    };
    assert!(summary.report.is_sound());
    assert_eq!(summary.records.iter().sum::<u64>(), records.len() as u64);
    let written = written(&records, &summary);
    let (again, same) = self::read(&written).expect("what we write we can read");
    assert_eq!(again, records, "a round trip changes nothing");
    assert_eq!(same.header, summary.header);
    assert_eq!(same.report, summary.report);
}

type Record = (Space, Bytes, Bytes);

fn read(file: &[u8]) -> Result<(Vec<Record>, StateSummary), StateFault> {
    let mut chunks = Chunks::new(file);
    let mut decoder = StateDecoder::new();
    let mut records = Vec::new();
    loop {
        let chunk = match chunks.next_chunk() {
            Ok(Some(chunk)) => chunk,
            Ok(None) => break,
            Err(ReadFault::State(fault)) => return Err(fault),
            Err(ReadFault::Io(error)) => panic!("memory does not fail: {error}"),
        };
        let waited_for = decoder.next_chunk();
        match decoder.take(chunk.clone()) {
            Ok(StatePart::Records(more)) => records.extend(more),
            Ok(StatePart::Header(_) | StatePart::End(_)) => {}
            Err(fault) => {
                assert_eq!(decoder.next_chunk(), waited_for, "a fault moves nothing");
                assert_eq!(decoder.take(chunk), Err(fault.clone()), "a fault stays");
                return Err(fault);
            }
        }
    }
    Ok((records, decoder.finish()?))
}

fn written(records: &[Record], summary: &StateSummary) -> Vec<u8> {
    let (mut encoder, first) = StateEncoder::begin(&summary.header);
    let mut file = first.to_vec();
    for (space, key, record) in records {
        encoder.push(*space, key, record);
        while let Some(chunk) = encoder.full() {
            file.extend_from_slice(&chunk);
        }
    }
    for chunk in encoder.finish() {
        file.extend_from_slice(&chunk);
    }
    file
}

/// Makes the checksum of every chunk in `file` right, as far as there are chunks.
fn put_right(file: &mut [u8]) {
    let mut at = 0;
    while let Some(heading) = file
        .get(at..)
        .and_then(<[u8]>::first_chunk::<HEADING_BYTES>)
    {
        let Ok(length) = chunk_bytes(heading, 0) else {
            return;
        };
        let Some(chunk) = file.get_mut(at..at + length) else {
            return;
        };
        let sum = crc32fast::hash(&chunk[8..]);
        chunk[4..8].copy_from_slice(&sum.to_le_bytes());
        at += length;
    }
}
