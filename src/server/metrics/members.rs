//! Who is a member, in numbers.

use metrics::Gauge;

use super::Register;
use crate::api::{Member, Membership};

/// The members of the configuration in force, as this node has it.
pub struct MemberMetrics {
    /// Those that vote.
    pub voters: Gauge,
    /// Those that receive everything and do not vote, be it that they become voters by themselves.
    pub learners: Gauge,
}

impl MemberMetrics {
    pub(super) fn new(register: Register<'_>) -> Self {
        const NAME: &str = "leasehold_members";
        const HELP: &str = "Members of the latest configuration that this node knows.";
        let gauge = |role| register.labelled(&[("role", role)]).gauge(NAME, HELP);
        Self {
            voters: gauge("voter"),
            learners: gauge("learner"),
        }
    }

    /// The members are these.
    pub(crate) fn set(&self, members: &[Member]) {
        let votes = |member: &&Member| {
            let membership: Membership = member.membership;
            membership.votes()
        };
        let voters = members.iter().filter(votes).count();
        self.voters.set(voters as f64);
        self.learners.set((members.len() - voters) as f64);
    }
}
