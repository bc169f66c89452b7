//! Takes traces to the collector: in batches, over HTTP, in a task of its own.
//!
//! A batch that does not arrive is lost and counted; nothing is sent twice and nothing piles up. That
//! the collector cannot be reached is logged once, and once more when it can be again. It is found on
//! a connection of its own for each batch, which is one a second at most unless there is much to tell.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::otlp;
use super::otlp::Resource;
use super::trace::{Queue, Trace};
use crate::server::config::Collector;
use crate::server::metrics::{Metrics, TraceResult};
use crate::types::ClusterId;
use crate::version;

/// Most traces of one batch: some hundreds of kilobytes.
const BATCH_MAX: usize = 512;
/// For so long a batch is gathered.
const GATHER_MAX: Duration = Duration::from_secs(1);
/// A collector that takes longer to answer is not there.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// So long a node that stops waits for what is left to be sent.
const FLUSH_MAX: Duration = Duration::from_secs(2);
/// Where the status line of an answer must have ended.
const STATUS_LINE_BYTES_MAX: usize = 1_024;

/// What takes traces to a collector.
pub(super) struct Exporter {
    node: String,
    resource: Resource,
    collector: Collector,
    queue: Queue,
    metrics: Arc<Metrics>,
    /// Whether the last batch arrived.
    arrives: Option<bool>,
}

/// A running exporter, to be finished when the node stops.
#[derive(Debug)]
pub(crate) struct ExporterTask {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// Why a batch did not arrive.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("cannot connect: {0}")]
    Io(#[from] io::Error),
    #[error("it did not answer within {} s", ANSWER_MAX.as_secs())]
    Silent,
    #[error("it did not answer in HTTP: is this its OTLP port for HTTP (4318 by default)?")]
    NotHttp,
    #[error("it answered with HTTP status {0}")]
    Refused(u16),
}

impl Exporter {
    /// Of the traces of one node.
    pub(super) fn new(
        node: &str,
        cluster: ClusterId,
        collector: Collector,
        queue: Queue,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            node: node.to_owned(),
            resource: Resource {
                version: version::VERSION,
                node: node.to_owned(),
                cluster: cluster.to_string(),
            },
            collector,
            queue,
            metrics,
            arrives: None,
        }
    }

    /// Begins to work. Needs a tokio runtime.
    pub(super) fn spawn(self) -> ExporterTask {
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(self.run(stopped));
        ExporterTask { stop, task }
    }

    /// Sends batches until it is stopped, then what is left.
    async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        let mut batch = Vec::new();
        loop {
            let is_over = tokio::select! {
                _ = stopped.wait_for(|stopped| *stopped) => true,
                () = self.gather(&mut batch) => false,
            };
            if is_over {
                break;
            }
            self.send(&batch).await;
            batch.clear();
        }
        self.queue.0.close();
        loop {
            // What was gathered when the end came is still there.
            let room = BATCH_MAX - batch.len();
            self.queue.0.recv_many(&mut batch, room).await;
            if batch.is_empty() {
                return;
            }
            self.send(&batch).await;
            batch.clear();
        }
    }

    /// Waits for a trace, and a while for others.
    ///
    /// # Cancel safety
    /// What was taken from the queue is in `batch`.
    async fn gather(&mut self, batch: &mut Vec<Trace>) {
        let queue = &mut self.queue.0;
        queue.recv_many(batch, BATCH_MAX).await;
        let more = async {
            while batch.len() < BATCH_MAX {
                let room = BATCH_MAX - batch.len();
                if queue.recv_many(batch, room).await == 0 {
                    // The node is gone: its task will be.
                    std::future::pending::<()>().await;
                }
            }
        };
        // Sent when there are enough, or when it has waited long enough.
        let _ = timeout(GATHER_MAX, more).await;
    }

    async fn send(&mut self, batch: &[Trace]) {
        let body = otlp::encode(&self.resource, batch);
        let sent = timeout(ANSWER_MAX, self.post(&body)).await;
        let sent = sent.unwrap_or(Err(ExportError::Silent));
        let result = match &sent {
            Ok(()) => TraceResult::Exported,
            Err(_) => TraceResult::Failed,
        };
        let count = &self.metrics.traces.results[result];
        count.increment(batch.len() as u64);
        let arrived = self.arrives.replace(sent.is_ok());
        match sent {
            Ok(()) if arrived == Some(true) => {}
            Ok(()) => tracing::info!(
                node = %self.node,
                collector = %self.collector,
                "the trace collector is reachable"
            ),
            Err(error) if arrived == Some(false) => {
                tracing::debug!(
                    node = %self.node,
                    %error,
                    "the trace collector is still unreachable"
                );
            }
            Err(error) => tracing::warn!(
                node = %self.node,
                collector = %self.collector,
                %error,
                "the trace collector is unreachable: traces are dropped until it answers; requests \
                 are not affected"
            ),
        }
    }

    /// One batch over a connection of its own.
    async fn post(&self, body: &[u8]) -> Result<(), ExportError> {
        let Collector { address, path } = &self.collector;
        let mut stream = TcpStream::connect(address).await?;
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: leasehold/{}\r\n\
             Content-Type: application/x-protobuf\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n",
            version::VERSION,
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body).await?;
        match status(&mut stream).await? {
            Some(200..=299) => Ok(()),
            Some(status) => Err(ExportError::Refused(status)),
            None => Err(ExportError::NotHttp),
        }
    }
}

/// The status of an answer; what comes after it tells nothing more.
async fn status(stream: &mut TcpStream) -> io::Result<Option<u16>> {
    let mut line = Vec::new();
    while line.len() < STATUS_LINE_BYTES_MAX && !line.contains(&b'\n') {
        if stream.read_buf(&mut line).await? == 0 {
            break;
        }
    }
    Ok(parse_status(&line))
}

/// Of a status line such as `HTTP/1.1 200 OK`.
fn parse_status(line: &[u8]) -> Option<u16> {
    let line = line.strip_prefix(b"HTTP/1.")?;
    let status = str::from_utf8(line.get(2..5)?).ok()?;
    status.parse().ok()
}

impl ExporterTask {
    /// Has what is left sent, as far as a moment is enough for it.
    pub(crate) async fn finish(mut self) {
        let _ = self.stop.send(true);
        let _ = timeout(FLUSH_MAX, &mut self.task).await;
    }
}

/// A node that is dropped waits for nothing.
impl Drop for ExporterTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}
