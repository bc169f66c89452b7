//! Deliberate bugs, to prove the provers: compiled under `--cfg leasehold_bugs` only.
//!
//! Each [`Bug`] takes one rule away (of the lease protocol, of Raft, or of what stands around
//! them), at the one place that keeps it: `if planted!(AckTime)`. In a normal build that macro is
//! the word `false`, and this module is not there. The tests insist that every bug is noticed:
//! `tests/sim/bugs/mod.rs` by seeds and by schedules told by name, `planted/tests.rs` by the
//! conversations and tests of the library that a rule has to itself.
//!
//! Bugs are switched per thread, so that runs side by side can each have their own. A whole test
//! binary gets them from the environment, to see by hand what notices:
//!
//! ```text
//! LEASEHOLD_BUGS=OldTermAck,RoundsStartOver RUSTFLAGS='--cfg leasehold_bugs' \
//!     cargo test --target-dir target/bugs --no-default-features --features client,server --lib
//! ```

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::fmt;

/// Whether a bug is switched on; or what it does, if it is.
macro_rules! planted {
    ($bug:ident) => {
        $crate::planted::is_on($crate::planted::Bug::$bug)
    };
    ($bug:ident => $does:expr) => {
        if $crate::planted::is_on($crate::planted::Bug::$bug) {
            $does
        }
    };
}

/// A set of bugs, as bits.
#[derive(Clone, Copy, Debug, Default)]
struct Set([u64; 5]);

impl Set {
    const MAX: usize = 5 * 64;

    fn insert(&mut self, bug: Bug) {
        self.0[bug as usize / 64] |= 1 << (bug as usize % 64);
    }

    fn contains(self, bug: Bug) -> bool {
        self.0[bug as usize / 64] >> (bug as usize % 64) & 1 == 1
    }
}

thread_local! {
    static ON: Cell<Set> = Cell::new(from_environment());
    /// Bugs whose place was come to, on or not.
    static REACHED: Cell<Set> = Cell::default();
}

/// Whether `bug` is switched on in this thread. Its place counts as reached.
pub fn is_on(bug: Bug) -> bool {
    let mut reached = REACHED.get();
    reached.insert(bug);
    REACHED.set(reached);
    ON.get().contains(bug)
}

/// Whether anything is switched on in this thread: then a panic is no news.
pub fn is_any_on() -> bool {
    ON.get().0 != Set::default().0
}

/// Whether this thread has come to the place of `bug` since it last planted something: what is
/// never reached cannot be found.
pub fn was_reached(bug: Bug) -> bool {
    REACHED.get().contains(bug)
}

/// Switches exactly `bugs` on in this thread, until the result is dropped.
#[must_use = "the bugs go with it"]
pub fn plant(bugs: &[Bug]) -> PlantedBugs {
    REACHED.set(Set::default());
    let mut on = Set::default();
    bugs.iter().for_each(|bug| on.insert(*bug));
    let before = ON.replace(on);
    PlantedBugs { before }
}

/// Bugs that are switched on; see [`plant`].
#[derive(Debug)]
pub struct PlantedBugs {
    before: Set,
}

impl Drop for PlantedBugs {
    fn drop(&mut self) {
        ON.set(self.before);
    }
}

fn from_environment() -> Set {
    let mut on = Set::default();
    let names = std::env::var("LEASEHOLD_BUGS").unwrap_or_default();
    for name in names.split(',').filter(|name| !name.is_empty()) {
        let bug = Bug::named(name);
        on.insert(bug.unwrap_or_else(|| panic!("LEASEHOLD_BUGS: no bug `{name}`")));
    }
    on
}

macro_rules! bugs {
    ($($bug:ident $rule:literal $what:literal $([$witness:literal])?)*) => {
        /// A rule that can be taken away.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "`what` says it")]
        pub enum Bug {
            $($bug),*
        }

        impl Bug {
            /// Every bug.
            pub const ALL: &[Self] = &[$(Self::$bug),*];

            /// The rule that it takes away, by its name in the documents.
            pub fn rule(self) -> &'static str {
                match self {
                    $(Self::$bug => $rule),*
                }
            }

            /// What it does wrong.
            pub fn what(self) -> &'static str {
                match self {
                    $(Self::$bug => $what),*
                }
            }

            /// The library's test that notices by itself: a conversation of `raft/testdata`, or the
            /// path of a unit test.
            pub fn witness(self) -> Option<&'static str> {
                match self {
                    $($(Self::$bug => Some($witness),)?)*
                    _ => None,
                }
            }
        }
    };
}

impl Bug {
    /// The bug of that name.
    pub fn named(name: &str) -> Option<Self> {
        let mut all = Self::ALL.iter().copied();
        all.find(|bug| bug.to_string() == name)
    }
}

impl fmt::Display for Bug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

const _: () = assert!(Bug::ALL.len() <= Set::MAX);

