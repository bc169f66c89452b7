//! Transactions, the helpers built on them, and compaction.

use std::time::Duration;

use bytes::Bytes;

use super::deadline::deadline_after;
use super::fence::mixed_up;
use super::response::unexpected_response;
use super::{CasResponse, Client, CompactionOptions, CompactionResponse, TxnOptions, TxnResponse};
use crate::api::{
    CompactionRequest, Error, ErrorKind, Outcome, Request, ResponseBody, TxnOp, TxnOpResponse,
    TxnRequest,
};

/// Interval between queries whether a node has finished its compaction.
const REMOVAL_POLL: Duration = Duration::from_millis(100);

impl Client {
    /// Compares, and runs one branch or the other, atomically: no reader sees a part of it, and all
    /// its changes have one revision.
    ///
    /// ```no_run
    /// use leasehold::api::{Compare, CompareOp, TxnOp, TxnRequest};
    ///
    /// # async fn example(client: leasehold::client::Client) -> Result<(), leasehold::api::Error> {
    /// let moved = TxnRequest::new()
    ///     .when([Compare::value("owner", CompareOp::Equal, "a")])
    ///     .and_then([TxnOp::put("owner", "b"), TxnOp::put("since", "noon")])
    ///     .or_else([TxnOp::get("owner")]);
    /// let response = client.txn(moved, None).await?;
    /// println!("moved: {}", response.succeeded);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A transaction with only reads, in both branches, is a read: under the leader's lease it
    /// costs no message to other nodes. All its results are of one revision.
    ///
    /// # Errors
    /// As [`Client::put`]; as [`Client::get`] if it only reads. [`ErrorKind::DuplicateKey`] if it
    /// writes a key twice, including in branches that are not taken; [`ErrorKind::TxnTooLarge`] if
    /// it has too many operations or is nested too deep; [`ErrorKind::RequestTooLarge`] if it would
    /// scan or return too many keys or bytes; [`ErrorKind::Fenced`] if a fence of the options no
    /// longer holds. A transaction makes all of its changes or none.
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn txn(
        &self,
        txn: TxnRequest,
        options: Option<TxnOptions>,
    ) -> Result<TxnResponse, Error> {
        let options = options.unwrap_or_default();
        let is_fenced = !options.fences.is_empty();
        let only_reads = txn.is_read_only();
        let request = Request::Txn(match is_fenced {
            true => TxnRequest::fenced(&options.fences, TxnOp::txn(txn))?,
            false => txn,
        });
        let (header, body) = match only_reads {
            true => {
                let consistency = options.consistency;
                let consistency = consistency.unwrap_or(self.inner.options.consistency);
                let read = self.read(request, consistency, options.min_revision, options.timeout);
                read.await?
            }
            false => self.write(request, options.timeout).await?,
        };
        match body {
            ResponseBody::Txn(mut response) => {
                if is_fenced {
                    response = match response.into_fenced()? {
                        TxnOpResponse::Txn(inside) => inside,
                        _ => return Err(mixed_up()),
                    };
                }
                Ok(TxnResponse {
                    header,
                    succeeded: response.succeeded,
                    responses: response.responses,
                })
            }
            other => Err(unexpected_response(
                &other,
                match only_reads {
                    true => Outcome::NotApplied,
                    false => Outcome::Unknown,
                },
            )),
        }
    }

