//! Snapshots in etcd's own format: taken as our own are, written to a file that has no name, and sent in
//! pieces with their SHA-256, so that etcd's tools check and restore them.

mod file;
mod scratch;

use std::fs::File;
use std::io;
use std::io::{BufWriter, Read, Seek};
use std::sync::Arc;

use bytes::Bytes;
use hyper::Response;
use ring::digest;
use tokio::sync::{mpsc, oneshot};

use self::file::FileError;
use self::scratch::{Scratch, StopReason};
use super::body::RequestBody;
use super::caller::Caller;
use super::grpc::{Reply, StreamFrame, message_frame, streaming_large};
use super::large::Patience;
use super::pages::unexpected;
use super::stream::{Requests, send_answers};
use crate::api::{Request, ResponseBody, SnapshotCall};
use crate::etcd::errors::{Method, STOPPED, TOO_MANY_REQUESTS};
use crate::etcd::proto::{SnapshotRequest, SnapshotResponse};
use crate::etcd::status::{Code, Status};
use crate::server::disk::store::StoreError;
use crate::server::session::exports::HeldExport;
use crate::server::threads;

pub(crate) use self::scratch::SnapshotRoom;

/// Of a message, as in etcd.
const BLOB_BYTES: usize = 32 << 10;
/// Of the file that is read at a time.
const PIECE_BYTES: usize = 32 * BLOB_BYTES;
/// Messages that may wait until the client reads.
const WAITING_MAX: usize = 16;
/// What a call holds at most while its client reads: a piece, and the messages that wait.
const HELD_BYTES: usize = PIECE_BYTES + (WAITING_MAX + 1) * BLOB_BYTES;
/// What is written at a time.
const BUFFER_BYTES: usize = 256 << 10;
/// The version of etcd since which the layout of the file is as it is here.
const LAYOUT_VERSION: &str = "3.5.0";

/// Serves Snapshot. The headers go out at once, the first message when the file is there.
pub(super) fn serve(caller: Caller, body: RequestBody) -> Response<Reply> {
    send_answers(
        caller,
        WAITING_MAX,
        |answers| streaming_large(answers, Patience::Minute),
        |caller, answers| async move { Some(send(&caller, body, &answers).await) },
    )
}

async fn send(
    caller: &Caller,
    body: RequestBody,
    answers: &mpsc::Sender<StreamFrame>,
) -> Result<(), Status> {
    let SnapshotRequest {} = Requests::new(caller.clone(), body).only().await?;
    let memory = caller.client().reserve(HELD_BYTES);
    let memory: Arc<dyn Send + Sync> = Arc::new(memory.ok_or(TOO_MANY_REQUESTS)?);
    let send_blob = async |blob: Bytes, remaining_bytes: u64| {
        let message = SnapshotResponse {
            header: None,
            remaining_bytes,
            blob,
            version: LAYOUT_VERSION.to_owned(),
        };
        let frame = message_frame(&message).held_with(Arc::clone(&memory));
        // A client that is gone, or has not read for a minute, is told nothing: the call is over.
        let _ = answers.send(frame).await;
    };
    let begin = Request::Snapshot(SnapshotCall::Begin);
    let begun = caller.ask(begin, caller.consistency(false), Method::Node);
    let ResponseBody::Snapshot(begun) = begun.await?.body else {
        return Err(unexpected());
    };
    let exports = &caller.sessions.serving.exports;
    let held = exports.hold(begun.id).ok_or_else(unexpected)?;
    tracing::info!("snapshot in etcd's format started");
    let (mut file, length) = convert(caller, held, answers.clone()).await?;
    let mut sent = 0;
    let mut hash = digest::Context::new(&digest::SHA256);
    while sent < length {
        let piece;
        (file, piece) = read_piece(file).await?;
        for blob in piece.chunks(BLOB_BYTES) {
            hash.update(blob);
            sent += blob.len() as u64;
            let blob = Bytes::copy_from_slice(blob);
            send_blob(blob, length.saturating_sub(sent)).await;
        }
        if piece.is_empty() {
            return Err(unwritten(&io::ErrorKind::UnexpectedEof.into()));
        }
    }
    let hash = Bytes::copy_from_slice(hash.finish().as_ref());
    send_blob(hash, 0).await;
    Ok(())
}

/// Writes the snapshot to a file, from its first byte on to be read, on a thread that gives way to others.
/// Ends it when the client is gone.
async fn convert(
    caller: &Caller,
    held: HeldExport,
    answers: mpsc::Sender<StreamFrame>,
) -> Result<(File, u64), Status> {
    let sessions = Arc::clone(&caller.sessions);
    let (room, id) = (caller.options.snapshot_room.clone(), held.id());
    let (done, converted) = oneshot::channel();
    let convert = move || {
        threads::give_way();
        let tables = sessions.serving.store.storage_bytes().unwrap_or_default();
        let is_wanted = || !answers.is_closed() && !sessions.node.is_stopping();
        let written = Scratch::create(room.folder(), id, room.left_min(tables), is_wanted)
            .map_err(FileError::Io)
            .and_then(|scratch| {
                let buffered = BufWriter::with_capacity(BUFFER_BYTES, scratch);
                file::write(held.snapshot(), buffered)
            });
        let result = written.and_then(|(written, length)| {
            let scratch = written
                .into_inner()
                .map_err(io::IntoInnerError::into_error)?;
            let mut file = scratch.into_file();
            file.rewind()?;
            Ok((file, length))
        });
        let result = result.map_err(|error| match error {
            FileError::State(error) => fatal(&sessions.on_fatal, error),
            FileError::Io(error) => unwritten(&error),
        });
        drop(held);
        // Fails if the client is gone.
        let _ = done.send(result);
    };
    threads::spawn("etcd-snapshot", (), convert).map_err(|error| unwritten(&error))?;
    converted.await.unwrap_or(Err(STOPPED))
}

fn fatal(on_fatal: &(impl Fn(StoreError) + ?Sized), error: StoreError) -> Status {
    on_fatal(error);
    STOPPED
}

async fn read_piece(mut file: File) -> Result<(File, Vec<u8>), Status> {
    let read = tokio::task::spawn_blocking(move || {
        let mut piece = Vec::with_capacity(PIECE_BYTES);
        let read = (&mut file).take(PIECE_BYTES as u64).read_to_end(&mut piece);
        read.map(|_| (file, piece))
    });
    match read.await {
        Ok(read) => read.map_err(|error| unwritten(&error)),
        Err(_) => Err(STOPPED),
    }
}

/// What the client is told when the file cannot be written or read.
fn unwritten(error: &io::Error) -> Status {
    let stopped = error.get_ref().and_then(|inner| inner.downcast_ref());
    match stopped {
        Some(StopReason::Unwanted) => STOPPED,
        Some(StopReason::NoSpace) => Status::new(
            Code::ResourceExhausted,
            "etcdserver: the disk of this node has no space for the file of a snapshot: take it from \
             another node, or take one in leasehold's own format, which needs none",
        ),
        None => Status::with(
            Code::Unknown,
            format!("etcdserver: the file of the snapshot cannot be written or read: {error}"),
        ),
    }
}
