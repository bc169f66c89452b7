//! Exports a state as chunks ([`crate::wire::state`]), concurrently with reads and writes.
//!
//! An [`Export`] holds one [`Snapshot`] and reads each chunk from it on demand. So it keeps a chunk or two
//! in memory for any size of state, and delays neither the state thread nor readers. It does delay the
//! removal of records replaced since the snapshot: drop it when it is done.
//!
//! Two exports of one snapshot produce the same bytes, so a receiver that reconnects can continue with
//! its next missing chunk ([`Export::seek`]) for as long as the snapshot is held.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::Snapshot;
use super::compaction_gc::GARBAGE;
use super::error::StoreError;
use crate::api::successor;
use crate::kv;
use crate::kv::{Space, Span, View};
use crate::raft::{Configuration, LogBase};
use crate::types::{ClusterId, NodeId};
use crate::wire::state::{EncoderMark, StateEncoder, StateHeader};

/// Number of chunks that an export can go back without reading from the beginning.
const MARKS_MAX: usize = 256;

/// The origin of an exported state, which the state machine itself does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The cluster.
    pub cluster: ClusterId,
    /// The member that exports it.
    pub member: NodeId,
    /// The configuration in force at the last entry that the snapshot contains.
    pub configuration: Configuration,
}

/// The export of one snapshot.
pub struct Export {
    snapshot: Arc<Snapshot>,
    header: StateHeader,
    stage: Stage,
    /// The positions after each of the last chunks.
    pub(super) marks: VecDeque<Mark>,
}

enum Stage {
    Header,
    Records(StateEncoder, Option<RecordKey>),
    Last(VecDeque<Bytes>),
}

/// The last record that an encoder was given.
type RecordKey = (Space, Bytes);

pub(super) struct Mark {
    encoder: EncoderMark,
    last: Option<RecordKey>,
}

impl Export {
    /// Starts an export of `snapshot`.
    ///
    /// # Errors
    /// Every error is fatal for the store.
    pub fn new(snapshot: Snapshot, origin: Origin) -> Result<Self, StoreError> {
        let progress = snapshot.progress();
        let header = StateHeader {
            cluster: origin.cluster,
            member: origin.member,
            base: LogBase {
                id: progress.applied,
                configuration: origin.configuration,
            },
            revision: progress.revision,
            compact_revision: progress.compact_revision,
            sessions: progress.sessions,
            leases: progress.leases,
            hash: kv::content_hash(&snapshot)?,
        };
        Ok(Self {
            snapshot: Arc::new(snapshot),
            header,
            stage: Stage::Header,
            marks: VecDeque::new(),
        })
    }

    /// The exported state itself.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot)
    }

    /// The header of the exported state.
    pub fn header(&self) -> &StateHeader {
        &self.header
    }

    /// The next chunk; `None` after the last one. Reads the disk, so it must not run on a
    /// latency-sensitive thread.
    ///
    /// # Errors
    /// Every error is fatal for the store.
    pub fn next_chunk(&mut self) -> Result<Option<Bytes>, StoreError> {
        match &mut self.stage {
            Stage::Header => {
                let (encoder, chunk) = StateEncoder::begin(&self.header);
                remember(&mut self.marks, &encoder, None);
                self.stage = Stage::Records(encoder, None);
                Ok(Some(chunk))
            }
            Stage::Records(encoder, last) => {
                if let Some(chunk) = fill(&self.snapshot, encoder, last)? {
                    remember(&mut self.marks, encoder, last.clone());
                    return Ok(Some(chunk));
                }
                let stage = std::mem::replace(&mut self.stage, Stage::Header);
                let Stage::Records(encoder, _) = stage else {
                    unreachable!("it was just looked at");
                };
                let mut last = VecDeque::from(encoder.finish());
                let chunk = last.pop_front();
                self.stage = Stage::Last(last);
                Ok(chunk)
            }
            Stage::Last(last) => Ok(last.pop_front()),
        }
    }

    /// Continues with chunk `number`: at once if it is one of the last few hundred, otherwise by reading
    /// everything before it again.
    ///
    /// # Errors
    /// Every error is fatal for the store.
    pub fn seek(&mut self, number: u64) -> Result<(), StoreError> {
        let known = |mark: &&Mark| mark.encoder.next_chunk() <= number;
        let mut at = match self.marks.iter().rev().find(known) {
            Some(mark) => {
                self.stage = resume(&self.snapshot, mark)?;
                mark.encoder.next_chunk()
            }
            None => {
                self.stage = Stage::Header;
                0
            }
        };
        self.marks.retain(|mark| mark.encoder.next_chunk() <= at);
        while at < number && self.next_chunk()?.is_some() {
            at += 1;
        }
        Ok(())
    }
}

fn remember(marks: &mut VecDeque<Mark>, encoder: &StateEncoder, last: Option<RecordKey>) {
    if marks.len() == MARKS_MAX {
        marks.pop_front();
    }
    marks.push_back(Mark {
        encoder: encoder.mark(),
        last,
    });
}

fn resume(snapshot: &Snapshot, mark: &Mark) -> Result<Stage, StoreError> {
    let Some((space, key)) = &mark.last else {
        return Ok(Stage::Records(
            StateEncoder::resume(&mark.encoder, None),
            None,
        ));
    };
    let record = snapshot.get(*space, key)?;
    // A snapshot does not change, so this is what was read before.
    let record = record.ok_or_else(|| StoreError::Damaged {
        detail: format!("keyspace {space} lost a record while it was being read"),
    })?;
    let encoder = StateEncoder::resume(&mark.encoder, Some((*space, key, &record)));
    Ok(Stage::Records(encoder, mark.last.clone()))
}

/// Passes the records after `last` to `encoder` until a chunk is complete; `None` if they run out before.
fn fill(
    snapshot: &Snapshot,
    encoder: &mut StateEncoder,
    last: &mut Option<RecordKey>,
) -> Result<Option<Bytes>, StoreError> {
    if let Some(chunk) = encoder.full() {
        return Ok(Some(chunk));
    }
    let from = last.clone();
    let begun = from.as_ref().map_or(0, |(space, _)| space.slot());
    for space in Space::ALL.into_iter().skip(begun) {
        let span = match &from {
            Some((begun, key)) if *begun == space => Span::from_key(successor(key)),
            _ => Span::all(),
        };
        for pair in snapshot.range(space, &span) {
            let (key, record) = pair?;
            if is_left_out(space, &key) {
                continue;
            }
            encoder.push(space, &key, &record);
            if let Some(chunk) = encoder.full() {
                // A copy, because a key read from disk may keep its whole block in memory.
                *last = Some((space, Bytes::copy_from_slice(&key)));
                return Ok(Some(chunk));
            }
        }
    }
    Ok(None)
}

/// Whether a record describes this member's files and is not part of the replicated state.
fn is_left_out(space: Space, key: &[u8]) -> bool {
    space == Space::Local && key == GARBAGE
}
