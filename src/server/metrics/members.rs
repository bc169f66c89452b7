//! The members of the cluster, by their role.

use super::table::{By, Gauge, labels, metrics};
use crate::api::{Member, Membership};

metrics! {
    /// The members of the cluster, by their role.
    pub struct MemberMetrics {
        count: By<MemberRole, Gauge> = "leasehold_members",
            "Members of the latest configuration that this node knows.";
    }
}

labels! {
    enum MemberRole: "role" {
        Voter = "voter",
        Learner = "learner",
    }
}

impl MemberMetrics {
    /// The members are these.
    pub(crate) fn set(&self, members: &[Member]) {
        let votes = |member: &&Member| {
            let membership: Membership = member.membership;
            membership.votes()
        };
        let voters = members.iter().filter(votes).count();
        let learners = members.len() - voters;
        self.count[MemberRole::Voter].set(voters as f64);
        self.count[MemberRole::Learner].set(learners as f64);
    }
}
