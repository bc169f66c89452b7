//! Locks, elections and similar recipes, built on leases, transactions and watches.
//!
//! A [`Session`] is a lease that is kept alive. Everything that a program holds is bound to a
//! session, and the cluster releases it when the session is lost: closed, or not renewed in time.
//! Any number of recipes may share one.
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
//! # Guarantees of a lock
//!
//! At most one entry of a lock is the first in the order of the cluster's log, always. But a
//! program only learns that it *was* the first: it may be suspended right after, for longer than
//! its lease lasts, and resume while another client holds the lock. No check inside the program can
//! rule that out, so there are two safeguards, and programs should use both:
//!
//! - A [`Guard`] knows how long its session is valid, by the clocks of this machine and with a margin
//!   before the cluster ends it: [`Guard::is_held`], [`Guard::lost`], [`Session::nears_end`].
//! - A holder has a *fencing token*, a number larger than those of all earlier holders. The store
//!   rejects a write that carries it ([`PutOptions::with_fence`](super::PutOptions::with_fence)), at
//!   the moment it is applied, once the lock has another holder. Any other resource that the lock
//!   protects must compare tokens itself: it remembers the largest token it has seen, and refuses
//!   smaller ones.
//!
//! # Names
//!
//! A recipe uses the keys below its name and a slash, `jobs/nightly/…`; each name belongs to one
//! recipe of one kind. Names may contain slashes: a lock `jobs` is independent of a lock
//! `jobs/nightly`.
//!
//! # Dropped futures
//!
//! A future that waits may be dropped at any time. A background task then removes its entry from
//! the queue; if that fails, the entry is deleted with the session at the latest. The same holds
//! for guards: dropping one releases it.

mod barrier;
mod cached_kv;
mod double_barrier;
mod election;
mod entry;
mod lock;
mod priority_queue;
mod queue;
mod registry;
mod rw_lock;
mod semaphore;
mod session;
mod stm;

pub use barrier::Barrier;
pub use cached_kv::{CacheAnswer, CacheOptions, CacheView, CachedKv};
pub use double_barrier::{DoubleBarrier, Inside};
pub use election::{Election, Leader, Leadership, Observer};
pub use entry::Guard;
pub use lock::Lock;
pub use priority_queue::PriorityQueue;
pub use queue::Queue;
pub use registry::{Instance, Registration, Registry, RegistryEvent, RegistryWatcher};
pub use rw_lock::RwLock;
pub use semaphore::Semaphore;
pub use session::Session;
pub(super) use session::passes;
pub use stm::{Commit, Isolation, Stm, Transaction};
