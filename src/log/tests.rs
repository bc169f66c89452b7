//! Claims about the log as a whole, over a disk that crashes, tears, flips, fills up and lies.

use super::*;

pub(super) fn options() -> LogOptions {
    LogOptions {
        cluster: ClusterId(0x1234_5678_9abc),
        node: NodeId(7),
        incarnation: Incarnation(1),
        segment_bytes: 24 * 1024,
    }
}
