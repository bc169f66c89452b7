//! Members that lost everything, and disks that lie: schedules told by name, as in `scenarios.rs`.

use std::time::Duration;

use leasehold::api::Consistency;
use leasehold::node::StateCheck;
use leasehold::raft::{Timing, TimingOptions};
use leasehold::types::{NodeId, Role};

use crate::affordable;
use crate::clock::{MS, Which};
use crate::disk::{Ending, OlderCopy};
use crate::history::Fate;
use crate::machine::Thread;
use crate::nemesis::Target::Node;
use crate::nemesis::{Fault, Way};
use crate::options::Options;
use crate::scenarios::Stage;
use crate::world::World;

/// Whether `node` takes part again after it lost everything.
fn is_back(stage: &Stage, node: usize) -> bool {
    let machine = &stage.world.machines[node];
    let process = machine.process.as_ref();
    let follows = process.is_some_and(|process| process.status.role == Role::Follower);
    follows && !machine.disk.wiped
}

#[test]
fn a23_a_wiped_member_takes_everything_anew() {
    let mut stage = Stage::with(3);
    let one = stage.other(1);
    let written = stage.write();
    stage.does(5, Fault::Wipe(Node(one)));
    stage.until("it is back", 3_000, |stage| is_back(stage, one));
    let Fate::Written { revision } = written else {
        unreachable!("write() checks it");
    };
    stage.must_show(one, revision, 500);
    stage.ends_well();
}

/// With the other follower cut off there is nobody whose promise counts: the leader must not take
/// the wiped one's.
#[test]
fn a23_a_wiped_member_confirms_nobody() {
    let mut stage = Stage::with(3);
    let (leader, one, two) = (stage.leader(), stage.other(1), stage.other(2));
    stage.does(4_000, Fault::Isolate(Node(two), Way::Both, false));
    stage.does(1, Fault::Wipe(Node(one)));
    stage.until("the lease is over", 460, |stage| !stage.lease_holds(leader));
    stage.until("the leader gives up", 1_000, |stage| !stage.leads(leader));
    stage.wait(2_000);
    assert!(!is_back(&stage, one), "nobody can tell it how much to hold");
    stage.until("it is back", 6_000, |stage| is_back(stage, one));
    stage.ends_well();
}

/// Two of the longest election timeouts from its start, 2 s: whoever may have its forgotten vote has
/// given up. It has everything long before, and the other one waits for its vote.
#[test]
fn a23_a_wiped_member_outwaits_the_vote_that_it_forgot() {
    for step_back in [None, Some(Which::Boot), Some(Which::Raw)] {
        let mut stage = Stage::with(3);
        let (leader, one, two) = (stage.leader(), stage.other(1), stage.other(2));
        stage.does(5, Fault::Wipe(Node(one)));
        let wiped = stage.now();
        stage.wait(300);
        stage.does(5_000, Fault::Isolate(Node(leader), Way::Both, false));
        if let Some(which) = step_back {
            stage.wait(10);
            let now = stage.world.now;
            let clock = &mut stage.world.machines[one].clock;
            clock.step(now, which, -(5 * MS as i64));
        }
        // The other one would be elected after a second, with its vote.
        stage.wait(wiped + 1_990 - stage.now());
        let leads = stage.world.leader();
        assert!(
            leads.is_none_or(|node| node == leader),
            "it must keep silent"
        );
        stage.until_another_leads(leader, 4_000);
        assert!([one, two].contains(&stage.leader()));
        stage.ends_well();
    }
}

/// A member that may have forgotten its votes: it is in quarantine until they count no more.
fn returns_from_silence(stage: &mut Stage, one: usize) {
    let since = stage.now();
    stage.wait(1_900);
    let process = stage.world.machines[one].process.as_ref();
    let role = process.map(|process| process.status.role);
    assert_eq!(role, Some(Role::Quarantined), "a vote may still count");
    stage.until("it is back", 1_000, |stage| is_back(stage, one));
    assert!(stage.now() - since >= 1_990, "{} ms", stage.now() - since);
    stage.write();
}

#[test]
fn a23_an_emptied_founder_that_knows_that_its_cluster_exists_waits_and_takes_everything_again() {
    let mut stage = Stage::with(3);
    let one = stage.other(1);
    stage.write();
    stage.world.machines[one].cluster_exists = true;
    stage.does(1, Fault::Wipe(Node(one)));
    stage.wait(2);
    returns_from_silence(&mut stage, one);
    stage.ends_well();
}

