//! Chunks in, records out, and everything checked.

use bytes::{Buf, Bytes, BytesMut};

use crate::kv::{Space, StateReport, StateSum};
use crate::raft::LogBase;

use super::chunk::{Chunk, ChunkKind};
use super::encode::{End, RECORD_HEADING_BYTES, run};
use super::fault::StateFault;
use super::header::StateHeader;
use super::{Counts, STATE_RECORD_BYTES_MAX, chunk};

/// Takes the chunks of one state in their order.
///
/// What it hands out before the end is there may be worth nothing: keep it apart until then. Memory
/// is that of one chunk and of the one record that a chunk has left unfinished.
#[derive(Default)]
pub struct StateDecoder {
    next: u64,
    header: Option<StateHeader>,
    records: Counts,
    running: u128,
    /// The beginning of a record that the next chunk goes on with.
    pending: BytesMut,
    /// The last record's place, by which the next one is judged.
    last: Option<(Space, Bytes)>,
    sum: StateSum,
    summary: Option<StateSummary>,
    failed: Option<StateFault>,
}

impl std::fmt::Debug for StateDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StateDecoder(chunk {})", self.next)
    }
}

/// What a chunk was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatePart {
    /// The first one.
    Header(StateHeader),
    /// The records that it completes, in their order.
    Records(Vec<(Space, Bytes, Bytes)>),
    /// The last one: all of them are what was written.
    End(Box<StateSummary>),
}

/// What a whole state is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSummary {
    /// What it said of itself.
    pub header: StateHeader,
    /// What its records come to.
    pub report: StateReport,
    /// How many chunks it has, header and end included.
    pub chunks: u64,
    /// How many records, by [`Space::slot`].
    pub records: Counts,
    /// The hash over all its chunks but the end: the same bytes have the same.
    pub hash: u128,
}

impl StateSummary {
    /// How many keys there are at its revision.
    pub fn keys(&self) -> u64 {
        self.records[Space::Current.slot()]
    }
}

impl StateDecoder {
    /// Waits for chunk 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of the chunk that it waits for: where a sender is to go on.
    pub fn next_chunk(&self) -> u64 {
        self.next
    }

    /// What the state says of itself, once its first chunk is here.
    pub fn header(&self) -> Option<&StateHeader> {
        self.header.as_ref()
    }

    /// What the state is, once all of it is here.
    pub fn summary(&self) -> Option<&StateSummary> {
        self.summary.as_ref()
    }

    /// Takes one whole chunk, heading and all.
    ///
    /// # Errors
    /// [`StateFault::OutOfOrder`] changes nothing: the right chunk may still come. After any other
    /// fault this decoder says the same for ever, and what it has handed out is worth nothing.
    pub fn take(&mut self, chunk: Bytes) -> Result<StatePart, StateFault> {
        if let Some(fault) = &self.failed {
            return Err(fault.clone());
        }
        let result = self.take_unguarded(chunk);
        if let Err(fault) = &result
            && !matches!(fault, StateFault::OutOfOrder { .. })
        {
            self.failed = Some(fault.clone());
        }
        result
    }

    /// The bytes have ended.
    ///
    /// # Errors
    /// [`StateFault::Cut`]: the last chunk is not here. Or an earlier fault.
    pub fn finish(self) -> Result<StateSummary, StateFault> {
        match (self.failed, self.summary) {
            (Some(fault), _) => Err(fault),
            (None, Some(summary)) => Ok(summary),
            (None, None) => Err(StateFault::Cut { chunks: self.next }),
        }
    }

    fn take_unguarded(&mut self, bytes: Bytes) -> Result<StatePart, StateFault> {
        if self.summary.is_some() {
            return Err(StateFault::Trailing);
        }
        let Chunk { number, kind, body } = chunk::open(bytes.clone(), self.next)?;
        if number != self.next {
            return Err(StateFault::OutOfOrder {
                expected: self.next,
                found: number,
            });
        }
        let part = match (kind, &self.header) {
            (ChunkKind::Header, None) => {
                let header = StateHeader::decode(body)?;
                self.header = Some(header.clone());
                StatePart::Header(header)
            }
            (ChunkKind::Records, Some(_)) => StatePart::Records(self.records(body)?),
            (ChunkKind::End, Some(header)) => {
                let summary = self.end(header, &body)?;
                self.summary = Some(summary.clone());
                StatePart::End(Box::new(summary))
            }
            _ => return Err(self.damaged("it is of a kind that does not belong there")),
        };
        self.next += 1;
        self.running = run(self.running, &bytes);
        Ok(part)
    }

