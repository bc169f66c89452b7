//! Clients that see the keys below one prefix as all there are.
//!
//! A namespace is a matter of the client alone. Requests are put into it right before they are sent, and
//! replies and events are taken out of it right after they have arrived, so everything that is built on a
//! client works in a namespace without knowing of it: transactions, streams, watches, recipes.
//!
//! The prefix itself is no key of its namespace, because it would have no name there.

use bytes::{Bytes, BytesMut};

use super::request::parts;
use super::{Client, GetResponse};
use crate::api::{
    Error, ErrorKind, KeyRange, KeyValue, LeaseInfo, Outcome, Request, Response, ResponseBody,
    ResponseHeader, TxnOp, TxnOpResponse, TxnRequest, TxnResponse, WatchEvent, WatchRequest,
    successor, validate,
};

/// A prefix that stands before every key of a client; not empty.
#[derive(Clone, Debug)]
pub(super) struct Namespace {
    prefix: Bytes,
}

impl Client {
    /// This client, with the keys below `prefix` as all the keys there are: every key of a request gets
    /// the prefix, and every key of a reply or an event loses it. So it cannot read, watch or change
    /// any other key, and neither can what is built with it: streams, locks, queues, caches. Both
    /// share connections, the session of writes, and what else a client has. A namespace of a
    /// namespaced client lies inside that client's own; an empty prefix changes nothing.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// use leasehold::client::GetOptions;
    ///
    /// let billing = client.with_namespace("billing/");
    /// billing.put("color", "blue", None).await?;
    /// assert_eq!(client.get("billing/color", None).await?.count, 1);
    /// let all = billing.get("", Some(GetOptions::new().with_all_keys())).await?;
    /// assert!(all.kvs.iter().any(|kv| kv.key == "color"));
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// What belongs to the cluster as a whole is not divided: leases with their ids and names,
    /// members, users and roles with the keys of their permissions, snapshots, compaction. A lease
    /// that ends deletes all its keys, wherever they are; a query for its keys names those in the
    /// namespace, and its count is that of all. An error for lack of a permission names keys in
    /// full, as permissions do. And a namespace protects from mistakes, not from programs that mean
    /// harm: those are kept out by [roles](Client::auth).
    #[must_use]
    pub fn with_namespace(&self, prefix: impl AsRef<[u8]>) -> Self {
        let outer = self.namespace.as_ref();
        let prefix = match outer {
            Some(outer) => outer.key(prefix.as_ref()),
            None => Bytes::copy_from_slice(prefix.as_ref()),
        };
        Self {
            inner: self.inner.clone(),
            namespace: Namespace::of(prefix),
        }
    }

    /// The prefix of every key of this client in the cluster; empty for a client without
    /// [`Client::with_namespace`].
    pub fn namespace(&self) -> &[u8] {
        let namespace = self.namespace.as_ref();
        namespace.map_or(&[], |namespace| &namespace.prefix)
    }

    /// A request as it is sent, if it is valid.
    pub(super) fn prepared(&self, mut request: Request) -> Result<Request, Error> {
        let limits = &self.inner.options.limits;
        validate(&request, limits)?;
        if let Some(namespace) = &self.namespace {
            namespace.enter(&mut request);
            // Its keys are longer now.
            validate(&request, limits)?;
        }
        Ok(request)
    }

    /// As [`Client::prepared`], for a watch.
    pub(super) fn prepared_watch(&self, watch: WatchRequest) -> Result<WatchRequest, Error> {
        let limits = &self.inner.options.limits;
        watch.validate(limits)?;
        let Some(namespace) = &self.namespace else {
            return Ok(watch);
        };
        let mut watch = watch;
        namespace.enter_range(&mut watch.key, &mut watch.range);
        watch.validate(limits)?;
        Ok(watch)
    }

    /// A reply as the caller gets it. `outcome` is that of a request whose reply cannot be used.
    pub(super) fn received(
        &self,
        response: Response,
        outcome: Outcome,
    ) -> Result<(ResponseHeader, ResponseBody), Error> {
        let (header, mut body) = parts(response);
        if let Some(namespace) = &self.namespace {
            namespace.leave(&mut body).map_err(|Foreign| Error {
                outcome,
                ..foreign()
            })?;
        }
        Ok((header, body))
    }

    /// As [`Client::received`], for a read of one key.
    pub(super) fn received_one(&self, mut found: GetResponse) -> Result<GetResponse, Error> {
        if let Some(namespace) = &self.namespace {
            namespace
                .leave_all(&mut found.kvs)
                .map_err(|Foreign| foreign())?;
        }
        Ok(found)
    }

    /// An event as the caller gets it.
    pub(super) fn received_event(&self, event: &mut WatchEvent) -> Result<(), Error> {
        match &self.namespace {
            Some(namespace) => namespace.leave_event(event).map_err(|Foreign| foreign()),
            None => Ok(()),
        }
    }
}

/// A key in a reply that is not in the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Foreign;

fn foreign() -> Error {
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
        let mut full = BytesMut::with_capacity(self.prefix.len() + key.len());
        full.extend_from_slice(&self.prefix);
        full.extend_from_slice(key);
        full.freeze()
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
            | Request::Auth(_) => {}
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

    fn enter_range(&self, key: &mut Bytes, range: &mut KeyRange) {
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
            | ResponseBody::Auth(_) => Ok(()),
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