bugs! {
    // Measuring the interval.
    AckTime "P1" "the lease counts from the acknowledgement of its round"
        ["p01_lease_counts_from_the_creation_of_its_round"]
    RoundStampedLate "P28, N1" "a round's time is that of the next heartbeat, after its name is out"
        ["p18_lease_ends_first_at_the_worst_drift"]
    NoBlackout "P2, N4" "votes at once after a start"
        ["p02_restarted_voter_keeps_silent"]
    HalfBlackout "P2" "keeps silent for half as long after a start"
        ["p03_silence_is_as_long_as_the_longest_promise"]
    OwnBlackout "P3" "keeps silent for its own promise after a start, not the longest it made"
        ["p03_silence_is_as_long_as_the_longest_promise"]
    FloorNotRaised "P3, P34" "does not write down that it promises longer than ever before"
        ["p34_longer_promise_is_durable_before_it_is_told"]
    FirstBootSpeaks "A3" "a node without a log and a vote does not keep silent"
        ["a03_first_boot_is_silent_too"]
    SelfCampaign "P4" "its own timer does not ask its promise"
        ["p04_own_timer_keeps_the_own_promise"]
    PreVoteUngated "P4" "grants pre-votes whatever it has promised"
        ["p06_promise_outlives_a_change_of_term"]
    CachedNow "P5, N2" "the driver's reading is from before it took the batch"
        ["node::turn::tests::a_promise_counts_from_a_reading_that_is_not_older_than_the_message"]
    CachedCheckClock "P5, N5" "a batch of reads checks the lease with the reading of the batch before"

    // Keeping the promise.
    PromiseDropped "P6" "a new term ends the promise"
        ["p06_promise_outlives_a_change_of_term"]
    PreVoteOnly "P7, N3" "the gate is asked for pre-votes only"
        ["p07_real_vote_is_refused_while_promised"]
    CandidacyGoesOn "P8" "a pre-candidate promises a leader and goes on asking"
    UncheckedCampaign "P8" "the gate is not asked again before the campaign"
    NoBurn "P9" "the lease survives the word to the next leader"
        ["p09_transfer_burns_the_lease_before_it_is_told"]
    ResumeBurn "P9" "the lease comes back when a transfer is given up"
        ["p09_failed_transfer_is_followed_by_a_term_with_a_lease"]
    StickyTransferFlag "P10" "the authority of a transfer is kept, and good for any term"
        ["p10_transfer_authorises_only_the_next_term"]
    LateTransferWord "P10" "the word of an earlier term to campaign is obeyed"
    TransferUnequal "H1" "a node that is asked to campaign does not check that it has everything"
        ["transfer_asks_only_an_equal_to_stand"]
    TransferHurried "H1" "the word is given before the target has everything"
        ["transfer_waits_until_the_target_has_everything"]
    TransferPostponesStepDown "P11" "every transfer counts as a quorum heard"
        ["p11_transfers_do_not_keep_a_lonely_leader_in_office"]
    NoStepDown "P12, N6" "a leader without a quorum stays, and goes on beating"
        ["p12_leader_that_hears_nobody_steps_down_and_falls_silent"]
    VotePromiseNotMade "H1" "an authorised vote says that it promises, and does not"
    VoteFloorNotRaised "H1, P34" "an authorised vote does not write down that it promises longer"
    VotesArePromises "H1" "every vote counts as a promise to the new leader"
        ["p26_answers_of_an_earlier_term_count_for_nothing"]
    PromiseShortened "P39" "a shorter promise replaces a longer one"
        ["raft::leader_lease::tests::a_promise_is_never_shortened_except_by_whom_it_was_made_to"]
    PromiseOwnLength "P34" "promises its own length instead of the one asked for"
        ["p34_promise_is_as_long_as_the_leader_asks"]

    // Who counts.
    KeepExpiry "P13" "a smaller lease than before is not published"
        ["p13_changed_configuration_counts_from_its_append"]
    JointHalf "P13" "a joint configuration decides by its new half alone"
        ["raft::quorum::tests::quorums_of_adjacent_configurations_intersect"]
    LearnersCount "P14" "learners count"
        ["p14_learners_promise_and_never_count"]
    AckFromEntry "P15" "who enters counts as having promised the newest round"
        ["p15_new_member_has_promised_nothing"]
    LeaseHalf "P13" "the lease counts the new majority of a joint configuration alone"
        ["membership_lease_needs_both_majorities"]
    ConfigurationAtCommit "P13, M1" "a configuration is in force once it is committed, not before"
        ["membership_change_is_in_force_from_its_append"]
    NoJoint "P13, M2" "voters change in one step, however many"
        ["membership_voters_change_by_a_joint_configuration"]
    ChangesOverlap "M2" "a change begins before the one before it is complete"
        ["membership_one_change_at_a_time"]
    ChangeBeforeOwnCommit "M1" "a new leader changes members before it has committed anything"
        ["membership_change_waits_for_an_entry_of_the_own_term"]
    DeposedKeepsLease "P13, P36" "a leader that was removed goes on serving by its lease"
        ["membership_removed_leader_gives_its_lease_up_and_hands_over"]
    PromotedUnready "M3" "a learner becomes a voter whatever it lacks"
        ["membership_learner_is_promoted_once_it_has_caught_up"]
    LoneLeaseForever "P16" "a lone voter's lease never ends"
        ["p16_lone_voter_has_a_lease_that_ends"]

    // Clocks.
    RawClockOnly "P17" "the lease is judged by the raw clock alone"
        ["p17_suspended_leader_wakes_without_a_lease"]
    BootClockOnly "P17" "the lease is judged by the boot clock alone"
        ["p18_one_wrong_clock_of_two_is_harmless"]
    EitherClockEndsPromise "P17" "a promise is over when one clock says so"
        ["p18_one_wrong_clock_of_two_is_harmless"]
    NoMargin "P18" "the leader trusts the promise to its end"
        ["p18_lease_ends_first_at_the_worst_drift"]
    UncheckedTiming "P18, A6" "settings without a margin for the drift are accepted"
        ["raft::config::tests::a_margin_of_50_ms_is_refused_for_a_lease_of_10_s_which_needs_402"]
    StepBackIgnored "A4" "a clock that ran backwards goes unnoticed"
        ["a04_step_back_of_a_clock_voids_the_lease"]
    SilenceCutByStepBack "A4, A23" "a clock that ran backwards cuts a silence to the longest promise"
        ["raft::leader_lease::tests::a_step_back_of_the_clock_shortens_no_silence_that_is_longer_than_any_promise"]
    CampaignOverStepBack "A4, H1" "a campaign goes on that a clock ran back over, and a lease counts from it"
        ["a04_lease_of_a_transfer_does_not_count_from_before_a_step_back"]
    SuspendUnseen "P17" "the pair has no clock that counts suspended time"
        ["clock::tests::the_pair_counts_suspended_time_with_one_clock_and_is_not_slewed_in_the_other"]
    SlewUnseen "P18" "the pair has no clock that is never slewed"
        ["clock::tests::the_pair_counts_suspended_time_with_one_clock_and_is_not_slewed_in_the_other"]
    DisruptionUnseen "P17" "the clock does not ask whether the hypervisor has disrupted it"
        ["clock::tests::a_disruption_is_time_that_only_the_clock_that_ends_leases_has_counted"]
    DisruptionEndsPromises "P17" "a disruption counts as time for promises, too"
        ["clock::tests::a_disruption_is_time_that_only_the_clock_that_ends_leases_has_counted"]
    BeforeByRaw "P17" "whether a deadline is still to come is judged by the raw clock alone"
        ["time::tests::a_deadline_is_trusted_only_while_both_clocks_are_before_it"]
    AfterByBoot "P17" "a deadline is over once the boot clock has reached it"
        ["time::tests::a_deadline_is_over_only_when_both_clocks_have_reached_it"]
    RawStepUnseen "A4" "a step back of the raw clock goes unnoticed"
        ["time::tests::a_step_back_of_either_clock_is_seen"]

    // The read.
    MemoizedCheck "P20" "a permit is used again for 100 ms"
    OlderSnapshot "P20" "a read is answered from the snapshot that the read before it took"
    AppliedReadLater "A9" "the applied index of what one key holds is read after it was looked up"
        ["front::tests::a_key_read_during_a_publication_is_of_the_index_and_revision_before_it"]
    RevisionReadLater "A10" "the revision of a reply is read after the key was looked up"
        ["front::tests::a_key_read_during_a_publication_is_of_the_index_and_revision_before_it"]
    OlderShown "P20, P21" "the index that a look may find is from before the requests arrived"
    PermitIndexIgnored "P21, A7" "the reader does not look whether its state has the permit's index"
        ["node::tests::a_leased_read_is_not_answered_from_a_state_that_lacks_what_a_read_before_it_may_have_found"]
    ShownNotCaptured "P21" "a leased read asks for nothing but the floor"
        ["node::tests::a_leased_read_is_not_answered_from_a_state_that_lacks_what_a_read_before_it_may_have_found"]
    ShownLate "P21" "what a look may find is named only once it is applied"
        ["front::tests::each_step_of_publication_shows_what_the_one_before_has_prepared"]
    FrontierUnapplied "A11" "a leader tells followers what is committed before it has applied that itself"
        ["a11_followers_commit_nothing_that_the_leader_has_not_applied"]
    FreshOfApplied "F1" "a leader says of a state that it is fresh which lacks what is committed"
    AppliedBeforeShown "A7" "the applied index is published before the state can be found"
        ["front::tests::each_step_of_publication_shows_what_the_one_before_has_prepared"]
    AheadEndsEarly "A7" "what is ahead of the database is taken away before the database has it"
        ["front::tests::a_look_finds_a_batch_while_the_database_takes_it_in"]
    LookTakesDatabaseFirst "A7" "a look takes the database before what is ahead of it, which may be in neither"
    LookTakesRunsFirst "A9" "a look takes what is ahead before the database, which may have more by then"
    TombstoneSkipped "A7" "a key that was deleted ahead of the database is looked up there"
        ["front::tests::whatever_is_merged_and_handed_over_a_look_finds_the_newest_of_each_key"]
    OlderRunWins "A7" "of two changes ahead of the database the older is found"
        ["front::tests::whatever_is_merged_and_handed_over_a_look_finds_the_newest_of_each_key"]
    MergeKeepsOlder "A7" "of two changes that are merged ahead of the database the older is kept"
        ["front::tests::whatever_is_merged_and_handed_over_a_look_finds_the_newest_of_each_key"]
    LeavingRunMerged "A7" "what is being handed over to the database is merged with what comes after it"
        ["front::tests::what_is_published_and_merged_during_a_hand_over_stays"]
    FillWithoutTicket "A7" "a reader fills in a record that a write has replaced since"
        ["front::tests::a_record_that_a_reader_fills_in_does_not_replace_a_newer_one"]
    RevisionAfterApplied "A10" "the revision is published after the applied index"
        ["front::tests::each_step_of_publication_shows_what_the_one_before_has_prepared"]
    ReadUnapplied "P21" "a permitted read does not wait until its index is applied"
        ["node::tests::a_read_waits_until_the_state_machine_has_what_was_committed_before_it"]
    LeaseReadyAtOnce "P22" "a new leader serves before it has applied what it was elected with"
        ["p22_new_leader_serves_once_all_is_applied_that_it_was_elected_with"]
    LeaseReadyByCommit "A8" "a new leader serves once that is committed, applied or not"
        ["p22_new_leader_serves_once_all_is_applied_that_it_was_elected_with"]
    NoFloor "A7" "a permit does not ask for what the leader was elected with"
        ["raft::leader_lease::tests::a_permit_reaches_the_floor_and_a_refusal_is_counted"]
    QuorumReadNoFloor "A7" "a quorum read does not ask for what the leader was elected with"
        ["a07_permit_reaches_the_floor"]
    QuorumReadUnready "A7, A8" "quorum reads are permitted before the leader is ready"
        ["a07_permit_reaches_the_floor"]
    QuorumReadOldRound "Q1" "a quorum read rests on a round from before it arrived"
        ["round_from_before_a_read_does_not_permit_it"]
    AnswerOfApplied "A11" "a leader tells followers what it has applied instead of what is committed"
    AnswerUnconfirmed "F1" "a leader answers followers whether its lease holds or not"
        ["follower_read_without_a_lease_takes_a_round"]
    AnswerServesLater "F1" "the answer to a question serves reads that came after it was put"
        ["follower_read_needs_a_question_put_after_it_came"]
    AnswerToEarlierLife "P25" "the answer to an earlier process's question serves reads of this one"
        ["follower_read_is_not_answered_by_a_word_to_an_earlier_life"]
    AgeOfTheAnswer "L8" "a state's age is counted from the answer that proves it"
        ["age_of_a_follower_is_that_of_its_question"]
    FreshUnconfirmed "F1" "a leader says how fresh it is whether its lease holds or not"
        ["age_is_not_told_without_a_lease"]
    NamesRepeat "F1" "names of a follower's questions repeat after a restart"
        ["age_is_not_told_by_a_name_that_two_lives_share"]
    AgeOfNewestName "F1" "a state is as young as the last question, answered or not"
        ["raft::staleness::tests::a_state_is_as_old_as_the_name_and_not_as_the_answer"]
    AgeUnapplied "F1" "what is committed counts for the age of a state that has not applied it"
        ["age_counts_only_what_is_applied"]
    AgeBySlowerClock "A5" "an age is measured by the slower clock, as if no clock were too slow"
        ["raft::staleness::tests::an_age_is_that_of_the_faster_clock_stretched_by_the_drift"]
    AgeFromTheFuture "A4" "an age is given by a reading from before it began"
        ["raft::staleness::tests::an_age_is_that_of_the_faster_clock_stretched_by_the_drift"]
    ReaderForgetsItsClock "A4" "a reader does not notice that its clock ran backwards"
        ["node::tests::a_reader_whose_clock_ran_backwards_trusts_neither_lease_nor_age"]
    AgeOverStepBack "A4" "ages are still given after a clock ran backwards"
        ["age_is_forgotten_when_a_clock_runs_back"]
    LeaderAgeIsNow "Q1" "a leader's state is as old as its last look, not as its last quorum"
    MinRevisionIgnored "C9" "a read that says what was seen is shown less"
    NoOwnSuccession "P9" "a leader that failed to hand over goes on without a lease"
        ["p09_failed_transfer_is_followed_by_a_term_with_a_lease"]
    StepDownKeepsLease "P23" "the shared cell is not voided by stepping down"
        ["p36_retired_leader_releases_the_promises"]
    LeaderVotes "P23" "a leader whose lease holds votes for another"
        ["p23_lease_is_void_before_a_vote_is_given"]
    LeaseUntilStepDown "P24" "the lease holds until the leader finds out that it has no quorum"
        ["p24_lease_is_judged_when_it_is_used"]

    // Messages.
    AnyAckIsNewest "P25" "an answer counts for the newest round, whichever it names"
        ["p25_doubled_answers_are_as_old_as_their_round"]
    UnknownRoundIsNow "P25" "an answer that names an unknown round counts for the newest"
        ["absurd_messages_change_nothing"]
    RoundsStartOver "P25, P26" "names of rounds start over with every leadership"
        ["p26_answers_of_an_earlier_term_count_for_nothing"]
    RoundsRepeat "P33" "names of rounds repeat after a restart"
        ["p33_answer_to_a_campaign_that_a_crash_undid_does_not_count"]
    OldTermAck "P26" "answers to an earlier term of the same leader count"
        ["p26_answers_of_an_earlier_term_count_for_nothing"]
    RejectUnpromised "P27" "an append that does not fit is said to be promised, and is not"
    SilentDiskPromises "P29" "a voter whose disk is silent goes on promising"
        ["p29_voter_without_a_disk_stops_promising"]
    SilentDiskLeads "P29" "a leader whose disk is silent stays"
        ["p29_leader_without_a_disk_steps_down"]
    TimeFirst "P29, A2" "the tick is handled before the messages of its batch"
        ["node::turn::tests::what_has_arrived_is_heard_before_the_time_is_looked_at"]

    // Lifecycle.
    VoteBeforeSync "P33" "a vote is given before it is durable"
        ["p33_vote_is_told_once_it_is_durable"]
    OwnVoteBeforeSync "P33" "a candidate's own vote counts before it is durable"
        ["p33_leader_has_its_own_vote_on_disk"]
    PromiseBeforeSync "P33, P34" "a promise is sent before term and longest promise are durable"
        ["p34_longer_promise_is_durable_before_it_is_told"]
    VoteForgotten "P33" "a restart forgets the vote"
    VoteToctou "P38" "while a vote is written, the leader of the term before is still promised"
        ["p38_nothing_is_promised_while_a_vote_is_written"]
    ReleaseWhileServing "P36" "a retiring leader releases the promises and keeps its lease"
        ["p36_retired_leader_releases_the_promises"]
    ReleaseByAnybody "P36" "anybody's release ends the promise"
        ["p36_release_by_another_changes_nothing"]
    ReleaseEndsBlackout "P36" "a release ends the silence after a start as well"
        ["raft::leader_lease::tests::a_release_does_not_end_the_silence_after_a_start"]
    NoTripwire "P37" "a later leader beside a valid lease goes unnoticed"
        ["p37_leader_beside_a_valid_lease_trips_the_wire"]
    TrippedServes "P37" "leased reads go on after the tripwire went off"
        ["p37_leader_beside_a_valid_lease_trips_the_wire"]
    TripwireForgotten "P37" "a restart forgets that the tripwire went off"
        ["node::recovery::tests::a_lease_that_tripped_is_remembered"]
    TripwireUnmarked "P37" "that the tripwire went off is not written down"
        ["server::driver::tests::a_lease_that_tripped_is_marked"]
    CandidateTrips "P37" "a candidate of a later term sets the tripwire off"
        ["p23_lease_is_void_before_a_vote_is_given"]

    // Raft.
    TwoVotes "Raft 5.2" "votes twice in a term"
        ["split_vote_is_resolved"]
    LogIgnored "Raft 5.4.1" "votes for candidates whose log lacks entries"
        ["lagging_log_is_not_elected"]
    OldTermsCounted "Raft 5.4.2" "entries of earlier terms are committed by counting"
        ["only_entries_of_its_own_term_are_committed_by_counting"]
    CommitUnverified "Raft 5.3" "a follower commits entries that may not be its leader's"
        ["conflict_is_found_in_one_step_per_term"]
    AckBeforeSync "R9" "entries are acknowledged before they are durable"
        ["p29_voter_without_a_disk_stops_promising"]
    LeaderCountsUnsynced "R7" "a leader counts itself before its entries are durable"
        ["leader_counts_itself_only_when_durable"]
    AppliedUnheld "A11" "entries are applied before they are durable here"
        ["quorum_without_the_leader_commits_but_the_leader_applies_what_it_holds"]
    CutStaysDurable "Raft 5.3" "entries that were cut still count as durable"
        ["conflict_is_found_in_one_step_per_term"]

    // Damage.
    QuarantineIgnored "A23" "a replica that lost its log votes and acknowledges at once"
        ["a23_damaged_replica_neither_votes_nor_counts_until_it_is_whole"]
    RejoinUnconfirmed "A23" "a leader tells a damaged replica what to hold without asking a quorum"
        ["a23_without_a_quorum_a_damaged_replica_is_not_told"]
    EarlierLifeCounts "A23" "what a damaged replica acknowledged before still counts"
        ["a23_acknowledgements_of_an_earlier_life_are_void"]
    DamageKeepsCommit "A23" "the end of a damaged log is taken for what was applied from it"
        ["raft::consensus::tests::a_damaged_log_is_not_taken_for_committed_because_something_was_applied"]
    WipedVotesAtOnce "A23" "a wiped replica that is whole again counts at once"
        ["a23_wiped_member_acknowledges_nothing_while_its_forgotten_vote_counts"]
    LateVotesCount "A23" "a vote counts for as long as nobody else is elected"
        ["a23_vote_that_comes_late_elects_nobody"]
    AuthorisedSkipsSilence "A23, P10" "who may have forgotten votes gives one to a candidate that a leader has authorised"
        ["a23_authorised_vote_waits_for_the_silence"]
    SilenceOverByRestart "A23" "a restart forgets that votes were forgotten"
        ["a23_silence_outlives_a_restart"]
    WipedPromises "A23" "a wiped replica promises before it is whole again"
        ["a23_wiped_member_promises_nothing_before_it_is_whole"]
    UnprovenPromises "A23" "a replica that may have lost everything promises a leader that knows nothing"
        ["a23_wiped_member_promises_nobody_who_knows_of_nothing_committed"]

    BootstrapByMajority "A25" "a majority of the initial members bootstraps the cluster"
        ["bootstrap_takes_every_initial_member"]
    BootstrapsOverlap "A25" "a candidate on an empty log supports another one, and may still be elected"
        ["a25_candidate_of_a_bootstrap_supports_no_other"]
    VoteIsProof "A25" "a member that may have been emptied is proven by a vote that it gives"
        ["bootstrap_in_vain_proves_nothing"]
    RestoredByMajority "A26" "a majority of restored members bootstraps the cluster"
    RestoredUnmarked "A26" "a member that was restored again counts as one that lost nothing"
    RestoredOtherwise "A26" "members that were restored from different data bootstrap a cluster together"
        ["raft::consensus::tests::members_that_were_restored_from_different_data_elect_no_leader"]
    OlderCopyCounts "A28" "a member that lacks what it acknowledged to its leader counts"
        ["a28_member_that_lacks_what_it_acknowledged_counts_for_nothing"]
    OlderCopyUnmarked "A28" "that a member lacks what it acknowledged is not written down"
    EarlierLifeHolds "RL4" "what a holder has acknowledged in an earlier life counts for its read lease in this one"
    FormerLeaderSilent "A28" "a leader of before does not say what was acknowledged to it"
        ["a28_leader_of_before_says_what_a_member_has_forgotten"]
    ReminderOfAnyTerm "A28" "what a later leader has replaced is taken for forgotten"
        ["raft::reminders::tests::what_a_later_leader_has_replaced_is_not_forgotten"]
    DivergenceIgnored "A27" "what contradicts a committed entry is refused and forgotten"
        ["raft::divergence::tests::what_contradicts_a_committed_entry_is_seen_in_the_first_append_and_nothing_is_cut"]
    RepeatedTermTaken "A27" "an entry of the place and term of another one is taken for the same"
        ["raft::divergence::tests::an_entry_of_the_same_place_and_term_says_the_same_committed_or_not"]
    DivergedCounts "A27" "a member whose log has diverged votes"
        ["raft::divergence::tests::a_member_that_diverged_takes_nothing_and_counts_for_nothing"]
    DivergenceForgotten "A27" "a restart forgets that the log has diverged"
        ["node::recovery::tests::a_log_that_diverged_is_remembered"]
    BootstrapsMix "A25" "members that come from different bootstraps of their cluster talk to each other"
        ["server::peers::tests::members_of_different_bootstraps_refuse_each_other"]
    SessionsRepeat "A25" "a session has the id of another, which was opened at the same place after another bootstrap"
        ["kv::tests::a_session_of_one_bootstrap_is_unknown_after_another"]
    EmptiedForgiven "A23" "an initial member whose directory was emptied starts as if its cluster were new"
        ["node::recovery::tests::each_disk_is_started_as_it_must_be"]
    LostLogForgiven "A23" "a member whose log and votes are gone starts as if it had never had any"
        ["node::recovery::tests::each_disk_is_started_as_it_must_be"]
    DamageForgiven "A23" "a log that was damaged counts as whole once it is repaired"
        ["node::recovery::tests::each_disk_is_started_as_it_must_be"]
    QuarantineForgotten "A23" "a quarantine that the start decides on is not written down"
        ["node::recovery::tests::a_start_that_is_cut_off_anywhere_forgives_nothing_later"]
    OlderVotesForgotten "A23" "that the vote file was older than the log is not written down"
        ["node::recovery::tests::each_disk_is_started_as_it_must_be"]
    ProvenMarkAfterWrites "A23" "a member is marked as proven only after its first entries are written"
        ["server::driver::tests::a_member_is_proven_before_its_first_entries_are_written"]

    AsideForEver "D3" "a state that was set aside is never opened again"
        ["node::recovery::tests::each_disk_is_started_as_it_must_be"]
    KillsProveDamage "D3" "a state whose opening was killed twice is set aside"
        ["server::run::start::tests::kills_while_a_state_is_opened_prove_nothing"]

    // Requests and exactly-once.
    WaitersByIndex "A18" "a write is answered by whatever entry took its place"
    WaitersKept "A18" "writes go on waiting when leadership is lost"
        ["node::tests::a_write_in_doubt_is_unknown_when_time_runs_out_and_when_leadership_is_lost"]
    UnknownSaidRefused "A18, E2" "a write in doubt is reported as not applied"
        ["node::tests::a_write_in_doubt_is_unknown_when_time_runs_out_and_when_leadership_is_lost"]
    UnknownForgotten "A18" "a client settles a write by its last attempt alone"
        ["api::attempts::tests::what_one_attempt_may_have_done_no_later_one_takes_back"]
    RetryApplied "A17" "a number that was applied is applied again"
        ["kv::tests::a_retry_gets_the_first_reply_and_has_no_second_effect"]
    DedupByLast "A17" "a number below the last applied gets the last one's reply"
        ["kv::tests::numbers_are_remembered_one_by_one_in_any_order"]
    MarkIgnored "A17" "a number at or below the acknowledged mark is applied"
        ["kv::tests::an_acknowledged_number_is_refused_and_never_applied"]
    ForgottenInUse "A18" "sessions are forgotten though they were used since"
        ["kv::tests::an_unknown_or_forgotten_session_is_refused_with_outcome_unknown"]
    SweepTakesNewest "K6" "the removal of history takes the value that a compaction keeps"
        ["kv::tests::compaction::the_latest_value_of_each_live_key_survives_however_old"]
    FullTableEvicts "A18" "a full table of sessions evicts one for the next"
        ["kv::tests::a_full_table_refuses_new_sessions_and_evicts_none"]

    // The log and the vote file.
    SyncSkipped "R9" "batches are not synced"
        ["log::tests::after_a_crash_at_any_call_all_that_was_acknowledged_is_there_and_no_more"]
    VoteSyncSkipped "A19" "the vote file is not synced"
        ["log::tests::after_a_crash_at_any_call_all_that_was_acknowledged_is_there_and_no_more"]
    SlotsAlternate "A19" "a vote is written into one slot, by turns"
        ["log::tests::a_saved_vote_stands_in_both_slots_and_one_rotten_bit_never_takes_it_back"]
    SyncErrorForgiven "D2" "a log whose sync failed goes on"
        ["log::tests::each_failing_call_ends_in_a_typed_error_and_loses_nothing_acknowledged"]
    DamageIsTorn "A21" "a damaged sector of the last batch is taken for a torn one"
        ["log::tests::every_flipped_bit_is_detected_or_harmless"]
    NamedIgnored "A21" "recovery does not look at what the vote file names as synced"
        ["log::tests::a_batch_that_anything_names_is_never_taken_for_torn"]
    TailTrusted "A21" "the tail that is found is not made durable before it counts"
        ["log::tests::a_kept_tail_is_made_durable_before_it_counts"]
    NoSpare "A22" "a segment is used before the next one is ready"
        ["log::tests::the_next_segment_is_there_before_one_is_used"]
    QuarantineUnwritten "A23" "the mark of damage is not written down"
        ["log::tests::a_damaged_log_takes_nothing_until_repaired_and_stays_in_quarantine"]
    NamesTrusted "A21" "names that are found are not made durable before they count"
        ["log::tests::a_prepared_segment_that_only_the_page_cache_knows_is_not_relied_upon"]
    SegmentNameUnsynced "A22" "the name of a segment is not durable when it is used"
        ["log::tests::after_a_crash_at_any_call_all_that_was_acknowledged_is_there_and_no_more"]
    RealSyncSkipped "R9" "the real disk does not sync the files of the log"
        ["server::disk::file::tests::a_sync_of_the_log_is_one_of_the_system"]
    RealNamesUnsynced "R9" "the real disk does not sync names"
        ["server::disk::file::tests::a_sync_of_names_is_one_of_the_system"]
    MarkUnsynced "A23" "a mark gets its name before its content is durable"
        ["server::disk::durable::tests::a_crash_at_any_call_leaves_the_old_file_or_the_new_one_and_after_the_last_the_new_one"]
    MarkNameUnsynced "A23" "a mark counts before its name is durable"
        ["server::disk::durable::tests::a_crash_at_any_call_leaves_the_old_file_or_the_new_one_and_after_the_last_the_new_one"]
    RealMarkUnsynced "A23" "the real disk does not sync marks"
        ["server::disk::durable::tests::syncs_are_those_of_the_system"]

    // Logs without a beginning, and whole states.
    CutBeforeDurable "D1" "the log is cut by a state that was not synced"
        ["front::tests::the_log_may_be_cut_by_what_was_synced_and_by_nothing_else"]
    CutByPublished "D1" "the log is cut by what is published, which the database may not have"
        ["front::tests::the_log_may_be_cut_by_what_was_synced_and_by_nothing_else"]
    ProgressAheadOfData "D1" "the database is given the applied index of changes that it is not given yet"
        ["front::tests::after_each_hand_over_the_database_is_as_it_was_after_some_batch"]
    AheadUnbounded "D1" "entries are applied however far the database is behind"
        ["server::disk::hand_over_thread::tests::no_more_is_applied_than_what_may_lie_ahead"]
    AheadAdmitted "D1" "clients' writes are admitted however far the database is behind"
        ["server::session::tests::held::writes_wait_for_a_database_that_is_far_behind_and_renewals_and_reads_do_not"]
    CompactsUnapplied "D1" "the log is cut before the state machine holds what is cut"
        ["log_is_cut_no_further_than_what_is_applied"]
    SnapshotGoesBack "P30" "a state older than what is applied is installed"
    SnapshotDropsLog "P30" "an installed state takes the log with it that goes on after it"
    SnapshotBaseUnsynced "A23" "what follows a new base is acknowledged before the base is durable"
        ["a23_received_state_is_acknowledged_once_its_base_is_durable"]
    LackOfStateUnnoticed "D1" "a state machine that ends before the log begins goes on with the log"

    // Client leases.
    ExpiredBeforeCommit "T3, S10" "the leader forgets a lease when its expiry is proposed, not when it is applied"
    DeadlinesKept "T1" "deadlines of an earlier leadership count"
    RenewedWithoutLease "T2" "a renewal is acknowledged whatever became of the leader's lease"
        ["node::tests::leases::t2_a_leader_without_a_lease_renews_nothing"]
    ExpiringRevived "T4, A15" "a lease is renewed while its expiry is under way"
        ["node::tests::leases::t4_a15_an_expiring_lease_is_not_renewed_and_not_denied"]
    ExpiryOfAnyTerm "T3" "an expiry counts whichever leadership decided it"
        ["kv::tests::leases::t3_the_expiry_of_another_term_changes_nothing"]
    ExpiryKept "T3" "what a deposed leader had decided to expire is proposed when it leads again"
    KeepsBareId "T14" "whoever keeps a lease by its id keeps the next one of that id, too"
        ["client::tests::leases::t14_a_keeper_of_an_id_names_the_grant_from_its_first_renewal_on"]
    LeaseIdReused "T14" "what was meant for a lease hits the next one of its id"
        ["kv::tests::leases::t14_what_is_meant_for_an_earlier_lease_of_the_id_does_not_hit_the_next"]
    KeyNotDetached "T7, S17" "a key that moves to another lease stays attached to the first"
        ["kv::tests::leases::s17_x7_a_key_dies_with_its_current_lease_only"]
    CheckpointNotCleared "T9, A14" "a renewal is acknowledged while the last checkpoint stands"
        ["node::tests::leases::t9_a14_a_checkpoint_shortens_a_restart_and_a_renewal_clears_it_first"]
    CheckpointByFasterClock "A14" "a checkpoint notes the smaller of what two clocks say is left"
        ["node::tests::leases::a14_a_checkpoint_notes_the_larger_of_what_the_two_clocks_say_is_left"]
    NewTtlCountsAtOnce "A13" "a shorter time to live takes back time that was promised"
        ["node::tests::leases::a13_a_renewal_after_a_shorter_time_to_live_takes_nothing_back"]
    RenewalTakesBack "A13" "a renewal after a shorter time to live takes back time that was promised"
        ["node::tests::leases::a13_a_renewal_after_a_shorter_time_to_live_takes_nothing_back"]
    LongerPromiseForgotten "A13" "the next leader does not know that a longer time to live was promised"
        ["node::tests::leases::a13_a_shorter_time_to_live_takes_nothing_back"]

    // Watches.
    HandOverGap "W1" "a watcher that has caught up a little counts as caught up"
    SkipForgets "W1" "what the hub did not receive is not fetched for watchers that have caught up"
    SlowSilently "W1, W11" "what does not fit into a queue is left out without notice"
        ["watch::tests::rules::a_slow_watcher_is_ended_with_the_revision_to_resume_from"]
    ResumeTooLate "W1, W11" "a slow watcher is sent one revision too late to resume from"
        ["watch::tests::rules::a_slow_watcher_is_ended_with_the_revision_to_resume_from"]
    ResumeBeforeNext "W2" "a watch that was interrupted asks once more for what it received last"
        ["api::cursor::tests::it_goes_on_after_what_was_told_and_a_start_of_now_is_fixed_once"]
    UncommittedShown "W3" "a leader applies what it has appended, and shows it, before it is committed"
    RevisionSplit "W4" "a step of catching up ends in the middle of a revision"
        ["watch::tests::rules::a_large_revision_is_not_split_by_a_small_budget"]
    PartsKept "W4" "what came of a revision before an interruption is kept for the next stream"
        ["api::cursor::tests::a_part_whose_rest_did_not_come_is_told_whole_by_the_next_stream"]
    NewestTold "W5" "a change of the past is sent with what the key holds now"
    ProgressAhead "W6" "progress is sent to a watcher that has not caught up"
    FilterIgnored "W7" "deletes are sent to watchers that filter them out"
        ["watch::tests::rules::filters_leave_out_what_they_say_and_no_revision_is_told_empty"]
    PrevKvNewer "W8" "the previous value is the one that the change wrote"
        ["watch::tests::rules::previous_values_are_told_to_those_who_ask_unless_compacted"]
    SyncedEarly "W9" "an initial state is said to be complete after its first part"
    FutureAtOnce "W10" "a watch from a future revision on is sent what comes before it"
        ["watch::tests::rules::a_start_in_the_future_delivers_nothing_older"]
    CompactedStart "W10" "a watch may begin below the compact revision"
        ["watch::tests::rules::a_watch_may_begin_at_the_compact_revision_and_not_below"]
    CompactedUnnoticed "W10" "a watcher that compaction overtakes goes on"
        ["watch::tests::rules::a_watcher_that_compaction_overtakes_is_told_so"]

    // Reads at revisions.
    PastReadsCurrent "K5" "a read at an earlier revision shows what is there now"
    CompactedRead "K5" "a revision that is compacted can be read"
    FutureRead "K5" "a revision that is not there yet can be read"
    SnapshotUnconfirmed "L7" "a client's snapshot begins on a state that is not confirmed"
        ["server::session::tests::inside::a_snapshot_does_not_begin_on_a_state_that_nobody_confirms"]
    ExportUnconfirmed "L7" "a download begins whether this node's state is confirmed or not"
        ["server::session::tests::inside::an_export_does_not_begin_on_a_state_that_nobody_confirms"]

    // The comparison of states.
    StateDiverges "R4" "what a write makes of a key depends on whether its record is cached"
    NeverCompared "R4" "reports of states are not compared"
        ["node::corruption_checker::tests::the_minority_is_wrong_and_only_it"]
    DifferenceForgiven "R4" "a member that a majority contradicts goes on"
        ["node::corruption_checker::tests::the_minority_is_wrong_and_only_it"]
    // Locks.
    FenceUnchecked "T13" "a write behind a fence is made whether the fence stands or not"
    LockToAnyWaiter "X13" "a waiter gets the lock, first in the queue or not"
    LeaseKeysLeft "X2, S11" "the keys of a lease that expires stay"
    RecipesLookStale "X13" "recipes decide by a state that may be old, if their client reads so"
        ["client::tests::recipes::what_a_recipe_decides_by_is_never_read_from_a_state_that_may_be_old"]
    // Read leases.
    ReadLeaseFromReceipt "RL1" "a holder counts from when the grant came, not from when it drew the name"
        ["rl01_read_lease_counts_from_when_its_name_was_drawn"]
    GrantFullLength "RL2" "a read lease is as long as the leader's, however much of that is left"
        ["rl02_read_lease_is_no_longer_than_what_is_left"]
    LengthByLargerClock "RL2" "what is left of the leader's lease is measured by the clock that says more"
        ["rl02_length_is_by_the_clock_that_says_less"]
    GrantPerHeartbeat "RL2" "a name that was answered is granted again and again"
        ["rl02_name_is_answered_once"]
    GrantShortWait "RL2" "a leader waits for half of the promise until a read lease is over"
        ["rl04_commits_wait_for_holders"]
    ReadLeaseNoFloor "RL2" "a new holder serves states from before its tenure"
        ["rl02_new_tenure_begins_where_the_log_was_committed"]
    GranterMayVote "RL3" "a leader that has granted read leases promises nothing itself"
        ["rl03_leader_that_granted_does_not_vote"]
    NoCommitGate "RL4" "commits wait for no holder"
        ["rl04_commits_wait_for_holders"]
    HolderServesApplied "RL5" "a holder serves what it has applied, whatever it has acknowledged"
    HolderCapturesCommit "RL5" "a holder serves what it knows to be committed, whatever it has acknowledged"
    LastShownLate "RL5" "the last index is shown after its acknowledgement may have left"
    LastBeforeLease "RL5" "a holder captures its last index before it loads its lease"
    TenuresShareACell "RL2, RL5" "a holder prolongs what it shows of one tenure for the next, with the floor of the first"
        ["rl02_new_tenure_begins_where_the_log_was_committed"]
    HolderAdmittedBehind "RL10" "a member becomes a holder before it has what is committed"
    GrantAfterRecall "RL6, RL7" "a grant is accepted that was recalled while it was on its way"
        ["rl07_recalled_lease_is_not_accepted_later"]
    ReturnedStillServes "RL7" "a holder that gives its read lease back serves on"
        ["rl07_recalled_lease_is_not_accepted_later"]
    OldCellHolds "RL7" "a read lease that ends is void for who looks for it, and not for who has loaded it"
    ReturnOfAnyLife "RL7" "what an earlier life of a holder gave back ends the read lease of this one"
        ["raft::read_lease::grants::tests::what_an_earlier_life_gave_back_ends_nothing_of_this_one"]
    HolderDroppedAtOnce "RL7, RL10" "a leader that recalls a read lease does not wait for it"
        ["rl08_transfer_waits_for_read_leases"]
    TransferKeepsGrants "RL8" "leadership is handed over while read leases are outstanding"
        ["rl08_transfer_waits_for_read_leases"]
    ReleaseKeepsGrants "RL8" "voters are released while read leases are outstanding"
        ["rl08_resignation_keeps_promises_over_read_leases"]
    ChangeOverGrants "RL9" "voters change while read leases of the voters before are outstanding"
        ["rl09_members_change_once_read_leases_are_over"]
    RemovedGateForgotten "RL9" "a member that was removed holds nothing back at once"
        ["rl09_removed_member_holds_commits_back"]
    HolderUnwatched "RL11" "a holder that learns of what it cannot have missed goes on"
        ["rl11_holder_that_outlives_its_leader_serves_nothing_more"]
}
