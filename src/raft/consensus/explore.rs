//! What an exhaustive search needs of a replica: copies of it, a name for its state, and the hand
//! of fate.
//!
//! A search (`tests/models`) steps the same replica in every way there is. So it copies the
//! replica before each step ([`Consensus::fork`]), and asks of each result whether it has seen it
//! before ([`Consensus::digest`]): whatever decides how a replica behaves from here on is in the
//! digest, and what does not (counters, the age of what is over, the numbers of tickets) is not,
//! or equal states would be told apart and the search would never end. Each `digest` in this
//! module takes its struct to pieces by name, so a new field does not compile until it is decided
//! on which side it falls.
//!
//! Chance is not searched through draw by draw: [`Consensus::time_out`] lets the election timer
//! run out now, whatever was drawn, and [`Consensus::still`] takes back what was drawn.
//!
//! The server calls none of this, and the documentation leaves it out. It is in the library because
//! it must see every private field (docs/decisions/test-support.md).

use std::sync::Arc;
use std::time::Duration;

use crate::raft::digest::Digest;
use crate::raft::role::RoleState;
use crate::raft::staleness::StalenessTracker;
use crate::raft::{Consensus, Input};
use crate::time::Instant;

#[doc(hidden)]
impl Consensus {
    /// A copy that shares nothing with the original but its counters: two possible futures of one
    /// replica. Who lets both take part in one cluster has two replicas of one identity (P35).
    // Long: every field is named, so that a new one does not compile until it is decided.
    pub fn fork(&self) -> Self {
        let Self {
            id,
            timing,
            rng,
            now,
            hard,
            hard_unsaved,
            hard_ticket,
            issued,
            persisted,
            writing,
            log,
            commit,
            handed_out,
            installing,
            applied,
            applied_at_start,
            promise,
            role,
            election_due,
            next_round,
            next_name,
            quarantine,
            unproven,
            origin,
            diverged,
            bootstrap_awaits,
            bootstrap_command,
            retired,
            tripped,
            #[cfg(leasehold_bugs)]
            sticky_transfer,
            #[cfg(leasehold_bugs)]
            candidacy,
            reminders,
            replaced_in,
            grant,
            read_index,
            heard_leader_at,
            staleness,
            holder,
            published,
            outputs,
            unflushed,
        } = self;
        let published = published.fork();
        let mut role = role.clone();
        if let RoleState::Leader(leader) = &mut role {
            let original = leader.lease.cell().clone();
            let cell = leader.lease.detach();
            let lease = published.lease();
            if lease.is_some_and(|lease| Arc::ptr_eq(&lease, &original)) {
                published.begin_lease(cell.clone());
            }
        }
        let mut holder = holder.clone();
        if let Some(cell) = holder.detach() {
            published.begin_read_lease(cell.clone());
        }
        Self {
            id: *id,
            timing: *timing,
            rng: rng.clone(),
            now: *now,
            hard: *hard,
            hard_unsaved: *hard_unsaved,
            hard_ticket: *hard_ticket,
            issued: *issued,
            persisted: *persisted,
            writing: writing.clone(),
            log: log.clone(),
            commit: *commit,
            handed_out: *handed_out,
            installing: *installing,
            applied: *applied,
            applied_at_start: *applied_at_start,
            promise: promise.clone(),
            role,
            election_due: *election_due,
            next_round: *next_round,
            next_name: *next_name,
            quarantine: quarantine.clone(),
            unproven: *unproven,
            origin: *origin,
            diverged: *diverged,
            bootstrap_awaits: bootstrap_awaits.clone(),
            bootstrap_command: bootstrap_command.clone(),
            retired: *retired,
            tripped: *tripped,
            #[cfg(leasehold_bugs)]
            sticky_transfer: *sticky_transfer,
            #[cfg(leasehold_bugs)]
            candidacy: candidacy.clone(),
            reminders: reminders.clone(),
            replaced_in: *replaced_in,
            grant: grant.clone(),
            read_index: read_index.clone(),
            heard_leader_at: *heard_leader_at,
            staleness: staleness.clone(),
            holder,
            published: Arc::new(published),
            outputs: outputs.clone(),
            unflushed: *unflushed,
        }
    }

