//! What a client does for its namespace, if it has one.

use std::borrow::Cow;

use bytes::Bytes;

use super::namespace::{Foreign, Namespace, foreign};
use super::{Client, GetResponse};
use crate::api::{
    Error, Outcome, Request, Response, ResponseBody, ResponseHeader, WatchEvent, WatchRequest,
    validate,
};

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
    /// assert_eq!(client.get("billing/color", None).await?.count, Some(1));
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
            context: self.context,
        }
    }

    /// The prefix of every key of this client in the cluster; empty for a client without
    /// [`Client::with_namespace`].
    pub fn namespace(&self) -> &[u8] {
        let namespace = self.namespace.as_ref();
        namespace.map_or(&[], |namespace| &namespace.prefix)
    }

    /// A key, as the cluster knows it.
    pub(super) fn full_key<'a>(&self, key: &'a [u8]) -> Cow<'a, [u8]> {
        match &self.namespace {
            None => Cow::Borrowed(key),
            Some(namespace) => Cow::Owned([&namespace.prefix, key].concat()),
        }
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
        let Response { header, mut body } = response;
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
