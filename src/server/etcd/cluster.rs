//! The service of members.

use super::caller::Caller;
use super::pages::unexpected;
use crate::api::{Membership, Request, ResponseBody};
use crate::etcd::errors::Method;
use crate::etcd::proto;
use crate::etcd::proto::{Member, MemberListResponse};
use crate::etcd::status::Status;

/// MemberList: all members, with the URLs that clients dial.
pub(super) async fn member_list(
    caller: Caller,
    list: proto::MemberListRequest,
) -> Result<MemberListResponse, Status> {
    let consistency = caller.consistency(!list.linearizable);
    let request = caller.ask(Request::MemberList, consistency, Method::Node);
    let response = request.await?;
    let ResponseBody::Members(list) = response.body else {
        return Err(unexpected());
    };
    let directory = &caller.sessions.node.directory;
    let members = list.members.into_iter().map(|member| Member {
        id: member.info.id.0,
        client_urls: directory.etcd_url(member.info.id).into_iter().collect(),
        peer_urls: vec![format!("https://{}", member.info.peer_address)],
        is_learner: member.membership != Membership::Voter,
        name: member.info.name,
    });
    Ok(MemberListResponse {
        // As in etcd, it names no revision.
        header: Some(caller.header_at(&response.header, 0)),
        members: members.collect(),
    })
}
