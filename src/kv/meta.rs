//! The metadata of the state machine: its progress, and its cluster.
//!
//! Everything in `meta` is replicated state, equal on every replica that has applied the same
//! entries. What belongs to one machine (format version, how it was stopped) is kept outside the
//! store, by the code that owns the disk.

use bytes::{Buf, BufMut, Bytes};

use crate::api::{AuthStatus, ClusterInfo};
use crate::types::{BootstrapId, LogId, LogIndex, Term};

use super::space_alarm::SpaceAlarm;
use super::store::{Fault, Space, View};

const PROGRESS: &[u8] = b"progress";
const CLUSTER: &[u8] = b"cluster";
const VERSION: &[u8] = b"version";
const BOOTSTRAP: &[u8] = b"bootstrap";
/// The one record that the content hash leaves out: itself.
pub(super) const HASH: &[u8] = b"hash";

const PROGRESS_BYTES: usize = 48;
/// How much longer the record is while the alarm is raised.
const ALARM_BYTES: usize = 16;
/// Behind them, once users or roles were ever changed.
const ACCESS_BYTES: usize = 9;
/// Behind them, while an operator's alarm is raised. Which parts a record has follows from its length.
const RAISED_BYTES: usize = 2;

/// An empty store is at revision 1, as in etcd: the first write makes it 2.
const FIRST_REVISION: i64 = 1;

/// The progress of a state: the last entry applied and the counters that depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The last entry applied; `0@0` in an empty store.
    pub applied: LogId,
    /// The store-wide revision.
    pub revision: i64,
    /// The compact revision: reads below it are refused. 0 before the first compaction.
    pub compact_revision: i64,
    /// How many sessions are open.
    pub sessions: u64,
    /// How many client leases there are.
    pub leases: u64,
    /// The space alarm is raised: writes that would make the state grow are refused.
    pub space_alarm: Option<SpaceAlarm>,
    /// Whether access control is enabled, and the revision of its rules.
    pub access: AuthStatus,
    /// How many alarms operators have raised: while there is any, such writes are refused, too.
    pub raised_alarms: u16,
}

/// The progress of `view`.
///
/// # Errors
/// The store's error, which is fatal for the reader.
pub fn progress<V: View>(view: &V) -> Result<Progress, V::Error> {
    Ok(decode_progress(stored_progress(view)?)?)
}

/// The record of the progress of `view`; none in an empty store.
pub(super) fn stored_progress<V: View>(view: &V) -> Result<Option<Bytes>, V::Error> {
    view.get(Space::Meta, PROGRESS)
}

/// What it says.
pub(super) fn decode_progress(record: Option<Bytes>) -> Result<Progress, Fault> {
    record.map_or_else(|| Ok(Progress::default()), Progress::decode)
}

/// The cluster's identity and first members, once its first command has been applied.
///
/// # Errors
/// The store's error, which is fatal for the reader.
pub fn cluster_info<V: View>(view: &V) -> Result<Option<ClusterInfo>, V::Error> {
    let Some(record) = view.get(Space::Meta, CLUSTER)? else {
        return Ok(None);
    };
    let info = postcard::from_bytes(&record).map_err(|_| Fault::Damaged {
        space: Space::Meta,
        what: "a cluster identity that does not read",
    })?;
    Ok(Some(info))
}

/// Which bootstrap of its cluster `view` comes from, once the command for that has been applied: 0 if it was
/// the one that says nothing of it.
///
/// # Errors
/// The store's error, which is fatal for the reader.
pub fn bootstrap<V: View>(view: &V) -> Result<Option<BootstrapId>, V::Error> {
    let Some(mut record) = view.get(Space::Meta, BOOTSTRAP)? else {
        return Ok(cluster_info(view)?.map(|_| BootstrapId::default()));
    };
    match record.len() {
        16 => Ok(Some(BootstrapId(record.get_u128()))),
        _ => Err(Fault::Damaged {
            space: Space::Meta,
            what: "a bootstrap of the wrong size",
        })?,
    }
}

/// Key and record of the bootstrap.
pub(super) fn bootstrap_record(bootstrap: BootstrapId) -> (Bytes, Bytes) {
    let record = Bytes::copy_from_slice(&bootstrap.0.to_be_bytes());
    (bootstrap_key(), record)
}

