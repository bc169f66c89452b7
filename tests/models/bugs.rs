//! The models proven: each deliberate bug of `leasehold::planted` that breaks a rule of theirs is
//! found by a search to its end, and of each that another rule hides, the search to its end says
//! so.
//!
//! ```text
//! RUSTFLAGS='--cfg leasehold_bugs' cargo test --release --target-dir target/bugs \
//!     --no-default-features --test models bugs -- --nocapture
//! ```
//!
//! `BUGS=AckTime,NoFloor+LeaseReadyAtOnce` looks at these alone, in the models that the table names
//! for them or, with `BUGS_MODEL=rounds`, in that one, and tells the conversation that breaks a
//! claim. `UPDATE_BUGS=1` writes the table into `README.md`.

use std::cell::RefCell;
use std::sync::Mutex;

use leasehold::planted::Bug::*;
use leasehold::planted::{Bug, PlantedBugs, plant, was_reached};

use crate::holder_scopes::*;
use crate::scope::Scope;
use crate::scopes::*;
use crate::search;

/// Bugs that are planted together, in which model, and what it says.
struct Case {
    bugs: &'static [Bug],
    model: fn(u8) -> Scope,
    expected: Expected,
}

#[derive(Clone, Copy)]
enum Expected {
    /// A claim of this name breaks.
    Breaks(&'static str),
    /// None does: another rule stands before this one, which the model was led to all the same.
    Hidden(&'static str),
}

const fn breaks(claim: &'static str, bugs: &'static [Bug], model: fn(u8) -> Scope) -> Case {
    let expected = Expected::Breaks(claim);
    Case {
        bugs,
        model,
        expected,
    }
}

const fn hidden(by: &'static str, bugs: &'static [Bug], model: fn(u8) -> Scope) -> Case {
    let expected = Expected::Hidden(by);
    Case {
        bugs,
        model,
        expected,
    }
}

const CASES: &[Case] = &[
    // Votes and terms.
    breaks("R9", &[VoteBeforeSync], elections),
    breaks("P33", &[OwnVoteBeforeSync], elections),
    breaks("R6", &[VoteForgotten], elections),
    breaks("R6", &[TwoVotes], elections),
    breaks("R3", &[LogIgnored], logs),
    breaks("R3", &[OldTermsCounted], figure_8),
    breaks("R9", &[AckBeforeSync], writes),
    breaks("R9", &[CutStaysDurable], writes),
    breaks("R9", &[PromiseBeforeSync], writes),
    breaks("R7", &[LeaderCountsUnsynced], writes),
    breaks("A11", &[AppliedUnheld], writes),
    breaks("L2", &[QuorumReadOldRound], quorum_reads),
    breaks("L2", &[QuorumReadNoFloor], quorum_reads),
    breaks("L2", &[QuorumReadNoFloor, QuorumReadUnready], quorum_reads),
    breaks("L8", &[AgeOfNewestName], ages),
    // Memory that is lost.
    breaks("R1", &[BootstrapByMajority], bootstraps),
    breaks("R7", &[VoteIsProof], bootstraps),
    breaks("O2", &[WipedPromises], wiped_voters),
    // Measuring the interval.
    breaks("O2", &[AckTime], rounds),
    breaks("O2", &[RoundStampedLate], rounds),
    breaks("O2", &[NoMargin], rounds),
    breaks("O2", &[AnyAckIsNewest], rounds),
    breaks("O2", &[LeaseUntilStepDown], rounds),
    breaks("P37", &[CandidateTrips], rounds),
    breaks("O2", &[RawClockOnly], two_clocks),
    breaks("O2", &[BootClockOnly], two_clocks),
    breaks("O2", &[EitherClockEndsPromise], two_clocks),
    breaks("O2", &[StepBackIgnored], steps_back),
    // Keeping the promise.
    breaks("O2", &[NoBlackout], restarts),
    breaks("O2", &[HalfBlackout], restarts),
    breaks("O2", &[OwnBlackout], unequal_promises),
    breaks("R9", &[FloorNotRaised], unequal_promises),
    breaks("O2", &[PromiseOwnLength], unequal_promises),
    breaks("O2", &[SelfCampaign], rounds),
    hidden("the gate before the vote", &[PreVoteUngated], pre_votes),
    breaks("O2", &[PreVoteOnly], rounds),
    breaks("O2", &[PromiseDropped], crossed_pre_votes),
    breaks("O2", &[CandidacyGoesOn, UncheckedCampaign], pre_votes),
    hidden(
        "the gate before the campaign",
        &[CandidacyGoesOn],
        pre_votes,
    ),
    breaks("O2", &[RejectUnpromised], conflicts),
    breaks("O2", &[VoteToctou], late_votes),
    breaks("O2", &[StepDownKeepsLease], rivals),
    breaks("O2", &[LeaderVotes, StepDownKeepsLease], rounds),
    // Handing over.
    breaks("P9", &[NoBurn], handovers),
    breaks("P9", &[ResumeBurn], late_words),
    // A lease begins with the first entry of its leader on a quorum's disks. Who has that entry is no longer equal
    // to what the earlier leader named; and who lacks it gets no votes of that quorum.
    hidden("the comparison of logs", &[LateTransferWord], late_orders),
    breaks("O2", &[LateTransferWord, TransferUnequal], late_orders),
    breaks("O2", &[VotePromiseNotMade], handovers),
    breaks("O2", &[VotesArePromises], rivals),
    breaks("O2", &[ReleaseWhileServing], releases),
    // The read.
    breaks("L2", &[NoFloor], fresh_reads),
    breaks("L2", &[NoFloor, LeaseReadyByCommit], fresh_reads),
    breaks("L2", &[NoFloor, LeaseReadyAtOnce], fresh_reads),
    // Read leases.
    breaks("O2", &[ReadLeaseFromReceipt], grants),
    breaks("O2", &[GrantFullLength], grants),
    breaks("O2", &[LengthByLargerClock], uneven_clocks),
    breaks("O2", &[GranterMayVote], voting_holders),
    breaks("O2", &[NoBlackout], grantors),
    breaks("L9", &[GrantShortWait], gates),
    breaks("L9", &[NoCommitGate], gates),
    breaks("L2", &[HolderServesApplied], gates),
    breaks("L2", &[HolderCapturesCommit], gates),
    breaks("L2", &[LastShownLate], gates),
    breaks("L9", &[ReadLeaseNoFloor], latecomers),
    breaks("L9", &[HolderDroppedAtOnce], recalls),
    breaks("L9", &[GrantAfterRecall], recalls),
    breaks("O2", &[GranterMayVote], grantors),
    breaks("O2", &[TransferKeepsGrants], held_handovers),
    breaks("O2", &[ReleaseKeepsGrants], held_releases),
    breaks("L9", &[RemovedGateForgotten], removals),
    hidden("what an append promises", &[ChangeOverGrants], promotions),
];

/// Looked at only when `BUGS` names them: their searches were not yet seen to come to what stands here.
const UNSETTLED: &[Case] = &[
    breaks("R4", &[CommitUnverified], logs),
    hidden("A7", &[QuorumReadUnready], quorum_reads),
    breaks("L2", &[AnswerServesLater], follower_reads),
    breaks("L2", &[AnswerUnconfirmed], follower_reads),
    breaks("L8", &[LeaderAgeIsNow], ages),
    breaks("L8", &[AgeUnapplied], ages),
    breaks("L8", &[AgeBySlowerClock], ages),
    breaks("L8", &[FreshUnconfirmed], ages),
    breaks("O2", &[RoundsStartOver, OldTermAck], twice_leader),
    breaks("O2", &[UnknownRoundIsNow, OldTermAck], twice_leader),
    hidden(
        "names that are never used twice",
        &[OldTermAck],
        twice_leader,
    ),
    hidden("the term of an answer", &[RoundsStartOver], twice_leader),
    hidden("the term of an answer", &[UnknownRoundIsNow], twice_leader),
    hidden(
        "the end of a pre-vote by a heartbeat",
        &[UncheckedCampaign],
        pre_votes,
    ),
    hidden("the lease voided by the term", &[LeaderVotes], rounds),
    breaks("O2", &[StickyTransferFlag], stale_authority),
    breaks("O2", &[ReleaseByAnybody], releases),
    breaks("O2", &[ReleaseEndsBlackout], released_restarts),
    hidden("what an append promises", &[ChangeOverGrants], replacements),
    hidden("A7", &[LeaseReadyByCommit], fresh_reads),
    hidden("A7", &[LeaseReadyAtOnce], fresh_reads),
];

thread_local! {
    static PLANTED: RefCell<Option<(&'static [Bug], PlantedBugs)>> = const { RefCell::new(None) };
}

/// Plants the bugs of a scope in this thread, for a step. Searches have threads of their own.
pub(crate) fn plant_here(scope: &Scope) {
    PLANTED.with_borrow_mut(|planted| {
        let bugs = planted.as_ref().map_or(&[][..], |planted| planted.0);
        if bugs != scope.bugs {
            // What was planted goes first, or it would come back when it is dropped.
            *planted = None;
            *planted = Some((scope.bugs, plant(scope.bugs)));
        }
    });
}

/// Whether this thread has come to the places of all bugs of a scope.
pub(crate) fn all_reached(scope: &Scope) -> bool {
    !scope.bugs.is_empty() && scope.bugs.iter().all(|bug| was_reached(*bug))
}

fn names(bugs: &[Bug]) -> String {
    let names: Vec<String> = bugs.iter().map(Bug::to_string).collect();
    names.join(" + ")
}

/// Looks at a case: its line of the table, or why it is not as expected.
fn look(bugs: &'static [Bug], model: Scope, expected: Option<Expected>) -> Result<String, String> {
    let name = model.name;
    let scope = Scope {
        bugs,
        steps: None,
        ..model
    };
    let found = search(&scope, None);
    let claim = found.broken.as_deref();
    let claim = claim.map(|claim| claim.split(':').next().unwrap_or(claim));
    let rules: Vec<&str> = bugs.iter().map(|bug| bug.rule()).collect();
    let rules = rules.join(" + ");
    let (names, states) = (names(bugs), found.states);
    let line = |found: String, steps: String| {
        format!("| {names} | {rules} | `{name}` | {found} | {states} | {steps} |")
    };
    let steps = found.steps.to_string();
    match (expected, claim) {
        (None, _) => {
            let story = found.story.unwrap_or_default();
            Ok(format!(
                "{}\n{story}",
                line(claim.unwrap_or("–").to_owned(), steps)
            ))
        }
        (Some(Expected::Breaks(rule)), Some(claim)) if claim == rule => {
            Ok(line(claim.to_owned(), steps))
        }
        (Some(Expected::Hidden(by)), None) if scope.marks.all_reached() => {
            Ok(line(format!("hidden by {by}"), "–".to_owned()))
        }
        (Some(_), claim) => Err(format!(
            "{names} in {name}: {}{}",
            claim.unwrap_or("nothing breaks"),
            if scope.marks.all_reached() {
                ""
            } else {
                ", and never come to"
            },
        )),
    }
}

/// `BUGS`, if it is set: which bugs to look at, some together.
fn wanted() -> Option<Vec<Vec<Bug>>> {
    let wanted = std::env::var("BUGS").ok()?;
    let bug = |name: &str| Bug::named(name).unwrap_or_else(|| panic!("BUGS: no bug `{name}`"));
    let case = |case: &str| case.split('+').map(bug).collect();
    Some(wanted.split(',').map(case).collect())
}

#[test]
fn every_bug_is_found_or_hidden() {
    let mut cases: Vec<(&'static [Bug], Scope, Option<Expected>)> = Vec::new();
    let model = std::env::var("BUGS_MODEL").ok();
    let model = model.map(|name| {
        let mut all = ALL.iter().map(|scope| scope(0));
        all.find(|scope| scope.name == name)
            .expect("BUGS_MODEL names a model")
    });
    match (wanted(), model) {
        (Some(wanted), Some(model)) => {
            for bugs in wanted {
                cases.push((bugs.leak(), model.clone(), None));
            }
        }
        (wanted, _) => {
            let chosen = |case: &&Case| {
                let wanted = wanted.as_ref();
                wanted.is_none_or(|wanted| wanted.iter().any(|bugs| bugs == case.bugs))
            };
            let unsettled = UNSETTLED.iter().filter(|_| wanted.is_some());
            for case in CASES.iter().chain(unsettled).filter(chosen) {
                cases.push((case.bugs, (case.model)(0), Some(case.expected)));
            }
        }
    }
    let queue = Mutex::new(cases.into_iter().enumerate());
    let looks = Mutex::new(Vec::new());
    let work = || {
        loop {
            let next = queue.lock().unwrap().next();
            let Some((place, (bugs, model, expected))) = next else {
                return;
            };
            let look = look(bugs, model, expected);
            looks.lock().unwrap().push((place, look));
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
    let mut looks = looks.into_inner().unwrap();
    looks.sort_by_key(|(place, _)| *place);
    let mut table = String::from(HEAD);
    let mut wrong = Vec::new();
    for (_, look) in looks {
        match look {
            Ok(line) => {
                table.push_str(&line);
                table.push('\n');
            }
            Err(what) => wrong.push(what),
        }
    }
    println!("{table}");
    if std::env::var_os("UPDATE_BUGS").is_some() && wrong.is_empty() {
        write_down(&table);
    }
    assert!(wrong.is_empty(), "not as expected:\n{}", wrong.join("\n"));
}

const HEAD: &str = "\
| Bug | Rule | Model | What breaks | States | Steps |
|---|---|---|---|---|---|
";

/// Replaces the table in the README of the models.
fn write_down(table: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/models/README.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the README says where");
    let (_, after) = rest.split_once(END).expect("the README says where it ends");
    std::fs::write(path, format!("{before}{BEGIN}\n{table}{END}{after}")).unwrap();
}

const BEGIN: &str = "<!-- The table of bugs.rs begins. -->";
const END: &str = "<!-- The table of bugs.rs ends. -->";
