//! Every model, and what must be seen by it.

use std::process::ExitCode;
use std::time::Instant;

use crate::server::peers;
use crate::{holder, lease, planted, queues, store};

/// A claim that must hold in every order, and the bugs that must be seen by it.
struct Model {
    name: &'static str,
    run: fn(),
    planted: &'static [&'static str],
}

macro_rules! models {
    ($($part:ident::$name:ident: $planted:expr,)*) => {
        const MODELS: &[Model] = &[$(
            Model {
                name: stringify!($name),
                run: $part::$name,
                planted: &$planted,
            },
        )*];
    };
}

models! {
    lease::a_read_sees_what_anybody_has_seen_before_it_arrived: ["FrontierUnapplied"],
    lease::a_renewal_holds_whole_and_after_what_it_rests_on: ["OrderRelaxed"],
    lease::a_lease_is_void_before_its_end_is_told: ["ReleaseWhileServing", "StepDownKeepsLease"],
    lease::a_new_leadership_serves_nothing_below_its_floor: ["NoFloor"],
    holder::a_read_at_a_holder_sees_what_clients_were_told_before_it: [
        "NoCommitGate", "LastShownLate", "HolderServesApplied", "HolderCapturesCommit",
        "PermitIndexIgnored",
    ],
    holder::a_read_lease_is_void_before_it_is_given_back: [
        "HolderDroppedAtOnce", "ReturnedStillServes", "OldCellHolds", "GrantAfterRecall",
        "MemoizedCheck",
    ],
    holder::a_read_lease_is_over_before_its_leader_goes_on_without_it:
        ["ReadLeaseFromReceipt", "GrantShortWait", "CachedCheckClock"],
    holder::a_tenure_is_not_taken_for_the_one_before: ["TenuresShareACell", "ReadLeaseNoFloor"],
    holder::a_tenure_serves_nothing_from_before_it_began: ["ReadLeaseNoFloor", "NoFloor"],
    holder::a_member_that_is_let_in_a_little_behind_serves_nothing_below_its_floor:
        ["ReadLeaseNoFloor"],
    holder::who_finds_a_tenure_finds_what_its_holder_had_then: ["LastBeforeLease+ReadLeaseNoFloor"],
    store::a_read_has_what_was_applied_before_it_from_the_cache:
        ["PermitIndexIgnored", "AppliedBeforeShown", "ShownNotCaptured", "ShownLate"],
    store::a_read_has_what_was_applied_before_it_from_the_database:
        ["AppliedBeforeShown", "AppliedReadLater"],
    store::a_read_during_a_hand_over_finds_what_was_applied:
        ["AheadEndsEarly", "LookTakesDatabaseFirst"],
    store::a_snapshot_during_a_hand_over_is_of_one_moment:
        ["AheadEndsEarly", "LookTakesDatabaseFirst", "LookTakesRunsFirst"],
    store::two_that_hand_over_and_one_that_merges_lose_nothing: ["LeavingRunMerged"],
    store::a_reply_names_the_revision_of_what_was_applied: ["OrderRelaxed", "RevisionAfterApplied"],
    store::readers_that_fill_in_do_not_undo_a_write: ["FillWithoutTicket"],
    store::a_deleted_key_is_not_brought_back_by_a_reader: ["FillWithoutTicket"],
    store::a_state_that_takes_the_place_of_another_is_found_as_a_whole: [],
    queues::what_gathers_arrives_in_order_and_wakes_the_taker: ["NoticeLost"],
    queues::an_answer_is_delivered_once_and_wakes_the_stream: [],
    queues::room_that_is_left_is_given_to_who_waits: [],
    queues::a_budget_is_never_overdrawn: [],
    peers::a_stream_queue_keeps_the_order_and_wakes_its_task: ["NoticeLost"],
    peers::a_full_stream_queue_says_what_it_drops: ["NoticeLost"],
    peers::a_stream_queue_that_empties_tells_who_waits_for_it: ["NoticeLost"],
}

/// Threads of a model may be preempted this often: what is found with more is hardly ever found by
/// one preemption more, and the number of orders grows with each (Musuvathi and Qadeer).
const PREEMPTIONS_MAX: usize = 3;

fn check(run: fn()) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS_MAX);
    builder.max_branches = 100_000;
    builder.check(run);
}

#[expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "it is its own test harness"
)]
pub(crate) fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let mut failed = false;
    for model in MODELS {
        if !wanted.is_empty() && !wanted.iter().any(|name| model.name.contains(name)) {
            continue;
        }
        let begun = Instant::now();
        check(model.run);
        println!(
            "{}: holds in every order, {:.1?}",
            model.name,
            begun.elapsed()
        );
        for bugs in model.planted {
            let begun = Instant::now();
            let _planted = planted::with(bugs);
            // The panic is what is wanted, and says more than anybody wants to read.
            let hook = std::panic::take_hook();
            std::panic::set_hook(Box::new(|_| {}));
            let missed = std::panic::catch_unwind(|| check(model.run)).is_ok();
            std::panic::set_hook(hook);
            let verdict = if missed { "NOT SEEN" } else { "seen" };
            println!("  {bugs}: {verdict} in {:.1?}", begun.elapsed());
            failed |= missed;
        }
    }
    if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
