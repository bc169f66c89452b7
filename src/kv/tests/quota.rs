//! Writes while there is no room.

use super::*;

const ALARM: SpaceAlarm = SpaceAlarm {
    used: 11,
    quota: 10,
};

fn refused(reply: &Reply) -> ErrorKind {
    let error = reply.result.as_ref().expect_err("there is no room");
    assert_eq!(error.outcome, Outcome::NotApplied);
    error.kind.clone()
}

#[test]
fn while_the_alarm_is_raised_nothing_grows_and_what_frees_is_taken() {
    let mut machine = Machine::default();
    let session = machine.open();
    let (revision, _) = machine.put("a", "1");
    let first = machine.once(session, 1, 0, put("b", "1"));
    assert!(first.result.is_ok());
    assert_eq!(
        machine.run(&Command::SetSpaceAlarm(Some(ALARM))).result,
        Ok(None)
    );
    assert_eq!(machine.progress().space_alarm, Some(ALARM));
    let before = machine.progress().revision;
    let no_space = ErrorKind::NoSpace {
        used: 11,
        quota: 10,
    };
    let write = |operation| Command::Write {
        author: None,
        session: None,
        operation,
    };
    assert_eq!(refused(&machine.run(&write(put("c", "1")))), no_space);
    let grant = Operation::LeaseGrant(LeaseGrant {
        ttl_ms: 1000,
        leases_max: 10,
        ..LeaseGrant::default()
    });
    assert_eq!(refused(&machine.run(&write(grant))), no_space);
    assert_eq!(
        (machine.progress().revision, machine.get("c")),
        (before, None)
    );
    // A retry of what was done before learns that it was; and what is refused stays refused.
    assert_eq!(machine.once(session, 1, 0, put("b", "1")), repeated(&first));
    assert_eq!(
        refused(&machine.once(session, 2, 0, put("d", "1"))),
        no_space
    );
    assert_eq!(machine.delete("a", KeyRange::Single).1.deleted, 1);
    machine.write(Operation::Compact(CompactionRequest::at(revision)));
    assert_eq!(machine.run(&Command::SetSpaceAlarm(None)).result, Ok(None));
    assert_eq!(machine.progress().space_alarm, None);
    assert_eq!(
        refused(&machine.once(session, 2, 0, put("d", "1"))),
        no_space
    );
    assert!(machine.once(session, 3, 0, put("d", "1")).result.is_ok());
    machine.put("c", "1");
}
