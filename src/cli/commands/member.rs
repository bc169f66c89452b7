//! `leasehold member`: who the members are, and how they are changed.

use std::io::Write;

use super::request::unexpected;
use crate::api::{
    Consistency, Member, MemberAddRequest, MemberUpdateRequest, MembersResponse, Membership,
    Request, ResponseBody, ResponseHeader,
};
use crate::cli::arguments::lease::read_id;
use crate::cli::arguments::member::{
    MemberAddArgs, MemberCommand, MemberReplaceArgs, MemberUpdateArgs,
};
use crate::cli::connection::Connection;
use crate::cli::failure::{Exit, Failure};
use crate::cli::print;
use crate::cli::print::View;
use crate::types::NodeId;

/// Does it, and prints what came of it.
pub(super) async fn run(
    command: MemberCommand,
    connection: &impl Connection,
    consistency: Consistency,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let list = async |consistency| ask(connection, Request::MemberList, consistency).await;
    if let MemberCommand::List = command {
        let (header, list) = list(consistency).await?;
        return Ok(print::members::list(out, view.format, &header, &list)?);
    }
    // The leader resolves the name: another node may have an old list of members.
    let members = list(Consistency::default()).await?.1.members;
    let (request, done) = request(command, &members)?;
    let (header, changed) = ask(connection, request, Consistency::default()).await?;
    Ok(print::members::changed(
        out,
        view.format,
        done,
        &members,
        (&header, &changed),
    )?)
}

/// Asks something about members that is answered with all of them.
pub(super) async fn ask(
    connection: &impl Connection,
    request: Request,
    consistency: Consistency,
) -> Result<(ResponseHeader, MembersResponse), Failure> {
    let response = connection.call(request, consistency).await?;
    match response.body {
        ResponseBody::Members(members) => Ok((response.header, *members)),
        other => Err(unexpected(&other)),
    }
}

/// What is asked for, and the word for it once it is done.
fn request(command: MemberCommand, members: &[Member]) -> Result<(Request, &'static str), Failure> {
    let id = |text: &str| find(text, members).map(|member| member.info.id);
    Ok(match command {
        MemberCommand::List => (Request::MemberList, "listed"),
        MemberCommand::Add(add) => (Request::MemberAdd(added(add)), "added"),
        MemberCommand::Remove(which) => {
            let id = id(&which.member)?;
            (Request::MemberRemove { id }, "removed")
        }
        MemberCommand::Promote(which) => {
            let id = id(&which.member)?;
            (Request::MemberPromote { id }, "promoted")
        }
        MemberCommand::Update(update) => {
            let MemberUpdateArgs {
                member,
                peer_urls,
                client_urls,
            } = update;
            let update = MemberUpdateRequest {
                id: id(&member)?,
                peer_address: peer_urls,
                client_address: client_urls,
            };
            (Request::MemberUpdate(update), "updated")
        }
        MemberCommand::Replace(replace) => {
            let member = find(&replace.member, members)?;
            let add = replacing(replace, member);
            (Request::MemberAdd(add), "added")
        }
    })
}

fn added(add: MemberAddArgs) -> MemberAddRequest {
    MemberAddRequest {
        name: add.name,
        peer_address: add.peer_urls,
        client_address: add.client_urls.unwrap_or_default(),
        learner: add.learner,
        replaces: None,
    }
}

fn replacing(replace: MemberReplaceArgs, member: &Member) -> MemberAddRequest {
    let info = &member.info;
    MemberAddRequest {
        name: replace.with.unwrap_or_else(|| info.name.clone()),
        peer_address: replace
            .peer_urls
            .unwrap_or_else(|| info.peer_address.clone()),
        client_address: replace.client_urls.unwrap_or_default(),
        learner: false,
        replaces: Some(info.id),
    }
}

/// A member by its name or by its id in hexadecimal. While a member takes its own place the name means
/// the one that votes; its next life is found by its id.
fn find<'a>(text: &str, members: &'a [Member]) -> Result<&'a Member, Failure> {
    let named = || members.iter().filter(|member| member.info.name == text);
    let by_name = named().find(|member| member.membership == Membership::Voter);
    let by_id = || {
        let id = NodeId(read_id(text)?);
        members.iter().find(|member| member.info.id == id)
    };
    let found = by_name.or_else(|| named().next()).or_else(by_id);
    found.ok_or_else(|| {
        let known: Vec<_> = members
            .iter()
            .map(|member| format!("{} ({:016x})", member.info.name, member.info.id.0))
            .collect();
        let known = known.join(", ");
        Failure::new(
            Exit::NotFound,
            format!("there is no member {text}: choose one of {known}"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::MemberInfo;

    fn member(id: u64, name: &str, membership: Membership) -> Member {
        Member {
            info: MemberInfo {
                id: NodeId(id),
                name: name.to_owned(),
                peer_address: format!("{name}:7401"),
                client_address: String::new(),
            },
            membership,
            ..Member::default()
        }
    }

    #[test]
    fn a_name_means_the_member_that_votes_and_an_id_whoever_has_it() {
        let joining = Membership::Joining {
            replaces: Some(NodeId(0xb)),
        };
        let members = [
            member(0xa, "n1", Membership::Voter),
            member(0xc, "n2", joining),
            member(0xb, "n2", Membership::Voter),
        ];
        let id = |text| find(text, &members).map(|member| member.info.id.0);
        assert_eq!(id("n2").unwrap(), 0xb);
        assert_eq!(id("c").unwrap(), 0xc);
        let failure = id("n9").unwrap_err();
        assert_eq!(failure.exit, Exit::NotFound);
        assert!(
            failure.message.contains("n1 (000000000000000a)"),
            "{failure}"
        );
    }

    #[test]
    fn a_member_that_is_built_anew_keeps_its_name_and_its_address() {
        let lost = member(0xb, "n2", Membership::Voter);
        let args = MemberReplaceArgs {
            member: "n2".into(),
            with: None,
            peer_urls: None,
            client_urls: None,
        };
        let add = replacing(args.clone(), &lost);
        assert_eq!(add.name, "n2");
        assert_eq!(add.peer_address, "n2:7401");
        assert_eq!(add.replaces, Some(NodeId(0xb)));
        let other = MemberReplaceArgs {
            with: Some("n4".into()),
            peer_urls: Some("n4:1".into()),
            ..args
        };
        let add = replacing(other, &lost);
        assert_eq!(
            (add.name.as_str(), add.peer_address.as_str()),
            ("n4", "n4:1")
        );
    }
}
