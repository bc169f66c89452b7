//! Commands of etcdctl whose work is done elsewhere here: each says where.

use crate::cli::arguments::snapshot::SnapshotCommand;
use crate::cli::arguments::{AlarmCommand, Command, EndpointCommand};

/// Of the hashes of states.
pub(super) const HASHES: &str = "the members compare the hashes of their states by themselves, and `leasehold endpoint status` \
     and `leasehold doctor` tell of a difference. `leasehold offline hashkv` shows the hash of a \
     stopped node";

/// What stands in place of this command; `None` for one that does its work itself.
pub(super) fn place(command: &Command) -> Option<&'static str> {
    Some(match command {
        Command::Defrag(_) => {
            "there is nothing to defragment: the state gives back space by itself. To remove old \
             revisions from disk at once, run `leasehold compaction --physical`"
        }
        Command::Check(_) => {
            "use `leasehold bench` to measure a cluster, `leasehold doctor` to look for what is \
             wrong with it, and `leasehold verify lease` for what this hardware can do"
        }
        Command::Snapshot {
            command: SnapshotCommand::Restore(_),
        } => {
            "a backup is restored on the machine of each member of the new cluster, before it is \
             started: `leasehold offline snapshot restore`, whose --help shows the steps"
        }
        Command::Alarm {
            command: AlarmCommand::Disarm(_),
        } => {
            "an alarm clears itself once its cause is gone. NOSPACE: delete keys and run `leasehold \
             compaction --physical`, or raise quota.bytes. `leasehold alarm list` shows what \
             is raised"
        }
        Command::Endpoint {
            command: EndpointCommand::Hashkv(_),
        } => HASHES,
        _ => return None,
    })
}