#[test]
fn a23_a_member_whose_log_and_votes_are_gone_waits_and_takes_everything_again() {
    let mut stage = Stage::with(3);
    let one = stage.other(1);
    stage.write();
    // The first process ends before it has spoken, and the mark is all that the second goes by.
    for _ in 0..2 {
        stage.world.stop(one, Ending::Kill);
        stage.world.machines[one].disk.lose_data(one);
        let disk = &stage.world.machines[one].disk;
        stage.world.judge.stopped(one, disk);
        stage.world.start(one);
        stage.wait(500);
        stage.world.stop(one, Ending::Kill);
        stage.world.start(one);
    }
    returns_from_silence(&mut stage, one);
    stage.ends_well();
}

/// The members of a cluster of three: its first leader; one that has stored everything with it; and one that
/// gave its vote and stopped before it had stored anything.
fn bootstrapped_without_the_third() -> (Stage, [usize; 3]) {
    let mut stage = Stage {
        world: World::new(Options::still(3)),
    };
    stage.until("somebody leads", 5_000, |stage| {
        stage.world.leader().is_some()
    });
    let nodes = [stage.leader(), stage.other(1), stage.other(2)];
    let late = nodes[2];
    stage.world.stop(late, Ending::Kill);
    assert!(stage.world.machines[late].disk.log().is_empty());
    for _ in 0..3 {
        stage.write();
    }
    stage.wait(100);
    (stage, nodes)
}

/// The operator starts `node` with an empty directory, and with `cluster.state = "new"`.
fn empty(stage: &mut Stage, node: usize) {
    stage.world.stop(node, Ending::Kill);
    stage.world.machines[node].disk.wipe(node);
    let disk = &stage.world.machines[node].disk;
    stage.world.judge.stopped(node, disk);
    stage.world.start(node);
}

/// A25: n3 votes at the bootstrap, and stops with an empty log; n1 is emptied, n2 is down. n1 and n3 hold
/// nothing and are a majority: if that bootstrapped a cluster, all that was acknowledged would be lost.
#[test]
pub(crate) fn a25_members_that_hold_nothing_do_not_bootstrap_a_second_cluster() {
    let (mut stage, [first, second, late]) = bootstrapped_without_the_third();
    let Fate::Written { revision } = stage.write() else {
        unreachable!("write() checks it");
    };
    stage.world.stop(second, Ending::Kill);
    empty(&mut stage, first);
    stage.world.start(late);
    for _ in 0..50 {
        stage.wait(100);
        assert_eq!(stage.world.leader(), None, "there is no second cluster");
    }
    let process = stage.world.machines[late].process.as_ref();
    let awaited = process
        .expect("it runs")
        .node
        .consensus()
        .bootstrap_awaits();
    assert!(awaited.contains(&NodeId(second as u64 + 1)), "{awaited:?}");
    // The late one remembers its vote of the bootstrap, and has lost nothing since: it may vote.
    stage.world.start(second);
    assert_eq!(stage.until_another_leads(first, 5_000), second);
    stage.must_show(late, revision, 2_000);
    stage.ends_well();
}

/// A25: two of three are emptied while the third is down. That is beyond any majority; but no member goes on as
/// if nothing had happened, and the only copy is not overwritten.
#[test]
fn a25_two_emptied_members_bootstrap_nothing_beside_the_only_copy() {
    let mut stage = Stage::with(3);
    let nodes = [stage.leader(), stage.other(1), stage.other(2)];
    let held = stage.world.machines[nodes[2]].disk.log().to_vec();
    stage.world.stop(nodes[2], Ending::Kill);
    empty(&mut stage, nodes[0]);
    empty(&mut stage, nodes[1]);
    for started in [false, true] {
        if started {
            stage.world.start(nodes[2]);
        }
        for _ in 0..50 {
            stage.wait(100);
            assert_eq!(stage.world.leader(), None);
        }
    }
    let log = stage.world.machines[nodes[2]].disk.log();
    assert!(log.starts_with(&held), "nothing of it was replaced");
}

/// What one of the members that bootstrapped a cluster finds on its disk as it starts again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Whole,
    /// The vote of the bootstrap, and nothing else.
    Vote,
    Nothing,
}

/// A25: whatever each of three founders finds, which of them is down at first, and in which order they start: as long
/// as one has what was acknowledged there is no second cluster, and nobody leads who has less.
#[test]
fn a25_of_three_founders_no_mixture_bootstraps_a_second_cluster() {
    use Found::{Nothing, Vote, Whole};
    let mut served = 0;
    // What was acknowledged was stored by two at least, so that only the third can be left with its vote.
    for first in [Whole, Nothing] {
        for second in [Whole, Nothing] {
            for third in [Whole, Vote, Nothing] {
                let found = [first, second, third];
                // If nobody has anything it may be founded again: no member can know that it existed.
                if !found.contains(&Whole) {
                    continue;
                }
                for order in ORDERS {
                    for is_last_late in [false, true] {
                        served += u32::from(is_served_again(found, order, is_last_late));
                    }
                }
            }
        }
    }
    // All but those where two have nothing.
    assert_eq!(served, 7 * 6 * 2);
}

