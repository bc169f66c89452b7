//! Dumps the content of a data directory.

use std::io;

use super::{OfflineError, StoppedNode};
use crate::api::KeyValue;
use crate::kv;
use crate::kv::{Command, Operation, Space, Span, View};
use crate::raft::Payload;
use crate::server::disk::log_thread;
use crate::types::LogId;

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpedEntry {
    /// Its index and term.
    pub id: LogId,
    /// Its kind, in a word or two.
    pub what: String,
    /// Its length in bytes.
    pub bytes: usize,
}

impl StoppedNode {
    /// Calls `each` with every key and its record, in key order. An error of `each` ends the dump.
    ///
    /// # Errors
    /// The state is damaged or cannot be read, or the error of `each`.
    pub fn dump_keys(
        &self,
        mut each: impl FnMut(KeyValue) -> io::Result<()>,
    ) -> Result<io::Result<()>, OfflineError> {
        let store = self.open_state()?;
        let snapshot = store.reader().snapshot()?;
        let mut done = Ok(());
        for pair in snapshot.range(Space::Current, &Span::all()) {
            let (key, record) = pair?;
            let kv = kv::key_value(key, record).map_err(super::StoreError::from)?;
            done = each(kv);
            if done.is_err() {
                break;
            }
        }
        drop(snapshot);
        store.close()?;
        Ok(done)
    }

    /// Every entry of the log that can be trusted, oldest first.
    ///
    /// # Errors
    /// The log cannot be read. From a damaged log the entries before the damage are returned.
    pub fn dump_log(&self) -> Result<Vec<DumpedEntry>, OfflineError> {
        let records = self.read_log()?.records;
        let dumped = records.into_iter().map(|record| {
            let (id, bytes) = (record.id, record.payload.len());
            let what = match log_thread::decode(record)?.payload {
                Payload::Noop => "noop".to_owned(),
                Payload::Configuration(configuration) => {
                    let voters: Vec<_> = configuration.voters.iter().collect();
                    format!("configuration {voters:?}")
                }
                Payload::Command(command) => named(&command),
            };
            Ok(DumpedEntry { id, what, bytes })
        });
        dumped.collect()
    }
}

fn named(command: &[u8]) -> String {
    let command = match Command::decode(command) {
        Ok(command) => command,
        Err(error) => return format!("unreadable: {error}"),
    };
    let name = match command {
        Command::Write { operation, .. } => match operation {
            Operation::Put(_) => "put",
            Operation::DeleteRange(_) => "delete_range",
            Operation::Compact(_) => "compact",
            Operation::Txn(_) => "txn",
            Operation::LeaseGrant(_) => "lease_grant",
            Operation::LeaseRevoke(_) => "lease_revoke",
            Operation::LeaseUpdateTtl { .. } => "lease_update_ttl",
            Operation::PutWithNewLease { .. } => "put_with_new_lease",
            Operation::Auth(request) => request.spec().name,
            Operation::SetAlarm { .. } => "set_alarm",
        },
        Command::OpenSession { .. } => "open_session",
        Command::Bootstrap(_) | Command::BootstrapAs { .. } => "bootstrap",
        Command::ForgetSessions { .. } => "forget_sessions",
        Command::ExpireLeases { .. } => "expire_leases",
        Command::MarkLeases { .. } => "mark_leases",
        Command::ContinueLeaseEnds { .. } => "continue_lease_ends",
        Command::CheckHash => "check_hash",
        Command::SetSpaceAlarm(_) => "set_space_alarm",
        Command::RaiseVersion { .. } => "raise_version",
        Command::SetEtcdUrls(_) => "set_etcd_urls",
    };
    name.to_owned()
}
