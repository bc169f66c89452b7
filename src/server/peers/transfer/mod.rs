//! Whole states on their way from a leader to a member whose log lacks what was cut.
//!
//! A leader that has to send its state ([`StateSender`]) reads it from a snapshot of the store, which
//! blocks no writer, and sends it as checksummed chunks on a stream of its own that comes after
//! everything else on its connection, at a bounded rate that all receivers share. Neither side ever
//! has more than a few chunks in memory. The member at the other end ([`StateReceiver`]) builds a database
//! beside the one in use, and only when that is whole, compared with its hash and durable, it
//! informs consensus, which decides whether it replaces the other.
//!
//! ```text
//! leader                         member
//!   Offer { export, base }  ──►
//!                           ◄──  Want { from }   or Busy
//!   chunk, chunk, …         ──►
//!                           ◄──  Done            or Failed
//! ```
//!
//! When the connection breaks, both sides keep what they have for a minute: the next offer names the
//! same export, and it goes on with the chunk that is missing.

mod incoming;
mod outgoing;
mod rate;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::transport::{FrameReceiver, FrameSender, StreamError};
use crate::wire::peer::Transfer;
use crate::wire::{FrameLimits, encode};
use bytes::BytesMut;

pub(crate) use incoming::StateReceiver;
pub(crate) use outgoing::StateSender;
pub(crate) use rate::SendRate;

/// For so long both sides keep what a broken transfer needs to go on.
const KEPT_FOR: Duration = Duration::from_secs(60);
/// After so long without a sign of the other side a transfer is given up.
const STALLED_AFTER: Duration = Duration::from_secs(30);
/// The receiver makes all of it durable before it says that it is done.
const FINISHED_WITHIN: Duration = Duration::from_secs(600);
/// Chunks queued between the task at the disk and the one at the connection.
const CHUNKS_AHEAD: usize = 4;

/// Why a transfer goes no further.
#[derive(Debug, thiserror::Error)]
enum TransferFailure {
    #[error("{0}")]
    Stream(#[from] StreamError),
    #[error("the other side stopped responding")]
    Silent,
    #[error("the other side sent an unexpected message")]
    Unexpected,
    #[error("not connected")]
    Unconnected,
}

async fn say(
    sender: &mut FrameSender,
    limits: &FrameLimits,
    word: Transfer,
) -> Result<(), TransferFailure> {
    let mut bytes = BytesMut::new();
    encode(&word, limits, &mut bytes).expect("a few numbers fit every frame");
    sender.write(bytes.freeze()).await?;
    Ok(())
}

async fn hear(
    receiver: &mut FrameReceiver,
    patience: Duration,
) -> Result<Transfer, TransferFailure> {
    let mut frames = Vec::new();
    let read = tokio::time::timeout(patience, receiver.read_batch(&mut frames));
    read.await.map_err(|_| TransferFailure::Silent)??;
    match frames.as_slice() {
        [only] => Ok(receiver.decode(only)?),
        _ => Err(TransferFailure::Unexpected),
    }
}
