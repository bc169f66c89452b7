//! A snapshot of the whole state: a backup.

use std::time::Duration;

use bytes::Bytes;

use super::Client;
use super::endpoint::with_port;
use super::response::unexpected_response;
use super::route::Errand;
use crate::api::{
    Consistency, Error, ErrorKind, Outcome, Request, ResponseBody, SnapshotCall, SnapshotReply,
};
use crate::wire::state::{StateDecoder, StateFault, StateHeader, StateSummary};

/// Default timeout of a chunk: longer than a reconnect takes, and shorter than a node keeps an idle
/// snapshot.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of one node for the start of a snapshot while there is another node to try.
const BEGIN_PATIENCE: Duration = Duration::from_secs(3);
/// Timeout for notifying a node that its snapshot is complete.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// How a snapshot is taken.
#[derive(Clone, Debug, Default)]
pub struct SnapshotOptions {
    endpoint: Option<String>,
    consistency: Consistency,
    timeout: Option<Duration>,
}

impl SnapshotOptions {
    /// From any node that serves one, with every write that was acknowledged before the request.
    pub fn new() -> Self {
        Self::default()
    }

    /// From the node at `endpoint` (`host:port`), which need not be one of the configured
    /// endpoints.
    #[must_use]
    pub fn with_endpoint(mut self, endpoint: impl Into<String>) -> Self {
        self.endpoint = Some(endpoint.into());
        self
    }

    /// Consistency of the snapshot. [`Consistency::Serializable`] returns the node's applied state,
    /// and needs no leader.
    #[must_use]
    pub fn with_consistency(mut self, consistency: Consistency) -> Self {
        self.consistency = consistency;
        self
    }

    /// Timeout of each chunk, reconnects included. Default: 30 s.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

/// A snapshot being received: the bytes of a backup, chunk by chunk, verified as they arrive.
///
/// One chunk of at most 256 KiB is held at a time and the next one is requested when the caller
/// wants it, so the caller sets the pace. When a connection breaks, the stream reconnects and
/// requests the chunk again from the same node: another node's snapshot is of another moment.
#[derive(Debug)]
pub struct SnapshotStream {
    client: Client,
    endpoint: String,
    timeout: Duration,
    id: u64,
    decoder: StateDecoder,
    /// The last chunk, before it is returned.
    last: Option<Bytes>,
    is_over: bool,
}

impl Client {
    /// Takes a snapshot of everything that the cluster stores, at one revision, for a backup. Its
    /// concatenated bytes are what `leasehold snapshot` and `leasehold offline snapshot` read.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// let mut backup = client.snapshot(None).await?;
    /// let mut file = Vec::new(); // Or a file, synced before it is relied on.
    /// while let Some(chunk) = backup.next().await {
    ///     file.extend_from_slice(&chunk?);
    /// }
    /// let summary = backup.summary().expect("it is complete, and has been checked");
    /// println!("revision {}, {} bytes from {}", summary.header.revision, file.len(), backup.endpoint());
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// No node serves one. [`ErrorKind::SlowDown`]: the node is already serving two snapshots.
    ///
    /// # Cancel safety
    /// Safe: a node drops a snapshot that has been idle for a minute.
    pub async fn snapshot(
        &self,
        options: Option<SnapshotOptions>,
    ) -> Result<SnapshotStream, Error> {
        let options = options.unwrap_or_default();
        let endpoints = match options.endpoint {
            Some(endpoint) => vec![with_port(&endpoint)?],
            None => {
                let mut all = self.endpoints().to_vec();
                all.extend(self.learned_endpoints());
                all
            }
        };
        let timeout = options.timeout.unwrap_or(TIMEOUT);
        let mut last = None;
        let mut left = endpoints.len();
        for endpoint in endpoints {
            left -= 1;
            let call = SnapshotCall::Begin;
            let patience = match left {
                0 => timeout,
                _ => timeout.min(BEGIN_PATIENCE),
            };
            match self
                .ask_snapshot(&endpoint, call, options.consistency, patience)
                .await
            {
                Ok(reply) => {
                    return Ok(SnapshotStream {
                        client: self.clone(),
                        endpoint,
                        timeout,
                        id: reply.id,
                        decoder: StateDecoder::new(),
                        last: None,
                        is_over: false,
                    });
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("a client has an endpoint"))
    }

    async fn ask_snapshot(
        &self,
        endpoint: &str,
        call: SnapshotCall,
        consistency: Consistency,
        timeout: Duration,
    ) -> Result<SnapshotReply, Error> {
        let errand = Errand {
            request: Request::Snapshot(call),
            consistency,
            min_revision: 0,
            ticket: None,
            timeout,
            only: Some(endpoint),
            context: self.context,
        };
        let answer = self.inner.router.run(errand).await;
        let response = answer.map_err(|failed| failed.error)?;
        match response.body {
            ResponseBody::Snapshot(reply) => Ok(reply),
            other => Err(unexpected_response(&other, Outcome::NotApplied)),
        }
    }
}

impl SnapshotStream {
    /// The next chunk; `None` after the last one, and after an error. The concatenation of all
    /// chunks is a backup; without the last chunk it is unusable.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`]: the received bytes differ from what the node stored, or its storage
    /// is damaged. [`ErrorKind::SnapshotGone`]: the node was restarted. Or the node cannot be
    /// reached within the timeout of a chunk. The stream ends then.
    ///
    /// # Cancel safety
    /// Safe: no chunk is lost or returned twice.
    pub async fn next(&mut self) -> Option<Result<Bytes, Error>> {
        if let Some(last) = self.last.take() {
            return Some(Ok(last));
        }
        if self.is_over {
            return None;
        }
        let chunk = self.fetch().await;
        self.is_over = chunk.is_err() || self.summary().is_some();
        let Ok(chunk) = chunk else {
            return Some(chunk);
        };
        if self.is_over {
            // The chunk is kept here while the node is notified. The node would drop the snapshot
            // by itself in time; the notification frees its permit at once.
            self.last = Some(chunk);
            let call = SnapshotCall::End { id: self.id };
            let _ = self.ask(call, END_PATIENCE).await;
            return self.last.take().map(Ok);
        }
        Some(Ok(chunk))
    }

    /// The node that serves the snapshot.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The header of the snapshot, with its node and revision; `None` before the first chunk has
    /// arrived.
    pub fn header(&self) -> Option<&StateHeader> {
        self.decoder.header()
    }

    /// The summary of the whole snapshot; `None` before the last chunk has arrived.
    pub fn summary(&self) -> Option<&StateSummary> {
        self.decoder.summary()
    }

    async fn fetch(&mut self) -> Result<Bytes, Error> {
        let call = SnapshotCall::Chunk {
            id: self.id,
            number: self.decoder.next_chunk(),
        };
        let reply = self.ask(call, self.timeout).await?;
        self.decoder.take(reply.chunk.clone()).map_err(damaged)?;
        Ok(reply.chunk)
    }

    async fn ask(&self, call: SnapshotCall, timeout: Duration) -> Result<SnapshotReply, Error> {
        self.client
            .ask_snapshot(&self.endpoint, call, Consistency::Serializable, timeout)
            .await
    }
}

fn damaged(fault: StateFault) -> Error {
    Error::not_applied(
        ErrorKind::Corrupt,
        format!("the received snapshot cannot be used: {fault}"),
    )
}