/// The key of the bootstrap.
pub(super) fn bootstrap_key() -> Bytes {
    Bytes::from_static(BOOTSTRAP)
}

/// The version of a cluster that has not agreed on one yet.
pub const FIRST_VERSION: u16 = 1;

/// The version that the cluster has agreed on, as far as `view` goes.
///
/// # Errors
/// The store's error, which is fatal for the reader.
pub fn cluster_version<V: View>(view: &V) -> Result<u16, V::Error> {
    let Some(mut record) = view.get(Space::Meta, VERSION)? else {
        return Ok(FIRST_VERSION);
    };
    match record.len() {
        2 => Ok(record.get_u16()),
        _ => Err(Fault::Damaged {
            space: Space::Meta,
            what: "a cluster version of the wrong size",
        })?,
    }
}

/// Key and record of the version that the cluster has agreed on.
pub(super) fn version_record(version: u16) -> (Bytes, Bytes) {
    let record = Bytes::copy_from_slice(&version.to_be_bytes());
    (Bytes::from_static(VERSION), record)
}

/// The key of the cluster's identity.
pub(super) fn cluster_key() -> Bytes {
    Bytes::from_static(CLUSTER)
}

/// Key and record of the cluster's identity.
pub(super) fn cluster_record(info: &ClusterInfo) -> (Bytes, Bytes) {
    let record = postcard::to_extend(info, Vec::new())
        .expect("a vector grows without bound and the types serialize without fail");
    (Bytes::from_static(CLUSTER), Bytes::from(record))
}

impl Default for Progress {
    /// That of an empty store.
    fn default() -> Self {
        Self {
            applied: LogId::default(),
            revision: FIRST_REVISION,
            compact_revision: 0,
            sessions: 0,
            leases: 0,
            space_alarm: None,
            access: AuthStatus::default(),
            raised_alarms: 0,
        }
    }
}

impl Progress {
    /// Key and record.
    pub(super) fn record(&self) -> (Bytes, Bytes) {
        let parts = PROGRESS_BYTES + ALARM_BYTES + ACCESS_BYTES + RAISED_BYTES;
        let mut bytes = Vec::with_capacity(parts);
        bytes.put_u64(self.applied.index.0);
        bytes.put_u64(self.applied.term.0);
        bytes.put_i64(self.revision);
        bytes.put_i64(self.compact_revision);
        bytes.put_u64(self.sessions);
        bytes.put_u64(self.leases);
        if let Some(alarm) = self.space_alarm {
            bytes.put_u64(alarm.used);
            bytes.put_u64(alarm.quota);
        }
        if self.access != AuthStatus::default() {
            bytes.put_u64(self.access.revision);
            bytes.put_u8(self.access.enabled.into());
        }
        if self.raised_alarms > 0 {
            bytes.put_u16(self.raised_alarms);
        }
        (Bytes::from_static(PROGRESS), bytes.into())
    }

    fn decode(mut record: Bytes) -> Result<Self, Fault> {
        let mut tail = record.len().wrapping_sub(PROGRESS_BYTES);
        // Each part is longer than those behind it together.
        let [is_alarmed, has_access, has_raised] =
            [ALARM_BYTES, ACCESS_BYTES, RAISED_BYTES].map(|bytes| {
                let is_there = tail >= bytes;
                tail -= if is_there { bytes } else { 0 };
                is_there
            });
        if tail != 0 {
            return Err(Fault::Damaged {
                space: Space::Meta,
                what: "a progress record of the wrong size",
            });
        }
        // Fields are read in the order written.
        Ok(Self {
            applied: LogId::new(LogIndex(record.get_u64()), Term(record.get_u64())),
            revision: record.get_i64(),
            compact_revision: record.get_i64(),
            sessions: record.get_u64(),
            leases: record.get_u64(),
            space_alarm: is_alarmed.then(|| SpaceAlarm {
                used: record.get_u64(),
                quota: record.get_u64(),
            }),
            access: match has_access {
                false => AuthStatus::default(),
                true => AuthStatus {
                    revision: record.get_u64(),
                    enabled: record.get_u8() != 0,
                },
            },
            raised_alarms: match has_raised {
                false => 0,
                true => record.get_u16(),
            },
        })
    }
}
