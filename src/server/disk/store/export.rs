//! A state goes out, as chunks ([`crate::wire::state`]), while others go on reading and writing.
//!
//! An [`Export`] holds one [`Snapshot`] for as long as it lives and reads from it what the next chunk
//! needs, no sooner than it is asked for: so it keeps a chunk or two in memory, whatever the state
//! holds, and neither the thread that applies nor any reader waits for it. What it does hold up is the
//! removal of records that were replaced meanwhile: let it go when it is over.
//!
//! Two exports of one snapshot are the same bytes, so a receiver that lost its connection may continue
//! with the chunk that it lacks ([`Export::seek`]), as long as the snapshot is held.

use std::collections::VecDeque;

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

/// Number of chunks that it can go back without reading from the beginning.
const MARKS_MAX: usize = 256;

/// Whose state goes out: what the state machine does not know of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The cluster.
    pub cluster: ClusterId,
    /// The member that has it.
    pub member: NodeId,
    /// The configuration in force at the last entry that the snapshot contains.
    pub configuration: Configuration,
}

/// A state on its way out.
pub struct Export {
    snapshot: Snapshot,
    header: StateHeader,
    stage: Stage,
    /// Where it stood after each of the last chunks.
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
    /// Sends `snapshot` out.
    ///
    /// # Errors
    /// Any is fatal for the store.
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
            snapshot,
            header,
            stage: Stage::Header,
            marks: VecDeque::new(),
        })
    }

    /// What goes out, and as of when.
    pub fn header(&self) -> &StateHeader {
        &self.header
    }

    /// The next chunk; `None` after the last one. Reads the disk: not for a thread that others wait
    /// for.
    ///
    /// # Errors
    /// Any is fatal for the store.
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

    /// Goes on with chunk `number`, wherever it was: one of the last few hundred at once, an earlier
    /// one by reading everything before it again.
    ///
    /// # Errors
    /// Any is fatal for the store.
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

/// Gives `encoder` the records after `last` until they make a chunk; `None` if they do not any more.
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
                // A copy, because a key read from disk may hold on to the whole block it came from.
                *last = Some((space, Bytes::copy_from_slice(&key)));
                return Ok(Some(chunk));
            }
        }
    }
    Ok(None)
}

/// What says something of this member's files, and not of the state.
fn is_left_out(space: Space, key: &[u8]) -> bool {
    space == Space::Local && key == GARBAGE
}
