//! Locks, elections and their kin, made of leases, transactions and watches.
//!
//! A [`Session`] is a lease and what keeps it alive; whatever a program holds hangs on one, and is let
//! go by the cluster when the session is lost: closed, or not renewed in time. Any number of recipes
//! may share one.
//!
//! ```no_run
//! use leasehold::client::PutOptions;
//! use leasehold::client::recipes::Lock;
//! use std::time::Duration;
//!
//! # async fn example(client: leasehold::client::Client) -> Result<(), leasehold::api::Error> {
//! let session = client.lease().session(Duration::from_secs(10), None).await?;
//! let held = Lock::new(&session, "jobs/nightly").acquire().await?;
//!
//! // What only the holder may write says so, and the store sees to it:
//! let mine = PutOptions::new().with_fence(held.key().clone(), held.fencing_token());
//! client.put("nightly-report", "done", Some(mine)).await?;
//! held.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What a lock is worth
//!
//! At most one entry of a lock is the first in the order of the cluster's log, always. But a program
//! only learns that it *was* the first: it may be suspended right after, for longer than its lease
//! lasts, and wake while somebody else holds the lock. Nothing that the program asks itself helps, so
//! there are two safeguards, and both are for use:
//!
//! - A [`Guard`] knows until when its session may be counted on, by clocks of this machine and in
//!   good time before the cluster ends it: [`Guard::is_held`], [`Guard::lost`],
//!   [`Session::nears_end`].
//! - A holder has a *fencing token*, a number larger than that of everybody who held the lock before.
//!   A write that carries it ([`PutOptions::with_fence`](super::PutOptions::with_fence)) is refused by
//!   the store, when it is applied, once the lock has moved on. Whatever else the lock protects must compare tokens itself: it remembers
//!   the largest that it has seen, and refuses smaller ones.
//!
//! # Names
//!
//! A recipe lives in keys below its name and a slash, `jobs/nightly/…`; each name belongs to one
//! recipe of one kind. Names may have slashes of their own: a lock `jobs` takes no notice of a lock
//! `jobs/nightly`.
//!
//! # Dropped futures
//!
//! A future that waits may be dropped at any time. Its place in the queue is given back by a task of
//! its own then, or, if that cannot be done, goes with the session at the latest. The same holds for
//! guards: dropping one lets go.

mod barrier;
mod double_barrier;
mod election;
mod entry;
mod lock;
mod queue;
mod registry;
mod rw_lock;
mod semaphore;
mod session;

pub use barrier::Barrier;
pub use double_barrier::{DoubleBarrier, Inside};
pub use election::{Election, Leader, Leadership, Observer};
pub use entry::Guard;
pub use lock::Lock;
pub use queue::Queue;
pub use registry::{Instance, Registration, Registry, RegistryEvent, RegistryWatcher};
pub use rw_lock::RwLock;
pub use semaphore::Semaphore;
pub use session::Session;
