//! Marks: what must have happened in a few hundred seeds, so that no kind of fault, no path and no
//! checker dies in silence.
//!
//! A fault is marked where it has its effect, a checker where it had something to judge. The
//! standard run of `seeds_end_well` insists on every one of them.

/// Names the marks, and what each stands for.
macro_rules! marks {
    ($($mark:ident,)+) => {
        /// Something that must happen now and then.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Mark {
            $($mark,)+
        }

        impl Mark {
            /// Every mark.
            pub(crate) const ALL: [Self; [$(stringify!($mark)),+].len()] = [$(Self::$mark),+];
        }
    };
}

marks! {
    // Messages between nodes.
    MessageLost,
    MessageDoubled,
    MessageLate,
    MessageHeldBack,
    MessageCutOff,
    MessageCutByFlapping,
    MessageToNobody,
    // Threads and clocks.
    ThreadPreempted,
    PublicationInterrupted,
    DriverStalled,
    LogStalled,
    StateStalled,
    SessionsStalled,
    ProcessPaused,
    ClockRanBack,
    Suspended,
    Frozen,
    // Whole states.
    LogCompacted,
    SnapshotSent,
    SnapshotLost,
    SnapshotInstalled,
    SnapshotDiscarded,
    InstallationFinished,
    StateLacking,
    // Disks.
    SyncFailed,
    DiskFull,
    DiskSlow,
    KilledWhileWriting,
    PowerLostWhileWriting,
    LogCutShort,
    OlderStoreFound,
    EmptyStoreFound,
    DamageNoticed,
    BitFlipped,
    SectorMisdirected,
    LogLostItsEnd,
    MemberWiped,
    MemberRestored,
    MemberSetBack,
    StateSetAside,
    ApplySlow,
    // Lives.
    LeaderCrashed,
    AllCrashed,
    Retired,
    TransferAsked,
    TransferWon,
    DamagedReturned,
    WipedReturned,
    OlderCopyTold,
    ReminderSent,
    // Members.
    ChangeAsked,
    VotersChanged,
    JointCommitted,
    LeaderRemoved,
    RemovedKnows,
    AdjacentQuorumsJudged,
    // Read leases.
    ReadLeaseHeld,
    ReadLeaseRecalled,
    ReadLeaseReturned,
    ReadLeaseWaitedOut,
    CommitHeldBack,
    // Sessions and clients.
    BatchOfSeveral,
    LeftForTheNextBatch,
    PermitRefused,
    LeaseInsistedInVain,
    PermitBeyondApplied,
    ReadHandedOn,
    WriteRetried,
    OutcomeUnknown,
    AttemptTimedOut,
    ConnectionLost,
    SessionForgotten,
    SentToTheLeader,
    NoLeaderKnown,
    LeaseRenewed,
    RenewalUndecided,
    LockAcquired,
    LockWaitedFor,
    LeaderSeen,
    FencedWriteMade,
    FencedWriteRefused,
    // Checkers that had something to judge.
    RivalLeaseJudged,
    RivalReadLeaseJudged,
    CommitPastHoldersJudged,
    ReadLeaseFreshnessJudged,
    SucceededLeaderJudged,
    BurnedLeaderJudged,
    FreshnessJudged,
    LeaseAgeJudged,
    LeaseOutlastedJudged,
    TransferLeaseJudged,
    PromiseGateJudged,
    BlackoutGateJudged,
    CompletenessJudged,
    QuorumOnDiskJudged,
    QuarantineSilenceJudged,
    ConflictCutJudged,
    RealLogReopened,
    SearchDecided,
    WriteCheckedAgainstLog,
    RefusalCheckedAgainstLog,
    SwapCheckedAgainstLog,
    FailedSwapCheckedAgainstLog,
    PairCheckedAgainstLog,
    PairOfReadsCheckedAgainstLog,
    LeaseEndJudged,
    LeaseLossJudged,
    KeyOfLeaseCheckedAgainstLog,
    HolderCheckedAgainstLog,
    FencedWriteCheckedAgainstLog,
    RefusedByFenceCheckedAgainstLog,
    HistoryRemoved,
    RemovalCompared,
    StatesCompared,
    // Watches, and reads at revisions.
    WatchesStalled,
    ChangesNotKept,
    WatchFedFromStore,
    WatchBroken,
    SlowWatchEnded,
    WatchOvertakenByCompaction,
    CompactedWatchRefused,
    WatchResumedJudged,
    WatchEventsJudged,
    WatchOfSeveralChangesJudged,
    PreviousValueJudged,
    WatchProgressJudged,
    WatchStateJudged,
    WatchCaughtUpJudged,
    PastReadCheckedAgainstLog,
    CompactedReadRefused,
    FutureReadRefused,
}

/// What a few hundred seeds may miss.
const RARE: [Mark; 2] = [Mark::LogCutShort, Mark::InstallationFinished];

/// How often each mark was met.
#[derive(Clone, Debug)]
pub(crate) struct Marks([u64; Mark::ALL.len()]);

impl Default for Marks {
    fn default() -> Self {
        Self([0; Mark::ALL.len()])
    }
}

impl Marks {
    /// It happened.
    pub(crate) fn hit(&mut self, mark: Mark) {
        self.0[mark as usize] += 1;
    }

    /// Both together.
    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, count) in self.0.iter_mut().zip(&other.0) {
            *sum += count;
        }
    }

    /// How often it happened.
    pub(crate) fn count(&self, mark: Mark) -> u64 {
        self.0[mark as usize]
    }

    /// What never happened, and should in a few hundred seeds.
    pub(crate) fn missing(&self) -> Vec<Mark> {
        let all = Mark::ALL.into_iter().filter(|mark| !RARE.contains(mark));
        all.filter(|mark| self.count(*mark) == 0).collect()
    }

    /// The rarest, with how often they happened.
    pub(crate) fn rarest(&self, how_many: usize) -> Vec<(Mark, u64)> {
        let mut all = Mark::ALL.map(|mark| (mark, self.count(mark))).to_vec();
        all.sort_by_key(|(_, count)| *count);
        all.truncate(how_many);
        all
    }
}