    /// A number for everything that decides how this replica behaves from here on. Of two replicas
    /// with the same digest, each answers whatever comes as the other does, but for the names of
    /// tickets and the readings of clocks.
    ///
    /// `now` is what its clocks read; instants are taken relative to it. `steps_back` is how far
    /// they may yet run backwards: it decides which of the past still matters.
    // Long: every field is named, so that a new one does not compile until it is decided.
    pub fn digest(&self, now: Instant, steps_back: Duration) -> u64 {
        let Self {
            id,
            timing,
            rng,
            now: newest_reading,
            hard,
            hard_unsaved,
            hard_ticket,
            issued,
            persisted,
            writing,
            log,
            commit,
            handed_out,
            installing,
            applied,
            applied_at_start,
            promise,
            role,
            election_due,
            next_round,
            next_name,
            quarantine,
            unproven,
            origin,
            diverged,
            // It decides nothing.
            bootstrap_awaits: _,
            bootstrap_command,
            retired,
            tripped,
            #[cfg(leasehold_bugs)]
            sticky_transfer,
            #[cfg(leasehold_bugs)]
            candidacy,
            // They decide over what is said of copies that were set back, and no search has any.
            reminders: _,
            replaced_in: _,
            grant,
            read_index,
            heard_leader_at,
            staleness,
            holder,
            // Copies of what is here, for others to see.
            published: _,
            outputs,
            unflushed,
        } = self;
        let mut digest = Digest::new(now, steps_back, timing.election_timeout_max);
        digest.value(&(id, timing, rng.get_seed(), hard, hard_unsaved));
        // Tickets only rise, so it is enough how many came later.
        digest.value(&(hard_ticket > persisted).then_some(issued.0 - hard_ticket.0));
        digest.value(&writing.len());
        for (ticket, issued_at) in writing {
            digest.value(&(issued.0 - ticket.0));
            digest.since(*issued_at);
        }
        log.digest(&mut digest, *issued);
        digest.value(bootstrap_command);
        digest.value(&(commit, handed_out, installing, applied, applied_at_start));
        promise.digest(&mut digest);
        role.digest(&mut digest);
        digest.deadline(*newest_reading);
        digest.deadline(*election_due);
        digest.value(&(next_round, next_name));
        digest.value(&(quarantine, unproven, origin, retired, tripped));
        digest.value(diverged);
        #[cfg(leasehold_bugs)]
        {
            digest.value(sticky_transfer);
            digest.value(&candidacy.is_some());
            if let Some(campaign) = candidacy {
                campaign.digest(&mut digest);
            }
        }
        read_index.digest(&mut digest);
        digest.since(*heard_leader_at);
        staleness.digest(&mut digest);
        holder.digest(&mut digest);
        digest.value(&(grant, outputs, unflushed));
        digest.finish()
    }

    /// The election timer runs out now, whatever was drawn for it.
    pub fn time_out(&mut self, now: Instant) {
        self.election_due = now;
        self.handle(now, Input::Tick);
    }

    /// Takes back what was drawn: the election timer never runs out by itself, and whatever is
    /// drawn next is what `seed` says.
    pub fn still(&mut self, seed: u64) {
        self.election_due = Instant::NEVER;
        self.rng.seed(seed);
    }

    /// Forgets what only reads at followers need: the age of the state, and the names and instants
    /// that prove it. In a search without such reads it would make equal states differ.
    pub fn forget_ages(&mut self) {
        self.staleness = StalenessTracker::default();
        self.next_name = 0;
        self.heard_leader_at = self.now;
    }

    /// Forgets how old the state is known to be, and keeps the names that prove it: a read lease is granted
    /// for one.
    pub fn forget_proofs(&mut self) {
        self.staleness.forget_proofs();
        self.heard_leader_at = self.now;
    }
}