const ORDERS: [[usize; 3]; 6] = [
    [0, 1, 2],
    [0, 2, 1],
    [1, 0, 2],
    [1, 2, 0],
    [2, 0, 1],
    [2, 1, 0],
];

/// Starts three founders that find what is told, in that order, the last one long after the others or with them; and
/// says whether the cluster goes on once all are up.
fn is_served_again(found: [Found; 3], order: [usize; 3], is_last_late: bool) -> bool {
    let told = format!("{found:?} {order:?} {is_last_late}");
    let (mut stage, nodes) = bootstrapped_without_the_third();
    if found[2] == Found::Whole {
        stage.world.start(nodes[2]);
        let whole = stage.world.machines[nodes[0]].disk.log().len();
        stage.until("the third has everything", 2_000, |stage| {
            stage.world.machines[nodes[2]].disk.log().len() >= whole
        });
    }
    let Fate::Written { revision } = stage.write() else {
        unreachable!("write() checks it");
    };
    stage.wait(100);
    let id = |stage: &Stage, node: usize| stage.world.machines[node].disk.known_bootstrap();
    let bootstrap = id(&stage, nodes[0]);
    assert!(bootstrap.is_some(), "{told}");
    for node in nodes {
        stage.world.stop(node, Ending::Kill);
    }
    for (node, found) in nodes.into_iter().zip(found) {
        let machine = &mut stage.world.machines[node];
        match found {
            Found::Whole => {}
            Found::Vote => assert!(machine.disk.log().is_empty(), "{told}"),
            Found::Nothing => {
                machine.disk.wipe(node);
                stage.world.judge.stopped(node, &machine.disk);
            }
        }
    }
    let goes_on = |stage: &mut Stage| {
        for _ in 0..35 {
            stage.wait(100);
            for node in nodes {
                let known = id(stage, node);
                assert!(known.is_none() || known == bootstrap, "{told}: {known:?}");
            }
            if stage.world.leader().is_some() {
                return true;
            }
        }
        false
    };
    stage.world.start(nodes[order[0]]);
    stage.world.start(nodes[order[1]]);
    if is_last_late {
        // They are a majority. One that has forgotten what it acknowledged must not count.
        let up = [found[order[0]], found[order[1]]];
        let may_go_on = up.contains(&Found::Whole) && !up.contains(&Found::Nothing);
        assert_eq!(goes_on(&mut stage), may_go_on, "{told}");
    }
    stage.world.start(nodes[order[2]]);
    if !goes_on(&mut stage) {
        return false;
    }
    for node in nodes {
        stage.must_show(node, revision, 5_000);
    }
    stage.ends_well();
    true
}

/// A25: the first leader ends when it alone has stored an entry. The others remember their votes, so they are
/// not taken for members that were emptied: else no member could ever be elected.
#[test]
fn a25_a_bootstrap_that_is_cut_short_goes_on() {
    let mut stage = Stage {
        world: World::new(Options::still(3)),
    };
    stage.until("somebody leads", 5_000, |stage| {
        stage.world.leader().is_some()
    });
    let nodes = [stage.leader(), stage.other(1), stage.other(2)];
    let first = nodes[0];
    for other in &nodes[1..] {
        stage.world.stop(*other, Ending::Kill);
    }
    stage.until("it has stored an entry", 1_000, |stage| {
        !stage.world.machines[first].disk.log().is_empty()
    });
    for node in nodes {
        stage.world.stop(node, Ending::Kill);
        stage.world.start(node);
    }
    stage.until("somebody leads", 5_000, |stage| {
        stage.world.leader().is_some()
    });
    assert_eq!(stage.leader(), first);
    stage.ends_well();
}

/// Whoever took it in, and whatever its configuration says of the cluster; and though it is started once
/// more when it has everything, and its log and its vote file look like anybody's.
#[test]
fn a23_a_wiped_member_keeps_its_silence_whoever_founded_the_cluster() {
    for joined_later in [false, true] {
        for is_restarted in [false, true] {
            let mut options = Options::still(4);
            options.founders = 3;
            let mut stage = Stage::of(options);
            let one = match joined_later {
                true => 3,
                false => (stage.leader() + 1) % 3,
            };
            if joined_later {
                stage.does(0, Fault::Add(Node(3), true));
                stage.until("it votes", 5_000, |stage| {
                    stage.world.members_are_settled() && stage.world.members().len() == 4
                });
            }
            stage.write();
            stage.does(1, Fault::Wipe(Node(one)));
            if is_restarted {
                stage.wait(1_500);
                stage.does(1, Fault::Crash(Node(one), Ending::Kill));
            }
            stage.wait(2);
            returns_from_silence(&mut stage, one);
            stage.ends_well();
        }
    }
}

