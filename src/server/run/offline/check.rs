//! Reads a whole data directory and verifies it.

use super::{OfflineError, StoppedNode};
use crate::kv::ContentHash;
use crate::log::{Recovery, Verdict};
use crate::server::disk::marker::Marker;
use crate::server::disk::store::{HashReport, StoreError};
use crate::types::{LogId, LogIndex};

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The result as a sentence and, for a fault, what to do about it.
    pub text: String,
    /// Whether the data differs from what the node wrote.
    pub is_damage: bool,
}

/// The hash that identifies a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateHash {
    /// The hash of everything stored, removed history included: the same on every member that has
    /// applied the same entries.
    pub hash: ContentHash,
    /// The last applied entry.
    pub applied: LogId,
    /// The store-wide revision.
    pub revision: i64,
    /// The oldest revision that can be read; 0 while nothing was ever compacted.
    pub compact_revision: i64,
}

impl StoppedNode {
    /// Reads everything and returns a result for each part. Takes time proportional to the data.
    pub fn check(&self) -> Vec<Finding> {
        let mut findings = vec![sound(format!("identity: {}", self.data_dir.identity()))];
        let log = self.read_log();
        let (finding, end) = match log {
            Ok(recovery) => check_log(&recovery),
            Err(error) => (damage(format!("log: {error}")), None),
        };
        findings.push(finding);
        findings.extend(self.marks());
        findings.extend(self.check_state(end));
        findings
    }

    /// The hash of the state, after comparing it with the stored records.
    ///
    /// # Errors
    /// The state is damaged, or cannot be read.
    pub fn hash(&self) -> Result<StateHash, OfflineError> {
        let store = self.open_state()?;
        let report = store.reader().verify()?;
        store.close()?;
        match unsound(&report) {
            Some(detail) => Err(StoreError::Damaged { detail }.into()),
            None => Ok(StateHash {
                hash: report.kept,
                applied: report.progress.applied,
                revision: report.progress.revision,
                compact_revision: report.progress.compact_revision,
            }),
        }
    }

    fn check_state(&self, log: Option<(LogIndex, LogIndex)>) -> Vec<Finding> {
        let hash = match self.hash() {
            Ok(hash) => hash,
            // A state to which nothing was ever applied is valid.
            Err(OfflineError::NoState { .. }) if log.is_none_or(|(base, _)| base.0 == 0) => {
                return vec![sound(
                    "state: none yet; it is built from the log when the node starts".to_owned(),
                )];
            }
            Err(error) => return vec![damage(format!("state: {error}"))],
        };
        let mut findings = vec![sound(format!(
            "state: sound, entry {}, revision {}, history from revision {} on, content hash {}",
            hash.applied, hash.revision, hash.compact_revision, hash.hash
        ))];
        if let Some((base, last)) = log {
            let applied = hash.applied.index;
            if applied < base {
                findings.push(damage(format!(
                    "log and state: the log begins after entry {base}, but the state has applied \
                     only entry {applied}; start the node while its peers are running: it receives \
                     a snapshot from them"
                )));
            }
            if applied > last {
                findings.push(damage(format!(
                    "log and state: the state has applied entry {applied}, but the log ends with \
                     entry {last}: the log lost its end; start the node: it copies all data from \
                     its peers and neither votes nor serves until it has finished"
                )));
            }
        }
        findings
    }

    /// Checks the marks left by earlier runs.
    fn marks(&self) -> Vec<Finding> {
        let marks = [
            (
                Marker::LeaseTripped,
                "a clock assumption was violated on this node, so it serves no leased reads; find \
                 the cause, then run `leasehold leader-lease clear`",
            ),
            (
                Marker::Diverged,
                "the leader has another entry in the place of one that was acknowledged here: two histories were \
                 acknowledged to clients, and this member keeps its own and counts for no quorum; read it with \
                 `leasehold offline dump-kv` and `dump-log`, or start a cluster from it with `leasehold offline \
                 force-new-cluster`; to give it up, move the data directory away and start the member on an \
                 empty one",
            ),
            (
                Marker::StateDamaged,
                "the state was found to be damaged while the node ran; it will be set aside and \
                 rebuilt at the next start",
            ),
            (
                Marker::Unproven,
                "this member has not yet copied all data from its peers, and does not vote until \
                 it has",
            ),
        ];
        let path = self.data_dir.path();
        let found = marks
            .into_iter()
            .filter(|(mark, _)| mark.is_set(path).unwrap_or(true));
        found
            .map(|(mark, text)| Finding {
                text: format!("{}: {text}", mark.name()),
                is_damage: matches!(mark, Marker::Diverged | Marker::StateDamaged),
            })
            .collect()
    }
}

/// The result for a log, and where it begins and ends.
fn check_log(recovery: &Recovery) -> (Finding, Option<(LogIndex, LogIndex)>) {
    let base = recovery.base;
    let last = recovery.records.last().map_or(base, |record| record.id);
    let extent = match recovery.records.first() {
        Some(first) => format!("entries {} to {last}", first.id),
        None => format!("no entries after {base}"),
    };
    let term = recovery.vote.term;
    let finding = match &recovery.verdict {
        Verdict::Clean => sound(format!("log: sound, {extent}, term {}", term.0)),
        Verdict::TornTailCut { bytes, .. } => sound(format!(
            "log: sound, {extent}, term {}; the last {bytes} bytes were never synced nor \
             acknowledged, and will be dropped at the next start",
            term.0
        )),
        Verdict::Damaged(found) => damage(format!("log: {found}")),
    };
    let finding = match recovery.quarantined && !finding.is_damage {
        true => damage(format!(
            "{}; it was damaged before: the member neither votes nor serves until it has copied \
             all data from its peers: start it while they are running",
            finding.text
        )),
        false => finding,
    };
    // The end of a damaged log is unknown.
    let end = (!finding.is_damage).then_some((base.index, last.index));
    (finding, end)
}

fn unsound(report: &HashReport) -> Option<String> {
    (!report.is_sound()).then(|| {
        format!(
            "the content hash kept with its changes is {}, but its content has {}",
            report.kept, report.scanned
        )
    })
}

fn sound(text: String) -> Finding {
    Finding {
        text,
        is_damage: false,
    }
}

fn damage(text: String) -> Finding {
    Finding {
        text,
        is_damage: true,
    }
}
