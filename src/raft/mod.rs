//! Consensus over opaque bytes: Raft, and a leader lease that makes reads local.
//!
//! [`Consensus`] is one replica as a pure value: it takes time and messages in
//! ([`Consensus::handle`]) and gives effects out ([`Consensus::poll_output`]). There is no clock, no
//! socket, no disk and no randomness inside that was not handed in, so the simulator and the server
//! run the same code, and every schedule that ever broke a lease can be played back to it: the
//! conversations in `testdata/` are named by what they claim.
//!
//! The rules are those of Raft (Ongaro's thesis, with pre-vote, joint configurations and leadership
//! transfer), and those of docs/protocol.md, whose names (P1 to P39, A1 to A24, N1 to N9) stand
//! beside the code that keeps them:
//!
//! - A voter that hears its leader promises to support no other candidate for a while. The
//!   promise is a field of its own: no term, role or message ends it, only time, or the word of the
//!   leader that it was made to.
//! - A leader counts its lease from the moment at which it *created* the round that a quorum
//!   echoed, and stops trusting it before any of the promises can end.
//! - Whatever ends a lease zeroes the shared cell first, and is done or said afterwards.
//! - What is not durable is not sent: votes, acknowledgements, and promises longer than any before
//!   wait inside for [`Input::Persisted`]. So a driver can not send too early.
//!
//! A log may be cut at its beginning once the state machine holds that durably
//! ([`Input::Compact`]). A follower that needs what is gone is sent a whole state instead
//! ([`Output::SendSnapshot`]), by whatever way the shell has; heartbeats go on meanwhile, so it goes
//! on promising. What arrives there takes the place of its log and its state machine in one step
//! ([`Output::Install`]); see `snapshot.rs`.
//!
//! Members change by joint configurations ([`Consensus::change`]; see `membership.rs`), which are in
//! force from their append on, for commitment, elections and the lease alike.
//!
//! Caveats. Nothing here can notice that a machine's two clocks both lie; the tripwire can only tell
//! afterwards (P37).

mod bounded;
mod config;
mod consensus;
mod digest;
mod divergence;
mod election;
mod entry;
mod follower;
mod leader;
mod leader_lease;
mod log;
mod membership;
mod message;
mod output;
mod progress;
mod proposal;
mod published;
mod quorum;
mod read_index;
mod read_lease;
mod reads;
mod reminders;
mod role;
mod snapshot;
mod staleness;
#[cfg(test)]
mod tests;

pub(crate) use bounded::bounded;
pub use config::{PROMISE_MAX, Timing, TimingError, TimingOptions};
pub use consensus::Consensus;
pub use entry::{Entry, Payload, ReadMode};
pub(crate) use leader_lease::LeaderLease;
pub use message::{
    APPEND_WEIGHT_MAX, Append, AppendReply, Ballot, Confirmation, Conflict, Envelope, Fresh, Heard,
    Heartbeat, HeartbeatReply, LogOrigin, Message, PreVote, PreVoteReply, ReadGrant, ReadIndex,
    ReadIndexReply, Reason, Rejoin, RejoinReply, Reminder, RoundId, StateHash, TimeoutNow, Verdict,
    Vote, VoteReply,
};
pub use output::{
    HardState, Input, LogBase, Output, ReadId, ReadRefusal, RestoredState, Status, Ticket,
    UnsavedState,
};
pub use proposal::{COMMAND_BYTES_MAX, Change, JoinRole, MembershipError, ProposalError};
pub use published::{Invalidation, LeaseCell, LeaseCounters, Published, ReadPermit};
pub use quorum::{Configuration, DETAILS_BYTES_MAX, MEMBERS_MAX};
pub use read_lease::{GrantCounters, GrantStanding, RecallReason};
pub use staleness::{Staleness, StalenessBound};