/// Of five, the third stands for a term with the vote of the second, which loses everything at once, and whose silence is
/// over when the disk of the third, which stood still, has written its own vote, and the fourth hears the question. The
/// first leads all the time, and what it and the second have acknowledged since is unknown to the third.
#[test]
pub(crate) fn a23_a_vote_that_its_giver_has_forgotten_elects_none_of_five() {
    let mut options = Options::still(5);
    let timing = TimingOptions {
        step_down_after: Duration::from_secs(1),
        ..TimingOptions::default()
    };
    options.timing = Timing::new(timing).expect("it fits");
    let mut stage = Stage::of(options);
    let first = stage.leader();
    let deaf = [stage.other(1), stage.other(2), stage.other(3)];
    let fifth = stage.other(4);
    for other in deaf {
        stage.world.network.cut(first, other);
    }
    let asks = |stage: &Stage| {
        let mut deaf = deaf.into_iter();
        deaf.find(|node| role(stage, *node) == Some(Role::PreCandidate))
    };
    stage.until("one asks", 1_000, |stage| asks(stage).is_some());
    let begun = stage.now();
    let third = asks(&stage).expect("it was seen");
    let others: Vec<usize> = deaf.into_iter().filter(|other| *other != third).collect();
    let (second, fourth) = (others[0], others[1]);
    stage.does(3_000, Fault::Stall(Node(third), Thread::Log));
    for hears_late in [first, fifth] {
        stage.world.network.cut(third, hears_late);
    }
    stage.world.network.slow = Some(((third, fourth), 3_000 * MS));
    let has_vote_of = |stage: &Stage, node: usize| {
        let hard = stage.world.machines[node].disk.hard();
        hard.vote == Some(NodeId(third as u64 + 1))
    };
    stage.until("it has a vote", 100, |stage| has_vote_of(stage, second));
    stage.wait(3);
    empty(&mut stage, second);
    for other in [second, fourth] {
        stage.world.network.join(first, other);
    }
    stage.until("it is back", 2_300, |stage| is_back(stage, second));
    assert_eq!(role(&stage, third), Some(Role::Candidate));

    // The fourth is free to vote again, and lacks what the others acknowledge.
    stage.wait(begun + 2_400 - stage.now());
    stage.world.network.cut(first, fourth);
    stage.wait(10);
    let revision = written(&mut stage);
    stage.until("the fourth votes", 700, |stage| has_vote_of(stage, fourth));
    stage.wait(20);
    assert!(!stage.leads(third) && stage.leads(first));
    stage.must_show(second, revision, 500);
    stage.ends_well();
}

/// Three members that were restored from the same backup and go on: the leader and one that has everything;
/// and one that is down since it had only a part of what was acknowledged.
fn restored_and_one_behind() -> (Stage, [usize; 3]) {
    let mut options = Options::still(3);
    options.real_log = false;
    let mut stage = Stage::of(options);
    stage.wait(500);
    let backup = stage.world.machines[stage.leader()].disk.back_up();
    stage.world.backup = Some(backup);
    for node in 0..3 {
        stage.world.stop(node, Ending::Kill);
    }
    for node in 0..3 {
        restore(&mut stage, node);
    }
    stage.until("somebody leads", 5_000, |stage| {
        stage.world.leader().is_some()
    });
    let nodes = [stage.leader(), stage.other(1), stage.other(2)];
    stage.write();
    stage.wait(100);
    stage.world.stop(nodes[2], Ending::Kill);
    for _ in 0..3 {
        stage.write();
    }
    stage.wait(100);
    (stage, nodes)
}

/// The operator repeats the line that restores `node`.
fn restore(stage: &mut Stage, node: usize) {
    stage.world.stop(node, Ending::Kill);
    stage.world.restore(node);
    let disk = &stage.world.machines[node].disk;
    stage.world.judge.stopped(node, disk);
    stage.world.start(node);
}

