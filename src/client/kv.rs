//! Reading, writing and deleting keys.

use bytes::Bytes;

use super::deadline::deadline_after;
use super::endpoint::with_port;
use super::response::unexpected_response;
use super::route::{Errand, PointAttempt};
use super::{
    Client, DeleteOptions, DeleteResponse, GetOptions, GetResponse, PutOptions, PutResponse,
};
use crate::api::{
    Consistency, DeleteRangeRequest, Error, KeyRange, Outcome, PutRequest, RangeRequest, Request,
    ResponseBody,
};
use crate::wire::point::{PointCall, Projection};

impl Client {
    /// Reads a key, or a range of keys.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// use leasehold::api::Consistency;
    /// use leasehold::client::GetOptions;
    ///
    /// let found = client.get("color", None).await?;
    /// println!("{:?}, served by {:?}", found.value(), found.header.read);
    ///
    /// let some = client.get("services/", Some(GetOptions::new().with_prefix().with_limit(100))).await?;
    /// println!("{} keys{}", some.kvs.len(), if some.more { " and more" } else { "" });
    ///
    /// // By a quorum round, whatever clocks do:
    /// let sure = GetOptions::new().with_consistency(Consistency::LinearizableQuorum);
    /// client.get("color", Some(sure)).await?;
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// The outcome is always *not applied*. [`ErrorKind::Compacted`] or
    /// [`ErrorKind::FutureRevision`] if the requested revision cannot be read;
    /// [`ErrorKind::DeadlineExceeded`] and the kinds for which [`Error::is_retryable`] is true,
    /// once the deadline leaves no time for a retry.
    ///
    /// [`ErrorKind::Compacted`]: crate::api::ErrorKind::Compacted
    /// [`ErrorKind::FutureRevision`]: crate::api::ErrorKind::FutureRevision
    /// [`ErrorKind::DeadlineExceeded`]: crate::api::ErrorKind::DeadlineExceeded
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn get(
        &self,
        key: impl AsRef<[u8]>,
        options: Option<GetOptions>,
    ) -> Result<GetResponse, Error> {
        let options = options.unwrap_or_default();
        let own_key = options.selector.start(key.as_ref())?;
        let key = self.full_key(own_key);
        let endpoint = options.endpoint.as_deref().map(with_port).transpose()?;
        let asked = &options.request;
        let defaults = &self.inner.options;
        let consistency = options.consistency.unwrap_or(defaults.consistency);
        let timeout = options.timeout.unwrap_or(defaults.timeout);
        let deadline = deadline_after(timeout);
        let is_plain = endpoint.is_none()
            && self.context.is_empty()
            && options.selector.range == KeyRange::Single
            && asked.is_point()
            && consistency != Consistency::Serializable
            && !own_key.is_empty()
            && key.len() <= defaults.limits.key_bytes_max;
        let mut first = None;
        if is_plain {
            let mut call = PointCall {
                timeout_ms: 0,
                consistency,
                min_revision: options.min_revision,
                key: &key,
                wanted: Projection::of(asked.keys_only, asked.is_count_only()),
                limit: asked.limit,
            };
            match self
                .inner
                .router
                .try_point(&mut call, timeout, deadline)
                .await
            {
                PointAttempt::Found(found) => return self.received_one(found.into()),
                PointAttempt::Failed(attempt) => first = Some(attempt),
                PointAttempt::Not => {}
            }
        }
        let count = options.count(&options.selector.range);
        let request = self.prepared(Request::Range(RangeRequest {
            key: Bytes::copy_from_slice(own_key),
            count,
            range: options.selector.range,
            ..options.request
        }))?;
        let errand = Errand {
            request,
            consistency,
            min_revision: options.min_revision,
            ticket: None,
            timeout,
            only: endpoint.as_deref(),
            context: self.context,
        };
        // Boxed, so that the future of the fast path stays small.
        let rest = Box::pin(self.inner.router.run_after(errand, deadline, first));
        let response = rest.await.map_err(|failed| failed.error)?;
        let (header, body) = self.received(response, Outcome::NotApplied)?;
        match body {
            ResponseBody::Range(range) => Ok(GetResponse::new(header, range, count)),
            other => Err(unexpected_response(&other, Outcome::NotApplied)),
        }
    }

    /// Writes a key. `Ok` means that the write is committed.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// use leasehold::client::PutOptions;
    ///
    /// let written = client.put("color", "blue", Some(PutOptions::new().with_prev_kv())).await?;
    /// println!("at revision {}, in place of {:?}", written.header.revision, written.prev_kv);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`Client::get`]; the outcome gives whether the write may have taken effect.
    /// [`ErrorKind::Fenced`](crate::api::ErrorKind::Fenced) if a fence of the options no longer
    /// holds.
    ///
    /// # Cancel safety
    /// The client stays usable, but the write may take effect after the future was dropped.
    pub async fn put(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
        options: Option<PutOptions>,
    ) -> Result<PutResponse, Error> {
        let options = options.unwrap_or_default();
        let put = PutRequest {
            key: Bytes::copy_from_slice(key.as_ref()),
            value: value.into(),
            prev_kv: options.prev_kv,
            ignore_value: options.ignore_value,
            ignore_lease: options.ignore_lease,
            lease: options.lease,
        };
        let (header, put) = match options.fences.as_slice() {
            [] => match self.write(Request::Put(put), options.timeout).await? {
                (header, ResponseBody::Put(put)) => (header, put),
                (_, other) => return Err(unexpected_response(&other, Outcome::Unknown)),
            },
            fences => self.fenced_put(fences, put, options.timeout).await?,
        };
        Ok(PutResponse {
            header,
            prev_kv: put.prev_kv,
        })
    }

    /// Deletes a key, or a range of keys. Deleting a key that does not exist succeeds, with a count
    /// of 0.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// use leasehold::client::DeleteOptions;
    ///
    /// client.put("old/1", "", None).await?;
    /// let gone = client.delete("old/", Some(DeleteOptions::new().with_prefix())).await?;
    /// assert!(gone.deleted >= 1);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`Client::put`].
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn delete(
        &self,
        key: impl AsRef<[u8]>,
        options: Option<DeleteOptions>,
    ) -> Result<DeleteResponse, Error> {
        let options = options.unwrap_or_default();
        let delete = DeleteRangeRequest {
            key: Bytes::copy_from_slice(options.selector.start(key.as_ref())?),
            range: options.selector.range,
            prev_kv: options.prev_kv,
        };
        let (header, delete) = match options.fences.as_slice() {
            [] => match self
                .write(Request::DeleteRange(delete), options.timeout)
                .await?
            {
                (header, ResponseBody::DeleteRange(delete)) => (header, delete),
                (_, other) => return Err(unexpected_response(&other, Outcome::Unknown)),
            },
            fences => self.fenced_delete(fences, delete, options.timeout).await?,
        };
        Ok(DeleteResponse {
            header,
            deleted: delete.deleted,
            prev_kvs: delete.prev_kvs,
        })
    }
}
