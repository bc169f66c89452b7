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
        keys_max: 10,
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

const NONE: [u64; 0] = [];

fn set_alarm(member: u64, is_raised: bool) -> Operation {
    Operation::SetAlarm {
        member: NodeId(member),
        is_raised,
    }
}

/// The members that a change of an alarm touched.
fn touched(machine: &mut Machine, member: u64, is_raised: bool) -> Vec<u64> {
    let reply = machine.run(&Command::Write {
        author: None,
        session: None,
        operation: set_alarm(member, is_raised),
    });
    match reply.result {
        Ok(Some(ResponseBody::Alarms(alarms))) => {
            assert!(!alarms.measured);
            alarms.members.iter().map(|member| member.0).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn raised(machine: &Machine) -> Vec<u64> {
    let alarms = alarms(&machine.store).unwrap();
    let members: Vec<u64> = alarms.members.iter().map(|member| member.0).collect();
    assert_eq!(
        usize::from(machine.progress().raised_alarms),
        members.len(),
        "the progress counts them"
    );
    members
}

#[test]
fn an_operator_s_alarm_refuses_writes_until_the_last_is_cleared() {
    let mut machine = Machine::default();
    let session = machine.open();
    machine.put("a", "1");
    let before = machine.store.clone();
    assert_eq!(touched(&mut machine, 9, false), NONE);
    // Raising it twice is raising it once, and each time it is named; so is that of no member.
    assert_eq!(touched(&mut machine, u64::MAX, true), [u64::MAX]);
    assert_eq!(touched(&mut machine, 5, true), [5]);
    assert_eq!(touched(&mut machine, 5, true), [5]);
    assert_eq!(touched(&mut machine, 0, true), [0]);
    assert_eq!(raised(&machine), [0, 5, u64::MAX]);
    let no_space = ErrorKind::NoSpace { used: 0, quota: 0 };
    let refused_put = machine.once(session, 1, 0, put("b", "1"));
    assert_eq!(refused(&refused_put), no_space);
    assert_eq!(machine.delete("a", KeyRange::Single).1.deleted, 1);
    // The figures of the alarm that is measured say more.
    machine.run(&Command::SetSpaceAlarm(Some(ALARM)));
    assert!(alarms(&machine.store).unwrap().measured);
    let measured = machine.once(session, 2, 0, put("b", "1"));
    assert_eq!(
        refused(&measured),
        ErrorKind::NoSpace {
            used: 11,
            quota: 10
        }
    );
    machine.run(&Command::SetSpaceAlarm(None));
    for member in [5, 0] {
        assert_eq!(touched(&mut machine, member, false), [member]);
        let refusal = machine.once(session, 3 + member, 0, put("b", "1"));
        assert_eq!(refused(&refusal), no_space);
    }
    assert_eq!(touched(&mut machine, 0, false), NONE);
    assert_eq!(touched(&mut machine, u64::MAX, false), [u64::MAX]);
    assert_eq!(raised(&machine), NONE);
    let key = Bytes::from_static(b"alarms");
    assert_eq!(machine.store.get(Space::Meta, &key).unwrap(), None);
    assert_eq!(before.get(Space::Meta, &key).unwrap(), None);
    assert!(machine.once(session, 10, 0, put("b", "1")).result.is_ok());
}

#[test]
fn operators_alarms_have_a_limit() {
    let mut machine = Machine::default();
    let most = RAISED_ALARMS_MAX as u64;
    for member in 0..most {
        assert_eq!(touched(&mut machine, member, true), [member]);
    }
    let more = machine.run(&Command::Write {
        author: None,
        session: None,
        operation: set_alarm(most, true),
    });
    assert_eq!(refused(&more), ErrorKind::InvalidArgument);
    assert_eq!(touched(&mut machine, 7, true), [7]);
    assert_eq!(touched(&mut machine, 7, false), [7]);
    assert_eq!(touched(&mut machine, most, true), [most]);
    assert_eq!(raised(&machine).len(), RAISED_ALARMS_MAX);
}

/// Each part of the record of the progress is there or not by itself.
#[test]
fn alarms_are_stored_beside_all_else_and_survive_a_restore() {
    let mut machine = Machine::default();
    machine.put("a", "1");
    let key = Bytes::from_static(b"progress");
    let length = |machine: &Machine| {
        let record = machine.store.get(Space::Meta, &key).unwrap();
        record.unwrap().len()
    };
    let alarms_of = |machine: &Machine| (machine.progress().space_alarm, raised(machine));
    let user = AuthRequest::RoleAdd { name: "r".into() };
    let mut lengths = Vec::new();
    for has_access in [false, true] {
        if has_access {
            machine.write(Operation::Auth(user.clone()));
        }
        for alarm in [None, Some(ALARM)] {
            machine.run(&Command::SetSpaceAlarm(alarm));
            for members in [vec![], vec![3]] {
                touched(&mut machine, 3, !members.is_empty());
                assert_eq!(alarms_of(&machine), (alarm, members));
                assert_eq!(machine.progress().access.revision > 0, has_access);
                lengths.push(length(&machine));
            }
        }
    }
    assert_eq!(lengths, [48, 50, 64, 66, 57, 59, 73, 75]);
    touched(&mut machine, 0x0102, true);
    let record = machine.store.get(Space::Meta, b"alarms").unwrap().unwrap();
    assert_eq!(record[..], [0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 1, 2]);
    // A damaged one is told from one that is not there.
    for length in [0, 7, 9] {
        let mut damaged = machine.store.clone();
        let record = Bytes::from(vec![1; length]);
        damaged.put(Space::Meta, Bytes::from_static(b"alarms"), record);
        assert!(alarms(&damaged).is_err(), "{length} bytes");
    }
    let restored = reset_identity(&mut machine.store, 100).unwrap();
    assert_eq!(restored.raised_alarms, 2);
    assert_eq!(raised(&machine), [3, 0x0102]);
}