/// A26: n2 is restored again, n1 is down, and n3 lacks what both have acknowledged.
#[test]
fn a26_a_member_that_is_restored_again_elects_no_leader_that_lacks_what_it_acknowledged() {
    let (mut stage, [first, second, behind]) = restored_and_one_behind();
    let Fate::Written { revision } = stage.write() else {
        unreachable!("write() checks it");
    };
    stage.world.stop(first, Ending::Kill);
    restore(&mut stage, second);
    stage.world.start(behind);
    for _ in 0..50 {
        stage.wait(100);
        assert_eq!(stage.world.leader(), None);
    }
    stage.world.start(first);
    stage.until("it leads again", 5_000, |stage| {
        stage.world.leader() == Some(first)
    });
    stage.must_show(second, revision, 5_000);
    stage.ends_well();
}

/// A26: n2 and n3 are restored again while n1, which has everything, is down.
#[test]
pub(crate) fn a26_a_majority_that_is_restored_again_bootstraps_no_second_cluster() {
    let (mut stage, [first, second, behind]) = restored_and_one_behind();
    stage.world.stop(first, Ending::Kill);
    restore(&mut stage, second);
    restore(&mut stage, behind);
    for _ in 0..50 {
        stage.wait(100);
        assert_eq!(stage.world.leader(), None);
    }
}

/// A28: a member comes back with an older copy of its data directory while its leader goes on: what it says counts
/// once it has everything back and the votes that it forgot count no more, and a restart does not change that.
#[test]
pub(crate) fn a28_a_member_with_an_older_copy_counts_once_it_has_everything_back() {
    let mut options = Options::still(3);
    options.real_log = false;
    let mut stage = Stage::of(options);
    let (leader, one) = (stage.leader(), stage.other(1));
    stage.write();
    stage.wait(100);
    stage.world.stop(one, Ending::Kill);
    let older = stage.world.machines[one].disk.copy();
    let older = older.expect("the log is a plain one");
    stage.world.start(one);
    stage.wait(1_000);
    for _ in 0..3 {
        stage.write();
    }
    stage.wait(100);
    let held = stage.world.machines[one].disk.entries().len();
    stage.world.stop(one, Ending::Kill);
    stage.world.machines[one].disk.set_back(&older);
    let disk = &stage.world.machines[one].disk;
    stage.world.judge.stopped(one, disk);
    stage.world.start(one);
    stage.until("the leader tells it", 500, |stage| {
        role(stage, one) == Some(Role::Quarantined)
    });
    stage.until("it has everything", 500, |stage| {
        stage.world.machines[one].disk.entries().len() >= held
    });
    stage.world.stop(one, Ending::Kill);
    stage.world.start(one);
    let since = stage.now();
    assert_eq!(role(&stage, one), Some(Role::Quarantined));
    stage.wait(1_900);
    assert_eq!(role(&stage, one), Some(Role::Quarantined));
    stage.until("it is back", 1_000, |stage| {
        role(stage, one) == Some(Role::Follower)
    });
    assert!(stage.now() - since >= 1_990);
    assert_eq!(stage.leader(), leader);
    stage.ends_well();
}

/// A28: n1 and n3 acknowledge what n2 has not; n3 stops, n1 leads no more and goes on running. n3 comes back with an
/// older copy of its data directory and n2 with what it has: they are a majority, and n1 alone can say what n3 lacks.
#[test]
pub(crate) fn a28_a_leader_of_before_says_what_a_member_that_was_set_back_has_forgotten() {
    for seed in 1..=8 {
        let mut options = Options::still(3);
        options.real_log = false;
        options.seed = seed;
        let mut stage = Stage::of(options);
        let [first, second, third] = [stage.leader(), stage.other(1), stage.other(2)];
        let older = copies(&mut stage, &[third]);
        stage.world.stop(second, Ending::Kill);
        let mut revision = 0;
        for _ in 0..3 {
            revision = written(&mut stage);
        }
        stage.wait(100);
        stage.world.stop(third, Ending::Kill);
        stage.until("it leads no more", 1_000, |stage| !stage.leads(first));
        come_back_older(&mut stage, older);
        stage.world.start(second);
        stage.world.start(third);
        stage.until("somebody leads", 5_000, |stage| {
            stage.world.leader().is_some()
        });
        assert_eq!(stage.leader(), first, "nobody else has everything");
        assert_eq!(role(&stage, third), Some(Role::Quarantined));
        stage.must_show(second, revision, 2_000);
        stage.until("it is back", 3_000, |stage| {
            role(stage, third) == Some(Role::Follower)
        });
        stage.ends_well();
    }
}

