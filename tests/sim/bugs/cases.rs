//! What is expected to find each bug, and within how many seeds: about ten times what was needed
//! when it was written.

use leasehold::planted::Bug;
use leasehold::planted::Bug::*;

use super::{Aim, Beyond, By, Case};
use crate::{erring, scenarios, wiped};

macro_rules! schedule {
    ($bug:ident, $name:ident) => {
        Case {
            bugs: &[$bug],
            by: By::Schedule(stringify!($name), scenarios::$name),
        }
    };
}

/// What is expected of each. Every bug is in at least one case.
pub(super) const CASES: &[Case] = &[
    // Measuring the interval.
    seeds(&[AckTime], Aim::Drawn, 1_000, &["L1", "L4"]),
    seeds(
        &[RoundStampedLate],
        Aim::PlayTight(1),
        200,
        &["L1", "L4", "L8"],
    ),
    seeds(&[NoBlackout], Aim::Drawn, 40, &["L5"]),
    seeds(&[HalfBlackout], Aim::Drawn, 40, &["L5"]),
    seeds(&[OwnBlackout], Aim::PlayRetimed(0), 100, &["L5"]),
    seeds(&[FloorNotRaised], Aim::PlayRetimed(0), 100, &["P34"]),
    seeds(&[FirstBootSpeaks], Aim::Drawn, 40, &["L5"]),
    seeds(&[SelfCampaign], Aim::PlayRetimed(0), 100, &["L5"]),
    seeds(&[PreVoteUngated], Aim::Drawn, 40, &["L5"]),
    seeds(&[CachedNow], Aim::PlayTight(1), 1_500, &["L1", "P37"]),
    seeds(&[CachedCheckClock], Aim::Play(5), 300, &["L1", "L2", "L8"]),
    // Keeping the promise.
    seeds(&[PromiseDropped], Aim::PlayOfFive(2), 200, &["L5"]),
    seeds(&[PreVoteOnly], Aim::Drawn, 40, &["L5"]),
    hidden(
        &[CandidacyGoesOn],
        "the gate is asked again before the campaign",
    ),
    hidden(
        &[UncheckedCampaign],
        "a node that promises is no candidate any more",
    ),
    seeds(
        &[CandidacyGoesOn, UncheckedCampaign],
        Aim::Play(18),
        300,
        &["L5"],
    ),
    seeds(&[NoBurn], Aim::Drawn, 100, &["P9", "L1"]),
    seeds(&[ResumeBurn], Aim::Drawn, 100, &["P9", "L1"]),
    seeds(&[StickyTransferFlag], Aim::Play(19), 300, &["L5"]),
    hidden(
        &[LateTransferWord],
        "its log has the next leader's first entry by then, and is not equal",
    ),
    seeds(
        &[LateTransferWord, TransferUnequal],
        Aim::Play(19),
        300,
        &["L1", "L4"],
    ),
    witness(&[TransferUnequal]),
    witness(&[TransferHurried]),
    witness(&[TransferPostponesStepDown]),
    schedule!(
        NoStepDown,
        p12_a_leader_that_is_heard_and_hears_nobody_gives_up
    ),
    seeds(&[VotePromiseNotMade], Aim::PlayOfFive(21), 300, &["L5"]),
    seeds(&[VoteFloorNotRaised], Aim::PlayRetimed(21), 300, &["P34"]),
    witness(&[VotesArePromises]),
    seeds(&[PromiseShortened], Aim::PlayRetimed(21), 500, &["L5"]),
    seeds(&[PromiseOwnLength], Aim::PlayRetimed(0), 100, &["L5"]),
    // Who counts.
    witness(&[KeepExpiry]),
    seeds(&[JointHalf], Aim::Moved, 40, &["R7", "R10", "L4"]),
    seeds(&[LearnersCount], Aim::Moved, 40, &["R7", "L4"]),
    witness(&[AckFromEntry]),
    witness(&[LoneLeaseForever]),
    seeds(&[LeaseHalf], Aim::Moved, 100, &["L4"]),
    seeds(&[ConfigurationAtCommit], Aim::Moved, 40, &["R7"]),
    seeds(&[NoJoint], Aim::Moved, 40, &["R10"]),
    seeds(
        &[ChangesOverlap],
        Aim::Moved,
        700,
        &["liveness", "R10", "R7"],
    ),
    witness(&[ChangeBeforeOwnCommit]),
    seeds(&[DeposedKeepsLease], Aim::Moved, 40, &["L1", "P9"]),
    witness(&[PromotedUnready]),
    // Clocks.
    seeds(&[RawClockOnly], Aim::PlaySlewed(5), 300, &["L1", "L4"]),
    seeds(&[BootClockOnly], Aim::PlaySlewed(1), 2_600, &["L1", "L4"]),
    seeds(&[EitherClockEndsPromise], Aim::Drawn, 200, &["L5"]),
    seeds(&[NoMargin], Aim::PlayDrifting(1), 1_200, &["L1", "L4"]),
    witness(&[UncheckedTiming]),
    schedule!(
        StepBackIgnored,
        a4_a_clock_that_steps_back_voids_the_lease_until_a_new_round
    ),
    seeds(
        &[StepBackIgnored, BootClockOnly],
        Aim::PlayTight(11),
        300,
        &["L1", "L4"],
    ),
    witness(&[SilenceCutByStepBack]),
    witness(&[CampaignOverStepBack]),
    witness(&[SuspendUnseen]),
    witness(&[SlewUnseen]),
    witness(&[DisruptionUnseen]),
    witness(&[DisruptionEndsPromises]),
    witness(&[BeforeByRaw]),
    witness(&[AfterByBoot]),
    witness(&[RawStepUnseen]),
    // The read.
    seeds(&[MemoizedCheck], Aim::PlayTight(1), 800, &["L2", "L1"]),
    hidden(
        &[OlderSnapshot],
        "the reader looks whether its state has the permit's index",
    ),
    seeds(
        &[OlderSnapshot, PermitIndexIgnored],
        Aim::Drawn,
        100,
        &["L7", "L2"],
    ),
    witness(&[AheadEndsEarly]),
    hidden(
        &[LookTakesDatabaseFirst],
        "no thread of a run comes between the two, and `tests/interleavings` sees it",
    ),
    hidden(
        &[LookTakesRunsFirst],
        "no thread of a run comes between the two, and `tests/interleavings` sees it",
    ),
    seeds(&[TombstoneSkipped], Aim::Drawn, 40, &["R4", "L2", "K1"]),
    seeds(&[OlderRunWins], Aim::Drawn, 40, &["R4", "L2", "K1"]),
    seeds(&[MergeKeepsOlder], Aim::Drawn, 40, &["R4", "L2", "K1"]),
    witness(&[LeavingRunMerged]),
    witness(&[FillWithoutTicket]),
    witness(&[AppliedReadLater]),
    witness(&[RevisionReadLater]),
    seeds(&[OlderShown], Aim::PlayPreempted(20), 300, &["L2"]),
    seeds(&[PermitIndexIgnored], Aim::Play(20), 100, &["L7", "L2"]),
    seeds(&[ShownNotCaptured], Aim::PlayPreempted(20), 300, &["L2"]),
    seeds(
        &[AppliedBeforeShown],
        Aim::PlayPreempted(20),
        300,
        &["L2", "K1"],
    ),
    seeds(
        &[RevisionAfterApplied],
        Aim::PlayPreempted(20),
        300,
        &["L2", "K1"],
    ),
    seeds(&[ReadUnapplied], Aim::Drawn, 40, &["P21"]),
    seeds(&[ShownLate], Aim::PlayPreempted(20), 300, &["L2"]),
    seeds(&[FrontierUnapplied], Aim::Play(20), 300, &["L2"]),
    seeds(&[FreshOfApplied], Aim::Play(20), 800, &["L8"]),
    seeds(&[NoFloor, LeaseReadyAtOnce], Aim::Play(9), 100, &["L2"]),
    seeds(
        &[NoFloor, LeaseReadyByCommit],
        Aim::PlayPreempted(12),
        600,
        &["L2"],
    ),
    seeds(&[NoFloor], Aim::PlayPreempted(12), 1_000, &["L2"]),
    witness(&[LeaseReadyAtOnce]),
    witness(&[LeaseReadyByCommit]),
    seeds(
        &[QuorumReadNoFloor, QuorumReadUnready],
        Aim::Play(9),
        100,
        &["L2"],
    ),
    seeds(&[QuorumReadNoFloor], Aim::Play(9), 500, &["L8", "L2"]),
    witness(&[QuorumReadUnready]),
    seeds(&[QuorumReadOldRound], Aim::Play(1), 400, &["L2"]),
    seeds(
        &[StepDownKeepsLease],
        Aim::PlayPreempted(10),
        1_000,
        &["L1", "L4"],
    ),
    seeds(
        &[LeaderVotes, StepDownKeepsLease],
        Aim::PlayPreempted(10),
        1_000,
        &["L1", "L4"],
    ),
    witness(&[LeaderVotes]),
    seeds(&[LeaseUntilStepDown], Aim::Drawn, 100, &["L1", "L4"]),
    // Reads of followers, and how old a state is.
    seeds(&[AnswerOfApplied], Aim::Play(20), 300, &["L2"]),
    seeds(&[AnswerUnconfirmed], Aim::Play(1), 300, &["L2", "L7"]),
    seeds(&[AnswerServesLater], Aim::Drawn, 100, &["L2"]),
    witness(&[AnswerToEarlierLife]),
    seeds(&[AgeOfTheAnswer], Aim::Drawn, 100, &["L8"]),
    seeds(&[FreshUnconfirmed], Aim::Drawn, 400, &["L8"]),
    witness(&[NamesRepeat]),
    seeds(&[AgeOfNewestName], Aim::Drawn, 100, &["L8"]),
    witness(&[AgeUnapplied]),
    seeds(&[AgeBySlowerClock], Aim::Drawn, 40, &["L8"]),
    witness(&[AgeFromTheFuture]),
    witness(&[ReaderForgetsItsClock]),
    witness(&[AgeOverStepBack]),
    seeds(&[LeaderAgeIsNow], Aim::Play(1), 1_300, &["L8"]),
    seeds(&[MinRevisionIgnored], Aim::Drawn, 40, &["C9"]),
    seeds(&[NoOwnSuccession], Aim::Drawn, 100, &["liveness"]),
    // Messages.
    seeds(&[AnyAckIsNewest], Aim::Drawn, 100, &["L1", "L4"]),
    seeds(&[RoundsStartOver], Aim::Play(3), 300, &["L1", "L4"]),
    seeds(
        &[UnknownRoundIsNow, OldTermAck],
        Aim::PlayTight(23),
        300,
        &["L1", "L4"],
    ),
    seeds(
        &[RoundsStartOver, OldTermAck],
        Aim::PlayTight(23),
        300,
        &["L1", "L4"],
    ),
    witness(&[OldTermAck]),
    witness(&[UnknownRoundIsNow]),
    witness(&[RoundsRepeat]),
    seeds(&[RejectUnpromised], Aim::Play(22), 400, &["L5", "P34"]),
    witness(&[SilentDiskPromises]),
    schedule!(
        SilentDiskLeads,
        p29_a_leader_whose_disk_is_silent_gives_up_and_another_goes_on
    ),
    schedule!(
        TimeFirst,
        a2_a_follower_that_stood_still_hears_what_has_come_before_it_looks_at_the_time
    ),
    // Lifecycle.
    seeds(&[VoteBeforeSync], Aim::Drawn, 40, &["R9"]),
    seeds(&[OwnVoteBeforeSync], Aim::Drawn, 40, &["R9"]),
    seeds(&[PromiseBeforeSync], Aim::Drawn, 40, &["R9", "P34"]),
    seeds(&[VoteForgotten], Aim::Play(2), 400, &["R6"]),
    seeds(
        &[VoteForgotten, NoBlackout],
        Aim::Play(2),
        200,
        &["L5", "R6", "R1"],
    ),
    seeds(
        &[VoteToctou],
        Aim::PlayTight(24),
        600,
        &["L4", "R9", "L1", "L5"],
    ),
    seeds(&[ReleaseWhileServing], Aim::Play(10), 100, &["L1", "L4"]),
    seeds(&[ReleaseByAnybody], Aim::Play(10), 200, &["L5"]),
    seeds(&[ReleaseEndsBlackout], Aim::Play(10), 400, &["L5"]),
    schedule!(
        NoTripwire,
        p17_clocks_that_stop_unnoticed_break_a_lease_and_the_tripwire_says_so
    ),
    schedule!(
        TrippedServes,
        p17_clocks_that_stop_unnoticed_break_a_lease_and_the_tripwire_says_so
    ),
    schedule!(
        TripwireForgotten,
        p17_clocks_that_stop_unnoticed_break_a_lease_and_the_tripwire_says_so
    ),
    witness(&[CandidateTrips]),
    witness(&[TripwireUnmarked]),
    // Raft.
    seeds(&[TwoVotes], Aim::Drawn, 100, &["R6", "R1"]),
    seeds(&[LogIgnored], Aim::Drawn, 200, &["R3"]),
    witness(&[OldTermsCounted]),
    seeds(&[CommitUnverified], Aim::Drawn, 100, &["R4"]),
    seeds(&[AckBeforeSync], Aim::Drawn, 40, &["R9"]),
    seeds(&[LeaderCountsUnsynced], Aim::Drawn, 40, &["R7"]),
    witness(&[AppliedUnheld]),
    seeds(&[CutStaysDurable], Aim::Drawn, 100, &["R9"]),
    // Damage.
    seeds(&[QuarantineIgnored], Aim::Play(15), 1_300, &["R3", "R11"]),
    witness(&[RejoinUnconfirmed]),
    witness(&[EarlierLifeCounts]),
    witness(&[DamageKeepsCommit]),
    witness(&[WipedVotesAtOnce]),
    Case {
        bugs: &[LateVotesCount],
        by: By::Schedule(
            "a23_a_vote_that_its_giver_has_forgotten_elects_none_of_five",
            wiped::a23_a_vote_that_its_giver_has_forgotten_elects_none_of_five,
        ),
    },
    witness(&[AuthorisedSkipsSilence]),
    witness(&[SilenceOverByRestart]),
    witness(&[WipedPromises]),
    witness(&[UnprovenPromises]),
    Case {
        bugs: &[BootstrapByMajority],
        by: By::Schedule(
            "a25_members_that_hold_nothing_do_not_bootstrap_a_second_cluster",
            wiped::a25_members_that_hold_nothing_do_not_bootstrap_a_second_cluster,
        ),
    },
    witness(&[BootstrapsOverlap]),
    Case {
        bugs: &[RestoredByMajority],
        by: By::Schedule(
            "a26_a_majority_that_is_restored_again_bootstraps_no_second_cluster",
            wiped::a26_a_majority_that_is_restored_again_bootstraps_no_second_cluster,
        ),
    },
    seeds(&[RestoredUnmarked], Aim::Restored, 50, &["L5"]),
    witness(&[RestoredOtherwise]),
    Case {
        bugs: &[OlderCopyCounts],
        by: By::Schedule(
            "a28_a_member_with_an_older_copy_counts_once_it_has_everything_back",
            wiped::a28_a_member_with_an_older_copy_counts_once_it_has_everything_back,
        ),
    },
    Case {
        bugs: &[OlderCopyUnmarked],
        by: By::Schedule(
            "a28_a_member_with_an_older_copy_counts_once_it_has_everything_back",
            wiped::a28_a_member_with_an_older_copy_counts_once_it_has_everything_back,
        ),
    },
    Case {
        bugs: &[EarlierLifeHolds],
        by: By::Schedule(
            "rl4_a_holder_that_was_set_back_serves_nothing_before_it_has_everything",
            wiped::rl4_a_holder_that_was_set_back_serves_nothing_before_it_has_everything,
        ),
    },
    Case {
        bugs: &[FormerLeaderSilent],
        by: By::Schedule(
            "a28_a_leader_of_before_says_what_a_member_that_was_set_back_has_forgotten",
            wiped::a28_a_leader_of_before_says_what_a_member_that_was_set_back_has_forgotten,
        ),
    },
    witness(&[ReminderOfAnyTerm]),
    Case {
        bugs: &[DivergenceIgnored],
        by: By::Schedule(
            "a27_a_member_whose_log_has_diverged_serves_nothing_and_keeps_it",
            wiped::a27_a_member_whose_log_has_diverged_serves_nothing_and_keeps_it,
        ),
    },
    Case {
        bugs: &[DivergenceForgotten],
        by: By::Schedule(
            "a27_a_member_whose_log_has_diverged_serves_nothing_and_keeps_it",
            wiped::a27_a_member_whose_log_has_diverged_serves_nothing_and_keeps_it,
        ),
    },
    Case {
        bugs: &[RepeatedTermTaken],
        by: By::Schedule(
            "a27_a_term_that_an_older_copy_repeats_is_seen_by_what_its_entries_say",
            wiped::a27_a_term_that_an_older_copy_repeats_is_seen_by_what_its_entries_say,
        ),
    },
    Case {
        bugs: &[DivergedCounts],
        by: By::Schedule(
            "a27_a_member_whose_log_has_diverged_serves_nothing_and_keeps_it",
            wiped::a27_a_member_whose_log_has_diverged_serves_nothing_and_keeps_it,
        ),
    },
    witness(&[VoteIsProof]),
    witness(&[BootstrapsMix]),
    witness(&[SessionsRepeat]),
    witness(&[EmptiedForgiven]),
    witness(&[LostLogForgiven]),
    witness(&[DamageForgiven]),
    witness(&[QuarantineForgotten]),
    witness(&[OlderVotesForgotten]),
    witness(&[ProvenMarkAfterWrites]),
    witness(&[AsideForEver]),
    witness(&[KillsProveDamage]),
    // Requests and exactly-once.
    hidden(
        &[WaitersByIndex],
        "a node that loses leadership answers all its waiters first",
    ),
    seeds(&[WaitersByIndex, WaitersKept], Aim::Drawn, 800, &["E1"]),
    witness(&[WaitersKept]),
    seeds(&[UnknownSaidRefused], Aim::Drawn, 100, &["E2"]),
    seeds(&[UnknownForgotten], Aim::Drawn, 100, &["E2"]),
    seeds(&[RetryApplied], Aim::Drawn, 40, &["E1", "K5"]),
    seeds(&[SweepTakesNewest], Aim::Drawn, 100, &["K5"]),
    witness(&[DedupByLast]),
    witness(&[MarkIgnored]),
    witness(&[ForgottenInUse]),
    witness(&[FullTableEvicts]),
    // The log and the vote file.
    seeds(&[SyncSkipped], Aim::Drawn, 200, &["A21"]),
    seeds(&[VoteSyncSkipped], Aim::Drawn, 200, &["A21"]),
    witness(&[SlotsAlternate]),
    witness(&[SyncErrorForgiven]),
    witness(&[DamageIsTorn]),
    witness(&[NamedIgnored]),
    witness(&[TailTrusted]),
    witness(&[NoSpare]),
    witness(&[QuarantineUnwritten]),
    witness(&[NamesTrusted]),
    witness(&[SegmentNameUnsynced]),
    witness(&[RealSyncSkipped]),
    witness(&[RealNamesUnsynced]),
    witness(&[MarkUnsynced]),
    witness(&[MarkNameUnsynced]),
    witness(&[RealMarkUnsynced]),
    // Client leases.
    seeds(
        &[ExpiredBeforeCommit],
        Aim::Holders,
        400,
        &["A15", "liveness"],
    ),
    seeds(&[DeadlinesKept], Aim::Holders, 400, &["C1"]),
    witness(&[RenewedWithoutLease]),
    // Seeds meet it once in a thousand runs.
    witness(&[ExpiringRevived]),
    witness(&[ExpiryOfAnyTerm]),
    hidden(
        &[ExpiryKept],
        "an expiry of another term than its entry's means nothing",
    ),
    seeds(
        &[ExpiryKept, ExpiryOfAnyTerm],
        Aim::Holders,
        2_000,
        &["C1", "R4", "K3", "K1"],
    ),
    witness(&[KeepsBareId]),
    witness(&[LeaseIdReused]),
    seeds(
        &[KeyNotDetached],
        Aim::Holders,
        400,
        &["R4", "K1", "C2", "liveness"],
    ),
    seeds(&[CheckpointNotCleared], Aim::Holders, 2_000, &["C1"]),
    witness(&[CheckpointByFasterClock]),
    witness(&[NewTtlCountsAtOnce]),
    witness(&[RenewalTakesBack]),
    witness(&[LongerPromiseForgotten]),
    // Logs without a beginning, and whole states.
    seeds(&[CutBeforeDurable], Aim::Compacted, 100, &["D1"]),
    seeds(&[CutByPublished], Aim::Compacted, 100, &["D1"]),
    seeds(&[ProgressAheadOfData], Aim::Drawn, 100, &["W9", "R4"]),
    witness(&[AheadUnbounded]),
    witness(&[AheadAdmitted]),
    witness(&[CompactsUnapplied]),
    seeds(&[SnapshotGoesBack], Aim::Compacted, 400, &["P30"]),
    seeds(
        &[SnapshotDropsLog],
        Aim::Compacted,
        100,
        &["R8", "R9", "R7", "R3"],
    ),
    seeds(&[SnapshotBaseUnsynced], Aim::Compacted, 40, &["R9"]),
    seeds(
        &[LackOfStateUnnoticed],
        Aim::Compacted,
        150,
        &["R4", "a node panicked"],
    ),
    // Watches.
    seeds(&[HandOverGap], Aim::Watchers, 40, &["W1"]),
    seeds(&[SkipForgets], Aim::Watchers, 40, &["W1"]),
    seeds(&[SlowSilently], Aim::Watchers, 40, &["W1", "W6"]),
    seeds(&[ResumeTooLate], Aim::Watchers, 40, &["W11"]),
    seeds(&[ResumeBeforeNext], Aim::Watchers, 40, &["W2", "W11"]),
    seeds(&[UncommittedShown], Aim::Watchers, 40, &["R8"]),
    seeds(&[RevisionSplit], Aim::Watchers, 40, &["W4"]),
    seeds(&[PartsKept], Aim::Watchers, 100, &["W4"]),
    seeds(&[NewestTold], Aim::Watchers, 40, &["W5"]),
    seeds(&[ProgressAhead], Aim::Watchers, 100, &["W6"]),
    seeds(&[FilterIgnored], Aim::Watchers, 40, &["W7"]),
    seeds(&[PrevKvNewer], Aim::Watchers, 40, &["W8"]),
    seeds(&[SyncedEarly], Aim::Watchers, 40, &["W9"]),
    seeds(&[FutureAtOnce], Aim::Watchers, 40, &["W10", "W2"]),
    seeds(&[CompactedStart], Aim::Watchers, 40, &["W10"]),
    seeds(
        &[CompactedUnnoticed],
        Aim::Watchers,
        150,
        &["W1", "a node panicked"],
    ),
    // Reads at revisions.
    seeds(&[PastReadsCurrent], Aim::Watchers, 40, &["K5", "K1", "W9"]),
    seeds(&[CompactedRead], Aim::Watchers, 40, &["K5"]),
    seeds(&[FutureRead], Aim::Watchers, 40, &["K5"]),
    witness(&[SnapshotUnconfirmed]),
    witness(&[ExportUnconfirmed]),
    // Read leases.
    seeds(&[ReadLeaseFromReceipt], Aim::Read, 200, &["L9", "L1", "L2"]),
    seeds(&[GrantFullLength], Aim::Read, 400, &["L9", "L1", "L2"]),
    witness(&[LengthByLargerClock]),
    witness(&[GrantPerHeartbeat]),
    seeds(&[GrantShortWait], Aim::Read, 40, &["L9", "L1", "L2"]),
    seeds(&[ReadLeaseNoFloor], Aim::Read, 40, &["P37", "L9", "L2"]),
    hidden(
        &[HolderAdmittedBehind],
        "it is for speed: the floor is for safety",
    ),
    seeds(
        &[ReadLeaseNoFloor, HolderAdmittedBehind],
        Aim::Read,
        400,
        &["L9", "L2"],
    ),
    witness(&[GranterMayVote]),
    seeds(&[NoCommitGate], Aim::Read, 40, &["L9", "L2"]),
    seeds(&[HolderServesApplied], Aim::Read, 40, &["L2"]),
    seeds(&[HolderCapturesCommit], Aim::Read, 40, &["L2"]),
    seeds(&[LastShownLate], Aim::Read, 40, &["L2"]),
    hidden(
        &[LastBeforeLease],
        "the floor makes up for it, and no thread of a run comes between the two; `tests/interleavings` sees it beside ReadLeaseNoFloor",
    ),
    witness(&[TenuresShareACell]),
    seeds(&[GrantAfterRecall], Aim::Read, 150, &["L9", "L1", "L2"]),
    witness(&[ReturnedStillServes]),
    hidden(
        &[OldCellHolds],
        "each batch loads its lease itself, and `tests/interleavings` sees it",
    ),
    witness(&[ReturnOfAnyLife]),
    seeds(&[HolderDroppedAtOnce], Aim::Read, 40, &["L9", "L2"]),
    seeds(&[TransferKeepsGrants], Aim::Read, 600, &["L1", "L2", "L9"]),
    witness(&[ReleaseKeepsGrants]),
    witness(&[ChangeOverGrants]),
    seeds(&[RemovedGateForgotten], Aim::ReadMoved, 150, &["L9", "L2"]),
    witness(&[HolderUnwatched]),
    // The comparison of states.
    seeds(&[StateDiverges], Aim::Compared, 40, &["R4"]),
    seeds(&[NeverCompared], Aim::Compared, 40, &["R4 states are"]),
    Case {
        bugs: &[DifferenceForgiven],
        by: By::Schedule(
            "r4_a_member_whose_state_differs_finds_out_and_serves_nothing_more",
            erring::r4_a_member_whose_state_differs_finds_out_and_serves_nothing_more,
        ),
    },
    // Locks.
    seeds(&[FenceUnchecked], Aim::Lockers, 200, &["T13"]),
    seeds(&[LockToAnyWaiter], Aim::Lockers, 100, &["X13", "T13"]),
    seeds(
        &[LeaseKeysLeft],
        Aim::Lockers,
        100,
        &["R4", "K1", "X13", "T13", "liveness"],
    ),
    witness(&[RecipesLookStale]),
];

