//! Which threads give way to the others.
//!
//! On a machine whose cores are all busy, what somebody waits for comes first: sessions, driver, log, state and
//! peers. What only has to be done in time, such as giving the database what was applied, merging its tables and
//! removing history, has less of a core while others want it, and all of it otherwise.

/// By how much the threads give way, in steps of niceness. They must not starve either, or memtables accumulate:
/// with this value they get a quarter of a fully contended core.
pub(crate) const BACKGROUND_NICENESS: i32 = 5;

/// Lowers the priority of this thread, and of those that it starts from then on, below the others of the
/// process.
pub(crate) fn give_way() {
    // On other systems niceness applies to the whole process.
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::nice(BACKGROUND_NICENESS) {
        tracing::warn!(%error, "cannot lower the priority of a background thread");
    }
}