/// A28: n3 acknowledges to n1, and then, while n1 is cut off, to n2 what n1 has not. n2 stops, n3 comes back with a copy
/// from before both: n1 would be elected by it, and says itself what n3 lacks.
#[test]
pub(crate) fn a28_a_leader_of_before_is_not_elected_by_a_member_that_was_set_back() {
    let mut options = Options::still(3);
    options.real_log = false;
    let mut stage = Stage::of(options);
    let first = stage.leader();
    let others = [stage.other(1), stage.other(2)];
    let older = copies(&mut stage, &others);
    assert_eq!(stage.leader(), first);
    stage.write();
    stage.wait(100);
    stage.does(4_000, Fault::Isolate(Node(first), Way::Both, false));
    let second = stage.until_another_leads(first, 3_000);
    let third = others.into_iter().find(|other| *other != second);
    let third = third.expect("there are two");
    let revision = written(&mut stage);
    stage.wait(100);
    stage.world.stop(second, Ending::Kill);
    stage.world.stop(third, Ending::Kill);
    stage.wait(4_000);
    let older = older.into_iter().filter(|(node, _)| *node == third);
    come_back_older(&mut stage, older.collect());
    stage.world.start(third);
    for _ in 0..50 {
        stage.wait(100);
        assert_eq!(stage.world.leader(), None);
    }
    assert_eq!(role(&stage, third), Some(Role::Quarantined));
    stage.world.start(second);
    stage.must_show(first, revision, 5_000);
    assert_eq!(stage.leader(), second);
    stage.ends_well();
}

/// RL4: a holder of a read lease comes back at once with an older copy of its data directory, and asks for a read lease
/// before anybody knows. What its earlier life acknowledged says nothing of what this one would serve.
#[test]
pub(crate) fn rl4_a_holder_that_was_set_back_serves_nothing_before_it_has_everything() {
    let text = include_str!(
        "regressions/a_holder_that_was_set_back_is_granted_a_read_lease_at_once.sched"
    );
    let script = crate::script::read(text).expect("it is well formed");
    let report = crate::run::run(script.options);
    assert!(report.violation.is_none(), "{:?}", report.violation);
    assert!(report.marks.count(crate::marks::Mark::MemberSetBack) > 0);
}

/// Writes; the revision.
fn written(stage: &mut Stage) -> i64 {
    match stage.write() {
        Fate::Written { revision } => revision,
        _ => unreachable!("write() checks it"),
    }
}

fn role(stage: &Stage, node: usize) -> Option<Role> {
    let process = stage.world.machines[node].process.as_ref();
    process.map(|process| process.node.status().role)
}

/// A27: n1 and n3 acknowledge what n2 has not, n1 stops, n3 comes back with an older copy of its data directory,
/// and n2 and n3 go on. When n1 returns there are two histories, and no majority can say which is right.
#[test]
pub(crate) fn a27_a_member_whose_log_has_diverged_serves_nothing_and_keeps_it() {
    let (mut stage, nodes) = to_be_set_back();
    let [_, second, third] = nodes;
    let older = copies(&mut stage, &[third]);
    stage.world.stop(second, Ending::Kill);
    must_diverge(stage, nodes, older);
}

/// A27: all three acknowledge, n1 stops, and both others come back with older copies of their data directories.
#[test]
fn a27_two_older_copies_do_not_go_on_in_silence_beside_the_only_whole_log() {
    let (mut stage, nodes) = to_be_set_back();
    let older = copies(&mut stage, &nodes[1..]);
    must_diverge(stage, nodes, older);
}

/// A27: n1 and n3 elect once more while n2 is down, and n3 comes back with a copy of before: the same term elects
/// another leader. Then entries of one place and term differ.
#[test]
pub(crate) fn a27_a_term_that_an_older_copy_repeats_is_seen_by_what_its_entries_say() {
    let (mut stage, nodes) = to_be_set_back();
    let [first, second, third] = nodes;
    let older = copies(&mut stage, &[third]);
    stage.world.stop(second, Ending::Kill);
    stage.world.stop(first, Ending::Kill);
    stage.world.start(first);
    stage.until("somebody leads", 5_000, |stage| {
        stage.world.leader().is_some()
    });
    for _ in 0..3 {
        stage.write();
    }
    stage.wait(100);
    for node in nodes {
        stage.world.stop(node, Ending::Kill);
    }
    let term = |stage: &Stage, node: usize| {
        let last = stage.world.machines[node].disk.entries().last();
        last.map(|entry| entry.id.term)
    };
    let kept = term(&stage, first);
    set_back(&mut stage, older);
    stage.world.start(second);
    stage.world.start(third);
    stage.until_another_leads(first, 5_000);
    stage.write();
    assert_eq!(term(&stage, stage.leader()), kept);
    must_be_seen(stage, nodes);
}

