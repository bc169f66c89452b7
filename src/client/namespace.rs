//! Clients that see the keys below one prefix as all there are.
//!
//! A namespace is a matter of the client alone. Requests are put into it right before they are sent, and
//! replies and events are taken out of it right after they have arrived, so everything that is built on a
//! client works in a namespace without knowing of it: transactions, streams, watches, recipes.
//!
//! The prefix itself is no key of its namespace, because it would have no name there.

use bytes::Bytes;

use crate::api::{
    Error, ErrorKind, KeyRange, KeyValue, LeaseInfo, Request, ResponseBody, TxnOp, TxnOpResponse,
    TxnRequest, TxnResponse, WatchEvent, successor,
};

/// A prefix that stands before every key of a client; not empty.
#[derive(Clone, Debug)]
pub(super) struct Namespace {
    pub(super) prefix: Bytes,
}

/// A key in a reply that is not in the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Foreign;

pub(super) fn foreign() -> Error {
    Error::not_applied(
        ErrorKind::Internal,
        "the server sent a key outside of this client's namespace, which was not asked for",
    )
}

impl Namespace {
    /// That of `prefix`; `None` if that is empty.
    pub(super) fn of(prefix: Bytes) -> Option<Self> {
        (!prefix.is_empty()).then_some(Self { prefix })
    }

    /// A key of this namespace, as the cluster knows it.
    pub(super) fn key(&self, key: &[u8]) -> Bytes {
        [&self.prefix, key].concat().into()
    }

    /// Puts the keys of a valid request into the namespace.
    pub(super) fn enter(&self, request: &mut Request) {
        match request {
            Request::Range(range) | Request::RangePage(range) => {
                self.enter_range(&mut range.key, &mut range.range);
            }
            Request::Put(put) | Request::PutWithNewLease(_, put) => put.key = self.key(&put.key),
            Request::DeleteRange(delete) => self.enter_range(&mut delete.key, &mut delete.range),
            Request::Txn(txn) => self.enter_txn(txn),
            Request::Watch { watch, .. } => self.enter_range(&mut watch.key, &mut watch.range),
            Request::OpenSession
            | Request::Status
            | Request::MoveLeader { .. }
            | Request::Compact(_)
            | Request::LeaderLeaseReport
            | Request::LeaseGrant(_)
            | Request::LeaseRevoke(_)
            | Request::LeaseKeepAlive(_)
            | Request::LeaseTimeToLive { .. }
            | Request::LeaseList(_)
            | Request::LeaseUpdateTtl { .. }
            | Request::WatchCancel { .. }
            | Request::WatchProgress { .. }
            | Request::Snapshot(_)
            | Request::MemberList
            | Request::MemberAdd(_)
            | Request::MemberRemove { .. }
            | Request::MemberPromote { .. }
            | Request::MemberUpdate(_)
            | Request::Auth(_)
            | Request::AlarmList
            | Request::AlarmSet { .. }
            | Request::ForwardToLeader { .. }
            | Request::LeaseNamed { .. } => {}
        }
    }

    fn enter_txn(&self, txn: &mut TxnRequest) {
        for compare in &mut txn.compare {
            self.enter_range(&mut compare.key, &mut compare.range);
        }
        for op in txn.success.iter_mut().chain(&mut txn.failure) {
            match op {
                TxnOp::Range(range) => self.enter_range(&mut range.key, &mut range.range),
                TxnOp::Put(put) => put.key = self.key(&put.key),
                TxnOp::DeleteRange(delete) => self.enter_range(&mut delete.key, &mut delete.range),
                TxnOp::Txn(txn) => self.enter_txn(txn),
            }
        }
    }

    pub(super) fn enter_range(&self, key: &mut Bytes, range: &mut KeyRange) {
        let is_whole = key.is_empty() && *range != KeyRange::Single;
        *range = match &*range {
            KeyRange::Single => KeyRange::Single,
            KeyRange::Until(end) => KeyRange::Until(self.key(end)),
            KeyRange::Prefix if !is_whole => KeyRange::Prefix,
            // To the end of everything, which is that of the namespace.
            KeyRange::Prefix | KeyRange::From => KeyRange::Prefix.without_prefix(&self.prefix),
        };
        *key = match is_whole {
            // Behind the prefix itself.
            true => successor(&self.prefix),
            false => self.key(key),
        };
    }