    /// Writes `key` if it does not exist; otherwise returns its current value.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// let first = client.create("lock", "me").await?;
    /// match first.current {
    ///     None => println!("it was not there, and is mine"),
    ///     Some(other) => println!("{:?} was quicker", other.value),
    /// }
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`Client::put`].
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn create(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
    ) -> Result<CasResponse, Error> {
        let key = Bytes::copy_from_slice(key.as_ref());
        self.cas(TxnRequest::create(key, value)).await
    }

    /// Writes `key` if it was last written at `mod_revision`, where 0 means that it does not exist;
    /// otherwise returns its current value.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// // Counts, however many do so at the same time:
    /// loop {
    ///     let found = client.get("count", None).await?;
    ///     let (revision, count) = match found.kv() {
    ///         Some(kv) => (kv.mod_revision, String::from_utf8_lossy(&kv.value).parse().unwrap_or(0_u64)),
    ///         None => (0, 0),
    ///     };
    ///     let next = (count + 1).to_string();
    ///     if client.compare_and_swap("count", revision, next).await?.succeeded {
    ///         break;
    ///     }
    /// }
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`Client::put`].
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn compare_and_swap(
        &self,
        key: impl AsRef<[u8]>,
        mod_revision: i64,
        value: impl Into<Bytes>,
    ) -> Result<CasResponse, Error> {
        let key = Bytes::copy_from_slice(key.as_ref());
        let txn = TxnRequest::compare_and_swap(key, mod_revision, value);
        self.cas(txn).await
    }

    /// Deletes `key` if it was last written at `mod_revision`; otherwise returns its current value.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// let written = client.put("draft", "text", None).await?;
    /// let deleted = client.compare_and_delete("draft", written.header.revision).await?;
    /// println!("unchanged until then: {}", deleted.succeeded);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`Client::put`].
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn compare_and_delete(
        &self,
        key: impl AsRef<[u8]>,
        mod_revision: i64,
    ) -> Result<CasResponse, Error> {
        let key = Bytes::copy_from_slice(key.as_ref());
        let txn = TxnRequest::compare_and_delete(key, mod_revision);
        self.cas(txn).await
    }

    async fn cas(&self, txn: TxnRequest) -> Result<CasResponse, Error> {
        let (header, body) = self.write(Request::Txn(txn), None).await?;
        match body {
            ResponseBody::Txn(response) => {
                let result = response.into_cas();
                Ok(CasResponse {
                    header,
                    succeeded: result.succeeded,
                    current: result.current,
                })
            }
            other => Err(unexpected_response(&other, Outcome::Unknown)),
        }
    }

    /// Compacts history: revisions before `revision` can no longer be read afterwards, on any node.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// use leasehold::client::CompactionOptions;
    ///
    /// let now = client.put("color", "blue", None).await?.header.revision;
    /// let options = CompactionOptions::new().with_physical(); // Waits until the space is free.
    /// client.compact(now, Some(options)).await?;
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`Client::put`]. [`ErrorKind::Compacted`] if that history was compacted before, and
    /// [`ErrorKind::FutureRevision`] if the revision does not exist yet. With
    /// [`CompactionOptions::with_physical`], [`ErrorKind::DeadlineExceeded`] with outcome *applied*
    /// if a node did not finish in time; it finishes by itself.
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn compact(
        &self,
        revision: i64,
        options: Option<CompactionOptions>,
    ) -> Result<CompactionResponse, Error> {
        let options = options.unwrap_or_default();
        let request = Request::Compact(CompactionRequest {
            revision,
            physical: options.physical,
        });
        let timeout = options.timeout.unwrap_or(self.inner.options.timeout);
        let deadline = deadline_after(timeout);
        let (header, body) = self.write(request, Some(timeout)).await?;
        let ResponseBody::Compact = body else {
            return Err(unexpected_response(&body, Outcome::Unknown));
        };
        if options.physical {
            let removed = self.wait_for_removal(revision);
            if tokio::time::timeout_at(deadline, removed).await.is_err() {
                return Err(Error {
                    kind: ErrorKind::DeadlineExceeded,
                    outcome: Outcome::Applied,
                    detail: "history was compacted, but not every node has removed it in time: \
                             removal continues in the background, and the status of a node shows \
                             its progress"
                        .to_owned(),
                    tries: None,
                });
            }
        }
        Ok(CompactionResponse { header })
    }

    /// Waits until the endpoints that answer have removed what a compaction at `revision` made
    /// obsolete.
    async fn wait_for_removal(&self, revision: i64) {
        for endpoint in self.endpoints() {
            // A node that cannot be reached compacts when it is back.
            while let Ok(answer) = self.status(endpoint).await {
                if answer.status.history.removed_through >= revision {
                    break;
                }
                tokio::time::sleep(REMOVAL_POLL).await;
            }
        }
    }
}