    fn records(&mut self, body: Bytes) -> Result<Vec<(Space, Bytes, Bytes)>, StateFault> {
        let mut records = Vec::new();
        let mut rest = body;
        if !self.pending.is_empty() {
            // Only so much of the chunk as the record wants is put together.
            while let Some(missing) = missing(&self.pending).map_err(|what| self.damaged(what))? {
                if rest.is_empty() {
                    return Ok(records);
                }
                let more = rest.split_to(missing.min(rest.len()));
                self.pending.extend_from_slice(&more);
            }
            let whole = std::mem::take(&mut self.pending).freeze();
            records.push(self.record(whole)?);
        }
        while !rest.is_empty() {
            if missing(&rest).map_err(|what| self.damaged(what))?.is_some() {
                self.pending.extend_from_slice(&rest);
                break;
            }
            let whole = rest.split_to(record_bytes(&rest));
            records.push(self.record(whole)?);
        }
        Ok(records)
    }

    /// Takes a whole record apart, and accounts for it.
    fn record(&mut self, mut bytes: Bytes) -> Result<(Space, Bytes, Bytes), StateFault> {
        let number = bytes.get_u8();
        let space = Space::ALL.into_iter().find(|space| *space as u8 == number);
        let space = space.ok_or_else(|| self.damaged("it names an unknown keyspace"))?;
        let key_bytes = usize::from(bytes.get_u16_le());
        bytes.advance(4);
        let key = bytes.split_to(key_bytes);
        if let Some((before, last)) = &self.last
            && (before.slot(), last) >= (space.slot(), &key)
        {
            return Err(self.damaged("its records are out of order"));
        }
        self.records[space.slot()] += 1;
        self.sum.add(space, &key, &bytes)?;
        self.last = Some((space, key.clone()));
        Ok((space, key, bytes))
    }

    fn end(&self, header: &StateHeader, body: &[u8]) -> Result<StateSummary, StateFault> {
        if !self.pending.is_empty() {
            return Err(StateFault::Mixed {
                what: "it ends within a record",
            });
        }
        let end = End {
            chunks: self.next,
            records: self.records,
            hash: self.running,
        };
        if !end.is_told_by(body) {
            return Err(StateFault::Mixed {
                what: "its end does not match its chunks",
            });
        }
        let report = self.sum.report()?;
        if !report.is_sound() {
            return Err(StateFault::WrongContent {
                expected: report.kept,
                found: report.scanned,
            });
        }
        let progress = &report.progress;
        let told = StateHeader {
            base: LogBase {
                id: progress.applied,
                configuration: header.base.configuration.clone(),
            },
            revision: progress.revision,
            compact_revision: progress.compact_revision,
            sessions: progress.sessions,
            leases: progress.leases,
            hash: report.kept,
            ..header.clone()
        };
        let cluster = report.cluster.as_ref().map(|info| info.cluster_id);
        if told != *header || cluster.is_some_and(|cluster| cluster != header.cluster) {
            return Err(StateFault::Mixed {
                what: "its header is that of another state",
            });
        }
        Ok(StateSummary {
            header: told,
            report,
            chunks: self.next + 1,
            records: self.records,
            hash: self.running,
        })
    }

    fn damaged(&self, what: &'static str) -> StateFault {
        StateFault::Damaged {
            chunk: self.next,
            what,
        }
    }
}

/// How many bytes the record that begins `bytes` still needs before more of it can be said; `None`
/// for a whole one.
fn missing(bytes: &[u8]) -> Result<Option<usize>, &'static str> {
    if bytes.len() < RECORD_HEADING_BYTES {
        return Ok(Some(RECORD_HEADING_BYTES - bytes.len()));
    }
    let whole = record_bytes(bytes);
    if whole > RECORD_HEADING_BYTES + usize::from(u16::MAX) + STATE_RECORD_BYTES_MAX {
        return Err("it claims a record longer than the maximum");
    }
    Ok(whole
        .checked_sub(bytes.len())
        .filter(|missing| *missing > 0))
}

/// The length of the record whose heading begins `bytes`.
fn record_bytes(bytes: &[u8]) -> usize {
    let mut lengths = &bytes[1..RECORD_HEADING_BYTES];
    let key = usize::from(lengths.get_u16_le());
    RECORD_HEADING_BYTES + key + lengths.get_u32_le() as usize
}