/// Three members, the leader first, of which some will be set back to what they have now.
fn to_be_set_back() -> (Stage, [usize; 3]) {
    let mut options = Options::still(3);
    options.real_log = false;
    let mut stage = Stage::of(options);
    let nodes = [stage.leader(), stage.other(1), stage.other(2)];
    stage.write();
    stage.wait(100);
    (stage, nodes)
}

/// These come back with copies of before, and more is lost than a majority can make up for.
fn set_back(stage: &mut Stage, older: Vec<(usize, OlderCopy)>) {
    come_back_older(stage, older);
    stage.world.judge.beyond = true;
}

/// These come back with copies of before.
fn come_back_older(stage: &mut Stage, older: Vec<(usize, OlderCopy)>) {
    for (node, copy) in older {
        stage.world.machines[node].disk.set_back(&copy);
        let disk = &stage.world.machines[node].disk;
        stage.world.judge.stopped(node, disk);
    }
}

/// The operator copies the data directories of these, one after the other.
fn copies(stage: &mut Stage, nodes: &[usize]) -> Vec<(usize, OlderCopy)> {
    let mut copies = Vec::new();
    for node in nodes {
        stage.world.stop(*node, Ending::Kill);
        let copy = stage.world.machines[*node].disk.copy();
        copies.push((*node, copy.expect("the log is a plain one")));
        stage.world.start(*node);
        stage.wait(1_000);
    }
    copies
}

/// Some writes are acknowledged, the first member stops, the others go on with these copies, and the first returns.
fn must_diverge(mut stage: Stage, nodes: [usize; 3], older: Vec<(usize, OlderCopy)>) {
    let [first, second, third] = nodes;
    for _ in 0..3 {
        stage.write();
    }
    stage.wait(100);
    // What the database did not have when its process was killed, no leader contradicts.
    stage.world.machines[first].disk.state.hands_over();
    for node in nodes {
        stage.world.stop(node, Ending::Kill);
    }
    set_back(&mut stage, older);
    stage.world.start(second);
    stage.world.start(third);
    stage.until_another_leads(first, 5_000);
    stage.write();
    must_be_seen(stage, nodes);
}

/// The first member returns to two who have gone on without what it has. It notices at once, and serves nothing.
fn must_be_seen(mut stage: Stage, [first, second, third]: [usize; 3]) {
    let kept = stage.world.machines[first].disk.entries().to_vec();
    stage.world.start(first);
    stage.until("it has diverged", 5_000, |stage| {
        matches!(state_check(stage, first), Some(StateCheck::Diverged(_)))
    });
    for node in [second, third] {
        assert_eq!(state_check(&stage, node), Some(StateCheck::Sound));
    }
    must_refuse(&mut stage, first);
    let Fate::Written { revision } = stage.write() else {
        unreachable!("write() checks it");
    };
    stage.must_show(second, revision, 500);

    // Nor does it serve what it has when there is nobody who contradicts it; and nobody leads with its vote.
    for node in [first, second, third] {
        stage.world.stop(node, Ending::Kill);
    }
    assert_eq!(stage.world.machines[first].disk.entries(), kept);
    stage.world.start(first);
    stage.wait(100);
    must_refuse(&mut stage, first);
    stage.world.start(third);
    for _ in 0..50 {
        stage.wait(100);
        assert_eq!(stage.world.leader(), None);
    }
    assert_eq!(stage.world.machines[first].disk.entries(), kept);
}

/// D3: the state of every member is set aside though its log goes back no further. Nobody can lead without a state, and
/// none can be sent; so after a while without a leader each opens again what it has set aside.
#[test]
fn d3_states_that_were_set_aside_everywhere_are_opened_again() {
    let mut options = Options::still(3);
    options.real_log = false;
    options.log_tail = Some(0);
    let mut stage = Stage::of(options);
    let is_cut = |stage: &Stage, node: usize| stage.world.machines[node].disk.base().index.0 > 0;
    let mut revision = 0;
    while !(0..3).all(|node| is_cut(&stage, node)) {
        revision = written(&mut stage);
        assert!(revision < 1_000, "logs are cut");
    }
    for node in 0..3 {
        stage.world.stop(node, Ending::Kill);
        stage.world.machines[node].disk.break_state();
    }
    for node in 0..3 {
        stage.world.start(node);
    }
    for _ in 0..100 {
        stage.wait(100);
        assert_eq!(stage.world.leader(), None);
    }
    for node in 0..3 {
        stage.world.stop(node, Ending::Kill);
        stage.world.machines[node].disk.want_state_back();
        stage.world.start(node);
    }
    stage.until("somebody leads", 5_000, |stage| {
        stage.world.leader().is_some()
    });
    for node in 0..3 {
        stage.must_show(node, revision, 2_000);
    }
    stage.ends_well();
}

