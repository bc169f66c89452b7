//! Room for data: the leader looks at what its shell has measured, and raises or clears the alarm.
//!
//! What the alarm does is decided at apply, alike on every replica ([`crate::kv::SpaceAlarm`]). Here
//! it is decided when to raise and when to clear it, and only the leader proposes. Between the two
//! lies a gap, or a state at the edge would have the alarm come and go with every write.
//!
//! A leader that cannot apply what is committed, be it because its disk is full or because it hangs, hands
//! leadership over: followers apply no more than it has (A11).
//!
//! A leader whose alarm is raised also turns away what would be refused at apply, before it costs a
//! place in a log on that same disk. Not what carries a session: a retry must learn what became of
//! its first attempt, and only apply knows. While nothing can be applied, every write is turned away, and
//! one with a session is asked to come back.

use std::time::Duration;

use super::{Node, SpaceReport};
use crate::api::{Call, ErrorKind};
use crate::kv::Command;
use crate::time::Instant;
use crate::types::RequestId;

/// When a write is to be tried again that the log should not take while nothing can be applied.
const STUCK_RETRY_MS: u32 = 100;
/// For so long what is committed may wait with nothing being applied.
const APPLY_PATIENCE: Duration = Duration::from_secs(5);
/// A leader that cannot apply hands leadership over no more often: the others may be no better off.
const HAND_OVER_INTERVAL: Duration = Duration::from_secs(10);

impl Node {
    /// The shell has measured.
    pub(super) fn judge_space(&mut self, now: Instant, report: SpaceReport) {
        let verdict = report.verdict();
        // One that is to be raised holds here at once: on a full disk its entry may have to wait.
        self.space.alarm = report.alarm.or_else(|| verdict.flatten());
        self.space.is_stuck = report.free < report.floor;
        if self.consensus.leads_in().is_none() {
            self.space.unapplied = None;
            return;
        }
        if let Some(alarm) = verdict
            && self.consensus.status().ready
        {
            // A refusal is no loss: the next report asks again.
            let _ = self
                .consensus
                .propose(now, Command::SetSpaceAlarm(alarm).encode());
        }
        let stands_still = self.apply_stands_still(now);
        if self.space.is_stuck || stands_still {
            self.hand_over_unapplied(now);
        }
    }

    /// Whether something has been committed for long, and nothing was applied meanwhile.
    fn apply_stands_still(&mut self, now: Instant) -> bool {
        let applied = self.applied;
        let waits = self.consensus.status().commit > applied;
        match self.space.unapplied {
            Some((before, since)) if waits && before == applied => {
                now.certainly_after(since + APPLY_PATIENCE)
            }
            _ => {
                self.space.unapplied = waits.then_some((applied, now));
                false
            }
        }
    }

    /// What is committed waits on this node. Another one may be able to apply it.
    fn hand_over_unapplied(&mut self, now: Instant) {
        let before = self.space.handed_over;
        if before.is_some_and(|before| !now.certainly_after(before + HAND_OVER_INTERVAL)) {
            return;
        }
        // A refusal is no loss: this node leads on, as far as it can.
        let _ = self.consensus.transfer_unapplied(now);
        self.space.handed_over = Some(now);
    }

    /// Whether `call`, which would be `command` in the log, is turned away because there is no room.
    pub(super) fn refuse_without_room(
        &mut self,
        id: RequestId,
        call: &Call,
        command: &Command,
    ) -> bool {
        let Some(alarm) = self.space.alarm else {
            return false;
        };
        let is_stuck = self.space.is_stuck;
        if self.consensus.leads_in().is_none() || !(is_stuck || takes_room(command)) {
            return false;
        }
        if call.session.is_some() {
            if is_stuck {
                // Only this attempt is judged, as where a node is overloaded.
                let kind = ErrorKind::SlowDown {
                    retry_after_ms: STUCK_RETRY_MS,
                };
                self.refuse(id, kind, "the disk of the leader is full: free space there");
            }
            return is_stuck;
        }
        self.refuse_with(id, alarm.refusal());
        true
    }
}