    /// Takes the keys of a reply out of the namespace.
    pub(super) fn leave(&self, body: &mut ResponseBody) -> Result<(), Foreign> {
        match body {
            ResponseBody::Range(range) => self.leave_all(&mut range.kvs),
            ResponseBody::Put(put) => self.leave_all(&mut put.prev_kv),
            ResponseBody::DeleteRange(delete) => self.leave_all(&mut delete.prev_kvs),
            ResponseBody::Txn(txn) => self.leave_txn(txn),
            ResponseBody::LeaseTimeToLive(info) => {
                self.leave_lease(info);
                Ok(())
            }
            ResponseBody::LeaseList(list) => {
                list.leases
                    .iter_mut()
                    .for_each(|info| self.leave_lease(info));
                Ok(())
            }
            ResponseBody::PutWithNewLease(both) => self.leave_all(&mut both.put.prev_kv),
            ResponseBody::RangePage(page) => {
                if let Some(next) = &mut page.next {
                    self.leave_key(next)?;
                }
                self.leave_all(&mut page.kvs)
            }
            ResponseBody::OpenSession { .. }
            | ResponseBody::Status(_)
            | ResponseBody::MoveLeader
            | ResponseBody::Compact
            | ResponseBody::LeaderLeaseReport(_)
            | ResponseBody::LeaseGrant(_)
            | ResponseBody::LeaseRevoke(_)
            | ResponseBody::LeaseKeepAlive(_)
            | ResponseBody::LeaseUpdateTtl { .. }
            | ResponseBody::Watch
            | ResponseBody::WatchCancel
            | ResponseBody::WatchProgress
            | ResponseBody::Snapshot(_)
            | ResponseBody::Members(_)
            | ResponseBody::Auth(_)
            | ResponseBody::Alarms(_)
            | ResponseBody::ForwardToLeader
            | ResponseBody::LeaseNamed(_) => Ok(()),
        }
    }

    /// Takes records out of the namespace.
    pub(super) fn leave_all<'a>(
        &self,
        kvs: impl IntoIterator<Item = &'a mut KeyValue>,
    ) -> Result<(), Foreign> {
        let mut kvs = kvs.into_iter();
        kvs.try_for_each(|kv| self.leave_key(&mut kv.key))
    }

    fn leave_txn(&self, txn: &mut TxnResponse) -> Result<(), Foreign> {
        for response in &mut txn.responses {
            match response {
                TxnOpResponse::Range(range) => self.leave_all(&mut range.kvs)?,
                TxnOpResponse::Put(put) => self.leave_all(&mut put.prev_kv)?,
                TxnOpResponse::DeleteRange(delete) => self.leave_all(&mut delete.prev_kvs)?,
                TxnOpResponse::Txn(txn) => self.leave_txn(txn)?,
            }
        }
        Ok(())
    }

    /// A lease may have keys anywhere.
    fn leave_lease(&self, info: &mut LeaseInfo) {
        info.keys.retain_mut(|key| self.leave_key(key).is_ok());
    }

    pub(super) fn leave_event(&self, event: &mut WatchEvent) -> Result<(), Foreign> {
        match event {
            WatchEvent::State { kvs } => self.leave_all(kvs),
            WatchEvent::Events { events, .. } => {
                for event in events {
                    self.leave_key(&mut event.kv.key)?;
                    self.leave_all(&mut event.prev_kv)?;
                }
                Ok(())
            }
            WatchEvent::Created { .. }
            | WatchEvent::Synced { .. }
            | WatchEvent::Progress { .. }
            | WatchEvent::Resumed { .. }
            | WatchEvent::Restarted { .. } => Ok(()),
        }
    }

    fn leave_key(&self, key: &mut Bytes) -> Result<(), Foreign> {
        let is_inside = key.len() > self.prefix.len() && key.starts_with(&self.prefix);
        if !is_inside {
            return Err(Foreign);
        }
        *key = key.slice(self.prefix.len()..);
        Ok(())
    }
}