fn state_check(stage: &Stage, node: usize) -> Option<StateCheck> {
    let process = stage.world.machines[node].process.as_ref();
    process.map(|process| process.node.state_check())
}

fn must_refuse(stage: &mut Stage, node: usize) {
    for consistency in [Consistency::Serializable, Consistency::Linearizable] {
        let read = stage.read_at(node, consistency, 200);
        assert_eq!(read, Fate::NotApplied, "{consistency:?}");
    }
}

/// A24: a disk that lies is beyond what a replica can find out by itself. Its leader finds it out,
/// and as long as it is the only one, nothing is lost.
#[test]
fn a24_a_follower_whose_disk_lied_gets_back_what_it_acknowledged() {
    let mut stage = Stage::with(3);
    let (leader, one) = (stage.leader(), stage.other(1));
    stage.world.machines[one].disk.lie(true);
    for _ in 0..5 {
        stage.write();
    }
    stage.wait(200);
    let held = stage.world.machines[one].disk.entries().len();
    stage.does(20, Fault::Crash(Node(one), Ending::Power));
    assert!(
        stage.world.machines[one].disk.entries().len() < held,
        "what it said to be durable is gone"
    );
    stage.world.machines[one].disk.lie(false);
    let lost = move |stage: &Stage| {
        let process = stage.world.machines[leader].process.as_ref();
        process.expect("it runs").published.lost_logs()
    };
    assert_eq!(lost(&stage), 0);
    stage.until("the leader notices", 2_000, move |stage| lost(stage) > 0);
    stage.until("it has everything again", 2_000, |stage| {
        stage.world.machines[one].disk.entries().len() >= held
    });
    assert_eq!(stage.leader(), leader);
    stage.ends_well();
}

/// A1: a request that is decoded later belongs to the next batch, though it came in the same packet.
#[test]
fn a1_what_is_decoded_later_belongs_to_the_next_batch() {
    let mut options = Options::still(3);
    options.clients = 5;
    options.think = 5 * MS;
    options.together = 1.0;
    options.batch_max = 2;
    options.preempt = 0.5;
    options.preempt_max = 20 * MS;
    let mut stage = Stage::of(options);
    stage.wait(5_000);
    let marks = stage.world.judge.all_marks();
    for mark in [
        crate::marks::Mark::BatchOfSeveral,
        crate::marks::Mark::LeftForTheNextBatch,
    ] {
        assert!(marks.count(mark) > 20, "{mark:?}");
    }
    stage.ends_well();
}

/// P19: readings are rounded down to steps of half a millisecond, on each machine at another place.
#[test]
fn p19_clocks_that_read_in_steps_round_to_the_safe_side() {
    for (leader_ppm, voter_ppm) in [(-20_000, 20_000), (20_000, -20_000)] {
        let mut stage = Stage::with(3);
        let leader = stage.leader();
        let now = stage.world.now;
        for (node, machine) in stage.world.machines.iter_mut().enumerate() {
            let ppm = if node == leader {
                leader_ppm
            } else {
                voter_ppm
            };
            machine.clock.set_rates(now, ppm, ppm);
            machine.clock.read_in_steps_of(500_000);
        }
        stage.wait(700);
        stage.does(4_000, Fault::Isolate(Node(leader), Way::Both, false));
        stage.until_another_leads(leader, 3_000);
        assert!(!stage.lease_holds(leader));
        stage.ends_well();
    }
}

/// A log that is about to lose entries of a lost leadership to those of the next one, and the
/// process ends in between: what is found again was written by one of the two.
#[test]
fn a_write_that_replaces_entries_is_cut_short_and_the_log_reads_on() {
    let mut cut_short = 0;
    for seed in 1..=affordable(40) {
        let text = format!(
            "seed {seed}\nlog real\nclients 6\nconnections 4\nthink 5ms\nfaults-last 6s\n\
             at 1500ms for 2s: isolate n1 both\nat 1500ms for 2s: isolate n2 both\n\
             at 3600ms for 1s: slow-disk n1 3ms\nat 3600ms for 1s: slow-disk n2 3ms\n\
             at 3600ms for 1s: slow-disk n3 3ms\n\
             after 3600ms on appended then 100us for 1ms: crash sender power\n\
             after 3700ms on append then 100us for 1ms: crash receiver kill\n\
             at 4700ms for 2ms: crash leader kill\n"
        );
        let script = crate::script::read(&text).expect("it is well formed");
        let report = crate::run::run(script.options);
        assert!(report.violation.is_none(), "{seed}: {:?}", report.violation);
        cut_short += report.marks.count(crate::marks::Mark::LogCutShort);
    }
    assert!(cut_short > 0);
}