/// Whether `command` is a write that apply would refuse while the alarm is raised, for any user.
fn takes_room(command: &Command) -> bool {
    match command {
        Command::Write { operation, .. } => operation.takes_room(),
        Command::OpenSession { .. }
        | Command::Bootstrap(_)
        | Command::BootstrapAs { .. }
        | Command::ForgetSessions { .. }
        | Command::ExpireLeases { .. }
        | Command::MarkLeases { .. }
        | Command::ContinueLeaseEnds { .. }
        | Command::CheckHash
        | Command::RaiseVersion { .. }
        | Command::SetEtcdUrls(_)
        | Command::SetSpaceAlarm(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{DeleteRangeRequest, PutRequest};
    use crate::kv::access::{Author, Identity};
    use crate::kv::{Operation, SpaceAlarm};

    const MIB: u64 = 1 << 20;

    /// With 100 MiB of quota, 1 GiB of disk left and 64 MiB of it kept.
    fn report(used: u64, alarm: Option<SpaceAlarm>) -> SpaceReport {
        SpaceReport {
            used,
            quota: 100 * MIB,
            free: 1 << 30,
            reserve: 64 * MIB,
            floor: 16 * MIB,
            alarm,
        }
    }

    #[test]
    fn the_alarm_is_raised_at_the_quota_and_cleared_a_tenth_below_it() {
        assert_eq!(report(100 * MIB - 1, None).verdict(), None);
        let raised = SpaceAlarm {
            used: 100 * MIB,
            quota: 100 * MIB,
        };
        assert_eq!(report(100 * MIB, None).verdict(), Some(Some(raised)));
        for used in [200 * MIB, 100 * MIB, 90 * MIB + 1] {
            assert_eq!(report(used, Some(raised)).verdict(), None, "{used}");
        }
        assert_eq!(report(90 * MIB, Some(raised)).verdict(), Some(None));
        assert_eq!(report(90 * MIB, None).verdict(), None);
    }

    #[test]
    fn a_disk_without_room_raises_it_too_and_a_quarter_more_than_that_clears_it() {
        let with = |free: u64, alarm| SpaceReport {
            free,
            ..report(10 * MIB, alarm)
        };
        assert_eq!(with(64 * MIB, None).verdict(), None);
        let raised = with(64 * MIB - 1, None).verdict().unwrap();
        let limit = SpaceAlarm {
            used: 10 * MIB,
            quota: 10 * MIB - 1,
        };
        assert_eq!(raised, Some(limit));
        assert_eq!(with(80 * MIB - 1, raised).verdict(), None);
        assert_eq!(with(80 * MIB, raised).verdict(), Some(None));
        let nothing = SpaceReport {
            free: 0,
            reserve: u64::MAX,
            ..report(10, None)
        };
        assert_eq!(
            nothing.verdict(),
            Some(Some(SpaceAlarm { used: 10, quota: 0 }))
        );
    }

    #[test]
    fn a_write_takes_room_or_not_whoever_wants_it() {
        let by_anybody = |operation: Operation| {
            let anna = Identity {
                name: "anna".to_owned(),
                generation: None,
            };
            [None, Some(Author::Client(anna)), Some(Author::Node)].map(|author| {
                let (session, operation) = (None, operation.clone());
                Command::Write {
                    author,
                    session,
                    operation,
                }
            })
        };
        for growing in by_anybody(Operation::Put(PutRequest::default())) {
            assert!(takes_room(&growing), "{growing:?}");
        }
        for freeing in by_anybody(Operation::DeleteRange(DeleteRangeRequest::default())) {
            assert!(!takes_room(&freeing), "{freeing:?}");
        }
        assert!(!takes_room(&Command::OpenSession {
            author: None,
            sessions_max: 1
        }));
    }
}
