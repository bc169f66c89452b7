//! L7: a read is served as it asked to be. L8: a state is no older than it is said to be, in real
//! time, which only the world knows. C9: nobody who says what he has seen is shown less.

use std::time::Duration;

use leasehold::api::{Consistency, ReadInfo, ReadPath};

use super::{Violation, id, violation};
use crate::machine::Asked;

/// L7 and C9.
pub(crate) fn as_asked(
    node: usize,
    read: &ReadInfo,
    revision: i64,
    asked: Asked,
) -> Result<(), Violation> {
    let leased = !read.lease_remaining.is_zero();
    let served = match (asked.consistency, read.path) {
        (Consistency::Serializable, path) => path == ReadPath::Serializable,
        (Consistency::MaxStaleness(most), ReadPath::Serializable) => {
            read.staleness.is_some_and(|staleness| staleness <= most)
        }
        (Consistency::MaxStaleness(_), _) => true,
        (_, ReadPath::Serializable) => false,
        (Consistency::LeaseOnly, _) => leased,
        (Consistency::LinearizableQuorum, path) => path != ReadPath::Lease && !leased,
        (Consistency::Linearizable, _) => true,
    };
    if !served || read.read_index > read.applied_index {
        let what = format!("{} serves {:?} by {read:?}", id(node), asked.consistency);
        return violation("L7 reads are served as they ask", what);
    }
    if revision < asked.min_revision {
        let what = format!(
            "{} serves at {revision} who had seen {}",
            id(node),
            asked.min_revision
        );
        return violation("C9 nobody is shown less than he has seen", what);
    }
    Ok(())
}

/// L8.
pub(crate) fn no_older(
    node: usize,
    revision: i64,
    staleness: Duration,
    known: i64,
) -> Result<(), Violation> {
    if revision < known {
        let what = format!(
            "{} says that {revision} is at most {staleness:?} old; {known} was known before that",
            id(node)
        );
        return violation("L8 no state is older than it is said to be", what);
    }
    Ok(())
}
