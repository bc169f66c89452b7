//! A machine that miscomputes: a write that it applies comes out otherwise than everywhere else, and
//! its state has the hash that belongs to it all the same. It keeps a reply under the wrong number,
//! which no client notices; only the comparison of states between members can find that.

use bytes::Bytes;
use leasehold::api::Consistency;
use leasehold::kv::Command;
use leasehold::types::LogId;
use leasehold::{kv, node};

use crate::disk::Ending;
use crate::history::{Action, Fate};
use crate::options::Options;
use crate::scenarios::Stage;
use crate::world::{Event, World};

impl World {
    /// What `node` makes of the entries that it is about to apply.
    pub(crate) fn miscomputed(
        &mut self,
        node: usize,
        mut entries: Vec<(LogId, Option<Bytes>)>,
    ) -> Vec<(LogId, Option<Bytes>)> {
        let machine = &mut self.machines[node];
        if !machine.miscomputes {
            return entries;
        }
        for (_, bytes) in &mut entries {
            let Some(other) = bytes.as_ref().and_then(otherwise) else {
                continue;
            };
            *bytes = Some(other);
            machine.miscomputes = false;
            break;
        }
        entries
    }
}

/// The same write under another number of its session, if it has one.
fn otherwise(bytes: &Bytes) -> Option<Bytes> {
    let Ok(Command::Write {
        author,
        session,
        operation,
    }) = Command::decode(bytes)
    else {
        return None;
    };
    let mut session = session;
    session.as_mut()?.sequence += 1_000;
    Some(
        Command::Write {
            author,
            session,
            operation,
        }
        .encode(),
    )
}

/// The comparison finds the one whose state is not that of the majority, and nobody else; it serves
/// nothing any more, its watches go on elsewhere, and built anew it is as good as the others.
#[test]
pub(crate) fn r4_a_member_whose_state_differs_finds_out_and_serves_nothing_more() {
    let mut options = Options::still(3);
    options.check_interval = Some(std::time::Duration::from_millis(500));
    options.watchers = 6;
    let mut stage = Stage::of(options);
    stage.wait(1_000);
    for which in 0..3 {
        let consistency = consistency(&stage, which);
        assert_eq!(consistency, Some(node::StateCheck::Sound), "n{which}");
    }
    let one = stage.other(1);
    stage.world.judge.errs(one, true);
    stage.world.machines[one].miscomputes = true;
    stage.write();
    stage.until("the difference is found", 10_000, |stage| {
        matches!(consistency(stage, one), Some(node::StateCheck::Corrupt(_)))
    });
    for other in [0, 1, 2].into_iter().filter(|other| *other != one) {
        assert_eq!(consistency(&stage, other), Some(node::StateCheck::Sound));
    }
    let read = stage.read_at(one, Consistency::Serializable, 200);
    assert_eq!(read, Fate::NotApplied, "not even what may be old");
    let read = stage.read_at(one, Consistency::Linearizable, 200);
    assert_eq!(read, Fate::NotApplied);
    stage.write();
    stage.wait(3_000);
    // As the server does at its next start: what was found wrong is built anew from the log.
    stage.world.stop(one, Ending::Kill);
    stage.world.machines[one].disk.lose_state();
    stage.world.judge.errs(one, false);
    stage.world.schedule(0, Event::Start(one));
    stage.until("all are equal", 5_000, |stage| {
        let hash = |which: usize| kv::content_hash(&stage.world.machines[which].disk.state.look());
        hash(one) == hash(stage.other(1)) && hash(one) == hash(stage.leader())
    });
    let shown = stage
        .world
        .ask(one, Action::Get(0, Consistency::Serializable), 40_000_000);
    assert!(matches!(shown, Fate::Read { .. }), "{shown:?}");
    stage.wait(2_000);
    assert_eq!(consistency(&stage, one), Some(node::StateCheck::Sound));
    stage.ends_well();
}

fn consistency(stage: &Stage, node: usize) -> Option<node::StateCheck> {
    let process = stage.world.machines[node].process.as_ref();
    process.map(|process| process.node.state_check())
}
