//! Who the members are, as text.

use std::io;
use std::io::Write;

use super::json::{line, with_header};
use super::table::{Align, table};
use crate::api::{Member, MembersResponse, Membership, ResponseHeader};
use crate::cli::arguments::Format;

/// The reply of `member list`.
///
/// # Errors
/// Those of `out`.
pub fn list(
    out: &mut impl Write,
    format: Format,
    header: &ResponseHeader,
    list: &MembersResponse,
) -> io::Result<()> {
    let members = &list.members;
    match format {
        Format::Simple => members
            .iter()
            .try_for_each(|member| writeln!(out, "{}", row(member).join(", "))),
        Format::Table => {
            let columns = [
                ("ID", Align::Left),
                ("STATUS", Align::Left),
                ("NAME", Align::Left),
                ("PEER ADDRS", Align::Left),
                ("CLIENT ADDRS", Align::Left),
                ("IS LEARNER", Align::Right),
            ];
            table(
                out,
                &columns,
                members.iter().map(|member| row(member).into()),
            )
        }
        Format::Fields => members.iter().try_for_each(|member| {
            let info = &member.info;
            writeln!(out, "\"ID\" : {}", info.id.0)?;
            writeln!(out, "\"Name\" : {:?}", info.name)?;
            writeln!(out, "\"PeerAddress\" : {:?}", info.peer_address)?;
            writeln!(out, "\"ClientAddress\" : {:?}", info.client_address)?;
            writeln!(out, "\"Membership\" : {:?}", word(member.membership))?;
            writeln!(out, "\"IsLearner\" : {}", !member.membership.votes())?;
            writeln!(out)
        }),
        Format::Json => {
            let members: Vec<_> = members.iter().map(document).collect();
            let document = serde_json::json!({ "members": members, "settled": list.settled });
            line(out, &with_header(header, document))
        }
    }
}

/// That a change is complete. `before` are the members that there were.
///
/// # Errors
/// Those of `out`.
pub fn changed(
    out: &mut impl Write,
    format: Format,
    done: &str,
    before: &[Member],
    (header, after): (&ResponseHeader, &MembersResponse),
) -> io::Result<()> {
    if matches!(format, Format::Json | Format::Fields | Format::Table) {
        return list(out, format, header, after);
    }
    let all = after.members.iter().chain(before);
    let about = all
        .into_iter()
        .find(|member| Some(member.info.id) == after.changed);
    let Some(about) = about else {
        return writeln!(out, "Member {done}");
    };
    let name = &about.info.name;
    writeln!(out, "Member {:016x} ({name}) {done}", about.info.id.0)?;
    // One that was removed is shown as it was before.
    if let Membership::Joining { replaces } = about.membership
        && done != "removed"
    {
        let voter = replaces.and_then(|id| before.iter().find(|member| member.info.id == id));
        let then = match voter {
            Some(voter) if voter.info.name == *name => {
                "it becomes a voter again once it has caught up: empty its data directory, and \
                 start it"
                    .to_owned()
            }
            Some(voter) => format!(
                "it replaces {} once it has caught up: start it with cluster.state = \"join\"",
                voter.info.name
            ),
            None => "it becomes a voter once it has caught up: start it with cluster.state = \
                     \"join\""
                .to_owned(),
        };
        writeln!(out, "{then}")?;
    }
    Ok(())
}

fn row(member: &Member) -> [String; 6] {
    let info = &member.info;
    [
        format!("{:016x}", info.id.0),
        status(member).to_owned(),
        info.name.clone(),
        info.peer_address.clone(),
        info.client_address.clone(),
        (!member.membership.votes()).to_string(),
    ]
}

/// Where clients reach it a member says itself: before it has, it was not started.
fn status(member: &Member) -> &'static str {
    match member.info.client_address.is_empty() {
        true => "unstarted",
        false => "started",
    }
}

fn word(membership: Membership) -> &'static str {
    match membership {
        Membership::Voter => "voter",
        Membership::Learner => "learner",
        Membership::Joining { .. } => "joining",
        Membership::Leaving => "leaving",
    }
}

fn document(member: &Member) -> serde_json::Value {
    let info = &member.info;
    serde_json::json!({
        "id": format!("{:016x}", info.id.0),
        "status": status(member),
        "name": info.name,
        "peer_address": info.peer_address,
        "client_address": info.client_address,
        "membership": word(member.membership),
        "is_learner": !member.membership.votes(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::MemberInfo;
    use crate::types::NodeId;

    fn members() -> Vec<Member> {
        let member = |id: u64, name: &str, client: &str, membership| Member {
            info: MemberInfo {
                id: NodeId(id),
                name: name.into(),
                peer_address: format!("{name}:7401"),
                client_address: client.into(),
            },
            membership,
            ..Member::default()
        };
        vec![
            member(0x8211, "n1", "n1:7400", Membership::Voter),
            member(0x9, "n4", "", Membership::Joining { replaces: None }),
        ]
    }

    #[test]
    fn the_list_shows_who_votes_and_who_was_never_started() {
        let list_as = |format| {
            let mut out = Vec::new();
            let response = MembersResponse {
                members: members(),
                ..MembersResponse::default()
            };
            list(&mut out, format, &ResponseHeader::default(), &response).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            list_as(Format::Simple),
            "0000000000008211, started, n1, n1:7401, n1:7400, false\n\
             0000000000000009, unstarted, n4, n4:7401, , true\n"
        );
        let table = list_as(Format::Table);
        assert!(table.contains("| IS LEARNER |"), "{table}");
        let json: serde_json::Value = serde_json::from_str(&list_as(Format::Json)).unwrap();
        assert_eq!(json["members"][1]["membership"], "joining");
    }

    #[test]
    fn a_change_says_what_to_do_next() {
        let mut out = Vec::new();
        let response = MembersResponse {
            members: members(),
            changed: Some(NodeId(9)),
            settled: false,
        };
        let after = (&ResponseHeader::default(), &response);
        changed(&mut out, Format::Simple, "added", &[], after).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "Member 0000000000000009 (n4) added\nit becomes a voter once it has caught up: start \
             it with cluster.state = \"join\"\n"
        );
    }

    #[test]
    fn who_removes_a_learner_is_not_told_how_it_joins() {
        let mut out = Vec::new();
        let response = MembersResponse {
            members: members().drain(..1).collect(),
            changed: Some(NodeId(9)),
            settled: true,
        };
        let after = (&ResponseHeader::default(), &response);
        changed(&mut out, Format::Simple, "removed", &members(), after).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "Member 0000000000000009 (n4) removed\n"
        );
    }
}
