//! What the threads of a node have in common: their queues, and what ends all of them.

pub(crate) mod fatal;
pub(crate) mod priority;
pub(crate) mod queue;
mod spawn;

pub(crate) use self::priority::give_way;
pub(crate) use self::spawn::spawn;

/// The driver's thread, which never waits for a disk: while it stood still, no heartbeat would leave.
pub(crate) const DRIVER: &str = "driver";

/// Whether this thread may wait for a disk.
pub(crate) fn may_wait() -> bool {
    let thread = std::thread::current();
    let is_driver = |name: &str| {
        name.strip_suffix(DRIVER)
            .is_some_and(|of| of.ends_with('-'))
    };
    !thread.name().is_some_and(is_driver)
}
