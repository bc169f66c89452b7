//! A snapshot of the whole state: a backup.

use std::time::Duration;

use bytes::Bytes;

use super::Client;
use super::endpoint::with_port;
use super::request::senseless;
use super::route::Errand;
use crate::api::{
    Consistency, Error, ErrorKind, Outcome, Request, ResponseBody, SnapshotCall, SnapshotReply,
};
use crate::wire::state::{StateDecoder, StateFault, StateHeader, StateSummary};

/// How long a chunk is waited for unless told otherwise: longer than a connection takes to be made
/// anew, and shorter than the node keeps a snapshot of which nothing is asked.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long a node is asked for a snapshot while there is another one to ask.
const BEGIN_PATIENCE: Duration = Duration::from_secs(3);
/// How long a node is told that its snapshot is done with.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// How a snapshot is taken.
#[derive(Clone, Debug, Default)]
pub struct SnapshotOptions {
    endpoint: Option<String>,
    consistency: Consistency,
    timeout: Option<Duration>,
}

impl SnapshotOptions {
    /// From any node that takes one, holding every write that was acknowledged before it was asked
    /// for.
    pub fn new() -> Self {
        Self::default()
    }

    /// From the node at `endpoint` (`host:port`), whether or not the client was given it.
    #[must_use]
    pub fn with_endpoint(mut self, endpoint: impl Into<String>) -> Self {
        self.endpoint = Some(endpoint.into());
        self
    }

    /// How fresh it must be. [`Consistency::Serializable`] takes whatever the node has applied, and
    /// needs no leader.
    #[must_use]
    pub fn with_consistency(mut self, consistency: Consistency) -> Self {
        self.consistency = consistency;
        self
    }

    /// How long each chunk may take, broken connections included; 30 seconds unless told otherwise.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

/// A snapshot on its way: the bytes of a backup, chunk by chunk, checked as they come.
///
/// One chunk of at most 256 KiB is held at a time and the next one asked for when it is wanted, so
/// whoever writes them down sets the pace. A connection that breaks is made anew and the chunk asked
/// for again, of the same node: another one's snapshot is of another moment.
#[derive(Debug)]
pub struct SnapshotStream {
    client: Client,
    endpoint: String,
    timeout: Duration,
    id: u64,
    decoder: StateDecoder,
    /// The last chunk, before it is handed out.
    last: Option<Bytes>,
    is_over: bool,
}

impl Client {
    /// Takes a snapshot of everything that the cluster stores, as of one revision, for a backup. Its
    /// bytes, put together, are what `leasehold snapshot` and `leasehold offline snapshot` read.
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
    /// No node takes one. [`ErrorKind::SlowDown`]: the node is giving out two already.
    ///
    /// # Cancel safety
    /// Safe: a node lets a snapshot go when nothing is asked of it for a minute.
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
        };
        let answer = self.inner.router.run(errand).await;
        let response = answer.map_err(|failed| failed.error)?;
        match response.body {
            ResponseBody::Snapshot(reply) => Ok(reply),
            other => Err(senseless(&other, Outcome::NotApplied)),
        }
    }
}

impl SnapshotStream {
    /// The next chunk; `None` after the last one, and after an error. All of them, one after the
    /// other, are a backup; without the last one they are worth nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`]: what came is not what the node stored, or what it stored is damaged.
    /// [`ErrorKind::SnapshotGone`]: the node was started anew. Or the node cannot be reached within
    /// the time for a chunk. The stream is over then.
    ///
    /// # Cancel safety
    /// Safe: no chunk is lost or comes twice.
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
            // Kept while the node is told, which it would notice by itself: so there is room for others
            // at once.
            self.last = Some(chunk);
            let call = SnapshotCall::End { id: self.id };
            let _ = self.ask(call, END_PATIENCE).await;
            return self.last.take().map(Ok);
        }
        Some(Ok(chunk))
    }

    /// Which node it comes from.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Whose state it is, and as of when; `None` before the first chunk has come.
    pub fn header(&self) -> Option<&StateHeader> {
        self.decoder.header()
    }

    /// What all of it is; `None` before the last chunk has come.
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
        format!("the snapshot that came cannot be used: {fault}"),
    )
}