/// No bug, and clocks that are wrong by more than the margin allows: it must show.
pub(super) const BEYOND: &[Beyond] = &[
    Beyond {
        aim: Aim::PlayTight(1),
        drift_ppm: 150_000,
        within: 400,
    },
    Beyond {
        aim: Aim::PlayDrifting(1),
        drift_ppm: 300_000,
        within: 400,
    },
];

/// Rules that no bug takes away, by the documents' names, and why not.
pub(super) const WITHOUT: &[(&str, &str)] = &[
    ("P19", "nothing counts ticks: promises and leases are times"),
    (
        "P31",
        "order, 0-RTT and identity are the transport's; the network here reorders and doubles \
         all by itself, and `tests/cluster` has the impostors",
    ),
    (
        "A1",
        "the types of a leased read exclude that (`node/leased_read.rs`): an example that must not compile \
         shows a read that joins a batch late",
    ),
    ("P32", "members of different versions do not meet yet"),
    (
        "P35",
        "the lock of the data directory and certificates keep it, outside of what is simulated",
    ),
    (
        "A12, A16",
        "unit tests of the node hold them (`node::tests::leases`): a grant and what it does to \
         deadlines are one step here, so there is no place between to take a rule away",
    ),
    (
        "A20",
        "it protects acknowledged bytes from the rewriting of a block, which the simulated disk \
         does not do; its marks are A21's bugs",
    ),
    ("A24", "a residue that nothing keeps"),
    (
        "N7, N8, N9",
        "unit tests hold them so far: `tests/leases.md` names those of T1, T21 and T12",
    ),
    (
        "T5, T6, T10, T11, T12, T15, T16, T17, T18, T19, T20, T21",
        "unit tests and processes hold them so far: `tests/leases.md` names them",
    ),
    (
        "T8",
        "a command carries all that its application depends on, so there is nothing to take away; \
         R4 compares what replicas hold",
    ),
];

const fn seeds(
    bugs: &'static [Bug],
    aim: Aim,
    within: u64,
    rules: &'static [&'static str],
) -> Case {
    let by = By::Seeds(aim, within, rules);
    Case { bugs, by }
}

const fn witness(bugs: &'static [Bug]) -> Case {
    let by = By::Witness;
    Case { bugs, by }
}

const fn hidden(bugs: &'static [Bug], why: &'static str) -> Case {
    let by = By::Hidden(why);
    Case { bugs, by }
}
